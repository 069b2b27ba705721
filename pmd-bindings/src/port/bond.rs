//! Bonds: one port made of several, by DPDK's bonding driver ("Link Bonding Poll Mode Driver Library" in its Programmer's Guide).
//!
//! The members are the driver's from then on: it configures, starts and stops them. With LACP it speaks to the other end of each
//! within bursts, so both directions of the bond have to be called at least every 100 ms, if only to send nothing
//! ([`TxQueue::tend`](crate::TxQueue::tend)).

use dpdk_sys as sys;

use super::attach::{Claim, HOTPLUG, checked_name, in_use, limit};
use super::running::link_of;
use super::{Port, PortId, StartedPort};
use crate::eal::Eal;
use crate::error::{Errno, PortError, Words};
use crate::log;

/// How the members of a bond share its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondMode {
    /// One of them sends and receives; the next one does when its link goes (mode 1).
    ActiveBackup,
    /// A flow is sent by one of them, chosen by a hash (mode 2). The other end is to take them for one link without being told.
    BalanceXor,
    /// The same among those that the other end agrees to: LACP (IEEE 802.1AX; mode 4).
    Lacp,
}

impl BondMode {
    const fn number(self) -> u8 {
        match self {
            Self::ActiveBackup => 1,
            Self::BalanceXor => 2,
            Self::Lacp => 4,
        }
    }
}

/// By what a member is chosen for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondHash {
    /// The MAC addresses.
    Layer2,
    /// The MAC and IP addresses.
    Layer23,
    /// The IP addresses and the ports of TCP and UDP: of VxLAN, the flow inside.
    Layer34,
}

impl BondHash {
    const fn number(self) -> u8 {
        match self {
            Self::Layer2 => 0,
            Self::Layer23 => 1,
            Self::Layer34 => 2,
        }
    }
}

/// What LACP says of one end of a link: the octet Actor_State or Partner_State (IEEE 802.1AX-2020 section 6.4.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LacpState(pub u8);

impl LacpState {
    const NAMES: [&'static str; 8] = [
        "active",
        "short-timeout",
        "aggregatable",
        "in-sync",
        "collecting",
        "distributing",
        "defaulted",
        "expired",
    ];

    /// The names of the bits that are set, lowest first.
    pub fn names(self) -> Vec<&'static str> {
        (0..8).filter(|bit| self.0 & 1 << bit != 0).map(|bit| Self::NAMES[bit]).collect()
    }
}

/// One port of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondMember {
    /// Its device.
    pub name: String,
    /// Whether its link is up.
    pub up: bool,
    /// With LACP: this end, and the other one as it says of itself.
    pub lacp: Option<[LacpState; 2]>,
}

impl Port {
    /// Makes one port of several, none of which is started. `name` begins with `net_bonding`.
    ///
    /// # Errors
    /// [`PortError::LimitReached`], [`PortError::Name`], or [`PortError::Operation`] with the driver's words; the members are
    /// closed then.
    pub fn bond(
        eal: &Eal,
        name: &str,
        mode: BondMode,
        hash: BondHash,
        members: Vec<Self>,
    ) -> Result<Self, PortError> {
        let c_name = checked_name(name)?;
        let hotplug = HOTPLUG.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if in_use() >= limit() {
            return Err(PortError::LimitReached { name: name.into(), limit: limit() });
        }
        let refused =
            |operation, errno, words| PortError::Operation { name: name.into(), operation, errno, words };
        // SAFETY: asks for a port that exists.
        let node = members.first().map_or(0, |first| unsafe { sys::rte_eth_dev_socket_id(first.id().get()) });
        let node = u8::try_from(node).unwrap_or(0);
        let (ret, words) = log::captured(|| {
            // SAFETY: a C string; the EAL runs (`eal`); the lock keeps other hotplug calls away.
            unsafe { sys::dpdk_sys_bond_create(c_name.as_ptr(), mode.number(), node) }
        });
        let id = Errno::check(ret).map_err(|errno| refused("make the bond", errno, words))?;
        let mut claim = Claim::take(eal, PortId::new(id as u16), name)?;
        drop(hotplug);
        let bond = claim.id.get();
        if mode != BondMode::ActiveBackup {
            // SAFETY: the bond of above.
            let (ret, words) = log::captured(|| unsafe { sys::dpdk_sys_bond_hash(bond, hash.number()) });
            Errno::check(ret).map_err(|errno| refused("choose the hash", errno, words))?;
        }
        for member in members {
            // SAFETY: two ports that we hold, the second one stopped.
            let (ret, words) = log::captured(|| unsafe { sys::dpdk_sys_bond_add(bond, member.id().get()) });
            let added = Errno::check(ret).map_err(|errno| {
                let words = Words([vec![format!("member {}", member.name())], words.0].concat());
                refused("add a member", errno, words)
            });
            // Closed after the bond, whatever comes of this.
            claim.members.push(member);
            added?;
        }
        Ok(Self { claim })
    }
}

impl StartedPort {
    /// The members of a bond, as they are now; none of any other port.
    pub fn members(&self) -> Vec<BondMember> {
        let bond = self.id().get();
        self.running().members(|member| {
            let (mut actor, mut partner) = (0, 0);
            let id = member.id().get();
            // SAFETY: two ports that we hold, and two valid places. The driver checks that it speaks LACP.
            let ret = unsafe { sys::dpdk_sys_bond_lacp(bond, id, &raw mut actor, &raw mut partner) };
            BondMember {
                name: member.name().to_owned(),
                up: link_of(id).is_ok_and(|link| link.up),
                lacp: (ret == 0).then_some([LacpState(actor), LacpState(partner)]),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_names_of_the_standard() {
        assert_eq!(
            LacpState(0x3d).names(),
            ["active", "aggregatable", "in-sync", "collecting", "distributing"]
        );
        assert_eq!(LacpState(0xc2).names(), ["short-timeout", "defaulted", "expired"]);
        assert!(LacpState::default().names().is_empty());
    }
}
