//! A token bucket as one atomic: the time at which everything taken so far is paid for.
//!
//! The bucket of rate r and burst b holds `min(b, (now - due) * r)` tokens; taking n tokens moves `due` by n / r.
//! Nothing has to be refilled, and any number of workers may take. At another rate the same bytes are another time, so a limit
//! is changed together with its bucket ([`RateLimitCell::change`]). Times are in grains of 1/256 ns, so that a byte at 400 Gbit/s is five of them; they wrap after 834 days, and are therefore compared
//! by their difference only. What is due [`FARTHEST`] ahead or later was due before, and is paid for. So that a bucket which
//! nobody used for 834 days does not look like one in debt, control passes all of them now and then ([`TokenBucket::rest`]).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use zerocopy::FromZeros;

/// Grains in a nanosecond, as a shift.
const GRAIN_SHIFT: u32 = 8;
/// Costs are in 2^-12 grains a byte.
const COST_SHIFT: u32 = 12;

/// The most that a bucket may be in debt, in grains: nearly five hours.
const FARTHEST: i64 = 1 << 52;

/// What workers hold of a bucket is at most what comes in so many nanoseconds: less than the division of rates sees ...
const QUANTUM_NS: u64 = 128_000;
/// ... at most this part of its burst ...
const QUANTUM_PART: u64 = 8;
/// ... and at most so many bytes.
const QUANTUM_MOST: u128 = 512 << 10;

/// A time in grains, modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// From nanoseconds of the worker's clock.
    #[inline(always)]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns << GRAIN_SHIFT)
    }
}

/// Bits per second.
pub type BitsPerSec = u64;

/// What a byte costs at a rate, and how much may be saved up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Time that a byte takes, in 2^-12 grains of 1/256 ns; 0: no limit.
    cost: u64,
    /// Time that may be saved up, in grains of 1/256 ns.
    burst: u64,
}

impl RateLimit {
    /// No limit: bytes take no time.
    pub const FREE: Self = Self { cost: 0, burst: 0 };

    /// Of a rate (0: no limit) and a burst in bytes.
    pub fn new(rate: BitsPerSec, burst: u64) -> Self {
        if rate == 0 {
            return Self::FREE;
        }
        let per_second = 8_000_000_000u128 << (GRAIN_SHIFT + COST_SHIFT);
        let cost = u64::try_from(per_second / u128::from(rate)).unwrap_or(u64::MAX).max(1);
        // No more than a debt may be: both together stay far below what wraps.
        Self { cost, burst: grains(burst, cost).min(FARTHEST.cast_unsigned()) }
    }

    /// True without a limit.
    #[inline(always)]
    pub const fn is_free(self) -> bool {
        self.cost == 0
    }

    /// True when so many bytes are no more than may be saved up.
    #[inline(always)]
    pub const fn has_room_for(self, n: u64) -> bool {
        grains(n, self.cost) <= self.burst
    }

    /// How many bytes all workers together may hold of it: what the rate brings in [`QUANTUM_NS`], up to a part of the burst.
    /// 0: no limit, so nothing is held.
    pub fn quantum(self) -> u32 {
        if self.is_free() {
            return 0;
        }
        let comes_in = u128::from(self.rate()) * u128::from(QUANTUM_NS) / 8_000_000_000;
        comes_in.min(u128::from(self.burst() / QUANTUM_PART)).clamp(1, QUANTUM_MOST) as u32
    }

    /// The limit with the lower rate.
    pub fn slower(self, other: Self) -> Self {
        if other.cost > self.cost { other } else { self }
    }

    /// How long `n` bytes take, in nanoseconds.
    pub fn time_ns(self, n: u64) -> u64 {
        grains(n, self.cost) >> GRAIN_SHIFT
    }

    /// The rate in bits per second, as near as the cost of a byte tells it.
    pub fn rate(self) -> BitsPerSec {
        match self.cost {
            0 => 0,
            cost => ((8_000_000_000u128 << (GRAIN_SHIFT + COST_SHIFT)) / u128::from(cost)) as u64,
        }
    }

    /// The burst in bytes.
    pub fn burst(self) -> u64 {
        bytes(self.burst, self.cost)
    }
}

#[inline(always)]
const fn grains(bytes: u64, cost: u64) -> u64 {
    match bytes.checked_mul(cost) {
        Some(product) => product >> COST_SHIFT,
        None => {
            let product = (bytes as u128 * cost as u128) >> COST_SHIFT;
            let most = (u64::MAX >> 2) as u128;
            if product < most { product as u64 } else { most as u64 }
        }
    }
}

fn bytes(grains: u64, cost: u64) -> u64 {
    ((u128::from(grains) << COST_SHIFT) / u128::from(cost.max(1))) as u64
}

/// A limit that control changes while workers use it. The two words are not read as one: for the length of one
/// burst of packets a new rate may meet an old burst.
#[derive(Debug, Default, FromZeros)]
#[repr(C)]
pub struct RateLimitCell {
    cost: AtomicU64,
    burst: AtomicU64,
}

impl RateLimitCell {
    /// The limit now.
    #[inline(always)]
    pub fn get(&self) -> RateLimit {
        RateLimit { cost: self.cost.load(Acquire), burst: self.burst.load(Relaxed) }
    }

    /// Another limit from now on. What its bucket has saved up, or owes, stays the same in bytes; to no limit nothing is owed.
    /// A reader in between may see the rate of one and the burst of the other.
    ///
    /// Workers take meanwhile, and a price at the slower of two rates must not come into a bucket that is reckoned at the
    /// faster one: a packet would be owed for as long as thousands take. So the bucket is always turned while the faster
    /// rate is announced. At worst what a worker takes at that moment is too cheap.
    pub fn change(&self, bucket: &TokenBucket, to: RateLimit, now: Stamp) {
        let from = self.get();
        if from == to {
            return;
        }
        if to.cost > from.cost {
            bucket.turn(from, to, now);
            self.store(to);
        } else {
            self.store(to);
            bucket.turn(from, to, now);
        }
    }

    /// No limit from now on, and nothing owed.
    pub fn lift(&self, bucket: &TokenBucket) {
        self.change(bucket, RateLimit::FREE, Stamp::default());
        bucket.fill();
    }

    fn store(&self, limit: RateLimit) {
        self.burst.store(limit.burst, Relaxed);
        self.cost.store(limit.cost, Release);
    }
}

/// A bucket; its limit is kept beside it.
#[derive(Debug, Default, FromZeros)]
#[repr(transparent)]
pub struct TokenBucket {
    /// 0: full, whatever the time.
    due: AtomicU64,
}

impl TokenBucket {
    /// By how much the time at which all is paid for is ahead of now: at least the burst behind it.
    #[inline(always)]
    fn ahead(due: u64, limit: RateLimit, now: Stamp) -> i64 {
        let floor = -(limit.burst as i64);
        let ahead = due.wrapping_sub(now.0) as i64;
        if due == 0 || ahead > FARTHEST { floor } else { ahead.max(floor) }
    }

    /// How long until `n` tokens are there, in nanoseconds; 0: now. More than the burst are there when the bucket is
    /// full.
    #[inline(always)]
    pub fn wait(&self, n: u64, limit: RateLimit, now: Stamp) -> u64 {
        if limit.is_free() {
            return 0;
        }
        let ahead = Self::ahead(self.due.load(Relaxed), limit, now);
        let ready = ahead.saturating_add_unsigned(grains(n, limit.cost).min(limit.burst));
        ready.max(0).cast_unsigned().div_ceil(1 << GRAIN_SHIFT)
    }

    /// Takes `n` tokens, there or not, at the limit as it is now.
    #[inline(always)]
    pub fn take(&self, n: u64, limit: &RateLimitCell, now: Stamp) {
        let mut due = self.due.load(Acquire);
        loop {
            // Read after the bucket, so that it is no older than what the bucket is reckoned at: a bucket that is turned
            // meanwhile is another word, and is looked at again.
            let limit = limit.get();
            if limit.is_free() {
                return;
            }
            let price = grains(n, limit.cost);
            let ahead = Self::ahead(due, limit, now).saturating_add_unsigned(price).min(FARTHEST);
            let next = now.0.wrapping_add_signed(ahead).max(1);
            match self.due.compare_exchange_weak(due, next, Relaxed, Acquire) {
                Ok(_) => return,
                Err(changed) => due = changed,
            }
        }
    }

    /// Turns what is there, or owed, at one limit into as many bytes at another.
    fn turn(&self, from: RateLimit, to: RateLimit, now: Stamp) {
        if from.is_free() || to.is_free() {
            return self.fill();
        }
        let mut due = self.due.load(Relaxed);
        loop {
            let ahead = i128::from(Self::ahead(due, from, now)) * i128::from(to.cost) / i128::from(from.cost);
            let ahead = ahead.clamp(-i128::from(to.burst), i128::from(FARTHEST)) as i64;
            let next = now.0.wrapping_add_signed(ahead).max(1);
            // Another word in any case: whoever takes just now has to look again.
            let next = if next == due { next + 1 } else { next };
            match self.due.compare_exchange_weak(due, next, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(changed) => due = changed,
            }
        }
    }

    /// Fills it: as if nothing had ever been taken.
    pub fn fill(&self) {
        self.due.store(0, Relaxed);
    }

    /// Forgets the time at which it became full, if it is: a time that is not looked at for too long cannot be told from
    /// one that is to come. Whoever takes just now is right all the same.
    pub fn rest(&self, limit: RateLimit, now: Stamp) {
        let due = self.due.load(Relaxed);
        if due != 0 && Self::ahead(due, limit, now) <= -(limit.burst as i64) {
            let _ = self.due.compare_exchange(due, 0, Relaxed, Relaxed);
        }
    }

    /// Tokens now; negative: taken ahead of time.
    pub fn level(&self, limit: RateLimit, now: Stamp) -> i64 {
        if limit.is_free() {
            return 0;
        }
        let ahead = Self::ahead(self.due.load(Relaxed), limit, now);
        let tokens = bytes(ahead.unsigned_abs(), limit.cost).min(i64::MAX as u64) as i64;
        if ahead <= 0 { tokens } else { -tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A limit that stays.
    fn fixed(limit: RateLimit) -> RateLimitCell {
        let cell = RateLimitCell::default();
        cell.store(limit);
        cell
    }

    #[test]
    fn dhtb_rates_survive_the_way_through_a_pace() {
        for rate in [1_000, 64_000, 1_000_000, 10_000_000_000, 25_000_000_000, 400_000_000_000u64] {
            let limit = RateLimit::new(rate, 100_000);
            let error = (limit.rate() as f64 / rate as f64 - 1.0).abs();
            assert!(error < 1e-4, "{rate}: {}", limit.rate());
            assert!(limit.burst().abs_diff(100_000) < 100);
        }
        assert_eq!(RateLimit::new(0, 5), RateLimit::FREE);
    }

    /// The time at which grains wrap.
    const WRAP_NS: u64 = 1 << (64 - GRAIN_SHIFT);

    #[test]
    fn repair_dhtb_a_rate_holds_where_the_clock_wraps() {
        let limit = RateLimit::new(1_000_000_000, 100_000);
        for start in [WRAP_NS - 500_000_000, WRAP_NS - 1, WRAP_NS, 2 * WRAP_NS - 500_000_000] {
            let bucket = TokenBucket::default();
            let mut granted = 0;
            for step in 0..1_000_000 {
                let now = Stamp::from_ns(start + step * 1_000);
                if bucket.wait(1_000, limit, now) == 0 {
                    bucket.take(1_000, &fixed(limit), now);
                    granted += 1_000;
                }
                assert!(bucket.level(limit, now).abs() <= 100_000);
            }
            assert!(
                (125_000_000..=125_102_000).contains(&granted),
                "{granted} bytes in a second from {start}"
            );
        }
    }

    #[test]
    fn repair_dhtb_a_bucket_that_rests_is_full_whenever_it_is_used_again() {
        const DAY: u64 = 86_400_000_000_000;
        let limit = RateLimit::new(8_000_000, 10_000);
        for start in [1, DAY, WRAP_NS - DAY / 2, WRAP_NS - 1, WRAP_NS, WRAP_NS + 1] {
            let bucket = TokenBucket::default();
            bucket.take(10_000, &fixed(limit), Stamp::from_ns(start));
            // Passed once, before its time can be taken for one that is to come.
            bucket.rest(limit, Stamp::from_ns(start + DAY));
            for days in 1..2_000 {
                let now = Stamp::from_ns(start + days * DAY);
                assert_eq!(
                    bucket.level(limit, now),
                    TokenBucket::default().level(limit, now),
                    "{days} days after {start}"
                );
            }
            for before_wrap in [1, DAY / 24, 2 * DAY / 24, 4 * DAY / 24] {
                let now = Stamp::from_ns(start + WRAP_NS - before_wrap);
                assert_eq!(
                    bucket.wait(1_000, limit, now),
                    0,
                    "{before_wrap} ns before the clock has wrapped"
                );
            }
        }
        // A debt, or what is saved up but not full, stays.
        let (bucket, now) = (TokenBucket::default(), Stamp::from_ns(DAY));
        for taken in [5_000, 20_000] {
            bucket.take(taken, &fixed(limit), now);
            let level = bucket.level(limit, now);
            bucket.rest(limit, now);
            assert_eq!(bucket.level(limit, now), level);
        }
    }

    #[test]
    fn repair_dhtb_neither_debt_nor_rest_is_forgotten_over_a_wrap() {
        let (limit, bucket) = (RateLimit::new(8_000_000, 10_000), TokenBucket::default());
        let before = Stamp::from_ns(WRAP_NS - 1_000_000);
        bucket.take(1_010_000, &fixed(limit), before);
        assert_eq!(bucket.level(limit, before), -1_000_000);
        assert!(bucket.level(limit, Stamp::from_ns(WRAP_NS + 499_000_000)).abs_diff(-500_000) < 2);
        assert!(bucket.wait(1, limit, Stamp::from_ns(WRAP_NS + 499_000_000)).abs_diff(500_000_000) < 10_000);
        // Unused for a year, or two: full.
        for days in [1, 400, 500, 700, 833] {
            let later = Stamp::from_ns(WRAP_NS + days * 86_400_000_000_000);
            assert_eq!(
                (bucket.level(limit, later), bucket.wait(9_999, limit, later)),
                (10_000, 0),
                "{days} days"
            );
        }
        // A debt beyond all measure is the most there is, not none.
        bucket.take(u64::MAX >> 3, &fixed(limit), before);
        assert!(bucket.wait(1, limit, before) > 17_000_000_000_000);
        bucket.fill();
        assert_eq!(bucket.level(limit, before), 10_000);
    }

    #[test]
    fn dhtb_a_change_of_rate_leaves_the_bytes_as_they_are() {
        let (fast, slow) = (RateLimit::new(10_000_000_000, 100_000), RateLimit::new(1_000_000, 100_000));
        let now = Stamp::from_ns(5_000_000_000);
        for taken in [0, 1_000, 99_000, 101_000, 1_000_000, 100_000_000] {
            let (cell, bucket) = (fixed(slow), TokenBucket::default());
            bucket.take(taken, &cell, now);
            let level = 100_000 - taken as i64;
            for limit in [fast, slow, fast] {
                assert!(bucket.level(cell.get(), now).abs_diff(level) <= 1);
                cell.change(&bucket, limit, now);
            }
            assert!(bucket.level(fast, now).abs_diff(level) <= 1, "{} of {level}", bucket.level(fast, now));
            assert!(bucket.wait(1_000, fast, now) <= 80_000_000);
            // What there is no room for is lost; what is owed to no limit, too.
            cell.change(&bucket, RateLimit::new(1_000_000, 500), now);
            assert!(bucket.level(cell.get(), now) <= 500);
            cell.change(&bucket, RateLimit::FREE, now);
            cell.change(&bucket, slow, now);
            assert_eq!(bucket.level(slow, now), 100_000);
        }
    }

    /// However a raise falls between the steps of one that takes: nobody owes more than was taken.
    #[test]
    fn dhtb_nobody_pays_at_a_rate_that_is_gone() {
        const PACKET: u64 = 1_500;
        let (slow, fast) = (RateLimit::new(10_000_000, 10_000), RateLimit::new(10_000_000_000, 10_000));
        // Time stands still: nothing is refilled.
        let now = Stamp::from_ns(5_000_000_000);
        for _ in 0..200 {
            let (cell, bucket, ended) = (fixed(slow), TokenBucket::default(), AtomicU64::new(0));
            let takes = std::thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    let mut takes = 0;
                    while ended.load(Relaxed) == 0 {
                        bucket.take(PACKET, &cell, now);
                        takes += 1;
                    }
                    takes
                });
                std::thread::sleep(std::time::Duration::from_micros(200));
                cell.change(&bucket, fast, now);
                ended.store(1, Relaxed);
                worker.join().unwrap()
            });
            let (owed, taken) = (-bucket.level(fast, now), (takes * PACKET) as i64);
            assert!(owed <= taken, "{owed} of {taken}");
        }
    }

    proptest! {
        /// Whatever is asked whenever: what was granted by any time is at most burst plus rate times time (and one
        /// packet larger than the burst), and a greedy sender gets at least that less one packet.
        #[test]
        fn dhtb_a_bucket_grants_its_rate(
            rate in 1_000_000u64..100_000_000_000,
            burst in 2_000u64..500_000,
            asks in prop::collection::vec((0u64..50_000, 64u64..9_000), 1..400),
        ) {
            let (limit, bucket) = (RateLimit::new(rate, burst), TokenBucket::default());
            let (start, mut now, mut granted) = (1_000_000_000u64, 1_000_000_000u64, 0u64);
            // The largest packet that is larger than the burst: it goes in debt, which stays for a while.
            let mut over = 0;
            for (pause, n) in asks {
                now += pause;
                if bucket.wait(n, limit, Stamp::from_ns(now)) == 0 {
                    bucket.take(n, &fixed(limit), Stamp::from_ns(now));
                    granted += n;
                    over = over.max(if n > burst { n } else { 0 });
                }
                let fair = burst as f64 + (now - start) as f64 * rate as f64 / 8e9;
                prop_assert!(granted as f64 <= fair * 1.0002 + over as f64 + 2.0, "{} of {}", granted, fair);
            }
        }

        /// The announced wait is the wait.
        #[test]
        fn dhtb_waits_are_right(rate in 1_000_000u64..100_000_000_000, n in 64u64..9_000, taken in 0u64..100_000) {
            let (limit, bucket) = (RateLimit::new(rate, 10_000), TokenBucket::default());
            let now = 5_000_000_000;
            bucket.take(taken, &fixed(limit), Stamp::from_ns(now));
            let wait = bucket.wait(n, limit, Stamp::from_ns(now));
            prop_assert_eq!(bucket.wait(n, limit, Stamp::from_ns(now + wait)), 0);
            if wait > 2 {
                prop_assert!(bucket.wait(n, limit, Stamp::from_ns(now + wait - 2)) > 0);
            }
        }

        /// A clock that jumps back or forth gives nobody more than a burst.
        #[test]
        fn dhtb_time_jumps_give_nothing_away(jumps in prop::collection::vec(-1_000_000_000i64..1_000_000_000, 1..30)) {
            let (limit, bucket) = (RateLimit::new(1_000_000_000, 10_000), TokenBucket::default());
            let mut now = 100_000_000_000u64;
            for jump in jumps {
                now = now.saturating_add_signed(jump);
                let mut granted = 0;
                while bucket.wait(100, limit, Stamp::from_ns(now)) == 0 {
                    bucket.take(100, &fixed(limit), Stamp::from_ns(now));
                    granted += 100;
                }
                prop_assert!(granted <= 10_100, "{}", granted);
            }
        }
    }
}
