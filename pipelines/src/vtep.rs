//! Which VTEPs this host listens to, and for which networks.
//!
//! A VTEP is known by a number that control gives to its address and never to another one, so that the VLT can say in
//! place, and a flow can remember, behind which VTEP a station is. A VTEP is heard in the VPCs that know it (its
//! locations, their flood lists and gateways); one that the config lists (`[[uplink]] peers`) is heard in all of them.

use std::net::IpAddr;

use wire::MacAddr;

use crate::flat::FlatMap;
use crate::flow_key::mix;
use crate::snapshot::ip_key;
use crate::vlt::Vlt;

/// A VTEP by number, as found by its address: 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vtep(u32);

impl Vtep {
    /// No VTEP.
    pub const NONE: Self = Self(0);
    /// The largest number.
    pub const MAX: u32 = Self::LISTED - 1;
    /// The bit of those that the config lists.
    const LISTED: u32 = 1 << 30;

    /// The VTEP with this number, `listed` or not; `None` for 0 and beyond [`MAX`](Self::MAX).
    pub const fn new(number: u32, listed: bool) -> Option<Self> {
        if number == 0 || number > Self::MAX {
            return None;
        }
        Some(Self(if listed { number | Self::LISTED } else { number }))
    }

    /// The number by which slots and flows name it.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0 & Self::MAX
    }

    /// True for one that the config lists.
    #[inline(always)]
    pub const fn is_listed(self) -> bool {
        self.0 & Self::LISTED != 0
    }
}

/// The MAC address of the virtual routers of a host, as other routers know it: they send to it what is routed to any network of
/// the host (the Router's MAC address of EVPN, RFC 9135 section 8.1). It follows from the host's VTEP address, for it must be
/// another one for each VTEP, and locally administered; which one is nothing that anybody has to configure.
pub fn router_mac(vtep: IpAddr) -> MacAddr {
    match vtep {
        IpAddr::V4(vtep) => {
            let [a, b, c, d] = vtep.octets();
            MacAddr([ROUTER_OF_V4, 0x5e, a, b, c, d])
        }
        IpAddr::V6(vtep) => {
            let bits = vtep.to_bits();
            let hash = mix(bits as u64 ^ 0x9e37_79b9_7f4a_7c15, (bits >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93);
            let [a, b, c, d, e, ..] = hash.to_be_bytes();
            MacAddr([ROUTER_OF_V6, a, b, c, d, e])
        }
    }
}

/// First byte of the MAC addresses of routers behind VTEPs, by the IP version of the VTEP.
const ROUTER_OF_V4: u8 = 0x0a;
const ROUTER_OF_V6: u8 = 0x0e;

/// True when routers elsewhere send to this MAC address what this host, which has these VTEP addresses, is to route.
pub fn is_router_mac(mac: MacAddr, mut vteps: impl Iterator<Item = IpAddr>) -> bool {
    matches!(mac.0[0], ROUTER_OF_V4 | ROUTER_OF_V6) && vteps.any(|vtep| router_mac(vtep) == mac)
}

/// The VTEPs that are known, by address, and the networks of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vteps {
    addresses: FlatMap,
    networks: FlatMap,
}

impl Vteps {
    /// VTEPs by address, and pairs of a VTEP's number, a VNI, and the index of the VPC that knows it under that.
    pub fn new(
        addresses: impl IntoIterator<Item = (IpAddr, Vtep)>,
        networks: impl IntoIterator<Item = (u32, u32, u32)>,
    ) -> Self {
        let addresses = addresses.into_iter().map(|(address, vtep)| (ip_key(address), vtep.0));
        let networks = networks.into_iter().map(|(number, vni, vpc)| (Self::pair(number, vni), vpc));
        Self { addresses: FlatMap::new(addresses), networks: FlatMap::new(networks) }
    }

    #[inline(always)]
    const fn pair(number: u32, vni: u32) -> u128 {
        (number as u128) << 24 | vni as u128
    }

    /// The VTEP with an address.
    #[inline(always)]
    pub fn find(&self, address: IpAddr) -> Option<Vtep> {
        self.addresses.get(ip_key(address)).map(Vtep)
    }

    /// The VPC that hears a VTEP under a VNI; `vnis` are all VPCs by VNI.
    #[inline(always)]
    pub fn network(&self, vtep: Vtep, vni: u32, vnis: &FlatMap) -> Option<u32> {
        if vtep.is_listed() {
            vnis.get(u128::from(vni))
        } else {
            self.networks.get(Self::pair(vtep.number(), vni))
        }
    }
}

/// From where a flow out of the tunnel may come: the VTEP behind which its source is, by the VLT slot of its location,
/// which says so in place; or, for a source without a location, the one VTEP from which it was accepted. Zero: from
/// nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(transparent)]
pub struct SourceVtep(u32);

impl SourceVtep {
    /// The bit of a VTEP's number; otherwise it is a slot plus one.
    const VTEP: u32 = 1 << 31;

    /// Behind the VTEP of a location's slot.
    pub const fn location(slot: u32) -> Self {
        Self(slot.wrapping_add(1) & !Self::VTEP)
    }

    /// Behind this VTEP alone.
    pub const fn vtep(vtep: Vtep) -> Self {
        Self(vtep.number() | Self::VTEP)
    }

    /// True for a source that has a location.
    pub const fn has_location(self) -> bool {
        self.0 & Self::VTEP == 0
    }

    /// Hints the CPU to load what [`admits`](Self::admits) reads.
    #[inline(always)]
    pub fn prefetch(self, vlt: &Vlt) {
        vlt.prefetch_vtep(self.0.wrapping_sub(1));
    }

    /// True when the flow's packets may come from this VTEP now.
    #[inline(always)]
    pub fn admits(self, vlt: &Vlt, vtep: Vtep) -> bool {
        let behind =
            if self.has_location() { vlt.vtep_of(self.0.wrapping_sub(1)) } else { self.0 & !Self::VTEP };
        behind == vtep.number()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlt::{Place, TEMPLATE_BYTES, Tunnel, Vlt};

    #[test]
    fn vtep_router_addresses_are_stations_of_their_own() {
        let vteps = ["10.0.0.1", "10.0.0.2", "172.16.0.1", "fd00::1", "fd00::2", "2001:db8::1"];
        let vteps = vteps.map(|text| text.parse::<IpAddr>().unwrap());
        // Others know them by announcements of before, so they never become others.
        assert_eq!(router_mac(vteps[2]).to_string(), "0a:5e:ac:10:00:01");
        assert_eq!(router_mac(vteps[3]).to_string(), "0e:01:02:7c:20:b5");
        for (at, vtep) in vteps.into_iter().enumerate() {
            let mac = router_mac(vtep);
            assert!(mac.is_station() && mac.0[0] & 2 != 0, "{mac}");
            assert!(vteps[..at].iter().all(|other| router_mac(*other) != mac), "{vtep}");
            assert!(is_router_mac(mac, vteps.into_iter()));
            assert!(!is_router_mac(mac, vteps.into_iter().filter(|other| *other != vtep)));
        }
    }

    #[test]
    fn repair_a_vtep_is_heard_where_it_is_known_and_a_listed_one_everywhere() {
        let [a, b] = [Vtep::new(1, false).unwrap(), Vtep::new(2, true).unwrap()];
        let ip = |last| IpAddr::from([172, 16, 0, last]);
        let vteps = Vteps::new([(ip(1), a), (ip(2), b)], [(1, 100, 7)]);
        let vnis = FlatMap::new([(100, 7), (200, 8)]);
        assert_eq!((vteps.find(ip(1)), vteps.find(ip(2)), vteps.find(ip(3))), (Some(a), Some(b), None));
        assert_eq!((vteps.network(a, 100, &vnis), vteps.network(a, 200, &vnis)), (Some(7), None));
        assert_eq!((vteps.network(b, 100, &vnis), vteps.network(b, 200, &vnis)), (Some(7), Some(8)));
        assert_eq!((Vtep::new(0, false), Vtep::new(Vtep::MAX + 1, false)), (None, None));
    }

    #[test]
    fn repair_a_source_follows_its_slot_and_nothing_admits_what_is_free() {
        let (vlt, mut writer) = Vlt::new(2);
        let [a, b] = [1, 2].map(|number| Vtep::new(number, false).unwrap());
        let behind = |vtep| Place::Remote(Tunnel { group: 0, len: 50, vtep, header: [0; TEMPLATE_BYTES] });
        let slot = writer.allocate(behind(1)).unwrap().slot;
        let source = SourceVtep::location(slot);
        assert!(source.admits(&vlt, a) && !source.admits(&vlt, b));
        writer.update(slot, behind(2));
        assert!(source.admits(&vlt, b) && !source.admits(&vlt, a));
        writer.update(slot, Place::Local { vnic: 0 });
        assert!(!source.admits(&vlt, a) && !source.admits(&vlt, b));
        writer.free(slot);
        assert!(!source.admits(&vlt, b));
        assert!(SourceVtep::vtep(a).admits(&vlt, a) && !SourceVtep::vtep(a).admits(&vlt, b));
        assert!([a, b].iter().all(|&vtep| !SourceVtep::default().admits(&vlt, vtep)));
    }
}
