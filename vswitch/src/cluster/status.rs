//! What the client of etcd is doing, for whoever asks: it writes, the API reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vswitch_api::v1;
use wire::Vni;

use super::book::Seen;
use crate::config::{EtcdConfig, Name};

/// Faults that are kept; one more is counted in its kind by nobody.
const MOST_FAULTS: usize = 256;

/// A host of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// What it says of itself, while its lease lives.
    pub record: Option<v1::HostRecord>,
    /// What the networks that are followed know of it.
    pub seen: Seen,
}

/// What there is to tell.
#[derive(Debug)]
pub struct Status {
    pub own: Name,
    pub prefix: String,
    pub endpoints: Vec<String>,
    pub lease_time: Duration,
    /// The endpoint in use.
    pub endpoint: Option<String>,
    /// When that began, or the time without one did.
    pub since: Instant,
    pub revision: i64,
    pub newest: i64,
    pub lag: Duration,
    pub longest_lag: Duration,
    pub lease: Option<i64>,
    pub renewed: Option<Instant>,
    pub published: usize,
    pub networks: BTreeSet<Vni>,
    pub vnics: usize,
    pub addresses: usize,
    pub objects: usize,
    pub events: u64,
    pub connections: u64,
    pub resyncs: u64,
    pub last_error: Option<(Instant, String)>,
    pub hosts: BTreeMap<Name, Host>,
    /// By kind and subject.
    pub faults: BTreeMap<(&'static str, String), String>,
}

/// The status, shared.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Status>>);

impl Shared {
    /// That of a client that has not begun.
    pub fn new(config: &EtcdConfig, own: &Name) -> Self {
        Self(Arc::new(Mutex::new(Status {
            own: own.clone(),
            prefix: config.prefix.clone(),
            endpoints: config.endpoints.clone(),
            lease_time: config.lease,
            endpoint: None,
            since: Instant::now(),
            revision: 0,
            newest: 0,
            lag: Duration::ZERO,
            longest_lag: Duration::ZERO,
            lease: None,
            renewed: None,
            published: 0,
            networks: BTreeSet::new(),
            vnics: 0,
            addresses: 0,
            objects: 0,
            events: 0,
            connections: 0,
            resyncs: 0,
            last_error: None,
            hosts: BTreeMap::new(),
            faults: BTreeMap::new(),
        })))
    }

    /// The status, to read or write; nobody holds it for longer than that.
    pub fn lock(&self) -> MutexGuard<'_, Status> {
        // A panic between two fields leaves figures that are out of date, and nothing worse.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Status {
    /// Something is wrong with a subject; true when that is news.
    pub fn fault(&mut self, kind: &'static str, subject: String, text: String) -> bool {
        let key = (kind, subject);
        if self.faults.len() >= MOST_FAULTS && !self.faults.contains_key(&key) {
            return false;
        }
        self.faults.insert(key, text.clone()).is_none_or(|before| before != text)
    }

    /// Nothing is wrong with a subject any more.
    pub fn mend(&mut self, kind: &'static str, subject: &str) {
        self.faults.remove(&(kind, subject.to_owned()));
    }
}
