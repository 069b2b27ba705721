//! The next hop of a tunnel, as long as nobody says where it is, and then when somebody does: packets are dropped by name and nobody
//! is asked more often for that; the right answer lets them pass; wrong ones change nothing; announcements move it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::Value;
use tests::counters::Moved;
use tests::lab::{self, Lab};
use tests::{Agent, Counters, Daemon, Family, Tenant, wait_for};

const MACS: [(&str, &str); 5] = [
    ("red_mac", "02:00:00:00:01:01"),
    ("far_mac", "02:00:00:00:01:02"),
    ("first_mac", "02:00:00:00:77:01"),
    ("second_mac", "02:00:00:00:77:02"),
    ("third_mac", "02:00:00:00:77:03"),
];

struct Site {
    daemon: Daemon,
    agent: Agent,
    _red: Tenant,
    lab: Lab,
}

fn start(underlay: Family, uplink: &str) -> Site {
    let lab = Lab::new(underlay);
    lab.peer.ip("addr flush dev up0");
    lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
    let red = lab.tenant("red", "red", MACS[0].1, &["10.0.0.1/24"]);
    let config = [
        lab.uplink(uplink),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        red.vnic(),
        lab::location(underlay.remote_vtep(), 100, MACS[1].1, &["10.0.0.2"]),
    ]
    .concat();
    let mut daemon = Daemon::start_alone(&lab.host, &config);
    red.plug_mute(&lab.host);
    daemon.settled();
    let names = [MACS.as_slice(), &[("red_ip", "10.0.0.1"), ("far_ip", "10.0.0.2")]].concat();
    let agent = Agent::start(&lab, &[("red", &red.netns)], &names);
    Site { daemon, agent, _red: red, lab }
}

impl Site {
    fn neighbour(&self) -> (String, String) {
        let shown = self.daemon.json("show neigh");
        let text = |name: &str| shown[0][name].as_str().unwrap_or_default().to_owned();
        (text("state"), text("mac"))
    }

    /// Twenty packets of the tenant; what the underlay saw besides, and the counters before and after.
    fn twenty(&mut self) -> (Vec<Value>, Counters, Counters) {
        let before = self.daemon.counters();
        let frames = ["[from_red(datagram('twenty')) for _ in range(20)]"];
        let seen = self.agent.exchange_with_discovery("red", &frames, &["peer"]).on("peer").to_vec();
        (seen, before, self.daemon.counters())
    }

    /// None of them leaves, all are counted; questions go on at their own pace. Returns those that were seen.
    fn assert_held_back(&mut self) -> Vec<Value> {
        let (seen, before, after) = self.twenty();
        let asked = after.get("fwd.originated") - before.get("fwd.originated");
        assert!(seen.iter().all(|fact| fact.get("vni").is_none()), "{seen:#?}");
        // Three in quick succession at most, then one a second; each exchange is shorter than five.
        assert!((0..=5).contains(&asked), "{asked} questions beside twenty packets");
        after.assert_moved(
            &before,
            &[
                ("fwd.received", Moved::By(20)),
                ("fwd.dropped", Moved::By(20)),
                ("fwd.drops.no-neighbour", Moved::By(20)),
                ("fwd.nft-*", Moved::By(20)),
                ("fwd.originated", Moved::By(asked)),
                ("fwd.sent", Moved::By(asked)),
                ("port.up.tx-packets", Moved::By(asked)),
                ("port.red.rx-packets", Moved::By(20)),
                ("port.up.tx-bytes", Moved::Anyhow),
                ("port.red.rx-bytes", Moved::Anyhow),
            ],
        );
        seen
    }

    /// All of them leave, to this station; `vlans` are the tags of the underlay.
    fn assert_passes_to(&mut self, mac: &str, vlans: &[u16]) {
        wait_for("the next hop to be where it is", Duration::from_secs(5), || {
            (self.neighbour().1 == mac).then_some(())
        });
        let (seen, before, after) = self.twenty();
        let tunnelled: Vec<_> = seen.iter().filter(|fact| fact.get("vni").is_some()).collect();
        assert_eq!(tunnelled.len(), 20, "{seen:#?}");
        for fact in tunnelled {
            assert_eq!((&fact["dst"], &fact["vlans"]), (&mac.into(), &serde_json::json!(vlans)), "{fact}");
        }
        // What is in doubt is asked again, by unicast; nobody answers here.
        let asked = after.get("fwd.originated") - before.get("fwd.originated");
        after.assert_moved(
            &before,
            &[
                ("fwd.received", Moved::By(20)),
                ("fwd.encapsulated", Moved::By(20)),
                ("fwd.nft-*", Moved::By(20)),
                ("fwd.originated", Moved::By(asked)),
                ("fwd.sent", Moved::By(20 + asked)),
                ("port.up.tx-packets", Moved::By(20 + asked)),
                ("port.red.rx-packets", Moved::By(20)),
                ("port.up.tx-bytes", Moved::Anyhow),
                ("port.red.rx-bytes", Moved::Anyhow),
            ],
        );
    }

    /// Says something on the underlay, or as the tenant, and waits until the switch has taken it in or dropped it.
    fn say(&mut self, from: &str, message: &str) {
        let before = self.daemon.counters();
        self.agent.exchange(from, &[message], &[]);
        wait_for("the message to be heard", Duration::from_secs(5), || {
            let now = self.daemon.counters();
            let done = |name: &str| now.get(name) - before.get(name);
            (done("fwd.consumed") + done("fwd.dropped") + done("fwd.decapsulated") > 0).then_some(())
        });
    }
}

fn arp(op: u8, mac: &str, source: &str, target: &str, tag: &str) -> String {
    format!(
        "Ether(src={mac}, dst=up_mac){tag}/ARP(op={op}, hwsrc={mac}, psrc={source}, hwdst=up_mac, pdst={target})"
    )
}

#[test]
fn conformance_neighbours_of_an_ipv4_underlay() {
    let mut site = start(Family::V4, "");
    let mut questions = Vec::new();
    wait_for("a question", Duration::from_secs(10), || {
        questions = site.assert_held_back();
        (!questions.is_empty()).then_some(())
    });
    let uplink = site.lab.uplink_mac().replace(':', "");
    for question in &questions {
        assert_eq!((&question["type"], &question["dst"]), (&0x0806.into(), &"ff:ff:ff:ff:ff:ff".into()));
        let wanted = format!("0001080006040001{uplink}ac100001000000000000ac100002");
        assert!(question["payload"].as_str().unwrap().starts_with(&wanted), "{question}");
    }
    // Another address, and the right one in a place that has no say: the tenant's network.
    site.say("peer", &arp(2, "third_mac", "'172.16.0.77'", "local_vtep", ""));
    site.say("red", &arp(2, "red_mac", "remote_vtep", "local_vtep", ""));
    let inside = arp(2, "far_mac", "remote_vtep", "local_vtep", "");
    site.say("peer", &format!("outer(vxlan(100, {inside}))"));
    site.assert_held_back();
    assert_eq!(site.neighbour(), ("incomplete".to_owned(), String::new()));
    // The answer.
    site.say("peer", &arp(2, "first_mac", "remote_vtep", "local_vtep", ""));
    site.assert_passes_to(MACS[2].1, &[]);
    // It moves: a gratuitous request, then a gratuitous reply.
    site.say(
        "peer",
        &arp(1, "second_mac", "remote_vtep", "remote_vtep", "").replace("up_mac", "'ff:ff:ff:ff:ff:ff'"),
    );
    site.assert_passes_to(MACS[3].1, &[]);
    site.say(
        "peer",
        &arp(2, "first_mac", "remote_vtep", "remote_vtep", "").replace("up_mac", "'ff:ff:ff:ff:ff:ff'"),
    );
    site.assert_passes_to(MACS[2].1, &[]);
    // A packet of the tunnel is data and says nothing of neighbours.
    site.say("peer", "outer(vxlan(100, from_far(datagram())), ether={'src': third_mac})");
    site.assert_passes_to(MACS[2].1, &[]);
    let Site { daemon, agent, .. } = site;
    drop(agent);
    daemon.stop();
}

#[test]
fn conformance_neighbours_of_an_ipv4_underlay_in_a_vlan() {
    let mut site = start(Family::V4, "vlan = 10");
    site.assert_held_back();
    for tag in ["", "/Dot1Q(vlan=11)"] {
        site.say("peer", &arp(2, "third_mac", "remote_vtep", "local_vtep", tag));
        site.assert_held_back();
    }
    site.say("peer", &arp(2, "first_mac", "remote_vtep", "local_vtep", "/Dot1Q(vlan=10)"));
    site.assert_passes_to(MACS[2].1, &[10]);
    site.say("peer", &arp(2, "third_mac", "remote_vtep", "local_vtep", "/Dot1Q(vlan=11)"));
    site.assert_passes_to(MACS[2].1, &[10]);
    let Site { daemon, agent, .. } = site;
    drop(agent);
    daemon.stop();
}

fn advertisement(mac: &str, target: &str, over: u8) -> String {
    format!(
        "Ether(src={mac}, dst=up_mac)/IPv6(src={target}, dst=local_vtep, hlim=255)/ICMPv6ND_NA(tgt={target}, R=0, S={}, O={over})/ICMPv6NDOptDstLLAddr(lladdr={mac})",
        u8::from(over == 0)
    )
}

#[test]
fn conformance_neighbours_of_an_ipv6_underlay() {
    let mut site = start(Family::V6, "");
    let mut questions = Vec::new();
    wait_for("a question", Duration::from_secs(10), || {
        questions = site.assert_held_back();
        (!questions.is_empty()).then_some(())
    });
    for question in &questions {
        let wanted = ("ff02::1:ff00:2", 255, "33:33:ff:00:00:02");
        let fact = (&question["ip_dst"], &question["ttl"], &question["dst"]);
        assert_eq!(fact, (&wanted.0.into(), &wanted.1.into(), &wanted.2.into()), "{question}");
        // A solicitation for the other VTEP.
        let payload = question["payload"].as_str().unwrap();
        assert!(payload.starts_with("8700") && payload[16..48].starts_with("fd00"), "{question}");
    }
    site.say("peer", &advertisement("third_mac", "'fd00::77'", 0));
    // From farther away than the link (RFC 4861 section 7.1.2).
    site.say("peer", &advertisement("third_mac", "remote_vtep", 0).replace("hlim=255", "hlim=254"));
    site.assert_held_back();
    assert_eq!(site.neighbour(), ("incomplete".to_owned(), String::new()));
    site.say("peer", &advertisement("first_mac", "remote_vtep", 0));
    site.assert_passes_to(MACS[2].1, &[]);
    site.say("peer", &advertisement("second_mac", "remote_vtep", 1));
    site.assert_passes_to(MACS[3].1, &[]);
    site.say("peer", "outer(vxlan(100, from_far(datagram())), ether={'src': third_mac})");
    site.assert_passes_to(MACS[3].1, &[]);
    let Site { daemon, agent, .. } = site;
    drop(agent);
    daemon.stop();
}
