//! Ports on veths by packet sockets: frames of every length, super-frames with what the kernel says of them, tags, and what a peer or an
//! operator may do to the interface meanwhile.

use std::time::{Duration, Instant};

use pmd::{Burst, Mbuf};
use wire::packet::L4Checksum;
use wire::{ChecksumState, PacketBuf, TxRequest};

use super::support::{Lab, Running, frame, pass, run, veth};

/// Ports on both ends of a veth with this MTU.
fn two_ends(mtu: u16) -> (Lab, Running, Running) {
    let mut lab = Lab::new();
    veth("v0", "v1", mtu);
    let near = lab.run(r#"kind = "veth", iface = "v0""#);
    let far = lab.run(r#"kind = "veth", iface = "v1""#);
    (lab, near, far)
}

/// Closes both; nothing is left.
fn end(lab: &Lab, near: Running, far: Running) {
    near.close();
    far.close();
    lab.check_clean(&["v0", "v1"]);
}

/// What asks for segments of TCP over IPv4 without options.
const SEGMENTS: TxRequest = TxRequest {
    l2_len: 14,
    l3_len: 20,
    l4_len: 20,
    ipv4_checksum: false,
    l4_checksum: Some(L4Checksum::Tcp),
    tso_size: 1448,
    ipv6: false,
    outer: None,
};

/// Sends one packet with a request.
fn send_one(lab: &Lab, port: &mut Running, bytes: &[u8], request: TxRequest) {
    let mut packet = lab.pool.alloc_from(bytes).unwrap();
    packet.request_tx(request);
    let mut burst = Burst::with_capacity(1);
    burst.push(packet).unwrap();
    let start = Instant::now();
    while port.tx[0].send(&mut burst) == 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "the socket takes nothing");
    }
}

/// Polls until packets came that are ours, by their MAC addresses, and returns them.
fn receive(port: &mut Running, count: usize) -> Vec<Mbuf> {
    let start = Instant::now();
    let mut burst = Burst::with_capacity(32);
    let mut got = Vec::new();
    while got.len() < count {
        assert!(start.elapsed() < Duration::from_secs(10), "{} of {count} packets", got.len());
        port.rx[0].receive(&mut burst);
        got.extend(burst.drain().filter(|packet| packet.head().starts_with(&[0x52, 0x54, 0, 0, 0, 2])));
    }
    got
}

/// A TCP segment over IPv4 with so many bytes of payload, whose checksum field holds the pseudo-header sum.
fn segment(payload: usize) -> Vec<u8> {
    let mut bytes = frame(7, 14 + 20 + 20 + payload);
    bytes[14 + 9] = 6;
    let tcp = [0x1f, 0x40, 0x23, 0x28, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    bytes[34..54].copy_from_slice(&tcp);
    let length = (20 + payload) as u16;
    let sum = wire::checksum::pseudo_v4([198, 18, 0, 1], [198, 18, 0, 2], 6, length).fold();
    bytes[50..52].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn veth_ports_get_another_mtu_while_they_run() {
    let mut lab = Lab::with_room(12_288);
    veth("v0", "v1", 1500);
    run("ip link set v1 mtu 4000");
    let specs = [r#"kind = "veth", iface = "v0""#, r#"kind = "af-packet", iface = "v1""#];
    let mut near = lab.run_with(specs[0], 1, Some(1400));
    let mut far = lab.run_with(specs[1], 1, Some(1400));
    let mtus = || ["v0", "v1"].map(|iface| pmd::process::interface_mtu(iface).unwrap());
    assert_eq!(mtus(), [1500, 4000], "what an interface had before is enough");
    for (mtu, expected) in
        [(3900, [3900, 4000]), (1600, [1600, 4000]), (3900, [3900, 4000]), (68, [1500, 4000])]
    {
        near.change_mtu(specs[0], mtu).unwrap();
        far.change_mtu(specs[1], mtu).unwrap();
        assert_eq!(mtus(), expected, "{mtu}");
        pass(&mut near, &mut far, 20, usize::from(mtu).max(60) + 14);
    }
    near.change_mtu(specs[0], 9000).unwrap();
    near.close();
    far.close();
    assert_eq!(mtus(), [1500, 4000], "set back at the end");

    // A macvlan has no more than what it is on.
    run("ip link add link v0 name m0 type macvlan");
    run("ip link set m0 mtu 1400 up");
    let spec = r#"kind = "af-packet", iface = "m0""#;
    let mut bound = lab.run_with(spec, 1, Some(1400));
    bound.change_mtu(spec, 1500).unwrap();
    let error = bound.change_mtu(spec, 1501).unwrap_err().to_string();
    assert!(error.contains("m0") && error.contains("set its MTU to 1501"), "{error}");
    assert_eq!(pmd::process::interface_mtu("m0").unwrap(), 1500);
    bound.close();
    assert_eq!(pmd::process::interface_mtu("m0").unwrap(), 1400);
    run("ip link del m0");
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn frames_of_every_length_pass_both_ways() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut near = lab.run_with(r#"kind = "veth", iface = "v0""#, 1, Some(9000));
    let mut far = lab.run_with(r#"kind = "veth", iface = "v1""#, 1, Some(9000));
    assert_eq!(pmd::process::interface_mtu("v0").unwrap(), 9000);
    assert!(pmd::interface::is_promiscuous("v0").unwrap() || far.port.info().unwrap().if_index.is_some());
    // Around the size of a slot, of a buffer, of two.
    for length in [60, 64, 1514, 1900, 1950, 1982, 1983, 2048, 2049, 4096, 9014] {
        pass(&mut near, &mut far, 50, length);
        pass(&mut far, &mut near, 50, length);
    }
    let (sent, received) = (near.port.stats().unwrap(), far.port.stats().unwrap());
    assert_eq!((sent.tx_errors, received.rx_errors, received.rx_missed), (0, 0, 0));
    assert!(sent.tx_packets >= 550 && sent.tx_bytes > sent.tx_packets * 60);
    near.port.reset_stats().unwrap();
    assert_eq!(near.port.stats().unwrap(), pmd::PortStats::default());
    near.close();
    far.close();
    assert_eq!(pmd::process::interface_mtu("v0").unwrap(), 1500, "a raised MTU is set back");
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn a_super_frame_goes_whole_and_says_so() {
    let (lab, mut near, mut far) = two_ends(1500);
    let bytes = segment(60_000);
    // One that is short and only wants its checksum between two that are long: the order stays.
    for (payload, tso_size) in [(60_000, 1448), (100, 0), (65_000, 1000), (1400, 0)] {
        send_one(&lab, &mut near, &segment(payload), TxRequest { tso_size, ..SEGMENTS });
    }
    let got = receive(&mut far, 4);
    let facts = |packet: &Mbuf| (packet.len(), packet.rx_facts().gso_size, packet.rx_facts().l4_checksum);
    let partial = ChecksumState::Partial;
    let told: Vec<_> = got.iter().map(facts).collect();
    assert_eq!(
        told,
        [(60_054, 1448, partial), (154, 0, partial), (65_054, 1000, partial), (1454, 0, partial)]
    );
    assert_eq!(got[0].to_vec(), bytes);
    assert!(got[0].head().len() > 256, "the headers are in the first segment");
    drop(got);
    end(&lab, near, far);
}

#[test]
fn veth_bursts_of_super_frames_are_sent_a_few_at_a_time() {
    const FRAMES: u8 = 40;
    let (lab, mut near, mut far) = two_ends(1500);
    let mut burst = Burst::with_capacity(64);
    for number in 0..FRAMES {
        let mut bytes = segment(60_000);
        bytes[100] = number;
        let mut packet = lab.pool.alloc_from(&bytes).unwrap();
        packet.request_tx(SEGMENTS);
        burst.push(packet).unwrap();
    }
    let mut numbers = Vec::new();
    while !burst.is_empty() {
        let waiting = burst.len();
        let sent = near.tx[0].send(&mut burst);
        assert!((1..=5).contains(&sent) && burst.len() == waiting - sent, "{sent} of {waiting}");
        let got = receive(&mut far, sent);
        numbers.extend(got.iter().map(|packet| packet.head()[100]));
    }
    assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
    let frames: Vec<Vec<u8>> = (0..64).map(|number| frame(number, 1514)).collect();
    assert_eq!(near.send(0, &frames), 64, "those of the usual length go at once");
    far.expect(&frames);
    end(&lab, near, far);
}

#[test]
fn a_frame_that_the_kernel_refuses_is_counted_and_holds_up_nobody() {
    let (lab, mut near, mut far) = two_ends(1500);
    let frames = [frame(1, 100), frame(2, 4000), frame(3, 100), frame(4, 4000), frame(5, 100)];
    assert_eq!(near.send(0, &frames), 5);
    far.expect(&[frame(1, 100), frame(3, 100), frame(5, 100)]);
    let stats = near.port.stats().unwrap();
    assert_eq!((stats.tx_packets, stats.tx_errors), (3, 2));
    end(&lab, near, far);
}

/// Waits until the port's link is so: the kernel tells of a carrier a little later.
fn await_link(port: &Running, up: bool) {
    let start = Instant::now();
    while port.port.link().unwrap().up != up {
        assert!(start.elapsed() < Duration::from_secs(5), "the link is up: {}", !up);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_link_is_that_of_the_other_end_and_comes_back() {
    let (lab, mut near, mut far) = two_ends(1500);
    await_link(&near, true);
    run("ip link set v1 down");
    await_link(&near, false);
    near.send(0, &[frame(1, 60)]);
    run("ip link set v1 up");
    await_link(&near, true);
    // Both sockets have a notice of what was, which must cost neither a frame nor a super-frame.
    far.drain();
    near.drain();
    send_one(&lab, &mut near, &segment(50_000), SEGMENTS);
    assert_eq!(receive(&mut far, 1)[0].len(), 50_054);
    pass(&mut near, &mut far, 50, 1514);
    pass(&mut far, &mut near, 50, 1514);
    assert_eq!(far.port.stats().unwrap().rx_errors, 0);
    end(&lab, near, far);
}

#[test]
fn an_interface_that_goes_is_told_and_harms_nobody() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let opened = lab.open(r#"kind = "veth", iface = "v0""#).unwrap();
    let presence = opened.presence.clone();
    let mut near = lab.start(opened, 1, None);
    let mut far = lab.run(r#"kind = "veth", iface = "v1""#);
    pass(&mut near, &mut far, 10, 100);
    assert_eq!(presence.fault(), None);
    run("ip link del v0");
    assert!(presence.fault().unwrap().contains("v0"));
    assert!(!near.port.link().unwrap().up && !far.port.link().unwrap().up);
    for _ in 0..10 {
        near.send(0, &[frame(1, 60)]);
        assert!(near.receive().is_empty());
    }
    assert!(near.port.mtu().is_err());
    near.close();
    far.close();
    lab.check_clean(&[]);
}

#[test]
fn veth_ports_know_an_interface_from_another_one_with_its_index() {
    let mut lab = Lab::new();
    // What becomes of the interface that the port is on, at whose place there is another one at once.
    let mut other = std::process::Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let moved = format!("ip link set v0 netns {}", other.id());
    for goes in ["ip link del v0", &moved] {
        run("ip link add v0 index 77 type veth peer name v1");
        run("ip link set v0 up");
        run("ip link set v1 up");
        let opened = lab.open(r#"kind = "veth", iface = "v0""#).unwrap();
        let presence = opened.presence.clone();
        let near = lab.start(opened, 1, None);
        await_link(&near, true);
        assert_eq!(near.port.fault(), None);
        run(goes);
        run("ip link add v0 index 77 type veth peer name v2");
        run("ip link set v0 up");
        run("ip link set v2 up");
        assert_eq!(presence.fault(), None, "there is one with this name and this index");
        assert!(!near.port.link().unwrap().up, "{goes}");
        assert!(near.port.fault().unwrap().contains("deleted, or moved"));
        near.close();
        run("ip link del v0");
        let _ = std::process::Command::new("ip").args(["link", "del", "v1"]).status();
    }
    other.kill().unwrap();
    other.wait().unwrap();
    lab.check_clean(&[]);
}

#[test]
fn an_exhausted_pool_leaves_frames_where_they_are() {
    let (lab, mut near, mut far) = two_ends(1500);
    pass(&mut near, &mut far, 1, 60);
    let frames: Vec<Vec<u8>> = (0..20).map(|number| frame(number, 200)).collect();
    near.send(0, &frames);
    send_one(&lab, &mut near, &segment(60_000), SEGMENTS);
    // All but ten buffers are somebody else's now.
    let mut held: Vec<Mbuf> = std::iter::from_fn(|| lab.pool.alloc()).collect();
    held.truncate(held.len() - 10);
    let some = receive(&mut far, 10);
    let mut burst = Burst::with_capacity(32);
    for _ in 0..10 {
        assert_eq!(far.rx[0].receive(&mut burst), 0, "there is no buffer");
    }
    assert_eq!(far.port.stats().unwrap().rx_no_mbuf, 1, "one frame waits, however often it is looked at");
    drop((some, held));
    let rest = receive(&mut far, 11);
    assert_eq!(rest.last().unwrap().len(), 60_054, "the super-frame waited, too");
    assert_eq!(lab.pool.in_use(), 10 + 33 - 3, "nothing of what was begun is lost");
    drop(rest);
    assert_eq!(far.port.stats().unwrap().rx_errors, 0);
    end(&lab, near, far);
}

#[test]
fn flows_spread_over_the_sockets_of_a_port() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut near = lab.run(r#"kind = "veth", iface = "v0", queues = 2"#);
    assert_eq!((near.rx.len(), near.tx.len()), (2, 2));
    let mut far = lab.run(r#"kind = "veth", iface = "v1""#);
    let frames: Vec<Vec<u8>> = (0..64).map(|number| frame(number, 100)).collect();
    for some in frames.chunks(16) {
        assert_eq!(far.send(0, some), some.len());
    }
    let queues = near.expect(&frames);
    assert!(queues.contains(&0) && queues.contains(&1), "both queues received: {queues:?}");
    assert_eq!(near.send(0, &frames[..8]) + near.send(1, &frames[8..16]), 16);
    far.expect(&frames[..16]);
    end(&lab, near, far);
}

#[test]
fn veth_ports_of_several_queues_hear_each_frame_once_while_they_start() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut far = lab.run(r#"kind = "veth", iface = "v1""#);
    let pool = lab.pool.clone();
    let (mut sent, mut heard) = (0u16, 0);
    for _ in 0..20 {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let numbers = std::thread::scope(|scope| {
            let queue = &mut far.tx[0];
            let (stop, pool, sent) = (&stop, &pool, &mut sent);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut burst = Burst::with_capacity(1);
                    *sent = sent.wrapping_add(1);
                    burst.push(pool.alloc_from(&frame(*sent, 60)).unwrap()).unwrap();
                    queue.send(&mut burst);
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let mut near = lab.run(r#"kind = "veth", iface = "v0", queues = 8"#);
            let began = Instant::now();
            let mut numbers = Vec::new();
            while began.elapsed() < Duration::from_millis(30) {
                numbers.extend(near.receive().into_iter().map(|(_, frame)| frame));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            near.close();
            numbers
        });
        let different: std::collections::BTreeSet<_> = numbers.iter().collect();
        assert_eq!(different.len(), numbers.len(), "a frame came twice");
        heard += numbers.len();
    }
    assert!(heard > 100, "{heard}");
    far.close();
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn ports_come_and_go_and_leave_nothing() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..50 {
        let near = lab.run(r#"kind = "veth", iface = "v0", queues = 2"#);
        let far = lab.run(r#"kind = "veth", iface = "v1""#);
        assert_eq!(descriptors(), before + 3, "a socket for each queue");
        assert_ne!(near.port.id(), far.port.id());
        near.close();
        far.close();
    }
    assert_eq!(descriptors(), before);
    assert!(!pmd::interface::is_promiscuous("v0").unwrap());
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn only_a_veth_that_is_there_and_up_is_one() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    run("ip link set v1 down");
    run("ip tuntap add mode tap name t0");
    run("ip link set t0 up");
    let cases = [
        (r#"kind = "veth", iface = "none""#, ["\"none\"", "ip link"]),
        (r#"kind = "veth", iface = "v1""#, ["v1", "ip link set v1 up"]),
        (r#"kind = "veth", iface = "t0""#, ["driver is tun", "af-packet"]),
        (r#"kind = "veth", iface = "v0", queues = 17"#, ["17", "at most 16"]),
    ];
    for (toml, parts) in cases {
        let error = lab.open(toml).map(|_| ()).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{toml}: {error}");
        }
    }
    lab.check_clean(&["v0", "v1", "t0"]);
}

/// A VxLAN datagram over IPv4 without a checksum, with so many bytes behind the UDP header.
fn datagram(id: u16, payload: usize) -> Vec<u8> {
    let mut bytes = frame(0xc001, 14 + 20 + 8 + payload);
    bytes[18..20].copy_from_slice(&id.to_be_bytes());
    bytes[36..38].copy_from_slice(&4789u16.to_be_bytes());
    bytes[24..26].fill(0);
    let sum = wire::checksum::of(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[42] = id as u8;
    bytes
}

#[test]
fn datagrams_of_a_burst_go_as_one_and_arrive_as_they_were() {
    let (lab, mut near, mut far) = two_ends(1600);
    // A run, a shorter one that ends it, one of another length, a run of two that fits a slot; twice as many as one run takes.
    let lengths = [vec![1500; 40], vec![700], vec![60], vec![300, 300], vec![1400; 130]].concat();
    let frames: Vec<Vec<u8>> =
        lengths.iter().enumerate().map(|(at, length)| datagram(at as u16, *length)).collect();
    for some in frames.chunks(64) {
        assert_eq!(near.send(0, some), some.len());
        let got = receive(&mut far, some.len());
        for (packet, sent) in got.iter().zip(some) {
            let (mut bytes, mut sent) = (packet.to_vec(), sent.clone());
            // What goes as one has a checksum that the last device fills in.
            bytes[40..42].fill(0);
            if sent[14 + 6] & 0x40 != 0 {
                bytes[18..20].copy_from_slice(&sent[18..20]);
                bytes[24..26].fill(0);
                sent[24..26].fill(0);
            }
            assert!(bytes == sent, "{bytes:02x?}\n{sent:02x?}");
        }
    }
    let (sent, got) = (near.port.stats().unwrap(), far.port.stats().unwrap());
    assert_eq!((sent.tx_packets, sent.tx_errors), (frames.len() as u64, 0));
    assert_eq!((got.rx_packets, got.rx_bytes), (sent.tx_packets, sent.tx_bytes));
    end(&lab, near, far);
}

#[test]
fn segments_of_a_burst_arrive_as_a_super_frame() {
    let (lab, mut near, mut far) = two_ends(1500);
    let numbered = |number: u32, damaged: bool| {
        let mut bytes = segment(1400);
        bytes[20] = 0x40;
        bytes[24..26].fill(0);
        let sum = wire::checksum::of(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes[38..42].copy_from_slice(&(number * 1400).to_be_bytes());
        let mut sum = wire::checksum::Sum::ZERO;
        sum.add(&bytes[34..]);
        bytes[50..52].copy_from_slice(&sum.checksum().to_be_bytes());
        bytes[100] ^= u8::from(damaged);
        bytes
    };
    let frames: Vec<Vec<u8>> = (0..10).map(|number| numbered(number, number == 6)).collect();
    assert_eq!(near.send(0, &frames), 10);
    let got = receive(&mut far, 3);
    let told: Vec<_> = got.iter().map(|packet| (packet.len(), packet.rx_facts().gso_size)).collect();
    // The one that is damaged goes alone: nobody vouches for it.
    assert_eq!(told, [(54 + 6 * 1400, 1400), (1454, 0), (54 + 3 * 1400, 1400)]);
    assert_eq!(got[1].to_vec(), frames[6]);
    drop(got);
    end(&lab, near, far);
}

#[test]
fn tags_that_the_kernel_takes_out_are_put_back() {
    let (lab, mut near, mut far) = two_ends(1500);
    let tagged = |tags: &[[u8; 4]], length: usize| {
        let mut bytes = frame(3, length);
        for tag in tags.iter().rev() {
            bytes.splice(12..12, *tag);
        }
        bytes
    };
    let frames = [
        tagged(&[[0x81, 0, 0x20, 5]], 100),
        tagged(&[[0x81, 0, 0, 0]], 1400),
        tagged(&[[0x88, 0xa8, 0, 7], [0x81, 0, 0x0f, 0xfe]], 1000),
        tagged(&[], 64),
    ];
    assert_eq!(near.send(0, &frames), frames.len());
    let got: Vec<Vec<u8>> = receive(&mut far, frames.len()).iter().map(Mbuf::to_vec).collect();
    assert!(got == frames, "{got:02x?}");
    // A super-frame with a tag, as a trunk's tenants get them: longer than a slot, and told apart from it by its tag.
    let mut bytes = segment(50_000);
    bytes.splice(12..12, [0x81, 0, 0, 9]);
    send_one(&lab, &mut near, &bytes, TxRequest { l2_len: 18, ..SEGMENTS });
    let got = receive(&mut far, 1);
    assert!(got[0].to_vec() == bytes && got[0].rx_facts().gso_size == 1448);
    drop(got);
    end(&lab, near, far);
}
