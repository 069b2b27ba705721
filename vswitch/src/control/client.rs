//! The console's end of the control socket: blocking, one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::protocol::{Ask, MAX_REQUEST, Reply, Request};

/// The longest reply taken; a whole table of a big switch fits.
const MAX_REPLY: u64 = 256 * 1024 * 1024;
/// How long completion waits: a key press must not hang.
const COMPLETE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the switch could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no vswitch answers on {0}; start it with `vswitch run --config <file>`, or name its socket with --socket"
    )]
    NotRunning(PathBuf),
    /// The socket belongs to somebody else.
    #[error("the vswitch on {0} belongs to another user; run this as that user")]
    NotAllowed(PathBuf),
    /// Any other way in which connecting fails.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the vswitch on {path} has gone: {source}; if it runs again, connect anew")]
    Gone {
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The request would not be taken.
    #[error(
        "the command is {0} bytes long; a request has at most {MAX_REQUEST}: split it, or use load <file>"
    )]
    TooLong(usize),
    /// The answer is not one of ours.
    #[error("what answers on {path} is no vswitch of this version: {problem}")]
    NotUnderstood {
        path: PathBuf,
        /// What is wrong with the answer.
        problem: String,
    },
}

/// A connection to a running switch.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    /// The beginning of a reply whose end has not come yet.
    partial: Vec<u8>,
    last_id: u64,
}

impl Client {
    /// Connects to the switch on the socket `path`.
    ///
    /// # Errors
    /// [`ClientError`] says what to do.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(|source| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path),
                io::ErrorKind::PermissionDenied => ClientError::NotAllowed(path),
                _ => ClientError::Connect { path, source },
            }
        })?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream), partial: Vec::new(), last_id: 0 })
    }

    /// Runs a command, however long it takes.
    ///
    /// # Errors
    /// When the switch cannot be asked; what it refuses is a [`Reply`].
    pub fn command(&mut self, line: &str, json: bool) -> Result<Reply, ClientError> {
        self.call(Ask::Command(line.to_owned()), json)
    }

    /// Asks what could come next at the end of `line`; gives up soon.
    ///
    /// # Errors
    /// When the switch cannot be asked.
    pub fn complete(&mut self, line: &str) -> Result<Reply, ClientError> {
        let gone = |path: &Path, source| ClientError::Gone { path: path.to_owned(), source };
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(COMPLETE_TIMEOUT)).map_err(|e| gone(&self.path, e))?;
        let reply = self.call(Ask::Complete(line.to_owned()), false);
        self.stream.get_ref().set_read_timeout(None).map_err(|e| gone(&self.path, e))?;
        reply
    }

    fn call(&mut self, ask: Ask, json: bool) -> Result<Reply, ClientError> {
        self.last_id += 1;
        let request = Request { id: self.last_id, ask, json };
        let mut line = serde_json::to_vec(&request).map_err(|e| self.not_understood(e.to_string()))?;
        if line.len() > MAX_REQUEST {
            return Err(ClientError::TooLong(line.len()));
        }
        line.push(b'\n');
        if let Err(source) = self.stream.get_mut().write_all(&line) {
            // A switch that refuses the connection says why before it closes.
            return self.reply().or(Err(ClientError::Gone { path: self.path.clone(), source }));
        }
        loop {
            let reply = self.reply()?;
            // An older id is the answer to a completion that nobody waited for any more.
            if reply.id == self.last_id || reply.id == 0 {
                return Ok(reply);
            }
        }
    }

    fn reply(&mut self) -> Result<Reply, ClientError> {
        let gone = |source| ClientError::Gone { path: self.path.clone(), source };
        let room = MAX_REPLY.saturating_sub(self.partial.len() as u64);
        (&mut self.stream).take(room).read_until(b'\n', &mut self.partial).map_err(gone)?;
        let line = std::mem::take(&mut self.partial);
        if !line.ends_with(b"\n") {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_slice(&line).map_err(|e| self.not_understood(e.to_string()))
    }

    fn not_understood(&self, problem: String) -> ClientError {
        ClientError::NotUnderstood { path: self.path.clone(), problem }
    }
}
