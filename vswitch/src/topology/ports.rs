//! What the topology asks of the ports, and the rows of the snapshot that come of the answers: roles and trunks.
//!
//! Sits between the port table and the snapshot; opens, starts and stops no port.

use std::collections::HashMap;
use std::sync::Arc;

use pipelines::flat::FlatMap;
use pipelines::snapshot::{NO_PORT, PortIndex, PortRole, PortRow};
use wire::MacAddr;

use super::Topology;
use super::uplinks::punt_name;
use crate::config::{Config, VnicConfig, VnicPort};

/// What the topology needs to know of the ports.
pub trait Ports {
    /// Index and MAC of the port with this name, when it is attached.
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)>;
    /// True when the port may deliver unfinished checksums.
    fn partial_checksums(&self, port: PortIndex) -> bool;
    /// Partner of a port in the `io` and `mac` modes.
    fn partner(&self, port: PortIndex) -> PortIndex;
    /// One more than the largest index in use.
    fn count(&self) -> usize;
    /// MAC of a port.
    fn mac(&self, port: PortIndex) -> MacAddr;
}

impl Topology {
    pub(super) fn rebuild_ports(&mut self, config: &Config, ports: &dyn Ports) {
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
        self.rebuild_port_rows(config, ports);
    }

    /// What each port is for.
    fn rebuild_port_rows(&mut self, config: &Config, ports: &dyn Ports) {
        let mut rows = vec![PortRow { partner: NO_PORT, ..PortRow::default() }; ports.count()];
        for (index, row) in rows.iter_mut().enumerate() {
            let port = index as PortIndex;
            row.partial_checksums = ports.partial_checksums(port);
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
        for vnic in self.draft.next.vnics.iter().flatten().filter(|vnic| vnic.vlan.is_none()) {
            assign(vnic.port, PortRole::Vnic(vnic.index));
        }
        self.draft.next.ports = rows;
    }

    /// Leads packets of a vNIC's port or VLAN to it, or nowhere any more.
    pub(super) fn bind_vnic(
        &mut self,
        config: &Config,
        ports: &dyn Ports,
        vnic: &VnicConfig,
        index: Option<u32>,
    ) {
        let (VnicPort::Trunk(name), Some(vlan)) = (&vnic.port, vnic.vlan) else {
            return self.rebuild_port_rows(config, ports);
        };
        let at = config.trunks.iter().position(|trunk| trunk.name == *name);
        let Some(trunk) = at.and_then(|at| self.draft.next.trunks.get_mut(at)) else { return };
        match index {
            Some(index) => Arc::make_mut(trunk).insert(u128::from(vlan), index),
            None => Arc::make_mut(trunk).remove(u128::from(vlan)),
        }
    }
}
