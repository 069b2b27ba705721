//! [`Flows`]: rules on a port through the synchronous API of rte_flow.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use dpdk_sys as sys;
use rules::{Action, Attr, BackEnd, Cause, FlowError, FlowRule, InnerTuple, Meter, RuleId, Usage, Where};

use super::error;
use super::held::{self, Counter, Rule};
use super::lower::{END, Lowered};
use crate::port::{PortId, Running, StartedPort};

/// An action that several rules share: one counter, one age, one meter for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedId(u64);

/// The rules of a port. All handles of one port see the same rules.
///
/// A call waits for the driver, and with hardware for the device: not for the packet loop.
#[derive(Clone, Debug)]
pub struct Flows {
    /// Weak: rules keep no port open, and none is reached once it is gone.
    running: Weak<Running>,
    /// Rules made through [`BackEnd`] whose completion was not reported yet.
    made: Vec<RuleId>,
}

impl StartedPort {
    /// The port's rules.
    pub fn flows(&self) -> Flows {
        Flows { running: Arc::downgrade(self.running()), made: Vec::new() }
    }
}

impl Flows {
    fn running(&self) -> Result<Arc<Running>, FlowError> {
        self.running.upgrade().ok_or_else(held::stopped)
    }

    /// True when both are of one port that was not stopped in between.
    pub fn same_port(&self, other: &Self) -> bool {
        self.running.ptr_eq(&other.running)
    }

    /// Would the port take this rule?
    ///
    /// # Errors
    /// The driver's refusal, in its words.
    pub fn validate(&self, rule: &FlowRule) -> Result<(), FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        held.open()?;
        // A driver may look at an age's context; any number but 0 will do.
        let lowered = Lowered::new(rule, u64::MAX, &[])?;
        error::check(Some(&lowered), |error| {
            let (items, actions) = (lowered.items().as_ptr(), lowered.actions().as_ptr());
            // SAFETY: a started port; lists with an end, alive during the call.
            unsafe { sys::rte_flow_validate(port, lowered.attr(), items, actions, error) }
        })
        .map(|_| ())
    }

    /// Gives the port a rule.
    ///
    /// # Errors
    /// The driver's refusal, in its words.
    pub fn create(&self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.create_sharing(rule, &[])
    }

    /// Gives the port a rule some of whose actions, named by their index, are shared ones.
    ///
    /// # Errors
    /// The driver's refusal, in its words; [`Cause::Gone`] for a shared action that is not there.
    pub fn create_sharing(&self, rule: &FlowRule, shared: &[(usize, SharedId)]) -> Result<RuleId, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        let handle = |(index, id): &(usize, SharedId)| Some((*index, held.shared.get(id)?.as_ptr()));
        let handles: Option<Vec<_>> = shared.iter().map(handle).collect();
        let handles = handles.ok_or_else(no_such_action)?;
        let number = held::number();
        let lowered = Lowered::new(rule, number, &handles)?;
        let handle = error::pointer(Some(&lowered), |error| {
            let (items, actions) = (lowered.items().as_ptr(), lowered.actions().as_ptr());
            // SAFETY: a started port; lists with an end, alive during the call: drivers copy what they keep.
            unsafe { sys::rte_flow_create(port, lowered.attr(), items, actions, error) }
        })?;
        let shares = shared.iter().map(|(_, id)| *id).collect();
        held.rules.insert(RuleId(number), Rule { handle, shares, counter: Counter::of(rule, shared) });
        Ok(RuleId(number))
    }

    /// Takes a rule away. When the driver refuses, the rule is still there.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a rule that is not there, or the driver's words.
    pub fn destroy(&self, rule: RuleId) -> Result<(), FlowError> {
        self.settle(rule, |_, _| ()).map(|_| ())
    }

    /// Takes a rule away, once more asked for what it has seen.
    fn settle<T>(&self, rule: RuleId, seen: impl FnOnce(u16, &mut Rule) -> T) -> Result<T, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        let known = held.rules.get_mut(&rule).ok_or_else(no_such_rule)?;
        let (handle, seen) = (known.handle, seen(port, known));
        // SAFETY: a rule of this port that was not destroyed.
        error::check(None, |error| unsafe { sys::rte_flow_destroy(port, handle.as_ptr(), error) })?;
        held.rules.remove(&rule);
        Ok(seen)
    }

    /// What a rule with a count action of its own has seen.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a rule that is not there, or of which the device has found no counter for two seconds;
    /// [`Cause::Invalid`] for one that does not count, [`Cause::Again`] while the device has no figures, or the driver's
    /// words.
    pub fn query(&self, rule: RuleId) -> Result<Usage, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let rule = held.open()?.rules.get_mut(&rule).ok_or_else(no_such_rule)?;
        rule.counter.ask(port, rule.handle)
    }

    /// Takes all rules away. When the driver refuses, rules may be left that nothing here knows any more.
    ///
    /// # Errors
    /// The driver's words.
    pub fn flush(&self) -> Result<(), FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        held.rules.clear();
        held::flush(port)
    }

    /// The rules there are, in the order in which they were made.
    pub fn rules(&self) -> Vec<RuleId> {
        let rules = |running: Arc<Running>| running.flow().rules.keys().copied().collect();
        self.running.upgrade().map(rules).unwrap_or_default()
    }

    /// Rules that ran out of their age, of their own or shared, since the last call.
    ///
    /// # Errors
    /// The driver's words.
    pub fn aged(&self) -> Result<Vec<RuleId>, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        let mut aged = Vec::new();
        for number in held::aged(port)? {
            // A rule may have gone since.
            if held.rules.contains_key(&RuleId(number)) {
                aged.push(RuleId(number));
            } else {
                let sharing = held.rules.iter().filter(|(_, rule)| rule.shares.contains(&SharedId(number)));
                aged.extend(sharing.map(|(id, _)| *id));
            }
        }
        Ok(aged)
    }

    /// Makes an action that rules of this direction can share: `count`, `age` or `meter`.
    ///
    /// # Errors
    /// The driver's refusal, in its words.
    pub fn share(&self, attr: Attr, action: Action) -> Result<SharedId, FlowError> {
        if !matches!(action, Action::Count | Action::Age { .. } | Action::Meter { .. }) {
            let message = format!("{} cannot be shared; count, age and meter can", action.name());
            return Err(FlowError::new(Cause::Invalid, Where::Action(0), message));
        }
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        let number = held::number();
        let lowered =
            Lowered::new(&FlowRule { attr, pattern: Vec::new(), actions: vec![action] }, number, &[])?;
        let conf = lowered.shared_conf();
        let handle = error::pointer(Some(&lowered), |error| {
            // SAFETY: a started port; an action that is alive during the call.
            unsafe {
                sys::rte_flow_action_handle_create(port, &raw const conf, lowered.actions().as_ptr(), error)
            }
        })?;
        held.shared.insert(SharedId(number), handle);
        Ok(SharedId(number))
    }

    /// What all rules that share a count have seen.
    ///
    /// # Errors
    /// [`Cause::Gone`] for an action that is not there, or the driver's words.
    pub fn query_shared(&self, id: SharedId) -> Result<Usage, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let handle = *held.open()?.shared.get(&id).ok_or_else(no_such_action)?;
        usage(|data, error| {
            // SAFETY: a shared action of this port; a place of the type that a count fills.
            unsafe { sys::rte_flow_action_handle_query(port, handle.as_ptr(), data, error) }
        })
    }

    /// Takes a shared action away. No rule may refer to it.
    ///
    /// # Errors
    /// [`Cause::Gone`] for an action that is not there, [`Cause::Again`] while a rule shares it, or the driver's words.
    pub fn unshare(&self, id: SharedId) -> Result<(), FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        let held = held.open()?;
        let handle = *held.shared.get(&id).ok_or_else(no_such_action)?;
        if held.rules.values().any(|rule| rule.shares.contains(&id)) {
            return Err(FlowError::new(
                Cause::Again,
                Where::Handle,
                "rules share this action: destroy them first",
            ));
        }
        // SAFETY: a shared action of this port that no rule refers to.
        error::check(None, |error| unsafe {
            sys::rte_flow_action_handle_destroy(port, handle.as_ptr(), error)
        })?;
        held.shared.remove(&id);
        Ok(())
    }

    /// Makes or changes the meter that `meter` actions with this number refer to; `None` removes it.
    ///
    /// # Errors
    /// [`Cause::Gone`] for removing a meter that is not there, or the driver's words.
    pub fn set_meter(&self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        let running = self.running()?;
        running.flow().open()?.meters.set(running.id().get(), mtr_id, meter)
    }

    /// The port that takes `transfer` rules for this one: itself, where the driver does not say.
    ///
    /// # Errors
    /// The driver's words.
    pub fn transfer_proxy(&self) -> Result<PortId, FlowError> {
        let running = self.running()?;
        let (port, mut held) = (running.id().get(), running.flow());
        held.open()?;
        pick_transfer_proxy(port).map(PortId::new)
    }
}

/// The port that takes `transfer` rules for this one, as the driver says.
pub(super) fn pick_transfer_proxy(port: u16) -> Result<u16, FlowError> {
    let mut proxy = 0;
    // SAFETY: a port that the caller holds, and a place for the answer.
    error::check(None, |error| unsafe { sys::rte_flow_pick_transfer_proxy(port, &raw mut proxy, error) })?;
    Ok(proxy)
}

fn no_such_rule() -> FlowError {
    FlowError::new(Cause::Gone, Where::Handle, "there is no such rule on this port")
}

fn no_such_action() -> FlowError {
    FlowError::new(Cause::Gone, Where::Handle, "there is no such shared action on this port")
}

/// What a rule with a count action has seen.
pub(super) fn usage_of(port: u16, rule: NonNull<sys::rte_flow>) -> Result<Usage, FlowError> {
    let count = sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_COUNT, conf: std::ptr::null() };
    // Drivers walk the list to its end.
    let actions = [count, END];
    usage(|data, error| {
        // SAFETY: a rule of this port; a list with an end; a place of the type that a count fills.
        unsafe { sys::rte_flow_query(port, rule.as_ptr(), actions.as_ptr(), data, error) }
    })
}

fn usage(
    query: impl FnOnce(*mut std::ffi::c_void, *mut sys::rte_flow_error) -> i32,
) -> Result<Usage, FlowError> {
    // SAFETY: integers and bit fields, for which zero is a value: count on, do not reset.
    let mut count: sys::rte_flow_query_count = unsafe { std::mem::zeroed() };
    error::check(None, |error| query((&raw mut count).cast(), error))?;
    if count.hits_set() == 0 {
        return Err(FlowError::new(Cause::Again, Where::Handle, "the device has counted no packets yet"));
    }
    Ok(Usage { packets: count.hits, bytes: if count.bytes_set() == 1 { count.bytes } else { 0 } })
}

/// The calls wait for the device: a rule is in force when `create` returns.
impl BackEnd for Flows {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        Self::validate(self, rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        let id = Self::create(self, rule)?;
        self.made.push(id);
        Ok(id)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        results.extend(self.made.drain(..).map(|id| (id, Ok(()))));
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        // The device may count on until the rule is gone.
        self.settle(rule, |port, rule| rule.counter.settle(port, rule.handle))
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        Self::query(self, rule)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        match Self::aged(self) {
            Ok(aged) => rules.extend(aged),
            Err(error) => tracing::debug!(%error, "aged rules cannot be told"),
        }
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        Self::flush(self)
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        Self::set_meter(self, mtr_id, meter)
    }

    /// Nothing to be had here: of the drivers, mlx5 alone tells, and with hardware steering only, which has queues.
    fn encap_source_port(&mut self, _: &InnerTuple) -> Result<u16, FlowError> {
        let message = "outer source ports are told to users of templates and queues only";
        Err(FlowError::new(Cause::Unsupported, Where::Unspecified, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_what_the_driver_says_of_it() {
        for (code, cause) in
            [(libc::EAGAIN, Cause::Again), (libc::ENOENT, Cause::Gone), (libc::ENOTSUP, Cause::Unsupported)]
        {
            assert_eq!(usage(|_, _| -code).unwrap_err().cause, cause);
        }
        // Nothing filled in: no figures yet.
        assert_eq!(usage(|_, _| 0).unwrap_err().cause, Cause::Again);
        let fill = |data: *mut std::ffi::c_void, _| {
            let count: *mut sys::rte_flow_query_count = data.cast();
            // SAFETY: the place that `usage` hands out, for this type.
            let count = unsafe { &mut *count };
            count.set_hits_set(1);
            (count.hits, count.bytes) = (7, 900);
            0
        };
        // Bytes that the driver did not say it has set are none.
        assert_eq!(usage(fill), Ok(Usage { packets: 7, bytes: 0 }));
    }
}
