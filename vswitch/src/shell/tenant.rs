//! Commands about tenants: VPCs, vNICs, and the locations of their machines.

use std::net::IpAddr;

use pipelines::event::Binding;
use pipelines::snapshot::{AllowedPair, Snapshot};
use pipelines::vlt::{Place, SlotRef};
use serde_json::{Value, json};
use wire::{MacAddr, Vni};

use super::{Entry, Shell, port};
use crate::config::{
    BothWays, GuardConfig, InnerVlan, LinkLocal, LocationConfig, Name, VnicConfig, VnicPort, VnicQos,
    VpcConfig,
};
use crate::console::{Args, CommandError, Output, Table};
use crate::topology::Topology;
use crate::topology::paths::RankedHop;
use crate::view;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry { syntax: "show vpc", help: "VPCs with their subnets and routes", run: show_vpc },
        Entry { syntax: "vpc add <name:name> vni <vni:vni> [flood]", help: "Add a VPC", run: vpc_add },
        Entry { syntax: "vpc del <vpc:name>", help: "Remove a VPC without vNICs", run: vpc_del },
        Entry { syntax: "show vnic [<vnic:name>]", help: "vNICs: addresses, port, traffic", run: show_vnic },
        Entry {
            syntax: "vnic add <name:name> vpc <vpc:name> mac <mac:mac> vips <vips:word> [mtu <mtu:uint>] [vlan <vlan:uint>] [groups <groups:word>] port <port:text>",
            help: "Add a vNIC, or take over one that moves here; vips and groups separated by commas; port: kind key=value ..., a trunk's name, or the vNIC's own name for the plain port of that name",
            run: vnic_add,
        },
        Entry { syntax: "vnic del <vnic:name>", help: "Remove a vNIC and its port", run: vnic_del },
        Entry {
            syntax: "vnic move <vnic:name> vtep <remote:ip>",
            help: "Remove a vNIC that goes to another host, and place its addresses there, in one change",
            run: vnic_move,
        },
        Entry { syntax: "show vlt [<vni:vni>]", help: "Where destinations are", run: show_vlt },
        Entry {
            syntax: "vlt set <vni:vni> <vip:ip> [mac <mac:mac>] vtep <remote:ip>",
            help: "Place a destination behind a VTEP, or move it; the MAC of a known one may be left out",
            run: vlt_set,
        },
        Entry {
            syntax: "vlt move <vni:vni> <mac:mac> vtep <remote:ip>",
            help: "Place all addresses of a machine behind another VTEP, in one change",
            run: vlt_move,
        },
        Entry { syntax: "vlt del <vni:vni> <vip:ip>", help: "Forget a destination", run: vlt_del },
    ]
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

fn show_vpc(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let config = shell.switch.config();
    let mut table =
        Table::new(["name", "vni", "router mac", "subnets", "routes", "vnics", "flood", "inner vlan"]);
    let mut rows = Vec::new();
    for vpc in &config.vpcs {
        let subnets: Vec<String> = config
            .subnets
            .iter()
            .filter(|subnet| subnet.vpc == vpc.name)
            .map(|subnet| match subnet.gateway {
                Some(gateway) => format!("{} (gateway {gateway})", subnet.prefix),
                None => subnet.prefix.to_string(),
            })
            .collect();
        let vnics = config.vnics.iter().filter(|vnic| vnic.vpc == vpc.name).count();
        let keep = vpc.inner_vlan == InnerVlan::Keep;
        table.row([
            vpc.name.to_string(),
            vpc.vni.to_string(),
            vpc.router_mac().to_string(),
            list(&subnets),
            vpc.routes.len().to_string(),
            vnics.to_string(),
            if vpc.flood { "yes" } else { "no" }.to_string(),
            if keep { "keep" } else { "drop" }.to_string(),
        ]);
        rows.push(json!({
            "name": vpc.name.as_str(), "vni": vpc.vni.get(), "router-mac": vpc.router_mac().to_string(),
            "subnets": subnets, "routes": vpc.routes.len(), "vnics": vnics, "flood": vpc.flood,
            "vteps": vpc.vteps,
            "inner-vlan": if keep { "keep" } else { "drop" },
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn vpc_add(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("name")?;
    let vpc = VpcConfig {
        name: name.clone(),
        vni: args.get("vni")?,
        given_router_mac: None,
        flood: args.has("flood"),
        vteps: Vec::new(),
        inner_vlan: InnerVlan::Drop,
        routes: Vec::new(),
        qos: BothWays::default(),
    };
    shell.switch.add_vpc(vpc)?;
    Ok(Output::message(format!("VPC {name} added")))
}

fn vpc_del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vpc")?;
    shell.switch.remove_vpc(&name)?;
    Ok(Output::message(format!("VPC {name} removed")))
}

fn show_vnic(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted: Option<Name> = args.maybe("vnic");
    let snapshot = shell.switch.snapshot().clone();
    let mut table = Table::new([
        "name",
        "vpc",
        "vni",
        "mac",
        "vips",
        "mtu",
        "port",
        "vlan",
        "rx packets",
        "tx packets",
        "drops",
        "misses",
    ]);
    let mut rows = Vec::new();
    let named = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.as_str() == name);
    for vnic in snapshot.vnics.iter().flatten().filter(|vnic| named(&vnic.name)) {
        let vpc = snapshot.vpc(vnic.vpc);
        let (vpc, vni) = vpc.map_or((String::new(), 0), |vpc| (vpc.name.clone(), vpc.vni.get()));
        let port = shell.switch.ports().get(vnic.port).map_or("none".into(), |port| port.name.clone());
        let traffic = view::vnic(&shell.switch, vnic.index);
        table.row([
            vnic.name.clone(),
            vpc.clone(),
            vni.to_string(),
            vnic.mac.to_string(),
            list(&vnic.vips),
            vnic.mtu.to_string(),
            port.clone(),
            vnic.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
            traffic.rx_packets.to_string(),
            traffic.tx_packets.to_string(),
            traffic.drops.to_string(),
            traffic.misses.to_string(),
        ]);
        let mut row = json!({
            "name": vnic.name, "vpc": vpc, "vni": vni, "mac": vnic.mac.to_string(),
            "vips": vnic.vips, "mtu": vnic.mtu, "port": port, "vlan": vnic.vlan,
            "guarded": vnic.guarded, "allowed": vnic.allowed.iter().map(allowed).collect::<Vec<_>>(),
        });
        for (name, value) in traffic.iter() {
            row[name] = json!(value);
        }
        rows.push(row);
    }
    if let (Some(name), true) = (&wanted, rows.is_empty()) {
        return Err(args.error("vnic", format!("no vNIC {name}; `show vnic` lists them")));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn allowed(pair: &AllowedPair) -> Value {
    json!({ "ip": pair.prefix.to_string(), "mac": pair.mac.to_string() })
}

fn vnic_add(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("name")?;
    let vips: Result<Vec<IpAddr>, _> = args.get::<String>("vips")?.split(',').map(str::parse).collect();
    let vips = vips
        .map_err(|_| args.error("vips", "vips are addresses separated by commas, as in 10.0.0.1,fd00::1"))?;
    let small = |argument: &str| -> Result<Option<u16>, CommandError> {
        args.maybe::<u64>(argument)
            .map(|n| u16::try_from(n).map_err(|_| args.error(argument, format!("{n} is over 65535"))))
            .transpose()
    };
    let text: String = args.get("port")?;
    let port = match Name::new(text.trim()) {
        Ok(trunk) => VnicPort::Trunk(trunk),
        Err(_) => VnicPort::Own(port::spec_of(&text)?),
    };
    let (vpc, mac): (Name, MacAddr) = (args.get("vpc")?, args.get("mac")?);
    let from = shell.switch.moves_from(&vpc, mac, &vips);
    let security_groups = match args.maybe::<String>("groups") {
        Some(names) => group_names(args, &names)?,
        None => from.first().map(|location| location.groups.clone()).unwrap_or_default(),
    };
    let vnic = VnicConfig {
        name: name.clone(),
        vpc,
        mac,
        vips,
        link_local: LinkLocal::default(),
        allowed: Vec::new(),
        guard: GuardConfig::default(),
        host_name: None,
        mtu: small("mtu")?.unwrap_or(1450),
        port,
        vlan: small("vlan")?,
        queues: None,
        offload: None,
        qp_quota: None,
        refuse: None,
        qos: VnicQos::default(),
        security_groups,
    };
    shell.switch.add_vnic(vnic)?;
    let from = from.first().map(|location| format!("; it moved here from VTEP {}", location.vtep));
    Ok(Output::message(format!("vNIC {name} added{}", from.unwrap_or_default())))
}

fn group_names(args: &Args, names: &str) -> Result<Vec<Name>, CommandError> {
    let names =
        names.split(',').map(|name| Name::new(name).map_err(|error| args.error("groups", error.to_string())));
    names.collect()
}

fn vnic_del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vnic")?;
    shell.switch.remove_vnic(&name)?;
    Ok(Output::message(format!("vNIC {name} removed")))
}

fn vnic_move(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (name, vtep): (Name, IpAddr) = (args.get("vnic")?, args.get("remote")?);
    let vips = shell.switch.move_vnic(&name, vtep)?;
    let are = if vips.len() == 1 { "is" } else { "are" };
    Ok(Output::message(format!("vNIC {name} left this host; {} {are} behind {vtep}", list(&vips))))
}

fn vlt_move(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vni, mac, vtep): (Vni, MacAddr, IpAddr) = (args.get("vni")?, args.get("mac")?, args.get("remote")?);
    let count = shell.switch.move_locations(vni, mac, vtep)?;
    let addresses = if count == 1 { "address is" } else { "addresses are" };
    Ok(Output::message(format!("{count} {addresses} behind {vtep}")))
}

fn show_vlt(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted: Option<Vni> = args.maybe("vni");
    let snapshot = shell.switch.snapshot().clone();
    let mut table = Table::new(["vni", "vip", "mac", "where", "next hop", "state"]);
    let mut rows = Vec::new();
    let mut add = |vni: Vni, vip: IpAddr, mac: MacAddr, place: String, hop: String, state: &str| {
        if wanted.is_some_and(|wanted| wanted != vni) {
            return;
        }
        table.row([
            vni.to_string(),
            vip.to_string(),
            mac.to_string(),
            place.clone(),
            hop.clone(),
            state.into(),
        ]);
        rows.push(json!({
            "vni": vni.get(), "vip": vip, "mac": mac.to_string(), "where": place, "next-hop": hop, "state": state,
        }));
    };
    for vnic in snapshot.vnics.iter().flatten() {
        let Some(vpc) = snapshot.vpc(vnic.vpc) else { continue };
        let state = if vnic.port == pipelines::snapshot::NO_PORT { "no port" } else { "local" };
        for &vip in &vnic.vips {
            add(vpc.vni, vip, vnic.mac, format!("vnic {}", vnic.name), String::new(), state);
        }
    }
    for (vnic, Binding { address, mac }) in shell.switch.topology().floating() {
        let Some(vpc) = snapshot.vpc(vnic.vpc) else { continue };
        add(vpc.vni, address, mac, format!("vnic {}", vnic.name), String::new(), "floating");
    }
    let config = shell.switch.config();
    for location in &config.locations {
        let vpc = snapshot.vpcs.iter().flatten().find(|vpc| vpc.vni == location.vni);
        let key = pipelines::snapshot::Destination::Ip(location.vip);
        let found = vpc.and_then(|vpc| snapshot.location(vpc.index, key));
        let state = state_of(&snapshot, found.map(|found| found.slot));
        let hops = next_hops(shell.switch.topology(), &snapshot, location.vtep);
        let place = format!("vtep {}", location.vtep);
        add(location.vni, location.vip, location.mac, place, hops, state);
    }
    let (used, all) = shell.switch.topology().vlt_usage();
    let text = format!("{table}{used} of {all} slots in use\n");
    Ok(Output::new(text, json!({ "locations": rows, "used": used, "capacity": all })))
}

/// What is known of the way that a slot leads.
pub(super) fn state_of(snapshot: &Snapshot, slot: Option<SlotRef>) -> &'static str {
    match slot.map(|slot| snapshot.vlt.read(slot.slot).place) {
        Some(Place::Remote(tunnel)) if snapshot.uplink_of(tunnel.group).is_none() => "resolving",
        Some(Place::Remote(_)) => "resolved",
        Some(Place::Local { .. }) => "local",
        Some(Place::Empty) | None => "no route",
    }
}

/// The next hops to a VTEP, in the order of preference; where there are several, with their uplinks.
fn next_hops(topology: &Topology, snapshot: &Snapshot, vtep: IpAddr) -> String {
    let paths = topology.paths(vtep).map(|found| found.paths).unwrap_or_default();
    let one = |path: &RankedHop| match snapshot.uplink(path.hop.uplink) {
        Some(uplink) if paths.len() > 1 => format!("{} ({})", path.hop.address, uplink.name),
        _ => path.hop.address.to_string(),
    };
    paths.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn vlt_set(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vni, vip): (Vni, IpAddr) = (args.get("vni")?, args.get("vip")?);
    let known = shell.switch.topology().location(vni, vip).map(|location| location.mac);
    let mac = args.maybe::<MacAddr>("mac").or(known).ok_or_else(|| {
        args.error(
            "vip",
            format!("{vip} is not known in VNI {vni} yet: say its MAC, as in `mac 52:54:00:00:00:02`"),
        )
    })?;
    if !mac.is_station() {
        return Err(
            args.error("mac", format!("{mac} is a group address or zero; a location has a station's MAC"))
        );
    }
    let vtep: IpAddr = args.get("remote")?;
    // It stays in the groups that it is in.
    let groups =
        shell.switch.topology().location(vni, vip).map(|known| known.groups.clone()).unwrap_or_default();
    shell.switch.set_location(&LocationConfig { vni, vip, mac, vtep, groups })?;
    Ok(Output::message(format!("{vip} in VNI {vni} is behind {vtep}")))
}

fn vlt_del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vni, vip): (Vni, IpAddr) = (args.get("vni")?, args.get("vip")?);
    shell.switch.remove_location(vni, vip)?;
    Ok(Output::message(format!("{vip} in VNI {vni} is forgotten")))
}
