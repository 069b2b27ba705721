//! Which VTEPs are heard, and in which networks.

use super::*;

/// Names of the VPCs in which a host's VTEP is heard, of `a` (VNI 1) and `b` (VNI 2).
fn heard(lab: &Lab, host: u8) -> Vec<&'static str> {
    let snapshot = lab.topology.snapshot();
    let Some(found) = snapshot.vteps.find(vtep(host)) else { return Vec::new() };
    let of = |vni| snapshot.vteps.network(found, vni, &snapshot.vnis);
    [("a", 1), ("b", 2)].into_iter().filter(|&(_, vni)| of(vni).is_some()).map(|(name, _)| name).collect()
}

#[test]
fn repair_a_vtep_is_heard_in_the_networks_that_know_it() {
    let mut lab = Lab::new(64);
    // a routes to b: b's stations send into a, those of a do not into b.
    lab.set(&with(&[]));
    assert_eq!((heard(&lab, 2), heard(&lab, 3), heard(&lab, 4)), (vec!["a"], vec!["a", "b"], vec![]));
    lab.set(&with(&[location(2, b'b', 3, 3, 4)]));
    assert_eq!(heard(&lab, 4), ["a", "b"]);
    let number = lab.topology.snapshot().vteps.find(vtep(4));
    lab.set(&with(&[]));
    assert!(heard(&lab, 4).is_empty());
    // Another VTEP, or the same again, has another number.
    lab.set(&with(&[location(2, b'b', 3, 3, 4)]));
    assert_ne!(lab.topology.snapshot().vteps.find(vtep(4)), number);
    // A gateway is heard where the route is; what the config lists is heard everywhere.
    let gateway = "routes = [{ to = \"0.0.0.0/0\", vtep = \"172.16.0.5\", mac = \"02:00:00:00:08:08\" }]";
    let parts = [vec![vpc("a", 1, gateway), vpc("b", 2, "")], base()[2..].to_vec()].concat();
    lab.set(&config(&parts));
    assert_eq!((heard(&lab, 5), heard(&lab, 3)), (vec!["a"], vec!["b"]));
    let mut listed = config(&parts);
    listed.uplinks[0].peers = vec![vtep(6), vtep(5)];
    let tunnels = {
        let mut cells = [lab.all_cells("a", &[]), lab.all_cells("b", &[])].concat();
        cells.sort_unstable();
        cells
    };
    assert_eq!(lab.cells_after(&listed), tunnels, "stations behind them need no location");
    assert_eq!((heard(&lab, 5), heard(&lab, 6)), (vec!["a", "b"], vec!["a", "b"]));
    assert_eq!(lab.cells_after(&config(&parts)), tunnels);
    assert_eq!((heard(&lab, 5), heard(&lab, 6)), (vec!["a"], vec![]));
}

#[test]
fn repair_slots_say_behind_which_vtep_their_station_is() {
    let mut lab = Lab::new(64);
    lab.set(&with(&[]));
    let number = |lab: &Lab, host| lab.topology.snapshot().vteps.find(vtep(host)).unwrap().number();
    let slot = lab.slot("a", 2);
    let behind = |lab: &Lab| lab.topology.snapshot().vlt.vtep_of(slot.slot);
    assert_eq!(behind(&lab), number(&lab, 2));
    lab.hear(2, 7);
    assert_eq!(behind(&lab), number(&lab, 2));
    let mut moved = base();
    moved[4] = location(1, b'a', 2, 2, 7);
    lab.set(&config(&moved));
    assert_eq!((lab.slot("a", 2), behind(&lab)), (slot, number(&lab, 7)));
    assert_eq!(lab.topology.snapshot().vlt.vtep_of(lab.slot("a", 1).slot), 0, "a vNIC of this host");
}
