//! What a config leaves to the machine that it is used on. It is found before anything is touched: a switch that takes over from another
//! one must not end for the want of it when that one has ended.

use crate::cluster;
use crate::config::process::ApiConfig;
use crate::config::{Config, Name};
use crate::control::server::{BindError, group_number};

/// What was found.
#[derive(Debug)]
pub(super) struct Here {
    /// This host's name in etcd, where there is one.
    pub host: Option<Name>,
    /// The number of the group that has a socket to look by, where there is one.
    pub readers: Option<u32>,
}

impl Here {
    /// Finds it.
    ///
    /// # Errors
    /// What is not to be found, and what to write instead.
    pub fn find(config: &Config) -> anyhow::Result<Self> {
        Ok(Self { host: host(config)?, readers: readers(&config.api)? })
    }
}

fn host(config: &Config) -> anyhow::Result<Option<Name>> {
    let etcd = config.control.etcd.as_ref();
    etcd.map(|etcd| cluster::own_name(etcd).map_err(anyhow::Error::msg)).transpose()
}

fn readers(api: &ApiConfig) -> Result<Option<u32>, BindError> {
    api.group.as_ref().map(|group| group_number(&api.read_socket(), group)).transpose()
}

/// What a config leaves to this machine and is not to be found here, for who checks it: another machine may have it.
pub fn notes(config: &Config) -> Vec<String> {
    let missing = [host(config).err(), readers(&config.api).err().map(anyhow::Error::from)];
    missing
        .into_iter()
        .flatten()
        .map(|error| format!("the switch does not start on this machine: {error:#}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(keys: &str) -> Config {
        Config::parse(&format!("[api]\n{keys}\n"), "test").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn a_group_that_is_not_there_is_told_before_anything_is_touched_and_by_a_check() {
        let config = api("group = \"no-such-group\"");
        let said = Here::find(&config).unwrap_err().to_string();
        assert!(said.contains("no group \"no-such-group\""), "{said}");
        let notes = notes(&config);
        assert!(notes.len() == 1 && notes[0].contains(&said), "{notes:?}");
        for keys in ["", "group = \"root\""] {
            let config = api(keys);
            assert_eq!(Here::find(&config).unwrap().readers.is_some(), !keys.is_empty());
            assert_eq!(super::notes(&config), Vec::<String>::new());
        }
    }
}
