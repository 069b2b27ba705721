//! A private folder per run, named with the process id, and the leftovers of runs that were killed.
//!
//! A run that dies of SIGKILL cannot clean up; the next one does it for it: it removes the folder and gives back the
//! huge pages that the dead run had noted there.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::hugepages;
use crate::{Error, Result};

pub(super) const PREFIX: &str = "vswitch-perf-";

/// The file of the folder in which a run notes the huge pages it added.
pub(crate) const HUGEPAGE_NOTE: &str = "hugepages-added";

/// Where DPDK keeps a folder per file prefix.
const DPDK_RUN: &str = "/var/run/dpdk";

/// An EAL file prefix that shows whose it is.
pub fn file_prefix(serial: usize) -> String {
    format!("{PREFIX}{}-{serial}", std::process::id())
}

/// Removes what DPDK leaves behind for a file prefix, also of a process that was stopped before it could be asked anything.
#[derive(Debug)]
pub struct RunFolder(pub String);

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(DPDK_RUN).join(&self.0));
    }
}

/// The private folder (mode 0700), removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Clears what dead runs left and makes this run's folder.
    pub fn create(keep: bool) -> Result<Self> {
        let parent = std::env::temp_dir();
        clear_dead(&parent);
        clear_dead(Path::new(DPDK_RUN));
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        create(&path)?;
        Ok(Self { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        create(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep {
            // Under a name that the next run does not clear.
            let kept = self.path.with_file_name(format!("kept-{PREFIX}{}", std::process::id()));
            match std::fs::rename(&self.path, &kept) {
                Ok(()) => eprintln!("kept {}", kept.display()),
                Err(error) => eprintln!("cannot keep {}: {error}", self.path.display()),
            }
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn create(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    made.map_err(Error::io(format!("create {}", path.display())))
}

/// The process id in a folder's name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Whether a name is of a run whose process is gone.
pub(super) fn is_of_dead_run(name: &str) -> bool {
    owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn clear_dead(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(is_of_dead_run) {
            continue;
        }
        hugepages::give_back_noted(&entry.path().join(HUGEPAGE_NOTE));
        if std::fs::remove_dir_all(entry.path()).is_ok() {
            eprintln!("removed {}, left by a run that was killed", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_only_the_folders_of_dead_runs() {
        let parent = std::env::temp_dir().join(format!("perf-scratch-test-{}", std::process::id()));
        let dead = parent.join(format!("{PREFIX}4194999")); // above the kernel's largest pid
        let alive = parent.join(format!("{PREFIX}{}", std::process::id()));
        let run = parent.join(format!("{PREFIX}4194999-3"));
        let foreign = parent.join("something-else");
        for path in [&dead, &alive, &run, &foreign] {
            std::fs::create_dir_all(path).unwrap();
        }
        clear_dead(&parent);
        assert!(!dead.exists() && !run.exists() && alive.exists() && foreign.exists());
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
