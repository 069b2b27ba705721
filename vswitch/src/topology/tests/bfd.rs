//! BFD sessions: their numbers stay, their paths move.

use pipelines::bfd::BfdSession;

use super::*;

/// Two uplinks that are routed to, each with a router, and a location behind both.
fn routed(left: &str, right: &str) -> Config {
    let uplink = |name: &str, n: u8, bfd: &str| {
        format!(
            "[[uplink]]\nname = \"{name}\"\nport = {{ kind = \"null\" }}\naddresses = [\"10.255.0.1/32\", \"192.168.{n}.1/29\"]\n\
             gateway = [\"192.168.{n}.2\"]\nneighbours = [{{ ip = \"192.168.{n}.2\", mac = \"02:00:00:00:08:0{n}\" }}]\n{bfd}\n"
        )
    };
    let far =
        "[[location]]\nvni = 1\nvip = \"10.97.0.2\"\nmac = \"02:00:00:00:00:02\"\nvtep = \"10.255.0.2\"\n";
    let text = [uplink("up", 0, left), uplink("up2", 1, right), vpc("a", 1, ""), far.to_owned()].concat();
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn sessions(lab: &Lab) -> Vec<BfdSession> {
    let mut sessions: Vec<_> = lab.topology.snapshot().bfd.iter().copied().collect();
    sessions.sort_unstable_by_key(|session| (session.uplink, session.multihop, session.peer));
    sessions
}

/// The uplinks that the buckets of the location's group have.
fn ways(lab: &Lab) -> Vec<u16> {
    let Place::Remote(tunnel) = lab.place(lab.slot("a", 2)) else { panic!("not behind a VTEP") };
    let hops = lab.topology.writer.table().next_hops();
    let mut ways: Vec<u16> =
        (0..64).filter_map(|port| hops.find(tunnel.group, port)).map(|hop| hop.uplink()).collect();
    ways.sort_unstable();
    ways.dedup();
    ways
}

#[test]
fn bfd_sessions_keep_their_numbers_while_they_are_asked_for() {
    let mut lab = Lab::new(16);
    lab.set(&routed("bfd = {}", ""));
    let first = sessions(&lab);
    assert_eq!(first.len(), 1);
    let one = first[0];
    assert_eq!(
        (one.uplink, one.peer, one.local),
        (0, "192.168.0.2".parse().unwrap(), "192.168.0.1".parse().unwrap())
    );
    assert!(!one.multihop && one.discriminator != 0);
    // Others come, and the intervals change.
    lab.set(&routed("bfd = { multiplier = 4, vteps = [\"10.255.0.2\"] }", "bfd = {}"));
    let more = sessions(&lab);
    assert_eq!((more.len(), more[0]), (3, one));
    assert_eq!(
        (more[1].multihop, more[1].peer, more[1].local),
        (true, "10.255.0.2".parse().unwrap(), one.local)
    );
    let numbers: HashSet<u32> = more.iter().map(|session| session.discriminator).collect();
    let slots: HashSet<u16> = more.iter().map(|session| session.slot).collect();
    assert_eq!((numbers.len(), slots.len()), (3, 3));
    let snapshot = lab.topology.snapshot().clone();
    lab.set(&routed("bfd = { multiplier = 5, vteps = [\"10.255.0.2\"] }", "bfd = {}"));
    assert!(Arc::ptr_eq(&snapshot.bfd, &lab.topology.snapshot().bfd), "nothing about who is asked");
    // One that goes and comes back is another one.
    lab.set(&routed("", "bfd = {}"));
    assert_eq!(sessions(&lab), more[2..]);
    lab.set(&routed("bfd = {}", "bfd = {}"));
    let again = sessions(&lab);
    assert_eq!((again.len(), again[1]), (2, more[2]));
    assert_ne!(again[0].discriminator, one.discriminator);
}

#[test]
fn bfd_moves_flows_and_decides_none_anew() {
    let mut lab = Lab::new(16);
    let config = routed("bfd = { vteps = [\"10.255.0.2\"] }", "bfd = {}");
    lab.set(&config);
    let [near, far, other] = sessions(&lab)[..] else { panic!("three sessions") };
    let (decisions, slot) = (lab.topology.snapshot().cells.clone(), lab.place(lab.slot("a", 2)));
    assert_eq!(ways(&lab), [0, 1]);
    let set = |lab: &mut Lab, session: &BfdSession, failed, news| {
        assert_eq!(lab.topology.set_bfd(session, failed, &mut lab.neighbours), news);
        assert_eq!((&lab.topology.snapshot().cells, lab.place(lab.slot("a", 2))), (&decisions, slot));
    };
    for session in [near, far] {
        set(&mut lab, &session, true, true);
        set(&mut lab, &session, true, false);
        assert_eq!(ways(&lab), [1], "{session:?}");
        set(&mut lab, &session, false, true);
        assert_eq!(ways(&lab), [0, 1]);
    }
    // Both ways: none is better than the other.
    set(&mut lab, &near, true, true);
    set(&mut lab, &other, true, true);
    assert_eq!(ways(&lab), [0, 1]);
    set(&mut lab, &near, false, true);
    assert_eq!(ways(&lab), [0]);
    // What failed stays failed over a change of anything else.
    lab.set(&config);
    assert_eq!(ways(&lab), [0]);
}

#[test]
fn bfd_an_uplink_that_nobody_is_heard_on_answers_for_no_shared_address() {
    let text = |n: u8, metric: u32| {
        format!(
            "[[uplink]]\nname = \"{}\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.0.1/24\", \"172.16.0.1{n}/24\"]\n\
             metric = {metric}\nbfd = {{ peers = [\"172.16.0.2\", \"172.16.0.3\"] }}\n",
            ["up", "up2"][usize::from(n)]
        )
    };
    let mut lab = Lab::new(16);
    lab.set(&Config::parse(&[text(0, 0), text(1, 10)].concat(), "test").unwrap());
    let all = sessions(&lab);
    assert_eq!(
        all.iter().map(|session| session.local.to_string()).collect::<Vec<_>>(),
        ["172.16.0.10", "172.16.0.10", "172.16.0.11", "172.16.0.11"]
    );
    let shared: IpAddr = "172.16.0.1".parse().unwrap();
    let speaker = |lab: &mut Lab| {
        lab.topology.settle_speakers(&lab.neighbours);
        let speakers: Vec<u16> = lab
            .topology
            .speakers()
            .filter(|(_, address)| *address == shared)
            .map(|(uplink, _)| uplink)
            .collect();
        speakers
    };
    assert_eq!(speaker(&mut lab), [0]);
    lab.topology.set_bfd(&all[0], true, &mut lab.neighbours);
    assert_eq!(speaker(&mut lab), [0], "one is heard still");
    lab.topology.set_bfd(&all[1], true, &mut lab.neighbours);
    assert_eq!(speaker(&mut lab), [1]);
    for session in &all[2..] {
        lab.topology.set_bfd(session, true, &mut lab.neighbours);
    }
    assert_eq!(speaker(&mut lab), [0], "nobody is heard anywhere");
    lab.topology.set_bfd(&all[3], false, &mut lab.neighbours);
    assert_eq!(speaker(&mut lab), [1]);
}

#[test]
fn bfd_a_gateway_that_failed_gets_no_flows_back_when_the_vtep_behind_it_is_lost() {
    let text = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"192.168.0.1/29\"]\n\
         gateway = [\"192.168.0.2\", \"192.168.0.3\"]\nbfd = { vteps = [\"10.255.0.2\"] }\n\
         neighbours = [{ ip = \"192.168.0.2\", mac = \"02:00:00:00:08:02\" }, { ip = \"192.168.0.3\", mac = \"02:00:00:00:08:03\" }]\n\
         [[location]]\nvni = 1\nvip = \"10.97.0.2\"\nmac = \"02:00:00:00:00:02\"\nvtep = \"10.255.0.2\"\n";
    let mut lab = Lab::new(16);
    lab.set(&Config::parse(&[text, &vpc("a", 1, "")].concat(), "test").unwrap());
    let [one, other, far] = sessions(&lab)[..] else { panic!("two gateways and the VTEP behind them") };
    assert!(far.multihop);
    let gateways = |lab: &Lab| -> HashSet<u8> {
        let Place::Remote(tunnel) = lab.place(lab.slot("a", 2)) else { panic!("not behind a VTEP") };
        let hops = lab.topology.writer.table().next_hops();
        (0..64).filter_map(|port| hops.find(tunnel.group, port)).map(|hop| hop.mac().0[5]).collect()
    };
    let fail = |lab: &mut Lab, session: &BfdSession, failed| {
        assert!(lab.topology.set_bfd(session, failed, &mut lab.neighbours));
    };
    let asked_by = |lab: &Lab| lab.topology.bfd_hops(&far)[0].address;
    assert_eq!((gateways(&lab), asked_by(&lab)), (HashSet::from([2, 3]), one.peer));
    fail(&mut lab, &one, true);
    assert_eq!((gateways(&lab), asked_by(&lab)), (HashSet::from([3]), other.peer));
    fail(&mut lab, &far, true);
    assert_eq!(gateways(&lab), HashSet::from([3]), "the VTEP is asked by whichever way");
    fail(&mut lab, &other, true);
    assert_eq!(gateways(&lab), HashSet::from([2, 3]), "none is better than the other");
    fail(&mut lab, &one, false);
    assert_eq!((gateways(&lab), asked_by(&lab)), (HashSet::from([2]), one.peer));
}
