//! What the switch has at a moment: taken on the control thread in no time, as it is shared with the switch, and looked at without it.

use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use pipelines::snapshot::Snapshot;
use wire::{MacAddr, Vni};

use super::Switch;
use crate::config::{Config, LocationConfig, VpcConfig};
use crate::state::ownership::Ownership;
use crate::topology::stations::Station;

/// The switch at a moment.
#[derive(Clone)]
pub struct View {
    /// Without its locations.
    pub config: Arc<Config>,
    /// By index of the VPC, and address.
    locations: OrdMap<(u32, IpAddr), LocationConfig>,
    stations: OrdMap<(u32, MacAddr), Station>,
    snapshot: Arc<Snapshot>,
    pub revision: u64,
    pub owners: Ownership,
}

impl View {
    /// As it is now.
    pub fn of(switch: &Switch) -> Self {
        Self {
            config: switch.shared_config(),
            locations: switch.topology().all_locations(),
            stations: switch.topology().all_stations(),
            snapshot: switch.snapshot().clone(),
            revision: switch.changes().revision(),
            owners: switch.ownership(),
        }
    }

    /// A VPC by its VNI.
    pub fn vpc(&self, vni: Vni) -> Option<&VpcConfig> {
        self.config.vpcs.iter().find(|vpc| vpc.vni == vni)
    }

    /// A location by its address.
    pub fn location(&self, vni: Vni, vip: IpAddr) -> Option<&LocationConfig> {
        self.locations.get(&(self.index(vni)?, vip))
    }

    /// All locations.
    pub fn locations(&self) -> impl Iterator<Item = &LocationConfig> {
        self.locations.values()
    }

    /// The config with its locations. As many of them as there may be, this is no work for control.
    pub fn whole_config(&self) -> Config {
        Config { locations: self.locations().cloned().collect(), ..(*self.config).clone() }
    }

    /// True when workers know a network.
    pub fn has_network(&self, vni: Vni) -> bool {
        self.index(vni).is_some()
    }

    /// Where a station is that is known by its MAC address alone.
    pub fn station(&self, vni: Vni, mac: MacAddr) -> Option<IpAddr> {
        self.stations.get(&(self.index(vni)?, mac)).map(|station| station.vtep)
    }

    fn index(&self, vni: Vni) -> Option<u32> {
        self.snapshot.vnis.get(u128::from(vni.get()))
    }
}
