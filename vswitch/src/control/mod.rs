//! The control socket: how consoles and `vswitch ctl` reach a running switch.
//!
//! `protocol` is what goes over the socket, `server` the daemon's end, `client` the console's. None of them
//! knows a command: lines go to whoever owns the switch, and answers come back. `guard` keeps control alive when
//! something of its own panics, `parked` are commands that wait for ports.

pub mod client;
pub mod guard;
pub mod parked;
mod places;
pub mod protocol;
pub mod server;

#[cfg(test)]
mod tests;
