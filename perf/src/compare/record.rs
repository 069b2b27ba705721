//! A comparison on record: the machine, the command and every figure, for `perf report`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::report::{CompareRow, More};
use super::{Skipped, Supply};
use crate::host::{process, tsc};
use crate::options::word;

/// One run of `perf compare`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub machine: Machine,
    /// Its command line, without the program's path.
    pub command: String,
    pub frames: String,
    /// Load of the machine over the last minute, before and after.
    pub load: (f64, f64),
    pub rows: Vec<RecordedRow>,
    /// What could not be measured: case, flows, peer, reason.
    pub skipped: Vec<(String, String, String, String)>,
}

/// A row with all its figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordedRow {
    /// As in the file of `--json`.
    #[serde(flatten)]
    pub row: CompareRow,
    pub more: More,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    /// Processor, as it names itself.
    pub processor: String,
    pub cores: usize,
    /// Ticks of the time stamp counter in a second.
    pub hertz: f64,
    pub kernel: String,
    pub dpdk: String,
    pub ovs: String,
    pub vswitch: String,
}

impl Machine {
    pub(crate) fn here(vswitch: Option<&Path>) -> Self {
        let said = |program: &str, arguments: &[&str]| {
            process::said(program, arguments).unwrap_or_else(|_| "not there".into())
        };
        Self {
            date: said("date", &["-u", "+%F"]),
            processor: tsc::processor(),
            cores: crate::host::cores::available().len(),
            hertz: tsc::hertz().unwrap_or(0.0),
            kernel: said("uname", &["-sr"]),
            dpdk: said("pkg-config", &["--modversion", "libdpdk"]),
            ovs: said("ovs-vswitchd", &["--version"]),
            vswitch: vswitch
                .map_or_else(|| "not run".into(), |path| said(&path.display().to_string(), &["--version"])),
        }
    }
}

impl Record {
    pub fn begin(vswitch: Option<&Path>, frames: Supply) -> Self {
        let words = without_paths(std::env::args().skip(1));
        Self {
            machine: Machine::here(vswitch),
            command: format!("perf {}", words.join(" ")),
            frames: word(&frames),
            load: (load(), 0.0),
            rows: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub fn add(&mut self, row: &CompareRow) {
        self.rows.push(RecordedRow { row: row.clone(), more: row.more.clone() });
    }

    pub fn skip(&mut self, skipped: &Skipped) {
        let Skipped { job, peer, reason } = skipped;
        self.skipped.push((job.label(), job.flows.given.clone(), peer.to_string(), reason.clone()));
    }

    pub fn end(&mut self) {
        self.load.1 = load();
    }
}

/// The words without the options that name files, which say nothing about what was measured.
fn without_paths(mut words: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if ["--vswitch", "--before", "--record", "--json"].contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::without_paths;

    #[test]
    fn the_command_is_kept_without_paths() {
        let words =
            "compare --vswitch /x/y --qos --json z --flows 1k --record r".split(' ').map(str::to_owned);
        assert_eq!(without_paths(words), ["compare", "--qos", "--flows", "1k"]);
    }
}
