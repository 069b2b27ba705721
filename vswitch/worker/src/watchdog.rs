//! The watchdog: a thread of its own that sees who stands still, workers and control alike.
//!
//! It asks nobody anything: a worker counts its polls, control its turns, and a count that does not move for a while is
//! said in the log, once, and again when it moves. Control takes what was said for `show events`. It ends nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crossbeam::queue::ArrayQueue;

use super::WorkerStats;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);
/// Who does not move for so long is reported.
const STALLED: Duration = Duration::from_secs(2);
/// Reports that wait for control.
const REPORTS: usize = 64;

/// Who is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedThread {
    /// A worker, by its number, on its core.
    Worker(usize, usize),
    /// The thread that divides rates.
    Divider,
    /// The control thread.
    Control,
}

impl fmt::Display for WatchedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(worker, core) => write!(f, "worker {worker} on core {core}"),
            Self::Divider => f.write_str("the thread that divides rates"),
            Self::Control => f.write_str("the control thread"),
        }
    }
}

/// Somebody stands still, or is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallReport {
    pub thread: WatchedThread,
    /// How long it has stood still, while it does; `None`: it is back.
    pub stalled: Option<Duration>,
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, stalled } = self;
        match stalled {
            Some(time) => {
                let why = match thread {
                    WatchedThread::Worker(..) | WatchedThread::Divider => {
                        "is its core taken by something else?"
                    }
                    WatchedThread::Control => {
                        "a port or a file keeps it waiting, or its core is taken by something else;"
                    }
                };
                let seconds = time.as_secs_f64();
                write!(f, "{thread} has stood still for {seconds:.1} s: {why} all others go on")
            }
            None => write!(f, "{thread} is back"),
        }
    }
}

/// The thread, as its owner holds it; it ends with this.
pub struct Watchdog {
    control: Arc<AtomicU64>,
    reports: Arc<ArrayQueue<StallReport>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches these workers (core and counters, in order of their numbers), the thread that divides rates (its turns),
    /// and the caller.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(
        workers: impl Iterator<Item = (usize, Arc<WorkerStats>)>,
        divider: Arc<AtomicU64>,
    ) -> std::io::Result<Self> {
        let control = Arc::new(AtomicU64::new(0));
        let reports = Arc::new(ArrayQueue::new(REPORTS));
        let (stop, stopped) = bounded(0);
        let of_control = control.clone();
        let mut watched =
            vec![Heartbeat::new(WatchedThread::Control, move || of_control.load(Ordering::Relaxed))];
        watched.push(Heartbeat::new(WatchedThread::Divider, move || divider.load(Ordering::Relaxed)));
        for (number, (core, stats)) in workers.enumerate() {
            watched.push(Heartbeat::new(WatchedThread::Worker(number, core), move || stats.polls.get()));
        }
        let told = reports.clone();
        let body = move || watch(&mut watched, &stopped, &told);
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(body)?;
        Ok(Self { control, reports, stop: Some(stop), thread: Some(thread) })
    }

    /// Control has had a turn.
    pub fn turn(&self) {
        self.control.fetch_add(1, Ordering::Relaxed);
    }

    /// What was reported since this was called last.
    pub fn reports(&self) -> impl Iterator<Item = StallReport> + '_ {
        std::iter::from_fn(|| self.reports.pop())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(watched: &mut [Heartbeat], stopped: &Receiver<()>, told: &ArrayQueue<StallReport>) {
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        for report in watched.iter_mut().filter_map(|watched| watched.look(Instant::now())) {
            match report.stalled {
                Some(_) => tracing::error!("{report}"),
                None => tracing::info!("{report}"),
            }
            // The oldest gives way where control takes none.
            told.force_push(report);
        }
    }
}

/// One that is watched.
struct Heartbeat {
    thread: WatchedThread,
    beats: Box<dyn Fn() -> u64 + Send>,
    last: u64,
    since: Instant,
    stalled: bool,
}

impl Heartbeat {
    fn new(thread: WatchedThread, beats: impl Fn() -> u64 + Send + 'static) -> Self {
        Self { thread, last: beats(), beats: Box::new(beats), since: Instant::now(), stalled: false }
    }

    /// What there is to say of it now.
    fn look(&mut self, now: Instant) -> Option<StallReport> {
        let beats = (self.beats)();
        let time = now.saturating_duration_since(self.since);
        if beats != self.last {
            (self.last, self.since) = (beats, now);
            return std::mem::take(&mut self.stalled)
                .then_some(StallReport { thread: self.thread, stalled: None });
        }
        if self.stalled || time <= STALLED {
            return None;
        }
        self.stalled = true;
        Some(StallReport { thread: self.thread, stalled: Some(time) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_who_stands_still_is_reported_once_and_when_it_is_back() {
        let beats = Arc::new(AtomicU64::new(0));
        let of_worker = beats.clone();
        let mut watched =
            Heartbeat::new(WatchedThread::Worker(1, 3), move || of_worker.load(Ordering::Relaxed));
        let start = watched.since;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watched.look(at(1)), None);
        let report = watched.look(at(3)).unwrap();
        assert!(report.to_string().contains("worker 1 on core 3 has stood still for 3.0 s"), "{report}");
        assert_eq!(watched.look(at(4)), None, "once");
        beats.store(7, Ordering::Relaxed);
        assert_eq!(watched.look(at(5)).unwrap().to_string(), "worker 1 on core 3 is back");
        assert_eq!(watched.look(at(6)), None);
        assert!(watched.look(at(8)).is_some(), "again, the next time");
    }

    /// Control itself may be what stands still: the thread is its own.
    #[test]
    fn repair_the_watchdog_lives_beside_control() {
        let watchdog = Watchdog::start(std::iter::empty(), Arc::default()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = Vec::new();
        while seen.is_empty() && Instant::now() < until {
            std::thread::sleep(EVERY);
            seen.extend(watchdog.reports().filter(|report| report.thread == WatchedThread::Control));
        }
        assert_eq!(seen[0].thread, WatchedThread::Control);
        while seen.len() < 2 && Instant::now() < until {
            watchdog.turn();
            std::thread::sleep(EVERY);
            seen.extend(watchdog.reports().filter(|report| report.thread == WatchedThread::Control));
        }
        assert_eq!(seen[1], StallReport { thread: WatchedThread::Control, stalled: None });
    }
}
