//! A trunk port, both as a tap and as a cable: two tenants with the same addresses behind VLANs of one port. Each VLAN leads
//! to its own VPC and from there to its own VNI, the way back ends on the right VLAN, and what is on none has a name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use tests::{Agent, Counters, Daemon, Family, Lab, Netns, lab, netns, runtime};

const RED: &str = "02:00:00:00:0a:01";
const BLUE: &str = "02:00:00:00:0b:01";
const RED_FAR: &str = "02:00:00:00:0a:02";
const BLUE_FAR: &str = "02:00:00:00:0b:02";

struct Trunk {
    daemon: Daemon,
    agent: Agent,
    _machine: Netns,
    _lab: Lab,
}

fn start(tap: bool, workers: &str) -> Trunk {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    lab.peer.sysctl(&["net.ipv6.conf.all.disable_ipv6=1"]);
    let machine = Netns::new("machine");
    let kind = if tap { "tap" } else { "af-packet" };
    if !tap {
        netns::cable((&machine, "eth0"), (&lab.host, "trunk0"), 1500);
    }
    let vnic = |name: &str, vpc: &str, mac: &str, vlan: u16| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"{mac}\"\nvips = [\"10.0.0.1\"]\nmtu = 1450\nport = \"trunk\"\nvlan = {vlan}\n"
        )
    };
    let vtep = Family::V4.remote_vtep();
    let neighbour = format!("neighbours = [{{ ip = \"{vtep}\", mac = \"{}\" }}]", lab.peer_mac());
    let config = [
        lab.uplink(&neighbour),
        format!("[[trunk]]\nname = \"trunk\"\nport = {{ kind = \"{kind}\", iface = \"trunk0\" }}\n"),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        lab::vpc("blue", 200, &["10.0.0.0/24"], ""),
        vnic("red1", "red", RED, 11),
        vnic("blue1", "blue", BLUE, 21),
        lab::location(vtep, 100, RED_FAR, &["10.0.0.2"]),
        lab::location(vtep, 200, BLUE_FAR, &["10.0.0.2"]),
        workers.to_owned(),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    if tap {
        lab.host.ip(&format!("link set trunk0 netns {}", machine.name()));
        machine.ip("link set trunk0 name eth0");
        machine.ip("link set eth0 up");
    }
    daemon.settled();
    let names = [("red", RED), ("blue", BLUE), ("red_far", RED_FAR), ("blue_far", BLUE_FAR)];
    let agent = Agent::start(&lab, &[("trunk", &machine)], &names);
    Trunk { daemon, agent, _machine: machine, _lab: lab }
}

impl Trunk {
    /// What comes out at `watch` for frames from `from`, with the drops by reason.
    fn send(&mut self, from: &str, frames: &[String], watch: &str) -> (Vec<Value>, Vec<(String, i64)>) {
        let before = self.daemon.counters();
        let exchange = self.agent.exchange(from, frames, &[watch]);
        (exchange.on(watch).to_vec(), drops(&self.daemon.counters(), &before))
    }
}

fn drops(after: &Counters, before: &Counters) -> Vec<(String, i64)> {
    let moved = after.since(before);
    moved.into_iter().filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?.to_owned(), n))).collect()
}

/// A tenant's datagram on a VLAN, with priority bits that nobody but the tenant's own link may care for.
fn tagged(who: &str, vlan: u16, text: &str) -> String {
    format!(
        "Ether(src={who}, dst={who}_far)/Dot1Q(vlan={vlan}, prio=5)/IP(src='10.0.0.1', dst='10.0.0.2')/UDP(sport=7, dport=8)/Raw(b'{text}')"
    )
}

/// A datagram of a far machine in the tunnel of a VNI.
fn tunnelled(who: &str, vni: u32, text: &str) -> String {
    format!(
        "outer(vxlan({vni}, Ether(src={who}_far, dst={who})/IP(src='10.0.0.2', dst='10.0.0.1')/UDP(sport=8, dport=7)/Raw(b'{text}')))"
    )
}

fn hex(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

fn whole(tap: bool, workers: &str) {
    let mut trunk = start(tap, workers);
    for (who, vlan, vni, mac) in [("red", 11, 100, RED), ("blue", 21, 200, BLUE)] {
        // Out: the VLAN's own VNI, the tag gone.
        let (seen, dropped) = trunk.send("trunk", &[tagged(who, vlan, who)], "peer");
        let [fact] = seen.as_slice() else { panic!("{who}: {seen:#?} {dropped:?}") };
        assert_eq!(fact["vni"], vni, "{fact}");
        assert_eq!(fact["inner"]["src"], mac, "{fact}");
        assert_eq!(fact["inner"]["vlans"], serde_json::json!([]), "{fact}");
        assert_eq!(fact["inner"]["payload"], hex(who), "{fact}");
        assert_eq!(fact["inner"]["l4_sum_ok"], true, "{fact}");
        assert_eq!(dropped, []);
        // Back: the VNI's own VLAN, the tag on.
        let (seen, dropped) = trunk.send("peer", &[tunnelled(who, vni, who)], "trunk");
        let [fact] = seen.as_slice() else { panic!("{who}: {seen:#?} {dropped:?}") };
        assert_eq!(fact["vlans"], serde_json::json!([vlan]), "{fact}");
        assert_eq!(fact["dst"], mac, "{fact}");
        assert_eq!(fact["payload"], hex(who), "{fact}");
        assert_eq!(fact["l4_sum_ok"], true, "{fact}");
        assert_eq!(dropped, []);
        // The virtual network's ARP is answered on the VLAN that asked, with the MAC of that VPC's machine.
        let question = format!(
            "Ether(src={who}, dst='ff:ff:ff:ff:ff:ff')/Dot1Q(vlan={vlan})/ARP(hwsrc={who}, psrc='10.0.0.1', pdst='10.0.0.2')"
        );
        let answer = trunk.agent.exchange_with_discovery("trunk", &[&question], &["trunk"]);
        let [fact] = answer.on("trunk") else { panic!("{answer:?}") };
        let far = if who == "red" { RED_FAR } else { BLUE_FAR };
        assert_eq!((&fact["vlans"], &fact["src"]), (&serde_json::json!([vlan]), &far.into()), "{fact}");
        // The answer itself tells the same MAC: sender hardware address, behind eight bytes of ARP header.
        assert_eq!(fact["payload"].as_str().unwrap()[16..28], far.replace(':', ""), "{fact}");
    }
    // A VLAN that carries nobody, none at all, priority only, and a service tag in front: nobody's.
    let untagged = "Ether(src=red, dst=red_far)/IP(src='10.0.0.1', dst='10.0.0.2')/UDP()".to_owned();
    let service =
        "Ether(src=red, dst=red_far, type=0x88a8)/Dot1Q(vlan=11)/IP(src='10.0.0.1', dst='10.0.0.2')/UDP()"
            .to_owned();
    let mut nobody = vec![tagged("red", 99, "x"), untagged, tagged("red", 0, "x")];
    if tap {
        // A packet socket's driver hands on every tag as a customer's (0x8100): only a tap shows what it was.
        nobody.push(service);
    }
    let (seen, dropped) = trunk.send("trunk", &nobody, "peer");
    assert!(seen.is_empty(), "{seen:#?}");
    assert_eq!(dropped, [("vlan-unbound".to_owned(), nobody.len() as i64)]);
    // A tenant on its neighbour's VLAN is not who it says, and a tag within the VLAN is a tenant's own.
    let (seen, dropped) = trunk.send("trunk", &[tagged("red", 21, "x"), tagged("blue", 11, "x")], "peer");
    assert!(seen.is_empty(), "{seen:#?}");
    assert_eq!(dropped, [("guard-mac".to_owned(), 2)]);
    let double = tagged("red", 11, "x").replace("/IP(", "/Dot1Q(vlan=21)/IP(");
    let (seen, dropped) = trunk.send("trunk", &[double], "peer");
    assert!(seen.is_empty(), "{seen:#?}");
    assert_eq!(dropped, [("inner-vlan".to_owned(), 1)]);
    // A tenant that goes leaves its VLAN to nobody, and the other alone.
    trunk.daemon.ctl("vnic del red1");
    let (seen, dropped) = trunk.send("trunk", &[tagged("red", 11, "x"), tagged("blue", 21, "y")], "peer");
    assert_eq!(seen.len(), 1, "{seen:#?}, dropped {dropped:?}");
    assert_eq!(seen[0]["vni"], 200);
    assert_eq!(dropped, [("vlan-unbound".to_owned(), 1)]);
    // And the trunk itself cannot go as long as somebody is on it.
    let error = trunk.daemon.try_ctl("port detach trunk").unwrap_err();
    assert!(error.contains("blue1"), "{error}");
    trunk.daemon.ctl("vnic add red2 vpc red mac 02:00:00:00:0a:03 vips 10.0.0.3 mtu 1450 vlan 11 port trunk");
    let (seen, dropped) = trunk.send("trunk", &[tagged("red", 11, "x")], "peer");
    assert!(seen.is_empty(), "{seen:#?}");
    assert_eq!(dropped, [("guard-mac".to_owned(), 1)], "the VLAN's new vNIC has another MAC");
    trunk.daemon.stop();
}

#[test]
fn runtime_trunk_on_a_tap_keeps_tenants_apart() {
    whole(true, "");
}

#[test]
fn runtime_trunk_on_a_cable_keeps_tenants_apart() {
    whole(false, runtime::TWO_WORKERS);
}
