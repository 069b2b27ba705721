//! Work on whole configs, and what must not wait for it: flows on a path that is lost. Files are read, compared and saved beside control;
//! what they say goes into the tables in one piece, which takes some tenths of a second with 60,000 locations.

use std::panic::resume_unwind;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam::channel::{RecvTimeoutError, bounded};

use super::{Switch, TEND_EVERY_MS};

/// After the first time that freed memory goes back to the kernel, the second.
const LATE_TRIM: Duration = Duration::from_secs(1);

impl Switch {
    /// Has something done that needs nothing of the switch, on a thread of its own, and tends the network until it is done.
    pub(crate) fn beside<T: Send>(&mut self, mut work: impl FnMut() -> T + Send) -> T {
        let (ends, end) = bounded::<()>(0);
        let done = std::thread::scope(|scope| {
            let work = &mut work;
            let body = move || {
                // Dropped when the work has ended, in whatever way.
                let _ends = ends;
                work()
            };
            let thread = Builder::new().name("whole-config".into()).spawn_scoped(scope, body).ok()?;
            #[cfg(test)]
            super::testing::reach("beside");
            while end.recv_timeout(Duration::from_millis(TEND_EVERY_MS)) == Err(RecvTimeoutError::Timeout) {
                self.tend_if_due();
            }
            Some(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        // Without room for a thread it is done here.
        done.unwrap_or_else(work)
    }

    /// Has the kernel given back what such work has freed, when workers have let go of what it replaced.
    pub(crate) fn trim_soon(&mut self) {
        let now = Instant::now();
        self.trims = vec![now + LATE_TRIM, now];
    }

    /// Does that, once workers had a turn of control to let go in, and again when a late one has.
    pub(super) fn tend_heap(&mut self, now: Instant) {
        if self.trims.pop_if(|due| *due <= now).is_some() {
            pmd::process::trim_heap();
        }
    }
}
