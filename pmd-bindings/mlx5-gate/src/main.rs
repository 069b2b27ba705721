//! ```text
//! mlx5-gate judge FILE...   what mlx5 says of rules in testpmd's words (`set raw_encap`, `flow create`), line by line
//! mlx5-gate table           writes the table of all chains into pmd-bindings/BRINGUP.md
//! ```

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use mlx5_gate::{Engine, GateError, Nic, chains, judge, table};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((command, files)) if command == "judge" && !files.is_empty() => {
            files.iter().try_for_each(|file| verdicts(file))
        }
        Some((command, [])) if command == "table" => write_table(),
        _ => {
            eprintln!("mlx5-gate judge FILE... | mlx5-gate table");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mlx5-gate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn verdicts(file: &str) -> Result<(), GateError> {
    let wrong = |words| GateError::Chains { file: file.into(), words };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let rules = rules::testpmd::commands(&text).map_err(wrong)?;
    let mut out = std::io::stdout().lock();
    for engine in Engine::ALL {
        for nic in Nic::ALL {
            for (rule, verdict) in rules.iter().zip(judge(&rules, nic, engine)?) {
                if writeln!(out, "{file}\t{engine}\t{nic}\t{verdict}\t{rule}").is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn write_table() -> Result<(), GateError> {
    let (_, file) = table::in_file(&table::table(&chains::all()?)?)?;
    let path = table::file();
    fs::write(&path, file).map_err(|error| GateError::System { what: path.display().to_string(), error })
}
