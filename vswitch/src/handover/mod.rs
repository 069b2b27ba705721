//! An upgrade: a new process takes over from the switch that runs, with its tables.
//!
//! ```text
//!   new                                  old
//!   hello            ─────────────────►  by a socket beside the control socket, of the same user only; with its state file
//!                    ◄─────────────────  who it is, or why not: that is another one ([`terms`]), or somebody else takes over
//!   DPDK, buffers, tables, workers;      goes on forwarding
//!   ports that two may have open
//!   freeze           ─────────────────►  answers no more requests
//!                    ◄─────────────────  next hops, queue pairs, floating addresses, in chunks; whether it forwards, and
//!                                         which ports are stopped, where the new one takes that
//!   take             ─────────────────►  closes its sockets, forwards no more
//!   forgets what has come on those ports ◄─ stopped
//!                                        closes its other ports, leaves its connections in their file
//!                    ◄─────────────────  released
//!   opens the other ports, forwards, opens sockets
//!   done             ─────────────────►
//!                    ◄─────────────────  ended: it closes what is left, and ends
//! ```
//! What two processes may have open are packet sockets on interfaces of the kernel (`veth`, `af-packet`): each gets every packet. What has
//! come there until the old one stops was forwarded by it, and what comes from then on waits for the new one.
//!
//! Until it has heard `done` the old process is able to come back, and does so when the new one ends or is late: it opens its ports
//! and sockets again and goes on with its own tables. The new process goes on alone when the old one has ended after its tables
//! were there, and ends when that has come back: of two, one has said or heard `ended`. Each step has a deadline, and in those that take long the new process says all the time that it lives (`alive`): one that hangs is
//! soon given up. One process at a time takes over; others hear at once who does.

mod alive;
pub mod give;
pub mod tables;
pub mod take;
pub mod terms;
pub mod whereabouts;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// What this process speaks.
pub const VERSION: u32 = 1;
/// How long the old process takes to close its ports at most: one that cannot by then comes back.
pub(crate) const LET_GO: Duration = Duration::from_secs(10);
/// How long the new process waits for it at each step. Well beyond that time, so that of the two the old one decides: it may have other things
/// to do, too, before and after.
const RELEASE: Duration = LET_GO.saturating_mul(3);
/// How often the new process says that it lives.
const ALIVE_EVERY: Duration = Duration::from_millis(500);

/// Why an upgrade came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The link.
    #[error("the other process is gone, or does not answer: {0}")]
    Link(#[from] std::io::Error),
    /// A message that is none, or is out of turn.
    #[error("the other process sent {0}")]
    Message(String),
    /// The old one says why not.
    #[error("the switch that runs does not hand over: {0}")]
    Refused(String),
    /// The old one has come back.
    #[error(
        "this process was late, and the switch that it was to take over from (process {pid}) has come back and forwards ({why}): this one ends; \
         see its log for what took so long, and try again"
    )]
    TooLate {
        /// The old process.
        pid: u32,
        /// What became of the last word.
        why: Box<HandoverError>,
    },
    /// Nobody there.
    #[error("no switch hands over at {path}: {source}; where none runs, start one by `vswitch run`")]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
}

impl HandoverError {
    fn out_of_turn() -> Self {
        Self::Message("a message out of turn".into())
    }

    /// The other process has closed its end.
    pub fn is_end(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Link(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

/// The socket for an upgrade, beside the control socket.
pub fn socket_beside(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".upgrade");
    path.into()
}
