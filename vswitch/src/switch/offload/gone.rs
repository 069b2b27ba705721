//! vNICs and VPCs that are gone: their numbers are given to others, who are to find nothing of them.

use std::collections::HashSet;
use std::net::IpAddr;

use pipelines::flow_key::Scope;
use pipelines::offload::translate::FlowSelector;
use pipelines::snapshot::{Snapshot, Vnic};

/// What one snapshot has and the next one has not.
#[derive(Debug, Default)]
pub(super) struct Gone {
    vnics: HashSet<u32>,
    vpcs: HashSet<u32>,
    /// Addresses that those vNICs had in VPCs.
    receivers: HashSet<(u32, IpAddr)>,
}

impl Gone {
    /// From one snapshot to the next. A vNIC that changes its VPC is another one.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let mut gone = Self::default();
        for old in before.vnics.iter().flatten() {
            let stays = |new: &Vnic| std::ptr::eq(&**old, new) || old.name == new.name && old.vpc == new.vpc;
            if !after.vnic(old.index).is_some_and(stays) {
                gone.vnics.insert(old.index);
                gone.receivers.extend(old.addresses().map(|address| (old.vpc, address)));
            }
        }
        let vpcs = before.vpcs.iter().flatten();
        let vpcs = vpcs.filter(|old| after.vpc(old.index).is_none_or(|new| new.vni != old.vni));
        gone.vpcs.extend(vpcs.map(|old| old.index));
        gone
    }

    /// True with nothing gone.
    pub fn is_empty(&self) -> bool {
        self.vnics.is_empty() && self.vpcs.is_empty()
    }

    /// True for a flow of a vNIC that is gone, and for one out of the tunnel to such a vNIC or in a VPC that is gone.
    pub fn has(&self, selector: &FlowSelector) -> bool {
        match selector.key.scope() {
            Scope::Vnic(index) => self.vnics.contains(&index),
            Scope::Vpc(index) => {
                let receiver = selector.key.addresses().map(|addresses| (index, addresses.destination));
                self.vpcs.contains(&index)
                    || receiver.is_some_and(|receiver| self.receivers.contains(&receiver))
            }
        }
    }
}
