//! Who made the objects of the config: each one belongs to whoever made it, and nobody else changes it.
//!
//! What the config file names is the file's, and needs no note here, unless somebody else made it after it had gone. Everything else was
//! made at run time: through the API or the console unless this says otherwise. The notes go with the objects: into the state file, as comments, and into its journal.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::{Deserialize, Serialize};

use super::change::Change;
use crate::config::objects::{ObjectId, ids};
use crate::config::others::Overlap;
use crate::config::{Config, Source};

/// In front of each note in the state file.
const NOTE: &str = "#@ ";
/// A state file with this line has a note of each object that is not the API's. One without is of a version that kept none.
const NOTES: &str = "# Who made what, where it was neither the config file nor the API or the console:";

/// Who made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// The config file.
    File,
    /// A client of the API, or somebody at the console.
    Api,
    /// Another host, by what it keeps in etcd.
    Etcd,
    /// Another host, by EVPN (RFC 7432).
    Evpn,
    /// The CNI plugin.
    Cni,
}

impl Owner {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::File, Self::Api, Self::Etcd, Self::Evpn, Self::Cni];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
            Self::Etcd => "etcd",
            Self::Evpn => "evpn",
            Self::Cni => "cni",
        }
    }

    /// Who that is, in a sentence.
    pub fn who(self) -> &'static str {
        match self {
            Self::File => "the config file",
            Self::Api => "the API or the console",
            Self::Etcd => "another host, through etcd",
            Self::Evpn => "another host, through EVPN",
            Self::Cni => "the CNI plugin, for a pod",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|owner| owner.word() == word)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Who made objects that are neither the file's nor the API's. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners(OrdMap<ObjectId, Owner>);

impl Owners {
    /// Who made an object, as far as it is noted: one of which nothing is noted is the API's where it is not the file's.
    pub fn at_run_time(&self, section: &str, id: &str) -> Owner {
        self.0.get(&(section.to_owned(), id.to_owned())).copied().unwrap_or(Owner::Api)
    }

    /// An object is whose it is from now on.
    pub fn set(&mut self, object: ObjectId, owner: Owner) {
        match owner {
            Owner::File | Owner::Api => self.0.remove(&object),
            Owner::Etcd | Owner::Evpn | Owner::Cni => self.0.insert(object, owner),
        };
    }

    /// Forgets objects that went from one config to another, with those inside of them.
    pub fn forget(&mut self, old: &Config, new: &Config) {
        if self.0.is_empty() {
            return;
        }
        let stay: HashSet<ObjectId> = ids(new).collect();
        for gone in ids(old).filter(|object| !stay.contains(object)) {
            self.0.remove(&gone);
        }
    }

    /// Forgets all but what there is.
    pub fn keep_only(&mut self, there: impl Iterator<Item = ObjectId>) {
        if !self.0.is_empty() {
            let there: HashSet<ObjectId> = there.collect();
            self.retain(|object| there.contains(object));
        }
    }

    /// Forgets what a config file names: that is the file's, but for what stays other hosts'.
    pub fn leave_to(&mut self, file: &Source, overlap: &Overlap) {
        self.retain(|object| overlap.stay.contains(object) || !file.names(&object.0, &object.1));
    }

    fn retain(&mut self, keeps: impl Fn(&ObjectId) -> bool) {
        let gone: Vec<ObjectId> = self.0.keys().filter(|object| !keeps(object)).cloned().collect();
        for object in gone {
            self.0.remove(&object);
        }
    }

    /// All notes.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, Owner)> {
        self.0.iter().map(|(object, owner)| (object, *owner))
    }

    /// What is noted otherwise than before, as a line of the journal has it: an object of which nothing is noted any more is the API's
    /// there.
    pub fn since(&self, before: &Self) -> BTreeMap<String, BTreeMap<String, Owner>> {
        let mut changed: BTreeMap<String, BTreeMap<String, Owner>> = BTreeMap::new();
        for item in before.0.diff(&self.0) {
            let ((section, id), owner) = match item {
                DiffItem::Add(object, owner) => (object, *owner),
                DiffItem::Update { new: (object, owner), .. } => (object, *owner),
                DiffItem::Remove(object, _) => (object, Owner::Api),
            };
            changed.entry(section.clone()).or_default().insert(id.clone(), owner);
        }
        changed
    }

    /// As comments of a state file, in which [`kept_in`](Self::kept_in) finds them.
    pub fn keep(&self) -> String {
        let mut kept = format!("\n{NOTES}\n");
        for ((section, id), owner) in &self.0 {
            kept.push_str(&format!("{NOTE}{owner} {section} {id}\n"));
        }
        kept
    }

    /// Those of a state file and of what changed since it was written.
    pub fn kept_in(state: &str, changes: &[Change]) -> Self {
        let mut owners = Self::default();
        let mut has_notes = false;
        for line in state.lines() {
            has_notes |= line == NOTES;
            let mut words = line.strip_prefix(NOTE).into_iter().flat_map(|note| note.splitn(3, ' '));
            if let (Some(owner), Some(section), Some(id)) =
                (words.next().and_then(Owner::parse), words.next(), words.next())
            {
                owners.set((section.to_owned(), id.to_owned()), owner);
            }
        }
        if !has_notes {
            owners.guess(state, changes);
        }
        for change in changes {
            for (section, id, owner) in change.owners() {
                owners.set((section.to_owned(), id.to_owned()), owner);
            }
        }
        owners
    }

    /// Versions before owners were kept had nobody but the CNI plugin beside the file and the API: its vNICs are told by their
    /// names, `cni-<network>.<container>-<hash>`, without which it could not take them away any more.
    fn guess(&mut self, state: &str, changes: &[Change]) {
        let table: toml::Table = state.parse().unwrap_or_default();
        let listed = table.get("vnic").and_then(toml::Value::as_array).into_iter().flatten();
        let names = listed.filter_map(|vnic| vnic.get("name").and_then(toml::Value::as_str));
        let came = changes.iter().flat_map(Change::set).filter(|(section, ..)| *section == "vnic");
        let names: Vec<String> = names.map(str::to_owned).chain(came.filter_map(|(_, id, _)| id)).collect();
        for name in names.into_iter().filter(|name| is_of_plugin(name)) {
            self.set(("vnic".into(), name), Owner::Cni);
        }
    }
}

/// True for names as the CNI plugin makes them.
fn is_of_plugin(name: &str) -> bool {
    let rest = name.strip_prefix("cni-").and_then(|rest| rest.rsplit_once('.'));
    let hash = rest.and_then(|(_, pod)| pod.rsplit_once('-')).map(|(_, hash)| hash);
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(section: &str, id: &str) -> ObjectId {
        (section.into(), id.into())
    }

    #[test]
    fn ownership_is_kept_by_a_state_file_and_its_journal() {
        let mut owners = Owners::default();
        owners.set(id("vnic", "pod"), Owner::Cni);
        owners.set(id("location", "100 10.0.0.9"), Owner::Etcd);
        owners.set(id("rule", "web in tcp 80"), Owner::Evpn);
        owners.set(id("vpc", "red"), Owner::Api);
        assert_eq!(owners.iter().count(), 3, "the API's needs no note");
        let state = owners.keep();
        assert_eq!(Owners::kept_in(&state, &[]), owners);
        // What changes later is in the journal: one goes, one changes hands, one comes.
        let before = owners.clone();
        owners.set(id("vnic", "pod"), Owner::Api);
        owners.set(id("location", "100 10.0.0.9"), Owner::Evpn);
        owners.set(id("vnic", "other"), Owner::Cni);
        let change = Change::default().and_owners(owners.since(&before));
        let line = change.line();
        assert_eq!(Owners::kept_in(&state, &[Change::read(&line).unwrap()]), owners);
        assert!(owners.since(&owners).is_empty());
    }

    #[test]
    fn ownership_of_pods_is_told_by_their_names_where_a_state_file_is_older_than_owners() {
        let state =
            "[[vnic]]\nname = \"cni-pods.0123456789ab-0123456789abcdef\"\n[[vnic]]\nname = \"cni-mine\"\n";
        let line = r#"{"set":{"vnic":[{"name":"cni-a.b.c0-fedcba9876543210"},{"name":"web"}]}}"#;
        let owners = Owners::kept_in(state, &[Change::read(line).unwrap()]);
        let pods: Vec<_> = owners.iter().map(|((_, id), owner)| (id.as_str(), owner)).collect();
        let names = ["cni-a.b.c0-fedcba9876543210", "cni-pods.0123456789ab-0123456789abcdef"];
        assert_eq!(pods, names.map(|name| (name, Owner::Cni)));
        // One that keeps notes is believed.
        let state = format!("{state}{}", Owners::default().keep());
        assert_eq!(Owners::kept_in(&state, &[]), Owners::default());
    }
}
