//! Whose each object is at a moment, by the config file as it was last applied and by what is noted of all others.

use std::collections::HashSet;
use std::sync::Arc;

use super::change::Change;
use super::owners::{Owner, Owners};
use crate::config::objects::{ObjectId, SECTIONS, ids, is_same_section, outer};
use crate::config::{Config, Source};

/// Who made what. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// The config file.
    pub file: Option<Arc<Source>>,
    /// Who made what is not the file's.
    pub at_run_time: Owners,
}

impl Ownership {
    /// Who made an object: its section, or `route` or `rule`, and what tells it from others there. What the file names is the file's,
    /// unless that had gone, and somebody else made what is there now.
    pub fn of(&self, section: &str, id: &str) -> Owner {
        match self.at_run_time.at_run_time(section, id) {
            Owner::Api if self.file.as_ref().is_some_and(|file| file.names(section, id)) => Owner::File,
            owner => owner,
        }
    }

    /// Who says what a section of a config is like: the file where it says so, defaults included.
    pub fn of_section(&self, section: &str, config: &Config) -> Owner {
        let is_files = self.file.as_ref().is_some_and(|file| is_same_section(section, &file.config, config));
        if is_files { Owner::File } else { Owner::Api }
    }

    /// The objects and sections of a config that belong to others than they did, with those that have such inside of them.
    pub fn changed_since(&self, before: &Self, config_before: &Config, config: &Config) -> HashSet<ObjectId> {
        let same_file = match (&before.file, &self.file) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        if same_file && before.at_run_time == self.at_run_time {
            return HashSet::new();
        }
        let objects = ids(config).filter(|(section, id)| before.of(section, id) != self.of(section, id));
        let sections = SECTIONS
            .iter()
            .filter(|section| before.of_section(section, config_before) != self.of_section(section, config));
        objects.map(outer).chain(sections.map(|section| ((*section).to_owned(), String::new()))).collect()
    }
}

/// Of some objects those that a change neither sets nor takes away.
pub fn untouched(mut objects: HashSet<ObjectId>, change: &Change) -> HashSet<ObjectId> {
    for (section, id, _) in change.set() {
        objects.remove(&(section.to_owned(), id.unwrap_or_default()));
    }
    for (section, id) in change.gone() {
        objects.remove(&(section.to_owned(), id.to_owned()));
    }
    objects
}
