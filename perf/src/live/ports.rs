//! Memif ports of this process, and the DPDK runtime behind them.

use std::path::Path;
use std::time::{Duration, Instant};

use pmd::{
    Burst, Clock, Eal, EalConfig, Hugepages, LogLevel, Mempool, MempoolConfig, PciAccess, PortConfig,
    RxQueue, StartedPort, TxQueue,
};

use super::LiveError;
use crate::host::interrupt;

/// Packets of a burst.
pub const BURST: usize = 32;
const LINK: Duration = Duration::from_secs(10);
/// How long a port is kept after its last use.
const PARTING: Duration = Duration::from_millis(50);
/// How long a server that listens may take to answer.
const ANSWER: Duration = Duration::from_millis(300);

/// DPDK in this process: started once, on one core.
#[derive(Debug)]
pub struct Runtime {
    eal: Eal,
    pool: Mempool,
    /// The time stamp counter.
    pub clock: Clock,
}

impl Runtime {
    /// Starts it for the calling thread on `core`, with so many packet buffers.
    pub fn start(prefix: &str, core: usize, mbufs: u32) -> Result<Self, LiveError> {
        Self::start_with(prefix, core, MempoolConfig { mbufs, ..MempoolConfig::default() }, PciAccess::None)
    }

    /// The same with other buffers, and with PCI devices.
    pub fn start_with(
        prefix: &str,
        core: usize,
        buffers: MempoolConfig,
        pci: PciAccess,
    ) -> Result<Self, LiveError> {
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

    /// DPDK itself.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// The packet buffers.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Packet buffers in use.
    pub fn buffers_in_use(&self) -> usize {
        self.pool.in_use()
    }
}

/// Which end of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It listens.
    Server,
    /// It connects, and decides on the size of the rings.
    Client,
}

/// A memif with its queues.
#[derive(Debug)]
pub struct Memif {
    rx: RxQueue,
    tx: TxQueue,
    waiting: Burst,
    pool: Mempool,
    port: StartedPort,
    id: u32,
    socket: String,
}

impl Memif {
    /// Opens number `id` of a socket, with rings of `2^ring` packets where it is the client.
    pub fn open(
        runtime: &Runtime,
        name: &str,
        (socket, id): (&Path, u32),
        role: Role,
        ring: u8,
    ) -> Result<Self, LiveError> {
        let word = match role {
            Role::Server => "server",
            Role::Client => "client",
        };
        let socket = socket.display().to_string();
        let mut args = format!("role={word},id={id},socket={socket},socket-abstract=no");
        if role == Role::Client {
            args.push_str(&format!(",rsize={ring}"));
        }
        let port = pmd::Port::attach(&runtime.eal, &format!("net_memif_{name}"), &args)?;
        let (port, mut rx, mut tx) =
            start_when_served(port, runtime, &PortConfig::default(), role == Role::Client)?;
        let (Some(rx), Some(tx)) = (rx.pop(), tx.pop()) else {
            return Err(LiveError::NoLink { id, socket, seconds: 0 });
        };
        let pool = runtime.pool.clone();
        Ok(Self { rx, tx, waiting: Burst::with_capacity(BURST), pool, port, id, socket })
    }

    /// Waits for the other end.
    pub fn await_link(&self) -> Result<(), LiveError> {
        let end = Instant::now() + LINK;
        while !self.port.link()?.up {
            if Instant::now() > end {
                let (id, socket) = (self.id, self.socket.clone());
                return Err(LiveError::NoLink { id, socket, seconds: LINK.as_secs() });
            }
            interrupt::pause(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// Frames that can be [pushed](Self::push) now.
    #[inline]
    pub fn room(&self) -> usize {
        self.waiting.spare()
    }

    /// Puts a frame behind those that wait to be sent. `false` when there is no room or no buffer.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.pool.alloc_from(frame).is_some_and(|packet| self.waiting.push(packet).is_ok())
    }

    /// Sends what waits, as far as the ring takes it. Returns how many went; the others wait on.
    #[inline]
    pub fn flush(&mut self) -> usize {
        self.tx.send(&mut self.waiting)
    }

    /// Frames that were pushed and not sent.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Receives into the burst's spare room.
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        self.rx.receive(burst)
    }
}

impl Drop for Memif {
    /// The driver takes a lost peer apart on a thread of its own, and both that thread and whoever closes the port free
    /// its rings: when the peer may just have gone, that thread comes first.
    fn drop(&mut self) {
        std::thread::sleep(PARTING);
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
) -> Result<(StartedPort, Vec<RxQueue>, Vec<TxQueue>), LiveError> {
    let end = Instant::now() + LINK;
    loop {
        match port.start(config, &runtime.pool) {
            Ok((started, rx, tx)) => {
                // Whoever waits for the link says that there is none.
                if !connects || is_up_within(&started, ANSWER)? || Instant::now() > end {
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
fn is_up_within(port: &StartedPort, limit: Duration) -> Result<bool, LiveError> {
    let end = Instant::now() + limit;
    loop {
        if port.link()?.up {
            return Ok(true);
        }
        if Instant::now() > end {
            return Ok(false);
        }
        interrupt::pause(Duration::from_millis(2))?;
    }
}
