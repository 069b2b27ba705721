//! Actions: what becomes of a packet that a rule matches.

use std::fmt;

use wire::Ecn;

use crate::encap::Encap;
use crate::modify::Modify;

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
        /// Seconds without a packet, at most 2^24 - 1.
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
        /// Id of the meter at the back end.
        mtr_id: u32,
    },
    /// Write a field of the packet or a register.
    ModifyField(Modify),
    /// Hand a number to whoever receives the packet in software.
    Mark {
        /// The number that receive descriptors carry.
        id: u32,
    },
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
        /// Index of the receive queue at the port.
        index: u16,
    },
    /// Drop the packet in hardware: nothing counts it but a `Count` beside this action.
    Drop,
}

impl Action {
    /// Writes a tag register.
    pub const fn set_tag(index: u8, data: u32) -> Self {
        Self::ModifyField(Modify::Tag { index, data })
    }

    /// Sets the ECN bits of the outermost IP header.
    pub const fn set_ecn(ipv6: bool, ecn: Ecn) -> Self {
        Self::ModifyField(Modify::Ecn { ipv6, ecn })
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
            Self::ModifyField(_) => "modify_field",
            Self::Mark { .. } => "mark",
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
            Self::ModifyField(modify) => write!(f, " {modify}"),
            Self::Mark { id } | Self::PortId { id } => write!(f, " id {id}"),
            Self::RepresentedPort { port } => write!(f, " ethdev_port_id {port}"),
            Self::PortRepresentor { port } => write!(f, " port_id {port}"),
            Self::Queue { index } => write!(f, " index {index}"),
            Self::VxlanDecap | Self::Count | Self::Drop => Ok(()),
        }
    }
}
