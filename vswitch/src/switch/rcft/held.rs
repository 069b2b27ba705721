//! Holds the way in open for the peers of queue pairs that have their places, where security groups let in nothing else.
//!
//! The sweep passes each admitted queue pair; the connection of its vNIC with its peer counts as used then. A connection that a
//! whole turn has not passed has no queue pair behind it and ends, so that a disconnect, an eviction or a purge of the last one
//! closes the way within seconds, and a queue pair that is silent but has its place keeps it open.

use std::net::IpAddr;
use std::sync::Arc;

use pipelines::connections::{ConnectionKey, Connections};
use pipelines::rcft::{LedgerView, QpKey, ticks};
use pipelines::snapshot::Snapshot;

use super::vnic_of;

/// By how much a worker's clock may be behind when it opens a connection; and how long one may be open ahead of the first packet
/// of its queue pair.
const SLACK: u32 = ticks(2000);

/// The turn under way.
pub(super) struct Held {
    pub connections: Arc<Connections>,
    /// When it began; before that, nobody knows.
    began: Option<u32>,
    /// What has a queue pair was used since then.
    since: Option<u32>,
    /// The last queue pair's: those of one peer often follow each other.
    last: Option<(u32, IpAddr)>,
}

impl Held {
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { connections, began: None, since: None, last: None }
    }

    /// The sweep passes a queue pair.
    pub fn pass(&mut self, seen: &LedgerView, snapshot: &Snapshot, tick: u32) {
        let Some(vnic) = vnic_of(&seen.key).filter(|&vnic| snapshot.row(vnic).group_set != 0) else { return };
        let way = (vnic, QpKey::from_words(seen.key).address());
        if self.last.replace(way) == Some(way) {
            return;
        }
        if let Some(found) = self.connections.find(&ConnectionKey::queue_pairs(way.0, way.1)) {
            self.connections.touch(found.slot, tick);
        }
    }

    /// The sweep has passed them all.
    pub fn turned(&mut self, tick: u32) {
        self.since = self.began.map(|began| began.wrapping_sub(SLACK));
        (self.began, self.last) = (Some(tick), None);
    }

    /// Since when every connection was used that has a queue pair; `None` before the first whole turn.
    pub fn since(&self) -> Option<u32> {
        self.since
    }
}
