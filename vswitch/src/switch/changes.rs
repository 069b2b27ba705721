//! What changes, for whoever watches: each change of the config, counted, and that ports came or went.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};
use toml::Table;

use super::{Switch, SwitchError};
use crate::config::Config;
use crate::config::objects::{self, outer};
use crate::state::change::Change;
use crate::state::ownership::{Ownership, untouched};

/// Changes that wait for a watcher; one that lags behind more has to begin anew.
const WAITING: usize = 1024;

/// A change of the config.
#[derive(Clone, Debug)]
pub struct Changed {
    /// Its number; the first one since the start is 1.
    pub revision: u64,
    pub change: Arc<Change>,
    /// Objects and sections that are as they were, and are somebody else's from now on or have such inside of them: the section of each,
    /// and what it is.
    pub changed_hands: Arc<Vec<(&'static str, Table)>>,
    /// Who made what, after it.
    pub ownership: Ownership,
}

/// How it was before a change, for those who watch what it comes to.
#[derive(Debug)]
pub(super) struct Before {
    config: Config,
    ownership: Ownership,
}

/// Who is told of changes.
#[derive(Debug)]
pub struct Changes {
    revision: u64,
    watchers: broadcast::Sender<Changed>,
    ports: watch::Sender<u64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { revision: 0, watchers: broadcast::Sender::new(WAITING), ports: watch::Sender::new(0) }
    }
}

impl Changes {
    /// How many changes there were since the start.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The changes from now on.
    pub fn watch(&self) -> broadcast::Receiver<Changed> {
        self.watchers.subscribe()
    }

    /// A number that is another one whenever a port came, went, or got another reason for not being there.
    pub fn watch_ports(&self) -> watch::Receiver<u64> {
        self.ports.subscribe()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.receiver_count() > 0
    }

    /// One more change.
    pub(super) fn count(&mut self) {
        self.revision += 1;
    }

    /// What the change was that was just counted.
    pub(super) fn tell(
        &self,
        change: &Arc<Change>,
        changed_hands: Vec<(&'static str, Table)>,
        ownership: Ownership,
    ) {
        let (change, changed_hands) = (change.clone(), Arc::new(changed_hands));
        // Nobody may watch.
        let _ = self.watchers.send(Changed { revision: self.revision, change, changed_hands, ownership });
    }

    /// The ports are as this number says.
    pub(super) fn tell_ports(&self, generation: u64) {
        self.ports.send_if_modified(|told| std::mem::replace(told, generation) != generation);
    }
}

impl Switch {
    /// What changes.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// How it is before a change of the whole config, where somebody watches what it comes to.
    pub(super) fn before_a_change(&self) -> Option<Before> {
        self.changes.is_watched().then(|| Before { config: self.config(), ownership: self.ownership() })
    }

    /// Counts a change of the whole config, and tells those who watch what is otherwise than before.
    pub(super) fn tell_since(&mut self, before: Option<Before>) -> Result<(), SwitchError> {
        self.changes.count();
        let Some(before) = before else { return Ok(()) };
        let (config, ownership) = (self.config(), self.ownership());
        let change = Change::between(&before.config, &config)?;
        let changed = ownership.changed_since(&before.ownership, &before.config, &config);
        let changed_hands = objects::tables(&config, &untouched(changed, &change))?;
        self.changes.tell(&Arc::new(change), changed_hands, ownership);
        Ok(())
    }

    /// What a single change, just counted, leaves as it was and gives to others.
    pub(super) fn changed_hands(&self, change: &Change) -> Result<Vec<(&'static str, Table)>, SwitchError> {
        let owners = change.owners().map(|(section, id, _)| outer((section.to_owned(), id.to_owned())));
        Ok(objects::tables(&self.config, &untouched(owners.collect(), change))?)
    }
}
