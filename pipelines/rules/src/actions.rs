//! Actions: what becomes of a packet that a rule matches.

use std::fmt;

use wire::{Ecn, MacAddr};

use crate::encap::Encap;

/// One action of a rule. They are carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Take the outer headers off, up to and including VxLAN.
    VxlanDecap,
    /// Put a header in front.
    RawEncap(Encap),
    /// Count packets and bytes.
    Count,
    /// Report the rule when no packet met it for so long.
    Age {
        /// Seconds, 24 bits.
        timeout: u32,
    },
    /// Go on in another group.
    Jump {
        /// Number of the group, of the same domain.
        group: u32,
    },
    /// Let a meter of the back end ([`super::BackEnd::set_meter`]) colour the packet. What it colours red goes on too,
    /// unless the device cannot: the rules behind it decide by colour.
    Meter {
        /// Which meter.
        mtr_id: u32,
    },
    /// Set the ECN field of the outermost IP header (`modify_field`).
    SetEcn {
        /// IPv6, not IPv4.
        ipv6: bool,
        /// The codepoint to set (RFC 3168 section 5).
        ecn: Ecn,
    },
    /// Write bits of a tag register.
    SetTag {
        /// Which register.
        index: u8,
        /// What to write, none of it outside `mask`.
        data: u32,
        /// Which bits.
        mask: u32,
    },
    /// Hand a number to whoever receives the packet in software.
    Mark {
        /// The number that receive descriptors carry.
        id: u32,
    },
    /// Decrement TTL or hop limit.
    DecTtl,
    /// Set the source MAC.
    SetMacSrc(MacAddr),
    /// Set the destination MAC.
    SetMacDst(MacAddr),
    /// Out to what a DPDK port stands for: the wire, or a VM's function.
    RepresentedPort {
        /// DPDK port id.
        port: u16,
    },
    /// To software, as received by a DPDK port (transfer rules).
    PortRepresentor {
        /// DPDK port id.
        port: u16,
    },
    /// The older way to name a way out.
    PortId {
        /// DPDK port id.
        id: u32,
    },
    /// To software, into an rx queue of the port (ingress rules).
    Queue {
        /// Which queue.
        index: u16,
    },
    /// Drop the packet in hardware: nothing counts it but a `Count` beside this action.
    Drop,
}

impl Action {
    /// Writes all bits of a tag register.
    pub const fn set_tag(index: u8, data: u32) -> Self {
        Self::SetTag { index, data, mask: u32::MAX }
    }

    /// True for the actions that end a packet's way through a group.
    pub const fn is_fate(&self) -> bool {
        matches!(
            self,
            Self::Jump { .. }
                | Self::RepresentedPort { .. }
                | Self::PortRepresentor { .. }
                | Self::PortId { .. }
                | Self::Queue { .. }
                | Self::Drop
        )
    }

    /// The name in rte_flow and testpmd.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::VxlanDecap => "vxlan_decap",
            Self::RawEncap(_) => "raw_encap",
            Self::Count => "count",
            Self::Age { .. } => "age",
            Self::Jump { .. } => "jump",
            Self::Meter { .. } => "meter",
            Self::SetEcn { .. } => "modify_field",
            Self::SetTag { .. } => "set_tag",
            Self::Mark { .. } => "mark",
            Self::DecTtl => "dec_ttl",
            Self::SetMacSrc(_) => "set_mac_src",
            Self::SetMacDst(_) => "set_mac_dst",
            Self::RepresentedPort { .. } => "represented_port",
            Self::PortRepresentor { .. } => "port_representor",
            Self::PortId { .. } => "port_id",
            Self::Queue { .. } => "queue",
            Self::Drop => "drop",
        }
    }
}

/// As in testpmd's `flow create`; of `raw_encap`, which reads its header from a place set before, index 0.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match self {
            Self::RawEncap(_) => write!(f, " index 0"),
            Self::Age { timeout } => write!(f, " timeout {timeout}"),
            Self::Jump { group } => write!(f, " group {group}"),
            Self::Meter { mtr_id } => write!(f, " mtr_id {mtr_id}"),
            Self::SetEcn { ipv6, ecn } => {
                let field = if *ipv6 { "ipv6_ecn" } else { "ipv4_ecn" };
                write!(f, " op set dst_type {field} src_type value src_value {:02x} width 2", *ecn as u8)
            }
            Self::SetTag { index, data, mask } => {
                write!(f, " data {data:#010x} index {index} mask {mask:#010x}")
            }
            Self::Mark { id } | Self::PortId { id } => write!(f, " id {id}"),
            Self::SetMacSrc(mac) | Self::SetMacDst(mac) => write!(f, " mac_addr {mac}"),
            Self::RepresentedPort { port } => write!(f, " ethdev_port_id {port}"),
            Self::PortRepresentor { port } => write!(f, " port_id {port}"),
            Self::Queue { index } => write!(f, " index {index}"),
            Self::VxlanDecap | Self::Count | Self::DecTtl | Self::Drop => Ok(()),
        }
    }
}
