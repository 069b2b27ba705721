//! Control of queue pairs against a worker's own table and a topology, without DPDK. Time is what the test says.

mod held;
mod leaving;
mod repair;
mod wraps;

use std::path::PathBuf;

use super::refusals::QpRefusal;
use super::*;
use crate::topology::Topology;
use crate::topology::testing::Names;
use crate::topology::underlay::Neighbours;
use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::rcft::{QpOutcome, Rcft, RcftParams, RocePacketFacts};
use wire::roce::opcode;

const PORTS: Names = Names(&["up"]);

/// Two vNICs in VPC red, one in blue; far is behind a VTEP in both.
fn text(rcft: &str, one: &str) -> String {
    let vpc = |name: &str, vni: u32| {
        format!(
            "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.0.0.0/24\"\n\
             [[location]]\nvni = {vni}\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"\nvtep = \"172.16.0.2\"\n"
        )
    };
    let vnic = |name: &str, vpc: &str, host: u8, more: &str| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"02:00:00:00:00:{host:02x}\"\n\
             vips = [\"10.0.0.{host}\"]\nport = {{ kind = \"null\" }}\n{more}\n"
        )
    };
    [
        format!("[rcft]\n{rcft}\n[[uplink]]\nname = \"up\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.0.1/24\"]\n"),
        vpc("red", 1),
        vpc("blue", 2),
        vnic("one", "red", 1, one),
        vnic("two", "red", 2, ""),
        vnic("three", "blue", 3, ""),
    ]
    .concat()
}

struct World {
    shared: Arc<RcftShared>,
    control: RcftControl,
    worker: Rcft,
    topology: Topology,
    neighbours: Neighbours,
    config: Config,
    events: EventLog,
    tick: u32,
}

const FAR: &str = "10.0.0.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn qp(number: u32) -> Qpn {
    Qpn::truncated(number)
}

impl World {
    fn new(rcft: &str, one: &str) -> Self {
        Self::with_state(rcft, one, None, 4096)
    }

    fn with_state(rcft: &str, one: &str, state: Option<&std::path::Path>, entries: u32) -> Self {
        let shared = RcftShared::new(RcftParams { entries, vnics: 64, workers: 1, seed: 7 }, &|_, _| {});
        let mut world = Self {
            control: RcftControl::new(shared.clone(), held::ways(), state),
            worker: Rcft::new(shared.clone(), 0, &|_, _| {}),
            shared,
            topology: Topology::new(256),
            neighbours: Neighbours::default(),
            config: Config::default(),
            events: EventLog::default(),
            tick: 1000,
        };
        world.change(&text(rcft, one));
        world
    }

    fn now(&self) -> Now {
        Now { ns: u64::from(self.tick) * 100_000_000, tick: self.tick }
    }

    /// Goes over to a config as the switch does.
    fn change(&mut self, text: &str) {
        let config = Config::parse(text, "test").unwrap();
        self.topology.rebuild(&config, &PORTS, &self.neighbours).unwrap();
        let before = self.topology.snapshot().clone();
        let after = self.topology.commit();
        let quotas = crate::rdma::quotas(&config, &crate::rdma::Devices::default()).unwrap();
        let (gone, concerned) = crate::switch::concerned::testing::all(&before, &after, &config);
        self.control.configure(&config, &quotas, &gone, &concerned);
        self.topology.settle(&mut self.neighbours);
        self.config = config;
        self.follow(&before);
    }

    fn follow(&mut self, before: &Arc<Snapshot>) {
        let (after, now) = (self.topology.snapshot().clone(), self.now());
        self.control.follow(before, &after, now, &mut self.events);
        self.settle();
    }

    /// Lets control and the worker take turns until nothing is on its way out.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let (snapshot, now) = (self.topology.snapshot().clone(), self.now());
            self.control.hurry(&snapshot, now, &mut self.events);
            self.worker.tend(now);
            if !self.control.is_busy() {
                break;
            }
        }
        assert!(!self.control.is_busy());
        for index in self.control.released(self.topology.held().collect::<Vec<_>>().into_iter()) {
            self.topology.let_go(index);
        }
    }

    /// Lets so many ticks pass; the whole table is looked at more than once.
    fn pass(&mut self, ticks: u32) {
        self.tick = self.tick.wrapping_add(ticks);
        for _ in 0..2 * TURNS {
            let (snapshot, now) = (self.topology.snapshot().clone(), self.now());
            self.control.tend(&snapshot, now, 0, &mut self.events);
            self.worker.tend(now);
        }
        self.settle();
    }

    fn index(&self, name: &str) -> u32 {
        let found = self.topology.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name);
        found.unwrap_or_else(|| panic!("no vNIC {name}")).index
    }

    /// A vNIC sends to a queue pair.
    fn send(&mut self, name: &str, peer: &str, number: u32) -> QpOutcome {
        let vnic = self.index(name);
        let key = key_of(vnic, ip(peer), qp(number));
        let probe = self.worker.probe(Direction::Out, key);
        let said = RocePacketFacts {
            opcode: opcode::RC_SEND_ONLY,
            psn: 1,
            bytes: 100,
            payload: 60,
            detail: 0,
            ce: false,
        };
        let now = self.now();
        self.worker.sent(vnic, &probe, &said, now)
    }

    fn opens(&mut self, name: &str, peer: &str, numbers: std::ops::Range<u32>) {
        for number in numbers {
            assert_eq!(self.send(name, peer, number), QpOutcome::Opened, "{name} {peer} {number}");
        }
    }

    fn used(&self, name: &str) -> u32 {
        self.control.in_use(self.index(name))
    }

    fn observe(&mut self, name: &str, peer: &str, sends: bool, message: CmMessage) {
        let vnic = self.index(name);
        self.control.observe(vnic, ip(peer), sends, &message);
        self.settle();
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.events.iter().map(|event| event.kind).collect()
    }
}

fn refused(outcome: QpOutcome) -> bool {
    matches!(outcome, QpOutcome::Refused(_) | QpOutcome::RefusedNew(_))
}

fn dreq(number: u32) -> CmMessage {
    CmMessage::Dreq { local_comm_id: 1, remote_comm_id: 2, remote_qpn: qp(number) }
}

#[test]
fn quotas_come_from_the_config_and_change_live() {
    let mut world =
        World::new("quota = 3\nnew-rate = 1000\nrefuse = \"reject\"", "qp-quota = 2\nrefuse = \"drop\"");
    let limits = |world: &World, name: &str| world.shared.ledger.limits(world.index(name));
    assert_eq!(limits(&world, "one"), LedgerLimits { quota: 2, new_rate: 1000, reject: false });
    assert_eq!(limits(&world, "two"), LedgerLimits { quota: 3, new_rate: 1000, reject: true });
    world.opens("one", FAR, 10..12);
    assert!(refused(world.send("one", FAR, 12)));
    world.change(&text("quota = 3", "qp-quota = 4"));
    world.opens("one", FAR, 12..14);
    assert!(refused(world.send("one", FAR, 14)));
    // Below what is in use: nobody loses a place, nobody gets one before it is under.
    world.change(&text("quota = 3", "qp-quota = 3"));
    assert_eq!(world.used("one"), 4);
    world.observe("one", FAR, true, dreq(10));
    assert!(refused(world.send("one", FAR, 14)));
    world.observe("one", FAR, true, dreq(11));
    assert_eq!(world.send("one", FAR, 14), QpOutcome::Opened);
    world.change(&text("", ""));
    assert_eq!(limits(&world, "one"), LedgerLimits { quota: 4096 / 3, ..LedgerLimits::NONE });
    assert_eq!(world.control.limits(world.index("one")), LedgerLimits::NONE);
}

/// A tenant without a quota cannot take the places that another's quota promises.
#[test]
fn quota_those_without_one_leave_what_others_were_promised() {
    let mut world = World::new("", "qp-quota = 1000");
    let left = (4096 - 1000) / 2;
    world.opens("two", FAR, 2..2 + left);
    assert!(refused(world.send("two", FAR, 5000)));
    world.opens("three", FAR, 2..2 + left);
    world.opens("one", FAR, 2..1002);
    assert!(refused(world.send("one", FAR, 5000)));
}

#[test]
fn a_disconnect_frees_at_once_and_only_the_senders_own() {
    let mut world = World::new("", "qp-quota = 2");
    world.opens("one", FAR, 17..19);
    world.opens("two", FAR, 17..19);
    for (name, peer, sends, number) in [
        ("one", FAR, false, 17),       // received
        ("one", "10.0.0.8", true, 17), // to another VIP
        ("one", FAR, true, 99),        // a queue pair that it does not have
        ("three", FAR, true, 17),      // of somebody else, in another VPC
    ] {
        world.observe(name, peer, sends, dreq(number));
        assert_eq!((world.used("one"), world.used("two")), (2, 2));
    }
    world.observe("two", FAR, true, dreq(17));
    assert_eq!((world.used("one"), world.used("two")), (2, 1));
    world.observe("one", FAR, true, dreq(18));
    assert_eq!((world.used("one"), world.used("two")), (1, 1));
    assert_eq!(world.send("one", FAR, 17), QpOutcome::Pass, "the other one was not touched");
    assert_eq!(world.send("one", FAR, 20), QpOutcome::Opened, "the place is free");
}

#[test]
fn idle_ones_leave_and_find_their_way_back() {
    let mut world = World::new("idle-timeout = \"10s\"\ngrace = \"30s\"\nnew-rate = 1", "qp-quota = 1");
    world.opens("one", FAR, 17..18);
    for _ in 0..5 {
        world.pass(80);
        assert_eq!(world.send("one", FAR, 17), QpOutcome::Pass);
    }
    world.pass(100);
    assert_eq!(world.used("one"), 1, "no longer idle than the timeout");
    world.pass(20);
    assert_eq!(world.used("one"), 0);
    // It comes back ahead of the rate of new ones, which another one has used up.
    world.tick += 1;
    assert_eq!(world.send("one", FAR, 17), QpOutcome::Opened);
    world.observe("one", FAR, true, dreq(17));
    assert!(refused(world.send("one", FAR, 18)), "a new one has to wait");
    assert_eq!(world.send("one", FAR, 17), QpOutcome::Opened);
}

#[test]
fn eviction_takes_what_there_is_and_not_what_comes() {
    let mut world = World::new("", "");
    world.opens("one", FAR, 10..15);
    world.opens("two", FAR, 10..15);
    let one = world.index("one");
    assert!(world.control.evict(one, ip(FAR), qp(10)));
    assert!(!world.control.evict(one, ip(FAR), qp(99)));
    assert!(!world.control.evict(one, ip("10.0.0.2"), qp(11)));
    world.settle();
    assert_eq!(world.used("one"), 4);
    world.tick += 5;
    let (snapshot, now) = (world.topology.snapshot().clone(), world.now());
    assert_eq!(world.control.evict_all(one, &snapshot, now, &mut world.events), 4);
    world.tick += 1;
    world.opens("one", FAR, 100..102);
    world.settle();
    assert_eq!((world.used("one"), world.used("two")), (2, 5));
    assert_eq!(world.control.evict_all(99, &snapshot, now, &mut world.events), 0);
}

#[test]
fn large_tables_are_purged_in_slices() {
    let mut world = World::with_state("", "", None, 200_000);
    world.opens("one", FAR, 16..60_016);
    world.opens("two", FAR, 16..1016);
    let one = world.index("one");
    let (snapshot, now) = (world.topology.snapshot().clone(), world.now());
    assert_eq!(world.control.evict_all(one, &snapshot, now, &mut world.events), 60_000);
    // The rounds of the ledger are bounded, so that one turn cannot have done it all.
    assert!(world.control.is_busy() && world.used("one") == 60_000);
    world.settle();
    assert_eq!((world.used("one"), world.used("two")), (0, 1000));
    let facts = &world.events.iter().next().unwrap().facts;
    assert_eq!((&facts["count"], &facts["cause"]), (&json!(60_000), &json!("evicted")));
}

/// A busy machine: the time for a turn is over after every slice, the last one too.
#[test]
fn repair_a_purge_ends_and_is_told_however_late_its_last_slice_is() {
    let mut world = World::new("", "");
    world.opens("one", FAR, 10..15);
    let (one, tick) = (world.index("one"), world.tick);
    world.control.purge.evict(one, "one".into(), tick);
    let (snapshot, now) = (world.topology.snapshot().clone(), world.now());
    while world.control.purge.is_under_way() {
        world.control.go_on_purging(std::time::Duration::ZERO, &snapshot, now, &mut world.events);
    }
    world.settle();
    assert_eq!((world.used("one"), world.kinds()), (0, vec!["qps-purged"]));
}

#[test]
fn refusals_and_full_quotas_are_told_once_in_a_while() {
    let mut world = World::new("", "qp-quota = 2");
    world.opens("one", FAR, 10..12);
    assert!(refused(world.send("one", FAR, 12)));
    let vnic = world.index("one");
    for _ in 0..50 {
        let (snapshot, now) = (world.topology.snapshot().clone(), world.now());
        let refusal = || QpRefusal { vnic, peer: ip(FAR), qpn: qp(12), reason: DropReason::QP_QUOTA };
        world.control.refused(refusal(), &snapshot, now, &mut world.events);
        world.tick += 1;
    }
    let refusals = world.kinds().iter().filter(|kind| **kind == "qp-refused").count();
    assert_eq!((refusals, world.kinds()[0]), (5, "quota-reached"));
    let facts = &world.events.iter().next_back().unwrap().facts;
    assert_eq!((&facts["in-use"], &facts["quota"], &facts["qpn"]), (&json!(2), &json!(2), &json!(12)));
    let reached = |world: &World| world.kinds().iter().filter(|kind| **kind == "quota-reached").count();
    world.pass(10);
    assert_eq!(reached(&world), 1);
    world.observe("one", FAR, true, dreq(10));
    world.pass(10);
    world.opens("one", FAR, 12..13);
    world.pass(10);
    assert_eq!(reached(&world), 2, "it was under it in between");
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("vswitch-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn places_outlive_a_restart() {
    let folder = folder("rcft-restart");
    let state = folder.join("state");
    let mut world = World::with_state("", "", Some(&state), 4096);
    world.opens("one", FAR, 10..16);
    world.opens("two", "fd00::9", 10..11);
    // What changes is written by itself; the writer has a thread of its own.
    let (snapshot, now) = (world.topology.snapshot().clone(), world.now());
    world.control.tend(&snapshot, now, 7, &mut world.events);
    while world.control.store.writer.is_some() {
        world.control.tend(&snapshot, now, 7, &mut world.events);
    }
    let path = saved::path_beside(&state);
    assert_eq!(saved::read(&path).unwrap().iter().map(|(_, qps)| qps.len()).sum::<usize>(), 7);
    // Not again within ten seconds; at the end all the same.
    world.opens("two", FAR, 99..100);
    world.control.tend(&snapshot, now, 8, &mut world.events);
    assert!(world.control.store.writer.is_none());
    world.control.save_all(&snapshot);
    drop(world);

    // A lower quota takes no place away.
    let mut world = World::with_state("restart-grace = \"5s\"", "qp-quota = 4", Some(&state), 4096);
    assert_eq!((world.used("one"), world.used("two"), world.used("three")), (6, 2, 0));
    assert_eq!(world.events.iter().next().unwrap().facts["admitted"], 8);
    assert_eq!(world.send("one", FAR, 10), QpOutcome::Pass);
    assert!(refused(world.send("one", FAR, 16)), "a new one");
    world.tick += 20;
    for number in [10, 11, 12] {
        assert_eq!(world.send("one", FAR, number), QpOutcome::Pass);
    }
    world.pass(20);
    assert_eq!(world.used("one"), 6, "the grace is not over");
    world.pass(40);
    assert_eq!((world.used("one"), world.used("two")), (3, 0), "without a packet they leave");
    assert_eq!(world.send("one", FAR, 16), QpOutcome::Opened);
    let snapshot = world.topology.snapshot().clone();
    world.control.save_all(&snapshot);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_damaged_file_is_left_out() {
    let folder = folder("rcft-damaged");
    let state = folder.join("state");
    std::fs::write(saved::path_beside(&state), "vswitch rcft 2\nvnic one 1\n10.0.0.9 0x11\n").unwrap();
    let mut world = World::with_state("", "", Some(&state), 4096);
    assert_eq!(world.used("one"), 0);
    world.opens("one", FAR, 17..18);
    // vNICs that are gone are left out of a whole file.
    let saved =
        vec![("gone 1".to_string(), vec![(ip(FAR), qp(5))]), ("one 1".to_string(), vec![(ip(FAR), qp(6))])];
    saved::write(&saved::path_beside(&state), &saved).unwrap();
    let world = World::with_state("", "", Some(&state), 4096);
    assert_eq!(world.used("one"), 1);
    assert_eq!(world.events.iter().next().unwrap().facts["left-out"], 1);
    // And those that are in another network now.
    let saved = vec![("three 1".to_string(), vec![(ip(FAR), qp(5))])];
    saved::write(&saved::path_beside(&state), &saved).unwrap();
    let world = World::with_state("", "", Some(&state), 4096);
    assert_eq!(world.used("three"), 0);
    assert_eq!(world.events.iter().next().unwrap().facts["left-out"], 1);
    std::fs::remove_dir_all(&folder).unwrap();
}
