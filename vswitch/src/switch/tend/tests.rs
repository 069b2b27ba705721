//! What neighbours of the underlay say while more is said than control takes in, and guests that say something new all the time. DPDK runs
//! once per process, so each test wants a process of its own.

use std::sync::Arc;

use pipelines::Direction;
use pipelines::event::Claim;
use wire::MacAddr;

use super::*;
use crate::switch::testing;
use crate::topology::underlay::NeighbourState;
use crate::view::{flow, qps};

/// More is said than waits for control: whoever it knows is asked, but not again and again.
#[test]
fn neighbours_are_asked_when_what_one_said_was_forgotten() {
    let mut switch = testing::start(
        "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"192.168.0.1/30\"]\n\
         [[vpc]]\nname = \"red\"\nvni = 100\n[[location]]\nvni = 100\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"\n\
         vtep = \"192.168.0.2\"\n",
    );
    let peer = IpAddr::from([192, 168, 0, 2]);
    let say = |switch: &Switch, address: IpAddr| {
        let binding = Binding { address, mac: MacAddr([2, 0, 0, 0, 0, 2]) };
        switch.pool.events.push(Event::Neighbour {
            uplink: 0,
            binding,
            claim: Claim { overrides: true, confirms: true },
        });
    };
    let state = |switch: &Switch| switch.neighbours.list()[0].2.state;
    let flood = |switch: &Switch| (0..5000).for_each(|_| say(switch, [10, 0, 0, 1].into()));
    let now = Instant::now();
    let turn = |switch: &mut Switch, ms: u64| switch.tend(now + Duration::from_millis(ms));
    say(&switch, peer);
    turn(&mut switch, 0);
    assert!(matches!(state(&switch), NeighbourState::Reachable(_)));
    (0..4000).for_each(|_| say(&switch, [10, 0, 0, 1].into()));
    turn(&mut switch, 20);
    assert!(matches!(state(&switch), NeighbourState::Reachable(_)), "all was heard");
    flood(&switch);
    turn(&mut switch, 40);
    assert!(matches!(state(&switch), NeighbourState::Stale(_)));
    flood(&switch);
    turn(&mut switch, 60);
    say(&switch, peer);
    turn(&mut switch, 80);
    assert!(matches!(state(&switch), NeighbourState::Reachable(_)), "not again so soon");
    turn(&mut switch, 1060);
    assert!(matches!(state(&switch), NeighbourState::Stale(_)), "but it is not forgotten");
    switch.stop();
}

/// A guest that says of an address in every turn that it has another MAC now, and another guest that announces one once in a while.
#[test]
fn guard_a_guest_does_not_have_snapshots_made_all_the_time() {
    let vnic = |name: &str, host: u8, allowed: &str| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:0{host}\"\nvips = [\"10.0.0.{host}\"]\n\
             allowed = [{allowed}]\nport = {{ kind = \"null\" }}\n"
        )
    };
    let network = "[[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";
    let virtual_mac = MacAddr([0, 0, 0x5e, 0, 1, 1]);
    let pair = "{ ip = \"10.0.0.100\" }, { ip = \"10.0.0.100\", mac = \"00:00:5e:00:01:01\" }";
    let vnics = [vnic("storm", 1, pair), vnic("calm", 2, "{ ip = \"10.0.0.128/25\" }")].concat();
    let mut switch = testing::start(&(network.to_owned() + &vnics));
    let index = |switch: &Switch, name| switch.topology.vnic(name).unwrap().index;
    let (storm, calm) = (index(&switch, "storm"), index(&switch, "calm"));
    let say = |switch: &Switch, vnic, address: u8, mac| {
        switch.pool.events.float(vnic, Binding { address: [10, 0, 0, address].into(), mac }, true);
    };
    let own = |host| MacAddr([2, 0, 0, 0, 0, host]);
    let start = Instant::now() + FLOAT_EVERY;
    let at = |switch: &Switch| {
        switch.topology.floating().find(|(vnic, _)| vnic.index == storm).map(|(_, at)| at.mac)
    };
    let (mut moves, mut snapshots) = (0, 0);
    for turn in 0..250u32 {
        let (before, mac) = (switch.snapshot().clone(), at(&switch));
        say(&switch, storm, 100, if mac == Some(own(1)) { virtual_mac } else { own(1) });
        if turn % 50 == 10 {
            say(&switch, calm, 128 + turn as u8 / 2, own(2));
        }
        switch.tend(start + Duration::from_millis(20) * turn);
        moves += u32::from(at(&switch) != mac);
        snapshots += u32::from(!Arc::ptr_eq(&before, switch.snapshot()));
        if turn % 50 == 16 {
            let known = switch.topology.floating().filter(|(vnic, _)| vnic.index == calm).count();
            assert_eq!(known as u32, turn / 50 + 1, "it does not wait");
        }
    }
    // Five seconds: five rounds at once, and then one in each of them; as many as the turns allow would be fifty.
    assert!((8..=11).contains(&moves) && snapshots <= moves + 5, "{moves} moves, {snapshots} snapshots");
    switch.stop();
}

#[test]
fn control_does_what_cannot_wait_between_two_pages_of_a_list() {
    let mut switch = testing::start("");
    let due =
        |switch: &mut Switch| switch.tended = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    due(&mut switch);
    flow::each(&mut switch, |_, _, _| {}).unwrap();
    assert!(switch.tended.elapsed() < Duration::from_secs(1), "flows");
    due(&mut switch);
    qps::all(&mut switch, Direction::Out, |_| true).unwrap();
    assert!(switch.tended.elapsed() < Duration::from_secs(1), "queue pairs");
    switch.stop();
}
