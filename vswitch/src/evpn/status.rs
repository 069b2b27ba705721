//! What EVPN is doing, for who asks.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wire::MacAddr;

use super::publish::Duplicate;
use super::route::{Key, Route};
use crate::config::GobgpdAddress;

/// A BGP peer of gobgpd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub address: String,
    pub asn: u32,
    /// In a word of RFC 4271 section 8.2.2, such as "established"; "admin-down" of one that is so.
    pub state: &'static str,
    /// How many routes it has sent.
    pub routes: u64,
}

/// Routes by their types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Type 2.
    pub stations: u64,
    /// Type 3.
    pub floods: u64,
    /// Type 5.
    pub prefixes: u64,
}

impl Count {
    /// Of some routes.
    pub fn of<'r>(routes: impl Iterator<Item = &'r Route>) -> Self {
        let mut count = Self::default();
        for route in routes {
            *match route.key {
                Key::Station { .. } => &mut count.stations,
                Key::Flood { .. } => &mut count.floods,
                Key::Prefix { .. } => &mut count.prefixes,
            } += 1;
        }
        count
    }
}

/// What EVPN is doing.
#[derive(Clone, Debug)]
pub struct Status {
    pub gobgpd: GobgpdAddress,
    pub connected: bool,
    /// Since when it is so.
    pub since: Instant,
    /// How often gobgpd was reached.
    pub connections: u64,
    pub asn: u32,
    pub router_id: Option<Ipv4Addr>,
    pub vtep: Option<IpAddr>,
    pub peers: Vec<Peer>,
    pub heard: Count,
    pub announced: Count,
    /// Routes that were not said again since gobgpd is back.
    pub stale: u64,
    /// Routes that were no use, so far, and why the last one was not.
    pub unusable: u64,
    pub last_unusable: String,
    /// What cannot be here.
    pub refused: u64,
    pub last_refused: String,
    /// What somebody else has said otherwise.
    pub others: u64,
    /// Stations that came here from other hosts, and that left for others.
    pub came: u64,
    pub left: u64,
    /// MAC addresses that two hosts have, by VNI.
    pub duplicates: Vec<(u32, MacAddr, Duplicate)>,
    pub last_error: String,
}

/// The same, for its writer and its readers.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Status>>);

impl Shared {
    pub fn new(gobgpd: GobgpdAddress) -> Self {
        Self(Arc::new(Mutex::new(Status {
            gobgpd,
            connected: false,
            since: Instant::now(),
            connections: 0,
            asn: 0,
            router_id: None,
            vtep: None,
            peers: Vec::new(),
            heard: Count::default(),
            announced: Count::default(),
            stale: 0,
            unusable: 0,
            last_unusable: String::new(),
            refused: 0,
            last_refused: String::new(),
            others: 0,
            came: 0,
            left: 0,
            duplicates: Vec::new(),
            last_error: String::new(),
        })))
    }

    /// To look at or to write, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
