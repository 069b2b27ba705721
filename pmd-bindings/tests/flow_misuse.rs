//! What no application may do with the rules and meters of flow queues, done to the driver of our own (`testdev`,
//! net_eswitch): it says so and stays whole, so that the other tests see such faults of ours.

#![allow(unsafe_code, reason = "misuse that no safe call of pmd lets happen")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use common::eswitch::{Bed, count};
use common::stop;
use dpdk_sys as sys;
use pmd::StartedPort;

type Handle = *mut sys::rte_flow_action_handle;

/// Structures of integers, pointers and bit fields, for which zero is a value.
trait Plain: Sized {
    fn zero() -> Self {
        // SAFETY: see the trait.
        unsafe { zeroed() }
    }
}
impl Plain for sys::rte_mtr_meter_profile {}
impl Plain for sys::rte_mtr_error {}
impl Plain for sys::rte_flow_error {}
impl Plain for sys::rte_flow_action_meter_mark {}
impl Plain for sys::rte_flow_indir_action_conf {}
impl Plain for sys::rte_flow_update_meter_mark {}
impl Plain for sys::rte_flow_op_attr {}
impl Plain for sys::rte_flow_op_result {}
impl Plain for sys::rte_flow_attr {}
impl Plain for sys::rte_flow_item {}

/// The calls that make meters on flow queue 0 of a port, as they are.
struct Raw<'a>(&'a StartedPort);

impl Raw<'_> {
    fn id(&self) -> u16 {
        self.0.id().get()
    }

    fn add_profile(&self, number: u32) {
        let (mut profile, mut error) = (sys::rte_mtr_meter_profile::zero(), sys::rte_mtr_error::zero());
        profile.alg = sys::RTE_MTR_SRTCM_RFC2697;
        let (profile, error) = (&raw mut profile, &raw mut error);
        // SAFETY: a started port; a profile that is copied.
        let ret = unsafe { sys::rte_mtr_meter_profile_add(self.id(), number, profile, error) };
        assert_eq!(ret, 0);
    }

    fn delete_profile(&self, number: u32) -> i32 {
        let mut error = sys::rte_mtr_error::zero();
        // SAFETY: a started port, and a place for an error.
        unsafe { sys::rte_mtr_meter_profile_delete(self.id(), number, &raw mut error) }
    }

    fn mark(&self, profile: u32) -> sys::rte_flow_action_meter_mark {
        let (mut mark, mut error) = (sys::rte_flow_action_meter_mark::zero(), sys::rte_mtr_error::zero());
        // SAFETY: a started port, and a place for an error.
        mark.profile = unsafe { sys::rte_mtr_meter_profile_get(self.id(), profile, &raw mut error) };
        mark
    }

    fn make(&self, profile: u32) -> Handle {
        let mark = self.mark(profile);
        let action = sys::rte_flow_action {
            type_: sys::RTE_FLOW_ACTION_TYPE_METER_MARK,
            conf: (&raw const mark).cast(),
        };
        let (attr, mut conf) = (sys::rte_flow_op_attr::zero(), sys::rte_flow_indir_action_conf::zero());
        conf.set_transfer(1);
        let (port, tag, mut error) = (self.id(), null_mut(), sys::rte_flow_error::zero());
        let (attr, conf, error) = (&raw const attr, &raw const conf, &raw mut error);
        // SAFETY: a queue of a started port; an action and a profile that are alive.
        unsafe {
            sys::rte_flow_async_action_handle_create(port, 0, attr, conf, &raw const action, tag, error)
        }
    }

    fn change(&self, handle: Handle, mark: sys::rte_flow_action_meter_mark) -> i32 {
        let (attr, mut update) = (sys::rte_flow_op_attr::zero(), sys::rte_flow_update_meter_mark::zero());
        update.meter_mark = mark;
        update.set_profile_valid(1);
        let (port, tag, mut error) = (self.id(), null_mut(), sys::rte_flow_error::zero());
        let (attr, update, error) = (&raw const attr, (&raw const update).cast(), &raw mut error);
        // SAFETY: a queue of a started port; net_eswitch looks whether there is such a meter.
        unsafe { sys::rte_flow_async_action_handle_update(port, 0, attr, handle, update, tag, error) }
    }

    fn remove(&self, handle: Handle) -> i32 {
        let (attr, mut error) = (sys::rte_flow_op_attr::zero(), sys::rte_flow_error::zero());
        let (port, tag, attr, error) = (self.id(), null_mut(), &raw const attr, &raw mut error);
        // SAFETY: as above.
        unsafe { sys::rte_flow_async_action_handle_destroy(port, 0, attr, handle, tag, error) }
    }

    /// Whether a rule that names it would be taken without a queue.
    fn name(&self, handle: Handle) -> i32 {
        let action = |type_, conf| sys::rte_flow_action { type_, conf };
        let actions = [
            action(sys::RTE_FLOW_ACTION_TYPE_INDIRECT, handle.cast_const().cast()),
            action(sys::RTE_FLOW_ACTION_TYPE_DROP, null()),
            action(sys::RTE_FLOW_ACTION_TYPE_END, null()),
        ];
        // An item of type 0 ends the list.
        let (mut attr, end) = (sys::rte_flow_attr::zero(), sys::rte_flow_item::zero());
        attr.group = 1;
        attr.set_transfer(1);
        let (attr, mut error) = (&raw const attr, sys::rte_flow_error::zero());
        let (items, actions, error) = (&raw const end, actions.as_ptr(), &raw mut error);
        // SAFETY: a started port; lists with an end; net_eswitch looks whether there is such a meter.
        unsafe { sys::rte_flow_validate(self.id(), attr, items, actions, error) }
    }

    /// Waits for the answer to one operation, and says whether it was done.
    fn answer(&self) -> bool {
        let began = Instant::now();
        let (mut result, mut error) = (sys::rte_flow_op_result::zero(), sys::rte_flow_error::zero());
        loop {
            // SAFETY: a queue of a started port, and room for one result.
            let count = unsafe { sys::rte_flow_pull(self.id(), 0, &raw mut result, 1, &raw mut error) };
            if count != 0 {
                return count == 1 && result.status == sys::RTE_FLOW_OP_SUCCESS;
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }
}

/// Asserts that this was refused as a thing that is never done.
#[track_caller]
fn misused(port: &StartedPort, what: impl FnOnce() -> bool) {
    let before = count(port, "flow_misused");
    assert!(!what(), "it was done");
    assert_eq!(count(port, "flow_misused"), before + 1, "it was refused for another reason");
}

#[test]
fn a_meter_that_is_to_go_is_not_touched_any_more() {
    let bed = Bed::new();
    let (port, rx, tx) = bed.uplink("delay=200000", 8);
    let raw = Raw(&port);
    raw.add_profile(1);
    let handle = raw.make(1);
    misused(&port, || raw.name(handle) == 0);
    assert!(raw.answer());
    assert_eq!(raw.name(handle), 0);
    assert_eq!(raw.remove(handle), 0);
    misused(&port, || raw.change(handle, raw.mark(1)) == 0);
    misused(&port, || raw.remove(handle) == 0);
    misused(&port, || raw.name(handle) == 0);
    assert!(raw.answer());
    // Gone, it is not looked at.
    misused(&port, || raw.name(handle) == 0);
    misused(&port, || raw.change(handle, raw.mark(1)) == 0);
    assert_eq!(raw.delete_profile(1), 0);
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn a_profile_that_is_gone_gives_no_rates() {
    let bed = Bed::new();
    for driver in ["profiles=1", "profiles=0"] {
        let (port, rx, tx) = bed.uplink(driver, 8);
        let raw = Raw(&port);
        raw.add_profile(0);
        let handle = raw.make(0);
        assert!(raw.answer());
        let mark = raw.mark(0);
        if driver == "profiles=0" {
            // Not before its meter looks at another one.
            misused(&port, || raw.delete_profile(0) == 0);
            raw.add_profile(1);
            assert_eq!(raw.change(handle, raw.mark(1)), 0);
            assert!(raw.answer());
        }
        assert_eq!(raw.delete_profile(0), 0);
        misused(&port, || raw.change(handle, mark) == 0);
        stop(port, rx, tx).detach().unwrap();
    }
}

/// Operations that are under way when the port stops end there: what they were about is gone.
#[test]
fn nothing_is_left_under_way_when_the_port_stops() {
    let bed = Bed::new();
    let (port, rx, tx) = bed.uplink("delay=1500000", 8);
    let began = Instant::now();
    let raw = Raw(&port);
    raw.add_profile(1);
    assert!(!raw.make(1).is_null());
    assert_eq!(count(&port, "flow_meters"), 1);
    let (port, rx, tx) = bed.start(stop(port, rx, tx), 8);
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!((count(&port, "flow_meters"), count(&port, "flow_shared_actions")), (0, 0));
        std::thread::sleep(Duration::from_millis(100));
    }
    stop(port, rx, tx).detach().unwrap();
}
