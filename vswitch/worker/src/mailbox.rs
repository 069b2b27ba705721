//! What control asks of a worker, and how the worker hears of it: a bounded channel and one flag, read between
//! bursts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use pipelines::Direction;
use pipelines::hot::HintQueue;
use pipelines::nft::NftEntry;
use pipelines::offload::translate::FlowSelector;
use pipelines::qos::{Depth, Leaf};
use pipelines::rcft::{QpKey, QpView, RcftStats};
use pipelines::snapshot::{PortIndex, Snapshot};
use pmd::{Mbuf, RxQueue, TxQueue};
use rules::Usage;

use super::eswitch::Front;
use super::repeat::BfdPacket;
use super::tx::{OwnQueue, Ring};

/// Read by the worker in every turn, so on lines of its own: nothing else that is written is there.
type Flag = Arc<CachePadded<AtomicBool>>;

/// Requests that a mailbox holds before control waits.
const DEPTH: usize = 256;
/// How long control waits for a worker: control stands still meanwhile, so it is short for people and long for workers,
/// whose longest requests take some milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Snapshots that wait to be freed by control.
const RETIRED: usize = 256;

/// What a worker does with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// vNICs and tunnels.
    #[default]
    Overlay,
    /// Pairs of ports, packets untouched.
    Io,
    /// Pairs of ports, MACs rewritten.
    Mac,
}

/// The queues that a worker gives back when a port is removed.
#[derive(Debug, Default)]
pub struct RemovedPort {
    /// Receive queues.
    pub rx: Vec<RxQueue>,
    /// Transmit queues.
    pub tx: Vec<TxQueue>,
}

/// Part of an NFT, for display.
pub struct NftPage {
    /// Entries in use.
    pub entries: Vec<NftEntry>,
    /// Where to go on, `None` at the end.
    pub next: Option<u32>,
    /// The worker's time, in ticks.
    pub tick: u32,
}

/// Part of a table of queue pairs, for display.
pub struct QpPage {
    /// Queue pairs.
    pub entries: Vec<QpView>,
    /// Where to go on, `None` at the end.
    pub next: Option<u32>,
}

/// What a worker counts of queue pairs.
pub struct QpCounts {
    /// Sums.
    pub stats: RcftStats,
    /// Entries from the wire, by vNIC; those behind the last are zero.
    pub guests: Vec<u32>,
}

/// Packet buffers that a worker holds for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortBuffers {
    pub port: PortIndex,
    /// In front of its own transmit queue.
    pub waiting: usize,
    /// In the rings in which others hand packets over to it.
    pub handed_over: usize,
    /// In the simulated e-switch, in front of receive queues.
    pub in_front: usize,
}

impl PortBuffers {
    /// Nothing of a port.
    pub fn of(port: PortIndex) -> Self {
        Self { port, ..Self::default() }
    }
}

/// A request to a worker.
pub enum WorkerCommand {
    /// Use this configuration from the next burst on.
    Snapshot(Arc<Snapshot>),
    /// Poll this queue, from behind the simulated e-switch where there is one.
    AddRx(PortIndex, RxQueue, Option<Box<Front>>),
    /// Send through this queue, and for other workers from its rings.
    AddTx(PortIndex, OwnQueue),
    /// Send by handing over to the worker that owns the queue.
    AddHandOff(PortIndex, Ring),
    /// Send for one more worker, from this ring.
    AddRing(PortIndex, Ring),
    /// Hand over instead of sending through the own queue, which nobody reads; or send through it again.
    Divert(PortIndex, Option<Ring>),
    /// Stop polling a port, but keep sending to it.
    RemoveRx(PortIndex, Sender<RemovedPort>),
    /// Give back the queues of a port.
    RemovePort(PortIndex, Sender<RemovedPort>),
    /// Receive, or not.
    Forward(bool),
    /// Change the mode.
    Mode(Mode),
    /// Send a packet that control made.
    Inject(PortIndex, Mbuf),
    /// Send a packet of a BFD session in the place of what was repeated of it, and repeat it if it is to be.
    Bfd(BfdPacket<Mbuf>),
    /// Repeat nothing of the session in this place any more.
    EndBfdRepeat(u16),
    /// Hand a packet that control made to this vNIC.
    Deliver(u32, Mbuf),
    /// Show part of the NFT, from this slot on, so many entries.
    Nft(u32, usize, Sender<NftPage>),
    /// Forget flows, from this slot on, so many; the answer is where to go on.
    NftClear(u32, u32, Sender<Option<u32>>),
    /// Tell of flows here, or no more.
    Hints(Option<HintQueue>),
    /// Say how much of these flows there was, as far as they are known. Some hundred at a time.
    Usage(Vec<FlowSelector>, Sender<Vec<Option<Usage>>>),
    /// Count what hardware did of these flows; the answer is those that are not known. Some hundred at a time.
    Account(Vec<(FlowSelector, Usage)>, Sender<Vec<FlowSelector>>),
    /// Show part of the queue pairs of one direction, from this line on, so many.
    Qps(Direction, u32, usize, Sender<QpPage>),
    /// Show these queue pairs of one direction as far as they are known. A few at a time.
    QpsOf(Direction, Vec<QpKey>, Sender<QpPage>),
    /// Say how many queue pairs there are.
    QpCounts(Sender<QpCounts>),
    /// Forget queue pairs from the wire whose address is no longer that of their vNIC, from this line on, so many
    /// lines; the answer is where to go on.
    QpTidy(u32, u32, Sender<Option<u32>>),
    /// Forget these queue pairs from the wire: their connections have ended. A few at a time.
    QpForget(Vec<QpKey>),
    /// Say how much of these classes waits for tokens. Some thousand at a time.
    Depths(Vec<Leaf>, Sender<Vec<Depth>>),
    /// Say how many packet buffers wait for each port, and in front of its receive queues.
    Buffers(Sender<Vec<PortBuffers>>),
    /// Watch what stages take, from zero on, or no more.
    Watch(bool),
    /// Say that everything before this was done.
    Barrier(Sender<()>),
    /// Hand out all packets and end.
    Exit,
}

/// The worker's side.
pub struct Mailbox {
    requests: Receiver<WorkerCommand>,
    flag: Flag,
    pub(super) retired: Arc<ArrayQueue<Arc<Snapshot>>>,
    turns: Arc<AtomicU64>,
}

impl Mailbox {
    /// True when there may be requests. One relaxed load in the usual case.
    #[inline(always)]
    pub(super) fn is_marked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The next request; whatever was asked before is done. Clears the mark before it looks, so that none is overlooked.
    pub(super) fn next(&self) -> Option<WorkerCommand> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.flag.store(false, Ordering::SeqCst);
        let request = self.requests.try_recv().ok();
        if !self.requests.is_empty() {
            self.flag.store(true, Ordering::SeqCst);
        }
        request
    }
}

/// Control's side.
pub struct Handle {
    worker: usize,
    core: usize,
    patience: Duration,
    requests: Sender<WorkerCommand>,
    flag: Flag,
    retired: Arc<ArrayQueue<Arc<Snapshot>>>,
    /// How often the worker has looked for requests, and how often it had when it was waited for in vain.
    turns: Arc<AtomicU64>,
    missed: AtomicU64,
}

/// A worker does not do what control asks.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkerError {
    /// Its thread has ended.
    #[error("worker {worker} on core {core} has ended; restart the switch")]
    Gone { worker: usize, core: usize },
    /// It does not answer in time.
    #[error(
        "worker {worker} on core {core} does not answer; the others go on. If something else keeps its core busy, stop \
         that and try again; else restart the switch"
    )]
    Stuck { worker: usize, core: usize },
}

/// A request that a worker did not take, whole: what is in it is nobody else's.
pub struct Unposted {
    pub request: WorkerCommand,
    pub error: WorkerError,
}

impl Handle {
    fn gone(&self) -> WorkerError {
        WorkerError::Gone { worker: self.worker, core: self.core }
    }

    fn stuck(&self) -> WorkerError {
        self.missed.store(self.turns.load(Ordering::Relaxed), Ordering::Relaxed);
        WorkerError::Stuck { worker: self.worker, core: self.core }
    }

    /// True for a worker that was waited for in vain and has not moved since, though there is something to do for it.
    pub(super) fn is_silent(&self) -> bool {
        self.missed.load(Ordering::Relaxed) == self.turns.load(Ordering::Relaxed) && !self.requests.is_empty()
    }

    /// How long it is worth to wait. A worker that is silent costs control nothing more.
    fn patience(&self) -> Duration {
        if self.is_silent() { Duration::ZERO } else { self.patience }
    }

    /// Posts a request; waits a while when the mailbox is full. What is in one that is not taken is gone: a queue is
    /// [handed over](Self::hand_over).
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn post(&self, request: WorkerCommand) -> Result<(), WorkerError> {
        self.hand_over(request).map_err(|unposted| unposted.error)
    }

    /// As [`post`](Self::post), of a request with something in it that must not be lost.
    ///
    /// # Errors
    /// [`Unposted`], with the request.
    pub fn hand_over(&self, request: WorkerCommand) -> Result<(), Box<Unposted>> {
        let result = self.requests.send_timeout(request, self.patience());
        self.flag.store(true, Ordering::SeqCst);
        result.map_err(|error| {
            Box::new(match error {
                SendTimeoutError::Timeout(request) => Unposted { request, error: self.stuck() },
                SendTimeoutError::Disconnected(request) => Unposted { request, error: self.gone() },
            })
        })
    }

    /// Posts a request unless the mailbox is full; then it is given up. For packets that may be lost.
    pub fn offer(&self, command: WorkerCommand) -> bool {
        let sent = self.requests.try_send(command).is_ok();
        self.flag.store(true, Ordering::SeqCst);
        sent
    }

    /// Posts a request that is answered, and waits for the answer. One that comes too late is gone: who asks for queues keeps the
    /// receiver of the answer.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> WorkerCommand) -> Result<T, WorkerError> {
        let (reply, answer) = bounded(1);
        self.post(request(reply))?;
        self.wait(&answer)
    }

    /// Waits for the answer to a request that was posted.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, WorkerError> {
        answer.recv_timeout(self.patience()).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.stuck(),
            RecvTimeoutError::Disconnected => self.gone(),
        })
    }

    /// Frees the snapshots that the worker has finished with.
    pub fn free_retired(&self) {
        while let Some(snapshot) = self.retired.pop() {
            drop(snapshot);
        }
    }
}

/// Both sides of a new mailbox: that of worker `worker` on core `core`.
pub fn mailbox(worker: usize, core: usize) -> (Handle, Mailbox) {
    with_patience(worker, core, PATIENCE)
}

fn with_patience(worker: usize, core: usize, patience: Duration) -> (Handle, Mailbox) {
    let (requests, receiver) = bounded(DEPTH);
    let flag = Flag::default();
    let retired = Arc::new(ArrayQueue::new(RETIRED));
    // It begins at one, so that zero stands for never missed.
    let turns = Arc::new(AtomicU64::new(1));
    let mailbox =
        Mailbox { requests: receiver, flag: flag.clone(), retired: retired.clone(), turns: turns.clone() };
    (Handle { worker, core, patience, requests, flag, retired, turns, missed: AtomicU64::new(0) }, mailbox)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Answers all barriers that wait.
    fn serve(mailbox: &Mailbox) -> usize {
        let mut served = 0;
        while let Some(command) = mailbox.next() {
            if let WorkerCommand::Barrier(reply) = command {
                let _ = reply.send(());
            }
            served += 1;
        }
        served
    }

    #[test]
    fn repair_a_stuck_worker_is_named_and_waited_for_once() {
        let (handle, mailbox) = with_patience(3, 7, Duration::from_millis(200));
        let error = WorkerError::Stuck { worker: 3, core: 7 };
        let stuck = Err(error.clone());
        let start = Instant::now();
        assert_eq!(handle.ask(WorkerCommand::Barrier), stuck);
        let first = start.elapsed();
        assert!(first >= Duration::from_millis(200), "{first:?}");
        // Its mailbox fills up; nobody waits for it again.
        let start = Instant::now();
        for _ in 0..2 * DEPTH {
            assert_eq!(handle.ask(WorkerCommand::Barrier), stuck);
        }
        assert_eq!(handle.post(WorkerCommand::Forward(true)), stuck);
        assert!(start.elapsed() < first * DEPTH as u32 / 2, "{:?}", start.elapsed());
        let text = error.to_string();
        assert!(text.contains("worker 3 on core 7") && text.contains("restart"), "{text}");
        // It comes back, does what waits for it, and is asked as before.
        assert_eq!(serve(&mailbox), DEPTH);
        let worker = std::thread::spawn(move || {
            while serve(&mailbox) == 0 {
                std::thread::yield_now();
            }
            mailbox
        });
        assert_eq!(handle.ask(WorkerCommand::Barrier), Ok(()));
        drop(worker.join().unwrap());
        assert_eq!(handle.ask(WorkerCommand::Barrier), Err(WorkerError::Gone { worker: 3, core: 7 }));
    }

    #[test]
    fn repair_a_request_that_is_not_taken_comes_back() {
        let (handle, mailbox) = with_patience(3, 7, Duration::from_millis(20));
        while handle.offer(WorkerCommand::Forward(true)) {}
        let (reply, _answer) = bounded(1);
        let hand_over =
            |reply| handle.hand_over(WorkerCommand::RemovePort(5, reply)).map_err(|unposted| *unposted);
        let is_back = |result| {
            let Err(Unposted { request: WorkerCommand::RemovePort(5, reply), error }) = result else {
                return None;
            };
            Some((reply, error))
        };
        let (reply, error) = is_back(hand_over(reply)).unwrap();
        assert_eq!(error, WorkerError::Stuck { worker: 3, core: 7 });
        assert_eq!(serve(&mailbox), DEPTH);
        assert!(hand_over(reply).is_ok());
        let Some(WorkerCommand::RemovePort(5, reply)) = mailbox.next() else { panic!("it was taken") };
        drop(mailbox);
        let (_, error) = is_back(hand_over(reply)).unwrap();
        assert_eq!(error, WorkerError::Gone { worker: 3, core: 7 });
    }

    /// A worker that dies with a request in its hands.
    #[test]
    fn repair_a_worker_that_ends_is_not_waited_for() {
        let (handle, mailbox) = with_patience(0, 1, Duration::from_secs(60));
        let worker = std::thread::spawn(move || {
            while mailbox.next().is_none() {
                std::thread::yield_now();
            }
        });
        assert_eq!(handle.ask(WorkerCommand::Barrier), Err(WorkerError::Gone { worker: 0, core: 1 }));
        worker.join().unwrap();
    }
}
