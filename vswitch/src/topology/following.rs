//! What other hosts say of themselves: locations that come, move and go many at a time, and VTEPs that take part in a network
//! though no address is known behind them.
//!
//! One that cannot be is left out and told; the others are not its hostages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use wire::Vni;

use super::{Topology, TopologyError};
use crate::config::{Config, LocationConfig, validate};
use crate::topology::underlay::Neighbours;

impl Topology {
    /// Brings locations, and takes others out, ready to [`commit`](Self::commit); those that cannot be brought, by their places in
    /// `come`, with the reasons. Addresses that are in neither list stay as they are.
    ///
    /// # Errors
    /// [`TopologyError`] when the flood lists do not fit, with nothing changed.
    pub fn follow_locations(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
        neighbours: &Neighbours,
    ) -> Result<BTreeMap<usize, TopologyError>, TopologyError> {
        let mut refused = BTreeMap::new();
        let mut vteps: HashMap<IpAddr, Result<(), TopologyError>> = HashMap::new();
        self.redraft(neighbours, |topology| {
            let mut flooding = BTreeSet::new();
            for &(vni, vip) in gone {
                let Some(vpc) = topology.draft.next.vnis.get(u128::from(vni.get())) else { continue };
                if topology.draft.locations.contains_key(&(vpc, vip)) {
                    topology.drop_location(vpc, vip);
                    flooding.insert(vpc);
                }
            }
            for (at, location) in come.iter().enumerate() {
                let vtep = vteps.entry(location.vtep).or_insert_with(|| topology.check_vtep(location.vtep));
                let checked = vtep.clone().and_then(|()| Ok(validate::location(config, location)?));
                let placed = checked.and_then(|()| {
                    let vpc = topology.vpc_of(location)?;
                    topology.refuse_local(vpc, location)?;
                    topology.unlearn(vpc, location.vip);
                    Ok(topology.put_location(location)?.then_some(vpc))
                });
                match placed {
                    Ok(vpc) => flooding.extend(vpc),
                    Err(error) => drop(refused.insert(at, error)),
                }
            }
            topology.rebuild_flood_lists(config, &flooding)
        })?;
        Ok(refused)
    }

    /// Makes the lists anew of those of some networks that flood, after places behind VTEPs came or went, and which VTEPs are heard.
    pub(super) fn rebuild_flood_lists(
        &mut self,
        config: &Config,
        vpcs: &BTreeSet<u32>,
    ) -> Result<(), TopologyError> {
        for &vpc in vpcs {
            if self.draft.next.vpc(vpc).is_some_and(|vpc| vpc.flood) {
                self.rebuild_routes_of(config, vpc)?;
            }
        }
        self.rebuild_vteps(config);
        Ok(())
    }

    /// The VTEPs of other hosts that take part in networks, besides those that locations are behind: of each VNI that is named, these
    /// and no others from now on, ready to [`commit`](Self::commit). What uplinks cannot reach yet, or is this switch's own, is in no flood
    /// list meanwhile. True when that changes something.
    ///
    /// # Errors
    /// [`TopologyError`] when the flood lists do not fit, with nothing changed.
    pub fn follow_vteps(
        &mut self,
        config: &Config,
        members: &BTreeMap<Vni, BTreeSet<IpAddr>>,
        neighbours: &Neighbours,
    ) -> Result<bool, TopologyError> {
        let known =
            |topology: &Self, vni: &Vni| topology.draft.followed.get(vni).cloned().unwrap_or_default();
        let changed: Vec<_> = members.iter().filter(|(vni, vteps)| known(self, vni) != **vteps).collect();
        if changed.is_empty() {
            return Ok(false);
        }
        self.redraft(neighbours, |topology| {
            for (vni, vteps) in changed {
                match vteps.is_empty() {
                    true => drop(topology.draft.followed.remove(vni)),
                    false => drop(topology.draft.followed.insert(*vni, vteps.clone())),
                }
                if let Some(vpc) = topology.draft.next.vnis.get(u128::from(vni.get())) {
                    topology.rebuild_routes_of(config, vpc)?;
                }
            }
            topology.rebuild_vteps(config);
            Ok(())
        })?;
        Ok(true)
    }

    /// The VTEPs that other hosts said take part in a network, and that uplinks reach.
    pub(super) fn followed_vteps(&self, vni: Vni) -> Vec<IpAddr> {
        let followed = self.draft.followed.get(&vni).into_iter().flatten().copied();
        followed.filter(|&vtep| self.check_vtep(vtep).is_ok()).collect()
    }
}
