//! Programs that scenarios run: to the end with their output, or beside the test with their output in a file.
//!
//! Every child gets a parent-death signal (setpriv), so that a killed test leaves none behind. Children are started from
//! the test's own thread only, because that signal is bound to the thread that forked.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A command line that dies with the test: `setpriv --pdeathsig KILL -- program args`.
pub fn bound_to_us<S: AsRef<str>>(args: &[S]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(args.iter().map(AsRef::as_ref)).stdin(Stdio::null());
    command
}

/// Has the calling thread, and every child that it starts from now on, come before all others on their cores (`SCHED_RR`), where
/// that is allowed: for scenarios about protocols that count a late packet as a lost one. What they run sleeps most of the time.
#[track_caller]
pub fn hurry() {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_else(|e| panic!("which thread is this? {e}"));
    let number = thread.file_name().unwrap_or_default().to_string_lossy().into_owned();
    drop(try_run(&["chrt", "--rr", "--pid", "1", &number]));
}

/// Runs a command to its end, for at most a minute, and returns what it said; fails the test when it fails.
#[track_caller]
pub fn run<S: AsRef<str>>(args: &[S]) -> String {
    let output = try_run(args);
    let line: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    assert!(
        output.status.success(),
        "'{}' failed ({}):\n{}{}",
        line.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command to its end, for at most a minute, whatever comes of it.
#[track_caller]
pub fn try_run<S: AsRef<str>>(args: &[S]) -> Output {
    let mut bounded = vec!["timeout", "--kill-after=2", "60"];
    bounded.extend(args.iter().map(AsRef::as_ref));
    bound_to_us(&bounded).output().unwrap_or_else(|e| {
        panic!("cannot run {}: {e} (scripts/bootstrap installs what is needed)", bounded[3])
    })
}

/// Fails the test unless it runs as root, which namespaces and packet sockets need.
#[track_caller]
pub fn need_root() {
    use std::os::unix::fs::MetadataExt;
    let uid = fs::metadata("/proc/self").map(|m| m.uid()).unwrap_or(u32::MAX);
    assert!(uid == 0, "scenarios make network namespaces and need root: run 'sudo scripts/test'");
}

/// A program running beside the test.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    finished: Option<ExitStatus>,
}

impl Process {
    /// Starts it with both outputs in the file `log`.
    #[track_caller]
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> Process {
        let file = fs::File::create(&log).unwrap_or_else(|e| panic!("cannot make {}: {e}", log.display()));
        let errors = file.try_clone().unwrap_or_else(|e| panic!("cannot share {}: {e}", log.display()));
        let child = command.stdout(file).stderr(errors).spawn().unwrap_or_else(|e| {
            panic!("cannot start {name}: {e} (scripts/bootstrap installs what is needed)")
        });
        Process { name: name.to_owned(), child, log, finished: None }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote so far.
    pub fn output(&self) -> String {
        fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Its exit status when it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.finished.is_none() {
            self.finished = self.child.try_wait().ok().flatten();
        }
        self.finished
    }

    /// Waits until it wrote `text`; fails the test when it ends or stays silent.
    #[track_caller]
    pub fn wait_output(&mut self, text: &str, limit: Duration) {
        let end = Instant::now() + limit;
        while !self.output().contains(text) {
            if let Some(status) = self.exited() {
                panic!("{} ended ({status}) before it said '{text}':\n{}", self.name, self.output());
            }
            assert!(
                Instant::now() < end,
                "{} did not say '{text}' in {limit:?}:\n{}",
                self.name,
                self.output()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends it a signal by name ("TERM", "INT", "KILL").
    #[track_caller]
    pub fn signal(&self, signal: &str) {
        run(&["kill", &format!("-{signal}"), &self.pid().to_string()]);
    }

    /// Waits for its end; fails the test when `limit` passes first.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(Instant::now() < end, "{} did not end in {limit:?}:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_to_speak_and_to_end() {
        let dir = crate::Workdir::new("process");
        let command = bound_to_us(&["sh", "-c", "echo ready; exec sleep 60"]);
        let mut process = Process::spawn("sleeper", command, dir.path().join("log"));
        process.wait_output("ready", Duration::from_secs(5));
        assert!(process.exited().is_none());
        process.signal("TERM");
        assert!(!process.wait(Duration::from_secs(5)).success());
    }

    #[test]
    fn a_failing_command_is_told_apart() {
        assert_eq!(run(&["echo", "hello"]), "hello\n");
        assert!(!try_run(&["false"]).status.success());
    }
}
