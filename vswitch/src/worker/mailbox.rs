//! What control asks of a worker, and how the worker hears of it: a bounded channel and one flag, read between
//! bursts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use pipelines::hot::HintQueue;
use pipelines::nft::Entry;
use pipelines::offload::Usage;
use pipelines::offload::translate::Ask;
use pipelines::qos::Leaf;
use pipelines::rcft::{QpKey, QpView, RcftStats, Way};
use pipelines::snapshot::{PortIndex, Snapshot};
use pmd::{Mbuf, RxQueue, TxQueue};

use super::eswitch::Front;

/// Read by the worker in every turn, so on lines of its own: nothing else that is written is there.
type Flag = Arc<CachePadded<AtomicBool>>;

/// Requests that a mailbox holds before control waits.
const DEPTH: usize = 256;
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
    pub entries: Vec<Entry>,
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

/// A request to a worker.
pub enum Command {
    /// Use this configuration from the next burst on.
    Snapshot(Arc<Snapshot>),
    /// Poll this queue, from behind the simulated e-switch where there is one.
    AddRx(PortIndex, RxQueue, Option<Box<Front>>),
    /// Send through this queue, and for other workers from these rings.
    AddTx(PortIndex, TxQueue, Vec<Arc<ArrayQueue<Mbuf>>>),
    /// Send by handing over to the worker that owns the queue.
    AddHandOff(PortIndex, Arc<ArrayQueue<Mbuf>>),
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
    /// Show part of the NFT, from this slot on, so many entries.
    Nft(u32, usize, Sender<NftPage>),
    /// Forget all flows.
    NftClear,
    /// Tell of flows here, or no more.
    Hints(Option<HintQueue>),
    /// Say how much of these flows there was, as far as they are known. Some hundred at a time.
    Usage(Vec<Ask>, Sender<Vec<Option<Usage>>>),
    /// Count what hardware did of these flows; the answer is how many of them are not known. Some hundred at a time.
    Account(Vec<(Ask, Usage)>, Sender<usize>),
    /// Show part of the queue pairs of one direction, from this line on, so many.
    Qps(Way, u32, usize, Sender<QpPage>),
    /// Show these queue pairs of one direction as far as they are known. A few at a time.
    QpsOf(Way, Vec<QpKey>, Sender<QpPage>),
    /// Say how many queue pairs there are.
    QpCounts(Sender<QpCounts>),
    /// Forget queue pairs from the wire whose address is no longer that of their vNIC, from this line on, so many
    /// lines; the answer is where to go on.
    QpTidy(u32, u32, Sender<Option<u32>>),
    /// Say how many packets and bytes of these classes wait for tokens. Some thousand at a time.
    Depths(Vec<Leaf>, Sender<Vec<(u32, u32)>>),
    /// Watch what stages take, from zero on, or no more.
    Watch(bool),
    /// Say that everything before this was done.
    Barrier(Sender<()>),
    /// Hand out all packets and end.
    Exit,
}

/// The worker's side.
pub struct Mailbox {
    pub(super) requests: Receiver<Command>,
    pub(super) flag: Flag,
    pub(super) retired: Arc<ArrayQueue<Arc<Snapshot>>>,
}

impl Mailbox {
    /// True when there may be requests. One relaxed load in the usual case.
    #[inline(always)]
    pub(super) fn is_marked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The next request. Clears the mark before it looks, so that none is overlooked.
    pub(super) fn next(&self) -> Option<Command> {
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
    requests: Sender<Command>,
    flag: Flag,
    retired: Arc<ArrayQueue<Arc<Snapshot>>>,
}

/// The worker is gone.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the worker thread has ended; restart the switch")]
pub struct WorkerGone;

impl Handle {
    /// Posts a request; waits while the mailbox is full.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub fn post(&self, command: Command) -> Result<(), WorkerGone> {
        let result = self.requests.send(command).map_err(|_| WorkerGone);
        self.flag.store(true, Ordering::SeqCst);
        result
    }

    /// Posts a request unless the mailbox is full; then it is given up. For packets that may be lost.
    pub fn offer(&self, command: Command) -> bool {
        let sent = !matches!(
            self.requests.try_send(command),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
        );
        self.flag.store(true, Ordering::SeqCst);
        sent
    }

    /// Posts a request that is answered, and waits for the answer.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Command) -> Result<T, WorkerGone> {
        let (reply, answer) = bounded(1);
        self.post(request(reply))?;
        answer.recv().map_err(|_| WorkerGone)
    }

    /// Frees the snapshots that the worker has finished with.
    pub fn free_retired(&self) {
        while let Some(snapshot) = self.retired.pop() {
            drop(snapshot);
        }
    }
}

/// Both sides of a new mailbox.
pub fn mailbox() -> (Handle, Mailbox) {
    let (sender, receiver) = bounded(DEPTH);
    let flag = Flag::default();
    let retired = Arc::new(ArrayQueue::new(RETIRED));
    (
        Handle { requests: sender, flag: flag.clone(), retired: retired.clone() },
        Mailbox { requests: receiver, flag, retired },
    )
}
