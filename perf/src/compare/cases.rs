//! What is compared: the cases, the flow counts, the kinds of traffic and the peers, as named on the command line.
//!
//! Names and numbers only; the frames are in `frames.rs`, the switches in their own files.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Deserialize;

use crate::options::word;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// From one local port to another, frames unchanged.
    L2,
    Encap,
    /// Out of a VxLAN tunnel to a tenant's port.
    Decap,
    /// Into the tunnel and out of it at the same time, half of the packets each.
    Both,
}

impl Case {
    /// The one-way cases that it consists of.
    pub fn ways(self) -> &'static [Self] {
        match self {
            Self::L2 => &[Self::L2],
            Self::Encap => &[Self::Encap],
            Self::Decap => &[Self::Decap],
            Self::Both => &[Self::Encap, Self::Decap],
        }
    }
}

/// A case, and whose packets they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    L2,
    Encap,
    Decap,
    /// Encap and decap at the same time.
    Both,
    /// Encap for 64 tenants on one port.
    Trunk64,
    /// Decap for 64 tenants on one port.
    Trunk64Decap,
}

/// Tenants of a trunk.
pub const TENANTS: u32 = 64;

impl Work {
    /// The case, and so many tenants, each a VLAN of one trunk port with a VNI and a VTEP of its own; `None` is one with a port.
    pub fn parts(self) -> (Case, Option<u32>) {
        match self {
            Self::L2 => (Case::L2, None),
            Self::Encap => (Case::Encap, None),
            Self::Decap => (Case::Decap, None),
            Self::Both => (Case::Both, None),
            Self::Trunk64 => (Case::Encap, Some(TENANTS)),
            Self::Trunk64Decap => (Case::Decap, Some(TENANTS)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// TCP segments; a flow is a 5-tuple.
    Tcp,
    /// RoCEv2 requests of reliable connections; a flow is a queue pair.
    #[value(alias = "roce")]
    #[serde(alias = "roce")]
    Rocev2,
    /// Every other flow TCP, every other RoCEv2.
    Mixed,
    /// The frames of RoCEv2 on another UDP port: to the switch, flows like any other.
    Udp,
    /// The same with one UDP source port, so that as few entries of the flow table are used as by RoCEv2.
    UdpFew,
}

/// A number of flows, with the words it was given in ("1k").
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FlowCount {
    pub given: String,
    pub count: usize,
}

impl fmt::Display for FlowCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.given)
    }
}

/// More flows than this do not fit the frame and buffer pools of a replayed file.
pub const MOST_REPLAYED: usize = 200_000;
/// More flows than this are not measured.
const MOST_FLOWS: usize = 1_000_000;

impl FromStr for FlowCount {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (digits, unit) = match given.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1000),
            None => given.strip_suffix('M').map_or((given, 1), |digits| (digits, 1_000_000)),
        };
        let count = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
        let count = count.filter(|count| (1..=MOST_FLOWS).contains(count));
        let wrong =
            || format!("`{given}` is not in 1 to 1M flows, with k for thousands, as in 1, 1k, 100k, 1M");
        count.map(|count| Self { given: given.into(), count }).ok_or_else(wrong)
    }
}

impl TryFrom<String> for FlowCount {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// `dpdk-testpmd` in io mode: moves packets and looks at nothing; the floor of every case.
    Testpmd,
    /// OVS-DPDK with one megaflow per 5-tuple.
    OvsExact,
    OvsWildcard,
    /// This switch again, with the frames of RoCEv2 as UDP: what queue pairs cost over flows.
    Udp,
    /// The same with one UDP source port: what the table of queue pairs costs by itself.
    UdpFew,
    /// This switch again, without rates: what the token buckets cost.
    NoQos,
    /// This switch again, without security groups: what following connections costs.
    NoGroups,
    /// This switch again, without ports on which nothing comes: what looking at those costs.
    NoIdle,
    /// This switch again, with one tenant on the trunk port: what the others cost.
    OneTenant,
    /// This switch again, with inner frames of 64 bytes: what longer ones cost.
    Short,
    /// Another build of this switch, for the same work: what a change did.
    Before,
}

impl Peer {
    /// What a peer does in a row of this job.
    pub fn job(self, job: &Job) -> Job {
        match self {
            Self::Udp => Job { traffic: Traffic::Udp, ..job.clone() },
            Self::UdpFew => Job { traffic: Traffic::UdpFew, ..job.clone() },
            Self::NoQos => Job { qos: false, ..job.clone() },
            Self::NoGroups => Job { groups: false, ..job.clone() },
            Self::NoIdle => Job { idle_ports: 0, ..job.clone() },
            Self::Short => Job { inner_bytes: 64, ..job.clone() },
            Self::OneTenant => Job { tenants: job.tenants.map(|_| 1), ..job.clone() },
            Self::Testpmd | Self::OvsExact | Self::OvsWildcard | Self::Before => job.clone(),
        }
    }

    /// Why a job is nothing for it; nothing if it is.
    pub fn objection(self, job: &Job) -> Option<&'static str> {
        match (self, job.tenants) {
            (Self::OvsExact | Self::OvsWildcard, Some(_)) => {
                Some("OVS is not set up for tenants on a trunk port here")
            }
            (Self::OneTenant, None) => Some("it takes a trunk case: trunk64 or trunk64-decap"),
            _ => None,
        }
    }

    /// True when it is this switch itself, given something else to do.
    pub fn is_ourselves(self) -> bool {
        match self {
            Self::Udp
            | Self::UdpFew
            | Self::NoQos
            | Self::NoGroups
            | Self::NoIdle
            | Self::OneTenant
            | Self::Short
            | Self::Before => true,
            Self::Testpmd | Self::OvsExact | Self::OvsWildcard => false,
        }
    }

    /// The peers behind a word of `--peers`; `ovs` stands for both kinds of megaflows.
    pub fn parse_word(given: &str) -> Result<Vec<Self>, String> {
        if given == "ovs" {
            return Ok(vec![Self::OvsExact, Self::OvsWildcard]);
        }
        let words = || Self::value_variants().iter().map(word).collect::<Vec<_>>().join(", ");
        let peer = Self::from_str(given, false);
        peer.map(|peer| vec![peer]).map_err(|_| format!("there are ovs (both kinds), {}", words()))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&word(self))
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&word(self))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&word(self))
    }
}

/// One line of the comparison, without the switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub case: Case,
    /// So many tenants on one trunk port; `None` is one with a port of its own.
    pub tenants: Option<u32>,
    pub flows: FlowCount,
    /// Length of the inner Ethernet frame, its 4-byte frame check sequence included.
    pub inner_bytes: usize,
    pub traffic: Traffic,
    /// Whether this switch has rates at every level, so high that nothing waits.
    pub qos: bool,
    /// Bytes that each of these rates may save up; 0: as much as comes with the rate.
    pub burst: u32,
    /// Whether its vNICs are in security groups: with a thousand groups, and ten rules in each.
    pub groups: bool,
    /// Taps beside the ports with packets, on the same worker, on which nothing comes.
    pub idle_ports: u16,
}

impl Job {
    /// What the rows call the work.
    pub fn label(&self) -> String {
        match (self.tenants, self.case) {
            (Some(tenants), Case::Encap) => format!("trunk{tenants}"),
            (Some(tenants), case) => format!("trunk{tenants}-{case}"),
            (None, case) => case.to_string(),
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job of one tenant with TCP in the shortest frames; tests say what is different.
    pub(crate) fn plain(case: Case, flows: &str) -> Self {
        let flows = flows.parse().unwrap();
        Self {
            case,
            tenants: None,
            flows,
            inner_bytes: 64,
            traffic: Traffic::Tcp,
            qos: false,
            burst: 0,
            groups: false,
            idle_ports: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_keep_their_words() {
        let flows: FlowCount = "1k".parse().unwrap();
        assert_eq!((flows.count, flows.to_string().as_str()), (1000, "1k"));
        assert_eq!("100k".parse::<FlowCount>().unwrap().count, 100_000);
        assert_eq!("1M".parse::<FlowCount>().unwrap().count, 1_000_000);
        for bad in ["", "k", "0", "-1", "1m", "2M", "1001k", "1.5k", "99999999999999999999k"] {
            assert!(bad.parse::<FlowCount>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_read_back() {
        for name in ["l2", "encap", "decap", "both"] {
            assert_eq!(Case::from_str(name, false).unwrap().to_string(), name);
            assert_eq!(word(&Work::from_str(name, false).unwrap()), name);
        }
        for name in ["tcp", "rocev2", "mixed", "udp", "udp-few"] {
            assert_eq!(Traffic::from_str(name, false).unwrap().to_string(), name);
        }
        for name in [
            "testpmd",
            "ovs-exact",
            "ovs-wildcard",
            "udp",
            "udp-few",
            "no-qos",
            "no-groups",
            "no-idle",
            "one-tenant",
            "short",
        ] {
            assert_eq!(Peer::parse_word(name).unwrap()[0].to_string(), name);
        }
        assert_eq!(Traffic::from_str("roce", false), Ok(Traffic::Rocev2));
        assert_eq!(Work::from_str("trunk64-decap", false).unwrap().parts(), (Case::Decap, Some(64)));
        assert_eq!(Peer::parse_word("ovs").unwrap(), [Peer::OvsExact, Peer::OvsWildcard]);
        assert!(Case::from_str("l3", false).is_err());
        assert!(Peer::parse_word("snabb").unwrap_err().contains("ovs (both kinds), testpmd, ovs-exact"));
    }
}
