//! Runs the benches and reads what was counted.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::counted::PACKETS;
use crate::record::Count;
use testkit::fixture::{SINGLE, WHOLE};

/// By this the program knows that its caller is itself.
const BENCH: &str = "--output-format=json";
/// By this it knows that its caller is gungraun's runner.
const RUN: &str = "--gungraun-run";

/// True when the program was started to be counted.
pub fn is_bench() -> bool {
    env::args().nth(1).is_some_and(|first| first == BENCH || first == RUN)
}

/// Reads what gungraun says of a bench, as far as it matters here.
fn count(summary: &Value) -> Option<Count> {
    let group = summary["function_name"].as_str()?;
    let index: usize = summary["id"].as_str()?.rsplit('_').next()?.parse().ok()?;
    let name = match group {
        "stage" => SINGLE.get(index)?.0,
        _ => WHOLE.get(index)?.0,
    };
    let instructions = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new")?.as_u64()?;
    Some(Count {
        name: format!("{group} {name}"),
        per_packet: (instructions as f64 * 100.0 / PACKETS as f64).round() / 100.0,
    })
}

/// Counts everything.
///
/// # Errors
/// gungraun's runner or valgrind cannot be run, or a bench failed; what they say about it is on stderr.
pub fn counts() -> Result<Vec<Count>> {
    let version = Command::new("valgrind").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        bail!("valgrind is missing: run scripts/bootstrap first");
    }
    let runner = env::var_os("GUNGRAUN_RUNNER").unwrap_or_else(|| "gungraun-runner".into());
    if Command::new(runner).arg("--version").output().is_err() {
        bail!("gungraun-runner is missing: run scripts/bootstrap first");
    }
    let program = env::current_exe().context("could not find this program")?;
    let output = Command::new(program)
        .args([BENCH, "--test=false", "--callgrind-args=--cache-sim=no", "--parallel=auto"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("could not run the benches")?;
    if !output.status.success() {
        bail!("the benches failed: look at the lines above");
    }
    let summaries = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let counts: Vec<Count> = summaries
        .map(|summary| {
            count(&summary.context("gungraun's answer was not understood")?).context("an unknown bench")
        })
        .collect::<Result<_>>()?;
    let all = SINGLE.len() + WHOLE.len();
    if counts.len() != all {
        bail!("{} of {all} benches were counted", counts.len());
    }
    Ok(counts)
}
