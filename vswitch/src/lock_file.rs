//! Files that one process at a time has locked: a lock of the kernel's (flock(2)), which goes with its process however that ends, on a
//! file that says which process it was.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a process's number, with room.
const LONGEST: u64 = 32;

/// The file of a lock, open.
#[derive(Debug)]
pub(crate) struct LockFile(File);

impl LockFile {
    /// The file for what is at a path.
    pub fn beside(path: &Path) -> PathBuf {
        let mut path = path.as_os_str().to_owned();
        path.push(".lock");
        path.into()
    }

    /// Opens a file, which is made this user's alone where there is none. Follows no link, and waits for no other end of a pipe.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        options.mode(0o600).custom_flags(flags).open(path).map(Self)
    }

    /// What is known of the file.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Takes the lock; `false` while another process has it.
    pub fn try_take(&self) -> io::Result<bool> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Says for whoever is refused that this process has it.
    pub fn note_holder(&mut self) -> io::Result<()> {
        self.0.set_len(0)?;
        writeln!(self.0, "{}", std::process::id())
    }

    /// The process that has it, as that says itself.
    pub fn holder(&self) -> Option<u32> {
        let mut text = String::new();
        (&self.0).take(LONGEST).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}
