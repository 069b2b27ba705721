//! Many hosts, by way of an etcd that they share: each publishes its vNICs under a lease, and follows those of the others.
//!
//! The client has a thread of its own: however slowly etcd answers, control waits for nothing. While etcd is not to be had, what it
//! said last holds. [`ETCD.md`](../../ETCD.md) says what the keys and values are and what is decided by them.
//!
//! `keys` reads and writes keys and values, `book` is what the hosts say and what follows from it, `publish` and `publishing` are what
//! this host says, `members` is who took part before a restart, `past` is how far etcd has been and what it has lost, `objects` is what the
//! config gets from there, `store` is etcd, and `pages` how much of it is read at once; `follower` brings them together, and `apply` is
//! what control does for it.

mod apply;
pub mod book;
mod follower;
mod generations;
pub mod keys;
mod members;
mod objects;
mod pages;
mod past;
mod publish;
mod publishing;
mod refusals;
pub mod status;
mod store;

use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use crate::api::Job;
use crate::config::{Config, EtcdConfig, Name};
use crate::control::asking::Asker;
use follower::{Files, Follower};
use status::Shared;

/// Starts the client of a config that has one, for the host of this name, on a thread of its own; `state` is the state file, if there is
/// one. What it does can be read from what this returns.
///
/// # Errors
/// When the system has no thread.
pub fn start(
    config: &Config,
    own: &Name,
    state: Option<&Path>,
    jobs: mpsc::Sender<Job>,
) -> std::io::Result<Option<Shared>> {
    let Some(etcd) = &config.control.etcd else { return Ok(None) };
    let own = own.clone();
    let files = Files {
        generations: file_beside(state.unwrap_or(&config.api.socket), ".generations"),
        members: state.map(|state| file_beside(state, ".members")),
        past: state.map(|state| file_beside(state, ".etcd")),
    };
    let shared = Shared::new(etcd, &own);
    // The client itself runs on a thread of its own, and writes its files there: however long the disk takes, the thread of the runtime renews
    // the lease.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("etcd-lease")
        .enable_all()
        .build()?;
    let (etcd, told) = (etcd.clone(), shared.clone());
    std::thread::Builder::new().name("etcd".into()).spawn(move || {
        let follower = Follower::new(etcd, own, &files, Asker::new(jobs), told);
        runtime.block_on(follower.run());
    })?;
    Ok(Some(shared))
}

/// The name of this host: that of the config, or the machine's.
///
/// # Errors
/// The machine's cannot be one, or is not to be had.
pub fn own_name(etcd: &EtcdConfig) -> Result<Name, String> {
    match &etcd.host {
        Some(name) => Ok(name.clone()),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_err(|error| error.to_string())
            .and_then(|name| named_by_machine(name.trim())),
    }
}

fn named_by_machine(name: &str) -> Result<Name, String> {
    Name::new(name).map_err(|error| {
        format!("{error}; this machine's host name is to be its name in etcd: write `host` in [control] etcd")
    })
}

fn file_beside(beside: &Path, ending: &str) -> PathBuf {
    let mut file = beside.as_os_str().to_owned();
    file.push(ending);
    file.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_name_that_others_could_tell_it_by_is_told_what_to_write() {
        named_by_machine("host-1").unwrap();
        for name in ["", "two words"] {
            let said = named_by_machine(name).unwrap_err();
            assert!(said.contains("write `host` in [control] etcd"), "{said}");
        }
    }
}
