//! [`FlowQueue`]: rules through the template and queue API of rte_flow, for ports that have it.
//!
//! Rules are enqueued, pushed to the device together, and reported when it is done with them. Which templates there are
//! follows from the rules that come ([`Shape`]). Unconfirmed on hardware: no driver without a NIC has this API.

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use rules::{BackEnd, Cause, FlowError, FlowRule, Meter, RuleId, Usage, Where};

use super::error;
use super::held::{self, Counter, Held};
use super::lower::Lowered;
use super::template::{Shape, Table};
use crate::port::{Running, StartedPort};

/// The flow queues that a port is started with ([`PortConfig::flow_queues`](crate::PortConfig::flow_queues)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQueues {
    /// How many; each belongs to one thread.
    pub queues: u16,
    /// Operations that a queue holds.
    pub depth: u32,
    /// Counters to set aside.
    pub counters: u32,
    /// Ages to set aside.
    pub ages: u32,
    /// Meters to set aside.
    pub meters: u32,
    /// Rules of one shape.
    pub rules_per_table: u32,
}

/// What a port has for flow queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Queues.
    pub queues: u32,
    /// Operations of a queue.
    pub depth: u32,
    /// Counters.
    pub counters: u32,
    /// Ages.
    pub ages: u32,
    /// Meters.
    pub meters: u32,
}

/// What a configured port has for flow queues.
fn limits(port: u16) -> Result<FlowLimits, FlowError> {
    // SAFETY: integers, for which zero is a value.
    let mut info: sys::rte_flow_port_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut queue: sys::rte_flow_queue_info = unsafe { std::mem::zeroed() };
    error::check(None, |error| {
        // SAFETY: a configured port and two places for the answer.
        unsafe { sys::rte_flow_info_get(port, &raw mut info, &raw mut queue, error) }
    })?;
    Ok(FlowLimits {
        queues: info.max_nb_queues,
        depth: queue.max_size,
        counters: info.max_nb_counters,
        ages: info.max_nb_aging_objects,
        meters: info.max_nb_meters,
    })
}

/// Makes the flow queues of a port that is configured and not started.
pub(crate) fn configure(port: u16, config: &FlowQueues) -> Result<(), FlowError> {
    limits(port)?;
    // SAFETY: integers, for which zero is a value: the driver's default.
    let mut attr: sys::rte_flow_port_attr = unsafe { std::mem::zeroed() };
    attr.nb_counters = config.counters;
    attr.nb_aging_objects = config.ages;
    attr.nb_meters = config.meters;
    let queue = sys::rte_flow_queue_attr { size: config.depth };
    let mut queues = vec![&raw const queue; usize::from(config.queues)];
    error::check(None, |error| {
        // SAFETY: a configured, stopped port; attributes for as many queues as it is told.
        unsafe { sys::rte_flow_configure(port, &raw const attr, config.queues, queues.as_mut_ptr(), error) }
    })
    .map(|_| ())
}

/// A rule of a queue.
#[derive(Debug)]
struct Rule {
    handle: NonNull<sys::rte_flow>,
    /// The device has not said yet what became of it.
    pending: bool,
    /// Its removal is enqueued.
    going: bool,
    counter: Counter,
}

/// One flow queue of a port. It moves to the thread that uses it, and must go before the port stops; its rules go with
/// it.
#[derive(Debug)]
pub struct FlowQueue {
    running: Arc<Running>,
    queue: u16,
    config: FlowQueues,
    tables: HashMap<Shape, Table>,
    rules: BTreeMap<RuleId, Rule>,
    /// Operations that the device has not answered.
    outstanding: u32,
    /// Answers that nobody asked for yet.
    answers: Vec<(RuleId, Result<(), FlowError>)>,
}

// SAFETY: the handles are DPDK's and bound to no thread; a queue is used by whoever has it, one at a time.
unsafe impl Send for FlowQueue {}

/// What the device hands back with an answer: the rule's number and whether it was to go.
fn tag(rule: RuleId, goes: bool) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut((rule.0 << 1 | u64::from(goes)) as usize)
}

impl StartedPort {
    /// What the port has for flow queues.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for a driver without them.
    pub fn flow_limits(&self) -> Result<FlowLimits, FlowError> {
        limits(self.id().get())
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
        let (tables, rules, answers) = (HashMap::new(), BTreeMap::new(), Vec::new());
        Ok(FlowQueue { running, queue, config, tables, rules, outstanding: 0, answers })
    }
}

/// How long the device may take to answer before a caller that waits is told to ask again.
const PATIENCE: Duration = Duration::from_secs(1);

impl FlowQueue {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.running.flow()
    }

    fn port(&self) -> u16 {
        self.running.id().get()
    }

    fn has_room(&self) -> Result<(), FlowError> {
        if self.outstanding < self.config.depth {
            return Ok(());
        }
        let message = format!("flow queue {} is full: ask for what is completed first", self.queue);
        Err(FlowError::new(Cause::Again, Where::Unspecified, message))
    }

    /// The table for a rule, made when there is none.
    fn table(
        &mut self,
        rule: &FlowRule,
        lowered: &Lowered,
    ) -> Result<*mut sys::rte_flow_template_table, FlowError> {
        let shape = Shape::of(rule)?;
        if let Some(table) = self.tables.get(&shape) {
            return Ok(table.raw());
        }
        let table = Table::new(self.port(), &shape, lowered, self.config.rules_per_table)?;
        let raw = table.raw();
        self.tables.insert(shape, table);
        Ok(raw)
    }

    /// Enqueues the removal of a rule.
    fn remove(&mut self, rule: RuleId) -> Result<(), FlowError> {
        self.has_room()?;
        let handle = self.rules.get(&rule).ok_or_else(no_such_rule)?.handle;
        let later = later();
        // SAFETY: a rule of this port and queue that was not removed.
        error::check(None, |error| unsafe {
            let queue = self.queue.into();
            sys::rte_flow_async_destroy(
                self.port(),
                queue,
                &raw const later,
                handle.as_ptr(),
                tag(rule, true),
                error,
            )
        })?;
        self.outstanding += 1;
        if let Some(rule) = self.rules.get_mut(&rule) {
            rule.going = true;
        }
        Ok(())
    }

    /// Hands the device what was enqueued, and takes its answers.
    fn exchange(&mut self) -> Result<(), FlowError> {
        if self.outstanding == 0 {
            return Ok(());
        }
        // SAFETY: a queue of this port.
        error::check(None, |error| unsafe { sys::rte_flow_push(self.port(), self.queue.into(), error) })?;
        const AT_ONCE: u16 = 64;
        // SAFETY: integers and pointers, for which zero is a value.
        let mut results: [sys::rte_flow_op_result; AT_ONCE as usize] = unsafe { std::mem::zeroed() };
        let count = error::check(None, |error| {
            // SAFETY: a queue of this port, and a place for so many results.
            unsafe {
                sys::rte_flow_pull(self.port(), self.queue.into(), results.as_mut_ptr(), AT_ONCE, error)
            }
        })?;
        for result in results.iter().take(usize::try_from(count).unwrap_or(0)) {
            self.outstanding = self.outstanding.saturating_sub(1);
            let number = result.user_data.addr() as u64;
            self.answered(RuleId(number >> 1), number & 1 == 1, result.status == sys::RTE_FLOW_OP_SUCCESS);
        }
        Ok(())
    }

    fn answered(&mut self, id: RuleId, goes: bool, succeeded: bool) {
        if goes {
            // A rule that the device will not let go stays known, so that it can be tried again.
            match self.rules.get_mut(&id) {
                Some(rule) if !succeeded => rule.going = false,
                _ => drop(self.rules.remove(&id)),
            }
            return;
        }
        if let Some(rule) = self.rules.get_mut(&id) {
            rule.pending = false;
        }
        if succeeded {
            return self.answers.push((id, Ok(())));
        }
        let message = "the device did not take the rule, and gives no reason";
        self.answers.push((id, Err(FlowError::new(Cause::Other(libc::EIO), Where::Handle, message))));
        // Its handle is to be given back all the same (rte_flow guide, "Enqueue creation operation").
        if let Err(error) = self.remove(id) {
            tracing::warn!(port = self.port(), ?id, %error, "a rule that failed could not be given back");
        }
    }

    /// Waits until the device has answered what `done` asks for.
    fn wait(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), FlowError> {
        let began = Instant::now();
        while !done(self) {
            self.exchange()?;
            if began.elapsed() > PATIENCE {
                return Err(FlowError::new(
                    Cause::Again,
                    Where::Handle,
                    "the device has not answered for a second",
                ));
            }
        }
        Ok(())
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
        let lowered = Lowered::new(rule, u64::MAX, &[])?;
        self.table(rule, &lowered).map(|_| ())
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.has_room()?;
        let id = RuleId(held::number());
        let lowered = Lowered::new(rule, id.0, &[])?;
        let table = self.table(rule, &lowered)?;
        let later = later();
        let handle = error::pointer(Some(&lowered), |error| {
            let (items, actions) = (lowered.items().as_ptr(), lowered.actions().as_ptr());
            let (queue, later) = (self.queue.into(), &raw const later);
            // SAFETY: a queue and a table of this port; lists of the table's shape, with an end, which DPDK copies.
            unsafe {
                sys::rte_flow_async_create(
                    self.port(),
                    queue,
                    later,
                    table,
                    items,
                    0,
                    actions,
                    0,
                    tag(id, false),
                    error,
                )
            }
        })?;
        self.outstanding += 1;
        self.rules.insert(id, Rule { handle, pending: true, going: false, counter: Counter::of(rule, &[]) });
        Ok(id)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        if let Err(error) = self.exchange() {
            tracing::warn!(port = self.port(), queue = self.queue, %error, "the flow queue does not answer");
        }
        results.append(&mut self.answers);
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        // A rule on its way in is there first.
        self.wait(|queue| queue.rules.get(&rule).is_none_or(|rule| !rule.pending))?;
        let port = self.port();
        let known = self.rules.get_mut(&rule).ok_or_else(no_such_rule)?;
        if known.going {
            // It came to nothing, and was given back when that was heard.
            self.wait(|queue| queue.rules.get(&rule).is_none_or(|rule| !rule.going))?;
            return Err(no_such_rule());
        }
        let usage = known.counter.settle(port, known.handle);
        self.wait(|queue| queue.has_room().is_ok())?;
        self.remove(rule)?;
        self.wait(|queue| queue.rules.get(&rule).is_none_or(|rule| !rule.going))?;
        if self.rules.contains_key(&rule) {
            return Err(FlowError::new(
                Cause::Other(libc::EIO),
                Where::Handle,
                "the device does not let the rule go",
            ));
        }
        Ok(usage)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        let port = self.port();
        let rule = self.rules.get_mut(&rule).ok_or_else(no_such_rule)?;
        rule.counter.ask(port, rule.handle)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        match held::aged(self.port()) {
            Ok(numbers) => {
                rules.extend(numbers.into_iter().map(RuleId).filter(|id| self.rules.contains_key(id)));
            }
            Err(error) => tracing::debug!(port = self.port(), %error, "aged rules cannot be told"),
        }
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        for rule in self.rules.keys().copied().collect::<Vec<_>>() {
            match self.destroy(rule) {
                Ok(_) => {}
                Err(error) if error.cause == Cause::Gone => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        let port = self.port();
        self.held().open()?.meters.set(port, mtr_id, meter)
    }
}

impl Drop for FlowQueue {
    fn drop(&mut self) {
        let port = self.port();
        if let Err(error) = self.flush() {
            tracing::warn!(port, queue = self.queue, %error, "rules of a flow queue were left");
        }
        for (_, table) in std::mem::take(&mut self.tables) {
            table.delete(port);
        }
        let queue = self.queue;
        self.held().queues_out.remove(&queue);
    }
}
