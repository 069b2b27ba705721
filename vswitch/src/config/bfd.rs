//! Bidirectional forwarding detection: `[[uplink]] bfd`, and which sessions it asks for.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::network::UplinkConfig;
use super::{fields, units};

/// `[[uplink]] bfd`: next hops, and VTEPs, that are asked whether they live (RFC 5880).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BfdConfig {
    /// The interval between packets to a peer, unless that takes them more slowly only.
    #[serde(default = "usual_interval", with = "units::duration")]
    pub min_tx: Duration,
    /// The least interval between packets of a peer.
    #[serde(default = "usual_interval", with = "units::duration")]
    pub min_rx: Duration,
    /// So many packets of this switch must be missing for the peer to count the path as down.
    #[serde(default = "usual_multiplier")]
    pub multiplier: u8,
    /// Stations on the link that are asked (RFC 5881); none: the gateways and the next hops of the routes.
    #[serde(default, deserialize_with = "fields::list")]
    pub peers: Vec<IpAddr>,
    /// VTEPs behind routers that are asked (RFC 5883).
    #[serde(default, deserialize_with = "fields::list")]
    pub vteps: Vec<IpAddr>,
}

impl BfdConfig {
    /// The shortest interval. A packet is sent in three quarters of it to all of it (RFC 5880 section 6.8.7), and a turn of
    /// control, 20 ms, must fall into that quarter.
    pub const SHORTEST: Duration = Duration::from_millis(4 * crate::switch::TEND_EVERY_MS);
    /// The longest interval: beyond it the neighbour's silence is noticed sooner.
    pub const LONGEST: Duration = Duration::from_secs(30);
    /// The least multiplier: with 1 a packet that is late by a turn of control would take the path away.
    pub const LEAST_MULTIPLIER: u8 = 2;
}

impl Default for BfdConfig {
    fn default() -> Self {
        Self {
            min_tx: usual_interval(),
            min_rx: usual_interval(),
            multiplier: usual_multiplier(),
            peers: Vec::new(),
            vteps: Vec::new(),
        }
    }
}

/// A session that the config asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedBfd {
    /// The other end.
    pub peer: IpAddr,
    /// There may be routers between.
    pub multihop: bool,
}

impl UplinkConfig {
    /// The sessions that it has, each once.
    pub fn bfd_sessions(&self) -> Vec<WantedBfd> {
        let Some(bfd) = &self.bfd else { return Vec::new() };
        let next_hops = self.gateway.iter().copied().chain(self.routes.iter().map(|route| route.via));
        let on_link = if bfd.peers.is_empty() { next_hops.collect() } else { bfd.peers.clone() };
        let mut sessions: Vec<WantedBfd> = Vec::new();
        let on_link = on_link.into_iter().map(|peer| WantedBfd { peer, multihop: false });
        for session in on_link.chain(bfd.vteps.iter().map(|&peer| WantedBfd { peer, multihop: true })) {
            if !sessions.contains(&session) {
                sessions.push(session);
            }
        }
        sessions
    }

    /// The own address of a session: of the peer's family, in its network when it is on the link, and one that no other uplink
    /// has, for what the peer sends there must come by this one. `None` where there is none; link-local addresses follow from
    /// the MAC address instead.
    pub fn bfd_source<'u>(
        &self,
        wanted: WantedBfd,
        others: impl Iterator<Item = &'u UplinkConfig>,
    ) -> Option<IpAddr> {
        let others: Vec<&IpNet> = others.flat_map(|uplink| &uplink.addresses).collect();
        let is_own = |net: &&IpNet| others.iter().all(|other| other.addr() != net.addr());
        let reaches = |net: &&IpNet| wanted.multihop || net.contains(&wanted.peer);
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == wanted.peer.is_ipv4();
        self.addresses.iter().filter(of_family).filter(reaches).find(is_own).map(IpNet::addr)
    }
}

/// True for an address of fe80::/10.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

const fn usual_interval() -> Duration {
    Duration::from_millis(300)
}

const fn usual_multiplier() -> u8 {
    3
}
