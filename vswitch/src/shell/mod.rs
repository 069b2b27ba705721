//! The shell: the switch's commands. One file per subject, each a list of entries; grammar, help and completion
//! derive from them.

mod bfd;
mod buffers;
mod config;
mod events;
mod flow;
mod flows;
mod offload;
mod port;
mod qos;
mod rcft;
mod rdma;
mod routing;
mod security;
mod services;
mod stats;
mod tenant;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::tcp::Keys;
use crate::console::{Command, CommandError, Console, SyntaxError};
use crate::control::guard::Fault;
use crate::switch::{Switch, SwitchError};

/// What commands work on.
pub struct Shell {
    pub switch: Switch,
    /// The commands themselves, for `load`.
    console: Option<Rc<Console<Shell>>>,
    /// How deep `load` is in itself.
    depth: u32,
    /// Rules of rte_flow made by hand.
    manual: flow::Manual,
    /// Stages are watched.
    watching: bool,
    /// Set by `shutdown`.
    pub shutdown: bool,
    /// Faults of control, and when the last one was told, by what they were in.
    faults: HashMap<String, Instant>,
    /// The config file that `config reload` and SIGHUP read: the one of the start, or the one that was loaded last.
    pub config_file: Option<std::path::PathBuf>,
    /// The keys of the API over TCP, where it is to be had there.
    pub keys: Option<std::sync::Arc<Keys>>,
}

/// A command of the switch.
pub type Entry = Command<Shell>;

impl Shell {
    /// A shell for a switch, and its console.
    ///
    /// # Errors
    /// A fault in the command table.
    pub fn new(switch: Switch) -> Result<(Self, Rc<Console<Self>>), SyntaxError> {
        let console = Rc::new(console()?);
        let shell = Self {
            switch,
            console: Some(console.clone()),
            depth: 0,
            manual: flow::Manual::default(),
            watching: false,
            shutdown: false,
            faults: HashMap::new(),
            config_file: None,
            keys: None,
        };
        Ok((shell, console))
    }
}

impl Shell {
    /// Something of control panicked: it is told, though not with every turn of a clock.
    pub fn suspect(&mut self, fault: &Fault) {
        // A file of commands that was under way is so no more, nor is a change that was tried.
        self.depth = 0;
        self.switch.end_try();
        let now = Instant::now();
        if self.faults.len() >= FAULTS {
            self.faults.clear();
        }
        let told = self.faults.get(&fault.what);
        if told.is_some_and(|told| now.saturating_duration_since(*told) < TOLD_EVERY) {
            return;
        }
        self.faults.insert(fault.what.clone(), now);
        tracing::error!("{fault}");
        self.switch.note("fault", fault.to_string(), json!({ "in": fault.what, "message": fault.message }));
    }
}

/// Faults that are kept apart.
const FAULTS: usize = 64;
/// Between two times that the same fault is told.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The console of the switch.
///
/// # Errors
/// A fault in the command table.
pub fn console() -> Result<Console<Shell>, SyntaxError> {
    let all = port::commands()
        .into_iter()
        .chain(stats::commands())
        .chain(buffers::commands())
        .chain(tenant::commands())
        .chain(routing::commands())
        .chain(flow::commands())
        .chain(flows::commands())
        .chain(offload::commands())
        .chain(rcft::commands())
        .chain(security::commands())
        .chain(qos::commands())
        .chain(rdma::commands())
        .chain(events::commands())
        .chain(services::commands())
        .chain(bfd::commands())
        .chain(config::commands());
    Ok(Console::new(all)?.with_values(values))
}

/// Live values for completion.
fn values(shell: &Shell, kind: &str) -> Vec<String> {
    let snapshot = shell.switch.snapshot();
    match kind {
        "port" => shell.switch.ports().iter().map(|(_, port)| port.name.clone()).collect(),
        "vnic" => snapshot.vnics.iter().flatten().map(|vnic| vnic.name.clone()).collect(),
        "vpc" => snapshot.vpcs.iter().flatten().map(|vpc| vpc.name.clone()).collect(),
        "group" => {
            shell.switch.bare_config().security_groups.iter().map(|group| group.name.to_string()).collect()
        }
        "device" => pmd::rdma::names(),
        "vni" => snapshot.vpcs.iter().flatten().map(|vpc| vpc.vni.to_string()).collect(),
        _ => Vec::new(),
    }
}

impl From<SwitchError> for CommandError {
    fn from(error: SwitchError) -> Self {
        Self::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_table_compiles() {
        super::console().map(|_| ()).unwrap();
    }
}
