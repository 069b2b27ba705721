//! OVS-DPDK: the userspace datapath of Open vSwitch, in private folders and a network namespace of its own.
//!
//! Two bridges as its manual recommends for VxLAN: `br-int` with the tenant's port and the tunnel, `br-phys` with the
//! underlay port and the VTEP address. OpenFlow rules are as few as the work allows, which is what is fastest for
//! OVS: the comparison takes it at its best.

use std::time::Duration;

use super::cases::{Case, Job};
use super::frames::{FAR_VTEP, NEAR_VTEP, VNI};
use super::peer::{Attached, FramePort, Switch, SwitchSetup};
use crate::host::interrupt;
use crate::host::ovs::{INTEGRATION, OpenVswitch, OvsSetup, TunnelEnds, UNDERLAY};
use crate::host::process::{Placement, Process};
use crate::{Error, Result};

const SETTLE_LIMIT: Duration = Duration::from_secs(180);

/// The flow count up to which OVS's exact-match cache (8192 entries) helps it; beyond, it only costs.
const CACHED_FLOWS: usize = 4096;

/// More flows than this are not listed: that would take hundreds of megabytes.
const MOST_LISTED: usize = 150_000;

/// A core that no machine has.
const NO_CORE: usize = 4095;

/// Whether OVS uses its exact-match cache in front of the megaflows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ExactMatchCache {
    /// Where it makes OVS faster: up to 4096 flows.
    #[default]
    Auto,
    On,
    /// Never: every packet is looked up among the megaflows.
    Off,
}

impl ExactMatchCache {
    /// OVS's `emc-insert-inv-prob`: one in so many packets that miss is inserted; 0 turns the cache off.
    fn inverse_probability(self, flows: usize) -> u32 {
        let on = match self {
            Self::Auto => flows <= CACHED_FLOWS,
            Self::On => true,
            Self::Off => false,
        };
        if on { 100 } else { 0 }
    }
}

/// How finely the datapath's flows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Megaflows {
    /// One per 5-tuple, as a rule that hashes the 5-tuple brings about.
    Exact,
    Wildcard,
    /// Few, and every packet is looked up among the connections that it follows.
    Conntrack,
}

#[derive(Debug)]
pub struct Ovs {
    switch: OpenVswitch,
    megaflows: Megaflows,
    job: Job,
    bridge_of_sink: &'static str,
}

impl Ovs {
    /// Starts database and switch, makes bridges and rules, and last the port that begins to receive.
    pub fn start(setup: &SwitchSetup<'_>, megaflows: Megaflows) -> Result<Self> {
        let plugin = setup.plugin.as_ref().map_or_else(String::new, |path| format!(" -d {}", path.display()));
        let switch = OpenVswitch::start(&OvsSetup {
            folder: &setup.folder,
            prefix: &setup.prefix,
            placement: Placement { own_network: true, ..Placement::default() },
            eal: &format!("{}{plugin}", setup.bus_words().join(" ")),
            memory: memory(setup.job, setup.source.is_replayed()),
            settings: &settings(setup),
        })?;
        let bridge_of_sink = match setup.job.case {
            Case::Encap | Case::Both => UNDERLAY,
            Case::L2 | Case::Decap => INTEGRATION,
        };
        let ovs = Self { switch, megaflows, job: setup.job.clone(), bridge_of_sink };
        ovs.build(setup)?;
        Ok(ovs)
    }

    fn build(&self, setup: &SwitchSetup<'_>) -> Result<()> {
        self.switch.add_bridge(INTEGRATION)?;
        if setup.job.case != Case::L2 {
            self.switch.add_tunnel(&TunnelEnds { own: NEAR_VTEP, far: FAR_VTEP, vni: VNI.get() }, 3)?;
        }
        self.add_sink(setup)?;
        self.add_rules(setup.job.case)?;
        let bridge = if setup.job.case == Case::Decap { UNDERLAY } else { INTEGRATION };
        self.add_port(bridge, "source", 1, &setup.source, setup.cores.len())?;
        if polls_late(&setup.source) {
            self.set(&format!("pmd-cpu-mask={}", core_mask(setup.cores)))?;
        }
        Ok(())
    }

    fn add_sink(&self, setup: &SwitchSetup<'_>) -> Result<()> {
        self.add_port(self.bridge_of_sink, "sink", 2, &setup.sink, setup.cores.len())
    }

    fn add_port(&self, bridge: &str, name: &str, number: u32, port: &FramePort, queues: usize) -> Result<()> {
        if let FramePort::Attached(Attached::Guest(path)) = port {
            // It has a kind of its own for guests, and as many queues as they have.
            let path = format!("options:vhost-server-path={path}");
            return self.switch.add_port(bridge, name, number, &["type=dpdkvhostuserclient", &path]);
        }
        // The commas of the device arguments must not split the option.
        let devargs = format!("options:dpdk-devargs=\"{}\"", port.device(number as usize));
        let queues = format!("options:n_rxq={queues}");
        self.switch.add_port(bridge, name, number, &["type=dpdk", &devargs, &queues])
    }

    fn add_rules(&self, case: Case) -> Result<()> {
        // A choice among one link: changes nothing but makes the whole 5-tuple part of the megaflow.
        let cut = match self.megaflows {
            Megaflows::Exact => "multipath(symmetric_l3l4+udp,50,modulo_n,1,0,NXM_NX_REG0[]),",
            Megaflows::Wildcard | Megaflows::Conntrack => "",
        };
        // The tenant's port is 1 or 2 of its bridge, the underlay's the other number of its own, and the tunnel is 3.
        let into = |local: u32, outside: u32| {
            [
                (INTEGRATION, format!("in_port={local},actions={cut}output:3")),
                (UNDERLAY, format!("in_port=LOCAL,actions=output:{outside}")),
            ]
        };
        let out_of = |local: u32, outside: u32| {
            [
                (UNDERLAY, format!("in_port={outside},actions=LOCAL")),
                (INTEGRATION, format!("in_port=3,actions={cut}output:{local}")),
            ]
        };
        let rules = match case {
            Case::L2 => vec![(INTEGRATION, format!("in_port=1,actions={cut}output:2"))],
            Case::Encap => into(1, 2).into(),
            Case::Decap => out_of(2, 1).into(),
            Case::Both => [into(1, 2), out_of(1, 2)].concat(),
        };
        let rules: Vec<_> = match self.megaflows {
            Megaflows::Conntrack => {
                rules.into_iter().flat_map(|(bridge, rule)| followed(bridge, rule)).collect()
            }
            _ => rules,
        };
        rules.iter().try_for_each(|(bridge, rule)| self.switch.control.flow(bridge, rule))
    }

    /// Sets a key of `other_config`.
    fn set(&self, setting: &str) -> Result<()> {
        let word = format!("other_config:{setting}");
        self.switch.control.vsctl(&["set", "Open_vSwitch", ".", &word]).map(drop)
    }
}

/// The rule of a bridge of tenants as a stateful one: what is of no known connection is made one, with a mark, by which its packets are
/// known from then on in whichever direction they go.
fn followed(bridge: &'static str, rule: String) -> Vec<(&'static str, String)> {
    if bridge != INTEGRATION {
        return vec![(bridge, rule)];
    }
    let (ingress, actions) = rule.split_once(",actions=").unwrap_or((&rule, ""));
    let table = |more: &str| format!("table=1,{ingress},ip,ct_state=+trk,{more}");
    vec![
        (bridge, format!("{ingress},ip,actions=ct(table=1,zone=1)")),
        (
            bridge,
            format!("{},actions=ct(commit,zone=1,exec(set_field:1->ct_mark)),{actions}", table("ct_mark=0")),
        ),
        (bridge, format!("{},actions={actions}", table("ct_mark=1"))),
    ]
}

/// Keys of `other_config`.
fn settings(setup: &SwitchSetup<'_>) -> Vec<String> {
    let exact_match_cache = setup.exact_match_cache.inverse_probability(setup.job.flows.count);
    // A port of its own has 20,000 buffers with per-port memory, the shared pool has 262,144.
    let per_port = fits_a_port(setup.job, setup.source.is_replayed());
    let polling = if polls_late(&setup.source) { &[NO_CORE][..] } else { setup.cores };
    let mut words = vec![
        format!("dpdk-lcore-mask={}", core_mask(&[setup.housekeeping])),
        format!("pmd-cpu-mask={}", core_mask(polling)),
        format!("per-port-memory={per_port}"),
        format!("emc-insert-inv-prob={exact_match_cache}"),
        // Frozen while the other switch is measured: its flows must not look idle.
        "max-idle=600000".to_owned(),
    ];
    if flows(setup.job) > CACHED_FLOWS {
        words.push(format!("flow-limit={}", limit(flows(setup.job))));
    }
    words
}

/// Whether ports are polled only when all is set up: the datapath polls a port before the bridge knows it and drops
/// what comes, which must not happen to frames that are played once. (An endless port does not survive the change.)
fn polls_late(source: &FramePort) -> bool {
    matches!(source, FramePort::Replayed { endless: false, .. })
}

fn flows(job: &Job) -> usize {
    job.flows.count * job.case.ways().len()
}

/// The limit of its flows: never below its own, which is 200,000.
fn limit(flows: usize) -> usize {
    (2 * flows).max(200_000)
}

/// Whether the buffers of a port of its own are enough.
fn fits_a_port(job: &Job, replayed: bool) -> bool {
    !replayed || job.flows.count <= CACHED_FLOWS
}

/// Huge-page memory for its packet buffers, in MiB.
pub(crate) fn memory(job: &Job, replayed: bool) -> u64 {
    if fits_a_port(job, replayed) { 256 } else { 1024 }
}

impl Ovs {
    /// Waits until all flows are connections.
    fn settle_connections(&mut self, flows: usize) -> Result<()> {
        let OpenVswitch { daemon, control, .. } = &mut self.switch;
        daemon.await_that("its connections to be known", SETTLE_LIMIT, || {
            interrupt::pause(Duration::from_millis(100))?;
            Ok(connections(&control.appctl(&["dpctl/ct-get-nconns"])?).is_some_and(|count| count >= flows))
        })
    }
}

/// The number of connections in `dpctl/ct-get-nconns`.
fn connections(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

impl Switch for Ovs {
    fn name(&self) -> &str {
        "ovs"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.switch.daemon
    }

    fn forwarded(&mut self) -> Result<u64> {
        let text = self.switch.control.appctl(&["dpctl/show", "-s"])?;
        sent_by(&text, "sink").ok_or(Error::Refused { switch: "ovs", words: text })
    }

    fn settle(&mut self) -> Result<()> {
        let flows = flows(&self.job);
        if self.megaflows == Megaflows::Conntrack {
            self.settle_connections(flows)?;
        }
        let wanted = if self.megaflows == Megaflows::Exact { flows } else { 1 };
        let many = self.megaflows == Megaflows::Exact && flows > CACHED_FLOWS;
        if many {
            // A round of its revalidators that takes long, because the flows are too many or because the switch is frozen
            // in the middle of it, lowers the limit, and flows are thrown out again.
            self.set("max-revalidator=600000")?;
        }
        let OpenVswitch { daemon, control, .. } = &mut self.switch;
        daemon.await_that("its flows to be installed", SETTLE_LIMIT, || {
            if many {
                // A round under way may lower it once more at its end.
                control.appctl(&["upcall/set-flow-limit", &limit(flows).to_string()])?;
            }
            let text = control.appctl(&["upcall/show"])?;
            let enough = installed(&text).is_some_and(|count| count >= wanted);
            if !enough {
                interrupt::pause(Duration::from_millis(200))?;
            }
            Ok(enough)
        })?;
        if self.megaflows == Megaflows::Exact && flows > MOST_LISTED {
            // What comes out is looked at in any case.
            return Ok(());
        }
        let dump = self.switch.control.appctl(&["dpctl/dump-flows"])?;
        check_flows(&dump, self.job.case, self.megaflows, flows)
    }
}

/// The datapath must do the work that is compared, and in as many flows as the row says.
fn check_flows(dump: &str, case: Case, megaflows: Megaflows, flows: usize) -> Result<()> {
    let actions: &[&str] = match case {
        Case::L2 => &["actions:"],
        Case::Encap => &["tnl_push("],
        Case::Decap => &["tnl_pop("],
        Case::Both => &["tnl_push(", "tnl_pop("],
    };
    let found = dump.lines().filter(|line| line.contains("in_port(")).count();
    let right_number = match megaflows {
        Megaflows::Exact => found >= flows,
        Megaflows::Wildcard => found <= 8,
        Megaflows::Conntrack => found <= 24 && dump.contains("ct(zone=1)"),
    };
    if actions.iter().all(|action| dump.contains(action)) && right_number {
        return Ok(());
    }
    let sample: Vec<&str> = dump.lines().take(4).collect();
    Err(Error::Refused {
        switch: "ovs",
        words: format!(
            "the datapath has {found} flows for {flows}, or none with {}; it begins\n{}",
            actions.join(" and "),
            sample.join("\n")
        ),
    })
}

/// The mask of cores, in hexadecimal.
fn core_mask(cores: &[usize]) -> String {
    let digits = cores.iter().max().map_or(1, |most| most / 4 + 1);
    let digit = |place: usize| {
        let here = cores.iter().filter(|core| *core / 4 == place).map(|core| 1u32 << (core % 4));
        char::from_digit(here.fold(0, |all, bit| all | bit), 16).unwrap_or('0')
    };
    format!("0x{}", (0..digits).rev().map(digit).collect::<String>())
}

/// The number of flows in `upcall/show`.
fn installed(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("(current ")?;
    rest.split(')').next()?.parse().ok()
}

/// Packets sent by a port, from `dpctl/show -s`.
fn sent_by(text: &str, port: &str) -> Option<u64> {
    let mut lines = text.lines().skip_while(|line| {
        let name = line.trim().strip_prefix("port ").and_then(|rest| rest.split_whitespace().nth(1));
        name != Some(port)
    });
    let line = lines.find(|line| line.trim().starts_with("TX packets:"))?;
    line.trim().strip_prefix("TX packets:")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    const SHOW: &str = "netdev@ovs-netdev:\n  lookups: hit:1 missed:2 lost:0\n  flows: 1\n  port 0: ovs-netdev (tap)\n    \
                        RX packets:0 errors:0\n    TX packets:7 errors:0\n  port 1: sink (dpdk: configured_rx_queues=1)\n    \
                        RX packets:3 errors:0\n    TX packets:815 errors:0 dropped:0\n";

    #[test]
    fn the_cache_is_used_where_it_helps() {
        let auto = ExactMatchCache::from_str("auto", false).unwrap();
        assert_eq!((auto.inverse_probability(1000), auto.inverse_probability(100_000)), (100, 0));
        assert_eq!(ExactMatchCache::Off.inverse_probability(1), 0);
        assert_eq!(ExactMatchCache::On.inverse_probability(100_000), 100);
        assert!(ExactMatchCache::from_str("maybe", false).is_err());
    }

    #[test]
    fn masks_reach_beyond_64_cores() {
        let mask = |core| core_mask(&[core]);
        assert_eq!([0, 1, 7, 68].map(mask), ["0x1", "0x2", "0x80", "0x100000000000000000"]);
        assert_eq!(core_mask(&[2, 3, 9]), "0x20c");
    }

    #[test]
    fn reads_its_tables() {
        assert_eq!(sent_by(SHOW, "sink"), Some(815));
        assert_eq!(sent_by(SHOW, "source"), None);
        let text = "netdev@ovs-netdev:\n  flows         : (current 1003) (avg 3) (max 9) (limit 10000)\n";
        assert_eq!(installed(text), Some(1003));
    }

    #[test]
    fn a_rule_of_tenants_becomes_stateful_and_one_of_the_underlay_stays() {
        let rules = followed(INTEGRATION, "in_port=1,actions=output:3".into());
        assert_eq!(rules[0].1, "in_port=1,ip,actions=ct(table=1,zone=1)");
        assert_eq!(
            rules[1].1,
            "table=1,in_port=1,ip,ct_state=+trk,ct_mark=0,actions=ct(commit,zone=1,exec(set_field:1->ct_mark)),output:3"
        );
        assert_eq!(rules[2].1, "table=1,in_port=1,ip,ct_state=+trk,ct_mark=1,actions=output:3");
        assert_eq!(followed(UNDERLAY, "in_port=2,actions=LOCAL".into()).len(), 1);
        assert_eq!((connections("1003\n"), connections("")), (Some(1003), None));
    }

    #[test]
    fn flows_of_the_wrong_kind_are_refused() {
        let push = "recirc_id(0),in_port(1),packet_type(ns=0,id=0) actions:tnl_push(tnl_port(3),...)\n";
        assert!(check_flows(push, Case::Encap, Megaflows::Wildcard, 1000).is_ok());
        assert!(check_flows(push, Case::Encap, Megaflows::Exact, 1000).is_err());
        assert!(check_flows(push, Case::Decap, Megaflows::Wildcard, 1000).is_err());
        assert!(check_flows(&push.repeat(1000), Case::Encap, Megaflows::Exact, 1000).is_ok());
        assert!(check_flows(&push.repeat(1000), Case::Encap, Megaflows::Wildcard, 1000).is_err());
    }
}
