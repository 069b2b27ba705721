//! What was changed at run time is saved: the answer to a change comes when the disk has it.

use std::sync::Arc;

use super::{Switch, SwitchError};
use crate::config::{Config, Source};
use crate::state::change::Change;
use crate::state::owners::Owners;

impl Switch {
    /// Saves one change, which `change` tells where it is wanted, and tells those who watch.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`].
    pub(super) fn save_change(
        &mut self,
        change: impl FnOnce() -> Result<Change, SwitchError>,
    ) -> Result<(), SwitchError> {
        self.changes.count();
        if self.saved.is_none() && !self.changes.is_watched() {
            self.saved_owners = self.owners.clone();
            return Ok(());
        }
        let owners = self.owners.since(&self.saved_owners);
        let change = change().map(|change| Arc::new(change.and_owners(owners)));
        if let Ok(change) = &change {
            let changed_hands = match self.changes.is_watched() {
                true => self.changed_hands(change)?,
                false => Vec::new(),
            };
            self.changes.tell(change, changed_hands, self.ownership());
        }
        let Some(saver) = &mut self.saved else {
            self.saved_owners = self.owners.clone();
            return Ok(());
        };
        if !saver.can_append() {
            return self.save_whole();
        }
        let saved = change.and_then(|change| {
            let path = saver.path().display().to_string();
            saver.append(&change).map_err(|source| SwitchError::File { path, source })
        });
        if saved.is_ok() {
            self.saved_owners = self.owners.clone();
        }
        saved.map_err(|error| SwitchError::NotSaved(Box::new(error)))
    }

    /// Saves the whole config: a change of a whole file, and one that comes before there is a journal to append to.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`].
    pub(super) fn save_whole(&mut self) -> Result<(), SwitchError> {
        if self.saved.is_none() {
            return Ok(());
        }
        let text = self.config().to_toml().map(|text| with_file(text, self.file.as_deref(), &self.owners));
        let Some(saver) = &mut self.saved else { return Ok(()) };
        let saved = text.map_err(SwitchError::from).and_then(|text| {
            let path = saver.path().display().to_string();
            saver.write(&text).map_err(|source| SwitchError::File { path, source })
        });
        if saved.is_ok() {
            self.saved_owners = self.owners.clone();
        }
        saved.map_err(|error| SwitchError::NotSaved(Box::new(error)))
    }

    /// Has the state file written when that is due, after a start that found one and when its journal has grown long; the writing is a
    /// thread's of its own.
    pub(super) fn tend_state(&mut self) {
        let Some(saver) = &mut self.saved else { return };
        if let Err(error) = saver.tend() {
            tracing::warn!(file = %saver.path().display(), %error, "the state file was not written anew; the next change writes all of it");
        }
        if !saver.is_due() {
            return;
        }
        let (config, locations, file) =
            (self.config.clone(), self.topology.all_locations(), self.file.clone());
        // What is appended until it is there says what changed since then, to whichever of the two.
        let owners = self.owners.clone();
        let text = move || {
            let config = Config { locations: locations.values().cloned().collect(), ..(*config).clone() };
            let text = config.to_toml().map_err(std::io::Error::other)?;
            Ok(with_file(text, file.as_deref(), &owners))
        };
        if let Err(error) = saver.renew(text) {
            tracing::warn!(file = %saver.path().display(), %error, "the state file cannot be written anew; the next change writes all of it");
        }
    }
}

fn with_file(mut text: String, file: Option<&Source>, owners: &Owners) -> String {
    text.push_str(&owners.keep());
    text.extend(file.map(Source::keep));
    text
}
