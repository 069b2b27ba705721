//! `perf scale` on the command line.

use std::path::PathBuf;

use anyhow::Context;

use super::report::table_head;
use crate::compare::cases::{Case, Flows, Job, Traffic, Work};
use crate::host::interrupt;

/// Two workers of one switch, each with its own generator, against one alone; and the curve beyond.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    pub vswitch: Option<PathBuf>,
    /// What to do: encap, decap, both (encap and decap at the same time).
    #[arg(long, value_delimiter = ',', default_value = "encap,decap,both")]
    cases: Vec<Work>,
    /// Numbers of flows of each worker.
    #[arg(long, value_delimiter = ',', default_value = "1k,100k")]
    flows: Vec<Flows>,
    /// Length of the inner Ethernet frame, with its frame check sequence.
    #[arg(long, default_value_t = 64)]
    inner_bytes: usize,
    /// What the inner frames carry: tcp, rocev2 (or roce), mixed.
    #[arg(long, default_value = "tcp")]
    traffic: Traffic,
    /// Rates for the link, VPCs, vNICs and classes, so high that each packet pays and none waits.
    #[arg(long)]
    qos: bool,
    /// Rounds of each case.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a sample in seconds; a round has four.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The workers' cores, as in 0,1 [default: the first two].
    #[arg(long, value_delimiter = ',', num_args = 2)]
    cores: Option<Vec<usize>>,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the private folder (configs, frames) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs it with the daemon that was found.
pub fn run(given: Options, vswitch: PathBuf) -> anyhow::Result<()> {
    anyhow::ensure!(given.rounds > 0, "--rounds 0 measures nothing; 5 is a good number");
    anyhow::ensure!((0.1..=60.0).contains(&given.seconds), "--seconds {} is not in 0.1 to 60", given.seconds);
    let lengths = crate::compare::frames::INNER_BYTES;
    anyhow::ensure!(
        lengths.contains(&given.inner_bytes),
        "--inner-bytes {} is not in {} to {}",
        given.inner_bytes,
        lengths.start(),
        lengths.end()
    );
    let unfit = given.cases.iter().find(|work| work.tenants.is_some() || work.case == Case::L2);
    if let Some(work) = unfit {
        anyhow::bail!(
            "--cases has {}, which has no lane for each worker; choose of encap, decap, both",
            work.case
        );
    }
    let cores = match given.cores.as_deref() {
        None => None,
        Some(&[first, second]) => Some([first, second]),
        Some(cores) => anyhow::bail!("--cores names {} cores; two are needed, as in 0,1", cores.len()),
    };
    interrupt::install()?;
    let job = |work: &Work, flows: &Flows| Job {
        case: work.case,
        tenants: None,
        flows: flows.clone(),
        inner_bytes: given.inner_bytes,
        traffic: given.traffic,
        qos: given.qos,
    };
    let options = super::Options {
        jobs: given
            .cases
            .iter()
            .flat_map(|work| given.flows.iter().map(move |flows| job(work, flows)))
            .collect(),
        rounds: given.rounds,
        seconds: given.seconds,
        vswitch,
        cores,
        keep: given.keep,
    };
    println!(
        "rates are per CPU-second of a worker's thread; alone: the other core idle; apart: beside another switch"
    );
    println!("{}", table_head());
    let report = super::run(&options, |row| row.lines().iter().for_each(|line| println!("{line}")))?;
    if let Some(reason) = &report.skipped {
        println!("skipped: {reason}");
    }
    println!("a line that the other core has costs {:.0} cycles", report.line_cycles);
    report.rows.iter().for_each(|row| println!("{}", row.verdict()));
    report.rows.iter().for_each(|row| print!("{}", row.curve()));
    if let Some(path) = given.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
