//! Control's side of services: it answers what workers hand over, and remembers who asked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use pipelines::service::ServiceRequest;
use pipelines::snapshot::{Snapshot, Vnic};
use serde_json::json;
use worker::WorkerCommand;

use super::Switch;
use super::concerned::Concerned;
use crate::config::{Config, DhcpConfig, DomainName, SubnetConfig};
use crate::services::advertise::{Offer, Told};
use crate::services::{Answer, dhcp4, dhcp6};

/// Questions that are answered in one turn: [`super::TEND_EVERY_MS`] apart, 6,400 a second.
const MOST_IN_A_TURN: usize = 128;
/// Between two looks for vNICs that a router advertisement is due to.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two router advertisements that a vNIC asks for. Each goes to its port alone, so that the three seconds of RFC 4861
/// section 6.2.6, which spare a shared link, are not needed.
const ADVERTISE_EVERY: Duration = Duration::from_millis(100);
/// Between two events about addresses that a vNIC declines.
const DECLINES_EVERY: Duration = Duration::from_secs(60);

/// What is known of vNICs that asked, and what they are told besides the config of their subnet.
#[derive(Debug, Default)]
pub struct ServicesControl {
    /// By index.
    vnics: HashMap<u32, Client>,
    /// When it was last looked for vNICs that an advertisement is due to.
    looked: Option<Instant>,
}

/// A vNIC as services see it. Nothing here is needed to answer it.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// The host name that it is told.
    pub host_name: Option<DomainName>,
    /// When it asked last.
    pub seen: Option<Instant>,
    /// Questions, whatever came of them.
    pub requests: u64,
    /// Addresses that it was given, again or for the first time.
    pub given: u64,
    /// Other answers.
    pub told: u64,
    /// Addresses that it asked for and that are not its own.
    pub refused: u64,
    /// Times it gave an address back.
    pub released: u64,
    /// Times it said that somebody else has its address.
    pub declined: u64,
    /// When that was last an event.
    warned: Option<Instant>,
    /// Router advertisements, asked for or not.
    pub advertised: u64,
    /// When it is sent the next one, if there is something to say, and when it was sent the last one.
    next: Option<Instant>,
    last: Option<Instant>,
    /// What they say.
    advertisements: Told,
    /// What its subnets say may be new.
    is_stale: bool,
}

impl ServicesControl {
    /// Takes over what the config says of the vNICs that a change `concerned`; `gone` are indices of those that it took away.
    pub(super) fn configure(&mut self, gone: &[u32], concerned: &[Concerned<'_>]) {
        gone.iter().for_each(|index| drop(self.vnics.remove(index)));
        for Concerned { vnic, config } in concerned {
            let client = self.vnics.entry(vnic.index).or_default();
            client.host_name = config.told_host_name();
            client.is_stale = true;
        }
    }

    /// vNICs that an advertisement may be due to: those about which something may be new, and those whose time has come, the
    /// one that has waited for the longest first; some of them.
    fn due(&self, now: Instant) -> Vec<u32> {
        let is_due = |client: &Client| client.is_stale || client.next.is_some_and(|next| now >= next);
        let mut due: Vec<_> = self
            .vnics
            .iter()
            .filter(|(_, client)| is_due(client))
            .map(|(&index, client)| (client.next, index))
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(_, index)| index).take(MOST_IN_A_TURN).collect()
    }

    /// A vNIC by index.
    pub fn client(&self, vnic: u32) -> Option<&Client> {
        self.vnics.get(&vnic)
    }
}

impl Client {
    /// Takes down what came of a question; the frame to send, and what is an event.
    fn note(&mut self, answer: Answer, now: Instant) -> (Option<Vec<u8>>, Option<Vec<IpAddr>>) {
        self.seen = Some(now);
        self.requests += 1;
        let (count, frame, declined) = match answer {
            Answer::Told(frame) => (&mut self.told, Some(frame), None),
            Answer::Given(frame) => (&mut self.given, Some(frame), None),
            Answer::Refused(frame) => (&mut self.refused, Some(frame), None),
            Answer::Released(frame) => (&mut self.released, frame, None),
            Answer::Declined(addresses, frame) => (&mut self.declined, frame, Some(addresses)),
            Answer::Silence => return (None, None),
        };
        *count += 1;
        let due = |last: Instant| now.saturating_duration_since(last) >= DECLINES_EVERY;
        let declined = declined.filter(|_| self.warned.is_none_or(due));
        if declined.is_some() {
            self.warned = Some(now);
        }
        (frame, declined)
    }

    /// The router advertisements that it is sent now, of what there is to say from now on: when it asks, when its time has come, and
    /// when they say something new.
    fn advertise(&mut self, offer: Option<Offer>, asked: bool, now: Instant) -> Vec<Vec<u8>> {
        self.advertisements.update(offer);
        let was_stale = std::mem::take(&mut self.is_stale);
        let waits = self.next.is_some_and(|next| now < next);
        if was_stale && !asked && !self.advertisements.is_new() && waits {
            return Vec::new();
        }
        let frames = self.advertisements.frames();
        if frames.is_empty() {
            self.next = None;
            return frames;
        }
        if let Some(soonest) =
            self.last.map(|last| last + ADVERTISE_EVERY).filter(|soonest| asked && now < *soonest)
        {
            // It is answered all the same, when it may be (RFC 4861 section 6.2.6).
            self.next = Some(self.next.map_or(soonest, |next| next.min(soonest)));
            return Vec::new();
        }
        frames
    }

    /// Takes down that vNIC `index` was sent them, or that no worker took them.
    fn advertised(&mut self, index: u32, is_sent: bool, asked: bool, now: Instant) {
        self.advertisements.said(is_sent);
        self.next = self.advertisements.interval(index, self.advertised).map(|interval| now + interval);
        if !is_sent {
            return;
        }
        self.advertised += 1;
        self.last = Some(now);
        if asked {
            (self.seen, self.requests) = (Some(now), self.requests + 1);
        }
    }
}

/// An address of a vNIC, and what its subnet tells it.
#[derive(Clone, Copy)]
pub struct Served<'c> {
    /// The address: the vNIC's first of the family in such a subnet.
    pub address: IpAddr,
    /// The subnet.
    pub subnet: &'c SubnetConfig,
    /// Its service.
    pub dhcp: &'c DhcpConfig,
}

/// The address that a vNIC is told by DHCP, of a family.
pub fn served<'c>(config: &'c Config, snapshot: &Snapshot, vnic: &Vnic, is_v4: bool) -> Option<Served<'c>> {
    let vpc = snapshot.vpc(vnic.vpc)?;
    vnic.vips.iter().filter(|vip| vip.is_ipv4() == is_v4).find_map(|&address| {
        let holds =
            |subnet: &&SubnetConfig| subnet.vpc.as_str() == vpc.name && subnet.prefix.contains(&address);
        let subnet = config.subnets.iter().find(holds)?;
        Some(Served { address, subnet, dhcp: subnet.dhcp.as_ref()? })
    })
}

impl Switch {
    /// What is known of vNICs that asked services.
    pub fn services(&self) -> &ServicesControl {
        &self.services
    }

    /// Answers what vNICs asked.
    pub(super) fn tend_services(&mut self, now: Instant) {
        for _ in 0..MOST_IN_A_TURN {
            let Some(request) = self.pool.events.asked() else { break };
            self.serve(&request, now);
        }
        for _ in 0..MOST_IN_A_TURN {
            let Some(vnic) = self.pool.events.solicited() else { break };
            self.advertise(vnic, true, now);
        }
        if now.saturating_duration_since(self.services.looked.unwrap_or(self.started)) >= LOOK_EVERY {
            self.services.looked = Some(now);
            for vnic in self.services.due(now) {
                self.advertise(vnic, false, now);
            }
        }
    }

    /// Sends a vNIC the router advertisements that are due to it.
    fn advertise(&mut self, index: u32, asked: bool, now: Instant) {
        let snapshot = self.topology.snapshot().clone();
        let Some(vnic) = snapshot.vnic(index) else { return };
        let Some(vpc) = snapshot.vpc(vnic.vpc) else { return };
        let offer = Offer::of(&self.config, vpc, vnic);
        let Some(client) = self.services.vnics.get_mut(&index) else { return };
        let frames = client.advertise(offer, asked, now);
        if frames.is_empty() {
            return;
        }
        let is_sent = frames.iter().all(|frame| self.deliver(vnic, frame));
        if let Some(client) = self.services.vnics.get_mut(&index) {
            client.advertised(index, is_sent, asked, now);
        }
    }

    fn serve(&mut self, request: &ServiceRequest, now: Instant) {
        let snapshot = self.topology.snapshot().clone();
        // Its index may be another vNIC's by now.
        let Some(vnic) = snapshot.vnic(request.vnic).filter(|vnic| vnic.mac == request.mac) else { return };
        let client = self.services.vnics.entry(vnic.index).or_default();
        let answer = answer(&self.config, &snapshot, vnic, client, request);
        let (frame, declined) = client.note(answer, now);
        if let Some(addresses) = declined {
            let list = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            let text =
                format!("vNIC {} declines {list}: it heard somebody else with that address", vnic.name);
            tracing::warn!("{text}");
            self.events.add("dhcp-declined", text, json!({ "vnic": vnic.name, "addresses": addresses }));
        }
        if let Some(frame) = frame {
            // Lost, it would be as if the client had not been heard: it asks again.
            self.deliver(vnic, &frame);
        }
    }

    /// Sends a frame to a vNIC of this host. False when there is no buffer for it, or no worker takes it: the client asks again.
    fn deliver(&self, vnic: &Vnic, frame: &[u8]) -> bool {
        let owner = self.ports.get(vnic.port).and_then(|port| port.tx_workers.first().copied());
        let (Some(owner), Some(packet)) = (owner, self.mempool.alloc_from(frame)) else { return false };
        self.pool.workers[owner].mailbox().offer(WorkerCommand::Deliver(vnic.index, packet))
    }
}

fn answer(
    config: &Config,
    snapshot: &Snapshot,
    vnic: &Vnic,
    client: &Client,
    request: &ServiceRequest,
) -> Answer {
    let Some(served) = served(config, snapshot, vnic, request.source.is_ipv4()) else {
        return Answer::Silence;
    };
    let router_mac = snapshot.vpc(vnic.vpc).map(|vpc| vpc.router_mac).unwrap_or_default();
    match (served.address, served.subnet.prefix, served.subnet.gateway) {
        (IpAddr::V4(address), IpNet::V4(subnet), Some(IpAddr::V4(gateway))) => {
            let facts = dhcp4::Facts {
                mac: vnic.mac,
                address,
                subnet,
                router: (router_mac, gateway),
                mtu: vnic.mtu,
                host_name: client.host_name.clone(),
                dhcp: served.dhcp,
            };
            facts.answer(request.payload())
        }
        (IpAddr::V6(address), ..) => {
            let IpAddr::V6(from) = request.source else { return Answer::Silence };
            let facts = dhcp6::Facts { mac: vnic.mac, address, router: router_mac, dhcp: served.dhcp };
            facts.answer(from, request.payload())
        }
        _ => Answer::Silence,
    }
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;
    use wire::build::router::RouterAdvertisement;

    use super::*;

    #[test]
    fn services_what_is_advertised_no_more_is_taken_back_at_once_and_three_times() {
        let now = Instant::now();
        let (prefixes, dns) = (Vec::new(), Vec::new());
        let said = RouterAdvertisement { managed: false, lifetime: 1800, mtu: 1500, prefixes, dns };
        let offer = Some(Offer { router: MacAddr([2, 0, 0x5e, 0, 0, 100]), said });
        let mut client = Client { is_stale: true, ..Client::default() };
        assert_eq!(client.advertise(offer.clone(), false, now).len(), 1);
        client.advertised(7, true, false, now);
        assert!(client.next > Some(now + Duration::from_secs(199)));
        // Nothing is new; asked for too soon, it comes a little later.
        client.is_stale = true;
        assert!(client.advertise(offer.clone(), false, now).is_empty());
        assert!(client.advertise(offer, true, now).is_empty());
        assert_eq!(client.next, Some(now + ADVERTISE_EVERY));
        client.is_stale = true;
        for round in 0..3 {
            let then = now + Duration::from_secs(3) * round;
            assert!(round == 0 || client.next == Some(then), "{round}");
            assert_eq!(client.advertise(None, false, then).len(), 1, "{round}");
            client.advertised(7, true, false, then);
        }
        assert_eq!((client.next, client.advertised), (None, 4));
        assert!(client.advertise(None, true, now + Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn services_the_advertisement_that_waited_longest_comes_first() {
        let now = Instant::now();
        let ago = |seconds| Some(now.checked_sub(Duration::from_secs(seconds)).unwrap());
        let client = |next, is_stale| Client { next, is_stale, ..Client::default() };
        let vnics = [
            (1, client(ago(5), false)),
            (2, client(ago(9), false)),
            (3, client(Some(now + Duration::from_secs(5)), false)),
            // It has no advertisements, and one that may have some from now on.
            (4, client(None, false)),
            (5, client(None, true)),
            // What it was told may be otherwise now.
            (6, client(Some(now + Duration::from_secs(5)), true)),
        ];
        let services = ServicesControl { vnics: vnics.into(), looked: None };
        assert_eq!(services.due(now), [5, 2, 1, 6]);
        // However many there are, none waits behind those that were served since.
        let many = (0..1000).map(|index| (index, client(ago(u64::from(index) + 1), false)));
        let services = ServicesControl { vnics: many.collect(), looked: None };
        let due = services.due(now);
        assert_eq!(
            (due.len(), due[0], due[MOST_IN_A_TURN - 1]),
            (MOST_IN_A_TURN, 999, 1000 - MOST_IN_A_TURN as u32)
        );
    }
}
