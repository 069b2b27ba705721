//! What workers tell of their flows, and what they are told of those in hardware.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};
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

/// What a worker was asked about, and its answer when it comes.
struct Page<'a, Q, A> {
    worker: usize,
    asked: &'a [Q],
    answer: Receiver<A>,
}

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

    /// A worker has told of a flow.
    #[cfg(test)]
    pub fn tell(&mut self, selector: FlowSelector, worker: usize, told_ns: u64) {
        self.flows.insert(selector, WatchedFlow { worker, told_ns });
    }

    /// Forgets flows that nobody told of since `since_ns`, but for those that `stays` holds for.
    pub fn forget(&mut self, since_ns: u64, stays: impl Fn(&FlowSelector) -> bool) {
        self.flows.retain(|selector, watched| watched.told_ns >= since_ns || stays(selector));
    }

    /// Forgets all flows that `is_gone` holds for.
    pub fn forget_all(&mut self, is_gone: impl Fn(&FlowSelector) -> bool) {
        self.flows.retain(|selector, _| !is_gone(selector));
    }

    /// How much there was of each flow whose worker answers; and the first error of one that does not.
    pub fn samples(&self, pool: &Pool) -> (Vec<FlowSample>, Result<(), WorkerError>) {
        let by_worker =
            self.by_worker(pool, self.flows.iter().map(|(selector, watched)| (watched.worker, *selector)));
        let (answers, result) = ask(pool, &by_worker, WorkerCommand::Usage);
        let samples = answers.into_iter().flat_map(|(selectors, usages)| {
            let known =
                selectors.iter().zip(usages).filter_map(|(selector, usage)| Some((*selector, usage?)));
            known.map(|(selector, Usage { packets, bytes })| FlowSample { selector, packets, bytes })
        });
        (samples.collect(), result)
    }

    /// Has workers count what hardware did of their flows. Those that the worker which has told of them does not know any more; and the
    /// first error of a worker that does not answer.
    pub fn account(
        &mut self,
        pool: &Pool,
        done: &[(FlowSelector, Usage)],
    ) -> (HashSet<FlowSelector>, Result<(), WorkerError>) {
        let home = |selector: &FlowSelector| self.flows.get(selector).map_or(0, |watched| watched.worker);
        let by_worker =
            self.by_worker(pool, done.iter().map(|(selector, usage)| (home(selector), (*selector, *usage))));
        let (answers, result) = ask(pool, &by_worker, WorkerCommand::Account);
        let mut forgotten = HashSet::new();
        for (_, unknown) in answers {
            self.unknown += unknown.len() as u64;
            // Of those that nobody told of it is not known which worker to ask.
            forgotten.extend(unknown.into_iter().filter(|selector| self.flows.contains_key(selector)));
        }
        (forgotten, result)
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

/// What was asked, and the answer to it.
type Answers<'a, Q, A> = Vec<(&'a [Q], A)>;

/// Asks each worker about what is its own, in slices: what was asked and the answers, and the first error. A worker that does not
/// answer keeps nobody from the answers of the others, and is waited for once.
fn ask<'a, Q: Clone, A>(
    pool: &Pool,
    by_worker: &'a [Vec<Q>],
    request: impl Fn(Vec<Q>, Sender<A>) -> WorkerCommand,
) -> (Answers<'a, Q, A>, Result<(), WorkerError>) {
    let mut result = Ok(());
    let mut pages = Vec::new();
    for (worker, all) in by_worker.iter().enumerate() {
        for asked in all.chunks(SLICE) {
            let (reply, answer) = bounded(1);
            if let Err(error) = pool.workers[worker].mailbox().post(request(asked.to_vec(), reply)) {
                result = result.and(Err(error));
                break;
            }
            pages.push(Page { worker, asked, answer });
        }
    }
    let mut answers = Vec::new();
    let mut late = HashSet::new();
    for Page { worker, asked, answer } in pages {
        if late.contains(&worker) {
            continue;
        }
        match pool.workers[worker].mailbox().wait(&answer) {
            Ok(answer) => answers.push((asked, answer)),
            Err(error) => {
                late.insert(worker);
                result = result.and(Err(error));
            }
        }
    }
    (answers, result)
}

#[cfg(test)]
mod tests {
    use pipelines::flow_key::FlowKey;
    use wire::protocol;

    use super::*;
    use crate::config::Config;
    use crate::switch::{Switch, testing};

    /// A flow that the worker of this number told of.
    fn flow_of(worker: usize) -> FlowSelector {
        let ports = (4000 + worker as u64) << 16 | 80;
        let key = FlowKey::from_words([1, 0, 0, 0, ports, 0, u64::from(protocol::TCP)]);
        FlowSelector { key, qpn: None, source_port: None }
    }

    #[test]
    fn a_worker_that_does_not_answer_keeps_nobody_from_those_that_do() {
        let config = Config::parse(&testing::process_of(2, 8191), "test").unwrap();
        let mut switch = Switch::start(config).unwrap();
        let mut watch = FlowWatch::default();
        (0..2).for_each(|worker| watch.tell(flow_of(worker), worker, 1));
        let late = testing::silence(switch.pool());
        let done = [0, 1].map(|worker| (flow_of(worker), Usage { packets: 1, bytes: 60 }));
        let (forgotten, result) = watch.account(switch.pool(), &done);
        assert!(matches!(result, Err(WorkerError::Stuck { worker: 0, .. })), "{result:?}");
        assert_eq!((forgotten, watch.unknown), (HashSet::from([flow_of(1)]), 1));
        let (samples, result) = watch.samples(switch.pool());
        assert!(matches!(result, Err(WorkerError::Stuck { worker: 0, .. })), "{result:?}");
        assert_eq!(samples, [], "nobody knows them");
        drop(late);
        switch.stop();
    }
}
