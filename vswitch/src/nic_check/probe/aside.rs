//! The process that asks a device: started, listened to, ended in time. A driver that dies or hangs takes nothing else along.
//!
//! ```text
//!   Program --stdout--> {"stage": ...}* {"answer": ...} | {"refused": ...}
//!           --stderr--> its log, of which the last lines are told when there is no answer
//! ```

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Probed;

/// The most bytes of its output that are looked at.
const MOST: u64 = 4 << 20;
/// Lines of its log that are told.
const LINES: usize = 4;
/// How long a killed process may take to be gone: one that is inside of the kernel's driver may not go at all.
const GONE: Duration = Duration::from_secs(2);
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What it says, a line each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Said {
    /// What it is about to do: `while <words>`.
    Stage(String),
    /// What the device takes.
    Answer(Probed),
    /// Why the device could not be asked.
    Refused(String),
}

/// The program that asks a device.
#[derive(Debug)]
pub struct Program(Command);

impl Program {
    /// This very program, told to ask the device of this name with what the config in this file says.
    ///
    /// # Errors
    /// When the system does not say what this program is.
    pub fn own(device: &str, config: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["nic", "ask", device]);
        if let Some(file) = config {
            command.arg("--config").arg(file);
        }
        Ok(Self(command))
    }

    #[cfg(test)]
    pub(in crate::nic_check) fn shell(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Self(command)
    }
}

/// Runs the program until it ends or has taken too long; what it said of the device.
pub(super) fn ask(Program(mut command): Program, patience: Duration) -> Result<Probed, String> {
    let end = Instant::now() + patience;
    let cannot = |error: io::Error| format!("the process that asks the device does not start: {error}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pmd::process::kill_with_parent(&mut command).spawn().map_err(cannot)?;
    let lines = child.stdout.take().map(lines_of).transpose();
    let log = child.stderr.take().map(lines_of).transpose();
    let (Ok(Some(lines)), Ok(Some(log))) = (lines, log) else {
        end_it(&mut child);
        return Err("no thread could be started that listens to the process that asks the device".into());
    };
    let (mut stage, mut answer) = (String::from("its process started"), None);
    let mut late = false;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Said::Stage(now)) => stage = now,
                Ok(Said::Answer(probed)) => answer = Some(Ok(probed)),
                Ok(Said::Refused(words)) => answer = Some(Err(words)),
                // Drivers write where they like.
                Err(_) => {}
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                late = true;
                break;
            }
        }
    }
    let status = if late { None } else { ended_by(&mut child, end) };
    let gone = status.is_some() || end_it(&mut child);
    let (seconds, words) = (patience.as_secs_f32(), last_words(&log));
    let how = match status {
        Some(status) if status.success() && answer.is_some() => String::new(),
        Some(status) => format!("the driver's process died ({status}) while {stage}{words}"),
        None => format!("nothing came for {seconds} s while {stage}: its process was killed{words}"),
    };
    let how = if gone { how } else { how + "; it does not go: the kernel log (dmesg) may say why" };
    match answer {
        Some(Ok(mut probed)) => {
            if !how.is_empty() {
                probed.by += &format!("; then {how}");
            }
            Ok(probed)
        }
        Some(Err(refused)) => Err(refused),
        None => Err(how),
    }
}

/// Its lines, read on a thread of its own that ends with them.
fn lines_of(from: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (send, lines) = mpsc::channel();
    std::thread::Builder::new().name("driver".into()).spawn(move || {
        let mut from = BufReader::new(from.take(MOST));
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            if send.send(text).is_err() {
                return;
            }
        }
        // The rest goes where a process can write it without waiting.
        let _ = io::copy(&mut from.into_inner().into_inner(), &mut io::sink());
    })?;
    Ok(lines)
}

/// The last lines of its log, for the end of a sentence.
fn last_words(log: &Receiver<String>) -> String {
    let mut words: Vec<String> = Vec::new();
    // What it started may have its log open after its end: what has come by then is what is told.
    while let Ok(line) = log.recv_timeout(LOOK) {
        let line = line.replace(char::is_control, " ");
        words.extend((!line.trim().is_empty()).then(|| line.chars().take(300).collect()));
    }
    let last = words.split_off(words.len().saturating_sub(LINES));
    if last.is_empty() { String::new() } else { format!("; its last words: {}", last.join(" | ")) }
}

/// How it ended; `None` when it has not by then.
fn ended_by(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            _ => return None,
        }
    }
}

/// Kills it; true when it is gone.
fn end_it(child: &mut Child) -> bool {
    // It may have ended meanwhile, and then there is nothing to end.
    let _ = child.kill();
    ended_by(child, Instant::now() + GONE).is_some()
}
