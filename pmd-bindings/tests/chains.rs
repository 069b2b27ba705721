//! Packets of several segments, and the `PacketBuf` rules on real buffers.

mod common;

use common::{eal, frame, pool, start, stop};
use pmd::{Burst, Mempool, MempoolConfig, Port, PortConfig};
use wire::PacketBuf;

#[test]
fn a_short_head_is_gathered_on_receive() {
    let eal = eal();
    let pool = pool(&eal, 255);
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);
    let room = pool.segment_room();
    let mut bytes_in_head = Vec::new();
    for left in [1, 14, 100, 255, 256, 300] {
        let whole = frame(left, room * 2 + 500);
        let mut packet = pool.alloc_from(&whole).unwrap();
        assert_eq!(packet.segment_count(), 3);
        assert!(packet.trim_front(room - left));
        assert_eq!(packet.head().len(), left);
        let mut burst = Burst::with_capacity(4);
        burst.push(packet).unwrap();
        assert_eq!(tx[0].send(&mut burst), 1);
        assert_eq!(rx[0].receive(&mut burst), 1);
        let packet = burst.pop().unwrap();
        assert_eq!(packet.to_vec(), whole[room - left..]);
        assert_eq!(packet.len(), whole.len() - (room - left));
        bytes_in_head.push(packet.head().len());
    }
    assert_eq!(bytes_in_head, [256, 256, 256, 256, 256, 300]);

    // A short second segment is used up and unlinked.
    let whole = frame(7, room + 20);
    let mut packet = pool.alloc_from(&whole).unwrap();
    assert!(packet.trim_front(room - 10));
    let mut slots = [Some(packet)];
    assert_eq!(tx[0].send_from(&mut slots), 1);
    assert_eq!(rx[0].receive_into(&mut slots), 1);
    let packet = slots[0].take().unwrap();
    assert_eq!((packet.segment_count(), packet.to_vec()), (1, whole[room - 10..].to_vec()));
    drop(packet);
    assert_eq!((rx[0].header_split_drops(), pool.in_use()), (0, 0));
    stop(port, rx, tx);
}

#[test]
fn a_head_that_cannot_be_gathered_is_dropped_and_counted() {
    let eal = eal();
    let big = pool(&eal, 255);
    let config = MempoolConfig {
        name: "tiny".into(),
        mbufs: 255,
        cache: 0,
        data_room: 192,
        ..MempoolConfig::default()
    };
    let tiny = Mempool::new(&eal, &config).unwrap();
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &big);
    let mut burst = Burst::with_capacity(8);
    let kinds = [(&big, 64), (&tiny, 300), (&big, 65), (&tiny, 64), (&tiny, 65)];
    for (number, (pool, length)) in kinds.into_iter().enumerate() {
        burst.push(pool.alloc_from(&frame(number, length)).unwrap()).unwrap();
    }
    let whole: Vec<_> = [(0, 64), (2, 65), (3, 64)].map(|(number, length)| frame(number, length)).into();
    assert_eq!(tx[0].send(&mut burst), 5);
    burst.push(big.alloc_from(&frame(9, 64)).unwrap()).unwrap();
    assert_eq!(rx[0].receive(&mut burst), 3);
    let bytes = common::contents(&burst);
    assert_eq!((&bytes[0], &bytes[1..]), (&frame(9, 64), &whole[..]));
    assert_eq!((rx[0].header_split_drops(), tiny.in_use()), (2, 1));

    // The same into slots.
    let mut slots: Vec<_> = kinds.iter().map(|(pool, length)| pool.alloc_from(&frame(1, *length))).collect();
    assert_eq!(tx[0].send_from(&mut slots), 5);
    assert_eq!(rx[0].receive_into(&mut slots), 3);
    assert!(slots[..3].iter().all(Option::is_some) && slots[3..].iter().all(Option::is_none));
    assert_eq!(rx[0].header_split_drops(), 4);
    drop((slots, burst));
    assert_eq!((big.in_use(), tiny.in_use()), (0, 0));
    stop(port, rx, tx);
}

#[test]
fn packets_grow_and_shrink_at_both_ends() {
    let eal = eal();
    let pool = pool(&eal, 63);
    let mut packet = pool.alloc_from(b"header and body").unwrap();
    assert_eq!(packet.headroom(), pmd::mempool::HEADROOM.into());
    assert!(packet.trim_front(7) && !packet.trim_front(9) && packet.trim_back(5) && !packet.trim_back(4));
    assert_eq!(packet.to_vec(), b"and");
    packet.prepend(6).unwrap()[..6].copy_from_slice(b"salt, ");
    packet.append(7).unwrap().copy_from_slice(b" pepper");
    assert_eq!((packet.len(), packet.to_vec()), (16, b"salt, and pepper".to_vec()));
    packet.head_mut()[0] = b'S';
    assert_eq!(packet.head(), b"Salt, and pepper");

    let headroom = packet.headroom();
    assert!(packet.prepend(headroom + 1).is_none() && packet.prepend(70_000).is_none());
    let tailroom = packet.tailroom();
    assert!(packet.append(tailroom + 1).is_none() && packet.append(70_000).is_none());
    assert_eq!(packet.len(), 16);
    assert_eq!(packet.append(tailroom).unwrap().len(), tailroom);
    assert_eq!(packet.prepend(headroom).unwrap().len(), packet.len());
    assert_eq!((packet.headroom(), packet.tailroom()), (0, 0));

    // In a chain, the front is the first segment's and new bytes go into the last one.
    let bytes = frame(1, pool.segment_room() + 10);
    let mut chain = pool.alloc_from(&bytes).unwrap();
    assert!(!chain.trim_back(bytes.len() + 1) && chain.trim_back(12));
    chain.append(2).unwrap().copy_from_slice(b"yz");
    assert!(chain.trim_front(1));
    let mut expected = bytes[1..pool.segment_room() - 2].to_vec();
    expected.extend(b"yz");
    assert_eq!((chain.len(), chain.to_vec()), (expected.len(), expected));
}

#[test]
fn repair_the_end_of_a_chain_is_taken_off_over_segments() {
    let eal = eal();
    let pool = pool(&eal, 63);
    let room = pool.segment_room();
    let bytes = frame(1, 3 * room + 10);
    for keep in [2, 3, room - 1, room, room + 1, 3 * room, 3 * room + 1, 3 * room + 10] {
        let mut chain = pool.alloc_from(&bytes).unwrap();
        assert!(chain.trim_back(bytes.len() - keep));
        assert_eq!((chain.len(), chain.to_vec()), (keep, bytes[..keep].to_vec()));
        assert_eq!(pool.in_use(), keep.div_ceil(room).max(1), "segments of {keep} bytes");
        // A copy shares the data, not the headers: either may be cut.
        let mut copy = chain.try_clone().unwrap();
        assert!(copy.trim_back(keep / 2));
        assert_eq!(
            (copy.to_vec(), chain.to_vec()),
            (bytes[..keep - keep / 2].to_vec(), bytes[..keep].to_vec())
        );
        drop((chain, copy));
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn a_clone_is_a_packet_of_its_own() {
    let eal = eal();
    let pool = pool(&eal, 15);
    let bytes = frame(3, 5000);
    let mut packet = pool.alloc_from(&bytes).unwrap();
    let mut clone = packet.try_clone().unwrap();
    assert!(!packet.is_shared() && !clone.is_shared());
    packet.head_mut()[0] = 0xaa;
    clone.head_mut()[1] = 0xbb;
    assert_eq!(packet.to_vec()[..2], [0xaa, bytes[1]]);
    assert_eq!(clone.to_vec()[..2], [bytes[0], 0xbb]);
    assert_eq!(clone.to_vec()[2..], bytes[2..]);
    assert!(clone.prepend(50).is_some(), "a clone has headroom");
    let mut clones = vec![clone];
    while let Some(clone) = packet.try_clone() {
        clones.push(clone);
    }
    assert_eq!(clones.len(), 4, "15 buffers hold five packets of three");
    drop((packet, clones));
    assert_eq!(pool.in_use(), 0);
}
