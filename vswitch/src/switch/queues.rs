//! The transmit queues of a port: who owns which, who hands over to whom, and what of it changes while packets flow.
//!
//! One worker owns a queue for as long as the port is there; workers without one hand over to an owner. Where the
//! peer says which queues it reads (the guest behind a vhost-user port enables pairs), the owner of a queue that it
//! does not read hands over, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipelines::snapshot::PortIndex;
use pmd::{StartedPort, TxQueue};
use worker::mailbox::{Unposted, WorkerError};
use worker::tx::{OwnQueue, PortState, Ring, ring};
use worker::{Pool, WorkerCommand};

use crate::port::Traits;

/// The transmit queues of a port.
pub struct TxQueues {
    /// What workers want to know of the port.
    state: Arc<PortState>,
    /// Whether its link is asked for.
    tells_link: bool,
    /// Whether the peer reads a queue, by its owner's number: worker n owns queue n.
    enabled: Vec<bool>,
    /// Workers of the switch.
    workers: usize,
    /// Rings that were made so far, by worker and queue.
    rings: BTreeMap<(usize, usize), Ring>,
    /// The owner that a worker hands over to now, unless it sends into a queue of its own.
    handed: Vec<Option<usize>>,
    /// Not every worker was told to whom it hands over.
    is_behind: bool,
}

impl TxQueues {
    /// Of a port with so many transmit queues, none of which a worker has yet.
    pub fn new(pool: &Pool, queues: usize, port: &StartedPort, traits: &Traits) -> Self {
        let workers = pool.workers.len();
        let state = Arc::new(PortState::new(max_frame(port, traits)));
        state.set_link(!traits.tells_link || is_up(port));
        Self {
            state,
            tells_link: traits.tells_link,
            enabled: vec![true; queues.min(workers)],
            workers,
            rings: BTreeMap::new(),
            handed: vec![None; workers],
            is_behind: false,
        }
    }

    /// Gives queues to the workers, one each. Those that no worker has stay in `idle`.
    ///
    /// # Errors
    /// [`WorkerError`]; then some workers may have what they were given, and are to be asked for it.
    pub fn give(
        &mut self,
        pool: &Pool,
        index: PortIndex,
        idle: &mut Vec<TxQueue>,
        port: &StartedPort,
    ) -> Result<(), WorkerError> {
        let queues = self.enabled.len();
        let rest = idle.split_off(queues);
        let mut given = std::mem::replace(idle, rest).into_iter();
        for worker in &pool.workers {
            let Some(queue) = given.next() else { break };
            let own = OwnQueue { queue, rings: Vec::new(), port: self.state.clone(), queues };
            if let Err(unposted) = worker.mailbox().hand_over(WorkerCommand::AddTx(index, own)) {
                let Unposted { request, error } = *unposted;
                if let WorkerCommand::AddTx(_, own) = request {
                    idle.push(own.queue);
                }
                idle.extend(given);
                return Err(error);
            }
        }
        if let Some(read) = port.read_queues() {
            self.enabled = some_queue(read, queues);
        }
        self.share(pool, index)
    }

    /// True with a link, and where the kind cannot tell.
    pub fn has_link(&self) -> bool {
        self.state.link()
    }

    /// Owners of the queues.
    pub fn owners(&self) -> Vec<usize> {
        (0..self.enabled.len()).collect()
    }

    /// Workers in the order in which they give up the port, so that no ring is filled after its owner has left: those
    /// that hand over, and then those who own what is read.
    pub fn removal_order(&self) -> Vec<usize> {
        let (handing, owning): (Vec<usize>, Vec<usize>) =
            (0..self.workers).partition(|&worker| self.handed.get(worker).is_some_and(Option::is_some));
        handing.into_iter().chain(owning).collect()
    }

    /// Looks after link, peer and its queues. Called a few times a second.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn tend(&mut self, pool: &Pool, index: PortIndex, port: &StartedPort) -> Result<(), WorkerError> {
        if !self.tells_link {
            return Ok(());
        }
        self.state.set_link(is_up(port));
        let Some(read) = port.read_queues().map(|read| some_queue(read, self.enabled.len())) else {
            return Ok(());
        };
        if self.enabled != read {
            self.enabled = read;
            let queues: Vec<usize> = (0..self.enabled.len()).filter(|&queue| self.enabled[queue]).collect();
            tracing::info!(port = port.name(), ?queues, "the peer reads these queues");
        } else if !self.is_behind || pool.has_silent() {
            return Ok(());
        }
        self.share(pool, index)
    }

    /// Has every worker send into its own queue, or hand over to an owner, as it should be now.
    ///
    /// # Errors
    /// [`WorkerError`]; [`tend`](Self::tend) goes on with it.
    fn share(&mut self, pool: &Pool, index: PortIndex) -> Result<(), WorkerError> {
        let shared = self.try_share(pool, index);
        self.is_behind = shared.is_err();
        shared
    }

    fn try_share(&mut self, pool: &Pool, index: PortIndex) -> Result<(), WorkerError> {
        let read: Vec<usize> = (0..self.enabled.len()).filter(|&queue| self.enabled[queue]).collect();
        let to = |worker: usize| match self.enabled.get(worker) {
            Some(true) => None,
            _ => read.get(worker % read.len().max(1)).copied(),
        };
        let wanted: Vec<Option<usize>> = (0..self.workers).map(to).collect();
        let handing = wanted.iter().flatten().count();
        // First who sends into its own queue again: others may begin to hand over to it.
        for turn in [true, false] {
            for (worker, &owner) in wanted.iter().enumerate().filter(|(_, owner)| owner.is_none() == turn) {
                if owner == self.handed[worker] {
                    continue;
                }
                let ring = match owner {
                    None => None,
                    Some(owner) => Some(self.ring_to(pool, index, worker, owner, handing)?),
                };
                let command = match ring {
                    Some(ring) if worker >= self.enabled.len() => WorkerCommand::AddHandOff(index, ring),
                    ring => WorkerCommand::Divert(index, ring),
                };
                pool.workers[worker].mailbox().post(command)?;
                self.handed[worker] = owner;
            }
        }
        Ok(())
    }

    /// The ring of a worker to the owner of a queue, who knows of it before the worker does.
    fn ring_to(
        &mut self,
        pool: &Pool,
        index: PortIndex,
        worker: usize,
        owner: usize,
        handing: usize,
    ) -> Result<Ring, WorkerError> {
        if let Some(ring) = self.rings.get(&(worker, owner)) {
            return Ok(ring.clone());
        }
        let ring = ring(handing);
        pool.workers[owner].mailbox().post(WorkerCommand::AddRing(index, ring.clone()))?;
        self.rings.insert((worker, owner), ring.clone());
        Ok(ring)
    }

    /// The port's MTU has changed.
    pub fn mtu_changed(&self, port: &StartedPort, traits: &Traits) {
        self.state.set_max_frame(max_frame(port, traits));
    }
}

/// Packets must have somewhere to go, if only to be counted as refused: to the first queue, when none is read.
fn some_queue(mut read: Vec<bool>, queues: usize) -> Vec<bool> {
    read.resize(queues, false);
    if !read.contains(&true)
        && let Some(first) = read.first_mut()
    {
        *first = true;
    }
    read
}

/// A driver that does not know is taken to have a link: its refusals are then counted as such.
fn is_up(port: &StartedPort) -> bool {
    port.link().map_or(true, |link| link.up)
}

/// The longest frame that a port's driver takes; what is longer would stay at the head of its queue.
fn max_frame(port: &StartedPort, traits: &Traits) -> u32 {
    traits.max_frame(port).unwrap_or(u32::MAX)
}
