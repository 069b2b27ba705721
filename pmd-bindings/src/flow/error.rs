//! DPDK's words for a refusal, made a [`FlowError`]: what it means, what it is about, and the message.
//!
//! A driver may point at the very item or action that it refuses; here the pointer becomes an index. It gives a message,
//! a line in DPDK's log, both or none: all of it is kept.

use std::ffi::{CStr, c_char};

use dpdk_sys as sys;
use rules::{Cause, FlowError, Where};

use super::lower::Lowered;
use crate::error::{Errno, Words};
use crate::log;

/// What a call may fill in.
pub(super) fn none() -> sys::rte_flow_error {
    sys::rte_flow_error {
        type_: sys::RTE_FLOW_ERROR_TYPE_NONE,
        cause: std::ptr::null(),
        message: std::ptr::null(),
    }
}

/// Calls a function of rte_flow that returns a negative errno; `lowered` is what it may point into.
pub(super) fn check(
    lowered: Option<&Lowered>,
    call: impl FnOnce(*mut sys::rte_flow_error) -> i32,
) -> Result<i32, FlowError> {
    let mut error = none();
    let (ret, words) = log::captured(|| call(&raw mut error));
    Errno::check(ret).map_err(|errno| describe(errno, &error, lowered, words))
}

/// Calls a function of rte_flow that returns a pointer, null for an error with the thread's errno.
pub(super) fn pointer<T>(
    lowered: Option<&Lowered>,
    call: impl FnOnce(*mut sys::rte_flow_error) -> *mut T,
) -> Result<std::ptr::NonNull<T>, FlowError> {
    let mut error = none();
    let ((ret, errno), words) = log::captured(|| (call(&raw mut error), Errno::last()));
    std::ptr::NonNull::new(ret).ok_or_else(|| describe(errno, &error, lowered, words))
}

fn describe(errno: Errno, error: &sys::rte_flow_error, lowered: Option<&Lowered>, words: Words) -> FlowError {
    FlowError {
        cause: cause(errno),
        at: place(error, lowered),
        message: message(error.message, errno, words),
    }
}

/// What an error number means to whoever asked. EIO does not say that the device is gone: drivers answer it where a command to the
/// firmware failed, and the rule that it was about may be in force still.
pub(super) fn cause(errno: Errno) -> Cause {
    match errno.code() {
        libc::ENOTSUP | libc::ENOSYS => Cause::Unsupported,
        libc::EINVAL => Cause::Invalid,
        libc::ENOSPC | libc::ENOMEM => Cause::Full,
        libc::EEXIST => Cause::Exists,
        libc::EAGAIN | libc::EBUSY => Cause::Again,
        libc::ENOENT => Cause::Gone,
        libc::ENODEV => Cause::NoDevice,
        other => Cause::Other(other),
    }
}

/// An error of a device that may have been removed: to all calls about one that was, rte_flow answers EIO.
pub(super) fn of_device(error: FlowError, is_removed: impl FnOnce() -> bool) -> FlowError {
    match error.cause {
        Cause::Other(libc::EIO) if is_removed() => FlowError { cause: Cause::NoDevice, ..error },
        _ => error,
    }
}

/// The driver's message, or what its errno says, and what it logged.
pub(super) fn message(text: *const c_char, errno: Errno, words: Words) -> String {
    if text.is_null() {
        return format!("{errno}{words}");
    }
    // SAFETY: not null, so the constant string of a driver, which stays while its device is there.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{}{words}", text.to_string_lossy())
}

fn place(error: &sys::rte_flow_error, lowered: Option<&Lowered>) -> Where {
    let item = || lowered.and_then(|lowered| lowered.item_at(error.cause));
    let action = || lowered.and_then(|lowered| lowered.action_at(error.cause));
    // Without a pointer into the rule, items and actions are known as a whole only.
    match error.type_ {
        sys::RTE_FLOW_ERROR_TYPE_HANDLE => Where::Handle,
        sys::RTE_FLOW_ERROR_TYPE_ATTR_GROUP => Where::AttrGroup,
        sys::RTE_FLOW_ERROR_TYPE_ATTR_PRIORITY => Where::AttrPriority,
        sys::RTE_FLOW_ERROR_TYPE_ATTR_INGRESS => Where::AttrIngress,
        sys::RTE_FLOW_ERROR_TYPE_ATTR_EGRESS => Where::AttrEgress,
        sys::RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER => Where::AttrTransfer,
        sys::RTE_FLOW_ERROR_TYPE_ATTR => Where::Attr,
        sys::RTE_FLOW_ERROR_TYPE_ITEM_NUM => Where::ItemNum,
        sys::RTE_FLOW_ERROR_TYPE_ITEM_SPEC => item().map_or(Where::ItemNum, Where::ItemSpec),
        sys::RTE_FLOW_ERROR_TYPE_ITEM_LAST => item().map_or(Where::ItemNum, Where::ItemLast),
        sys::RTE_FLOW_ERROR_TYPE_ITEM_MASK => item().map_or(Where::ItemNum, Where::ItemMask),
        sys::RTE_FLOW_ERROR_TYPE_ITEM => item().map_or(Where::ItemNum, Where::Item),
        sys::RTE_FLOW_ERROR_TYPE_ACTION_NUM => Where::ActionNum,
        sys::RTE_FLOW_ERROR_TYPE_ACTION_CONF => action().map_or(Where::ActionNum, Where::ActionConf),
        sys::RTE_FLOW_ERROR_TYPE_ACTION => action().map_or(Where::ActionNum, Where::Action),
        _ => Where::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{Action, Attr, FlowRule, Item, items};

    fn lowered() -> Lowered {
        let rule = FlowRule {
            attr: Attr::transfer(1, 0),
            pattern: vec![Item::any(items::ItemKind::Eth), Item::with(items::udp::DST, 4789u16)],
            actions: vec![Action::Count, Action::Jump { group: 2 }],
        };
        Lowered::new(&rule, 1, &[]).unwrap()
    }

    #[test]
    fn a_pointer_into_the_rule_becomes_an_index() {
        let lowered = lowered();
        let item = |index: usize| (&raw const lowered.items()[index]).cast();
        let action = |index: usize| (&raw const lowered.actions()[index]).cast();
        let cases = [
            (sys::RTE_FLOW_ERROR_TYPE_ITEM, item(0), Where::Item(0)),
            (sys::RTE_FLOW_ERROR_TYPE_ITEM, item(1), Where::Item(1)),
            (sys::RTE_FLOW_ERROR_TYPE_ITEM_SPEC, lowered.items()[1].spec, Where::ItemSpec(1)),
            (sys::RTE_FLOW_ERROR_TYPE_ITEM_MASK, lowered.items()[1].mask, Where::ItemMask(1)),
            (sys::RTE_FLOW_ERROR_TYPE_ACTION, action(1), Where::Action(1)),
            (sys::RTE_FLOW_ERROR_TYPE_ACTION_CONF, lowered.actions()[1].conf, Where::ActionConf(1)),
            // The end of the list, or no pointer: the list as a whole.
            (sys::RTE_FLOW_ERROR_TYPE_ITEM, item(2), Where::ItemNum),
            (sys::RTE_FLOW_ERROR_TYPE_ACTION, std::ptr::null(), Where::ActionNum),
            (sys::RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, std::ptr::null(), Where::AttrTransfer),
        ];
        for (type_, cause, expected) in cases {
            let refuse = |error: *mut sys::rte_flow_error| {
                // SAFETY: the place that `check` hands out.
                unsafe { *error = sys::rte_flow_error { type_, cause, message: c"no".as_ptr() } };
                -libc::ENOTSUP
            };
            let error = check(Some(&lowered), refuse).unwrap_err();
            assert_eq!(error, FlowError::new(Cause::Unsupported, expected, "no"));
        }
    }

    #[test]
    fn a_command_that_failed_is_no_device_that_is_gone() {
        let failed = || check(None, |_| -libc::EIO).unwrap_err();
        assert_eq!(of_device(failed(), || false).cause, Cause::Other(libc::EIO));
        assert_eq!(of_device(failed(), || true), FlowError { cause: Cause::NoDevice, ..failed() });
        let absent = check(None, |_| -libc::ENODEV).unwrap_err();
        assert_eq!(of_device(absent, || panic!("it has said so")).cause, Cause::NoDevice);
        let full = check(None, |_| -libc::ENOSPC).unwrap_err();
        assert_eq!(of_device(full, || true).cause, Cause::Full);
    }

    #[test]
    fn without_a_message_the_errno_speaks() {
        let error = check(None, |_| -libc::ENOSPC).unwrap_err();
        assert_eq!((error.cause, error.at), (Cause::Full, Where::Unspecified));
        assert!(error.message.starts_with("ENOSPC (28)"), "{error}");
        assert_eq!(check(None, |_| 3), Ok(3));
    }
}
