//! BFD sessions in the snapshot: which there are, by which numbers, and what becomes of paths when they fail.
//!
//! A session keeps its place and its discriminator while the config asks for the same one.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::bfd::{BfdSession, BfdSessions, MAX_SESSIONS};
use pipelines::snapshot::mac_from;

use super::Topology;
use super::paths::NextHop;
use crate::config::Config;
use crate::config::bfd::{WantedBfd, is_link_local};
use crate::topology::underlay::Neighbours;

impl Topology {
    /// Takes in which sessions the config asks for. The uplinks are those of the config already.
    pub(super) fn rebuild_bfd(&mut self, config: &Config) {
        let before = self.draft.next.bfd.clone();
        let wanted: Vec<BfdSession> = (self.draft.uplinks.iter())
            .flat_map(|(index, uplink)| {
                uplink.bfd_sessions().into_iter().map(move |wanted| (*index, uplink, wanted))
            })
            .filter_map(|(index, uplink, wanted)| {
                let others = config.uplinks.iter().filter(|other| other.name != uplink.name);
                let local = match self.draft.next.uplink(index) {
                    Some(row) if is_link_local(wanted.peer) => mac_from(row.mac).link_local().into(),
                    _ => uplink.bfd_source(wanted, others)?,
                };
                let WantedBfd { peer, multihop } = wanted;
                Some(BfdSession { slot: 0, discriminator: 0, uplink: index, peer, local, multihop })
            })
            .collect();
        let same = |one: &BfdSession, other: &BfdSession| {
            BfdSession { slot: 0, discriminator: 0, ..*one }
                == BfdSession { slot: 0, discriminator: 0, ..*other }
        };
        let known = |session: &BfdSession| before.iter().find(|known| same(known, session)).copied();
        let kept: Vec<BfdSession> = wanted.iter().filter_map(known).collect();
        let (mut slots, mut numbers): (HashSet<u16>, HashSet<u32>) =
            kept.iter().map(|session| (session.slot, session.discriminator)).unzip();
        // A packet that waits for control still has the number of the session that it was for.
        numbers.extend(before.iter().map(|session| session.discriminator));
        let fresh = |session: BfdSession| {
            let slot = (0..MAX_SESSIONS as u16).find(|slot| slots.insert(*slot))?;
            Some(BfdSession { slot, discriminator: unused(&mut numbers), ..session })
        };
        let fresh: Vec<_> =
            wanted.into_iter().filter(|session| known(session).is_none()).filter_map(fresh).collect();
        let sessions = BfdSessions::new([kept, fresh].concat());
        if sessions != *before {
            self.draft.next.bfd = Arc::new(sessions);
        }
    }

    /// Takes in whether a session has failed. True when that is news: then the flows that had its path took another, or have it
    /// back.
    pub fn set_bfd(&mut self, session: &BfdSession, failed: bool, neighbours: &mut Neighbours) -> bool {
        let key = key(session);
        if self.ways.has_failed(key) == failed {
            return false;
        }
        for group in self.ways.set_failed(key, failed) {
            self.renew_group(group, neighbours);
        }
        true
    }

    /// True when a session's path is left.
    pub fn has_failed(&self, session: &BfdSession) -> bool {
        self.ways.has_failed(key(session))
    }

    /// The stations that the packets of a session may go to, the best first: the peer, or the routers on the way there, of which those
    /// that were found dead come last.
    pub fn bfd_hops(&self, session: &BfdSession) -> Vec<NextHop> {
        let BfdSession { uplink, peer, local, multihop, .. } = *session;
        if !multihop {
            return vec![NextHop { uplink, address: peer, source: local }];
        }
        let paths = self.paths(peer).map(|found| found.paths).unwrap_or_default();
        let (living, dead): (Vec<NextHop>, Vec<NextHop>) = paths
            .into_iter()
            .map(|path| path.hop)
            .filter(|hop| hop.uplink == uplink)
            .partition(|hop| self.ways.hop_lives(*hop));
        [living, dead].concat()
    }

    /// True for a station on an uplink's link that BFD asks.
    pub(super) fn asks(&self, uplink: u16, address: IpAddr) -> bool {
        self.draft.next.bfd.iter().any(|session| key(session) == (uplink, address, false))
    }

    /// True for an uplink all of whose sessions have failed: what others send to it is likely to be lost, too.
    pub(super) fn is_cut_off(&self, uplink: u16) -> bool {
        let mut of_uplink = self.draft.next.bfd.iter().filter(|session| session.uplink == uplink).peekable();
        of_uplink.peek().is_some() && of_uplink.all(|session| self.ways.has_failed(key(session)))
    }
}

/// A session as [`Ways`](super::ways::Ways) know it.
fn key(session: &BfdSession) -> (u16, IpAddr, bool) {
    (session.uplink, session.peer, session.multihop)
}

/// A discriminator that nobody has, and nobody foresees; it is used from now on.
fn unused(numbers: &mut HashSet<u32>) -> u32 {
    let random = RandomState::new();
    let mut candidates = (0u64..).map(|n| random.hash_one(n) as u32);
    candidates.find(|&number| number != 0 && numbers.insert(number)).unwrap_or(1)
}
