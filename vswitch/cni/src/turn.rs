//! Turns: one plugin of a host changes interfaces at a time.
//!
//! Writing some settings of an interface, whatever namespace it is in (`disable_ipv6`, `forwarding`), takes a lock of the kernel by asking
//! for it again and again, and dozens of processes that do so at once leave whoever has the lock no time to give it back. A turn is a lock
//! on a file that is this user's alone, in a folder that is, so that nobody else takes one. The file stays.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

/// Where the files are.
const FOLDER: &str = "/run/vswitch-cni";
/// How long others may take with their interfaces, and between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The turn of this process to change interfaces, until it is dropped.
///
/// # Errors
/// `WouldBlock` when others have theirs for too long; and when the file cannot be opened, or is not this user's alone.
pub fn turn() -> io::Result<File> {
    // Of the namespace of the process, also for a thread that is in a pod's.
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    within(Path::new(FOLDER), &format!("{namespace}.lock"), PATIENCE)
}

/// As [`turn`], by a file in a folder.
fn within(folder: &Path, name: &str, patience: Duration) -> io::Result<File> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(folder, &error)),
        _ => {}
    }
    let known = fs::symlink_metadata(folder).map_err(|error| at(folder, &error))?;
    refuse_others(folder, known.is_dir(), &known)?;
    let path = folder.join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let options = options.mode(0o600).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    let mut file = options.open(&path).map_err(|error| at(&path, &error))?;
    let known = file.metadata()?;
    refuse_others(&path, known.is_file(), &known)?;
    let end = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => {
                // For whoever waits too long.
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(held(&mut file, &path)),
            Err(TryLockError::Error(error)) => return Err(at(&path, &error)),
        }
    }
}

/// Refuses what is something else, or what others could hold.
fn refuse_others(path: &Path, is_kind: bool, known: &fs::Metadata) -> io::Result<()> {
    if is_kind && known.uid() == nix::unistd::geteuid().as_raw() && known.mode() & 0o077 == 0 {
        return Ok(());
    }
    let why = format!("{} is there already, and is not this user's alone; remove it", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Who has the turn, as that says itself.
fn held(file: &mut File, path: &Path) -> io::Error {
    let mut text = String::new();
    let read = file.take(16).read_to_string(&mut text).ok();
    let process: Option<u32> = read.and_then(|_| text.trim().parse().ok());
    let who = process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"));
    let why = format!("{who} has held {} for longer than a change takes", path.display());
    io::Error::new(io::ErrorKind::WouldBlock, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    /// A folder that goes when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cni-turn-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn turn(&self) -> io::Result<File> {
            within(&self.0.join("own"), "1.lock", SHORT)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn protect(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn one_has_the_turn_and_the_next_is_told_who_that_is() {
        let folder = Folder::new("held");
        let first = folder.turn().unwrap();
        let error = folder.turn().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let holder = format!("process {} has held", std::process::id());
        assert!(error.to_string().starts_with(&holder), "{error}");
        drop(first);
        drop(folder.turn().unwrap());
        let mode = |name: &str| fs::metadata(folder.0.join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("own"), mode("own/1.lock")), (0o700, 0o600));
    }

    #[test]
    fn a_file_that_others_could_hold_is_not_used() {
        let folder = Folder::new("others");
        drop(folder.turn().unwrap());
        let (own, file) = (folder.0.join("own"), folder.0.join("own/1.lock"));
        for path in [&own, &file] {
            let before = fs::metadata(path).unwrap().mode() & 0o777;
            protect(path, before | 0o055);
            let error = folder.turn().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("remove it"), "{error}");
            protect(path, before);
        }
        fs::remove_file(&file).unwrap();
        symlink(folder.0.join("elsewhere"), &file).unwrap();
        assert!(folder.turn().is_err() && !folder.0.join("elsewhere").exists());
    }

    /// What any user of a host may lock keeps nobody from a turn.
    #[test]
    fn a_lock_on_the_namespace_is_nothing_to_a_turn() {
        let namespace = File::open("/proc/self/ns/net").unwrap();
        namespace.lock().unwrap();
        drop(Folder::new("namespace").turn().unwrap());
    }
}
