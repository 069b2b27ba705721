//! `perf lab` on the command line.

use std::path::PathBuf;

use super::LabBench;
use super::checks::{self, CheckVerdict};
use super::file::Lab;
use super::report::{self, LabReport};
use crate::compare::peer::Contender;
use crate::host::interrupt;
use crate::options::{Common, Page};
use crate::report::parts;

/// Comparisons over NICs with a generator at their other ends, as a lab file says.
#[derive(Debug, clap::Args)]
pub struct LabOptions {
    /// The lab (perf/lab has examples).
    lab: PathBuf,
    /// Only look at the machine, and send a few frames through.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    common: Common,
}

/// Runs it with the daemon that was found.
pub fn run(given: &LabOptions) -> anyhow::Result<()> {
    let vswitch = given.common.vswitch()?;
    let lab = Lab::load(&given.lab)?;
    super::check(&lab)?;
    interrupt::install()?;
    println!("{}", super::intention(&lab));
    let found = checks::all(&lab, &vswitch);
    for check in &found {
        println!("{}", check.line());
    }
    let missing = found.iter().filter(|check| check.verdict == CheckVerdict::Failed).count();
    anyhow::ensure!(
        missing == 0,
        "{missing} of the checks failed; see to what the lines with `FAILED` say, then try `perf lab --check` again"
    );
    let mut bench = LabBench::prepare(&lab, &vswitch, given.common.keep)?;
    bench.probe()?;
    println!("{:<7} {:<28} frames come through both ways", "ok", "cabling");
    if given.check {
        return Ok(());
    }
    let mut report = LabReport::new(&given.lab.display().to_string(), &vswitch, found);
    println!("{}", report::TABLE.head());
    let result = bench.run(&mut report, |row| println!("{}", report::TABLE.row(row)));
    report.sum_up();
    print!("{}", parts::text(&report.parts()));
    // Also when it stopped early: hours of measurement are not to be lost.
    given.common.write(&report)?;
    let all = || [vec![report.checks()], report.parts()].concat();
    given.page.write(|| parts::page(&report.lab, &report.about(), &all()))?;
    result?;
    // Hardware that takes no rules is a finding, not a failure.
    let offloaded = Contender::Offloaded.to_string();
    let left_out = report.skipped.iter().filter(|(_, forwarder, _)| *forwarder != offloaded).count();
    anyhow::ensure!(
        left_out == 0,
        "{left_out} measurements of forwarders were left out; the lines above say why"
    );
    Ok(())
}
