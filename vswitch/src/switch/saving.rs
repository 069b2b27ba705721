//! What was changed at run time is saved: the answer to a change comes when the disk has it. What other hosts say is saved later, by the
//! way ([`crate::state::later`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Switch, SwitchError};
use crate::config::{Config, Source};
use crate::state::change::Change;
use crate::state::journal::Saver;
use crate::state::lock;
use crate::state::owners::Owners;

/// When a change is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saving {
    /// Before the answer to it.
    Now,
    /// By the way: nobody waits for it.
    Later,
}

impl Switch {
    /// Saves one change, which `change` tells where it is wanted, and tells those who watch.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`].
    pub(super) fn save_change(
        &mut self,
        change: impl FnOnce() -> Result<Change, SwitchError>,
    ) -> Result<(), SwitchError> {
        let Some(change) = self.tell_change(change)? else { return Ok(()) };
        let Some(saver) = &mut self.saved else { return Ok(()) };
        if !saver.can_append() {
            return self.save_whole();
        }
        let before = self.later.change();
        if let Err(source) = saver.append(before.as_ref(), &change) {
            let file = saver.path().display().to_string();
            return Err(SwitchError::NotSaved(Box::new(SwitchError::File { file, source })));
        }
        self.later.clear();
        self.saved_owners = self.owners.clone();
        Ok(())
    }

    /// The same of what other hosts say: nobody waits for it, and it is saved within seconds.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`], when it cannot be told.
    pub(super) fn save_later(
        &mut self,
        change: impl FnOnce() -> Result<Change, SwitchError>,
    ) -> Result<(), SwitchError> {
        let Some(change) = self.tell_change(change)? else { return Ok(()) };
        self.later.add(&change, self.tended);
        self.saved_owners = self.owners.clone();
        Ok(())
    }

    /// Tells those who watch of a change; the change, where it is to be saved.
    fn tell_change(
        &mut self,
        change: impl FnOnce() -> Result<Change, SwitchError>,
    ) -> Result<Option<Arc<Change>>, SwitchError> {
        self.changes.count();
        if self.saved.is_none() && !self.changes.is_watched() {
            self.saved_owners = self.owners.clone();
            return Ok(None);
        }
        let owners = self.owners.since(&self.saved_owners);
        let change = change().map_err(|error| self.not_saved(error))?;
        let change = Arc::new(change.and_owners(owners));
        let changed_hands = match self.changes.is_watched() {
            true => self.changed_hands(&change).map_err(|error| self.not_saved(error))?,
            false => Vec::new(),
        };
        self.changes.tell(&change, changed_hands, self.ownership());
        if self.saved.is_none() {
            self.saved_owners = self.owners.clone();
            return Ok(None);
        }
        Ok(Some(change))
    }

    /// A change is in force, and the disk has not got it: nothing that is appended goes on from what there is.
    fn not_saved(&mut self, error: SwitchError) -> SwitchError {
        self.saved.iter_mut().for_each(Saver::fall_behind);
        SwitchError::NotSaved(Box::new(error))
    }

    /// Somebody asks for what is so already: it is acknowledged when it is saved, and when the NIC has let go what it was asked for.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`] and [`SwitchError::NotWithdrawn`], as when it was made.
    pub fn save_what_is_not(&mut self) -> Result<(), SwitchError> {
        let saved = match self.saved.as_ref().is_some_and(Saver::is_behind) {
            true => self.save_whole(),
            false => Ok(()),
        };
        saved.and_then(|()| self.in_hardware_too(self.offload.late()))
    }

    /// Saves the whole config: a change of a whole file, and one that comes before there is a journal to append to.
    ///
    /// # Errors
    /// [`SwitchError::NotSaved`].
    pub(super) fn save_whole(&mut self) -> Result<(), SwitchError> {
        let Some(mut saver) = self.saved.take() else { return Ok(()) };
        let (config, file, owners) = (self.config(), self.file.clone(), self.owners.clone());
        // Whatever becomes of the writing, or of what is tended meanwhile: without it, later changes would be answered and not saved.
        let saved = catch_unwind(AssertUnwindSafe(|| {
            self.beside(|| {
                let text = with_file(config.to_toml()?, file.as_deref(), &owners);
                let file = saver.path().display().to_string();
                saver.write(&text).map_err(|source| SwitchError::File { file, source })
            })
        }));
        if saved.is_err() {
            saver.fall_behind();
        }
        self.saved = Some(saver);
        let saved = saved.unwrap_or_else(|panic| resume_unwind(panic));
        match saved {
            Ok(()) => {
                self.later.clear();
                self.saved_owners = self.owners.clone();
                Ok(())
            }
            Err(error) => Err(self.not_saved(error)),
        }
    }

    /// Nothing is saved any more after it: what waits is written, and what is under way is waited for.
    pub(super) fn end_state(&mut self) {
        let Some(saver) = &mut self.saved else { return };
        if saver.is_behind() {
            if let Err(error) = self.save_whole() {
                tracing::error!(%error, "the last changes are lost with the end of this process");
            }
        } else if let Some(change) = self.later.change() {
            let written = match saver.can_append() {
                true => saver.append(None, &change).map_err(|error| error.to_string()),
                false => self.save_whole().map_err(|error| error.to_string()),
            };
            if let Err(error) = written {
                tracing::warn!(error, "what other hosts said last is not saved; they say it again");
            }
        }
        self.later.clear();
        if let Some(saver) = &mut self.saved {
            saver.finish();
        }
    }

    /// Takes the lock on the state file; where another process has it, later.
    pub(super) fn lock_state(&mut self, now: Instant) {
        const AGAIN: Duration = Duration::from_secs(1);
        let path = self.saved.as_ref().map(|saver| saver.path().to_owned());
        let is_later = self.lock_due.take().is_some();
        match lock::try_told(path.as_deref()) {
            Ok(lock) => {
                self.state_lock = lock;
                if is_later {
                    // Whoever had it may have written the file: all of it is written anew.
                    self.saved.iter_mut().for_each(Saver::fall_behind);
                    tracing::info!("the state file is this switch's again");
                }
            }
            Err(error) => {
                if !is_later {
                    tracing::error!(%error, "the other process still has the state file, and changes may be lost until it ends");
                }
                self.lock_due = Some(now + AGAIN);
            }
        }
    }

    /// Has the state file written when that is due: after a start that found one, when its journal has grown long, and after a fault,
    /// again and again; the writing is a thread's of its own.
    pub(super) fn tend_state(&mut self, now: Instant) {
        if self.lock_due.is_some_and(|due| due <= now) {
            self.lock_state(now);
        }
        let Some(saver) = &mut self.saved else { return };
        if let Err(error) = saver.tend() {
            tracing::warn!(file = %saver.path().display(), %error, "the state file was not written anew; it is tried again, and the next change writes all of it");
        }
        let mut is_due = saver.is_due(now);
        // The journal that there is has to say what waits, too: until the new file is there, a start goes on from that.
        if (is_due || self.later.is_due(now))
            && let Some(change) = self.later.change()
        {
            if saver.can_append() {
                match saver.append_unsynced(&change) {
                    Ok(()) => self.later.clear(),
                    Err(error) => {
                        tracing::warn!(file = %saver.path().display(), %error, "what other hosts say is not saved; it is tried again");
                    }
                }
            } else {
                // The first of all changes, or the one after a fault: the whole, without waiting for it.
                is_due |= !saver.is_renewing();
            }
        }
        if !is_due {
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
        let is_needed = self.later.change().is_some();
        self.later.clear();
        if let Err(error) = saver.renew(is_needed, text) {
            tracing::warn!(file = %saver.path().display(), %error, "the state file cannot be written anew; it is tried again, and the next change writes all of it");
        }
    }
}

fn with_file(mut text: String, file: Option<&Source>, owners: &Owners) -> String {
    text.push_str(&owners.keep());
    text.extend(file.map(Source::keep));
    text
}

#[cfg(test)]
mod tests;
