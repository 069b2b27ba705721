//! `dpdk-testpmd` in io mode between two ports of the same kind as the switch's: the floor.

use std::path::Path;
use std::time::Duration;

use super::Ports;
use crate::host::HostError;
use crate::host::cores::Cores;
use crate::host::process::{Placement, Process};
use crate::host::scratch;

/// Free huge pages that are enough for it.
const HUGE_MB: u64 = 192;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    prefix: String,
}

impl Testpmd {
    /// Starts it, serving two sockets in `folder`.
    pub fn start(folder: &Path, ports: Ports, cores: Cores, prefix: &str) -> Result<Self, HostError> {
        let devices = [0, 1].map(|port| match ports {
            Ports::Memif => {
                let socket = super::field::memif_socket(folder);
                format!(
                    "net_memif{port},role=server,id={port},socket={},socket-abstract=no",
                    socket.display()
                )
            }
            Ports::Vhost => {
                let socket = super::field::vhost_socket(folder, port);
                format!("net_vhost{port},iface={},queues=1,client=0,tso=0", socket.display())
            }
        });
        // Without huge pages it would not start, unless told so; either way its memory can be shared with us.
        let memory: &[&str] = if pmd::hugepage::free_mb() >= HUGE_MB {
            &["--in-memory", "--single-file-segments"]
        } else {
            &["--no-huge", "-m", "256", "--no-shconf"]
        };
        let main_core = cores.housekeeping.to_string();
        let cores = format!("{main_core},{}", cores.forwarding);
        let arguments = [
            ["-l", &cores, "--main-lcore", &main_core].as_slice(),
            memory,
            &["--no-pci", "--no-telemetry", "--file-prefix", prefix],
            &["--vdev", &devices[0], "--vdev", &devices[1]],
            &["--", "-i", "--forward-mode=io", "--nb-cores=1", "--total-num-mbufs=16384"],
            &["--disable-link-check", "--no-lsc-interrupt", "--rxd=1024", "--txd=1024"],
        ]
        .concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let placement = Placement { line_buffered: true, ..Placement::default() };
        let remedy = "install DPDK's tools: scripts/bootstrap";
        let process = Process::start("dpdk-testpmd", &arguments, &[], placement, remedy)?;
        let mut testpmd = Self { process, prefix: prefix.to_owned() };
        testpmd.process.await_output("its prompt", LIMIT, |lines| {
            lines.iter().any(|line| line.contains("testpmd>") || line.contains("Done")).then_some(())
        })?;
        Ok(testpmd)
    }

    pub fn forward(&mut self) -> Result<(), HostError> {
        self.process.type_line("start")?;
        self.process.await_output("`start` to forward", LIMIT, |lines| {
            lines.iter().any(|line| line.contains("io packet forwarding")).then_some(())
        })
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(2));
        scratch::remove_run_folder(&self.prefix);
    }
}
