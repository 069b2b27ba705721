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

/// Gives each variant of a choice its word on the command line and in reports; behind a bar another that is read too.
macro_rules! words {
    ($name:ty, $kind:literal, $expected:expr, { $($variant:ident = $word:literal $(| $other:literal)?),+ }) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(match self { $(Self::$variant => $word),+ })
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::compare::cases::UnknownName;

            fn from_str(given: &str) -> Result<Self, Self::Err> {
                match given {
                    $($word $(| $other)? => Ok(Self::$variant),)+
                    _ => Err($crate::compare::cases::UnknownName::new($kind, given, $expected)),
                }
            }
        }
    };
}
pub(crate) use words;

words!(Case, "case", Work::EXPECTED, { L2 = "l2", Encap = "encap", Decap = "decap", Both = "both" });
words!(Traffic, "traffic", "tcp, rocev2 (or roce), mixed, udp or udp-few", {
    Tcp = "tcp", Rocev2 = "rocev2" | "roce", Mixed = "mixed", Udp = "udp", UdpFew = "udp-few"
});
words!(Peer, "peer", Self::EXPECTED, {
    Testpmd = "testpmd", OvsExact = "ovs-exact", OvsWildcard = "ovs-wildcard", Udp = "udp", UdpFew = "udp-few",
    NoQos = "no-qos", NoGroups = "no-groups", OneTenant = "one-tenant", Short = "short", Before = "before"
});

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

/// A number of flows, with the words it was given in ("1k").
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// This switch again, without security groups: what following connections costs.
    NoGroups,
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
            | Self::OneTenant
            | Self::Short
            | Self::Before => true,
            Self::Testpmd | Self::OvsExact | Self::OvsWildcard => false,
        }
    }

    const EXPECTED: &str = "testpmd, ovs (both kinds), ovs-exact, ovs-wildcard, or this switch itself: with other frames \
                            (udp or udp-few), without rates (no-qos), without security groups (no-groups), with one \
                            tenant on the trunk (one-tenant), with \
                            frames of 64 bytes (short) or of another build (before)";

    /// The peers behind a word of `--peers`; `ovs` stands for both kinds of megaflows.
    pub fn parse_word(given: &str) -> Result<Vec<Self>, UnknownName> {
        match given {
            "ovs" => Ok(vec![Self::OvsExact, Self::OvsWildcard]),
            _ => Ok(vec![given.parse()?]),
        }
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
    /// Whether its vNICs are in security groups: with a thousand groups, and ten rules in each.
    pub groups: bool,
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
        Self { case, tenants: None, flows, inner_bytes: 64, traffic: Traffic::Tcp, qos: false, groups: false }
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
            assert_eq!(name.parse::<Case>().unwrap().to_string(), name);
        }
        for name in ["tcp", "rocev2", "mixed", "udp", "udp-few"] {
            assert_eq!(name.parse::<Traffic>().unwrap().to_string(), name);
        }
        for name in [
            "testpmd",
            "ovs-exact",
            "ovs-wildcard",
            "udp",
            "udp-few",
            "no-qos",
            "no-groups",
            "one-tenant",
            "short",
        ] {
            assert_eq!(Peer::parse_word(name).unwrap()[0].to_string(), name);
        }
        assert_eq!("roce".parse(), Ok(Traffic::Rocev2));
        assert_eq!(Peer::parse_word("ovs").unwrap(), [Peer::OvsExact, Peer::OvsWildcard]);
        assert!("l3".parse::<Case>().is_err() && Peer::parse_word("snabb").is_err());
    }
}
