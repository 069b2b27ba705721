//! What must hold across a whole config.
//!
//! Each file here checks one field of it and reports through `Checker`; every check runs, so one run shows
//! everything. Looks at the config alone: neither at ports nor at the machine, except for the list of cores
//! that [`cores`] is given.

mod bfd;
mod devices;
mod guard;
mod names;
mod networks;
mod offload;
mod ports;
mod process;
mod qos;
mod routes;
mod security;
mod services;
mod underlay;

use std::net::IpAddr;

pub use devices::resources;

use ipnet::IpNet;

use super::error::{ConfigError, ConfigErrors};
use super::objects::location_id;
use super::places::Places;
use super::{Config, LocationConfig, path};

/// Runs every check.
///
/// # Errors
/// Everything wrong, in the order of the text.
pub fn all(config: &Config, places: &Places) -> Result<(), ConfigErrors> {
    let mut checker = Checker { config, places, errors: Vec::new() };
    process::check(&mut checker);
    names::check(&mut checker);
    ports::check(&mut checker);
    underlay::check(&mut checker);
    bfd::check(&mut checker);
    networks::check(&mut checker);
    services::check(&mut checker);
    qos::check(&mut checker);
    security::check(&mut checker);
    offload::check(&mut checker);
    checker.finish()
}

/// Checks the workers' cores against those this process may run on.
///
/// # Errors
/// Each core that is not among `available`.
pub fn cores(config: &Config, places: &Places, available: &[usize]) -> Result<(), ConfigErrors> {
    let mut checker = Checker { config, places, errors: Vec::new() };
    process::check_cores(&mut checker, available);
    checker.finish()
}

/// Checks one location that is not in the config yet. What it may be depends on the uplinks; whether its network is there
/// and its address is free is not asked.
///
/// # Errors
/// Everything wrong with it.
pub fn location(config: &Config, location: &LocationConfig) -> Result<(), ConfigErrors> {
    let mut checker = Checker { config, places: &Places::default(), errors: Vec::new() };
    let path = path::of("location", &location_id(location));
    networks::check_location(&mut checker, &path, location);
    security::check_one_location(&mut checker, &path, location);
    checker.finish()
}

/// A config under check, and what was found so far.
struct Checker<'c> {
    config: &'c Config,
    places: &'c Places,
    errors: Vec<ConfigError>,
}

impl Checker<'_> {
    /// Reports an error about the value at `path`; the message says what is wrong and what to do.
    #[track_caller]
    fn fail(&mut self, path: impl AsRef<str>, message: impl Into<String>) {
        let error = self.places.error(path.as_ref(), message.into());
        let error = ConfigError { path: path::named(self.config, path.as_ref()), ..error };
        #[cfg(test)]
        told::tell(std::panic::Location::caller(), &error);
        self.errors.push(error);
    }

    /// " (line 7)" for the value at `path` when its place is known: points at the other party of a conflict.
    fn line(&self, path: &str) -> String {
        self.places.find(path).map(|(line, _)| format!(" (line {line})")).unwrap_or_default()
    }

    fn finish(mut self) -> Result<(), ConfigErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        self.errors.sort_by_key(|error| error.place);
        Err(ConfigErrors(self.errors))
    }
}

/// An address that one host can have: neither unspecified, loopback, multicast nor broadcast.
pub fn is_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || broadcast)
}

/// The network's own address or its broadcast address, which no host of it can have (IPv4, up to /30).
fn is_reserved_in(ip: IpAddr, prefix: IpNet) -> bool {
    ip.is_ipv4() && prefix.prefix_len() < 31 && (ip == prefix.network() || ip == prefix.broadcast())
}

fn is_vlan(id: u16) -> bool {
    (1..=4094).contains(&id)
}

/// What checks have told on this thread, and from where, for a test that wants all of them.
#[cfg(test)]
pub(super) mod told {
    use std::cell::RefCell;
    use std::panic::Location;

    use super::ConfigError;

    thread_local! {
        static TOLD: RefCell<Vec<(&'static Location<'static>, ConfigError)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn tell(from: &'static Location<'static>, error: &ConfigError) {
        TOLD.with_borrow_mut(|told| told.push((from, error.clone())));
    }

    /// Everything so far.
    pub(crate) fn take() -> Vec<(&'static Location<'static>, ConfigError)> {
        TOLD.take()
    }
}
