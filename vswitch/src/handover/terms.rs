//! When a switch does not hand over: where what it has acknowledged would be lost, or the service with it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where a process keeps what is changed while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatePlace {
    /// It does not say: it is of a version that does not.
    #[default]
    Untold,
    Nowhere,
    File(PathBuf),
}

impl StatePlace {
    /// By the path of the state file, if there is one. The same file has one place, whatever link leads to its folder.
    pub fn of(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::Nowhere };
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        Self::File(match (folder, path.file_name()) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        })
    }
}

/// What an old process asks of a new one.
#[derive(Clone, Debug)]
pub struct Terms {
    state: StatePlace,
    /// It is the main process of a unit of systemd.
    is_service: bool,
}

impl Terms {
    /// Of this process, whose state file that is.
    pub fn of(state: Option<&Path>) -> Self {
        // Children of a service inherit the variable, so it says whose it is (systemd.exec(5)).
        let main = std::env::var("SYSTEMD_EXEC_PID").ok().and_then(|pid| pid.parse().ok());
        Self { state: StatePlace::of(state), is_service: main == Some(std::process::id()) }
    }

    /// Why it does not hand over to a process that keeps its state there, if there is a reason.
    pub(super) fn refusal(&self, new: &StatePlace) -> Option<String> {
        if self.is_service {
            return Some(
                "it is the main process of a unit of systemd, which ends with it and takes the sockets along; use `systemctl restart`".into(),
            );
        }
        match (&self.state, new) {
            (_, StatePlace::Untold) | (StatePlace::Untold, _) => None,
            (old, new) if old == new => None,
            (StatePlace::File(old), new) => {
                let new = match new {
                    StatePlace::File(path) => path.display().to_string(),
                    StatePlace::Nowhere | StatePlace::Untold => "none".into(),
                };
                let old = old.display();
                Some(format!(
                    "its state file is {old}, and that of the new process is {new}: what was changed at run time would be lost; give it the same, by \
                     `state` in [control] of its config, or by STATE_DIRECTORY in its environment as the old process has it"
                ))
            }
            (StatePlace::Nowhere, StatePlace::File(new)) => {
                let new = new.display();
                Some(format!(
                    "it has no state file, and that of the new process is {new}, which does not have what was changed at run time; leave `state` \
                     out of [control] and STATE_DIRECTORY out of the environment, or restart with it"
                ))
            }
            (StatePlace::Nowhere, StatePlace::Nowhere) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> StatePlace {
        StatePlace::File(path.into())
    }

    #[test]
    fn nothing_is_handed_over_to_a_process_with_another_state_file() {
        for (old, new, taken) in [
            (file("/s/a"), file("/s/a"), true),
            (StatePlace::Nowhere, StatePlace::Nowhere, true),
            (file("/s/a"), StatePlace::Untold, true),
            (StatePlace::Nowhere, StatePlace::Untold, true),
            (file("/s/a"), file("/s/b"), false),
            (file("/s/a"), StatePlace::Nowhere, false),
            (StatePlace::Nowhere, file("/s/a"), false),
        ] {
            let terms = Terms { state: old.clone(), is_service: false };
            let refusal = terms.refusal(&new);
            assert_eq!(refusal.is_none(), taken, "{old:?} {new:?}");
            if let Some(said) = refusal {
                assert!(said.contains("/s/a") && said.contains("STATE_DIRECTORY"), "{said}");
            }
        }
    }

    #[test]
    fn nothing_is_handed_over_by_the_main_process_of_a_unit() {
        for new in [StatePlace::Untold, StatePlace::Nowhere, file("/s/a")] {
            let terms = Terms { state: new.clone(), is_service: true };
            assert!(terms.refusal(&new).unwrap().contains("systemctl restart"));
        }
    }

    #[test]
    fn a_state_file_is_the_same_by_any_link_to_its_folder() {
        let folder = std::env::temp_dir().join(format!("terms-{}", std::process::id()));
        let (real, link) = (folder.join("real"), folder.join("link"));
        std::fs::create_dir_all(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let places = [&real, &link].map(|folder| StatePlace::of(Some(&folder.join("state"))));
        assert_eq!(places[0], places[1]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(StatePlace::of(None), StatePlace::Nowhere);
    }
}
