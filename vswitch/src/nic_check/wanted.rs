//! What a config wants of a device, or what is good where there is none.

use crate::config::{Config, HugePages, OffloadConfig, OffloadDevice, PortSpec};
use crate::port::full_address;
use crate::switch::ports;

/// The MTU of an underlay that carries tenants' 1500 bytes in VxLAN over either IP version, with room.
const USUAL_MTU: u16 = 1600;

/// What is wanted of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedDevice {
    /// A config says so; else it is what is usual.
    pub by_config: bool,
    /// Ports of the config on this device.
    pub ports: Vec<String>,
    /// Those of them whose flows go into the NIC.
    pub offloaded: Vec<String>,
    /// Those whose flows go into the simulated e-switch.
    pub simulated: Vec<String>,
    /// The config's port on the function itself: no representor.
    pub spec: Option<PortSpec>,
    /// The driver's arguments.
    pub devargs: Option<String>,
    /// Numbers of the VFs that have a representor among the ports.
    pub vfs: Vec<u16>,
    /// The largest IP packet of the ports on the function itself.
    pub mtu: u16,
    /// Packet memory, in MiB; `None` when it does not come from huge pages.
    pub huge_mib: Option<u64>,
    /// Cores of workers, where the config names them.
    pub cores: Option<Vec<usize>>,
    /// How many workers there are.
    pub workers: usize,
    pub offload: OffloadConfig,
}

impl WantedDevice {
    /// Of the device at this full address, or of this name.
    pub fn of(config: Option<&Config>, pci: &str) -> Self {
        let given = config.cloned().unwrap_or_default();
        let mut wanted = Self {
            by_config: config.is_some(),
            ports: Vec::new(),
            offloaded: Vec::new(),
            simulated: Vec::new(),
            spec: None,
            devargs: None,
            vfs: Vec::new(),
            mtu: 0,
            huge_mib: (given.eal.huge_pages != HugePages::Never).then(|| given.eal.memory.bytes() >> 20),
            cores: given.workers.cores.clone(),
            workers: given.workers.workers(),
            offload: given.offload.clone(),
        };
        for (name, port) in ports::wanted(&given) {
            let here = |address: &str| full_address(address).is_ok_and(|address| address == pci);
            let is_this = |part: &&PortSpec| match part {
                PortSpec::Pci(spec) => here(&spec.address),
                PortSpec::Raw(spec) => spec.vdev.split(',').next() == Some(pci),
                PortSpec::Representor(spec) => here(&spec.pf),
                _ => false,
            };
            let Some(part) = port.spec.parts().iter().find(is_this) else { continue };
            match part {
                PortSpec::Representor(spec) => wanted.vfs.push(spec.vf),
                part => wanted.spec = Some(part.clone()),
            }
            if let PortSpec::Pci(spec) = part {
                wanted.devargs.clone_from(&spec.devargs);
                wanted.mtu = wanted.mtu.max(port.mtu.unwrap_or_default());
            }
            match port.offload {
                Some(OffloadDevice::RteFlow) => wanted.offloaded.push(name.clone()),
                Some(OffloadDevice::Simulated) => wanted.simulated.push(name.clone()),
                None => {}
            }
            wanted.ports.push(name);
        }
        if wanted.mtu == 0 {
            wanted.mtu = USUAL_MTU;
        }
        wanted.vfs.sort_unstable();
        wanted
    }

    /// True where rules are to go into the NIC; without a config that is what one asks for.
    pub fn offloads(&self) -> bool {
        !self.by_config || !self.offloaded.is_empty()
    }

    /// True where the e-switch has to be in switchdev mode.
    pub fn switchdev(&self) -> bool {
        self.offloads() || !self.vfs.is_empty()
    }

    /// The engine that the driver's arguments choose; `None` where they leave it to the driver.
    pub fn dv_flow_en(&self) -> Option<&str> {
        let given = self.devargs.as_deref()?;
        given.split(',').find_map(|arg| arg.trim().strip_prefix("dv_flow_en="))
    }
}
