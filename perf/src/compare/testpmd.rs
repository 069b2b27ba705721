//! `dpdk-testpmd` in io mode: the floor, what source, sink and burst handling cost by themselves; and in mac mode, which touches
//! each packet.

use super::peer::{Switch, SwitchSetup, mbufs};
use crate::Result;
use crate::host::process::Process;
use crate::host::testpmd::{LIMIT, Testpmd, TestpmdSpec};

const SINK_PORT: &str = "1";

/// Starts it and begins forwarding.
pub fn start(setup: &SwitchSetup<'_>, mode: &str) -> Result<Testpmd> {
    // Port 0 and port 1 follow the order of the devices.
    let (source, sink) = (setup.source.device(0), setup.sink.device(1));
    let mut eal = setup.bus_words();
    eal.push("--in-memory".into());
    if let Some(plugin) = &setup.plugin {
        eal.extend(["-d".into(), plugin.display().to_string()]);
    }
    for (port, device) in [(&setup.source, source), (&setup.sink, sink)] {
        if port.pci().is_none() {
            eal.extend(["--vdev".into(), device]);
        }
    }
    let cores = setup.cores;
    let mbufs = mbufs(setup.job, setup.source.is_replayed());
    // Without --no-flush-rx it would throw away a file that is played once.
    let mut own = vec!["--no-flush-rx".to_owned(), format!("--total-num-mbufs={mbufs}")];
    if cores.len() > 1 {
        own.extend(["rxq", "txq"].map(|queues| format!("--{queues}={}", cores.len())));
    }
    let (housekeeping, prefix) = (setup.housekeeping, setup.prefix.as_str());
    let mut testpmd = Testpmd::start(&TestpmdSpec { mode, housekeeping, cores, prefix, eal, own })?;
    testpmd.forward()?;
    Ok(testpmd)
}

impl Switch for Testpmd {
    fn name(&self) -> &str {
        "testpmd"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn forwarded(&mut self) -> Result<u64> {
        self.process.forget_output();
        self.process.type_line(&format!("show port stats {SINK_PORT}"))?;
        self.process
            .await_output("port statistics", LIMIT, |lines| lines.iter().find_map(|line| sent_packets(line)))
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
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
