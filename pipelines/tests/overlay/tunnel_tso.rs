//! Super-frames that the uplink's device cuts inside the tunnel, beside what software makes of them.

use wire::build::Path;
use wire::tcp::flags::ACK;
use wire::{HeapBuf, PacketBuf, TunnelTso};

use testkit::*;

use crate::super_frames::{SIZE, all_to, facts, packet, segment, super_frame};

/// What the uplink's device does, in a world.
fn with_tunnel_tso(world: &mut World, outer_udp_checksum: bool, max_segments: u16) {
    world.snapshot.ports[usize::from(UPLINK)].tunnel_tso =
        Some(TunnelTso { outer_udp_checksum, max_segments });
}

#[test]
fn what_the_uplinks_device_cuts_is_what_software_cuts() {
    for underlay in UNDERLAYS {
        for path in [v4(A, R), v6(A, R), routed(v4(A, S)), routed(v6(A, S)), v4(A, R).with_tos(0x2a + 1)] {
            for size in [1429, 29_980, 60_000] {
                let (mut software, mut device) = (lab(1, underlay), lab(1, underlay));
                with_tunnel_tso(&mut device, true, u16::MAX);
                for n in 0..2 {
                    let sent = super_frame(&path, size);
                    let pieces = software.run(1, vec![sent.clone()]);
                    let out = device.worker.run(&device.snapshot, device.now, 1, vec![sent]);
                    let [(UPLINK, whole)] = &out[..] else { panic!("it goes whole: {}", out.len()) };
                    assert!(!whole.is_unfinished());
                    assert_eq!(
                        nic::wire_frames(whole),
                        all_to(UPLINK, pieces),
                        "{underlay:?} {path:?} {size} {n}"
                    );
                }
                let counters = &device.worker.counters;
                assert_eq!((counters.encapsulated.get(), counters.copies.get()), (2, 0));
                assert_eq!((counters.dropped(), counters.imbalance()), (0, 0));
            }
        }
    }
}

#[test]
fn what_the_uplinks_device_does_not_take_is_cut_in_software() {
    let pieces_of = |world: &mut World, packet: HeapBuf| {
        world.worker.run(&world.snapshot, world.now, 1, vec![packet]).len()
    };
    let frame =
        |data: usize, size: u16| packet(&v4(A, R).ip_unfilled(6, &segment(100, ACK, data)), facts(size));
    let mut world = plain();
    with_tunnel_tso(&mut world, false, 6);
    assert_eq!(pieces_of(&mut world, frame(9_990, SIZE)), 1);
    assert_eq!(pieces_of(&mut world, frame(20_000, SIZE)), 15, "ten segments of memory for six");
    assert_eq!(pieces_of(&mut world, frame(2_560, 256)), 1);
    assert_eq!(pieces_of(&mut world, frame(2_550, 255)), 10, "segments that a device may be too proud for");
    // The outer lengths have 16 bits: 36 bytes of tunnel, and 14 of the frame's own header.
    with_tunnel_tso(&mut world, false, u16::MAX);
    let most = 65_535 - 50 - 14 - 52;
    assert_eq!(pieces_of(&mut world, frame(most, SIZE)), 1);
    assert_eq!(pieces_of(&mut world, frame(most + 1, SIZE)), 46);
    // With other owners there is no header to be written.
    let mut shared = frame(9_990, SIZE);
    shared.set_shared(true);
    assert_eq!(pieces_of(&mut world, shared), 7);
    // Headers in between, through which not every parser finds its way.
    let mut extended = v6(A, R);
    extended.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
    let with_options = Path { options: vec![1; 4], ..v4(A, R) };
    for path in [extended, with_options] {
        let frame = path.ip_unfilled(6, &segment(1, ACK, 5000));
        assert_eq!(pieces_of(&mut world, packet(&frame, facts(1000))), 5);
    }
    // A checksum that must not be zero, and that the device does not fill.
    for (zero_checksum6, fills, pieces) in
        [(false, false, 7), (false, true, 1), (true, false, 1), (true, true, 1)]
    {
        let mut world = lab(1, Underlay { v6: true, vlan: None, zero_checksum6 });
        with_tunnel_tso(&mut world, fills, u16::MAX);
        assert_eq!(pieces_of(&mut world, frame(9_990, SIZE)), pieces);
    }
    // What came out of a tunnel goes into none.
    let mut world = plain();
    with_tunnel_tso(&mut world, true, u16::MAX);
    let stray = super_frame(&v4(R, S), 9_990).to_vec();
    let frame = outer(2, 1, Underlay::default()).vxlan(50_000, wire::Vni::new(100).unwrap(), &stray);
    assert_eq!(world.run(UPLINK, vec![packet(&frame, facts(SIZE))]).len(), 0);
}
