//! What the connection manager's messages say of connections (IBTA vol. 1 chapter 12), by vNIC: which queue pairs
//! belong together, and which one a vNIC has given up.
//!
//! Messages are claims of guests. What a vNIC sends can free its own queue pairs and nobody else's; what it receives
//! frees nothing. A connection counts as known once both ends have named their queue pairs: the vNIC itself must have
//! spoken, so that strangers fill only the bounded memory of open requests. Takes nothing out itself.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use wire::Qpn;
use wire::cm::CmMessage;

/// Requests, and connections, that are remembered of one vNIC; the newest.
const REMEMBERED: usize = 1024;
/// The same of all vNICs together, beside a few for each.
const OF_ALL: usize = 1 << 18;
const FEW: usize = 16;

/// A station and the communication id that it, or the vNIC toward it, chose; or the number of a queue pair of it.
type Id = (IpAddr, u32);

/// A connection that both ends have spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The peer's VIP.
    pub peer: IpAddr,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The vNIC's queue pair.
    pub own_qpn: Qpn,
    /// The vNIC's communication id.
    own_id: u32,
}

/// What is known of all vNICs.
#[derive(Debug, Default)]
pub struct Connections {
    vnics: HashMap<u32, VnicConnections>,
    /// What the last message ended, as far as it was known.
    ended: Option<Connection>,
}

/// What is known of one vNIC.
#[derive(Debug, Default)]
struct VnicConnections {
    /// Requests that it received, by the peer's id: the peer's queue pair.
    received: Recent<Qpn>,
    /// Replies of its own to requests that were not heard of yet, by the peer's id: its id and queue pair. What it
    /// sends and what it receives come to control by different ways.
    replied: Recent<(u32, Qpn)>,
    /// Requests that it sent, by its own id: its queue pair.
    sent: Recent<Qpn>,
    /// Connections, by the peer's id.
    known: Recent<Connection>,
    /// By the number of the peer's queue pair, the peer's id of the newest connection that has it, which may have ended since.
    holders: Recent<u32>,
}

impl Connections {
    /// Takes in a message between a vNIC and a peer. The peer's queue pair, when it says that the vNIC has given up
    /// its connection to that.
    pub fn observe(&mut self, vnic: u32, peer: IpAddr, sends: bool, message: &CmMessage) -> Option<Qpn> {
        if let (true, CmMessage::Dreq { local_comm_id, remote_comm_id, remote_qpn }) = (sends, message) {
            // The owner says so itself, and it names the queue pair: nothing needs to be known of the connection. But the peer may
            // have given the number to another one since, when this is an old message that is sent again.
            let Some(table) = self.vnics.get_mut(&vnic) else { return Some(*remote_qpn) };
            self.ended = table.forget((peer, *remote_comm_id), *local_comm_id);
            return table.unless_held(peer, *remote_qpn);
        }
        if !matches!(message, CmMessage::Req(_) | CmMessage::Rep { .. } | CmMessage::Drep { .. }) {
            return None;
        }
        let limit = (OF_ALL / self.vnics.len().max(1)).clamp(FEW, REMEMBERED);
        let table = self.vnics.entry(vnic).or_default();
        match (sends, *message) {
            (true, CmMessage::Req(req)) if req.transport.is_reliable_connection() => {
                table.sent.put((peer, req.local_comm_id), req.local_qpn, limit);
            }
            (false, CmMessage::Req(req)) if req.transport.is_reliable_connection() => {
                let (id, peer_qpn) = ((peer, req.local_comm_id), req.local_qpn);
                match table.replied.take(&id) {
                    Some((own_id, own_qpn)) => {
                        table.know(id, Connection { peer, peer_qpn, own_qpn, own_id }, limit);
                    }
                    None => table.received.put(id, peer_qpn, limit),
                }
            }
            (true, CmMessage::Rep { local_comm_id: own_id, remote_comm_id, local_qpn: own_qpn, .. }) => {
                let id = (peer, remote_comm_id);
                match table.received.take(&id) {
                    Some(peer_qpn) => {
                        table.know(id, Connection { peer, peer_qpn, own_qpn, own_id }, limit);
                    }
                    None => table.replied.put(id, (own_id, own_qpn), limit),
                }
            }
            (false, CmMessage::Rep { local_comm_id, remote_comm_id, local_qpn, .. }) => {
                if let Some(own_qpn) = table.sent.take(&(peer, remote_comm_id)) {
                    let connection =
                        Connection { peer, peer_qpn: local_qpn, own_qpn, own_id: remote_comm_id };
                    table.know((peer, local_comm_id), connection, limit);
                }
            }
            (true, CmMessage::Drep { local_comm_id, remote_comm_id }) => {
                self.ended = table.forget((peer, remote_comm_id), local_comm_id);
                return self.ended.and_then(|connection| table.unless_held(peer, connection.peer_qpn));
            }
            _ => {}
        }
        None
    }

    /// The vNIC's own queue pair of the connection that the last message ended; once.
    pub fn ended(&mut self) -> Option<Qpn> {
        self.ended.take().map(|connection| connection.own_qpn)
    }

    /// The connections of a vNIC.
    pub fn of(&self, vnic: u32) -> impl Iterator<Item = &Connection> {
        self.vnics.get(&vnic).into_iter().flat_map(|table| table.known.values())
    }

    /// Forgets a vNIC.
    pub fn forget(&mut self, vnic: u32) {
        self.vnics.remove(&vnic);
    }
}

impl VnicConnections {
    fn know(&mut self, id: Id, connection: Connection, limit: usize) {
        let (peer, peers_id) = id;
        self.holders.put((peer, connection.peer_qpn.get()), peers_id, limit);
        self.known.put(id, connection, limit);
    }

    /// The peer's queue pair, unless it is that of a connection that has not ended.
    fn unless_held(&self, peer: IpAddr, qpn: Qpn) -> Option<Qpn> {
        let holder = self.holders.get(&(peer, qpn.get())).and_then(|&id| self.known.get(&(peer, id)));
        holder.is_none_or(|connection| connection.peer_qpn != qpn).then_some(qpn)
    }

    /// Ends a connection if both ids are its own.
    fn forget(&mut self, id: Id, own_id: u32) -> Option<Connection> {
        self.known.get(&id).filter(|connection| connection.own_id == own_id)?;
        self.known.take(&id)
    }
}

/// A bounded map; the oldest entry gives way.
#[derive(Debug)]
struct Recent<V> {
    entries: HashMap<Id, (u64, V)>,
    order: BTreeMap<u64, Id>,
    next: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<V> Recent<V> {
    fn put(&mut self, id: Id, value: V, limit: usize) {
        self.next += 1;
        if let Some((number, _)) = self.entries.insert(id, (self.next, value)) {
            self.order.remove(&number);
        }
        self.order.insert(self.next, id);
        while self.order.len() > limit {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.entries.remove(&oldest);
            }
        }
    }

    fn get(&self, id: &Id) -> Option<&V> {
        self.entries.get(id).map(|(_, value)| value)
    }

    fn take(&mut self, id: &Id) -> Option<V> {
        let (number, value) = self.entries.remove(id)?;
        self.order.remove(&number);
        Some(value)
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Psn;
    use wire::cm::{Answered, Gid, RejectReason, Req, Transport};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));

    fn req(id: u32, qpn: u32, transport: Transport) -> CmMessage {
        CmMessage::Req(Req {
            local_comm_id: id,
            service_id: 1,
            local_ca_guid: 1,
            local_qpn: Qpn::truncated(qpn),
            transport,
            starting_psn: Psn::truncated(0),
            pkey: 0xffff,
            path_mtu: Some(1024),
            local_gid: Gid([0; 16]),
            remote_gid: Gid([0; 16]),
        })
    }

    fn rep(local_comm_id: u32, remote_comm_id: u32, qpn: u32) -> CmMessage {
        let (local_qpn, starting_psn) = (Qpn::truncated(qpn), Psn::truncated(0));
        CmMessage::Rep { local_comm_id, remote_comm_id, local_qpn, starting_psn, local_ca_guid: 1 }
    }

    fn drep(local_comm_id: u32, remote_comm_id: u32) -> CmMessage {
        CmMessage::Drep { local_comm_id, remote_comm_id }
    }

    fn dreq(local_comm_id: u32, remote_comm_id: u32, qpn: u32) -> CmMessage {
        CmMessage::Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::truncated(qpn) }
    }

    /// vNIC 7 answered a request: its queue pair 0x21 (id 5) and the peer's 0x11 (id 9).
    fn answered() -> Connections {
        let mut all = Connections::default();
        assert_eq!(all.observe(7, PEER, false, &req(9, 0x11, Transport::Rc)), None);
        assert_eq!(all.observe(7, PEER, true, &rep(5, 9, 0x21)), None);
        all
    }

    #[test]
    fn a_drep_ends_the_connection_of_both_ids() {
        let mut all = answered();
        assert_eq!(all.of(7).count(), 1);
        assert_eq!(all.observe(7, PEER, false, &dreq(9, 5, 0x21)), None, "a request alone ends nothing");
        assert_eq!(all.ended(), None);
        assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), Some(Qpn::truncated(0x11)));
        assert_eq!((all.ended(), all.ended()), (Some(Qpn::truncated(0x21)), None), "its own one, once");
        assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), None, "once");
        assert_eq!(all.of(7).count(), 0);
    }

    #[test]
    fn a_reply_may_be_heard_before_its_request() {
        let mut all = Connections::default();
        all.observe(7, PEER, true, &rep(5, 9, 0x21));
        assert_eq!(all.of(7).count(), 0);
        all.observe(7, PEER, false, &req(9, 0x11, Transport::Rc));
        assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), Some(Qpn::truncated(0x11)));
    }

    #[test]
    fn so_does_that_of_the_active_side() {
        let mut all = Connections::default();
        all.observe(7, PEER, true, &req(5, 0x21, Transport::Xrc));
        all.observe(7, PEER, false, &rep(9, 5, 0x11));
        let known: Vec<_> = all.of(7).map(|c| (c.own_qpn.get(), c.peer_qpn.get())).collect();
        assert_eq!(known, [(0x21, 0x11)]);
        assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), Some(Qpn::truncated(0x11)));
    }

    #[test]
    fn a_dreq_of_the_owner_frees_what_it_names() {
        let mut all = answered();
        assert_eq!(all.observe(7, PEER, true, &dreq(5, 9, 0x11)), Some(Qpn::truncated(0x11)));
        assert_eq!(all.of(7).count(), 0);
        // Connections from before a restart of the switch, too.
        assert_eq!(all.observe(8, PEER, true, &dreq(1, 2, 0x33)), Some(Qpn::truncated(0x33)));
    }

    /// Its answer was lost, and the peer has given the number to another connection meanwhile.
    #[test]
    fn rcft_a_dreq_that_is_sent_again_frees_no_queue_pair_of_another_connection() {
        let mut all = answered();
        assert_eq!(all.observe(7, PEER, true, &dreq(5, 9, 0x11)), Some(Qpn::truncated(0x11)));
        all.observe(7, PEER, false, &req(10, 0x11, Transport::Rc));
        all.observe(7, PEER, true, &rep(6, 10, 0x22));
        assert_eq!(all.observe(7, PEER, true, &dreq(5, 9, 0x11)), None);
        assert_eq!((all.ended(), all.of(7).count()), (None, 1));
        // A station at another address has a number of its own.
        assert_eq!(all.observe(7, OTHER, true, &dreq(5, 9, 0x11)), Some(Qpn::truncated(0x11)));
        // Its own end.
        assert_eq!(all.observe(7, PEER, true, &dreq(6, 10, 0x11)), Some(Qpn::truncated(0x11)));
        assert_eq!((all.ended(), all.of(7).count()), (Some(Qpn::truncated(0x22)), 0));
    }

    /// The end of the first one was not heard of when the peer used its number again.
    #[test]
    fn rcft_the_end_of_a_connection_frees_no_queue_pair_of_a_newer_one() {
        for end in [dreq(5, 9, 0x11), drep(5, 9)] {
            let mut all = answered();
            all.observe(7, PEER, false, &req(10, 0x11, Transport::Rc));
            all.observe(7, PEER, true, &rep(6, 10, 0x22));
            assert_eq!(all.observe(7, PEER, true, &end), None);
            assert_eq!(
                (all.ended(), all.of(7).count()),
                (Some(Qpn::truncated(0x21)), 1),
                "the old one has ended"
            );
            assert_eq!(all.observe(7, PEER, true, &drep(6, 10)), Some(Qpn::truncated(0x11)));
        }
    }

    #[test]
    fn forged_messages_free_nothing() {
        let rej = CmMessage::Rej {
            local_comm_id: 9,
            remote_comm_id: 5,
            answers: Answered::Other,
            reason: RejectReason::STALE_CONNECTION,
        };
        let rtu = CmMessage::Rtu { local_comm_id: 9, remote_comm_id: 5 };
        for (case, vnic, peer, sends, message) in [
            ("a DREQ that is received", 7, PEER, false, dreq(9, 5, 0x21)),
            ("a DREP that is received", 7, PEER, false, drep(9, 5)),
            ("a DREP that is received, ids swapped", 7, PEER, false, drep(5, 9)),
            ("a REJ that is received", 7, PEER, false, rej),
            ("a REJ that is sent", 7, PEER, true, rej),
            ("an RTU", 7, PEER, false, rtu),
            ("a DREP to another VIP", 7, OTHER, true, drep(5, 9)),
            ("a DREP of another vNIC", 8, PEER, true, drep(5, 9)),
            ("a DREP with a wrong id of its own", 7, PEER, true, drep(6, 9)),
            ("a DREP with a wrong id of the peer", 7, PEER, true, drep(5, 8)),
            ("a REP that answers nothing", 7, PEER, false, rep(9, 77, 0x99)),
            ("a REP of another station", 7, OTHER, false, rep(9, 5, 0x99)),
            ("a request of an unreliable connection", 7, OTHER, false, req(9, 0x11, Transport::Uc)),
        ] {
            let mut all = answered();
            assert_eq!(all.observe(vnic, peer, sends, &message), None, "{case}");
            assert_eq!(all.of(7).count(), 1, "{case}");
            assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), Some(Qpn::truncated(0x11)), "{case}");
        }
    }

    #[test]
    fn a_dreq_of_another_vnic_forgets_nothing_here() {
        let mut all = answered();
        // It names a queue pair of its own: what is freed is looked up under its own number.
        assert_eq!(all.observe(8, PEER, true, &dreq(5, 9, 0x11)), Some(Qpn::truncated(0x11)));
        assert_eq!(all.of(7).count(), 1);
        assert_eq!(all.observe(7, PEER, true, &dreq(6, 9, 0x55)), Some(Qpn::truncated(0x55)));
        assert_eq!(all.of(7).count(), 1, "the ids were not those of the connection");
    }

    #[test]
    fn floods_of_requests_are_bounded_and_push_out_no_connection() {
        let mut all = answered();
        for n in 0..100_000 {
            all.observe(7, PEER, false, &req(1000 + n, n, Transport::Rc));
            all.observe(7, OTHER, true, &req(n, n, Transport::Rc));
            all.observe(7, OTHER, false, &rep(n, 1_000_000 + n, n));
        }
        let table = &all.vnics[&7];
        for len in [table.received.entries.len(), table.sent.entries.len()] {
            assert_eq!(len, REMEMBERED);
        }
        assert_eq!(table.received.order.len(), REMEMBERED);
        assert_eq!(all.observe(7, PEER, true, &drep(5, 9)), Some(Qpn::truncated(0x11)));
        // The newest ones are there.
        all.observe(7, PEER, true, &rep(5, 1000 + 99_999, 0x21));
        assert_eq!(all.observe(7, PEER, true, &drep(5, 1000 + 99_999)), Some(Qpn::truncated(99_999)));
    }

    #[test]
    fn many_vnics_share_the_memory() {
        let mut all = Connections::default();
        for vnic in 0..2000 {
            for n in 0..200 {
                all.observe(vnic, PEER, false, &req(n, n, Transport::Rc));
            }
        }
        let sum: usize = all.vnics.values().map(|table| table.received.entries.len()).sum();
        assert!(sum <= 2000 * 200 && all.vnics[&1999].received.entries.len() <= OF_ALL / 1999, "{sum}");
        all.forget(1999);
        assert!(!all.vnics.contains_key(&1999));
    }
}
