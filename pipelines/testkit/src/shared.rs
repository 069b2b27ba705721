//! The tables that the workers of a test's host share.

use std::sync::Arc;

use pipelines::connections::Connections;
use pipelines::event::Events;
use pipelines::fragments::Fragments;
use pipelines::ledger::LedgerParams;
use pipelines::rcft::{RcftParams, RcftShared};

/// What workers share.
#[derive(Clone)]
pub struct SharedTables {
    /// First fragments.
    pub fragments: Arc<Fragments>,
    /// Connections of security groups.
    pub connections: Arc<Connections>,
    /// Queue pairs.
    pub rcft: Arc<RcftShared>,
    /// Where control hears of what happens.
    pub events: Events,
}

impl SharedTables {
    /// Empty, for so many workers.
    pub fn new(workers: u32) -> Self {
        let config = RcftParams { entries: 1024, vnics: 64, workers, seed: 0x5eed };
        let rcft = RcftShared::new(config, &|_, _| {});
        rcft.set_times(6000, 50, 600);
        let params = LedgerParams { entries: 1024, vnics: 64, workers, seed: 0x5eed };
        Self {
            fragments: Arc::new(Fragments::new(64, 5)),
            connections: Arc::new(Connections::new(&params, &|_, _| {})),
            rcft,
            events: Events::new(16, 64),
        }
    }
}
