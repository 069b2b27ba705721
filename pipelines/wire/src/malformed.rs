//! [`Malformed`]: the names under which unreadable packets are dropped.
//!
//! Produced by the parser, counted and shown by those above. A packet that is merely unknown (another
//! EtherType, another protocol) is not malformed.

/// Why a packet cannot be read. `...Truncated` also covers a first segment that ends inside the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Malformed {
    /// Ends inside the Ethernet header.
    EthernetTruncated,
    /// Ends inside a VLAN tag.
    VlanTruncated,
    /// More than two VLAN tags.
    VlanTooDeep,
    /// Ends inside the ARP packet.
    ArpTruncated,
    /// ARP for other address types than Ethernet and IPv4.
    ArpFormat,
    /// Ends inside the IPv4 header.
    Ipv4Truncated,
    /// EtherType IPv4, version field not 4.
    Ipv4Version,
    /// Header length below 20 bytes.
    Ipv4HeaderLength,
    /// Total length below the header length, or above what the frame holds.
    Ipv4TotalLength,
    /// Header checksum wrong. Given by callers: the parser leaves this check to them.
    Ipv4Checksum,
    /// Ends inside the IPv6 header.
    Ipv6Truncated,
    /// EtherType IPv6, version field not 6.
    Ipv6Version,
    /// Payload length above what the frame holds, or packet longer than 65535 bytes.
    Ipv6PayloadLength,
    /// Ends inside an extension header.
    Ipv6ExtensionTruncated,
    /// More extension headers than the parser walks.
    Ipv6ExtensionTooMany,
    /// Hop-by-hop options anywhere but first (RFC 8200 section 4.1), or a second fragment header.
    Ipv6ExtensionOrder,
    /// Ends inside the TCP header or its options.
    TcpTruncated,
    /// Data offset below 20 bytes.
    TcpHeaderLength,
    /// Ends inside the UDP header.
    UdpTruncated,
    /// Length field below 8, or above what the IP packet holds.
    UdpLength,
    /// Ends inside the ICMP or ICMPv6 header.
    IcmpTruncated,
    /// Ends inside the SCTP common header.
    SctpTruncated,
    /// The packet reassembled from this fragment would exceed 65535 bytes.
    FragmentOverlong,
    /// A first fragment without the whole L4 header (RFC 7112), or a later one that would overwrite the TCP
    /// header (RFC 3128).
    FragmentTiny,
    /// A fragment without data, or not the last and its length not a multiple of 8.
    FragmentLength,
}

impl Malformed {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 25] = [
        Self::EthernetTruncated,
        Self::VlanTruncated,
        Self::VlanTooDeep,
        Self::ArpTruncated,
        Self::ArpFormat,
        Self::Ipv4Truncated,
        Self::Ipv4Version,
        Self::Ipv4HeaderLength,
        Self::Ipv4TotalLength,
        Self::Ipv4Checksum,
        Self::Ipv6Truncated,
        Self::Ipv6Version,
        Self::Ipv6PayloadLength,
        Self::Ipv6ExtensionTruncated,
        Self::Ipv6ExtensionTooMany,
        Self::Ipv6ExtensionOrder,
        Self::TcpTruncated,
        Self::TcpHeaderLength,
        Self::UdpTruncated,
        Self::UdpLength,
        Self::IcmpTruncated,
        Self::SctpTruncated,
        Self::FragmentOverlong,
        Self::FragmentTiny,
        Self::FragmentLength,
    ];

    /// The name in counters, console and captures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EthernetTruncated => "ethernet-truncated",
            Self::VlanTruncated => "vlan-truncated",
            Self::VlanTooDeep => "vlan-too-deep",
            Self::ArpTruncated => "arp-truncated",
            Self::ArpFormat => "arp-format",
            Self::Ipv4Truncated => "ipv4-truncated",
            Self::Ipv4Version => "ipv4-version",
            Self::Ipv4HeaderLength => "ipv4-header-length",
            Self::Ipv4TotalLength => "ipv4-total-length",
            Self::Ipv4Checksum => "ipv4-checksum",
            Self::Ipv6Truncated => "ipv6-truncated",
            Self::Ipv6Version => "ipv6-version",
            Self::Ipv6PayloadLength => "ipv6-payload-length",
            Self::Ipv6ExtensionTruncated => "ipv6-extension-truncated",
            Self::Ipv6ExtensionTooMany => "ipv6-extension-too-many",
            Self::Ipv6ExtensionOrder => "ipv6-extension-order",
            Self::TcpTruncated => "tcp-truncated",
            Self::TcpHeaderLength => "tcp-header-length",
            Self::UdpTruncated => "udp-truncated",
            Self::UdpLength => "udp-length",
            Self::IcmpTruncated => "icmp-truncated",
            Self::SctpTruncated => "sctp-truncated",
            Self::FragmentOverlong => "fragment-overlong",
            Self::FragmentTiny => "fragment-tiny",
            Self::FragmentLength => "fragment-length",
        }
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_order_and_names_are_the_variants_in_kebab_case() {
        for (number, malformed) in Malformed::ALL.into_iter().enumerate() {
            assert_eq!(malformed as usize, number);
            let mut kebab = String::new();
            for (at, letter) in format!("{malformed:?}").char_indices() {
                if letter.is_uppercase() && at > 0 {
                    kebab.push('-');
                }
                kebab.extend(letter.to_lowercase());
            }
            assert_eq!(malformed.name(), kebab);
        }
        assert_eq!(Malformed::ALL[Malformed::ALL.len() - 1], Malformed::FragmentLength, "the last variant");
    }
}
