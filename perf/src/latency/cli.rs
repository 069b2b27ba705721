//! `perf latency` on the command line.

use std::path::PathBuf;

use anyhow::Context;

use super::report::{table_head, table_row};
use super::{Ports, report};
use crate::host::interrupt;

/// The switch's own delay at shares of its capacity, beside testpmd and an empty loop.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    pub vswitch: Option<PathBuf>,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// memif to memif, or vhost-user to virtio-user.
    #[arg(long, value_enum, default_value = "memif")]
    ports: Ports,
    /// Loads, in percent of the switch's capacity.
    #[arg(long, value_delimiter = ',', default_value = "10,50,90")]
    loads: Vec<f64>,
    /// Turns at each load.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Length of a turn in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Frame size, frame check sequence included.
    #[arg(long, default_value_t = 64)]
    size: u32,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the private folder (config, logs) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs it with the daemon that was found.
pub fn run(given: Options, vswitch: PathBuf) -> anyhow::Result<()> {
    anyhow::ensure!(given.turns > 0, "--turns 0 measures nothing; 5 is a good number");
    anyhow::ensure!(
        (0.1..=600.0).contains(&given.seconds),
        "--seconds {} is not in 0.1 to 600",
        given.seconds
    );
    anyhow::ensure!((64..=1518).contains(&given.size), "--size {} is not in 64 to 1518", given.size);
    if let Some(load) = given.loads.iter().find(|load| !(0.1..=100.0).contains(*load)) {
        anyhow::bail!("--loads {load} is not in 0.1 to 100 percent");
    }
    interrupt::install()?;
    let options = super::Options {
        vswitch,
        core: given.core,
        ports: given.ports,
        loads: given.loads.iter().map(|load| load / 100.0).collect(),
        turns: given.turns,
        seconds: given.seconds,
        size: given.size,
        keep: given.keep,
    };
    println!("{}", table_head());
    let report: report::Report = super::run(&options, |row| println!("{}", table_row(row)))?;
    print!("{}", report.text());
    if let Some(path) = given.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
