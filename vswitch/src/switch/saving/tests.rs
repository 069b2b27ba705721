//! What could not be saved. DPDK runs once per process, so each test wants a process of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use wire::{MacAddr, Vni};

use super::*;
use crate::config::LocationConfig;
use crate::control::guard::caught;
use crate::state;
use crate::state::journal::named_in;
use crate::state::owners::Owner;
use crate::switch::following::Heard;
use crate::switch::testing;

const NETWORK: &str = "[forward]\nauto-start = false\n\
     [[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
     [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

/// A folder that is not there yet.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("vswitch-{name}-{}", std::process::id())))
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A switch that saves to this file.
fn start(state: &Path) -> Switch {
    let mut switch = testing::start("[forward]\nauto-start = false\n[[vpc]]\nname = \"red\"\nvni = 100\n");
    switch.set_state_file(Some(state), None);
    switch
}

/// A station of that network on another host.
fn location(vip: &str) -> LocationConfig {
    LocationConfig {
        vni: Vni::new(100).unwrap(),
        vip: vip.parse().unwrap(),
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
        vtep: "172.16.0.2".parse().unwrap(),
        groups: Vec::new(),
    }
}

/// A change that cannot be saved, as there is no folder for the file.
fn change_in_vain(switch: &mut Switch) {
    let changed = switch.edit(|config| {
        config.vpcs[0].flood = true;
        Ok(())
    });
    assert!(matches!(changed, Err(SwitchError::NotSaved(_))), "{changed:?}");
    assert!(switch.config.vpcs[0].flood, "it is in force");
}

/// Whether a start would find the change.
fn is_saved(state: &Path) -> bool {
    let (config, _) = state::restore(Config::default(), None, state).unwrap();
    config.vpcs.first().is_some_and(|vpc| vpc.flood)
}

#[test]
fn what_could_not_be_saved_is_saved_as_soon_as_it_can_be() {
    let folder = Folder::new("again");
    let mut switch = start(&folder.state());
    change_in_vain(&mut switch);
    std::fs::create_dir(&folder.0).unwrap();
    let later = Instant::now() + Duration::from_secs(60);
    let saved = (0..1000).find(|_| {
        switch.tend_state(later);
        std::thread::sleep(Duration::from_millis(5));
        // What comes next is appended, as ever.
        is_saved(&folder.state()) && switch.saved.as_ref().unwrap().can_append()
    });
    assert!(saved.is_some(), "nobody tries it again");
    switch.stop();
}

#[test]
fn what_could_not_be_saved_is_saved_at_the_end() {
    let folder = Folder::new("end");
    let mut switch = start(&folder.state());
    change_in_vain(&mut switch);
    std::fs::create_dir(&folder.0).unwrap();
    switch.stop();
    assert!(is_saved(&folder.state()));
}

/// What is tended while the whole is written may have a fault of its own.
#[test]
fn a_fault_while_the_whole_is_saved_does_not_end_saving() {
    let folder = Folder::new("fault");
    std::fs::create_dir(&folder.0).unwrap();
    let mut switch = start(&folder.state());
    testing::break_at("beside");
    let changed = caught("a change", || {
        switch.edit(|config| {
            config.vpcs[0].flood = true;
            Ok(())
        })
    });
    assert!(changed.is_err() && switch.config.vpcs[0].flood, "{changed:?}");
    assert!(switch.is_bound().is_some_and(|why| why.contains("not saved")));
    // The next one saves all that is in force.
    switch
        .edit(|config| {
            config.vpcs[0].name = "blue".parse().unwrap();
            Ok(())
        })
        .unwrap();
    assert!(is_saved(&folder.state()) && switch.is_bound().is_none());
    switch.stop();
}

/// Until the new state file is there, a start goes on from the one before it and from its journal.
#[test]
fn what_waits_is_in_the_journal_that_there_is_when_a_new_state_file_is_begun() {
    let (folder, killed) = (Folder::new("renewal"), Folder::new("renewal-killed"));
    std::fs::create_dir(&folder.0).unwrap();
    std::fs::create_dir(&killed.0).unwrap();
    let mut switch = testing::start(NETWORK);
    switch.set_state_file(Some(&folder.state()), None);
    switch
        .edit(|config| {
            config.vpcs[0].flood = true;
            Ok(())
        })
        .unwrap();
    let state = std::fs::read_to_string(folder.state()).unwrap();
    let journal = named_in(&state).unwrap();
    // It has grown so long that a new state file is due.
    let long = Change::default().and_with(&vec![location("10.0.0.9"); 20_000]).unwrap();
    switch.saved.as_mut().unwrap().append_unsynced(&long).unwrap();
    let heard = Heard { come: vec![location("10.0.0.8")], ..Heard::default() };
    assert_eq!(switch.follow(Owner::Evpn, heard).unwrap(), []);
    switch.tend_state(switch.tended);
    assert!(switch.saved.as_ref().unwrap().is_renewing());
    // As a process that is killed at this moment leaves them.
    std::fs::write(killed.state(), &state).unwrap();
    std::fs::copy(folder.0.join(journal), killed.0.join(journal)).unwrap();
    let (config, owners) = state::restore(Config::default(), None, &killed.state()).unwrap();
    assert_eq!(config.locations.len(), 2);
    assert_eq!(owners.at_run_time("location", "100 10.0.0.8"), Owner::Evpn);
    switch.stop();
}

/// A new process would be without it.
#[test]
fn a_switch_with_what_could_not_be_saved_is_not_handed_over() {
    let folder = Folder::new("bound");
    let mut switch = start(&folder.state());
    assert_eq!(switch.is_bound(), None);
    change_in_vain(&mut switch);
    assert!(switch.is_bound().is_some_and(|why| why.contains("not saved")));
    switch.stop();
}

/// Whoever follows events hears of everything that is in force.
#[test]
fn a_move_that_could_not_be_saved_is_told() {
    const VNIC: &str = "[[vnic]]\nname = \"one\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"10.0.0.1\"]\n\
         port = { kind = \"null\" }\n";
    let folder = Folder::new("moved");
    let mut switch = testing::start(&format!("{NETWORK}{VNIC}"));
    switch.set_state_file(Some(&folder.state()), None);
    let told = |switch: &Switch| switch.events().iter().filter(|event| event.kind == "vnic-moved").count();
    let vtep = "172.16.0.2".parse().unwrap();
    // One that is refused is no news.
    assert!(matches!(switch.move_vnic("two", vtep, Owner::Api), Err(SwitchError::Unknown { .. })));
    assert_eq!(told(&switch), 0);
    let moved = switch.move_vnic("one", vtep, Owner::Api);
    assert!(matches!(moved, Err(SwitchError::NotSaved(_))), "{moved:?}");
    let vni = switch.config.vpcs[0].vni;
    assert!(
        switch.config.vnics.is_empty()
            && switch.topology.location(vni, "10.0.0.1".parse().unwrap()).is_some()
    );
    assert_eq!(told(&switch), 1);
    switch.stop();
}
