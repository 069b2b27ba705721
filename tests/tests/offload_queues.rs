//! Flows on the e-switch of a NIC whose driver has templates and queues: the device `net_eswitch` of the crate `testdev`,
//! loaded as a plugin, answers late and fails, and holds in the end what the switch believes it holds. It moves no packet
//! by its rules: traffic goes on in software, and flows come into the device and go all the time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use testdev::ESWITCH;
use tests::lab::{Lab, Tenant, vpc};
use tests::steady::Flows;
use tests::{Daemon, Family, Workdir, pair, traffic, wait_for};

const ON: &str = "offload = \"rte-flow\"\n";

struct Hosts {
    daemon: Daemon,
    one: Tenant,
    two: Tenant,
    config: String,
    _lab: Lab,
    _folder: Workdir,
}

/// The switch with two tenants on representors of the e-switch whose uplink is `up`; `device` is what the e-switch is like.
/// By name the representors come before the uplink, which has to start before them.
fn hosts(device: &str, offload: &str) -> Hosts {
    let folder = Workdir::new("eswitch");
    let plugin = ESWITCH.build(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.cabled_tenant("one", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let two = lab.cabled_tenant("two", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let raw = |args: &str| format!("{{ kind = \"raw\", vdev = \"net_eswitch{args}\" }}");
    let config = [
        format!("[eal]\nplugins = [\"{}\"]\n", plugin.display()),
        lab.uplink_on(&raw(&format!("0,iface=up0,legacy=1{device}")), ON),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        one.vnic_on(&raw("1,representor=0,iface=one")) + ON,
        two.vnic_on(&raw("2,representor=1,iface=two")) + ON,
        format!("[offload]\nhot-packets = 20\nretry-after = \"300ms\"\nsync-every = \"50ms\"\n{offload}"),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    Hosts { daemon, one, two, config, _lab: lab, _folder: folder }
}

/// A figure of `show offload`.
fn figure(daemon: &Daemon, pointer: &str) -> i64 {
    daemon.figure("show offload", pointer)
}

/// What the device counts.
fn device(daemon: &Daemon, name: &str) -> i64 {
    daemon.figure("show port xstats up", &format!("/0/xstats/{name}"))
}

/// Waits until this holds of the switch and its device.
#[track_caller]
fn until(what: &str, daemon: &Daemon, holds: impl Fn(&Daemon) -> bool) {
    wait_for(what, Duration::from_secs(40), || holds(daemon).then_some(()));
}

/// The device has the rules that the switch believes to have.
fn agree(daemon: &Daemon) -> bool {
    let (ours, its) = (figure(daemon, "/rules"), device(daemon, "flow_rules"));
    ours == its && ours > 0
}

/// Stops the switch: the device heard nothing that no application may say, from the first port to the last.
#[track_caller]
fn stop(mut daemon: Daemon) {
    assert_eq!(device(&daemon, "flow_misused"), 0, "{}", daemon.log());
    daemon.assert_conserved();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
    let log = daemon.log();
    for word in ["misuse", "transfer proxy port", "were left", "still out"] {
        assert!(!log.contains(word), "{word}:\n{log}");
    }
}

#[test]
fn offload_through_queues_ends_with_the_rules_that_were_meant() {
    const FLOWS: u32 = 8;
    let hosts = hosts(
        ",delay=300,late=9,late-us=20000,fail=13,keep=7,busy=17,fresh=2",
        "engine = \"async\"\ncool-after = \"1min\"\n",
    );
    let daemon = &hosts.daemon;
    assert_eq!(daemon.json("show offload")["engine"], "async");
    let flows = Flows::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2", FLOWS);
    let all_in = |daemon: &Daemon| figure(daemon, "/flows/hardware") == 2 * i64::from(FLOWS);
    until("flows in hardware", daemon, all_in);
    for round in 0..4 {
        until("the device to have our rules", daemon, agree);
        assert_eq!(daemon.json("offload audit")["repaired"], 0);
        let made = device(daemon, "flow_created");
        daemon.ctl("offload off");
        until("the device to be empty", daemon, |daemon| {
            figure(daemon, "/rules") + device(daemon, "flow_rules") + device(daemon, "flow_counters") == 0
        });
        assert_eq!(device(daemon, "flow_destroyed"), device(daemon, "flow_created"));
        if round < 3 {
            daemon.ctl("offload on");
            until("flows in hardware", daemon, all_in);
            assert!(device(daemon, "flow_created") >= made + 2 * i64::from(FLOWS));
        }
    }
    for fault in ["flow_create_failed", "flow_destroy_failed", "flow_again"] {
        assert!(device(daemon, fault) > 0, "the device did as it was told: {fault}");
    }
    assert!(flows.stop(FLOWS) > 0);
    stop(hosts.daemon);
}

#[test]
fn offload_engine_auto_takes_queues_where_there_are_some() {
    const FLOWS: u32 = 4;
    for (device, engine) in [("", "async"), (",queues=0", "sync")] {
        let mut hosts = hosts(device, "engine = \"auto\"\ncool-after = \"200ms\"\n");
        let daemon = &mut hosts.daemon;
        assert_eq!(daemon.json("show offload")["engine"], engine);
        let flows = Flows::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2", FLOWS);
        // The device's counters stand still: flows look cold to it and go, and come again, being hot.
        until("flows to come and go", daemon, |daemon| figure(daemon, "/so-far/withdrawn") >= 20);
        // What takes the rules cannot go while others stay whose rules it takes.
        daemon.rewrite_config(&hosts.config.replace("iface=up0", "fresh=1,iface=up0"));
        daemon.process().signal("HUP");
        wait_for("the refusal", Duration::from_secs(20), || {
            daemon.log().contains("port \"up\" is in use by port one, whose rules it takes").then_some(())
        });
        assert!(flows.stop(FLOWS) > 0);
        daemon.ctl("offload off");
        until("the rules to go", daemon, |daemon| figure(daemon, "/rules") == 0);
        stop(hosts.daemon);
    }
}

/// What is stopped is stopped in the device, too, when the command is answered: one that goes on at line rate may be why it was typed.
#[test]
fn offload_ends_where_an_operator_stops_a_port_or_the_switch() {
    const FLOWS: u32 = 4;
    let hosts = hosts(",delay=300", "engine = \"async\"\ncool-after = \"1min\"\n");
    let daemon = &hosts.daemon;
    let rules = |daemon: &Daemon| (figure(daemon, "/rules"), device(daemon, "flow_rules"));
    for (stop, start) in
        [("port stop one", "port start one"), ("stop", "start"), ("set fwd io", "set fwd overlay")]
    {
        let flows = Flows::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2", FLOWS);
        until("flows in hardware", daemon, |daemon| {
            figure(daemon, "/flows/hardware") >= 2 * i64::from(FLOWS) && agree(daemon)
        });
        daemon.ctl(stop);
        assert_eq!(rules(daemon), (0, 0), "{stop}");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(rules(daemon), (0, 0), "some time after {stop}");
        // They lose what is sent now.
        drop(flows);
        daemon.ctl(start);
    }
    stop(hosts.daemon);
}

/// The synchronous calls leave it to the switch to ask again.
#[test]
fn offload_without_queues_ends_without_rules_on_a_device_that_keeps_some() {
    const FLOWS: u32 = 4;
    let hosts = hosts(",queues=0,keep=3", "engine = \"sync\"\ncool-after = \"200ms\"\n");
    let daemon = &hosts.daemon;
    // Rules by which it was tried what the device takes, and which it keeps, too.
    let tried = device(daemon, "flow_rules");
    let flows = Flows::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2", FLOWS);
    until("flows to come and go", daemon, |daemon| figure(daemon, "/so-far/withdrawn") >= 20);
    assert!(flows.stop(FLOWS) > 0);
    daemon.ctl("offload off");
    until("the device to have none of them", daemon, |daemon| {
        figure(daemon, "/rules") == 0 && device(daemon, "flow_rules") <= tried
    });
    let kept = figure(daemon, "/so-far/kept-by-the-device");
    assert!(kept > 0 && kept <= device(daemon, "flow_destroy_failed"), "{kept}");
    assert!(daemon.log().contains("the device does not let rules go"), "{}", daemon.log());
    stop(hosts.daemon);
}

/// On a DPDK that can ask, what the driver tells is followed where it is a CRC; on an older one it is said that it cannot ask.
#[test]
fn offload_through_queues_says_whether_software_follows_source_ports() {
    let cases = [("", "no calc encap hash handler"), (",hash=1", ""), (",hash=2", "not affine")];
    for (device, why) in cases {
        let hosts = hosts(device, "entropy = \"hardware\"\n");
        let daemon = &hosts.daemon;
        let can_ask = daemon.json("show offload capabilities")["dpdk"]["encap-hash"] == true;
        let (follows, why) = if can_ask { (device == ",hash=1", why) } else { (false, "cannot ask") };
        let shown = daemon.json("show offload");
        assert_eq!((&shown["entropy"], &shown["software-follows"]), (&"hardware".into(), &follows.into()));
        for said in [daemon.ctl("show offload"), daemon.ctl("show events"), daemon.log()] {
            let expected = if follows { "flows keep their path" } else { "flows change their path" };
            assert!(said.contains(expected) && said.contains(why), "{said}");
        }
        traffic::ping(&hosts.one.netns, "10.0.0.2", 56, 3);
        stop(hosts.daemon);
    }
}
