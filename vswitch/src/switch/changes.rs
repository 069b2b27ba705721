//! What changes, for whoever watches: each change of the config, counted, and that ports came or went.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};

use super::{Switch, SwitchError};
use crate::config::{Config, Source};
use crate::state::change::Change;
use crate::state::owners::Owners;

/// Changes that wait for a watcher; one that lags behind more has to begin anew.
const WAITING: usize = 1024;

/// A change of the config.
#[derive(Clone, Debug)]
pub struct Changed {
    /// Its number; the first one since the start is 1.
    pub revision: u64,
    pub change: Arc<Change>,
    /// The config file as it was last applied then.
    pub file: Option<Arc<Source>>,
    /// Who made what is not the file's, after it.
    pub owners: Owners,
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

    pub(super) fn is_watched(&self) -> bool {
        self.watchers.receiver_count() > 0
    }

    /// One more change.
    pub(super) fn count(&mut self) {
        self.revision += 1;
    }

    /// What the change was that was just counted.
    pub(super) fn tell(&self, change: &Arc<Change>, file: Option<&Arc<Source>>, owners: &Owners) {
        let (change, file, owners) = (change.clone(), file.cloned(), owners.clone());
        // Nobody may watch.
        let _ = self.watchers.send(Changed { revision: self.revision, change, file, owners });
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

    /// The whole config before a change of all of it, where somebody watches what it comes to.
    pub(super) fn before_a_change(&self) -> Option<Config> {
        self.changes.is_watched().then(|| self.config())
    }

    /// Counts a change of the whole config, and tells those who watch what is otherwise than before.
    pub(super) fn tell_since(&mut self, before: Option<Config>) -> Result<(), SwitchError> {
        self.changes.count();
        if let Some(before) = before {
            let change = Change::between(&before, &self.config())?;
            self.changes.tell(&Arc::new(change), self.file.as_ref(), &self.owners);
        }
        Ok(())
    }
}
