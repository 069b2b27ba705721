//! Memif ports of this process, and the DPDK runtime behind them.

use std::time::{Duration, Instant};

use pmd::{
    Clock, Eal, EalConfig, Hugepages, LogLevel, Mempool, MempoolConfig, PciAccess, PortConfig, RxQueue,
    StartedPort, TxQueue,
};

use crate::Result;
use crate::host::interrupt;

/// Packets of a burst.
pub const BURST: usize = 32;
const LINK: Duration = Duration::from_secs(10);
/// How long a server that listens may take to answer.
const ANSWER: Duration = Duration::from_millis(300);

/// DPDK in this process: started once, on one core.
#[derive(Debug)]
pub struct Runtime {
    eal: Eal,
    pool: Mempool,
    pub clock: Clock,
}

impl Runtime {
    /// Starts it for the calling thread on `core`, with these packet buffers and PCI devices.
    pub fn start(prefix: &str, core: usize, buffers: MempoolConfig, pci: PciAccess) -> Result<Self> {
        // A buffer has its data and some 300 bytes of DPDK's own.
        let bytes = u64::from(buffers.mbufs) * (u64::from(buffers.data_room) + 320);
        let eal = Eal::init(&EalConfig {
            file_prefix: prefix.into(),
            memory_mb: 64 + (bytes >> 20) as u32,
            hugepages: Hugepages::Auto,
            main_core: Some(core),
            log_level: LogLevel::Error,
            pci,
            ..EalConfig::default()
        })?;
        let pool = Mempool::new(&eal, &buffers)?;
        Ok(Self { eal, pool, clock: Clock::calibrate(Duration::from_millis(100)) })
    }

    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    pub fn pool(&self) -> &Mempool {
        &self.pool
    }
}

/// Whether a driver's port is the end that connects, once, when it starts.
pub(crate) fn connects(driver_name: &str, args: &str) -> bool {
    driver_name.starts_with("net_memif") && !args.split(',').any(|argument| argument == "role=server")
}

/// Starts a port. A client starts only while its server listens, which a daemon does some time after it answers; and a
/// server that listens but has not started this port yet hangs up. The driver does not call again, so this does.
pub(crate) fn start_when_served(
    mut port: pmd::Port,
    runtime: &Runtime,
    config: &PortConfig,
    connects: bool,
) -> Result<(StartedPort, Vec<RxQueue>, Vec<TxQueue>)> {
    let end = Instant::now() + LINK;
    loop {
        match port.start(config, &runtime.pool) {
            Ok((started, rx, tx)) => {
                // Whoever waits for the link says that there is none.
                if !connects || link_within(&started, ANSWER)?.is_some() || Instant::now() > end {
                    return Ok((started, rx, tx));
                }
                port = started.stop(rx, tx).map_err(|(.., error)| error)?;
            }
            Err((_, error)) if Instant::now() > end => return Err(error.into()),
            Err((back, _)) => port = back,
        }
        interrupt::pause(Duration::from_millis(20))?;
    }
}

/// Waits for a link, but not longer than `limit`.
pub(crate) fn link_within(port: &StartedPort, limit: Duration) -> Result<Option<()>> {
    interrupt::until(limit, || Ok(port.link()?.up.then_some(())))
}
