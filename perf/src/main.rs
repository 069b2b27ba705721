//! The command line of `perf`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use perf::compare::record::Record;
use perf::compare::{self, results};
use perf::dcqcn::spread::Spread;
use perf::host::interrupt;
use perf::live::LiveError;
use perf::{dcqcn, generator, group, lab, latency, offload, scale, setup, storm};

#[derive(Parser)]
#[command(version, about = "Measures the Jakiro vswitch")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::cli::Options),
    /// Make one page of records of comparisons, with the targets met and missed.
    Report(Report),
    /// Open queue pairs without end beside a steady neighbour, with and without by turns.
    Storm(Storm),
    /// Eight members, all to all, over one or two switches: small writes, acknowledgements and datagrams.
    Group(Group),
    /// The loop from marks to senders' rates, beside TCP, in simulation with the switch's own token buckets.
    Dcqcn(Dcqcn),
    Gen(generator::cli::Options),
    Lab(lab::cli::Options),
    Latency(latency::cli::Options),
    Setup(setup::cli::Options),
    Scale(scale::cli::Options),
    /// Flows in the simulated e-switch: what is left for the worker, how soon they are there, and 10,000 new ones a second.
    Offload(Offload),
}

#[derive(Args)]
struct Offload {
    /// Arms of each share (0, 50 and 99 %).
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of an arm in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Packets a second.
    #[arg(long, default_value_t = 200_000)]
    rate: u64,
    /// New flows a second of the churn; 0: none.
    #[arg(long, default_value_t = 10_000)]
    churn: u64,
    /// How long the churn goes on, in seconds.
    #[arg(long, default_value_t = 60.0)]
    churn_seconds: f64,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    run: LiveRun,
}

#[derive(Args)]
struct Dcqcn {
    /// What to run: alone, even, three-to-one, storm [default: all].
    #[arg(value_parser = scenario)]
    scenarios: Vec<dcqcn::Scenario>,
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

fn scenario(name: &str) -> Result<dcqcn::Scenario, String> {
    let known = dcqcn::Scenario::ALL;
    known
        .into_iter()
        .find(|scenario| scenario.name() == name)
        .ok_or_else(|| format!("there are {}", known.map(dcqcn::Scenario::name).join(", ")))
}

#[derive(Args)]
struct Report {
    /// Records, as `perf compare --record` writes them; the last one counts where they have the same row.
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// The page.
    #[arg(long)]
    out: PathBuf,
}

/// What every command with traffic of its own takes.
#[derive(Args)]
struct LiveRun {
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    vswitch: Option<PathBuf>,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw it over time, into this file name with .svg and .png.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Keep the private folder (configs, logs) and say where it is.
    #[arg(long)]
    keep: bool,
}

#[derive(Args)]
struct Storm {
    /// Pairs of arms, with and without the storm.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Length of an arm in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// New queue pairs per second of the storm.
    #[arg(long, default_value_t = 100_000)]
    rate: u64,
    /// Queue pairs that the storm may have at a time.
    #[arg(long, default_value_t = 1000)]
    quota: u32,
    /// Queue pairs of the victim.
    #[arg(long, default_value_t = 64)]
    victim_qps: u32,
    /// The victim's rate in percent of the worker's capacity.
    #[arg(long, default_value_t = 40.0)]
    share: f64,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    run: LiveRun,
}

#[derive(Args)]
struct Group {
    /// Switches: 2 (joined by VxLAN) or 1.
    #[arg(long, default_value_t = 2)]
    switches: usize,
    /// How long, in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Rounds per second.
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Bytes of a member's row, 16 to 64.
    #[arg(long, default_value_t = 32)]
    row: usize,
    #[command(flatten)]
    run: LiveRun,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Compare(mut options) => {
            let vswitch = match (options.peers_alone, options.vswitch.take()) {
                (true, _) => Ok(None),
                (false, Some(given)) => Ok(Some(given)),
                (false, None) => sibling().map(Some),
            };
            vswitch.and_then(|vswitch| compare::cli::run(options, vswitch))
        }
        Command::Report(options) => run_report(&options),
        Command::Storm(options) => run_storm(options),
        Command::Group(options) => run_group(options),
        Command::Dcqcn(options) => run_dcqcn(options),
        Command::Gen(options) => generator::cli::run(options),
        Command::Latency(mut given) => with(given.vswitch.take(), |daemon| latency::cli::run(given, daemon)),
        Command::Setup(mut given) => with(given.vswitch.take(), |daemon| setup::cli::run(given, daemon)),
        Command::Scale(mut given) => with(given.vswitch.take(), |daemon| scale::cli::run(given, daemon)),
        Command::Lab(mut given) => with(given.vswitch.take(), |daemon| lab::cli::run(&given, daemon)),
        Command::Offload(options) => run_offload(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_report(given: &Report) -> anyhow::Result<()> {
    let mut records = Vec::new();
    for path in &given.records {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let record: Record = serde_json::from_str(&text)
            .with_context(|| format!("{} is no record of a comparison", path.display()))?;
        records.push(record);
    }
    std::fs::write(&given.out, results::page(&records))
        .with_context(|| format!("write {}", given.out.display()))
}

fn run_storm(given: Storm) -> anyhow::Result<()> {
    anyhow::ensure!(given.pairs > 0, "--pairs 0 measures nothing; 5 is a good number");
    anyhow::ensure!(
        (0.1..=600.0).contains(&given.seconds),
        "--seconds {} is not in 0.1 to 600",
        given.seconds
    );
    anyhow::ensure!((1.0..=100.0).contains(&given.share), "--share {} is not in 1 to 100", given.share);
    anyhow::ensure!(
        (1..=65_536).contains(&given.victim_qps),
        "--victim-qps {} is not in 1 to 65536",
        given.victim_qps
    );
    interrupt::install()?;
    let options = storm::Options {
        vswitch: given.run.vswitch.map_or_else(sibling, Ok)?,
        core: given.core,
        pairs: given.pairs,
        seconds: given.seconds,
        storm_rate: given.rate,
        storm_quota: given.quota,
        victim_qps: given.victim_qps,
        share: given.share / 100.0,
        keep: given.run.keep,
    };
    println!("{}", storm::intention(&options));
    println!("{}", storm::report::table_head());
    let report = storm::run(&options, |arm| println!("{}", storm::report::table_row(arm)))?;
    println!("{}", storm::capacity_line(&report.capacity, report.victim_rate));
    println!("{}", report.verdict());
    keep(given.run.json, given.run.plot, &report, |stem| report.plot(stem))?;
    anyhow::ensure!(report.lost_with == 0 || report.lost_without > 0, "the storm cost the victim packets");
    Ok(())
}

fn run_group(given: Group) -> anyhow::Result<()> {
    anyhow::ensure!((1..=2).contains(&given.switches), "--switches {} is neither 1 nor 2", given.switches);
    anyhow::ensure!(
        (0.1..=600.0).contains(&given.seconds),
        "--seconds {} is not in 0.1 to 600",
        given.seconds
    );
    anyhow::ensure!(
        (1..=1_000_000).contains(&given.rounds),
        "--rounds {} is not in 1 to 1000000",
        given.rounds
    );
    anyhow::ensure!((16..=64).contains(&given.row), "--row {} is not in 16 to 64", given.row);
    interrupt::install()?;
    let options = group::Options {
        vswitch: given.run.vswitch.map_or_else(sibling, Ok)?,
        switches: given.switches,
        seconds: given.seconds,
        rounds: given.rounds,
        row: given.row,
        keep: given.run.keep,
    };
    let report = group::run(&options)?;
    print!("{}", report.text());
    keep(given.run.json, given.run.plot, &report, |stem| report.plot(stem))?;
    anyhow::ensure!(report.is_clean(), "packets were lost, out of sequence, damaged or dropped");
    Ok(())
}

fn run_offload(given: Offload) -> anyhow::Result<()> {
    for (name, seconds) in [("seconds", given.seconds), ("churn-seconds", given.churn_seconds)] {
        anyhow::ensure!((0.1..=3600.0).contains(&seconds), "--{name} {seconds} is not in 0.1 to 3600");
    }
    anyhow::ensure!(given.rounds + given.churn as usize > 0, "--rounds 0 and --churn 0 measure nothing");
    anyhow::ensure!(
        (100_000..=10_000_000).contains(&given.rate),
        "--rate {} is not in 100000 to 10000000: fast flows have to be faster than slow ones",
        given.rate
    );
    anyhow::ensure!(given.churn <= 100_000, "--churn {} is over 100000", given.churn);
    interrupt::install()?;
    let options = offload::Options {
        vswitch: given.run.vswitch.map_or_else(sibling, Ok)?,
        core: given.core,
        rounds: given.rounds,
        seconds: given.seconds,
        rate: given.rate,
        churn: given.churn,
        churn_seconds: given.churn_seconds,
        keep: given.run.keep,
    };
    println!(
        "the e-switch is simulated, on the worker's core: its cycles (sim) are apart, and say nothing of a NIC"
    );
    println!("{}", offload::report::table_head());
    let report = offload::run(&options, |arm| println!("{}", offload::report::table_row(arm)))?;
    println!("{}", report.verdict());
    keep(given.run.json, given.run.plot, &report, |stem| report.plot(stem))?;
    anyhow::ensure!(report.is_clean(), "packets were lost, or something was left behind");
    Ok(())
}

fn run_dcqcn(given: Dcqcn) -> anyhow::Result<()> {
    let scenarios = if given.scenarios.is_empty() { dcqcn::Scenario::ALL.to_vec() } else { given.scenarios };
    println!("{}", dcqcn::Outcome::head());
    let mut outcomes = Vec::new();
    for &scenario in &scenarios {
        let outcome = dcqcn::run(scenario, 0);
        println!("{}", outcome.line());
        if let Some(folder) = &given.plots {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
            outcome.plot(&folder.join(format!("dcqcn-{}", scenario.name())))?;
        }
        outcomes.push(outcome);
    }
    let mut lost: u64 = outcomes.iter().map(|outcome| outcome.rdma_lost).sum();
    let mut spreads = Vec::new();
    if given.seeds > 0 {
        println!("\nthe worst over seeds\n{}", Spread::head());
    }
    for scenario in scenarios.into_iter().filter(|_| given.seeds > 0) {
        let spread = Spread::new(scenario, given.seeds);
        println!("{}", spread.line());
        lost += spread.rdma_lost;
        spreads.push(spread);
    }
    if let Some(path) = given.json {
        if spreads.is_empty() {
            write_json(&path, &outcomes)?;
        } else {
            write_json(&path, &spreads)?;
        }
    }
    anyhow::ensure!(lost == 0, "{lost} packets of queue pairs that obey were dropped");
    Ok(())
}

/// Writes a report and draws it, where that is wanted.
fn keep(
    json: Option<PathBuf>,
    plot: Option<PathBuf>,
    report: &impl serde::Serialize,
    draw: impl FnOnce(&Path) -> Result<(), LiveError>,
) -> anyhow::Result<()> {
    if let Some(path) = json {
        write_json(&path, report)?;
    }
    if let Some(stem) = plot {
        draw(&stem)?;
        println!("drawn: {} and .png", stem.with_extension("svg").display());
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
}

/// Runs a command with the daemon that was named, or the one beside this program.
fn with(daemon: Option<PathBuf>, run: impl FnOnce(PathBuf) -> anyhow::Result<()>) -> anyhow::Result<()> {
    run(daemon.map_or_else(sibling, Ok)?)
}

/// `vswitch` in the folder of this program.
fn sibling() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("find this program")?;
    let path = here.with_file_name("vswitch");
    anyhow::ensure!(
        path.is_file(),
        "there is no {}; build it (cargo build --release -p vswitch), name it with --vswitch, or measure --peers-alone",
        path.display()
    );
    Ok(path)
}
