//! `perf dcqcn` on the command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum as _;

use super::SimScenario;
use super::spread::{self, SeedSpread};
use crate::options::write_json;

/// The loop from marks to senders' rates, beside TCP, in simulation with the switch's own token buckets.
#[derive(Debug, Clone, clap::Args)]
pub struct DcqcnOptions {
    /// What to run [default: all].
    #[arg(value_enum)]
    scenarios: Vec<SimScenario>,
    /// Write the figures as JSON to this file; with `--seeds`, those of the worst.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw each scenario into this folder, as SVG and PNG.
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Run each scenario so many times more, with other beginnings and chances, and tell the worst of it.
    #[arg(long, default_value_t = 0)]
    seeds: u64,
}

pub fn run(given: &DcqcnOptions) -> anyhow::Result<()> {
    let scenarios = match &given.scenarios[..] {
        [] => SimScenario::value_variants(),
        some => some,
    };
    println!("{}", super::TABLE.head());
    let mut outcomes = Vec::new();
    for &scenario in scenarios {
        let outcome = super::run(scenario, 0);
        println!("{}", super::TABLE.row(&outcome));
        if let Some(folder) = &given.plots {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
            outcome.plot(&folder.join(format!("dcqcn-{}", outcome.scenario)))?;
        }
        outcomes.push(outcome);
    }
    let mut lost: u64 = outcomes.iter().map(|outcome| outcome.rdma_lost).sum();
    let mut spreads = Vec::new();
    if given.seeds > 0 {
        println!("\nthe worst over seeds\n{}", spread::TABLE.head());
    }
    for &scenario in scenarios.iter().filter(|_| given.seeds > 0) {
        let spread = SeedSpread::new(scenario, given.seeds);
        println!("{}", spread::TABLE.row(&spread));
        lost += spread.rdma_lost;
        spreads.push(spread);
    }
    if let Some(path) = &given.json {
        if spreads.is_empty() {
            write_json(path, &outcomes)?;
        } else {
            write_json(path, &spreads)?;
        }
    }
    anyhow::ensure!(lost == 0, "{lost} packets of queue pairs that obey were dropped");
    Ok(())
}
