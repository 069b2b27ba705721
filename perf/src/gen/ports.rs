//! The ports of a scenario, opened: each with one queue to send, and those to receive that the other end may use.

use std::time::Duration;

use pmd::{Burst, Mbuf, MempoolConfig, PciAccess, Port, PortConfig, Ring, RxQueue, StartedPort, TxQueue};
use wire::PacketBuf;

use super::scenario::Attachment;
use super::scenario::check::{Plan, PortPlan, StreamPlan};
use crate::host::scratch;
use crate::live::ports::{self, Runtime};
use crate::{Error, Result};

/// How long a link may take.
const LINK: Duration = Duration::from_secs(30);
/// How long a port is kept after its last use: a driver takes a lost peer apart on a thread of its own.
const PARTING: Duration = Duration::from_millis(50);
const HEADROOM: usize = 128;

/// Starts DPDK with buffers for the frames of a plan, and with its PCI devices.
pub fn runtime(plan: &Plan, core: usize, mbufs: u32) -> Result<Runtime> {
    let longest = plan.streams.iter().map(StreamPlan::longest).max().unwrap_or(0);
    let usual = MempoolConfig::default();
    let room = (longest + HEADROOM).next_multiple_of(64).max(usual.data_room.into());
    let devices = plan.ports.iter().filter_map(|port| match &port.attachment {
        Attachment::Pci(device) => Some(device.clone()),
        _ => None,
    });
    let devices: Vec<String> = devices.collect();
    let pci = if devices.is_empty() { PciAccess::None } else { PciAccess::Allow(devices) };
    let buffers = MempoolConfig { mbufs, data_room: u16::try_from(room).unwrap_or(u16::MAX), ..usual };
    Runtime::start(&scratch::file_prefix(0), core, buffers, pci)
}

/// A plan without ports, for [`runtime`], which then has buffers for the frames of these streams.
pub fn plan_of(streams: &[StreamPlan]) -> Plan {
    Plan { ports: Vec::new(), streams: streams.to_vec() }
}

#[derive(Debug)]
pub struct Lane {
    pub name: String,
    rx: Vec<RxQueue>,
    tx: TxQueue,
    port: StartedPort,
}

impl Lane {
    /// Opens a port; `index` tells the rings of this process apart.
    pub fn open(runtime: &Runtime, plan: &PortPlan, index: usize) -> Result<Self> {
        let port = match &plan.attachment {
            Attachment::Virtual { name, args } => Port::attach(runtime.eal(), name, args)?,
            Attachment::Pci(device) => Port::open(runtime.eal(), device)?,
            Attachment::Loopback => {
                let name = format!("gen{index}");
                let ring = Ring::new(runtime.eal(), &name, plan.descriptors)?;
                Port::from_rings(
                    runtime.eal(),
                    &name,
                    std::slice::from_ref(&ring),
                    std::slice::from_ref(&ring),
                )?
            }
        };
        let connects =
            matches!(&plan.attachment, Attachment::Virtual { name, args } if ports::connects(name, args));
        Self::start(runtime, &plan.name, port, plan.descriptors, plan.rx_queues, connects)
    }

    /// Starts a port that is attached already.
    pub fn start(
        runtime: &Runtime,
        name: &str,
        port: Port,
        descriptors: u16,
        rx_queues: u16,
        connects: bool,
    ) -> Result<Self> {
        let config =
            PortConfig { rx_queues, rx_desc: descriptors, tx_desc: descriptors, ..PortConfig::default() };
        let (port, rx, mut tx) = ports::start_when_served(port, runtime, &config, connects)?;
        let Some(tx) = tx.pop().filter(|_| !rx.is_empty()) else {
            return Err(Error::Failed(format!("port {name} has no queues")));
        };
        Ok(Self { name: name.into(), rx, tx, port })
    }

    pub fn await_link(&self) -> Result<()> {
        ports::link_within(&self.port, LINK)?.ok_or_else(|| {
            Error::Failed(format!(
                "port {} ({}) has no link after {} s; start what is at its other end, or look at its cable",
                self.name,
                self.port.name(),
                LINK.as_secs()
            ))
        })
    }

    /// Bits per second, where the driver of a real device knows; software has no line.
    pub fn line(&self) -> Option<f64> {
        let software =
            ["net_memif", "net_vhost", "net_virtio_user", "net_ring", "net_tap", "net_af_", "net_null"];
        if software.iter().any(|driver| self.port.name().starts_with(driver)) {
            return None;
        }
        self.port.link().ok()?.mbps.filter(|mbps| *mbps > 0).map(|mbps| f64::from(mbps) * 1e6)
    }

    /// What the driver says it lost: missed, out of buffers, errors.
    pub fn losses(&self) -> Result<u64> {
        let stats = self.port.stats()?;
        Ok(stats.rx_missed + stats.rx_no_mbuf + stats.rx_errors)
    }

    /// Sends a burst as far as the port takes it; the rest stays in the burst. Returns how many went.
    #[inline]
    pub fn send(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() { 0 } else { self.tx.send(burst) }
    }

    /// Receives into the burst's spare room.
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        // Another one first each time: what is full takes no more.
        self.rx.rotate_left(1);
        self.rx.iter_mut().map(|queue| if burst.is_full() { 0 } else { queue.receive(burst) }).sum()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        std::thread::sleep(PARTING);
    }
}

/// The bytes of a received frame, in one piece: copied into `space` where it is not.
#[inline]
pub fn whole<'a>(packet: &'a Mbuf, space: &'a mut Vec<u8>) -> &'a [u8] {
    let head = packet.head();
    if head.len() == packet.len() {
        return head;
    }
    space.clear();
    packet.segments().for_each(|segment| space.extend_from_slice(segment));
    space
}
