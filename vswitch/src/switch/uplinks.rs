//! Uplinks that fail and come back. A link that is lost is noticed within a turn ([`super::TEND_EVERY_MS`]); next-hop groups
//! are written anew at once, so that flows go by what is left, and the addresses that this uplink answered for are announced
//! by the ones that do so now. So are those of an uplink that has another MAC, or comes back: others know where it was.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::snapshot::{PortIndex, mac_from};
use pmd::Mbuf;
use serde_json::json;
use wire::MacAddr;
use wire::build::control;
use worker::WorkerCommand;

use super::Switch;

/// A link that comes back is used when it has been there for so long, where another uplink has the flows meanwhile: the
/// switch at its other end may not forward yet, and a link that comes and goes moves nothing each time.
const STEADY: Duration = Duration::from_secs(1);
/// An address is announced twice, so far apart (ANNOUNCE_NUM and ANNOUNCE_INTERVAL of RFC 5227 section 1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// An uplink's link.
#[derive(Clone, Copy, Debug)]
struct LinkWatch {
    /// Flows go by it.
    used: bool,
    /// Since when it has been there again without being used.
    back: Option<Instant>,
}

/// An uplink, and an address that it answers for, with a MAC address.
type Speaker = (u16, IpAddr, MacAddr);

/// What is known of the links of uplinks.
#[derive(Debug, Default)]
pub(super) struct Uplinks {
    links: HashMap<u16, LinkWatch>,
    /// Which uplinks answer for which addresses.
    speakers: HashSet<Speaker>,
    /// Some were announced before.
    has_spoken: bool,
    /// To be announced once more.
    again: Vec<(Instant, Speaker)>,
}

impl Uplinks {
    /// Whether an uplink is to be used now. `others`: another one takes its flows while it is not.
    fn follow(&mut self, index: u16, up: bool, others: bool, now: Instant) -> bool {
        let link = self.links.entry(index).or_insert(LinkWatch { used: up, back: None });
        if !up {
            *link = LinkWatch { used: false, back: None };
        } else if !link.used {
            let back = *link.back.get_or_insert(now);
            link.used = !others || now.saturating_duration_since(back) >= STEADY;
        }
        link.used
    }

    /// The announcements to be made now, when these are the speakers. At the start only those of addresses that several uplinks have:
    /// of the others nobody knows another place, and what is asked first says where they are.
    fn announcements(
        &mut self,
        speakers: HashSet<Speaker>,
        is_shared: impl Fn(IpAddr) -> bool,
        now: Instant,
    ) -> Vec<Speaker> {
        let mut new: Vec<_> = speakers.difference(&self.speakers).copied().collect();
        self.speakers = speakers;
        let is_first = !self.has_spoken;
        self.has_spoken |= !new.is_empty();
        if is_first {
            new.retain(|(_, address, _)| is_shared(*address));
        }
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.again).into_iter().partition(|&(at, _)| at <= now);
        self.again = later;
        self.again.extend(new.iter().map(|&speaker| (now + ANNOUNCE_INTERVAL, speaker)));
        let due = due.into_iter().map(|(_, speaker)| speaker);
        due.filter(|speaker| self.speakers.contains(speaker)).chain(new).collect()
    }
}

impl Switch {
    /// Looks at the links of uplinks, and moves flows and addresses. True when next hops of flows are others now.
    pub(super) fn tend_uplinks(&mut self, now: Instant) -> bool {
        let snapshot = self.topology.snapshot().clone();
        let rows =
            || snapshot.uplinks.iter().enumerate().filter_map(|(n, row)| Some((n as u16, row.as_deref()?)));
        self.uplinks.links.retain(|&index, _| snapshot.uplink(index).is_some());
        let mut moved = false;
        for (index, row) in rows() {
            let link = self
                .ports
                .get(row.port)
                .filter(|port| port.name == row.name)
                .is_some_and(|port| port.has_link());
            let others = rows().any(|(other, _)| other != index && self.topology.stands_in(other, index));
            let used = self.uplinks.follow(index, link, others, now);
            if self.topology.set_uplink(index, used, &mut self.neighbours) {
                moved = true;
                if used {
                    self.neighbours.doubt(index);
                } else {
                    // Somebody may have taken this one for where its addresses are, also where it only stood by.
                    self.uplinks.speakers.retain(|(_, address, _)| !row.owns(*address));
                }
                let (kind, word) =
                    if used { ("uplink-up", "is used again") } else { ("uplink-down", "has no link") };
                tracing::warn!(uplink = row.name, others, "the uplink {word}");
                let text = format!("uplink {} {word}", row.name);
                self.events.add(kind, text, json!({ "uplink": row.name, "others": others }));
            }
        }
        let changed = self.topology.settle_speakers(&self.neighbours);
        let mac =
            |index| self.topology.snapshot().uplink(index).map_or(MacAddr::ZERO, |row| mac_from(row.mac));
        let speakers =
            self.topology.speakers().map(|(index, address)| (index, address, mac(index))).collect();
        let announcements =
            self.uplinks.announcements(speakers, |address| self.topology.is_shared(address), now);
        for (index, address, _) in announcements {
            self.announce(index, address);
        }
        if changed {
            self.topology.commit();
            if let Err(error) = self.hand_out() {
                tracing::error!(%error, "workers do not know yet which uplink answers for which address");
            }
        }
        moved
    }

    /// Tells everybody on an uplink's link that an address is there: by an ARP announcement (RFC 5227 section 2.3), or an
    /// unsolicited neighbour advertisement (RFC 4861 section 7.2.6).
    fn announce(&mut self, index: u16, address: IpAddr) {
        let Some(uplink) = self.topology.snapshot().uplink(index) else { return };
        let mac = mac_from(uplink.mac);
        tracing::info!(uplink = uplink.name, %address, "the address is announced");
        let frame = match address {
            IpAddr::V4(address) => control::arp_request((mac, address), address),
            IpAddr::V6(address) => control::neighbour_announcement(mac, address),
        };
        self.inject(index, frame);
    }

    /// Sends a frame by an uplink, in its VLAN.
    pub(super) fn inject(&self, index: u16, frame: Vec<u8>) {
        let Some(ByUplink { worker, port, packet }) = self.by_uplink(index, frame) else { return };
        // What finds the mailbox full is lost; it is sent again a little later.
        let _ = self.pool.workers[worker].mailbox().offer(WorkerCommand::Inject(port, packet));
    }

    /// A frame as it is sent by an uplink, in its VLAN; none where nobody can, or there is no buffer.
    pub(super) fn by_uplink(&self, index: u16, mut frame: Vec<u8>) -> Option<ByUplink> {
        let uplink = self.topology.snapshot().uplink(index)?;
        if let Some(vlan) = uplink.vlan {
            let [high, low] = vlan.to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, high, low]);
        }
        let port = self.ports.index(&uplink.name)?;
        let worker = *self.ports.get(port)?.tx_workers.first()?;
        let packet = self.mempool.alloc_from(&frame)?;
        Some(ByUplink { worker, port, packet })
    }
}

/// A packet of control's, and who sends it where.
pub(super) struct ByUplink {
    pub worker: usize,
    pub port: PortIndex,
    pub packet: Mbuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failover_a_link_that_comes_back_is_used_when_it_stays() {
        let mut uplinks = Uplinks::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(uplinks.follow(0, true, true, at(0)), "at the start nobody waits");
        assert!(!uplinks.follow(0, false, true, at(20)));
        assert!(!uplinks.follow(0, true, true, at(40)) && !uplinks.follow(0, true, true, at(1000)));
        assert!(!uplinks.follow(0, false, true, at(1020)), "it comes and goes");
        assert!(!uplinks.follow(0, true, true, at(1040)) && uplinks.follow(0, true, true, at(2040)));
        assert!(!uplinks.follow(0, false, false, at(2060)));
        assert!(uplinks.follow(0, true, false, at(2080)), "nobody has its flows");
    }

    #[test]
    fn failover_addresses_are_announced_twice_by_who_has_them() {
        let mut uplinks = Uplinks::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let address = IpAddr::from([172, 16, 0, 1]);
        let mac = |index| MacAddr([2, 0, 0, 0, 0, index as u8]);
        let one = |index| (index, address, mac(index));
        let set = |index| HashSet::from([one(index)]);
        let shared = |_| true;
        let mut alone = Uplinks::default();
        assert!(alone.announcements(set(0), |_| false, at(0)).is_empty(), "nobody knows another place of it");
        assert!(alone.announcements(set(0), |_| false, at(2000)).is_empty());
        assert_eq!(alone.announcements(set(1), |_| false, at(2020)), [one(1)]);
        assert!(uplinks.announcements(HashSet::new(), shared, at(0)).is_empty());
        assert_eq!(uplinks.announcements(set(0), shared, at(0)), [one(0)]);
        assert!(uplinks.announcements(set(0), shared, at(1999)).is_empty());
        assert_eq!(uplinks.announcements(set(0), shared, at(2000)), [one(0)]);
        // The same one with another MAC.
        let new = (0, address, MacAddr([2, 0, 0, 0, 1, 0]));
        assert_eq!(uplinks.announcements(HashSet::from([new]), shared, at(5000)), [new]);
        assert!(uplinks.announcements(HashSet::from([new]), shared, at(6999)).is_empty());
        assert_eq!(uplinks.announcements(HashSet::from([new]), shared, at(7000)), [new]);
        assert!(uplinks.announcements(HashSet::from([new]), shared, at(9000)).is_empty());
        assert_eq!(uplinks.announcements(set(1), shared, at(9020)), [one(1)]);
        // Lost again before the second time.
        assert_eq!(uplinks.announcements(set(0), shared, at(9040)), [one(0)]);
        assert_eq!(uplinks.announcements(set(0), shared, at(20_000)), [one(0)]);
    }
}
