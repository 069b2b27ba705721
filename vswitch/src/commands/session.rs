//! A console's end of the switch's API: calls that wait for their answers.

use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use vswitch_api::v1;
use vswitch_api::v1::observe_client::ObserveClient;

use crate::console::{CommandError, Console, SyntaxError};

/// The longest answer taken; a whole table of a big switch fits.
pub(crate) const ANSWER: usize = 256 << 20;
/// The most that an answer's headers take: what was refused, and why.
const HEADERS: u32 = 64 * 1024;
/// How long completion waits: a key press must not hang.
const COMPLETE: Duration = Duration::from_millis(500);

/// Why the switch could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
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
    /// A fault in the command table.
    #[error(transparent)]
    Commands(#[from] SyntaxError),
    /// A path that no socket can have, or a process that has no room for a runtime.
    #[error("cannot make a client for {path}: {message}")]
    Client {
        path: PathBuf,
        /// What was wrong.
        message: String,
    },
}

/// A connection to a running switch, made anew whenever it breaks.
pub struct Session {
    runtime: Runtime,
    channel: Channel,
    path: PathBuf,
    /// The commands themselves, for `load`.
    pub(super) console: Option<Rc<Console<Session>>>,
    /// How deep `load` is in itself.
    pub(super) depth: u32,
}

impl Session {
    /// Connects to the switch on the socket `path`.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        let owned = || path.to_owned();
        // The transport says only that it could not; this says why.
        UnixStream::connect(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ConnectError::NotRunning(owned()),
            io::ErrorKind::PermissionDenied => ConnectError::NotAllowed(owned()),
            _ => ConnectError::Connect { path: owned(), source },
        })?;
        let client = |message: String| ConnectError::Client { path: owned(), message };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| client(error.to_string()))?;
        let absolute = std::path::absolute(path).map_err(|error| client(error.to_string()))?;
        let endpoint = Endpoint::from_shared(format!("unix:{}", absolute.display()));
        let endpoint =
            endpoint.map_err(|error| client(error.to_string()))?.http2_max_header_list_size(HEADERS);
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Ok(Self { runtime, channel, path: owned(), console: None, depth: 0 })
    }

    /// Calls the switch, however long it takes.
    ///
    /// # Errors
    /// What it refused, or that it could not be asked.
    pub fn call<T, F>(&self, call: impl FnOnce(Channel) -> F) -> Result<T, CommandError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let answer = self.runtime.block_on(call(self.channel.clone()));
        answer.map(Response::into_inner).map_err(|status| self.error(&status))
    }

    /// The names of what there is, for completion; none where the switch does not say so soon.
    pub fn names(&self, of: &str) -> Vec<String> {
        let request = v1::ListNamesRequest { of: of.to_owned() };
        let mut client = ObserveClient::new(self.channel.clone()).max_decoding_message_size(ANSWER);
        self.runtime.block_on(async {
            let answer = tokio::time::timeout(COMPLETE, client.list_names(request)).await;
            answer.ok().and_then(Result::ok).map(|names| names.into_inner().names).unwrap_or_default()
        })
    }

    /// What a call that did not succeed is to whoever typed it.
    fn error(&self, status: &Status) -> CommandError {
        let refusal = vswitch_api::refusal(status.details()).unwrap_or_default();
        let Some(first) = refusal.problems.first() else {
            let path = self.path.display();
            return match status.code() {
                Code::Unavailable | Code::Unknown | Code::Cancelled => CommandError::new(format!(
                    "the vswitch on {path} has gone or takes no more clients; if it runs again, connect anew"
                ))
                .lost(),
                Code::Unimplemented => CommandError::new(format!(
                    "what answers on {path} is no vswitch of this version: it does not know this command"
                )),
                code => CommandError::new(format!("{code}: {}", status.message())),
            };
        };
        let texts: Vec<&str> = refusal.problems.iter().map(|problem| problem.message.as_str()).collect();
        let text = texts.join("\n");
        // Those that had no room among the details are in the status, shortened.
        let text = if text.is_empty() { status.message().to_owned() } else { text };
        // Of `vnic.vips[0]` the argument is `vips`.
        let field =
            first.field.rsplit('.').next().and_then(|field| field.split('[').next()).unwrap_or_default();
        CommandError::new(text).of_argument(field).not_found(status.code() == Code::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use vswitch_api::v1::ports_client::PortsClient;

    use super::*;
    use crate::commands::ask;

    #[test]
    fn who_does_not_answer_is_told_of_as_what_it_is() {
        let folder = std::env::temp_dir().join(format!("vswitch-session-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("s.sock");
        assert!(matches!(Session::connect(&socket), Err(ConnectError::NotRunning(_))));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(Session::connect(&socket), Err(ConnectError::NotRunning(_))), "a stale one");
        std::fs::remove_file(&socket).unwrap();
        // One that takes every client and sends it away.
        let listener = UnixListener::bind(&socket).unwrap();
        let busy = std::thread::spawn(move || (0..4).for_each(|_| drop(listener.accept())));
        let session = Session::connect(&socket).unwrap();
        let error = ask!(session, PortsClient.list_ports(v1::ListPortsRequest {})).unwrap_err();
        assert!(error.is_lost && error.message.contains("has gone or takes no more"), "{error:?}");
        assert_eq!(session.names("vnic"), Vec::<String>::new());
        std::fs::remove_dir_all(&folder).unwrap();
        drop((busy, session));
    }
}
