//! BFD at an uplink: what is handed to control, and the name under which everything else is dropped.

use std::net::IpAddr;
use std::sync::Arc;

use pipelines::bfd::{BfdHeard, BfdSession, BfdSessions, MAX_SESSIONS, MOST_BEFORE_UNKNOWING, MOST_WAITING};
use wire::bfd::{Control, Diagnostic, MULTIHOP_PORT, PORT, State, TTL};
use wire::build::Path;
use wire::{HeapBuf, View};

use testkit::*;

/// The discriminators of the session over one hop with host 2, and of that over several hops with host 3.
const NUMBERS: [u32; 2] = [0x0a0b_0c0d, 0xf000_0001];
const TAKEN: [(&str, u64); 2] = [("consumed", 1), ("bfd-packets", 1)];

fn vtep(host: u8, underlay: Underlay) -> IpAddr {
    if underlay.v6 { host_v6(host).into() } else { host_v4(host).into() }
}

fn asking(underlay: Underlay) -> World {
    let mut world = lab(1, underlay);
    let session = |n: u8| BfdSession {
        slot: u16::from(n),
        discriminator: NUMBERS[usize::from(n)],
        uplink: 0,
        peer: vtep(2 + n, underlay),
        local: vtep(1, underlay),
        multihop: n == 1,
    };
    world.snapshot.bfd = Arc::new(BfdSessions::new(vec![session(0), session(1)]));
    world
}

/// What a peer says, with a discriminator of this host.
fn said(state: State, your_discriminator: u32) -> Control {
    let mut control = Control::new(state, Diagnostic::NONE);
    control.detect_multiplier = 3;
    control.my_discriminator.set(7);
    control.your_discriminator.set(your_discriminator);
    control.desired_min_tx.set(100_000);
    control.required_min_rx.set(100_000);
    control
}

fn frame(path: &Path, port: u16, control: &Control) -> Vec<u8> {
    path.udp(49_152, port, control.bytes())
}

fn path(from: u8, underlay: Underlay) -> Path {
    outer(from, 1, underlay).with_ttl(TTL)
}

#[test]
fn bfd_sessions_hear_what_is_for_them() {
    for underlay in UNDERLAYS {
        let mut world = asking(underlay);
        let mut heard = |frame: Vec<u8>| {
            world.expect(UPLINK, &[frame], &TAKEN);
            let heard = world.shared.events.heard().unwrap();
            assert!(world.shared.events.heard().is_none());
            heard
        };
        for yours in [0, NUMBERS[0]] {
            let control = said(State::Down, yours);
            let expected = BfdHeard { slot: 0, discriminator: NUMBERS[0], control };
            assert_eq!(heard(frame(&path(2, underlay), PORT, &control)), expected);
        }
        // Over several hops the TTL is what the routers left of it.
        for (yours, ttl) in [(0, 255), (NUMBERS[1], 61)] {
            let control = said(State::AdminDown, yours);
            let expected = BfdHeard { slot: 1, discriminator: NUMBERS[1], control };
            assert_eq!(heard(frame(&path(3, underlay).with_ttl(ttl), MULTIHOP_PORT, &control)), expected);
        }
        // The payload may begin in a buffer of its own.
        let control = said(State::Up, NUMBERS[0]);
        let whole = frame(&path(2, underlay), PORT, &control);
        for cut in [whole.len() - 24, whole.len() - 23, whole.len() - 1] {
            let packet = HeapBuf::segmented(&whole[..cut], &[&whole[cut..]]);
            world.expect_packets(UPLINK, vec![packet], &TAKEN);
            assert_eq!(world.shared.events.heard().unwrap().control, control);
        }
    }
}

#[test]
fn bfd_of_strangers_is_dropped_by_name() {
    for underlay in UNDERLAYS {
        let mut world = asking(underlay);
        let up = said(State::Up, NUMBERS[0]);
        let own = |control: &Control| frame(&path(2, underlay), PORT, control);
        let change = |change: fn(&mut Control)| {
            let mut control = up;
            change(&mut control);
            control
        };
        let malformed: [fn(&mut Control); 8] = [
            |control| control.version_diagnostic = 0,
            |control| control.version_diagnostic = 2 << 5,
            |control| control.length = 23,
            |control| control.length = 25,
            |control| control.detect_multiplier = 0,
            |control| control.my_discriminator.set(0),
            |control| control.your_discriminator.set(0),
            |control| control.state_flags |= Control::MULTIPOINT,
        ];
        let mut cases: Vec<(Vec<u8>, &str)> =
            malformed.into_iter().map(|spoil| (own(&change(spoil)), "bfd-malformed")).collect();
        // One hop away, or from afar with a TTL that was 255 once.
        cases
            .extend([254, 253, 1].map(|ttl| (frame(&path(2, underlay).with_ttl(ttl), PORT, &up), "bfd-ttl")));
        let down = said(State::Down, 0);
        cases.push((frame(&path(2, underlay).with_ttl(254), PORT, &down), "bfd-ttl"));
        // Numbers and addresses of nobody, of another session, by the other port.
        cases.push((own(&said(State::Up, NUMBERS[0] ^ 1)), "bfd-unknown"));
        cases.push((own(&said(State::Up, NUMBERS[1])), "bfd-unknown"));
        cases.push((frame(&path(3, underlay), PORT, &up), "bfd-unknown"));
        cases.push((frame(&path(4, underlay), PORT, &down), "bfd-unknown"));
        cases.push((frame(&path(2, underlay), MULTIHOP_PORT, &down), "bfd-unknown"));
        cases.push((frame(&path(3, underlay), PORT, &down), "bfd-unknown"));
        // Authenticated: 26 bytes at least.
        let mut simple = change(|control| (control.length, control.state_flags) = (28, 3 << 6 | 4));
        simple.state_flags |= Control::AUTHENTICATION;
        let secret = [simple.bytes(), &[1, 4, 1, b'x']].concat();
        cases.push((path(2, underlay).udp(49_152, PORT, &secret), "bfd-authenticated"));
        // Cut short everywhere: the UDP payload is what is left.
        for cut in 0..24 {
            cases.push((path(2, underlay).udp(49_152, PORT, &up.bytes()[..cut]), "bfd-malformed"));
        }
        // A byte of the packet was flipped on its way.
        let mut flipped = own(&up);
        let last = flipped.len() - 9;
        flipped[last] ^= 1;
        cases.push((flipped, "outer-checksum"));
        for (frame, name) in cases {
            world.expect(UPLINK, std::slice::from_ref(&frame), &[(name, 1)]);
            assert!(world.shared.events.heard().is_none(), "{name}");
        }
        // Not for the uplink's own MAC, or in another VLAN: it is anybody's traffic.
        let mut group = path(2, underlay);
        group.dst_mac = wire::MacAddr([1, 0, 0x5e, 0, 0, 1]);
        world.expect(UPLINK, &[frame(&group, PORT, &up)], &[("underlay-other", 1)]);
        let elsewhere = path(2, Underlay { vlan: Some(99), ..underlay });
        world.expect(UPLINK, &[frame(&elsewhere, PORT, &up)], &[("underlay-other", 1)]);
    }
}

#[test]
fn bfd_that_nobody_asked_for_is_the_hosts_own() {
    let underlay = Underlay::default();
    let down = frame(&path(2, underlay), PORT, &said(State::Down, 0));
    let mut world = plain();
    world.expect(UPLINK, std::slice::from_ref(&down), &[("underlay-other", 1)]);
    let punt = world.add_punt();
    assert_eq!(world.one(UPLINK, &down, &[]), (punt, down.clone()));
    // With sessions it is the switch that speaks on these ports.
    world.snapshot.bfd = asking(underlay).snapshot.bfd;
    world.expect(UPLINK, &[down], &TAKEN);
}

#[test]
fn bfd_packets_with_options_or_in_fragments_are_no_proof_of_anything() {
    let underlay = Underlay::default();
    let mut world = asking(underlay);
    let control = said(State::Up, NUMBERS[0]);
    let mut options = path(2, underlay);
    options.options = vec![7, 4, 4, 0];
    world.expect(UPLINK, &[frame(&options, PORT, &control)], &[("bfd-malformed", 1)]);
    // The first fragment holds all of it.
    let mut first = frame(&path(2, underlay), PORT, &control);
    first[14 + 6] = 0x20;
    assert!(wire::ipv4::fill_checksum(&mut first[14..34]));
    world.expect(UPLINK, &[first], &[("bfd-malformed", 1)]);
}

/// Who knows the addresses of both ends and no discriminator leaves the peer's packets their places.
#[test]
fn bfd_a_storm_that_names_nobody_leaves_the_peer_its_places() {
    let underlay = Underlay::default();
    let mut world = asking(underlay);
    let packet = |yours| frame(&path(3, underlay), MULTIHOP_PORT, &said(State::Down, yours));
    let few = u64::from(MOST_BEFORE_UNKNOWING);
    for _ in 0..10 {
        let moved = [("consumed", few), ("bfd-packets", few), ("bfd-limit", 32 - few)];
        world.expect(UPLINK, &vec![packet(0); 32], &moved);
        world.expect(UPLINK, &[packet(NUMBERS[1])], &TAKEN);
        world.expect(UPLINK, &[packet(0)], &[("bfd-limit", 1)]);
        let heard: Vec<u32> = std::iter::from_fn(|| world.shared.events.heard())
            .map(|heard| heard.control.your_discriminator.get())
            .collect();
        assert_eq!(heard, [0, 0, NUMBERS[1]]);
    }
}

#[test]
fn bfd_a_storm_of_one_session_leaves_the_others_their_places() {
    let underlay = Underlay::default();
    let mut world = asking(underlay);
    let storm = frame(&path(2, underlay), PORT, &said(State::Up, NUMBERS[0]));
    let most = u64::from(MOST_WAITING);
    let moved = [("consumed", most), ("bfd-packets", most), ("bfd-limit", 32 - most)];
    world.expect(UPLINK, &vec![storm.clone(); 32], &moved);
    for _ in 0..100 {
        world.expect(UPLINK, &vec![storm.clone(); 32], &[("bfd-limit", 32)]);
    }
    world.expect(UPLINK, &[frame(&path(3, underlay), MULTIHOP_PORT, &said(State::Up, NUMBERS[1]))], &TAKEN);
    let heard: Vec<u16> =
        std::iter::from_fn(|| world.shared.events.heard()).map(|heard| heard.slot).collect();
    assert_eq!(heard, [0, 0, 0, 0, 1]);
    world.expect(UPLINK, &[storm], &TAKEN);
    // All sessions at once fit, and one that there cannot be has no place.
    let slot = |slot| BfdHeard { slot, discriminator: 1, control: said(State::Up, 1) };
    assert!(world.shared.events.heard().is_some());
    for n in 0..MAX_SESSIONS as u16 {
        assert!((0..MOST_WAITING).all(|_| world.shared.events.hear(slot(n)).is_ok()), "session {n}");
        assert!(world.shared.events.hear(slot(n)).is_err());
    }
    assert!(world.shared.events.hear(slot(MAX_SESSIONS as u16)).is_err());
}
