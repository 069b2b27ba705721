//! What stands behind a port: the `port = { kind = ..., ... }` of the config.
//!
//! One struct per kind with exactly the keys that kind takes; how a kind becomes an ethdev is the business of
//! the port registry. Reads from TOML with the place of each key kept, whichever order the keys come in.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use wire::MacAddr;

use super::error::quote;
use super::fields;
use super::secret::Secret;

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
pub enum BondMode {
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
pub enum BondHash {
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
    pub mode: BondMode,
    /// By what a member is chosen for a packet, where several are in use.
    #[serde(default)]
    pub hash: BondHash,
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

fn unknown_kind(kind: &str) -> String {
    format!("unknown port kind {}; the kinds are {}", quote(kind), PortSpec::KINDS.join(", "))
}

impl PortSpec {
    /// How many devices of DPDK it is, of which there are not many.
    pub fn ethdevs(&self) -> usize {
        match self {
            Self::Tap(_) | Self::Veth(_) | Self::VhostUser(_) => 0,
            Self::Bond(bond) => 1 + bond.members.iter().map(Self::ethdevs).sum::<usize>(),
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

/// The value of `kind`, checked while its own place in the text is at hand.
struct KindName(String);

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = String::deserialize(deserializer)?;
        match PortSpec::KINDS.contains(&kind.as_str()) {
            true => Ok(Self(kind)),
            false => Err(D::Error::custom(unknown_kind(&kind))),
        }
    }
}

impl<'de> Deserialize<'de> for PortSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SpecReader)
    }
}

/// Reads `kind` and then lets the kind's struct read the rest.
struct SpecReader;

impl<'de> Visitor<'de> for SpecReader {
    type Value = PortSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port such as { kind = \"tap\", iface = \"tap0\" }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PortSpec, A::Error> {
        // The config reader puts `kind` first, and then the kind's struct reads straight from the text, with
        // places; from any other source, what came before `kind` is kept and read afterwards.
        let mut before: Vec<(String, toml::Value)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "kind" {
                let KindName(kind) = map.next_value()?;
                if before.is_empty() {
                    return PortSpec::read(&kind, MapAccessDeserializer::new(map));
                }
                while let Some(entry) = map.next_entry()? {
                    before.push(entry);
                }
                let entries = before.into_iter().map(|(key, value)| (key, Buffered(value)));
                return PortSpec::read(&kind, MapDeserializer::new(entries));
            }
            before.push((key, map.next_value()?));
        }
        Err(A::Error::custom(format_args!(
            "a port needs a kind; the kinds are {}",
            PortSpec::KINDS.join(", ")
        )))
    }
}

/// A value read ahead of its `kind`.
struct Buffered(toml::Value);

impl<'de, E: serde::de::Error> IntoDeserializer<'de, E> for Buffered {
    type Deserializer = BufferedDeserializer<E>;

    fn into_deserializer(self) -> Self::Deserializer {
        BufferedDeserializer(self.0, std::marker::PhantomData)
    }
}

/// Deserializes a buffered value with the error type of the source it came from.
struct BufferedDeserializer<E>(toml::Value, std::marker::PhantomData<E>);

impl<'de, E: serde::de::Error> Deserializer<'de> for BufferedDeserializer<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        match self.0 {
            toml::Value::String(text) => visitor.visit_string(text),
            toml::Value::Integer(number) => visitor.visit_i64(number),
            toml::Value::Float(number) => visitor.visit_f64(number),
            toml::Value::Boolean(truth) => visitor.visit_bool(truth),
            toml::Value::Datetime(time) => visitor.visit_string(time.to_string()),
            toml::Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(Buffered)))
            }
            toml::Value::Table(table) => visitor.visit_map(MapDeserializer::new(
                table.into_iter().map(|(key, value)| (key, Buffered(value))),
            )),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, E> {
        match self.0 {
            toml::Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            other => Err(E::invalid_type(serde::de::Unexpected::Other(other.type_str()), &"a word")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize, PartialEq)]
    struct Holder {
        port: PortSpec,
    }

    fn read(text: &str) -> Result<PortSpec, String> {
        toml::from_str::<Holder>(&format!("port = {text}"))
            .map(|h| h.port)
            .map_err(|e| e.message().to_owned())
    }

    #[test]
    fn kinds_read_with_defaults_in_any_order() {
        let (iface, netns) = ("t0".into(), None);
        let tap = PortSpec::Tap(TapPort { iface, netns, queues: 1, mac: None, persist: false });
        assert_eq!(read(r#"{ kind = "tap", iface = "t0" }"#), Ok(tap.clone()));
        assert_eq!(read(r#"{ iface = "t0", kind = "tap", queues = 1 }"#), Ok(tap));
        let memif = read(r#"{ role = "client", kind = "memif", socket = "/run/m", secret = "s" }"#).unwrap();
        assert!(matches!(memif, PortSpec::Memif(MemifPort { role: MemifRole::Client, .. })), "{memif:?}");
    }

    #[test]
    fn errors_name_the_key_and_the_known_ones() {
        let error = read(r#"{ kind = "tun", iface = "t0" }"#).unwrap_err();
        assert!(error.contains("\"tun\"") && error.contains("vhost-user, virtio-user, tap"), "{error}");
        for text in [r#"{ kind = "tap", iface = "t0", path = "x" }"#, r#"{ path = "x", kind = "tap" }"#] {
            let error = read(text).unwrap_err();
            assert!(error.contains("`path`") && error.contains("`iface`"), "{error}");
        }
        assert!(read(r#"{ iface = "t0" }"#).unwrap_err().contains("needs a kind"));
        assert!(read(r#""tap""#).unwrap_err().contains("a port such as"));
        assert!(read(r#"{ kind = "tap", iface = "t0", queues = -1 }"#).is_err());
    }

    #[test]
    fn specs_round_trip_through_toml_and_json() {
        for text in [
            r#"{ kind = "pci", address = "0000:01:00.0", devargs = "dv_flow_en=2" }"#,
            r#"{ kind = "representor", pf = "0000:01:00.0", vf = 3 }"#,
            r#"{ kind = "vhost-user", path = "/run/v.sock", server = false, queues = 2 }"#,
            r#"{ kind = "tap", iface = "t0", mac = "52:54:00:00:00:01", persist = true }"#,
            r#"{ kind = "tap", iface = "eth0", netns = "pod" }"#,
            r#"{ kind = "pcap", rx-pcap = "in.pcap", infinite-rx = true }"#,
            r#"{ kind = "ring", name = "a", peer = "b" }"#,
            r#"{ kind = "null" }"#,
            r#"{ kind = "raw", vdev = "net_ring7,x=1" }"#,
        ] {
            let holder = Holder { port: read(text).unwrap() };
            assert_eq!(toml::from_str::<Holder>(&toml::to_string(&holder).unwrap()).unwrap(), holder);
            let json = serde_json::to_string(&holder).unwrap();
            assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder);
        }
    }
}
