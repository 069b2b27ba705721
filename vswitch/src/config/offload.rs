//! `[offload]`, and `offload` of ports: which flows go into hardware, and what a simulated e-switch is like.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::{self, BitRate};
use pipelines::offload::sim::EncapHashKind;
use rules::mlx5::{self, Nic};

/// What holds the rules of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadDevice {
    /// The simulated e-switch, one for all ports that say so: a lab device in front of the workers.
    Simulated,
    /// The e-switch of the port's NIC, through DPDK's rte_flow: one for all ports that say so.
    RteFlow,
}

/// Where the outer UDP source port of offloaded packets comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entropy {
    /// As in software, from the flow; a rule of its own for each source port in use.
    #[default]
    Exact,
    /// The NIC's own choice, or a constant: one rule for all flows to a place. Software follows the NIC where that tells.
    Hardware,
}

/// Which flows go into hardware only when none of their packets is on its way in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Barrier {
    /// RoCEv2: a packet that is overtaken costs a queue pair a retransmission of all that followed.
    #[default]
    Rdma,
    /// All.
    All,
    /// None.
    None,
}

/// Which API of rte_flow the rules of NICs go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Templates and queues where the driver has them, else the synchronous calls.
    #[default]
    Auto,
    /// The synchronous calls.
    Sync,
    /// Templates and queues; a port that takes rules and has none does not start.
    Async,
}

/// Which NIC the simulated e-switch stands for: it refuses what that one's driver refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SimulatedNic {
    /// ConnectX-6 Dx: of the nine words of a match, six may be addresses, where the others have nine.
    #[serde(rename = "connectx-6-dx")]
    ConnectX6Dx,
    /// ConnectX-7.
    #[default]
    #[serde(rename = "connectx-7")]
    ConnectX7,
    /// BlueField-3.
    #[serde(rename = "bluefield-3")]
    BlueField3,
    /// None: it takes whatever it can execute.
    #[serde(rename = "none")]
    None,
}

impl SimulatedNic {
    /// The one whose refusals it has.
    pub fn refuses(self) -> Option<Nic> {
        match self {
            Self::ConnectX6Dx => Some(Nic::ConnectX6Dx),
            Self::ConnectX7 => Some(Nic::ConnectX7),
            Self::BlueField3 => Some(Nic::BlueField3),
            Self::None => None,
        }
    }
}

/// How the driver of that NIC writes rules (mlx5's `dv_flow_en`): what it refuses depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Software steering, `dv_flow_en=1`: the layers of a match are asked for, its size is not.
    Software,
    /// Hardware steering, `dv_flow_en=2`: matches have to fit the hardware's format, actions its order.
    #[default]
    Hardware,
}

impl Steering {
    /// As the table of refusals names it.
    pub fn engine(self) -> mlx5::Engine {
        match self {
            Self::Software => mlx5::Engine::Software,
            Self::Hardware => mlx5::Engine::Hardware,
        }
    }
}

/// Which outer UDP source ports the simulated e-switch chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedHash {
    /// None: that of the rule's header is sent.
    #[default]
    None,
    /// A CRC of the inner headers, whatever the rule says.
    Crc,
    /// A hash of the inner headers that software cannot follow.
    Product,
}

impl SimulatedHash {
    /// The device's word for it.
    pub fn kind(self) -> EncapHashKind {
        match self {
            Self::None => EncapHashKind::None,
            Self::Crc => EncapHashKind::Crc,
            Self::Product => EncapHashKind::Product,
        }
    }
}

/// `[offload]`: which flows go into hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OffloadConfig {
    /// Flows go into hardware; the console changes it.
    pub enabled: bool,
    /// A flow is hot from so many packets a second on ...
    pub hot_packets: u64,
    /// ... or from this rate.
    pub hot_rate: BitRate,
    /// A flow that is below half of both for so long comes back.
    #[serde(with = "units::duration")]
    pub cool_after: Duration,
    /// For so long a flow may wait for a gap.
    #[serde(with = "units::duration")]
    pub install_wait: Duration,
    /// What was refused is not tried again for so long.
    #[serde(with = "units::duration")]
    pub retry_after: Duration,
    /// A flow without packets for so long comes back.
    #[serde(with = "units::duration")]
    pub idle_timeout: Duration,
    /// Rules made a second at most.
    pub rules_per_second: u64,
    /// Rules at a time at most.
    pub rules: u64,
    /// How often counters come back and flows are chosen.
    #[serde(with = "units::duration")]
    pub sync_every: Duration,
    /// How often rules are compared with the device's.
    #[serde(with = "units::duration")]
    pub audit_every: Duration,
    /// Which API of rte_flow rules go through; nothing to the simulated e-switch.
    pub engine: Engine,
    /// Outer UDP source ports.
    pub entropy: Entropy,
    /// Which flows wait for a gap.
    pub barrier: Barrier,
    /// Code points of tenants' packets that are offloaded, where the outer one is a copy.
    pub dscps: Vec<u8>,
    /// What the simulated e-switch is like.
    pub simulated: SimulatedConfig,
}

impl OffloadConfig {
    /// Bounds of `sync-every`.
    pub const SYNC_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
    /// Bounds of `idle-timeout`; whole seconds count.
    pub const IDLE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));
    /// Bounds of the other times.
    pub const TIMES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(86_400));
    /// The most packets or rules a second.
    pub const MAX_RATE: u64 = 1_000_000_000;
    /// The most rules.
    pub const MAX_RULES: u64 = 16 << 20;
}

impl OffloadConfig {
    /// True where nothing differs but whether flows go into hardware at all, which can change while the switch runs.
    pub fn is_but_for_enabled(&self, other: &Self) -> bool {
        Self { enabled: other.enabled, ..self.clone() } == *other
    }
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            hot_packets: 10_000,
            hot_rate: BitRate(100_000_000),
            cool_after: Duration::from_secs(1),
            install_wait: Duration::from_secs(1),
            retry_after: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            rules_per_second: 10_000,
            rules: 1 << 20,
            sync_every: Duration::from_millis(100),
            audit_every: Duration::from_secs(60),
            engine: Engine::default(),
            entropy: Entropy::default(),
            barrier: Barrier::default(),
            dscps: vec![0],
            simulated: SimulatedConfig::default(),
        }
    }
}

/// `[offload.simulated]`: what the simulated e-switch is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SimulatedConfig {
    /// Rules that it holds.
    pub capacity: u32,
    /// Rules that come into force a second; 0: at once.
    pub insertion_rate: u32,
    /// From creation until a rule is in force.
    #[serde(with = "units::duration")]
    pub latency: Duration,
    /// How often counters are refreshed.
    #[serde(with = "units::duration")]
    pub refresh: Duration,
    /// Packets that wait between it and a worker, on each rx queue.
    pub ring: u32,
    /// For how long they wait at least.
    #[serde(with = "units::duration")]
    pub delay: Duration,
    /// The NIC that it stands for.
    pub nic: SimulatedNic,
    /// How that NIC's driver writes rules.
    pub steering: Steering,
    /// It matches InfiniBand headers (mlx5 with DPDK 23.07 and later).
    pub ib_bth: bool,
    /// It matches the colours that meters give.
    pub meter_mark: bool,
    /// It changes ECN fields.
    pub modify_ecn: bool,
    /// Which outer source ports it chooses.
    pub encap_hash: SimulatedHash,
    /// It takes no rule.
    pub refuse_all: bool,
    /// Of so many rules that it takes, one never comes into force; 0: none.
    pub fail_one_in: u32,
}

impl SimulatedConfig {
    /// Bounds of `ring`.
    pub const RING: (u32, u32) = (64, 65_536);
    /// The longest `latency` and `delay`.
    pub const LONGEST: Duration = Duration::from_secs(10);
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            insertion_rate: 0,
            latency: Duration::ZERO,
            refresh: Duration::from_millis(500),
            ring: 1024,
            delay: Duration::ZERO,
            nic: SimulatedNic::default(),
            steering: Steering::default(),
            ib_bth: true,
            meter_mark: true,
            modify_ecn: true,
            encap_hash: SimulatedHash::default(),
            refuse_all: false,
            fail_one_in: 0,
        }
    }
}
