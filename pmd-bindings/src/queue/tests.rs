//! Queues over rings, with callbacks, and with drivers that leave what they should not.

use std::ffi::c_void;

use wire::PacketBuf;

use super::*;
use crate::mbuf::Segment;
use crate::port::StartedPort;
use crate::testing::{pool, ring};

#[test]
fn a_header_with_two_owners_is_replaced_on_receive() {
    let pool = pool("two-owners");
    let (port, mut rx, mut tx) = ring("net_ring_a", &pool);
    let packet = pool.alloc_from(b"whose is it").unwrap();
    let raw = packet.segment().as_ptr();
    // SAFETY: a valid mbuf; the second reference is given up below.
    unsafe { sys::dpdk_sys_mbuf_refcnt_update(raw, 1) };
    let mut burst = Burst::with_capacity(4);
    burst.push(packet).unwrap();
    burst.push(pool.alloc_from(b"mine").unwrap()).unwrap();
    assert_eq!(tx.send(&mut burst), 2);
    assert_eq!(rx.receive(&mut burst), 2);
    let first = &mut burst.as_mut_slice()[0];
    assert!(first.segment().as_ptr() != raw && !first.is_shared());
    assert_eq!(first.head_mut(), b"whose is it");
    assert_eq!((burst.as_slice()[1].head(), rx.header_split_drops()), (&b"mine"[..], 0));
    assert_eq!(pool.in_use(), 3);
    // SAFETY: the second owner lets go.
    unsafe { sys::dpdk_sys_mbuf_free(raw) };
    drop(burst);
    assert_eq!(pool.in_use(), 0);
    port.stop(vec![rx], vec![tx]).map_err(|(_, _, _, error)| error).unwrap();
}

/// Frees packets whose first byte is odd, as a filter would.
unsafe extern "C" fn drop_odd(
    _port: u16,
    _queue: u16,
    packets: *mut *mut sys::rte_mbuf,
    count: u16,
    _user: *mut c_void,
) -> u16 {
    // SAFETY: DPDK hands over so many packets.
    let packets = unsafe { std::slice::from_raw_parts_mut(packets, count.into()) };
    let mut kept = 0;
    for index in 0..packets.len() {
        let raw = packets[index];
        // SAFETY: a valid packet, ours for the moment.
        let packet = unsafe { Mbuf::from_raw(NonNull::new(raw).unwrap()) };
        if packet.head()[0] & 1 == 0 {
            packets[kept] = packet.into_raw().as_ptr();
            kept += 1;
        }
    }
    kept as u16
}

unsafe extern "C" fn drop_odd_received(
    port: u16,
    queue: u16,
    packets: *mut *mut sys::rte_mbuf,
    count: u16,
    _most: u16,
    user: *mut c_void,
) -> u16 {
    // SAFETY: the same contract.
    unsafe { drop_odd(port, queue, packets, count, user) }
}

fn heads(burst: &Burst) -> Vec<u8> {
    burst.iter().map(|packet| packet.head()[0]).collect()
}

#[test]
fn callbacks_see_every_burst_and_may_take_packets_away() {
    let pool = pool("callbacks");
    let (port, mut rx, mut tx) = ring("net_ring_b", &pool);
    let id = port.id().get();
    let fill = |burst: &mut Burst, numbers: std::ops::Range<u8>| {
        for number in numbers {
            burst.push(pool.alloc_from(&[number; 60]).unwrap()).unwrap();
        }
    };
    let mut burst = Burst::with_capacity(16);

    // SAFETY: a queue of a started port; the callback is removed below.
    let filter = unsafe { sys::rte_eth_add_tx_callback(id, 0, Some(drop_odd), std::ptr::null_mut()) };
    assert!(!filter.is_null());
    fill(&mut burst, 0..9);
    assert_eq!((tx.send(&mut burst), burst.len(), pool.in_use()), (9, 0, 5));
    let mut slots: Vec<_> = (9..12).map(|number| pool.alloc_from(&[number; 60])).collect();
    assert_eq!(tx.send_from(&mut slots), 3);
    assert!(slots.iter().all(Option::is_none));
    // SAFETY: the callback that was added; its memory stays, as DPDK wants while queues may run.
    assert_eq!(unsafe { sys::rte_eth_remove_tx_callback(id, 0, filter) }, 0);
    assert_eq!(rx.receive(&mut burst), 6);
    assert_eq!(heads(&burst), [0, 2, 4, 6, 8, 10]);
    burst.clear();

    // SAFETY: as above.
    let filter =
        unsafe { sys::rte_eth_add_rx_callback(id, 0, Some(drop_odd_received), std::ptr::null_mut()) };
    assert!(!filter.is_null());
    fill(&mut burst, 1..8);
    assert_eq!(tx.send(&mut burst), 7);
    assert_eq!(rx.receive(&mut burst), 3);
    assert_eq!((heads(&burst), pool.in_use()), (vec![2, 4, 6], 3));
    // SAFETY: as above.
    assert_eq!(unsafe { sys::rte_eth_remove_rx_callback(id, 0, filter) }, 0);
    drop(burst);
    port.stop(vec![rx], vec![tx]).map_err(|(_, _, _, error)| error).unwrap();
    assert_eq!(pool.in_use(), 0);
}

/// What a receive function finds and leaves, of one fake driver at a time.
static FOUND: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

/// Returns what it was given to return, and leaves pointers to nowhere behind that, as vector receive does.
unsafe extern "C" fn leave_garbage(_queue: *mut c_void, packets: *mut *mut sys::rte_mbuf, count: u16) -> u16 {
    let mut found = FOUND.lock().unwrap();
    let given = found.len().min(count.into());
    let left = found.drain(..given).chain(std::iter::repeat(0xdead_beef_0000_0010)).take(count.into());
    for (index, packet) in left.enumerate() {
        // SAFETY: room for `count` pointers.
        unsafe { packets.wrapping_add(index).write(packet as *mut sys::rte_mbuf) };
    }
    given as u16
}

/// Sends all but the last packet, and overwrites the places of those that it sent.
unsafe extern "C" fn send_and_scribble(
    _queue: *mut c_void,
    packets: *mut *mut sys::rte_mbuf,
    count: u16,
) -> u16 {
    let sent = count.saturating_sub(1);
    for index in 0..usize::from(sent) {
        // SAFETY: so many packets are ours now.
        let packet = unsafe { packets.wrapping_add(index).read() };
        // SAFETY: as above; a driver frees what it has sent.
        unsafe { sys::dpdk_sys_mbuf_free(packet) };
        // SAFETY: as above; the place is the driver's to write.
        unsafe { packets.wrapping_add(index).write(0xdead_beef_0000_0010 as *mut sys::rte_mbuf) };
    }
    sent
}

/// The entry of a port in the table of burst functions.
fn ops(port: &StartedPort) -> *mut sys::rte_eth_fp_ops {
    (&raw mut sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>().wrapping_add(port.id().index())
}

#[test]
fn repair_nothing_beyond_the_returned_count_is_looked_at() {
    let pool = pool("garbage");
    let (port, mut rx, tx) = ring("net_ring_c", &pool);
    // SAFETY: no other thread polls this port.
    let real = unsafe { (*ops(&port)).rx_pkt_burst.replace(leave_garbage) };
    let mut slots: Vec<Option<Mbuf>> = (0..100).map(|_| None).collect();
    let mut burst = Burst::with_capacity(32);
    for round in 0..200usize {
        let packets: Vec<usize> = (0..round % 9)
            .map(|number| pool.alloc_from(&[number as u8; 60]).unwrap().into_raw().as_ptr() as usize)
            .collect();
        let count = packets.len();
        *FOUND.lock().unwrap() = packets;
        if round % 2 == 0 {
            assert_eq!(rx.receive_into(&mut slots), count, "round {round}");
            assert!(slots[count..].iter().all(Option::is_none), "round {round}");
            for (number, slot) in slots[..count].iter_mut().enumerate() {
                assert_eq!(slot.take().unwrap().head()[0], number as u8);
            }
        } else {
            assert_eq!((rx.receive(&mut burst), burst.len()), (count, count), "round {round}");
            burst.clear();
        }
        assert_eq!(pool.in_use(), 0, "round {round}");
    }
    // SAFETY: as above.
    unsafe { (*ops(&port)).rx_pkt_burst = real };
    drop((slots, burst));
    port.stop(vec![rx], vec![tx]).map_err(|(_, _, _, error)| error).unwrap();
}

#[test]
fn repair_places_of_sent_packets_are_not_looked_at() {
    let pool = pool("scribble");
    let (port, rx, mut tx) = ring("net_ring_d", &pool);
    // SAFETY: no other thread sends here.
    let real = unsafe { (*ops(&port)).tx_pkt_burst.replace(send_and_scribble) };
    let mut burst = Burst::with_capacity(16);
    let fill = |count: u8| (0..count).map(|number| pool.alloc_from(&[number; 60]).unwrap());
    fill(9).for_each(|packet| burst.push(packet).unwrap());
    assert_eq!((tx.send(&mut burst), heads(&burst)), (8, vec![8]));
    let mut slots: Vec<Option<Mbuf>> = fill(9).map(Some).collect();
    assert_eq!(tx.send_from(&mut slots), 8);
    assert!(slots[..8].iter().all(Option::is_none));
    assert_eq!((slots[8].as_ref().unwrap().head()[0], pool.in_use()), (8, 2));
    // SAFETY: as above.
    unsafe { (*ops(&port)).tx_pkt_burst = real };
    drop((slots, burst));
    assert_eq!(pool.in_use(), 0);
    port.stop(vec![rx], vec![tx]).map_err(|(_, _, _, error)| error).unwrap();
}

#[test]
fn repair_packets_that_lie_about_their_segments_are_dropped_and_counted() {
    let pool = pool("liars");
    let (port, mut rx, mut tx) = ring("net_ring_e", &pool);
    let lies: [fn(Segment); 9] = [
        |head| head.set_pkt_len(61),
        |head| head.set_pkt_len(u32::MAX),
        |head| head.set_pkt_len(0),
        |head| head.set_nb_segs(0),
        |head| head.set_nb_segs(2),
        |head| head.set_nb_segs(u16::MAX),
        |head| head.set_data_len(u16::MAX),
        // Both lengths agree, one byte behind the buffer's end and far behind it.
        |head| {
            let end = head.data_len() + head.tailroom() as u16 + 1;
            head.set_data_len(end);
            head.set_pkt_len(end.into());
        },
        |head| {
            head.set_data_len(60_000);
            head.set_pkt_len(60_000);
        },
    ];
    let mut slots = [None, None, None];
    for (number, lie) in lies.into_iter().enumerate() {
        let liar = pool.alloc_from(&[1; 60]).unwrap();
        lie(liar.segment());
        let mut burst = Burst::with_capacity(3);
        burst.push(liar).unwrap();
        burst.push(pool.alloc_from(&[2; 60]).unwrap()).unwrap();
        assert_eq!(tx.send(&mut burst), 2);
        assert_eq!((rx.receive_into(&mut slots), rx.header_split_drops()), (1, number as u64 + 1));
        assert_eq!(slots[0].take().unwrap().head()[0], 2, "lie {number}");
        assert_eq!(pool.in_use(), 0, "lie {number}");
    }
    // A chain that is longer than its first segment says.
    let mut chain = pool.alloc_from(&[3; 6000]).unwrap();
    chain.segment().set_nb_segs(2);
    let mut burst = Burst::with_capacity(1);
    burst.push(chain).unwrap();
    assert_eq!((tx.send(&mut burst), rx.receive_into(&mut slots), rx.header_split_drops()), (1, 0, 10));
    chain = pool.alloc_from(&[4; 6000]).unwrap();
    burst.push(chain).unwrap();
    assert_eq!((tx.send(&mut burst), rx.receive_into(&mut slots), rx.header_split_drops()), (1, 1, 10));
    drop((slots, burst));
    assert_eq!(pool.in_use(), 0);
    port.stop(vec![rx], vec![tx]).map_err(|(_, _, _, error)| error).unwrap();
}
