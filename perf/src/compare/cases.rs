//! What is compared: the cases, the flow counts, the kinds of traffic and the peers, as named on the command line.
//!
//! Names and numbers only; the frames are in `frames.rs`, the switches in their own files.

use std::fmt;
use std::str::FromStr;

/// A name on the command line that means nothing here.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("unknown {kind} `{given}`: {expected}")]
pub struct UnknownName {
    kind: &'static str,
    given: String,
    expected: &'static str,
}

impl UnknownName {
    /// `given` is no `kind`; what is expected instead.
    pub(crate) fn new(kind: &'static str, given: &str, expected: &'static str) -> Self {
        Self { kind, given: given.chars().take(40).collect(), expected }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::L2 => "l2",
            Self::Encap => "encap",
            Self::Decap => "decap",
            Self::Both => "both",
        })
    }
}

impl FromStr for Case {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        match given {
            "l2" => Ok(Self::L2),
            "encap" => Ok(Self::Encap),
            "decap" => Ok(Self::Decap),
            "both" => Ok(Self::Both),
            _ => Err(UnknownName::new("case", given, Work::EXPECTED)),
        }
    }
}

/// A case, and whose packets they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub case: Case,
    /// So many tenants, each a VLAN of one trunk port, with a VNI and a VTEP of its own; `None` is one with a port.
    pub tenants: Option<u32>,
}

/// Tenants of a trunk.
pub const TENANTS: u32 = 64;

impl Work {
    const EXPECTED: &str = "l2, encap, decap, both, trunk64 or trunk64-decap";
}

impl FromStr for Work {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        match given {
            "trunk64" => Ok(Self { case: Case::Encap, tenants: Some(TENANTS) }),
            "trunk64-decap" => Ok(Self { case: Case::Decap, tenants: Some(TENANTS) }),
            _ => Ok(Self { case: given.parse()?, tenants: None }),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// TCP segments; a flow is a 5-tuple.
    Tcp,
    /// RoCEv2 requests of reliable connections; a flow is a queue pair.
    Rocev2,
    /// Every other flow TCP, every other RoCEv2.
    Mixed,
    /// The frames of [`Rocev2`](Self::Rocev2) on another UDP port: to the switch, flows like any other.
    Udp,
    /// The same with one UDP source port, so that as few entries of the flow table are used as by RoCEv2.
    UdpFew,
}

impl fmt::Display for Traffic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Tcp => "tcp",
            Self::Rocev2 => "rocev2",
            Self::Mixed => "mixed",
            Self::Udp => "udp",
            Self::UdpFew => "udp-few",
        })
    }
}

impl FromStr for Traffic {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        match given {
            "tcp" => Ok(Self::Tcp),
            "rocev2" | "roce" => Ok(Self::Rocev2),
            "mixed" => Ok(Self::Mixed),
            "udp" => Ok(Self::Udp),
            "udp-few" => Ok(Self::UdpFew),
            _ => Err(UnknownName::new("traffic", given, "tcp, rocev2 (or roce), mixed, udp or udp-few")),
        }
    }
}

/// A number of flows, with the words it was given in ("1k").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flows {
    /// As given.
    pub given: String,
    pub count: usize,
}

impl fmt::Display for Flows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.given)
    }
}

/// More flows than this do not fit the frame and buffer pools of a replayed file.
pub const MOST_REPLAYED: usize = 200_000;
/// More flows than this are not measured.
const MOST_FLOWS: usize = 1_000_000;

impl FromStr for Flows {
    type Err = UnknownName;

    fn from_str(given: &str) -> Result<Self, UnknownName> {
        let (digits, unit) = if let Some(digits) = given.strip_suffix(['k', 'K']) {
            (digits, 1000)
        } else if let Some(digits) = given.strip_suffix('M') {
            (digits, 1_000_000)
        } else {
            (given, 1)
        };
        digits
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .filter(|count| (1..=MOST_FLOWS).contains(count))
            .map(|count| Self { given: given.into(), count })
            .ok_or(UnknownName::new(
                "number of flows",
                given,
                "1 to 1M, with k for thousands, as in 1, 1k, 100k, 1M",
            ))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `dpdk-testpmd` in io mode: moves packets and looks at nothing; the floor of every case.
    Testpmd,
    /// OVS-DPDK with one megaflow per 5-tuple.
    OvsExact,
    OvsWildcard,
    /// This switch again, with [`Traffic::Udp`]: what queue pairs cost over flows.
    Udp,
    /// This switch again, with [`Traffic::UdpFew`]: what the table of queue pairs costs by itself.
    UdpFew,
    /// This switch again, without rates: what the token buckets cost.
    NoQos,
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
            Self::Udp | Self::UdpFew | Self::NoQos | Self::OneTenant | Self::Short | Self::Before => true,
            Self::Testpmd | Self::OvsExact | Self::OvsWildcard => false,
        }
    }

    /// The peers behind a word of `--peers`; `ovs` stands for both kinds of megaflows.
    pub fn parse_word(given: &str) -> Result<Vec<Self>, UnknownName> {
        match given {
            "testpmd" => Ok(vec![Self::Testpmd]),
            "ovs" => Ok(vec![Self::OvsExact, Self::OvsWildcard]),
            "ovs-exact" => Ok(vec![Self::OvsExact]),
            "ovs-wildcard" => Ok(vec![Self::OvsWildcard]),
            "udp" => Ok(vec![Self::Udp]),
            "udp-few" => Ok(vec![Self::UdpFew]),
            "no-qos" => Ok(vec![Self::NoQos]),
            "one-tenant" => Ok(vec![Self::OneTenant]),
            "short" => Ok(vec![Self::Short]),
            "before" => Ok(vec![Self::Before]),
            _ => Err(UnknownName::new(
                "peer",
                given,
                "testpmd, ovs (both kinds), ovs-exact, ovs-wildcard, or this switch itself: with other frames (udp or \
                 udp-few), without rates (no-qos), with one tenant on the trunk (one-tenant), with \
                 frames of 64 bytes (short) or of another build (before)",
            )),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Testpmd => "testpmd",
            Self::OvsExact => "ovs-exact",
            Self::OvsWildcard => "ovs-wildcard",
            Self::Udp => "udp",
            Self::UdpFew => "udp-few",
            Self::NoQos => "no-qos",
            Self::OneTenant => "one-tenant",
            Self::Short => "short",
            Self::Before => "before",
        })
    }
}

/// One line of the comparison, without the switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub case: Case,
    /// So many tenants on one trunk port; `None` is one with a port of its own.
    pub tenants: Option<u32>,
    pub flows: Flows,
    /// Length of the inner Ethernet frame, its 4-byte frame check sequence included.
    pub inner_bytes: usize,
    pub traffic: Traffic,
    /// Whether this switch has rates at every level, so high that nothing waits.
    pub qos: bool,
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
mod tests {
    use super::*;

    #[test]
    fn flows_keep_their_words() {
        let flows: Flows = "1k".parse().unwrap();
        assert_eq!((flows.count, flows.to_string().as_str()), (1000, "1k"));
        assert_eq!("100k".parse::<Flows>().unwrap().count, 100_000);
        assert_eq!("1M".parse::<Flows>().unwrap().count, 1_000_000);
        for bad in ["", "k", "0", "-1", "1m", "2M", "1001k", "1.5k", "99999999999999999999k"] {
            assert!(bad.parse::<Flows>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_read_back() {
        for name in ["l2", "encap", "decap", "both"] {
            assert_eq!(name.parse::<Case>().unwrap().to_string(), name);
        }
        for name in ["tcp", "rocev2", "mixed", "udp", "udp-few"] {
            assert_eq!(name.parse::<Traffic>().unwrap().to_string(), name);
        }
        for name in
            ["testpmd", "ovs-exact", "ovs-wildcard", "udp", "udp-few", "no-qos", "one-tenant", "short"]
        {
            assert_eq!(Peer::parse_word(name).unwrap()[0].to_string(), name);
        }
        assert_eq!("roce".parse(), Ok(Traffic::Rocev2));
        assert_eq!(Peer::parse_word("ovs").unwrap(), [Peer::OvsExact, Peer::OvsWildcard]);
        assert!("l3".parse::<Case>().is_err() && Peer::parse_word("snabb").is_err());
    }
}
