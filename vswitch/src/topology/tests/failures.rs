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
    fn at(vip: &str) -> String {
        format!("location[vni=1,vip={vip}].vtep")
    }
    type Check = fn(&TopologyError) -> bool;
    let cases: [(Config, Check); 6] = [
        (
            unreachable,
            |error| matches!(error, TopologyError::NoRoute { path, .. } if *path == at("10.97.0.3")),
        ),
        (own, |error| matches!(error, TopologyError::OwnVtep { path, .. } if *path == at("10.97.0.3"))),
        (
            multicast,
            |error| matches!(error, TopologyError::NotUnicast { path, .. } if *path == at("10.97.0.3")),
        ),
        (unknown, |error| matches!(error, TopologyError::UnknownVni { .. })),
        (local, |error| matches!(error, TopologyError::LocalVip { .. })),
        (other(4), |error| matches!(error, TopologyError::VltFull { entries: 5, path } if !path.is_empty())),
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
    let path = "location[vni=1,vip=10.97.0.3]".to_owned();
    assert_eq!(error, TopologyError::VltFull { entries: 6, path });
    lab.topology.commit();
    assert_eq!((lab.decisions(), lab.used()), (before, used));
    assert_eq!(lab.topology.locations().count(), 2);
}

/// What a config may not have, no command may make: it would be saved and could not be read back.
#[test]
fn repair_a_location_that_no_file_may_have_is_refused_at_run_time() {
    let mut lab = Lab::new(64);
    let now = with(&[]);
    lab.set(&now);
    let good = LocationConfig { vip: ip(b'a', 7), ..now.locations[0].clone() };
    let mut wrong = Vec::new();
    for vip in ["224.0.0.5", "127.0.0.1", "0.0.0.0", "255.255.255.255", "ff02::1", "::1"] {
        wrong.push(LocationConfig { vip: vip.parse().unwrap(), ..good.clone() });
    }
    for mac in [MacAddr::BROADCAST, MacAddr::ZERO, MacAddr([1, 0, 0, 0, 0, 2])] {
        wrong.push(LocationConfig { mac, ..good.clone() });
    }
    for vtep in ["255.255.255.255", "172.16.0.1", "224.0.0.1", "fd16::2"] {
        wrong.push(LocationConfig { vtep: vtep.parse().unwrap(), ..good.clone() });
    }
    for location in &wrong {
        let config = Config { locations: vec![location.clone()], ..now.clone() };
        assert!(config.validate().is_err(), "a file may have {location:?}");
        let error = lab.topology.set_location(&now, location, &lab.neighbours).unwrap_err();
        assert!(matches!(error, TopologyError::Location(_)), "{location:?}: {error}");
    }
    lab.topology.set_location(&now, &good, &lab.neighbours).unwrap();
}
