//! An early end: SIGTERM, SIGINT and SIGHUP set a flag that every wait looks at.
//!
//! So that children, folders and huge pages are given back by ordinary drops, nothing here ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{Error, Result};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Turns the signals into the flag, from now on.
pub fn install() -> Result<(), Error> {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED))
            .map_err(Error::io("install a signal handler"))?;
    }
    Ok(())
}

/// Fails once the user has asked to stop.
pub fn check() -> Result<(), Error> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Looks every few milliseconds until something is found; `None` when that takes longer than `limit`.
pub fn until<T>(limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let end = Instant::now() + limit;
    loop {
        let found = look()?;
        if found.is_some() || Instant::now() > end {
            return Ok(found);
        }
        pause(LOOK)?;
    }
}

/// Sleeps, but not longer than until the user asks to stop.
pub fn pause(length: Duration) -> Result<(), Error> {
    const STEP: Duration = Duration::from_millis(20);
    let end = Instant::now() + length;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(STEP));
    }
}
