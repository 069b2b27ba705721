//! Network namespaces of pods: work in one is done by a thread of its own, which ends with it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::sched::{CloneFlags, setns};

/// Does some work in the network namespace of a file.
///
/// # Errors
/// When there is no thread, the file is no namespace, or the work fails.
pub fn inside<T: Send>(netns: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let inside = move || {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            work()
        };
        let worker = thread::Builder::new().name("netns".into()).spawn_scoped(scope, inside)?;
        worker.join().map_err(|_| io::Error::other("the thread in the namespace failed"))?
    })
}

/// How long others may take with their interfaces, and between two attempts.
const TURN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The turn of this process to change interfaces, until it is dropped: one plugin of a host at a time. Writing some settings of
/// an interface, whatever namespace it is in (`disable_ipv6`, `forwarding`), takes a lock of the kernel by asking for it again and again, and dozens of
/// processes that do so at once leave whoever has the lock no time to give it back.
///
/// # Errors
/// `WouldBlock` when others have theirs for too long, and when the namespace has no file.
pub fn turn() -> io::Result<File> {
    // That of the process, also for a thread that is in a pod's.
    let namespace = File::open("/proc/self/ns/net")?;
    let end = Instant::now() + TURN;
    loop {
        match namespace.try_lock() {
            Ok(()) => return Ok(namespace),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The file of a namespace; `None` when it is gone.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
