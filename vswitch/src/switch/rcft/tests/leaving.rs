//! What leaves at once: queue pairs of vNICs that go or are in another network, and of ways that are forbidden.

use super::*;

#[test]
fn what_is_forbidden_leaves_at_once() {
    let mut world = World::new("", "");
    world.opens("one", FAR, 10..15);
    world.opens("one", "10.0.0.2", 10..12);
    world.opens("two", FAR, 10..12);
    world.opens("three", FAR, 10..13);
    // A station that the configuration knows nothing of, bridged by a MAC that it may know.
    world.opens("three", "10.0.0.77", 5..6);
    world.opens("two", "10.0.0.77", 5..6);
    let before = world.topology.snapshot().clone();
    let gone =
        world.topology.remove_location(&world.config, wire::Vni::new(1).unwrap(), ip(FAR), &world.neighbours);
    assert!(gone.unwrap());
    world.topology.commit();
    world.follow(&before);
    assert_eq!((world.used("one"), world.used("two"), world.used("three")), (2, 0, 4));
    assert_eq!(world.kinds(), ["qps-purged", "qps-purged"]);
    let event = world.events.iter().next().unwrap();
    assert_eq!((&event.facts["vnic"], &event.facts["count"]), (&json!("one"), &json!(5)));
    assert_eq!(world.send("one", "10.0.0.2", 10), QpOutcome::Pass);
    // The place is free again, for whoever is allowed.
    world.opens("one", "10.0.0.2", 12..14);
}

const BEYOND: &str = "[[subnet]]\nvpc = \"blue\"\nprefix = \"10.1.0.0/24\"\n[[location]]\nvni = 2\nvip = \"10.1.0.9\"\n\
                      mac = \"02:00:00:00:01:09\"\nvtep = \"172.16.0.2\"\n";

/// A subnet of blue, to which red has no route, or one.
fn closed_and_open() -> [String; 2] {
    let closed = text("", "") + BEYOND;
    let route = "name = \"red\"\nvni = 1\nroutes = [{ to = \"10.1.0.0/24\", vpc = \"blue\" }]";
    let open = closed.replacen("name = \"red\"\nvni = 1", route, 1);
    [closed, open]
}

/// While what a change forbids is taken out, others come in, which the next change forbids.
#[test]
fn what_came_in_between_two_changes_leaves_with_the_second() {
    let mut world = World::new("", "");
    let [closed, open] = closed_and_open().map(|text| {
        world.change(&text);
        world.topology.snapshot().clone()
    });
    let tick = world.tick;
    let key = *key_of(world.index("one"), ip("10.1.0.9"), qp(5)).words();
    let seen = LedgerView { slot: 0, key, born: tick, seen: tick, leaving: false };
    // No more of them are told apart than some.
    for changes in [1, 100] {
        let mut purge = Purge::default();
        for _ in 0..changes {
            purge.begin(&closed, &open, tick);
            assert!(!purge.takes(&seen, &open));
        }
        purge.begin(&open, &closed, tick);
        assert!(purge.takes(&seen, &closed), "after {changes} changes");
    }
}

#[test]
fn what_a_route_brought_leaves_with_it() {
    let [closed, open] = closed_and_open();
    let mut world = World::new("", "");
    world.change(&open);
    world.opens("one", "10.1.0.9", 10..13);
    world.opens("one", FAR, 10..12);
    world.opens("three", "10.1.0.9", 10..12);
    world.change(&open);
    assert_eq!(world.used("one"), 5);
    world.change(&closed);
    assert_eq!((world.used("one"), world.used("three")), (2, 2));
    // Where unknown stations are flooded to, nothing is forbidden by not being known.
    let flooding = closed.replacen("vni = 2", "vni = 2\nflood = true", 1);
    world.change(&flooding);
    let bare = flooding.replacen(&BEYOND[BEYOND.find("[[location]]").unwrap()..], "", 1);
    world.change(&bare);
    assert_eq!(world.used("three"), 2);
}

#[test]
fn a_vnic_that_goes_leaves_nothing_to_the_next_one() {
    let mut world = World::new("", "qp-quota = 3");
    world.opens("one", FAR, 10..13);
    world.opens("two", FAR, 10..12);
    let old = world.index("one");
    let renamed = text("", "qp-quota = 3").replace("\"one\"", "\"uno\"");
    // Both at once: its index is not used again before the places are free.
    let config = Config::parse(&renamed, "test").unwrap();
    world.topology.rebuild(&config, &PORTS, &world.neighbours).unwrap();
    let before = world.topology.snapshot().clone();
    let after = world.topology.commit();
    let quotas = crate::rdma::quotas(&config, &crate::rdma::Devices::default()).unwrap();
    let (gone, concerned) = crate::switch::concerned::testing::all(&before, &after, &config);
    world.control.configure(&config, &quotas, &gone, &concerned);
    let fresh = world.index("uno");
    assert_ne!(fresh, old);
    assert_eq!(world.control.in_use(fresh), 0);
    assert!(world.control.released([old].into_iter()).is_empty(), "not yet");
    world.follow(&before);
    assert_eq!((world.control.in_use(old), world.used("two")), (0, 2));
    world.opens("uno", FAR, 10..13);
    assert_eq!(world.topology.held().count(), 0, "the index can be used again");
    assert_eq!(world.kinds(), ["qps-purged"]);
    assert_eq!(world.events.iter().next().unwrap().facts["vnic"], "one");
}

#[test]
fn a_vnic_that_moves_to_another_vpc_starts_anew() {
    let mut world = World::new("", "");
    world.opens("one", FAR, 10..13);
    world.opens("two", FAR, 10..11);
    world.tick += 1;
    let moved = text("", "").replacen("name = \"one\"\nvpc = \"red\"", "name = \"one\"\nvpc = \"blue\"", 1);
    world.change(&moved);
    assert_eq!((world.used("one"), world.used("two")), (0, 1));
}

/// The names stay, and so do the indices of vNIC and VPC: the machines behind the addresses are others all the same.
#[test]
fn a_vnic_whose_vpc_gets_another_vni_starts_anew() {
    let mut world = World::new("", "");
    world.opens("one", FAR, 10..13);
    world.opens("three", FAR, 10..11);
    world.tick += 1;
    let renumbered = text("", "").replace("vni = 1\n", "vni = 7\n");
    world.change(&renumbered);
    assert_eq!((world.used("one"), world.used("three")), (0, 1));
    world.opens("one", FAR, 10..13);
    world.tick += 1;
    let swapped = renumbered.replace("vni = 7\n", "vni = 0\n").replace("vni = 2\n", "vni = 7\n");
    world.change(&swapped.replace("vni = 0\n", "vni = 2\n"));
    assert_eq!((world.used("one"), world.used("three")), (0, 0));
}
