//! What the control thread has: the switch, and what its clients share that is no part of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::ManualRules;
use crate::api::tcp::Keys;
use crate::cluster;
use crate::control::guard::Fault;
use crate::evpn;
use crate::switch::Switch;

/// The switch, and what clients of the API share.
pub struct Controller {
    pub switch: Switch,
    /// Rules of rte_flow that clients made by hand.
    pub manual_rules: ManualRules,
    /// Stages are watched.
    pub(crate) watching: bool,
    /// Set by a client that ends the switch.
    pub shutdown: bool,
    /// Faults of control, and when the last one was told, by what they were in.
    faults: HashMap<String, Instant>,
    /// The config file that reloads read: the one of the start, or the one that was loaded last.
    pub config_file: Option<PathBuf>,
    /// What the client of etcd is doing, where there is one.
    pub cluster: Option<cluster::status::Shared>,
    /// What EVPN is doing, where there is any.
    pub evpn: Option<evpn::status::Shared>,
    /// The keys of the API over TCP, where it is to be had there.
    pub keys: Option<Arc<Keys>>,
}

impl Controller {
    /// The controller of a switch that was started with this file.
    pub fn new(switch: Switch, config_file: Option<PathBuf>) -> Self {
        Self {
            switch,
            manual_rules: ManualRules::default(),
            watching: false,
            shutdown: false,
            faults: HashMap::new(),
            config_file,
            cluster: None,
            evpn: None,
            keys: None,
        }
    }

    /// Something of control panicked: it is told, though not with every turn of a clock.
    pub fn suspect(&mut self, fault: &Fault) {
        // A change that was tried is so no more.
        self.switch.end_try();
        let now = Instant::now();
        if self.faults.len() >= FAULTS {
            self.faults.clear();
        }
        let told = self.faults.get(&fault.what);
        if told.is_some_and(|told| now.saturating_duration_since(*told) < TOLD_EVERY) {
            return;
        }
        self.faults.insert(fault.what.clone(), now);
        tracing::error!("{fault}");
        self.switch.note("fault", fault.to_string(), json!({ "in": fault.what, "message": fault.message }));
    }
}

/// Faults that are kept apart.
const FAULTS: usize = 64;
/// Between two times that the same fault is told.
const TOLD_EVERY: Duration = Duration::from_secs(60);
