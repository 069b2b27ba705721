//! What is in front of a tenant's IP header, in registers: the rules that tell it, and the numbers that later ones know it by.
//!
//! ```text
//!  IPv6 of a vNIC           framing with source ---------------------------> flow: destination, ports, queue pair
//!  IPv4 out of the tunnel   framing ---------------------------------------> flow: addresses, ports, queue pair
//!  IPv6 out of the tunnel   framing --> source, of queue pairs with class --> flow: destination, ports, queue pair
//! ```
//! An IPv6 address is four words of a match, of which mlx5's hardware steering has nine, and on ConnectX-6 Dx six that may be
//! addresses. So the source is matched before the flow's own rule, and never beside a destination: what is left has room for the
//! UDP source port and the queue pair on each of these NICs (`rules::mlx5`).

use std::net::{IpAddr, Ipv6Addr};

use wire::MacAddr;
use wire::roce::RoceClass;

use super::find::ResolvedFlow;
use super::numbers::RegisterNumbers;
use super::patterns::{Family, RoceMatch, TAG_FRAMING, frame, from, in_vni, tagged, to_udp};
use super::{group, rule};
use crate::flow_key::FlowKey;
use rules::{Action, FlowRule, Item, ItemKind};

/// What is in front of a tenant's IP header, and of IPv6 the source address. A group of its own looks at it, and later rules
/// at the number that it puts into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Framing {
    /// DPDK port that stands for where packets come from.
    pub from: u16,
    /// The tunnel that they come out of: the sender's VTEP, and the VNI.
    pub tunnel: Option<(IpAddr, u32)>,
    /// Destination MAC of the tenant's frame.
    pub destination: MacAddr,
    /// VLAN of the tenant's frame.
    pub vlan: Option<u16>,
    /// The tenant's packets are IPv6.
    pub ipv6: bool,
    /// Source address of IPv6. `None` for IPv4, and for the rules out of a tunnel before the one that looks at it.
    pub source: Option<Ipv6Addr>,
}

impl Framing {
    /// The framing of a flow that has one: of IPv6, and all that comes out of a tunnel, where the outer header alone leads on
    /// from the root.
    pub(super) fn of(key: &FlowKey, found: &ResolvedFlow) -> Option<Self> {
        let tunnel = found.tunnel.as_ref().map(|tunnel| (tunnel.ends.0, tunnel.vni));
        let source = match key.addresses()?.source {
            IpAddr::V6(source) => Some(source),
            IpAddr::V4(_) => None,
        };
        let (destination, vlan) = (found.destination, key.vlan());
        let framing = Self { from: found.from, tunnel, destination, vlan, ipv6: source.is_some(), source };
        (source.is_some() || tunnel.is_some()).then_some(framing)
    }

    /// The framing without the source, where there is no room for both in one match: the tunnel takes it.
    pub(super) fn without_source(&self) -> Option<Self> {
        (self.tunnel.is_some() && self.source.is_some()).then_some(Self { source: None, ..*self })
    }

    /// Everything that has a number because a flow has this framing.
    fn numbered(&self) -> impl Iterator<Item = Self> {
        self.without_source().into_iter().chain([*self])
    }

    /// The beginning of patterns of packets whose framing has this number, up to the tenant's IP header.
    fn begin(&self, number: u32, pattern: &mut Vec<Item>) {
        pattern.push(tagged(TAG_FRAMING, number));
        if let Some((sender, _)) = self.tunnel {
            let outer = [ItemKind::Eth, Family::of(sender).kind(), ItemKind::Udp, ItemKind::Vxlan];
            pattern.extend(outer.map(Item::any));
        }
        pattern.push(Item::any(ItemKind::Eth));
        pattern.extend(self.vlan.map(|_| Item::any(ItemKind::Vlan)));
    }
}

/// The numbers of the framings that chains hold.
#[derive(Default)]
pub(super) struct FramingNumbers(RegisterNumbers<Framing>);

impl FramingNumbers {
    /// A framing with its numbers.
    pub fn of(&mut self, framing: Framing) -> NumberedFraming {
        let before = framing.without_source().map(|before| (before, self.0.of(before)));
        NumberedFraming { framing, number: self.0.of(framing), before }
    }

    /// Keeps the numbers of a framing: rules with them are there.
    pub fn hold(&mut self, framing: &Framing) {
        framing.numbered().for_each(|framing| self.0.hold(&framing));
    }

    /// The opposite of [`hold`](Self::hold).
    pub fn release(&mut self, framing: &Framing) {
        framing.numbered().for_each(|framing| self.0.release(&framing));
    }

    /// Forgets the numbers of a framing that nobody holds.
    pub fn forget(&mut self, framing: &Framing) {
        framing.numbered().for_each(|framing| self.0.forget(&framing));
    }

    /// How many have a number.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// A framing, and what registers say of it.
pub(super) struct NumberedFraming {
    framing: Framing,
    number: u32,
    /// The framing without the source and its number, where the source has a rule of its own.
    before: Option<(Framing, u32)>,
}

impl NumberedFraming {
    /// True where the source has a rule of its own.
    pub fn is_split(&self) -> bool {
        self.before.is_some()
    }

    /// The beginning of the flow's own patterns, up to the tenant's IP header; of IPv6, its source is known by then.
    pub fn begin(&self, pattern: &mut Vec<Item>) {
        self.framing.begin(self.number, pattern);
    }

    /// The rule that writes the framing into the register, on the way to the NFT. The root lets in every VTEP: here the
    /// sender counts.
    pub fn rule(&self, nft: u32) -> FlowRule {
        let (framing, number) = self.before.unwrap_or((self.framing, self.number));
        let mut pattern = vec![from(framing.from)];
        if let Some((sender, vni)) = framing.tunnel {
            let outer = [Item::any(ItemKind::Eth), Family::sent_by(sender), Item::any(ItemKind::Udp)];
            pattern.extend(outer);
            pattern.push(in_vni(vni));
        }
        let family = if framing.ipv6 { Family::V6 } else { Family::V4 };
        pattern.extend(frame(framing.destination, framing.vlan, family));
        if framing.ipv6 {
            pattern.push(Family::unfragmented(framing.source));
        }
        let actions = vec![Action::set_tag(TAG_FRAMING, number), Action::Jump { group: nft }];
        rule(group::FRAMING, 1, pattern, actions)
    }

    /// The rule that adds the source in the NFT, where it has one of its own: for all flows but queue pairs', which have
    /// [`reliable_source_rule`](Self::reliable_source_rule) in front of it.
    pub fn source_rule(&self, nft: u32) -> Option<FlowRule> {
        self.with_source(nft, 2, &[], group::DESTINATION)
    }

    /// The rule that adds the source for packets of a class of queue pairs, on the way to the RCFT.
    pub fn reliable_source_rule(
        &self,
        nft: u32,
        rdma_port: u16,
        class: RoceClass,
        rcft: u32,
    ) -> Option<FlowRule> {
        let class = RoceMatch::Class(class).item()?;
        self.with_source(nft, 1, &[to_udp(rdma_port), class], rcft)
    }

    fn with_source(&self, group: u32, priority: u32, more: &[Item], next: u32) -> Option<FlowRule> {
        let (before, known) = self.before?;
        let mut pattern = Vec::new();
        before.begin(known, &mut pattern);
        pattern.push(Family::sent_by(self.framing.source?.into()));
        pattern.extend(more);
        let actions = vec![Action::set_tag(TAG_FRAMING, self.number), Action::Jump { group: next }];
        Some(rule(group, priority, pattern, actions))
    }
}
