//! One session: its variables (RFC 5880 section 6.8.1), and what changes them.
//!
//! Intervals are in microseconds, as on the wire. Demand mode, echo and authentication are not used; a peer that uses demand
//! mode is obeyed (section 6.8.7), one that authenticates is not heard.

use std::time::{Duration, Instant};

use wire::bfd::{Control, Diagnostic, State};

/// While a session is not up it sends no faster than this (RFC 5880 section 6.8.3).
const SLOWLY: u32 = 1_000_000;

/// What the config says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The interval between packets that it would send.
    pub min_tx: Duration,
    /// The least interval between packets that it takes.
    pub min_rx: Duration,
    /// So many of its packets must be missing for the peer to take the session down; not 0.
    pub multiplier: u8,
}

/// What the last packet of the peer said (bfd.Remote...).
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: u32,
    /// It named the session's discriminator: it hears it.
    hears: bool,
    state: State,
    diagnostic: Diagnostic,
    min_tx: u32,
    min_rx: u32,
    multiplier: u8,
    demand: bool,
}

/// A poll sequence (section 6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    None,
    Running,
    /// Intervals changed while it was running: what ends it speaks of the old ones, and another one follows.
    Again,
}

/// A session.
#[derive(Clone, Debug)]
pub struct Session {
    timing: Timing,
    /// How much later than asked for a packet may be sent.
    granularity: Duration,
    discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    remote: Remote,
    /// bfd.DesiredMinTxInterval, and what is used of it: a longer one only when the peer knows of it.
    desired_min_tx: u32,
    tx_in_use: u32,
    /// bfd.RequiredMinRxInterval, and what is used of it: a shorter one only when the peer knows of it.
    required_min_rx: u32,
    rx_in_use: u32,
    poll: Poll,
    /// A poll of the peer is to be answered.
    owes_final: bool,
    /// The next packet says something that the last one did not.
    is_news: bool,
    /// When the next packet is sent at the latest; `None`: at once.
    next: Option<Instant>,
    /// When the peer was last heard, if that was within the detection time.
    heard: Option<Instant>,
    /// The session was up, and the path is not what it was.
    is_failed: bool,
    /// For jitter.
    dice: u64,
}

impl Session {
    /// A session that has not heard of its peer, with its discriminator, which is not 0. It is asked for packets every
    /// `granularity`.
    pub fn new(timing: Timing, discriminator: u32, granularity: Duration) -> Self {
        let (desired_min_tx, required_min_rx) = (SLOWLY.max(micros(timing.min_tx)), micros(timing.min_rx));
        Self {
            timing,
            granularity,
            discriminator,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote {
                discriminator: 0,
                hears: false,
                state: State::Down,
                diagnostic: Diagnostic::NONE,
                min_tx: 0,
                min_rx: 1,
                multiplier: 0,
                demand: false,
            },
            desired_min_tx,
            tx_in_use: desired_min_tx,
            required_min_rx,
            rx_in_use: required_min_rx,
            poll: Poll::None,
            owes_final: false,
            is_news: false,
            next: None,
            heard: None,
            is_failed: false,
            dice: u64::from(discriminator) << 32 | 0x9e37_79b9,
        }
    }

    /// Takes over what the config says now. What the peer must know first waits for it (section 6.8.3).
    pub fn configure(&mut self, timing: Timing, now: Instant) {
        self.timing = timing;
        self.apply_timing(now);
    }

    /// An administrator takes the session down for good: it says so and hears nothing any more (section 6.8.16).
    pub fn shut(&mut self, now: Instant) {
        if self.state != State::AdminDown {
            self.enter(State::AdminDown, Diagnostic::ADMINISTRATIVELY_DOWN, now);
            self.is_failed = false;
        }
    }

    /// True for a packet that need not be the peer's: it knows the addresses alone, and speaks for another session than the one that
    /// hears this one and was heard within the detection time. A peer that was started anew is believed after that time.
    pub fn is_doubtful(&self, control: &Control, now: Instant) -> bool {
        let is_live = || {
            let (Some(heard), Some(time)) = (self.heard, self.detection_time()) else { return false };
            now.saturating_duration_since(heard) < time
        };
        control.your_discriminator.get() == 0
            && control.my_discriminator.get() != self.remote.discriminator
            && self.remote.hears
            && matches!(self.state, State::Init | State::Up)
            && is_live()
    }

    /// Takes in a packet of the peer (section 6.8.6, from where the session is known).
    pub fn receive(&mut self, control: &Control, now: Instant) {
        let before = self.interval();
        self.remote = Remote {
            discriminator: control.my_discriminator.get(),
            hears: control.your_discriminator.get() == self.discriminator,
            state: control.state(),
            diagnostic: control.diagnostic(),
            min_tx: control.desired_min_tx.get(),
            min_rx: control.required_min_rx.get(),
            multiplier: control.detect_multiplier,
            demand: control.has(Control::DEMAND),
        };
        self.heard = Some(now);
        if control.has(Control::FINAL) {
            self.end_poll();
        }
        if self.state == State::AdminDown {
            return;
        }
        let signaled = Diagnostic::NEIGHBOUR_SIGNALED_DOWN;
        match (self.state, self.remote.state) {
            (State::Down, State::AdminDown) => self.is_failed = false,
            (_, State::AdminDown) => {
                self.enter(State::Down, signaled, now);
                // Somebody wants it so: that says nothing of the path (RFC 5882 section 3.2).
                self.is_failed = false;
            }
            (State::Down, State::Down) => self.enter(State::Init, self.diagnostic, now),
            (State::Down | State::Init, State::Init) | (State::Init, State::Up) => {
                self.enter(State::Up, Diagnostic::NONE, now);
                self.is_failed = false;
            }
            (State::Up, State::Down) => {
                self.enter(State::Down, signaled, now);
                self.is_failed = true;
            }
            (State::Down, State::Up)
            | (State::Init, State::Down)
            | (State::Up, State::Init | State::Up)
            | (State::AdminDown, _) => {}
        }
        self.owes_final |= control.has(Control::POLL);
        if self.interval() < before {
            self.next = self.next.map(|next| next.min(now + self.roll()));
        }
    }

    /// Takes in that time has passed: without a packet for the detection time the session goes down (section 6.8.4).
    pub fn expire(&mut self, now: Instant) {
        let (Some(heard), Some(time)) = (self.heard, self.detection_time()) else { return };
        if now.saturating_duration_since(heard) < time {
            return;
        }
        self.heard = None;
        self.remote.discriminator = 0;
        self.poll = Poll::None;
        (self.tx_in_use, self.rx_in_use) = (self.desired_min_tx, self.required_min_rx);
        if matches!(self.state, State::Init | State::Up) {
            self.is_failed |= self.state == State::Up;
            self.enter(State::Down, Diagnostic::DETECTION_TIME_EXPIRED, now);
        }
    }

    /// The packet to send now, if any; at most one.
    pub fn transmit(&mut self, now: Instant) -> Option<Control> {
        if std::mem::take(&mut self.owes_final) {
            self.is_news = false;
            return Some(self.control(Control::FINAL));
        }
        // One that waited for the next turn would be late.
        let is_due = self.is_news || self.next.is_none_or(|next| now + self.granularity > next);
        if self.is_silent() || !is_due {
            return None;
        }
        self.is_news = false;
        self.next = Some(now + self.roll());
        Some(self.control(if self.poll == Poll::None { 0 } else { Control::POLL }))
    }

    /// The session is known to have failed already, or not.
    pub fn begin_failed(&mut self, failed: bool) {
        self.is_failed = failed;
    }

    /// True from when the session went down by itself, or by the peer's word, until it is up again or the peer says that somebody
    /// wants it down. Never before it was up for the first time, unless it [began](Self::begin_failed) so.
    pub fn is_failed(&self) -> bool {
        self.is_failed
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Why it last went down; none while it is up.
    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// The peer's state as it last said, and why.
    pub fn remote_state(&self) -> (State, Diagnostic) {
        (self.remote.state, self.remote.diagnostic)
    }

    /// The number of the peer's session; 0 while it is not heard.
    pub fn remote_discriminator(&self) -> u32 {
        self.remote.discriminator
    }

    /// Between two packets to the peer, at most (section 6.8.2).
    pub fn interval(&self) -> Duration {
        Duration::from_micros(self.tx_in_use.max(self.remote.min_rx).into())
    }

    /// How soon the last packet is to be said again if the next one is late; nothing while packets are more than a sign of life, or
    /// nobody wants any.
    pub fn repeat_after(&self) -> Option<Duration> {
        let is_all_said = self.poll == Poll::None && !self.owes_final && !self.is_news;
        (is_all_said && self.is_up_at_both_ends() && !self.is_silent()).then(|| self.longest())
    }

    /// How long the peer may be silent (section 6.8.4); nothing before it was heard.
    pub fn detection_time(&self) -> Option<Duration> {
        let Remote { multiplier, min_tx, .. } = self.remote;
        let micros = u64::from(multiplier) * u64::from(self.rx_in_use.max(min_tx));
        (multiplier != 0).then(|| Duration::from_micros(micros))
    }

    fn enter(&mut self, state: State, diagnostic: Diagnostic, now: Instant) {
        self.is_news |= (self.state, self.diagnostic) != (state, diagnostic);
        (self.state, self.diagnostic) = (state, diagnostic);
        self.apply_timing(now);
    }

    /// Makes the intervals those of the state and the config. A change is made known by a poll sequence.
    fn apply_timing(&mut self, now: Instant) {
        let (before, is_up) = (self.interval(), self.state == State::Up);
        let least = if is_up { 0 } else { SLOWLY };
        let (tx, rx) = (micros(self.timing.min_tx).max(least), micros(self.timing.min_rx));
        if (tx, rx) == (self.desired_min_tx, self.required_min_rx) {
            return;
        }
        (self.desired_min_tx, self.required_min_rx) = (tx, rx);
        self.is_news = true;
        // Only a peer that is heard can end a poll.
        self.poll = match self.poll {
            Poll::None if self.remote.discriminator == 0 => Poll::None,
            Poll::None => Poll::Running,
            Poll::Running | Poll::Again => Poll::Again,
        };
        if !is_up || tx < self.tx_in_use || self.poll == Poll::None {
            self.tx_in_use = tx;
        }
        if !is_up || rx > self.rx_in_use || self.poll == Poll::None {
            self.rx_in_use = rx;
        }
        if self.interval() < before {
            self.next = self.next.map(|next| next.min(now + self.roll()));
        }
    }

    fn end_poll(&mut self) {
        match self.poll {
            Poll::None => {}
            Poll::Running => {
                self.poll = Poll::None;
                (self.tx_in_use, self.rx_in_use) = (self.desired_min_tx, self.required_min_rx);
            }
            Poll::Again => self.poll = Poll::Running,
        }
    }

    fn control(&self, flags: u8) -> Control {
        let mut control = Control::new(self.state, self.diagnostic);
        control.state_flags |= flags;
        control.detect_multiplier = self.timing.multiplier;
        control.my_discriminator.set(self.discriminator);
        control.your_discriminator.set(self.remote.discriminator);
        control.desired_min_tx.set(self.desired_min_tx);
        control.required_min_rx.set(self.required_min_rx);
        control
    }

    fn is_up_at_both_ends(&self) -> bool {
        self.state == State::Up && self.remote.state == State::Up
    }

    /// True while the peer takes no packets but answers (section 6.8.7).
    fn is_silent(&self) -> bool {
        let demanded = self.remote.demand && self.is_up_at_both_ends();
        self.remote.min_rx == 0 || demanded && self.poll == Poll::None
    }

    /// The longest wait for the next packet: an interval, or nine tenths of it where one late packet takes the session down
    /// (section 6.8.7).
    fn longest(&self) -> Duration {
        let interval = self.interval();
        if self.timing.multiplier == 1 { interval * 9 / 10 } else { interval }
    }

    /// How long to wait for the next packet: three quarters of the interval to the longest wait, so that sessions do not fall into
    /// step (section 6.8.7).
    fn roll(&mut self) -> Duration {
        let (interval, longest) = (self.interval(), self.longest());
        // What is due before the next turn is sent in this one.
        let shortest = (interval * 3 / 4 + self.granularity).min(longest);
        // Xorshift (Marsaglia 2003); what an onlooker could foresee of it is of no use to him.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let part = (self.dice >> 40) as u32;
        shortest + (longest - shortest).mul_f64(f64::from(part) / f64::from(1u32 << 24))
    }
}

/// A time in the packets' unit, as much of it as fits.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
