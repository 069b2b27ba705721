//! The service `Underlay`: uplinks, neighbours, BFD.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::snapshot::mac_from;
use vswitch_api::v1;
use vswitch_api::v1::underlay_server::Underlay;

use super::Control;
use super::named::texts;
use super::probing::{probe, probed};
use super::refusal::Problem;
use super::service::service;
use crate::controller::Controller;
use crate::topology::underlay::NeighbourState;

service! { Underlay {
    reads list_uplinks(ListUplinksRequest) -> ListUplinksResponse: "listing uplinks",
    reads list_neighbours(ListNeighboursRequest) -> ListNeighboursResponse: "listing neighbours",
    reads list_bfd_sessions(ListBfdSessionsRequest) -> ListBfdSessionsResponse: "listing BFD sessions",
    sends probe_paths(ProbePathsRequest) -> ProbePathsResponse: "probing paths",
} }

fn list_uplinks(
    controller: &mut Controller,
    _: v1::ListUplinksRequest,
) -> Result<v1::ListUplinksResponse, Problem> {
    let (switch, known) = (&controller.switch, &controller.switch.snapshot().uplinks);
    let of = |uplink: &crate::config::UplinkConfig| {
        let named = |row: &Option<_>| {
            row.as_ref().is_some_and(|row: &std::sync::Arc<pipelines::snapshot::Uplink>| {
                row.name == uplink.name.as_str()
            })
        };
        let index = known.iter().position(named);
        let row = index.and_then(|index| known[index].as_deref());
        let up = index.is_some_and(|index| switch.topology().is_up(index as u16));
        v1::UplinkState {
            name: uplink.name.to_string(),
            mac: row.map(|row| mac_from(row.mac).to_string()).unwrap_or_default(),
            addresses: texts(&uplink.addresses),
            mtu: uplink.mtu.into(),
            vlan: uplink.vlan.map(Into::into),
            peers: texts(&uplink.peers),
            link: if up { "up" } else { "down" }.into(),
            metric: uplink.metric,
            silent_for: texts(row.iter().flat_map(|row| &row.silent)),
        }
    };
    Ok(v1::ListUplinksResponse { uplinks: switch.bare_config().uplinks.iter().map(of).collect() })
}

fn list_neighbours(
    controller: &mut Controller,
    _: v1::ListNeighboursRequest,
) -> Result<v1::ListNeighboursResponse, Problem> {
    let switch = &controller.switch;
    let neighbours = switch.neighbours().list().into_iter().map(|(uplink, address, neighbour)| {
        let state = match neighbour.state {
            NeighbourState::Static(_) => "static",
            NeighbourState::Incomplete => "incomplete",
            NeighbourState::Reachable(_) => "reachable",
            NeighbourState::Stale(_) => "stale",
        };
        v1::NeighbourState {
            uplink: switch.snapshot().uplink(uplink).map(|uplink| uplink.name.clone()).unwrap_or_default(),
            address: address.to_string(),
            mac: neighbour.mac().map(|mac| mac.to_string()).unwrap_or_default(),
            state: state.into(),
            heard_seconds: neighbour.heard.map(|heard| heard.elapsed().as_secs()),
            tries: neighbour.tries,
        }
    });
    Ok(v1::ListNeighboursResponse { neighbours: neighbours.collect() })
}

async fn probe_paths(
    control: &Control,
    what: &'static str,
    request: v1::ProbePathsRequest,
) -> Result<v1::ProbePathsResponse, Problem> {
    let vteps: Result<Vec<IpAddr>, Problem> = (request.vteps.iter().enumerate())
        .map(|(at, text)| {
            text.parse().map_err(|_| {
                let message = format!("\"{text}\" is no IP address; give the VTEP of another host");
                Problem::invalid(&format!("vteps[{at}]"), message)
            })
        })
        .collect();
    let reports = probe(control, what, vteps?).await?;
    Ok(v1::ProbePathsResponse {
        paths: reports.iter().map(|(report, needed)| probed(report, *needed)).collect(),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn list_bfd_sessions(
    controller: &mut Controller,
    _: v1::ListBfdSessionsRequest,
) -> Result<v1::ListBfdSessionsResponse, Problem> {
    let (switch, now) = (&controller.switch, Instant::now());
    let mut sessions = Vec::new();
    for running in switch.bfd().sessions() {
        let (of, session) = (&running.of, &running.session);
        let (peer_state, peer_diagnostic) = session.remote_state();
        let has_peer = session.remote_discriminator() != 0;
        sessions.push(v1::BfdSession {
            uplink: switch.snapshot().uplink(of.uplink).map(|uplink| uplink.name.clone()).unwrap_or_default(),
            peer: of.peer.to_string(),
            local: of.local.to_string(),
            multihop: of.multihop,
            state: session.state().name().into(),
            peer_state: if has_peer { peer_state.name() } else { "silent" }.into(),
            path: if session.is_failed() { "left" } else { "used" }.into(),
            diagnostic: session.diagnostic().name().into(),
            peer_diagnostic: peer_diagnostic.name().into(),
            interval_ms: milliseconds(session.interval()),
            detection_ms: session.detection_time().map(milliseconds),
            seconds: now.saturating_duration_since(running.since).as_secs_f64(),
            ups: running.ups,
            heard: running.heard,
            sent: running.sent,
            discriminator: of.discriminator,
            peer_discriminator: session.remote_discriminator(),
        });
    }
    Ok(v1::ListBfdSessionsResponse { sessions })
}
