//! What one config has otherwise than another, and the part of each that a change between them concerns: what is then
//! checked, published and saved, instead of everything.
//!
//! A part is a config like any other and goes through the same checks. What it lacks are locations, and vNICs that the
//! change neither alters nor can be at odds with: those that share no name, MAC address, VIP or VLAN with one that it
//! alters, are in no VPC and on no trunk that it alters, and have neither a device of their own nor rates that add up with
//! others that change.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Config, Name, VnicConfig, VnicPort, VnicQos};

/// With more vNICs than that to compare every other one with, the whole is looked at.
const MOST: usize = 16;

/// A change from one config to another.
#[derive(Debug)]
pub struct Difference<'c> {
    /// The part of the config before that the change concerns.
    pub old: Cow<'c, Config>,
    /// The part of the config after it.
    pub new: Cow<'c, Config>,
    /// Something differs that all vNICs depend on, or too much does: the parts are the whole configs.
    pub is_whole: bool,
}

impl<'c> Difference<'c> {
    /// The change as one that concerns everything.
    pub fn whole(old: &'c Config, new: &'c Config) -> Self {
        Self { old: Cow::Borrowed(old), new: Cow::Borrowed(new), is_whole: true }
    }

    /// What `new` has otherwise than `old`, locations aside.
    pub fn between(old: &'c Config, new: &'c Config) -> Self {
        let Some(touched) = Touched::by(old, new) else { return Self::whole(old, new) };
        let (mut before, mut after) =
            (touched.before.iter().copied().cloned().collect::<Vec<_>>(), Vec::new());
        for vnic in new.vnics.iter().filter(|vnic| touched.concerns(vnic)) {
            after.push(vnic.clone());
            if !touched.after.iter().any(|altered| Arc::ptr_eq(altered, vnic)) {
                before.push(vnic.clone());
            }
        }
        Self {
            old: Cow::Owned(old.with_vnics(before)),
            new: Cow::Owned(new.with_vnics(after)),
            is_whole: false,
        }
    }

    /// Names of the vNICs that go.
    pub fn gone(&self) -> Vec<&Name> {
        let stay: HashSet<&Name> = self.new.vnics.iter().map(|vnic| &vnic.name).collect();
        self.old.vnics.iter().map(|vnic| &vnic.name).filter(|name| !stay.contains(name)).collect()
    }

    /// The vNICs that come, and those that go on otherwise than they were, in the order of the config.
    pub fn put(&self) -> impl Iterator<Item = &Arc<VnicConfig>> {
        let before: HashMap<&Name, &Arc<VnicConfig>> =
            self.old.vnics.iter().map(|vnic| (&vnic.name, vnic)).collect();
        self.new.vnics.iter().filter(move |vnic| before.get(&vnic.name) != Some(vnic))
    }
}

/// What a change alters, by what may be at odds with it.
struct Touched<'c> {
    /// vNICs that go or change, as they were.
    before: Vec<&'c Arc<VnicConfig>>,
    /// vNICs that come or change, as they become.
    after: Vec<&'c Arc<VnicConfig>>,
    /// Uplinks, trunks and ports that go, come or change.
    ports: HashSet<&'c Name>,
    /// VPCs of which that is so, or of a subnet of them.
    vpcs: HashSet<&'c Name>,
    /// Rates, which are summed up along the tree.
    rates: bool,
}

impl<'c> Touched<'c> {
    /// Nothing when all vNICs are concerned.
    fn by(old: &'c Config, new: &'c Config) -> Option<Self> {
        if !has_same_settings(old, new) {
            return None;
        }
        let (before, after) = altered_vnics(&old.vnics, &new.vnics);
        if before.len() + after.len() > MOST {
            return None;
        }
        let mut ports = altered(&old.trunks, &new.trunks, |trunk| &trunk.name);
        ports.extend(altered(&old.ports, &new.ports, |port| &port.name));
        let mut vpcs = altered(&old.vpcs, &new.vpcs, |vpc| &vpc.name);
        let apart = old.subnets.iter().filter(|subnet| !new.subnets.contains(subnet));
        let apart = apart.chain(new.subnets.iter().filter(|subnet| !old.subnets.contains(subnet)));
        vpcs.extend(apart.map(|subnet| &subnet.vpc));
        let of_vpcs = |config: &'c Config| {
            let with_rates = config.vpcs.iter().filter(|vpc| vpc.qos != super::BothWays::default());
            with_rates.map(|vpc| (&vpc.name, &vpc.qos)).collect::<HashMap<_, _>>()
        };
        let rates = before.iter().chain(&after).any(|vnic| has_rates(vnic)) || of_vpcs(old) != of_vpcs(new);
        Some(Self { before, after, ports, vpcs, rates })
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
            || self.before.iter().chain(&self.after).any(|altered| is_related(altered, vnic))
    }
}

fn has_rates(vnic: &VnicConfig) -> bool {
    vnic.qos != VnicQos::default()
}

fn is_related(vnic: &VnicConfig, other: &VnicConfig) -> bool {
    // What costs the least first: this is asked of every vNIC.
    other.mac == vnic.mac && other.vpc == vnic.vpc
        || other.vlan == vnic.vlan && other.port == vnic.port
        || other.vips.iter().any(|vip| vnic.vips.contains(vip)) && other.vpc == vnic.vpc
        || other.name == vnic.name
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
        offload,
        uplinks,
        vpcs: _,
        subnets: _,
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

/// The vNICs that one of two lists lacks or has otherwise than the other: of the first, and of the second.
fn altered_vnics<'c>(
    old: &'c [Arc<VnicConfig>],
    new: &'c [Arc<VnicConfig>],
) -> (Vec<&'c Arc<VnicConfig>>, Vec<&'c Arc<VnicConfig>>) {
    // Mostly nearly all are the same ones, at the same places.
    let is_same = |(old, new): &(&Arc<VnicConfig>, &Arc<VnicConfig>)| Arc::ptr_eq(old, new);
    let ahead = old.iter().zip(new).take_while(is_same).count();
    let (old, new) = (&old[ahead..], &new[ahead..]);
    let behind = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
    let (old, new) = (&old[..old.len() - behind], &new[..new.len() - behind]);
    let by_name = |list: &'c [Arc<VnicConfig>]| -> HashMap<&'c Name, &'c Arc<VnicConfig>> {
        list.iter().map(|vnic| (&vnic.name, vnic)).collect()
    };
    let (before, after) = (by_name(old), by_name(new));
    (
        old.iter().filter(|vnic| after.get(&vnic.name) != Some(vnic)).collect(),
        new.iter().filter(|vnic| before.get(&vnic.name) != Some(vnic)).collect(),
    )
}

impl Config {
    /// The same with other vNICs, and without locations.
    #[must_use]
    pub fn with_vnics(&self, vnics: Vec<Arc<VnicConfig>>) -> Self {
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
            offload: self.offload.clone(),
            uplinks: self.uplinks.clone(),
            vpcs: self.vpcs.clone(),
            subnets: self.subnets.clone(),
            trunks: self.trunks.clone(),
            vnics,
            locations: Vec::new(),
            ports: self.ports.clone(),
        }
    }
}
