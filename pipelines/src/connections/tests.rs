//! The state of TCP as seen from the middle, keys of both directions, and the table with its keeper.

use wire::L3;
use wire::tcp::flags::{ACK, FIN, PSH, RST, SYN};

use super::*;
use crate::flow_key::{FlowAddresses, Scope};
use crate::snapshot::ip_key;

const TIMES: ConnectionTimes = ConnectionTimes {
    tcp_opening: 300,
    tcp_established: 100_000,
    tcp_closing: 300,
    one_way: 300,
    both_ways: 1800,
    icmp: 300,
    rdma: 1200,
};

fn tcp(first: u8, then: &[(u8, bool)]) -> ConnectionState {
    let opened = ConnectionState::opened(true, first, true, 0);
    then.iter().fold(opened, |state, &(tcp_flags, by_opener)| state.after_tcp(tcp_flags, by_opener))
}

#[test]
fn security_tcp_is_followed_by_its_handshake_and_its_end() {
    let handshake = [(SYN | ACK, false), (ACK, true)];
    let phase = |then: &[(u8, bool)]| tcp(SYN, then).phase();
    assert_eq!(phase(&[]), Phase::Opening);
    assert_eq!(phase(&[(SYN | ACK, false)]), Phase::Opening);
    assert_eq!(phase(&handshake), Phase::Established);
    // Nobody but the two ends of a handshake completes it.
    assert_eq!(phase(&[(ACK, true)]), Phase::Opening);
    assert_eq!(phase(&[(ACK, false), (ACK, true)]), Phase::Opening);
    assert_eq!(phase(&[(SYN | ACK, true), (ACK, true)]), Phase::Opening);
    let with = |more: &[(u8, bool)]| phase(&[&handshake, more].concat());
    assert_eq!(with(&[(FIN | ACK, true)]), Phase::Closing);
    assert_eq!(with(&[(FIN | ACK, true), (FIN | ACK, true), (ACK, false)]), Phase::Closing);
    assert_eq!(with(&[(FIN | ACK, true), (FIN | ACK, false)]), Phase::TimeWait);
    assert_eq!(with(&[(RST, false)]), Phase::Reset);
    assert_eq!(with(&[(FIN | ACK, true), (RST, true), (ACK, true)]), Phase::Reset);
    assert_eq!(with(&[(PSH | ACK, false)]), Phase::Established);
    assert_eq!(phase(&[(RST | ACK, false)]), Phase::Reset);
    // Taken up in the middle: the other side confirms it.
    assert_eq!(tcp(ACK, &[(PSH | ACK, true)]).phase(), Phase::Opening);
    assert_eq!(tcp(ACK, &[(PSH | ACK, false)]).phase(), Phase::Established);
}

fn flow(source: [u8; 4], destination: [u8; 4], proto: u8, ports: u32, scope: Scope, class: u8) -> FlowKey {
    let addresses = u64::from(u32::from_be_bytes(source)) << 32 | u64::from(u32::from_be_bytes(destination));
    FlowKey::v4(addresses, scope, ports, proto, class, None)
}

use crate::flow_key::FlowKey;

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

#[test]
fn security_both_directions_of_a_flow_are_one_connection() {
    let out = |proto, ports, class| {
        ConnectionKey::of(7, &flow(A, B, proto, ports, Scope::Vnic(7), class), true).unwrap()
    };
    let back = |proto, ports, class| {
        ConnectionKey::of(7, &flow(B, A, proto, ports, Scope::Vpc(0), class), false).unwrap()
    };
    assert_eq!(out(6, 1000 << 16 | 80, 0), back(6, 80 << 16 | 1000, 0));
    assert_ne!(out(6, 1000 << 16 | 80, 0), back(6, 81 << 16 | 1000, 0));
    assert_ne!(out(6, 1000 << 16 | 80, 0), out(17, 1000 << 16 | 80, 0));
    // Echo request and reply have the same identifier.
    assert_eq!(out(1, 0x0800 << 16 | 9, 0), back(1, 9, 0));
    assert_ne!(out(1, 0x0800 << 16 | 9, 0), back(1, 8, 0));
    // Queue pairs: neither ports nor classes nor the own address matter. UD and the connection manager are something else, and so
    // is UDP.
    let [rc, ud, cnp, xrc, cm] = [1, 4, 5, 6, 7];
    assert_eq!(out(17, 4791, rc), back(17, 4791, xrc));
    assert_eq!(out(17, 4791, rc), back(17, 4791, cnp));
    assert_eq!(out(17, 4791, ud), back(17, 4791, cm));
    assert_eq!(out(17, 4791, rc), ConnectionKey::queue_pairs(7, B.into()));
    let kinds = [rc, ud, 0].map(|class| out(17, 4791, class).kind());
    assert_eq!(kinds, [Kind::QueuePairs, Kind::UnreliableRdma, Kind::Other]);
    // As it was known before: all of it as one, under the own address.
    let [a, b, c, d, ..] = *out(17, 4791, ud).words();
    let before = ConnectionKey::from_words([a, b, c, d, 17 | 1 << 8, 7 << 32]);
    assert_eq!((before.renewed(), out(17, 4791, ud).renewed()), (out(17, 4791, rc), out(17, 4791, ud)));
    let key = out(6, 1000 << 16 | 80, 0);
    assert_eq!((key.vnic(), key.ports(), key.proto()), (7, [1000, 80], 6));
    assert_eq!(key.addresses(), [IpAddr::from(A), IpAddr::from(B)]);
    assert_eq!(ConnectionKey::from_words(*key.words()), key);
}

use std::net::IpAddr;

#[test]
fn security_addresses_of_a_flow_are_the_same_as_numbers() {
    let v4 = flow(A, B, 6, 1000 << 16 | 80, Scope::Vnic(7), 0);
    let v6 =
        [0xfd00 << 48, 1, 0xfd00 << 48 | 5, 2, 7 << 32 | 1000 << 16 | 80, 0, (L3::Ipv6 as u64) << 16 | 6];
    let v6 = FlowKey::from_words(v6);
    for key in [v4, v6] {
        let FlowAddresses { source, destination } = key.addresses().unwrap();
        assert_eq!(key.ip_keys(), Some([source, destination].map(ip_key)));
        let of = |out| ConnectionKey::of(7, &key, out).unwrap();
        assert_eq!((of(true).addresses(), of(true).ports()), ([source, destination], [1000, 80]));
        assert_eq!((of(false).addresses(), of(false).ports()), ([destination, source], [80, 1000]));
    }
    assert_eq!(FlowKey::default().ip_keys(), None);
}

#[test]
fn security_keys_of_one_chain_are_told_apart_by_every_word() {
    // A single chain.
    let (connections, ..) = table(1);
    let base = *key(1, 1).words();
    let (first, chain) = (ConnectionKey::from_words(base), connections.chain(&key(1, 1)));
    assert!(matches!(connections.make(&first, UDP, at(1)), Made::In(_)));
    for word in 0..base.len() {
        let mut other = base;
        other[word] ^= 1 << 17;
        let other = ConnectionKey::from_words(other);
        assert_eq!((connections.chain(&other), connections.find(&other)), (chain, None), "word {word}");
    }
    let hashed = connections.hashed(first);
    assert_eq!(connections.find_hashed(&hashed), connections.find(&first));
    let Made::In(watch) = connections.make_hashed(&hashed, UDP, at(2)) else { panic!() };
    assert_eq!((watch, connections.ledger().count(1)), (connections.find(&first).unwrap().watch, 1));
}

/// The table, its keeper, and a worker.
fn table(entries: u32) -> (Arc<Connections>, ConnectionKeeper, WorkerConnections) {
    let params = LedgerParams { entries, vnics: 4, workers: 1, seed: 9 };
    let connections = Arc::new(Connections::new(&params, &|_, _| {}));
    let keeper = ConnectionKeeper::new(connections.clone(), TIMES);
    (connections.clone(), keeper, WorkerConnections::new(connections, 0))
}

fn key(vnic: u32, port: u32) -> ConnectionKey {
    ConnectionKey::of(vnic, &flow(A, B, 17, port << 16 | 53, Scope::Vnic(vnic), 0), true).unwrap()
}

fn at(tick: u32) -> Now {
    Now { ns: u64::from(tick) * 100_000_000, tick }
}

fn settle(keeper: &mut ConnectionKeeper, worker: &mut WorkerConnections) {
    for _ in 0..8 {
        keeper.advance();
        worker.tend();
    }
}

const UDP: Record = Record { state: ConnectionState::opened(true, 0, false, 0), epoch: 3 };

#[test]
fn security_connections_go_when_idle_and_no_flow_rests_on_them_then() {
    let (connections, mut keeper, mut worker) = table(64);
    let Made::In(watch) = connections.make(&key(1, 1), UDP, at(10)) else { panic!() };
    assert!(connections.holds(watch) && !watch.is_none());
    let Found { slot, record, .. } = connections.find(&key(1, 1)).unwrap();
    assert_eq!(record, UDP);
    keeper.sweep(1000, 300, |_| false);
    settle(&mut keeper, &mut worker);
    assert!(connections.holds(watch), "used lately");
    connections.touch(slot, 400);
    keeper.sweep(1000, 700, |_| false);
    assert!(connections.holds(watch));
    keeper.sweep(1000, 400 + TIMES.one_way + 100, |_| false);
    assert!(!connections.holds(watch), "at once, before its place is free");
    settle(&mut keeper, &mut worker);
    assert_eq!((connections.find(&key(1, 1)), connections.ledger().count(1)), (None, 0));
    // The slot of another connection, whose flows are not those of the old one.
    for port in 1..=64 {
        assert!(matches!(connections.make(&key(2, port), UDP, at(1000)), Made::In(_)));
    }
    assert!(!connections.holds(watch));
}

#[test]
fn security_a_reset_ends_flows_on_all_workers_at_once() {
    let (connections, ..) = table(64);
    let record = |state| Record { state, epoch: 0 };
    let opened = ConnectionState::opened(true, SYN, true, 0);
    let Made::In(watch) = connections.make(&key(1, 1), record(opened), at(1)) else { panic!() };
    let slot = connections.find(&key(1, 1)).unwrap().slot;
    let answered = opened.after_tcp(SYN | ACK, false);
    assert!(connections.change(slot, record(opened), record(answered)) && connections.holds(watch));
    let reset = record(answered.with_phase(Phase::Reset));
    assert!(connections.change(slot, record(answered), reset));
    assert!(!connections.holds(watch));
    // Who read it before that changes nothing, and looks again.
    assert!(!connections.change(slot, record(answered), record(answered.with_phase(Phase::Established))));
    assert_eq!(connections.record(slot), reset);
    // Reset again: nothing new.
    let watch = connections.watch(slot);
    assert!(connections.change(slot, reset, reset) && connections.holds(watch));
}

#[test]
fn security_what_was_refused_is_asked_again_when_the_vnic_opens_something() {
    let (connections, ..) = table(64);
    let refused = [1, 2].map(|vnic| connections.refusal(vnic));
    assert!(refused.iter().all(|&watch| connections.holds(watch)));
    connections.make(&key(1, 1), UDP, at(1));
    assert_eq!(refused.map(|watch| connections.holds(watch)), [false, true]);
}

#[test]
fn security_a_vnic_has_its_share_of_connections_and_no_more() {
    let (connections, mut keeper, mut worker) = table(64);
    keeper.set_limits(1, 8, 0);
    let made = |port| matches!(connections.make(&key(1, port), UDP, at(1)), Made::In(_));
    assert_eq!((1..=20).filter(|&port| made(port)).count(), 8);
    assert_eq!(connections.refused(), 12);
    assert!(matches!(connections.make(&key(2, 1), UDP, at(1)), Made::In(_)));
    // A vNIC that is gone has none.
    keeper.sweep(1000, 2, |vnic| vnic == 1);
    settle(&mut keeper, &mut worker);
    assert_eq!((connections.ledger().count(1), connections.ledger().count(2)), (0, 1));
}
