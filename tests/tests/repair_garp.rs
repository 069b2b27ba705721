//! A next hop of the underlay moves to another machine, and says so: what is sent to it follows at once.
//!
//! ```text
//!  red ── switch ── up0 ══ bridge ══ first  (has the VTEP address, and "redfar" behind it)
//!                             ╚═════ second (has another MAC, and takes both over)
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::steady::Ping;
use tests::{Agent, Daemon, Family, Lab, Netns, lab, netns, pair, wait_for};

/// How long packets may go to the old machine, in echoes: a hundred a second. Without the announcement it is half a minute.
const OUTAGE: i64 = 200;

/// A machine on the bridge that can have the VTEP address; its kernel asks and announces nothing by itself.
fn machine(lab: &Lab, name: &str, mac: &str) -> Netns {
    let machine = Netns::new(name);
    let family = lab.family();
    if family == Family::V6 {
        machine.enable_ipv6();
    }
    netns::cable((&machine, "up0"), (&lab.peer, name), lab::UNDERLAY_MTU);
    machine.ip(&format!("link set up0 address {mac}"));
    lab.peer.ip(&format!("link set {name} master bridge"));
    let (here, there, vni) = (family.local_vtep(), family.remote_vtep(), pair::VNIS[0]);
    machine.ip(&format!("neigh add {here} lladdr {} dev up0 nud permanent", lab.uplink_mac()));
    machine.ip(&format!(
        "link add vx0 address {} mtu {} type vxlan id {vni} dstport 4789 local {there} remote {here} dev up0",
        pair::MACS[2],
        lab::TENANT_MTU
    ));
    // What comes in is for it; what it says of itself would tell the switch too early where it is.
    machine.sysctl(&["net.ipv6.conf.vx0.disable_ipv6=1"]);
    machine.ip(&format!("addr add {} dev vx0", pair::FAR[0]));
    machine.ip(&format!("neigh add 10.0.0.1 lladdr {} dev vx0 nud permanent", pair::MACS[0]));
    machine
}

fn take_over(lab: &Lab, from: Option<&Netns>, to: &Netns) {
    let address = format!("{}/{}", lab.family().remote_vtep(), lab.family().prefix_len());
    if let Some(from) = from {
        from.ip(&format!("addr del {address} dev up0"));
        from.ip("link set vx0 down");
    }
    to.ip(&format!("addr add {address} dev up0"));
    // A device without a local address of its own has to be told that there is one now.
    to.ip("link set vx0 up");
}

fn mac_of_next_hop(daemon: &Daemon) -> String {
    let shown = daemon.json("show neigh");
    shown[0]["mac"].as_str().unwrap_or_else(|| panic!("no MAC: {shown:#}")).to_owned()
}

/// `announcement` is a frame of the second machine; `claims` are others' that change nothing.
fn moves(underlay: Family, announcement: &str, claims: &[&str]) {
    const FIRST: &str = "02:00:00:00:77:01";
    const SECOND: &str = "02:00:00:00:77:02";
    let lab = Lab::new(underlay);
    lab.peer.ip("addr flush dev up0");
    lab.peer.ip("link add bridge mtu 1600 type bridge mcast_snooping 0");
    lab.peer.ip("link set up0 master bridge");
    lab.peer.ip("link set bridge up");
    let red = lab.tenant("red", "red", pair::MACS[0], &pair::NEAR[..1]);
    let (first, second) = (machine(&lab, "first", FIRST), machine(&lab, "second", SECOND));
    take_over(&lab, None, &first);
    let config = [
        lab.uplink(""),
        lab::vpc("red", pair::VNIS[0], &["10.0.0.0/24"], ""),
        red.vnic(),
        lab::location(underlay.remote_vtep(), pair::VNIS[0], pair::MACS[2], &[pair::FAR[0]]),
    ]
    .concat();
    let daemon = Daemon::start(&lab.host, &config);
    red.plug(&lab.host);
    let mut agent = Agent::start(&lab, &[], &[("first_mac", FIRST), ("second_mac", SECOND)]);
    assert_eq!(mac_of_next_hop(&daemon), FIRST);

    let ping = Ping::start(&red.netns, "10.0.0.2");
    let consumed = || daemon.figure("show fwd stats all", "/consumed");
    let before = consumed();
    for claim in claims {
        agent.exchange("peer", &[claim], &[]);
    }
    let claimed = claims.len() as i64;
    wait_for("the claims to be heard", Duration::from_secs(5), || {
        (consumed() - before >= claimed).then_some(())
    });
    assert_eq!(mac_of_next_hop(&daemon), FIRST, "a claim that overrides nothing");
    let (lost, sent) = ping.stop();
    assert_eq!(lost, 0, "of {sent} echoes, while others claimed the address");

    let ping = Ping::start(&red.netns, "10.0.0.2");
    take_over(&lab, Some(&first), &second);
    assert_eq!(mac_of_next_hop(&daemon), FIRST, "nobody has said a word yet");
    agent.exchange("peer", &[announcement], &[]);
    wait_for("the next hop to be where it is", Duration::from_secs(5), || {
        (mac_of_next_hop(&daemon) == SECOND).then_some(())
    });
    tests::traffic::ping(&red.netns, "10.0.0.2", 56, 3);
    let (lost, sent) = ping.stop();
    assert!(lost < OUTAGE, "{lost} of {sent} echoes were lost");
    // Confirmed by unicast, it stays.
    assert_eq!(mac_of_next_hop(&daemon), SECOND);
    daemon.stop();
}

#[test]
fn repair_garp_moves_a_next_hop_at_once() {
    let gratuitous = "Ether(src=second_mac, dst='ff:ff:ff:ff:ff:ff')/ARP(op=1, hwsrc=second_mac, psrc=remote_vtep, hwdst='00:00:00:00:00:00', pdst=remote_vtep)";
    moves(Family::V4, gratuitous, &[]);
}

#[test]
fn repair_garp_of_ipv6_moves_a_next_hop_only_with_override() {
    let advertisement = |over: u8| {
        format!(
            "Ether(src=second_mac, dst='33:33:00:00:00:01')/IPv6(src=remote_vtep, dst='ff02::1', hlim=255)/ICMPv6ND_NA(tgt=remote_vtep, R=0, S=0, O={over})/ICMPv6NDOptDstLLAddr(lladdr=second_mac)"
        )
    };
    moves(Family::V6, &advertisement(1), &[&advertisement(0)]);
}
