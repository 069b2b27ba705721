//! What goes to the device through a flow queue, and what it answers: operations are enqueued as long as there is room, pushed,
//! and their answers pulled, told, and followed.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use rules::{Cause, FlowError, RuleId, Where};

use super::super::backlog::Step;
use super::super::error;
use super::super::lower::Lowered;
use super::super::tables::TableNumber;
use super::mark::MarkId;
use super::{FlowQueue, NO_REASON, PATIENCE, Rule, State};

/// A rule that the device has not let go so often waits for a while.
pub(super) const REFUSALS: u32 = 8;
/// For so long.
const RETRY: Duration = Duration::from_millis(500);

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create(RuleId),
    Destroy(RuleId),
    Meter(MarkId),
}

impl Operation {
    /// What the device hands back with its answer.
    pub(super) fn tag(self) -> *mut std::ffi::c_void {
        let (number, kind) = match self {
            Self::Create(RuleId(rule)) => (rule, 0),
            Self::Destroy(RuleId(rule)) => (rule, 1),
            Self::Meter(MarkId(meter)) => (meter, 2),
        };
        std::ptr::without_provenance_mut((number << 2 | kind) as usize)
    }

    fn of(tag: *mut std::ffi::c_void) -> Self {
        let tag = tag.addr() as u64;
        match (tag >> 2, tag & 3) {
            (rule, 0) => Self::Create(RuleId(rule)),
            (rule, 1) => Self::Destroy(RuleId(rule)),
            (meter, _) => Self::Meter(MarkId(meter)),
        }
    }
}

impl FlowQueue {
    /// Enqueues a creation.
    pub(super) fn enqueue(
        &self,
        rule: RuleId,
        table: TableNumber,
        lowered: &Lowered,
    ) -> Result<NonNull<sys::rte_flow>, FlowError> {
        let (later, table) = (later(), self.tables.raw(table));
        let (items, actions) = (lowered.items().as_ptr(), lowered.actions().as_ptr());
        error::pointer(Some(lowered), |error| {
            let (port, queue, later, tag) =
                (self.port(), self.queue.into(), &raw const later, Operation::Create(rule).tag());
            // SAFETY: a queue and a table of this port; lists of the table's shape, with an end, which DPDK copies.
            unsafe { sys::rte_flow_async_create(port, queue, later, table, items, 0, actions, 0, tag, error) }
        })
    }

    /// Enqueues the removal of a rule.
    fn enqueue_removal(&self, rule: RuleId, handle: NonNull<sys::rte_flow>) -> Result<(), FlowError> {
        let later = later();
        error::check(None, |error| {
            let (port, queue, later, tag) =
                (self.port(), self.queue.into(), &raw const later, Operation::Destroy(rule).tag());
            // SAFETY: a rule of this port and queue of which no operation is under way.
            unsafe { sys::rte_flow_async_destroy(port, queue, later, handle.as_ptr(), tag, error) }
        })
        .map(|_| ())
    }

    /// Hands over what may be, as long as there is room.
    fn hand_over(&mut self) {
        self.hand_over_meters();
        while self.has_room()
            && let Some(step) = self.backlog.next(self.outstanding)
        {
            let result = match step {
                Step::Create(id) => self.hand_over_creation(id),
                Step::Destroy(id) => self.hand_over_removal(id),
            };
            let Err(error) = result else {
                self.again_since = None;
                self.backlog.advance();
                continue;
            };
            let since = *self.again_since.get_or_insert_with(Instant::now);
            if error.cause == Cause::Again && since.elapsed() < PATIENCE {
                return;
            }
            self.again_since = None;
            self.backlog.advance();
            self.give_up(step, error);
        }
    }

    fn hand_over_creation(&mut self, id: RuleId) -> Result<(), FlowError> {
        let Some(Rule { state: State::Waiting(lowered), table, .. }) = self.rules.get(&id) else {
            return Ok(());
        };
        let handle = self.enqueue(id, *table, lowered)?;
        self.outstanding += 1;
        if let Some(rule) = self.rules.get_mut(&id) {
            rule.state = State::Entering(handle);
        }
        Ok(())
    }

    fn hand_over_removal(&mut self, id: RuleId) -> Result<(), FlowError> {
        let Some(Rule { state: State::Held(handle), .. }) = self.rules.get(&id) else { return Ok(()) };
        let handle = *handle;
        self.enqueue_removal(id, handle)?;
        self.outstanding += 1;
        if let Some(rule) = self.rules.get_mut(&id) {
            rule.state = State::Leaving(handle);
        }
        Ok(())
    }

    /// The driver does not take an operation.
    fn give_up(&mut self, step: Step, error: FlowError) {
        match step {
            Step::Create(id) => {
                self.forget(id);
                self.answers.push((id, Err(error)));
            }
            Step::Destroy(id) => self.keep(id, &error.to_string()),
        }
    }

    /// A rule is there no more.
    pub(super) fn forget(&mut self, id: RuleId) {
        if let Some(rule) = self.rules.remove(&id) {
            self.tables.leave(rule.table);
            rule.meter.into_iter().for_each(|meter| self.marks.leave(meter));
        }
    }

    /// The device would not let a rule go: at once again, and after some times in a while.
    fn keep(&mut self, id: RuleId, words: &str) {
        let Some(rule) = self.rules.get_mut(&id) else { return };
        rule.refusals += 1;
        words.clone_into(&mut rule.words);
        if rule.refusals < REFUSALS {
            let group = rule.group;
            return self.backlog.destroy_again(id, group);
        }
        if rule.refusals == REFUSALS {
            let port = self.port();
            tracing::warn!(
                port,
                ?id,
                words,
                "the device does not let a rule go; it is asked again every {RETRY:?}"
            );
        }
        self.stuck.push(id);
        self.retry_later();
    }

    /// What the device would not let go is asked for again in a while.
    pub(super) fn retry_later(&mut self) {
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    /// Asks again for what the device would not let go.
    pub(super) fn retry(&mut self) {
        self.retry_at = None;
        for id in std::mem::take(&mut self.stuck) {
            if let Some(rule) = self.rules.get(&id) {
                self.backlog.destroy(id, rule.group);
            }
        }
        self.marks.retry();
    }

    /// Hands the device what was enqueued, and takes all answers that are there.
    pub(super) fn exchange(&mut self) -> Result<(), FlowError> {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.retry();
        }
        self.tell_late_meters();
        self.hand_over();
        while self.outstanding > 0 {
            self.ring()?;
            if self.pull()? == 0 {
                break;
            }
            self.hand_over();
        }
        Ok(())
    }

    /// Hands the device what is in the queue.
    pub(super) fn ring(&self) -> Result<(), FlowError> {
        // SAFETY: a queue of this port.
        error::check(None, |error| unsafe { sys::rte_flow_push(self.port(), self.queue.into(), error) })
            .map(|_| ())
    }

    /// Takes answers; how many there were.
    pub(super) fn pull(&mut self) -> Result<usize, FlowError> {
        const AT_ONCE: u16 = 64;
        // SAFETY: integers and pointers, for which zero is a value.
        let mut results: [sys::rte_flow_op_result; AT_ONCE as usize] = unsafe { std::mem::zeroed() };
        let count = error::check(None, |error| {
            // SAFETY: a queue of this port, and a place for so many results.
            unsafe {
                sys::rte_flow_pull(self.port(), self.queue.into(), results.as_mut_ptr(), AT_ONCE, error)
            }
        })?;
        let count = usize::try_from(count).unwrap_or(0);
        for result in results.iter().take(count) {
            let done = result.status == sys::RTE_FLOW_OP_SUCCESS;
            let was_asked = match Operation::of(result.user_data) {
                Operation::Create(rule) => self.answered(rule, false, done),
                Operation::Destroy(rule) => self.answered(rule, true, done),
                Operation::Meter(meter) => self.meter_answered(meter, done),
            };
            if was_asked {
                self.outstanding -= 1;
                self.done += 1;
            }
        }
        Ok(count)
    }

    /// The device has answered the creation or the removal of a rule. False for one that was asked for by whoever had the
    /// queue before.
    fn answered(&mut self, id: RuleId, goes: bool, succeeded: bool) -> bool {
        let Some(rule) = self.rules.get_mut(&id) else { return false };
        match (&rule.state, goes) {
            (State::Entering(handle), false) | (State::Leaving(handle), true) => {
                rule.state = State::Held(*handle);
            }
            _ => return false,
        }
        match (goes, succeeded) {
            (true, true) => self.forget(id),
            (true, false) => self.keep(id, NO_REASON),
            (false, true) => self.answers.push((id, Ok(()))),
            (false, false) => {
                // Its handle is to be given back all the same (rte_flow guide, "Enqueue creation operation").
                if !std::mem::replace(&mut rule.unwanted, true) {
                    let group = rule.group;
                    self.backlog.destroy(id, group);
                }
                let error = FlowError::new(Cause::Other(libc::EIO), Where::Handle, NO_REASON);
                self.answers.push((id, Err(error)));
            }
        }
        true
    }

    /// As [`exchange`](Self::exchange), for whom nothing follows from an error: the log tells it.
    pub(super) fn exchange_or_tell(&mut self) {
        if let Err(error) = self.exchange() {
            tracing::warn!(port = self.port(), queue = self.queue, %error, "the flow queue does not answer");
        }
    }
}

/// Operations wait in the queue until they are pushed.
pub(super) fn later() -> sys::rte_flow_op_attr {
    // SAFETY: bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_op_attr = unsafe { std::mem::zeroed() };
    attr.set_postpone(1);
    attr
}
