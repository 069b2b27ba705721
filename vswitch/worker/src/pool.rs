//! The workers of a switch, as control holds them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use pipelines::Now;
use pipelines::burst::{Burst, MAX_BURST};
use pipelines::connections::{Connections, WorkerConnections};
use pipelines::counters::PipelineCounters;
use pipelines::event::Events;
use pipelines::fragments::Fragments;
use pipelines::ledger::LedgerParams;
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Dhtb, Divider, Tree, TreeSize};
use pipelines::rcft::{Rcft, RcftParams, RcftShared};
use pipelines::snapshot::Snapshot;
use pmd::{Clock, Eal, Moment, rdtsc};

use super::divider::DividerThread;
use super::mailbox::{Handle, Mode, WorkerCommand, WorkerError, mailbox};
use super::repeat::Repeats;
use super::run::Worker;
use super::rx::RxPaths;
use super::stats::WorkerStats;
use super::tx::TxPaths;
use super::{MAX_VNICS, MAX_VPCS};

/// Datagrams whose fragments may be in flight at once.
const FRAGMENTS: usize = 16_384;
/// How long the TSC is compared with the system's clock.
const CALIBRATION: Duration = Duration::from_millis(20);
/// How long workers may take to end: what they hold goes out first.
const ENDING: Duration = Duration::from_secs(5);

/// How long a worker may take to have its core.
const LAUNCH: Duration = Duration::from_secs(10);

/// How workers are made.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// One worker on each of these cores.
    pub cores: Vec<usize>,
    /// Sleep when idle instead of polling on.
    pub may_sleep: bool,
    /// Most packets of a burst.
    pub burst: usize,
    /// Size and aging of each NFT.
    pub nft: NftParams,
    /// Queue pairs of the host that RCFT has room for.
    pub queue_pairs: u32,
    /// Connections of security groups that the host can have.
    pub connections: u32,
    /// Packet buffers that may wait for tokens on each worker.
    pub shaped_buffers: u32,
}

/// A worker as control sees it.
pub struct WorkerHandle {
    pub core: usize,
    pub stats: Arc<WorkerStats>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Requests go here.
    pub fn mailbox(&self) -> &Handle {
        &self.handle
    }

    /// False after the thread ended.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

pub struct Pool {
    /// The workers, in order of their numbers.
    pub workers: Vec<WorkerHandle>,
    /// What workers tell control.
    pub events: Events,
    /// The RC flow table, as far as workers share it.
    pub rcft: Arc<RcftShared>,
    /// The connections of security groups.
    pub connections: Arc<Connections>,
    /// The tree of rates.
    pub tree: Arc<Tree>,
    /// The calibrated TSC.
    pub clock: Clock,
    /// Divides the tree's rates.
    pub divider: DividerThread,
    /// When the workers' time began.
    epoch: u64,
}

/// A thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The thread was not created.
    #[error(
        "cannot start the thread of worker {worker}: {source}; raise the limit of threads (`ulimit -u`, or pids.max)"
    )]
    Thread {
        /// Number of the worker.
        worker: usize,
        source: std::io::Error,
    },
    /// The thread that divides rates was not created.
    #[error(
        "cannot start the thread that divides rates: {0}; raise the limit of threads (`ulimit -u`, or pids.max)"
    )]
    Divider(std::io::Error),
    /// The thread could not take its core.
    #[error("worker {worker}: {reason}")]
    Core {
        /// Number of the worker.
        worker: usize,
        /// Why, and what to do.
        reason: String,
    },
}

impl Pool {
    /// Starts the workers; they poll nothing yet.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn start(eal: &Eal, spec: &WorkerSpec, snapshot: &Arc<Snapshot>) -> Result<Self, PoolError> {
        let events = Events::new(4096, MAX_VNICS);
        let fragments = Arc::new(Fragments::new(FRAGMENTS, spec.nft.seed.rotate_left(47)));
        let clock = Clock::calibrate(CALIBRATION);
        let advise = |start, len| {
            if let Err(error) = pmd::hugepage::advise_range(start, len) {
                tracing::debug!(%error, "no transparent huge pages for a table");
            }
        };
        let config = RcftParams {
            entries: spec.queue_pairs,
            vnics: MAX_VNICS as u32,
            workers: spec.cores.len() as u32,
            seed: spec.nft.seed.rotate_left(17),
        };
        let rcft = RcftShared::new(config, &advise);
        let params = LedgerParams {
            entries: spec.connections,
            vnics: MAX_VNICS as u32,
            workers: spec.cores.len() as u32,
            seed: spec.nft.seed.rotate_left(11),
        };
        let connections = Arc::new(Connections::new(&params, &advise));
        let seed = spec.nft.seed.rotate_left(31);
        let size = TreeSize { tenants: MAX_VPCS as u32, vnics: MAX_VNICS as u32 };
        let tree = Arc::new(Tree::new(size, &advise));
        let began = Moment::now();
        let epoch = clock.tsc_at(began);
        let divider = DividerThread::start(Divider::new(tree.clone()), move || time(clock, epoch).ns)
            .map_err(PoolError::Divider)?;
        let mut pool = Self {
            workers: Vec::new(),
            events,
            rcft: rcft.clone(),
            connections: connections.clone(),
            tree: tree.clone(),
            clock,
            divider,
            epoch,
        };
        for (number, &core) in spec.cores.iter().enumerate() {
            let counters = Arc::new(PipelineCounters::new(MAX_VNICS));
            let stats = Arc::new(WorkerStats::new(counters.clone()));
            let (handle, mailbox) = mailbox(number, core);
            let config = OverlayConfig { nft: spec.nft, vnics: MAX_VNICS, vpcs: MAX_VPCS };
            let rcft = Rcft::new(rcft.clone(), number as u32, &advise);
            let connections = WorkerConnections::new(connections.clone(), number as u32);
            let dhtb = Dhtb::new(tree.clone(), spec.shaped_buffers, seed ^ number as u64);
            let parts = OverlayParts {
                fragments: fragments.clone(),
                connections,
                rcft,
                dhtb,
                events: pool.events.clone(),
                counters,
            };
            let worker = Worker {
                mailbox,
                snapshot: snapshot.clone(),
                overlay: Overlay::new(&config, parts, &advise),
                stats: stats.clone(),
                tx: TxPaths::new(stats.clone()),
                rx: RxPaths::new(stats.clone()),
                burst: Burst::default(),
                burst_size: spec.burst.clamp(1, MAX_BURST),
                clock,
                began,
                epoch,
                repeats: Repeats::default(),
                mode: Mode::default(),
                forwarding: false,
                watching: false,
                may_sleep: spec.may_sleep,
            };
            let thread = launch(eal, worker, number, core)?;
            pool.workers.push(WorkerHandle { core, stats, handle, thread: Some(thread) });
        }
        Ok(pool)
    }

    /// The time as the workers have it.
    pub fn now(&self) -> Now {
        time(self.clock, self.epoch)
    }

    /// Posts one request to every worker, also behind one that does not take it.
    ///
    /// # Errors
    /// [`WorkerError`] of the first that did not.
    pub fn post_all(&self, mut request: impl FnMut() -> WorkerCommand) -> Result<(), WorkerError> {
        self.of_all(|handle| handle.post(request()))
    }

    /// Waits until every worker has done what was posted so far.
    ///
    /// # Errors
    /// [`WorkerError`] of the first that has not.
    pub fn barrier(&self) -> Result<(), WorkerError> {
        self.of_all(|handle| handle.ask(WorkerCommand::Barrier))
    }

    /// True while a worker does not answer, as far as is known: one that was waited for in vain, and has not moved since.
    pub fn has_silent(&self) -> bool {
        self.workers.iter().any(|worker| worker.handle.is_silent())
    }

    /// Publishes a configuration; when this returns, no worker uses an older one.
    ///
    /// # Errors
    /// [`WorkerError`]: that worker may use the older one, all others have the new one.
    pub fn publish(&self, snapshot: &Arc<Snapshot>) -> Result<(), WorkerError> {
        let posted = self.post_all(|| WorkerCommand::Snapshot(snapshot.clone()));
        let done = self.barrier();
        self.workers.iter().for_each(|worker| worker.handle.free_retired());
        posted.and(done)
    }

    /// Does it for every worker; the first error.
    fn of_all(&self, mut each: impl FnMut(&Handle) -> Result<(), WorkerError>) -> Result<(), WorkerError> {
        self.workers.iter().map(|worker| each(&worker.handle)).fold(Ok(()), Result::and)
    }

    /// Ends all workers and waits for them, but not for ever.
    ///
    /// # Errors
    /// [`WorkerError`]: that worker runs on, so that nothing it uses may go away.
    pub fn stop(&mut self) -> Result<(), WorkerError> {
        let mut result = self.of_all(|handle| match handle.post(WorkerCommand::Exit) {
            // One that ended by itself is no trouble here.
            Err(WorkerError::Gone { .. }) => Ok(()),
            posted => posted,
        });
        let until = Instant::now() + ENDING;
        for (number, worker) in self.workers.iter_mut().enumerate() {
            while worker.is_alive() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if worker.is_alive() {
                result = result.and(Err(WorkerError::Stuck { worker: number, core: worker.core }));
            } else if let Some(thread) = worker.thread.take()
                && thread.join().is_err()
            {
                tracing::error!(core = worker.core, "a worker ended by a panic");
            }
            worker.handle.free_retired();
        }
        result
    }
}

/// The time since a count of the TSC.
fn time(clock: Clock, epoch: u64) -> Now {
    Now::from_ns(clock.nanos(rdtsc().saturating_sub(epoch)))
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "a worker did not end");
        }
    }
}

/// The status of a process that ends because a worker has (`EX_SOFTWARE` of sysexits.h).
pub const WORKER_PANICKED: i32 = 70;

/// Runs the body of a thread that the switch cannot be without. A worker that panics ends the process: its queues would
/// be dead, its ports deaf, and others would wait for it; a supervisor that starts the switch again brings all of it back.
pub(super) fn guard(who: &str, body: impl FnOnce()) {
    let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) else { return };
    let words = panic.downcast_ref::<&str>().copied();
    let what = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    // Beside the log, too, which may be filtered. Where nobody takes it, the process ends all the same.
    vswitch_log::say(&format!(
        "vswitch: {who} panicked: {what}; the switch ends with status {WORKER_PANICKED}, start it again"
    ));
    tracing::error!(who, what, status = WORKER_PANICKED, "a thread panicked: the switch ends");
    // Nothing comes after this.
    vswitch_log::finish();
    // Nothing is put in order on the way: other workers are still at it.
    pmd::process::exit_now(WORKER_PANICKED)
}

/// Starts a worker's thread and waits until it has its core.
fn launch(eal: &Eal, worker: Worker, number: usize, core: usize) -> Result<JoinHandle<()>, PoolError> {
    let (ready, is_ready) = crossbeam::channel::bounded::<Result<(), String>>(1);
    let eal = eal.clone();
    let body = move || {
        let registered = pmd::lcore::register_current_thread(&eal).map_err(|error| error.to_string());
        let pinned = pmd::lcore::pin_current_thread(core).map_err(|error| error.to_string());
        match (registered, pinned) {
            (Ok(registration), Ok(())) => {
                if ready.send(Ok(())).is_err() {
                    // Too late: nobody waits for it any more.
                    return;
                }
                guard(&format!("worker {number} on core {core}"), || worker.run());
                drop(registration);
            }
            (Err(reason), _) | (_, Err(reason)) => {
                let _ = ready.send(Err(reason));
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name(format!("worker-{number}"))
        .spawn(body)
        .map_err(|source| PoolError::Thread { worker: number, source })?;
    match await_core(&is_ready, core, LAUNCH) {
        Ok(()) => Ok(thread),
        Err(reason) => Err(PoolError::Core { worker: number, reason }),
    }
}

/// Waits until a worker says that it has its core, but not for ever.
fn await_core(
    is_ready: &Receiver<Result<(), String>>,
    core: usize,
    patience: Duration,
) -> Result<(), String> {
    match is_ready.recv_timeout(patience) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Disconnected) => Err("the thread ended at once".into()),
        Err(RecvTimeoutError::Timeout) => Err(format!(
            "core {core} did not run it within {} s; something of a higher priority keeps the core, or it is offline: \
             choose another core in `[workers] cores`",
            patience.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A core that something else keeps for itself: the start ends, and says which.
    #[test]
    fn repair_a_worker_that_gets_no_core_ends_the_start() {
        let (ready, is_ready) = crossbeam::channel::bounded(1);
        let wait = Duration::from_millis(20);
        let error = await_core(&is_ready, 7, wait).unwrap_err();
        assert!(error.contains("core 7") && error.contains("[workers] cores"), "{error}");
        ready.send(Ok(())).unwrap();
        assert_eq!(await_core(&is_ready, 7, wait), Ok(()));
        ready.send(Err("no such core".into())).unwrap();
        assert_eq!(await_core(&is_ready, 7, wait).unwrap_err(), "no such core");
        drop(ready);
        assert!(await_core(&is_ready, 7, LAUNCH).unwrap_err().contains("ended"));
    }

    /// Set for the child process of a test: so many lines are logged before the panic; `none` without a log.
    const CHILD: &str = "VSWITCH_TEST_PANICKING_WORKER";

    /// This test in a process of its own, in which a worker panics.
    fn child(test: &str, lines: &str) -> Command {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("pool::tests::{test}"), "--nocapture"]);
        child.env(CHILD, lines).env_remove("RUST_LOG").stdout(Stdio::null());
        child
    }

    /// Does not come back in such a process.
    fn panic_in_child() {
        let Ok(lines) = std::env::var(CHILD) else { return };
        if let Ok(lines) = lines.parse() {
            vswitch_log::start().unwrap();
            (0..lines).for_each(|number: u32| tracing::info!("line {number:<1000}"));
        }
        let thread = std::thread::spawn(|| {
            guard("worker 3 on core 17", || {
                let empty: Vec<u32> = Vec::new();
                assert_eq!(empty.len(), 1, "the table is torn");
            });
        });
        let _ = thread.join();
        // Not reached: the process has ended.
        std::process::exit(0);
    }

    #[test]
    fn repair_a_worker_that_panics_ends_the_process_and_says_why() {
        panic_in_child();
        let test = "repair_a_worker_that_panics_ends_the_process_and_says_why";
        for lines in ["none", "100"] {
            let output = child(test, lines).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(WORKER_PANICKED), "{told}");
            assert!(
                told.contains("worker 3 on core 17 panicked") && told.contains("the table is torn"),
                "{told}"
            );
            assert!(told.contains("panicked at") && told.contains("pool.rs"), "{told}");
            let logged = told.lines().filter(|line| line.contains("INFO line ")).count();
            assert_eq!(logged, lines.parse().unwrap_or(0));
            // Where nobody takes what it says, too.
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let status = child(test, lines).stderr(full).status().unwrap();
            assert_eq!(status.code(), Some(WORKER_PANICKED));
        }
    }

    /// As something in C may do it.
    #[test]
    fn what_is_logged_as_an_error_is_written_before_the_process_ends_at_once() {
        if std::env::var_os(CHILD).is_some() {
            vswitch_log::start().unwrap();
            tracing::info!("on the way");
            tracing::error!("a device is gone");
            pmd::process::exit_now(WORKER_PANICKED);
        }
        let test = "what_is_logged_as_an_error_is_written_before_the_process_ends_at_once";
        let output = child(test, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(WORKER_PANICKED), "{told}");
        assert!(told.contains("on the way") && told.contains("a device is gone"), "{told}");
    }

    /// Whoever was to read the log hangs.
    #[test]
    fn repair_a_worker_that_panics_ends_the_process_though_nobody_reads_why() {
        panic_in_child();
        let test = "repair_a_worker_that_panics_ends_the_process_though_nobody_reads_why";
        // More than a pipe and the log hold.
        let mut child = child(test, "4000").stderr(Stdio::piped()).spawn().unwrap();
        let ended = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().unwrap()
        });
        let _ = child.kill();
        let _ = child.wait();
        let status = ended.expect("it waits to be read");
        assert_eq!(status.code(), Some(WORKER_PANICKED));
    }

    #[test]
    fn repair_a_worker_that_ends_in_order_leaves_the_process_alone() {
        let mut ran = false;
        guard("worker 0 on core 0", || ran = true);
        assert!(ran);
    }
}
