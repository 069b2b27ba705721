//! Whether a switch forwards, and which ports are stopped, when it has come back or taken over. DPDK runs once per process, so each test
//! wants a process of its own.

use wire::bfd::State;

use super::*;
use crate::config::Source;
use crate::state::lock::StateLock;
use crate::switch::ahead::Next;
use crate::switch::testing;

fn config(auto_start: bool) -> Config {
    testing::config(&format!(
        "[forward]\nauto-start = {auto_start}\n\
         [[port]]\nname = \"a\"\nport = {{ kind = \"null\" }}\n[[port]]\nname = \"b\"\nport = {{ kind = \"null\" }}\n"
    ))
}

/// Whether it forwards, and whether it polls each port.
fn state(switch: &Switch) -> (bool, [bool; 2]) {
    let polls = |name| switch.ports.get(switch.ports.index(name).unwrap()).unwrap().running;
    assert!(switch.ports.fresh().next().is_none());
    (switch.is_forwarding(), ["a", "b"].map(polls))
}

#[test]
fn a_switch_that_comes_back_goes_on_as_before() {
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    for (forwards, stopped) in [(true, false), (true, true), (false, true), (false, false)] {
        switch.set_forwarding(forwards).unwrap();
        match stopped {
            true if state(&switch).1[0] => switch.stop_port("a").unwrap(),
            false if !state(&switch).1[0] => switch.start_port("a").unwrap(),
            _ => {}
        }
        let before = state(&switch);
        assert_eq!(before, (forwards, [!stopped, true]));
        let tables = switch.tables();
        let expected = Chunk::Forwarding(forwards, stopped.then(|| "a".to_owned()).into_iter().collect());
        assert_eq!(tables.last(), Some(&expected));
        switch.let_go_all(&[], || {}).unwrap();
        assert!(!switch.is_forwarding() && switch.ports.iter().next().is_none());
        switch.come_back(forwards).unwrap();
        assert_eq!(state(&switch), before);
    }
    switch.stop();
}

#[test]
fn a_switch_that_lets_go_lets_go_of_its_state_and_takes_it_again() {
    let state = std::env::temp_dir().join(format!("handover-state-{}", std::process::id()));
    let mut switch = Switch::start(config(false)).unwrap_or_else(|error| panic!("{error}"));
    switch.set_state_file(Some(&state), Some(StateLock::take(&state).unwrap()));
    assert!(StateLock::take(&state).is_err());
    switch.let_go_all(&[], || {}).unwrap();
    drop(StateLock::take(&state).unwrap());
    switch.come_back(false).unwrap();
    assert!(StateLock::take(&state).is_err());
    // Of a process that ends only after this one is back, it is had as soon as that has ended; what that wrote does not stay.
    switch.let_go_all(&[], || {}).unwrap();
    let other = StateLock::take(&state).unwrap();
    switch.come_back(false).unwrap();
    drop(other);
    std::fs::write(&state, "of another process").unwrap();
    let is_own = |switch: &mut Switch| {
        switch.tend(Instant::now() + Duration::from_secs(10));
        StateLock::take(&state).is_err() && !std::fs::read_to_string(&state).unwrap().contains("of another")
    };
    assert!((0..10).any(|_| is_own(&mut switch)));
    switch.stop();
    std::fs::remove_file(state.with_extension("lock")).unwrap();
}

/// A switch with a BFD session.
const WITH_BFD: &str = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"192.168.0.1/30\"]\n\
                        gateway = [\"192.168.0.2\"]\nbfd = {}\n";

/// Peers were told that its sessions are over; they are not when it is back.
#[test]
fn bfd_of_a_switch_that_comes_back_begins_anew() {
    let mut switch = testing::start(WITH_BFD);
    let states = |switch: &Switch| -> Vec<State> {
        switch.bfd().sessions().map(|running| running.session.state()).collect()
    };
    assert_eq!(states(&switch), [State::Down]);
    switch.let_go_all(&[], || {}).unwrap();
    assert_eq!(states(&switch), [State::AdminDown]);
    switch.come_back(true).unwrap();
    assert_eq!(states(&switch), [State::Down], "it speaks to its peer again");
    switch.stop();
}

/// A path that was left stays so until its peer is heard.
#[test]
fn bfd_remembers_paths_that_had_failed_when_the_switch_comes_back() {
    let mut switch = testing::start(WITH_BFD);
    let of = switch.bfd().sessions().next().unwrap().of;
    assert!(switch.topology.set_bfd(&of, true, &mut switch.neighbours));
    switch.let_go_all(&[], || {}).unwrap();
    switch.come_back(true).unwrap();
    switch.tend(Instant::now());
    assert!(switch.topology.has_failed(&of));
    switch.stop();
}

/// Ticks until the switch is as it was, when a worker that did not answer does so again.
fn tend_until(switch: &mut Switch, wanted: (bool, [bool; 2])) {
    let began = Instant::now();
    while switch.ports.fresh().next().is_some() || state(switch) != wanted {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", switch.is_forwarding());
        switch.tend(Instant::now());
        std::thread::sleep(TURN);
    }
}

#[test]
fn a_worker_that_does_not_answer_keeps_nobody_from_coming_back() {
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    switch.let_go_all(&[], || {}).unwrap();
    let nobody = testing::silence(&switch.pool);
    assert!(switch.come_back(true).is_err());
    drop(nobody);
    tend_until(&mut switch, (true, [true; 2]));
    switch.stop();
}

/// With more than half as many ports as there can be, there would be no places for them otherwise.
#[test]
fn ports_that_come_back_have_the_places_that_they_had() {
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    let places = |switch: &Switch| -> std::collections::BTreeSet<_> {
        switch.ports.iter().map(|(index, _)| index).collect()
    };
    let before = places(&switch);
    switch.let_go_all(&[], || {}).unwrap();
    switch.come_back(true).unwrap();
    tend_until(&mut switch, (true, [true; 2]));
    assert_eq!(places(&switch), before);
    switch.stop();
}

/// What an operator asks for meanwhile counts.
#[test]
fn a_switch_that_is_stopped_before_it_is_back_stays_so() {
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    switch.let_go_all(&[], || {}).unwrap();
    let nobody = testing::silence(&switch.pool);
    assert!(switch.come_back(true).is_err() && switch.set_forwarding(false).is_err());
    drop(nobody);
    tend_until(&mut switch, (false, [true; 2]));
    for _ in 0..10 {
        switch.tend(Instant::now());
    }
    assert!(!switch.is_forwarding());
    switch.stop();
}

#[test]
fn a_switch_that_could_not_let_go_keeps_what_it_has() {
    let path = std::env::temp_dir().join(format!("handover-kept-{}", std::process::id()));
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    switch.set_state_file(Some(&path), Some(StateLock::take(&path).unwrap()));
    let nobody = testing::silence(&switch.pool);
    assert!(switch.let_go_all(&[], || {}).is_err());
    drop(nobody);
    let _ = switch.come_back(true);
    tend_until(&mut switch, (true, [true; 2]));
    assert_eq!(switch.ports.iter().count(), 2);
    assert!(StateLock::take(&path).is_err(), "it has the lock all the while");
    switch.stop();
    std::fs::remove_file(path.with_extension("lock")).unwrap();
}

/// Nothing is released that is not closed: the new process could not open it.
#[test]
fn ports_that_are_not_closed_in_time_are_named_and_come_back() {
    let mut switch = Switch::start(config(true)).unwrap_or_else(|error| panic!("{error}"));
    switch.set_forwarding(false).unwrap();
    assert_eq!(switch.ports.detach_all_but(&switch.pool, &[], Duration::ZERO), ["a", "b"]);
    switch.come_back(true).unwrap();
    tend_until(&mut switch, (true, [true; 2]));
    assert_eq!(switch.ports.detach_all_but(&switch.pool, &[], LET_GO), [""; 0]);
    switch.stop();
}

/// Takes over from a switch that said this.
fn succeed(auto_start: bool, said: Option<(bool, &[&str])>) -> (bool, [bool; 2]) {
    let mut switch =
        Switch::prepare(&config(auto_start), None, false).unwrap_or_else(|error| panic!("{error}"));
    let mut tables = Tables::default();
    if let Some((on, stopped)) = said {
        tables.add(Chunk::Forwarding(on, stopped.iter().map(|&name| name.to_owned()).collect()));
    }
    let control = std::env::temp_dir().join(format!("handover-{}.sock", std::process::id()));
    switch.succeed(config(auto_start), &tables, &control).unwrap();
    let succeeded = state(&switch);
    if !succeeded.1[1] {
        switch.start_port("b").unwrap();
        assert_eq!(state(&switch).1, [true; 2]);
    }
    switch.stop();
    let _ = std::fs::remove_file(control.with_extension("sock.connections"));
    succeeded
}

#[test]
fn a_switch_that_takes_over_forwards_though_the_config_waits() {
    assert_eq!(succeed(false, Some((true, &[]))), (true, [true; 2]));
}

#[test]
fn a_switch_that_takes_over_leaves_what_was_stopped() {
    assert_eq!(succeed(true, Some((false, &["b", "gone"]))), (false, [true, false]));
}

#[test]
fn a_switch_that_is_told_nothing_does_as_the_config_says() {
    assert_eq!(succeed(false, None), (false, [true; 2]));
}

/// A port that another process has, say; it goes on with it.
#[test]
fn ports_that_were_there_and_do_not_open_are_told() {
    let with = |queues: u16| {
        testing::config(&format!(
            "[[port]]\nname = \"a\"\nport = {{ kind = \"null\" }}\n\
             [[port]]\nname = \"b\"\nport = {{ kind = \"veth\", iface = \"nowhere0\", queues = {queues} }}\n"
        ))
    };
    let mut switch = Switch::prepare(&with(1), None, false).unwrap_or_else(|error| panic!("{error}"));
    let there = |config: &Config| {
        let mut tables = Tables::default();
        let rows = wanted(config).iter().map(|(name, wanted)| (name.clone(), number(wanted))).collect();
        tables.add(Chunk::Ports(rows));
        tables
    };
    let control = std::env::temp_dir().join(format!("handover-lost-{}.sock", std::process::id()));
    switch.succeed(with(1), &there(&with(1)), &control).unwrap();
    let lost = switch.not_taken_over(&there(&with(1)));
    assert!(lost.len() == 1 && lost[0].starts_with("port b: ") && lost[0].contains("nowhere0"), "{lost:?}");
    // It was another one, it was not there either, or nobody says.
    assert_eq!(switch.not_taken_over(&there(&with(2))), [""; 0]);
    assert_eq!(switch.not_taken_over(&there(&testing::config(""))), [""; 0]);
    assert_eq!(switch.not_taken_over(&Tables::default()), [""; 0]);
    let tables = switch.tables();
    let ports = tables.iter().find(|chunk| matches!(chunk, Chunk::Ports(_)));
    assert_eq!(ports, Some(&Chunk::Ports(vec![("a".into(), number(&wanted(&with(1))["a"]))])));
    switch.stop();
    let _ = std::fs::remove_file(control.with_extension("sock.connections"));
}

/// A new process would make another tap in its place, and the tenant's would have nobody.
#[test]
fn a_switch_whose_tap_was_renamed_or_moved_is_not_handed_over() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
    let ip = |line: &str| {
        let status = std::process::Command::new("ip").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "ip {line}");
    };
    let mut switch = testing::start_by_file(
        "[[port]]\nname = \"a\"\nport = { kind = \"tap\", iface = \"strays0\", persist = true }\n",
    );
    assert_eq!(switch.is_bound(), None);
    ip("link set strays0 down");
    ip("link set strays0 name other0");
    let said = switch.is_bound().unwrap();
    assert!(said.contains("port a is called other0 now") && said.contains("`netns =`"), "{said}");
    ip("link set other0 name strays0");
    assert_eq!(switch.is_bound(), None);
    // Into a container that has one of its own.
    let mut container = std::process::Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    let (own, began) = (std::fs::read_link("/proc/thread-self/ns/net").unwrap(), Instant::now());
    let theirs = format!("/proc/{}/ns/net", container.id());
    while std::fs::read_link(&theirs).unwrap() == own {
        assert!(began.elapsed() < Duration::from_secs(10), "it has no namespace");
    }
    ip(&format!("link set strays0 netns {}", container.id()));
    let said = switch.is_bound().unwrap();
    assert!(said.contains("port a is in another network namespace") && said.contains("`netns =`"), "{said}");
    switch.stop();
    container.kill().unwrap();
    container.wait().unwrap();
}

/// Whoever waits for a change while an upgrade comes to nothing is answered when its port is there.
#[test]
fn a_change_that_waits_for_its_port_is_carried_out_when_the_switch_is_back() {
    let mut switch = Switch::start(config(false)).unwrap_or_else(|error| panic!("{error}"));
    let attempt = switch.new_attempt();
    let tries = |switch: &mut Switch| {
        switch.begin_try(attempt);
        let tried = switch.edit(|config| {
            let port = "[[port]]\nname = \"c\"\nport = { kind = \"ring\", name = \"c\" }\n";
            config
                .ports
                .extend(Config::parse(port, "test").unwrap_or_else(|errors| panic!("{errors}")).ports);
            Ok(())
        });
        (tried, switch.end_try())
    };
    assert!(matches!(tries(&mut switch), (Err(SwitchError::NotYet), Next::TryAgain)));
    switch.let_go_all(&[], || {}).unwrap();
    switch.come_back(false).unwrap();
    let began = Instant::now();
    let next = loop {
        assert!(began.elapsed() < Duration::from_secs(10), "it is tried again and again");
        switch.tend(Instant::now());
        if switch.is_ripe(attempt) {
            let (tried, next) = tries(&mut switch);
            match tried {
                Ok(()) => break next,
                Err(SwitchError::NotYet) => {}
                Err(error) => panic!("{error}"),
            }
        }
        std::thread::sleep(TURN);
    };
    assert_eq!(next, Next::Answer);
    assert!(began.elapsed() < super::super::plug::GRACE, "nothing is waited for in vain");
    let absent: Vec<_> = switch.ports.absent().map(|(name, absent)| (name, absent.state())).collect();
    assert_eq!(absent, []);
    assert!(switch.ports.index("c").is_some() && !switch.has_ports_under_way());
    switch.stop();
}

/// What an upgrade would lose, for want of a state file.
#[test]
fn a_switch_without_a_state_file_keeps_what_clients_made() {
    let text = crate::switch::testing::process(4095) + "[[vpc]]\nname = \"blue\"\nvni = 200\n";
    let file = Source::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    let mut switch = Switch::start(file.config.clone()).unwrap_or_else(|error| panic!("{error}"));
    switch.set_config_file(Some(file));
    assert_eq!(switch.is_bound(), None);
    let add = |switch: &mut Switch, owner| {
        let made = vec![(("vpc".to_owned(), "red".to_owned()), owner)];
        let red = "[[vpc]]\nname = \"red\"\nvni = 100\n";
        let vpcs = Config::parse(red, "test").unwrap_or_else(|errors| panic!("{errors}")).vpcs;
        let change = |config: &mut Config| {
            config.vpcs.extend(vpcs);
            Ok(())
        };
        switch.edit_and_place(Relocation::NONE, Missing::Refused, made, change).unwrap();
    };
    for (owner, lost) in [(Owner::Api, true), (Owner::Cni, true), (Owner::Etcd, false), (Owner::Evpn, false)]
    {
        add(&mut switch, owner);
        let said = switch.is_bound();
        assert_eq!(said.as_deref().is_some_and(|said| said.contains("vpc red")), lost, "{owner}: {said:?}");
        switch
            .edit(|config| {
                config.vpcs.retain(|vpc| &*vpc.name != "red");
                Ok(())
            })
            .unwrap();
        assert_eq!(switch.is_bound(), None);
    }
    add(&mut switch, Owner::Cni);
    let folder = std::env::temp_dir().join(format!("handover-bound-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    switch.set_state_file(Some(&folder.join("state")), None);
    assert_eq!(switch.is_bound(), None);
    switch.stop();
    std::fs::remove_dir_all(&folder).unwrap();
}
