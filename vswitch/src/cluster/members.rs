//! Which hosts take part in which networks, over a restart of this one: where etcd is away then, others are heard and flooded to all the
//! same.
//!
//! Locations are in the state file; who takes part and has no address that is known here is not, and so it is in a file beside that.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::Vni;

use super::book::News;
use crate::state::files::{read_text, remove_unfinished, write_whole};

/// Between two times that the file is written: many hosts may come one after another.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// The VTEPs of each host, by network.
type Known = BTreeMap<u32, Vec<Vec<IpAddr>>>;

/// Those that control was told of last, and the file that has them.
#[derive(Debug, Default)]
pub struct Members {
    path: Option<PathBuf>,
    known: Known,
    unsaved: bool,
    saved: Option<Instant>,
}

impl Members {
    /// Those of a file, if there is a state to keep; none where there is no such file, or nobody can read it, which is told.
    pub fn read(path: Option<&Path>) -> Self {
        path.into_iter().for_each(remove_unfinished);
        let known = path.filter(|path| path.exists()).map(|path| {
            let read =
                read_text(path).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
            read.unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), error, "hosts behind which no address is known are not heard until etcd is there");
                Known::new()
            })
        });
        Self { path: path.map(Path::to_owned), known: known.unwrap_or_default(), ..Self::default() }
    }

    /// What control is told at the start.
    pub fn news(&self) -> News {
        let hosts = |all: &Vec<Vec<IpAddr>>| {
            all.iter().filter(|vteps| !vteps.is_empty()).map(|vteps| Arc::from(&vteps[..])).collect()
        };
        let networks = self.known.iter().filter_map(|(&vni, all)| Some((Vni::new(vni).ok()?, hosts(all))));
        News { members: networks.collect(), ..News::default() }
    }

    /// Control was told of these.
    pub fn told(&mut self, members: &BTreeMap<Vni, Vec<Arc<[IpAddr]>>>) {
        for (vni, hosts) in members {
            let all: Vec<Vec<IpAddr>> = hosts.iter().map(|vteps| vteps.to_vec()).collect();
            self.unsaved |= match all.is_empty() {
                true => self.known.remove(&vni.get()).is_some(),
                false => self.known.insert(vni.get(), all.clone()) != Some(all),
            };
        }
    }

    /// Writes the file, where something changed, and not often.
    pub fn save(&mut self, now: Instant) {
        let Some(path) = self.path.as_ref().filter(|_| self.unsaved) else { return };
        if self.saved.is_some_and(|at| now.saturating_duration_since(at) < SAVE_EVERY) {
            return;
        }
        (self.unsaved, self.saved) = (false, Some(now));
        let text = serde_json::to_string(&self.known).unwrap_or_default();
        if let Err(error) = write_whole(path, &text) {
            tracing::warn!(file = %path.display(), %error, "which hosts take part in networks is not saved");
            self.unsaved = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_members_are_there_again_after_a_restart() {
        let path = std::env::temp_dir().join(format!("vswitch-members-{}", std::process::id()));
        let vni = |number| Vni::new(number).unwrap();
        let host = |last: u8| Arc::from(&[IpAddr::from([172, 16, 0, last])][..]);
        let mut members = Members::read(Some(&path));
        assert!(members.news().members.is_empty());
        let all = BTreeMap::from([(vni(5), vec![host(1), host(2)]), (vni(7), vec![host(2)])]);
        members.told(&all);
        let now = Instant::now();
        members.save(now);
        assert_eq!(Members::read(Some(&path)).news(), News { members: all, ..News::default() });
        // Not often: the last word is written later.
        members.told(&BTreeMap::from([(vni(5), Vec::new()), (vni(7), vec![host(3)])]));
        members.save(now);
        assert_eq!(Members::read(Some(&path)).news().members.len(), 2);
        members.save(now + SAVE_EVERY);
        assert_eq!(Members::read(Some(&path)).news().members, BTreeMap::from([(vni(7), vec![host(3)])]));
        for text in ["no JSON", "{\"5\": 1}", "{\"5\": [[\"here\"]]}"] {
            std::fs::write(&path, text).unwrap();
            assert!(Members::read(Some(&path)).news().members.is_empty());
        }
        std::fs::write(&path, "{\"99999999\": [[\"10.0.0.1\"]], \"3\": [[]]}").unwrap();
        assert_eq!(Members::read(Some(&path)).news().members, BTreeMap::from([(vni(3), Vec::new())]));
        std::fs::remove_file(&path).unwrap();
        let mut nowhere = Members::read(None);
        nowhere.told(&BTreeMap::from([(vni(5), vec![host(1)])]));
        nowhere.save(now);
    }
}
