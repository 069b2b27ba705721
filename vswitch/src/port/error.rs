//! Why a port could not be opened or closed. Every message names the thing and says what to do about it.

use std::path::PathBuf;

use pmd::PortError;

use crate::config::PortSpec;
use crate::config::error::quote;

/// Why a port could not be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A capability that this kind needs is missing.
    #[error("a {kind} port needs {capability}; run as root, or `setcap {lower}+ep` the binary", lower = capability.to_lowercase())]
    Capability {
        /// The kind of port.
        kind: &'static str,
        /// `CAP_NET_ADMIN`, ...
        capability: &'static str,
    },
    /// Another port of this process has the device.
    #[error("{what} is already used by port {by}; a device serves one port: detach {by} first")]
    InUse {
        /// The device, in words.
        what: String,
        /// The port that has it.
        by: String,
    },
    /// No such interface.
    #[error("no interface {} in this network namespace; {}", quote(.iface), elsewhere(.namespaces, .iface))]
    NoInterface {
        iface: String,
        /// Named namespaces that have one of that name.
        namespaces: Vec<String>,
    },
    /// The interface is not up.
    #[error("interface {iface} is down; `ip link set {iface} up`, then attach the port again")]
    InterfaceDown { iface: String },
    /// A network namespace cannot be used.
    #[error(
        "network namespace {path}: {source}; `ip netns` lists those with names, and netns takes a name or the path of a namespace's file"
    )]
    Namespace { path: PathBuf, source: std::io::Error },
    /// A tap of that name cannot be made.
    #[error(
        "interface {iface} exists already and is no free tap: {why}; choose another name, or `ip link del {iface}`"
    )]
    NoTap { iface: String, why: String },
    /// The owner of a socket is nobody.
    #[error("{what} {name:?} is unknown to this system; `getent {db} {name}` asks, or write a number", db = if *what == "user" { "passwd" } else { "group" })]
    NoAccount { what: &'static str, name: String },
    /// A socket could not be given to others.
    #[error("socket {}: cannot {operation}: {source}; run as root, or give the switch CAP_CHOWN", .path.display())]
    Access {
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// An interface is no end of a veth.
    #[error(
        "interface {iface} is no veth, its driver is {driver}; write kind = \"af-packet\" for an interface of another kind"
    )]
    NoVeth { iface: String, driver: String },
    /// Something about an interface could not be read or set.
    #[error(
        "interface {iface}: cannot {operation}: {source}; look at it with `ip link show {iface}`, and at the kernel's log"
    )]
    Interface {
        iface: String,
        /// What was tried.
        operation: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A device file is missing.
    #[error("{path} is missing; {remedy}")]
    NoDeviceFile { path: PathBuf, remedy: &'static str },
    /// The folder of a socket or file is missing.
    #[error("the folder of {path} does not exist; `mkdir -p {folder}` first")]
    NoFolder {
        /// The socket or file.
        path: PathBuf,
        folder: PathBuf,
    },
    /// A path is too long for a socket.
    #[error("socket path {} is {length} bytes long; a socket's path has at most 107: choose a shorter one", quote(.path))]
    SocketPathLength { path: String, length: usize },
    /// Something else is where the socket should be.
    #[error(
        "{path} exists and is {what}, not a socket; it was left alone: choose another path, or move it away"
    )]
    NotASocket { path: PathBuf, what: &'static str },
    /// Somebody listens on the socket.
    #[error(
        "somebody already listens on socket {path}; stop that program, choose another path, or make this port the {other} end"
    )]
    SocketLive {
        path: PathBuf,
        /// The opposite role.
        other: &'static str,
    },
    /// Nobody listens on the socket.
    #[error("nobody listens on socket {path}; start the program that serves it, then attach the port again")]
    NobodyListens { path: PathBuf },
    /// A file cannot be used.
    #[error("{key} {path}: {source}; check the path and its permissions")]
    File {
        /// The config key.
        key: &'static str,
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is no capture file.
    #[error("{key} {path} is no capture file: {why}; name one that has packets")]
    Capture {
        /// The config key.
        key: &'static str,
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A PCI device cannot be used.
    #[error("PCI device {}: {why}", quote(.address))]
    Pci {
        address: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A text that device arguments cannot carry.
    #[error("{key} {} {why}", quote(.value))]
    Value {
        /// The config key.
        key: &'static str,
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The driver does not take so large an MTU.
    #[error(
        "an MTU of {wanted} is more than a {kind} port takes here ({max}); lower the MTU, or use another kind (veth takes 65535)"
    )]
    Mtu {
        /// The kind of port.
        kind: &'static str,
        /// The switch's name of the port.
        port: String,
        /// The MTU asked for.
        wanted: u16,
        max: u16,
    },
    /// A ring's peer is taken or does not fit.
    #[error("ring {}: {why}", quote(.name))]
    Ring {
        name: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The poll-mode driver is not loaded.
    #[error(
        "no driver for a {kind} port is loaded ({library}): install Debian's package {package}, or name the driver in [eal] plugins and restart; {source}"
    )]
    NoDriver {
        /// The kind of port.
        kind: &'static str,
        /// The driver's library.
        library: String,
        /// The package that has it.
        package: String,
        /// What DPDK said.
        source: Box<PortError>,
    },
    /// DPDK or the driver refused.
    #[error("{kind} port {port}: {source}")]
    Device {
        /// The kind of port.
        kind: &'static str,
        /// The switch's name of the port.
        port: String,
        /// What was said.
        source: Box<PortError>,
    },
    /// Something stayed behind when the port was closed.
    #[error("{what} stayed behind: {source}; remove it by hand")]
    LeftBehind { what: String, source: std::io::Error },
}

impl OpenError {
    /// The key of the port that it is about, where it is about one. What is said of a bond is about its members.
    pub fn key(&self, spec: &PortSpec) -> Option<&'static str> {
        if matches!(spec, PortSpec::Bond(_)) {
            return Some("members");
        }
        match self {
            Self::InUse { .. } => device(spec),
            Self::NoInterface { iface, .. }
            | Self::InterfaceDown { iface }
            | Self::NoTap { iface, .. }
            | Self::NoVeth { iface, .. }
            | Self::Interface { iface, .. } => Some(interface(spec, iface)),
            Self::Namespace { .. } => Some("netns"),
            Self::NoAccount { what: "user", .. } => Some("owner"),
            Self::NoAccount { .. } => Some("group"),
            Self::NoFolder { .. }
            | Self::SocketPathLength { .. }
            | Self::NotASocket { .. }
            | Self::SocketLive { .. }
            | Self::NobodyListens { .. }
            | Self::File { key: "path", .. } => Some(path(spec)),
            Self::Pci { .. } | Self::Value { key: "address", .. }
                if matches!(spec, PortSpec::Representor(_)) =>
            {
                Some("pf")
            }
            Self::File { key, .. } | Self::Capture { key, .. } | Self::Value { key, .. } => Some(*key),
            Self::Pci { .. } => Some("address"),
            Self::Ring { .. } => Some("name"),
            Self::Capability { .. }
            | Self::Access { .. }
            | Self::NoDeviceFile { .. }
            | Self::Mtu { .. }
            | Self::NoDriver { .. }
            | Self::Device { .. }
            | Self::LeftBehind { .. } => None,
        }
    }

    /// True when the interface, folder, device or peer is not there now and may come.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::NoInterface { .. }
            | Self::InterfaceDown { .. }
            | Self::NoDeviceFile { .. }
            | Self::NoFolder { .. }
            | Self::NobodyListens { .. } => true,
            Self::Namespace { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            Self::Device { source, .. } => matches!(**source, PortError::NotFound { .. }),
            _ => false,
        }
    }
}

/// The key that says which device it is.
fn device(spec: &PortSpec) -> Option<&'static str> {
    match spec {
        PortSpec::Pci(_) => Some("address"),
        PortSpec::Representor(_) => Some("vf"),
        PortSpec::VhostUser(_) | PortSpec::VirtioUser(_) => Some("path"),
        PortSpec::Tap(_) | PortSpec::AfPacket(_) | PortSpec::AfXdp(_) | PortSpec::Veth(_) => Some("iface"),
        PortSpec::Memif(_) => Some("id"),
        PortSpec::Ring(_) => Some("name"),
        PortSpec::Bond(_) => Some("members"),
        PortSpec::Raw(_) => Some("vdev"),
        // It has several, or none.
        PortSpec::Pcap(_) | PortSpec::Null(_) => None,
    }
}

/// The key that names an interface.
fn interface(spec: &PortSpec, iface: &str) -> &'static str {
    match spec {
        PortSpec::Pcap(pcap) if pcap.rx_iface.as_deref() == Some(iface) => "rx-iface",
        PortSpec::Pcap(pcap) if pcap.tx_iface.as_deref() == Some(iface) => "tx-iface",
        _ => "iface",
    }
}

/// The key that says where a socket is, or the file that is made.
fn path(spec: &PortSpec) -> &'static str {
    match spec {
        PortSpec::Memif(_) => "socket",
        PortSpec::Pcap(_) => "tx-pcap",
        _ => "path",
    }
}

fn elsewhere(namespaces: &[String], iface: &str) -> String {
    match namespaces {
        [] => "`ip link` lists those there are".into(),
        [one] => format!(
            "namespace {one} has one: run vswitch there (`ip netns exec {one} ...`), or move it here: `ip -n {one} link set {iface} netns {}`",
            std::process::id()
        ),
        many => format!("namespaces {} have one: run vswitch in one of them", many.join(", ")),
    }
}

/// Why a number of queues does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Out of range.
    #[error("{key} = {wanted}: this port takes {min} to {max}; {remedy}")]
    Range {
        /// `rx-queues` or `tx-queues`.
        key: &'static str,
        /// The number asked for.
        wanted: u16,
        min: u16,
        max: u16,
        /// What to do.
        remedy: &'static str,
    },
    /// The numbers must be equal.
    #[error(
        "rx-queues = {rx} and tx-queues = {tx}: this kind of port wants as many of the one as of the other; give the same number twice"
    )]
    Unequal {
        /// Receive queues asked for.
        rx: u16,
        /// Transmit queues asked for.
        tx: u16,
    },
}
