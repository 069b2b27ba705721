//! Bidirectional forwarding detection (RFC 5880): the state machine of a session, in asynchronous mode.
//!
//! Pure: time and what was heard are arguments, packets are results. `switch/bfd.rs` runs the sessions.

mod session;
#[cfg(test)]
mod tests;

pub use session::{Session, Timing};
