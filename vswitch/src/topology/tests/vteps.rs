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

/// VTEPs to which a VPC floods, in order; a copy goes to each entry.
fn flooded(lab: &Lab, name: &str) -> Vec<IpAddr> {
    let list = lab.vpc(name).flood_slots.clone();
    let mut vteps: Vec<IpAddr> =
        list.iter().map(|slot| lab.topology.draft.remotes[&slot.slot].vtep).collect();
    vteps.sort_unstable();
    vteps
}

#[test]
fn bum_each_vtep_is_in_the_list_once_however_it_is_known() {
    let mut lab = Lab::new(64);
    let listing = |vteps: &str| {
        let more = format!("flood = true\nvteps = [{vteps}]");
        let parts = [vec![vpc("a", 1, &more), vpc("b", 2, "flood = true")], base()[2..].to_vec()].concat();
        let mut config =
            config(&[parts, vec![location(1, b'a', 4, 4, 2), location(1, b'a', 5, 5, 6)]].concat());
        config.uplinks[0].peers = vec![vtep(6), vtep(7)];
        config
    };
    // 2: two locations and the list; 6: a location, the list and the uplink's peers; 5: the list alone; 7: a peer alone.
    lab.set(&listing("\"172.16.0.2\", \"172.16.0.5\", \"172.16.0.6\""));
    assert_eq!(flooded(&lab, "a"), [2, 5, 6, 7].map(vtep));
    assert_eq!(flooded(&lab, "b"), [3, 6, 7].map(vtep), "another network's list is its own");
    let used = lab.used();
    lab.set(&listing("\"172.16.0.2\""));
    assert_eq!((flooded(&lab, "a"), lab.used()), ([2, 6, 7].map(vtep).to_vec(), used - 1));
    lab.set(&listing(""));
    assert_eq!((flooded(&lab, "a"), lab.used()), ([2, 6, 7].map(vtep).to_vec(), used - 1));
}

#[test]
fn bum_a_vtep_of_a_networks_list_speaks_there_and_nowhere_else() {
    for (flood, strangers) in [("flood = true\n", true), ("", false)] {
        let mut lab = Lab::new(64);
        // a routes to b, so what b's locations are behind is heard in a.
        let routes = "routes = [{ to = \"10.98.0.0/24\", vpc = \"b\" }]";
        let parts = |vteps: &str| {
            let list = format!("{flood}vteps = [{vteps}]");
            config(&[vec![vpc("a", 1, routes), vpc("b", 2, &list)], base()[2..].to_vec()].concat())
        };
        lab.set(&parts(""));
        assert_eq!((heard(&lab, 3), heard(&lab, 8)), (vec!["a", "b"], vec![]));
        let cells = lab.cells_after(&parts("\"172.16.0.8\""));
        let b = lab.vpc("b");
        let touched = if strangers { vec![b.cell, b.topology_cell] } else { Vec::new() };
        assert_eq!((heard(&lab, 8), cells), (vec!["b"], touched));
        let accepted = |lab: &Lab| {
            let snapshot = lab.topology.snapshot();
            let found = snapshot.vteps.find(vtep(8)).unwrap();
            let stranger = IpAddr::from([10, 98, 0, 77]);
            pipelines::reverse_path::of_address(snapshot, &lab.vpc("b"), stranger, found).is_some()
        };
        assert_eq!(accepted(&lab), strangers);
        lab.set(&parts(""));
        assert_eq!(heard(&lab, 8), [] as [&str; 0]);
    }
}

#[test]
fn bum_a_list_beyond_the_budget_is_told_of() {
    let list: Vec<String> = (2..=200).map(|host| format!("\"172.16.0.{host}\"")).collect();
    let more = format!("flood = true\nvteps = [{}]", list.join(", "));
    let mut config =
        config(&[vpc("a", 1, &more), vpc("b", 2, ""), vnic("va", "a", 1), location(1, b'a', 2, 2, 2)]);
    assert_eq!(flood_notes(&config), [] as [String; 0]);
    config.nft.flood_budget = 200;
    assert_eq!(flood_notes(&config), [] as [String; 0], "199 VTEPs, one of them twice, and a vNIC");
    config.nft.flood_budget = 199;
    let notes = flood_notes(&config);
    assert!(
        notes.len() == 1 && notes[0].contains("VPC a") && notes[0].contains("to 200 at least"),
        "{notes:?}"
    );
}

#[test]
fn routing_to_a_peer_that_does_not_lead_back_is_told_of() {
    let to = |net: u8, peer: &str| format!("routes = [{{ to = \"10.{net}.0.0/24\", vpc = \"{peer}\" }}]");
    let notes = |back: &str| peering_notes(&config(&[vpc("a", 1, &to(98, "b")), vpc("b", 2, back)]));
    let told = notes("");
    assert!(
        told.len() == 1 && told[0].contains("VPC a leads to VPC b") && told[0].contains("vpc = \"a\""),
        "{told:?}"
    );
    assert_eq!(notes(&to(97, "a")), [] as [String; 0]);
}

#[test]
fn routing_to_a_vnic_that_may_not_answer_is_told_of() {
    let notes = |more: &str, to: &str| {
        let routes = format!("routes = [{{ to = \"{to}\", vnic = \"va\" }}]");
        let guarded = vnic("va", "a", 1).replace("mac =", &format!("{more}\nmac ="));
        route_notes(&config(&[vpc("a", 1, &routes), guarded]))
    };
    let told = notes("", "169.254.169.254/32");
    assert!(told.len() == 1 && told[0].contains("allowed") && told[0].contains("vNIC va"), "{told:?}");
    assert_eq!(notes("", "10.50.0.0/16").len(), 1);
    for (more, to) in [
        ("allowed = [{ ip = \"169.254.169.254\" }]", "169.254.169.254/32"),
        ("allowed = [{ ip = \"10.48.0.0/12\" }]", "10.50.0.0/16"),
        ("guard = \"off\"", "0.0.0.0/0"),
        ("", "10.97.0.1/32"),
    ] {
        assert_eq!(notes(more, to), [] as [String; 0], "{more}");
    }
    assert_eq!(notes("allowed = [{ ip = \"10.50.0.0/17\" }]", "10.50.0.0/16").len(), 1);
}
