//! What other hosts say of themselves: locations that come, move and go many at a time, and VTEPs that take part in a network
//! though no address is known behind them.
//!
//! One that cannot be is left out and told; the others are not its hostages. A VTEP for which the VLT has no slot is known all the same, and
//! has one as soon as there is: with the next change of its network, or when [`Topology::place_left_out`] is called.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use wire::Vni;

use super::{Topology, TopologyError};
use crate::config::{Config, LocationConfig, validate};
use crate::topology::underlay::Neighbours;

impl Topology {
    /// Brings locations, and takes others out, ready to [`commit`](Self::commit); those that cannot be brought, by their places in
    /// `come`, with the reasons. Addresses that are in neither list stay as they are. In a network that floods, a location that is the
    /// first one behind its VTEP takes a slot for that, too.
    ///
    /// # Errors
    /// [`TopologyError`] when what the config says of a network does not fit, with nothing changed.
    pub fn follow_locations(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
        neighbours: &Neighbours,
    ) -> Result<BTreeMap<usize, TopologyError>, TopologyError> {
        let mut refused = BTreeMap::new();
        self.redraft(neighbours, |topology| {
            let flooding = topology.bring_heard(config, come, gone, &mut refused)?;
            topology.rebuild_flood_lists(config, &flooding)
        })?;
        Ok(refused)
    }

    /// The half of it that places stations. The networks behind whose VTEPs something came or went.
    fn bring_heard(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
        refused: &mut BTreeMap<usize, TopologyError>,
    ) -> Result<BTreeSet<u32>, TopologyError> {
        let mut vteps: HashSet<IpAddr> = HashSet::new();
        let mut flooding = BTreeSet::new();
        for &(vni, vip) in gone {
            let Some(vpc) = self.draft.next.vnis.get(u128::from(vni.get())) else { continue };
            if self.draft.locations.contains_key(&(vpc, vip)) {
                self.drop_location(vpc, vip);
                flooding.insert(vpc);
            }
        }
        for (at, location) in come.iter().enumerate() {
            let checked = if vteps.contains(&location.vtep) { Ok(()) } else { self.check_location(location) };
            if checked.is_ok() {
                vteps.insert(location.vtep);
            }
            let checked = checked.and_then(|()| Ok(validate::location(config, location)?));
            let placed = checked.and_then(|()| {
                let vpc = self.vpc_of(location)?;
                self.refuse_local(vpc, location)?;
                self.refuse_crowded(vpc, location)?;
                self.unlearn(vpc, location.vip);
                Ok(self.put_location(location)?.then_some(vpc))
            });
            match placed {
                // Its place in the list is taken, so that the next one finds how much there is left.
                Ok(Some(vpc)) => {
                    flooding.insert(vpc);
                    if self.floods(vpc) {
                        self.vtep_slot(vpc, location.vtep, String::new)?;
                    }
                }
                Ok(None) => {}
                Err(error) => drop(refused.insert(at, error)),
            }
        }
        Ok(flooding)
    }

    /// Makes the lists anew of those of some networks that flood, after places behind VTEPs came or went, and which VTEPs are heard.
    ///
    /// # Errors
    /// [`TopologyError`] when one does not fit.
    pub(super) fn rebuild_flood_lists(
        &mut self,
        config: &Config,
        vpcs: &BTreeSet<u32>,
    ) -> Result<(), TopologyError> {
        for &vpc in vpcs {
            if self.floods(vpc) {
                self.rebuild_routes_of(config, vpc)?;
            }
        }
        self.rebuild_vteps(config);
        Ok(())
    }

    /// The VTEPs of other hosts that take part in networks, besides those that locations are behind: of each VNI that is named, these
    /// and no others from now on, ready to [`commit`](Self::commit). What uplinks cannot reach yet, or is this switch's own, is in no flood
    /// list meanwhile, and neither is what there is no slot for ([`left_out`](Self::left_out)). True when that changes something.
    ///
    /// # Errors
    /// [`TopologyError`] when what the config says of a network does not fit, with nothing changed.
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

    /// Gives the VTEPs slots that other hosts said take part in a network, and that uplinks reach, as far as there are slots. Those that have
    /// one.
    pub(super) fn place_members(&mut self, vpc: u32, vni: Vni) -> Vec<IpAddr> {
        let followed = self.draft.followed.get(&vni).into_iter().flatten().copied();
        let reached: Vec<IpAddr> =
            followed.filter(|&vtep| self.check_vtep(vtep, String::new).is_ok()).collect();
        let (placed, left): (Vec<_>, Vec<_>) =
            reached.into_iter().partition(|&vtep| self.vtep_slot(vpc, vtep, String::new).is_ok());
        match left.is_empty() {
            true => drop(self.draft.unplaced.remove(&vpc)),
            false => drop(self.draft.unplaced.insert(vpc, left.into_iter().collect())),
        }
        placed
    }

    /// The VTEPs that take part in a network of this switch and for which the VLT has no slot: they are neither heard nor flooded to there,
    /// unless there are locations behind them.
    pub fn left_out(&self) -> impl Iterator<Item = (Vni, IpAddr)> {
        let of =
            |(&vpc, vteps): (&u32, &BTreeSet<IpAddr>)| Some((self.draft.next.vpc(vpc)?.vni, vteps.clone()));
        self.draft
            .unplaced
            .iter()
            .filter_map(of)
            .flat_map(|(vni, vteps)| vteps.into_iter().map(move |vtep| (vni, vtep)))
    }

    /// Gives slots to those that were [left out](Self::left_out), where there are some again, ready to [`commit`](Self::commit). True when
    /// there are.
    ///
    /// # Errors
    /// [`TopologyError`] when what the config says of a network does not fit, with nothing changed.
    pub fn place_left_out(
        &mut self,
        config: &Config,
        neighbours: &Neighbours,
    ) -> Result<bool, TopologyError> {
        if self.draft.unplaced.is_empty() || self.vlt_room() == 0 {
            return Ok(false);
        }
        self.redraft(neighbours, |topology| {
            let vpcs: Vec<u32> = topology.draft.unplaced.keys().copied().collect();
            vpcs.into_iter().try_for_each(|vpc| topology.rebuild_routes_of(config, vpc))?;
            topology.rebuild_vteps(config);
            Ok(())
        })?;
        Ok(true)
    }
}
