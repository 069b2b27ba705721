//! Offload to drivers: a tap whose driver has rte_flow, and takes none of the rules. That is counted and explained, and
//! the tenant's traffic goes on; and what `show offload capabilities` says of drivers and of the simulated e-switch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::lab::{Lab, Tenant, vpc};
use tests::steady::{Flows, Stream};
use tests::{Daemon, Family, pair, traffic, wait_for};

/// Any flow of some packets a second is hot.
const EAGER: &str = "hot-packets = 50\ncool-after = \"500ms\"\nretry-after = \"500ms\"\n";

struct Hosts {
    daemon: Daemon,
    one: Tenant,
    two: Tenant,
    _lab: Lab,
}

/// A tenant's `[[vnic]]` on a tap of DPDK's driver, which has rte_flow.
fn on_driver(tenant: &Tenant, number: u32) -> String {
    tenant.vnic_on(&format!("{{ kind = \"raw\", vdev = \"net_tap{number},iface={}\" }}", tenant.name))
}

/// The switch with two tenants' taps that talk to each other, both on this device.
fn hosts(device: &str) -> Hosts {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", pair::MACS[0], &["10.0.0.1/24"]);
    let two = lab.tenant("two", "red", pair::MACS[2], &["10.0.0.2/24"]);
    let on = format!("offload = \"{device}\"\n");
    let config = [
        lab.uplink(&on),
        vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        on_driver(&one, 1) + &on,
        on_driver(&two, 2) + &on,
        format!("[offload]\n{EAGER}"),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    one.plug(&lab.host);
    two.plug(&lab.host);
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    Hosts { daemon, one, two, _lab: lab }
}

/// A figure of `show offload`.
fn figure(daemon: &Daemon, pointer: &str) -> i64 {
    daemon.figure("show offload", pointer)
}

/// The answers of a port, of one kind.
fn answers(shown: &Value, port: &str, kind: &str) -> Vec<(String, bool, String)> {
    let ports = shown["ports"].as_array().into_iter().flatten();
    let port = ports.into_iter().find(|row| row["name"] == port).unwrap_or_else(|| panic!("{shown:#}"));
    let rows = port[kind].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    rows.map(|row| (text(&row["name"]), row["taken"] == true, text(&row["words"]))).collect()
}

#[test]
fn offload_to_a_driver_that_takes_no_rule_is_explained_and_traffic_goes_on() {
    // One connection, both ways of it.
    const FLOWS: i64 = 2;
    let hosts = hosts("rte-flow");
    let daemon = &hosts.daemon;
    let shown = daemon.json("show offload");
    assert_eq!((&shown["on"], &shown["device"]), (&Value::from(true), &Value::from("rte_flow")));
    let stream = Stream::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2");
    // At least: on a busy machine it takes long enough for some to be asked about again.
    wait_for("the driver's refusals", Duration::from_secs(60), || {
        (figure(daemon, "/flows/refused") >= FLOWS
            && figure(daemon, "/so-far/refused-by-the-device") >= FLOWS)
            .then_some(())
    });
    // Each flow says why it is where it is, and the refusals are counted by the same words.
    let why = daemon.json("offload why vnic one 10.0.0.1 10.0.0.2 any");
    let asked = why.as_array().unwrap();
    let words = "transfer is not supported";
    let refused = asked.iter().filter(|flow| flow.to_string().contains(words)).count();
    assert!(refused >= 1, "{why:#}");
    let shown = daemon.ctl("show offload");
    assert!(shown.contains(words), "{shown}");
    // Nothing went in, and no byte of the stream was lost for having been asked about.
    for none in ["/flows/hardware", "/done/packets", "/rules", "/so-far/installed"] {
        assert_eq!(figure(daemon, none), 0, "{none}: {:#}", daemon.json("show offload"));
    }
    assert_eq!(daemon.json("offload audit")["repaired"], 0);
    assert!(stream.stop() > 0);
    daemon.assert_conserved();
    hosts.daemon.stop();
}

#[test]
fn offload_capabilities_are_the_drivers_words() {
    let hosts = hosts("rte-flow");
    let daemon = &hosts.daemon;
    let shown = daemon.json("show offload capabilities");
    let version = shown["dpdk"]["version"].as_str().unwrap();
    assert_eq!(shown["dpdk"]["ib-bth"], version >= "23.07", "{shown:#}");
    let ports: Vec<&Value> = shown["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(ports.len(), 3, "{shown:#}");
    for kind in ["features", "chains"] {
        let said = answers(&shown, "one", kind);
        assert!(said.len() >= 12, "{shown:#}");
        for (name, taken, words) in said {
            // What the DPDK itself cannot say does not come as far as the driver.
            let expected = words.contains("transfer is not supported")
                || words.contains("cannot match QPs")
                || words.contains("ENOSYS")
                || words.contains("not implemented");
            assert!(!taken && expected, "{name}: {words}");
        }
    }
    let text = daemon.ctl("show offload capabilities one");
    assert!(text.contains("chain tcp-encap") && text.contains("net_tap, rte_flow"), "{text}");
    assert!(!text.contains("af_packet"), "of one port only: {text}");
    hosts.daemon.stop();
}

/// The simulated e-switch is asked as a driver is, beside flows that are in it, and says what it is.
#[test]
fn offload_capabilities_of_the_simulated_e_switch_say_simulated() {
    const FLOWS: u32 = 2;
    let hosts = hosts("simulated");
    let daemon = &hosts.daemon;
    let flows = Flows::start(&hosts.one.netns, &hosts.two.netns, "10.0.0.2", FLOWS);
    wait_for("flows in hardware", Duration::from_secs(20), || {
        (figure(daemon, "/flows/hardware") == 2 * i64::from(FLOWS)).then_some(())
    });
    let rules = figure(daemon, "/eswitch/rules");
    let shown = daemon.json("show offload capabilities one");
    for kind in ["features", "chains"] {
        let refused: Vec<_> =
            answers(&shown, "one", kind).into_iter().filter(|(_, taken, _)| !taken).collect();
        assert_eq!(refused, [], "{shown:#}");
    }
    assert_eq!(shown["ports"][0]["device"], "simulated: a lab device, no NIC");
    // The flows that were there are there.
    assert_eq!(
        (figure(daemon, "/eswitch/rules"), figure(daemon, "/flows/hardware")),
        (rules, 2 * i64::from(FLOWS))
    );
    assert_eq!(daemon.json("offload audit")["repaired"], 0);
    drop(flows);
    daemon.assert_conserved();
    hosts.daemon.stop();
}
