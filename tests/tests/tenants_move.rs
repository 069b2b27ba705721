//! A container that moves to the other host, with its connections and in its security groups: one command on each side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use tests::lab::{Lab, Tenant, vpc};
use tests::runtime::{ONE_WORKER, TWO_WORKERS};
use tests::steady::{Ping, Stream};
use tests::{Daemon, Family, pair, traffic};

const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];
/// The container that moves lets in whoever is in the other group, and echo requests.
const GROUPS: &str = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\nrules = [\n\
     { direction = \"in\", protocol = \"tcp\", group = \"friends\" },\n\
     { direction = \"in\", protocol = \"icmp\", type = 8 },\n\
     { direction = \"in\", protocol = \"icmpv6\", type = 128 },\n]\n\
     [[security-group]]\nname = \"friends\"\nvpc = \"red\"\nrules = [{ direction = \"in\", protocol = \"any\", group = \"web\" }]\n";
const MOVER: [&str; 2] = ["10.0.0.1/24", "fd00:1::1/64"];
const NEAR: [&str; 2] = ["10.0.0.2/24", "fd00:1::2/64"];
const FAR: [&str; 2] = ["10.0.0.3/24", "fd00:1::3/64"];
/// Longer than that nobody would call it a move; what it was is printed.
const LONGEST_OUTAGE: Duration = Duration::from_secs(5);

fn grouped(section: &str, group: &str) -> String {
    section.replacen("mac =", &format!("security-groups = [\"{group}\"]\nmac ="), 1)
}

fn location(lab: &Lab, tenant: &Tenant, addresses: &[&str], group: &str) -> String {
    let text = tests::lab::location(lab.remote_vtep(), pair::VNIS[0], &tenant.mac, addresses);
    text.replace("vtep =", &format!("groups = [\"{group}\"]\nvtep ="))
}

/// The cable of a container goes from one host to another; its end there, and with it all that the kernel knows of its
/// connections, stays as it is.
fn carry(name: &str, from: &Lab, to: &Lab) {
    from.host.ip(&format!("link set {name} netns {}", to.host.name()));
    to.host.ip(&format!("link set {name} up"));
}

#[test]
fn tenants_a_container_moves_there_and_back_with_its_connections() {
    let here = Lab::new(Family::V4);
    here.peer.ip("addr flush dev up0");
    let there = here.reversed();
    let mover = here.cabled_tenant("mover", "red", pair::MACS[0], &MOVER);
    let near = here.cabled_tenant("near", "red", pair::MACS[1], &NEAR);
    let far = there.cabled_tenant("far", "red", pair::MACS[2], &FAR);
    let veth =
        |tenant: &Tenant| tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name));
    let common = [vpc("red", pair::VNIS[0], &SUBNETS, ""), GROUPS.to_owned()].concat();
    let first_config = [
        here.uplink(""),
        common.clone(),
        grouped(&veth(&mover), "web"),
        grouped(&veth(&near), "friends"),
        location(&here, &far, &FAR, "friends"),
        TWO_WORKERS.to_owned(),
    ]
    .concat();
    let second_config = [
        there.uplink(""),
        common,
        grouped(&veth(&far), "friends"),
        location(&there, &mover, &MOVER, "web"),
        location(&there, &near, &NEAR, "friends"),
        ONE_WORKER.to_owned(),
    ]
    .concat();
    let mut first = Daemon::start_alone(&here.host, &first_config);
    let mut second = Daemon::start(&there.host, &second_config);
    first.wait_until_resolved();
    second.settled();

    // One that each of the others opened, one that it opened itself, and echoes from either.
    let streams = [
        Stream::start(&near.netns, &mover.netns, "10.0.0.1"),
        Stream::start(&far.netns, &mover.netns, "fd00:1::1"),
        Stream::start(&mover.netns, &far.netns, "10.0.0.3"),
    ];
    let pings = [Ping::start(&near.netns, "fd00:1::1"), Ping::start(&far.netns, "10.0.0.1")];
    let mut outages = Vec::new();
    let sides = [(&first, &here), (&second, &there)];
    for turn in 0..4 {
        let ((from, left), (to, entered)) = (sides[turn % 2], sides[(turn + 1) % 2]);
        let began = Instant::now();
        let said = from.ctl(&format!("vnic move mover vtep {}", left.remote_vtep()));
        assert!(said.contains("behind"), "{said}");
        carry("mover", left, entered);
        let said = to.ctl(&format!(
            "vnic add mover vpc red mac {} vips 10.0.0.1,fd00:1::1 mtu {} port veth iface=mover",
            mover.mac,
            tests::lab::TENANT_MTU
        ));
        assert!(said.contains("moved here from"), "{said}");
        // It is there when somebody hears it.
        for from in [&near.netns, &far.netns] {
            while !from.try_run(&["ping", "-n", "-c", "1", "-W", "1", "10.0.0.1"]).status.success() {
                assert!(began.elapsed() < LONGEST_OUTAGE, "not reached after move {turn}");
            }
        }
        outages.push(began.elapsed());
        // Its groups came along: strangers' ports are closed, friends' are open.
        let rows = to.json("show vnic mover");
        assert_eq!(rows[0]["vips"], serde_json::json!(["10.0.0.1", "fd00:1::1"]), "{rows}");
        let groups = to.json("show security-group web");
        assert_eq!(groups[0]["vnics"], serde_json::json!(["mover"]), "{groups}");
        traffic::transfer_by(&["tcp"], &near.netns, &mover.netns, "10.0.0.1", 60_000);
    }
    let bytes = streams.map(Stream::stop);
    let lost = pings.map(Ping::stop);
    eprintln!(
        "4 moves: {outages:?} from the command to the first echo; TCP bytes {bytes:?}; echoes lost of sent {lost:?}"
    );
    assert!(bytes.iter().all(|&bytes| bytes > 0));
    for (lost, _) in lost {
        // A hundred a second.
        assert!(lost < 4 * 100 * LONGEST_OUTAGE.as_secs() as i64, "{lost} echoes lost");
    }
    // Nobody else's packets were refused for it.
    for daemon in [&first, &second] {
        for reason in ["guard-mac", "guard-vip", "unknown-vtep"] {
            assert_eq!(daemon.drops(reason), 0, "{reason}");
        }
        daemon.assert_conserved();
    }
    second.stop();
    first.stop();
}
