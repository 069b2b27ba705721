//! The command line of `perf`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use perf::compare::record::Record;
use perf::compare::{self, results};
use perf::{dcqcn, generator, group, hosts, lab, latency, offload, scale, setup, storm};

#[derive(Parser)]
#[command(version, about = "Measures the Jakiro vswitch")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::cli::CompareOptions),
    /// Make one page of records of comparisons, with the targets met and missed.
    Report(ReportOptions),
    Storm(storm::StormOptions),
    Group(group::GroupOptions),
    Dcqcn(dcqcn::cli::DcqcnOptions),
    Gen(generator::cli::GenOptions),
    Lab(lab::cli::LabOptions),
    Latency(latency::LatencyOptions),
    Setup(setup::SetupOptions),
    Scale(scale::ScaleOptions),
    Offload(offload::OffloadOptions),
    Hosts(hosts::HostsOptions),
}

#[derive(Args)]
struct ReportOptions {
    /// Records, as `perf compare --record` writes them; the last one counts where they have the same row.
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// The page.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Compare(options) => compare::cli::run(&options),
        Command::Report(options) => report(&options),
        Command::Storm(options) => storm::run(&options),
        Command::Group(options) => group::run(&options),
        Command::Dcqcn(options) => dcqcn::cli::run(&options),
        Command::Gen(options) => generator::cli::run(options),
        Command::Lab(options) => lab::cli::run(&options),
        Command::Latency(options) => latency::run(&options),
        Command::Setup(options) => setup::run(&options),
        Command::Scale(options) => scale::run(&options),
        Command::Offload(options) => offload::run(&options),
        Command::Hosts(options) => hosts::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn report(given: &ReportOptions) -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether types of fields and of what reads them agree shows when words are parsed.
    #[test]
    fn every_command_takes_its_defaults() {
        for (command, needed) in [
            ("compare", ""),
            ("report", "--out page.md record.json"),
            ("storm", ""),
            ("group", ""),
            ("dcqcn", ""),
            ("gen", "scenario.toml"),
            ("lab", "lab.toml"),
            ("latency", ""),
            ("setup", ""),
            ("scale", ""),
            ("offload", ""),
            ("hosts", "--vswitch x --vswitch y --before z --only local-veth,remote-veth"),
        ] {
            let words = ["perf", command].into_iter().chain(needed.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{command}: {error}");
            }
        }
        let refused = |words: &str| Cli::try_parse_from(words.split(' ')).is_err();
        assert!(refused("perf storm --pairs 0") && refused("perf compare --peers-alone --vswitch x"));
    }
}
