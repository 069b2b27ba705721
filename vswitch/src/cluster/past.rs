//! How far etcd has been, and what it has lost, over a restart of this host.
//!
//! An etcd that was restored or emptied says nothing of it. A host tells by the revision, which goes back, and so it has to know the one
//! that was; and what is kept because etcd has lost it has to be kept by the process after this one, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::state::files::{read_text, remove_unfinished, write_whole};

/// Between two times that the file is written for a later revision alone.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// What etcd has lost, and this host keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// The revision that etcd had gone back to.
    pub at: i64,
    /// The one that it had been at.
    pub was: i64,
    /// Objects that no key says any more: kind, as the API's enum has it, and name.
    pub kept: BTreeSet<(i32, String)>,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Said {
    /// The newest revision that etcd is known to have been at, since it last went back.
    newest: i64,
    #[serde(default)]
    losses: Option<Losses>,
}

/// What is known of etcd's past, and the file that has it.
#[derive(Debug, Default)]
pub struct Past {
    path: Option<PathBuf>,
    said: Said,
    unsaved: bool,
    saved: Option<Instant>,
}

impl Past {
    /// What a file says, if there is a state to keep; nothing where there is no such file, or nobody can read it, which is told.
    pub fn read(path: Option<&Path>) -> Self {
        path.into_iter().for_each(remove_unfinished);
        let said = path.filter(|path| path.exists()).map(|path| {
            let read =
                read_text(path).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
            read.unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), error, "how far etcd has been is not known: what it has lost meanwhile is taken \
                    away here, too");
                Said::default()
            })
        });
        Self { path: path.map(Path::to_owned), said: said.unwrap_or_default(), ..Self::default() }
    }

    /// What etcd had lost when this was last saved.
    pub fn losses(&self) -> Option<Losses> {
        self.said.losses.clone()
    }

    /// etcd is, or was, at a revision.
    pub fn reaches(&mut self, revision: i64) {
        if revision > self.said.newest {
            (self.said.newest, self.unsaved) = (revision, true);
        }
    }

    /// etcd was read as a whole, at a revision. Where it was before, if that was later.
    pub fn is_at(&mut self, revision: i64) -> Option<i64> {
        let was = std::mem::replace(&mut self.said.newest, revision);
        self.unsaved |= revision != was;
        (revision < was).then_some(was)
    }

    /// Has the file say what etcd has lost, at once, for the objects are gone with the next process otherwise.
    pub fn keep(&mut self, losses: Option<Losses>) {
        if self.said.losses != losses {
            self.said.losses = losses;
            self.unsaved = true;
            self.saved = None;
            self.save(Instant::now());
        }
    }

    /// Writes the file, where something changed, and not often.
    pub fn save(&mut self, now: Instant) {
        let Some(path) = self.path.as_ref().filter(|_| self.unsaved) else { return };
        if self.saved.is_some_and(|at| now.saturating_duration_since(at) < SAVE_EVERY) {
            return;
        }
        self.saved = Some(now);
        let text = serde_json::to_string(&self.said).unwrap_or_default();
        match write_whole(path, &text) {
            Ok(()) => self.unsaved = false,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "how far etcd has been is not saved");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_how_far_it_was_and_what_it_lost_are_known_after_a_restart() {
        let path = std::env::temp_dir().join(format!("vswitch-past-{}", std::process::id()));
        let mut past = Past::read(Some(&path));
        assert_eq!((past.said.newest, past.losses(), past.is_at(90)), (0, None, None));
        let now = Instant::now();
        past.save(now);
        assert_eq!(Past::read(Some(&path)).said.newest, 90);
        // Later revisions alone are no reason to write often.
        past.reaches(95);
        past.reaches(94);
        past.save(now);
        assert_eq!((past.said.newest, Past::read(Some(&path)).said.newest), (95, 90));
        past.save(now + SAVE_EVERY);
        assert_eq!(Past::read(Some(&path)).said.newest, 95);
        assert_eq!(past.is_at(95), None);
        assert_eq!(past.is_at(5), Some(95));
        let losses = Losses { at: 5, was: 95, kept: BTreeSet::from([(1, "red".to_owned())]) };
        past.keep(Some(losses.clone()));
        let mut next = Past::read(Some(&path));
        assert_eq!((next.said.newest, next.losses(), next.is_at(6)), (5, Some(losses), None));
        next.keep(None);
        assert_eq!(Past::read(Some(&path)).losses(), None);
        for text in ["no JSON", "{}", "{\"newest\": \"x\"}", "{\"newest\": 7, \"losses\": {\"at\": 1}}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!((Past::read(Some(&path)).said.newest, Past::read(Some(&path)).losses()), (0, None));
        }
        std::fs::remove_file(&path).unwrap();
        let mut nowhere = Past::read(None);
        nowhere.reaches(7);
        nowhere.save(now);
        assert_eq!(nowhere.is_at(3), Some(7));
    }
}
