//! RDMA devices of this host: what there is, what it can do, and which addresses (GIDs) it answers to.
//!
//! Two sources, merged by device name. The kernel's sysfs gives names, ports, GID tables and counters, and is readable
//! by everyone; libibverbs (through `rdma-sys`, behind the feature `rdma`) gives limits such as `max_qp` and MTUs, and
//! needs access to `/dev/infiniband`. What either cannot say is said so, per device, and the rest goes on: a machine
//! without RDMA, without the user-space drivers, or a process without the rights is no error here.
//!
//! Opening a device may block on its firmware: not for workers. Nothing here creates a queue pair, registers memory or
//! changes a device.

mod sysfs;
#[cfg(feature = "rdma")]
mod verbs;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use crate::error::Errno;

/// Where the kernel shows its devices, and where their files are.
const CLASS: &str = "/sys/class";
const FILES: &str = "/dev/infiniband";

/// The RDMA devices of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The devices, by name.
    pub devices: Vec<Device>,
    /// Sentences on what could not be learned, or why there is nothing.
    pub notes: Vec<String>,
}

impl Inventory {
    /// A device by name.
    pub fn get(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name for it, such as `mlx5_0`.
    pub name: String,
    /// What it is: `CA`, `RNIC`, ...
    pub node_type: Option<String>,
    /// Its GUID.
    pub node_guid: Option<Guid>,
    /// The version of its firmware; software devices have none, or zeros.
    pub firmware: Option<String>,
    /// The vendor's name for the model, where the driver gives one.
    pub model: Option<String>,
    /// The bus address behind it, such as `0000:01:00.0`; software devices have none.
    pub bus: Option<String>,
    /// What verbs say it can do, or why they do not.
    pub limits: Result<Limits, Unopened>,
    /// Its ports.
    pub ports: Vec<DevicePort>,
}

/// What a device can do at most, by `ibv_query_device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The vendor's id (IEEE).
    pub vendor_id: u32,
    /// The part's id.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hardware_version: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
}

/// One port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePort {
    /// Its number, from 1.
    pub number: u32,
    /// Its state: `ACTIVE`, `DOWN`, ...
    pub state: Option<String>,
    /// The link's state: `LinkUp`, `Disabled`, ...
    pub physical_state: Option<String>,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: Option<String>,
    /// Speed and width in the kernel's words, such as `100 Gb/sec (4X EDR)`.
    pub rate: Option<String>,
    /// The largest MTU, in bytes of payload; verbs say it.
    pub max_mtu: Option<u16>,
    /// The MTU in force; verbs say it.
    pub active_mtu: Option<u16>,
    /// The GIDs in use.
    pub gids: Vec<Gid>,
    /// The standard counters.
    pub counters: BTreeMap<String, u64>,
    /// The driver's own counters.
    pub hw_counters: BTreeMap<String, u64>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The GID.
    pub address: Ipv6Addr,
    /// What packets under it look like.
    pub kind: GidKind,
    /// The network interface it comes from.
    pub netdev: Option<String>,
}

impl Gid {
    /// The IP address that packets under this GID carry: an IPv4 address where it is a mapped one.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }
}

/// What packets under a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1 where the link is Ethernet: the kernel has one name for both.
    IbOrRoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
    /// The kernel does not say.
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::IbOrRoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "unknown",
        })
    }
}

/// A 64-bit id, shown as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        f.pad(&format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}"))
    }
}

/// Why verbs say nothing about a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// The build has no libibverbs.
    #[error("this build has no libibverbs; build it with the feature `rdma`")]
    NotBuilt,
    /// The list of devices could not be had.
    #[error("libibverbs lists no devices: {0}")]
    NoList(Errno),
    /// The kernel has no verbs device for it.
    #[error("the kernel offers no verbs for it; load ib_uverbs (modprobe ib_uverbs)")]
    NoUverbs,
    /// It is there, and libibverbs does not know how to speak to it.
    #[error("libibverbs has no driver for it; install ibverbs-providers")]
    NoProvider,
    /// Its device file is missing.
    #[error("there is no /dev/infiniband/{0}; in a container, pass it in")]
    NoFile(String),
    /// No rights.
    #[error("this process may not open /dev/infiniband/{0}; run it as root or give it access to the file")]
    NotAllowed(String),
    /// Opening or asking failed.
    #[error("libibverbs cannot {what}: {errno}")]
    Failed {
        /// What failed.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
}

/// What verbs say of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Opened {
    limits: Limits,
    firmware: String,
    guid: u64,
    /// Of ports 1, 2, ...: the largest MTU and that in force, in bytes.
    mtus: Vec<(Option<u16>, Option<u16>)>,
}

/// What verbs say of all devices, by name.
type Verbs = Result<BTreeMap<String, Result<Opened, Unopened>>, Unopened>;

/// Looks at all devices. May block for as long as a device takes to answer.
pub fn inventory() -> Inventory {
    merged(Path::new(CLASS), Path::new(FILES), read_verbs())
}

/// The names of the devices, from sysfs alone: cheap, never blocks on a device.
pub fn names() -> Vec<String> {
    sysfs::names(Path::new(CLASS))
}

#[cfg(feature = "rdma")]
fn read_verbs() -> Verbs {
    verbs::read()
}

#[cfg(not(feature = "rdma"))]
fn read_verbs() -> Verbs {
    Err(Unopened::NotBuilt)
}

fn merged(class: &Path, files: &Path, verbs: Verbs) -> Inventory {
    let mut notes = Vec::new();
    if !class.join("infiniband").is_dir() {
        notes.push("the kernel has no RDMA driver loaded (there is no /sys/class/infiniband)".into());
    }
    let (mut verbs, no_list) = match verbs {
        Ok(verbs) => (verbs, None),
        Err(fault) => (BTreeMap::new(), Some(fault)),
    };
    let mut devices = Vec::new();
    for mut device in sysfs::devices(class) {
        match verbs.remove(&device.name) {
            Some(Ok(opened)) => fill(&mut device, &opened),
            Some(Err(fault)) => device.limits = Err(sysfs::explain((class, files), &device.name, fault)),
            None => {
                let fault = no_list.clone().unwrap_or(Unopened::NoProvider);
                device.limits = Err(sysfs::explain((class, files), &device.name, fault));
            }
        }
        if let Err(fault) = &device.limits {
            notes.push(format!("{}: limits and MTUs are unknown: {fault}", device.name));
        }
        devices.push(device);
    }
    // A device that vanished, or came, between the two looks.
    notes.extend(verbs.into_keys().map(|name| format!("{name}: libibverbs lists it, sysfs does not")));
    if devices.is_empty() && notes.is_empty() {
        notes.push("RDMA drivers are loaded and have found no device".into());
    }
    Inventory { devices, notes }
}

fn fill(device: &mut Device, opened: &Opened) {
    device.limits = Ok(opened.limits);
    if device.firmware.is_none() && !opened.firmware.is_empty() {
        device.firmware = Some(opened.firmware.clone());
    }
    if device.node_guid.is_none() && opened.guid != 0 {
        device.node_guid = Some(Guid(opened.guid));
    }
    for port in &mut device.ports {
        let index = (port.number as usize).wrapping_sub(1);
        if let Some(&(max, active)) = opened.mtus.get(index) {
            (port.max_mtu, port.active_mtu) = (max, active);
        }
    }
}

#[cfg(test)]
mod tests;
