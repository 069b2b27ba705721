//! Saved state: what was changed through the console or the API, kept over a restart or a crash.
//!
//! The file is a whole config, with the config file as it was last applied in comments behind it, and goes with a journal of
//! what changed since ([`journal`]). At start the two are compared with the config file of now (`config::merge`): where that says
//! something new, it wins; everything else is as it was. What belongs to the process (memory, workers, sockets) always
//! comes from the config file.

pub mod change;
pub(crate) mod files;
pub mod journal;
pub mod later;
pub mod lock;
pub mod owners;
pub mod ownership;

use std::path::Path;

use anyhow::Context;

use self::owners::Owners;
use crate::config::merge::{Occasion, Source, merge};
use crate::config::others::Overlap;
use crate::config::{Config, Document, validate};
use crate::topology::give_way;

/// The config to start with, and who made what of it: that of the state file, if there is one, with what is new in the config file;
/// without one, `config`, which is that of the config file.
///
/// # Errors
/// A state file that cannot be read or is not valid, and what it and the config file do not agree on.
pub fn restore(config: Config, file: Option<&Source>, path: &Path) -> anyhow::Result<(Config, Owners)> {
    let shown = path.display().to_string();
    let Some(text) = read_saved(path).with_context(|| format!("cannot read the state file {shown}"))? else {
        return Ok((config, Owners::default()));
    };
    let changes = journal::changes(path, &text).with_context(|| {
        format!(
            "cannot read the journal of the state file {shown}; mend the journal, or remove it, and what it says with it, to start from the \
             state file alone; after a downgrade start the newer version again"
        )
    })?;
    let whole = change::apply(&text, &changes).map_err(|error| anyhow::anyhow!(error));
    let whole = whole.with_context(|| {
        format!(
            "the state file {shown} is not valid, or not what its journal goes on from; mend it, or remove both to start from the config; \
             after a downgrade start the newer version again"
        )
    })?;
    let mut owners = Owners::kept_in(&text, &changes);
    let invalid =
        || format!("the state file {shown} is not valid; mend it, or remove it to start from the config");
    let mut saved = Document::read(&whole, &shown).with_context(invalid)?;
    leave_out(&mut saved.config, &owners);
    validate::all(&saved.config, &saved.places).with_context(invalid)?;
    let saved = saved.config;
    tracing::info!(file = shown, "networks restored from the state file; remove it to start from the config");
    let Some(file) = file else {
        let Config { eal, workers, forward, api, control, .. } = config;
        return Ok((Config { eal, workers, forward, api, control, ..saved }, owners));
    };
    let at_odds = || format!("the config and the state file {shown} do not go together");
    let before = Source::kept_in(&text);
    let overlap = Overlap::of(file, before.as_ref(), &owners).with_context(at_odds)?;
    owners.leave_to(file, &overlap);
    let yields = |config: &mut Config| leave_out(config, &owners);
    let merged = merge(&saved, before.as_ref(), file, Occasion::Restart, &overlap, yields);
    Ok((merged.with_context(at_odds)?, owners))
}

/// Leaves out what other hosts said and cannot be any more.
fn leave_out(config: &mut Config, owners: &Owners) {
    for left_out in give_way(config, owners) {
        tracing::warn!("what another host said is left out until it says so again: {left_out}");
    }
}

/// The text of a state file, if there is one; that its journal is not there is told.
fn read_saved(path: &Path) -> std::io::Result<Option<String>> {
    let read = || match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let Some(mut text) = read()? else { return Ok(None) };
    if journal::missing(path, &text).is_some() {
        // The switch that runs, and that this one is to follow, may have written it anew since.
        let Some(again) = read()? else { return Ok(None) };
        text = again;
    }
    if let Some(journal) = journal::missing(path, &text) {
        tracing::warn!(
            file = %path.display(),
            journal = %journal.display(),
            "the journal that the state file names is not there: what changed since that was written is lost; bring the journal back and restart \
             before anything is changed"
        );
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::owners::Owner;

    const FILE: &str = r#"
[[uplink]]
name = "up0"
addresses = ["172.16.0.1/24"]
port = { kind = "null" }
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
"#;
    const LOCATIONS: &str = r#"
[[location]]
vni = 100
vip = "10.0.0.7"
mac = "02:00:00:00:01:07"
vtep = "172.16.0.2"
[[location]]
vni = 100
vip = "10.0.0.9"
mac = "02:00:00:00:01:09"
vtep = "172.16.0.2"
"#;
    const VNIC: &str = r#"
[[vnic]]
name = "came"
vpc = "red"
mac = "02:00:00:00:01:09"
vips = ["10.0.0.9"]
port = { kind = "null" }
"#;

    fn source(text: &str) -> Source {
        Source::parse(text, "the file").unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// What a start makes of a file, after a switch that ended with `FILE` and locations of an owner.
    fn started(file: &str, owner: Owner) -> anyhow::Result<(Config, Owners)> {
        started_after(FILE, file, owner)
    }

    /// The same, where the file of before said this.
    fn started_after(before: &str, file: &str, owner: Owner) -> anyhow::Result<(Config, Owners)> {
        let path = std::env::temp_dir().join(format!("state-{}", std::process::id()));
        let mut owners = Owners::default();
        for vip in [7, 9] {
            owners.set(("location".to_owned(), format!("100 10.0.0.{vip}")), owner);
        }
        let whole = source(&format!("{FILE}{LOCATIONS}")).config.to_toml().unwrap();
        std::fs::write(&path, format!("{whole}{}{}", owners.keep(), source(before).keep())).unwrap();
        let file = source(file);
        let restored = restore(file.config.clone(), Some(&file), &path);
        std::fs::remove_file(&path).unwrap();
        restored
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_told_with_what_to_do() {
        let folder = std::env::temp_dir().join(format!("state-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        journal::Saver::new(&path).write(&source(FILE).config.to_toml().unwrap()).unwrap();
        let journal = folder.join(journal::named_in(&std::fs::read_to_string(&path).unwrap()).unwrap());
        let start = || restore(source("").config, None, &path);
        assert_eq!(start().unwrap().0.vpcs.len(), 1);
        std::fs::write(&journal, "of a newer version\n").unwrap();
        let error = format!("{:#}", start().unwrap_err());
        for part in ["mend the journal, or remove it", "after a downgrade", "journal-", ":1:"] {
            assert!(error.contains(part), "{error}");
        }
        // It is as the error says.
        std::fs::remove_file(&journal).unwrap();
        assert_eq!(start().unwrap().0.vpcs.len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_start_leaves_out_what_other_hosts_said_and_cannot_be_any_more() {
        for owner in [Owner::Etcd, Owner::Evpn] {
            let (same, _) = started(FILE, owner).unwrap();
            assert_eq!(same.locations.len(), 2);
            let (renumbered, _) = started(&FILE.replace("172.16.0.1/24", "172.20.0.1/24"), owner).unwrap();
            assert_eq!(renumbered.locations, []);
            let (moved, _) = started(&format!("{FILE}{VNIC}"), owner).unwrap();
            assert_eq!((moved.locations.len(), moved.vnics.len()), (1, 1));
        }
        // What the operator said has to be mended by the operator.
        let refused = started(&format!("{FILE}{VNIC}"), Owner::Api).unwrap_err();
        assert!(format!("{refused:#}").contains("do not go together"), "{refused:#}");
    }

    /// Another host can say any address at any time: no start fails on its account.
    #[test]
    fn a_start_is_not_refused_where_the_file_names_what_other_hosts_said() {
        let named = |vtep: &str| {
            format!(
                "{FILE}[[location]]\nvni = 100\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:01:09\"\nvtep = \"{vtep}\"\n"
            )
        };
        let noted = |owners: &Owners| owners.at_run_time("location", "100 10.0.0.9");
        let vtep = |config: &Config| {
            let location = config.locations.iter().find(|location| location.vip.to_string() == "10.0.0.9");
            location.unwrap().vtep.to_string()
        };
        for owner in [Owner::Etcd, Owner::Evpn] {
            // It says what it said, which had gone: the other host's stays.
            let (config, owners) = started_after(&named("172.16.0.5"), &named("172.16.0.5"), owner).unwrap();
            assert_eq!((vtep(&config).as_str(), noted(&owners)), ("172.16.0.2", owner));
            // What is news is the file's.
            for before in [FILE.to_owned(), named("172.16.0.5")] {
                let (config, owners) = started_after(&before, &named("172.16.0.6"), owner).unwrap();
                assert_eq!((vtep(&config).as_str(), noted(&owners)), ("172.16.0.6", Owner::Api));
                assert_eq!(owners.at_run_time("location", "100 10.0.0.7"), owner);
            }
        }
    }

    #[test]
    fn a_start_keeps_a_prefix_of_another_host_that_the_file_names_and_that_had_gone() {
        let with = |target: &str| {
            FILE.replace(
                "vni = 100\n",
                &format!("vni = 100\nroutes = [{{ to = \"10.9.0.0/16\", {target} }}]\n"),
            )
        };
        let target = |config: &Config| config.vpcs[0].routes[0].target.clone();
        let far = "vtep = \"172.16.0.2\", mac = \"02:00:00:00:09:01\"";
        let running = source(&with(far)).config;
        let mut owners = Owners::default();
        owners.set(("route".into(), "red 10.9.0.0/16".into()), Owner::Evpn);
        let path = std::env::temp_dir().join(format!("state-prefix-{}", std::process::id()));
        let text = format!(
            "{}{}{}",
            running.to_toml().unwrap(),
            owners.keep(),
            source(&with("blackhole = true")).keep()
        );
        std::fs::write(&path, text).unwrap();
        let start = |file: &str| {
            let file = source(file);
            restore(file.config.clone(), Some(&file), &path).unwrap()
        };
        let (config, owners) = start(&with("blackhole = true"));
        assert_eq!(target(&config), target(&running));
        assert_eq!(owners.iter().count(), 1);
        // Something else of the VPC is news, which does not touch it.
        let (config, owners) =
            start(&with("blackhole = true").replace("[{", "[{ to = \"10.8.0.0/16\", blackhole = true }, {"));
        assert_eq!((config.vpcs[0].routes.len(), owners.iter().count()), (2, 1));
        assert_eq!(config.vpcs[0].routes[1].target, target(&running));
        // This is.
        let other = with("vtep = \"172.16.0.7\", mac = \"02:00:00:00:09:07\"");
        let (config, owners) = start(&other);
        assert_eq!(target(&config), target(&source(&other).config));
        assert_eq!(owners.iter().count(), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
