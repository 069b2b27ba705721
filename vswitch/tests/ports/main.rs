//! Every kind of port that needs no hardware: opened, started, packets passed through, closed, nothing left.
//!
//! DPDK runs once per process, so each test wants a process of its own (`cargo nextest`). Needs root for the
//! network namespaces that keep interfaces apart.

#![allow(clippy::unwrap_used, reason = "tests")]

mod renamed;
mod support;
mod veth;

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use support::{Lab, Namespace, capture, contents, frame, links, pass, run, spec, veth};
use vswitch::port::{self, OpenError};

#[test]
fn null_makes_and_takes_frames() {
    let mut lab = Lab::new();
    let mut port = lab.run_with(r#"kind = "null", size = 100"#, 2, None);
    assert_eq!((port.rx.len(), port.tx.len()), (2, 2));
    let frames = port.receive();
    assert!(frames.len() >= 32 && frames.iter().all(|(_, frame)| frame.len() == 100));
    assert_eq!(port.send(1, &[frame(1, 64)]), 1);
    port.close();
    lab.check_clean(&[]);
}

#[test]
fn raw_takes_any_virtual_device() {
    let mut lab = Lab::new();
    let mut port = lab.run(r#"kind = "raw", vdev = "net_null7,size=77""#);
    assert!(port.receive().iter().all(|(_, frame)| frame.len() == 77));
    assert_eq!(port.port.name(), "net_null7");
    let error = lab.open(r#"kind = "raw", vdev = "net_null7""#).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    port.close();
    let error = lab.open(r#"kind = "raw", vdev = "net_nothing0""#).unwrap_err().to_string();
    assert!(error.contains("net_nothing0"), "{error}");
    lab.check_clean(&[]);
}

#[test]
fn a_ring_alone_loops_back() {
    let mut lab = Lab::new();
    let mut port = lab.run_with(r#"kind = "ring""#, 2, None);
    let frames = [frame(1, 64), frame(2, 1500)];
    assert_eq!(port.send(1, &frames), 2);
    assert_eq!(port.expect(&frames), [1, 1]);
    port.send(0, &frames);
    port.close();
    lab.check_clean(&[]);
}

#[test]
fn two_rings_are_crossed_and_come_and_go() {
    let mut lab = Lab::new();
    let (a, b) = (r#"kind = "ring", name = "a", peer = "b""#, r#"kind = "ring", name = "b", peer = "a""#);
    let mut first = lab.run_with(a, 2, None);
    let mut second = lab.run(b);
    assert_eq!(second.rx.len(), 2, "the first end decides how many queues there are");
    pass(&mut first, &mut second, 100, 64);
    pass(&mut second, &mut first, 100, 64);
    let error = lab.open(a).unwrap_err().to_string();
    assert!(error.contains("open already"), "{error}");
    let error = lab.open(r#"kind = "ring", name = "c", peer = "a""#).unwrap_err().to_string();
    assert!(error.contains("peer a has another peer (b)"), "{error}");
    let error = lab.open(r#"kind = "ring", name = "c", peer = "c""#).unwrap_err().to_string();
    assert!(error.contains("its own peer"), "{error}");
    // What waits for an end that goes is gone; what is sent meanwhile waits for it to come again.
    second.send(0, &[frame(7, 64)]);
    first.close();
    second.send(0, &[frame(8, 64)]);
    let mut first = lab.run(a);
    first.expect(&[frame(8, 64)]);
    pass(&mut first, &mut second, 100, 64);
    second.close();
    first.close();
    lab.check_clean(&[]);
}

#[test]
fn pcap_files_are_read_and_written() {
    let mut lab = Lab::new();
    let (input, output) = (lab.path("in.pcap"), lab.path("out.pcap"));
    let frames: Vec<Vec<u8>> = (0..10).map(|number| frame(number, 60 + usize::from(number) * 300)).collect();
    fs::write(&input, capture(&frames)).unwrap();
    let files =
        format!(r#"kind = "pcap", rx-pcap = "{}", tx-pcap = "{}""#, input.display(), output.display());
    let mut port = lab.run(&files);
    port.expect(&frames);
    assert!(port.receive().is_empty(), "a file is played once");
    assert_eq!(port.send(0, &frames), frames.len());
    let error = lab.open(&format!(r#"kind = "pcap", tx-pcap = "{}""#, output.display())).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    port.close();
    let written = fs::read(&output).unwrap();
    assert_eq!(contents(&written), frames);

    // Without end, a frame must fit a buffer.
    fs::write(&input, capture(&frames[..5])).unwrap();
    let again = format!(r#"kind = "pcap", rx-pcap = "{}", infinite-rx = true"#, input.display());
    let mut port = lab.run(&again);
    let total: usize = (0..10).map(|_| port.receive().len()).sum();
    assert!(total > 100, "{total} frames of a file of five that is played without end");
    assert_eq!(port.send(0, &frames), frames.len(), "without a sink they are thrown away");
    port.close();
    for path in [input, output] {
        fs::remove_file(path).unwrap();
    }
    lab.check_clean(&[]);
}

#[test]
fn pcap_interfaces_pass_both_ways_and_nothing_comes_back() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut near = lab.run(r#"kind = "pcap", iface = "v0""#);
    let mut far = lab.run(r#"kind = "af-packet", iface = "v1""#);
    pass(&mut near, &mut far, 50, 1514);
    assert!(near.receive().is_empty(), "a port does not receive what it sends");
    pass(&mut far, &mut near, 50, 1514);
    near.close();
    far.close();
    lab.check_clean(&["v0", "v1"]);
}

/// The kernel's side of the tap t0: what is sent there, the tap's port receives. Raw, for the interface belongs
/// to the tap's port.
const KERNEL_SIDE: &str = r#"kind = "raw", vdev = "net_pcap99,rx_iface_in=t0,tx_iface=t0""#;

#[test]
fn tap_passes_both_ways() {
    let mut lab = Lab::new();
    let mut tap = lab.run_with(r#"kind = "tap", iface = "t0", mac = "52:54:00:00:00:07""#, 2, Some(1450));
    assert_eq!(pmd::process::interface_mtu("t0").unwrap(), 1450);
    assert_eq!(tap.port.mac().to_string(), "52:54:00:00:00:07");
    assert_eq!((tap.rx.len(), tap.tx.len()), (1, 1), "a tap has the queues its spec says");
    run("sysctl -qw net.ipv6.conf.t0.disable_ipv6=1");
    run("ip link set t0 up");
    let mut kernel = lab.run(KERNEL_SIDE);
    pass(&mut kernel, &mut tap, 100, 1464);
    pass(&mut tap, &mut kernel, 100, 1464);
    kernel.close();
    tap.close();
    // The kernel has a limit, and an MTU beyond it is refused by its number.
    let error = lab.open_with(r#"kind = "tap", iface = "t0""#, 1, Some(65_535)).unwrap_err();
    assert!(matches!(error, OpenError::Mtu { wanted: 65_535, max: 65_521, .. }), "{error}");
    lab.check_clean(&[]);
}

#[test]
fn tap_has_several_queues_of_a_kind() {
    let mut lab = Lab::new();
    let mut tap = lab.run(r#"kind = "tap", iface = "t0", queues = 2"#);
    assert_eq!((tap.rx.len(), tap.tx.len()), (2, 2));
    run("sysctl -qw net.ipv6.conf.t0.disable_ipv6=1");
    run("ip link set t0 up");
    let mut kernel = lab.run(KERNEL_SIDE);
    let frames: Vec<Vec<u8>> = (0..64).map(|number| frame(number, 100)).collect();
    for some in frames.chunks(16) {
        assert_eq!(kernel.send(0, some), some.len());
    }
    let queues = tap.expect(&frames);
    assert!(
        queues.contains(&0) && queues.contains(&1),
        "the kernel spreads flows over both queues: {queues:?}"
    );
    assert_eq!(tap.send(1, &frames[..16]), 16);
    kernel.expect(&frames[..16]);
    kernel.close();
    tap.close();
    lab.check_clean(&[]);
}

#[test]
fn a_tap_stays_when_it_is_to_and_nobody_shares_one() {
    let mut lab = Lab::new();
    let tap = lab.run(r#"kind = "tap", iface = "t0", persist = true"#);
    let error = lab.open(r#"kind = "tap", iface = "t0""#).unwrap_err().to_string();
    assert!(error.contains("t0") && error.contains("already used by port p1"), "{error}");
    tap.close();
    lab.check_clean(&["t0"]);
    // A tap that is there and free is taken.
    let tap = lab.run(r#"kind = "tap", iface = "t0""#);
    tap.close();
    run("ip link del t0");
    lab.check_clean(&[]);

    veth("v0", "v1", 1500);
    let error = lab.open(r#"kind = "tap", iface = "v0""#).unwrap_err().to_string();
    assert!(error.contains("v0") && error.contains("veth"), "{error}");
    // One queue is not what is opened.
    run("ip tuntap add t1 mode tap");
    let error = lab.open(r#"kind = "tap", iface = "t1""#).unwrap_err().to_string();
    assert!(error.contains("t1") && error.contains("several queues"), "{error}");
    lab.check_clean(&["t1", "v0", "v1"]);
}

#[test]
fn a_tap_of_another_program_is_left_alone() {
    let mut lab = Lab::new();
    let tap = lab.run(r#"kind = "tap", iface = "t0""#);
    // As another process would see it.
    assert_eq!(pmd::interface::tap_holder("t0"), Some(std::process::id()));
    tap.close();
    assert_eq!(pmd::interface::tap_holder("t0"), None);
    lab.check_clean(&[]);
}

#[test]
fn a_tap_that_stayed_is_removed_and_nothing_else_of_its_name() {
    let mut lab = Lab::new();
    let kept = |what: &str| {
        let refused = port::remove_tap("t0").unwrap_err();
        assert!(matches!(&refused, OpenError::NoTap { iface, .. } if iface == "t0"), "{refused:?}");
        assert!(refused.to_string().contains(what), "{refused}");
    };
    let tap = lab.run(r#"kind = "tap", iface = "t0", persist = true"#);
    kept("has it open");
    tap.close();
    lab.check_clean(&["t0"]);
    for _ in 0..2 {
        port::remove_tap("t0").unwrap();
        lab.check_clean(&[]);
    }
    // Somebody else has given the name to something of his own meanwhile.
    veth("t0", "v1", 1500);
    kept("veth");
    lab.check_clean(&["t0", "v1"]);
    run("ip link del t0");
    run("ip tuntap add t0 mode tap");
    kept("several queues");
    lab.check_clean(&["t0"]);
}

#[test]
fn af_packet_passes_both_ways_with_the_mtu_that_is_wanted() {
    let mut lab = Lab::with_room(12_288);
    veth("v0", "v1", 1500);
    let mut near = lab.run_with(r#"kind = "af-packet", iface = "v0""#, 1, Some(9000));
    let mut far = lab.run_with(r#"kind = "af-packet", iface = "v1""#, 1, Some(9000));
    assert!(near.traits.partial_checksums && near.traits.min_segment > 9000);
    assert_eq!(pmd::process::interface_mtu("v0").unwrap(), 9000);
    for length in [60, 1514, 2048, 4096, 9014] {
        pass(&mut near, &mut far, 50, length);
        pass(&mut far, &mut near, 50, length);
    }
    near.close();
    far.close();
    assert_eq!(pmd::process::interface_mtu("v0").unwrap(), 1500, "a raised MTU is set back");
    assert!(!pmd::interface::is_promiscuous("v0").unwrap(), "promiscuous mode is set back");
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn af_packet_spreads_flows_over_a_fanout_group() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut near = lab.run(r#"kind = "af-packet", iface = "v0", queues = 2"#);
    assert_eq!(near.rx.len(), 2, "every socket of the group is polled, with one worker, too");
    let mut far = lab.run(r#"kind = "af-packet", iface = "v1""#);
    let frames: Vec<Vec<u8>> = (0..64).map(|number| frame(number, 100)).collect();
    for some in frames.chunks(16) {
        assert_eq!(far.send(0, some), some.len());
    }
    let queues = near.expect(&frames);
    assert!(queues.contains(&0) && queues.contains(&1), "both queues received: {queues:?}");
    // One flow stays on one queue.
    let same: Vec<Vec<u8>> = (100..132).map(|length| frame(5, length)).collect();
    far.send(0, &same[..16]);
    far.send(0, &same[16..]);
    let queues = near.expect(&same);
    assert!(queues.iter().all(|queue| *queue == queues[0]), "{queues:?}");
    near.close();
    far.close();
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn af_xdp_passes_both_ways() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let mut near = lab.run(r#"kind = "af-xdp", iface = "v0""#);
    let mut far = lab.run(r#"kind = "af-packet", iface = "v1""#);
    pass(&mut far, &mut near, 50, 1514);
    pass(&mut near, &mut far, 50, 1514);
    let traits = near.traits.clone();
    near.close();
    far.close();
    // The driver of DPDK 22.11 frees neither its fill ring nor what it has not seen completed.
    let kept = lab.pool.in_use();
    assert!(kept <= usize::from(traits.kept_buffers), "{kept} buffers stayed in the driver");
    assert_eq!(pmd::port::in_use(), 0);
    assert_eq!(links().into_iter().collect::<Vec<_>>(), ["v0", "v1"]);
    // Nor does it let go of the interface: only a new one serves again.
    run("ip link del v0");
    veth("v0", "v1", 1500);
    let mut near = lab.run(r#"kind = "af-xdp", iface = "v0""#);
    let mut far = lab.run(r#"kind = "af-packet", iface = "v1""#);
    pass(&mut far, &mut near, 50, 60);
    near.close();
    far.close();
}

#[test]
fn memifs_share_a_socket_and_keep_apart() {
    let mut lab = Lab::new();
    let socket = lab.path("m.sock");
    let memif = |role: &str, id: u32| {
        format!(r#"kind = "memif", socket = "{}", role = "{role}", id = {id}"#, socket.display())
    };
    let mut servers = [lab.run(&memif("server", 0)), lab.run(&memif("server", 1))];
    let mut clients = [lab.run(&memif("client", 0)), lab.run(&memif("client", 1))];
    for (server, client) in servers.iter_mut().zip(&mut clients) {
        pass(client, server, 100, 1500);
        pass(server, client, 100, 4000);
    }
    let error = lab.open(&memif("server", 1)).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    clients.into_iter().for_each(support::Running::close);
    servers.into_iter().for_each(support::Running::close);
    lab.check_clean(&[]);
}

#[test]
fn vhost_user_server_and_virtio_user_client() {
    let mut lab = Lab::new();
    let path = lab.path("v.sock");
    let vhost = format!(r#"kind = "vhost-user", path = "{}""#, path.display());
    let mut device = lab.run(&vhost);
    let error = lab.open(&vhost).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let mut driver = lab.run(&format!(r#"kind = "virtio-user", path = "{}""#, path.display()));
    pass(&mut driver, &mut device, 200, 1514);
    pass(&mut device, &mut driver, 200, 1514);
    driver.close();
    // The device waits for the next driver.
    let mut driver = lab.run(&format!(r#"kind = "virtio-user", path = "{}""#, path.display()));
    pass(&mut driver, &mut device, 200, 64);
    driver.close();
    device.close();
    lab.check_clean(&[]);
}

#[test]
fn vhost_sockets_belong_to_whom_the_config_says() {
    use std::os::unix::fs::MetadataExt;
    let mut lab = Lab::new();
    let path = lab.path("v.sock");
    let with = |more: &str| format!(r#"kind = "vhost-user", path = "{}"{more}"#, path.display());
    for (more, owner, group, mode) in [
        (r#", owner = "nobody", mode = "0660""#, 65_534, 0, 0o660),
        (r#", owner = "12345", group = "daemon", mode = "600""#, 12_345, 1, 0o600),
    ] {
        let device = lab.run(&with(more));
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (owner, group, mode), "{more}");
        device.close();
        assert!(!path.exists(), "the socket goes with the port, whosever it is");
    }
    for (more, part) in
        [(r#", owner = "no-such-user""#, "getent passwd"), (r#", group = "nogrp7""#, "getent group")]
    {
        let error = lab.open(&with(more)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    lab.check_clean(&[]);
}

#[test]
fn vhost_user_client_and_virtio_user_server_of_two_queues() {
    let mut lab = Lab::new();
    let path = lab.path("v.sock");
    let device = format!(r#"kind = "vhost-user", path = "{}", server = false, queues = 2"#, path.display());
    let mut device = lab.run(&device);
    let driver = format!(r#"kind = "virtio-user", path = "{}", server = true, queues = 2"#, path.display());
    assert!(port::may_block(&spec(&driver)));
    let mut driver = lab.run(&driver);
    assert_eq!((device.rx.len(), driver.rx.len()), (2, 2));
    pass(&mut driver, &mut device, 200, 1514);
    pass(&mut device, &mut driver, 200, 1514);
    driver.close();
    device.close();
    lab.check_clean(&[]);
}

#[test]
fn hot_attach_and_detach_twenty_times() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    let (vhost, memif) = (lab.path("v.sock"), lab.path("m.sock"));
    let device = format!(r#"kind = "vhost-user", path = "{}""#, vhost.display());
    let driver = format!(r#"kind = "virtio-user", path = "{}""#, vhost.display());
    let groups = [
        vec![r#"kind = "tap", iface = "t0""#.to_owned()],
        vec![r#"kind = "af-packet", iface = "v0""#.to_owned()],
        vec![device.clone()],
        vec![device, driver],
        vec![r#"kind = "veth", iface = "v0""#.to_owned()],
        vec![r#"kind = "pcap", iface = "v0""#.to_owned()],
        vec![r#"kind = "ring", name = "a", peer = "b""#.to_owned(), r#"kind = "null""#.to_owned()],
        // Last: the driver of DPDK 22.11 never closes the listener of a server, one descriptor a time.
        vec![format!(r#"kind = "memif", socket = "{}""#, memif.display())],
    ];
    // Another port runs all the while.
    let mut steady = lab.run(r#"kind = "ring""#);
    for group in groups {
        let mut before = 0;
        for round in 0..20u16 {
            let ports: Vec<_> = group.iter().map(|spec| lab.run(spec)).collect();
            pass_own(&mut steady, round);
            ports.into_iter().rev().for_each(support::Running::close);
            assert_eq!(links().into_iter().collect::<Vec<_>>(), ["v0", "v1"], "{group:?}");
            assert!(!vhost.exists() && !memif.exists(), "{group:?}");
            // The first round may start threads of DPDK's own.
            if round == 0 {
                before = descriptors();
            }
        }
        let after = descriptors();
        let lost = if group[0].contains("memif") { 19 } else { 0 };
        assert!(after <= before + lost, "{group:?}: {after} descriptors after {before}");
    }
    steady.close();
    lab.check_clean(&["v0", "v1"]);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn pass_own(port: &mut support::Running, number: u16) {
    let frames = [frame(number, 64)];
    assert_eq!(port.send(0, &frames), 1);
    port.expect(&frames);
}

#[test]
fn bad_ports_name_the_thing_and_the_remedy() {
    let mut lab = Lab::new();
    veth("v0", "v1", 1500);
    run("ip link set v1 down");
    let elsewhere = Namespace::new();
    let name = &elsewhere.0;
    run(&format!("ip link add there netns {name} type veth peer name there2 netns {name}"));
    let file = lab.path("file");
    fs::write(&file, "precious").unwrap();
    let live = lab.path("live");
    let listener = UnixListener::bind(&live).unwrap();
    let (file_text, live_text) = (file.display().to_string(), live.display().to_string());
    let missing = lab.path("no/such");
    let missing = missing.display();
    let cases = [
        (r#"kind = "af-packet", iface = "none""#.to_owned(), vec!["\"none\"", "ip link"]),
        (r#"kind = "af-packet", iface = "there""#.to_owned(), vec!["there", name, "netns"]),
        (r#"kind = "af-packet", iface = "v1""#.to_owned(), vec!["ip link set v1 up"]),
        (r#"kind = "af-xdp", iface = "v1""#.to_owned(), vec!["ip link set v1 up"]),
        (r#"kind = "pcap", iface = "none""#.to_owned(), vec!["\"none\"", "ip link"]),
        (format!(r#"kind = "pcap", rx-pcap = "{missing}""#), vec!["no/such", "check the path"]),
        (format!(r#"kind = "pcap", rx-pcap = "{file_text}""#), vec!["file", "pcapng"]),
        (
            format!(r#"kind = "vhost-user", path = "{file_text}""#),
            vec![&file_text, "regular file", "left alone"],
        ),
        (format!(r#"kind = "vhost-user", path = "{live_text}""#), vec![&live_text, "already listens"]),
        (format!(r#"kind = "vhost-user", path = "{missing}""#), vec!["mkdir -p"]),
        (format!(r#"kind = "memif", socket = "{file_text}""#), vec![&file_text, "regular file"]),
        (format!(r#"kind = "virtio-user", path = "{file_text}""#), vec![&file_text, "regular file"]),
        (
            format!(r#"kind = "virtio-user", path = "{file_text}x""#),
            vec!["nobody listens", "start the program"],
        ),
        (r#"kind = "pci", address = "ffff:1f:1f.7""#.to_owned(), vec!["ffff:1f:1f.7", "no such device"]),
        (r#"kind = "pci", address = "eth0""#.to_owned(), vec!["\"eth0\"", "0000:3b:00.0"]),
        (r#"kind = "representor", pf = "ffff:1f:1f.7", vf = 1"#.to_owned(), vec!["no such device"]),
    ];
    for (toml, parts) in &cases {
        let error = lab.open(toml).map(|_| ()).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{toml}: {error}");
        }
    }
    drop(elsewhere);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    // A stale socket gives way.
    drop(listener);
    assert!(live.exists());
    lab.run(&format!(r#"kind = "vhost-user", path = "{live_text}""#)).close();
    fs::remove_file(&file).unwrap();
    lab.check_clean(&["v0", "v1"]);
}

#[test]
fn a_server_that_nobody_joins_can_be_given_up() {
    let mut lab = Lab::new();
    let path = lab.path("v.sock");
    let toml = format!(r#"kind = "virtio-user", path = "{}", server = true"#, path.display());
    let (waiting, giver) = (spec(&toml), spec(&toml));
    let socket = path.clone();
    let give_up = std::thread::spawn(move || {
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
        port::give_up(&giver);
    });
    assert!(port::may_block(&waiting));
    let error = lab.open(&toml).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Device { .. }), "{error}");
    give_up.join().unwrap();
    lab.check_clean(&[]);
}
