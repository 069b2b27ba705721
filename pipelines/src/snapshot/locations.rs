//! Where the destinations of VPCs are, by address.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use wire::MacAddr;

use crate::security::SetId;
use crate::vlt::SlotRef;

/// What a location is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Routed: an IP address.
    Ip(IpAddr),
    /// Bridged: a MAC address.
    Mac(MacAddr),
}

/// As one number: what is derived hashes the variants, and the length of an address, too, in several times as many steps.
impl Hash for Destination {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        /// Beyond all addresses of IPv4.
        const MAC: u64 = 1 << 48;
        match self {
            Self::Ip(IpAddr::V4(address)) => state.write_u64(u64::from(address.to_bits())),
            Self::Ip(IpAddr::V6(address)) => state.write_u128(address.to_bits()),
            Self::Mac(mac) => state.write_u64(MAC | mac.to_u64()),
        }
    }
}

/// (VPC index, destination) -> location. A persistent map: a changed snapshot shares what did not change. Its hash is
/// taken once or twice for each new flow.
pub type Locations = imbl::GenericHashMap<
    (u32, Destination),
    Location,
    foldhash::quality::RandomState,
    imbl::shared_ptr::DefaultSharedPtr,
>;

/// Where a destination of a VPC is: the VLT slot that leads there, and its MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its VLT slot.
    pub slot: SlotRef,
    /// Its MAC address.
    pub mac: MacAddr,
    /// The security groups that it is in.
    pub groups: SetId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn destinations_that_differ_little_have_hashes_of_their_own() {
        let state = foldhash::quality::RandomState::default();
        let all = |n: u32| {
            let [a, b, c, d] = n.to_be_bytes();
            [
                Destination::Ip(Ipv4Addr::from_bits(n).into()),
                Destination::Ip(Ipv6Addr::from_bits(u128::from(n)).into()),
                Destination::Ip(Ipv6Addr::from_bits(u128::from(n) << 96).into()),
                Destination::Mac(MacAddr([0, 0, a, b, c, d])),
                Destination::Mac(MacAddr([a, b, c, d, 0, 0])),
            ]
        };
        let keys: HashSet<_> = (0..500).flat_map(all).flat_map(|to| [(0u32, to), (1, to)]).collect();
        let hashes: HashSet<u64> = keys.iter().map(|key| state.hash_one(key)).collect();
        assert_eq!(hashes.len(), keys.len());
        // As many as fit into the 32 bits that the map uses: a repetition or two are chance.
        let halves: HashSet<u32> = keys.iter().map(|key| state.hash_one(key) as u32).collect();
        assert!(halves.len() + 2 >= keys.len(), "{} of {}", halves.len(), keys.len());
    }
}
