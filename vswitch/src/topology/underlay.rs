//! The neighbours of the underlay as control knows them: the MAC addresses of next hops.
//!
//! Next hops in use are resolved before the first packet needs them: asked for once a second until they answer,
//! confirmed every half minute after, by unicast first, forgotten when they stop answering. A next hop that says where it
//! is now is believed at once (RFC 826; RFC 4861 section 7.2), and asked whether it hears this host, too: only what answers stays
//! in use, however often it asks or announces. Control alone holds this; workers see
//! its result in the VLT and report what they hear.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::event::{Binding, Claim};
use wire::MacAddr;

use super::paths::NextHop;

/// So many requests that nobody answered make a next hop that never did so a silent one.
const SILENT_TRIES: u32 = 6;
/// Between two requests for one address.
const RETRY: Duration = Duration::from_secs(1);
/// Requests sent in quick succession at first, so that a start is not a second late.
const FIRST_TRIES: u32 = 3;
/// Between those.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Requests of one turn that go to the known MAC, before everybody is asked.
const UNICAST_TRIES: u32 = 3;
/// A neighbour that answered in this time is not asked again.
const CONFIRMED: Duration = Duration::from_secs(30);
/// A neighbour that did not answer for this time is gone.
const LOST: Duration = Duration::from_secs(90);

/// What is known of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Configured, never asked for.
    Static(MacAddr),
    /// Not resolved yet, or lost.
    Incomplete,
    /// Resolved.
    Reachable(MacAddr),
    /// Resolved, and in doubt: used, and asked for.
    Stale(MacAddr),
}

/// A next hop.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// What is known.
    pub state: NeighbourState,
    /// Own address to ask from.
    pub source: IpAddr,
    /// When it last answered; before it ever did, when it was first heard of.
    pub heard: Option<Instant>,
    /// When it was last asked for.
    asked: Option<Instant>,
    /// Requests since it last answered, or was in doubt.
    pub tries: u32,
}

impl Neighbour {
    fn is_reachable(&self) -> bool {
        matches!(self.state, NeighbourState::Reachable(_))
    }

    /// It is asked at once; what is known of it is used meanwhile.
    fn doubt(&mut self) {
        if let NeighbourState::Reachable(mac) = self.state {
            self.state = NeighbourState::Stale(mac);
        }
        (self.asked, self.tries) = (None, 0);
    }

    /// The MAC, when known.
    pub fn mac(&self) -> Option<MacAddr> {
        match self.state {
            NeighbourState::Static(mac) | NeighbourState::Reachable(mac) | NeighbourState::Stale(mac) => {
                Some(mac)
            }
            NeighbourState::Incomplete => None,
        }
    }
}

/// What an uplink hears of its next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// One at least is resolved.
    pub any: bool,
    /// One at least does not answer, or not any more.
    pub silence: bool,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourProbe {
    /// Through this uplink.
    pub uplink: u16,
    /// Who has this address?
    pub target: IpAddr,
    /// Asks this one.
    pub source: IpAddr,
    /// The question goes to this MAC; absent: to all.
    pub to: Option<MacAddr>,
}

/// The next hops in use.
#[derive(Debug, Default)]
pub struct Neighbours {
    table: HashMap<(u16, IpAddr), Neighbour>,
}

impl Neighbours {
    /// Makes sure that a next hop is being resolved; returns its MAC when known.
    pub fn want(&mut self, hop: NextHop) -> Option<MacAddr> {
        let fresh = Neighbour {
            state: NeighbourState::Incomplete,
            source: hop.source,
            heard: None,
            asked: None,
            tries: 0,
        };
        let neighbour = self.table.entry((hop.uplink, hop.address)).or_insert(fresh);
        neighbour.source = hop.source;
        neighbour.mac()
    }

    /// The MAC of a next hop, when known; asks for nothing.
    pub fn mac(&self, hop: NextHop) -> Option<MacAddr> {
        self.table.get(&(hop.uplink, hop.address)).and_then(Neighbour::mac)
    }

    /// Adds or changes a configured neighbour.
    pub fn set_static(&mut self, uplink: u16, address: IpAddr, mac: MacAddr) {
        let neighbour = Neighbour {
            state: NeighbourState::Static(mac),
            source: address,
            heard: None,
            asked: None,
            tries: 0,
        };
        self.table.insert((uplink, address), neighbour);
    }

    /// Forgets every neighbour for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(u16, IpAddr) -> bool) {
        self.table.retain(|&(uplink, address), _| keep(uplink, address));
    }

    /// Takes in that an address has a MAC. True when the MAC is new: what depends on it must be updated. Addresses that nobody
    /// wants are not remembered, so that strangers fill nothing.
    pub fn learn(
        &mut self,
        uplink: u16,
        Binding { address, mac }: Binding,
        claim: Claim,
        now: Instant,
    ) -> bool {
        let Some(neighbour) = self.table.get_mut(&(uplink, address)) else { return false };
        let known = match neighbour.state {
            NeighbourState::Static(_) => return false,
            NeighbourState::Incomplete => None,
            NeighbourState::Reachable(known) | NeighbourState::Stale(known) => Some(known),
        };
        match known {
            Some(known) if known == mac && !claim.confirms => return false,
            // Whoever is right is asked (RFC 4861 section 7.2.5); what is in use stays in use.
            Some(known) if known != mac && !claim.overrides => {
                if neighbour.is_reachable() {
                    neighbour.doubt();
                }
                return false;
            }
            // It was given up because it did not answer, and is asked as ever.
            None if neighbour.heard.is_some() && !claim.confirms => return false,
            _ => {}
        }
        if claim.confirms || neighbour.heard.is_none() {
            neighbour.heard = Some(now);
        }
        (neighbour.asked, neighbour.tries) = (None, 0);
        neighbour.state =
            if claim.confirms { NeighbourState::Reachable(mac) } else { NeighbourState::Stale(mac) };
        known != Some(mac)
    }

    /// The neighbours of an uplink are asked at once whether they hear it: it has another MAC, or was away. What is known of them is
    /// used meanwhile.
    pub fn doubt(&mut self, uplink: u16) {
        let of_uplink = self.table.iter_mut().filter(|((of, _), _)| *of == uplink);
        of_uplink.for_each(|(_, neighbour)| neighbour.doubt());
    }

    /// Those of all uplinks that have answered are asked at once whether they still have their MACs. The others are asked as ever.
    pub fn doubt_reachable(&mut self) {
        let reachable = self.table.values_mut().filter(|neighbour| neighbour.is_reachable());
        reachable.for_each(Neighbour::doubt);
    }

    /// What to ask now, and which neighbours were just lost.
    pub fn tick(&mut self, now: Instant) -> (Vec<NeighbourProbe>, Vec<(u16, IpAddr)>) {
        let (mut probes, mut lost) = (Vec::new(), Vec::new());
        for (&(uplink, target), neighbour) in &mut self.table {
            let since = |time: Option<Instant>| time.map(|time| now.saturating_duration_since(time));
            let due = match neighbour.state {
                NeighbourState::Static(_) => false,
                NeighbourState::Incomplete | NeighbourState::Stale(_) => true,
                NeighbourState::Reachable(_) => since(neighbour.heard).is_none_or(|age| age >= CONFIRMED),
            };
            if matches!(neighbour.state, NeighbourState::Reachable(_) | NeighbourState::Stale(_))
                && since(neighbour.heard).is_none_or(|age| age >= LOST)
            {
                neighbour.state = NeighbourState::Incomplete;
                lost.push((uplink, target));
            }
            let pause = if neighbour.tries < FIRST_TRIES { FIRST_RETRY } else { RETRY };
            if due && since(neighbour.asked).is_none_or(|age| age >= pause) {
                let to = neighbour.mac().filter(|_| neighbour.tries < UNICAST_TRIES);
                neighbour.asked = Some(now);
                neighbour.tries = neighbour.tries.saturating_add(1);
                probes.push(NeighbourProbe { uplink, target, source: neighbour.source, to });
            }
        }
        (probes, lost)
    }

    /// What each uplink that has next hops hears of them.
    pub fn hearing(&self) -> HashMap<u16, Hearing> {
        let mut hearing: HashMap<u16, Hearing> = HashMap::new();
        for (&(uplink, _), neighbour) in &self.table {
            let of_uplink = hearing.entry(uplink).or_default();
            match neighbour.state {
                NeighbourState::Incomplete => {
                    of_uplink.silence |= neighbour.heard.is_some() || neighbour.tries >= SILENT_TRIES;
                }
                NeighbourState::Static(_) | NeighbourState::Reachable(_) | NeighbourState::Stale(_) => {
                    of_uplink.any = true;
                }
            }
        }
        hearing
    }

    /// All of them, in order of uplink and address.
    pub fn list(&self) -> Vec<(u16, IpAddr, Neighbour)> {
        let mut list: Vec<_> =
            self.table.iter().map(|(&(uplink, address), &n)| (uplink, address, n)).collect();
        list.sort_by_key(|&(uplink, address, _)| (uplink, address));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const ANSWER: Claim = Claim { overrides: true, confirms: true };

    #[test]
    fn neighbours_are_asked_confirmed_and_lost() {
        let mut table = Neighbours::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let hop = NextHop { uplink: 0, address: ip("172.16.0.2"), source: ip("172.16.0.1") };
        assert_eq!(table.want(hop), None);
        // Three quick requests, then one a second.
        let asked: Vec<u64> =
            (0..40).filter(|i| !table.tick(at(i * 50)).0.is_empty()).map(|i| i * 50).collect();
        assert_eq!(asked, [0, 100, 200, 1200]);
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        assert!(table.learn(0, Binding { address: hop.address, mac }, ANSWER, at(2000)));
        assert!(!table.learn(0, Binding { address: hop.address, mac }, ANSWER, at(2000)));
        assert!(
            !table.learn(0, Binding { address: ip("172.16.0.77"), mac }, ANSWER, at(2000)),
            "strangers are not remembered"
        );
        assert_eq!(table.want(hop), Some(mac));
        assert!(table.tick(at(20_000)).0.is_empty());
        assert_eq!(table.tick(at(32_000)).0.len(), 1);
        let (_, lost) = table.tick(at(92_001));
        assert_eq!(lost, [(0, hop.address)]);
        assert_eq!(table.want(hop), None);
    }

    #[test]
    fn static_neighbours_are_left_alone() {
        let mut table = Neighbours::default();
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        table.set_static(0, ip("172.16.0.2"), mac);
        let now = Instant::now();
        assert!(table.tick(now).0.is_empty());
        assert!(!table.learn(
            0,
            Binding { address: ip("172.16.0.2"), mac: MacAddr([2, 0, 0, 0, 0, 2]) },
            ANSWER,
            now
        ));
        let hop = NextHop { uplink: 0, address: ip("172.16.0.2"), source: ip("172.16.0.1") };
        assert_eq!(table.want(hop), Some(mac));
    }

    /// A table with one neighbour that answered at `start`.
    fn resolved(start: Instant) -> (Neighbours, NextHop, MacAddr) {
        let mut table = Neighbours::default();
        let hop = NextHop { uplink: 0, address: ip("172.16.0.2"), source: ip("172.16.0.1") };
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        table.want(hop);
        assert!(table.learn(0, Binding { address: hop.address, mac }, ANSWER, start));
        (table, hop, mac)
    }

    #[test]
    fn repair_a_next_hop_that_says_where_it_is_is_believed_at_once() {
        let start = Instant::now();
        let (mut table, hop, _) = resolved(start);
        let there = MacAddr([2, 0, 0, 0, 0, 10]);
        assert!(table.learn(0, Binding { address: hop.address, mac: there }, ANSWER, start));
        assert_eq!(table.want(hop), Some(there));
        assert!(table.tick(start).0.is_empty(), "ARP needs no second opinion");
        // A solicitation says it too, and is asked whether it is true.
        let back = MacAddr([2, 0, 0, 0, 0, 11]);
        assert!(table.learn(
            0,
            Binding { address: hop.address, mac: back },
            Claim { overrides: true, confirms: false },
            start
        ));
        assert_eq!(table.want(hop), Some(back));
        assert_eq!(table.tick(start).0[0].to, Some(back));
    }

    #[test]
    fn repair_an_advertisement_without_override_replaces_nothing_and_raises_doubt() {
        let start = Instant::now();
        let (mut table, hop, mac) = resolved(start);
        let claim = Claim { overrides: false, confirms: true };
        assert!(!table.learn(
            0,
            Binding { address: hop.address, mac: MacAddr([2, 0, 0, 0, 0, 66]) },
            claim,
            start
        ));
        assert_eq!((table.want(hop), table.list()[0].2.state), (Some(mac), NeighbourState::Stale(mac)));
        let (probes, lost) = table.tick(start);
        assert_eq!((probes[0].to, lost.len()), (Some(mac), 0), "who is known is asked");
        assert!(!table.learn(0, Binding { address: hop.address, mac }, claim, start));
        assert_eq!(table.list()[0].2.state, NeighbourState::Reachable(mac));
        assert!(table.tick(start).0.is_empty());
        // An unsolicited word of the same MAC confirms nothing.
        let later = start + CONFIRMED;
        assert!(!table.learn(
            0,
            Binding { address: hop.address, mac },
            Claim { overrides: true, confirms: false },
            later
        ));
        assert_eq!(table.tick(later).0.len(), 1);
    }

    #[test]
    fn repair_neighbours_are_confirmed_by_unicast_and_then_by_asking_all() {
        let start = Instant::now();
        let (mut table, _, mac) = resolved(start);
        let asked: Vec<Option<MacAddr>> = (0..80)
            .flat_map(|i| table.tick(start + CONFIRMED + Duration::from_millis(i * 50)).0)
            .map(|probe| probe.to)
            .collect();
        assert_eq!(asked[..5], [Some(mac), Some(mac), Some(mac), None, None]);
    }

    /// What ARP is worth that answers nobody, and a neighbour solicitation.
    const QUESTION: Claim = Claim { overrides: true, confirms: false };

    #[test]
    fn a_neighbour_that_asks_and_never_answers_is_lost_and_stays_so() {
        let start = Instant::now();
        let (mut table, hop, mac) = resolved(start);
        let binding = |mac| Binding { address: hop.address, mac };
        let mut lost = Vec::new();
        for second in 1..=300 {
            let now = start + Duration::from_secs(second);
            // It has two MACs, as a bond may: that it claims the other one is no answer either.
            let claimed = if second < 200 { mac } else { MacAddr([2, 0, 0, 0, 0, 10 + second as u8 % 2]) };
            table.learn(0, binding(claimed), QUESTION, now);
            lost.extend(table.tick(now).1.into_iter().map(|_| second));
        }
        assert_eq!((lost, table.want(hop)), (vec![90], None));
        assert!(!table.tick(start + Duration::from_secs(301)).0.is_empty(), "it is asked still");
        let now = start + Duration::from_secs(302);
        assert!(table.learn(0, binding(mac), ANSWER, now) && table.want(hop) == Some(mac));
        // Claims that change have it asked, and put off no loss.
        let last = (303..600).find(|&second| {
            let now = start + Duration::from_secs(second);
            table.learn(0, binding(MacAddr([2, 0, 0, 0, 0, second as u8])), QUESTION, now);
            !table.tick(now).1.is_empty()
        });
        assert_eq!(last, Some(302 + 90));
    }

    #[test]
    fn a_neighbour_that_was_never_asked_may_be_used_as_soon_as_it_speaks() {
        let start = Instant::now();
        let mut table = Neighbours::default();
        let hop = NextHop { uplink: 0, address: ip("172.16.0.2"), source: ip("172.16.0.1") };
        table.want(hop);
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        assert!(table.learn(0, Binding { address: hop.address, mac }, QUESTION, start));
        assert_eq!((table.want(hop), table.list()[0].2.state), (Some(mac), NeighbourState::Stale(mac)));
        assert_eq!(table.tick(start).0[0].to, Some(mac));
        assert_eq!(table.tick(start + LOST).1, [(0, hop.address)]);
    }
}
