//! Ports come and go: the order in which that happens, so that no packet ever meets a port of somebody else.
//!
//! Workers adopt a snapshot one after another, and until the last one has, the old one counts. So a port leaves in three
//! steps: a snapshot without it is published, every worker has it, and only then its queues are taken back and its device
//! is closed. A port comes in three, too: it is opened and gets an index that no snapshot in use leads to, a snapshot with
//! it is published, and then it is polled. A port that changes its device does both, one after the other.
//!
//! Opening and closing happen on a thread of their own. A change waits for them a little, so that whoever asked hears of a
//! fault at once: outside of control where it is asked for by a client (`ahead`), also where a port must go before another can
//! come; else here, where everything but requests goes on meanwhile: a start, and the end of a change that nobody waits for. What takes
//! longer is `pending` and comes when it is there. A port that is not there is `down`, and tried again for as long as the config wants
//! it.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use pipelines::snapshot::PortIndex;
use serde_json::json;

use super::error::PortsError;
use super::offload::SourcePorts;
use super::opening::{JobResult, Ready};
use super::ports::{WantedPort, wanted};
use super::{Switch, SwitchError};
use crate::config::validate::resources;
use crate::config::{Config, MAX_PORTS, Relocation};
use crate::topology::Extent;

/// How long a change waits for ports that are likely to come or go soon.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// How long the start does.
const START_GRACE: Duration = Duration::from_secs(10);
/// Between two looks for interfaces that were deleted or changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What is said of a port that is to come back and has not gone yet.
const STILL_OUT: &str = "a worker that does not answer has not given its queues back";
/// Between two turns while a change waits.
pub(super) const TURN: Duration = Duration::from_millis(2);

/// What becomes of a change when a port that it adds cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The change is refused: somebody who waits for the answer asked for this port.
    Refused,
    /// A port whose interface, folder or peer is not there is `down` and tried again; other faults refuse the change.
    Awaited,
    /// As [`Tolerated`](Self::Tolerated), and nobody waits for it: whoever asked looks for its state.
    Later,
    /// A port is `down` and tried again, whatever it is: a start goes on with what there is.
    Tolerated,
}

impl Missing {
    /// How long a change waits for ports that come or go.
    fn grace(self) -> Duration {
        if self == Self::Later { Duration::ZERO } else { GRACE }
    }

    pub(super) fn takes(self, error: &PortsError) -> bool {
        match self {
            Self::Refused => false,
            Self::Awaited => error.is_absence(),
            Self::Later | Self::Tolerated => true,
        }
    }
}

/// The ports of a change, in the order of the steps.
pub struct PortChanges {
    /// Those that come, and those that change their device.
    pub added: BTreeMap<String, WantedPort>,
    /// Those that go before others can come.
    pub first: Vec<String>,
    /// Those that go when the others have come.
    pub last: Vec<String>,
}

impl PortChanges {
    /// The ports of the change from `old` to `new`; one that gets another MTU is made anew.
    pub fn new(old: &Config, new: &Config) -> Self {
        Self::between(&wanted(old), &wanted(new), &BTreeMap::new())
    }

    /// The ports of the change from `have` to `want`; those that are `resized` stay, unless more than their MTU differs.
    pub fn between(
        have: &BTreeMap<String, WantedPort>,
        want: &BTreeMap<String, WantedPort>,
        resized: &BTreeMap<String, WantedPort>,
    ) -> Self {
        let stays = |name: &String, new: &WantedPort, old| {
            new.is_device_of(old) || resized.contains_key(name) && new.is_but_for_mtu(old)
        };
        let differs =
            |(name, new): &(&String, &WantedPort)| !have.get(*name).is_some_and(|old| stays(name, new, old));
        let added: BTreeMap<String, WantedPort> =
            want.iter().filter(differs).map(|(name, spec)| (name.clone(), spec.clone())).collect();
        // DPDK's ports may not be enough for both at once.
        let ethdevs: usize = have.values().chain(added.values()).map(|port| port.spec.ethdevs()).sum();
        let crowded = ethdevs > pmd::port::limit() || have.len() + added.len() > MAX_PORTS;
        let taken: HashSet<String> = added.values().flat_map(|port| resources(&port.spec)).collect();
        // What changes its device, or leaves it to a port of another name, or to a bond, must go before that can come.
        let makes_room = |name: &String, old: &WantedPort| match want.get(name) {
            Some(_) => added.contains_key(name),
            None => crowded || !resources(&old.spec).is_disjoint(&taken),
        };
        let (first, rest): (Vec<_>, Vec<_>) = have.iter().partition(|(name, old)| makes_room(name, old));
        let first = first.into_iter().map(|(name, _)| name.clone()).collect();
        let gone = rest.into_iter().filter(|(name, _)| !want.contains_key(*name));
        Self { added, first, last: gone.map(|(name, _)| name.clone()).collect() }
    }

    /// Names of the ports that go, and under whose names none comes.
    pub fn gone(&self) -> impl Iterator<Item = &str> {
        let all = self.first.iter().chain(&self.last);
        all.filter(|name| !self.added.contains_key(*name)).map(String::as_str)
    }
}

impl Switch {
    /// Refuses a change that takes out a port while others stay whose rules it takes: it stops last.
    pub(super) fn refuse_headless(
        &self,
        plan: &PortChanges,
        have: &BTreeMap<String, WantedPort>,
    ) -> Result<(), SwitchError> {
        let goes = |name: &String| plan.first.contains(name) || plan.last.contains(name);
        for name in plan.first.iter().chain(&plan.last) {
            if let Some(other) = self.ports.followers(name).into_iter().find(|other| !goes(other)) {
                let by = format!("port {other}, whose rules it takes as the NIC's transfer proxy");
                let path = have.get(name).map(|port| port.of.object(name)).unwrap_or_default();
                return Err(SwitchError::InUse { what: "port", name: name.clone(), by, path });
            }
        }
        Ok(())
    }

    /// The first half of a change: makes room, and opens what comes.
    pub(super) fn bring_in(
        &mut self,
        plan: &PortChanges,
        old: &Config,
        missing: Missing,
    ) -> Result<(), SwitchError> {
        let waits_here = missing == Missing::Later || missing == Missing::Tolerated;
        if self.ahead.is_on() && !waits_here {
            self.bring_in_ahead(plan, old, missing)?;
            plan.last.iter().for_each(|name| self.ports.leave(name, true));
            return Ok(());
        }
        self.take_out(&plan.first, old)?;
        for (name, wanted) in &plan.added {
            match self.ahead.opened_beside(name, wanted) {
                Some(ready) => self.place(*ready)?,
                None => self.ports.request(&self.eal, &self.pool, &self.mempool, name, wanted),
            }
        }
        let grace = if missing == Missing::Tolerated { START_GRACE } else { missing.grace() };
        if !plan.added.is_empty() {
            // What becomes of ports that others asked for is nothing to this change.
            self.await_ports(grace, &|name| match plan.added.contains_key(name) {
                true => missing,
                false => Missing::Tolerated,
            })?;
        }
        plan.last.iter().for_each(|name| self.ports.leave(name, true));
        Ok(())
    }

    /// The second half, when every worker has the new snapshot: polls what came, and lets go what went. The change is in force, so what
    /// a worker does not do of it holds nothing up: [`tend_ports`](Self::tend_ports) goes on with it.
    pub(super) fn carry_out(&mut self, plan: &PortChanges, missing: Missing) {
        let polled = self.poll_fresh();
        let gone = plan.last.iter().map(|name| self.let_go(name)).fold(polled, Result::and);
        self.ports.remove_taps();
        let is_left_alone = plan.added.is_empty() && plan.first.is_empty() && plan.last.is_empty();
        let waited = match self.ahead.leaves_closing() || is_left_alone {
            true => Ok(()),
            false => self.await_ports(missing.grace(), &|_| Missing::Tolerated),
        };
        if let Err(error) = gone.and(waited) {
            tracing::warn!(%error, "a change is in force, and not all of its ports have come or gone yet");
        }
    }

    /// After a change that failed: the ports of before, also where a worker does not answer. What of it can be done is done, whatever
    /// else fails. `old` is whole.
    ///
    /// # Errors
    /// The first that failed; then [`tend_ports`](Self::tend_ports) goes on with what is left.
    pub(super) fn bring_back(&mut self, plan: &PortChanges, old: &Config) -> Result<(), SwitchError> {
        plan.last.iter().for_each(|name| self.ports.leave(name, false));
        let mut result = Ok(());
        for (name, wanted) in &plan.added {
            // Under the name of one that was to be replaced, and has not gone, is still that one.
            match self.ports.is_as_wanted(name, wanted) {
                true => result = result.and(self.let_go(name)),
                false => self.ports.forget(name),
            }
        }
        let have = wanted(old);
        let mut gone = false;
        for (name, wanted) in plan.first.iter().filter_map(|name| have.get_key_value(name)) {
            if self.ports.is_departing(name) {
                self.port_down(name, wanted, STILL_OUT, Instant::now());
            } else if self.ports.index(name).is_none() {
                self.ports.request(&self.eal, &self.pool, &self.mempool, name, wanted);
                gone = true;
            }
            self.ports.leave(name, false);
        }
        // Those that come back are taken in when they are there, where whoever asked is answered then.
        if gone && !self.ahead.leaves_closing() {
            result = result.and(self.await_ports(GRACE, &|_| Missing::Tolerated));
        }
        // Also when the new snapshot went out, and some worker did not say in time that it has it.
        if plan.first.is_empty() && !self.topology.is_unsettled() {
            return result;
        }
        result.and(self.publish(old, Extent::Everything).and_then(|()| self.poll_fresh()))
    }

    /// Ports go: first out of the snapshot, then from the workers.
    pub(super) fn take_out(&mut self, names: &[String], config: &Config) -> Result<(), SwitchError> {
        names.iter().for_each(|name| self.ports.leave(name, true));
        if names.iter().any(|name| self.ports.index(name).is_some()) {
            self.publish(config, Extent::AllButLocations(&Relocation::NONE))?;
        }
        names.iter().try_for_each(|name| self.let_go(name))
    }

    /// Takes a port that no snapshot leads to from the workers, or ends the attempts to open it.
    ///
    /// # Errors
    /// A worker does not answer; then the port is on its way out all the same.
    fn let_go(&mut self, name: &str) -> Result<(), SwitchError> {
        self.ports.forget(name);
        let Some(index) = self.ports.index(name) else { return Ok(()) };
        let disconnected = self.offload.disconnect(&self.pool, self.topology.snapshot(), index);
        self.ports.detach(&self.pool, index)?;
        tracing::info!(port = name, "port detached");
        Ok(disconnected?)
    }

    pub(super) fn poll_fresh(&mut self) -> Result<(), SwitchError> {
        let fresh: Vec<PortIndex> = self.ports.fresh().map(|(index, _)| index).collect();
        for index in fresh {
            if self.ports.leave_stopped(index) {
                self.offload.stop_port(&self.pool, self.topology.snapshot(), index);
            } else {
                self.ports.poll(&self.pool, index)?;
            }
        }
        Ok(())
    }

    /// Waits for ports that are likely to come or go soon; everything but requests goes on. `missing` says of each name what becomes
    /// of it when its port cannot be opened.
    pub(super) fn await_ports(
        &mut self,
        grace: Duration,
        missing: &dyn Fn(&str) -> Missing,
    ) -> Result<(), SwitchError> {
        let began = Instant::now();
        let mut tended = began;
        loop {
            let now = Instant::now();
            while let Some(done) = self.ports.done(now) {
                let missing = missing(done.name());
                self.take_in(done, missing, now)?;
            }
            if !self.ports.is_busy() || now.saturating_duration_since(began) >= grace {
                return Ok(());
            }
            if now.saturating_duration_since(tended) >= Duration::from_millis(super::TEND_EVERY_MS) {
                tended = now;
                self.tend_network(now);
            }
            std::thread::sleep(TURN);
        }
    }

    /// Takes in that a port was opened or closed, or was not. True when one came.
    fn take_in(&mut self, done: JobResult, missing: Missing, now: Instant) -> Result<bool, SwitchError> {
        match done {
            JobResult::Closed(name, result) => {
                if let Err(error) = result {
                    tracing::error!(port = name, %error, "a port did not close cleanly");
                }
                Ok(false)
            }
            JobResult::Opened(ticket, name, result) => {
                let Some(result) = self.ahead.take_in(ticket, result) else { return Ok(false) };
                let Some(absent) = self.ports.awaited(&name, ticket).cloned() else {
                    if let Ok(ready) = result {
                        self.ports.discard(*ready);
                    }
                    return Ok(false);
                };
                match result.map(|ready| self.place(*ready)) {
                    Ok(placed) => {
                        if let Err(error) = &placed
                            && self.ports.index(&name).is_none()
                        {
                            let reason =
                                format!("it was opened, and could not be given to the workers: {error}");
                            self.port_down(&name, &absent.wanted, &reason, now);
                        }
                        placed?;
                        if let Some(reason) = absent.reason {
                            let text = format!("port {name} is up again; it was down: {reason}");
                            tracing::info!(port = name, "the port is up again");
                            self.events.add("port-up", text, json!({ "port": name }));
                        }
                        Ok(true)
                    }
                    Err(error) if missing.takes(&error) => {
                        self.port_down(&name, &absent.wanted, &error.to_string(), now);
                        Ok(false)
                    }
                    Err(error) => {
                        self.ports.forget(&name);
                        Err(error.into())
                    }
                }
            }
        }
    }

    pub(super) fn place(&mut self, ready: Ready) -> Result<(), SwitchError> {
        let (name, kind) = (ready.name.clone(), ready.wanted.spec.kind());
        let front = self.offload.front(ready.wanted.offload, &self.config);
        let index = self.ports.place(&self.pool, &self.topology, ready, front)?;
        // With those that came before the port that takes their rules.
        for (index, port) in self.ports.iter() {
            if let Some(device) = port.wanted.offload.filter(|_| !self.offload.has(index)) {
                self.offload.connect(&self.pool, index, device, &port.port)?;
                if port.is_stopped() {
                    self.offload.stop_port(&self.pool, self.topology.snapshot(), index);
                }
            }
        }
        self.learn_source_ports();
        self.baseline.begin_port(&self.pool, index, &name);
        tracing::info!(port = name, kind, "port attached");
        Ok(())
    }

    /// Where a device that is new chooses outer source ports, software does as it does from the next snapshot on.
    fn learn_source_ports(&mut self) {
        let Some(learned) = self.offload.learn_source_ports(self.pool.now().ns) else { return };
        let text = self.offload.source_ports().map(SourcePorts::words).unwrap_or_default();
        match &learned {
            Ok(_) => tracing::info!("{text}"),
            Err(_) => tracing::warn!("{text}"),
        }
        self.events.add("source-ports", text, json!({ "follows": learned.is_ok() }));
        self.topology.set_encap_hash(learned.ok());
    }

    pub(super) fn port_down(&mut self, name: &str, wanted: &WantedPort, reason: &str, now: Instant) {
        let prefix = format!("port {name}: ");
        let reason = reason.strip_prefix(&prefix).unwrap_or(reason);
        if self.ports.down(name, wanted, reason, now) {
            tracing::warn!(port = name, reason, "the port is down; it is tried again until it comes up");
            let text = format!("port {name} is down: {reason}");
            self.events.add("port-down", text, json!({ "port": name, "reason": reason }));
        }
    }

    /// One turn: takes in ports that came up late, tries again those that are down, and takes out those whose interface
    /// was deleted.
    pub fn tend_ports(&mut self, now: Instant) {
        self.tend_ahead(now, false);
        if let Err(error) = self.turn_ports(now) {
            tracing::error!(%error, "a port that came or went was not taken in");
        }
    }

    /// With a port go those whose rules it takes: it cannot stop before them.
    fn add_followers(&self, gone: &mut Vec<(String, WantedPort, String)>) {
        for (name, ..) in gone.clone() {
            for follower in self.ports.followers(&name) {
                let port = self.ports.index(&follower).and_then(|index| self.ports.get(index));
                if let Some(port) = port.filter(|port| gone.iter().all(|(gone, ..)| *gone != port.name)) {
                    let reason = format!("port {name}, which takes its rules, is gone");
                    gone.push((follower, port.wanted.clone(), reason));
                }
            }
        }
    }

    fn turn_ports(&mut self, now: Instant) -> Result<(), SwitchError> {
        self.ports.tend_departing(&self.pool, now);
        self.ports.remove_taps();
        let mut came = false;
        while let Some(done) = self.ports.done(now) {
            came |= self.take_in(done, Missing::Tolerated, now)?;
        }
        for (name, wanted) in self.ports.due(now) {
            self.ports.request(&self.eal, &self.pool, &self.mempool, &name, &wanted);
        }
        let mut gone = Vec::new();
        let looks = now.saturating_duration_since(self.looked) >= LOOK_EVERY;
        if looks {
            self.looked = now;
            let fault =
                |port: &super::ports::Attached| Some((port.name.clone(), port.wanted.clone(), port.fault()?));
            gone = self.ports.iter().filter_map(|(_, port)| fault(port)).collect();
            self.add_followers(&mut gone);
        }
        // Or came while a change waited for others to go.
        came |= self.ports.fresh().next().is_some();
        // Or a worker did not take the snapshot in force, and answers again.
        came |= self.topology.is_unsettled();
        // A guest came that takes other packets than the one before it.
        let rows = &self.topology.snapshot().ports;
        came |= self.ports.iter().any(|(index, port)| {
            let row = rows.get(usize::from(index));
            row.is_some_and(|row| row.takes_super_frames != port.takes_super_frames())
        });
        if looks && gone.is_empty() {
            self.keep_punt_taps();
        }
        // A worker that is silent takes no snapshot: it is all tried again when it answers.
        if !came && gone.is_empty() || self.pool.has_silent() {
            return Ok(());
        }
        gone.iter().for_each(|(name, ..)| self.ports.leave(name, true));
        let config = self.config.clone();
        self.publish(&config, Extent::AllButLocations(&Relocation::NONE))?;
        self.poll_fresh()?;
        let mut result = Ok(());
        for (name, wanted, reason) in gone {
            result = result.and(self.let_go(&name));
            self.port_down(&name, &wanted, &reason, now);
        }
        result
    }
}

#[cfg(test)]
mod tests;
