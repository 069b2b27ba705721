//! `dpdk-testpmd` in io mode between two ports of the same kind as the switch's: the floor.

use std::path::Path;

use crate::Result;
use crate::host::cores::Cores;
use crate::host::testpmd::{Testpmd, TestpmdSpec};
use crate::live::testbed::Ports;

/// Free huge pages that are enough for it.
const HUGE_MB: u64 = 192;

/// Starts it, serving two sockets in `folder`.
pub fn start(folder: &Path, ports: Ports, cores: Cores, prefix: &str) -> Result<Testpmd> {
    let devices = [0, 1].map(|port| {
        let socket = ports.socket(folder, port);
        let socket = socket.display();
        match ports {
            Ports::Memif => {
                format!("net_memif{port},role=server,id={port},socket={socket},socket-abstract=no")
            }
            Ports::Vhost => format!("net_vhost{port},iface={socket},queues=1,client=0,tso=0"),
        }
    });
    // Without huge pages it would not start, unless told so; either way its memory can be shared with us.
    let memory = if pmd::hugepage::free_mb() >= HUGE_MB {
        "--in-memory --single-file-segments"
    } else {
        "--no-huge -m 256 --no-shconf"
    };
    let words = |words: &str| words.split(' ').map(str::to_owned).collect();
    let mut testpmd = Testpmd::start(&TestpmdSpec {
        housekeeping: cores.housekeeping,
        cores: &[cores.forwarding],
        prefix,
        eal: words(&format!("{memory} --no-pci --vdev {} --vdev {}", devices[0], devices[1])),
        own: words("--total-num-mbufs=16384 --disable-link-check --no-lsc-interrupt --rxd=1024 --txd=1024"),
    })?;
    testpmd.await_prompt()?;
    Ok(testpmd)
}
