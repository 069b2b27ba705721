//! This project's daemon as a child process, asked over its control socket.
//!
//! It is started on a config made for the measurement. What is in the config, and what the answers mean, is the
//! caller's business.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

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
    control: BufReader<UnixStream>,
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
        let stream =
            process.await_found("its control socket", LIMIT, || Ok(UnixStream::connect(&socket).ok()))?;
        stream.set_read_timeout(Some(LIMIT)).map_err(Error::io("set a time limit on the control socket"))?;
        Ok(Self { process, control: BufReader::new(stream), socket, _run_folder: run_folder })
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The answer to a console command, as JSON.
    pub fn ask(&mut self, command: &str) -> Result<Value> {
        self.process.check_alive()?;
        let what = || format!("ask `{command}` on the control socket");
        let request = json!({ "id": 1, "command": command, "json": true });
        writeln!(self.control.get_mut(), "{request}").map_err(Error::io(what()))?;
        let mut line = String::new();
        self.control.read_line(&mut line).map_err(Error::io(what()))?;
        let mut answer: Value = serde_json::from_str(&line)
            .map_err(|error| Error::refused(format!("`{command}` answered no JSON: {error}")))?;
        if answer["ok"] != Value::Bool(true) {
            return Err(Error::refused(format!("`{command}`: {}", answer["error"])));
        }
        Ok(answer["json"].take())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(5));
        let _ = std::fs::remove_file(&self.socket);
    }
}
