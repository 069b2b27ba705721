//! The lock under which a socket is opened: a file beside it that is this user's alone, so that nobody else holds it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::server::BindError;
use crate::lock_file::LockFile;

/// How long to wait for another process that is starting on the same socket.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// A lock, which is held until this is dropped; its file goes with it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: LockFile,
}

impl Lock {
    /// The lock of a socket, when nobody else has it any more.
    pub fn of(socket: &Path) -> Result<Self, BindError> {
        let path = LockFile::beside(socket);
        let system = |what| {
            let path = path.clone();
            move |source| BindError::System { what, path, source }
        };
        let start = Instant::now();
        loop {
            let mut file = LockFile::open(&path).map_err(system("open"))?;
            if !is_own(&file).map_err(system("look at"))? {
                return Err(BindError::LockOfOthers(path));
            }
            match file.try_take().map_err(system("lock"))? {
                true if is_at(&file, &path).map_err(system("look at"))? => {
                    file.note_holder().map_err(system("write"))?;
                    return Ok(Self { path, _file: file });
                }
                // Whoever had it has taken its file away.
                true => {}
                false if start.elapsed() > TIMEOUT => {
                    let process = file.holder().map(|process| format!("process {process}"));
                    let holder = process.unwrap_or_else(|| "another process".to_owned());
                    return Err(BindError::Locked { holder, path });
                }
                false => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held: whoever waits for this file sees that it is another one then.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the lock of a socket");
        }
    }
}

/// True when nobody but this user, and root, can open it.
fn is_own(file: &LockFile) -> io::Result<bool> {
    let known = file.metadata()?;
    Ok(known.is_file() && known.uid() == nix::unistd::geteuid().as_raw() && known.mode() & 0o077 == 0)
}

fn is_at(file: &LockFile, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(there) => {
            let known = file.metadata()?;
            Ok((there.dev(), there.ino()) == (known.dev(), known.ino()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
