//! Why a packet was dropped. Every drop has one of these names; there is no silent one.

use wire::Malformed;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A reason for dropping a packet: the malformations of the parser first, then those of the pipeline.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct DropReason(u8);

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Order { $($name,)* COUNT }

        impl DropReason {
            $($(#[$doc])* pub const $name: Self = Self((Malformed::ALL.len() + Order::$name as usize) as u8);)*

            /// How many reasons there are; `index()` is below it.
            pub const COUNT: usize = Malformed::ALL.len() + Order::COUNT as usize;

            /// The name shown to users, in kebab-case.
            pub fn name(self) -> &'static str {
                const NAMES: &[&str] = &[$($text,)*];
                match Malformed::ALL.get(self.index()) {
                    Some(malformed) => malformed.name(),
                    None => NAMES[self.index() - Malformed::ALL.len()],
                }
            }
        }
    };
}

drop_reasons! {
    /// The port carries no vNIC and no uplink.
    PORT_UNBOUND = "port-unbound",
    /// A trunk port carries no vNIC with this VLAN id (or the frame is untagged).
    VLAN_UNBOUND = "vlan-unbound",
    /// A VLAN tag inside the tenant's frame, in a VPC whose `inner-vlan` is `drop`.
    INNER_VLAN = "inner-vlan",
    /// The source MAC is not the vNIC's.
    GUARD_MAC = "guard-mac",
    /// The source address is not one of the vNIC's VIPs.
    GUARD_VIP = "guard-vip",
    /// A router advertisement or a redirect of a vNIC: the virtual router alone routes (RFC 6105).
    GUARD_RA = "guard-ra",
    /// A DHCP reply of a vNIC, or a DHCP request for another hardware address than the vNIC's, in a VPC with services.
    GUARD_DHCP = "guard-dhcp",
    /// Neighbour discovery that its receiver must discard: unsound (RFC 4861 section 7.1), with a fragment header
    /// (RFC 6980), or with link-layer addresses that contradict each other.
    NEIGHBOUR_UNSOUND = "neighbour-unsound",
    /// A super-frame that cannot be cut: no TCP, not whole, of lengths or flags that no segment could have, or of too many
    /// segments.
    GSO = "gso-unsupported",
    /// The slow path had no budget left for this vNIC or VNI.
    MISS_LIMIT = "miss-limit",
    /// A later fragment whose first fragment was not seen.
    FRAGMENT_UNKNOWN = "fragment-unknown",
    /// A first fragment to the RoCEv2 port that hides the base transport header.
    ROCE_FRAGMENT = "roce-fragment",
    /// RoCE v1 from a vNIC: the overlay carries RoCEv2.
    ROCE_V1 = "roce-v1",
    /// No location for the destination.
    NO_LOCATION = "no-location",
    /// No route of the VPC covers the destination.
    NO_ROUTE = "no-route",
    /// The flow's source and destination are the same vNIC.
    HAIRPIN = "hairpin",
    /// Broadcast, unknown unicast or multicast in a VPC that does not flood.
    BUM = "bum-disabled",
    /// An ARP or ND question that the switch cannot answer.
    ARP_UNKNOWN = "neighbour-unknown",
    /// A DHCP request that cannot be read, or comes in fragments.
    DHCP_MALFORMED = "dhcp-malformed",
    /// The vNIC asks services of the VPC more often than it may, or as many of its requests wait for control as may.
    SERVICE_LIMIT = "service-limit",
    /// As many requests to services of VPCs wait for control as may in all.
    SERVICE_QUEUE_FULL = "service-queue-full",
    /// A packet to the virtual router itself that it does not answer.
    TO_ROUTER = "to-router",
    /// TTL or hop limit ran out on a routed path.
    TTL_EXPIRED = "ttl-expired",
    /// Larger than the MTU of the way out.
    MTU_EXCEEDED = "mtu-exceeded",
    /// A RoCEv2 packet larger than the MTU of the way out.
    MTU_ROCE = "mtu-roce",
    /// A reliable connection's queue pair over the vNIC's quota.
    QP_QUOTA = "qp-quota",
    /// The vNIC opens queue pairs faster than it may.
    QP_RATE = "qp-rate",
    /// The RCFT of the host is full.
    QP_TABLE_FULL = "qp-table-full",
    /// RDMA far over its rates whose queue is full.
    RDMA_OVERRUN = "rdma-overrun",
    /// Other traffic over its rates whose queue is full.
    TCP_SHAPED = "tcp-shaped",
    /// The worker keeps as many packets waiting as it can.
    SHAPER_FULL = "shaper-full",
    /// The underlay next hop has no MAC address yet.
    NO_NEIGHBOUR = "no-neighbour",
    /// The destination vNIC has no port at the moment.
    PORT_DOWN = "port-down",
    /// No headroom, or no buffer for a copy.
    NO_BUFFER = "no-buffer",
    /// Underlay frame for another station.
    UNDERLAY_MAC = "underlay-mac",
    /// Underlay packet for another address.
    UNDERLAY_ADDRESS = "underlay-address",
    /// Underlay traffic that is not VxLAN and has no punt port.
    UNDERLAY_OTHER = "underlay-other",
    /// Fragmented outer packet (RFC 7348 section 4.3).
    OUTER_FRAGMENT = "outer-fragment",
    /// Wrong outer IPv4 header or UDP checksum.
    OUTER_CHECKSUM = "outer-checksum",
    /// Zero outer UDP checksum over IPv6 where it is not allowed (RFC 6935).
    OUTER_CHECKSUM_ZERO = "outer-checksum-zero",
    /// The VxLAN header is cut short.
    VXLAN_TRUNCATED = "vxlan-truncated",
    /// The I flag is clear.
    VXLAN_FLAGS = "vxlan-flags",
    /// A reserved bit is set and `reserved = "strict"`.
    VXLAN_RESERVED = "vxlan-reserved",
    /// A VNI that no VPC of this host has.
    UNKNOWN_VNI = "unknown-vni",
    /// The sender is not a known VTEP.
    UNKNOWN_VTEP = "unknown-vtep",
    /// Inner Not-ECT with outer CE (RFC 6040 section 4.2).
    ECN_DECAP = "ecn-decap",
    /// The decapsulated destination is not on this host.
    NOT_LOCAL = "not-local",
    /// The tx queue of the port was full.
    TX_FULL = "tx-full",
    /// The tx queue took nothing for a while: what waited was given up, and what comes is tried once.
    TX_STALLED = "tx-stalled",
    /// The hand-over ring to the worker that owns the tx queue was full.
    TX_HANDOFF_FULL = "tx-handoff-full",
    /// The forwarding mode has no partner for the port.
    NO_PARTNER = "no-partner",
    /// The inner source is not behind the VTEP that sent the packet, or is a vNIC of this host.
    INNER_SOURCE = "inner-source",
    /// The inner source MAC is a group address.
    GROUP_SOURCE = "group-source-mac",
    /// The port has no link, or nobody is there to read from it.
    LINK_DOWN = "link-down",
    /// The driver took the packets behind this one, and not this one; or the kernel refused it for its own sake.
    TX_REFUSED = "tx-refused",
    /// Headers spread over buffers that could not be gathered, or buffers that are not what the first one says.
    HEADER_SPLIT = "header-split",
    /// The burst had made as many copies of flooded packets as one burst may.
    FLOOD_BUDGET = "flood-budget",
    /// The vNIC (or out of the tunnel, the VPC) floods more copies than it may.
    FLOOD_LIMIT = "flood-limit",
    /// A routed packet with a source or destination that no router forwards (RFC 1812 section 5.3.7), or to an underlay
    /// address of this switch.
    MARTIAN = "martian",
    /// To one of the addresses 01:80:c2:00:00:00 to 0f, which no bridge forwards.
    RESERVED_MAC = "reserved-mac",
    /// The outer TTL or hop limit is 0.
    OUTER_TTL = "outer-ttl",
    /// Outer IPv4 options, or an IPv6 routing header.
    OUTER_OPTIONS = "outer-options",
    /// A route of the VPC leads nowhere.
    BLACKHOLE = "blackhole",
    /// No rule of the sender's security groups allows it.
    SECURITY_OUT = "security-out",
    /// No rule of the receiver's security groups allows it, and it belongs to no connection.
    SECURITY_IN = "security-in",
    /// The vNIC has as many connections as it may, or the connection table is full.
    CONNECTION_LIMIT = "connection-limit",
    /// A BFD packet over a single hop that came by a router, or from afar: its TTL or hop limit is not 255 (RFC 5881
    /// section 5).
    BFD_TTL = "bfd-ttl",
    /// A BFD packet that RFC 5880 section 6.8.6 discards whatever session it is for, or that comes with IP options, a routing
    /// header or in fragments.
    BFD_MALFORMED = "bfd-malformed",
    /// A BFD packet with authentication, which no session uses.
    BFD_AUTHENTICATED = "bfd-authenticated",
    /// A BFD packet for no session: an unknown discriminator, or none and an unknown sender.
    BFD_UNKNOWN = "bfd-unknown",
    /// As many packets of its BFD session wait for control as may, or half of them when it names no session.
    BFD_LIMIT = "bfd-limit",
    /// An answer to a path probe of this switch that does not bring back what was sent, or has a wrong checksum.
    PROBE_UNKNOWN = "probe-unknown",
    /// As many answers to path probes wait for control as may.
    PROBE_LIMIT = "probe-limit",
    /// A frame of the host, from a punt port, that has another source MAC than the uplink: whoever hears it would send there
    /// what is for the VTEP.
    HOST_MAC = "host-mac",
}

impl DropReason {
    /// Position in counter arrays, below [`DropReason::COUNT`].
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The reason at a position, if there is one.
    pub fn from_index(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|_| index < Self::COUNT).map(Self)
    }

    /// All reasons, in counter order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).filter_map(Self::from_index)
    }
}

impl From<Malformed> for DropReason {
    #[inline(always)]
    fn from(malformed: Malformed) -> Self {
        Self(malformed as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_and_ordered() {
        let names: HashSet<_> = DropReason::all().map(DropReason::name).collect();
        assert_eq!(names.len(), DropReason::COUNT);
        assert_eq!(DropReason::PORT_UNBOUND.name(), "port-unbound");
        for (index, malformed) in Malformed::ALL.iter().enumerate() {
            assert_eq!(DropReason::from(*malformed).index(), index);
        }
    }
}
