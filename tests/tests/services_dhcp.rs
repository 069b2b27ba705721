//! Containers without an address of their own making: stock DHCP clients get what the config of the switch says, keep it, and lose
//! nothing by a restart of the switch; whoever storms the service is the only one who notices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::counters::Moved;
use tests::dhcp::Clients;
use tests::lab::{Lab, TENANT_MTU, Tenant, vpc};
use tests::steady::Flows;
use tests::{Daemon, Family, netns, pair, traffic, wait_for};

const LIMIT: Duration = Duration::from_secs(30);
const NEAR: &str = "10.0.0.1/24";

/// A container whose interface has a MAC address and nothing else.
fn bare_tenant(lab: &Lab, name: &str, mac: &str, addresses: &[&str]) -> Tenant {
    let tenant = lab.tenant(name, "red", mac, addresses);
    netns::cable((&tenant.netns, "eth0"), (&lab.host, name), TENANT_MTU + 50);
    tenant.netns.ip(&format!("link set eth0 address {mac}"));
    tenant
}

fn veth(tenant: &Tenant) -> String {
    tenant.vnic_on(&format!("{{ kind = \"veth\", iface = \"{}\" }}", tenant.name))
}

/// A VPC that leases its addresses for a few seconds.
fn network(lease: u32) -> String {
    let subnets = format!(
        "[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\ngateway = \"10.0.0.254\"\n\
         dhcp = {{ lease = \"{lease}s\", dns = [\"10.0.0.53\"], domain = \"red.example\", \
         routes = [{{ to = \"10.9.0.0/16\", via = \"10.0.0.9\" }}] }}\n"
    );
    vpc("red", pair::VNIS[0], &[], "") + &subnets
}

fn count(daemon: &Daemon, vnic: &str, name: &str) -> i64 {
    daemon.figure(&format!("show services {vnic}"), &format!("/0/{name}"))
}

fn has(tenant: &Tenant, what: &str, text: &str) -> bool {
    tenant.netns.ip(what).contains(text)
}

#[track_caller]
fn comes_up(tenant: &Tenant, address: &str) {
    wait_for(&format!("{address} to come up"), LIMIT, || {
        has(tenant, "-4 addr show dev eth0", address).then_some(())
    });
    wait_for("its routes", LIMIT, || {
        (has(tenant, "route show", "default via 10.0.0.254")
            && has(tenant, "route show", "10.9.0.0/16 via 10.0.0.9"))
        .then_some(())
    });
}

#[test]
fn services_dhclient_comes_up_renews_and_outlives_the_switch() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &[NEAR]);
    let config = [lab.uplink(""), network(8), veth(&red)].concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    let before = daemon.counters();
    let clients = Clients::of(&red.netns);
    let client = clients.dhclient("-4", &[]);
    comes_up(&red, "10.0.0.1/24");
    // A discovery and a request, an offer and an acknowledgement, and not a word besides.
    let dora =
        ["received", "consumed", "service-requests", "originated", "sent"].map(|name| format!("fwd.{name}"));
    let mut moved: Vec<_> = dora.iter().map(|name| (name.as_str(), Moved::By(2))).collect();
    moved.extend([
        ("fwd.nft-misses", Moved::By(1)),
        ("fwd.nft-hits", Moved::By(1)),
        ("port.*", Moved::Anyhow),
    ]);
    daemon.counters().assert_moved(&before, &moved);
    assert_eq!((count(&daemon, "red", "told"), count(&daemon, "red", "given")), (1, 1));
    assert!(
        has(&red, "link show dev eth0", &format!("mtu {TENANT_MTU} ")),
        "{}",
        red.netns.ip("link show dev eth0")
    );
    let resolver = clients.text("etc/resolv.conf");
    assert!(resolver.contains("nameserver 10.0.0.53") && resolver.contains("red.example"), "{resolver}");
    traffic::ping(&red.netns, "10.0.0.254", 56, 3);
    let leases = clients.text("leases");
    assert!(
        leases.contains("host-name \"red\"") && leases.contains("dhcp-server-identifier 10.0.0.254"),
        "{leases}"
    );
    // It renews by itself, before and after the switch was gone without a word.
    wait_for("two renewals", LIMIT, || (count(&daemon, "red", "given") >= 3).then_some(()));
    let process = daemon.process();
    process.signal("KILL");
    process.wait(Duration::from_secs(10));
    daemon.restart(&lab.host);
    wait_for("a renewal after the restart", LIMIT, || (count(&daemon, "red", "given") >= 1).then_some(()));
    assert!(has(&red, "-4 addr show dev eth0", "10.0.0.1/24"));
    assert_eq!(count(&daemon, "red", "refused"), 0);
    traffic::ping(&red.netns, "10.0.0.254", 56, 3);
    drop(client);
    daemon.stop();
}

#[test]
fn services_dhclient_forgets_an_address_that_is_not_its_own() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &[NEAR]);
    let mut daemon = Daemon::start(&lab.host, &[lab.uplink(""), network(600), veth(&red)].concat());
    let clients = Clients::of(&red.netns);
    let lease = "lease {\n interface \"eth0\";\n fixed-address 10.0.0.99;\n option subnet-mask 255.255.255.0;\n \
                 option dhcp-lease-time 86400;\n option dhcp-message-type 5;\n \
                 renew 5 2037/01/01 00:00:00;\n rebind 5 2037/01/02 00:00:00;\n expire 5 2037/01/03 00:00:00;\n}\n";
    std::fs::write(clients.path("leases"), lease).unwrap();
    let client = clients.dhclient("-4", &[]);
    comes_up(&red, "10.0.0.1/24");
    assert_eq!((count(&daemon, "red", "refused"), count(&daemon, "red", "given")), (1, 1));
    drop(client);
    // It gives the address back; that it says so is all there is to it.
    daemon.settled();
    let (leases, pid) =
        (clients.path("leases").display().to_string(), clients.path("pid").display().to_string());
    clients.run(&["dhclient", "-4", "-r", "-lf", &leases, "-pf", &pid, "eth0"]);
    wait_for("the release", LIMIT, || (count(&daemon, "red", "released") == 1).then_some(()));
    daemon.stop();
}

/// The operator gives a vNIC another address: its client hears so when it rebinds, long before its lease would have ended.
#[test]
fn services_dhclient_takes_another_address_when_its_vnic_is_renumbered() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &[NEAR]);
    let config = [lab.uplink(""), network(600), veth(&red)].concat();
    let daemon = Daemon::start(&lab.host, &config);
    let clients = Clients::of(&red.netns);
    // It is in more of a hurry than its lease says.
    let hurry = "include \"/etc/dhcp/dhclient.conf\";\ninitial-interval 1;\nbackoff-cutoff 2;\nsupersede dhcp-renewal-time 4;\nsupersede dhcp-rebinding-time 8;\n";
    std::fs::write(clients.path("hurry"), hurry).unwrap();
    let client = clients.dhclient("-4", &["-cf", &clients.path("hurry").display().to_string()]);
    comes_up(&red, "10.0.0.1/24");
    daemon.rewrite_config(&config.replace("vips = [\"10.0.0.1\"]", "vips = [\"10.0.0.7\"]"));
    daemon.ctl("config reload");
    comes_up(&red, "10.0.0.7/24");
    assert!(!has(&red, "-4 addr show dev eth0", "10.0.0.1/"), "the old address is gone");
    // A lease that ends is nothing that is refused.
    assert!(count(&daemon, "red", "refused") >= 1, "it heard that the old address is not its own");
    traffic::ping(&red.netns, "10.0.0.254", 56, 3);
    drop(client);
    daemon.stop();
}

#[test]
fn services_udhcpc_comes_up_and_renews() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &[NEAR]);
    let daemon = Daemon::start(&lab.host, &[lab.uplink(""), network(8), veth(&red)].concat());
    let clients = Clients::of(&red.netns);
    let client = clients.spawn("udhcpc", &["udhcpc", "-f", "-i", "eth0"]);
    wait_for("the address to come up", LIMIT, || {
        has(&red, "-4 addr show dev eth0", "10.0.0.1/24").then_some(())
    });
    // It takes no lease for shorter than sixteen seconds.
    wait_for("a renewal", LIMIT, || (count(&daemon, "red", "given") >= 2).then_some(()));
    assert!(has(&red, "route show", "default via 10.0.0.254"));
    traffic::ping(&red.netns, "10.0.0.254", 56, 3);
    drop(client);
    daemon.stop();
}

#[test]
fn services_storms_cost_their_sender_only() {
    let lab = Lab::new(Family::V4);
    let tenant = |name: &str, mac: &str, addresses: &[&str]| {
        let tenant = bare_tenant(&lab, name, mac, addresses);
        tenant.netns.ip(&format!("addr add {} dev eth0", addresses[0]));
        tenant
    };
    let red = tenant("red", pair::MACS[0], &[NEAR]);
    let blue = tenant("blue", pair::MACS[1], &["10.0.0.3/24"]);
    let storm = bare_tenant(&lab, "storm", pair::MACS[2], &["10.0.0.4/24"]);
    let late = bare_tenant(&lab, "late", pair::MACS[3], &["10.0.0.5/24"]);
    let vnics = [&red, &blue, &storm, &late].map(veth).concat();
    let daemon = Daemon::start(&lab.host, &[lab.uplink(""), network(600), vnics].concat());
    let before = daemon.counters();
    let flows = Flows::start(&red.netns, &blue.netns, "10.0.0.3", 8);
    let seconds = 6;
    let storms = Clients::of(&storm.netns);
    let helper = tests::script::path("discover.py").display().to_string();
    let mut process =
        storms.spawn("storm", &[tests::script::PYTHON, &helper, "eth0", "10000", &seconds.to_string()]);
    // Meanwhile another one comes up.
    let clients = Clients::of(&late.netns);
    let client = clients.dhclient("-4", &[]);
    comes_up(&late, "10.0.0.5/24");
    process.wait(LIMIT);
    let passed = flows.stop_in_any_order(8);
    assert!(passed > 1_000, "{passed} datagrams beside the storm");
    let text = process.output();
    let said: serde_json::Value = serde_json::from_str(text.lines().last().unwrap_or("")).expect(&text);
    let sent = said["sent"].as_i64().unwrap();
    assert!(sent >= 10_000 * seconds * 9 / 10, "{sent} discoveries in {seconds} s");
    let after = daemon.counters();
    let moved = |name: &str| after.get(&format!("fwd.{name}")) - before.get(&format!("fwd.{name}"));
    // What one vNIC may ask: ten at once and twenty a second, on one worker.
    let (heard, most) = (count(&daemon, "storm", "requests"), 12 + 20 * (seconds + 1));
    assert!(heard <= most, "{heard} of {sent} heard, at most {most}");
    let limited = moved("drops.service-limit");
    // Those that the switch's own port had no room for never came.
    assert!(
        (sent * 3 / 4..=sent).contains(&(limited + heard)),
        "{limited} limited and {heard} heard of {sent}"
    );
    assert_eq!(moved("drops.service-queue-full"), 0);
    assert_eq!(count(&daemon, "late", "given"), 1);
    drop(client);
    daemon.stop();
}

/// What the kernel makes of router advertisements, and `dhclient` of DHCPv6.
#[test]
fn services_ipv6_comes_up_by_advertisements_and_dhcpv6() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &["fd00:1::1/64"]);
    red.netns.sysctl(&["net.ipv6.conf.eth0.accept_ra=2", "net.ipv6.conf.eth0.router_solicitations=3"]);
    let subnet = "[[subnet]]\nvpc = \"red\"\nprefix = \"fd00:1::/64\"\n\
                  dhcp = { lease = \"20s\", dns = [\"fd00:1::35\"], domain = \"red.example\" }\nra = {}\n";
    let config = [lab.uplink(""), vpc("red", pair::VNIS[0], &[], ""), subnet.to_owned(), veth(&red)].concat();
    let daemon = Daemon::start(&lab.host, &config);
    // Asked for, by a host whose link comes up.
    red.netns.ip("link set eth0 down");
    red.netns.ip("link set eth0 up");
    let router = "default via fe80::5eff:fe00:64";
    wait_for("a default route", LIMIT, || has(&red, "-6 route show", router).then_some(()));
    let routes = red.netns.ip("-6 route show");
    assert!(routes.contains("fd00:1::/64 dev eth0 proto kernel"), "the prefix is on the link: {routes}");
    let mtu = red.netns.run(&["cat", "/proc/sys/net/ipv6/conf/eth0/mtu"]);
    assert_eq!(mtu.trim(), TENANT_MTU.to_string());
    // Nobody made itself an address.
    let addresses = red.netns.ip("-6 addr show dev eth0");
    assert!(!addresses.contains("fd00:1:"), "{addresses}");
    // The subnet advertises no more, and the router takes back what it said; and once more it does.
    daemon.rewrite_config(&config.replace("ra = {}\n", ""));
    daemon.ctl("config reload");
    let prefix = "fd00:1::/64 dev eth0 proto kernel";
    wait_for("the router to be none any more", Duration::from_secs(10), || {
        (!has(&red, "-6 route show", router) && !has(&red, "-6 route show", prefix)).then_some(())
    });
    daemon.rewrite_config(&config);
    daemon.ctl("config reload");
    wait_for("the default route to come back", LIMIT, || {
        (has(&red, "-6 route show", router) && has(&red, "-6 route show", prefix)).then_some(())
    });
    let clients = Clients::of(&red.netns);
    let client = clients.dhclient("-6", &[]);
    wait_for("the address to come up", LIMIT, || {
        has(&red, "-6 addr show dev eth0", "fd00:1::1/").then_some(())
    });
    // The client's script writes it after the address.
    wait_for("the name server to be entered", LIMIT, || {
        clients.text("etc/resolv.conf").contains("nameserver fd00:1::35").then_some(())
    });
    wait_for("a renewal", LIMIT, || (count(&daemon, "red", "given") >= 2).then_some(()));
    traffic::ping(&red.netns, "fe80::5eff:fe00:64%eth0", 56, 3);
    assert!(count(&daemon, "red", "advertised") >= 1);
    assert_eq!(count(&daemon, "red", "refused"), 0);
    drop(client);
    daemon.stop();
}

/// A container on a macvlan interface in a tenant's machine, with the MAC address and the address that the vNIC is allowed.
#[test]
fn services_a_station_nested_in_a_vnic_hears_advertisements() {
    let lab = Lab::new(Family::V4);
    let red = bare_tenant(&lab, "red", pair::MACS[0], &["fd00:1::1/64"]);
    red.netns.sysctl(&["net.ipv6.conf.eth0.accept_ra=0"]);
    let subnet = "[[subnet]]\nvpc = \"red\"\nprefix = \"fd00:1::/64\"\nra = {}\n";
    let nested = "02:00:00:00:0f:50";
    let allowed = format!("allowed = [{{ ip = \"fd00:1::50\", mac = \"{nested}\" }}]\n");
    let network = vpc("red", pair::VNIS[0], &[], "") + subnet;
    let daemon = Daemon::start(&lab.host, &[lab.uplink(""), network, veth(&red), allowed].concat());
    red.netns.ip(&format!("link add link eth0 name nested address {nested} type macvlan mode bridge"));
    red.netns.sysctl(&["net.ipv6.conf.nested.accept_ra=2", "net.ipv6.conf.nested.router_solicitations=3"]);
    red.netns.ip("link set nested up");
    wait_for("a default route of the nested station", LIMIT, || {
        has(&red, "-6 route show dev nested", "default via fe80::5eff:fe00:64").then_some(())
    });
    assert!(!has(&red, "-6 route show dev eth0", "default"), "the machine itself asked for nothing");
    daemon.stop();
}
