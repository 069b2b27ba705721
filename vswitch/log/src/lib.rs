//! The log: lines on their way to standard error, which the service manager keeps.
//!
//! Who logs never waits for who reads. A line goes into a queue, which is bounded, and a thread of its own writes it. Where nobody
//! reads, the queue fills; what comes then is lost until all of it is written, and how many lines that were stands in the log at
//! their place. The end of the process and a panic wait for what is queued, but not for long, and an error still less: what comes
//! after one may end the process at once, in DPDK, say.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Bytes of lines that wait.
const ROOM: usize = 1 << 20;
/// Beyond that, for the last words of threads.
const RESERVE: usize = 64 << 10;
/// How long a line may take while somebody waits for the lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long all of them may.
const LONGEST: Duration = Duration::from_secs(5);
/// How long an error is waited for.
const SOON: Duration = Duration::from_millis(20);
/// Between two attempts to write to what somebody else has set not to wait.
const AGAIN: Duration = Duration::from_millis(10);

static LOG: Log = Log::new();

/// Has what is logged from now on written to standard error, and panics told there; `RUST_LOG` chooses what.
///
/// # Errors
/// Why there is no thread for it.
pub fn start() -> io::Result<()> {
    // Not the standard library's, whose lock is held as long as a write takes.
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    std::thread::Builder::new().name("log".into()).spawn(move || LOG.write_out(out))?;
    LOG.lock().is_written = true;
    std::panic::set_hook(Box::new(tell_panic));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Lines)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // A word about what cannot be logged would go the same way, and `eprintln` panics.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// Says a line on standard error, whatever the log leaves out: behind what was logged, or at once in a process that has no log.
pub fn say(line: &str) {
    let line = format!("{line}\n");
    let mut queue = LOG.lock();
    if queue.is_written {
        queue.add_last(line.as_bytes());
        LOG.more.notify_one();
    } else {
        drop(queue);
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Waits until everything is written, but not for long where nobody reads: for what ends the process.
pub fn finish() {
    LOG.finish();
}

/// The thread that writes shares the core of the calling thread from now on, if that has one of its own: those of the workers are theirs.
pub fn share_core() {
    if let [core] = pmd::lcore::of_current_thread()[..] {
        LOG.lock().core = Some(core);
        LOG.more.notify_one();
    }
}

/// As the standard hook does it, which waits until it is read.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        // Nothing fails that writes into a string.
        let _ = write!(text, "\n{backtrace}");
    }
    say(&text);
    // Nobody knows whether anything comes after it.
    finish();
}

/// Writes lines into the log.
struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { is_error: false }
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> Line {
        Line { is_error: *meta.level() == Level::ERROR }
    }
}

struct Line {
    is_error: bool,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.add(line);
        if self.is_error {
            LOG.wait(SOON, SOON);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Log {
    queue: Mutex<Queue>,
    /// There is something to do for the thread that writes.
    more: Condvar,
    /// A line was written.
    written: Condvar,
}

struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// All of them.
    bytes: usize,
    /// Nothing is taken before all of them are on their way.
    full: bool,
    /// Lines that are in no queue and were not written, as far as that was not told.
    lost: u64,
    /// When the line that is being written was begun.
    since: Option<Instant>,
    /// The core that the thread that writes is to run on.
    core: Option<usize>,
    /// There is such a thread.
    is_written: bool,
}

impl Queue {
    fn add(&mut self, line: &[u8]) {
        self.full |= !self.lines.is_empty() && self.bytes + line.len() > ROOM;
        match self.full {
            true => self.lost += 1,
            false => self.push(line),
        }
    }

    /// Also when it is full, in reason.
    fn add_last(&mut self, line: &[u8]) {
        match self.bytes + line.len() > ROOM + RESERVE {
            true => self.lost += 1,
            false => self.push(line),
        }
    }

    fn push(&mut self, line: &[u8]) {
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
    }
}

impl Log {
    const fn new() -> Self {
        let queue = Queue {
            lines: VecDeque::new(),
            bytes: 0,
            full: false,
            lost: 0,
            since: None,
            core: None,
            is_written: false,
        };
        Self { queue: Mutex::new(queue), more: Condvar::new(), written: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nobody panics with it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8]) {
        self.lock().add(line);
        self.more.notify_one();
    }

    /// Writes all lines, for ever.
    fn write_out(&self, mut out: impl Write) {
        loop {
            let line = self.next();
            match put(&mut out, &line) {
                Ok(()) => self.tell_lost(&mut out),
                // Nobody can be told, until something is written again.
                Err(_) => self.lock().lost += 1,
            }
            self.lock().since = None;
            self.written.notify_all();
        }
    }

    /// The next line, when there is one.
    fn next(&self) -> Vec<u8> {
        let mut queue = self.lock();
        loop {
            if let Some(core) = queue.core.take() {
                drop(queue);
                // Where it does not go there, it is written from another one.
                let _ = pmd::lcore::pin_current_thread(core);
                queue = self.lock();
                continue;
            }
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                queue.full &= !queue.lines.is_empty();
                queue.since = Some(Instant::now());
                return line;
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says how many lines are missing, behind the last one before them.
    fn tell_lost(&self, out: &mut impl Write) {
        let mut queue = self.lock();
        if queue.full || queue.lost == 0 {
            return;
        }
        let lost = std::mem::take(&mut queue.lost);
        drop(queue);
        if put(out, lost_line(lost).as_bytes()).is_err() {
            self.lock().lost += lost;
        }
    }

    fn finish(&self) {
        self.wait(PATIENCE, LONGEST);
    }

    /// Waits until everything is written, so long for a line at most, and for all of them. One that has taken longer by now is not
    /// waited for.
    fn wait(&self, patience: Duration, longest: Duration) {
        let began = Instant::now();
        let mut queue = self.lock();
        while !queue.lines.is_empty() || queue.since.is_some() {
            let until = (queue.since.unwrap_or(began) + patience).min(began + longest);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.written.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// In the form of the others.
fn lost_line(lost: u64) -> String {
    let mut line = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    line + &format!(
        "  WARN lines of the log were lost: they were not read in time, or could not be written lost={lost}\n"
    )
}

/// Writes a line, in one piece where whoever takes it does that.
fn put(out: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
