//! [`FlowQueue`]: rules through the template and queue API of rte_flow, for ports that have it.
//!
//! ```text
//!   create, destroy --> backlog --enqueue--> queue --push--> device --pull--> answers --> completed
//! ```
//! Nothing here waits for the device, but for [`BackEnd::drain`], [`BackEnd::flush`] and the end of the queue: what the queue
//! has no room for stays in the [`Backlog`], which also keeps the order that chains need. Which templates there are follows
//! from the rules that come ([`Tables`]). Meters are waited for, too: their rates hold before rules name them ([`mark`]).

mod mark;

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use rules::{BackEnd, Cause, FlowError, FlowRule, Meter, RuleId, Usage, Where};

use super::backlog::{Backlog, Step};
use super::engine::{self, FlowLimits, FlowQueues};
use super::error;
use super::held::{self, Counter, Held};
use super::lower::Lowered;
use super::tables::{TableNumber, Tables};
use crate::port::{Running, StartedPort};
use mark::Marks;

/// How far a rule is.
#[derive(Debug)]
enum State {
    /// The queue had no room for it.
    Waiting(Box<Lowered>),
    /// The device has not said yet what became of it.
    Entering(NonNull<sys::rte_flow>),
    /// The device has it, or has its handle back to give: one that came to nothing.
    Held(NonNull<sys::rte_flow>),
    /// Its removal is under way.
    Leaving(NonNull<sys::rte_flow>),
}

/// A rule of a queue.
#[derive(Debug)]
struct Rule {
    state: State,
    /// Nobody wants it any more: it is removed as soon as its turn comes.
    unwanted: bool,
    /// Removals that came to nothing.
    refusals: u32,
    group: u32,
    table: TableNumber,
    counter: Counter,
    meter: Option<u32>,
}

/// One flow queue of a port. It moves to the thread that uses it, and must go before the port stops; its rules go with
/// it.
#[derive(Debug)]
pub struct FlowQueue {
    running: Arc<Running>,
    queue: u16,
    config: FlowQueues,
    tables: Tables,
    rules: HashMap<RuleId, Rule>,
    backlog: Backlog,
    /// Operations that the device has not answered.
    outstanding: u32,
    /// Operations that it has answered.
    done: u64,
    /// Since when it answers EAGAIN to the operation whose turn it is.
    again_since: Option<Instant>,
    /// Rules that the device would not let go several times, and when that is tried again.
    stuck: Vec<RuleId>,
    retry_at: Option<Instant>,
    marks: Marks,
    /// Answers that nobody asked for yet.
    answers: Vec<(RuleId, Result<(), FlowError>)>,
}

// SAFETY: the handles are DPDK's and bound to no thread; a queue is used by whoever has it, one at a time.
unsafe impl Send for FlowQueue {}

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create(RuleId),
    Destroy(RuleId),
    /// Of a meter, by a number of its own.
    Meter(u64),
}

impl Operation {
    /// What the device hands back with its answer.
    fn tag(self) -> *mut std::ffi::c_void {
        let (number, kind) = match self {
            Self::Create(RuleId(rule)) => (rule, 0),
            Self::Destroy(RuleId(rule)) => (rule, 1),
            Self::Meter(number) => (number, 2),
        };
        std::ptr::without_provenance_mut((number << 2 | kind) as usize)
    }

    fn of(tag: *mut std::ffi::c_void) -> Self {
        let tag = tag.addr() as u64;
        match (tag >> 2, tag & 3) {
            (rule, 0) => Self::Create(RuleId(rule)),
            (rule, 1) => Self::Destroy(RuleId(rule)),
            (number, _) => Self::Meter(number),
        }
    }
}

impl StartedPort {
    /// What the port has for flow queues.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for a driver without them.
    pub fn flow_limits(&self) -> Result<FlowLimits, FlowError> {
        engine::limits(self.id().get())
    }

    /// A flow queue of a port that was started with some.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for a queue that the port does not have or that is out already.
    pub fn flow_queue(&self, queue: u16) -> Result<FlowQueue, FlowError> {
        let running = self.running().clone();
        let refused = |message: String| FlowError::new(Cause::Invalid, Where::Unspecified, message);
        let Some(config) = running.flow_queues().filter(|config| queue < config.queues) else {
            return Err(refused(format!("the port was not started with a flow queue {queue}")));
        };
        let mut held = running.flow();
        if !held.open()?.queues_out.insert(queue) {
            return Err(refused(format!("flow queue {queue} is in use")));
        }
        drop(held);
        Ok(FlowQueue {
            running,
            queue,
            config,
            tables: Tables::default(),
            rules: HashMap::new(),
            backlog: Backlog::default(),
            outstanding: 0,
            done: 0,
            again_since: None,
            stuck: Vec::new(),
            retry_at: None,
            marks: Marks::default(),
            answers: Vec::new(),
        })
    }
}

const NO_REASON: &str = "the device did not do it, and gives no reason";
/// How long the device may answer nothing, or EAGAIN, before it is taken for an error.
const PATIENCE: Duration = Duration::from_secs(1);
/// A rule that the device has not let go so often waits for a while.
const REFUSALS: u32 = 8;
/// For so long.
const RETRY: Duration = Duration::from_millis(500);

impl FlowQueue {
    /// Operations that were asked for and that the device has not answered.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.running.flow()
    }

    fn port(&self) -> u16 {
        self.running.id().get()
    }

    fn has_room(&self) -> bool {
        self.outstanding < self.config.depth
    }

    /// Enqueues a creation.
    fn enqueue(
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
        while self.has_room()
            && let Some(step) = self.backlog.next(self.outstanding)
        {
            let result = match step {
                Step::Create(id) => self.hand_over_creation(id),
                Step::Destroy(id) => self.hand_over_removal(id),
                Step::RemoveMeter(meter) => {
                    self.remove_meter(meter).unwrap_or_else(|error| self.left(meter, &error));
                    Ok(())
                }
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
            Step::RemoveMeter(_) => {}
        }
    }

    /// A rule is there no more.
    fn forget(&mut self, id: RuleId) {
        if let Some(rule) = self.rules.remove(&id) {
            self.tables.leave(rule.table);
        }
    }

    /// The device would not let a rule go: at once again, and after some times in a while.
    fn keep(&mut self, id: RuleId, words: &str) {
        let Some(rule) = self.rules.get_mut(&id) else { return };
        rule.refusals += 1;
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
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    /// Asks again for what the device would not let go.
    fn retry(&mut self) {
        self.retry_at = None;
        for id in std::mem::take(&mut self.stuck) {
            if let Some(rule) = self.rules.get(&id) {
                self.backlog.destroy(id, rule.group);
            }
        }
        for meter in self.marks.take_named() {
            self.backlog.remove_meter(meter);
        }
    }

    /// Hands the device what was enqueued, and takes all answers that are there.
    fn exchange(&mut self) -> Result<(), FlowError> {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.retry();
        }
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
    fn ring(&self) -> Result<(), FlowError> {
        // SAFETY: a queue of this port.
        error::check(None, |error| unsafe { sys::rte_flow_push(self.port(), self.queue.into(), error) })
            .map(|_| ())
    }

    /// Takes answers; how many there were.
    fn pull(&mut self) -> Result<usize, FlowError> {
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
            self.outstanding = self.outstanding.saturating_sub(1);
            self.done += 1;
            let done = result.status == sys::RTE_FLOW_OP_SUCCESS;
            match Operation::of(result.user_data) {
                Operation::Create(rule) => self.answered(rule, false, done),
                Operation::Destroy(rule) => self.answered(rule, true, done),
                Operation::Meter(number) => self.marks.answered(number, done),
            }
        }
        Ok(count)
    }

    fn answered(&mut self, id: RuleId, goes: bool, succeeded: bool) {
        let Some(rule) = self.rules.get_mut(&id) else { return };
        if let State::Entering(handle) | State::Leaving(handle) = rule.state {
            rule.state = State::Held(handle);
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
    }
}

/// Operations wait in the queue until they are pushed.
fn later() -> sys::rte_flow_op_attr {
    // SAFETY: bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_op_attr = unsafe { std::mem::zeroed() };
    attr.set_postpone(1);
    attr
}

fn no_such_rule() -> FlowError {
    FlowError::new(Cause::Gone, Where::Handle, "there is no such rule on this flow queue")
}

impl BackEnd for FlowQueue {
    /// Whether there can be a table for such rules.
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        let lowered = Lowered::new(rule, u64::MAX, &self.marks.shared(rule)?)?;
        self.tables.find(self.running.id().get(), rule, &lowered, self.config.rules_per_table).map(|_| ())
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        let id = RuleId(held::number());
        let lowered = Lowered::new(rule, id.0, &self.marks.shared(rule)?)?;
        if !self.has_room() {
            self.exchange()?;
        }
        let table = self.tables.find(self.port(), rule, &lowered, self.config.rules_per_table)?;
        // Behind what waits it waits, too.
        let made = if self.has_room() && self.backlog.may_create(self.outstanding) {
            self.enqueue(id, table, &lowered)
        } else {
            Err(FlowError::new(Cause::Again, Where::Unspecified, "the flow queue has no room"))
        };
        let state = match made {
            Ok(handle) => {
                self.outstanding += 1;
                State::Entering(handle)
            }
            Err(error) if error.cause == Cause::Again => {
                self.backlog.create(id);
                State::Waiting(Box::new(lowered))
            }
            Err(error) => return Err(error),
        };
        self.tables.occupy(table);
        let (group, counter, meter) = (rule.attr.group, Counter::of(rule, &[]), mark::meter_of(rule));
        self.rules.insert(id, Rule { state, unwanted: false, refusals: 0, group, table, counter, meter });
        Ok(id)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        if let Err(error) = self.exchange() {
            tracing::warn!(port = self.port(), queue = self.queue, %error, "the flow queue does not answer");
        }
        results.append(&mut self.answers);
    }

    fn push(&mut self) {
        if let Err(error) = self.exchange() {
            tracing::warn!(port = self.port(), queue = self.queue, %error, "the flow queue does not answer");
        }
    }

    fn drain(&mut self) -> Result<(), FlowError> {
        self.retry();
        let (mut since, mut before) = (Instant::now(), self.done);
        loop {
            self.exchange()?;
            if self.outstanding == 0 && self.backlog.is_empty() {
                break;
            }
            if self.done != before {
                (since, before) = (Instant::now(), self.done);
            }
            if since.elapsed() > PATIENCE {
                let message =
                    format!("the device has not answered {} operations for a second", self.outstanding);
                return Err(FlowError::new(Cause::Again, Where::Handle, message));
            }
            std::hint::spin_loop();
        }
        if self.stuck.is_empty() {
            return Ok(());
        }
        let message = format!("the device does not let {} rules go", self.stuck.len());
        Err(FlowError::new(Cause::Other(libc::EIO), Where::Handle, message))
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        let port = self.port();
        let known = self.rules.get_mut(&rule).filter(|rule| !rule.unwanted).ok_or_else(no_such_rule)?;
        known.unwanted = true;
        let usage = match known.state {
            // It never was in the device.
            State::Waiting(_) => {
                self.forget(rule);
                return Ok(Usage::default());
            }
            // Its removal comes behind it.
            State::Entering(_) => Usage::default(),
            State::Held(handle) | State::Leaving(handle) => known.counter.settle(port, handle),
        };
        let group = known.group;
        self.backlog.destroy(rule, group);
        Ok(usage)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        let port = self.port();
        let known = self.rules.get_mut(&rule).filter(|rule| !rule.unwanted).ok_or_else(no_such_rule)?;
        match known.state {
            State::Held(handle) | State::Leaving(handle) => known.counter.ask(port, handle),
            State::Waiting(_) | State::Entering(_) => {
                Err(FlowError::new(Cause::Again, Where::Handle, "the rule is not in force yet"))
            }
        }
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        match held::aged(self.port()) {
            Ok(numbers) => {
                let known = |id: &RuleId| self.rules.get(id).is_some_and(|rule| !rule.unwanted);
                rules.extend(numbers.into_iter().map(RuleId).filter(known));
            }
            Err(error) => tracing::debug!(port = self.port(), %error, "aged rules cannot be told"),
        }
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        let wanted = self.rules.iter().filter(|(_, rule)| !rule.unwanted).map(|(id, _)| *id);
        for rule in wanted.collect::<Vec<_>>() {
            self.destroy(rule)?;
        }
        self.drain()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        match meter {
            Some(meter) => {
                self.backlog.keep_meter(mtr_id);
                self.marks.keep(mtr_id);
                self.make_or_change_meter(mtr_id, meter)
            }
            // Rules that name it may still be on their way out.
            None if self.outstanding > 0 || !self.backlog.is_empty() => {
                self.backlog.remove_meter(mtr_id);
                Ok(())
            }
            None => self.remove_meter(mtr_id),
        }
    }
}

impl Drop for FlowQueue {
    fn drop(&mut self) {
        let port = self.port();
        if let Err(error) = self.flush() {
            tracing::warn!(port, queue = self.queue, %error, "rules of a flow queue were left");
        }
        self.clear_meters();
        self.tables.delete(port);
        let queue = self.queue;
        self.held().queues_out.remove(&queue);
    }
}
