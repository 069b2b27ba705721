//! What neighbours of the underlay say while more is said than control takes in. DPDK runs once per process, so each test wants a process of
//! its own.

use pipelines::event::Claim;
use wire::MacAddr;

use super::*;
use crate::switch::testing;
use crate::topology::underlay::NeighbourState;

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
