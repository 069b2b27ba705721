//! Ports that come and go while a worker is silent: none is lost, and what is in force is what is written down.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crossbeam::channel::Receiver;
use pipelines::flow_key::Scope;
use pipelines::rcft::QpKey;

use super::*;
use crate::config::{LocationConfig, VnicConfig};
use crate::state;
use crate::switch::testing::{fill, silence, stop_worker};

const GOOD: &str = "{ kind = \"ring\", name = \"room\" }";

fn is_up(switch: &mut Switch) -> bool {
    let index = switch.topology.vnic("late").unwrap().port;
    switch.ports.get(index).is_some_and(|port| port.running) && !switch.topology.is_unsettled()
}

/// From the moment on at which the next port is taken from the workers, one of them is silent, until what this returns is taken out.
fn silent_at_removal(switch: &mut Switch) -> Arc<Mutex<Option<Receiver<()>>>> {
    let stopped = Arc::new(Mutex::new(None));
    let kept = stopped.clone();
    switch.ports.before_removal = Some(Box::new(move |pool| *kept.lock().unwrap() = Some(silence(pool))));
    stopped
}

fn is_stuck(result: &Result<(), SwitchError>) -> bool {
    matches!(result, Err(SwitchError::Worker(_) | SwitchError::Ports(PortsError::Worker(_))))
}

#[test]
fn a_port_whose_change_a_worker_does_not_take_is_there_as_before() {
    let mut switch = start();
    switch.tend_ports(Instant::now());
    let stopped = stop_worker(&switch);
    let attempt = switch.new_attempt();
    let tried = replace(&mut switch, attempt, GOOD);
    assert!(is_stuck(&tried), "{tried:?}");
    switch.end_try();
    assert!(switch.ports.index("late").is_some(), "no worker has let go of it");
    drop(stopped);
    turn_until(&mut switch, "it is used as before", is_up);
    switch.stop();
}

/// The snapshot without it is everywhere when the worker falls silent: it cannot stay, and comes back.
#[test]
fn a_port_that_a_worker_does_not_give_back_comes_back_when_it_does() {
    let mut switch = start();
    switch.tend_ports(Instant::now());
    let stopped = silent_at_removal(&mut switch);
    let attempt = switch.new_attempt();
    let tried = replace(&mut switch, attempt, GOOD);
    assert!(is_stuck(&tried), "{tried:?}");
    switch.end_try();
    let absent = switch.ports.absent().find(|(name, _)| *name == "late");
    assert!(absent.is_some_and(|(_, absent)| absent.reason.is_some()), "it is down and tried again");
    stopped.lock().unwrap().take().unwrap();
    turn_until(&mut switch, "it is used again", is_up);
    assert!(switch.ports.absent().next().is_none());
    switch.stop();
}

/// The vNIC `late` under another name.
fn twin(switch: &Switch, name: &str) -> Arc<VnicConfig> {
    let vnic = &switch.config.vnics[0];
    Arc::new(VnicConfig { name: name.parse().unwrap(), ..(**vnic).clone() })
}

/// A switch with an uplink, and a location behind it that is not placed yet.
fn start_with_uplink() -> (Switch, LocationConfig) {
    let uplink = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n";
    let mut switch = testing::start(&(CONFIG.to_owned() + uplink));
    switch.tend_ports(Instant::now());
    let location = LocationConfig {
        vni: switch.config.vpcs[0].vni,
        vip: "10.0.0.7".parse().unwrap(),
        mac: wire::MacAddr([2, 0, 0, 0, 0, 7]),
        vtep: "172.16.0.2".parse().unwrap(),
        groups: Vec::new(),
    };
    (switch, location)
}

/// The worker has the change when it answers again, and what that forbids goes then.
#[test]
fn what_a_change_forbids_goes_when_the_last_worker_has_it() {
    let (mut switch, location) = start_with_uplink();
    switch.set_location(&location).unwrap();
    let (vnic, now) = (switch.topology.vnic("late").unwrap().index, switch.pool.now());
    let key = QpKey::new(Scope::Vnic(vnic), location.vip, wire::Qpn::truncated(7));
    switch.rcft.shared().ledger.admit(vnic, key.words(), now.tick, now.ns, || true);
    assert_eq!(switch.rcft.in_use(vnic), 1);
    let stopped = stop_worker(&switch);
    let removed = switch.remove_location(location.vni, location.vip);
    assert!(is_stuck(&removed), "{removed:?}");
    drop(stopped);
    turn_until(&mut switch, "its queue pairs are out", |switch| {
        switch.hurry();
        switch.rcft.in_use(vnic) == 0
    });
    switch.stop();
}

#[test]
fn a_vnic_that_a_worker_does_not_take_is_nowhere() {
    let (mut switch, location) = start_with_uplink();
    let vnic = VnicConfig { vips: vec![location.vip], mac: location.mac, ..(*twin(&switch, "more")).clone() };
    let stopped = stop_worker(&switch);
    let made = switch.edit(|config| {
        config.vnics.push_back(Arc::new(vnic));
        Ok(())
    });
    assert!(is_stuck(&made), "{made:?}");
    assert!(switch.config.vnics.len() == 1 && switch.topology.vnic("more").is_none());
    drop(stopped);
    turn_until(&mut switch, "all workers are told", |switch| !switch.topology.is_unsettled());
    assert!(switch.ports.index("more").is_none());
    switch.set_location(&location).unwrap();
    switch.stop();
}

/// The name of a state file, which is removed with what is beside it.
struct State(PathBuf);

impl State {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("vswitch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder.join("state"))
    }

    /// The names of the vNICs that a start would find.
    fn vnics(&self) -> Vec<String> {
        let (config, _) = state::restore(Config::default(), None, &self.0).unwrap();
        config.vnics.iter().map(|vnic| vnic.name.to_string()).collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn a_vnic_is_gone_from_what_is_saved_though_a_worker_does_not_give_its_port_back() {
    let state = State::new("silent");
    let mut switch = start();
    switch.set_state_file(Some(&state.0), None);
    switch
        .edit(|config| {
            config.vpcs[0].flood = true;
            Ok(())
        })
        .unwrap();
    assert_eq!(state.vnics(), ["late"]);
    let (revision, next) = (switch.changes().revision(), twin(&switch, "next"));
    let stopped = silent_at_removal(&mut switch);
    let removed = switch.edit(|config| {
        config.vnics.clear();
        Ok(())
    });
    assert_eq!(state.vnics(), [""; 0], "{removed:?}");
    assert_eq!(switch.changes().revision(), revision + 1);
    removed.unwrap();
    assert!(switch.ports.is_departing("late"));
    stopped.lock().unwrap().take().unwrap();
    turn_until(&mut switch, "its port is closed", |switch| !switch.ports.is_departing("late"));
    // Its address is free for another.
    switch
        .edit(|config| {
            config.vnics.push_back(next);
            Ok(())
        })
        .unwrap();
    assert_eq!(state.vnics(), ["next"]);
    switch.stop();
}

/// A port closes when all of its queues are back.
#[track_caller]
fn assert_closes(switch: &mut Switch, name: &str) {
    let config = switch.config.clone();
    switch.take_out(&[name.into()], &config).unwrap();
    let closed = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        match switch.ports.done(Instant::now())? {
            JobResult::Closed(closed, result) if closed == name => Some(result),
            _ => None,
        }
    });
    closed.expect("nobody closes it").unwrap();
}

#[test]
fn a_port_that_one_of_two_workers_does_not_take_is_down_until_it_does() {
    let one_queue = CONFIG.replace("name = \"other\"", "name = \"other\"\ntx-queues = 1");
    let text = testing::process_of(2, 8191) + &one_queue;
    let config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    let mut switch = Switch::start(config).unwrap();
    switch.tend_ports(Instant::now());
    let ports = pmd::port::in_use();
    // Each worker has a queue of the one; of the other one worker has, and the second hands packets over to it.
    for name in ["late", "other"] {
        assert_closes(&mut switch, name);
        let want = wanted(&switch.config)[name].clone();
        let full = fill(&switch.pool.workers[1]);
        switch.ports.request(&switch.eal, &switch.pool, &switch.mempool, name, &want);
        let reason = |switch: &Switch| {
            let absent = switch.ports.absent().find(|(absent, _)| *absent == name);
            absent.and_then(|(_, absent)| absent.reason.clone())
        };
        turn_until(&mut switch, "it is down", |switch| reason(switch).is_some());
        let told = reason(&switch).unwrap();
        assert!(told.contains("does not answer"), "{told}");
        assert!(
            switch.ports.is_departing(name),
            "it is not closed as long as a worker may have a queue of it"
        );
        // Nor opened again.
        switch.tend_ports(Instant::now() + Duration::from_secs(60));
        assert!(switch.ports.is_departing(name) && pmd::port::in_use() == ports);
        drop(full);
        turn_until(&mut switch, "it is there again", |switch| {
            let index = switch.ports.index(name);
            index.and_then(|index| switch.ports.get(index)).is_some_and(|port| port.running)
        });
        assert!(switch.ports.absent().next().is_none());
        turn_until(&mut switch, "the first one is closed", |_| pmd::port::in_use() == ports);
    }
    assert_closes(&mut switch, "late");
    assert_closes(&mut switch, "other");
    switch.stop();
}

#[test]
fn a_queue_that_a_worker_does_not_take_is_polled_when_it_does() {
    let mut switch = start();
    switch.tend_ports(Instant::now());
    switch.stop_port("late").unwrap();
    let full = fill(&switch.pool.workers[0]);
    for _ in 0..2 {
        let started = switch.start_port("late");
        assert!(is_stuck(&started), "{started:?}");
    }
    drop(full);
    turn_until(&mut switch, "the worker takes it", |switch| switch.start_port("late").is_ok());
    let port = switch.ports.get(switch.ports.index("late").unwrap()).unwrap();
    assert!(port.running && port.rx_workers == [0]);
    assert_closes(&mut switch, "late");
    switch.stop();
}

#[test]
fn a_queue_that_a_worker_gives_back_too_late_is_not_lost() {
    let mut switch = start();
    switch.tend_ports(Instant::now());
    for is_full in [false, true] {
        let stopped = if is_full { fill(&switch.pool.workers[0]) } else { stop_worker(&switch) };
        let parked = switch.stop_port("late");
        assert!(is_stuck(&parked), "{parked:?}");
        drop(stopped);
        turn_until(&mut switch, "it is stopped", |switch| switch.stop_port("late").is_ok());
        assert!(switch.stop_port("late").unwrap_err().to_string().contains("stopped already"));
        switch.start_port("late").unwrap();
        assert!(is_up(&mut switch));
    }
    // It goes meanwhile.
    let stopped = stop_worker(&switch);
    assert!(is_stuck(&switch.stop_port("late")));
    drop(stopped);
    turn_until(&mut switch, "the worker is back", |switch| !switch.pool.has_silent());
    assert_closes(&mut switch, "late");
    switch.stop();
}
