//! vNICs that come and go one by one: what a change of the whole config does (`Switch::apply`), done for one vNIC alone.
//!
//! Checked is the part of the config that the vNIC can be at odds with; published is one snapshot, that differs in the rows
//! of this vNIC.

use super::ports::wanted;
use super::{Missing, PortChanges, Restorable, Switch, SwitchError};
use crate::config::{Config, LocationConfig, VnicConfig, VnicPort};
use crate::rdma;
use crate::state::change::Change;

impl Switch {
    /// Adds a vNIC.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn add_vnic(&mut self, vnic: VnicConfig) -> Result<(), SwitchError> {
        if self.config.vnics.iter().any(|other| other.name == vnic.name) {
            return Err(SwitchError::Duplicate { what: "vNIC", name: vnic.name.to_string() });
        }
        let part = self.config.around(&vnic, self.locations_of(&vnic));
        part.validate()?;
        self.rdma.learn(&part)?;
        let quota = rdma::quotas(&part, &self.rdma)?.get(vnic.name.as_str()).copied();
        let quota = vnic.quota(&part.rcft).and(quota);
        let plan = PortChanges::new(&self.config.without_vnic(&vnic), &part);
        let result = self.bring_in_added(&plan, Missing::Refused);
        if let Err(error) = result.and_then(|()| self.publish_added(&vnic, quota)) {
            self.restore(&plan, self.restorable());
            return Err(error);
        }
        self.follow_trunk(&part, &vnic, Some(&vnic));
        self.config.vnics.push(vnic.clone());
        self.carry_out(&plan)?;
        self.save_change(|_| Ok(Change::vnic(&vnic)?))
    }

    /// Removes a vNIC.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn remove_vnic(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = || SwitchError::Unknown { what: "vNIC", name: name.into(), list: "show vnic" };
        let at = self.config.vnics.iter().position(|vnic| vnic.name.as_str() == name).ok_or_else(unknown)?;
        let vnic = self.config.vnics[at].clone();
        let mut rest = self.config.without_vnic(&vnic);
        rest.vnics.retain(|other| other.name != vnic.name);
        rest.validate()?;
        let mut part = rest.clone();
        part.vnics.push(vnic.clone());
        let plan = PortChanges::new(&part, &rest);
        let result = self.bring_in_added(&plan, Missing::Refused);
        if let Err(error) = result.and_then(|()| self.publish_removed(&vnic)) {
            self.restore(&plan, self.restorable());
            return Err(error);
        }
        self.config.vnics.remove(at);
        self.follow_trunk(&rest, &vnic, None);
        self.carry_out(&plan)?;
        self.baseline.forget_vnic(name);
        self.save_change(|_| Ok(Change::without_vnic(name)))
    }

    fn restorable(&self) -> Restorable {
        Restorable { config: self.config.clone(), locations: self.topology.all_locations() }
    }

    /// The locations on other hosts that have an address of a vNIC.
    fn locations_of(&self, vnic: &VnicConfig) -> Vec<LocationConfig> {
        let Some(vpc) = self.config.vpcs.iter().find(|vpc| vpc.name == vnic.vpc) else { return Vec::new() };
        vnic.vips.iter().filter_map(|&vip| self.topology.location(vpc.vni, vip).cloned()).collect()
    }

    fn publish_added(&mut self, vnic: &VnicConfig, quota: Option<u32>) -> Result<(), SwitchError> {
        self.topology.add_vnic(&self.config, vnic, &self.ports)?;
        let before = self.snapshot().clone();
        let snapshot = self.topology.commit();
        if let Some(row) = self.topology.vnic(vnic.name.as_str()) {
            self.baseline.begin_vnic(&self.pool, row.index, &row.name);
            // First, so that no packet of a new vNIC comes before its quota and its limits.
            self.rcft.add_vnic(&self.config, row.index, vnic, quota);
            self.qos.add_vnic(&self.config, vnic, row);
        }
        self.hand_out(&before, &snapshot)
    }

    fn publish_removed(&mut self, vnic: &VnicConfig) -> Result<(), SwitchError> {
        let index = self.topology.vnic(vnic.name.as_str()).map(|row| row.index);
        self.topology.remove_vnic(&self.config, vnic, &self.ports);
        let before = self.snapshot().clone();
        let snapshot = self.topology.commit();
        if let Some(index) = index {
            self.rcft.remove_vnic(index);
            self.qos.remove_vnic(&self.config, vnic, index);
        }
        self.hand_out(&before, &snapshot)
    }

    /// Gives the trunk of a vNIC that came or went the MTU of those that it carries now.
    fn follow_trunk(&mut self, part: &Config, vnic: &VnicConfig, came: Option<&VnicConfig>) {
        let VnicPort::Trunk(trunk) = &vnic.port else { return };
        let others = self.config.vnics.iter().filter(|other| other.port == vnic.port);
        let mtu = others.chain(came).map(|vnic| vnic.mtu).max();
        let mut ports = wanted(part);
        ports.retain(|name, _| name.as_str() == trunk.as_str());
        ports.values_mut().for_each(|port| port.mtu = mtu);
        self.ports.follow_mtus(&ports);
    }
}
