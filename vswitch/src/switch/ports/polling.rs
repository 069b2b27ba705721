//! The receive queues of ports: given to workers, who poll them, and taken back while their ports stay.
//!
//! A worker that does not answer has what it was given before, and a queue that it does not take stays here: none is lost,
//! and the next call goes on.

use crossbeam::channel::bounded;
use pipelines::snapshot::PortIndex;
use worker::eswitch::Front;
use worker::mailbox::{Unposted, WorkerError};
use worker::{Pool, WorkerCommand};

use super::{Attached, PortTable};
use crate::switch::error::PortsError;

impl Attached {
    /// No worker polls a queue of it, or is about to give one back.
    pub(crate) fn is_parked(&self) -> bool {
        self.rx_workers.is_empty() && self.asked.is_empty()
    }

    /// Takes the receive queues that workers were asked for.
    ///
    /// # Errors
    /// [`WorkerError`] of the first that does not answer; its answer is waited for the next time.
    fn take_answers(&mut self, pool: &Pool) -> Result<(), WorkerError> {
        let mut result = Ok(());
        for (worker, answer) in std::mem::take(&mut self.asked) {
            match pool.workers[worker].mailbox().wait(&answer) {
                Ok(removed) => {
                    self.parked.extend(removed.rx);
                    self.rx_workers.retain(|&polls| polls != worker);
                }
                Err(error) => {
                    self.asked.push((worker, answer));
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}

impl PortTable {
    /// Gives the rx queues of a new (or stopped) port to the workers that have fewest.
    ///
    /// # Errors
    /// [`PortsError::Worker`]; then it is polled as far as workers took its queues, and this goes on with the others.
    pub fn poll(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let mut load = vec![0usize; pool.workers.len()];
        for (_, port) in self.iter() {
            port.rx_workers.iter().for_each(|&worker| load[worker] += 1);
        }
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return Ok(());
        };
        port.take_answers(pool)?;
        port.idle_rx.append(&mut port.parked);
        let mut queues = std::mem::take(&mut port.idle_rx).into_iter();
        while let Some(queue) = queues.next() {
            let worker = (0..load.len()).min_by_key(|&worker| load[worker]).unwrap_or(0);
            let front = port.front.clone().map(|device| Box::new(Front::new(device, port.port.id().get())));
            let request = WorkerCommand::AddRx(index, queue, front);
            if let Err(unposted) = pool.workers[worker].mailbox().hand_over(request) {
                let Unposted { request, error } = *unposted;
                if let WorkerCommand::AddRx(_, queue, _) = request {
                    port.idle_rx.push(queue);
                }
                port.idle_rx.extend(queues);
                return Err(error.into());
            }
            load[worker] += 1;
            port.rx_workers.push(worker);
        }
        (port.running, port.fresh) = (true, false);
        Ok(())
    }

    /// Takes a port's rx queues back: it is not polled until [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`PortsError::Worker`] of the first worker that does not answer; then this goes on with it.
    pub fn park(&mut self, pool: &Pool, index: PortIndex) -> Result<(), PortsError> {
        let Some(port) = self.slots.get_mut(usize::from(index)).and_then(Option::as_mut) else {
            return Ok(());
        };
        (port.running, port.fresh) = (false, false);
        let mut result = Ok(());
        for (number, worker) in pool.workers.iter().enumerate() {
            if port.asked.iter().any(|(asked, _)| *asked == number) {
                continue;
            }
            let (reply, answer) = bounded(1);
            match worker.mailbox().post(WorkerCommand::RemoveRx(index, reply)) {
                Ok(()) => port.asked.push((number, answer)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        Ok(result.and(port.take_answers(pool))?)
    }
}
