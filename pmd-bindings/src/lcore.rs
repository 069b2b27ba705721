//! Cores and threads: what is available, pinning, and registration with the EAL.
//!
//! Threads are Rust's own; the EAL is told of them so that mempool caches work. No thread is started here.

use std::marker::PhantomData;
use std::sync::OnceLock;

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::Errno;

/// Why a thread could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum LcoreError {
    /// No such core for this process.
    #[error("core {core} is not available; this process may run on {available:?}")]
    NotAvailable {
        /// The core asked for.
        core: usize,
        /// The cores there are.
        available: Vec<usize>,
    },
    /// The kernel refused.
    #[error("cannot pin this thread to core {0}")]
    Pin(usize),
    /// The EAL has no slot left.
    #[error(
        "the EAL cannot register this thread: {0}; fewer workers, or a DPDK built with a larger RTE_MAX_LCORE"
    )]
    Register(Errno),
}

/// The largest CPU number that an affinity mask holds.
const MAX_CORE: usize = 1023;

/// The cores that this process may run on, in order: the affinity of the thread that asks first, so that a
/// thread that was pinned meanwhile still sees them all. The EAL asks before it pins anything.
pub fn available() -> Vec<usize> {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(of_current_thread).clone()
}

/// The cores that the calling thread may run on now, in order.
pub fn of_current_thread() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread to one core.
///
/// # Errors
/// [`LcoreError::NotAvailable`] for a core outside the process's affinity mask, else [`LcoreError::Pin`].
pub fn pin_current_thread(core: usize) -> Result<(), LcoreError> {
    let set = core <= MAX_CORE && core_affinity::set_for_current(core_affinity::CoreId { id: core });
    if set {
        return Ok(());
    }
    let available = available();
    Err(if available.contains(&core) {
        LcoreError::Pin(core)
    } else {
        LcoreError::NotAvailable { core, available }
    })
}

/// The calling thread's place among the EAL's threads; given up on drop. It cannot leave its thread.
#[derive(Debug)]
pub struct Registration {
    _eal: Eal,
    owned: bool,
    _thread_bound: PhantomData<*const ()>,
}

/// Tells the EAL of the calling thread, which makes mempool allocation faster there. Pin afterwards. A thread
/// that is known already (the one that started the EAL, or a second call) just gets another guard.
///
/// # Errors
/// [`LcoreError::Register`] when the EAL has no slot left.
pub fn register_current_thread(eal: &Eal) -> Result<Registration, LcoreError> {
    // SAFETY: reads a thread-local of the calling thread; there is nothing to uphold.
    let known = unsafe { sys::dpdk_sys_lcore_id() } != u32::MAX;
    if known {
        return Ok(Registration { _eal: eal.clone(), owned: false, _thread_bound: PhantomData });
    }
    // SAFETY: the EAL runs, which `eal` keeps, and stays so while the registration lives.
    let ret = unsafe { sys::rte_thread_register() };
    if ret < 0 {
        return Err(LcoreError::Register(Errno::last()));
    }
    Ok(Registration { _eal: eal.clone(), owned: true, _thread_bound: PhantomData })
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: this thread registered itself (the guard cannot be sent away), and the EAL still runs.
        unsafe { sys::rte_thread_unregister() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_each_available_core_and_to_no_other() {
        let cores = available();
        assert!(!cores.is_empty());
        for core in cores {
            std::thread::spawn(move || {
                pin_current_thread(core).unwrap();
                assert_eq!(of_current_thread(), [core]);
            })
            .join()
            .unwrap();
        }
        assert!(matches!(pin_current_thread(900), Err(LcoreError::NotAvailable { core: 900, .. })));
        assert!(matches!(pin_current_thread(90_000), Err(LcoreError::NotAvailable { .. })));
    }
}
