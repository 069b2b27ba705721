//! ICMP errors without a rule of their own: judged by the packet that they quote, and by who sends them to whom.

use wire::{Flags, protocol, quoted};

use super::{End, Judgement, Side};
use crate::connections::{ConnectionKey, Found, Phase, Record};
use crate::direction::Direction;
use crate::flow_key::{FlowKey, FlowPorts};
use crate::reverse_path::{ErrorSender, may_report};
use crate::stage::key::{CLASS_OTHER, CLASS_RC};

impl End<'_> {
    /// Judges an ICMP error.
    #[cold]
    #[inline(never)]
    pub(super) fn judge_error(&self) -> Judgement {
        let passes = Judgement { lasts: false, ..Judgement::PASSES };
        if self.quotes_a_connection() { passes } else { self.by_rules_alone(false) }
    }

    /// True for an ICMP error about a packet of a connection (RFC 5508 section 4.2 asks the same of a NAT), to who sent that
    /// packet and from where such an error may come. The packet that it quotes went the other way.
    fn quotes_a_connection(&self) -> bool {
        let Some(headers) = quoted::parse(&self.meta.headers, self.head) else { return false };
        if !headers.is(Flags::L4) {
            return false;
        }
        let is_rdma = headers.proto == protocol::UDP && headers.dport == self.cx.snapshot.settings.rdma_port;
        // Of RoCEv2 a quotation may end before it says which connection it is of: of either.
        let classes: &[_] = if is_rdma { &[CLASS_RC, CLASS_OTHER] } else { &[0] };
        classes.iter().any(|&class| {
            let ports = FlowPorts { source: headers.sport, destination: headers.dport };
            self.is_about(&FlowKey::build(self.head, &headers, self.meta.key.scope(), ports, class, true))
        })
    }

    /// True for an error about a flow, by its key, that has a connection.
    fn is_about(&self, key: &FlowKey) -> bool {
        let is_to_its_sender = self.meta.key.addresses().zip(key.addresses());
        let is_to_its_sender =
            is_to_its_sender.is_some_and(|(error, quoted)| error.destination == quoted.source);
        let Side { vnic, out } = self.side;
        let known = ConnectionKey::of(vnic, key, !out).and_then(|key| self.connections.find(&key));
        let Some(Found { record: Record { state, epoch }, .. }) = known.filter(|_| is_to_its_sender) else {
            return false;
        };
        // One that no packet of its own was held against the newest rules for is held against them here.
        let stands = epoch == self.cx.snapshot.security.epoch
            || self.allows_flow(key, !out, state.is_out(), Some(state.note()));
        stands && state.phase() != Phase::Reset && (out || self.comes_from_the_way(key))
    }

    /// True when the sender of this ICMP error is the peer of the flow that it quotes, or may be a router on the way there.
    fn comes_from_the_way(&self, quoted: &FlowKey) -> bool {
        let ends = self.meta.key.addresses().zip(quoted.addresses());
        let mac = self.meta.headers.ethernet(self.head).map(|header| header.src);
        let (Some(vpc), Some((error, quoted)), Some(mac)) = (self.cx.snapshot.vpc(self.vpc), ends, mac)
        else {
            return false;
        };
        let sender = match self.meta.direction() {
            Direction::Out => ErrorSender::Vnic(self.meta.vnic),
            Direction::In => ErrorSender::Remote(self.meta.vtep, mac),
        };
        may_report(self.cx.snapshot, vpc, sender, error.source, quoted.destination)
    }
}
