//! `perf setup` on the command line.

use std::path::PathBuf;

use anyhow::Context;

use crate::host::interrupt;

/// New flows per second, and established traffic beside a scanner.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    pub vswitch: Option<PathBuf>,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// New flows of a round.
    #[arg(long, default_value_t = 1_000_000)]
    flows: u32,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Pairs of arms, with and without the scanner.
    #[arg(long, default_value_t = 3)]
    pairs: usize,
    /// Length of an arm in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The neighbour's rate in percent of the worker's capacity.
    #[arg(long, default_value_t = 50.0)]
    share: f64,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the private folder (configs, logs) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs it with the daemon that was found.
pub fn run(given: Options, vswitch: PathBuf) -> anyhow::Result<()> {
    anyhow::ensure!(
        (1000..=8_000_000).contains(&given.flows),
        "--flows {} is not in 1000 to 8000000",
        given.flows
    );
    anyhow::ensure!(
        (0.1..=600.0).contains(&given.seconds),
        "--seconds {} is not in 0.1 to 600",
        given.seconds
    );
    anyhow::ensure!((1.0..=100.0).contains(&given.share), "--share {} is not in 1 to 100", given.share);
    interrupt::install()?;
    let options = super::Options {
        vswitch,
        core: given.core,
        flows: given.flows,
        rounds: given.rounds,
        pairs: given.pairs,
        seconds: given.seconds,
        share: given.share / 100.0,
        keep: given.keep,
    };
    let report = super::run(&options)?;
    print!("{}", report.text());
    if let Some(path) = given.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    anyhow::ensure!(report.lost_beside_a_scanner() == 0, "the scanner cost its neighbour packets");
    Ok(())
}
