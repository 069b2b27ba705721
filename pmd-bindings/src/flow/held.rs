//! What a port holds of rte_flow: rules, shared actions, meters. One per port, behind its lock.
//!
//! Handles of DPDK never leave this folder; others have numbers, which are never used twice, not even
//! by another port. When the port stops,
//! everything is given back, in the order in which one thing refers to another: rules, shared actions, meters.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use rules::{Action, Cause, FlowError, FlowRule, RuleId, Usage, Where};

use super::error;
use super::meter::Meters;
use super::port::{SharedId, usage_of};

/// The last number given out: no two rules of this process have the same, whatever port they are on.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A rule that the port has.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) handle: NonNull<sys::rte_flow>,
    /// Shared actions that it refers to.
    pub(super) shares: Vec<SharedId>,
    pub(super) counter: Counter,
}

/// What is known of a rule's own counter.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// The rule has one.
    counts: bool,
    /// What it said last.
    last: Usage,
    /// Since when the device finds none, and how often it was asked.
    missing: Option<(Instant, u32)>,
}

/// A device that finds no counter of a rule so often ...
const MISSES: u32 = 4;
/// ... and for so long has lost the rule.
const LOST: Duration = Duration::from_secs(2);

impl Counter {
    /// That of a rule, of which some actions are shared ones.
    pub(super) fn of(rule: &FlowRule, shared: &[(usize, SharedId)]) -> Self {
        let own = |at: usize| shared.iter().all(|(index, _)| *index != at);
        let counts = (0..).zip(&rule.actions).any(|(at, action)| *action == Action::Count && own(at));
        Self { counts, ..Self::default() }
    }

    /// What the device says now.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for a rule that does not count, [`Cause::Again`] while the device has no figures,
    /// [`Cause::Gone`] when it has had no counter for long, or the driver's words.
    pub(super) fn ask(&mut self, port: u16, rule: NonNull<sys::rte_flow>) -> Result<Usage, FlowError> {
        if !self.counts {
            return Err(FlowError::new(
                Cause::Invalid,
                Where::Handle,
                "the rule has no count action of its own",
            ));
        }
        self.hear(usage_of(port, rule), Instant::now())
    }

    /// Takes the driver's answer. Counters come and go a little later than their rules: one that is not found is asked for
    /// again, at first.
    fn hear(&mut self, answer: Result<Usage, FlowError>, now: Instant) -> Result<Usage, FlowError> {
        match answer {
            Err(error) if error.cause == Cause::Gone => {
                let (since, misses) = self.missing.unwrap_or((now, 0));
                let misses = misses.saturating_add(1);
                self.missing = Some((since, misses));
                let is_lost = misses >= MISSES && now.saturating_duration_since(since) >= LOST;
                Err(if is_lost { error } else { FlowError { cause: Cause::Again, ..error } })
            }
            answer => {
                self.missing = None;
                self.last = answer?;
                Ok(self.last)
            }
        }
    }

    /// The best that can be told before the rule goes: what the device says, or what it said last.
    pub(super) fn settle(&mut self, port: u16, rule: NonNull<sys::rte_flow>) -> Usage {
        self.ask(port, rule).unwrap_or(self.last)
    }
}

/// Rules, shared actions and meters of one port.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The port was stopped: no call reaches it any more.
    closed: bool,
    /// Flow queues that are out.
    pub(super) queues_out: BTreeSet<u16>,
    pub(super) rules: BTreeMap<RuleId, Rule>,
    pub(super) shared: BTreeMap<SharedId, NonNull<sys::rte_flow_action_handle>>,
    pub(super) meters: Meters,
}

// SAFETY: the handles are DPDK's and bound to no thread; the lock around this keeps two calls apart.
unsafe impl Send for Held {}

impl Held {
    /// This, unless the port was stopped.
    pub(super) fn open(&mut self) -> Result<&mut Self, FlowError> {
        if self.closed {
            return Err(stopped());
        }
        Ok(self)
    }

    /// Flow queues that must go before the port stops.
    pub(crate) fn queues_out(&self) -> Vec<u16> {
        self.queues_out.iter().copied().collect()
    }

    /// Gives everything back; later calls are refused.
    pub(crate) fn close(&mut self, port: u16) {
        self.closed = true;
        if !self.rules.is_empty()
            && let Err(error) = flush(port)
        {
            tracing::warn!(port, %error, "rules were left at stop");
        }
        self.rules.clear();
        for (id, handle) in std::mem::take(&mut self.shared) {
            // SAFETY: a shared action of this port, which no rule refers to any more.
            let gone = error::check(None, |error| unsafe {
                sys::rte_flow_action_handle_destroy(port, handle.as_ptr(), error)
            });
            if let Err(error) = gone {
                tracing::warn!(port, ?id, %error, "a shared action was left at stop");
            }
        }
        self.meters.clear(port);
    }

    /// The port has stopped: what could not be given back while it ran is now.
    pub(crate) fn stopped(&mut self, port: u16) {
        self.meters.profiles.stopped(port);
    }
}

/// A number for a rule or a shared action, never given out before.
pub(super) fn number() -> u64 {
    LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1
}

pub(super) fn stopped() -> FlowError {
    FlowError::new(Cause::NoDevice, Where::Unspecified, "the port was stopped")
}

/// Removes all rules of a port.
pub(super) fn flush(port: u16) -> Result<(), FlowError> {
    // SAFETY: a port that the caller holds; its rules' handles are forgotten after this.
    error::check(None, |error| unsafe { sys::rte_flow_flush(port, error) }).map(|_| ())
}

/// The numbers of what ran out of its age since the last call; of rules, or of shared ages.
pub(super) fn aged(port: u16) -> Result<Vec<u64>, FlowError> {
    let ask = |contexts: &mut [*mut std::ffi::c_void]| {
        // SAFETY: a started port, and a place for so many contexts.
        error::check(None, |error| unsafe {
            sys::rte_flow_get_aged_flows(port, contexts.as_mut_ptr(), contexts.len() as u32, error)
        })
    };
    let mut contexts = vec![std::ptr::null_mut(); usize::try_from(ask(&mut [])?).unwrap_or(0)];
    let got = if contexts.is_empty() { 0 } else { ask(&mut contexts)? };
    Ok(contexts.iter().take(usize::try_from(got).unwrap_or(0)).map(|context| context.addr() as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(cause: Cause) -> FlowError {
        FlowError::new(cause, Where::Handle, "no")
    }

    #[test]
    fn a_counter_that_is_missing_for_long_is_gone_with_its_rule() {
        let (mut counter, began) = (Counter::default(), Instant::now());
        let mut ask = |answer: Result<Usage, FlowError>, ms: u64| {
            counter.hear(answer, began + Duration::from_millis(ms)).map_err(|error| error.cause)
        };
        let usage = Usage { packets: 7, bytes: 900 };
        for ms in [0, 500, 1000, 1500, 1999] {
            assert_eq!(ask(Err(error(Cause::Gone)), ms), Err(Cause::Again), "after {ms} ms");
        }
        assert_eq!(ask(Err(error(Cause::Gone)), 2000), Err(Cause::Gone));
        // It is there again: what was before does not count.
        for answer in [Ok(usage), Err(error(Cause::Again)), Err(error(Cause::Unsupported))] {
            assert_eq!(ask(answer.clone(), 2000), answer.map_err(|error| error.cause));
            for ms in [3000, 4999, 9000] {
                assert_eq!(ask(Err(error(Cause::Gone)), ms), Err(Cause::Again), "after {ms} ms");
            }
        }
        assert_eq!(counter.last, usage);
    }
}
