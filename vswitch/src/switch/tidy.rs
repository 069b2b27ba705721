//! Clears the workers' tables of queue pairs from the wire after a change of addresses: what belongs to an address
//! that went or moved on is forgotten, a slice at a time, without ever waiting for a worker.

use crossbeam::channel::{Receiver, TryRecvError, bounded};
use pipelines::snapshot::Snapshot;
use worker::{Pool, WorkerCommand};

/// Lines that a worker looks at between two bursts.
const SLICE: u32 = 512;

/// How far it is, by worker.
#[derive(Debug, Default)]
pub(super) struct Tidying {
    workers: Vec<Work>,
}

#[derive(Debug, Default)]
struct Work {
    /// From which line on.
    next: Option<u32>,
    /// An answer that is due.
    answer: Option<Receiver<Option<u32>>>,
    /// Another change came meanwhile.
    again: bool,
}

impl Tidying {
    /// Begins anew when a change could have taken an address away.
    pub fn follow(&mut self, before: &Snapshot, after: &Snapshot, workers: usize) {
        if before.vnics == after.vnics {
            return;
        }
        self.workers.resize_with(workers, Work::default);
        for work in &mut self.workers {
            work.next = Some(0);
            work.again = work.answer.is_some();
        }
    }

    /// One slice of each worker.
    pub fn tend(&mut self, pool: &Pool) {
        for (work, worker) in self.workers.iter_mut().zip(&pool.workers) {
            if let Some(answer) = &work.answer {
                match answer.try_recv() {
                    Err(TryRecvError::Empty) => continue,
                    Ok(next) if !std::mem::take(&mut work.again) => work.next = next,
                    Ok(_) | Err(TryRecvError::Disconnected) => {}
                }
                work.answer = None;
            }
            let Some(from) = work.next else { continue };
            let (reply, answer) = bounded(1);
            if worker.mailbox().offer(WorkerCommand::QpTidy(from, SLICE, reply)) {
                work.answer = Some(answer);
            }
        }
    }
}
