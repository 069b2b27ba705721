//! What a subnet's virtual router offers to the vNICs in it.

use std::net::IpAddr;

use super::{Snapshot, Vpc};

/// A set of services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services(u8);

impl Services {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// DHCPv4 in a subnet of IPv4, DHCPv6 in one of IPv6.
    pub const DHCP: Self = Self(1);
    /// Router advertisements, in a subnet of IPv6.
    pub const ADVERTISEMENTS: Self = Self(2);

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True when all of the others are among them.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Vpc {
    /// True when a subnet offers something: then nobody else in the VPC does.
    pub fn has_services(&self) -> bool {
        self.subnets().iter().any(|subnet| subnet.services != Services::NONE)
    }

    /// True when an address is in a subnet that offers a service.
    pub fn offers(&self, address: IpAddr, service: Services) -> bool {
        self.subnet_of(address).is_some_and(|subnet| subnet.services.has(service))
    }
}

impl Snapshot {
    /// True when a vNIC has an address of the family of `like` in a subnet that offers a service.
    pub fn serves(&self, vnic: u32, service: Services, like: IpAddr) -> bool {
        let Some(vnic) = self.vnic(vnic) else { return false };
        let Some(vpc) = self.vpc(vnic.vpc) else { return false };
        vnic.vips.iter().any(|&vip| vip.is_ipv4() == like.is_ipv4() && vpc.offers(vip, service))
    }
}
