//! Stations that are known by their MAC addresses alone, as EVPN tells of them (RFC 7432 section 7.2): bridged packets go to where they are,
//! and need not be flooded.
//!
//! They stand behind everybody else who has the MAC address: a vNIC of this host, what floats there, a location. Each has a slot of its
//! own, which is rewritten in place when it moves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use imbl::OrdMap;
use pipelines::snapshot::{Destination, Location};
use pipelines::vlt::{Place, SlotRef};
use wire::{MacAddr, Vni};

use super::slots::Remote;
use super::{Topology, TopologyError};
use crate::config::Config;
use crate::topology::underlay::Neighbours;

/// A station, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    pub(super) slot: SlotRef,
    pub vtep: IpAddr,
}

/// Where stations are from now on; those without a tunnel end point are nowhere any more.
pub type Stations = BTreeMap<(Vni, MacAddr), Option<IpAddr>>;

impl Topology {
    /// Brings stations, moves them, and takes others out, ready to [`commit`](Self::commit); those that cannot be brought, with the
    /// reasons. Those that are not named stay as they are.
    ///
    /// # Errors
    /// [`TopologyError`] when what the config says of a network does not fit, with nothing changed.
    pub fn follow_stations(
        &mut self,
        config: &Config,
        stations: &Stations,
        neighbours: &Neighbours,
    ) -> Result<BTreeMap<(Vni, MacAddr), TopologyError>, TopologyError> {
        let mut refused = BTreeMap::new();
        self.redraft(neighbours, |topology| {
            let mut flooding = BTreeSet::new();
            for (&(vni, mac), vtep) in stations {
                let Some(vpc) = topology.draft.next.vnis.get(u128::from(vni.get())) else { continue };
                let placed = match vtep {
                    None => topology.drop_station(vpc, mac),
                    Some(vtep) => topology.put_station(vpc, mac, *vtep),
                };
                match placed {
                    Ok(true) => drop(flooding.insert(vpc)),
                    Ok(false) => {}
                    Err(error) => drop(refused.insert((vni, mac), error)),
                }
            }
            topology.rebuild_flood_lists(config, &flooding)
        })?;
        Ok(refused)
    }

    /// Stations of all networks, and where they are.
    pub fn stations(&self) -> impl Iterator<Item = (Vni, MacAddr, IpAddr, SlotRef)> {
        let all = self.draft.stations.iter();
        all.filter_map(|(&(vpc, mac), station)| {
            Some((self.current.vpc(vpc)?.vni, mac, station.vtep, station.slot))
        })
    }

    /// The same by VPC and MAC address, to keep: a copy shares everything.
    pub fn all_stations(&self) -> OrdMap<(u32, MacAddr), Station> {
        self.draft.stations.clone()
    }

    /// True when the VTEPs behind which its network has something may be others now. Changes nothing when it fails.
    fn put_station(&mut self, vpc: u32, mac: MacAddr, vtep: IpAddr) -> Result<bool, TopologyError> {
        self.check_vtep(vtep, String::new)?;
        let known = self.draft.stations.get(&(vpc, mac)).copied();
        let listed = self.needs_list_slot(vpc, vtep);
        self.refuse_full(usize::from(known.is_none()) + usize::from(listed), String::new)?;
        if listed {
            self.vtep_slot(vpc, vtep, String::new)?;
        }
        let slot = match known {
            Some(known) => known.slot,
            None => self.allocate(Place::Empty, String::new)?,
        };
        let changed = self.place_behind(slot.slot, Remote::new(vpc, vtep, true));
        self.draft.stations.insert((vpc, mac), Station { slot, vtep });
        if known.is_none() {
            self.settle_mac(vpc, mac);
            self.draft.next.touch_topology(vpc);
        }
        Ok(changed)
    }

    /// As [`put_station`](Self::put_station).
    fn drop_station(&mut self, vpc: u32, mac: MacAddr) -> Result<bool, TopologyError> {
        let Some(gone) = self.draft.stations.remove(&(vpc, mac)) else { return Ok(false) };
        let key = (vpc, Destination::Mac(mac));
        if self.draft.next.locations.get(&key).is_some_and(|owner| owner.slot == gone.slot) {
            self.draft.next.locations.remove(&key);
        }
        self.draft.next.touch_sources(vpc);
        self.settle_mac(vpc, mac);
        self.drop_slot(gone.slot.slot);
        Ok(true)
    }

    /// Takes out all stations of a network that goes, or becomes another one.
    pub(super) fn drop_stations(&mut self, vpc: u32) {
        let first = (vpc, MacAddr::ZERO);
        let of_vpc = self.draft.stations.range(first..).take_while(|((of, _), _)| *of == vpc);
        let macs: Vec<MacAddr> = of_vpc.map(|(&(_, mac), _)| mac).collect();
        for mac in macs {
            // It cannot fail: nothing is needed for it.
            let _ = self.drop_station(vpc, mac);
        }
    }

    /// What a MAC address leads to where nobody but a station has it.
    pub(super) fn bare_station(&self, vpc: u32, mac: MacAddr) -> Option<Location> {
        let station = self.draft.stations.get(&(vpc, mac))?;
        Some(Location { slot: station.slot, mac, groups: Default::default() })
    }
}
