//! How much slow path each vNIC may use, how many copies it may flood and how many ICMP errors be told: rate limits per
//! source, so that a scanner or a storm starves only itself.
//!
//! The generic cell rate algorithm (ITU-T I.371): one word per source, no timer.

use crate::direction::Direction;
use crate::flow_key::Scope;
use crate::rows::Rows;

/// How far a source may run ahead of its rate, in time.
const TOLERANCE_NS: u64 = 50_000_000;

/// Between two requests of a vNIC to services, on one worker: 20 a second. A client that comes up makes some ten in a
/// second, and repeats each after seconds (RFC 2131 section 4.1, RFC 8415 section 15).
const SERVICE_INTERVAL_NS: u64 = 50_000_000;
/// How far a vNIC may run ahead of that: by ten requests.
const SERVICE_TOLERANCE_NS: u64 = 10 * SERVICE_INTERVAL_NS;

/// Rate limits of one worker, by vNIC and by VPC.
pub struct MissLimits {
    vnics: Rows<Due>,
    vpcs: Rows<Due>,
    /// About what a vNIC sends, and about what comes for it.
    errors: [Rows<Due>; 2],
    services: Rows<Due>,
    floods: Floods,
    interval_ns: u64,
}

impl MissLimits {
    /// Limits for that many vNICs and VPCs.
    pub fn new(vnics: usize, vpcs: usize) -> Self {
        Self {
            vnics: Rows::new(vnics, Due::default),
            vpcs: Rows::new(vpcs, Due::default),
            errors: [Rows::new(vnics, Due::default), Rows::new(vnics, Due::default)],
            services: Rows::new(vnics, Due::default),
            floods: Floods { vnics: Rows::new(vnics, Due::default), vpcs: Rows::new(vpcs, Due::default) },
            interval_ns: 0,
        }
    }

    /// Sets the rate of every source, in packets per second; 0: no limit.
    #[inline]
    pub fn set_rate(&mut self, per_second: u32) {
        self.interval_ns = interval_ns(per_second);
    }

    /// True when a source may use the slow path now; then it has used it.
    #[inline]
    pub fn admit(&mut self, scope: Scope, now_ns: u64) -> bool {
        let due = match scope {
            Scope::Vnic(index) => self.vnics.at_mut(index),
            Scope::Vpc(index) => self.vpcs.at_mut(index),
        };
        due.admit(self.interval_ns, now_ns)
    }

    /// True when a source may flood so many copies now, at so many a second (0: no limit); then it has.
    #[inline]
    pub fn admit_flood(&mut self, scope: Scope, copies: u32, per_second: u32, now_ns: u64) -> bool {
        let due = match scope {
            Scope::Vnic(index) => self.floods.vnics.at_mut(index),
            Scope::Vpc(index) => self.floods.vpcs.at_mut(index),
        };
        due.admit(interval_ns(per_second).saturating_mul(u64::from(copies)), now_ns)
    }

    /// True when one of so many ICMP errors a second (0: no limit) about what a vNIC sends, or about what comes for it, may be
    /// sent now; then it counts as sent. What others send it takes nothing from what the vNIC is told itself.
    #[inline]
    pub fn admit_error(&mut self, vnic: u32, direction: Direction, per_second: u32, now_ns: u64) -> bool {
        let [out, incoming] = &mut self.errors;
        let due = if direction == Direction::Out { out } else { incoming };
        due.at_mut(vnic).admit(interval_ns(per_second), now_ns)
    }

    /// True when a vNIC may ask a service now; then it has.
    #[inline]
    pub fn admit_service(&mut self, vnic: u32, now_ns: u64) -> bool {
        self.services.at_mut(vnic).admit_within(SERVICE_TOLERANCE_NS, SERVICE_INTERVAL_NS, now_ns)
    }
}

/// Limits of flooding, by vNIC and by VPC.
struct Floods {
    vnics: Rows<Due>,
    vpcs: Rows<Due>,
}

const fn interval_ns(per_second: u32) -> u64 {
    match per_second {
        0 => 0,
        rate => 1_000_000_000 / rate as u64,
    }
}

/// When what was used is paid for, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Due(u64);

impl Due {
    #[inline]
    fn admit(&mut self, cost_ns: u64, now_ns: u64) -> bool {
        self.admit_within(TOLERANCE_NS, cost_ns, now_ns)
    }

    #[inline]
    fn admit_within(&mut self, tolerance_ns: u64, cost_ns: u64, now_ns: u64) -> bool {
        let start = self.0.max(now_ns);
        if start - now_ns > tolerance_ns {
            return false;
        }
        self.0 = start.saturating_add(cost_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_its_rate_and_others_theirs() {
        let mut limits = MissLimits::new(2, 1);
        limits.set_rate(1000);
        let mut admitted = 0;
        // Ten seconds, ten attempts a millisecond.
        for step in 0..100_000u64 {
            admitted += u64::from(limits.admit(Scope::Vnic(0), 1_000_000_000 + step * 100_000));
        }
        assert!((10_000..=10_060).contains(&admitted), "{admitted}");
        assert!(limits.admit(Scope::Vnic(1), 11_000_000_000));
        limits.set_rate(0);
        assert!((0..1000).all(|_| limits.admit(Scope::Vpc(0), 5)));
    }

    #[test]
    fn services_hear_twenty_requests_a_second_and_ten_at_once() {
        let mut limits = MissLimits::new(2, 1);
        let at = |ms: u64| 1_000_000_000 + ms * 1_000_000;
        let at_once = (0..1000).filter(|_| limits.admit_service(0, at(0))).count();
        assert_eq!(at_once, 11);
        // A storm of ten a millisecond, for ten seconds.
        let then = (10..100_000).filter(|step| limits.admit_service(0, at(0) + step * 100_000)).count();
        assert!((195..=200).contains(&then), "{then}");
        assert!(limits.admit_service(1, at(10_000)), "others have limits of their own");
    }
}
