//! Network namespaces of pods: work in one is done by a thread of its own, which ends with it.

use std::fs::File;
use std::path::Path;
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
