//! Addresses that no router forwards (RFC 1812 section 5.3.7, RFC 6890, RFC 4291): packets with such a source or
//! destination are called martian.

use std::net::IpAddr;

/// True for an address that means something on one link or one host only, or nothing at all.
pub fn is_martian(address: IpAddr) -> bool {
    match address {
        // This network, loopback, link-local; multicast, reserved, broadcast.
        IpAddr::V4(address) => matches!(address.octets(), [0 | 127 | 224..=255, ..] | [169, 254, ..]),
        IpAddr::V6(address) => {
            address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || address.to_ipv4_mapped().is_some()
        }
    }
}

/// True for a unicast address that means something on one link only (RFC 3927, RFC 4291 section 2.5.6).
pub fn is_link_scoped(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_martians_are_known_by_their_first_and_last_addresses() {
        let all =
            |list: &[&str]| list.iter().map(|text| is_martian(text.parse().unwrap())).collect::<Vec<_>>();
        let martian = [
            "0.0.0.0",
            "0.255.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.255.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf:ffff::1",
            "ff00::1",
            "ffff::1",
            "::ffff:10.0.0.1",
        ];
        assert_eq!(all(&martian), [true; 17]);
        let routable = [
            "1.0.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "223.255.255.255",
            "10.0.0.1",
            "192.168.0.1",
            "fd00::1",
            "2001:db8::1",
            "fec0::1",
            "64:ff9b::1",
        ];
        assert_eq!(all(&routable), [false; 12]);
    }
}
