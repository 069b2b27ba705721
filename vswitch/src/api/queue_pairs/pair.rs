//! The queue pairs of a vNIC with one number, and the other direction of each where it is sure which one that is.
//!
//! Sure is what the connection manager's messages say, and the only queue pair that either side has toward the other.
//! Packets from one vNIC of this host to another pass once: what the receiver gets is what the sender's entry counts.

use std::net::IpAddr;

use pipelines::Direction;
use pipelines::flow_key::Scope;
use pipelines::rcft::{LedgerView, QpKey, QpView};
use pipelines::snapshot::{Destination, Route, RouteTarget, Snapshot, Vnic};
use pipelines::vlt::Place;
use vswitch_api::v1;
use wire::Qpn;
use worker::mailbox::WorkerError;

use super::direction::DirectionRow;
use super::{admitted, is_to};
use crate::switch::Switch;
use crate::view::qps;

/// Queue pairs shown at most.
const SHOWN: usize = 16;

/// A queue pair of a vNIC, as far as it is known.
struct VnicQp {
    out: Option<DirectionRow>,
    into: Option<DirectionRow>,
    /// How the two were found to be one queue pair.
    by: Option<&'static str>,
}

/// What is looked at.
struct PairLook<'s> {
    switch: &'s Switch,
    snapshot: &'s Snapshot,
    vnic: &'s Vnic,
    now: u32,
}

/// The queue pairs of a vNIC with this number.
pub(super) fn of(
    switch: &Switch,
    snapshot: &Snapshot,
    vnic: &Vnic,
    qpn: Qpn,
) -> Result<Vec<v1::PairedQueuePair>, WorkerError> {
    let look = PairLook { switch, snapshot, vnic, now: switch.pool().now().tick };
    let message = |VnicQp { out, into, by }| v1::PairedQueuePair {
        outbound: out.map(|row: DirectionRow| row.message),
        inbound: into.map(|row: DirectionRow| row.message),
        paired_by: by.map(str::to_owned),
    };
    Ok(look.pairs(qpn)?.into_iter().map(message).collect())
}

impl PairLook<'_> {
    fn pairs(&self, number: Qpn) -> Result<Vec<VnicQp>, WorkerError> {
        let mut pairs = Vec::new();
        let (sent, _) = admitted(self.switch, SHOWN, |of, key| of == self.vnic.index && key.qpn() == number);
        for seen in &sent {
            pairs.push(self.pair_of_sent(seen)?);
        }
        // By the vNIC's own number; those that were found above as the other direction of one are no others.
        for (row, own) in self.received(number)? {
            let known = |pair: &VnicQp| pair.into.as_ref().is_some_and(|other| other.key == row.key);
            if !pairs.iter().any(known) {
                let (out, by) = match self.sent_of(own)? {
                    (None, _) => self.only_sent(&row)?,
                    said => said,
                };
                pairs.push(VnicQp { out, into: Some(row), by });
            }
        }
        Ok(pairs)
    }

    fn out_row(&self, seen: &LedgerView) -> Result<DirectionRow, WorkerError> {
        let key = QpKey::from_words(seen.key);
        let views = qps::of(self.switch.pool(), Direction::Out, &[key])?;
        Ok(DirectionRow::admitted(&self.vnic.name, seen, views.get(&key), self.now))
    }

    /// A queue pair known by the direction toward the wire.
    fn pair_of_sent(&self, seen: &LedgerView) -> Result<VnicQp, WorkerError> {
        let key = QpKey::from_words(seen.key);
        let out = Some(self.out_row(seen)?);
        let (peer, peer_qpn) = (key.address(), key.qpn());
        let mut said = self.connections().filter(|c| c.peer == peer && c.peer_qpn == peer_qpn);
        if let (Some(connection), None) = (said.next(), said.next()) {
            let row = self.received_from(connection.own_qpn, Some(peer))?;
            return Ok(VnicQp { by: row.as_ref().map(|_| "cm"), into: row, out });
        }
        let row = self.only(peer)?;
        Ok(VnicQp { by: row.as_ref().map(|_| "being the only one"), into: row, out })
    }

    /// The direction toward the wire of the vNIC's own queue pair.
    fn sent_of(&self, own: Qpn) -> Result<(Option<DirectionRow>, Option<&'static str>), WorkerError> {
        let mut said = self.connections().filter(|c| c.own_qpn == own);
        let (Some(connection), None) = (said.next(), said.next()) else { return Ok((None, None)) };
        let key = QpKey::new(Scope::Vnic(self.vnic.index), connection.peer, connection.peer_qpn);
        match self.switch.rcft().keeper().get(key.words()) {
            Some(seen) => Ok((Some(self.out_row(&seen)?), Some("cm"))),
            None => Ok((None, None)),
        }
    }

    /// The only queue pair of the vNIC toward the one that sends, when what it receives is paired with that.
    fn only_sent(
        &self,
        received: &DirectionRow,
    ) -> Result<(Option<DirectionRow>, Option<&'static str>), WorkerError> {
        let sender = match received.key.scope() {
            Scope::Vnic(sender) => self.snapshot.vnic(sender),
            Scope::Vpc(_) => None,
        };
        let toward = |of: u32, key: &QpKey| {
            of == self.vnic.index && sender.is_none_or(|sender| sender.has(key.address()))
        };
        let (sent, count) = admitted(self.switch, 1, toward);
        let (Some(seen), 1) = (sent.first(), count) else { return Ok((None, None)) };
        let pair = self.pair_of_sent(seen)?;
        let same = pair.into.is_some_and(|into| into.key == received.key);
        Ok(if same { (pair.out, pair.by) } else { (None, None) })
    }

    fn connections(&self) -> impl Iterator<Item = &crate::switch::rcft::connections::Connection> {
        self.switch.rcft().connections().of(self.vnic.index)
    }

    /// What comes to the vNIC's own queue pair of this number: from the wire, and from vNICs of this host.
    fn received(&self, own: Qpn) -> Result<Vec<(DirectionRow, Qpn)>, WorkerError> {
        let key = |address| QpKey::new(Scope::Vpc(self.vnic.vpc), address, own);
        let keys: Vec<QpKey> = self.vnic.addresses().map(key).collect();
        let wire = qps::of(self.switch.pool(), Direction::In, &keys)?;
        let mut rows: Vec<(DirectionRow, Qpn)> = wire
            .values()
            .map(|view| (DirectionRow::from_wire(&self.vnic.name, view, self.now), own))
            .collect();
        let (local, _) = admitted(self.switch, SHOWN, |of, key| key.qpn() == own && self.is_from(of, key));
        for seen in &local {
            rows.push((self.local_row(seen)?, own));
        }
        Ok(rows)
    }

    /// True when what vNIC `of` sends under this key is for our vNIC.
    fn is_from(&self, of: u32, key: &QpKey) -> bool {
        self.vnic.has(key.address())
            && of != self.vnic.index
            && local(self.snapshot, of, key.address()) == Some(self.vnic.index)
    }

    /// What another vNIC of this host sends to ours.
    fn local_row(&self, seen: &LedgerView) -> Result<DirectionRow, WorkerError> {
        let key = QpKey::from_words(seen.key);
        let views = qps::of(self.switch.pool(), Direction::Out, &[key])?;
        Ok(DirectionRow::from_vnic(&self.vnic.name, seen, views.get(&key), self.now))
    }

    /// As [`received`](Self::received), from one peer, if there is exactly one.
    fn received_from(&self, own: Qpn, peer: Option<IpAddr>) -> Result<Option<DirectionRow>, WorkerError> {
        if let Some(other) = peer.and_then(|peer| local(self.snapshot, self.vnic.index, peer)) {
            let from = |of: u32, key: &QpKey| of == other && key.qpn() == own && self.is_from(of, key);
            return match admitted(self.switch, 1, from).0.first() {
                Some(seen) => Ok(Some(self.local_row(seen)?)),
                None => Ok(None),
            };
        }
        let mut rows = self.received(own)?;
        Ok(if rows.len() == 1 { rows.pop().map(|(row, _)| row) } else { None })
    }

    /// The only queue pair that comes from a peer, when the vNIC has only one toward it.
    fn only(&self, peer: IpAddr) -> Result<Option<DirectionRow>, WorkerError> {
        let index = self.vnic.index;
        if let Some(other) = local(self.snapshot, index, peer) {
            let (_, to) = admitted(self.switch, 0, |of, key| of == index && key.address() == peer);
            let (from, count) = admitted(self.switch, 1, |of, key| of == other && self.is_from(of, key));
            return match from.first() {
                Some(seen) if to == 1 && count == 1 => Ok(Some(self.local_row(seen)?)),
                _ => Ok(None),
            };
        }
        // What comes from the wire does not say from whom: only one of all may there be.
        let (_, to) = admitted(self.switch, 0, |of, _| of == index);
        let wire = qps::all_at_once(self.switch.pool(), Direction::In, |key| is_to(self.vnic, key))?;
        let mut views = wire.values();
        let answered = |view: &QpView| view.packets > 0;
        Ok(match (views.next(), views.next()) {
            (Some(view), None) if to == 1 && answered(view) => {
                Some(DirectionRow::from_wire(&self.vnic.name, view, self.now))
            }
            _ => None,
        })
    }
}

/// The vNIC of this host that an address is, as another one sees it.
fn local(snapshot: &Snapshot, of: u32, address: IpAddr) -> Option<u32> {
    let vpc = snapshot.vpc(snapshot.vnic(of)?.vpc)?;
    snapshot.local_vnic(vpc.index, address).or_else(|| match vpc.route(address)? {
        Route::Via(_, RouteTarget::Peer(peer)) => snapshot.local_vnic(*peer, address),
        Route::Via(_, RouteTarget::Station(mac)) => {
            let station = snapshot.location(vpc.index, Destination::Mac(*mac))?;
            match snapshot.vlt.read(station.slot.slot).place {
                Place::Local { vnic } => Some(vnic),
                _ => None,
            }
        }
        _ => None,
    })
}
