//! The generations of this host's vNICs, over its restarts.
//!
//! A vNIC gets its generation when it is first published, and keeps it while it claims the same: so a switch that comes back does not take
//! addresses away from a host that has got them since. They are in a file beside the state, or beside the control socket where there is
//! no state file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wire::Vni;

use super::keys::{FIRST, Published};
use crate::config::Name;
use crate::state::files::{read_text, remove_unfinished, write_whole};

/// What was claimed, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claimed {
    mac: String,
    vips: Vec<String>,
    generation: u64,
}

/// The generations, by network and vNIC.
#[derive(Debug)]
pub struct Generations {
    path: PathBuf,
    known: BTreeMap<String, Claimed>,
    unsaved: bool,
}

impl Generations {
    /// Those of a file; none where there is no such file, or nobody can read it, which is told.
    pub fn read(path: &Path) -> Self {
        remove_unfinished(path);
        let known = match path.exists() {
            false => BTreeMap::new(),
            true => {
                let read = read_text(path)
                    .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
                read.unwrap_or_else(|error| {
                    tracing::warn!(file = %path.display(), error, "generations of vNICs are lost: addresses that another host has, too, \
                        may come back to this one");
                    BTreeMap::new()
                })
            }
        };
        Self { path: path.to_owned(), known, unsaved: false }
    }

    /// The generation of a vNIC that claims this; 0 when it claims more than it did, or was not there.
    pub fn of(&self, vni: Vni, vnic: &Name, said: &Published) -> u64 {
        let known = self.known.get(&key(vni, vnic)).filter(|known| {
            let has = |vip: &std::net::IpAddr| known.vips.contains(&vip.to_string());
            known.mac == said.mac.to_string() && said.vips.iter().all(has)
        });
        known.map_or(0, |known| known.generation)
    }

    /// A vNIC was published at a generation.
    pub fn set(&mut self, vni: Vni, vnic: &Name, said: &Published, generation: u64) {
        let vips = said.vips.iter().map(ToString::to_string).collect();
        let claimed = Claimed { mac: said.mac.to_string(), vips, generation };
        if self.known.get(&key(vni, vnic)) != Some(&claimed) {
            self.known.insert(key(vni, vnic), claimed);
            self.unsaved = true;
        }
    }

    /// The highest of all: etcd was at that revision once.
    pub fn highest(&self) -> i64 {
        let revisions = self.known.values().filter_map(|claimed| i64::try_from(claimed.generation).ok());
        revisions.max().unwrap_or_default()
    }

    /// etcd is at a revision. What was claimed later was claimed in what it has lost since, for it was restored or emptied. That is claimed
    /// anew; but a host that `was_away` meanwhile takes nothing away from one that has got the address since: its claims are the first of
    /// all.
    pub fn lose_after(&mut self, newest: i64, was_away: bool) {
        let newest = newest.unsigned_abs();
        let is_lost = |claimed: &Claimed| claimed.generation > newest;
        let lost = self.known.values().filter(|claimed| is_lost(claimed)).count();
        if lost == 0 {
            return;
        }
        tracing::warn!(
            lost,
            newest,
            "etcd has lost what this host published: it was restored or emptied; its vNICs are claimed anew"
        );
        self.unsaved = true;
        match was_away {
            true => {
                let lost = self.known.values_mut().filter(|claimed| is_lost(claimed));
                lost.for_each(|claimed| claimed.generation = FIRST);
            }
            false => self.known.retain(|_, claimed| !is_lost(claimed)),
        }
    }

    /// A vNIC is there no more: the next one of its name claims anew.
    pub fn forget(&mut self, vni: Vni, vnic: &Name) {
        self.unsaved |= self.known.remove(&key(vni, vnic)).is_some();
    }

    /// There are no other vNICs than these, and all of them were published. Those that went while etcd had nothing of them are forgotten, too.
    pub fn keep_only(&mut self, vnics: &BTreeMap<(Vni, Name), Published>) {
        if self.known.len() == vnics.len() {
            return;
        }
        let there: BTreeSet<String> = vnics.keys().map(|(vni, vnic)| key(*vni, vnic)).collect();
        let before = self.known.len();
        self.known.retain(|key, _| there.contains(key));
        self.unsaved |= self.known.len() != before;
    }

    /// Writes the file, where something changed.
    pub fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        let text = serde_json::to_string(&self.known).unwrap_or_default();
        if let Err(error) = write_whole(&self.path, &text) {
            tracing::warn!(file = %self.path.display(), %error, "generations of vNICs are not saved");
            self.unsaved = true;
        }
    }
}

/// What a vNIC is known by in the file.
fn key(vni: Vni, vnic: &str) -> String {
    format!("{vni} {vnic}")
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;

    #[test]
    fn etcd_claims_that_etcd_has_lost_are_made_anew_or_take_nothing_away() {
        let vni = Vni::new(5).unwrap();
        let name = |name: &str| Name::new(name).unwrap();
        let said = Published {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vips: vec!["10.0.0.1".parse().unwrap()],
            groups: Vec::new(),
            generation: 0,
        };
        for (was_away, wanted) in [(false, [90, 0, 0]), (true, [90, FIRST, FIRST])] {
            let mut generations = Generations::read(Path::new("/nonexistent/generations"));
            for (vnic, generation) in [("old", 90), ("later", 91), ("ever", u64::MAX)] {
                generations.set(vni, &name(vnic), &said, generation);
            }
            generations.unsaved = false;
            assert_eq!(generations.highest(), 91, "no revision is above all that etcd counts to");
            generations.lose_after(i64::MAX, was_away);
            generations.lose_after(90, was_away);
            let now = ["old", "later", "ever"].map(|vnic| generations.of(vni, &name(vnic), &said));
            assert_eq!((now, generations.unsaved), (wanted, true));
            generations.unsaved = false;
            generations.lose_after(90, was_away);
            assert!(!generations.unsaved, "once");
        }
    }

    #[test]
    fn etcd_vnics_that_went_while_etcd_had_nothing_of_them_are_forgotten() {
        let (vni, name) = (Vni::new(5).unwrap(), |name: &str| Name::new(name).unwrap());
        let said = Published {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vips: vec!["10.0.0.1".parse().unwrap()],
            groups: Vec::new(),
            generation: 0,
        };
        let mut generations = Generations::read(Path::new("/nonexistent/generations"));
        let wanted = BTreeMap::from([((vni, name("stays")), said.clone())]);
        ["stays", "went"].iter().for_each(|vnic| generations.set(vni, &name(vnic), &said, 7));
        generations.unsaved = false;
        generations.keep_only(&wanted);
        let of = ["stays", "went"].map(|vnic| generations.of(vni, &name(vnic), &said));
        assert_eq!((of, generations.unsaved), ([7, 0], true));
        generations.unsaved = false;
        generations.keep_only(&wanted);
        assert!(!generations.unsaved, "once");
    }

    #[test]
    fn etcd_a_claim_keeps_its_generation_over_a_restart_until_it_claims_more() {
        let path = std::env::temp_dir().join(format!("vswitch-generations-{}", std::process::id()));
        let (vni, name) = (Vni::new(5).unwrap(), Name::new("m").unwrap());
        let said = |vips: &[&str]| Published {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vips: vips.iter().map(|vip| vip.parse().unwrap()).collect(),
            groups: Vec::new(),
            generation: 0,
        };
        let mut generations = Generations::read(&path);
        assert_eq!(generations.of(vni, &name, &said(&["10.0.0.1"])), 0);
        generations.set(vni, &name, &said(&["10.0.0.1", "10.0.0.2"]), 7);
        generations.save();
        let mut generations = Generations::read(&path);
        assert_eq!(generations.of(vni, &name, &said(&["10.0.0.2"])), 7);
        assert_eq!(generations.of(vni, &name, &said(&["10.0.0.3"])), 0, "more than it had");
        let other = Published { mac: MacAddr([2, 0, 0, 0, 0, 9]), ..said(&["10.0.0.1"]) };
        assert_eq!(generations.of(vni, &name, &other), 0, "another machine");
        generations.forget(vni, &name);
        generations.save();
        assert_eq!(Generations::read(&path).of(vni, &name, &said(&["10.0.0.1"])), 0);
        std::fs::write(&path, "no JSON").unwrap();
        assert_eq!(Generations::read(&path).of(vni, &name, &said(&["10.0.0.1"])), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
