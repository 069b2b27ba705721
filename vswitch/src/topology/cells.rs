//! Generation cells: handed out to VPCs and vNICs, and bumped when decisions must be made anew.
//!
//! Which change bumps which cells is the table at the top of the snapshot's file.

use std::sync::Arc;

use pipelines::encap_hash::EncapHash;

use super::Topology;

impl Topology {
    /// A cell whose count no decision remembers.
    pub(super) fn new_cell(&mut self) -> u32 {
        let fresh = self.draft.next.cells.len() as u32;
        let cell = self.draft.free_cells.pop().unwrap_or(fresh);
        self.draft.next.bump(cell);
        cell
    }

    /// Makes every decision stale in the VPC and in those that route to it: they remember its router's MAC address,
    /// and the slots and MAC addresses of its locations.
    pub(super) fn touch_related(&mut self, vpc: u32) {
        let next = &mut self.draft.next;
        let related = next.vpcs.iter().flatten().filter(|other| other.index == vpc || other.leads_to(vpc));
        let related: Vec<u32> = related.map(|other| other.index).collect();
        related.into_iter().for_each(|index| next.touch_vpc(index));
    }

    /// Says whose outer source ports the next snapshot has: a NIC's, or software's own. Every flow is decided anew with it.
    pub fn set_encap_hash(&mut self, hash: Option<Arc<EncapHash>>) {
        let next = &mut self.draft.next;
        if next.encap_hash == hash {
            return;
        }
        next.encap_hash = hash;
        let all: Vec<u32> = next.vpcs.iter().flatten().map(|vpc| vpc.index).collect();
        all.into_iter().for_each(|index| next.touch_vpc(index));
    }
}
