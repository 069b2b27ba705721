//! MTUs that change while ports run: a larger one is given before anybody sends so long packets, a smaller one when nobody does
//! any more.

use std::collections::BTreeMap;

use super::{Attached, PortTable, PortsError, WantedPort};
use crate::port::{OpenError, change_mtu, min_segment};

impl PortTable {
    /// The largest IP packet that was asked of a port, where that was said.
    pub(in super::super) fn wanted_mtu(&self, name: &str) -> Option<u16> {
        let attached = self.iter().find(|(_, port)| port.name == name).map(|(_, port)| &port.wanted);
        attached.or_else(|| self.absent.get(name).map(|absent| &absent.wanted))?.mtu
    }

    /// Gives ports the larger MTUs that they are to have; no packet is longer than before until the snapshot that goes with them
    /// is out. Returns those that have what they need, or will when MTUs [settle](Self::settle_mtus); the others are to be made
    /// anew, on buffers of so much room. Trunks always stay: others than the vNIC that grows are on them.
    ///
    /// # Errors
    /// The refusal of an MTU that the port could not have if it were made anew, either; all have those of before.
    pub(in super::super) fn raise_mtus(
        &mut self,
        mut wanted: BTreeMap<String, WantedPort>,
        room: usize,
    ) -> Result<BTreeMap<String, WantedPort>, PortsError> {
        let mut failed = None;
        for port in self.slots.iter_mut().flatten() {
            let Some(new) = wanted.get(&port.name) else { continue };
            match port.raise_mtu(new, room) {
                Ok(true) => {}
                // What was refused is told when MTUs settle.
                _ if new.of.is_trunk() => {}
                Ok(false) => drop(wanted.remove(&port.name)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            self.restore_mtus(&wanted);
            return Err(error);
        }
        wanted.retain(|name, new| new.of.is_trunk() || !self.absent.contains_key(name));
        Ok(wanted)
    }

    /// Gives ports that stay the MTUs that they are to have from now on: every worker has the snapshot that goes with them.
    pub(in super::super) fn settle_mtus(&mut self, wanted: &BTreeMap<String, WantedPort>) {
        for (name, absent) in &mut self.absent {
            if let Some(new) = wanted.get(name) {
                absent.wanted.mtu = new.mtu;
            }
        }
        for port in self.slots.iter_mut().flatten() {
            if let Some(new) = wanted.get(&port.name) {
                port.settle_mtu(new.mtu);
            }
        }
    }

    /// After a change that failed: the MTUs of before.
    pub(in super::super) fn restore_mtus(&mut self, raised: &BTreeMap<String, WantedPort>) {
        for port in self.slots.iter_mut().flatten().filter(|port| raised.contains_key(&port.name)) {
            port.settle_mtu(port.wanted.mtu);
        }
    }
}

impl Attached {
    /// Raises the MTU, if it is to be larger; `false` if that takes a port made anew.
    fn raise_mtu(&mut self, new: &WantedPort, room: usize) -> Result<bool, PortsError> {
        let Some(mtu) = new.mtu.filter(|mtu| self.wanted.mtu.is_none_or(|old| *mtu > old)) else {
            return Ok(true);
        };
        if mtu > self.traits.max_running_mtu || self.fault().is_some() {
            let wanted = min_segment(&self.wanted.spec, mtu);
            if usize::from(wanted) <= room {
                return Ok(false);
            }
            let (name, path) = (self.name.clone(), new.of.mtu(&self.name));
            return Err(PortsError::SmallBuffers { name, path, room, wanted });
        }
        match self.set_mtu(mtu) {
            Ok(()) => Ok(true),
            // It has the MTU in its range, so it wants to be stopped first. Sockets never do, and their peers would notice.
            Err(OpenError::Device { source, .. }) if !self.traits.super_frames => {
                tracing::info!(port = self.name, error = %source, "the port is made anew for its MTU");
                Ok(false)
            }
            Err(source) => {
                let path = new.of.mtu(&self.name);
                Err(PortsError::Open { name: self.name.clone(), path, source: source.into() })
            }
        }
    }

    /// Has this MTU from now on, if its device takes it.
    pub(super) fn settle_mtu(&mut self, wanted: Option<u16>) {
        self.wanted.mtu = wanted;
        let Some(mtu) = wanted else { return };
        let most = self.traits.max_running_mtu;
        if mtu > most {
            let port = &self.name;
            tracing::warn!(port, mtu, most, "longer packets than its buffers hold are dropped");
        } else if let Err(error) = self.set_mtu(mtu) {
            // One that could not be lowered harms nobody: what the switch sends is shorter.
            let port = &self.name;
            tracing::warn!(port, mtu, %error, "the port keeps its MTU; what is longer than that is dropped as mtu-exceeded");
        }
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), OpenError> {
        let Self { name, wanted, traits, port, cleanup, .. } = self;
        let set = change_mtu(&wanted.spec, name, port, traits, cleanup, mtu);
        self.tx.mtu_changed(&self.port, &self.traits);
        set
    }
}

#[cfg(test)]
mod tests;
