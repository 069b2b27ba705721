//! What the action `modify_field` writes: a field of the outermost headers, or a register.
//!
//! All that rules write goes through this one action, because mlx5 takes no other under hardware steering; `set_tag`,
//! `dec_ttl` and `set_mac_src` are of its synchronous engine only (DPDK, "NVIDIA MLX5 Ethernet Driver", limitations).

use std::fmt;

use wire::{Ecn, MacAddr};

/// A write of a constant. The value of a packet's field is in network byte order, a register's in that of the host, as
/// DPDK has them in the items of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Modify {
    /// Set the two ECN bits of the outermost IP header.
    Ecn {
        /// Of IPv6, not of IPv4.
        ipv6: bool,
        /// The codepoint to set (RFC 3168 section 5).
        ecn: Ecn,
    },
    /// Set all 32 bits of a tag register.
    Tag {
        /// Number of the register.
        index: u8,
        /// What the register has from then on.
        data: u32,
    },
    /// Decrement TTL or hop limit: 255 is added, modulo 256.
    Ttl {
        /// The hop limit of IPv6, not the TTL of IPv4.
        ipv6: bool,
    },
    /// Set the source MAC.
    MacSrc(MacAddr),
    /// Set the destination MAC.
    MacDst(MacAddr),
}

/// Whether a value replaces the field or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModifyOp {
    /// `RTE_FLOW_MODIFY_SET`.
    Set,
    /// `RTE_FLOW_MODIFY_ADD`.
    Add,
}

/// What is written to, as DPDK's `rte_flow_field_id` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `RTE_FLOW_FIELD_MAC_DST`.
    MacDst,
    /// `RTE_FLOW_FIELD_MAC_SRC`.
    MacSrc,
    /// `RTE_FLOW_FIELD_IPV4_ECN`.
    Ipv4Ecn,
    /// `RTE_FLOW_FIELD_IPV6_ECN`.
    Ipv6Ecn,
    /// `RTE_FLOW_FIELD_IPV4_TTL`.
    Ipv4Ttl,
    /// `RTE_FLOW_FIELD_IPV6_HOPLIMIT`.
    Ipv6HopLimit,
    /// `RTE_FLOW_FIELD_TAG`.
    Tag,
}

impl Target {
    /// Every field that a rule may write.
    pub const ALL: [Self; 7] = [
        Self::MacDst,
        Self::MacSrc,
        Self::Ipv4Ecn,
        Self::Ipv6Ecn,
        Self::Ipv4Ttl,
        Self::Ipv6HopLimit,
        Self::Tag,
    ];

    /// The name in testpmd.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MacDst => "mac_dst",
            Self::MacSrc => "mac_src",
            Self::Ipv4Ecn => "ipv4_ecn",
            Self::Ipv6Ecn => "ipv6_ecn",
            Self::Ipv4Ttl => "ipv4_ttl",
            Self::Ipv6HopLimit => "ipv6_hoplimit",
            Self::Tag => "tag",
        }
    }

    /// Bits that are written: the whole field.
    pub const fn width(self) -> u32 {
        match self {
            Self::MacDst | Self::MacSrc => 48,
            Self::Ipv4Ecn | Self::Ipv6Ecn => 2,
            Self::Ipv4Ttl | Self::Ipv6HopLimit => 8,
            Self::Tag => 32,
        }
    }

    const fn bytes(self) -> usize {
        self.width().div_ceil(8) as usize
    }
}

impl Modify {
    /// What is written to.
    pub const fn target(&self) -> Target {
        match self {
            Self::Ecn { ipv6: false, .. } => Target::Ipv4Ecn,
            Self::Ecn { ipv6: true, .. } => Target::Ipv6Ecn,
            Self::Tag { .. } => Target::Tag,
            Self::Ttl { ipv6: false } => Target::Ipv4Ttl,
            Self::Ttl { ipv6: true } => Target::Ipv6HopLimit,
            Self::MacSrc(_) => Target::MacSrc,
            Self::MacDst(_) => Target::MacDst,
        }
    }

    /// How the value gets there.
    pub const fn operation(&self) -> ModifyOp {
        if matches!(self, Self::Ttl { .. }) { ModifyOp::Add } else { ModifyOp::Set }
    }

    /// The number of the register, 0 for a field of the packet.
    pub const fn index(&self) -> u8 {
        if let Self::Tag { index, .. } = self { *index } else { 0 }
    }

    /// The value as DPDK takes it: [`Target::width`] bits from the first byte on, zeroes behind.
    pub fn value(&self) -> [u8; 16] {
        let mut value = [0; 16];
        match self {
            Self::Ecn { ecn, .. } => value[0] = *ecn as u8,
            Self::Tag { data, .. } => value[..4].copy_from_slice(&data.to_ne_bytes()),
            Self::Ttl { .. } => value[0] = u8::MAX,
            Self::MacSrc(mac) | Self::MacDst(mac) => value[..6].copy_from_slice(&mac.0),
        }
        value
    }

    /// The write of these parts; the opposite of the functions above. `None` when no such write is made here.
    pub fn of(operation: ModifyOp, target: Target, index: u8, value: [u8; 16]) -> Option<Self> {
        let [a, b, c, d, e, f, ..] = value;
        let mac = MacAddr([a, b, c, d, e, f]);
        let read = match target {
            Target::MacDst => Self::MacDst(mac),
            Target::MacSrc => Self::MacSrc(mac),
            Target::Ipv4Ecn | Target::Ipv6Ecn => {
                Self::Ecn { ipv6: target == Target::Ipv6Ecn, ecn: Ecn::from_tos(a) }
            }
            Target::Ipv4Ttl | Target::Ipv6HopLimit => Self::Ttl { ipv6: target == Target::Ipv6HopLimit },
            Target::Tag => Self::Tag { index, data: u32::from_ne_bytes([a, b, c, d]) },
        };
        let same = (read.operation(), read.index(), read.value()) == (operation, index, value);
        same.then_some(read)
    }
}

/// As in testpmd's `flow create`, behind the action's name. The register is a `dst_level`, as DPDK before 23.11 has it and
/// later releases still read it.
impl fmt::Display for Modify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.target();
        let operation = match self.operation() {
            ModifyOp::Set => "set",
            ModifyOp::Add => "add",
        };
        write!(f, "op {operation} dst_type {}", target.name())?;
        if target == Target::Tag {
            write!(f, " dst_level {}", self.index())?;
        }
        write!(f, " src_type value src_value ")?;
        self.value()[..target.bytes()].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " width {}", target.width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Modify> {
        let mac = MacAddr([2, 1, 2, 3, 4, 5]);
        let mut all =
            vec![Modify::MacSrc(mac), Modify::MacDst(mac), Modify::Tag { index: 3, data: 0x8100_0001 }];
        for ipv6 in [false, true] {
            all.push(Modify::Ttl { ipv6 });
            all.extend(Ecn::ALL.map(|ecn| Modify::Ecn { ipv6, ecn }));
        }
        all
    }

    #[test]
    fn every_write_is_made_of_its_parts() {
        for write in all() {
            let again = Modify::of(write.operation(), write.target(), write.index(), write.value());
            assert_eq!(again, Some(write));
        }
        let targets: Vec<Target> = Target::ALL
            .into_iter()
            .filter(|target| all().iter().any(|write| write.target() == *target))
            .collect();
        assert_eq!(targets, Target::ALL);
    }

    #[test]
    fn other_writes_are_told_apart() {
        let ecn = |operation, index, value| Modify::of(operation, Target::Ipv4Ecn, index, value);
        let mut value = [0; 16];
        value[0] = 3;
        assert!(ecn(ModifyOp::Set, 0, value).is_some());
        assert_eq!(ecn(ModifyOp::Add, 0, value), None);
        assert_eq!(ecn(ModifyOp::Set, 1, value), None, "no register");
        value[0] = 4;
        assert_eq!(ecn(ModifyOp::Set, 0, value), None, "more than two bits");
        value = [0; 16];
        value[15] = 1;
        assert_eq!(ecn(ModifyOp::Set, 0, value), None, "behind the field");
        assert_eq!(Modify::of(ModifyOp::Add, Target::Ipv4Ttl, 0, [1; 16]), None, "other sums than -1");
    }
}
