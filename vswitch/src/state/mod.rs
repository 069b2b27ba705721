//! Saved state: what was changed through the console or the API, kept over a restart or a crash.
//!
//! The file is a whole config, with the config file as it was last applied in comments behind it, and goes with a journal of
//! what changed since ([`journal`]). At start the two are compared with the config file of now (`config::merge`): where that says
//! something new, it wins; everything else is as it was. What belongs to the process (memory, workers, sockets) always
//! comes from the config file.

pub mod change;
pub(crate) mod files;
pub mod journal;
pub mod later;
pub mod owners;
pub mod ownership;

use std::path::Path;

use anyhow::Context;

use self::owners::Owners;
use crate::config::Config;
use crate::config::merge::{Occasion, Source, merge};
use crate::config::others::refuse_others;

/// The config to start with, and who made what of it: that of the state file, if there is one, with what is new in the config file;
/// without one, `config`, which is that of the config file.
///
/// # Errors
/// A state file that cannot be read or is not valid, and what it and the config file do not agree on.
pub fn restore(config: Config, file: Option<&Source>, path: &Path) -> anyhow::Result<(Config, Owners)> {
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((config, Owners::default())),
        Err(error) => return Err(error).with_context(|| format!("cannot read the state file {shown}")),
    };
    let changes = journal::changes(path, &text)
        .with_context(|| format!("cannot read the journal of the state file {shown}"))?;
    let whole = change::apply(&text, &changes).map_err(|error| anyhow::anyhow!(error));
    let whole = whole.with_context(|| format!("the state file {shown} is not valid"))?;
    let saved = Config::parse(&whole, &shown).with_context(|| {
        format!("the state file {shown} is not valid; mend it, or remove it to start from the config")
    })?;
    tracing::info!(file = shown, "networks restored from the state file; remove it to start from the config");
    let owners = Owners::kept_in(&text, &changes);
    let Some(file) = file else {
        let Config { eal, workers, forward, api, control, .. } = config;
        return Ok((Config { eal, workers, forward, api, control, ..saved }, owners));
    };
    let merged = refuse_others(file, &owners)
        .and_then(|()| merge(&saved, Source::kept_in(&text).as_ref(), file, Occasion::Restart));
    let merged =
        merged.with_context(|| format!("the config and the state file {shown} do not go together"))?;
    Ok((merged, owners))
}
