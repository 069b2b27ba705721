//! Ports that are opened ahead of the change that brings them.
//!
//! Whoever waits for the answer to a change wants to hear whether its port could be opened, and a port may take seconds for that.
//! Control does not wait with him: the change is tried, has its ports opened on their thread, and is given up for the moment with
//! [`SwitchError::NotYet`], before anything of it is in force. When its ports are open, or have failed, or have taken long enough, it
//! is carried out anew from its beginning, and then does not wait. Between the two, control serves everybody else, and what they
//! changed counts. All tries of one change are an attempt, and have its number.
//!
//! A port that must go before another can come goes at the first try: it is `down` until the change is carried out, or comes back when
//! that is refused or given up. Nobody else's port is touched, and nobody else waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::error::PortsError;
use super::opening::Ready;
use super::plug::{GRACE, Missing};
use super::ports::{WantedPort, wanted};
use super::{PortChanges, Switch, SwitchError};
use crate::config::Config;

/// An attempt that nobody asks for for so long is given up: whoever asked is gone.
const ABANDONED: Duration = Duration::from_secs(2);
/// What is said of a port that went for one that is not there yet.
const MAKES_ROOM: &str = "it makes room for what a change puts in its place";

/// What is to be done after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the change is carried out, or was refused.
    Answer,
    /// The answer is right when ports that went are closed, or have taken long enough for it.
    AnswerWhenClosed,
    /// The same again when [`Switch::is_ripe`] says so.
    TryAgain,
}

enum Progress {
    /// It is being opened.
    Asked(u64),
    Done(Result<Box<Ready>, PortsError>),
}

struct Attempt {
    since: Instant,
    /// When somebody last tried it, or asked whether to.
    asked: Instant,
    ports: BTreeMap<String, (WantedPort, Progress)>,
    /// The ports that went before those can come.
    room: BTreeSet<String>,
}

/// The attempts under way.
#[derive(Default)]
pub(super) struct Ahead {
    attempts: BTreeMap<u64, Attempt>,
    last: u64,
    /// The attempt that is being tried now.
    current: Option<u64>,
    /// It was not carried out.
    not_yet: bool,
    /// It let ports go, which are being closed.
    closes: bool,
    /// Ports that another process has open, too, and that are to come with the first change.
    beside: BTreeMap<String, Box<Ready>>,
}

impl Ahead {
    /// Takes a port that is open already.
    pub fn opened_beside(&mut self, name: &str, wanted: &WantedPort) -> Option<Box<Ready>> {
        let is_it = self.beside.get(name).is_some_and(|ready| ready.wanted == *wanted);
        if is_it { self.beside.remove(name) } else { None }
    }

    /// The ports that are open already.
    pub fn beside(&mut self) -> &mut BTreeMap<String, Box<Ready>> {
        &mut self.beside
    }

    /// True while changes need not wait.
    pub fn is_on(&self) -> bool {
        self.current.is_some()
    }

    /// Ports go with the change that is tried now; true when it need not wait for them.
    pub fn leaves_closing(&mut self) -> bool {
        self.closes |= self.is_on();
        self.is_on()
    }

    /// Takes in what came of opening a port, if it was asked for here.
    pub fn take_in(
        &mut self,
        ticket: u64,
        result: Result<Box<Ready>, PortsError>,
    ) -> Option<Result<Box<Ready>, PortsError>> {
        let ports = self.attempts.values_mut().flat_map(|attempt| attempt.ports.values_mut());
        let asked = |progress: &Progress| matches!(progress, Progress::Asked(asked) if *asked == ticket);
        match ports.map(|(_, progress)| progress).find(|progress| asked(progress)) {
            Some(progress) => {
                *progress = Progress::Done(result);
                None
            }
            None => Some(result),
        }
    }
}

impl Switch {
    /// A number for a new attempt.
    pub fn new_attempt(&mut self) -> u64 {
        self.ahead.last += 1;
        self.ahead.last
    }

    /// What changes until [`end_try`](Self::end_try) is a try of this attempt.
    pub fn begin_try(&mut self, attempt: u64) {
        (self.ahead.current, self.ahead.not_yet, self.ahead.closes) = (Some(attempt), false, false);
    }

    /// Ends a try.
    pub fn end_try(&mut self) -> Next {
        let Some(current) = self.ahead.current.take() else { return Next::Answer };
        if self.ahead.not_yet {
            return Next::TryAgain;
        }
        self.give_up_attempt(current);
        if self.ahead.closes && self.ports.is_busy() { Next::AnswerWhenClosed } else { Next::Answer }
    }

    /// True when an attempt is to be tried again. Whoever waits for it asks again and again: else it is given up.
    pub fn is_ripe(&mut self, attempt: u64) -> bool {
        let now = Instant::now();
        self.ahead.attempts.get_mut(&attempt).is_none_or(|attempt| {
            attempt.asked = now;
            !attempt.waits(now)
        })
    }

    /// True while somebody waits for the ports of a change.
    pub fn is_trying(&self) -> bool {
        !self.ahead.attempts.is_empty()
    }

    /// True while ports that went are being closed, or those that came are being opened.
    pub fn has_ports_under_way(&self) -> bool {
        self.ports.is_busy()
    }

    /// The ports of a change, opened ahead.
    ///
    /// # Errors
    /// [`SwitchError::NotYet`] while they are on their way; what came of one that does not come.
    pub(super) fn bring_in_ahead(
        &mut self,
        plan: &PortChanges,
        old: &Config,
        missing: Missing,
    ) -> Result<(), SwitchError> {
        let Some(number) = self.ahead.current else { return Ok(()) };
        let now = Instant::now();
        let mut attempt = self.ahead.attempts.remove(&number).unwrap_or_else(|| Attempt {
            since: now,
            asked: now,
            ports: BTreeMap::new(),
            room: BTreeSet::new(),
        });
        attempt.asked = now;
        if let Err(error) = self.make_room(&mut attempt, plan, old) {
            self.ahead.attempts.insert(number, attempt);
            return Err(error);
        }
        // What it wanted the last time, and wants no more.
        let (keep, rest) = std::mem::take(&mut attempt.ports).into_iter().partition(|(name, (wanted, _))| {
            plan.added.get(name).is_some_and(|now| wanted.is_device_of(now))
        });
        attempt.ports = keep;
        self.discard_ahead(rest);
        for (name, wanted) in &plan.added {
            if !attempt.ports.contains_key(name) {
                let ticket = self.ports.open_ahead(&self.eal, &self.pool, &self.mempool, name, wanted);
                attempt.ports.insert(name.clone(), (wanted.clone(), Progress::Asked(ticket)));
            }
        }
        if attempt.waits(now) {
            self.ahead.attempts.insert(number, attempt);
            self.ahead.not_yet = true;
            return Err(SwitchError::NotYet);
        }
        // Those that went are not wanted any more, or under their names come others.
        plan.first.iter().for_each(|name| self.ports.forget(name));
        self.ahead.closes |= !attempt.room.is_empty();
        let mut ports = attempt.ports.into_iter();
        while let Some((name, (wanted, progress))) = ports.next() {
            let taken = match progress {
                Progress::Asked(ticket) => {
                    self.ports.await_ahead(&name, &wanted, ticket);
                    Ok(())
                }
                Progress::Done(Ok(ready)) => self.place(*ready),
                Progress::Done(Err(error)) if missing.takes(&error) => {
                    self.port_down(&name, &wanted, &error.to_string(), now);
                    Ok(())
                }
                Progress::Done(Err(error)) => Err(error.into()),
            };
            if taken.is_err() {
                self.discard_ahead(ports.collect());
                return taken;
            }
        }
        Ok(())
    }

    /// Takes out what must go first, there or awaited: nobody opens it meanwhile.
    fn make_room(
        &mut self,
        attempt: &mut Attempt,
        plan: &PortChanges,
        old: &Config,
    ) -> Result<(), SwitchError> {
        let is_in = |name: &&String| !attempt.room.contains(*name) || self.ports.index(name).is_some();
        let goes: Vec<String> = plan.first.iter().filter(is_in).cloned().collect();
        if goes.is_empty() {
            return Ok(());
        }
        let have = wanted(old);
        attempt.room.extend(goes.iter().cloned());
        self.take_out(&goes, old)?;
        for (name, wanted) in goes.iter().filter_map(|name| have.get_key_value(name)) {
            self.ports.hold_out(name, wanted, MAKES_ROOM);
        }
        Ok(())
    }

    /// The ports that made room for what does not come are wanted again, unless they are not.
    fn take_back_room(&mut self, room: BTreeSet<String>) {
        if room.is_empty() {
            return;
        }
        let config = self.config.clone();
        let want = wanted(&config);
        for (name, wanted) in room.iter().filter_map(|name| want.get_key_value(name)) {
            let made_room = |absent: &super::ports::Absent| absent.reason.as_deref() == Some(MAKES_ROOM);
            let is_out = self.ports.absent().any(|(absent, state)| absent == name && made_room(state));
            if is_out {
                self.ports.forget(name);
                self.ports.request(&self.eal, &self.pool, &self.mempool, name, wanted);
            }
        }
    }

    fn discard_ahead(&mut self, ports: BTreeMap<String, (WantedPort, Progress)>) {
        for (_, progress) in ports.into_values() {
            match progress {
                Progress::Asked(ticket) => self.ports.cancel_ahead(ticket),
                Progress::Done(Ok(ready)) => self.ports.discard(*ready),
                Progress::Done(Err(_)) => {}
            }
        }
    }

    fn give_up_attempt(&mut self, attempt: u64) {
        if let Some(attempt) = self.ahead.attempts.remove(&attempt) {
            self.discard_ahead(attempt.ports);
            self.ahead.closes |= !attempt.room.is_empty();
            self.take_back_room(attempt.room);
        }
    }

    /// Gives up the attempts that nobody goes on with; `all` of them at the end.
    pub(super) fn tend_ahead(&mut self, now: Instant, all: bool) {
        let is_abandoned =
            |attempt: &Attempt| all || now.saturating_duration_since(attempt.asked) >= ABANDONED;
        let abandoned: Vec<u64> = self
            .ahead
            .attempts
            .iter()
            .filter(|(_, attempt)| is_abandoned(attempt))
            .map(|(number, _)| *number)
            .collect();
        abandoned.into_iter().for_each(|attempt| self.give_up_attempt(attempt));
        if all {
            self.discard_beside();
        }
    }

    /// Closes the ports that were opened ahead and that no change has brought.
    pub(super) fn discard_beside(&mut self) {
        for ready in std::mem::take(&mut self.ahead.beside).into_values() {
            self.ports.discard(*ready);
        }
    }
}

impl Attempt {
    /// True while a port is on its way that is likely to be there soon.
    fn waits(&self, now: Instant) -> bool {
        let soon = |(wanted, progress): &(WantedPort, Progress)| {
            matches!(progress, Progress::Asked(_)) && !crate::port::may_block(&wanted.spec)
        };
        now.saturating_duration_since(self.since) < GRACE && self.ports.values().any(soon)
    }
}
