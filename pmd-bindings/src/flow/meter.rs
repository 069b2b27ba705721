//! Meters of a port: rte_mtr objects that `meter` actions refer to by number, and the profiles of all its meters.
//!
//! A meter has a profile of its own (rates and bursts) and the policy that all share: what is done with each colour.
//! Every colour passes, so that later rules decide; a driver that wants red dropped gets that. Unconfirmed on hardware.
//! Hardware steering has meters of another kind (mark.rs), which need profiles only.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;
use rules::{Action, Attr, Cause, FlowError, FlowRule, Meter, Where};

use super::error;
use super::lower::{END, Lowered};
use crate::error::{Errno, Words};
use crate::log;

/// The number of the policy; meters share one.
const POLICY: u32 = 1;

/// The number of the profile of a driver that has one for all meters.
const ONLY: u32 = 0;

/// The last number of a profile. None is used again, whichever port it is of: the driver may have kept it.
static LAST_PROFILE: AtomicU32 = AtomicU32::new(ONLY);

/// So many numbers are tried one after the other: another process, or DPDK's own console, may have taken some.
const TRIES: usize = 64;

/// The profiles of a port: rates and bursts, by number.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    /// Those of meters that were left in the device.
    left: Vec<u32>,
    /// Whether the driver has one only, number 0, as mlx5's hardware steering in 22.11; unknown before the first is made.
    /// It can be written again while there are meters that it was read for. Later releases have as many as wanted, which
    /// must stay as long as their meters.
    only_one: Option<bool>,
}

impl Profiles {
    /// A profile with a number that none had before.
    pub(super) fn add(&mut self, port: u16, meter: Meter) -> Result<u32, FlowError> {
        let try_one = || {
            let number = LAST_PROFILE.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            add_profile(port, number, meter).map(|()| number)
        };
        let taken =
            |added: &Result<u32, FlowError>| added.as_ref().is_err_and(|error| error.cause == Cause::Exists);
        let mut added = try_one();
        for _ in 1..TRIES {
            if !taken(&added) {
                break;
            }
            added = try_one();
        }
        added
    }

    /// A profile from which a meter is made, or changed, before the next one is written.
    pub(super) fn write(&mut self, port: u16, meter: Meter) -> Result<u32, FlowError> {
        let refusal = match self.only_one {
            Some(true) => None,
            known => match self.add(port, meter) {
                Ok(number) => {
                    self.only_one = Some(false);
                    return Ok(number);
                }
                // It may be the number that the driver does not take: then it takes the same rates as number 0.
                Err(error) if known.is_none() && error.cause == Cause::Invalid => Some(error),
                Err(error) => return Err(error),
            },
        };
        // One that is there is not written over; where there is none, that is refused and nothing follows. Of rates that it
        // refuses mlx5 keeps nothing (the gate's test `mlx5_keeps_nothing_of_a_profile_that_it_refuses`).
        let _ = delete(port, ONLY);
        match add_profile(port, ONLY, meter) {
            Ok(()) => {
                self.only_one = Some(true);
                Ok(ONLY)
            }
            Err(error) => Err(refusal.unwrap_or(error)),
        }
    }

    /// A profile is of no use any more.
    pub(super) fn discard(&self, port: u16, number: u32) {
        if number != ONLY {
            delete_profile(port, number);
        }
    }

    /// These are of meters that were left in the device, which may look at them until the port has stopped.
    pub(super) fn leave(&mut self, profiles: Vec<u32>) {
        self.left.extend(profiles);
    }

    /// The port has stopped, and the device has no meter of it any more.
    pub(super) fn stopped(&mut self, port: u16) {
        for number in std::mem::take(&mut self.left) {
            self.discard(port, number);
        }
    }

    /// No meter is left: the only profile goes, too.
    pub(super) fn clear(&mut self, port: u16) {
        if self.only_one == Some(true) {
            delete_profile(port, ONLY);
        }
    }
}

/// What the driver calls a profile.
pub(super) fn profile_of(port: u16, number: u32) -> Result<NonNull<sys::rte_flow_meter_profile>, FlowError> {
    let mut error = no_error();
    let ((got, errno), words) = log::captured(|| {
        // SAFETY: a port that the caller holds.
        (unsafe { sys::rte_mtr_meter_profile_get(port, number, &raw mut error) }, Errno::last())
    });
    NonNull::new(got).ok_or_else(|| describe(errno, &error, words))
}

/// The meters of one port: each one's profile by the meter's number.
#[derive(Debug, Default)]
pub(super) struct Meters {
    profile_of: BTreeMap<u32, u32>,
    pub(super) profiles: Profiles,
    has_policy: bool,
}

impl Meters {
    pub(super) fn set(&mut self, port: u16, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        match (meter, self.profile_of.get(&mtr_id).copied()) {
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
        for (mtr_id, profile) in self.profile_of.clone() {
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
        self.profiles.clear(port);
    }

    fn make(&mut self, port: u16, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        self.policy(port)?;
        let profile = self.profiles.add(port, meter)?;
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
        self.profile_of.insert(mtr_id, profile);
        Ok(())
    }

    fn change(&mut self, port: u16, mtr_id: u32, meter: Meter, old: u32) -> Result<(), FlowError> {
        let profile = self.profiles.add(port, meter)?;
        // SAFETY: a meter and a profile of this port.
        let changed =
            check(|error| unsafe { sys::rte_mtr_meter_profile_update(port, mtr_id, profile, error) });
        if let Err(error) = changed {
            delete_profile(port, profile);
            return Err(error);
        }
        self.profile_of.insert(mtr_id, profile);
        delete_profile(port, old);
        Ok(())
    }

    fn remove(&mut self, port: u16, mtr_id: u32, profile: u32) -> Result<(), FlowError> {
        // SAFETY: a meter of this port.
        check(|error| unsafe { sys::rte_mtr_destroy(port, mtr_id, error) })?;
        self.profile_of.remove(&mtr_id);
        delete_profile(port, profile);
        Ok(())
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

/// The burst as a mantissa of eight bits and a power of two, and no smaller: mlx5 has no others, and makes 0 of those whose
/// mantissa it would have to round up to nine bits (22.11; 65,535 bytes is one).
fn burst(bytes: u64) -> u64 {
    let bits = u64::BITS - bytes.leading_zeros();
    let low = (1 << bits.saturating_sub(8)) - 1;
    bytes.saturating_add(low) & !low
}

/// Without an excess rate: RFC 2697; with one: RFC 4115.
fn lower(meter: Meter) -> sys::rte_mtr_meter_profile {
    let Meter { cir, cbs, eir, ebs } = meter;
    let (cbs, ebs) = (burst(cbs), burst(ebs));
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

fn add_profile(port: u16, number: u32, meter: Meter) -> Result<(), FlowError> {
    let mut profile = lower(meter);
    // SAFETY: a profile that DPDK copies.
    check(|error| unsafe { sys::rte_mtr_meter_profile_add(port, number, &raw mut profile, error) })
}

fn delete(port: u16, profile: u32) -> Result<(), FlowError> {
    // SAFETY: a profile of this port that no meter has, or that the driver reads for no meter again.
    check(|error| unsafe { sys::rte_mtr_meter_profile_delete(port, profile, error) })
}

fn delete_profile(port: u16, profile: u32) {
    if let Err(error) = delete(port, profile) {
        tracing::debug!(port, profile, %error, "a meter profile was left behind");
    }
}

fn no_error() -> sys::rte_mtr_error {
    sys::rte_mtr_error {
        type_: sys::RTE_MTR_ERROR_TYPE_NONE,
        cause: std::ptr::null(),
        message: std::ptr::null(),
    }
}

fn describe(errno: Errno, error: &sys::rte_mtr_error, words: Words) -> FlowError {
    FlowError::new(error::cause(errno), Where::Unspecified, error::message(error.message, errno, words))
}

fn check(call: impl FnOnce(*mut sys::rte_mtr_error) -> i32) -> Result<(), FlowError> {
    let mut error = no_error();
    let (ret, words) = log::captured(|| call(&raw mut error));
    Errno::check(ret).map(|_| ()).map_err(|errno| describe(errno, &error, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_such_that_no_mantissa_is_rounded_up() {
        for bytes in (0..70_000).chain([1 << 40, (1 << 40) - 1, u64::MAX / 3]) {
            let rounded = burst(bytes);
            let mantissa = rounded.checked_shr(rounded.trailing_zeros()).unwrap_or(0);
            assert!(
                rounded >= bytes && rounded - bytes <= bytes / 128 && mantissa < 256,
                "{bytes}: {rounded}"
            );
        }
        assert_eq!([65_535, 65_536, 65_537, 255, 257].map(burst), [65_536, 65_536, 66_048, 255, 258]);
    }
}
