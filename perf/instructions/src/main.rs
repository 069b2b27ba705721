//! Counts the instructions that each stage of the overlay, and the whole of it, takes for a packet, and compares them
//! with those on record: unlike times, counts are the same in every run and on every machine of a kind.
//!
//! The program is its own bench: it runs itself with the arguments of gungraun's runner, which runs it under callgrind.

mod counted;
mod gather;
mod record;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use record::{Built, Record};

/// Counts instructions per packet, and fails when a stage takes over 3 % more than on record.
#[derive(Parser)]
#[command(name = "instructions")]
struct Options {
    /// Write the counts down as the new record instead of comparing them
    #[arg(long)]
    write: bool,
    /// The record
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.toml"))]
    record: PathBuf,
}

fn main() -> ExitCode {
    if gather::is_bench() {
        counted::serve();
        return ExitCode::SUCCESS;
    }
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `false` when something takes more than on record.
fn run(options: &Options) -> Result<bool> {
    let file = options.record.display();
    let now = Record { built: Built::this(), counts: gather::counts()? };
    if options.write {
        std::fs::write(&options.record, now.text()).with_context(|| format!("could not write {file}"))?;
        println!("{} counts written to {file}", now.counts.len());
        return Ok(true);
    }
    let text = std::fs::read_to_string(&options.record)
        .with_context(|| format!("could not read {file}: --write makes it"))?;
    let before =
        Record::parse(&text).with_context(|| format!("{file} is no record: --write makes a new one"))?;
    let comparison = record::compare(&before, &now);
    print!("{comparison}");
    Ok(comparison.passes())
}
