//! What a config leaves to the machine that it is used on. It is found before anything is touched: a switch that takes over from another
//! one must not end for the want of it when that one has ended.

use crate::cluster;
use crate::config::{Config, Name};

/// What was found.
#[derive(Debug)]
pub(super) struct Here {
    /// This host's name in etcd, where there is one.
    pub host: Option<Name>,
}

impl Here {
    /// Finds it.
    ///
    /// # Errors
    /// What is not to be found, and what to write instead.
    pub fn find(config: &Config) -> anyhow::Result<Self> {
        Ok(Self { host: host(config)? })
    }
}

fn host(config: &Config) -> anyhow::Result<Option<Name>> {
    let etcd = config.control.etcd.as_ref();
    etcd.map(|etcd| cluster::own_name(etcd).map_err(anyhow::Error::msg)).transpose()
}

/// What a config leaves to this machine and is not to be found here, for who checks it: another machine may have it.
pub fn notes(config: &Config) -> Vec<String> {
    let missing = [host(config).err()];
    missing
        .into_iter()
        .flatten()
        .map(|error| format!("the switch does not start on this machine: {error:#}"))
        .collect()
}
