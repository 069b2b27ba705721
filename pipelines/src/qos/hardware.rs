//! What classes do in hardware, as the tree has it between two readings of a device's counters.
//!
//! ```text
//!   counters -- debit --> owed -- a part in every epoch --> buckets of class, vNIC, tenant, link
//!   rates of flows -- expect --> what the class wants, until the next reading
//! ```
//! Rates are divided every few milliseconds, counters are read ten times a second or less. So what a reading brings is
//! taken from the buckets over as long as hardware took for it: the division sees a class that sends, and nobody who shares a
//! ceiling with it has to wait until a tenth of a second is paid for in one piece. What flows in hardware are expected
//! to send until the next reading is kept for them: it is lent to nobody, and their meter is not set below it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zerocopy::FromZeros;

use super::bucket::{BitsPerSec, Stamp};
use super::token_cache::{Need, take};
use super::tree::{Leaf, Tree};

/// What a reading brings is taken over no more than this, and what came in more than this before it is forgiven, however old the reading
/// before is.
const OWED_MOST_NS: u64 = 1_000_000_000;

/// What a reading of a device's counters says of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareWork {
    /// Bytes as they are paid for.
    pub bytes: u64,
    /// Nanoseconds in which they came, until now.
    pub over_ns: u64,
    /// Nanoseconds between the reading before and this one: more than they should be where control had something else to do.
    pub unread_ns: u64,
}

impl HardwareWork {
    /// Bytes that are to be paid. Of a long time in which nobody read counters, the tokens are gone that would have paid for it, for
    /// buckets hold no more than a burst: what came in all but the last of it nobody has to send less for now.
    fn payable(&self) -> u64 {
        let forgiven_ns = self.unread_ns.saturating_sub(OWED_MOST_NS).min(self.over_ns);
        if forgiven_ns == 0 {
            return self.bytes;
        }
        let paid_ns = u128::from(self.over_ns - forgiven_ns);
        u64::try_from(u128::from(self.bytes) * paid_ns / u128::from(self.over_ns)).unwrap_or(self.bytes)
    }
}

/// What a class does in hardware. Control adds, the division takes.
#[derive(Debug, FromZeros)]
#[repr(C)]
pub(super) struct HardwareUse {
    /// Bytes that are not taken from the buckets yet, those of tunnels' headers that only the link's bucket pays for, and when the last
    /// of them will be.
    owed: AtomicU64,
    owed_by_link: AtomicU64,
    owed_until_ns: AtomicU64,
    /// Bits per second that its flows are expected to send, and until when.
    expected: AtomicU64,
    expected_until_ns: AtomicU64,
}

impl HardwareUse {
    /// Nothing owed, nothing expected.
    pub fn forget(&self) {
        let owed = [&self.owed, &self.owed_by_link, &self.owed_until_ns];
        let expected = [&self.expected, &self.expected_until_ns];
        owed.into_iter().chain(expected).for_each(|word| word.store(0, Relaxed));
    }
}

impl Tree {
    /// Debits a class for traffic that did not pass here (a NIC's counters). It is taken from the buckets by the division, in as much
    /// time as it came in, but no more than a second; of a class without a limit it is counted at once.
    pub fn debit(&self, leaf: Leaf, work: HardwareWork, now_ns: u64) {
        if !self.is_limited(leaf) {
            return take(self, leaf, Need { bytes: work.bytes, tunnel: 0 }, Stamp::from_ns(now_ns));
        }
        self.owe(leaf, &self.hardware(leaf).owed, work, now_ns);
    }

    /// Debits the link of a class for the headers of tunnels around such traffic, as [`debit`](Self::debit) does for the traffic.
    pub fn debit_link(&self, leaf: Leaf, headers: HardwareWork, now_ns: u64) {
        if !self.is_limited(leaf) {
            return take(self, leaf, Need { bytes: 0, tunnel: headers.bytes }, Stamp::from_ns(now_ns));
        }
        self.owe(leaf, &self.hardware(leaf).owed_by_link, headers, now_ns);
    }

    fn owe(&self, leaf: Leaf, owed: &AtomicU64, work: HardwareWork, now_ns: u64) {
        let until_ns = now_ns + work.over_ns.min(OWED_MOST_NS);
        self.hardware(leaf).owed_until_ns.fetch_max(until_ns, Relaxed);
        owed.fetch_add(work.payable(), Relaxed);
        self.has_hardware_until(leaf, until_ns);
    }

    /// Says what a class's flows in hardware are expected to send until then, bits per second; `u64::MAX`: as much as they
    /// may, for their meter holds them back. Its neighbours are not lent it.
    pub fn expect(&self, leaf: Leaf, rate: BitsPerSec, until_ns: u64) {
        if self.is_limited(leaf) {
            let hardware = self.hardware(leaf);
            hardware.expected.store(rate, Relaxed);
            hardware.expected_until_ns.store(until_ns, Relaxed);
            self.has_hardware_until(leaf, until_ns);
        }
    }

    fn has_hardware_until(&self, leaf: Leaf, until_ns: u64) {
        // At 0 there is none.
        self.node(self.leaf_node(leaf)).hardware_until_ns.fetch_max(until_ns.max(1), Relaxed);
        self.wake(leaf);
    }

    /// Takes what a class owes for hardware of the time since the division looked last; `true` while it has something there.
    pub(super) fn take_owed(&self, leaf: Leaf, since_ns: u64, now_ns: u64) -> bool {
        let until_ns = &self.node(self.leaf_node(leaf)).hardware_until_ns;
        let known_until_ns = until_ns.load(Relaxed);
        if known_until_ns == 0 {
            return false;
        }
        let hardware = self.hardware(leaf);
        let left_ns = hardware.owed_until_ns.load(Relaxed).saturating_sub(since_ns);
        let elapsed_ns = now_ns.saturating_sub(since_ns);
        let [bytes, tunnel] =
            [&hardware.owed, &hardware.owed_by_link].map(|owed| take_part(owed, elapsed_ns, left_ns));
        if bytes + tunnel > 0 {
            take(self, leaf, Need { bytes, tunnel }, Stamp::from_ns(now_ns));
        }
        let owed = hardware.owed.load(Relaxed) + hardware.owed_by_link.load(Relaxed);
        if now_ns >= known_until_ns && owed == 0 {
            // Control may have said more just now.
            return until_ns.compare_exchange(known_until_ns, 0, Relaxed, Relaxed).is_err();
        }
        true
    }

    /// What a class is expected to do in hardware, bits per second; infinite when it is held back there.
    pub(super) fn expected_in_hardware(&self, leaf: Leaf, now_ns: u64) -> f64 {
        if self.node(self.leaf_node(leaf)).hardware_until_ns.load(Relaxed) == 0 {
            return 0.0;
        }
        let hardware = self.hardware(leaf);
        match hardware.expected.load(Relaxed) {
            _ if now_ns >= hardware.expected_until_ns.load(Relaxed) => 0.0,
            u64::MAX => f64::INFINITY,
            rate => rate as f64,
        }
    }
}

/// Takes what of a debt that is paid until `left_ns` is due after `elapsed_ns`.
fn take_part(owed: &AtomicU64, elapsed_ns: u64, left_ns: u64) -> u64 {
    let all = owed.load(Relaxed);
    let part = if elapsed_ns >= left_ns {
        all
    } else {
        (u128::from(all) * u128::from(elapsed_ns) / u128::from(left_ns)) as u64
    };
    if part == 0 {
        return 0;
    }
    // A vNIC that is forgotten just now owes nothing any more.
    let less = |owed: u64| Some(owed.saturating_sub(part));
    owed.fetch_update(Relaxed, Relaxed, less).map_or(0, |before| part.min(before))
}
