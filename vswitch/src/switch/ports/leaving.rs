//! Ports that go: taken from the workers, and closed, at once or when another process has taken over.
//!
//! A port can be closed when all of its queues are back. A worker that does not answer gives them back when it does: until then the
//! port is on its way out, no other port gets its index, and its answer is waited for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};
use pipelines::snapshot::PortIndex;
use worker::mailbox::WorkerError;
use worker::{Pool, RemovedPort, WorkerCommand};

use super::{Attached, PortTable};
use crate::port::{Undo, shared_interface};
use crate::switch::error::PortsError;
use crate::switch::opening::{FAREWELL, Ready};

/// A port on its way out: in no snapshot that a worker uses, and with queues that workers still have.
pub(super) struct Departing {
    index: PortIndex,
    /// With the queues that are back.
    port: Ready,
    /// The workers that have not given theirs back, in the order in which they do.
    workers: VecDeque<usize>,
    /// The answer of the first of them, where it was asked.
    asked: Option<Receiver<RemovedPort>>,
    /// The answers of those that were asked for receive queues alone before that.
    parking: Vec<(usize, Receiver<RemovedPort>)>,
}

impl Departing {
    fn new(index: PortIndex, port: Attached) -> Self {
        let Attached {
            name,
            wanted,
            traits,
            proxy,
            presence,
            cleanup,
            tx,
            port,
            idle_rx: mut rx,
            idle_tx,
            parked,
            asked: parking,
            ..
        } = port;
        rx.extend(parked);
        // First those who hand packets over, then the owners, who empty the rings.
        let workers = tx.removal_order().into();
        let port = Ready { name, wanted, traits, port, presence, cleanup, rx, tx: idle_tx, proxy };
        Self { index, port, workers, asked: None, parking }
    }

    /// Takes the queues back that are still out.
    ///
    /// # Errors
    /// The first worker that does not give its own back; it is asked for no more than its answer the next time.
    fn go_on(&mut self, pool: &Pool) -> Result<(), WorkerError> {
        while let Some(&worker) = self.workers.front() {
            let mailbox = pool.workers[worker].mailbox();
            let answer = match self.asked.take() {
                Some(answer) => answer,
                None => {
                    let (reply, answer) = bounded(1);
                    mailbox.post(WorkerCommand::RemovePort(self.index, reply))?;
                    answer
                }
            };
            match mailbox.wait(&answer) {
                Ok(RemovedPort { rx, tx }) => {
                    self.port.rx.extend(rx);
                    self.port.tx.extend(tx);
                    // It has answered everything before that.
                    let before = self.parking.extract_if(.., |(asked, _)| *asked == worker);
                    let before = before.filter_map(|(_, answer)| answer.try_recv().ok());
                    self.port.rx.extend(before.flat_map(|removed| removed.rx));
                    self.workers.pop_front();
                }
                Err(error) => {
                    self.asked = Some(answer);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl PortTable {
    /// Takes a port from the workers, and has it closed. No snapshot that a worker uses leads to it any more.
    ///
    /// # Errors
    /// [`PortsError::Worker`]; then it is on its way out, and closed when that worker answers.
    pub(in crate::switch) fn detach(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let Some(port) = self.take_out(index) else { return Ok(()) };
        #[cfg(test)]
        self.before_removal.take().into_iter().for_each(|happens| happens(pool));
        Ok(self.see_off(pool, port)?)
    }

    /// Lets a port go of which some workers have queues, and that has no place in the table.
    pub(super) fn let_out(&mut self, pool: &Pool, index: PortIndex, port: Attached) {
        // Why it goes is told already; where a worker does not answer, it is on its way out.
        let _ = self.see_off(pool, Departing::new(index, port));
    }

    fn see_off(&mut self, pool: &Pool, mut port: Departing) -> Result<(), WorkerError> {
        let gone = port.go_on(pool);
        match gone {
            Ok(()) => self.opener.close(port.port),
            Err(_) => self.departing.push(port),
        }
        gone
    }

    /// Takes a port out of the table. What is left to do is to take it from the workers.
    fn take_out(&mut self, index: PortIndex) -> Option<Departing> {
        let port = self.slots.get_mut(usize::from(index)).and_then(Option::take)?;
        self.generation += 1;
        self.pair();
        Some(Departing::new(index, port))
    }

    /// Has ports closed that were on their way out and that all workers have given back by now. Waits for no worker that is silent. One
    /// that is wanted again is opened at once.
    pub(in crate::switch) fn tend_departing(&mut self, pool: &Pool, now: Instant) {
        for mut port in std::mem::take(&mut self.departing) {
            if port.go_on(pool).is_err() {
                self.departing.push(port);
                continue;
            }
            tracing::info!(port = port.port.name, "port detached");
            if let Some(absent) = self.absent.get_mut(&port.port.name)
                && let Some(retry) = &mut absent.retry
            {
                *retry = now;
            }
            self.opener.close(port.port);
        }
    }

    /// Has the punt taps removed that a change has taken out of the config, when nothing of this process has them any more.
    pub(in crate::switch) fn remove_taps(&mut self) {
        for iface in std::mem::take(&mut self.taps_left) {
            match self.departing.iter().any(|port| port.port.wanted.spec.is_tap_here(&iface)) {
                true => drop(self.taps_left.insert(iface)),
                false => self.opener.remove_tap(iface),
            }
        }
    }

    /// True for the name of a port that workers still have, though it is out of the table.
    pub(in crate::switch) fn is_departing(&self, name: &str) -> bool {
        self.departing.iter().any(|port| port.port.name == name)
    }

    /// True for an index that is still of a port on its way out.
    pub(super) fn is_taken(&self, index: PortIndex) -> bool {
        self.departing.iter().any(|port| port.index == index)
    }

    /// Takes all ports away; goes on after errors, which are logged.
    pub fn detach_all(&mut self, pool: &Pool) {
        self.opener.close_kept();
        self.detach_all_but(pool, &[], FAREWELL);
    }

    /// As [`detach_all`](Self::detach_all), for another process that has ports on these interfaces, too: those here are closed when it
    /// forwards. What is not closed in a time, by name, is closed later.
    pub(in crate::switch) fn detach_all_but(
        &mut self,
        pool: &Pool,
        beside: &[String],
        limit: Duration,
    ) -> Vec<String> {
        let is_shared = |port: &Ready| {
            let iface = shared_interface(&port.wanted.spec);
            iface.is_some_and(|iface| beside.iter().any(|other| other == iface))
        };
        self.absent.clear();
        self.stopped = self.stopped().into_iter().collect();
        let there = (0..self.slots.len()).filter_map(|index| self.take_out(index as PortIndex));
        let there: Vec<Departing> = there.collect();
        for mut port in std::mem::take(&mut self.departing).into_iter().chain(there) {
            match port.go_on(pool) {
                Ok(()) if is_shared(&port.port) => self.opener.keep(port.port),
                Ok(()) => self.opener.close(port.port),
                Err(error) => {
                    tracing::error!(port = port.port.name, %error, "a port could not be removed");
                    self.departing.push(port);
                }
            }
        }
        self.remove_taps();
        match self.opener.finish(limit) {
            true => Vec::new(),
            false => self.opener.names(),
        }
    }

    /// The ports that are not polled, as `port stop` left them, and those that will not be when they come.
    pub(in crate::switch) fn stopped(&self) -> Vec<String> {
        let stopped = self.iter().filter(|(_, port)| port.is_stopped());
        let awaited = self.stopped.iter().cloned();
        stopped.map(|(_, port)| port.name.clone()).chain(awaited).collect()
    }

    /// These ports are not polled when they come.
    pub(in crate::switch) fn stay_stopped(&mut self, names: impl Iterator<Item = String>) {
        self.stopped.extend(names);
    }

    /// Leaves a port that came as it was let go; `false` when it is to be polled.
    pub(in crate::switch) fn leave_stopped(&mut self, index: PortIndex) -> bool {
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return false;
        };
        let is_stopped = self.stopped.remove(&port.name);
        port.fresh &= !is_stopped;
        is_stopped
    }

    /// The ports that are still open are another process's alone from now on.
    pub(in crate::switch) fn leave_kept(&mut self) {
        self.opener.kept().iter_mut().for_each(|port| port.cleanup.leave_interfaces());
    }

    /// What was done to the interfaces of all ports is another process's to undo.
    pub(in crate::switch) fn leave_all(&mut self) {
        self.slots.iter_mut().flatten().for_each(|port| port.cleanup.leave_interfaces());
        self.departing.iter_mut().for_each(|departing| departing.port.cleanup.leave_interfaces());
    }

    /// The ports that are still open are closed, for they are opened anew.
    pub(in crate::switch) fn close_kept(&mut self) {
        self.opener.close_kept();
    }

    /// What was done to kernel interfaces that another process may have open, too.
    pub(in crate::switch) fn to_undo(&self) -> Vec<Undo> {
        let shared = self.iter().filter(|(_, port)| shared_interface(&port.wanted.spec).is_some());
        shared.flat_map(|(_, port)| port.cleanup.of_interfaces()).collect()
    }
}
