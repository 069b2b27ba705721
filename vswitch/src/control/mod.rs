//! The control socket: how consoles and `vswitch ctl` reach a running switch.
//!
//! `protocol` is what goes over the socket, `server` the daemon's end, `client` the console's. None of them
//! knows a command: lines go to whoever owns the switch, and answers come back.

pub mod client;
pub mod protocol;
pub mod server;

#[cfg(test)]
mod tests;
