//! Meters of a port: rte_mtr objects that `meter` actions refer to by number.
//!
//! A meter has a profile of its own (rates and bursts) and the policy that all share: what is done with each colour.
//! Every colour passes, so that later rules decide; a driver that wants red dropped gets that. Unconfirmed on hardware.

use std::collections::BTreeMap;

use dpdk_sys as sys;
use rules::{Action, Attr, Cause, FlowError, FlowRule, Meter, Where};

use super::error;
use super::lower::{END, Lowered};
use crate::error::Errno;
use crate::log;

/// The number of the policy; meters share one.
const POLICY: u32 = 1;

/// The meters of one port: each one's profile by the meter's number.
#[derive(Debug, Default)]
pub(super) struct Meters {
    profiles: BTreeMap<u32, u32>,
    last_profile: u32,
    has_policy: bool,
}

impl Meters {
    pub(super) fn set(&mut self, port: u16, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        match (meter, self.profiles.get(&mtr_id).copied()) {
            (Some(meter), Some(old)) => self.change(port, mtr_id, meter, old),
            (Some(meter), None) => self.make(port, mtr_id, meter),
            (None, Some(profile)) => self.remove(port, mtr_id, profile),
            (None, None) => {
                Err(FlowError::new(Cause::Gone, Where::Handle, format!("the port has no meter {mtr_id}")))
            }
        }
    }

    /// Removes all of them. What the driver will not give back is told and forgotten.
    pub(super) fn clear(&mut self, port: u16) {
        for (mtr_id, profile) in self.profiles.clone() {
            if let Err(error) = self.remove(port, mtr_id, profile) {
                tracing::warn!(port, mtr_id, %error, "a meter was left at stop");
            }
        }
        if std::mem::take(&mut self.has_policy) {
            // SAFETY: the port's policy, which no meter has any more.
            let gone = check(|error| unsafe { sys::rte_mtr_meter_policy_delete(port, POLICY, error) });
            if let Err(error) = gone {
                tracing::warn!(port, %error, "the meters' policy was left at stop");
            }
        }
    }

    fn make(&mut self, port: u16, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        self.policy(port)?;
        let profile = self.profile(port, meter)?;
        // SAFETY: integers and pointers, for which zero is a value.
        let mut params: sys::rte_mtr_params = unsafe { std::mem::zeroed() };
        params.meter_profile_id = profile;
        params.meter_policy_id = POLICY;
        params.meter_enable = 1;
        // Shared: many rules refer to one meter.
        // SAFETY: parameters that DPDK copies.
        let made = check(|error| unsafe { sys::rte_mtr_create(port, mtr_id, &raw mut params, 1, error) });
        if let Err(error) = made {
            delete_profile(port, profile);
            return Err(error);
        }
        self.profiles.insert(mtr_id, profile);
        Ok(())
    }

    fn change(&mut self, port: u16, mtr_id: u32, meter: Meter, old: u32) -> Result<(), FlowError> {
        let profile = self.profile(port, meter)?;
        // SAFETY: a meter and a profile of this port.
        let changed =
            check(|error| unsafe { sys::rte_mtr_meter_profile_update(port, mtr_id, profile, error) });
        if let Err(error) = changed {
            delete_profile(port, profile);
            return Err(error);
        }
        self.profiles.insert(mtr_id, profile);
        delete_profile(port, old);
        Ok(())
    }

    fn remove(&mut self, port: u16, mtr_id: u32, profile: u32) -> Result<(), FlowError> {
        // SAFETY: a meter of this port.
        check(|error| unsafe { sys::rte_mtr_destroy(port, mtr_id, error) })?;
        self.profiles.remove(&mtr_id);
        delete_profile(port, profile);
        Ok(())
    }

    fn profile(&mut self, port: u16, meter: Meter) -> Result<u32, FlowError> {
        let number = self.last_profile + 1;
        let mut profile = lower(meter);
        // SAFETY: a profile that DPDK copies.
        check(|error| unsafe { sys::rte_mtr_meter_profile_add(port, number, &raw mut profile, error) })?;
        self.last_profile = number;
        Ok(number)
    }

    fn policy(&mut self, port: u16) -> Result<(), FlowError> {
        if self.has_policy {
            return Ok(());
        }
        let passes = [END];
        let rule = FlowRule { attr: Attr::transfer(0, 0), pattern: Vec::new(), actions: vec![Action::Drop] };
        let drops = Lowered::new(&rule, 0, &[])?;
        let add = |red| {
            let mut policy =
                sys::rte_mtr_meter_policy_params { actions: [passes.as_ptr(), passes.as_ptr(), red] };
            // SAFETY: lists with an end, alive during the call.
            check(|error| unsafe { sys::rte_mtr_meter_policy_add(port, POLICY, &raw mut policy, error) })
        };
        if let Err(error) = add(passes.as_ptr()) {
            // The first refusal says more than the second.
            add(drops.actions().as_ptr()).map_err(|_| error)?;
            tracing::info!(port, "this port's meters drop what they colour red");
        }
        self.has_policy = true;
        Ok(())
    }
}

/// Without an excess rate: RFC 2697; with one: RFC 4115.
fn lower(meter: Meter) -> sys::rte_mtr_meter_profile {
    let Meter { cir, cbs, eir, ebs } = meter;
    // SAFETY: integers and a union of them, for which zero is a value.
    let mut profile: sys::rte_mtr_meter_profile = unsafe { std::mem::zeroed() };
    if eir == 0 {
        profile.alg = sys::RTE_MTR_SRTCM_RFC2697;
        profile.__bindgen_anon_1.srtcm_rfc2697 =
            sys::rte_mtr_meter_profile__bindgen_ty_1__bindgen_ty_1 { cir, cbs, ebs };
    } else {
        profile.alg = sys::RTE_MTR_TRTCM_RFC4115;
        profile.__bindgen_anon_1.trtcm_rfc4115 =
            sys::rte_mtr_meter_profile__bindgen_ty_1__bindgen_ty_3 { cir, eir, cbs, ebs };
    }
    profile
}

fn delete_profile(port: u16, profile: u32) {
    // SAFETY: a profile of this port that no meter has.
    let gone = check(|error| unsafe { sys::rte_mtr_meter_profile_delete(port, profile, error) });
    if let Err(error) = gone {
        tracing::debug!(port, profile, %error, "a meter profile was left behind");
    }
}

fn check(call: impl FnOnce(*mut sys::rte_mtr_error) -> i32) -> Result<(), FlowError> {
    let mut error = sys::rte_mtr_error {
        type_: sys::RTE_MTR_ERROR_TYPE_NONE,
        cause: std::ptr::null(),
        message: std::ptr::null(),
    };
    let (ret, words) = log::captured(|| call(&raw mut error));
    Errno::check(ret).map(|_| ()).map_err(|errno| {
        FlowError::new(error::cause(errno), Where::Unspecified, error::message(error.message, errno, words))
    })
}
