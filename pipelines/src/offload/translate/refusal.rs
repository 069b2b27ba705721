//! Why a flow stays in software.

use thiserror::Error;

/// What hardware would do otherwise than software, or cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum OffloadRefusal {
    /// The flow is dropped, flooded, or for the router.
    #[error("the flow is not forwarded to one place")]
    NotForwarded,
    /// Its source or destination does not exist any more.
    #[error("the flow's vNIC, VPC or location is gone")]
    Gone,
    /// The next hop of the VTEP is not resolved yet.
    #[error("the next hop has no MAC address yet")]
    Unresolved,
    /// A port that the flow crosses is not one of the e-switch.
    #[error("a port of the flow is not on the NIC's e-switch")]
    Port,
    /// The vNIC shares a port by VLAN id.
    #[error("the vNIC is on a trunk port")]
    Trunk,
    /// Neither TCP, UDP nor RoCEv2 over IP.
    #[error("only TCP, UDP and RoCEv2 are offloaded")]
    Protocol,
    /// CNPs, connection manager and unknown opcodes: software reads them.
    #[error("software reads packets of this RoCEv2 class")]
    RoceClass,
    /// The packets are of a queue pair that was not named.
    #[error("a queue pair is offloaded, not the flow that it is part of")]
    QueuePair,
    /// A tenant's own VxLAN: a NIC looks into it, and takes it for another flow.
    #[error("the flow is a tunnel of the tenant's own")]
    Tunnel,
    /// More than one VLAN tag.
    #[error("the flow has two VLAN tags")]
    Vlan,
    /// Frames would fit on one side and not on the other.
    #[error("frames of {0} bytes fit the sender's MTU and not the way out")]
    Mtu(usize),
    /// Over IPv6 hardware leaves the outer UDP checksum zero.
    #[error("the outer UDP checksum over IPv6 must be zero: set `udp6-zero-checksum = true` on the uplink")]
    UdpChecksum,
    /// Reserved VxLAN bits are to be checked.
    #[error("`vxlan-reserved = \"strict\"` is checked in software")]
    Strict,
    /// The outer source port follows the inner one, which was not told.
    #[error("the source port of the queue pair is not known yet")]
    SourcePort,
    /// Software follows its connection, or security groups refuse it.
    #[error(
        "a vNIC of the flow is in security groups: of those, hardware carries queue pairs that rules allow"
    )]
    SecurityGroup,
    /// The source of a flow out of the tunnel is behind no known VTEP.
    #[error("the flow's source is behind no known VTEP")]
    Source,
    /// The vNIC may not send from the flow's source address.
    #[error("the vNIC may not send from this address")]
    Guard,
    /// A class with a rate has no share yet.
    #[error("the class has a rate and no share of it yet")]
    NoShare,
}
