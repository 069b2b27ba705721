//! What stands behind a port: the `port = { kind = ..., ... }` of the config.
//!
//! One struct per kind with exactly the keys that kind takes; how a kind becomes an ethdev is the business of
//! the port registry. `reader.rs` reads them, with the place of each key kept, whichever order the keys come in.

mod reader;

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use wire::MacAddr;

use super::fields;
use super::secret::Secret;
use reader::unknown_kind;

/// A PCI device (a NIC, or any other that a DPDK driver takes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PciPort {
    /// The PCI address, `0000:01:00.0`.
    pub address: String,
    /// The driver's own arguments, `key=value,key=value`.
    #[serde(default)]
    pub devargs: Option<String>,
}

/// The representor of a virtual function on an e-switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RepresentorPort {
    /// The PCI address of the physical function.
    pub pf: String,
    /// The number of the virtual function.
    pub vf: u16,
}

/// A vhost-user port: a virtual machine's virtio-net, or a virtio-user in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VhostUserPort {
    /// The Unix socket.
    pub path: PathBuf,
    /// The switch creates the socket and waits for its peer (else it connects).
    #[serde(default = "yes")]
    pub server: bool,
    /// Queue pairs.
    #[serde(default = "one")]
    pub queues: u16,
    /// The user that the socket belongs to, by name or number; that of the switch if not given.
    #[serde(default)]
    pub owner: Option<String>,
    /// The group that the socket belongs to, by name or number.
    #[serde(default)]
    pub group: Option<String>,
    /// The socket's permission bits in octal, such as `"0660"`: whoever may write may connect.
    #[serde(default)]
    pub mode: Option<String>,
}

/// The other end of a vhost-user socket: the switch is the virtio-net driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VirtioUserPort {
    /// The Unix socket.
    pub path: PathBuf,
    /// The switch creates the socket and waits for its peer (else it connects).
    #[serde(default)]
    pub server: bool,
    /// Queue pairs.
    #[serde(default = "one")]
    pub queues: u16,
    /// The peer may read and write all memory of the switch, and is trusted not to: vNICs need it.
    #[serde(default)]
    pub trusted_peer: bool,
}

/// A kernel tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TapPort {
    /// The interface's name.
    pub iface: String,
    /// The network namespace that it is in: a name of `ip netns`, or the path of its file; absent: the switch's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    /// Queue pairs.
    #[serde(default = "one")]
    pub queues: u16,
    /// The kernel side's MAC address.
    #[serde(default, with = "fields::optional", skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// The interface stays when the switch goes.
    #[serde(default)]
    pub persist: bool,
}

impl TapPort {
    /// The file of its network namespace.
    pub fn namespace(&self) -> Option<PathBuf> {
        // Joined to a folder, a whole path takes its place.
        self.netns.as_ref().map(|netns| Path::new("/run/netns").join(netns))
    }
}

/// An existing kernel interface through an AF_PACKET socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AfPacketPort {
    /// The interface's name.
    pub iface: String,
    /// Sockets of one fanout group.
    #[serde(default = "one")]
    pub queues: u16,
}

/// One end of a veth, through packet sockets with the kernel's offloads; the other end is a container's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VethPort {
    /// The interface's name, of the end that is the switch's.
    pub iface: String,
    /// Queue pairs: sockets of one fanout group.
    #[serde(default = "one")]
    pub queues: u16,
}

/// An existing kernel interface through AF_XDP sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AfXdpPort {
    /// The interface's name.
    pub iface: String,
    /// Queues of the interface that are taken.
    #[serde(default = "one")]
    pub queues: u16,
    /// The first of them.
    #[serde(default)]
    pub start_queue: u16,
    /// Packets the kernel handles per busy poll; 0 turns it off.
    #[serde(default)]
    pub busy_poll: Option<u32>,
}

/// Which end of a memif a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemifRole {
    /// Creates the socket.
    #[default]
    Server,
    /// Connects to it.
    Client,
}

/// A shared-memory packet interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MemifPort {
    /// The Unix socket; several memifs may share one.
    pub socket: PathBuf,
    /// Tells memifs of one socket apart.
    #[serde(default)]
    pub id: u32,
    /// This end.
    #[serde(default)]
    pub role: MemifRole,
    /// A word both ends must know.
    #[serde(default)]
    pub secret: Option<Secret>,
    /// The peer may read and write what the switch shares with it, and is trusted not to: vNICs need it.
    #[serde(default)]
    pub trusted_peer: bool,
}

/// libpcap files and interfaces, for the lab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PcapPort {
    /// Packets come from this file.
    #[serde(default)]
    pub rx_pcap: Option<PathBuf>,
    /// Packets come from this interface.
    #[serde(default)]
    pub rx_iface: Option<String>,
    /// Packets go to this file; with neither this nor `tx-iface` they are thrown away.
    #[serde(default)]
    pub tx_pcap: Option<PathBuf>,
    /// Packets go to this interface.
    #[serde(default)]
    pub tx_iface: Option<String>,
    /// Packets come from and go to this interface.
    #[serde(default)]
    pub iface: Option<String>,
    /// The file is played again and again.
    #[serde(default)]
    pub infinite_rx: bool,
}

/// A ring inside the process: alone it loops back, with a peer the two are crossed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RingPort {
    /// The ring's own name, by which a peer finds it.
    #[serde(default)]
    pub name: Option<String>,
    /// The name of the ring at the other end; absent: what is sent is received again.
    #[serde(default)]
    pub peer: Option<String>,
}

/// A port that makes empty packets and throws away what it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NullPort {
    /// Bytes of each packet.
    #[serde(default = "smallest_frame")]
    pub size: u16,
    /// Packets are copied as a real driver would.
    #[serde(default)]
    pub copy: bool,
}

/// How the members of a bond share its traffic, by the names that the Linux kernel has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BondModeConfig {
    /// One of them, as long as its link is up.
    #[serde(rename = "active-backup")]
    ActiveBackup,
    /// Flow by flow, by a hash.
    #[serde(rename = "balance-xor")]
    BalanceXor,
    /// The same among those that the other end agrees to: LACP (IEEE 802.1AX).
    #[default]
    #[serde(rename = "802.3ad")]
    Lacp,
}

/// By what a member is chosen for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BondHashConfig {
    /// MAC addresses.
    #[serde(rename = "layer2")]
    Layer2,
    /// MAC and IP addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
    /// IP addresses and ports.
    #[default]
    #[serde(rename = "layer3+4")]
    Layer34,
}

/// Several NICs that are one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BondPort {
    /// How they share the traffic.
    #[serde(default)]
    pub mode: BondModeConfig,
    /// By what a member is chosen for a packet, where several are in use.
    #[serde(default)]
    pub hash: BondHashConfig,
    /// The NICs.
    pub members: Vec<PortSpec>,
}

/// Any other virtual device, written as DPDK's `--vdev` takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RawPort {
    /// `net_x0,key=value`.
    pub vdev: String,
    /// The peer is trusted with memory of the switch: vNICs on net_memif and net_virtio_user need it.
    #[serde(default)]
    pub trusted_peer: bool,
}

const fn yes() -> bool {
    true
}

const fn one() -> u16 {
    1
}

const fn smallest_frame() -> u16 {
    64
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident($body:ident) = $name:literal,)*) => {
        /// What stands behind a port, by kind.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(tag = "kind")]
        pub enum PortSpec {
            $($(#[$doc])* #[serde(rename = $name)] $variant($body),)*
        }

        impl PortSpec {
            /// The names of all kinds.
            pub const KINDS: &[&str] = &[$($name),*];

            /// The name of this kind.
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            pub(super) fn read<'de, D: Deserializer<'de>>(kind: &str, deserializer: D) -> Result<Self, D::Error> {
                match kind {
                    $($name => $body::deserialize(deserializer).map(Self::$variant),)*
                    _ => Err(D::Error::custom(unknown_kind(kind))),
                }
            }
        }
    };
}

kinds! {
    /// A PCI device.
    Pci(PciPort) = "pci",
    /// A VF representor.
    Representor(RepresentorPort) = "representor",
    /// A vhost-user socket.
    VhostUser(VhostUserPort) = "vhost-user",
    /// A virtio-user socket.
    VirtioUser(VirtioUserPort) = "virtio-user",
    /// A tap interface.
    Tap(TapPort) = "tap",
    /// An AF_PACKET socket.
    AfPacket(AfPacketPort) = "af-packet",
    /// AF_XDP sockets.
    AfXdp(AfXdpPort) = "af-xdp",
    /// One end of a veth.
    Veth(VethPort) = "veth",
    /// A memif.
    Memif(MemifPort) = "memif",
    /// Capture files and interfaces.
    Pcap(PcapPort) = "pcap",
    /// A ring.
    Ring(RingPort) = "ring",
    /// Nothing.
    Null(NullPort) = "null",
    /// Several NICs.
    Bond(BondPort) = "bond",
    /// Any other virtual device.
    Raw(RawPort) = "raw",
}

impl PortSpec {
    /// What it is made of: the members of a bond, else itself.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Bond(bond) => &bond.members,
            one => std::slice::from_ref(one),
        }
    }

    /// It is the tap of this name in the network namespace of the switch.
    pub fn is_tap_here(&self, iface: &str) -> bool {
        matches!(self, Self::Tap(tap) if tap.netns.is_none() && tap.iface == iface)
    }

    /// It is on the PCI bus, or members of it are.
    pub fn is_on_pci(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::Pci(_) | Self::Representor(_)))
    }

    /// How many devices of DPDK it is, of which there are not many.
    pub fn ethdevs(&self) -> usize {
        match self {
            Self::Tap(_) | Self::Veth(_) | Self::VhostUser(_) => 0,
            Self::Bond(bond) => 1 + bond.members.len(),
            _ => 1,
        }
    }

    /// What a peer behind this port could do to memory of the switch, where DPDK does not keep it from that and the config
    /// does not say that it is trusted.
    pub(super) fn untrusted_reach(&self) -> Option<&'static str> {
        const SHARED: &str = "DPDK's memif checks neither region nor offset of what a peer writes, so that it can read and write memory of the \
             switch";
        const ALL: &str = "a virtio-user port maps all packet memory of the switch into its peer";
        match self {
            Self::Memif(memif) if !memif.trusted_peer => Some(SHARED),
            Self::VirtioUser(virtio) if !virtio.trusted_peer => Some(ALL),
            Self::Raw(raw) if !raw.trusted_peer && raw.vdev.starts_with("net_memif") => Some(SHARED),
            Self::Raw(raw) if !raw.trusted_peer && raw.vdev.starts_with("net_virtio_user") => Some(ALL),
            _ => None,
        }
    }
}
