//! The service `Evpn`: what is heard and said by BGP.

use std::time::Instant;

use vswitch_api::v1;
use vswitch_api::v1::evpn_server::Evpn;

use super::refusal::Problem;
use super::service::service;
use crate::controller::Controller;
use crate::evpn::publish::Duplicate;
use crate::evpn::status::Count;

service! { Evpn {
    reads get_evpn(GetEvpnRequest) -> EvpnState: "telling of EVPN",
} }

fn routes(count: Count) -> Option<v1::EvpnRoutes> {
    let Count { stations, floods, prefixes } = count;
    Some(v1::EvpnRoutes { stations, floods, prefixes })
}

fn get_evpn(controller: &mut Controller, _: v1::GetEvpnRequest) -> Result<v1::EvpnState, Problem> {
    let Some(evpn) = &controller.evpn else { return Ok(v1::EvpnState::default()) };
    let status = evpn.lock();
    let peer = |peer: &crate::evpn::status::Peer| v1::EvpnPeer {
        address: peer.address.clone(),
        asn: peer.asn,
        state: peer.state.into(),
        routes: peer.routes,
    };
    let duplicate = |(vni, mac, duplicate): &(u32, wire::MacAddr, Duplicate)| v1::EvpnDuplicate {
        vni: *vni,
        mac: mac.to_string(),
        vtep: duplicate.vtep.to_string(),
        seconds: duplicate.until.saturating_duration_since(Instant::now()).as_secs_f64(),
    };
    Ok(v1::EvpnState {
        configured: true,
        gobgpd: status.gobgpd.to_string(),
        connected: status.connected,
        seconds: status.since.elapsed().as_secs_f64(),
        connections: status.connections,
        asn: status.asn,
        router_id: status.router_id.map(|id| id.to_string()).unwrap_or_default(),
        vtep: status.vtep.map(|vtep| vtep.to_string()).unwrap_or_default(),
        peers: status.peers.iter().map(peer).collect(),
        heard: routes(status.heard),
        announced: routes(status.announced),
        stale: status.stale,
        unusable: status.unusable,
        last_unusable: status.last_unusable.clone(),
        refused: status.refused,
        last_refused: status.last_refused.clone(),
        others: status.others,
        came: status.came,
        left: status.left,
        duplicates: status.duplicates.iter().map(duplicate).collect(),
        last_error: status.last_error.clone(),
    })
}
