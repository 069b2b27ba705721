//! What is asked of the device about a METER_MARK action that rules share: made, given other rates, given back.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use dpdk_sys as sys;
use rules::FlowError;

use super::super::error;

/// A meter that rules share.
pub(super) type Handle = NonNull<sys::rte_flow_action_handle>;

/// Where an operation goes, and what the device hands back with its answer.
#[derive(Clone, Copy)]
pub(super) struct To {
    pub(super) port: u16,
    pub(super) queue: u32,
    pub(super) attr: sys::rte_flow_op_attr,
    pub(super) tag: *mut c_void,
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
pub(super) fn make(to: To, profile: NonNull<sys::rte_flow_meter_profile>) -> Result<Handle, FlowError> {
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

/// Enqueues new rates, those of a profile, for a meter of which no operation is under way.
pub(super) fn change(
    to: To,
    handle: Handle,
    profile: NonNull<sys::rte_flow_meter_profile>,
) -> Result<(), FlowError> {
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

/// Enqueues the removal of a meter that no rule names any more and of which no operation is under way.
pub(super) fn remove(to: To, handle: Handle) -> Result<(), FlowError> {
    let To { port, queue, attr, tag } = to;
    let (attr, handle) = (&raw const attr, handle.as_ptr());
    error::check(None, |error| {
        // SAFETY: a queue and a meter of this port.
        unsafe { sys::rte_flow_async_action_handle_destroy(port, queue, attr, handle, tag, error) }
    })
    .map(|_| ())
}
