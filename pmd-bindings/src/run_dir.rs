//! The EAL's run folder: found, locked against a second process of the same prefix, and removed at the end.
//!
//! DPDK itself notices a second process only when it shares its configuration (`--no-shconf` is off), and never
//! removes the folder. It cleans nothing else up. After a crash the folder stays until the next start under the
//! same prefix takes it over.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use crate::error::EalError;

const LOCK_FILE: &str = "vswitch.lock";

/// The folder of the EAL that runs, for [`remove_at_exit`].
static LIVE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Removes the folder at the end of a process that kept its EAL to the last (because a packet outlived its pool,
/// say).
extern "C" fn remove_at_exit() {
    // Nothing may unwind into C, and nothing can be done about a folder that stays.
    let _ = catch_unwind(|| {
        if let Ok(mut live) = LIVE.try_lock()
            && let Some(path) = live.take()
        {
            let _ = fs::remove_dir_all(path);
        }
    });
}

/// A locked run folder; dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes (or takes over, after a crash) the folder of `prefix` and locks it.
    pub(crate) fn claim(prefix: &str) -> Result<Self, EalError> {
        let path = base(|name| std::env::var_os(name), crate::process::is_root()).join("dpdk").join(prefix);
        let folder_error = |source| EalError::RunFolder { path: path.clone(), source };
        let lock_path = path.join(LOCK_FILE);
        loop {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(folder_error)?;
            let lock = match File::create(&lock_path) {
                Ok(lock) => lock,
                // The owner before us removed the folder in between.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(folder_error(error)),
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(EalError::PrefixBusy { prefix: prefix.into(), path: lock_path });
                }
                Err(TryLockError::Error(error)) => return Err(folder_error(error)),
            }
            // The file may have been removed by its former owner between open and lock: then it locks nothing.
            let same =
                |metadata: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == metadata.ino());
            if fs::metadata(&lock_path).is_ok_and(same) {
                Self::remember(&path);
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    fn remember(path: &Path) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: registers a function that takes nothing and does not unwind.
            unsafe { libc::atexit(remove_at_exit) };
        });
        if let Ok(mut live) = LIVE.lock() {
            *live = Some(path.to_owned());
        }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Ok(mut live) = LIVE.lock() {
            live.take_if(|path| *path == self.path);
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove DPDK's run folder");
        }
    }
}

/// The folder in which the EAL makes `dpdk/<prefix>`, by the EAL's own rule.
fn base(variable: impl Fn(&str) -> Option<OsString>, root: bool) -> PathBuf {
    if let Some(folder) = variable("RUNTIME_DIRECTORY") {
        return folder.into();
    }
    if root {
        return "/var/run".into();
    }
    variable("XDG_RUNTIME_DIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_follows_the_eal() {
        let none = |_: &str| None;
        assert_eq!(base(none, true), Path::new("/var/run"));
        assert_eq!(base(none, false), Path::new("/tmp"));
        let xdg = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".into());
        assert_eq!(base(xdg, false), Path::new("/run/user/7"));
        assert_eq!(base(xdg, true), Path::new("/var/run"));
        let systemd = |name: &str| (name == "RUNTIME_DIRECTORY").then(|| "/run/vswitch".into());
        assert_eq!(base(systemd, true), Path::new("/run/vswitch"));
    }

    #[test]
    fn a_prefix_belongs_to_one_and_its_folder_goes_with_it() {
        let prefix = format!("rundir-test-{}", std::process::id());
        let first = RunDir::claim(&prefix).unwrap();
        assert!(matches!(RunDir::claim(&prefix), Err(EalError::PrefixBusy { .. })));
        let path = first.path().to_owned();
        assert!(path.is_dir());
        drop(first);
        assert!(!path.exists());
        drop(RunDir::claim(&prefix).unwrap());
    }
}
