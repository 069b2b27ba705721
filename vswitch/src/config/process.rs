//! The config of the process itself: DPDK, workers, forwarding mode, sockets, state.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::etcd::EtcdConfig;
use super::evpn::EvpnConfig;
use super::units::ByteSize;

/// Whether DPDK's memory comes from huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugePages {
    /// When there are enough of them.
    #[default]
    Auto,
    /// Never.
    Never,
    /// The switch does not start without.
    Require,
}

/// `[eal]`: DPDK's environment. Takes effect at start only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EalConfig {
    /// Where memory comes from.
    pub huge_pages: HugePages,
    /// How much of it.
    pub memory: ByteSize,
    /// Tells the switches of one machine apart.
    pub file_prefix: String,
    /// Poll-mode drivers that are not in DPDK's own folder.
    pub plugins: Vec<PathBuf>,
    /// Packet buffers; absent: as many as the memory and the ports want.
    pub mbufs: Option<u32>,
    /// PCI devices DPDK may touch, each with its arguments; none without this list, besides those of ports.
    pub pci: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            huge_pages: HugePages::Auto,
            memory: ByteSize::mebibytes(512),
            file_prefix: "vswitch".into(),
            plugins: Vec::new(),
            mbufs: None,
            pci: Vec::new(),
        }
    }
}

/// What a worker does when nothing comes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Polls on.
    #[default]
    Poll,
    /// Sleeps for a short while; for cores that are shared.
    Sleep,
}

/// `[workers]`: the cores that move packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkersConfig {
    /// A worker on each of these cores.
    pub cores: Option<Vec<usize>>,
    /// So many workers, on cores of the switch's choice; absent with `cores`, else 1.
    pub count: Option<usize>,
    /// What a worker does when idle.
    pub idle: Idle,
    /// Packets taken from a queue at a time.
    pub burst: u16,
}

impl WorkersConfig {
    /// The fewest packets of a burst: a packed ring of a vhost-user guest is not asked for one alone.
    pub const MIN_BURST: u16 = 2;
    /// The most packets of a burst.
    pub const MAX_BURST: u16 = 64;

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        match &self.cores {
            Some(cores) => cores.len(),
            None => self.count.unwrap_or(1),
        }
    }
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self { cores: None, count: None, idle: Idle::Poll, burst: 32 }
    }
}

/// What the switch does with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardMode {
    /// The virtual network.
    #[default]
    Overlay,
    /// In at one port, out at its neighbour, untouched.
    Io,
    /// As `io`, with new MAC addresses.
    Mac,
}

/// `[forward]`: the mode, and whether forwarding begins by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwardConfig {
    /// The mode.
    pub mode: ForwardMode,
    /// Forwarding begins without a `start`.
    pub auto_start: bool,
}

impl Default for ForwardConfig {
    fn default() -> Self {
        Self { mode: ForwardMode::Overlay, auto_start: true }
    }
}

/// `[api]`: where the console and `vswitch ctl` find the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ApiConfig {
    /// The Unix socket, open to the switch's own user only.
    pub socket: PathBuf,
    /// A group whose members may look at the switch, on a socket beside the first one; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Where programs on other hosts find it; absent: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<ApiTcpConfig>,
}

/// `[api] tcp`: the API over TCP, with TLS and certificates of both sides. The files are in PEM format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ApiTcpConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The switch's certificate, and those between it and its CA.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
    /// The CAs that sign certificates of clients.
    pub client_ca: PathBuf,
    /// Names (DNS or URI, RFC 5280 section 4.2.1.6) of clients that may do everything.
    #[serde(default)]
    pub admins: Vec<String>,
    /// Names of clients that may look.
    #[serde(default)]
    pub readers: Vec<String>,
}

impl ApiConfig {
    /// Where the socket is unless the config says otherwise.
    pub const DEFAULT_SOCKET: &str = "/run/vswitch/vswitch.sock";

    /// Where the group's socket is: beside the first one, with `-read` behind its name.
    pub fn read_socket(&self) -> PathBuf {
        let stem = self.socket.file_stem().unwrap_or_default().to_string_lossy();
        let extension = self.socket.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
        self.socket.with_file_name(format!("{stem}-read{}", extension.unwrap_or_default()))
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { socket: Self::DEFAULT_SOCKET.into(), group: None, tcp: None }
    }
}

/// What becomes of system calls that the daemon does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seccomp {
    /// They fail with EPERM.
    #[default]
    On,
    /// They are made, and the kernel's audit log tells of them.
    Log,
    /// They are made.
    Off,
}

/// `[control]`: the daemon itself: what outlives it, and what it may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ControlConfig {
    /// The file that changes made at run time are saved to; absent: they are not.
    pub state: Option<PathBuf>,
    /// System calls once it runs.
    pub seccomp: Seccomp,
    /// The etcd that the hosts of a cluster share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,
    /// What other hosts say by BGP, and what this one tells them; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evpn: Option<EvpnConfig>,
}
