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
    /// `come`, with the reasons. Addresses that are in neither list stay as they are. Of a network whose list of VTEPs to flood to
    /// does not fit any more none are brought, and the others are.
    ///
    /// # Errors
    /// [`TopologyError`] when not even what is left fits, with nothing changed.
    pub fn follow_locations(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
        neighbours: &Neighbours,
    ) -> Result<BTreeMap<usize, TopologyError>, TopologyError> {
        let mut crowded: BTreeMap<u32, TopologyError> = BTreeMap::new();
        loop {
            let mut refused = BTreeMap::new();
            let mut fault = None;
            let followed = self.redraft(neighbours, |topology| {
                let flooding = topology.bring_heard(config, come, gone, &crowded, &mut refused);
                topology.rebuild_flood_lists(config, &flooding).map_err(|(vpc, error)| {
                    fault = Some(vpc);
                    error
                })
            });
            match (followed, fault) {
                (Ok(()), _) => return Ok(refused),
                (Err(error), Some(vpc)) if !crowded.contains_key(&vpc) => {
                    crowded.insert(vpc, error);
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// The half of it that places stations: those of `crowded` networks are refused. The networks behind whose VTEPs something came or
    /// went.
    fn bring_heard(
        &mut self,
        config: &Config,
        come: &[LocationConfig],
        gone: &[(Vni, IpAddr)],
        crowded: &BTreeMap<u32, TopologyError>,
        refused: &mut BTreeMap<usize, TopologyError>,
    ) -> BTreeSet<u32> {
        let mut vteps: HashMap<IpAddr, Result<(), TopologyError>> = HashMap::new();
        let mut flooding = BTreeSet::new();
        for &(vni, vip) in gone {
            let Some(vpc) = self.draft.next.vnis.get(u128::from(vni.get())) else { continue };
            if self.draft.locations.contains_key(&(vpc, vip)) {
                self.drop_location(vpc, vip);
                flooding.insert(vpc);
            }
        }
        for (at, location) in come.iter().enumerate() {
            let vtep = vteps.entry(location.vtep).or_insert_with(|| self.check_vtep(location.vtep));
            let checked = vtep.clone().and_then(|()| Ok(validate::location(config, location)?));
            let placed = checked.and_then(|()| {
                let vpc = self.vpc_of(location)?;
                if let Some(error) = crowded.get(&vpc) {
                    return Err(error.clone());
                }
                self.refuse_local(vpc, location)?;
                self.unlearn(vpc, location.vip);
                Ok(self.put_location(location)?.then_some(vpc))
            });
            match placed {
                Ok(vpc) => flooding.extend(vpc),
                Err(error) => drop(refused.insert(at, error)),
            }
        }
        flooding
    }

    /// Makes the lists anew of those of some networks that flood, after places behind VTEPs came or went, and which VTEPs are heard.
    ///
    /// # Errors
    /// The network whose list does not fit, and [`TopologyError`].
    pub(super) fn rebuild_flood_lists(
        &mut self,
        config: &Config,
        vpcs: &BTreeSet<u32>,
    ) -> Result<(), (u32, TopologyError)> {
        for &vpc in vpcs {
            if self.draft.next.vpc(vpc).is_some_and(|vpc| vpc.flood) {
                self.rebuild_routes_of(config, vpc).map_err(|error| (vpc, error))?;
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
