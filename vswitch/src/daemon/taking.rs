//! An upgrade, as far as the start of the process that comes has to do with it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::sockets::Sockets;
use super::{PORTS_EVERY, here::Here};
use crate::config::Config;
use crate::config::process::ApiConfig;
use crate::handover::tables::Tables;
use crate::state::lock::{self, StateLock};
use crate::switch::Switch;

/// How long ports are tried again that the old switch had and that did not open at once: it has closed them just now.
const PORTS: Duration = Duration::from_secs(3);

/// What the old switch has let go of.
pub(super) struct Released<'a> {
    pub config: Config,
    pub tables: &'a Tables,
    pub state: Option<&'a Path>,
    pub api: &'a ApiConfig,
    pub here: &'a Here,
}

/// Goes on with it.
///
/// # Errors
/// What is not to be had. This switch has stopped then, and has left everything to the old one, which comes back as soon as it hears of it.
pub(super) fn take_over(
    switch: &mut Switch,
    released: Released<'_>,
) -> anyhow::Result<(Option<StateLock>, Sockets)> {
    let begun = begin(switch, released);
    if begun.is_err() {
        switch.is_superseded();
        switch.stop();
    }
    begun
}

fn begin(switch: &mut Switch, released: Released<'_>) -> anyhow::Result<(Option<StateLock>, Sockets)> {
    let Released { config, tables, state, api, here } = released;
    // Not before: one that ends without having taken over must leave to the old one what that has done to its interfaces.
    switch.inherit_interfaces(tables);
    // It has let go of the state, too.
    let lock = lock::take_told(state)?;
    switch.succeed(config, tables, &api.socket)?;
    let began = Instant::now();
    loop {
        let lost = switch.not_taken_over(tables);
        if lost.is_empty() {
            break;
        }
        if began.elapsed() > PORTS {
            bail!(
                "ports of the old switch do not open in this process, so that the old one goes on with them: {}; mend that and try again, or \
                 take them out of the config",
                lost.join("; ")
            );
        }
        switch.tend(Instant::now());
        std::thread::sleep(PORTS_EVERY);
    }
    Ok((lock, Sockets::bind(api, here.readers)?))
}
