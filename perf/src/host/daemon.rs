//! This project's daemon as a child process, asked through its own console.
//!
//! It is started on a config made for the measurement. What is in the config, and what the answers mean, is the
//! caller's business. The console is the program's own, whatever version that is: builds of other versions are measured, too.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::cores::Cores;
use super::process::{Placement, Process};
use super::scratch::RunFolder;
use crate::{Error, Result};

const LIMIT: Duration = Duration::from_secs(20);
const REMEDY: &str = "build it (cargo build --release -p vswitch) or name it with --vswitch";

/// Where and as whom a daemon runs.
#[derive(Debug)]
pub struct DaemonSetup<'a> {
    pub program: &'a Path,
    pub folder: &'a Path,
    /// Its EAL file prefix, which no other process has.
    pub prefix: &'a str,
    /// The cores it may use: one for its control thread, one for its worker.
    pub cores: Cores,
    /// The network namespace it runs in, by its name; ours otherwise.
    pub netns: Option<&'a str>,
}

impl DaemonSetup<'_> {
    /// Where its control socket will be; the config must say the same.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("vswitch.sock")
    }
}

#[derive(Debug)]
pub struct Daemon {
    process: Process,
    console: Process,
    socket: PathBuf,
    // Goes after the process.
    _run_folder: RunFolder,
}

impl Daemon {
    /// Writes the config, starts the daemon and waits for its control socket.
    pub fn start(setup: &DaemonSetup<'_>, config: &str) -> Result<Self> {
        let socket = setup.socket();
        let path = setup.folder.join("vswitch.toml");
        std::fs::write(&path, config).map_err(Error::io(format!("write {}", path.display())))?;
        let program = setup.program.display().to_string();
        let arguments = ["run".to_owned(), "--config".to_owned(), path.display().to_string()];
        let placement = Placement { cores: Some(setup.cores), netns: setup.netns, ..Placement::default() };
        let run_folder = RunFolder(setup.prefix.to_owned());
        let mut process = Process::start(&program, &arguments, &[], placement, REMEDY)?;
        process.await_found("its control socket", LIMIT, || Ok(UnixStream::connect(&socket).ok()))?;
        let arguments = ["console", "--json", "--socket", &socket.display().to_string()].map(str::to_owned);
        let placement = Placement { cores: Some(setup.cores), ..Placement::default() };
        let console = Process::start(&program, &arguments, &[], placement, REMEDY)?;
        Ok(Self { process, console, socket, _run_folder: run_folder })
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The answer to a console command, as JSON; one that is a list and nothing else is that list.
    pub fn ask(&mut self, command: &str) -> Result<Value> {
        self.process.check_alive()?;
        self.console.forget_output();
        self.console.type_line(command)?;
        let what = format!("the answer to `{command}`");
        let line = self.console.await_output(&what, LIMIT, |lines| lines.front().cloned())?;
        let answer = serde_json::from_str(&line);
        answer.map(alone).map_err(|_| Error::refused(format!("`{command}`: {line}")))
    }
}

/// The list that is all there is in an answer; else the answer.
fn alone(answer: Value) -> Value {
    match answer {
        Value::Object(fields) if fields.len() == 1 && fields.values().all(Value::is_array) => {
            fields.into_iter().next().map(|(_, list)| list).unwrap_or_default()
        }
        answer => answer,
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.console.end_input();
        self.process.terminate(Duration::from_secs(5));
        let _ = std::fs::remove_file(&self.socket);
    }
}
