//! Saved state: what was changed through the console or the API, kept over a restart or a crash.
//!
//! The file is a whole config, replaced atomically after each change. At start its networks take the place of the
//! config file's; what belongs to the process (memory, workers, sockets) always comes from the config file.

use std::path::Path;

use anyhow::Context;

use crate::config::Config;

/// The config to start with: `config`, with the networks of the state file if there is one.
///
/// # Errors
/// A state file that cannot be read or is not valid.
pub fn restore(config: Config, path: &Path) -> anyhow::Result<Config> {
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(config),
        Err(error) => return Err(error).with_context(|| format!("cannot read the state file {shown}")),
    };
    let saved = Config::parse(&text, &shown).with_context(|| {
        format!("the state file {shown} is not valid; mend it, or remove it to start from the config")
    })?;
    tracing::info!(file = shown, "networks restored from the state file; remove it to start from the config");
    Ok(Config {
        eal: config.eal,
        workers: config.workers,
        forward: config.forward,
        api: config.api,
        control: config.control,
        nft: config.nft,
        vlt: config.vlt,
        vxlan: config.vxlan,
        rdma: config.rdma,
        rcft: config.rcft,
        ..saved
    })
}
