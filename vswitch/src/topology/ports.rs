//! What the topology asks of the ports, and the rows of the snapshot that come of the answers: roles and trunks.
//!
//! Sits between the port table and the snapshot; opens, starts and stops no port.

use std::collections::HashMap;
use std::sync::Arc;

use pipelines::flat::FlatMap;
use pipelines::snapshot::{NO_PORT, PortIndex, PortRole, PortRow};
use wire::{MacAddr, TunnelTso};

use super::Topology;
use super::uplinks::punt_name;
use crate::config::{Config, Difference, Name, VnicConfig, VnicPort};

/// What the topology needs to know of the ports.
pub trait Ports {
    /// Index and MAC of the port with this name, when it is attached.
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)>;
    /// True when the port may deliver unfinished checksums.
    fn partial_checksums(&self, port: PortIndex) -> bool;
    /// True when the port's device takes TCP super-frames.
    fn takes_super_frames(&self, port: PortIndex) -> bool;
    /// What the port's device does with TCP super-frames inside VxLAN.
    fn tunnel_tso(&self, _port: PortIndex) -> Option<TunnelTso> {
        None
    }
    /// Partner of a port in the `io` and `mac` modes.
    fn partner(&self, port: PortIndex) -> PortIndex;
    /// One more than the largest index in use.
    fn count(&self) -> usize;
    /// MAC of a port.
    fn mac(&self, port: PortIndex) -> MacAddr;
}

impl Topology {
    pub(super) fn rebuild_trunks(&mut self, config: &Config) {
        let mut vlans: HashMap<&str, Vec<(u128, u32)>> = HashMap::new();
        for vnic in &config.vnics {
            if let (VnicPort::Trunk(trunk), Some(vlan)) = (&vnic.port, vnic.vlan)
                && let Some(&index) = self.draft.vnic_index.get(vnic.name.as_str())
            {
                vlans.entry(trunk.as_str()).or_default().push((u128::from(vlan), index));
            }
        }
        let trunks = config.trunks.iter().map(|trunk| vlans.remove(trunk.name.as_str()).unwrap_or_default());
        self.draft.next.trunks = trunks.map(|vlans| Arc::new(FlatMap::new(vlans))).collect();
        self.draft.trunks = config.trunks.iter().map(|trunk| trunk.name.clone()).collect();
    }

    /// As [`rebuild_trunks`](Self::rebuild_trunks), where a change concerns few vNICs.
    pub(super) fn change_trunks(&mut self, difference: &Difference<'_>) {
        let trunks: Vec<Name> = difference.new.trunks.iter().map(|trunk| trunk.name.clone()).collect();
        if self.draft.trunks != trunks {
            let before = std::mem::replace(&mut self.draft.trunks, trunks);
            let mut maps: HashMap<Name, Arc<FlatMap>> =
                before.into_iter().zip(std::mem::take(&mut self.draft.next.trunks)).collect();
            let maps = self.draft.trunks.iter().map(|name| maps.remove(name).unwrap_or_default());
            self.draft.next.trunks = maps.collect();
        }
        let places: HashMap<&Name, usize> =
            self.draft.trunks.iter().enumerate().map(|(at, name)| (name, at)).collect();
        let place = |vnic: &VnicConfig| match (&vnic.port, vnic.vlan) {
            (VnicPort::Trunk(trunk), Some(vlan)) => Some((*places.get(trunk)?, u128::from(vlan))),
            _ => None,
        };
        // All leave before the first comes: one may take another's VLAN.
        for (at, vlan) in difference.before.iter().filter_map(|vnic| place(vnic)) {
            Arc::make_mut(&mut self.draft.next.trunks[at]).remove(vlan);
        }
        for vnic in &difference.after {
            if let (Some((at, vlan)), Some(&index)) =
                (place(vnic), self.draft.vnic_index.get(vnic.name.as_str()))
            {
                Arc::make_mut(&mut self.draft.next.trunks[at]).insert(vlan, index);
            }
        }
    }

    /// What each port is for.
    pub(super) fn rebuild_port_rows(&mut self, config: &Config, ports: &dyn Ports) {
        let mut rows = vec![PortRow { partner: NO_PORT, ..PortRow::default() }; ports.count()];
        for (index, row) in rows.iter_mut().enumerate() {
            let port = index as PortIndex;
            row.partial_checksums = ports.partial_checksums(port);
            row.takes_super_frames = ports.takes_super_frames(port);
            row.tunnel_tso = ports.tunnel_tso(port);
            row.partner = ports.partner(port);
            row.mac = ports.mac(port);
        }
        let mut assign = |port: PortIndex, role: PortRole| {
            if let Some(row) = rows.get_mut(usize::from(port)) {
                row.role = role;
            }
        };
        let find = |name: &str| ports.find(name).map_or(NO_PORT, |(port, _)| port);
        for (index, uplink) in &self.draft.uplinks {
            assign(find(&uplink.name), PortRole::Uplink(*index));
            assign(find(&punt_name(&uplink.name)), PortRole::Punt(*index));
        }
        for (index, trunk) in config.trunks.iter().enumerate() {
            assign(find(&trunk.name), PortRole::Trunk(index as u32));
        }
        // One without a VLAN has a port of its own.
        for (index, row) in self.draft.next.vnic_rows.iter().enumerate().filter(|(_, row)| row.vlan == 0) {
            assign(row.port, PortRole::Vnic(index as u32));
        }
        self.draft.next.ports = rows;
    }
}
