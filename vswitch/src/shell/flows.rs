//! Commands about flows and the underlay: NFT, neighbours.

use pipelines::drops::DropReason;
use pipelines::nft::{FlowVerdict, NftEntry};
use pipelines::snapshot::{Snapshot, mac_from};
use pipelines::vlt::Place;
use serde_json::json;

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};
use crate::topology::underlay::NeighbourState;
use crate::view::flow::Ends;
use crate::worker::WorkerCommand;

/// Flows shown when no number is given.
const DEFAULT_FLOWS: u64 = 20;
/// Flows read from a worker at a time.
const PAGE: usize = 64;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show nft [<count:uint>]",
            help: "Flows of all workers, the first 20 or so many",
            run: nft,
        },
        Entry { syntax: "clear nft", help: "Forget all flows; the next packets decide again", run: clear },
        Entry { syntax: "show neigh", help: "Next hops of the underlay", run: neighbours },
        Entry {
            syntax: "show uplink",
            help: "Uplinks: link, addresses and which of them another one answers for, MTU, VLAN",
            run: uplinks,
        },
    ]
}

fn nft(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let limit = args.maybe::<u64>("count").unwrap_or(DEFAULT_FLOWS) as usize;
    let snapshot = shell.switch.snapshot().clone();
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
    let (mut rows, mut entries) = (Vec::new(), 0);
    for (number, worker) in shell.switch.pool().workers.iter().enumerate() {
        let mut from = Some(0);
        while let Some(start) = from {
            let page = worker
                .mailbox()
                .ask(|reply| WorkerCommand::Nft(start, PAGE, reply))
                .map_err(|error| CommandError::new(error.to_string()))?;
            for flow in &page.entries {
                entries += 1;
                if rows.len() >= limit {
                    continue;
                }
                let (ends, action) = (Ends::of(&flow.key, &snapshot), action(flow, &snapshot));
                let idle = f64::from(page.tick.wrapping_sub(flow.last_seen)) * f64::from(pipelines::TICK_MS)
                    / 1000.0;
                table.row([
                    number.to_string(),
                    ends.from.clone(),
                    ends.source.clone(),
                    ends.destination.clone(),
                    ends.proto.to_string(),
                    ends.ports.clone(),
                    ends.class.into(),
                    action.clone(),
                    flow.packets.to_string(),
                    flow.bytes.to_string(),
                    format!("{idle:.1}"),
                ]);
                rows.push(json!({
                    "worker": number, "from": ends.from, "source": ends.source, "destination": ends.destination,
                    "proto": ends.proto, "ports": ends.ports, "class": ends.class, "action": action,
                    "packets": flow.packets, "bytes": flow.bytes, "idle-seconds": idle,
                }));
            }
            from = page.next;
        }
    }
    let text = format!("{table}{} of {entries} flows\n", rows.len());
    Ok(Output::new(text, json!({ "flows": rows, "entries": entries })))
}

fn action(flow: &NftEntry, snapshot: &Snapshot) -> String {
    let routed = if flow.action.rewrite != 0 { "route, " } else { "" };
    match flow.action.verdict {
        FlowVerdict::Drop => {
            let reason = DropReason::from_index(usize::from(flow.action.reason));
            format!("drop {}", reason.map_or("?", DropReason::name))
        }
        FlowVerdict::Flood => "flood".into(),
        FlowVerdict::Router => "to the router".into(),
        FlowVerdict::Service => "to a service".into(),
        FlowVerdict::Forward => match snapshot.vlt.read(flow.action.slot).place {
            Place::Local { vnic } => {
                let name = snapshot.vnic(vnic).map(|vnic| vnic.name.clone()).unwrap_or_default();
                format!("{routed}to vnic {name}")
            }
            Place::Remote(tunnel) if snapshot.uplink_of(tunnel.group).is_none() => {
                "wait for the next hop".into()
            }
            Place::Remote(_) => format!("{routed}encap, slot {}", flow.action.slot),
            Place::Empty => "decide again".into(),
        },
    }
}

fn clear(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let pool = shell.switch.pool();
    let cleared = pool.post_all(|| WorkerCommand::NftClear).and_then(|()| pool.barrier());
    cleared.map_err(|error| CommandError::new(error.to_string()))?;
    Ok(Output::message("all flows are forgotten"))
}

fn neighbours(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let mut table = Table::new(["uplink", "address", "mac", "state", "heard s ago", "tries"]);
    let mut rows = Vec::new();
    for (uplink, address, neighbour) in shell.switch.neighbours().list() {
        let name = shell.switch.snapshot().uplink(uplink).map(|up| up.name.clone()).unwrap_or_default();
        let state = match neighbour.state {
            NeighbourState::Static(_) => "static",
            NeighbourState::Incomplete => "incomplete",
            NeighbourState::Reachable(_) => "reachable",
            NeighbourState::Stale(_) => "stale",
        };
        let mac = neighbour.mac().map(|mac| mac.to_string()).unwrap_or_default();
        let heard = neighbour.heard.map(|heard| heard.elapsed().as_secs());
        table.row([
            name.clone(),
            address.to_string(),
            mac.clone(),
            state.into(),
            heard.map(|s| s.to_string()).unwrap_or_default(),
            neighbour.tries.to_string(),
        ]);
        rows.push(json!({
            "uplink": name, "address": address, "mac": mac, "state": state, "heard-seconds": heard,
            "tries": neighbour.tries,
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn uplinks(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let config = shell.switch.config();
    let mut table =
        Table::new(["name", "link", "mac", "addresses", "silent for", "metric", "mtu", "vlan", "peers"]);
    let mut rows = Vec::new();
    for uplink in &config.uplinks {
        let known = &shell.switch.snapshot().uplinks;
        let index =
            known.iter().position(|row| row.as_ref().is_some_and(|row| row.name == uplink.name.as_str()));
        let row = index.and_then(|index| known[index].as_deref());
        let mac = row.map(|row| mac_from(row.mac).to_string()).unwrap_or_default();
        let up = index.is_some_and(|index| shell.switch.topology().is_up(index as u16));
        let link = if up { "up" } else { "down" };
        let silent: Vec<String> =
            row.iter().flat_map(|row| &row.silent).map(|address| address.to_string()).collect();
        let addresses: Vec<String> = uplink.addresses.iter().map(|net| net.to_string()).collect();
        let peers: Vec<String> = uplink.peers.iter().map(|peer| peer.to_string()).collect();
        table.row([
            uplink.name.to_string(),
            link.into(),
            mac.clone(),
            addresses.join(" "),
            silent.join(" "),
            uplink.metric.to_string(),
            uplink.mtu.to_string(),
            uplink.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
            peers.join(" "),
        ]);
        rows.push(json!({
            "name": uplink.name.as_str(), "mac": mac, "addresses": addresses, "mtu": uplink.mtu,
            "vlan": uplink.vlan, "peers": peers, "link": link, "metric": uplink.metric, "silent-for": silent,
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}
