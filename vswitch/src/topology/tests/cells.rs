//! Which generations a change counts up: those of what it touches, and no others.

use super::*;

#[test]
fn indices_and_cells_are_stable_and_reused_ones_inherit_nothing() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let (a, b) = (lab.vpc("a"), lab.vpc("b"));
    assert_ne!(a.index, b.index);
    assert_eq!(lab.cells_after(&with(&[])), NONE);
    assert_eq!((lab.vpc("a"), lab.vpc("b")), (a, b.clone()));
    let cached: Vec<_> = keys(lab.topology.snapshot())
        .into_iter()
        .map(|(who, key)| (who, decide(lab.topology.snapshot(), &key)))
        .filter(|(who, _)| who.contains("vpc b") || who.contains("vnic vb"))
        .collect();
    let other = config(&[vpc("a", 1, ""), vpc("c", 3, ""), vnic("va", "a", 1), vnic("vc", "c", 1)]);
    lab.set(&other);
    assert_ne!(lab.vpc("c").index, b.index, "workers still know the index as that of b");
    lab.set(&with(&[]));
    lab.set(&config(&[]));
    lab.set(&other);
    assert_eq!(lab.vpc("c").index, b.index, "the index is used again");
    for (who, action) in cached {
        assert!(!valid(&lab, &action), "{who} outlived its owner");
    }
}

#[test]
fn outer_source_ports_of_another_choice_make_every_decision_stale() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let mut all = [lab.all_cells("a", &["va"]), lab.all_cells("b", &["vb"])].concat();
    all.sort_unstable();
    let hash = |port: u16| {
        let learned = pipelines::encap_hash::EncapHash::learn(4791, 1, |inner| Ok(inner.source_port ^ port));
        Some(Arc::new(learned.unwrap()))
    };
    for (hash, stale) in [(hash(1), &all), (hash(1), &vec![]), (hash(2), &all), (None, &all), (None, &vec![])]
    {
        lab.topology.set_encap_hash(hash.clone());
        assert_eq!(&lab.cells_after(&with(&[])), stale);
        assert_eq!(lab.topology.snapshot().encap_hash, hash);
    }
}

#[test]
fn a_change_bumps_its_cells_and_no_others() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let of_b = lab.all_cells("b", &["vb"]);
    let mut of_both = [lab.all_cells("a", &["va"]), of_b.clone()].concat();
    of_both.sort_unstable();
    let mut topologies = vec![lab.vpc("a").topology_cell, lab.vpc("b").topology_cell];
    topologies.sort_unstable();
    // A location comes: to the VPC, and to the one that routes to it.
    let added = location(2, b'b', 3, 3, 3);
    assert_eq!(lab.cells_after(&with(std::slice::from_ref(&added))), topologies);
    let slot = lab.slot("b", 3);
    let place = lab.place(slot);
    // It moves.
    assert_eq!(lab.cells_after(&with(&[location(2, b'b', 3, 3, 4)])), NONE);
    lab.hear(4, 4);
    assert_eq!(lab.slot("b", 3), slot);
    assert_ne!(lab.place(slot), place);
    assert!(matches!(lab.place(slot), Place::Remote(_)));
    // Its MAC address changes; it goes.
    assert_eq!(lab.cells_after(&with(&[location(2, b'b', 3, 4, 4)])), of_both);
    let mut tunnels = [lab.all_cells("a", &[]), lab.all_cells("b", &[])].concat();
    tunnels.sort_unstable();
    assert_eq!(lab.cells_after(&with(&[])), tunnels, "its packets were accepted out of the tunnel");
    assert_ne!(lab.topology.writer.table().read(slot.slot).generation, slot.generation);
    // Only the VPC itself looks at its flooding. Its subnets say whose an address is, which those ask that send to it.
    let flood =
        config(&[vec![base()[0].clone(), vpc("b", 2, "flood = true")], base()[2..].to_vec()].concat());
    assert_eq!(lab.cells_after(&flood), of_b);
    assert_eq!(lab.cells_after(&with(&[])), of_b);
    let subnet = "[[subnet]]\nvpc = \"b\"\nprefix = \"10.200.0.0/24\"\n".to_owned();
    assert_eq!(lab.cells_after(&with(&[subnet])), of_both);
    lab.set(&with(&[]));
    // The VNI is in no decision, the router's MAC address in those of its peers too.
    let router = |vni, mac: &str| {
        let b = vpc("b", vni, &format!("router-mac = \"{mac}\""));
        config(
            &[vec![base()[0].clone(), b], base()[2..5].to_vec(), vec![location(vni, b'b', 2, 2, 3)]].concat(),
        )
    };
    assert_eq!(lab.cells_after(&router(2, "02:00:00:00:09:09")), of_both);
    let before = lab.place(lab.slot("b", 2));
    lab.hear(3, 3);
    assert_eq!(lab.cells_after(&router(7, "02:00:00:00:09:09")), NONE);
    let Place::Remote(tunnel) = lab.place(lab.slot("b", 2)) else { panic!("not resolved") };
    assert_ne!(Place::Remote(tunnel), before);
    assert_eq!(tunnel.header[46..49], [0, 0, 7]);
}

#[test]
fn vnics_bump_what_their_addresses_concern() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let cells = |lab: &Lab| {
        let mut cells = [lab.all_cells("a", &["va"]), lab.all_cells("b", &["vb"])].concat();
        cells.sort_unstable();
        cells
    };
    let mut smaller = with(&[]);
    Arc::make_mut(&mut smaller.vnics[1]).mtu = 1300;
    assert_eq!(lab.cells_after(&smaller), NONE);
    let mut other = with(&[]);
    Arc::make_mut(&mut other.vnics[1]).mac = MacAddr([2, 0, 0, 0, 0, 6]);
    assert_eq!(lab.cells_after(&other), cells(&lab));
    lab.set(&with(&[]));
    let come = lab.cells_after(&with(&[vnic("vc", "b", 3)]));
    let mut wanted = vec![lab.vpc("a").topology_cell, lab.vpc("b").topology_cell, lab.vnic_cell("vc")];
    wanted.sort_unstable();
    assert_eq!(come, wanted);
    // It goes: its index may be used again, so what its VPC decided without it goes too.
    let mut wanted = [cells(&lab), vec![lab.vnic_cell("vc")]].concat();
    wanted.sort_unstable();
    assert_eq!(lab.cells_after(&with(&[])), wanted);
}

#[test]
fn routing_changes_make_the_flows_of_their_vpc_and_of_those_that_lead_there_stale() {
    let mut lab = Lab::new(32);
    lab.set(&with(&[]));
    let mut of_both = [lab.all_cells("a", &["va"]), lab.all_cells("b", &["vb"])].concat();
    of_both.sort_unstable();
    let with_routes = |routes: &str| {
        let b = vpc("b", 2, &format!("routes = [{routes}]"));
        config(&[vec![base()[0].clone(), b], base()[2..].to_vec()].concat())
    };
    let hop = |n: u8| format!("{{ vtep = \"172.16.0.{n}\", mac = \"02:00:00:00:08:0{n}\" }}");
    let routes = [
        "{ to = \"10.200.0.0/24\", blackhole = true }".to_owned(),
        format!("{{ to = \"10.200.0.0/24\", next-hops = [{}, {}] }}", hop(5), hop(6)),
        format!("{{ to = \"10.200.0.0/24\", next-hops = [{}, {}] }}", hop(5), hop(7)),
        format!("{{ to = \"10.200.0.0/25\", next-hops = [{}, {}] }}", hop(5), hop(7)),
    ];
    let slots = lab.used();
    for (text, more) in routes.iter().zip([0, 2, 2, 2]) {
        assert_eq!(lab.cells_after(&with_routes(text)), of_both, "{text}");
        assert_eq!(lab.cells_after(&with_routes(text)), NONE, "{text}");
        assert_eq!(lab.used(), slots + more, "a slot for each VTEP");
    }
    assert_eq!(lab.cells_after(&with(&[])), of_both);
    assert_eq!(lab.used(), slots);
}
