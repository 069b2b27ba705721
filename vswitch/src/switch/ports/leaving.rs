//! Ports that go: taken from the workers, and closed, at once or when another process has taken over.

use pipelines::snapshot::PortIndex;

use super::{Attached, PortTable};
use crate::port::{Undo, shared_interface};
use crate::switch::error::PortsError;
use crate::switch::opening::Ready;
use crate::worker::{Pool, RemovedPort, WorkerCommand};

impl PortTable {
    /// Takes a port from the workers, and has it closed. No snapshot that a worker uses leads to it any more.
    ///
    /// # Errors
    /// [`PortsError::Worker`].
    pub(in crate::switch) fn detach(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        if let Some(port) = self.take_from_workers(pool, index)? {
            self.opener.close(port);
        }
        Ok(())
    }

    fn take_from_workers(&mut self, pool: &Pool, index: PortIndex) -> Result<Option<Ready>, PortsError> {
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::take) else {
            return Ok(None);
        };
        self.generation += 1;
        self.pair();
        let Attached {
            name,
            wanted,
            traits,
            proxy,
            presence,
            cleanup,
            tx,
            port,
            idle_rx,
            idle_tx,
            parked,
            ..
        } = port;
        let mut queues = RemovedPort { rx: idle_rx, tx: idle_tx };
        queues.rx.extend(parked);
        // First those who hand packets over, then the owners, who empty the rings.
        for worker in tx.removal_order() {
            let removed =
                pool.workers[worker].mailbox().ask(|reply| WorkerCommand::RemovePort(index, reply))?;
            queues.rx.extend(removed.rx);
            queues.tx.extend(removed.tx);
        }
        let RemovedPort { rx, tx } = queues;
        Ok(Some(Ready { name, wanted, traits, port, presence, cleanup, rx, tx, proxy }))
    }

    /// Takes all ports away; goes on after errors, which are logged.
    pub fn detach_all(&mut self, pool: &Pool) {
        self.opener.close_kept();
        self.detach_all_but(pool, &[]);
    }

    /// As [`detach_all`](Self::detach_all), for another process that has ports on these interfaces, too: those here are closed when it
    /// forwards.
    pub(in crate::switch) fn detach_all_but(&mut self, pool: &Pool, beside: &[String]) {
        let is_shared = |port: &Ready| {
            let iface = shared_interface(&port.wanted.spec);
            iface.is_some_and(|iface| beside.iter().any(|other| other == iface))
        };
        self.absent.clear();
        self.stopped = self.stopped().into_iter().collect();
        for index in 0..self.slots.len() {
            match self.take_from_workers(pool, index as PortIndex) {
                Ok(Some(port)) if is_shared(&port) => self.opener.keep(port),
                Ok(Some(port)) => self.opener.close(port),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "a port could not be removed"),
            }
        }
        self.opener.finish();
    }

    /// The ports that are not polled, as `port stop` left them, and those that will not be when they come.
    pub(in crate::switch) fn stopped(&self) -> Vec<String> {
        let stopped = self.iter().filter(|(_, port)| !port.running && !port.fresh);
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
