//! `dpdk-testpmd` in io mode: receives and sends and looks at nothing.
//!
//! It is the floor: what source, sink and burst handling cost by themselves.

use std::time::Duration;

use super::CompareError;
use super::peer::{Attached, Setup, Sink, Source, Switch, mbufs};
use crate::host::process::{Placement, Process};
use crate::host::scratch;

const LIMIT: Duration = Duration::from_secs(20);
const SINK_PORT: &str = "1";

#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    prefix: String,
}

impl Testpmd {
    pub fn start(setup: &Setup<'_>) -> Result<Self, CompareError> {
        // Port 0 and port 1 follow the order of the devices.
        let (source, sink) = (setup.source.device(0), setup.sink.device(1));
        let bus = setup.bus_words();
        let mut devices: Vec<&str> = bus.iter().map(String::as_str).collect();
        if !matches!(setup.source, Source::Attached(Attached::Pci(_))) {
            devices.extend(["--vdev", &source]);
        }
        if !matches!(setup.sink, Sink::Attached(Attached::Pci(_))) {
            devices.extend(["--vdev", &sink]);
        }
        let plugin = setup.plugin.as_ref().map(|path| path.display().to_string());
        let plugin: Vec<&str> = plugin.iter().flat_map(|path| ["-d", path]).collect();
        let forwarding = setup.cores();
        let cores: Vec<String> =
            [setup.housekeeping].iter().chain(&forwarding).map(usize::to_string).collect();
        let cores = cores.join(",");
        let workers = [("nb-cores", true), ("rxq", false), ("txq", false)]
            .into_iter()
            .filter(|(_, always)| *always || forwarding.len() > 1)
            .map(|(name, _)| format!("--{name}={}", forwarding.len()));
        let workers: Vec<String> = workers.collect();
        let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
        let main_core = setup.housekeeping.to_string();
        let mbufs = mbufs(setup.job, setup.source.is_replayed()).to_string();
        let arguments = [
            ["-l", &cores, "--main-lcore", &main_core].as_slice(),
            &["--in-memory", "--no-telemetry", "--file-prefix", &setup.prefix],
            &plugin,
            &devices,
            // Without --no-flush-rx it would throw away a file that is played once.
            &["--", "-i", "--forward-mode=io", "--no-flush-rx", "--total-num-mbufs", &mbufs],
            &workers,
        ]
        .concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let placement = Placement { line_buffered: true, ..Placement::default() };
        let process = Process::start(
            "dpdk-testpmd",
            &arguments,
            &[],
            placement,
            "install DPDK's tools: scripts/bootstrap",
        )?;
        let mut testpmd = Self { process, prefix: setup.prefix.clone() };
        testpmd.process.type_line("start")?;
        testpmd.process.await_output("`start` to forward", LIMIT, |lines| {
            lines.iter().any(|line| line.contains("io packet forwarding")).then_some(())
        })?;
        Ok(testpmd)
    }
}

impl Switch for Testpmd {
    fn name(&self) -> &str {
        "testpmd"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn forwarded(&mut self) -> Result<u64, CompareError> {
        self.process.forget_output();
        self.process.type_line(&format!("show port stats {SINK_PORT}"))?;
        let sent = self.process.await_output("port statistics", LIMIT, |lines| {
            lines.iter().find_map(|line| sent_packets(line))
        })?;
        Ok(sent)
    }

    fn settle(&mut self) -> Result<(), CompareError> {
        Ok(())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(2));
        scratch::remove_run_folder(&self.prefix);
    }
}

fn sent_packets(line: &str) -> Option<u64> {
    line.trim().strip_prefix("TX-packets:")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::sent_packets;

    #[test]
    fn reads_the_statistics_line() {
        assert_eq!(sent_packets("  TX-packets: 1234       TX-errors: 0          TX-bytes:  5"), Some(1234));
        assert_eq!(sent_packets("  RX-packets: 1234       RX-missed: 0"), None);
    }
}
