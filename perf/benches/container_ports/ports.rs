//! What the switch has: ports of the kinds `veth` and `tap`, with packet buffers.

use anyhow::{Context, anyhow};
use perf::live::ports::Runtime;
use pmd::{Burst, Port, PortConfig, RxQueue, StartedPort, TapConfig, TxQueue};
use wire::packet::L4Checksum;
use wire::{PacketBuf, TxRequest};

use crate::testbed::{Forwarder, Kind};

type Started = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

/// Two ports.
pub struct Ports {
    /// Both, until they are closed.
    ports: Vec<Started>,
    burst: Burst,
}

impl Ports {
    pub fn open(runtime: &Runtime, kind: Kind, interfaces: [&str; 2], batch: usize) -> anyhow::Result<Self> {
        let mut ports = Self { ports: Vec::new(), burst: Burst::with_capacity(batch) };
        for interface in interfaces {
            let port = match kind {
                Kind::Veth => Port::on_interface(runtime.eal(), &format!("veth{interface}"), interface),
                Kind::Tap => Port::on_tap(runtime.eal(), &format!("tap{interface}"), &tap(interface)),
            }?;
            let started = port.start(&PortConfig::default(), runtime.pool());
            ports.ports.push(started.map_err(|(_, error)| error)?);
        }
        Ok(ports)
    }
}

fn tap(interface: &str) -> TapConfig {
    TapConfig {
        iface: interface.into(),
        namespace: None,
        queues: 1,
        mac: None,
        persist: false,
        offloads: true,
    }
}

/// Asks of the second port what the first one was left: to have TCP over IPv4 without options cut.
fn hand_on(packet: &mut pmd::Mbuf) {
    let gso_size = packet.rx_facts().gso_size;
    if gso_size > 0 {
        packet.request_tx(TxRequest {
            l2_len: 14,
            l3_len: 20,
            l4_len: 20,
            l4_checksum: Some(L4Checksum::Tcp),
            tso_size: gso_size,
            ..TxRequest::default()
        });
    }
}

impl Forwarder for Ports {
    fn turn(&mut self) -> anyhow::Result<usize> {
        let [(_, rx, _), (_, _, tx)] = &mut self.ports[..] else { return Err(anyhow!("two ports")) };
        let (rx, tx) = (rx.first_mut().context("no queue")?, tx.first_mut().context("no queue")?);
        let received = rx.receive(&mut self.burst);
        self.burst.iter_mut().for_each(hand_on);
        while !self.burst.is_empty() {
            tx.send(&mut self.burst);
        }
        Ok(received)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        for (port, rx, tx) in self.ports.drain(..) {
            let closed = port.stop(rx, tx).map_err(|(.., error)| error).and_then(Port::detach);
            if let Err(error) = closed {
                eprintln!("cannot close a port: {error}");
            }
        }
    }
}
