//! The lock under which a socket is opened: a file beside it that is this user's alone, so that nobody else holds it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::server::BindError;

/// How long to wait for another process that is starting on the same socket.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// A lock, which is held until this is dropped; its file goes with it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// The lock of a socket, when nobody else has it any more.
    pub fn of(socket: &Path) -> Result<Self, BindError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let system = |what| {
            let path = path.clone();
            move |source| BindError::System { what, path, source }
        };
        let start = Instant::now();
        loop {
            let mut file = open(&path).map_err(system("open"))?;
            if !is_own(&file).map_err(system("look at"))? {
                return Err(BindError::LockOfOthers(path));
            }
            match file.try_lock() {
                Ok(()) if is_at(&file, &path).map_err(system("look at"))? => {
                    note_holder(&mut file).map_err(system("write"))?;
                    return Ok(Self { path, _file: file });
                }
                // Whoever had it has taken its file away.
                Ok(()) => {}
                Err(TryLockError::Error(source)) => return Err(system("lock")(source)),
                Err(TryLockError::WouldBlock) if start.elapsed() > TIMEOUT => {
                    return Err(BindError::Locked { holder: holder(&mut file), path });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
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

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// True when nobody but this user, and root, can open it.
fn is_own(file: &File) -> io::Result<bool> {
    let known = file.metadata()?;
    Ok(known.is_file() && known.uid() == nix::unistd::geteuid().as_raw() && known.mode() & 0o077 == 0)
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(there) => {
            let known = file.metadata()?;
            Ok((there.dev(), there.ino()) == (known.dev(), known.ino()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn note_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    write!(file, "{}", std::process::id())
}

/// Which process has it, as it says itself.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(16).read_to_string(&mut text).ok();
    let process: Option<u32> = read.and_then(|_| text.trim().parse().ok());
    process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
}
