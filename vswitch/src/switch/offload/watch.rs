//! What workers tell of their flows, and what they are told of those in hardware.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam::channel::{Receiver, bounded};
use crossbeam::queue::ArrayQueue;
use pipelines::hot::HintQueue;
use pipelines::offload::manager::FlowSample;
use pipelines::offload::translate::FlowSelector;
use rules::Usage;
use worker::mailbox::WorkerError;
use worker::{Pool, WorkerCommand};

/// Hints of a worker that wait.
const HINTS: usize = 4096;
/// Flows that a worker is asked about between two bursts.
const SLICE: usize = 256;
/// Flows whose speed is looked at.
const WATCHED: usize = 16_384;

/// Flows that are looked at, because packets of them were seen lately or because they are in hardware.
#[derive(Default)]
pub(super) struct FlowWatch {
    /// Where hints come from, by worker.
    queues: Vec<HintQueue>,
    flows: HashMap<FlowSelector, WatchedFlow>,
    /// What hardware did of flows that their worker did not know any more.
    pub unknown: u64,
}

/// Flows that a worker was asked about, and its answer when it comes.
type Page = (Vec<FlowSelector>, Receiver<Vec<Option<Usage>>>);

struct WatchedFlow {
    /// The worker that has the flow.
    worker: usize,
    /// When it told of it last.
    told_ns: u64,
}

impl FlowWatch {
    /// Has the workers tell, or no longer.
    pub fn enable(&mut self, pool: &Pool, on: bool) -> Result<(), WorkerError> {
        if on != self.queues.is_empty() {
            return Ok(());
        }
        self.queues.clear();
        if on {
            self.queues.resize_with(pool.workers.len(), || Arc::new(ArrayQueue::new(HINTS)));
        }
        let queues = || self.queues.iter().cloned().map(Some).chain(std::iter::repeat(None));
        pool.workers
            .iter()
            .zip(queues())
            .try_for_each(|(worker, queue)| worker.mailbox().post(WorkerCommand::Hints(queue)))
    }

    /// Takes in what was told. `canonical` makes one selector of those that the same rules are for.
    pub fn hear(&mut self, now_ns: u64, canonical: impl Fn(FlowSelector) -> FlowSelector) {
        for (worker, queue) in self.queues.iter().enumerate() {
            for selector in std::iter::from_fn(|| queue.pop()).take(HINTS) {
                let selector = canonical(selector);
                if self.flows.len() < WATCHED || self.flows.contains_key(&selector) {
                    self.flows.insert(selector, WatchedFlow { worker, told_ns: now_ns });
                }
            }
        }
    }

    /// Forgets flows that nobody told of since `since_ns`, but for those that `stays` holds for.
    pub fn forget(&mut self, since_ns: u64, stays: impl Fn(&FlowSelector) -> bool) {
        self.flows.retain(|selector, watched| watched.told_ns >= since_ns || stays(selector));
    }

    /// Forgets all flows that `is_gone` holds for.
    pub fn forget_all(&mut self, is_gone: impl Fn(&FlowSelector) -> bool) {
        self.flows.retain(|selector, _| !is_gone(selector));
    }

    /// How much there was of each flow.
    pub fn samples(&self, pool: &Pool) -> Result<Vec<FlowSample>, WorkerError> {
        let by_worker =
            self.by_worker(pool, self.flows.iter().map(|(selector, watched)| (watched.worker, *selector)));
        let mut pages: Vec<(usize, Page)> = Vec::new();
        for (worker, selectors) in by_worker.iter().enumerate() {
            for slice in selectors.chunks(SLICE) {
                let (reply, answer) = bounded(1);
                pool.workers[worker].mailbox().post(WorkerCommand::Usage(slice.to_vec(), reply))?;
                pages.push((worker, (slice.to_vec(), answer)));
            }
        }
        let mut samples = Vec::new();
        for (worker, (selectors, answer)) in pages {
            let usages = pool.workers[worker].mailbox().wait(&answer)?;
            let known =
                selectors.into_iter().zip(usages).filter_map(|(selector, usage)| Some((selector, usage?)));
            samples.extend(known.map(|(selector, Usage { packets, bytes })| FlowSample {
                selector,
                packets,
                bytes,
            }));
        }
        Ok(samples)
    }

    /// Has workers count what hardware did of their flows. Those that the worker which has told of them does not know any more.
    pub fn account(
        &mut self,
        pool: &Pool,
        done: &[(FlowSelector, Usage)],
    ) -> Result<HashSet<FlowSelector>, WorkerError> {
        let home = |selector: &FlowSelector| self.flows.get(selector).map_or(0, |watched| watched.worker);
        let by_worker =
            self.by_worker(pool, done.iter().map(|(selector, usage)| (home(selector), (*selector, *usage))));
        let mut answers = Vec::new();
        for (worker, done) in by_worker.iter().enumerate() {
            for slice in done.chunks(SLICE) {
                let (reply, answer) = bounded(1);
                pool.workers[worker].mailbox().post(WorkerCommand::Account(slice.to_vec(), reply))?;
                answers.push((worker, answer));
            }
        }
        let mut forgotten = HashSet::new();
        for (worker, answer) in answers {
            let unknown = pool.workers[worker].mailbox().wait(&answer)?;
            self.unknown += unknown.len() as u64;
            // Of those that nobody told of it is not known which worker to ask.
            forgotten.extend(unknown.into_iter().filter(|selector| self.flows.contains_key(selector)));
        }
        Ok(forgotten)
    }

    /// Has the worker of a queue pair take its next packet for one in sequence, whatever came in between: hardware may
    /// have the next ones.
    pub fn begin_anew(&self, pool: &Pool, selector: &FlowSelector) -> Result<(), WorkerError> {
        let home = self.flows.get(selector).and_then(|watched| pool.workers.get(watched.worker));
        let Some(worker) = home else { return Ok(()) };
        worker
            .mailbox()
            .ask(|reply| WorkerCommand::Account(vec![(*selector, Usage::default())], reply))
            .map(|_| ())
    }

    fn by_worker<T>(&self, pool: &Pool, all: impl Iterator<Item = (usize, T)>) -> Vec<Vec<T>> {
        let mut by_worker: Vec<Vec<T>> = Vec::new();
        by_worker.resize_with(pool.workers.len(), Vec::new);
        for (worker, one) in all {
            if let Some(of_worker) = by_worker.get_mut(worker) {
                of_worker.push(one);
            }
        }
        by_worker
    }
}
