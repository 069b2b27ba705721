//! What is compared: the cases, the flow counts, the kinds of traffic and the peers, as named on the command line.
//!
//! Names and numbers only; the frames are in `frames.rs`, the switches in their own files.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::frames::INNER_BYTES;
use crate::generator::units;
use crate::options::{within, word};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// From one local port to another, frames unchanged.
    #[default]
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// TCP segments; a flow is a 5-tuple.
    #[default]
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

/// How the packets of a row differ from those of others, beyond case and traffic: usually flows of one length come by turns, and
/// stay the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct Mix {
    /// Inner frames of 64, 594 and 1454 bytes, by flow, in the proportions of the simple IMIX, 7 : 4 : 1.
    #[arg(long, conflicts_with = "inner_bytes")]
    #[serde(default, skip_serializing_if = "is_default")]
    pub imix: bool,
    /// Flows come by Zipf's law (the one of rank k about 1 / k of the time) instead of by turns.
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub zipf: bool,
    /// So many of a thousand flows give way to new ones whenever all have come once; the flow table has room for as many as there are
    /// at a time and no more.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub churn: u16,
    /// So many counterparts, each behind a VTEP of its own, all of these behind one router. A power of two; 0: 16 behind one VTEP.
    #[arg(long, default_value_t = 0, value_parser = far_vteps)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub vteps: usize,
}

/// True for what is as usual, which is not said; as serde asks.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn far_vteps(word: &str) -> Result<usize, String> {
    let number = word.parse().ok().filter(|&number: &usize| number == 0 || number.is_power_of_two());
    number
        .filter(|number| *number == 0 || (32..=16_384).contains(number))
        .ok_or_else(|| format!("`{word}` is no power of two from 32 to 16384"))
}

impl fmt::Display for Mix {
    /// What is not as usual; a dash if all is.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { imix, zipf, churn, vteps } = *self;
        let words = [
            imix.then(|| "imix".to_owned()),
            zipf.then(|| "zipf".to_owned()),
            (churn > 0).then(|| format!("churn {churn}")),
            (vteps > 0).then(|| format!("{vteps} vteps")),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        formatter.pad(&if words.is_empty() { "-".to_owned() } else { words.join("+") })
    }
}

/// A number of flows, with the words it was given in ("1k").
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
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
        let count = units::count(given).ok().and_then(|count| usize::try_from(count).ok());
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
    /// The same in mac mode: it writes both MAC addresses of each packet.
    TestpmdMac,
    /// OVS-DPDK with one megaflow per 5-tuple.
    OvsExact,
    OvsWildcard,
    /// OVS-DPDK that follows connections (conntrack), with few megaflows.
    OvsConntrack,
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
    /// This switch again, with flows that come by turns and stay, and 16 counterparts behind one VTEP: what the mix costs.
    NoMix,
    /// Another build of this switch, for the same work: what a change did.
    Before,
}

impl Peer {
    /// What a peer does in a row of this job.
    pub fn job(self, job: &Job) -> Job {
        let mut job = job.clone();
        match self {
            Self::Udp => job.traffic = Traffic::Udp,
            Self::UdpFew => job.traffic = Traffic::UdpFew,
            Self::NoQos => job.qos = false,
            Self::NoGroups => job.groups = false,
            Self::NoIdle => job.idle_ports = 0,
            Self::Short => (job.inner_bytes, job.mix.imix) = (64, false),
            Self::NoMix => job.mix = Mix { imix: job.mix.imix, ..Mix::default() },
            Self::OneTenant => job.tenants = job.tenants.map(|_| 1),
            _ => {}
        }
        job
    }

    /// Why a job is nothing for it; nothing if it is.
    pub fn objection(self, job: &Job) -> Option<&'static str> {
        let Job { tenants, traffic, mix, .. } = job;
        match self {
            _ if self.is_ovs() && tenants.is_some() => {
                Some("OVS is not set up for tenants on a trunk port here")
            }
            _ if self.is_ovs() && mix.vteps > 0 => Some("OVS is not set up for so many tunnels here"),
            _ if self.is_ovs() && mix.churn > 0 => Some("its flows would pile up while it is frozen"),
            Self::OvsConntrack if !matches!(traffic, Traffic::Udp | Traffic::UdpFew) => {
                Some("TCP without a handshake is no connection for it: give it `--traffic udp`")
            }
            Self::OneTenant if tenants.is_none() => Some("it takes a trunk case: trunk64 or trunk64-decap"),
            Self::NoMix if *mix == (Mix { imix: mix.imix, ..Mix::default() }) => {
                Some("it takes --zipf, --churn or --vteps")
            }
            _ => None,
        }
    }

    pub fn is_ovs(self) -> bool {
        matches!(self, Self::OvsExact | Self::OvsWildcard | Self::OvsConntrack)
    }

    /// True when it moves frames and does none of the work.
    pub fn moves_only(self) -> bool {
        matches!(self, Self::Testpmd | Self::TestpmdMac)
    }

    /// True when it is this switch itself, given something else to do.
    pub fn is_ourselves(self) -> bool {
        !self.is_ovs() && !self.moves_only()
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

/// One line of the comparison, without the switches. The command line says what is the same for all lines of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Job {
    #[arg(skip)]
    pub case: Case,
    /// So many tenants on one trunk port; `None` is one with a port of its own.
    #[arg(skip)]
    pub tenants: Option<u32>,
    #[arg(skip)]
    pub flows: FlowCount,
    /// Length of the inner Ethernet frame, with its 4-byte frame check sequence (so 64 means 60 bytes in memory).
    #[arg(long, default_value_t = 64, value_parser = within::<usize>(*INNER_BYTES.start(), *INNER_BYTES.end()))]
    pub inner_bytes: usize,
    /// What the inner frames carry.
    #[arg(long, value_enum, default_value = "tcp")]
    pub traffic: Traffic,
    /// With lengths of IMIX, `inner_bytes` is that of the longest.
    #[arg(skip)]
    pub mix: Mix,
    /// Give this switch rates for the link, the VPC, the vNIC and its classes, so high that each packet pays and none
    /// waits.
    #[arg(long)]
    pub qos: bool,
    /// Bytes that VPC, vNIC and classes may save up, instead of what comes with such rates, which is much. 131072 is what
    /// rates of up to 1 Gbit/s have by themselves: packets draw from the shared buckets as often as under the rates of tenants.
    #[arg(long, requires = "qos", value_parser = clap::value_parser!(u32).range(32_768..))]
    pub burst: Option<u32>,
    /// Put vNICs into security groups, with a thousand groups of ten rules. Compare with `--peers no-groups`, and `--traffic udp`:
    /// the frames of tcp have no handshake, without which the switch takes none for a connection.
    #[arg(long)]
    pub groups: bool,
    /// Give this switch so many taps beside, on the same worker, on which nothing comes. Compare with `--peers no-idle`, in a network
    /// namespace: the taps are interfaces of the machine.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=2000))]
    pub idle_ports: u16,
}

impl Job {
    /// A job like this one for each case, with its tenants, and number of flows.
    pub fn each(
        &self,
        works: impl IntoIterator<Item = (Case, Option<u32>)>,
        flows: &[FlowCount],
    ) -> Vec<Self> {
        let job =
            |(case, tenants), flows: &FlowCount| Self { case, tenants, flows: flows.clone(), ..self.clone() };
        works.into_iter().flat_map(|work| flows.iter().map(move |flows| job(work, flows))).collect()
    }

    /// What the rows call the work.
    pub fn label(&self) -> String {
        match (self.tenants, self.case) {
            (Some(tenants), Case::Encap) => format!("trunk{tenants}"),
            (Some(tenants), case) => format!("trunk{tenants}-{case}"),
            (None, case) => case.to_string(),
        }
    }

    /// Flows of each round that give way to new ones.
    pub fn new_flows(&self) -> usize {
        self.flows.count * usize::from(self.mix.churn) / 1000
    }

    /// Why there are no frames of it; nothing if there are.
    pub fn objection(&self) -> Option<&'static str> {
        let Mix { imix, zipf, vteps, .. } = self.mix;
        let queue_pairs = matches!(self.traffic, Traffic::Rocev2 | Traffic::Mixed);
        if vteps > 0 && (self.case == Case::L2 || self.tenants.is_some() || self.traffic == Traffic::Mixed) {
            Some("many VTEPs are for encap, decap and both, with one kind of traffic")
        } else if imix && self.tenants.is_some() {
            Some("the lengths of IMIX are for one tenant")
        } else if zipf && queue_pairs {
            Some("by Zipf's law queue pairs would repeat sequence numbers, which costs by itself")
        } else {
            None
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job of one tenant with TCP in the shortest frames; tests say what is different.
    pub(crate) fn plain(case: Case, flows: &str) -> Self {
        Self { case, flows: flows.parse().unwrap(), inner_bytes: 64, ..Self::default() }
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
    fn a_mix_says_what_is_not_as_usual() {
        assert_eq!(Mix::default().to_string(), "-");
        let mix = Mix { imix: true, zipf: false, churn: 10, vteps: 64 };
        assert_eq!(mix.to_string(), "imix+churn 10+64 vteps");
        assert_eq!(["0", "32", "16384"].map(far_vteps), [Ok(0), Ok(32), Ok(16_384)]);
        for bad in ["1", "10000", "32768", "x"] {
            assert!(far_vteps(bad).unwrap_err().contains("no power of two"), "{bad}");
        }
        let job = Job { mix: Mix { churn: 10, ..mix }, ..Job::plain(Case::Encap, "100k") };
        assert_eq!(job.new_flows(), 1000);
        for (job, wanted) in [
            (Job { tenants: Some(64), ..job.clone() }, "many VTEPs"),
            (Job { mix: Mix { vteps: 0, ..mix }, tenants: Some(64), ..job.clone() }, "one tenant"),
            (
                Job { mix: Mix { zipf: true, ..Mix::default() }, traffic: Traffic::Rocev2, ..job.clone() },
                "sequence numbers",
            ),
        ] {
            assert!(job.objection().unwrap().contains(wanted), "{wanted}");
        }
        assert_eq!(job.objection(), None);
        assert!(Peer::NoMix.objection(&Job::plain(Case::Encap, "1")).is_some());
        assert_eq!(Peer::NoMix.job(&job).mix, Mix { imix: true, ..Mix::default() });
        assert!(Peer::OvsExact.objection(&job).unwrap().contains("tunnels"));
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
            "testpmd-mac",
            "ovs-exact",
            "ovs-wildcard",
            "ovs-conntrack",
            "no-mix",
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
        assert!(
            Peer::parse_word("snabb")
                .unwrap_err()
                .contains("ovs (both kinds), testpmd, testpmd-mac, ovs-exact")
        );
    }
}
