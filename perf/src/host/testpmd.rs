//! `dpdk-testpmd` as a child: receives and sends, and looks at nothing, or writes MAC addresses and looks at nothing else.

use std::time::Duration;

use super::process::{Placement, Process};
use super::scratch::RunFolder;
use crate::Result;

pub const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct TestpmdSpec<'a> {
    /// What it does with packets, in its words: `io` or `mac`.
    pub mode: &'a str,
    pub housekeeping: usize,
    /// The cores that forward.
    pub cores: &'a [usize],
    pub prefix: &'a str,
    /// EAL's words about memory, plugins and devices.
    pub eal: Vec<String>,
    pub own: Vec<String>,
}

#[derive(Debug)]
pub struct Testpmd {
    pub process: Process,
    /// What it says when it begins to forward.
    begun: String,
    // Goes after the process.
    _run_folder: RunFolder,
}

impl Testpmd {
    /// Starts it; it does not forward yet.
    pub fn start(spec: &TestpmdSpec<'_>) -> Result<Self> {
        let cores: Vec<String> = [spec.housekeeping].iter().chain(spec.cores).map(usize::to_string).collect();
        let words = format!(
            "-l {} --main-lcore {} --no-telemetry --file-prefix {}",
            cores.join(","),
            spec.housekeeping,
            spec.prefix
        );
        let split = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let own = split(&format!("-- -i --forward-mode={} --nb-cores={}", spec.mode, spec.cores.len()));
        let arguments = [&split(&words), &spec.eal, &own, &spec.own].map(Vec::as_slice).concat();
        let run_folder = RunFolder(spec.prefix.to_owned());
        let placement = Placement { line_buffered: true, ..Placement::default() };
        let remedy = "install DPDK's tools: scripts/bootstrap";
        let process = Process::start("dpdk-testpmd", &arguments, &[], placement, remedy)?;
        Ok(Self { process, begun: format!("{} packet forwarding", spec.mode), _run_folder: run_folder })
    }

    /// Waits until it takes commands.
    pub fn await_prompt(&mut self) -> Result<()> {
        self.process.await_output("its prompt", LIMIT, |lines| {
            lines.iter().any(|line| line.contains("testpmd>") || line.contains("Done")).then_some(())
        })
    }

    pub fn forward(&mut self) -> Result<()> {
        self.process.type_line("start")?;
        self.process.await_output("`start` to forward", LIMIT, |lines| {
            lines.iter().any(|line| line.contains(&self.begun)).then_some(())
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(2));
    }
}
