//! `--probe`: which chains of rules the device takes.
//!
//! ```text
//!   a switch that has the device --> running.rs: asks it over its control socket
//!   nobody has it ----------------> aside.rs: a process of its own, bounded in time --> own.rs: EAL, device, rules, all undone
//!   another process has it -------> holder.rs: named, and nothing is done
//! ```
//! Asking a driver takes a started port. A switch that runs has one, and makes each rule aside of all traffic
//! (`capabilities`). A process of its own starts the port for rules only: isolated, without a receive queue, so that the
//! kernel's traffic stays with the kernel. That a NIC keeps to this is unconfirmed on hardware.

mod aside;
mod holder;
pub mod own;
pub(super) mod running;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Device, HostView};
use crate::config::Config;
use crate::config::process::ApiConfig;
pub use aside::Program;
use running::NotAsked;

/// How long a device may take when nobody says otherwise: bringing up a NIC's driver takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An item, action or chain, and the device's words when it refused.
pub type ProbeAnswer = (String, Result<(), String>);

/// What is said of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Who asked it, and how.
    pub by: String,
    /// Whole chains, by the flow that they are for.
    pub chains: Vec<ProbeAnswer>,
    /// Single items and actions.
    pub features: Vec<ProbeAnswer>,
    /// Hash types of RSS that the device can, and levels of a tunnelled packet that it can be told.
    pub rss: Option<String>,
}

/// How a device is asked.
pub struct Probe<'a> {
    pub host: &'a HostView,
    pub device: &'a Device,
    /// The config that it is asked with.
    pub config: Option<&'a Config>,
    /// The socket of the switch that has the device; no other way is tried then.
    pub socket: Option<&'a Path>,
    /// What asks the device when no switch has it.
    pub program: Program,
    /// How long that may take.
    pub patience: Duration,
}

impl Probe<'_> {
    /// Asks the switch that runs with the device; where none does, brings up a DPDK of its own.
    ///
    /// # Errors
    /// In words, when nobody could ask it.
    pub fn ask(self) -> Result<Probed, String> {
        let given = self.config.map_or_else(ApiConfig::default, |config| config.api.clone()).socket;
        match running::ask(self.socket.unwrap_or(&given), self.device.name()) {
            Ok(probed) => return Ok(probed),
            Err(NotAsked::Failed(words)) => return Err(words),
            Err(NotAsked::NoSwitch(words) | NotAsked::NotThere(words)) if self.socket.is_some() => {
                return Err(words);
            }
            Err(NotAsked::NoSwitch(_) | NotAsked::NotThere(_)) => {}
        }
        if let Device::Pci(pci) = self.device
            && let Some(holder) = holder::of(self.host, pci)
        {
            return Err(format!(
                "{holder} runs DPDK on this device: stop it; if it is a switch, name its control socket with --socket"
            ));
        }
        aside::ask(self.program, self.patience)
    }
}
