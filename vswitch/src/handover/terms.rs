//! When a switch does not hand over: where what it has acknowledged would be lost, or the service with it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::whereabouts::Whereabouts;

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
    /// The user that this process runs as.
    user: u32,
    state: StatePlace,
    /// What ends with this process.
    leads: Option<Leads>,
    whereabouts: Whereabouts,
}

/// What a process is the main one of, which ends with it and takes a new one along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    /// A unit of systemd.
    Unit,
    /// A container, or whatever else has process numbers of its own.
    Container,
}

impl Leads {
    /// Of a process by its number, that of its parent, and two variables of its environment (systemd.exec(5)). Children of a service inherit
    /// them.
    fn of(own: u32, parent: u32, main: Option<&str>, invocation: Option<&str>) -> Option<Self> {
        match main {
            _ if own == 1 => Some(Self::Container),
            // It says whose it is.
            Some(main) => (main.parse() == Ok(own)).then_some(Self::Unit),
            // Systemd before 248 does not.
            None => (parent == 1 && invocation.is_some()).then_some(Self::Unit),
        }
    }

    /// What to do instead.
    fn remedy(self) -> &'static str {
        match self {
            Self::Unit => {
                "it is the main process of a unit of systemd, which ends with it and takes the sockets along; use `systemctl restart`"
            }
            Self::Container => {
                "it is process 1 of its container, which ends with it and takes the new process along; restart the container, or have it begin with \
                 another process that starts the switch (`docker run --init`)"
            }
        }
    }
}

impl Terms {
    /// Of this process, whose state file that is.
    pub fn of(state: Option<&Path>) -> Self {
        let [main, invocation] = ["SYSTEMD_EXEC_PID", "INVOCATION_ID"].map(|name| std::env::var(name).ok());
        let parent = std::os::unix::process::parent_id();
        let leads = Leads::of(std::process::id(), parent, main.as_deref(), invocation.as_deref());
        Self {
            user: nix::unistd::geteuid().as_raw(),
            state: StatePlace::of(state),
            leads,
            whereabouts: Whereabouts::here(),
        }
    }

    /// Why it does not hand over to a process of this user, if there is a reason.
    pub(super) fn refusal_of_user(&self, new: u32) -> Option<String> {
        let user = self.user;
        (user != new).then(|| {
            format!(
                "it runs as the user with number {user}, and the new process as {new}, which could not take over its files and sockets; start the \
                 new one as that user (`setpriv --reuid {user}`, `sudo -u '#{user}'`)"
            )
        })
    }

    /// Of a process of another user.
    #[cfg(test)]
    pub(super) fn of_another_user() -> Self {
        let terms = Self::of(None);
        Self { user: terms.user + 1, ..terms }
    }

    /// Why it does not hand over to a process that keeps its state there and is there itself, if there is a reason.
    pub(super) fn refusal(&self, state: &StatePlace, whereabouts: &Whereabouts) -> Option<String> {
        if let Some(leads) = self.leads {
            return Some(leads.remedy().into());
        }
        self.refusal_of_state(state).or_else(|| self.whereabouts.refusal(whereabouts))
    }

    fn refusal_of_state(&self, new: &StatePlace) -> Option<String> {
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

    fn terms(state: &StatePlace, leads: Option<Leads>) -> Terms {
        Terms { user: 0, state: state.clone(), leads, whereabouts: Whereabouts::here() }
    }

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
            let terms = terms(&old, None);
            let refusal = terms.refusal(&new, &Whereabouts::default());
            assert_eq!(refusal.is_none(), taken, "{old:?} {new:?}");
            if let Some(said) = refusal {
                assert!(said.contains("/s/a") && said.contains("STATE_DIRECTORY"), "{said}");
            }
        }
    }

    #[test]
    fn nothing_is_handed_over_by_the_main_process_of_a_unit() {
        for new in [StatePlace::Untold, StatePlace::Nowhere, file("/s/a")] {
            let terms = terms(&new, Some(Leads::Unit));
            assert!(terms.refusal(&new, &Whereabouts::default()).unwrap().contains("systemctl restart"));
        }
    }

    #[test]
    fn the_main_process_of_a_unit_or_container_is_known() {
        for (own, parent, main, invocation, leads) in [
            (7, 1, Some("7"), Some("id"), Some(Leads::Unit)),
            (8, 7, Some("7"), Some("id"), None),
            (8, 1, Some("7"), Some("id"), None),
            // Of a systemd that does not say whose it is.
            (7, 1, None, Some("id"), Some(Leads::Unit)),
            (8, 7, None, Some("id"), None),
            (7, 1, None, None, None),
            (1, 0, None, None, Some(Leads::Container)),
        ] {
            assert_eq!(Leads::of(own, parent, main, invocation), leads, "{own} {parent} {main:?}");
        }
        let terms = terms(&StatePlace::Nowhere, Some(Leads::Container));
        assert!(
            terms
                .refusal(&StatePlace::Nowhere, &Whereabouts::default())
                .unwrap()
                .contains("restart the container")
        );
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
