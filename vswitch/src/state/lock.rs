//! That one switch alone has a state file: of two, each would remove the journal that the other one appends to.
//!
//! The lock is on a file beside the state file, which stays.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::lock_file::LockFile;

/// How long another process may take to end, or to let go.
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

/// Why a state file is not this switch's alone.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another switch has it.
    #[error(
        "the state file {} is another switch's{}: two would remove each other's journals; give this one a [control] state of its own, or stop \
         the other one",
        state.display(), of_process(*pid)
    )]
    Held { state: PathBuf, pid: Option<u32> },
    /// The operating system refused.
    #[error(
        "cannot lock {}: {source}; mend that, or remove the file, so that no second switch takes the state file beside it", path.display()
    )]
    System { path: PathBuf, source: io::Error },
}

fn of_process(pid: Option<u32>) -> String {
    pid.map(|pid| format!(", process {pid}")).unwrap_or_default()
}

/// The lock. Whoever drops it lets go.
#[derive(Debug)]
pub struct StateLock {
    /// Open as long as the lock is held.
    _file: LockFile,
}

impl StateLock {
    /// Takes the lock on a state file; one that another process is about to let go of is waited for.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(state: &Path) -> Result<Self, LockError> {
        Self::take_within(state, PATIENCE)
    }

    fn take_within(state: &Path, patience: Duration) -> Result<Self, LockError> {
        let path = LockFile::beside(state);
        let system = |source| LockError::System { path: path.clone(), source };
        let mut file = open(&path).map_err(system)?;
        let began = Instant::now();
        while !file.try_take().map_err(system)? {
            if began.elapsed() >= patience {
                return Err(LockError::Held { state: state.to_owned(), pid: file.holder() });
            }
            std::thread::sleep(AGAIN);
        }
        // The lock holds without it.
        let _ = file.note_holder();
        Ok(Self { _file: file })
    }
}

/// Takes the lock on a state file, if there is one. One that cannot be locked at all, as on a disk that is full, is told and used all the same.
///
/// # Errors
/// [`LockError::Held`].
pub fn take_told(state: Option<&Path>) -> Result<Option<StateLock>, LockError> {
    told(state.map(StateLock::take))
}

/// As [`take_told`], without waiting for a process that has it.
///
/// # Errors
/// [`LockError::Held`].
pub fn try_told(state: Option<&Path>) -> Result<Option<StateLock>, LockError> {
    told(state.map(|state| StateLock::take_within(state, Duration::ZERO)))
}

fn told(taken: Option<Result<StateLock, LockError>>) -> Result<Option<StateLock>, LockError> {
    match taken.transpose() {
        Err(error @ LockError::System { .. }) => {
            tracing::warn!("{error}");
            Ok(None)
        }
        taken => taken,
    }
}

/// The file, which is no folder or device.
fn open(path: &Path) -> io::Result<LockFile> {
    let file = LockFile::open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn one_switch_alone_has_a_state_file() {
        let folder = std::env::temp_dir().join(format!("vswitch-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (state, path) = (folder.join("state"), folder.join("state.lock"));
        std::fs::write(&path, "4194304000\nof an earlier run, whose process number was longer\n").unwrap();
        let lock = StateLock::take(&state).unwrap();
        let own = std::process::id();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{own}\n"));
        let refused = || StateLock::take_within(&state, Duration::ZERO).unwrap_err().to_string();
        assert!(refused().contains(&format!("process {own}: ")), "{}", refused());
        assert!(refused().contains("[control] state of its own"), "{}", refused());
        // The one who has it did not come to say who it is.
        std::fs::write(&path, "").unwrap();
        assert!(refused().contains("another switch's: "), "{}", refused());
        // Another state file is nobody's; and this one is free when its switch lets go, which is waited for.
        drop(StateLock::take(&folder.join("other")).unwrap());
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(lock);
        });
        drop(StateLock::take(&state).unwrap());
        later.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_lock_of_a_state_file_is_its_owners_alone_and_follows_no_link() {
        let folder = std::env::temp_dir().join(format!("vswitch-lock-link-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (state, path, precious) =
            (folder.join("state"), folder.join("state.lock"), folder.join("precious"));
        drop(StateLock::take(&state).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&precious, "precious").unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&precious, &path).unwrap();
        let error = StateLock::take(&state).unwrap_err().to_string();
        assert!(error.contains("state.lock") && error.contains("remove the file"), "{error}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
