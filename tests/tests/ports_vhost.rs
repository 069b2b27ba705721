//! Hundreds of vhost-user vNICs at once, that come and go under traffic; and peers that do what no monitor of a virtual machine
//! does, beside two that pay for nothing of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use tests::vhost::honest::{Honest, heard, receive_some};
use tests::vhost::siege::{ENEMY, Siege, ready, start, with_links};
use tests::vhost::{
    FAR, FrontEnd, LARGE, MEMORY, OFFLOADS, PLAIN, SLOTS, Station, arp_request, datagram, message, number_of,
};
use tests::wait_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// All that comes within a while, until so many datagrams were there.
fn receive(peer: &mut FrontEnd, wanted: usize) -> Vec<u32> {
    let end = Instant::now() + PATIENCE;
    let mut numbers = Vec::new();
    while numbers.len() < wanted && Instant::now() < end {
        numbers.extend(peer.receive().unwrap().iter().filter_map(|frame| number_of(frame)));
        std::thread::sleep(Duration::from_millis(1));
    }
    numbers
}

#[test]
fn ports_two_hundred_vhost_vnics_are_up_at_once_and_come_and_go_under_traffic() {
    const VNICS: u16 = 200;
    let (_lab, dir, daemon) = start(VNICS);
    let all: Vec<Station> = (1..=VNICS).map(Station).collect();
    let mut peers: Vec<FrontEnd> = all.iter().map(|station| ready(&dir, *station, PLAIN)).collect();
    with_links(&daemon, usize::from(VNICS));
    heard(&mut peers, &all);
    let before = daemon.json("show drops");
    // Each to the next one, all at once.
    for (at, peer) in peers.iter_mut().enumerate() {
        let next = all[(at + 1) % all.len()];
        for number in 0..10 {
            peer.send(&datagram(all[at], next, at as u32 * 100 + number)).unwrap();
        }
    }
    for (at, peer) in peers.iter_mut().enumerate() {
        let from = (at + all.len() - 1) % all.len();
        let expected: Vec<u32> = (0..10).map(|number| from as u32 * 100 + number).collect();
        assert_eq!(receive(peer, 10), expected, "{:?}", all[at]);
    }
    assert_eq!(daemon.json("show drops"), before, "nothing was lost");

    // Two go on for as long as others go and come.
    let (first, second) = (peers.remove(0), peers.remove(0));
    let honest = Honest::start([first, second], [all[0], all[1]]);
    for round in 0..5u16 {
        let station = all[usize::from(10 + round)];
        daemon.ctl(&format!("vnic del {}", station.name()));
        assert!(!station.socket(dir.path()).exists(), "the socket goes with the vNIC");
        let mac = format!("02:00:00:0a:00:{:02x}", station.0);
        daemon.ctl(&format!(
            "vnic add {} vpc red mac {mac} vips 10.0.0.{} port vhost-user path={}",
            station.name(),
            station.0,
            station.socket(dir.path()).display()
        ));
        let mut peer = ready(&dir, station, PLAIN);
        wait_for("the new peer to be heard", PATIENCE, || {
            peer.send(&datagram(station, all[5], 7)).ok()?;
            (!receive_some(&mut peers[3]).is_empty()).then_some(())
        });
        peers[usize::from(8 + round)] = peer;
    }
    honest.stop();
    with_links(&daemon, usize::from(VNICS) - 2);
    drop(peers);
    with_links(&daemon, 0);
    daemon.stop();
}

/// Numbers without a pattern (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[test]
fn hostile_vhost_messages_in_any_order_end_with_their_own_connection() {
    let siege = Siege::start();
    let mut dice = Dice(1);
    for round in 0..300 {
        let mut peer = siege.connect();
        // Some begin as they should.
        if round % 3 > 0 && peer.agree(OFFLOADS).is_ok() {
            let _ = peer.share(MEMORY).and_then(|()| peer.set_up(1));
        }
        for _ in 0..20 {
            let number = (dice.roll() % 44) as u32;
            let size = match dice.roll() % 8 {
                0 => dice.roll() as u32,
                1 => 0,
                _ => (dice.roll() % 300) as u32,
            };
            // As much as is said, or less; small numbers more often than others.
            let bytes =
                (size as usize).min(400).saturating_sub(if dice.roll().is_multiple_of(3) { 7 } else { 0 });
            let payload: Vec<u8> =
                (0..bytes).map(|at| if at % 4 == 0 { dice.roll() as u8 % 5 } else { 0 }).collect();
            let files: Vec<BorrowedFd<'_>> = (0..dice.roll() % 4).map(|_| peer.memory.as_fd()).collect();
            let flags = if dice.roll().is_multiple_of(2) { 1 } else { 9 };
            if peer.send_raw(number, flags, size, &payload, &files).is_err() {
                break;
            }
        }
    }
    siege.stop();
}

#[test]
fn hostile_vhost_memory_that_is_taken_back_takes_its_own_port_down() {
    let siege = Siege::start();
    for round in 0..4 {
        let mut peer = siege.enemy(PLAIN);
        match round {
            // While nothing is said.
            0 => peer.memory.set_len(0).unwrap(),
            // Of what it sends.
            1 => {
                peer.memory.set_len(0x1_0000).unwrap();
                let _ = peer.describe(1, 0, 0x1_0000, 100, 0, 0).and_then(|()| peer.offer(1, 0));
            }
            // While the library looks for a ring.
            2 => {
                peer.memory.set_len(0).unwrap();
                let _ = peer.place(1, [0x3000, 0x4000, 0x5000]);
            }
            // And of what was not set up yet.
            _ => {
                drop(peer);
                peer = siege.connect();
                peer.agree(PLAIN).unwrap();
                peer.share(MEMORY).unwrap();
                peer.memory.set_len(0).unwrap();
                let _ = peer.set_up(1);
            }
        }
        if round < 2 {
            siege.is_caught("taken back memory", round);
        }
        drop(peer);
    }
    siege.stop();
}

#[test]
fn hostile_vhost_notifications_never_hold_a_worker_up() {
    let siege = Siege::start();
    for kind in 0..4 {
        let mut peer = siege.enemy(PLAIN);
        let full = eventfd();
        full.write(u64::MAX - 1).unwrap();
        let pipe = std::io::pipe().unwrap();
        let file = if kind == 1 { pipe.1.as_fd() } else { full.as_fd() };
        for ring in 0..2u64 {
            let told = peer.tell(message::SET_VRING_CALL, &ring.to_ne_bytes(), &[file]);
            assert!(told.is_err() || kind != 1, "what is no eventfd is refused before anybody writes to it");
        }
        if kind >= 2 {
            // It does not block, until the peer has it so.
            nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
        }
        for number in 0..u32::from(SLOTS) {
            let _ = peer.send(&datagram(ENEMY, Station(1), 1 << 30 | number));
        }
        // Long enough for control to see it; or it hangs up while a worker hangs, and nobody reads the count away.
        std::thread::sleep(Duration::from_millis(if kind == 3 { 50 } else { 700 }));
    }
    // What the enemy got through is not of the honest ones' numbers.
    siege.stop();
}

fn eventfd() -> nix::sys::eventfd::EventFd {
    nix::sys::eventfd::EventFd::new().unwrap()
}

#[test]
fn hostile_vhost_rings_that_run_wild_harm_nobody_else() {
    let siege = Siege::start();
    let mut dice = Dice(2);
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    for round in 0..40 {
        let features = if round % 2 == 0 { OFFLOADS | 1 << 28 } else { PLAIN };
        let mut peer = siege.enemy(features);
        for _ in 0..30 {
            let slot = (dice.roll() % u64::from(SLOTS)) as u16;
            let ring = (dice.roll() % 2) as u32;
            let address = match dice.roll() % 5 {
                0 => MEMORY - dice.roll() % 64,
                1 => dice.roll(),
                2 => u64::MAX - dice.roll() % 4096,
                _ => 0x1_0000 + dice.roll() % 0x1_0000,
            };
            let length = match dice.roll() % 5 {
                0 => 0,
                1 => (dice.roll() % 14) as u32,
                2 => dice.roll() as u32,
                _ => (dice.roll() % 3000) as u32,
            };
            let flags = [0, NEXT, WRITE, NEXT | WRITE, INDIRECT][(dice.roll() % 5) as usize];
            let next = if dice.roll().is_multiple_of(2) { slot } else { dice.roll() as u16 };
            peer.describe(ring, slot, address, length, flags, next).unwrap();
            match dice.roll() % 6 {
                0 => peer.set_available(ring, dice.roll() as u16).unwrap(),
                _ => peer.offer(ring, slot).unwrap(),
            }
        }
        // And headers that lie about checksums and segments.
        for _ in 0..20 {
            let mut header: Vec<u8> = (0..12).map(|_| dice.roll() as u8).collect();
            header[0] &= 3;
            header[1] = [0, 1, 3, 4, 5, 0x81, 0xff][(dice.roll() % 7) as usize];
            let _ = peer.send_with(&header, &datagram(ENEMY, Station(1 + (dice.roll() % 2) as u16), 1 << 30));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    siege.stop();
}

/// Where a process has mapped a file to the end, what is mapped there, and who may do what with it.
fn behind(pid: u32, file: &std::fs::File) -> Option<(u64, u64, String)> {
    use std::os::unix::fs::MetadataExt as _;
    let (inode, maps) = (file.metadata().unwrap().ino(), format!("/proc/{pid}/maps"));
    let maps = std::fs::read_to_string(maps).unwrap();
    let lines = maps.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some((number(start)?, number(end)?, words[1].to_owned(), words[4].parse::<u64>().ok()?))
    });
    let lines: Vec<_> = lines.collect();
    // The library says of parts of it that they are to be in a core dump, and so there are several.
    let end = lines.iter().filter(|(.., of)| *of == inode).map(|(_, end, ..)| *end).max()?;
    let (start, length, access) = lines
        .iter()
        .find(|(start, ..)| *start == end)
        .map(|(start, end, access, of)| (*start, end - start, format!("{access} {of}")))?;
    Some((start, length, access))
}

/// A guest's buffer for a frame is a byte, another byte at the end of its memory, and then enough: librte_vhost writes the frame behind the
/// end of the memory, where no other guest's is.
#[test]
fn hostile_vhost_what_is_written_behind_a_guests_memory_is_nobodys() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    let mut siege = Siege::start();
    let pid = siege.daemon.process().pid();
    for round in 0..3 {
        let mut peer = siege.enemy(PLAIN);
        peer.describe(0, 0, 0x1_0000, 1, NEXT | WRITE, 1).unwrap();
        peer.describe(0, 1, MEMORY - 1, 1, NEXT | WRITE, 2).unwrap();
        peer.describe(0, 2, 0x1_0000, 2000, WRITE, 0).unwrap();
        let (moat, length, access) = behind(pid, &peer.memory).expect("it is mapped");
        assert!(length >= 128 << 10 && access == "rw-p 0", "round {round}: {length} {access}");
        // What it is sent is an answer: to itself.
        peer.send(&arp_request(ENEMY, Station(1))).unwrap();
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        wait_for("the frame", PATIENCE, || {
            let mut found = [0; 6];
            // The header takes one byte of the first, and would take eleven of the second.
            memory.read_exact_at(&mut found, moat + 10).ok()?;
            (found[..] == ENEMY.mac()[..]).then_some(())
        });
    }
    siege.stop();
}

/// A guest describes a frame of 200 MB, for which all buffers of the switch would not do.
#[test]
fn hostile_vhost_frames_without_end_take_no_buffers_of_others() {
    const LENGTH: u32 = 200 << 20;
    let siege = Siege::start();
    for (round, features) in [PLAIN, OFFLOADS].into_iter().enumerate() {
        let mut peer = siege.vast(features);
        for slot in 0..SLOTS {
            peer.describe(1, slot, 0, LENGTH, 0, 0).unwrap();
            peer.offer(1, slot).unwrap();
        }
        siege.is_caught("sends frames that are longer than any IP packet", round);
    }
    siege.stop();
}

/// A guest has a thousand buffers for received frames, each a chain of a thousand descriptors without length: a million steps for
/// each packet.
#[test]
fn hostile_vhost_chains_of_nothing_hold_no_worker_up() {
    const NEXT: u16 = 1;
    const INDIRECT: u16 = 4;
    const TABLE: u64 = 0x200_0000;
    let siege = Siege::start();
    let descriptor = |address: u64, length: u32, flags: u16, next: u16| {
        [&address.to_ne_bytes()[..], &length.to_ne_bytes(), &flags.to_ne_bytes(), &next.to_ne_bytes()]
            .concat()
    };
    let empty: Vec<u8> = (1..LARGE).flat_map(|next| descriptor(0, 0, NEXT, next)).collect();
    let bytes = empty.len() as u32;
    for (round, features) in [OFFLOADS, OFFLOADS | 1 << 28].into_iter().enumerate() {
        let mut peer = siege.vast(features);
        let (descriptors, heads): (Vec<u8>, Vec<u16>) = match round {
            // One chain of the ring itself, which is every buffer.
            0 => ([&empty[..], &descriptor(0, 0, 0, 0)].concat(), vec![0; LARGE.into()]),
            // A table of its own for each, which is the same one.
            _ => (
                (0..LARGE).flat_map(|_| descriptor(TABLE, bytes, INDIRECT, 0)).collect(),
                (0..LARGE).collect(),
            ),
        };
        peer.memory
            .write_all_at(&[&empty[..bytes as usize - 16], &descriptor(0, 0, 0, 0)].concat(), TABLE)
            .unwrap();
        peer.memory.write_all_at(&descriptors, FAR[0]).unwrap();
        let heads: Vec<u8> = heads.iter().flat_map(|head| head.to_ne_bytes()).collect();
        peer.memory.write_all_at(&heads, FAR[1] + 4).unwrap();
        peer.memory.write_all_at(&(LARGE - 1).to_ne_bytes(), FAR[1] + 2).unwrap();
        // What it is sent are answers, to questions for an address.
        let question = arp_request(ENEMY, Station(1));
        wait_for("a port that is taken down", PATIENCE, || {
            let _ = peer.send(&question);
            siege.events("chains of descriptors without length", round)
        });
    }
    // A ring for more of them is not taken.
    let peer = siege.connect();
    peer.agree(PLAIN).unwrap();
    assert!(peer.size(0, 2 * u32::from(LARGE)).is_err());
    siege.stop();
}

/// A virtual machine that migrates here is behind a port before its vNIC is here.
#[test]
fn ports_vhost_a_vnic_takes_over_the_plain_port_of_its_name() {
    let (_lab, dir, daemon) = start(1);
    let stations = [Station(1), Station(2)];
    daemon.ctl(&format!("port attach v2 vhost-user path={}", stations[1].socket(dir.path()).display()));
    let mut peers = stations.map(|station| ready(&dir, station, PLAIN));
    with_links(&daemon, 2);
    let add =
        |name: &str| format!("vnic add {name} vpc red mac 02:00:00:0a:00:02 vips 10.0.0.2 mtu 1400 port v2");
    let refused = daemon.try_ctl(&add("v3")).unwrap_err();
    assert!(refused.contains("plain port") && refused.contains("attach the port as \"v3\""), "{refused}");
    daemon.ctl(&add("v2"));
    daemon.ctl(&add("v2"));
    // With the peer of before, which nobody sent away.
    heard(&mut peers, &stations);
    daemon.ctl("vnic del v2");
    assert!(!stations[1].socket(dir.path()).exists(), "the port is the vNIC's, and goes with it");
    daemon.stop();
}

/// A TCP segment of 40 KB for the device to cut, whose checksum is left to it.
fn super_frame(from: Station, to: Station) -> ([u8; 12], Vec<u8>) {
    const PAYLOAD: usize = 40 << 10;
    let mut frame = datagram(from, to, 0);
    frame.truncate(34);
    frame[16..18].copy_from_slice(&(20 + 20 + PAYLOAD as u16).to_be_bytes());
    frame[23] = 6;
    frame[24..26].fill(0);
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        (sum & 0xffff) as u16 + (sum >> 16) as u16
    };
    let of_header = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&of_header.to_be_bytes());
    let pseudo = sum(&[&frame[26..34], &[0, 6], &(20 + PAYLOAD as u16).to_be_bytes()].concat());
    frame.extend([0x10, 0x00, 0x10, 0x01, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(54 + PAYLOAD, 7);
    let mut header = [1, 1, 54, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    header[4..6].copy_from_slice(&1400u16.to_le_bytes());
    (header, frame)
}

/// A guest that is not scheduled for some milliseconds has room for short packets, and will have some for long ones.
#[test]
fn ports_vhost_a_super_frame_waits_for_a_slow_guest() {
    let (_lab, dir, daemon) = start(2);
    let stations = [Station(1), Station(2)];
    let mut peers = stations.map(|station| ready(&dir, station, OFFLOADS));
    heard(&mut peers, &stations);
    let [mut sender, receiver] = peers;
    // One that has used nothing yet, and gives ten buffers.
    drop(receiver);
    let mut receiver = wait_for("the port to be there", PATIENCE, || {
        let receiver = FrontEnd::ready(&stations[1].socket(dir.path()), OFFLOADS).ok()?;
        receiver.set_available(0, 10).ok()?;
        Some(receiver)
    });
    with_links(&daemon, 2);
    let (header, frame) = super_frame(stations[0], stations[1]);
    sender.send_with(&header, &frame).unwrap();
    // It lies in the places of the next ones, too, until it is taken.
    std::thread::sleep(Duration::from_millis(2));
    sender.send(&datagram(stations[0], stations[1], 7)).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    receiver.set_available(0, SLOTS).unwrap();
    let end = Instant::now() + PATIENCE;
    let (mut buffers, mut numbers) = (0, Vec::new());
    while (buffers < 21 || numbers.is_empty()) && Instant::now() < end {
        let frames = receiver.receive().unwrap();
        buffers += frames.len();
        numbers.extend(frames.iter().filter_map(|frame| number_of(frame)));
    }
    assert_eq!((buffers, numbers), (22, vec![7]), "21 buffers of 2 KB, and one");
    assert_eq!(daemon.json("show fwd stats all")["drops"]["tx-refused"].as_i64().unwrap_or(0), 0);
    daemon.assert_conserved();
    daemon.stop();
}

/// Monitors of virtual machines have the switch announce a guest that migrated and does not do so itself: of a guest, too, that says
/// nothing, on a switch of so many that its queue is not polled then.
#[test]
fn hostile_vhost_announcements_are_of_the_peers_own_mac() {
    let siege = Siege::beside(20);
    let peer = siege.enemy(PLAIN);
    let announce = |mac: [u8; 6]| {
        let payload = [&mac[..], &[0, 0]].concat();
        // There is no answer to it but this one.
        peer.tell(message::SEND_RARP, &payload, &[]).unwrap();
    };
    let others = [Station(1).mac(), [0xff; 6], [0; 6], [0x02, 9, 9, 9, 9, 9]];
    // What is announced twice before a worker looks is announced once.
    for (mac, reason) in
        [(ENEMY.mac(), "bum-disabled")].into_iter().chain(others.map(|mac| (mac, "guard-mac")))
    {
        // The honest ones do not stand still.
        let drops = || siege.daemon.json("show fwd stats all")["drops"][reason].as_i64().unwrap_or(0);
        std::thread::sleep(Duration::from_millis(50));
        let before = drops();
        announce(mac);
        wait_for("the announcement", PATIENCE, || (drops() == before + 1).then_some(()));
    }
    for _ in 0..500 {
        announce(Station(2).mac());
    }
    drop(peer);
    siege.stop();
}
