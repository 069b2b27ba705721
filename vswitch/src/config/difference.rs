//! What one config has otherwise than another, and the part of each that a change between them concerns: what is then
//! checked, published and saved, instead of everything.
//!
//! A part is a config like any other and goes through the same checks. What it lacks are locations, and vNICs that the
//! change neither alters nor can be at odds with: those that share no name, MAC address, VIP or VLAN with one that it
//! alters, are in no VPC and on no trunk that it alters, have neither a device of their own nor rates that add up with
//! others that change, and that no route names.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::Vector;
use wire::{MacAddr, Vni};

use super::{Config, LocationConfig, Name, RouteTargetConfig, VnicConfig, VnicPort, VnicQos, VpcConfig};

/// With more vNICs than that to compare every other one with, the whole is looked at.
const MOST: usize = 16;

/// A change from one config to another.
#[derive(Debug)]
pub struct Difference<'c> {
    /// The part of the config before that the change concerns.
    pub old: Cow<'c, Config>,
    /// The part of the config after it.
    pub new: Cow<'c, Config>,
    /// vNICs that go, or go on otherwise: as they were, in the order of the config.
    pub before: Vec<&'c Arc<VnicConfig>>,
    /// vNICs that come, or go on otherwise: as they become, in the order of the config.
    pub after: Vec<&'c Arc<VnicConfig>>,
    /// Locations that come, move or go with it.
    pub relocation: Relocation,
    /// Something differs that all vNICs depend on, or too much does: the parts are the whole configs.
    pub is_whole: bool,
    /// Locations stay as they are, but for those of [`relocation`](Self::relocation), and are in neither part.
    pub keeps_locations: bool,
}

/// Locations that come, move or go with a change, beside what follows from its vNICs and networks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Relocation {
    /// Where addresses are from now on: also those of vNICs that move to other hosts.
    pub come: Vec<LocationConfig>,
    /// Addresses that are on no other host any more.
    pub gone: Vec<(Vni, IpAddr)>,
}

impl Relocation {
    /// All locations stay.
    pub const NONE: Self = Self { come: Vec::new(), gone: Vec::new() };

    /// The addresses whose locations do not stay as they are.
    pub fn addresses(&self) -> HashSet<(Vni, IpAddr)> {
        let come = self.come.iter().map(|location| (location.vni, location.vip));
        come.chain(self.gone.iter().copied()).collect()
    }
}

/// The locations that a change leaves where they are.
pub struct KeptLocations<'l> {
    /// That of an address.
    pub at: &'l dyn Fn(Vni, IpAddr) -> Option<LocationConfig>,
    /// Those of a network that nobody but the operator of this host takes away: neither of etcd nor of EVPN, which say it anew.
    pub of: &'l dyn Fn(Vni) -> Vec<LocationConfig>,
}

impl<'c> Difference<'c> {
    /// The change as one that concerns everything.
    pub fn whole(old: &'c Config, new: &'c Config) -> Self {
        let (before, after) = altered_vnics(old, new);
        let (old, new) = (Cow::Borrowed(old), Cow::Borrowed(new));
        Self { old, new, before, after, relocation: Relocation::NONE, is_whole: true, keeps_locations: false }
    }

    /// What `new` has otherwise than `old`, locations aside.
    pub fn between(old: &'c Config, new: &'c Config) -> Self {
        let whole = Self::whole(old, new);
        if whole.before.len() + whole.after.len() > MOST || !has_same_settings(old, new) {
            return Self { keeps_locations: true, ..whole };
        }
        let Self { before, after, .. } = whole;
        let touched = Touched::by(old, new, &before, &after);
        let comes = |vnic: &Arc<VnicConfig>| after.iter().any(|altered| Arc::ptr_eq(altered, vnic));
        let concerned: Vector<_> = new.vnics.iter().filter(|vnic| touched.concerns(vnic)).cloned().collect();
        let stays = concerned.iter().filter(|vnic| !comes(vnic));
        let were = before.iter().copied().chain(stays).cloned().collect();
        Self {
            old: Cow::Owned(old.with_vnics(were)),
            new: Cow::Owned(new.with_vnics(concerned)),
            before,
            after,
            relocation: Relocation::NONE,
            is_whole: false,
            keeps_locations: true,
        }
    }

    /// The same change, with which locations come, move or go.
    #[must_use]
    pub fn and_relocation(self, relocation: Relocation) -> Self {
        Self { relocation, ..self }
    }

    /// Locations that end with the change, because a vNIC of this host has their address from now on: the machine behind
    /// the address moves here. `find` knows the locations.
    pub fn moved_here(&self, find: impl Fn(Vni, IpAddr) -> Option<LocationConfig>) -> Vec<LocationConfig> {
        let same = self.taken(find).filter(|(vnic, location)| vnic.mac == location.mac);
        same.map(|(_, location)| location).collect()
    }

    /// The locations whose addresses vNICs are to have, with the vNICs.
    fn taken(
        &self,
        find: impl Fn(Vni, IpAddr) -> Option<LocationConfig>,
    ) -> impl Iterator<Item = (&VnicConfig, LocationConfig)> {
        let vnis: HashMap<&Name, Vni> = self.new.vpcs.iter().map(|vpc| (&vpc.name, vpc.vni)).collect();
        let addresses = self.after.iter().flat_map(move |vnic| {
            let vni = vnis.get(&vnic.vpc).copied();
            vnic.vips.iter().filter_map(move |vip| Some((vnic.as_ref(), vni?, *vip)))
        });
        addresses.filter_map(move |(vnic, vni, vip)| Some((vnic, find(vni, vip)?)))
    }

    /// What has to be valid for the config after the change to be: the parts, with those of the locations that stay which it may be at
    /// odds with.
    pub fn to_check(&self, kept: &KeptLocations<'_>) -> Cow<'_, Config> {
        if !self.keeps_locations && self.relocation.come.is_empty() {
            return Cow::Borrowed(&self.new);
        }
        let mut checked = self.new.clone().into_owned();
        checked.locations.extend(self.relocation.come.iter().cloned());
        if self.keeps_locations {
            // With the MAC address of the vNIC it is the vNIC itself, which moves here; another one must not be there.
            let others = self.taken(kept.at).filter(|(vnic, location)| vnic.mac != location.mac);
            let others = others.map(|(_, other)| other).chain(self.left_in_groups(kept.of));
            let mut known = self.relocation.addresses();
            checked.locations.extend(others.filter(|location| known.insert((location.vni, location.vip))));
        }
        Cow::Owned(checked)
    }

    /// Locations in security groups that go, or are another network's from now on.
    fn left_in_groups(&self, of: &dyn Fn(Vni) -> Vec<LocationConfig>) -> Vec<LocationConfig> {
        let vni = |config: &Config, name: &Name| find_vpc(config, name).map(|vpc| vpc.vni);
        let new: HashMap<&Name, Option<Vni>> =
            self.new.security_groups.iter().map(|group| (&group.name, vni(&self.new, &group.vpc))).collect();
        let mut gone: HashMap<Vni, HashSet<&Name>> = HashMap::new();
        for group in &self.old.security_groups {
            let Some(before) = vni(&self.old, &group.vpc) else { continue };
            if new.get(&group.name).copied().flatten() != Some(before) {
                gone.entry(before).or_default().insert(&group.name);
            }
        }
        // The locations of a network that goes go with it.
        gone.retain(|before, _| self.new.vpcs.iter().any(|vpc| vpc.vni == *before));
        let in_them = gone.into_iter().flat_map(|(vni, groups)| {
            let mut locations = of(vni);
            locations.retain(|location| location.groups.iter().any(|group| groups.contains(group)));
            locations
        });
        in_them.collect()
    }

    /// Names of the vNICs that go.
    pub fn gone(&self) -> Vec<&'c Name> {
        let stay: HashSet<&Name> = self.after.iter().map(|vnic| &vnic.name).collect();
        self.before.iter().map(|vnic| &vnic.name).filter(|name| !stay.contains(name)).collect()
    }
}

/// What a change alters, by what may be at odds with it.
struct Touched<'c> {
    /// vNICs that come, go or change: as they were, and as they become.
    vnics: Vec<&'c VnicConfig>,
    /// Uplinks, trunks and ports that go, come or change.
    ports: HashSet<&'c Name>,
    /// VPCs of which that is so, or of a subnet of them.
    vpcs: HashSet<&'c Name>,
    /// vNICs that routes lead to by their names, whether or not these routes are altered: a part has all VPCs.
    targets: HashSet<&'c Name>,
    /// Rates, which are summed up along the tree.
    rates: bool,
}

impl<'c> Touched<'c> {
    fn by(
        old: &'c Config,
        new: &'c Config,
        before: &[&'c Arc<VnicConfig>],
        after: &[&'c Arc<VnicConfig>],
    ) -> Self {
        let vnics: Vec<&VnicConfig> = before.iter().chain(after).copied().map(Arc::as_ref).collect();
        let mut ports = altered(&old.trunks, &new.trunks, |trunk| &trunk.name);
        ports.extend(altered(&old.ports, &new.ports, |port| &port.name));
        let mut vpcs = altered(&old.vpcs, &new.vpcs, |vpc| &vpc.name);
        // No vNIC can be at odds with a route but one that it names.
        vpcs.retain(|name| !differs_by_routes(find_vpc(old, name), find_vpc(new, name)));
        let apart = old.subnets.iter().filter(|subnet| !new.subnets.contains(subnet));
        let apart = apart.chain(new.subnets.iter().filter(|subnet| !old.subnets.contains(subnet)));
        vpcs.extend(apart.map(|subnet| &subnet.vpc));
        let of_vpcs = |config: &'c Config| {
            let with_rates = config.vpcs.iter().filter(|vpc| vpc.qos != super::BothWays::default());
            with_rates.map(|vpc| (&vpc.name, &vpc.qos)).collect::<HashMap<_, _>>()
        };
        let rates = vnics.iter().any(|vnic| has_rates(vnic)) || of_vpcs(old) != of_vpcs(new);
        let targets = new.vpcs.iter().flat_map(|vpc| &vpc.routes).filter_map(|route| match &route.target {
            RouteTargetConfig::Vnic { vnic } => Some(vnic),
            _ => None,
        });
        Self { vnics, ports, vpcs, targets: targets.collect(), rates }
    }

    fn concerns(&self, vnic: &VnicConfig) -> bool {
        // Devices are told from each other, and counted.
        let has_device = match &vnic.port {
            VnicPort::Own(_) => true,
            VnicPort::Trunk(trunk) => self.ports.contains(trunk),
        };
        has_device
            || self.vpcs.contains(&vnic.vpc)
            || self.ports.contains(&vnic.name)
            || self.rates && has_rates(vnic)
            || self.targets.contains(&vnic.name)
            || self.vnics.iter().any(|altered| is_related(altered, vnic))
    }
}

fn find_vpc<'c>(config: &'c Config, name: &Name) -> Option<&'c VpcConfig> {
    config.vpcs.iter().find(|vpc| vpc.name == *name)
}

/// True for two VPCs that have other routes, and nothing else otherwise.
fn differs_by_routes(old: Option<&VpcConfig>, new: Option<&VpcConfig>) -> bool {
    old.zip(new).is_some_and(|(old, new)| VpcConfig { routes: new.routes.clone(), ..old.clone() } == *new)
}

fn has_rates(vnic: &VnicConfig) -> bool {
    vnic.qos != VnicQos::default()
}

fn is_related(vnic: &VnicConfig, other: &VnicConfig) -> bool {
    // What costs the least first: this is asked of every vNIC.
    (other.mac == vnic.mac || allows_mac(vnic, other.mac) || allows_mac(other, vnic.mac))
        && other.vpc == vnic.vpc
        || other.vlan == vnic.vlan && other.port == vnic.port
        || other.vips.iter().any(|vip| vnic.vips.contains(vip)) && other.vpc == vnic.vpc
        || other.name == vnic.name
}

fn allows_mac(vnic: &VnicConfig, mac: MacAddr) -> bool {
    vnic.allowed.iter().any(|pair| pair.mac == Some(mac))
}

/// True when nothing differs but what [`Touched`] tells of.
fn has_same_settings(old: &Config, new: &Config) -> bool {
    // By name, so that a new section is not forgotten here.
    let Config {
        eal,
        workers,
        forward,
        api,
        control,
        nft,
        vlt,
        vxlan,
        rdma,
        rcft,
        qos,
        security,
        offload,
        uplinks,
        vpcs: _,
        subnets: _,
        security_groups,
        trunks: _,
        vnics: _,
        locations: _,
        ports: _,
    } = old;
    *eal == new.eal
        && *workers == new.workers
        && *forward == new.forward
        && *api == new.api
        && *control == new.control
        && *nft == new.nft
        && *vlt == new.vlt
        && *vxlan == new.vxlan
        && *rdma == new.rdma
        && *rcft == new.rcft
        && *qos == new.qos
        && *security == new.security
        && *security_groups == new.security_groups
        && offload.is_but_for_enabled(&new.offload)
        && *uplinks == new.uplinks
}

/// Names of the objects that one of two lists lacks or has otherwise.
fn altered<'c, T: PartialEq>(old: &'c [T], new: &'c [T], name: fn(&T) -> &Name) -> HashSet<&'c Name> {
    let by_name = |list: &'c [T]| list.iter().map(|object| (name(object), object)).collect::<HashMap<_, _>>();
    let (before, after) = (by_name(old), by_name(new));
    let names = before.keys().chain(after.keys()).copied();
    names.filter(|name| before.get(name) != after.get(name)).collect()
}

/// The vNICs that one of two configs lacks or has otherwise than the other: of the first, and of the second.
fn altered_vnics<'c>(
    old: &'c Config,
    new: &'c Config,
) -> (Vec<&'c Arc<VnicConfig>>, Vec<&'c Arc<VnicConfig>>) {
    // Mostly nearly all are the same ones, at the same places.
    let is_same = |(old, new): &(&Arc<VnicConfig>, &Arc<VnicConfig>)| Arc::ptr_eq(old, new);
    let (old, new) = (&old.vnics, &new.vnics);
    let ahead = old.iter().zip(new).take_while(is_same).count();
    let rest = old.len().min(new.len()) - ahead;
    let behind = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(is_same).count();
    let between = |list: &'c Vector<Arc<VnicConfig>>| list.iter().take(list.len() - behind).skip(ahead);
    let by_name = |list| between(list).map(|vnic| (&vnic.name, vnic)).collect::<HashMap<_, _>>();
    let (before, after) = (by_name(old), by_name(new));
    let mut known = HashSet::new();
    (
        between(old).filter(|vnic| after.get(&vnic.name) != Some(vnic)).collect(),
        // A second one of the same name is a fault to be found, also where the first is as it was.
        between(new)
            .filter(|vnic| !known.insert(&vnic.name) || before.get(&vnic.name) != Some(vnic))
            .collect(),
    )
}

impl Config {
    /// The same with other vNICs, and without locations.
    #[must_use]
    pub fn with_vnics(&self, vnics: Vector<Arc<VnicConfig>>) -> Self {
        Self {
            eal: self.eal.clone(),
            workers: self.workers.clone(),
            forward: self.forward.clone(),
            api: self.api.clone(),
            control: self.control.clone(),
            nft: self.nft.clone(),
            vlt: self.vlt.clone(),
            vxlan: self.vxlan.clone(),
            rdma: self.rdma.clone(),
            rcft: self.rcft.clone(),
            qos: self.qos.clone(),
            security: self.security.clone(),
            offload: self.offload.clone(),
            uplinks: self.uplinks.clone(),
            vpcs: self.vpcs.clone(),
            subnets: self.subnets.clone(),
            security_groups: self.security_groups.clone(),
            trunks: self.trunks.clone(),
            vnics,
            locations: Vec::new(),
            ports: self.ports.clone(),
        }
    }
}
