//! `perf gen` on the command line.

use std::path::{Path, PathBuf};

use super::scenario::Scenario;
use crate::host::interrupt;
use crate::options::{Page, write_json};
use crate::report::parts;

/// Generate what a scenario file says, over any DPDK port, and measure what comes back.
#[derive(Debug, clap::Args)]
pub struct GenOptions {
    /// The scenario (perf/scenarios has examples); `-` reads it from the standard input.
    scenario: PathBuf,
    /// Write everything as JSON to this file; `-` prints it in one line, in place of the text.
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    page: Page,
    /// Share of frames that may be lost at the throughput, in percent [default: what the scenario says].
    #[arg(long)]
    loss: Option<f64>,
    /// Length of plain traffic in seconds [default: what the scenario says].
    #[arg(long)]
    seconds: Option<f64>,
    /// No live screen.
    #[arg(long)]
    quiet: bool,
    /// Only say whether the scenario makes sense.
    #[arg(long)]
    check: bool,
}

pub fn run(given: GenOptions) -> anyhow::Result<()> {
    let (mut scenario, source) = Scenario::load(&given.scenario)?;
    if let Some(loss) = given.loss {
        scenario.run.loss = loss;
    }
    if let Some(seconds) = given.seconds {
        scenario.run.seconds = seconds;
    }
    let plan = scenario.check(&source)?;
    if given.check {
        println!("{}: {} ports, {} streams", given.scenario.display(), plan.ports.len(), plan.streams.len());
        return Ok(());
    }
    interrupt::install()?;
    let name = given.scenario.display().to_string();
    let report = super::run(&name, &scenario, &plan, given.quiet)?;
    let printed = given.json.as_deref() == Some(Path::new("-"));
    if printed {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", parts::text(&report.parts()));
    }
    if let Some(path) = given.json.filter(|_| !printed) {
        write_json(&path, &report)?;
    }
    given.page.write(|| parts::page(&report.scenario, &report.about(), &report.parts()))?;
    anyhow::ensure!(!report.interrupted, "interrupted; the report holds what was done until then");
    Ok(())
}
