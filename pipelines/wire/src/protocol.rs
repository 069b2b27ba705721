//! Numbers that IPv4's protocol field and IPv6's next header field share (IANA protocol numbers).

/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4 (RFC 792).
pub const ICMP: u8 = 1;
/// IPv4 inside another packet (RFC 2003).
pub const IPV4: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6 inside another packet (RFC 2473, RFC 4213).
pub const IPV6: u8 = 41;
/// IPv6 routing header (RFC 8200 section 4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation (RFC 2784).
pub const GRE: u8 = 47;
/// Encapsulating security payload (RFC 4303).
pub const ESP: u8 = 50;
/// Authentication header (RFC 4302).
pub const AH: u8 = 51;
/// ICMP for IPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// IPv6: nothing follows (RFC 8200 section 4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 section 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// IPv6 mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;
/// IPv6 host identity protocol (RFC 7401).
pub const HIP: u8 = 139;
/// IPv6 shim6 (RFC 5533).
pub const SHIM6: u8 = 140;
