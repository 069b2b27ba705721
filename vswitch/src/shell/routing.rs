//! Commands about where a VPC's virtual router leads: subnets and routes.

use std::net::IpAddr;

use ipnet::IpNet;
use pipelines::snapshot::{Destination, Gateway, RouteTarget, Snapshot};
use pipelines::vlt::Place;
use serde_json::json;
use wire::MacAddr;

use super::tenant::state_of;
use super::{Entry, Shell};
use crate::config::{GatewayConfig, Name, RouteTargetConfig, SubnetConfig, VpcRoute};
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show subnet [<vpc:name>]",
            help: "Subnets: their router's address, vNICs of this host in them",
            run: show_subnet,
        },
        Entry {
            syntax: "subnet add <vpc:name> <prefix:prefix> [gateway <ip:ip>]",
            help: "Add a subnet to a VPC",
            run: subnet_add,
        },
        Entry { syntax: "subnet del <vpc:name> <prefix:prefix>", help: "Remove a subnet", run: subnet_del },
        Entry {
            syntax: "show route [<vpc:name>]",
            help: "Where a VPC's router leads: subnets and routes; the longest prefix wins",
            run: show_route,
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vtep <vtep:ip> mac <mac:mac>",
            help: "Add a route to a gateway behind a VTEP; set: or change the one there is",
            run: |shell, args| {
                let gateway = GatewayConfig { vtep: args.get("vtep")?, mac: args.get("mac")? };
                route_add(shell, args, RouteTargetConfig::Gateways(vec![gateway]))
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> next-hops <next-hops:word>",
            help: "Add a route to several gateways, which share the flows: vtep=mac, separated by commas",
            run: |shell, args| {
                let gateways = gateways(&args.get::<String>("next-hops")?).ok_or_else(|| {
                    let example = "172.16.0.3=02:00:00:00:00:03,172.16.0.4=02:00:00:00:00:04";
                    args.error(
                        "next-hops",
                        format!("next hops are VTEPs with the MAC behind each, as in {example}"),
                    )
                })?;
                route_add(shell, args, RouteTargetConfig::Gateways(gateways))
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vpc <peer:name>",
            help: "Add a route to the stations of another VPC",
            run: |shell, args| {
                let target = RouteTargetConfig::Peer { vpc: args.get("peer")? };
                route_add(shell, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vnic <vnic:name>",
            help: "Add a route to a vNIC of this host, such as a metadata server or a firewall; it follows the vNIC to other hosts",
            run: |shell, args| {
                let target = RouteTargetConfig::Vnic { vnic: args.get("vnic")? };
                route_add(shell, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> mac <mac:mac>",
            help: "Add a route to the station of the VPC with this MAC address, on whichever host it is",
            run: |shell, args| {
                let target = RouteTargetConfig::Station { mac: args.get("mac")? };
                route_add(shell, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> blackhole",
            help: "Add a route that leads nowhere: packets are dropped, their senders told",
            run: |shell, args| route_add(shell, args, RouteTargetConfig::Blackhole),
        },
        Entry { syntax: "route del <vpc:name> <to:prefix>", help: "Remove a route", run: route_del },
    ]
}

/// The VPC that was asked for; an error when there is none of that name.
fn wanted(shell: &Shell, args: &Args) -> Result<Option<Name>, CommandError> {
    let wanted: Option<Name> = args.maybe("vpc");
    match &wanted {
        Some(name) if !shell.switch.config().vpcs.iter().any(|vpc| vpc.name == *name) => {
            Err(args.error("vpc", format!("no VPC {name}; `show vpc` lists them")))
        }
        _ => Ok(wanted),
    }
}

fn show_subnet(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted = wanted(shell, args)?;
    let config = shell.switch.config();
    let mut table = Table::new(["vpc", "prefix", "gateway", "vnics"]);
    let mut rows = Vec::new();
    for subnet in
        config.subnets.iter().filter(|subnet| wanted.as_ref().is_none_or(|name| subnet.vpc == *name))
    {
        let is_in = |vip: &IpAddr| subnet.prefix.contains(vip);
        let vnics =
            config.vnics.iter().filter(|vnic| vnic.vpc == subnet.vpc && vnic.vips.iter().any(is_in)).count();
        let gateway = subnet.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
        table.row([subnet.vpc.to_string(), subnet.prefix.to_string(), gateway, vnics.to_string()]);
        rows.push(json!({
            "vpc": subnet.vpc.as_str(), "prefix": subnet.prefix, "gateway": subnet.gateway, "vnics": vnics,
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn subnet_add(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vpc, prefix): (Name, IpNet) = (args.get("vpc")?, args.get("prefix")?);
    shell.switch.add_subnet(SubnetConfig {
        vpc: vpc.clone(),
        prefix,
        gateway: args.maybe("ip"),
        dhcp: None,
        ra: None,
    })?;
    Ok(Output::message(format!("subnet {prefix} added to VPC {vpc}")))
}

fn subnet_del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vpc, prefix): (Name, IpNet) = (args.get("vpc")?, args.get("prefix")?);
    shell.switch.remove_subnet(&vpc, prefix)?;
    Ok(Output::message(format!("subnet {prefix} of VPC {vpc} removed")))
}

fn show_route(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted = wanted(shell, args)?;
    let snapshot = shell.switch.snapshot().clone();
    let mut table = Table::new(["vpc", "to", "leads", "state"]);
    let mut rows = Vec::new();
    let shown = snapshot
        .vpcs
        .iter()
        .flatten()
        .filter(|vpc| wanted.as_ref().is_none_or(|name| vpc.name == name.as_str()));
    for vpc in shown {
        for subnet in vpc.subnets() {
            let leads =
                subnet.gateway.map_or("on link".into(), |gateway| format!("on link, router {gateway}"));
            table.row([vpc.name.clone(), subnet.prefix.to_string(), leads, String::new()]);
            rows.push(json!({
                "vpc": vpc.name, "to": subnet.prefix.to_string(), "kind": "subnet", "gateway": subnet.gateway,
            }));
        }
        for (prefix, target) in vpc.routes() {
            let to = prefix.to_string();
            let mut row = json!({ "vpc": vpc.name, "to": to });
            match target {
                RouteTarget::Gateways(gateways) => {
                    for gateway in gateways {
                        let leads = format!("{} behind vtep {}", gateway.mac, gateway.vtep);
                        let state = state_of(&snapshot, Some(gateway.slot)).to_owned();
                        table.row([vpc.name.clone(), to.clone(), leads, state]);
                    }
                    row["kind"] = json!("gateway");
                    row["next-hops"] = gateways.iter().map(|gateway| next_hop(&snapshot, gateway)).collect();
                }
                RouteTarget::Peer(peer) => {
                    let peer = snapshot.vpc(*peer).map_or("", |peer| peer.name.as_str());
                    table.row([vpc.name.clone(), to, format!("vpc {peer}"), String::new()]);
                    row["kind"] = json!("peer");
                    row["peer"] = json!(peer);
                }
                RouteTarget::Station(mac) => {
                    let found = snapshot.location(vpc.index, Destination::Mac(*mac));
                    let place = found.map(|found| snapshot.vlt.read(found.slot.slot).place);
                    let state = match found {
                        Some(found) => state_of(&snapshot, Some(found.slot)),
                        None => "unreachable",
                    };
                    let vnic = match place {
                        Some(Place::Local { vnic }) => snapshot.vnic(vnic).map(|vnic| vnic.name.clone()),
                        _ => None,
                    };
                    let leads = match &vnic {
                        Some(name) => format!("vnic {name}"),
                        None => format!("station {mac}"),
                    };
                    table.row([vpc.name.clone(), to, leads, state.to_owned()]);
                    row["kind"] = json!("station");
                    row["mac"] = json!(mac.to_string());
                    row["vnic"] = json!(vnic);
                    row["state"] = json!(state);
                }
                RouteTarget::Blackhole => {
                    table.row([vpc.name.clone(), to, "blackhole".into(), String::new()]);
                    row["kind"] = json!("blackhole");
                }
            }
            rows.push(row);
        }
    }
    Ok(Output::table(&table, json!(rows)))
}

fn next_hop(snapshot: &Snapshot, gateway: &Gateway) -> serde_json::Value {
    let state = state_of(snapshot, Some(gateway.slot));
    json!({ "vtep": gateway.vtep, "mac": gateway.mac.to_string(), "state": state })
}

fn gateways(text: &str) -> Option<Vec<GatewayConfig>> {
    let one = |text: &str| {
        let (vtep, mac) = text.split_once('=')?;
        Some(GatewayConfig { vtep: vtep.parse().ok()?, mac: mac.parse::<MacAddr>().ok()? })
    };
    text.split(',').map(one).collect()
}

fn route_add(shell: &mut Shell, args: &Args, target: RouteTargetConfig) -> Result<Output, CommandError> {
    let (vpc, to): (Name, IpNet) = (args.get("vpc")?, args.get("to")?);
    let route = VpcRoute { to, target };
    if args.has("set") {
        shell.switch.set_route(&vpc, route)?;
        return Ok(Output::message(format!("route to {to} of VPC {vpc} set")));
    }
    shell.switch.add_route(&vpc, route)?;
    Ok(Output::message(format!("route to {to} added to VPC {vpc}")))
}

fn route_del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vpc, to): (Name, IpNet) = (args.get("vpc")?, args.get("to")?);
    shell.switch.remove_route(&vpc, to)?;
    Ok(Output::message(format!("route to {to} of VPC {vpc} removed")))
}
