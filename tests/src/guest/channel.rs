//! The control channel into a guest: scripts in, exit status and output out, over a virtio-serial port.
//!
//! The protocol is that of `scripts/lab-guest.d/agent`. Many scripts may run at once; answers come in the order of their
//! ends and are kept until somebody asks. It never waits longer than it was told.

use super::base64;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How a script ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit status; over 128 when a signal ended it.
    pub status: i32,
    /// All that it wrote, to either output.
    pub output: String,
}

impl Ended {
    /// Whether it ended with status 0.
    pub fn ok(&self) -> bool {
        self.status == 0
    }
}

/// One end of the channel.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    unread: Vec<u8>,
    ended: BTreeMap<u64, Ended>,
    next: u64,
    /// The guest's own clock, in seconds since its boot, when its agent came up.
    pub ready_after: Option<f64>,
}

impl Channel {
    /// Connects to QEMU's end; `None` while there is no such socket.
    pub fn connect(path: &Path) -> Option<Channel> {
        let socket = UnixStream::connect(path).ok()?;
        Some(Channel { socket, unread: Vec::new(), ended: BTreeMap::new(), next: 1, ready_after: None })
    }

    /// Starts a script and returns the number it goes by.
    pub fn start(&mut self, script: &str) -> std::io::Result<u64> {
        let id = self.next;
        self.next += 1;
        self.say(&format!("run {id} {}\n", base64::encode(script.as_bytes())))?;
        Ok(id)
    }

    /// Sends a signal to a script and all that it started.
    pub fn kill(&mut self, id: u64, signal: &str) -> std::io::Result<()> {
        self.say(&format!("kill {id} {signal}\n"))
    }

    /// The end of a script, when it comes before `end`.
    pub fn wait(&mut self, id: u64, end: Instant) -> std::io::Result<Option<Ended>> {
        loop {
            if let Some(ended) = self.ended.remove(&id) {
                return Ok(Some(ended));
            }
            if !self.listen(end)? {
                return Ok(None);
            }
        }
    }

    /// Waits for the agent's first word; false when `end` comes first.
    pub fn wait_ready(&mut self, end: Instant) -> std::io::Result<bool> {
        while self.ready_after.is_none() {
            if !self.listen(end)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on with the channel of the process that the guest has migrated to, when this one's has closed its end: what the guest
    /// said before is taken in, also half of a line.
    pub fn go_on_with(&mut self, next: Channel, end: Instant) -> std::io::Result<()> {
        loop {
            match self.listen(end) {
                Ok(true) => {}
                Ok(false) => return Err(ErrorKind::TimedOut.into()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.socket = next.socket;
        Ok(())
    }

    fn say(&mut self, line: &str) -> std::io::Result<()> {
        // The agent reads line by line: room comes as soon as it gets to run.
        self.socket.set_write_timeout(Some(Duration::from_secs(30)))?;
        self.socket.write_all(line.as_bytes())
    }

    /// Takes in what the guest says; false when `end` came before anything else did.
    fn listen(&mut self, end: Instant) -> std::io::Result<bool> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut bytes = [0; 65536];
        match self.socket.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::ConnectionAborted.into()),
            Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        while let Some(at) = self.unread.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=at).collect();
            self.take(String::from_utf8_lossy(&line).trim_end());
        }
        Ok(true)
    }

    fn take(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        if first == "ready" {
            self.ready_after = second.parse().ok();
        } else if let (Ok(id), Ok(status)) = (first.parse(), second.parse()) {
            let bytes = base64::decode(words.next().unwrap_or("")).unwrap_or_default();
            let output = String::from_utf8_lossy(&bytes).into_owned();
            self.ended.insert(id, Ended { status, output });
        }
    }
}
