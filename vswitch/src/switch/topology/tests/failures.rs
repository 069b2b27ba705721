//! A change that fails leaves no trace.

use super::*;

#[test]
fn a_change_that_fails_changes_nothing() {
    // Just room enough: what is put back must not need slots that are not free yet.
    let mut lab = Lab::new(5);
    lab.set(&with(&[]));
    let (before, used, snapshot) = (lab.decisions(), lab.used(), lab.topology.snapshot().clone());
    let mut unreachable = with(&[location(1, b'a', 3, 3, 4)]);
    unreachable.locations[2].vtep = IpAddr::from([192, 0, 2, 1]);
    let mut own = with(&[location(1, b'a', 3, 3, 4)]);
    own.locations[2].vtep = vtep(1);
    let mut multicast = own.clone();
    multicast.locations[2].vtep = IpAddr::from([224, 0, 0, 1]);
    let mut unknown = own.clone();
    (unknown.locations[2].vtep, unknown.locations[2].vni) = (vtep(4), Vni::new(99).unwrap());
    let mut local = own.clone();
    (local.locations[2].vtep, local.locations[2].vip) = (vtep(4), ip(b'a', 1));
    // Everything else changes with it: places move, a VPC goes, another comes.
    let other = |count: u8| {
        let more: Vec<String> = (3..3 + count).map(|host| location(1, b'a', host, host, 5)).collect();
        config(&[vec![vpc("a", 1, "flood = true"), vpc("c", 3, ""), vnic("vc", "c", 1)], more].concat())
    };
    type Check = fn(&TopologyError) -> bool;
    let cases: [(Config, Check); 6] = [
        (unreachable, |error| matches!(error, TopologyError::NoRoute(_))),
        (own, |error| matches!(error, TopologyError::OwnVtep(_))),
        (multicast, |error| matches!(error, TopologyError::NotUnicast(_))),
        (unknown, |error| matches!(error, TopologyError::UnknownVni { .. })),
        (local, |error| matches!(error, TopologyError::LocalVip { .. })),
        (other(4), |error| matches!(error, TopologyError::VltFull(5))),
    ];
    for (config, right) in cases {
        let error = lab.try_set(&config).unwrap_err();
        assert!(right(&error), "{error}");
        assert!(Arc::ptr_eq(&snapshot, lab.topology.snapshot()));
        assert_eq!((lab.decisions(), lab.used()), (before.clone(), used), "{error}");
    }
    assert_eq!(lab.cells_after(&with(&[])), NONE);
    assert_eq!((lab.decisions(), lab.used()), (before.clone(), used));
    // One location alone, where only the slot for flooding is missing.
    let flood = config(&[vec![vpc("a", 1, "flood = true")], base()[1..].to_vec()].concat());
    let mut lab = Lab::new(6);
    lab.set(&flood);
    let (before, used) = (lab.decisions(), lab.used());
    let more = with(&[location(1, b'a', 3, 3, 4)]).locations.remove(2);
    let error = lab.topology.set_location(&flood, &more, &lab.neighbours).unwrap_err();
    assert_eq!(error, TopologyError::VltFull(6));
    lab.topology.commit();
    assert_eq!((lab.decisions(), lab.used()), (before, used));
    assert_eq!(lab.topology.locations().count(), 2);
}
