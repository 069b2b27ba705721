//! The file of admitted queue pairs: collected in slices while the switch runs, all at once when it ends, written by a
//! thread of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use pipelines::rcft::{QpKey, ticks};
use pipelines::snapshot::Snapshot;
use wire::Qpn;

use super::saved::{self, Saved, SavedWriter};
use super::{RcftControl, vnic_of};
use crate::state::files::remove_unfinished;
use crate::switch::kept::name_of;

/// Queue pairs that are collected for saving in one turn.
const COLLECT: usize = 50_000;
/// Ticks between two files of admitted queue pairs: what is admitted in between is forgotten by a crash.
const SAVE_EVERY: u32 = ticks(1000);
/// The same where there are more than are collected in one turn: to write them takes its time.
const SAVE_MANY_EVERY: u32 = ticks(10_000);

/// Queue pairs by vNIC.
type PairsByVnic = BTreeMap<u32, Vec<(IpAddr, Qpn)>>;

/// The file of admitted queue pairs.
#[derive(Default)]
pub(super) struct Store {
    pub(super) path: Option<PathBuf>,
    /// Read at start, not admitted yet.
    pub(super) pending: Option<Saved>,
    /// Something changed since the last file; which count of opened queue pairs was in it.
    pub(super) dirty: bool,
    pub(super) opened: u64,
    pub(super) last: Option<u32>,
    /// Being collected: from which slot on, what there is.
    pub(super) collecting: Option<(u32, PairsByVnic)>,
    pub(super) writer: Option<SavedWriter>,
    /// So many queue pairs were in the last file.
    pub(super) count: usize,
    /// It was said that the file cannot be written.
    pub(super) failed: bool,
}

impl RcftControl {
    /// Saves in slices what is admitted, some seconds after something changed.
    pub(super) fn save_in_turns(&mut self, snapshot: &Snapshot, tick: u32, opened: u64) {
        let Some(path) = self.store.path.clone() else { return };
        self.see_writer();
        if opened != self.store.opened {
            (self.store.opened, self.store.dirty) = (opened, true);
        }
        let pause = if self.store.count <= COLLECT { SAVE_EVERY } else { SAVE_MANY_EVERY };
        let due = self.store.last.is_none_or(|last| tick.wrapping_sub(last) >= pause);
        if self.store.collecting.is_none() && self.store.writer.is_none() && self.store.dirty && due {
            (self.store.dirty, self.store.last) = (false, Some(tick));
            self.store.collecting = Some((0, BTreeMap::new()));
        }
        let Some((from, mut found)) = self.store.collecting.take() else { return };
        let next = self.collect(from, COLLECT, &mut found);
        match next {
            Some(next) => self.store.collecting = Some((next, found)),
            None => {
                self.store.count = found.values().map(Vec::len).sum();
                match SavedWriter::start(path, named(found, snapshot)) {
                    Ok(writer) => self.store.writer = Some(writer),
                    Err(error) => self.complain(&error),
                }
            }
        }
    }

    fn see_writer(&mut self) {
        if let Some(writer) = self.store.writer.take_if(|writer| writer.is_done()) {
            match writer.finish() {
                Ok(()) => self.store.failed = false,
                Err(error) => self.complain(&error),
            }
        }
    }

    fn complain(&mut self, error: &std::io::Error) {
        self.store.dirty = true;
        if let (Some(path), false) = (&self.store.path, std::mem::replace(&mut self.store.failed, true)) {
            let file = path.display();
            tracing::warn!(
                "the admitted queue pairs cannot be saved to {file}: {error}; a restart would forget them"
            );
        }
    }

    fn collect(&self, from: u32, limit: usize, found: &mut PairsByVnic) -> Option<u32> {
        let (page, next) = self.keeper.scan(from, limit);
        for seen in page.iter().filter(|seen| !seen.leaving) {
            let key = QpKey::from_words(seen.key);
            if let Some(vnic) = vnic_of(&seen.key) {
                found.entry(vnic).or_default().push((key.address(), key.qpn()));
            }
        }
        next
    }

    /// What is admitted, for another process.
    pub fn admitted(&self, snapshot: &Snapshot) -> Saved {
        let (mut found, mut from) = (BTreeMap::new(), Some(0));
        while let Some(start) = from {
            from = self.collect(start, COLLECT, &mut found);
        }
        named(found, snapshot)
    }

    /// What another process has admitted, in place of what was saved.
    pub fn take_over(&mut self, admitted: Saved) {
        self.store.pending = Some(admitted);
    }

    /// Removes what a process that was killed left half-written beside the file.
    pub fn remove_unfinished(&self) {
        self.store.path.iter().for_each(|path| remove_unfinished(path));
    }

    /// The file is another process's from now on.
    pub fn forget_file(&mut self) {
        self.store.path = None;
    }

    /// Saves everything now: the switch ends.
    pub fn save_all(&mut self, snapshot: &Snapshot) {
        let Some(path) = self.store.path.clone() else { return };
        if let Some(writer) = self.store.writer.take() {
            let _ = writer.finish();
        }
        // Saved ones that were never admitted, as the start failed, stay in the file.
        if self.store.pending.is_some() {
            return;
        }
        let mut found = BTreeMap::new();
        let mut from = Some(0);
        while let Some(start) = from {
            from = self.collect(start, COLLECT, &mut found);
        }
        if let Err(error) = saved::write(&path, &named(found, snapshot)) {
            self.complain(&error);
        }
    }
}

fn named(found: PairsByVnic, snapshot: &Snapshot) -> Saved {
    let name = |(vnic, entries)| Some((name_of(snapshot, vnic)?, entries));
    found.into_iter().filter_map(name).collect()
}
