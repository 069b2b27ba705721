//! An attacker beside honest vNICs: each thing it does is dropped by its name and arrives nowhere. And what it may do where it is
//! allowed more: an address that floats between two vNICs, a firewall that nobody guards.
//!
//! ```text
//!  evil ───┐
//!  victim ─┤ switch ── up0 ── "far" (10.0.0.9, fd00:1::9) behind the other VTEP
//!  good ───┘
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::Value;
use tests::counters::{Counters, Moved};
use tests::lab::{Lab, location, vpc};
use tests::steady::Ping;
use tests::{Agent, Daemon, Family, Tenant, traffic, wait_for};

const MACS: [&str; 3] = ["02:00:00:00:0e:01", "02:00:00:00:0e:02", "02:00:00:00:0e:03"];
const FAR: &str = "02:00:00:00:0e:09";
const VIRTUAL: &str = "00:00:5e:00:01:33";
const SUBNETS: [&str; 2] = ["10.0.0.0/24", "fd00:1::/64"];

struct Site {
    daemon: Daemon,
    tenants: Vec<Tenant>,
    lab: Lab,
}

impl Site {
    /// `more`: further lines of the `[[vnic]]`s.
    fn start(flood: bool, more: [&str; 3]) -> Self {
        let lab = Lab::new(Family::V4);
        lab.peer.ip("addr flush dev up0");
        lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
        let tenant = |n: usize, name: &str| {
            let addresses = [format!("10.0.0.{}/24", n + 1), format!("fd00:1::{}/64", n + 1)];
            lab.tenant(name, "red", MACS[n], &[&addresses[0], &addresses[1]])
        };
        let tenants = vec![tenant(0, "evil"), tenant(1, "victim"), tenant(2, "good")];
        let daemon = Daemon::start(&lab.host, &Self::config(&lab, &tenants, flood, more));
        Self { daemon, tenants, lab }
    }

    fn config(lab: &Lab, tenants: &[Tenant], flood: bool, more: [&str; 3]) -> String {
        let neighbour =
            format!("neighbours = [{{ ip = \"{}\", mac = \"{}\" }}]", lab.remote_vtep(), lab.peer_mac());
        let vnics: String =
            tenants.iter().zip(more).map(|(tenant, more)| format!("{}{more}\n", tenant.vnic())).collect();
        let far = location(lab.remote_vtep(), 100, FAR, &["10.0.0.9", "fd00:1::9"]);
        [
            lab.uplink(&neighbour),
            vpc("red", 100, &SUBNETS, if flood { "flood = true" } else { "" }),
            vnics,
            far,
        ]
        .concat()
    }

    fn agent(&self) -> Agent {
        let [evil, victim, good] = &self.tenants[..] else { unreachable!("three tenants") };
        let wires = [("evil", &evil.netns), ("victim", &victim.netns), ("good", &good.netns)];
        let macs = [
            ("evil_mac", MACS[0]),
            ("victim_mac", MACS[1]),
            ("good_mac", MACS[2]),
            ("far_mac", FAR),
            ("virtual_mac", VIRTUAL),
        ];
        Agent::start(&self.lab, &wires, &macs)
    }

    /// The tenants' machines, with no kernel that adds a word.
    fn plug_mute(&self) {
        self.tenants.iter().for_each(|tenant| tenant.plug_mute(&self.lab.host));
    }

    /// Sends frames from the attacker: one drop counter moves from what it was at `before`, and nothing comes out anywhere.
    #[track_caller]
    fn refuses(&self, agent: &mut Agent, before: &mut Counters, frames: &[&str], reason: &str) {
        let seen = agent.exchange_with_discovery("evil", frames, &["victim", "good", "peer"]);
        assert_eq!(seen.sent, frames.len() as i64);
        for wire in ["victim", "good", "peer"] {
            assert_eq!(seen.on(wire), [] as [Value; 0], "{frames:?} on {wire}");
        }
        let after = self.daemon.counters();
        let drops = after.since(before).into_iter().filter(|(path, _)| path.starts_with("fwd.drops."));
        let drops: Vec<_> = drops.collect();
        assert_eq!(drops, [(format!("fwd.drops.{reason}"), seen.sent)], "{frames:?}");
        *before = after;
    }
}

#[test]
fn guard_every_attack_of_a_tenant_is_dropped_by_its_name() {
    attack(false);
}

#[test]
fn guard_every_attack_is_dropped_by_its_name_where_the_vpc_floods() {
    attack(true);
}

fn attack(flood: bool) {
    let site = Site::start(flood, [""; 3]);
    site.plug_mute();
    let mut agent = site.agent();
    let mut counters = site.daemon.counters();
    let ether = "Ether(src=evil_mac, dst=victim_mac)";
    let all = "Ether(src=evil_mac, dst='33:33:00:00:00:01')";
    let arp = |op: u8, mac: &str, claimed: &str| {
        format!(
            "Ether(src=evil_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(op={op}, hwsrc={mac}, psrc='{claimed}', hwdst=victim_mac, pdst='10.0.0.2')"
        )
    };
    let mut refuses = |agent: &mut Agent, frames: &[String], reason: &str| {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        site.refuses(agent, &mut counters, &frames, reason);
    };
    let of = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    // Somebody else's MAC, somebody else's address.
    refuses(
        &mut agent,
        &of(&[
            "Ether(src=good_mac, dst=victim_mac)/IP(src='10.0.0.1', dst='10.0.0.2')/datagram()",
            "Ether(src=far_mac, dst=victim_mac)/IPv6(src='fd00:1::1', dst='fd00:1::2')/datagram()",
            "Ether(src='02:00:5e:00:00:64', dst=victim_mac)/IP(src='10.0.0.1', dst='10.0.0.2')/datagram()",
        ]),
        "guard-mac",
    );
    let spoofs = ["10.0.0.3", "10.0.0.9", "10.0.0.77", "172.16.0.1", "8.8.8.8"];
    refuses(
        &mut agent,
        &spoofs.map(|from| format!("{ether}/IP(src='{from}', dst='10.0.0.2')/datagram()")),
        "guard-vip",
    );
    let spoofs = ["fd00:1::3", "fd00:1::9", "2001:db8::1", "fe80::ff:fe00:e03"];
    refuses(
        &mut agent,
        &spoofs.map(|from| format!("{ether}/IPv6(src='{from}', dst='fd00:1::2')/datagram()")),
        "guard-vip",
    );
    // ARP and neighbour discovery: to ask, to answer, to announce.
    refuses(&mut agent, &[1, 2].map(|op| arp(op, "evil_mac", "10.0.0.3")), "guard-vip");
    refuses(&mut agent, &[arp(1, "evil_mac", "10.0.0.9"), arp(2, "evil_mac", "10.0.0.100")], "guard-vip");
    refuses(&mut agent, &[1, 2].map(|op| arp(op, "good_mac", "10.0.0.1")), "guard-mac");
    let claims = ["fd00:1::3", "fd00:1::9", "fe80::ff:fe00:e03"];
    refuses(&mut agent, &claims.map(|target| format!(
            "{all}/IPv6(src='fd00:1::1', dst='ff02::1', hlim=255)/ICMPv6ND_NA(tgt='{target}', R=0, S=0, O=1)/ICMPv6NDOptDstLLAddr(lladdr=evil_mac)"
        )), "guard-vip");
    // The router's part.
    refuses(
        &mut agent,
        &[
            format!(
                "{all}/IPv6(src='fe80::ff:fe00:e01', dst='ff02::1', hlim=255)/ICMPv6ND_RA(routerlifetime=1800)/ICMPv6NDOptSrcLLAddr(lladdr=evil_mac)"
            ),
            format!(
                "{ether}/IPv6(src='fe80::ff:fe00:e01', dst='fd00:1::2', hlim=255)/ICMPv6ND_Redirect(tgt='fd00:1::1', dst='fd00:1::3')"
            ),
        ],
        "guard-ra",
    );
    // Into the underlay: VxLAN to the other VTEP and to our own, and anything else, by way of the router.
    let router = "Ether(src=evil_mac, dst='02:00:5e:00:00:64')";
    refuses(&mut agent, &["172.16.0.1", "172.16.0.2"].map(|to| {
            format!("{router}/IP(src='10.0.0.1', dst='{to}')/UDP(sport=50000, dport=4789, chksum=0)/Raw(vxlan(100, Ether(src=good_mac, dst=victim_mac)/IP(src='10.0.0.3', dst='10.0.0.2')/datagram()))")
        }), "no-route");
    refuses(
        &mut agent,
        &[format!("{router}/IP(src='10.0.0.1', dst='172.16.0.2')/TCP(dport=22)")],
        "no-route",
    );
    if !flood {
        let machine = "Ether(src=evil_mac, dst=up_mac)";
        refuses(
            &mut agent,
            &[format!(
                "{machine}/IP(src='10.0.0.1', dst='172.16.0.1')/UDP(sport=50000, dport=4789, chksum=0)/Raw(vxlan(100, b''))"
            )],
            "no-location",
        );
    }
    // What nobody forwards.
    let martians = ["127.0.0.1", "224.0.0.1", "169.254.169.254", "240.0.0.1"];
    refuses(
        &mut agent,
        &martians.map(|to| format!("{router}/IP(src='10.0.0.1', dst='{to}')/datagram()")),
        "martian",
    );
    refuses(
        &mut agent,
        &of(&["Ether(src=evil_mac, dst='01:80:c2:00:00:02', type=0x8809)/Raw(bytes(46))"]),
        "reserved-mac",
    );
    refuses(
        &mut agent,
        &of(&[
            "Ether(src=evil_mac, dst=victim_mac)/Dot1Q(vlan=7)/IP(src='10.0.0.1', dst='10.0.0.2')/datagram()",
        ]),
        "inner-vlan",
    );
    refuses(&mut agent, &of(&["Ether(src=evil_mac, dst=victim_mac, type=0x8915)/Raw(bytes(46))"]), "roce-v1");
    // In all of that the same packet in its own name arrives.
    let before = site.daemon.counters();
    let own = ["Ether(src=evil_mac, dst=victim_mac)/IP(src='10.0.0.1', dst='10.0.0.2')/datagram()"];
    assert_eq!(agent.exchange("evil", &own, &["victim"]).on("victim").len(), 1);
    site.daemon.counters().assert_moved(&before, &[("fwd.drops.*", Moved::By(0)), ("*", Moved::Anyhow)]);
    site.daemon.stop();
}

fn announce(agent: &mut Agent, who: &str, mac: &str) {
    let frame = format!(
        "Ether(src={mac}, dst='ff:ff:ff:ff:ff:ff')/ARP(op=1, hwsrc={mac}, psrc='10.0.0.100', hwdst='00:00:00:00:00:00', pdst='10.0.0.100')"
    );
    assert_eq!(agent.exchange(who, &[frame], &[]).sent, 1);
}

fn floats_at(daemon: &Daemon, name: &str) {
    wait_for("the address to be where it was announced", Duration::from_secs(5), || {
        let shown = daemon.json("show vlt");
        let row = shown["locations"].as_array()?.iter().find(|row| row["vip"] == "10.0.0.100")?;
        (row["state"] == "floating" && row["where"] == format!("vnic {name}")).then_some(())
    });
}

#[test]
fn guard_a_floating_address_fails_over_and_a_change_takes_it_back() {
    let allowed = "allowed = [{ ip = \"10.0.0.100\" }]";
    let site = Site::start(false, [allowed, "", allowed]);
    site.tenants.iter().for_each(|tenant| tenant.plug(&site.lab.host));
    let [evil, victim, good] = &site.tenants[..] else { unreachable!("three tenants") };
    let mut agent = site.agent();
    // Both have the address, as after a failure that neither knows of; who says so has it. Their kernels keep silent about it.
    for tenant in [evil, good] {
        tenant.netns.ip("addr add 10.0.0.100/32 dev lo");
        tenant.netns.sysctl(&["net.ipv4.conf.eth0.arp_ignore=1", "net.ipv4.conf.eth0.arp_announce=2"]);
    }
    traffic::no_ping(&victim.netns, "10.0.0.100");
    announce(&mut agent, "good", "good_mac");
    floats_at(&site.daemon, "good");
    traffic::ping(&victim.netns, "10.0.0.100", 56, 3);
    // It moves while it is used: the victim learns the new MAC when the switch is asked.
    let received = |name: &str| site.daemon.figure(&format!("show vnic {name}"), "/0/tx-packets");
    announce(&mut agent, "evil", "evil_mac");
    floats_at(&site.daemon, "evil");
    victim.netns.ip("neigh flush dev eth0");
    let before = received("evil");
    let ping = Ping::start(&victim.netns, "10.0.0.100");
    wait_for("echoes to reach the new one", Duration::from_secs(5), || {
        (received("evil") > before + 50).then_some(())
    });
    let (lost, sent) = ping.stop();
    assert_eq!(lost, 0, "of {sent}");
    // Without the pair the next answer of the flow is refused, what it announces too, and the location is gone.
    let ping = Ping::start(&victim.netns, "10.0.0.100");
    let refused = || {
        let shown = site.daemon.json("show fwd stats all");
        shown.pointer("/drops/guard-vip").and_then(Value::as_i64).unwrap_or(0)
    };
    let before = refused();
    site.daemon.rewrite_config(&Site::config(&site.lab, &site.tenants, false, ["", "", allowed]));
    site.daemon.ctl("config reload");
    let answered = received("victim");
    announce(&mut agent, "evil", "evil_mac");
    wait_for("answers to be refused", Duration::from_secs(5), || (refused() > before + 50).then_some(()));
    assert_eq!(received("victim"), answered, "nothing from there after the reload");
    assert!(!site.daemon.ctl("show vlt").contains("floating"));
    announce(&mut agent, "good", "good_mac");
    floats_at(&site.daemon, "good");
    victim.netns.ip("neigh flush dev eth0");
    wait_for("the other one's answers", Duration::from_secs(5), || {
        (received("victim") > answered + 50).then_some(())
    });
    let (lost, sent) = ping.stop();
    assert!(lost < sent, "it came back");
    traffic::ping(&victim.netns, "10.0.0.100", 56, 3);
    site.daemon.stop();
}

#[test]
fn guard_that_is_off_lets_a_firewall_forward_for_others() {
    // The firewall stands before 192.0.2.1, an address of nobody here, and before a station with a MAC of its own.
    let firewall = format!("guard = \"off\"\nallowed = [{{ ip = \"10.0.0.100\", mac = \"{VIRTUAL}\" }}]");
    let site = Site::start(false, [&firewall, "", ""]);
    site.plug_mute();
    let mut agent = site.agent();
    let through = [
        "Ether(src=evil_mac, dst=victim_mac)/IP(src='192.0.2.1', dst='10.0.0.2')/datagram()",
        "Ether(src='02:00:00:00:0e:77', dst=victim_mac)/IP(src='10.0.0.77', dst='10.0.0.2')/datagram()",
        "Ether(src=good_mac, dst=victim_mac)/IPv6(src='fd00:1::3', dst='fd00:1::2')/datagram()",
    ];
    assert_eq!(agent.exchange("evil", &through, &["victim"]).on("victim").len(), through.len());
    // What the pair places at it is delivered to it, with that MAC.
    announce(&mut agent, "evil", "virtual_mac");
    floats_at(&site.daemon, "evil");
    let back = ["Ether(src=victim_mac, dst=virtual_mac)/IP(src='10.0.0.2', dst='10.0.0.100')/datagram()"];
    assert_eq!(agent.exchange("victim", &back, &["evil"]).on("evil").len(), 1);
    // Still it is no router to others, sends nothing to the underlay, and no group is a source.
    let all =
        "Ether(src=evil_mac, dst='33:33:00:00:00:01')/IPv6(src='fe80::ff:fe00:e01', dst='ff02::1', hlim=255)";
    site.refuses(
        &mut agent,
        &mut site.daemon.counters(),
        &[&format!("{all}/ICMPv6ND_RA(routerlifetime=1800)/ICMPv6NDOptSrcLLAddr(lladdr=evil_mac)")],
        "guard-ra",
    );
    let router = "Ether(src=evil_mac, dst='02:00:5e:00:00:64')/IP(src='172.16.0.2', dst='172.16.0.1')";
    site.refuses(
        &mut agent,
        &mut site.daemon.counters(),
        &[&format!("{router}/UDP(sport=50000, dport=4789, chksum=0)/Raw(vxlan(100, b'x'))")],
        "no-route",
    );
    site.refuses(
        &mut agent,
        &mut site.daemon.counters(),
        &["Ether(src='ff:ff:ff:ff:ff:ff', dst=victim_mac)/IP(src='10.0.0.1', dst='10.0.0.2')/datagram()"],
        "group-source-mac",
    );
    // On again: the known flow is refused from its next packet on.
    site.daemon.rewrite_config(&Site::config(&site.lab, &site.tenants, false, [""; 3]));
    site.daemon.ctl("config reload");
    site.refuses(&mut agent, &mut site.daemon.counters(), &through[..1], "guard-vip");
    site.refuses(&mut agent, &mut site.daemon.counters(), &through[1..], "guard-mac");
    site.daemon.stop();
}
