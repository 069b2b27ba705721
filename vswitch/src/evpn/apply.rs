//! From the book to the switch: what it is to have otherwise, compared with what it has, and done in batches on the control thread.
//!
//! What it does belongs to the owner `evpn`, and what others made is left alone. What cannot be is refused singly, and tried again when
//! something of the switch has changed. Routes are tried as one change; of those that are refused so, each is looked at by itself, which costs
//! little, and what is left and refused still is found by halves (`halves.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use wire::{MacAddr, Vni};

use super::book::{Book, Dirty, Lead};
use super::halves::{Possible, bring};
use crate::config::objects::{location_id, location_of};
use crate::config::{Config, GatewayConfig, LocationConfig, Name, RouteTargetConfig, VpcConfig, VpcRoute};
use crate::control::tries::Tries;
use crate::control::turns::Turns;
use crate::controller::Controller;
use crate::state::owners::Owner;
use crate::switch::following::{Heard, Refused, Said};
use crate::switch::view::View;
use crate::switch::{Switch, SwitchError};
use crate::topology::TopologyError;
use crate::topology::stations::Stations;

/// Addresses, stations and prefixes of a batch each: control does others' work between two.
const BATCH: usize = 1000;

impl View {
    /// What belongs to EVPN, as something to look at.
    pub fn owned(&self) -> Dirty {
        let mut owned = Dirty::default();
        for ((section, id), owner) in self.owners.at_run_time.iter() {
            match section.as_str() {
                _ if owner != Owner::Evpn => {}
                "location" => {
                    owned.addresses.extend(location_of(id).map(|(vni, ip)| (vni.get(), ip)));
                }
                "route" => {
                    let Some((first, second)) = id.split_once(' ') else { continue };
                    let vpc = self.config.vpcs.iter().find(|vpc| vpc.name.as_str() == first);
                    if let (Some(vpc), Ok(to)) = (vpc, second.parse()) {
                        owned.prefixes.insert((vpc.vni.get(), to));
                    }
                }
                _ => {}
            }
        }
        owned
    }
}

/// The vNIC of this host whose address is in a prefix within a subnet of a VPC: packets that are routed to it would follow the prefix, for
/// routes that are longer than a subnet win.
fn of_a_vnic_here<'c>(config: &'c Config, vpc: &VpcConfig, to: IpNet) -> Option<&'c Name> {
    let within = config.subnets.iter().filter(|subnet| {
        subnet.vpc == vpc.name && subnet.prefix.contains(&to) && subnet.prefix.prefix_len() < to.prefix_len()
    });
    within.into_iter().next()?;
    let of_vpc = config.vnics.iter().filter(|vnic| vnic.vpc == vpc.name);
    let mut here = of_vpc.filter(|vnic| vnic.vips.iter().any(|vip| to.contains(vip)));
    here.next().map(|vnic| &vnic.name)
}

/// Something that the switch is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Address(u32, IpAddr),
    Station(u32, MacAddr),
    Prefix(u32, IpNet),
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(vni, ip) => write!(f, "{ip} in VNI {vni}"),
            Self::Station(vni, mac) => write!(f, "{mac} in VNI {vni}"),
            Self::Prefix(vni, to) => write!(f, "{to} in VNI {vni}"),
        }
    }
}

/// A route of a VPC that comes, changes or goes.
#[derive(Clone, Debug)]
pub struct RouteChange {
    pub vni: u32,
    pub vpc: Name,
    pub to: IpNet,
    pub target: Option<RouteTargetConfig>,
    /// It could not be when it was last tried.
    pub was_refused: bool,
}

/// What control is to do.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    heard: Heard,
    stations: Stations,
    routes: Vec<RouteChange>,
}

impl Changes {
    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.stations.is_empty() && self.routes.is_empty()
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    refused: Vec<(Item, String)>,
    /// Those of them for which the VLT has no room.
    without_room: Vec<Item>,
    /// Routes of which it is not clear yet which of them cannot be.
    pub unclear: Vec<RouteChange>,
    /// Something went wrong with all of it.
    pub error: Option<String>,
    /// Of the switch before and after.
    pub revisions: (u64, u64),
}

impl Applied {
    /// All of it went wrong.
    pub fn failed(error: &str) -> Self {
        Self { error: Some(error.to_owned()), ..Self::default() }
    }
}

/// What is between the book and the switch.
#[derive(Debug, Default)]
pub struct Applier {
    /// What the switch was told.
    members: BTreeMap<u32, BTreeSet<IpAddr>>,
    refused: BTreeMap<Item, String>,
    /// Those of them that wait for room in the VLT.
    without_room: Turns<Item>,
    /// Prefixes that only the switch itself found out to be impossible, with what they were to lead to.
    tried: BTreeMap<(u32, IpNet), Option<RouteTargetConfig>>,
    /// Those of them that are to be tried again, when that may be.
    put_off: BTreeSet<(u32, IpNet)>,
    tries: Tries,
    /// What others made, and say otherwise.
    others: BTreeSet<Item>,
}

impl Applier {
    /// What was refused, with the reasons.
    pub fn refused(&self) -> &BTreeMap<Item, String> {
        &self.refused
    }

    /// What others made.
    pub fn others(&self) -> usize {
        self.others.len()
    }

    /// Of what is dirty a batch, as changes; what is left stays dirty.
    pub fn changes(&mut self, dirty: &mut Dirty, book: &Book, view: &View, now: Instant) -> Changes {
        let mut changes = Changes::default();
        let may_try = self.tries.may(now);
        for _ in 0..BATCH {
            let Some((vni, ip)) = dirty.addresses.pop_first() else { break };
            self.address(vni, ip, book, view, &mut changes.heard);
        }
        for _ in 0..BATCH {
            let Some((vni, to)) = dirty.prefixes.pop_first() else { break };
            changes.routes.extend(self.prefix(vni, to, book, view, may_try));
        }
        for _ in 0..BATCH {
            let Some(vni) = dirty.floods.pop_first() else { break };
            let Ok(of) = Vni::new(vni) else { continue };
            let vteps = if view.vpc(of).is_some() { book.floods(vni) } else { BTreeSet::new() };
            let told = self.members.get(&vni).cloned().unwrap_or_default();
            if told != vteps {
                match vteps.is_empty() {
                    true => self.members.remove(&vni),
                    false => self.members.insert(vni, vteps.clone()),
                };
                changes.heard.members.insert(of, vteps);
            }
        }
        for _ in 0..BATCH {
            let Some((vni, mac)) = dirty.stations.pop_first() else { break };
            self.forget_refusal(&Item::Station(vni, mac));
            // Those of a network that is gone went with it.
            let Some(of) = Vni::new(vni).ok().filter(|of| view.has_network(*of)) else { continue };
            let wanted = book.bare_station(vni, mac);
            if wanted != view.station(of, mac) {
                changes.stations.insert((of, mac), wanted);
            }
        }
        changes
    }

    fn forget_refusal(&mut self, item: &Item) {
        self.refused.remove(item);
        self.without_room.remove(item);
    }

    /// True while something waits for room in the VLT.
    pub fn waits_for_room(&self) -> bool {
        !self.without_room.is_empty()
    }

    /// Has as much be looked at again as there is room for, of what waits for that, each in its turn.
    pub fn ask_for_room(&mut self, room: usize, dirty: &mut Dirty) {
        for item in self.without_room.next(room) {
            match item {
                Item::Address(vni, ip) => _ = dirty.addresses.insert((vni, ip)),
                Item::Station(vni, mac) => _ = dirty.stations.insert((vni, mac)),
                Item::Prefix(..) => {}
            }
        }
    }

    fn address(&mut self, vni: u32, ip: IpAddr, book: &Book, view: &View, heard: &mut Heard) {
        let item = Item::Address(vni, ip);
        self.forget_refusal(&item);
        self.others.remove(&item);
        let Ok(of) = Vni::new(vni) else { return };
        let wanted = book.address(vni, ip).filter(|_| view.vpc(of).is_some());
        let known = view.location(of, ip);
        if let Some(known) = known {
            let is_ours = view.owners.of("location", &location_id(known)) == Owner::Evpn;
            match wanted {
                _ if !is_ours => {
                    if wanted.is_some() {
                        self.others.insert(item);
                    }
                    return;
                }
                None => return heard.gone.push((of, ip)),
                Some(place) if known.mac == place.mac && known.vtep == place.vtep => return,
                Some(_) => {}
            }
        }
        if let Some(place) = wanted {
            let groups = known.map(|known| known.groups.clone()).unwrap_or_default();
            heard.come.push(LocationConfig { vni: of, vip: ip, mac: place.mac, vtep: place.vtep, groups });
        }
    }

    fn prefix(
        &mut self,
        vni: u32,
        to: IpNet,
        book: &Book,
        view: &View,
        may_try: bool,
    ) -> Option<RouteChange> {
        let item = Item::Prefix(vni, to);
        let refused = self.refused.remove(&item);
        self.others.remove(&item);
        let vpc = view.vpc(Vni::new(vni).ok()?)?;
        let target = book.prefix(vni, to).map(|lead| match lead {
            Lead::Station(mac) => RouteTargetConfig::Station { mac },
            Lead::Routers(places) => {
                let gateway = |place: &super::book::Place| GatewayConfig { vtep: place.vtep, mac: place.mac };
                RouteTargetConfig::Gateways(places.iter().map(gateway).collect())
            }
        });
        let (target, refused) = match target
            .is_some()
            .then(|| of_a_vnic_here(&view.config, vpc, to))
            .flatten()
        {
            Some(vnic) => {
                let why = format!(
                    "it is within a subnet, and the address of vNIC {vnic} of this host is in it: packets for that would leave this host; \
                     have whoever announces it leave out what is within a subnet of the VPC"
                );
                self.refused.insert(item, why);
                (None, None)
            }
            None => (target, refused),
        };
        if let Some(tried) = self.tried.remove(&(vni, to))
            && let (Some(why), false) = (&refused, may_try)
            && tried == target
        {
            self.refused.insert(item, why.clone());
            self.tried.insert((vni, to), tried);
            self.put_off.insert((vni, to));
            return None;
        }
        let known = vpc.routes.iter().find(|route| route.to == to);
        if known.is_some() && view.owners.of("route", &route_id(&vpc.name, to)) != Owner::Evpn {
            if target.is_some() {
                self.others.insert(item);
            }
            return None;
        }
        let differs = known.map(|route| &route.target) != target.as_ref();
        let was_refused = refused.is_some();
        differs.then(|| RouteChange { vni, vpc: vpc.name.clone(), to, target, was_refused })
    }

    /// The prefixes that were put off, where they may be tried again.
    pub fn take_put_off(&mut self, now: Instant) -> BTreeSet<(u32, IpNet)> {
        match self.tries.may(now) {
            true => std::mem::take(&mut self.put_off),
            false => BTreeSet::new(),
        }
    }

    /// The switch refused a route that was tried alone.
    pub fn refuse(&mut self, route: RouteChange, why: String) {
        self.refused.insert(Item::Prefix(route.vni, route.to), why);
        self.tried.insert((route.vni, route.to), route.target);
    }

    /// Routes were tried in halves, and control was at that for so long.
    pub fn tried_for(&mut self, time: Duration, now: Instant) {
        self.tries.took(now, time);
    }

    /// Takes in what came of changes. What went wrong as a whole is dirty again.
    pub fn took(&mut self, changes: &Changes, applied: &Applied, dirty: &mut Dirty) {
        self.refused.extend(applied.refused.iter().cloned());
        applied.without_room.iter().for_each(|item| self.without_room.add(*item));
        if applied.error.is_none() {
            return;
        }
        let come = changes.heard.come.iter().map(|location| (location.vni.get(), location.vip));
        dirty.addresses.extend(come.chain(changes.heard.gone.iter().map(|(vni, ip)| (vni.get(), *ip))));
        dirty.prefixes.extend(changes.routes.iter().map(|route| (route.vni, route.to)));
        for vni in changes.heard.members.keys() {
            self.members.remove(&vni.get());
            dirty.floods.insert(vni.get());
        }
        for (vni, mac) in changes.stations.keys() {
            dirty.stations.insert((vni.get(), *mac));
        }
    }
}

fn route_id(vpc: &Name, to: IpNet) -> String {
    format!("{vpc} {to}")
}

/// Does it, on the control thread.
pub fn apply(controller: &mut Controller, changes: Changes) -> Applied {
    let switch = &mut controller.switch;
    let before = switch.changes().revision();
    let Changes { heard, stations, routes } = changes;
    let mut applied = Applied::default();
    if !heard.is_empty() {
        let mut refused = Vec::new();
        match switch.hear(Owner::Evpn, heard, &mut refused) {
            Ok(()) => {}
            // It is in force, and the next change saves it with its own.
            Err(SwitchError::NotSaved(error)) => tracing::warn!(%error, "what other hosts say is not saved"),
            Err(error) => applied.error = Some(error.to_string()),
        }
        for Refused { what, why, for_want_of_room } in refused {
            // VTEPs are the switch's to tell of and to place.
            let Said::Location(vni, vip) = what else { continue };
            let item = Item::Address(vni.get(), vip);
            applied.without_room.extend(for_want_of_room.then_some(item));
            applied.refused.push((item, why));
        }
    }
    if !stations.is_empty() {
        match switch.follow_stations(&stations) {
            Ok(refused) => {
                for ((vni, mac), why) in refused {
                    let item = Item::Station(vni.get(), mac);
                    let for_want_of_room = matches!(why, TopologyError::VltFull { .. });
                    applied.without_room.extend(for_want_of_room.then_some(item));
                    applied.refused.push((item, why.to_string()));
                }
            }
            Err(error) => applied.error = Some(error.to_string()),
        }
    }
    let shared = switch.shared_config();
    let mut possible = Possible::of(&shared);
    match bring(routes, |route| possible.refusal(route), |routes| route_all(switch, routes)) {
        Ok(brought) => {
            applied.refused.extend(brought.refused);
            applied.unclear = brought.unclear;
        }
        Err(error) => applied.error = Some(error.to_string()),
    }
    applied.revisions = (before, switch.changes().revision());
    applied
}

/// What came of one piece of some routes, on the control thread.
pub struct Tried {
    pub result: Result<(), SwitchError>,
    /// How long control was at it.
    pub took: Duration,
    /// Of the switch before and after.
    pub revisions: (u64, u64),
}

/// Tries a piece of some routes, on the control thread.
pub fn try_piece(controller: &mut Controller, routes: &[RouteChange]) -> Tried {
    let switch = &mut controller.switch;
    let (begun, before) = (Instant::now(), switch.changes().revision());
    let result = route_all(switch, routes);
    Tried { result, took: begun.elapsed(), revisions: (before, switch.changes().revision()) }
}

fn route_all(switch: &mut Switch, routes: &[RouteChange]) -> Result<(), SwitchError> {
    let owned = routes.iter().filter(|route| route.target.is_some());
    let made = owned.map(|route| (("route".to_owned(), route_id(&route.vpc, route.to)), Owner::Evpn));
    let made = made.collect();
    let result = switch.edit_heard(made, |config| {
        for route in routes {
            let Some(vpc) = config.vpcs.iter_mut().find(|vpc| vpc.name == route.vpc) else { continue };
            let at = vpc.routes.iter().position(|known| known.to == route.to);
            match (&route.target, at) {
                (Some(target), Some(at)) => vpc.routes[at].target = target.clone(),
                (Some(target), None) => {
                    vpc.routes.push(VpcRoute { to: route.to, target: target.clone() });
                }
                (None, Some(at)) => drop(vpc.routes.remove(at)),
                (None, None) => {}
            }
        }
        Ok(())
    });
    match result {
        // It is in force, and the next change saves it with its own.
        Err(SwitchError::NotSaved(error)) => {
            tracing::warn!(%error, "prefixes of other hosts are not saved");
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evpn_prefixes_within_a_subnet_lead_no_packet_away_from_a_vnic_here() {
        let text = "[[vpc]]\nname = \"red\"\nvni = 100\n[[vpc]]\nname = \"blue\"\nvni = 200\n\
            [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.2.0/24\"\n[[subnet]]\nvpc = \"blue\"\nprefix = \"10.0.2.0/24\"\n\
            [[vnic]]\nname = \"b\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"10.0.2.6\"]\n\
            port = { kind = \"null\" }\n";
        let config = Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"));
        let here = |vpc: usize, to: &str| {
            of_a_vnic_here(&config, &config.vpcs[vpc], to.parse().unwrap()).map(Name::as_str)
        };
        assert_eq!([here(0, "10.0.2.6/32"), here(0, "10.0.2.0/25")], [Some("b"); 2]);
        for to in ["10.0.2.7/32", "10.0.2.128/25", "10.0.2.0/24", "10.0.0.0/16", "0.0.0.0/0"] {
            assert_eq!(here(0, to), None, "{to}");
        }
        assert_eq!(here(1, "10.0.2.6/32"), None);
    }

    #[test]
    fn evpn_what_waits_for_room_has_its_turn_when_there_is_some() {
        let mut applier = Applier::default();
        let address = |last: u8| Item::Address(7, IpAddr::from([10, 0, 0, last]));
        let station = Item::Station(7, MacAddr([2, 0, 0, 0, 0, 1]));
        let without_room = vec![address(1), address(2), address(3), station];
        let refused = without_room.iter().map(|item| (*item, "no room".to_owned())).collect();
        let applied = Applied { refused, without_room, ..Applied::default() };
        applier.took(&Changes::default(), &applied, &mut Dirty::default());
        assert!(applier.waits_for_room());
        let mut ask = |room| {
            let mut dirty = Dirty::default();
            applier.ask_for_room(room, &mut dirty);
            let last = |ip: &IpAddr| if let IpAddr::V4(ip) = ip { ip.octets()[3] } else { 0 };
            (dirty.addresses.iter().map(|(_, ip)| last(ip)).collect::<Vec<_>>(), dirty.stations.len())
        };
        assert_eq!(ask(0), (vec![], 0));
        assert_eq!([ask(2), ask(2), ask(2)], [(vec![1, 2], 0), (vec![3], 1), (vec![1, 2], 0)]);
        assert_eq!(ask(9), (vec![1, 2, 3], 1));
        // What is looked at again waits no more, unless it is refused again.
        for item in [address(1), address(2), address(3), station] {
            applier.forget_refusal(&item);
        }
        assert!(!applier.waits_for_room() && applier.refused().is_empty());
    }
}
