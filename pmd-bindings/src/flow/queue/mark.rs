//! Meters of hardware steering: METER_MARK actions that rules share by handle, made and changed through a flow queue.
//!
//! ```text
//!   set_meter -- profile written (meter.rs) -- handle made --> mlx5 copies the profile's rates into the meter
//!   meter mtr_id N, in a rule --------------- indirect action: the handle of N
//! ```
//! mlx5 reads the profile when a handle is made or changed, and never again, so the profile is written in the same step. It
//! is done through the queue: in 22.11 the calls without one give a meter that went to two others (the gate's test
//! `mlx5_gives_a_meter_out_twice_without_the_queue`).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::time::Instant;

use dpdk_sys as sys;
use rules::{Action, Cause, FlowError, FlowRule, Meter, Where};

use super::super::error;
use super::super::lower::Shared;
use super::super::meter::{Profiles, profile_of};
use super::{FlowQueue, NO_REASON, Operation, PATIENCE, later};

/// A handle that rules share.
type Handle = NonNull<sys::rte_flow_action_handle>;

/// A meter.
#[derive(Debug)]
struct Mark {
    handle: Handle,
    /// Profiles that the driver may still look at on its behalf.
    profiles: Vec<u32>,
}

/// The meters of a flow queue.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By the numbers that rules have.
    all: BTreeMap<u32, Mark>,
    /// Meters that are to go, and that rules name which the device does not let go.
    named: Vec<u32>,
    /// The number of the last operation, and whether it was done, once the device has said so.
    last: u64,
    answer: Option<bool>,
}

/// The meter that a rule names. One is the most: hardware takes no two.
pub(super) fn meter_of(rule: &FlowRule) -> Option<u32> {
    rule.actions.iter().find_map(|action| match action {
        Action::Meter { mtr_id } => Some(*mtr_id),
        _ => None,
    })
}

impl Marks {
    /// The handles in place of a rule's meters.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a meter that is not there.
    pub(super) fn shared(&self, rule: &FlowRule) -> Result<Vec<Shared>, FlowError> {
        let meters = (0..).zip(&rule.actions).filter_map(|(index, action)| match action {
            Action::Meter { mtr_id } => Some((index, *mtr_id)),
            _ => None,
        });
        meters
            .map(|(index, mtr_id)| {
                let mark =
                    self.all.get(&mtr_id).ok_or_else(|| no_such_meter(Where::Action(index), mtr_id))?;
                Ok((index, mark.handle.as_ptr()))
            })
            .collect()
    }

    /// The device has answered an operation. Answers that nobody waits for any more say nothing.
    pub(super) fn answered(&mut self, operation: u64, done: bool) {
        if operation == self.last {
            self.answer = Some(done);
        }
    }

    /// A meter that was to go stays after all.
    pub(super) fn keep(&mut self, mtr_id: u32) {
        self.named.retain(|other| *other != mtr_id);
    }

    /// Meters that are to go as soon as no rule names them.
    pub(super) fn take_named(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.named)
    }
}

impl FlowQueue {
    /// Makes a meter, or changes its rates. Rules that name it afterwards, and those that do already, are metered so.
    ///
    /// # Errors
    /// The driver's words. A meter that was to be changed may then have either rates.
    pub(super) fn make_or_change_meter(&mut self, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        match self.marks.all.get(&mtr_id).map(|mark| mark.handle) {
            Some(handle) => self.change_meter(mtr_id, handle, meter),
            None => self.make_meter(mtr_id, meter),
        }
    }

    fn make_meter(&mut self, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        let (handle, profile) = self.ask_meter(|to, profiles| {
            let number = profiles.write(to.port, meter)?;
            let made = profile_of(to.port, number).and_then(|profile| make(to, profile));
            made.map(|handle| (handle, number)).inspect_err(|_| profiles.discard(to.port, number))
        })?;
        self.marks.all.insert(mtr_id, Mark { handle, profiles: vec![profile] });
        let made = self.hear_meter();
        if made.as_ref().is_err_and(|error| error.cause != Cause::Again) {
            // Its handle is to be given back all the same.
            self.remove_meter(mtr_id).unwrap_or_else(|error| self.left(mtr_id, &error));
        }
        made
    }

    fn change_meter(&mut self, mtr_id: u32, handle: Handle, meter: Meter) -> Result<(), FlowError> {
        let mut written = None;
        let asked = self.ask_meter(|to, profiles| {
            if let Some(number) = written.take() {
                profiles.discard(to.port, number);
            }
            let number = profiles.write(to.port, meter)?;
            written = Some(number);
            change(to, handle, profile_of(to.port, number)?)
        });
        let changed = asked.and_then(|()| self.hear_meter());
        let Some(mark) = self.marks.all.get_mut(&mtr_id) else { return changed };
        // Refused or not, the driver may look at the new one; those before it are done with when it surely does.
        let before = if changed.is_ok() { std::mem::take(&mut mark.profiles) } else { Vec::new() };
        mark.profiles.extend(written);
        self.discard(&before);
        changed
    }

    /// Removes a meter, or has it stay until the rules are gone that the device does not let go.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a meter that is not there, or the driver's words: it is forgotten then, and left in the device.
    pub(super) fn remove_meter(&mut self, mtr_id: u32) -> Result<(), FlowError> {
        let names = |id| self.rules.get(id).is_some_and(|rule| rule.meter == Some(mtr_id));
        if self.stuck.iter().any(names) {
            self.marks.named.push(mtr_id);
            return Ok(());
        }
        let Some(mark) = self.marks.all.remove(&mtr_id) else {
            return Err(no_such_meter(Where::Handle, mtr_id));
        };
        self.ask_meter(|to, _| remove(to, mark.handle)).and_then(|()| self.hear_meter())?;
        self.discard(&mark.profiles);
        Ok(())
    }

    /// The queue goes: meters that nobody has removed go with it.
    pub(super) fn clear_meters(&mut self) {
        for mtr_id in self.marks.all.keys().copied().collect::<Vec<_>>() {
            // A device that does not answer is not asked for each.
            if self.outstanding == 0 {
                self.remove_meter(mtr_id).unwrap_or_else(|error| self.left(mtr_id, &error));
            }
        }
        if !self.marks.all.is_empty() {
            tracing::warn!(port = self.port(), meters = self.marks.all.len(), "meters were left");
        }
    }

    pub(super) fn left(&self, meter: u32, error: &FlowError) {
        tracing::warn!(port = self.port(), meter, %error, "a meter was left in the device");
    }

    fn discard(&self, profiles: &[u32]) {
        let (port, held) = (self.port(), self.held());
        profiles.iter().for_each(|number| held.meters.profiles.discard(port, *number));
    }

    /// Enqueues an operation of a meter as soon as there is room, and tries again what is refused for the moment.
    fn ask_meter<T>(
        &mut self,
        mut enqueue: impl FnMut(To, &mut Profiles) -> Result<T, FlowError>,
    ) -> Result<T, FlowError> {
        let began = Instant::now();
        self.marks.last += 1;
        self.marks.answer = None;
        loop {
            let mut refusal = FlowError::new(Cause::Again, Where::Unspecified, "the flow queue has no room");
            if self.has_room() {
                let tag = Operation::Meter(self.marks.last).tag();
                let to = To { port: self.port(), queue: self.queue.into(), attr: later(), tag };
                let asked = self.held().open().and_then(|held| enqueue(to, &mut held.meters.profiles));
                match asked {
                    Ok(value) => {
                        self.outstanding += 1;
                        return Ok(value);
                    }
                    Err(error) => refusal = error,
                }
            }
            if refusal.cause != Cause::Again || began.elapsed() > PATIENCE {
                return Err(refusal);
            }
            self.ring()?;
            self.pull()?;
        }
    }

    /// Waits for the answer to what was [asked](Self::ask_meter).
    fn hear_meter(&mut self) -> Result<(), FlowError> {
        let began = Instant::now();
        loop {
            self.ring()?;
            self.pull()?;
            match self.marks.answer {
                Some(true) => return Ok(()),
                Some(false) => {
                    return Err(FlowError::new(Cause::Other(libc::EIO), Where::Unspecified, NO_REASON));
                }
                None if began.elapsed() > PATIENCE => {
                    let message = "the device has not answered for a second about a meter";
                    return Err(FlowError::new(Cause::Again, Where::Unspecified, message));
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}

fn no_such_meter(at: Where, mtr_id: u32) -> FlowError {
    FlowError::new(Cause::Gone, at, format!("there is no meter {mtr_id}"))
}

/// Where an operation goes, and what the device hands back with its answer.
#[derive(Clone, Copy)]
struct To {
    port: u16,
    queue: u32,
    attr: sys::rte_flow_op_attr,
    tag: *mut c_void,
}

/// What a profile says to a meter: blind to earlier colours, switched on, without a policy, as later rules match the colour.
fn meter_mark(profile: NonNull<sys::rte_flow_meter_profile>) -> sys::rte_flow_action_meter_mark {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut meter: sys::rte_flow_action_meter_mark = unsafe { std::mem::zeroed() };
    meter.profile = profile.as_ptr();
    meter.state = 1;
    meter
}

/// Enqueues the making of a meter with the rates of a profile.
fn make(to: To, profile: NonNull<sys::rte_flow_meter_profile>) -> Result<Handle, FlowError> {
    // SAFETY: bit fields, for which zero is a value.
    let mut conf: sys::rte_flow_indir_action_conf = unsafe { std::mem::zeroed() };
    conf.set_transfer(1);
    let meter = meter_mark(profile);
    let action = sys::rte_flow_action {
        type_: sys::RTE_FLOW_ACTION_TYPE_METER_MARK,
        conf: ptr::from_ref(&meter).cast(),
    };
    let To { port, queue, attr, tag } = to;
    let (attr, conf, action) = (&raw const attr, &raw const conf, &raw const action);
    error::pointer(None, |error| {
        // SAFETY: a queue of this port; an action and a profile that are alive during the call.
        unsafe { sys::rte_flow_async_action_handle_create(port, queue, attr, conf, action, tag, error) }
    })
}

/// Enqueues new rates, those of a profile, for a meter.
fn change(to: To, handle: Handle, profile: NonNull<sys::rte_flow_meter_profile>) -> Result<(), FlowError> {
    // SAFETY: integers, pointers and bit fields, for which zero is a value.
    let mut update: sys::rte_flow_update_meter_mark = unsafe { std::mem::zeroed() };
    update.meter_mark = meter_mark(profile);
    update.set_profile_valid(1);
    let To { port, queue, attr, tag } = to;
    let (attr, update, handle) = (&raw const attr, (&raw const update).cast(), handle.as_ptr());
    error::check(None, |error| {
        // SAFETY: a queue and a meter of this port; the structure that an update of METER_MARK is.
        unsafe { sys::rte_flow_async_action_handle_update(port, queue, attr, handle, update, tag, error) }
    })
    .map(|_| ())
}

/// Enqueues the removal of a meter that no rule names any more.
fn remove(to: To, handle: Handle) -> Result<(), FlowError> {
    let To { port, queue, attr, tag } = to;
    let (attr, handle) = (&raw const attr, handle.as_ptr());
    error::check(None, |error| {
        // SAFETY: a queue and a meter of this port.
        unsafe { sys::rte_flow_async_action_handle_destroy(port, queue, attr, handle, tag, error) }
    })
    .map(|_| ())
}
