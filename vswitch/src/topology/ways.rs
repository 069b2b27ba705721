//! The next-hop groups behind slots of the VLT: which there are, and which next hop each bucket has now.
//!
//! A group stands for the [paths](super::paths) of some VTEPs: slots whose VTEPs are reached the same ways have the same
//! one. What becomes of a link, or of a next hop, is written into the groups it concerns and into no slot. Written in
//! place, as slots are; an index that was given up is given to other paths only after the change that follows, when no
//! worker reads a slot that has it any more.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use pipelines::next_hop::{BUCKETS, ResolvedHop};
use wire::MacAddr;

use super::paths::{NextHop, RankedHop};
use super::slots::LOWEST;

/// A group that is in use.
#[derive(Debug)]
struct GroupUse {
    paths: Vec<RankedHop>,
    /// How many slots have it.
    slots: u32,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Ways {
    groups: HashMap<u16, GroupUse>,
    by_paths: HashMap<Vec<RankedHop>, u16>,
    /// By uplink, address of a next hop, group.
    by_hop: BTreeSet<(u16, IpAddr, u16)>,
    /// Indices beyond this one were never used.
    last: u16,
    free: Vec<u16>,
    /// Given up in the change before this one, and in this one.
    given_up: [Vec<u16>; 2],
    /// May have no slots.
    idle: Vec<u16>,
    /// The group that a slot was last written with, 0 for none.
    of_slots: Vec<u16>,
    /// Uplinks that cannot send.
    down: BTreeSet<u16>,
    /// By uplink, whoever a BFD session that is down was with, and whether there were routers between.
    failed: BTreeSet<(u16, IpAddr, bool)>,
}

impl Ways {
    /// The group of some paths, and whether it is new: then its buckets are to be written. `None` when there are as many as
    /// there can be.
    pub fn group(&mut self, paths: &[RankedHop], capacity: usize) -> Option<(u16, bool)> {
        if let Some(&group) = self.by_paths.get(paths) {
            return Some((group, false));
        }
        let group = match self.free.pop() {
            Some(group) => group,
            None if usize::from(self.last) + 1 < capacity => {
                self.last += 1;
                self.last
            }
            None => return None,
        };
        self.by_paths.insert(paths.to_vec(), group);
        self.by_hop.extend(paths.iter().map(|path| (path.hop.uplink, path.hop.address, group)));
        self.groups.insert(group, GroupUse { paths: paths.to_vec(), slots: 0 });
        self.idle.push(group);
        Some((group, true))
    }

    /// A slot has this group from now on, and no other; 0 for none. True when no slot had it before.
    pub fn give(&mut self, slot: u32, group: u16) -> bool {
        let slot = slot as usize;
        if self.of_slots.len() <= slot {
            self.of_slots.resize(slot + 1, 0);
        }
        let before = std::mem::replace(&mut self.of_slots[slot], group);
        if before == group {
            return false;
        }
        if let Some(left) = self.groups.get_mut(&before) {
            left.slots -= 1;
            if left.slots == 0 {
                self.idle.push(before);
            }
        }
        let Some(taken) = self.groups.get_mut(&group) else { return false };
        taken.slots += 1;
        taken.slots == 1
    }

    /// Gives up groups without slots, at the end of a change. True when next hops may be needed no more.
    pub fn settle(&mut self) -> bool {
        let [before, now] = &mut self.given_up;
        self.free.append(before);
        std::mem::swap(before, now);
        let mut any = false;
        for index in std::mem::take(&mut self.idle) {
            if self.groups.get(&index).is_some_and(|group| group.slots == 0)
                && let Some(gone) = self.groups.remove(&index)
            {
                for path in &gone.paths {
                    self.by_hop.remove(&(path.hop.uplink, path.hop.address, index));
                }
                self.by_paths.remove(&gone.paths);
                self.given_up[1].push(index);
                any = true;
            }
        }
        any
    }

    /// All groups.
    pub fn all(&self) -> Vec<u16> {
        self.groups.keys().copied().collect()
    }

    /// The next hops of a group.
    pub fn hops(&self, group: u16) -> impl Iterator<Item = NextHop> {
        let paths = self.groups.get(&group).map(|group| group.paths.as_slice()).unwrap_or_default();
        paths.iter().map(|path| path.hop)
    }

    /// The groups that have a next hop.
    pub fn through(&self, uplink: u16, address: IpAddr) -> impl Iterator<Item = u16> {
        let range = (uplink, address, 0)..=(uplink, address, u16::MAX);
        self.by_hop.range(range).map(|&(_, _, group)| group)
    }

    /// The groups that have a next hop on an uplink's link.
    fn of_uplink(&self, uplink: u16) -> BTreeSet<u16> {
        let from = self.by_hop.range((uplink, LOWEST, 0)..);
        from.take_while(|hop| hop.0 == uplink).map(|&(_, _, group)| group).collect()
    }

    /// Whether an uplink can send; the groups to be written when that is news.
    pub fn set_up(&mut self, uplink: u16, up: bool) -> BTreeSet<u16> {
        let news = if up { self.down.remove(&uplink) } else { self.down.insert(uplink) };
        if news { self.of_uplink(uplink) } else { BTreeSet::new() }
    }

    /// Whether a BFD session of an uplink has failed, with a station on its link or a VTEP behind routers; the groups to be
    /// written when that is news.
    pub fn set_failed(
        &mut self,
        (uplink, peer, multihop): (u16, IpAddr, bool),
        failed: bool,
    ) -> BTreeSet<u16> {
        let key = (uplink, peer, multihop);
        let news = if failed { self.failed.insert(key) } else { self.failed.remove(&key) };
        match (news, multihop) {
            (false, _) => BTreeSet::new(),
            (true, false) => self.through(uplink, peer).collect(),
            (true, true) => {
                let leads = |path: &RankedHop| path.hop.uplink == uplink && path.beyond == Some(peer);
                let leading = self.groups.iter().filter(|(_, group)| group.paths.iter().any(leads));
                leading.map(|(&group, _)| group).collect()
            }
        }
    }

    /// True when a BFD session has failed.
    pub fn has_failed(&self, session: (u16, IpAddr, bool)) -> bool {
        self.failed.contains(&session)
    }

    /// False for a next hop of which a BFD session says that it is not reached.
    pub fn hop_lives(&self, hop: NextHop) -> bool {
        !self.has_failed((hop.uplink, hop.address, false))
    }

    /// False for a path of which a BFD session says that it is broken.
    fn lives(&self, path: &RankedHop) -> bool {
        self.hop_lives(path.hop)
            && path.beyond.is_none_or(|vtep| !self.has_failed((path.hop.uplink, vtep, true)))
    }

    /// Forgets of uplinks that are gone that they could not send.
    pub fn keep_links(&mut self, known: impl Fn(u16) -> bool) {
        self.down.retain(|&uplink| known(uplink));
        self.failed.retain(|&(uplink, ..)| known(uplink));
    }

    /// False for an uplink that cannot send.
    pub fn is_up(&self, uplink: u16) -> bool {
        !self.down.contains(&uplink)
    }

    /// What the buckets of a group are to have now. The paths of the lowest rank that has a usable one share them evenly; the
    /// share of one that is not usable goes to the others of its rank, and nobody else's share moves. Where BFD says of all that
    /// they are broken, those are used whose next hop lives at least, and where it says so of no next hop either, all as if nobody had
    /// been asked: nothing is won by giving up. Where none has a link, they are taken as if they had: what is sent there is dropped by
    /// that name.
    pub fn buckets(
        &self,
        group: u16,
        mac: impl Fn(NextHop) -> Option<MacAddr>,
    ) -> [Option<ResolvedHop>; BUCKETS] {
        let paths = self.groups.get(&group).map(|group| group.paths.as_slice()).unwrap_or_default();
        let resolved: Vec<Option<ResolvedHop>> = paths
            .iter()
            .map(|path| Some(ResolvedHop { uplink: path.hop.uplink, mac: mac(path.hop)? }))
            .collect();
        let up: Vec<_> = resolved.iter().map(|hop| hop.filter(|hop| self.is_up(hop.uplink))).collect();
        let only = |keep: &dyn Fn(&RankedHop) -> bool| -> Vec<Option<ResolvedHop>> {
            paths.iter().zip(&up).map(|(path, hop)| hop.filter(|_| keep(path))).collect()
        };
        let (living, near) = (only(&|path| self.lives(path)), only(&|path| self.hop_lives(path.hop)));
        let has_any = |hops: &Vec<Option<ResolvedHop>>| hops.iter().any(Option::is_some);
        let usable = [living, near, up].into_iter().find(has_any).unwrap_or(resolved);
        let best =
            paths.iter().zip(&usable).filter(|(_, hop)| hop.is_some()).map(|(path, _)| path.rank).min();
        let share: Vec<_> = paths
            .iter()
            .zip(&usable)
            .filter(|(path, _)| Some(path.rank) == best)
            .map(|(_, &hop)| hop)
            .collect();
        let rest: Vec<_> = share.iter().flatten().copied().collect();
        std::array::from_fn(|bucket| {
            let (n, turn) = (bucket % share.len().max(1), bucket / share.len().max(1));
            share.get(n).copied().flatten().or_else(|| rest.get((n + turn) % rest.len().max(1)).copied())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rank: u8, uplink: u16) -> RankedHop {
        let address = IpAddr::from([172, 16, uplink as u8, 2]);
        let hop = NextHop { uplink, address, source: IpAddr::from([172, 16, uplink as u8, 1]) };
        RankedHop { rank, hop, beyond: None }
    }

    fn mac(hop: NextHop) -> Option<MacAddr> {
        Some(MacAddr([2, 0, 0, 0, 0, hop.uplink as u8]))
    }

    fn uplinks(buckets: &[Option<ResolvedHop>; BUCKETS]) -> Vec<u16> {
        buckets.iter().flatten().map(|hop| hop.uplink).collect()
    }

    #[test]
    fn failover_goes_to_the_next_rank_and_back() {
        let mut ways = Ways::default();
        let (group, new) = ways.group(&[path(0, 1), path(1, 2)], 8).unwrap();
        assert!(new && group != 0);
        assert_eq!(uplinks(&ways.buckets(group, mac)), [1; BUCKETS]);
        assert_eq!(ways.set_up(1, false), BTreeSet::from([group]));
        assert!(ways.set_up(1, false).is_empty(), "nothing new");
        assert_eq!(uplinks(&ways.buckets(group, mac)), [2; BUCKETS]);
        // Nobody is left: the preferred one says why nothing goes.
        ways.set_up(2, false);
        assert_eq!(uplinks(&ways.buckets(group, mac)), [1; BUCKETS]);
        ways.set_up(1, true);
        ways.set_up(2, true);
        let lost = |hop: NextHop| if hop.uplink == 1 { None } else { mac(hop) };
        assert_eq!(uplinks(&ways.buckets(group, lost)), [2; BUCKETS], "a next hop that is silent is none");
        assert_eq!(ways.buckets(group, |_| None), [None; BUCKETS]);
    }

    #[test]
    fn failover_moves_the_flows_of_the_lost_path_only() {
        let mut ways = Ways::default();
        for n in 2..=5u16 {
            let paths: Vec<RankedHop> = (0..n).map(|uplink| path(0, uplink)).collect();
            let (group, _) = ways.group(&paths, 64).unwrap();
            let before = uplinks(&ways.buckets(group, mac));
            assert!((0..n).all(|uplink| before.contains(&uplink)));
            ways.set_up(0, false);
            let after = uplinks(&ways.buckets(group, mac));
            assert!(after.iter().zip(&before).all(|(after, before)| *before == 0 || after == before));
            assert!(!after.contains(&0) && after.len() == BUCKETS);
            if n == 3 {
                let moved: BTreeSet<u16> = after
                    .iter()
                    .zip(&before)
                    .filter(|(_, before)| **before == 0)
                    .map(|(after, _)| *after)
                    .collect();
                assert_eq!(moved.len(), 2, "the others share what is left: {after:?}");
            }
            ways.set_up(0, true);
            assert_eq!(uplinks(&ways.buckets(group, mac)), before);
        }
    }

    #[test]
    fn bfd_a_path_that_failed_is_left_and_found_again() {
        let mut ways = Ways::default();
        let next_hop = |uplink: u16| (uplink, path(0, uplink).hop.address, false);
        let (group, _) = ways.group(&[path(0, 1), path(0, 2), path(1, 3)], 8).unwrap();
        let shared = uplinks(&ways.buckets(group, mac));
        assert!(shared.contains(&1) && shared.contains(&2) && !shared.contains(&3));
        assert_eq!(ways.set_failed(next_hop(1), true), BTreeSet::from([group]));
        assert!(ways.set_failed(next_hop(1), true).is_empty(), "nothing new");
        assert_eq!(uplinks(&ways.buckets(group, mac)), [2; BUCKETS]);
        // A link that is lost is worse than a session that is down.
        ways.set_up(2, false);
        ways.set_up(3, false);
        assert_eq!(uplinks(&ways.buckets(group, mac)), [1; BUCKETS]);
        ways.set_up(3, true);
        assert_eq!(uplinks(&ways.buckets(group, mac)), [3; BUCKETS]);
        ways.set_up(2, true);
        // Nobody answers: all is as if nobody had been asked.
        ways.set_failed(next_hop(2), true);
        ways.set_failed(next_hop(3), true);
        assert_eq!(uplinks(&ways.buckets(group, mac)), shared);
        (1..=3).for_each(|uplink| drop(ways.set_failed(next_hop(uplink), false)));
        assert_eq!(uplinks(&ways.buckets(group, mac)), shared);
    }

    #[test]
    fn bfd_a_vtep_that_is_not_reached_moves_its_own_flows_only() {
        let mut ways = Ways::default();
        let vtep = IpAddr::from([10, 255, 0, 2]);
        let to_vtep = [1, 2].map(|uplink| RankedHop { beyond: Some(vtep), ..path(0, uplink) });
        let (asked, _) = ways.group(&to_vtep, 8).unwrap();
        let (other, _) = ways.group(&[path(0, 1), path(0, 2)], 8).unwrap();
        assert_ne!(asked, other);
        let before = uplinks(&ways.buckets(other, mac));
        assert_eq!(ways.set_failed((1, vtep, true), true), BTreeSet::from([asked]));
        assert_eq!(uplinks(&ways.buckets(asked, mac)), [2; BUCKETS]);
        assert_eq!(uplinks(&ways.buckets(other, mac)), before);
        // The router on the way is both's.
        assert_eq!(ways.set_failed((2, path(0, 2).hop.address, false), true), BTreeSet::from([asked, other]));
        assert_eq!(uplinks(&ways.buckets(other, mac)), [1; BUCKETS]);
        ways.keep_links(|uplink| uplink != 2);
        assert!(!ways.has_failed((2, path(0, 2).hop.address, false)) && ways.has_failed((1, vtep, true)));
    }

    #[test]
    fn failover_groups_are_shared_and_given_again_one_change_later() {
        let mut ways = Ways::default();
        let (a, _) = ways.group(&[path(0, 1)], 3).unwrap();
        assert!(ways.give(7, a) && !ways.give(8, a));
        assert_eq!(ways.group(&[path(0, 1)], 3), Some((a, false)));
        let (b, _) = ways.group(&[path(0, 2)], 3).unwrap();
        assert!(ways.give(9, b));
        assert_eq!(ways.group(&[path(0, 3)], 3), None, "no index is left");
        assert!(!ways.settle());
        ways.give(7, 0);
        assert!(!ways.settle(), "a slot still has it");
        ways.give(8, b);
        assert!(ways.settle());
        assert_eq!(ways.through(1, path(0, 1).hop.address).count(), 0);
        assert_eq!(ways.group(&[path(0, 3)], 3), None, "some worker may read a slot that has it");
        ways.settle();
        ways.settle();
        assert_eq!(ways.group(&[path(0, 3)], 3), Some((a, true)));
        assert_eq!(ways.all().len(), 2);
    }
}
