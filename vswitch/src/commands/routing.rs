//! Commands about where a VPC's virtual router leads: subnets and routes.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use vswitch_api::v1;
use vswitch_api::v1::Kind;
use vswitch_api::v1::tenants_client::TenantsClient;
use wire::MacAddr;

use super::objects::{create, delete, find, set};
use super::{Entry, Session, View, ask, optional, shown, told};
use crate::config::{GatewayConfig, Name, RouteTargetConfig, SubnetConfig, VpcRoute};
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show subnet [<vpc:name>]",
            help: "Subnets: their router's address, vNICs of this host in them",
            rpc: "Tenants.ListSubnets",
            run: |session, args| {
                let request = v1::ListSubnetsRequest { vpc: optional(args, "vpc") };
                shown(ask!(session, TenantsClient.list_subnets(request))?)
            },
        },
        Entry {
            syntax: "subnet add <vpc:name> <prefix:prefix> [gateway <gateway:ip>]",
            help: "Add a subnet to a VPC",
            rpc: "Objects.Create",
            run: subnet_add,
        },
        Entry {
            syntax: "subnet del <vpc:name> <prefix:prefix>",
            help: "Remove a subnet",
            rpc: "Objects.Delete",
            run: |session, args| {
                let (vpc, prefix): (Name, IpNet) = (args.get("vpc")?, args.get("prefix")?);
                let answer = delete(session, Kind::Subnet, &format!("{vpc} {prefix}"))?;
                told(format!("subnet {prefix} of VPC {vpc} removed"), answer)
            },
        },
        Entry {
            syntax: "show route [<vpc:name>]",
            help: "Where a VPC's router leads: subnets and routes; the longest prefix wins",
            rpc: "Tenants.ListRoutes",
            run: |session, args| {
                let request = v1::ListRoutesRequest { vpc: optional(args, "vpc") };
                shown(ask!(session, TenantsClient.list_routes(request))?)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vtep <vtep:ip> mac <mac:mac>",
            help: "Add a route to a gateway behind a VTEP; set: or change the one there is",
            rpc: "Objects.Create",
            run: |session, args| {
                let gateway = GatewayConfig { vtep: args.get("vtep")?, mac: args.get("mac")? };
                route_add(session, args, RouteTargetConfig::Gateways(vec![gateway]))
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> next-hops <next-hops:word>",
            help: "Add a route to several gateways, which share the flows: vtep=mac, separated by commas",
            rpc: "Objects.Create",
            run: |session, args| {
                let gateways = gateways(&args.get::<String>("next-hops")?).ok_or_else(|| {
                    let example = "172.16.0.3=02:00:00:00:00:03,172.16.0.4=02:00:00:00:00:04";
                    args.error(
                        "next-hops",
                        format!("next hops are VTEPs with the MAC behind each, as in {example}"),
                    )
                })?;
                route_add(session, args, RouteTargetConfig::Gateways(gateways))
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vpc <peer:name>",
            help: "Add a route to the stations of another VPC",
            rpc: "Objects.Create",
            run: |session, args| {
                let target = RouteTargetConfig::Peer { vpc: args.get("peer")? };
                route_add(session, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> vnic <vnic:name>",
            help: "Add a route to a vNIC of this host, such as a metadata server or a firewall; it follows the vNIC to other hosts",
            rpc: "Objects.Create",
            run: |session, args| {
                let target = RouteTargetConfig::Vnic { vnic: args.get("vnic")? };
                route_add(session, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> mac <mac:mac>",
            help: "Add a route to the station of the VPC with this MAC address, on whichever host it is",
            rpc: "Objects.Create",
            run: |session, args| {
                let target = RouteTargetConfig::Station { mac: args.get("mac")? };
                route_add(session, args, target)
            },
        },
        Entry {
            syntax: "route add|set <vpc:name> <to:prefix> blackhole",
            help: "Add a route that leads nowhere: packets are dropped, their senders told",
            rpc: "Objects.Create",
            run: |session, args| route_add(session, args, RouteTargetConfig::Blackhole),
        },
        Entry {
            syntax: "route del <vpc:name> <to:prefix>",
            help: "Remove a route",
            rpc: "Objects.Delete",
            run: |session, args| {
                let (vpc, to): (Name, IpNet) = (args.get("vpc")?, args.get("to")?);
                let answer = delete(session, Kind::Route, &format!("{vpc} {to}"))?;
                told(format!("route to {to} of VPC {vpc} removed"), answer)
            },
        },
    ]
}

fn subnet_add(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (vpc, prefix): (Name, IpNet) = (args.get("vpc")?, args.get("prefix")?);
    let text = format!("subnet {prefix} added to VPC {vpc}");
    let gateway: Option<IpAddr> = args.maybe("gateway");
    let subnet = SubnetConfig { vpc, prefix, gateway, dhcp: None, ra: None };
    told(text, create(session, Kind::Subnet, &subnet)?)
}

fn gateways(text: &str) -> Option<Vec<GatewayConfig>> {
    let one = |text: &str| {
        let (vtep, mac) = text.split_once('=')?;
        Some(GatewayConfig { vtep: vtep.parse().ok()?, mac: mac.parse::<MacAddr>().ok()? })
    };
    text.split(',').map(one).collect()
}

/// A route as an object of its own.
#[derive(Serialize)]
struct RouteObject {
    of: Name,
    route: VpcRoute,
}

fn route_add(session: &mut Session, args: &Args, target: RouteTargetConfig) -> Result<Output, CommandError> {
    let (of, to): (Name, IpNet) = (args.get("vpc")?, args.get("to")?);
    let id = format!("{of} {to}");
    let object = RouteObject { of: of.clone(), route: VpcRoute { to, target } };
    if args.has("set") && find(session, Kind::Route, &id)?.is_some() {
        return told(format!("route to {to} of VPC {of} set"), set(session, Kind::Route, &object)?);
    }
    let text = match args.has("set") {
        true => format!("route to {to} of VPC {of} set"),
        false => format!("route to {to} added to VPC {of}"),
    };
    told(text, create(session, Kind::Route, &object)?)
}

impl View for v1::ListSubnetsResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["vpc", "prefix", "gateway", "vnics"]);
        for subnet in &self.subnets {
            let gateway = subnet.gateway.clone().unwrap_or_default();
            table.row([subnet.vpc.clone(), subnet.prefix.clone(), gateway, subnet.vnics.to_string()]);
        }
        table.to_string()
    }
}

impl View for v1::ListRoutesResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["vpc", "to", "leads", "state"]);
        for route in &self.routes {
            let mut row = |leads: String, state: &str| {
                table.row([route.vpc.clone(), route.to.clone(), leads, state.to_owned()]);
            };
            let state = route.state.as_deref().unwrap_or_default();
            match route.kind.as_str() {
                "subnet" => match &route.gateway {
                    Some(gateway) => row(format!("on link, router {gateway}"), ""),
                    None => row("on link".into(), ""),
                },
                "gateway" => {
                    for hop in &route.next_hops {
                        row(format!("{} behind vtep {}", hop.mac, hop.vtep), &hop.state);
                    }
                }
                "peer" => row(format!("vpc {}", route.peer.as_deref().unwrap_or_default()), ""),
                "station" => match &route.vnic {
                    Some(name) => row(format!("vnic {name}"), state),
                    None => row(format!("station {}", route.mac.as_deref().unwrap_or_default()), state),
                },
                kind => row(kind.to_owned(), ""),
            }
        }
        table.to_string()
    }
}
