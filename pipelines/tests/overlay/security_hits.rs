//! Hits where there are security groups: what they rest on, and when a connection is noted to be in use.

use pipelines::Now;
use pipelines::drops::DropReason;
use pipelines::ledger::Keeper;
use wire::Vni;
use wire::tcp::flags::{ACK, FIN, RST, SYN};

use testkit::*;

use super::security::*;

const HIT_OUT: [(&str, u64); 2] = [("nft-hits", 1), ("encapsulated", 1)];
const HIT_IN: [(&str, u64); 2] = [("nft-hits", 1), ("decapsulated", 1)];

/// When each connection was last noted to be in use, in ticks.
fn seen(world: &World) -> Vec<u32> {
    let keeper = Keeper::new(world.shared.connections.ledger().clone());
    keeper.scan(0, 64).0.iter().map(|connection| connection.seen).collect()
}

fn wait(world: &mut World, ms: u64) {
    world.now = Now::from_ns(world.now.ns + ms * 1_000_000);
}

#[test]
fn security_a_flow_that_rests_on_no_connection_hits_with_any_packet() {
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    // B is in no group.
    let out = v4(B, R);
    world.one(2, &out.tcp(5, 80, ACK, b""), &ENCAP);
    for tcp_flags in [SYN, ACK, FIN | ACK, RST] {
        world.one(2, &out.tcp(5, 80, tcp_flags, b""), &HIT_OUT);
    }
    wait(&mut world, 10_000);
    world.one(2, &out.tcp(5, 80, ACK, b""), &HIT_OUT);
    assert_eq!(seen(&world), []);
}

#[test]
fn security_a_connection_is_noted_to_be_in_use_by_its_own_packets_now_and_then() {
    let (out, back) = (v4(A, R), v4(R, A));
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    world.one(1, &out.udp(9, 53, b"question"), &ENCAP);
    let answer = back.udp(53, 9, b"answer");
    world.one(UPLINK, &tunnelled(&answer), &DECAP);
    let first = vec![world.now.tick];
    assert_eq!(seen(&world), first);
    wait(&mut world, 10_000);
    // Under the address of R, and from another host.
    let forged = outer(3, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), &answer);
    assert!(!passes(&mut world, UPLINK, &forged));
    assert_eq!(world.worker.counters.drops(DropReason::INNER_SOURCE), 1);
    assert_eq!(seen(&world), first);
    world.one(UPLINK, &tunnelled(&answer), &HIT_IN);
    let second = vec![world.now.tick];
    assert_eq!(seen(&world), second);
    wait(&mut world, 100);
    world.one(UPLINK, &tunnelled(&answer), &HIT_IN);
    assert_eq!(seen(&world), second, "noted already");
    wait(&mut world, 10_000);
    world.one(1, &out.udp(9, 53, b"question"), &HIT_OUT);
    assert_eq!(seen(&world), [world.now.tick], "in either direction");
}

#[test]
fn security_hits_and_misses_come_in_one_burst() {
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0]), (B, &[0])]);
    let path = v4(A, R);
    let frames = |ports: &[u16]| ports.iter().map(|&port| path.udp(port, 53, b"?")).collect::<Vec<_>>();
    world.expect(1, &frames(&[1, 2, 3]), &[("nft-misses", 3), ("encapsulated", 3)]);
    wait(&mut world, 10_000);
    let moved = [("nft-hits", 3), ("nft-misses", 2), ("encapsulated", 5)];
    world.expect(1, &frames(&[1, 7, 2, 8, 3]), &moved);
    assert_eq!(seen(&world), [world.now.tick; 5]);
    // Judged at both ends, or at one, or at none.
    let local = |to: Station, port: u16| routed_if(to, v4(A, to)).udp(port, 53, b"?");
    world.expect(1, &[local(C, 1), local(C, 2)], &[("nft-misses", 2), ("local", 2)]);
    assert_eq!(seen(&world).len(), 7);
    world.expect(
        1,
        &[local(B, 1), local(C, 1)],
        &[("nft-misses", 1), ("nft-hits", 1), ("security-in", 1), ("local", 1)],
    );
    world.expect(3, &[routed(v4(C, R)).udp(1, 2, b"?")], &ENCAP);
    assert_eq!(seen(&world).len(), 8);
}

/// C is behind the router.
fn routed_if(to: Station, path: wire::build::Path) -> wire::build::Path {
    if to == C { routed(path) } else { path }
}
