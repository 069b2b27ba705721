//! What the topology asks of the ports, and the rows of the snapshot that come of the answers: roles and trunks.
//!
//! Sits between the port table and the snapshot; opens, starts and stops no port.

use std::sync::Arc;

use pipelines::flat::FlatMap;
use pipelines::snapshot::{NO_PORT, PortIndex, PortRole, PortRow};
use wire::MacAddr;

use super::Topology;
use super::uplinks::punt_name;
use crate::config::{Config, VnicPort};

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
        let mut rows = vec![PortRow { partner: NO_PORT, ..PortRow::default() }; ports.count()];
        for (index, row) in rows.iter_mut().enumerate() {
            let port = index as PortIndex;
            row.partial_checksums = ports.partial_checksums(port);
            row.partner = ports.partner(port);
            row.mac = ports.mac(port);
        }
        let mut assign = |name: &str, role: PortRole| {
            if let Some((port, _)) = ports.find(name)
                && let Some(row) = rows.get_mut(usize::from(port))
            {
                row.role = role;
            }
        };
        for (index, uplink) in &self.draft.uplinks {
            assign(&uplink.name, PortRole::Uplink(*index));
            assign(&punt_name(&uplink.name), PortRole::Punt(*index));
        }
        self.draft.next.trunks.clear();
        for (index, trunk) in config.trunks.iter().enumerate() {
            assign(&trunk.name, PortRole::Trunk(index as u32));
            let vlans =
                config.vnics.iter().filter(|v| v.port == VnicPort::Trunk(trunk.name.clone())).filter_map(
                    |vnic| Some((u128::from(vnic.vlan?), *self.draft.vnic_index.get(vnic.name.as_str())?)),
                );
            self.draft.next.trunks.push(Arc::new(FlatMap::new(vlans)));
        }
        for vnic in &config.vnics {
            if let (VnicPort::Own(_), Some(&index)) =
                (&vnic.port, self.draft.vnic_index.get(vnic.name.as_str()))
            {
                assign(&vnic.name, PortRole::Vnic(index));
            }
        }
        self.draft.next.ports = rows;
    }
}
