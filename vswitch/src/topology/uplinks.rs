//! Uplinks in the snapshot, and the configured neighbours behind them.
//!
//! An uplink keeps its index while its name is in the config, whatever comes or goes beside it.
//!
//! Takes names, addresses and MACs from the config and the ports; resolves nothing itself.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use pipelines::next_hop::LinkSource;
use pipelines::snapshot::{NO_PORT, RouteTarget, Uplink};
use pipelines::vtep::{Vtep, Vteps};
use wire::MacAddr;

use super::paths::is_shared;
use super::{Ports, Topology, free_index, has, put};
use crate::config::{Config, UplinkConfig};
use crate::topology::underlay::{Hearing, NeighbourState, Neighbours};

/// What the name of a punt port has behind that of its uplink.
const PUNT: &str = ":punt";

impl Topology {
    pub(super) fn rebuild_uplinks(&mut self, config: &Config, ports: &dyn Ports, neighbours: &Neighbours) {
        let wanted: HashSet<&str> = config.uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
        self.draft.uplink_index.retain(|name, _| wanted.contains(name.as_str()));
        self.draft.uplinks.clear();
        let before = std::mem::take(&mut self.draft.next.uplinks);
        for uplink in &config.uplinks {
            let index = match self.draft.uplink_index.get(uplink.name.as_str()) {
                Some(&index) => index,
                None => {
                    let indices = &self.draft.uplink_index;
                    let index = free_index(indices, &BTreeSet::new(), |index| {
                        self.in_use().any(|snapshot| has(&snapshot.uplinks, index))
                    });
                    self.draft.uplink_index.insert(uplink.name.to_string(), index);
                    index
                }
            };
            self.draft.uplinks.push((index as u16, uplink.clone()));
            let (port, own) = ports.find(&uplink.name).unwrap_or((NO_PORT, MacAddr::ZERO));
            let mac = uplink.mac.unwrap_or(own);
            let mut v6: Vec<Ipv6Addr> = vec![link_local(mac)];
            let mut v4 = Vec::new();
            for net in &uplink.addresses {
                match net.addr() {
                    IpAddr::V4(address) => v4.push(address),
                    IpAddr::V6(address) => v6.push(address),
                }
            }
            let row = Uplink {
                name: uplink.name.to_string(),
                port,
                mac: mac.to_u64(),
                source: LinkSource::new(mac),
                v4,
                v6,
                mtu: uplink.mtu,
                vlan: uplink.vlan,
                udp6_zero_checksum: uplink.udp6_zero_checksum,
                silent: Vec::new(),
                punt: ports.find(&punt_name(&uplink.name)).map_or(NO_PORT, |(port, _)| port),
                punt_mtu: punt_mtu(uplink.mtu),
            };
            put(&mut self.draft.next.uplinks, index, Some(Arc::new(row)));
        }
        self.settle_speakers(neighbours);
        let addresses = |uplinks: &[Option<Arc<Uplink>>]| -> Vec<_> {
            uplinks.iter().flatten().map(|uplink| (uplink.v4.clone(), uplink.v6.clone())).collect()
        };
        if addresses(&before) != addresses(&self.draft.next.uplinks) {
            // No gateway leads to them.
            let all: Vec<u32> = self.draft.next.vpcs.iter().flatten().map(|vpc| vpc.index).collect();
            all.into_iter().for_each(|vpc| self.draft.next.touch_vpc(vpc));
        }
    }

    /// Says which uplink answers for each address that several have: of those that can send, and reach somebody, the ones with the
    /// lowest metric. True when that changes.
    pub fn settle_speakers(&mut self, neighbours: &Neighbours) -> bool {
        let uplinks = &self.draft.uplinks;
        if uplinks.len() < 2 {
            return false;
        }
        let hearing = neighbours.hearing();
        let of = |index: u16| hearing.get(&index).copied().unwrap_or_default();
        // Flows have left it for want of a next hop: what others send comes where they went.
        let is_deserted = |index: u16| {
            let hears = |other: u16| of(other).any && self.stands_in(other, index);
            of(index) == Hearing { any: false, silence: true }
                && uplinks.iter().any(|(other, _)| *other != index && hears(*other))
        };
        // One that is up comes before those that are not, one that BFD finds somebody by before those where it finds nobody, and one
        // that hears a next hop before those that hear none any more.
        let orders: HashMap<u16, _> = uplinks
            .iter()
            .map(|(index, uplink)| {
                let order =
                    (!self.ways.is_up(*index), self.is_cut_off(*index), is_deserted(*index), uplink.metric);
                (*index, order)
            })
            .collect();
        let order = |index: u16| orders.get(&index);
        let silent = |index: u16, own: &UplinkConfig| -> Vec<IpAddr> {
            let better = |address: &IpAddr| {
                uplinks.iter().any(|(other, uplink)| {
                    order(*other) < order(index) && uplink.addresses.iter().any(|net| net.addr() == *address)
                })
            };
            own.addresses.iter().map(IpNet::addr).filter(better).collect()
        };
        let silent: Vec<_> = uplinks.iter().map(|(index, uplink)| (*index, silent(*index, uplink))).collect();
        let mut any = false;
        for (index, silent) in silent {
            if self.draft.next.uplink(index).is_some_and(|row| row.silent != silent)
                && let Some(Some(row)) = self.draft.next.uplinks.get_mut(usize::from(index))
            {
                Arc::make_mut(row).silent = silent;
                any = true;
            }
        }
        any
    }

    /// True for an address that several uplinks have.
    pub fn is_shared(&self, address: IpAddr) -> bool {
        is_shared(self.draft.uplinks.iter().map(|(_, uplink)| uplink), address)
    }

    /// Which uplinks that can send answer for which addresses of the config.
    pub fn speakers(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        let up = self.draft.uplinks.iter().filter(|(index, _)| self.ways.is_up(*index));
        up.flat_map(|(index, uplink)| {
            let row = self.draft.next.uplink(*index);
            let addresses = uplink.addresses.iter().map(IpNet::addr);
            let spoken = addresses.filter(move |&address| row.is_some_and(|row| row.answers_for(address)));
            spoken.map(|address| (*index, address))
        })
    }

    /// True when one uplink can send, and has an address of another one.
    pub fn stands_in(&self, one: u16, other: u16) -> bool {
        let addresses = |index| {
            let uplink = uplink_of(&self.draft.uplinks, index);
            uplink.into_iter().flat_map(|uplink| uplink.addresses.iter().map(IpNet::addr))
        };
        self.ways.is_up(one) && addresses(one).any(|address| addresses(other).any(|own| own == address))
    }

    /// False for an uplink that cannot send.
    pub fn is_up(&self, uplink: u16) -> bool {
        self.ways.is_up(uplink)
    }

    /// Which VTEPs are heard, and in which VPCs: those of locations, flood lists and gateways there, those of the
    /// locations of VPCs that it has a route to, and everywhere those that the config lists.
    pub(super) fn rebuild_vteps(&mut self, config: &Config) {
        let listed: BTreeSet<IpAddr> =
            config.uplinks.iter().flat_map(|uplink| uplink.peers.iter().copied()).collect();
        if !std::mem::take(&mut self.draft.vteps_stale) && self.draft.listed == listed {
            return;
        }
        // By VPC and VTEP: in the order of what it is made from.
        let mut networks: BTreeSet<(u32, IpAddr)> = self.draft.behind.keys().copied().collect();
        let peers = self.draft.next.vpcs.iter().flatten().flat_map(|vpc| {
            vpc.routes().iter().filter_map(|(_, target)| match target {
                RouteTarget::Peer(peer) => Some((*peer, vpc.index)),
                RouteTarget::Gateways(_) | RouteTarget::Station(_) | RouteTarget::Blackhole => None,
            })
        });
        let peers: BTreeSet<(u32, u32)> = peers.collect();
        // A peer's stations send from where their locations are.
        let through: Vec<_> = peers
            .iter()
            .flat_map(|&(peer, related)| self.vteps_of(peer).map(move |vtep| (related, vtep)))
            .collect();
        networks.extend(through);
        let known: HashSet<IpAddr> =
            listed.iter().copied().chain(networks.iter().map(|&(_, vtep)| vtep)).collect();
        let mut known: Vec<IpAddr> = known.into_iter().collect();
        known.sort_unstable();
        let gone = self.draft.vteps.keys().filter(|vtep| known.binary_search(vtep).is_err());
        let gone: Vec<IpAddr> = gone.copied().collect();
        for vtep in gone {
            self.draft.vteps.remove(&vtep);
        }
        let numbered: Vec<(IpAddr, u32)> =
            known.into_iter().map(|vtep| (vtep, self.vtep_number(vtep))).collect();
        let vteps = numbered
            .iter()
            .filter_map(|&(address, number)| Some((address, Vtep::new(number, listed.contains(&address))?)));
        let numbers: HashMap<IpAddr, u32> = numbered.iter().copied().collect();
        let networks = networks.iter().filter_map(|&(vpc, vtep)| {
            let number = *numbers.get(&vtep)?;
            Some((number, self.draft.next.vpc(vpc)?.vni.get(), vpc))
        });
        self.draft.next.vteps = Vteps::new(vteps, networks);
        if self.draft.listed != listed {
            // Their stations need no locations.
            let all: Vec<u32> = self.draft.next.vpcs.iter().flatten().map(|vpc| vpc.index).collect();
            all.into_iter().for_each(|vpc| self.draft.next.touch_strangers(vpc));
            self.draft.listed = listed;
        }
    }
}

/// An uplink of an index.
fn uplink_of(uplinks: &[(u16, UplinkConfig)], index: u16) -> Option<&UplinkConfig> {
    uplinks.iter().find(|(known, _)| *known == index).map(|(_, uplink)| uplink)
}

/// Has the neighbours of uplinks that have another MAC now asked at once: they know the old one.
pub(super) fn doubt_neighbours(
    old: &[Option<Arc<Uplink>>],
    new: &[Option<Arc<Uplink>>],
    neighbours: &mut Neighbours,
) {
    for (index, pair) in (0..).zip(old.iter().zip(new)) {
        if let (Some(old), Some(new)) = pair
            && old.mac != new.mac
        {
            neighbours.doubt(index);
        }
    }
}

/// Makes the neighbours what the new uplinks say: forgets configured ones that are configured no more and all those
/// of an uplink that is gone or on another link now, enters the new ones.
pub(super) fn renew_neighbours(
    old: &[(u16, UplinkConfig)],
    new: &[(u16, UplinkConfig)],
    neighbours: &mut Neighbours,
) {
    let same_link = |index: u16| match (uplink_of(old, index), uplink_of(new, index)) {
        (Some(old), Some(new)) => old.name == new.name && old.port == new.port && old.vlan == new.vlan,
        _ => false,
    };
    let gone: HashSet<(u16, IpAddr)> = neighbours
        .list()
        .into_iter()
        .filter(|&(uplink, address, neighbour)| {
            let dropped =
                matches!(neighbour.state, NeighbourState::Static(_)) && !is_configured(new, uplink, address);
            dropped || !same_link(uplink)
        })
        .map(|(uplink, address, _)| (uplink, address))
        .collect();
    neighbours.retain(|uplink, address| !gone.contains(&(uplink, address)));
    for (index, uplink) in new {
        for neighbour in &uplink.neighbours {
            neighbours.set_static(*index, neighbour.ip, neighbour.mac);
        }
    }
}

/// True for a neighbour that is written in the config.
pub(super) fn is_configured(uplinks: &[(u16, UplinkConfig)], uplink: u16, address: IpAddr) -> bool {
    uplink_of(uplinks, uplink)
        .is_some_and(|uplink| uplink.neighbours.iter().any(|neighbour| neighbour.ip == address))
}

/// Name of the port that takes an uplink's non-VTEP traffic.
pub fn punt_name(uplink: &str) -> String {
    format!("{uplink}{PUNT}")
}

/// The uplink of a punt port.
pub fn punting_uplink(port: &str) -> &str {
    port.strip_suffix(PUNT).unwrap_or(port)
}

/// Largest IP packet of an uplink's punt port, which is a tap.
pub fn punt_mtu(uplink: u16) -> u16 {
    uplink.min(pmd::port::MAX_TAP_MTU)
}

fn link_local(mac: MacAddr) -> Ipv6Addr {
    let m = mac.0;
    let [a, b, c, d] = [
        u16::from_be_bytes([m[0] ^ 2, m[1]]),
        u16::from_be_bytes([m[2], 0xff]),
        u16::from_be_bytes([0xfe, m[3]]),
        u16::from_be_bytes([m[4], m[5]]),
    ];
    Ipv6Addr::new(0xfe80, 0, 0, 0, a, b, c, d)
}
