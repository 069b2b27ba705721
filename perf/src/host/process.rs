//! A child process that dies with us, speaks over pipes, and can be frozen while another one is measured.
//!
//! Children are started through `setpriv --pdeathsig KILL` so that they die even when `perf` is killed, and through
//! `setsid`, `nice` and a word to the kernel's scheduler so that they win their cores over everything else that wants them. It
//! knows nothing of what the child does.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cores::Cores;
use super::interrupt;
use crate::{Error, Result};

/// How many lines of output are kept for a reader or an error message.
const KEPT_LINES: usize = 4096;

/// Where the kernel groups tasks by session, niceness counts within the session only; the group has its own.
const GROUP: &str = "/proc/self/autogroup";
/// Has a child win its cores before it becomes what it is to be: consoles, too, for beside workers they would wait for seconds.
const WIN_CORES: &str = "if [ -w \"$0\" ]; then echo -20 > \"$0\" || :; fi; exec \"$@\"";

/// Where a child runs and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct Placement<'a> {
    pub own_network: bool,
    /// In this network namespace, by its name; otherwise where we are.
    pub netns: Option<&'a str>,
    /// With line-buffered output (for programs that buffer on a pipe).
    pub line_buffered: bool,
    /// On these two cores, for programs that take no core that they were not given; otherwise where we are.
    pub cores: Option<Cores>,
}

/// A running child; dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines,
}

/// Lines of output that nobody has forgotten.
type Lines = Arc<Mutex<VecDeque<String>>>;

fn lock(lines: &Lines) -> MutexGuard<'_, VecDeque<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes in what comes through a pipe, on a thread of its own.
fn follow(lines: &Lines, stream: impl Read + Send + 'static) {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let mut lines = lock(&lines);
            if lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(String::from_utf8_lossy(&line).into_owned());
        }
    });
}

impl Process {
    /// Starts `program` with `arguments` and environment additions.
    pub fn start(
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
        placement: Placement<'_>,
        remedy: &'static str,
    ) -> Result<Self> {
        let mut words: Vec<&str> = vec!["setpriv", "--pdeathsig", "KILL", "setsid", "nice", "-n", "-20"];
        words.extend(["sh", "-c", WIN_CORES, GROUP]);
        let cores = placement.cores.map(|cores| format!("{},{}", cores.housekeeping, cores.forwarding));
        if let Some(cores) = &cores {
            words.extend(["taskset", "-c", cores]);
        }
        if placement.own_network {
            words.extend(["unshare", "--net"]);
        }
        if let Some(netns) = placement.netns {
            words.extend(["ip", "netns", "exec", netns]);
        }
        if placement.line_buffered {
            words.extend(["stdbuf", "-oL"]);
        }
        words.push(program);
        // The wrappers would report a missing program as their own failure, later and less clearly.
        if !findable(program) {
            return Err(cannot_start(program, remedy)(std::io::ErrorKind::NotFound.into()));
        }
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(arguments)
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot_start(program, remedy))?;
        let lines = Lines::default();
        child.stdout.take().into_iter().for_each(|stream| follow(&lines, stream));
        child.stderr.take().into_iter().for_each(|stream| follow(&lines, stream));
        let stdin = child.stdin.take();
        Ok(Self { name: program.rsplit('/').next().unwrap_or(program).to_owned(), child, stdin, lines })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn forget_output(&mut self) {
        lock(&self.lines).clear();
    }

    pub fn type_line(&mut self, line: &str) -> Result<()> {
        let Some(stdin) = self.stdin.as_mut() else { return Ok(()) };
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .map_err(Error::io(format!("type into {}", self.name)))
    }

    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Waits until `find` makes something of the output since it was last forgotten.
    pub fn await_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&VecDeque<String>) -> Option<T>,
    ) -> Result<T> {
        let lines = Arc::clone(&self.lines);
        self.await_found(what, limit, || Ok(find(&lock(&lines))))
    }

    /// The same of a program that may end as soon as it has said everything.
    pub fn await_last_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&VecDeque<String>) -> Option<T>,
    ) -> Result<T> {
        match self.await_output(what, limit, &mut find) {
            // What it said last may still be on its way through the pipe, longer on a busy machine.
            Err(ended @ Error::Ended(_)) => {
                interrupt::until(Duration::from_secs(5), || Ok(find(&lock(&self.lines))))?.ok_or(ended)
            }
            found => found,
        }
    }

    /// Waits until `ready` says so, looking every few milliseconds.
    pub fn await_that(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        self.await_found(what, limit, || Ok(ready()?.then_some(())))
    }

    /// Waits until something is found, looking every few milliseconds.
    pub fn await_found<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            self.check_alive()?;
            if Instant::now() > end {
                let (seconds, program, words) = (limit.as_secs(), &self.name, self.last_words());
                return Err(Error::Failed(format!(
                    "waited {seconds} s for {what}; the last words of {program}:\n{words}"
                )));
            }
            interrupt::pause(Duration::from_millis(10))?;
        }
    }

    /// Fails if the child has ended or the user has asked to stop.
    pub fn check_alive(&mut self) -> Result<()> {
        interrupt::check()?;
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                // Its last lines may still be on their way through the pipe.
                std::thread::sleep(Duration::from_millis(50));
                let (program, words) = (&self.name, self.last_words());
                Err(Error::Ended(format!("{program} ended early ({status}); its last words:\n{words}")))
            }
            Err(reason) => Err(Error::io(format!("wait for {}", self.name))(reason)),
        }
    }

    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Asks it to end and gives it `limit` for that; what is left is killed on drop.
    pub fn terminate(&mut self, limit: Duration) {
        let _ = self.thaw();
        let _ = self.signal(Signal::SIGTERM);
        let end = Instant::now() + limit;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap_or(i32::MAX));
        let error = Error::io(format!("signal {}", self.name));
        kill(pid, signal).map_err(|errno| error(errno.into()))
    }

    fn last_words(&self) -> String {
        let lines = lock(&self.lines);
        lines.iter().skip(lines.len().saturating_sub(12)).map(|line| format!("  {line}\n")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets this process win its core, as each child does.
pub fn favour_this() {
    let pid = std::process::id();
    if let Err(error) = run("renice", &["-n", "-20", "-p", &pid.to_string()], &[]) {
        eprintln!("cannot raise the priority of perf: {error}; it will be late more often");
    }
    if std::path::Path::new(GROUP).exists()
        && let Err(error) = std::fs::write(GROUP, "-20")
    {
        eprintln!("cannot raise the priority of perf: {error}; noisy samples are more likely");
    }
}

/// Runs a helper program to its end and returns what it printed.
pub fn run(program: &str, arguments: &[&str], environment: &[(String, String)]) -> Result<String> {
    interrupt::check()?;
    let output = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .output()
        .map_err(cannot_start(program, "run scripts/bootstrap"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(failed(&format!("{program} {}", arguments.join(" ")), &String::from_utf8_lossy(&words)))
}

/// A helper program reported failure.
pub(super) fn failed(command: &str, words: &str) -> Error {
    Error::Failed(format!("`{command}` failed: {}", words.trim()))
}

fn cannot_start(program: &str, remedy: &str) -> impl FnOnce(std::io::Error) -> Error {
    move |reason| Error::missing(format!("cannot start {program}: {reason}"), remedy)
}

/// The first line of what a program says, as of its version.
pub fn said(program: &str, arguments: &[&str]) -> Result<String> {
    Ok(run(program, arguments, &[])?.lines().next().unwrap_or_default().to_owned())
}

/// Whether a program is there, by its path or among those of `PATH`.
pub fn findable(program: &str) -> bool {
    if program.contains('/') {
        return std::path::Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Process {
        let arguments = ["-c".to_owned(), script.to_owned()];
        Process::start("sh", &arguments, &[], Placement::default(), "install a shell").unwrap()
    }

    #[test]
    fn talks_over_pipes() {
        let mut process = sh("while read line; do echo got $line; done");
        process.type_line("hello").unwrap();
        let line =
            process.await_output("an echo", Duration::from_secs(5), |lines| lines.back().cloned()).unwrap();
        assert_eq!(line, "got hello");
    }

    #[test]
    fn reports_an_early_end_with_the_last_words() {
        let mut process = sh("echo no such device; exit 3");
        let error = process.await_output("readiness", Duration::from_secs(5), |_| None::<()>).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Ended { .. }) && text.contains("no such device"), "{text}");
    }

    #[test]
    fn hears_out_a_program_that_has_ended() {
        let mut process = sh("echo first; echo last");
        process.check_alive().ok();
        let line = process.await_last_output("its last line", Duration::from_secs(5), |lines| {
            lines.iter().find(|line| *line == "last").cloned()
        });
        assert_eq!(line.unwrap(), "last");
    }

    #[test]
    fn names_a_missing_program_and_the_remedy() {
        let error =
            Process::start("no-such-switch", &[], &[], Placement::default(), "install it").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no-such-switch") && text.contains("install it"), "{text}");
    }

    #[test]
    fn dropping_kills() {
        let process = sh("sleep 1000");
        let proc = format!("/proc/{}", process.pid());
        assert!(std::path::Path::new(&proc).exists());
        drop(process);
        assert!(!std::path::Path::new(&proc).exists());
    }
}
