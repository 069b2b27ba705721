//! `[qos]`, and `qos` of VPCs and vNICs: how tenants share the link.
//!
//! A tree in each direction: link -> VPC -> vNIC -> class (RDMA, and everything else). Here it is what the operator
//! wrote; what the data plane makes of it is `crate::switch::qos`'s.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rcft::Share;
use super::units::{self, BitRate, ByteSize};

/// What a node of the tree may do in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsConfig {
    /// What it always gets; absent: nothing in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assured: Option<BitRate>,
    /// What it never exceeds; absent: only the limits above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceil: Option<BitRate>,
    /// Its part of what its siblings leave; absent: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// What it may save up; absent: a millisecond of its rate, 128 KiB at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<ByteSize>,
}

/// What a VPC, or a class of a vNIC, may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BothWays {
    /// From vNICs to the wire.
    #[serde(skip_serializing_if = "is_default")]
    pub out: LimitsConfig,
    /// From the wire to vNICs.
    #[serde(rename = "in", skip_serializing_if = "is_default")]
    pub into: LimitsConfig,
}

/// What a vNIC may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct VnicQos {
    /// From it to the wire.
    #[serde(skip_serializing_if = "is_default")]
    pub out: LimitsConfig,
    /// From the wire to it.
    #[serde(rename = "in", skip_serializing_if = "is_default")]
    pub into: LimitsConfig,
    /// Its RoCEv2 traffic.
    #[serde(skip_serializing_if = "is_default")]
    pub rdma: BothWays,
    /// Its other traffic.
    #[serde(skip_serializing_if = "is_default")]
    pub tcp: BothWays,
}

/// True for a value that need not be written.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The rates of the uplinks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkConfig {
    /// To the wire; absent: as fast as it goes.
    pub out: Option<BitRate>,
    /// From the wire.
    #[serde(rename = "in")]
    pub into: Option<BitRate>,
}

impl<'de> Deserialize<'de> for LinkConfig {
    /// Reads `{ out = ..., in = ... }`, or one rate for both directions.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            out: Option<BitRate>,
            #[serde(rename = "in")]
            into: Option<BitRate>,
        }

        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = LinkConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate such as \"25Gbit\", or { out = \"25Gbit\", in = \"25Gbit\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LinkConfig, E> {
                let rate = text.parse().map_err(E::custom)?;
                Ok(LinkConfig { out: Some(rate), into: Some(rate) })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LinkConfig, A::Error> {
                let written = Written::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LinkConfig { out: written.out, into: written.into })
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// A share that is written as a percentage: `"2%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub Share);

impl Percent {
    /// Parts per million; the nearest that a percentage can be.
    pub const fn ppm(self) -> u32 {
        self.0.ppm()
    }

    /// This part of a rate.
    pub fn of(self, rate: u64) -> u64 {
        // Not more than `rate`, so it fits.
        (u128::from(rate) * u128::from(self.ppm()) / 1_000_000) as u64
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Percent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a percentage such as \"2%\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Percent, E> {
                let share =
                    text.trim().strip_suffix('%').and_then(|text| Share::from_percentage(text.trim()));
                share.map(Percent).ok_or_else(|| {
                    let shown = super::error::quote(text);
                    E::custom(format_args!(
                        "{shown} is not a percentage; write for example \"2%\" (above 0% to 100%, at most four decimals)"
                    ))
                })
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// `[qos]`: how tenants share the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QosConfig {
    /// What the uplinks carry together.
    pub link: LinkConfig,
    /// Bytes that every packet costs besides its own: preamble, gap, FCS.
    pub overhead: u32,
    /// Debt of a vNIC's RDMA up to which nothing is marked.
    pub kmin: ByteSize,
    /// Debt from which on everything is.
    pub kmax: ByteSize,
    /// Probability of a mark just below `kmax`.
    pub pmax: Percent,
    /// Debt beyond which RDMA waits.
    pub hard_limit: ByteSize,
    /// Part of a vNIC's ceiling up to which its CNPs, ACKs, NAKs and connection manager's messages are not data.
    pub control_rate: Percent,
    /// Packets of a class that may wait on a worker; one in several buffers counts as so many.
    pub queue_packets: u32,
    /// Bytes of a class that may wait on a worker.
    pub queue_bytes: ByteSize,
    /// The longest that packets that are not RDMA wait at the lowest ceiling of their class, a few of them aside.
    #[serde(with = "units::duration")]
    pub queue_time: Duration,
    /// Mark traffic that is not RDMA, too, when it listens to ECN and waited for longer than `tcp_ecn_target`.
    pub tcp_ecn: bool,
    /// The longest wait without such a mark.
    #[serde(with = "units::duration")]
    pub tcp_ecn_target: Duration,
}

impl QosConfig {
    /// The largest overhead of a packet.
    pub const MAX_OVERHEAD: u32 = 1024;
    /// The fastest link.
    pub const MAX_RATE: BitRate = BitRate(10_000_000_000_000);
    /// The most that a node saves up.
    pub const MAX_BURST: ByteSize = ByteSize(1 << 30);
    /// The largest debt.
    pub const MAX_DEBT: ByteSize = ByteSize(1 << 30);
    /// The most packets of a queue.
    pub const MAX_PACKETS: u32 = 1 << 20;
    /// Bounds of the bytes of a queue: it holds the largest packet there is.
    pub const QUEUE_BYTES: (ByteSize, ByteSize) = (ByteSize(64 << 10), ByteSize(1 << 30));
    /// Bounds of the time of a queue.
    pub const QUEUE_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));
}

impl Default for QosConfig {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            overhead: 24,
            kmin: ByteSize(5_000),
            kmax: ByteSize(200_000),
            pmax: Percent(Share::ONE_PERCENT),
            hard_limit: ByteSize(256 << 10),
            control_rate: Percent(Share::TWO_PERCENT),
            queue_packets: 1024,
            queue_bytes: ByteSize::mebibytes(2),
            queue_time: Duration::from_millis(100),
            tcp_ecn: false,
            tcp_ecn_target: Duration::from_millis(5),
        }
    }
}
