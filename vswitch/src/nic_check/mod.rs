//! `vswitch nic check`: what a NIC and its machine are like, what is wanted, and the command for each difference.
//!
//! ```text
//!   sysfs, devlink, dcb (host.rs) --> device, machine, network, eswitch, offload: findings --> Report: table, JSON, status
//! ```
//! Looks, and changes nothing: no traffic is touched. DPDK is not started here; which rules a device takes, a switch that runs
//! with it says, or a process that has nothing else to do (`probe/`). Written for mlx5 from the documents of the
//! kernel and the vendor; unconfirmed on hardware. `pmd-bindings/BRINGUP.md` is the same list for people, in the same order.

pub mod commands;
mod device;
mod device_name;
pub mod devlink;
mod eswitch;
pub mod finding;
pub mod host;
mod machine;
mod network;
mod offload;
pub mod probe;
#[cfg(test)]
mod tests;
mod wanted;

use std::path::{Path, PathBuf};

pub use device_name::Device;
pub use finding::{Finding, FindingState, NicReport};
pub use host::HostView;
use host::Unread;
use probe::Probed;
use wanted::WantedDevice;

use crate::config::Config;

/// Why a device could not be looked at.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unseen {
    /// It is no PCI address.
    #[error("{0}")]
    Address(String),
    /// There is no such device.
    #[error("there is no PCI device {pci}; {known}")]
    NoDevice {
        /// Its address.
        pci: String,
        /// Those of the vendor that there are.
        known: String,
    },
    /// The kernel shows no PCI bus here.
    #[error(
        "/sys/bus/pci/devices is not there: this machine has no PCI bus, or sysfs is not mounted in this container"
    )]
    NoBus,
}

/// A device that is looked at.
struct DeviceLook<'a> {
    host: &'a HostView,
    wanted: &'a WantedDevice,
    /// The config's file.
    file: &'a str,
    /// Its full address.
    pci: String,
    /// Its folder, below the host's root.
    path: PathBuf,
    /// The kernel's driver.
    driver: Option<String>,
    /// The interface of the function itself: no representor.
    netdev: Option<String>,
}

impl DeviceLook<'_> {
    fn text(&self, file: &str) -> Result<String, Unread> {
        self.host.read(self.path.join(file))
    }

    fn number(&self, file: &str) -> Result<u32, Unread> {
        self.host.number(self.path.join(file))
    }

    fn rdma_devices(&self) -> Vec<String> {
        self.host.names(self.path.join("infiniband"))
    }

    fn devlink_firmware(&self) -> Option<String> {
        devlink::firmware(self.host, &self.pci).ok()
    }

    /// Interfaces of the same e-switch that stand for VFs or sub-functions, each with the name of its port.
    fn representors(&self) -> Vec<(String, String)> {
        let file = |netdev: &str, name: &str| {
            self.host
                .read(Path::new("sys/class/net").join(netdev).join(name))
                .ok()
                .filter(|text| !text.is_empty())
        };
        let switch = |netdev: &str| file(netdev, "phys_switch_id");
        let Some(own) = self.netdev.as_deref().and_then(switch) else { return Vec::new() };
        let there = self.host.names("sys/class/net").into_iter();
        there
            .filter(|netdev| switch(netdev).as_ref() == Some(&own))
            .filter_map(|netdev| file(&netdev, "phys_port_name").map(|port| (netdev, port)))
            .filter(|(_, port)| is_representor(port))
            .collect()
    }
}

/// `pf0vf1`, `pf0sf2`, also with the number of a controller before it: ports that stand for another function.
fn is_representor(port: &str) -> bool {
    let function = |kind: &str| {
        port.rsplit_once(kind)
            .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    port.contains("pf") && (function("vf") || function("sf"))
}

/// Looks at a device, with what a config (and its file's name) wants of it. `probed` is what it says of rules, where it was
/// asked.
///
/// # Errors
/// When there is nothing to look at.
pub fn check(
    host: &HostView,
    device: &Device,
    config: Option<(&Config, &str)>,
    probed: Option<&Result<Probed, String>>,
) -> Result<NicReport, Unseen> {
    const BUS: &str = "sys/bus/pci/devices";
    let wanted = WantedDevice::of(config.map(|(config, _)| config), device.name());
    let file = config.map_or("", |(_, file)| file);
    let pci = match device {
        Device::Pci(pci) => pci.clone(),
        Device::Virtual(name) => return Ok(virtual_device(host, name, &wanted, file, probed)),
    };
    let path = Path::new(BUS).join(&pci);
    if !host.exists(BUS) {
        return Err(Unseen::NoBus);
    }
    if !host.exists(&path) {
        let ours = |address: &String| {
            host.read(Path::new(BUS).join(address).join("vendor"))
                .is_ok_and(|vendor| vendor == device::VENDOR)
        };
        let known: Vec<String> = host.names(BUS).into_iter().filter(ours).collect();
        let known = match &known[..] {
            [] => "none here is of a vendor that mlx5 drives; `lspci -D` lists all".into(),
            known => format!("mlx5 drives {}", known.join(", ")),
        };
        return Err(Unseen::NoDevice { pci, known });
    }
    let driver = host.link(path.join("driver"));
    let own = |netdev: &String| {
        let port = host.read(Path::new("sys/class/net").join(netdev).join("phys_port_name"));
        !port.is_ok_and(|port| is_representor(&port))
    };
    let netdev = host.names(path.join("net")).into_iter().find(own);
    let look = DeviceLook { host, wanted: &wanted, file, pci, path, driver, netdev };
    let mut findings = device::findings(&look);
    findings.push(machine::huge_pages(&look));
    findings.push(machine::cores(&look));
    findings.push(device::pcie(&look));
    findings.push(network::link(&look));
    findings.push(network::mtu(&look));
    findings.extend(eswitch::findings(&look));
    findings.extend(network::lossless(&look));
    findings.push(network::queues(&look, probed));
    findings.push(offload::config(&look));
    findings.push(offload::build());
    findings.push(offload::source_ports(&look));
    findings.extend(offload::chains(&look, probed));
    Ok(NicReport { device: look.pci, findings })
}

/// A virtual device has no place on a bus, no firmware and no e-switch that the kernel knows of: what is left is memory, the
/// config, and its rules.
fn virtual_device(
    host: &HostView,
    name: &str,
    wanted: &WantedDevice,
    file: &str,
    probed: Option<&Result<Probed, String>>,
) -> NicReport {
    let path = Path::new("sys/bus/vdev/devices").join(name);
    let look = DeviceLook { host, wanted, file, pci: name.into(), path, driver: None, netdev: None };
    let mut findings = vec![machine::huge_pages(&look), offload::config(&look), offload::build()];
    findings.extend(offload::chains(&look, probed));
    NicReport { device: look.pci, findings }
}
