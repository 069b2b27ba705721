//! Commands about the underlay and about flows: uplinks, neighbours, BFD, NFT.

use std::net::IpAddr;

use vswitch_api::v1;
use vswitch_api::v1::flows_client::FlowsClient;
use vswitch_api::v1::underlay_client::UnderlayClient;

use super::{Entry, View, ask, count, shown, told};
use crate::console::Table;

/// Flows shown when no number is given.
const FLOWS: u32 = 20;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show nft [<count:uint>]",
            help: "Flows of all workers, the first 20 or so many",
            rpc: "Flows.ListFlows",
            run: |session, args| {
                let count = count(args, FLOWS);
                shown(ask!(session, FlowsClient.list_flows(v1::ListFlowsRequest { count }))?)
            },
        },
        Entry {
            syntax: "clear nft",
            help: "Forget all flows; the next packets decide again",
            rpc: "Flows.ClearFlows",
            run: |session, _| {
                let answer = ask!(session, FlowsClient.clear_flows(v1::ClearFlowsRequest {}))?;
                told("all flows are forgotten", answer)
            },
        },
        Entry {
            syntax: "show neigh",
            help: "Next hops of the underlay",
            rpc: "Underlay.ListNeighbours",
            run: |session, _| {
                shown(ask!(session, UnderlayClient.list_neighbours(v1::ListNeighboursRequest {}))?)
            },
        },
        Entry {
            syntax: "show uplink",
            help: "Uplinks: link, addresses and which of them another one answers for, MTU, VLAN",
            rpc: "Underlay.ListUplinks",
            run: |session, _| shown(ask!(session, UnderlayClient.list_uplinks(v1::ListUplinksRequest {}))?),
        },
        Entry {
            syntax: "show bfd",
            help: "BFD sessions of uplinks: state at both ends, whether the path is used, intervals and counts",
            rpc: "Underlay.ListBfdSessions",
            run: |session, _| {
                shown(ask!(session, UnderlayClient.list_bfd_sessions(v1::ListBfdSessionsRequest {}))?)
            },
        },
        Entry {
            syntax: "ping vtep <vtep:ip>",
            help: "Which packets pass to a VTEP, by every way there: echo requests of the uplink's MTU that nobody may fragment, and smaller ones where those are lost",
            rpc: "Underlay.ProbePaths",
            run: |session, args| {
                let vtep: IpAddr = args.get("vtep")?;
                let vteps = vec![vtep.to_string()];
                shown(ask!(session, UnderlayClient.probe_paths(v1::ProbePathsRequest { vteps }))?)
            },
        },
    ]
}

impl View for v1::ListFlowsResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "worker",
            "from",
            "source",
            "destination",
            "proto",
            "ports",
            "class",
            "action",
            "packets",
            "bytes",
            "idle s",
        ]);
        for flow in &self.flows {
            table.row([
                flow.worker.to_string(),
                flow.from.clone(),
                flow.source.clone(),
                flow.destination.clone(),
                flow.proto.to_string(),
                flow.ports.clone(),
                flow.class.clone(),
                flow.action.clone(),
                flow.packets.to_string(),
                flow.bytes.to_string(),
                format!("{:.1}", flow.idle_seconds),
            ]);
        }
        format!("{table}{} of {} flows\n", self.flows.len(), self.entries)
    }
}

impl View for v1::ListNeighboursResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["uplink", "address", "mac", "state", "heard s ago", "tries"]);
        for neighbour in &self.neighbours {
            table.row([
                neighbour.uplink.clone(),
                neighbour.address.clone(),
                neighbour.mac.clone(),
                neighbour.state.clone(),
                neighbour.heard_seconds.map(|seconds| seconds.to_string()).unwrap_or_default(),
                neighbour.tries.to_string(),
            ]);
        }
        table.to_string()
    }
}

impl View for v1::ListUplinksResponse {
    fn text(&self) -> String {
        let mut table =
            Table::new(["name", "link", "mac", "addresses", "silent for", "metric", "mtu", "vlan", "peers"]);
        for uplink in &self.uplinks {
            table.row([
                uplink.name.clone(),
                uplink.link.clone(),
                uplink.mac.clone(),
                uplink.addresses.join(" "),
                uplink.silent_for.join(" "),
                uplink.metric.to_string(),
                uplink.mtu.to_string(),
                uplink.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
                uplink.peers.join(" "),
            ]);
        }
        table.to_string()
    }
}

impl View for v1::ProbePathsResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "uplink", "next hop", "used", "MTU", "passes", "needed", "ms", "requests", "stray", "state",
        ]);
        let mut advice = String::new();
        for path in &self.paths {
            table.row([
                path.uplink.clone(),
                path.next_hop.clone(),
                (if path.preferred { "yes" } else { "standby" }).to_owned(),
                path.mtu.to_string(),
                path.passes.to_string(),
                path.needed.to_string(),
                path.round_trip_ms.map_or("-".into(), |time| format!("{time:.1}")),
                path.requests.to_string(),
                path.stray.to_string(),
                path.state.clone(),
            ]);
            if !path.advice.is_empty() {
                advice.push_str(&format!("{}\n", path.advice));
            }
        }
        format!("{table}{advice}")
    }
}

impl View for v1::ListBfdSessionsResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "uplink",
            "peer",
            "hops",
            "state",
            "peer's",
            "path",
            "last reason",
            "interval ms",
            "detection ms",
            "for s",
            "ups",
            "heard",
            "sent",
        ]);
        for session in &self.sessions {
            table.row([
                session.uplink.clone(),
                session.peer.clone(),
                (if session.multihop { "several" } else { "one" }).to_owned(),
                session.state.clone(),
                session.peer_state.clone(),
                session.path.clone(),
                session.diagnostic.clone(),
                format!("{}", session.interval_ms),
                session.detection_ms.map_or("-".into(), |time| format!("{time}")),
                format!("{:.1}", session.seconds),
                session.ups.to_string(),
                session.heard.to_string(),
                session.sent.to_string(),
            ]);
        }
        table.to_string()
    }
}
