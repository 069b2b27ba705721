//! The part of a config that one vNIC can be at odds with: what must be checked again when it comes or goes, instead of
//! everything.
//!
//! It is a config like any other, and goes through the same checks. What stays out of it are vNICs that neither share a
//! name, a MAC address, a VIP or a VLAN with the one in question, nor have a device or rates that count together with its own.

use std::collections::HashSet;

use super::{Config, LocationConfig, Name, VnicConfig, VnicPort, VnicQos};

impl Config {
    /// The part of the config around a vNIC, which is in it last; `locations` are those with its VIPs. Of a vNIC with the
    /// same name in the config only the other one is in it.
    pub fn around(&self, vnic: &VnicConfig, locations: Vec<LocationConfig>) -> Self {
        let mut part = self.without_vnic(vnic);
        part.locations = locations;
        part.vnics.push(vnic.clone());
        part
    }

    /// As [`around`](Self::around), without the vNIC and without locations.
    pub fn without_vnic(&self, vnic: &VnicConfig) -> Self {
        let related = |other: &&VnicConfig| is_related(vnic, other);
        let vnics: Vec<VnicConfig> = self.vnics.iter().filter(related).cloned().collect();
        // With the subnets that those have their VIPs in.
        let vpcs: HashSet<&Name> = vnics.iter().chain([vnic]).map(|vnic| &vnic.vpc).collect();
        let subnets = self.subnets.iter().filter(|subnet| vpcs.contains(&subnet.vpc)).cloned().collect();
        Self {
            eal: self.eal.clone(),
            workers: self.workers.clone(),
            forward: self.forward.clone(),
            api: self.api.clone(),
            control: self.control.clone(),
            nft: self.nft.clone(),
            vlt: self.vlt.clone(),
            vxlan: self.vxlan.clone(),
            rdma: self.rdma.clone(),
            rcft: self.rcft.clone(),
            qos: self.qos.clone(),
            offload: self.offload.clone(),
            uplinks: self.uplinks.clone(),
            vpcs: self.vpcs.clone(),
            subnets,
            trunks: self.trunks.clone(),
            vnics,
            locations: Vec::new(),
            ports: self.ports.clone(),
        }
    }
}

fn is_related(vnic: &VnicConfig, other: &VnicConfig) -> bool {
    let has_device = |vnic: &VnicConfig| matches!(vnic.port, VnicPort::Own(_));
    // Rates of one VPC are summed up, and the VPCs' on the link.
    let has_rates = |vnic: &VnicConfig| vnic.qos != VnicQos::default();
    has_device(other)
        || other.name == vnic.name
        || other.vpc == vnic.vpc
            && (other.mac == vnic.mac || other.vips.iter().any(|vip| vnic.vips.contains(vip)))
        || other.vlan == vnic.vlan && other.port == vnic.port
        || has_rates(vnic) && has_rates(other)
}
