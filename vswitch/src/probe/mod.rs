//! Which packets pass on the way to another VTEP: the search for the largest one (RFC 1191, RFC 8201, RFC 8899 in spirit).
//!
//! Pure: time and what came back are arguments, packets are results. `switch/probing.rs` sends and hears.
//!
//! A small request tells a host that is not reached from a way on which large packets are lost. If the largest one does not pass, either a
//! router says what does, which is tried, or nobody says anything, and the size is searched: of each interval eight sizes at once.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The size of the small request, in bytes of IP: it passes wherever anything does.
pub const SMALL: u16 = 128;
/// A request is sent so many times before it counts as lost.
pub const TRIES: u32 = 3;
/// Between two of them: longer than the way to any VTEP and back, and several turns of control.
pub const WAIT: Duration = Duration::from_millis(250);
/// Sizes that are tried at once.
const AT_ONCE: u32 = 8;
/// Rounds of a search: far more than sizes of 16 bits need, also where routers name one MTU after another.
const MOST_ROUNDS: u32 = 24;

/// What was found out about a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Packets of the size that should pass do.
    All,
    /// Packets of up to so many bytes pass, and larger ones do not.
    Less {
        passes: u16,
        /// The MTU that was named, and who named it.
        named: Option<(u32, IpAddr)>,
    },
    /// Nothing came back.
    Nothing,
}

/// A size that is tried.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    size: u16,
    tries: u32,
    next: Instant,
    /// It passed, or somebody said that it does not.
    answered: bool,
}

/// The search on one way.
#[derive(Debug)]
pub struct Search {
    /// What should pass.
    wanted: u16,
    /// The largest size that passed; 0: none yet.
    passed: u16,
    /// The smallest size that did not.
    lost: u32,
    named: Option<(u32, IpAddr)>,
    round: Vec<Attempt>,
    rounds: u32,
    /// What is lost is tried once more before it is told, for a whole round may be lost by chance.
    confirming: bool,
    /// Size and time of requests, by their sequence numbers, until they are answered.
    sent: HashMap<u16, (u16, Instant)>,
    /// Answers to nothing that was asked, or given twice.
    pub stray: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// From the first request that came back until it did.
    pub round_trip: Option<Duration>,
    found: Option<Found>,
}

impl Search {
    /// A search for whether packets of `wanted` bytes pass.
    pub fn new(wanted: u16, now: Instant) -> Self {
        let mut search = Self {
            wanted: wanted.max(SMALL),
            passed: 0,
            lost: u32::from(wanted.max(SMALL)) + 1,
            named: None,
            round: Vec::new(),
            rounds: 0,
            confirming: false,
            sent: HashMap::new(),
            stray: 0,
            requests: 0,
            round_trip: None,
            found: None,
        };
        search.begin([SMALL, search.wanted], now);
        search
    }

    fn begin(&mut self, sizes: impl IntoIterator<Item = u16>, now: Instant) {
        let attempt = |size| Attempt { size, tries: 0, next: now, answered: false };
        self.round = sizes.into_iter().map(attempt).collect();
        self.round.dedup_by_key(|attempt| attempt.size);
        self.rounds += 1;
    }

    /// The size of a request that is due now; whoever asks sends it, and says so by [`sent`](Self::sent).
    pub fn due(&mut self, now: Instant) -> Option<u16> {
        if self.found.is_some() {
            return None;
        }
        if self
            .round
            .iter()
            .all(|attempt| attempt.answered || (attempt.tries == TRIES && attempt.next <= now))
        {
            self.conclude(now);
        }
        let due = |attempt: &&mut Attempt| !attempt.answered && attempt.tries < TRIES && attempt.next <= now;
        let attempt = self.round.iter_mut().find(due).filter(|_| self.found.is_none())?;
        attempt.tries += 1;
        attempt.next = now + WAIT;
        Some(attempt.size)
    }

    /// A request of this size was sent with this sequence number.
    pub fn sent(&mut self, sequence: u16, size: u16, now: Instant) {
        self.requests += 1;
        self.sent.insert(sequence, (size, now));
    }

    /// The answer to a request came, in an IP packet of so many bytes.
    pub fn replied(&mut self, sequence: u16, len: u16, now: Instant) {
        // One that was cut short shows nothing.
        let Some((size, at)) = self.sent.get(&sequence).copied().filter(|(size, _)| *size == len) else {
            self.stray += 1;
            return;
        };
        self.sent.remove(&sequence);
        self.round_trip.get_or_insert(now.saturating_duration_since(at));
        self.passed = self.passed.max(size);
        if u32::from(size) >= self.lost {
            // What was lost was lost by chance, and nothing is known of larger ones.
            self.lost = u32::from(self.wanted) + 1;
            self.confirming = false;
        }
        self.answer(|other| other <= size);
    }

    /// Somebody says that a request was too large for a link of this MTU; 0: of some MTU.
    pub fn too_big(&mut self, sequence: u16, mtu: u32, from: IpAddr) {
        // No link that anything could be sent over has an MTU below the small request's.
        let is_sound = |size: u16| mtu < u32::from(size) && (mtu == 0 || mtu >= u32::from(SMALL));
        let asked = self.sent.get(&sequence).map(|(size, _)| *size).filter(|size| is_sound(*size));
        let Some(size) = asked else {
            self.stray += 1;
            return;
        };
        // If the request comes back all the same, that counts for more.
        if size <= self.passed.max(SMALL) {
            return;
        }
        self.lost = self.lost.min(u32::from(size));
        if mtu != 0 && self.named.is_none_or(|(least, _)| mtu < least) {
            self.named = Some((mtu, from));
        }
        self.answer(|other| other >= size);
    }

    fn answer(&mut self, which: impl Fn(u16) -> bool) {
        self.round
            .iter_mut()
            .filter(|attempt| which(attempt.size))
            .for_each(|attempt| attempt.answered = true);
    }

    /// A round is over: what was not answered is lost.
    fn conclude(&mut self, now: Instant) {
        let lost = self.round.iter().map(|attempt| attempt.size).filter(|&size| size > self.passed).min();
        self.lost = self.lost.min(lost.map_or(self.lost, u32::from));
        if self.passed == 0 {
            match std::mem::replace(&mut self.confirming, true) {
                true => self.found = Some(Found::Nothing),
                false => self.begin([SMALL, self.wanted], now),
            }
            return;
        }
        if self.passed >= self.wanted {
            self.found = Some(Found::All);
            return;
        }
        let (low, high) = (u32::from(self.passed), self.lost);
        let named = self.named.map(|(mtu, _)| mtu);
        if named == Some(low) || high - low <= 1 || self.rounds >= MOST_ROUNDS {
            if high <= u32::from(self.wanted)
                && self.rounds < MOST_ROUNDS
                && !std::mem::replace(&mut self.confirming, true)
            {
                self.begin([high as u16], now);
                return;
            }
            // What was named is worth telling where it is what was found.
            let named = self.named.filter(|(mtu, _)| *mtu == low);
            self.found = Some(Found::Less { passes: self.passed, named });
            return;
        }
        match named.filter(|mtu| (low + 1..high).contains(mtu)) {
            Some(mtu) => self.begin([mtu as u16], now),
            None => {
                let between = high - low - 1;
                let many = between.min(AT_ONCE);
                // Spread evenly over what lies between; never the ends.
                self.begin((1..=many).map(|n| (low + n * (between + 1) / (many + 1)) as u16), now);
            }
        }
    }

    /// What was found out, when it was.
    pub fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }
}
