//! Checked newtypes. A value of one of these is in range; the error says which field was not, in its terms.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An Ethernet address (IEEE 802-2014 section 8).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// 00:00:00:00:00:00.
    pub const ZERO: Self = Self([0; 6]);

    /// True for group addresses: multicast and broadcast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address that a station may use as its own: neither group nor zero.
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Self::ZERO
    }

    /// The address as a number, first byte most significant.
    pub const fn to_u64(self) -> u64 {
        let m = self.0;
        u64::from_be_bytes([0, 0, m[0], m[1], m[2], m[3], m[4], m[5]])
    }

    /// The interface identifier that follows from the address: modified EUI-64 (RFC 4291 appendix A).
    #[inline(always)]
    pub const fn eui64(self) -> u64 {
        let m = self.0;
        u64::from_be_bytes([m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }

    /// The link-local address that follows from the address (RFC 4862 section 5.3).
    pub const fn link_local(self) -> Ipv6Addr {
        Ipv6Addr::from_bits((LINK_LOCAL as u128) << 64 | self.eui64() as u128)
    }

    /// The MAC address from which a link-local address follows; `None` for any other kind of interface identifier.
    pub const fn of_link_local(address: Ipv6Addr) -> Option<Self> {
        let bits = address.to_bits();
        let id = (bits as u64).to_be_bytes();
        if (bits >> 64) as u64 != LINK_LOCAL || id[3] != 0xff || id[4] != 0xfe {
            return None;
        }
        Some(Self([id[0] ^ 2, id[1], id[2], id[5], id[6], id[7]]))
    }
}

/// The first half of every link-local address, fe80::/64 (RFC 4291 section 2.5.6).
const LINK_LOCAL: u64 = 0xfe80 << 48;

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacAddrSyntax(pub String);

impl fmt::Display for MacAddrSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a MAC address; write six hex bytes like 52:54:00:00:00:01", self.0)
    }
}

impl std::error::Error for MacAddrSyntax {}

impl FromStr for MacAddr {
    type Err = MacAddrSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || MacAddrSyntax(text.chars().take(40).collect());
        let mut mac = [0u8; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().filter(|p| (1..=2).contains(&p.len())).ok_or_else(error)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() {
            return Err(error());
        }
        Ok(Self(mac))
    }
}

/// A number that does not fit the bits of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Name of the field in the standard's words.
    pub field: &'static str,
    /// The number that does not fit.
    pub value: u64,
    /// The largest value that fits.
    pub max: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is too large; the largest is {}", self.field, self.value, self.max)
    }
}

impl std::error::Error for TooLarge {}

macro_rules! bounded {
    ($(#[$doc:meta])* $name:ident($raw:ty), $field:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($raw);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self($max);

            /// The checked value.
            ///
            /// # Errors
            /// [`TooLarge`] when `raw` has more bits than the field.
            pub const fn new(raw: $raw) -> Result<Self, TooLarge> {
                if raw > $max {
                    return Err(TooLarge { field: $field, value: raw as u64, max: $max });
                }
                Ok(Self(raw))
            }

            /// The low bits of `raw`: for values read out of the field itself.
            pub const fn truncated(raw: $raw) -> Self {
                Self(raw & $max)
            }

            /// The number as hosts write it, not in network order.
            pub const fn get(self) -> $raw {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

bounded!(
    /// VxLAN network identifier, 24 bits (RFC 7348 section 5).
    Vni(u32), "VNI", 0xff_ffff
);
bounded!(
    /// Queue pair number, 24 bits (IBTA vol. 1 section 9.2).
    Qpn(u32), "QPN", 0xff_ffff
);
bounded!(
    /// Packet sequence number, 24 bits (IBTA vol. 1 section 9.2).
    Psn(u32), "PSN", 0xff_ffff
);
bounded!(
    /// Differentiated services code point, 6 bits (RFC 2474 section 3).
    Dscp(u8), "DSCP", 0x3f
);

/// Explicit congestion notification field, 2 bits (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// Not-ECT, 00: routers drop the packet where they would mark it.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 2,
    /// CE, 11: a router on the way was congested.
    Ce = 3,
}

impl Ecn {
    /// All four, in codepoint order.
    pub const ALL: [Self; 4] = [Self::NotEct, Self::Ect1, Self::Ect0, Self::Ce];

    /// The low two bits of a TOS or traffic class byte.
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// `tos` with this codepoint in its low two bits.
    pub const fn into_tos(self, tos: u8) -> u8 {
        (tos & !3) | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_link_local_addresses_follow_from_macs_and_back() {
        let mac: MacAddr = "02:00:5e:10:20:30".parse().unwrap();
        let address: Ipv6Addr = "fe80::5eff:fe10:2030".parse().unwrap();
        assert_eq!((mac.link_local(), MacAddr::of_link_local(address)), (address, Some(mac)));
        let mac: MacAddr = "50:6b:4b:01:02:ff".parse().unwrap();
        assert_eq!(mac.link_local(), "fe80::526b:4bff:fe01:2ff".parse::<Ipv6Addr>().unwrap());
        assert_eq!(MacAddr::of_link_local(mac.link_local()), Some(mac));
        for other in
            ["fe80::1", "fe80::", "fe80:1::5eff:fe10:2030", "febf::5eff:fe10:2030", "fd00::5eff:fe10:2030"]
        {
            assert_eq!(MacAddr::of_link_local(other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn bounds_hold() {
        assert_eq!(Vni::new(0xff_ffff).map(Vni::get), Ok(0xff_ffff));
        let error = Vni::new(0x100_0000).unwrap_err();
        assert_eq!(error.to_string(), "VNI 16777216 is too large; the largest is 16777215");
        assert_eq!(Dscp::truncated(0xff).get(), 0x3f);
    }

    #[test]
    fn mac_text_round_trips() {
        let mac: MacAddr = "52:54:00:0a:b:01".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:0a:0b:01");
        assert_eq!(mac.to_u64(), 0x5254_000a_0b01);
        for bad in ["", "52:54:00:00:00", "52:54:00:00:00:01:02", "5g:54:00:00:00:01", "525400000001"] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ecn_sits_in_the_low_bits() {
        for ecn in Ecn::ALL {
            assert_eq!(Ecn::from_tos(ecn.into_tos(0xfd)), ecn);
            assert_eq!(ecn.into_tos(0xfd) & 0xfc, 0xfc);
        }
    }
}
