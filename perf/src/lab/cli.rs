//! `perf lab` on the command line.

use std::path::PathBuf;

use anyhow::Context;

use super::checks::{self, Verdict};
use super::file::{Arm, Lab};
use super::report::{self, Report};
use super::{Bench, LabError, page};
use crate::host::interrupt;

/// Comparisons over NICs with a generator at their other ends, as a lab file says.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The lab (perf/lab has examples).
    lab: PathBuf,
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    pub vswitch: Option<PathBuf>,
    /// Only look at the machine, and send a few frames through.
    #[arg(long)]
    check: bool,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write a page with tables and plots to this file; it needs nothing else.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Keep the private folder (configs, logs) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs it with the daemon that was found.
pub fn run(given: &Options, vswitch: PathBuf) -> anyhow::Result<()> {
    let lab = Lab::load(&given.lab)?;
    super::check(&lab)?;
    interrupt::install()?;
    let options = super::Options { vswitch, keep: given.keep };
    println!("{}", super::intention(&lab));
    let found = checks::all(&lab, &options);
    for check in &found {
        println!("{}", check.line());
    }
    let missing = found.iter().filter(|check| check.verdict == Verdict::Failed).count();
    if missing > 0 {
        return Err(LabError::Checks { missing }.into());
    }
    let mut bench = Bench::prepare(&lab, &options)?;
    bench.probe()?;
    println!("{:<7} {:<28} frames come through both ways", "ok", "cabling");
    if given.check {
        return Ok(());
    }
    let mut report = Report::new(&given.lab.display().to_string(), &options.vswitch, found);
    println!("{}", report::table_head());
    let result = bench.run(&mut report, |row| println!("{}", report::table_row(row)));
    report.sum_up();
    print!("{}", report.text());
    // Also when it stopped early: hours of measurement are not to be lost.
    if let Some(path) = &given.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &given.html {
        std::fs::write(path, page::page(&report)?).with_context(|| format!("write {}", path.display()))?;
        println!("page: {}", path.display());
    }
    result?;
    // Hardware that takes no rules is a finding, not a failure.
    let offloaded = Arm::Offloaded.to_string();
    let left_out = report.skipped.iter().filter(|(_, arm, _)| *arm != offloaded).count();
    anyhow::ensure!(left_out == 0, "{left_out} measurements of arms were left out; the lines above say why");
    Ok(())
}
