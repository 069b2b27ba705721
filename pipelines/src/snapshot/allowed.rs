//! What a vNIC may send from besides its own addresses: address pairs, and everything where it is not guarded.

use std::net::IpAddr;

use wire::MacAddr;

use super::{Prefix, Snapshot, Vnic, Vpc};
use crate::event::Binding;
use crate::vlt::Place;

/// Addresses that a vNIC may have besides its VIPs, and the MAC that it has them with: floating addresses, and what is nested
/// in it. Several vNICs of a VPC may be allowed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedPair {
    /// The addresses.
    pub prefix: Prefix,
    /// The MAC; often the vNIC's own.
    pub mac: MacAddr,
}

/// Bit of [`VnicRow::guard`](super::VnicRow::guard): the vNIC has [allowed pairs](AllowedPair).
pub const GUARD_PAIRS: u8 = 1;
/// Bit of [`VnicRow::guard`](super::VnicRow::guard): the vNIC may send from any MAC and any address.
pub const GUARD_OFF: u8 = 2;

impl Vnic {
    /// The bits of its row that tell of what it may do besides sending from its own addresses.
    pub fn guard_bits(&self) -> u8 {
        let pairs = if self.allowed.is_empty() { 0 } else { GUARD_PAIRS };
        pairs | if self.guarded { 0 } else { GUARD_OFF }
    }

    /// True for an address that it is allowed to have with a MAC, besides its own.
    pub fn allows(&self, Binding { address, mac }: Binding) -> bool {
        self.allowed.iter().any(|pair| pair.mac == mac && pair.prefix.contains(address))
    }

    /// True for the MAC of an allowed pair, also with the link-local address that follows from it.
    pub fn allows_mac(&self, mac: MacAddr) -> bool {
        self.allowed.iter().any(|pair| pair.mac == mac)
    }

    /// True when it may send packets from an address with a MAC.
    pub fn may_send(&self, from: Binding) -> bool {
        !self.guarded || from.mac == self.mac && self.has(from.address) || self.allows(from)
    }
}

impl Snapshot {
    /// The vNIC of this host that is known to have a floating address: one that is allowed it, and has announced it.
    pub fn floats_at(&self, vpc: u32, address: IpAddr) -> Option<&Vnic> {
        let vnic = self.vnic(self.local_vnic(vpc, address)?)?;
        (!vnic.has(address)).then_some(vnic)
    }

    /// True when a vNIC may announce an address as its own because it is allowed it: the config gives it to nobody else.
    pub fn may_float(&self, vpc: &Vpc, vnic: &Vnic, claim: Binding) -> bool {
        vnic.allows(claim)
            && !vpc.is_gateway(claim.address)
            && (!self.is_held(vpc, claim.address)
                || vnic.has(claim.address)
                || self.floats_at(vpc.index, claim.address).is_some())
    }

    /// True when an address is known to be a vNIC's with this MAC.
    pub fn is_at(&self, vnic: &Vnic, Binding { address, mac }: Binding) -> bool {
        let location = self.location(vnic.vpc, super::Destination::Ip(address));
        location.is_some_and(|location| {
            let place = self.vlt.read(location.slot.slot).place;
            location.mac == mac && place == Place::Local { vnic: vnic.index }
        })
    }
}
