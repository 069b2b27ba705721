//! EVPN (RFC 7432, RFC 8365, RFC 9136): what other hosts say by BGP of their stations, networks and prefixes, and what this host tells
//! them.
//!
//! BGP itself is spoken by gobgpd, a program of others that runs beside the switch and peers with whoever the operator wants; the switch
//! is a client of its gRPC interface. [EVPN.md](../../EVPN.md) is for those who set it up.
//!
//! ```text
//!  peers ── BGP ── gobgpd ── gRPC ── speaker -> codec -> book -> apply -> control (owner evpn)
//!                                       ^                 |
//!                                       +---- codec <- publish <- config
//! ```
//! It lives on a thread of its own. `book` and `publish` are pure: what was heard to what is to be, and what is here to what is to be
//! announced. `apply` compares with the switch as it is and changes it in batches, between which control does what others ask; `halves` finds
//! what of a batch cannot be.

pub mod apply;
pub mod book;
mod client;
pub mod codec;
mod halves;
pub mod publish;
pub mod route;
mod speaker;
pub mod status;

use tokio::sync::mpsc;

use crate::api::Job;
use crate::config::EvpnConfig;
use status::Shared;

/// Starts the thread; what it is doing. It ends when nobody takes its `jobs` any more.
///
/// # Errors
/// When the system has no thread, or no runtime for it.
pub fn start(config: EvpnConfig, jobs: mpsc::Sender<Job>) -> std::io::Result<Shared> {
    let status = Shared::new(config.gobgpd.clone());
    let shared = status.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("evpn".into()).spawn(move || {
        runtime.block_on(client::run(config, jobs, shared));
    })?;
    Ok(status)
}
