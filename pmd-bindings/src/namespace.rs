//! [`Namespace`]: a network namespace by the file that it is known by, as `ip netns` and container runtimes keep one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A network namespace of a name or path: not kept alive, looked up when it is needed.
#[derive(Debug)]
pub struct Namespace {
    path: PathBuf,
    /// Device and number of the file: which namespace it is.
    identity: (u64, u64),
}

impl Namespace {
    /// That of a file: `/run/netns/<name>`, `/proc/<pid>/ns/net`, or where a container runtime keeps it.
    ///
    /// # Errors
    /// What the kernel says to such a path; `EINVAL` for a file that is no network namespace.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let namespace = Self { path: path.to_owned(), identity: identity(&file.metadata()?) };
        in_namespace(&file, || ())?;
        Ok(namespace)
    }

    /// Whether the file is still that of this namespace.
    pub fn is_there(&self) -> bool {
        identify(&self.path).is_ok_and(|identity| identity == self.identity)
    }

    /// What `with` says in this namespace, on a thread of its own. Takes CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// What the kernel says to who enters it, `ENOENT` when the file is another namespace's by now.
    pub fn within<T: Send>(&self, with: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = open(&self.path)?;
        if identity(&file.metadata()?) != self.identity {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        in_namespace(&file, with)
    }
}

/// The network namespace of the calling thread, as a file.
pub const OWN: &str = "/proc/thread-self/ns/net";

/// Which network namespace a file is of: device and number of the file.
///
/// # Errors
/// What the kernel says to such a path.
pub fn identify(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| identity(&metadata))
}

pub(crate) fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Opens the file of a namespace; whatever else is there is not waited for.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// What `with` says in a network namespace. Entering one changes the calling thread for good: one is made for it, and gone after it.
pub(crate) fn in_namespace<T: Send>(
    namespace: &(impl AsRawFd + Sync),
    with: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let visit = || {
        // SAFETY: changes the network namespace of this thread, which does nothing but what it was made for.
        let ret = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        if ret == 0 { Ok(with()) } else { Err(io::Error::last_os_error()) }
    };
    std::thread::scope(|scope| {
        let visitor = std::thread::Builder::new().spawn_scoped(scope, visit)?;
        visitor.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_what_is_no_namespace_is_refused_at_once() {
        let folder = std::env::temp_dir().join(format!("namespace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, pipe) = (folder.join("file"), folder.join("pipe"));
        fs::write(&file, "x").unwrap();
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [&file, &pipe, &folder, Path::new("/proc/self/ns/mnt"), Path::new("/dev/null")] {
            let error = Namespace::open(path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{}", path.display());
        }
        assert_eq!(Namespace::open(&folder.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_of_another_namespace_is_not_entered() {
        let here = Namespace::open(Path::new("/proc/self/ns/net")).unwrap();
        assert!(here.is_there() && here.within(|| 7).unwrap() == 7);
        let other = Namespace { identity: (here.identity.0, here.identity.1 + 1), path: here.path.clone() };
        assert!(!other.is_there());
        assert_eq!(other.within(|| 7).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
