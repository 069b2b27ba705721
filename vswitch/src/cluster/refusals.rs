//! What control did not take in of what other hosts say, until it does: each is told once, and asked for again when it may be possible.
//!
//! Where the VLT has no room for locations, no more of them are asked for than there is room. VTEPs are not asked for: control knows them,
//! and has them as soon as there is room.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wire::Vni;

use crate::control::turns::Turns;
use crate::switch::following::{Refused, Said};

type Place = (Vni, IpAddr);

/// What is not taken in now.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Addresses for which the VLT has no room, and others.
    without_room: Turns<Place>,
    locations: BTreeSet<Place>,
    vteps: BTreeSet<Place>,
}

impl Refusals {
    /// True while everything is taken in.
    pub fn is_empty(&self) -> bool {
        self.without_room.is_empty() && self.locations.is_empty() && self.vteps.is_empty()
    }

    /// Control was told of these addresses, and of all VTEPs of these networks, and refused some. What was refused before and is not any more.
    pub fn take_in(&mut self, told: &[Place], networks: &BTreeSet<Vni>, refused: &[Refused]) -> Vec<Said> {
        let mut mended = Vec::new();
        if !self.is_empty() {
            let was =
                told.iter().filter(|place| self.without_room.remove(place) | self.locations.remove(place));
            mended.extend(was.map(|&(vni, vip)| Said::Location(vni, vip)).collect::<Vec<_>>());
            let (said, others): (BTreeSet<Place>, _) =
                std::mem::take(&mut self.vteps).into_iter().partition(|(vni, _)| networks.contains(vni));
            self.vteps = others;
            mended.extend(said.into_iter().map(|(vni, vtep)| Said::Vtep(vni, vtep)));
        }
        for Refused { what, for_want_of_room, .. } in refused {
            match *what {
                Said::Location(vni, vip) if *for_want_of_room => self.without_room.add((vni, vip)),
                Said::Location(vni, vip) => _ = self.locations.insert((vni, vip)),
                Said::Vtep(vni, vtep) => _ = self.vteps.insert((vni, vtep)),
            }
        }
        mended.retain(|what| !self.has(*what));
        mended
    }

    /// These are all the VTEPs that control has no room for now. Those that it has placed since.
    pub fn left_out(&mut self, now: BTreeSet<Place>) -> Vec<Said> {
        let placed: Vec<Said> =
            self.vteps.difference(&now).map(|&(vni, vtep)| Said::Vtep(vni, vtep)).collect();
        self.vteps = now;
        placed
    }

    /// The addresses to ask for again: as many of those that wait for room as there is, and, where something has changed, all others.
    pub fn again(&mut self, has_changed: bool, room: usize) -> Vec<Place> {
        let mut again = self.without_room.next(room);
        if has_changed {
            again.extend(&self.locations);
        }
        again
    }

    fn has(&self, what: Said) -> bool {
        match what {
            Said::Location(vni, vip) => {
                self.without_room.has(&(vni, vip)) || self.locations.contains(&(vni, vip))
            }
            Said::Vtep(vni, vtep) => self.vteps.contains(&(vni, vtep)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(last: u8) -> Place {
        (Vni::new(100).unwrap(), IpAddr::from([10, 0, 0, last]))
    }

    fn refused(what: Said, for_want_of_room: bool) -> Refused {
        Refused { what, why: "no".into(), for_want_of_room }
    }

    fn location(last: u8, for_want_of_room: bool) -> Refused {
        let (vni, vip) = place(last);
        refused(Said::Location(vni, vip), for_want_of_room)
    }

    #[test]
    fn etcd_as_many_addresses_as_there_is_room_for_are_asked_for_again_each_in_its_turn() {
        let mut refusals = Refusals::default();
        let told: Vec<Place> = (1..=6).map(place).collect();
        let no = [1, 2, 3, 4].map(|last| location(last, true));
        let other = location(5, false);
        let all: Vec<Refused> = no.iter().cloned().chain([other]).collect();
        assert_eq!(refusals.take_in(&told, &BTreeSet::new(), &all), []);
        assert_eq!(refusals.again(false, 0), []);
        assert_eq!(refusals.again(true, 0), [place(5)]);
        assert_eq!(refusals.again(false, 3), [1, 2, 3].map(place));
        assert_eq!(refusals.again(true, 2), [4, 1, 5].map(place));
        assert_eq!(refusals.again(false, 9), [2, 3, 4, 1].map(place));
        // One of them is taken in.
        let (vni, vip) = place(2);
        let mended = refusals.take_in(&[place(1), place(2)], &BTreeSet::new(), &[location(1, true)]);
        assert_eq!(mended, [Said::Location(vni, vip)]);
        assert_eq!(refusals.again(false, 9), [3, 4, 1].map(place));
        refusals.take_in(&told, &BTreeSet::new(), &[]);
        assert!(refusals.is_empty() && refusals.again(true, 9).is_empty());
    }

    #[test]
    fn etcd_vteps_are_refused_until_control_says_otherwise() {
        let mut refusals = Refusals::default();
        let (vni, vtep) = place(9);
        let networks = BTreeSet::from([vni]);
        let no = refused(Said::Vtep(vni, vtep), true);
        for _ in 0..2 {
            assert_eq!(refusals.take_in(&[], &networks, std::slice::from_ref(&no)), []);
        }
        assert_eq!(refusals.take_in(&[], &BTreeSet::new(), &[]), [], "another network");
        assert_eq!(refusals.left_out(BTreeSet::from([(vni, vtep)])), []);
        assert_eq!(refusals.left_out(BTreeSet::new()), [Said::Vtep(vni, vtep)]);
        assert!(refusals.is_empty());
        refusals.take_in(&[], &networks, &[no]);
        assert_eq!(refusals.take_in(&[], &networks, &[]), [Said::Vtep(vni, vtep)]);
    }
}
