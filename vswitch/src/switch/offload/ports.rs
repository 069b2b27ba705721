//! The ports on the device: how they come, stop and go, and how all of them go at once. No rule is about a port that is stopped, or that
//! is about to go.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipelines::offload::manager::Why;
use pipelines::snapshot::{PortIndex, Snapshot};
use pmd::StartedPort;
use rules::BackEnd;
use worker::Pool;
use worker::eswitch::SimulatedDevice;
use worker::mailbox::WorkerError;

use super::holder::Holder;
use super::{OffloadControl, Simulated, device};
use crate::config::{Config, OffloadDevice};

/// Ports by the switch's numbers, with those that DPDK has for them.
#[derive(Default)]
pub(super) struct DevicePorts {
    /// Those whose flows may be in hardware.
    polled: Vec<Option<u16>>,
    /// Those that were stopped by `port stop`.
    stopped: BTreeMap<PortIndex, u16>,
}

impl DevicePorts {
    /// Those that rules may be about.
    pub fn polled(&self) -> &[Option<u16>] {
        &self.polled
    }

    pub fn get(&self, port: PortIndex) -> Option<u16> {
        let polled = self.polled.get(usize::from(port)).copied().flatten();
        polled.or_else(|| self.stopped.get(&port).copied())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (PortIndex, u16)> {
        let polled = self.polled.iter().enumerate();
        let polled = polled.filter_map(|(port, dpdk_port)| Some((port as PortIndex, (*dpdk_port)?)));
        polled.chain(self.stopped.iter().map(|(port, dpdk_port)| (*port, *dpdk_port)))
    }

    fn add(&mut self, port: PortIndex, dpdk_port: u16) {
        let at = usize::from(port);
        if self.polled.len() <= at {
            self.polled.resize(at + 1, None);
        }
        self.polled[at] = Some(dpdk_port);
    }

    fn remove(&mut self, port: PortIndex) -> Option<u16> {
        let polled = self.polled.get_mut(usize::from(port)).and_then(Option::take);
        polled.or_else(|| self.stopped.remove(&port))
    }
}

impl OffloadControl {
    /// The device that stands in front of a port which is to be attached.
    pub fn front(&mut self, wanted: Option<OffloadDevice>, config: &Config) -> Option<Arc<SimulatedDevice>> {
        match wanted? {
            OffloadDevice::Simulated => {
                let new = || Holder::Simulated(Simulated(Arc::new(device::device(config))));
                match self.holder.get_or_insert_with(new) {
                    Holder::Simulated(Simulated(device)) => Some(device.clone()),
                    Holder::Nic(_) => None,
                }
            }
            OffloadDevice::RteFlow => None,
        }
    }

    /// A port is there that is to be on a device. One that its NIC does not take (yet: the port that takes its rules may
    /// come later) has its flows in software.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn connect(
        &mut self,
        pool: &Pool,
        port: PortIndex,
        wanted: OffloadDevice,
        started: &StartedPort,
    ) -> Result<(), WorkerError> {
        let dpdk_port = started.id().get();
        match wanted {
            OffloadDevice::Simulated => match self.simulated() {
                Some(Simulated(device)) => device.lock().connect(dpdk_port, port),
                None => return Ok(()),
            },
            OffloadDevice::RteFlow => {
                if let Err(error) = Holder::join(&mut self.holder, started) {
                    tracing::warn!(port = started.name(), %error, "flows of this port stay in software");
                    return Ok(());
                }
                // All that is debited goes through the uplink that takes the rules, or one like it.
                if self.proxy() == Some(started.id()) {
                    let link = started.link().ok().filter(|link| link.up);
                    let mbps = link.and_then(|link| link.mbps);
                    self.manager.set_port_speed(mbps.map(|mbps| u64::from(mbps) * 125_000));
                }
            }
        }
        self.ports.add(port, dpdk_port);
        self.watch.enable(pool, true)
    }

    /// A port is about to go: its flows are in software from now on, and with the port that takes the rules those of all ports are.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn disconnect(
        &mut self,
        pool: &Pool,
        snapshot: &Snapshot,
        port: PortIndex,
    ) -> Result<(), WorkerError> {
        let Some(dpdk_port) = self.ports.get(port) else { return Ok(()) };
        if self.proxy().is_some_and(|proxy| proxy.get() == dpdk_port) {
            tracing::warn!(
                dpdk_port,
                "the port that takes the rules goes: all flows are in software until another does"
            );
            return self.let_go_all(pool, snapshot);
        }
        self.ports.remove(port);
        self.follow(pool, snapshot);
        self.settle_all(pool, snapshot);
        self.drain("a port that goes");
        if let Some(holder) = &mut self.holder {
            holder.leave(dpdk_port);
        }
        self.watch.enable(pool, self.ports.iter().next().is_some())
    }

    /// A port is not polled any more: hardware takes nothing from it either.
    pub fn stop_port(&mut self, pool: &Pool, snapshot: &Snapshot, port: PortIndex) {
        if let Some(dpdk_port) = self.ports.remove(port) {
            self.ports.stopped.insert(port, dpdk_port);
            self.follow(pool, snapshot);
            self.settle_all(pool, snapshot);
            self.drain("a port that is stopped");
        }
    }

    /// A port is polled again: its hot flows may go into hardware.
    pub fn start_port(&mut self, port: PortIndex) {
        if let Some(dpdk_port) = self.ports.stopped.remove(&port) {
            self.ports.add(port, dpdk_port);
        }
    }

    /// Workers forward packets between vNICs and tunnels, or do not (any more): then no flow is in hardware, and none goes there.
    ///
    /// # Errors
    /// [`WorkerError`]; no flow is in hardware all the same.
    pub fn set_forwarding(&mut self, pool: &Pool, snapshot: &Snapshot, on: bool) -> Result<(), WorkerError> {
        self.forwards = on;
        self.manager.switch(on && self.config.enabled);
        if on { Ok(()) } else { self.withdraw_all(pool, snapshot, "packets that software does not forward") }
    }

    /// All ports are about to go, and the device is let go of: what it did is booked, and it is asked to keep no rule.
    ///
    /// # Errors
    /// [`WorkerError`]; the device is let go of all the same.
    pub fn let_go_all(&mut self, pool: &Pool, snapshot: &Snapshot) -> Result<(), WorkerError> {
        let booked = self.withdraw_all(pool, snapshot, "ports that go");
        self.forget_device();
        booked.and(self.watch.enable(pool, false))
    }

    /// The device is gone, and so is what was in it. A flow queue goes with it, which its port needs back to stop. What it said of
    /// source ports holds until another is asked.
    pub(super) fn forget_device(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            self.ports.iter().for_each(|(_, dpdk_port)| holder.leave(dpdk_port));
        }
        self.manager.lost();
        (self.ports, self.kept, self.asked_source_ports) = (DevicePorts::default(), 0, false);
    }

    /// Takes all flows out of hardware, and has everybody pay for what they did there.
    fn withdraw_all(&mut self, pool: &Pool, snapshot: &Snapshot, about: &str) -> Result<(), WorkerError> {
        let Self { manager, holder: Some(device), .. } = self else { return Ok(()) };
        let debits = manager.withdraw_all(device, |_| true, Why::Stopped);
        self.drain(about);
        self.book(pool, snapshot, &debits).1
    }

    /// Waits until the device has no rule any more that is not wanted; says in the log where it keeps some.
    fn drain(&mut self, about: &str) {
        let Self { manager, holder: Some(device), .. } = self else { return };
        match device.drain() {
            // What it answered is taken in.
            Ok(()) => manager.await_removals(device),
            Err(error) => tracing::warn!(%error, "the device may still have rules about {about}"),
        }
        self.waited();
        if let Some((rules, words)) = self.manager.kept() {
            tracing::warn!(rules, words, "the device may still have rules about {about}");
        }
    }
}
