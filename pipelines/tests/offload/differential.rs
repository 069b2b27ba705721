//! Software only, the simulated e-switch only, and any mix while rules come and go: each packet takes the same direction with
//! the same bytes, is dropped under the same name, and is counted once.
//!
//! Two hosts live through the same. One has its worker only; the other has an e-switch in front of the worker, into
//! which flows are put and out of which they are taken between any two packets.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::flow_key::FlowKey;
use pipelines::offload::sim::Fate;
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::qos::Class;
use pipelines::rcft::QpKey;
use pipelines::snapshot::{Destination, PortIndex};
use pipelines::vlt::Place;
use pipelines::vtep::router_mac;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use rules::mlx5::Nic;
use wire::build::Path;
use wire::roce::Bth;
use wire::{Dscp, HeapBuf, MacAddr, Psn, Qpn, Vni};

use crate::host::*;
use crate::mixed::{Mixed, choose_ports};
use testkit::*;

/// Queue pairs in use.
const QPNS: [u32; 2] = [17, 18];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Packet { from: usize, to: usize, kind: u8, sport: u16, tos: u8, outer_tos: u8, oddity: u8, at: usize },
    Offload { which: usize, qpn: u32, sport: u16 },
    Wait { ms: u64 },
    Withdraw { which: usize },
    Move { to: usize, host: u8, at_once: bool },
    Bring { to: usize, vnic: u32 },
}

/// Kinds of packets, of two families, two ways.
type Kinds = [(u64, u64); 64];

struct Pair {
    software: Host,
    mixed: Mixed,
    underlay: Underlay,
    /// Packets, and those of them that the e-switch forwarded, by kind, IPv4 first; out of the tunnel in the second half.
    kinds: Kinds,
}

const STATIONS: [Station; 5] = [A, B, C, R, S];

impl Pair {
    fn new(underlay: Underlay, entropy: EntropySource, nic: Nic) -> Self {
        let host = || {
            let mut world = lab(1, underlay);
            world.keep_vlan(0);
            let mut host = Host::new(world);
            choose_ports(&mut host, entropy);
            host.options.dscps = vec![Dscp::default(), Dscp::new(26).unwrap()];
            host
        };
        Self { software: host(), mixed: Mixed::new(host(), nic), underlay, kinds: [(0, 0); 64] }
    }

    fn router(&self) -> MacAddr {
        router_mac(if self.underlay.v6 { host_v6(1).into() } else { host_v4(1).into() })
    }

    fn frame(&self, step: &Step) -> Option<(PortIndex, Vec<u8>)> {
        let Step::Packet { from, to, kind, sport, tos, outer_tos, oddity, at } = *step else { return None };
        let (source, target) = (STATIONS[from], STATIONS[to]);
        let local = from < 3;
        if from == to {
            return None;
        }
        let path = if kind & 1 == 0 { v4(source, target) } else { v6(source, target) };
        // Bridged; by the virtual router of the network; by a router on the other host to this host's.
        let path = match (kind & 2 == 0, local || kind & 8 != 0) {
            (true, _) => path,
            (false, true) => routed(path),
            (false, false) => Path { dst_mac: self.router(), ..path },
        };
        let path = path.with_tos([0, 1, 2, 3, 0x68, 0x6a, 0x6b, 0x20][usize::from(tos % 8)]);
        let path = if oddity == 1 { path.with_ttl((at % 3) as u8) } else { path };
        let path = if kind & 4 == 0 || kind & 8 == 0 { path } else { path.tagged(5) };
        let rdma = |opcode, qpn: u32, body: &[u8]| {
            path.roce(1000 + sport, Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(at as u32)), body)
        };
        let qpn = QPNS[usize::from(sport % 2)];
        let mut inner = match kind >> 4 {
            0..=3 => path.tcp(1000 + sport, 80, 0x10, &[1; 1200][..at % 1200]),
            4..=6 => path.udp(1000 + sport, 53, &[2; 1200][..at % 1200]),
            7..=9 => rdma(0x0a, qpn, &[0; 36]),
            10 => rdma(0x11, qpn, &[0; 8]),
            11 => rdma(0x24, qpn, &[0; 36]),
            12 => rdma(0x64, if at % 3 == 0 { 1 } else { qpn }, &[0; 36]),
            13 => path.cnp(1000 + sport, Qpn::truncated(qpn)),
            14 => path.echo_request(sport, 1, b"ping"),
            _ => path
                .fragments(
                    wire::protocol::UDP,
                    &wire::build::udp_datagram(1000 + sport, 53, &[0; 900]),
                    7,
                    600,
                )
                .remove(at % 2),
        };
        let damage = |frame: &mut Vec<u8>| {
            // Rules do not compare the source MAC of what comes out of a tunnel.
            let at = at % frame.len().min(90);
            let source_mac = |start: usize| (start..start + 6).contains(&at);
            let at = if !local && [6, 56, 60, 76].into_iter().any(source_mac) { 0 } else { at };
            frame[at] ^= 1 << (sport * 3 % 8);
        };
        if oddity == 2 {
            damage(&mut inner);
        }
        if local {
            return Some((from as PortIndex + 1, inner));
        }
        // Now and then from a host that the location does not name.
        let host = if oddity == 3 { 3 } else { 2 };
        let vni = if oddity == 4 { 101 } else { 100 };
        let path = outer(host, 1, self.underlay).with_tos(outer_tos % 4);
        let mut frame = path.vxlan(50_000, Vni::new(vni).unwrap(), &inner);
        // Nothing behind the outer datagram: hardware would count those bytes, too.
        if oddity == 5 {
            damage(&mut frame);
        }
        Some((UPLINK, frame))
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Packet { kind, .. } => {
                let Some((port, frame)) = self.frame(step) else { return Ok(()) };
                let expected = self.software.world.run(port, vec![HeapBuf::new(&frame)]);
                let (fate, out) = self.mixed.pass(port, &frame);
                self.mixed.wait(1);
                let half = if port == UPLINK { 32 } else { 0 };
                let (packets, forwarded) = &mut self.kinds[half + usize::from(kind % 2 * 16 + kind / 16)];
                *packets += 1;
                *forwarded += u64::from(matches!(fate, Fate::Out { .. }));
                prop_assert_eq!(out, expected, "{:?} from port {}", fate, port);
            }
            Step::Offload { which, qpn, sport } => {
                let entries = self.mixed.host.entries();
                if entries.is_empty() {
                    return Ok(());
                }
                let key = entries[which % entries.len()].key;
                let (qpn, sport) = (QPNS[qpn as usize % 2], Some(1000 + sport));
                let selector = match key.class() {
                    0 => whole(key),
                    1 => FlowSelector { key, qpn: Some(Qpn::truncated(qpn)), source_port: sport },
                    _ => FlowSelector { key, qpn: None, source_port: sport },
                };
                // Only what RCFT admitted.
                let known = self.view(&self.mixed.host, &key, Qpn::truncated(qpn)).is_some();
                if key.class() != 1 || known {
                    self.mixed.offload(selector);
                }
            }
            Step::Wait { ms } => self.mixed.wait(ms),
            Step::Withdraw { which } => {
                if !self.mixed.chains.is_empty() {
                    self.mixed.withdraw(which % self.mixed.chains.len());
                }
            }
            Step::Move { to, host, at_once } => {
                self.locate(STATIONS[to], at_once, |world| world.tunnel(0, host));
            }
            Step::Bring { to, vnic } => self.locate(STATIONS[to], true, |_| Place::Local { vnic }),
        }
        Ok(())
    }

    fn locate(&mut self, station: Station, at_once: bool, place: impl Fn(&World) -> Place) {
        for host in [&mut self.software, &mut self.mixed.host] {
            let world = &mut host.world;
            let place = place(world);
            for destination in [
                Destination::Mac(station.mac),
                Destination::Ip(station.v4.into()),
                Destination::Ip(station.v6.into()),
            ] {
                let slot = world.snapshot.location(0, destination).unwrap().slot;
                world.writer.update(slot.slot, place);
            }
        }
        self.mixed.follow(at_once);
    }

    fn view(&self, host: &Host, key: &FlowKey, qpn: Qpn) -> Option<(u64, u64)> {
        let direction = key.direction();
        let address = key.addresses()?.destination;
        let view =
            host.world.worker.overlay.rcft().view(direction, &QpKey::new(key.scope(), address, qpn))?;
        Some((view.packets, view.bytes))
    }

    /// Every packet was counted once, in software or in hardware; and what was dropped has the same names.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        let mixed: HashMap<_, _> =
            self.mixed.host.entries().iter().map(|entry| (entry.key, (entry.packets, entry.bytes))).collect();
        for entry in self.software.entries() {
            let key = entry.key;
            let (packets, bytes) = self.mixed.hardware(|selector| selector.key == key);
            let (own, own_bytes) = mixed.get(&key).copied().unwrap_or_default();
            prop_assert_eq!((own + packets, own_bytes + bytes), (entry.packets, entry.bytes), "{:?}", key);
            if key.class() != 1 {
                continue;
            }
            for qpn in QPNS.map(Qpn::truncated) {
                // The flows of a queue pair: to one address, whatever their VLAN and the direction to it.
                let same = |other: &FlowKey| {
                    (other.scope(), other.addresses().map(|ip| ip.destination))
                        == (key.scope(), key.addresses().map(|ip| ip.destination))
                };
                let (packets, bytes) =
                    self.mixed.hardware(|selector| same(&selector.key) && selector.qpn == Some(qpn));
                let own = self.view(&self.mixed.host, &key, qpn).unwrap_or_default();
                let expected = self.view(&self.software, &key, qpn).unwrap_or_default();
                prop_assert_eq!(
                    (own.0 + packets, own.1 + bytes),
                    expected,
                    "queue pair {} of {:?}",
                    qpn,
                    key
                );
            }
        }
        for reason in DropReason::all() {
            let [software, mixed] =
                [&self.software, &self.mixed.host].map(|host| host.world.worker.counters.drops(reason));
            prop_assert_eq!(mixed, software, "{}", reason.name());
        }
        while !self.mixed.chains.is_empty() {
            self.mixed.withdraw(0);
        }
        prop_assert!(self.mixed.store.is_empty() && self.mixed.eswitch.is_empty(), "rules are left");
        Ok(())
    }
}

fn packet() -> impl Strategy<Value = Step> {
    let odd = prop_oneof![12 => Just(0u8), 5 => 1..6u8];
    let outer_tos = prop_oneof![4 => Just(0u8), 2 => any::<u8>()];
    (0..5usize, 0..5usize, any::<u8>(), 0..3u16, any::<u8>(), outer_tos, odd, any::<usize>()).prop_map(
        |(from, to, kind, sport, tos, outer_tos, oddity, at)| Step::Packet {
            from,
            to,
            kind,
            sport,
            tos,
            outer_tos,
            oddity,
            at,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), 0..2u32, 0..3u16).prop_map(|(which, qpn, sport)| Step::Offload { which, qpn, sport }),
        2 => (0..60u64).prop_map(|ms| Step::Wait { ms }),
        2 => any::<usize>().prop_map(|which| Step::Withdraw { which }),
        1 => (0..5usize, 2..4u8, any::<bool>()).prop_map(|(to, host, at_once)| Step::Move { to, host, at_once }),
        1 => (0..5usize, 0..3u32).prop_map(|(to, vnic)| Step::Bring { to, vnic }),
    ]
}

/// A few flows for each case, so that those that are offloaded see packets.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let again = (any::<usize>(), packet()).prop_map(|(which, like)| (Some(which), like));
    let change = step().prop_map(|step| (None, step));
    let changes = prop::collection::vec(prop_oneof![5 => again, 1 => change], 1..250);
    (prop::collection::vec(packet(), 1..7), changes).prop_map(|(flows, changes)| {
        let like = |(which, step): (Option<usize>, Step)| match (
            which.map(|which| &flows[which % flows.len()]),
            step,
        ) {
            (
                Some(&Step::Packet { from, to, kind, sport, .. }),
                Step::Packet { tos, outer_tos, oddity, at, .. },
            ) => Step::Packet { from, to, kind, sport, tos, outer_tos, oddity, at },
            (_, step) => step,
        };
        changes.into_iter().map(like).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn differential_any_mix_is_as_software(
        underlay in prop::sample::select(vec![UNDERLAYS[0], UNDERLAYS[1], UNDERLAYS[4]]),
        nic in prop::sample::select(&Nic::ALL[..]),
        steps in steps(),
    ) {
        let mut pair = Pair::new(underlay, EntropySource::Exact, nic);
        for step in &steps {
            pair.step(step)?;
        }
        pair.finish()?;
    }

    #[test]
    fn differential_with_the_source_ports_that_the_nic_chooses(
        underlay in prop::sample::select(vec![UNDERLAYS[0], UNDERLAYS[1], UNDERLAYS[4]]),
        nic in prop::sample::select(&Nic::ALL[..]),
        steps in steps(),
    ) {
        let mut pair = Pair::new(underlay, EntropySource::Hardware, nic);
        for step in &steps {
            pair.step(step)?;
        }
        pair.finish()?;
    }
}

/// The mix is one: hardware has a share of every kind that it may have, and of no other.
#[test]
fn differential_both_sides_see_packets() {
    let mut runner = TestRunner::deterministic();
    let mut kinds: Kinds = [(0, 0); 64];
    for case in 0..2000 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let underlays = [UNDERLAYS[0], UNDERLAYS[1], UNDERLAYS[4]];
        let mut pair = Pair::new(underlays[case % 3], EntropySource::Exact, Nic::ALL[case / 3 % 3]);
        for step in &steps {
            pair.step(step).unwrap();
        }
        pair.finish().unwrap();
        for (sum, kind) in kinds.iter_mut().zip(pair.kinds) {
            *sum = (sum.0 + kind.0, sum.1 + kind.1);
        }
    }
    for (kind, (packets, forwarded)) in kinds.into_iter().enumerate() {
        // Kinds 13 and up are CNPs, echo requests and fragments.
        let fine =
            if kind % 16 < 13 { forwarded * 100 > packets && forwarded < packets } else { forwarded == 0 };
        assert!(fine, "kind {kind}: {forwarded} of {packets} packets were forwarded by the e-switch");
    }
}

/// A class with a rate: what is green goes on, what is yellow goes on marked, what is red comes to software; all of it
/// is counted once, with what the meter turned away taken off.
#[test]
fn differential_a_meter_marks_and_then_turns_away() {
    const PACKETS: u64 = 600;
    let mut host = Host::new(plain());
    host.limit(Direction::Out, 0, Class::Rdma, 8_000_000);
    let red = host.world.snapshot.settings.red;
    let path = v4(A, R).with_tos(2);
    let frame = path.roce(1000, Bth::new(0x07, Qpn::truncated(17), Psn::truncated(1)), &[0; 1000]);
    let key = host.flow(1, &frame);
    let mut mixed = Mixed::new(host, Nic::default());
    assert!(mixed.offload(pair(key, 17, 1000)));
    mixed.wait(100);
    let (mut plain, mut marked, mut away) = (0, 0, 0);
    let before = mixed.host.entries()[0].packets;
    for _ in 0..PACKETS {
        // All at one instant: bursts only.
        let (fate, out) = mixed.pass(1, &frame);
        match fate {
            Fate::Out { .. } if out[0].1[50 + 15] & 3 == 3 => marked += 1,
            Fate::Out { .. } => plain += 1,
            _ => away += 1,
        }
    }
    let len = frame.len() as u64;
    let rates = mixed.host.tree().meter(mixed.chains[0].1.facts.leaf.unwrap());
    assert_eq!(plain, (rates.burst + red.kmin) / len);
    assert_eq!(marked, (red.hard_limit - red.kmin) / len);
    assert_eq!(plain + marked + away, PACKETS);
    assert!(away > 0);
    let counted = mixed.hardware(|_| true).0;
    assert_eq!(counted, PACKETS, "hardware counts before it meters");
    let dhtb = mixed.host.world.worker.overlay.dhtb();
    let software = mixed.host.entries()[0].packets - before + u64::from(dhtb.waiting());
    assert_eq!(software, away, "software sees what is red, and nothing else");
}
