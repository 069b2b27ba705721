//! What control does for the client of etcd: it looks at the config, and takes in what others said.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use wire::Vni;

use super::book::News;
use crate::config::LocationConfig;
use crate::state::owners::Owner;
use crate::switch::following::{Heard, Refused};
use crate::switch::{Switch, SwitchError};

/// What became of news.
#[derive(Debug, Default)]
pub struct Taken {
    /// What was refused, each by itself.
    pub refused: Vec<Refused>,
    /// All of the rest is in force; why it would not be there after a restart.
    pub unsaved: Option<String>,
}

/// Takes in where stations are. Otherwise all of it was refused, and why.
pub fn take_in(switch: &mut Switch, news: News) -> Result<Taken, String> {
    let mut reached: HashMap<Arc<[IpAddr]>, IpAddr> = HashMap::new();
    let mut choose = |vteps: &Arc<[IpAddr]>| {
        // The first that an uplink leads to: both ends come to the same where both have the same networks.
        let choice = || vteps.iter().find(|vtep| switch.topology().paths(**vtep).is_some());
        *reached
            .entry(vteps.clone())
            .or_insert_with(|| choice().or(vteps.first()).copied().unwrap_or(IpAddr::V4(0.into())))
    };
    let come = news.stations.into_iter().map(|station| LocationConfig {
        vtep: choose(&station.vteps),
        vni: station.vni,
        vip: station.vip,
        mac: station.mac,
        groups: station.groups,
    });
    let come: Vec<LocationConfig> = come.collect();
    let members: BTreeMap<Vni, BTreeSet<IpAddr>> =
        news.members.iter().map(|(vni, hosts)| (*vni, hosts.iter().map(&mut choose).collect())).collect();
    let mut refused = Vec::new();
    match switch.hear(Owner::Etcd, Heard { come, gone: news.gone, members }, &mut refused) {
        Ok(()) => Ok(Taken { refused, unsaved: None }),
        Err(error @ SwitchError::NotSaved(_)) => Ok(Taken { refused, unsaved: Some(error.to_string()) }),
        Err(error) => Err(error.to_string()),
    }
}
