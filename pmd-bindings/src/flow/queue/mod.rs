//! [`FlowQueue`]: rules through the template and queue API of rte_flow, for ports that have it.
//!
//! ```text
//!   create, destroy --> backlog --enqueue--> queue --push--> device --pull--> answers --> completed
//! ```
//! Nothing here waits for the device, but for [`BackEnd::drain`], [`BackEnd::flush`] and the end of the queue: what the queue
//! has no room for stays in the [`Backlog`], which also keeps the order that chains need. Which templates there are follows
//! from the rules that come ([`Tables`]). Rules wait for the meters that they name, and meters for those rules ([`mark`]).

mod exchange;
mod handle;
mod mark;
mod meters;

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use rules::{BackEnd, Cause, FlowError, FlowRule, InnerTuple, Meter, Removal, RuleId, Usage, Where};

use super::backlog::Backlog;
use super::encap_hash;
use super::engine::{self, FlowLimits, FlowQueues};
use super::held::{self, Counter, Held};
use super::lower::Lowered;
use super::tables::{TableNumber, Tables};
use crate::port::{Running, StartedPort};
use mark::{MarkId, Marks};

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
    /// Removals that came to nothing, and why the last one did.
    refusals: u32,
    words: String,
    group: u32,
    table: TableNumber,
    counter: Counter,
    meter: Option<MarkId>,
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
/// How long whoever waits for the device to have done all waits at most, though it goes on answering.
const DRAIN: Duration = Duration::from_secs(1);
/// The same where nobody asks for it later: time for 300,000 rules of a device that removes ten thousand a second.
const FAREWELL: Duration = Duration::from_secs(30);

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

    /// Waits until the device has done all, as long as it goes on answering and for so long at most.
    fn drain_within(&mut self, limit: Duration) -> Result<(), FlowError> {
        self.retry();
        self.marks.begin_turn();
        let began = Instant::now();
        let (mut since, mut before) = (began, self.done);
        loop {
            self.exchange()?;
            if self.outstanding == 0 && self.backlog.is_empty() && !self.marks.are_due() {
                break;
            }
            if self.done != before {
                (since, before) = (Instant::now(), self.done);
            }
            let message = if since.elapsed() > PATIENCE {
                format!("the device has not answered {} operations for a second", self.outstanding)
            } else if began.elapsed() > limit {
                format!(
                    "after {limit:?} the device still has {} operations to do, and more wait",
                    self.outstanding
                )
            } else {
                std::hint::spin_loop();
                continue;
            };
            return Err(FlowError::new(Cause::Again, Where::Handle, message));
        }
        let message = match (self.stuck.len(), self.marks.stuck()) {
            (0, 0) => return Ok(()),
            (0, meters) => format!("the device does not let {meters} meters go"),
            (rules, _) => format!("the device does not let {rules} rules go"),
        };
        Err(FlowError::new(Cause::Other(libc::EIO), Where::Handle, message))
    }
}

fn no_such_rule() -> FlowError {
    FlowError::new(Cause::Gone, Where::Handle, "there is no such rule on this flow queue")
}

impl BackEnd for FlowQueue {
    /// Whether there can be a table for such rules.
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        let shared = self.marks.named(rule)?.map(|(_, shared)| shared);
        let lowered = Lowered::new(rule, u64::MAX, shared.as_slice())?;
        self.tables.find(self.running.id().get(), rule, &lowered, self.config.rules_per_table).map(|_| ())
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        if !self.has_room() {
            self.exchange()?;
        }
        let id = RuleId(held::number());
        let (meter, shared) = self.marks.named(rule)?.unzip();
        let lowered = Lowered::new(rule, id.0, shared.as_slice())?;
        let table = self.tables.find(self.port(), rule, &lowered, self.config.rules_per_table)?;
        let is_metered = meter.is_none_or(|meter| self.marks.is_made(meter));
        // Behind what waits it waits, too.
        let made = if is_metered && self.has_room() && self.backlog.may_create(self.outstanding) {
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
                if is_metered {
                    self.backlog.create(id);
                }
                State::Waiting(Box::new(lowered))
            }
            Err(error) => return Err(error),
        };
        self.tables.occupy(table);
        meter.into_iter().for_each(|meter| self.marks.enter(meter, id));
        let (group, counter) = (rule.attr.group, Counter::of(rule, &[]));
        self.rules.insert(
            id,
            Rule { state, unwanted: false, refusals: 0, words: String::new(), group, table, counter, meter },
        );
        Ok(id)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.push();
        results.append(&mut self.answers);
    }

    fn push(&mut self) {
        self.marks.begin_turn();
        self.exchange_or_tell();
    }

    fn drain(&mut self) -> Result<(), FlowError> {
        self.drain_within(DRAIN)
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

    fn removal(&mut self, rule: RuleId) -> Removal {
        match self.rules.get(&rule).filter(|rule| rule.unwanted) {
            None => Removal::Done,
            Some(Rule { refusals: 0, .. }) => Removal::UnderWay,
            Some(Rule { words, .. }) => {
                Removal::Refused(FlowError::new(Cause::Other(libc::EIO), Where::Handle, words.clone()))
            }
        }
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
        // Nobody asks for them later.
        self.drain_within(FAREWELL)
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        match meter {
            Some(meter) => self.make_or_change_meter(mtr_id, meter)?,
            None => self.remove_meter(mtr_id)?,
        }
        // Many a device has done it before rules come.
        self.exchange_or_tell();
        Ok(())
    }

    fn failed_meters(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        self.marks.take_failed(failed);
    }

    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        encap_hash::source_port(self.running.id(), inner)
    }
}

impl Drop for FlowQueue {
    fn drop(&mut self) {
        let (port, queue) = (self.port(), self.queue);
        self.marks.let_all_go();
        if let Err(error) = self.flush() {
            tracing::warn!(port, queue, %error, "rules or meters of a flow queue were left");
        }
        self.tables.delete(port);
        let (meters, profiles) = self.marks.left();
        if meters > 0 {
            tracing::warn!(port, queue, meters, "meters were left");
        }
        let mut held = self.held();
        held.meters.profiles.leave(profiles);
        held.queues_out.remove(&queue);
    }
}
