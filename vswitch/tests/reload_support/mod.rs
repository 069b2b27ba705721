//! Config files, run-time changes, restarts: any history of them on a topology whose ports are names, and what must hold of
//! it after every step.
//!
//! The order of a change is that of `switch::plug`. The fuzz target `reload` brings bytes here, the test beside it
//! brings made-up configs; both stop at the first law that is broken.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use pipelines::event::{Binding, Claim};
use pipelines::snapshot::{Destination, NO_PORT, PortIndex, Snapshot};
use pipelines::vlt::Place;
use serde::Deserialize;
use vswitch::config::merge::{Occasion, merge};
use vswitch::config::others::Overlap;
use vswitch::config::{
    Config, LocationConfig, PortConfig, Source, SubnetConfig, TrunkConfig, UplinkConfig, VnicConfig,
    VpcConfig,
};
use vswitch::switch::PortChanges;
use vswitch::topology::underlay::Neighbours;
use vswitch::topology::{Ports, Topology};
use wire::{MacAddr, Vni};

/// Slots of the VLT: few enough that a config may need more.
const SLOTS: u32 = 24;
/// Steps of an input, at most.
const STEPS: usize = 24;

/// One thing that an operator does. In an input, a step begins with the character shown; steps end with a zero byte.
#[derive(Debug)]
pub enum Step<'a> {
    /// `=`: `config load` of a file.
    Load(&'a str),
    /// `+`: the objects of a text are added at run time.
    Add(&'a str),
    /// `-`: the object of a name is removed at run time; a subnet is `vpc prefix`.
    Remove(&'a str),
    /// `@`: the locations of a text are entered one by one.
    Locate(&'a str),
    /// `!`: the location `vni vip` is taken out.
    Forget(&'a str),
    /// `^`: the process ends, and begins with this file and what it saved. Without a text: with the same file.
    Restart(&'a str),
    /// Anything else: SIGHUP, with this in the file.
    Reload(&'a str),
}

impl<'a> Step<'a> {
    /// The step that a text is.
    pub fn read(text: &'a str) -> Self {
        let rest = text.get(1..).unwrap_or_default();
        match text.as_bytes().first() {
            Some(b'=') => Self::Load(rest),
            Some(b'+') => Self::Add(rest),
            Some(b'-') => Self::Remove(rest),
            Some(b'@') => Self::Locate(rest),
            Some(b'!') => Self::Forget(rest),
            Some(b'^') => Self::Restart(rest),
            _ => Self::Reload(text),
        }
    }
}

/// Runs an input: every law holds after every step, and nothing is left when everything is removed.
pub fn run(input: &[u8]) {
    let mut host = Host::new();
    for step in input.split(|byte| *byte == 0).take(STEPS) {
        if let Ok(text) = str::from_utf8(step) {
            host.go(&Step::read(text));
        }
    }
    host.end();
}

/// What a text adds at run time.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Added {
    uplink: Vec<UplinkConfig>,
    vpc: Vec<VpcConfig>,
    subnet: Vec<SubnetConfig>,
    trunk: Vec<TrunkConfig>,
    vnic: Vec<VnicConfig>,
    location: Vec<LocationConfig>,
    port: Vec<PortConfig>,
}

/// What is plugged in where; a port that leaves is not found.
#[derive(Default)]
struct Plugs {
    slots: Vec<Option<String>>,
    leaving: HashSet<String>,
}

impl Plugs {
    fn index(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.as_deref() == Some(name))
    }
}

impl Ports for Plugs {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let at = self.index(name).filter(|_| !self.leaving.contains(name))? as PortIndex;
        Some((at, self.mac(at)))
    }
    fn partial_checksums(&self, _: PortIndex) -> bool {
        false
    }
    fn takes_super_frames(&self, _: PortIndex) -> bool {
        false
    }
    fn partner(&self, _: PortIndex) -> PortIndex {
        NO_PORT
    }
    fn count(&self) -> usize {
        self.slots.len()
    }
    fn mac(&self, port: PortIndex) -> MacAddr {
        MacAddr([2, 0, 0, 0, 1, port as u8])
    }
}

/// Control, without DPDK, workers and clocks.
pub struct Host {
    topology: Topology,
    neighbours: Neighbours,
    plugs: Plugs,
    /// The running config, without its locations, which the topology holds.
    running: Config,
    file: Option<Source>,
}

impl Host {
    /// One with an empty config.
    pub fn new() -> Self {
        Self {
            topology: Topology::new(SLOTS),
            neighbours: Neighbours::default(),
            plugs: Plugs::default(),
            running: Config::default(),
            file: None,
        }
    }

    /// The running config, whole.
    pub fn config(&self) -> Config {
        Config { locations: self.topology.locations().cloned().collect(), ..self.running.clone() }
    }

    /// Does a step; true when it was accepted.
    pub fn go(&mut self, step: &Step) -> bool {
        let before = self.topology.snapshot().version;
        let done = self.try_to(step).is_some();
        if self.topology.snapshot().version != before {
            self.check();
        }
        done
    }

    fn try_to(&mut self, step: &Step) -> Option<()> {
        match *step {
            Step::Load(text) => {
                let file = Source::parse(text, "file").ok()?;
                self.apply(file.config.clone())?;
                self.file = Some(file);
            }
            Step::Reload(text) => self.reload(Source::parse(text, "file").ok()?)?,
            Step::Add(text) => {
                let more: Added = toml::from_str(text).ok()?;
                let mut new = self.config();
                new.uplinks.extend(more.uplink);
                new.vpcs.extend(more.vpc);
                new.subnets.extend(more.subnet);
                new.trunks.extend(more.trunk);
                new.vnics.extend(more.vnic.into_iter().map(Arc::new));
                new.locations.extend(more.location);
                new.ports.extend(more.port);
                self.apply(new)?;
            }
            Step::Remove(name) => {
                let new = without(self.config(), name.trim_end());
                self.apply(new)?;
            }
            Step::Locate(text) => {
                let more: Added = toml::from_str(text).ok()?;
                more.location.iter().try_for_each(|location| self.locate(location))?;
            }
            Step::Forget(text) => {
                let (vni, vip) = text.trim_end().split_once(' ')?;
                let (vni, vip) = (Vni::new(vni.parse().ok()?).ok()?, vip.parse::<IpAddr>().ok()?);
                let removed = self.topology.remove_location(&self.running, vni, vip, &self.neighbours);
                if !removed.expect("taking out a location asks for nothing") {
                    return None;
                }
                self.hand_out();
            }
            Step::Restart(text) => self.restart(text)?,
        }
        Some(())
    }

    fn reload(&mut self, file: Source) -> Option<()> {
        let merged =
            merge(&self.config(), self.file.as_ref(), &file, Occasion::Reload, &Overlap::default(), |_| ())
                .ok()?;
        // Objects are the file's, or were made at run time; those of the file before are no more.
        let before = self.file.as_ref().map(|before| ids(&before.config)).unwrap_or_default();
        let expected = &ids(&file.config) | &(&ids(&self.config()) - &before);
        assert_eq!(ids(&merged), expected, "what was made at run time stays, what the file drops goes");
        self.apply(merged)?;
        // Again: nothing changes, and no decision becomes stale.
        let running = self.config();
        let again = merge(&running, Some(&file), &file, Occasion::Reload, &Overlap::default(), |_| ())
            .expect("was accepted just now");
        same(again.clone(), running, "a second reload changes the config");
        let before = self.topology.snapshot().clone();
        self.apply(again).expect("was accepted just now");
        assert_eq!(differs(&before, self.topology.snapshot()), None, "a second reload changes the snapshot");
        self.file = Some(file);
        Some(())
    }

    fn restart(&mut self, text: &str) -> Option<()> {
        let running = self.config();
        let mut state = running.to_toml().expect("what runs can be saved");
        state.extend(self.file.as_ref().map(Source::keep));
        let saved = Config::parse(&state, "state").expect("what was saved can be read");
        assert_eq!(saved, running);
        let kept = Source::kept_in(&state);
        let known = |source: &Option<Source>| source.as_ref().map(|source| source.config.clone());
        assert_eq!(known(&kept), known(&self.file), "the file is kept with the state");
        let new = match (&self.file, text) {
            (None, "") => saved,
            (Some(file), "") => {
                let new = merge(&saved, kept.as_ref(), file, Occasion::Restart, &Overlap::default(), |_| ())
                    .expect("nothing new is said");
                // What belongs to the process is the file's.
                let Config { eal, workers, forward, api, control, nft, vlt, vxlan, rdma, rcft, .. } =
                    file.config.clone();
                let expected =
                    Config { eal, workers, forward, api, control, nft, vlt, vxlan, rdma, rcft, ..running };
                same(new.clone(), expected, "a restart changes the config");
                new
            }
            (_, text) => {
                let file = Source::parse(text, "file").ok()?;
                let new = merge(&saved, kept.as_ref(), &file, Occasion::Restart, &Overlap::default(), |_| ())
                    .ok()?;
                self.file = Some(file);
                new
            }
        };
        let file = self.file.take();
        *self = Self::new();
        let done = self.apply(new);
        assert!(done.is_some() || !text.is_empty(), "what ran does not start again");
        self.file = file.filter(|_| done.is_some());
        done
    }

    /// Goes over to another config, in the order of `switch::plug`.
    fn apply(&mut self, new: Config) -> Option<()> {
        new.validate().ok()?;
        let old = self.config();
        let plan = PortChanges::new(&old, &new);
        self.plugs.leaving.extend(plan.first.iter().cloned());
        if !plan.first.is_empty() {
            self.publish(&old).expect("what runs can be published again");
        }
        plan.first.iter().for_each(|name| self.unplug(name));
        plan.added.keys().for_each(|name| self.plug(name));
        self.plugs.leaving.extend(plan.last.iter().cloned());
        if self.publish(&new).is_none() {
            self.plugs.leaving.clear();
            plan.added.keys().for_each(|name| self.unplug(name));
            plan.first.iter().for_each(|name| self.plug(name));
            self.publish(&old).expect("what ran can be published again");
            assert_eq!(self.config(), old, "a change that was refused left something");
            return None;
        }
        self.running = Config { locations: Vec::new(), ..new.clone() };
        plan.last.iter().for_each(|name| self.unplug(name));
        same(self.config(), new, "the topology has other locations than the config");
        Some(())
    }

    fn publish(&mut self, config: &Config) -> Option<()> {
        let (before, usage) = (self.topology.snapshot().clone(), self.topology.vlt_usage());
        let places = places(&before);
        let rebuilt = self.topology.rebuild(config, &self.plugs, &self.neighbours);
        assert!(Arc::ptr_eq(&before, self.topology.snapshot()));
        assert_eq!(self::places(&before), places, "a slot in use was written before the publishing");
        if rebuilt.is_err() {
            assert_eq!(self.topology.vlt_usage(), usage, "a change that failed kept slots");
            return None;
        }
        self.hand_out();
        Some(())
    }

    fn locate(&mut self, location: &LocationConfig) -> Option<()> {
        let (before, usage) = (self.config(), self.topology.vlt_usage());
        if self.topology.set_location(&self.running, location, &self.neighbours).is_err() {
            assert_eq!((self.config(), self.topology.vlt_usage()), (before, usage));
            return None;
        }
        self.hand_out();
        Some(())
    }

    /// Commits, waits for no worker, settles; then the next hops answer and what is gone is let go.
    fn hand_out(&mut self) {
        let before = self.topology.snapshot().clone();
        let places = places(&before);
        let after = self.topology.commit();
        assert_eq!(handed_over(&before, &after), None, "an index went to another object at once");
        assert_eq!(
            self::places(&before),
            places,
            "a slot in use was written before every worker had the snapshot"
        );
        self.topology.settle(&mut self.neighbours);
        for (uplink, address, _) in self.neighbours.list() {
            let binding = Binding { address, mac: hop_mac(address) };
            let claim = Claim { overrides: true, confirms: true };
            if self.neighbours.learn(uplink, binding, claim, Instant::now()) {
                self.topology.next_hop_changed(uplink, address, &mut self.neighbours);
            }
        }
        for index in self.topology.held().collect::<Vec<_>>() {
            self.topology.let_go(index);
        }
    }

    fn plug(&mut self, name: &str) {
        let free = |at: &usize| {
            self.plugs.slots.get(*at).is_none_or(Option::is_none)
                && !self.topology.uses_port(*at as PortIndex)
        };
        let at = (0..usize::from(NO_PORT)).find(free).expect("a free index");
        if self.plugs.slots.len() <= at {
            self.plugs.slots.resize(at + 1, None);
        }
        self.plugs.slots[at] = Some(name.to_owned());
    }

    fn unplug(&mut self, name: &str) {
        if let Some(at) = self.plugs.index(name) {
            assert!(!self.topology.uses_port(at as PortIndex), "{name} leaves while a snapshot leads to it");
            self.plugs.slots[at] = None;
        }
        self.plugs.leaving.remove(name);
    }

    /// What holds after every step.
    fn check(&self) {
        let config = self.config();
        let text = config.to_toml().expect("what runs can be written");
        match Config::parse(&text, "written") {
            Ok(read) => assert_eq!(read, config, "read back otherwise:\n{text}"),
            Err(errors) => panic!("what runs cannot be read back: {errors}\n{text}"),
        }
        let snapshot = self.topology.snapshot();
        let vpc = |name: &str| snapshot.vpcs.iter().flatten().find(|vpc| vpc.name == name).expect("a VPC");
        for vnic in &config.vnics {
            for vip in &vnic.vips {
                let place = self.place(vpc(&vnic.vpc).index, *vip);
                let Place::Local { vnic: index } = place else {
                    panic!("{vip} of {} is at {place:?}", vnic.name)
                };
                assert_eq!(snapshot.vnic(index).expect("a vNIC").name, vnic.name.as_str());
            }
        }
        for location in &config.locations {
            let index = snapshot.vnis.get(u128::from(location.vni.get())).expect("a VPC");
            let place = self.place(index, location.vip);
            assert!(matches!(place, Place::Remote(_)), "{location:?} is at {place:?}");
        }
        let mut fresh = Topology::new(2 * SLOTS);
        fresh.rebuild(&config, &self.plugs, &self.neighbours).expect("what runs, on a new topology");
        assert_eq!(self.topology.vlt_usage().0, fresh.vlt_usage().0, "slots are used that nothing needs");
    }

    fn place(&self, vpc: u32, vip: IpAddr) -> Place {
        let snapshot = self.topology.snapshot();
        let location = snapshot.location(vpc, Destination::Ip(vip)).expect("a location");
        snapshot.vlt.read(location.slot.slot).place
    }

    /// Everything is removed: nothing is left.
    pub fn end(&mut self) {
        self.apply(Config::default()).expect("nothing is in the way");
        let snapshot = self.topology.snapshot();
        assert_eq!(self.topology.vlt_usage().0, 0);
        assert!(snapshot.locations.is_empty() && self.neighbours.list().is_empty());
        assert!(self.plugs.slots.iter().all(Option::is_none) && self.plugs.leaving.is_empty());
    }
}

/// A config without the object of this name, and what is in it.
fn without(mut config: Config, name: &str) -> Config {
    let vni = config.vpcs.iter().find(|vpc| *vpc.name == *name).map(|vpc| vpc.vni);
    config.locations.retain(|location| Some(location.vni) != vni);
    config
        .subnets
        .retain(|subnet| *subnet.vpc != *name && format!("{} {}", subnet.vpc, subnet.prefix) != name);
    config.vpcs.retain(|vpc| *vpc.name != *name);
    config.ports.retain(|port| *port.name != *name);
    config.trunks.retain(|trunk| *trunk.name != *name);
    config.vnics.retain(|vnic| *vnic.name != *name);
    config.uplinks.retain(|uplink| *uplink.name != *name);
    config
}

/// The objects of a config, by what tells them apart.
fn ids(config: &Config) -> BTreeSet<String> {
    let uplinks = config.uplinks.iter().map(|uplink| format!("uplink {}", uplink.name));
    let vpcs = config.vpcs.iter().map(|vpc| format!("vpc {}", vpc.name));
    let subnets = config.subnets.iter().map(|subnet| format!("subnet {} {}", subnet.vpc, subnet.prefix));
    let trunks = config.trunks.iter().map(|trunk| format!("trunk {}", trunk.name));
    let vnics = config.vnics.iter().map(|vnic| format!("vnic {}", vnic.name));
    let locations =
        config.locations.iter().map(|location| format!("location {} {}", location.vni, location.vip));
    let ports = config.ports.iter().map(|port| format!("port {}", port.name));
    uplinks.chain(vpcs).chain(subnets).chain(trunks).chain(vnics).chain(locations).chain(ports).collect()
}

/// Both say the same, whatever order their objects came about in.
#[track_caller]
fn same(now: Config, expected: Config, otherwise: &str) {
    let (now, expected) = (sorted(now), sorted(expected));
    let text = |config: &Config| config.to_toml().expect("what was accepted can be written");
    assert!(now == expected, "{otherwise}: now\n{}\nnot\n{}", text(&now), text(&expected));
}

fn sorted(mut config: Config) -> Config {
    config.uplinks.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    config.vpcs.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    config.subnets.sort_by(|a, b| (a.vpc.as_str(), a.prefix).cmp(&(b.vpc.as_str(), b.prefix)));
    config.trunks.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    config.vnics.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    config.locations.sort_by_key(|location| (location.vni.get(), location.vip));
    config.ports.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    config
}

fn hop_mac(address: IpAddr) -> MacAddr {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    MacAddr([2, 0, 0, 9, 0, last])
}

/// What the slots of a snapshot's locations hold.
fn places(snapshot: &Snapshot) -> Vec<String> {
    let slots: BTreeSet<u32> = snapshot.locations.values().map(|location| location.slot.slot).collect();
    slots.into_iter().map(|slot| format!("{slot}: {:?}", snapshot.vlt.read(slot).place)).collect()
}

/// An index that two snapshots give to different objects.
fn handed_over(before: &Snapshot, after: &Snapshot) -> Option<String> {
    fn of<T>(kind: &str, rows: [&[Option<Arc<T>>]; 2], name: impl Fn(&T) -> &str) -> Option<String> {
        let [before, after] = rows;
        let both = before.iter().zip(after).enumerate();
        let mut both =
            both.filter_map(|(at, (old, new))| Some((at, name(old.as_ref()?), name(new.as_ref()?))));
        both.find(|(_, old, new)| old != new).map(|(at, old, new)| format!("{kind} {at} of {old} is {new}'s"))
    }
    of("vNIC", [&before.vnics, &after.vnics], |vnic| vnic.name.as_str())
        .or_else(|| of("VPC", [&before.vpcs, &after.vpcs], |vpc| vpc.name.as_str()))
        .or_else(|| of("uplink", [&before.uplinks, &after.uplinks], |uplink| uplink.name.as_str()))
}

/// The part in which two snapshots differ, but for the version.
fn differs(a: &Snapshot, b: &Snapshot) -> Option<&'static str> {
    let parts = [
        ("settings", a.settings == b.settings),
        ("ports", a.ports == b.ports),
        ("vNICs", a.vnics == b.vnics && a.vnic_rows == b.vnic_rows),
        ("VPCs", a.vpcs == b.vpcs),
        ("uplinks", a.uplinks == b.uplinks),
        ("locations", a.locations == b.locations),
        ("cells", a.cells == b.cells),
        ("slots", places(a) == places(b)),
    ];
    parts.into_iter().find(|(_, same)| !same).map(|(part, _)| part)
}
