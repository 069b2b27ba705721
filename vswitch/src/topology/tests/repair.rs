//! Reloads under marked traffic: whatever changes, in whatever order workers hear of it, no packet leaves on a port that
//! is not its own.
//!
//! The ports are names, the workers are real pipelines that adopt what they are told late and one by one. Every packet
//! carries its network's letter, and a worker may send it only where the config that this worker has puts that network.
//! The order of a change is that of `switch::plug`.

use std::cell::Cell;
use std::collections::VecDeque;

use pipelines::burst::Burst;
use pipelines::connections::WorkerConnections;
use pipelines::counters::PipelineCounters;
use pipelines::event::{Binding, Events};
use pipelines::fragments::Fragments;
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Dhtb, Tree, TreeSize};
use pipelines::rcft::{Rcft, RcftParams, RcftShared};
use pipelines::snapshot::{NO_PORT, PortIndex, mac_from};
use pipelines::{Now, Sink};
use proptest::prelude::*;
use wire::HeapBuf;
use wire::build::Path;

use super::*;
use crate::switch::PortChanges;
use crate::topology::underlay::NeighbourState;

const WORKERS: usize = 3;

/// What is plugged in where; a port that leaves is not found.
#[derive(Default)]
struct Plugs {
    slots: Vec<Option<String>>,
    leaving: HashSet<String>,
}

impl Ports for Plugs {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let at = self.index(name).filter(|_| !self.leaving.contains(name))?;
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

impl Plugs {
    fn index(&self, name: &str) -> Option<PortIndex> {
        let at = self.slots.iter().position(|slot| slot.as_deref() == Some(name))?;
        Some(at as PortIndex)
    }
}

enum Told {
    Use(Arc<Snapshot>, Arc<Config>),
    Send(PortIndex, String),
    Poll(PortIndex),
    Gone(PortIndex),
}

struct Out {
    ports: HashMap<PortIndex, String>,
    sent: Vec<(String, Vec<u8>)>,
    counters: Arc<PipelineCounters>,
}

impl Sink<HeapBuf> for Out {
    fn send(&mut self, port: PortIndex, packet: HeapBuf) {
        match self.ports.get(&port) {
            Some(name) => {
                self.counters.sent.add(1);
                self.sent.push((name.clone(), packet.to_vec()));
            }
            None => self.counters.drop_many(pipelines::drops::DropReason::PORT_DOWN, 1),
        }
    }
}

struct Worker {
    overlay: Overlay<HeapBuf>,
    burst: Burst<HeapBuf>,
    snapshot: Arc<Snapshot>,
    config: Arc<Config>,
    polled: HashSet<PortIndex>,
    out: Out,
    mailbox: VecDeque<Told>,
}

impl Worker {
    fn new(number: usize, snapshot: Arc<Snapshot>, config: Arc<Config>) -> Self {
        let counters = Arc::new(PipelineCounters::new(64));
        let nft = NftParams { entries: 512, idle_ticks: 300, seed: number as u64 };
        let shared = RcftShared::new(RcftParams { entries: 64, vnics: 64, workers: 1, seed: 1 }, &|_, _| {});
        let tree = Arc::new(Tree::new(TreeSize { tenants: 8, vnics: 64 }, &|_, _| {}));
        let parts = OverlayParts {
            fragments: Arc::new(Fragments::new(64, 5)),
            connections: WorkerConnections::of_one(64, 64),
            rcft: Rcft::new(shared, 0, &|_, _| {}),
            dhtb: Dhtb::new(tree, 64, 1),
            events: Events::new(64, 0),
            counters: counters.clone(),
        };
        let overlay = Overlay::new(&OverlayConfig { nft, vnics: 64, vpcs: 8 }, parts, &|_, _| {});
        let out = Out { ports: HashMap::new(), sent: Vec::new(), counters };
        let (polled, mailbox) = (HashSet::new(), VecDeque::new());
        Self { overlay, burst: Burst::default(), snapshot, config, polled, out, mailbox }
    }

    fn hear(&mut self) {
        match self.mailbox.pop_front() {
            Some(Told::Use(snapshot, config)) => (self.snapshot, self.config) = (snapshot, config),
            Some(Told::Send(port, name)) => assert_eq!(self.out.ports.insert(port, name), None),
            Some(Told::Poll(port)) => assert!(self.polled.insert(port)),
            Some(Told::Gone(port)) => {
                self.polled.remove(&port);
                self.out.ports.remove(&port);
            }
            None => {}
        }
    }

    /// Every vNIC and every VTEP says something to everybody, on the ports that are polled.
    fn talk(&mut self, now: Now, delivered: &Cell<u64>) {
        let config = self.config.clone();
        for port in self.polled.clone() {
            let Some(name) = self.out.ports.get(&port).cloned() else { continue };
            let frames = match config.uplinks.iter().any(|uplink| *uplink.name == *name) {
                true => self.of_wire(&name),
                false => of_vnic(&config, &name),
            };
            let rest = self.burst.fill(frames.iter().map(|frame| HeapBuf::new(frame)));
            assert!(rest.is_empty());
            self.overlay.run(&self.snapshot, now, port, &mut self.burst, &mut self.out);
        }
        for (port, frame) in std::mem::take(&mut self.out.sent) {
            if let Some(letter) = letter_of(&frame) {
                delivered.set(delivered.get() + 1);
                check(&config, &port, letter, &frame);
            }
        }
    }

    fn of_wire(&self, uplink: &str) -> Vec<Vec<u8>> {
        let Some(own) = self.snapshot.uplinks.iter().flatten().find(|known| known.name == uplink) else {
            return Vec::new();
        };
        let mut frames = Vec::new();
        for location in &self.config.locations {
            let (IpAddr::V4(vtep), IpAddr::V4(from)) = (location.vtep, location.vip) else { continue };
            let Some(here) = own.v4.iter().find(|here| here.octets()[1] == vtep.octets()[1]) else {
                continue;
            };
            let letter = letter(location.vni.get());
            for to in self.config.vnics.iter().filter(|vnic| vnic.vpc.as_bytes()[0] == letter) {
                let IpAddr::V4(vip) = to.vips[0] else { continue };
                let inner = Path::v4((location.mac, from), (to.mac, vip)).udp(7, 8, &[letter; 8]);
                let outer = Path::v4((hop_mac(location.vtep), vtep), (mac_from(own.mac), *here));
                frames.push(outer.vxlan(50_000, location.vni, &inner));
            }
        }
        frames
    }
}

fn of_vnic(config: &Config, name: &str) -> Vec<Vec<u8>> {
    let Some(own) = config.vnics.iter().find(|vnic| *vnic.name == *name) else { return Vec::new() };
    let letter = own.vpc.as_bytes()[0];
    let locals =
        config.vnics.iter().filter(|vnic| vnic.name != own.name).map(|vnic| (vnic.mac, vnic.vips[0]));
    let remotes = config.locations.iter().map(|location| (location.mac, location.vip));
    let IpAddr::V4(from) = own.vips[0] else { return Vec::new() };
    let path = |(mac, to): (MacAddr, IpAddr)| match to {
        IpAddr::V4(to) => Some(Path::v4((own.mac, from), (mac, to)).udp(7, 8, &[letter; 8])),
        IpAddr::V6(_) => None,
    };
    locals.chain(remotes).filter_map(path).collect()
}

/// The network that a packet is marked with.
fn letter_of(frame: &[u8]) -> Option<u8> {
    let mark = frame.last_chunk::<8>()?;
    (mark.iter().all(|byte| byte == &mark[0]) && b"ab".contains(&mark[0])).then_some(mark[0])
}

fn letter(vni: u32) -> u8 {
    if vni == 1 { b'a' } else { b'b' }
}

fn hop_mac(vtep: IpAddr) -> MacAddr {
    let IpAddr::V4(v4) = vtep else { return MacAddr::ZERO };
    MacAddr([2, 0, 0, 9, v4.octets()[1], v4.octets()[3]])
}

/// A packet left on a port: it is the port of a vNIC of its network, or an uplink with the right header in front.
fn check(config: &Config, port: &str, letter: u8, frame: &[u8]) {
    if let Some(vnic) = config.vnics.iter().find(|vnic| *vnic.name == *port) {
        assert_eq!(vnic.vpc.as_bytes()[0], letter, "a packet of {} came out of {port}", char::from(letter));
        return;
    }
    let uplink = config.uplinks.iter().find(|uplink| *uplink.name == *port);
    let uplink = uplink.unwrap_or_else(|| panic!("a packet left on {port}, which is not in the config"));
    let IpAddr::V4(own) = uplink.addresses[0].addr() else { return };
    assert_eq!(frame[4], own.octets()[1], "sent on {port} to the next hop of another underlay");
    assert_eq!(frame[26..30], own.octets(), "sent on {port} from the address of another uplink");
    assert_eq!(self::letter(u32::from(frame[48])), letter, "sent in the tunnel of another network");
}

struct Site {
    topology: Topology,
    neighbours: Neighbours,
    plugs: Plugs,
    workers: Vec<Worker>,
    config: Arc<Config>,
    random: u64,
    now: u64,
    delivered: Cell<u64>,
}

impl Site {
    fn new(seed: u64) -> Self {
        let topology = Topology::new(24);
        let config = Arc::new(Config::default());
        let worker = |number| Worker::new(number, topology.snapshot().clone(), config.clone());
        let workers = (0..WORKERS).map(worker).collect();
        let (neighbours, plugs) = (Neighbours::default(), Plugs::default());
        Self {
            topology,
            neighbours,
            plugs,
            workers,
            config,
            random: seed | 1,
            now: 0,
            delivered: Cell::new(0),
        }
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Some workers hear some of what they were told, and all of them go on with packets.
    fn stir(&mut self) {
        for number in 0..WORKERS {
            for _ in 0..self.roll(3) {
                self.workers[number].hear();
            }
            self.now += 1_000_000;
            let now = Now::from_ns(self.now);
            self.workers[number].talk(now, &self.delivered);
        }
    }

    fn tell(&mut self, told: impl Fn() -> Told) {
        for worker in &mut self.workers {
            worker.mailbox.push_back(told());
        }
        self.stir();
    }

    fn barrier(&mut self) {
        while self.workers.iter().any(|worker| !worker.mailbox.is_empty()) {
            self.stir();
        }
    }

    fn publish(&mut self, config: &Arc<Config>) -> Result<(), TopologyError> {
        self.topology.rebuild(config, &self.plugs, &self.neighbours)?;
        self.stir();
        let snapshot = self.topology.commit();
        self.tell(|| Told::Use(snapshot.clone(), config.clone()));
        self.barrier();
        self.topology.settle(&mut self.neighbours);
        self.stir();
        for (uplink, address, neighbour) in self.neighbours.list() {
            if neighbour.state == NeighbourState::Incomplete
                && self.neighbours.learn(
                    uplink,
                    Binding { address, mac: hop_mac(address) },
                    ANSWER,
                    Instant::now(),
                )
            {
                self.topology.next_hop_changed(uplink, address, &mut self.neighbours);
            }
        }
        for index in self.topology.held().collect::<Vec<_>>() {
            self.topology.let_go(index);
        }
        self.stir();
        Ok(())
    }

    fn detach(&mut self, name: &str) {
        let Some(index) = self.plugs.index(name) else { return };
        self.tell(|| Told::Gone(index));
        self.barrier();
        self.plugs.slots[usize::from(index)] = None;
        self.plugs.leaving.remove(name);
    }

    fn place(&mut self, name: &str) {
        let (slots, topology) = (&self.plugs.slots, &self.topology);
        let free =
            |at: &usize| slots.get(*at).is_none_or(Option::is_none) && !topology.uses_port(*at as PortIndex);
        let at = (0..64).find(free).unwrap();
        if self.plugs.slots.len() <= at {
            self.plugs.slots.resize(at + 1, None);
        }
        self.plugs.slots[at] = Some(name.to_owned());
        self.tell(|| Told::Send(at as PortIndex, name.to_owned()));
    }

    fn poll(&mut self, names: &[String]) {
        for name in names {
            let index = self.plugs.index(name).unwrap();
            self.tell(|| Told::Poll(index));
        }
    }

    /// A reload, in the order of `switch::plug`.
    fn reload(&mut self, new: Config) -> Result<(), TopologyError> {
        let (old, new) = (self.config.clone(), Arc::new(new));
        let plan = PortChanges::new(&old, &new);
        self.plugs.leaving.extend(plan.first.iter().cloned());
        if !plan.first.is_empty() {
            self.publish(&old)?;
        }
        plan.first.iter().for_each(|name| self.detach(name));
        let added: Vec<String> = plan.added.keys().cloned().collect();
        added.iter().for_each(|name| self.place(name));
        self.plugs.leaving.extend(plan.last.iter().cloned());
        if let Err(error) = self.publish(&new) {
            self.plugs.leaving.clear();
            added.iter().for_each(|name| self.detach(name));
            plan.first.iter().for_each(|name| self.place(name));
            self.publish(&old)?;
            self.poll(&plan.first);
            return Err(error);
        }
        self.config = new;
        self.poll(&added);
        plan.last.iter().for_each(|name| self.detach(name));
        self.barrier();
        Ok(())
    }
}

/// What a config of the property is made from.
type Made = (u8, u8, u8, u8, Vec<(bool, u8, bool, u8)>);

/// Uplinks and vNICs that come, go and change their devices, and places behind either uplink.
fn made((uplinks, mtus, vnics, order, places): &Made) -> Config {
    let mut text = String::new();
    let mut up: Vec<usize> = (0..2).filter(|bit| uplinks & (1 << bit) != 0).collect();
    if order & 1 != 0 {
        up.reverse();
    }
    for &bit in &up {
        let mtu = if mtus & (1 << bit) != 0 { 1500 } else { 1400 };
        text += &format!(
            "[[uplink]]\nname = \"up{bit}\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.{}.0.1/24\"]\nmtu = {mtu}\n",
            16 + bit
        );
    }
    text += &vpc("a", 1, "");
    text += &vpc("b", 2, "");
    let all =
        [("aa", "b", 3), ("va", "a", 1), ("vb", "b", 1), ("vc", "a", 2), ("vc", "b", 2), ("zz", "a", 4)];
    let mut seen = HashSet::new();
    for (bit, (name, net, host)) in all.into_iter().enumerate() {
        if vnics & (1 << bit) == 0 || !seen.insert(name) {
            continue;
        }
        let mtu = if mtus & (4 << (bit % 4)) != 0 { 1300 } else { 1280 };
        text += &format!("{}mtu = {mtu}\n", vnic(name, net, host));
    }
    let mut taken = HashSet::new();
    for &(in_b, host, second, vtep) in places {
        if !taken.insert((in_b, host)) {
            continue;
        }
        let (vni, net) = if in_b { (2, b'b') } else { (1, b'a') };
        let mac = host + 20;
        text += &location(vni, net, host + 4, mac, vtep)
            .replace("172.16.", if second { "172.17." } else { "172.16." });
    }
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// An uplink whose device changes and a vNIC that comes in the same reload: the new port gets no packet of others.
#[test]
fn repair_reload_a_new_port_inherits_no_packets() {
    let places = vec![(false, 1, false, 2), (true, 1, true, 3)];
    for seed in 1..20 {
        let mut site = Site::new(seed * 0x9e37_79b9);
        site.reload(made(&(3, 3, 0b110, 0, places.clone()))).unwrap();
        site.reload(made(&(3, 2, 0b111, 0, places.clone()))).unwrap();
        // An uplink goes whose place came first, and comes back behind the other.
        let second = vec![places[1]];
        site.reload(made(&(2, 2, 0b111, 0, second))).unwrap();
        let (uplink, _, neighbour) = site.neighbours.list()[0];
        assert!(
            matches!(neighbour.state, NeighbourState::Reachable(_)),
            "the neighbours of the other uplink stay"
        );
        site.reload(made(&(3, 2, 0b101, 1, places.clone()))).unwrap();
        assert!(site.neighbours.list().iter().any(|(other, ..)| *other == uplink));
        assert!(site.delivered.get() > 100, "hardly any traffic");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn repair_reload_no_packet_meets_a_port_of_others(
        seed in any::<u64>(),
        steps in prop::collection::vec(
            (1u8..4, any::<u8>(), 0u8..64, any::<u8>(),
             prop::collection::vec((any::<bool>(), 1u8..4, any::<bool>(), 2u8..5), 0..6)),
            2..8,
        ),
    ) {
        let mut site = Site::new(seed);
        for step in &steps {
            // A place that no uplink reaches refuses the change: then everything goes back.
            let _ = site.reload(made(step));
        }
    }
}
