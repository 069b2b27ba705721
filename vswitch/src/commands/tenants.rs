//! Commands about tenants: VPCs, vNICs, and the locations of their machines.

use std::net::IpAddr;

use vswitch_api::v1;
use vswitch_api::v1::Kind;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::tenants_client::TenantsClient;
use wire::{MacAddr, Vni};

use super::objects::{apply, create, delete, find, list, to_delete, update};
use super::ports::spec_of;
use super::{Entry, Session, View, ask, optional, shown, told};
use crate::config::{
    BothWays, GuardConfig, InnerVlan, LinkLocal, Name, VnicConfig, VnicPort, VnicQos, VpcConfig,
};
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show vpc",
            help: "VPCs with their subnets and routes",
            rpc: "Tenants.ListVpcs",
            run: |session, _| shown(ask!(session, TenantsClient.list_vpcs(v1::ListVpcsRequest {}))?),
        },
        Entry {
            syntax: "vpc add <name:name> vni <vni:vni> [flood]",
            help: "Add a VPC",
            rpc: "Objects.Create",
            run: vpc_add,
        },
        Entry {
            syntax: "vpc del <vpc:name>",
            help: "Remove a VPC without vNICs",
            rpc: "Objects.Apply",
            run: vpc_del,
        },
        Entry {
            syntax: "show vnic [<vnic:name>]",
            help: "vNICs: addresses, port, traffic",
            rpc: "Tenants.ListVnics",
            run: |session, args| {
                let request = v1::ListVnicsRequest { vnic: optional(args, "vnic") };
                shown(ask!(session, TenantsClient.list_vnics(request))?)
            },
        },
        Entry {
            syntax: "vnic add <name:name> vpc <vpc:name> mac <mac:mac> vips <vips:word> [mtu <mtu:uint>] [vlan <vlan:uint>] [groups <groups:word>] port <port:text>",
            help: "Add a vNIC, or take over one that moves here; vips and groups separated by commas; port: kind key=value ..., a trunk's name, or the vNIC's own name for the plain port of that name",
            rpc: "Objects.Create",
            run: vnic_add,
        },
        Entry {
            syntax: "vnic del <vnic:name>",
            help: "Remove a vNIC and its port",
            rpc: "Objects.Delete",
            run: |session, args| {
                let name: Name = args.get("vnic")?;
                told(format!("vNIC {name} removed"), delete(session, Kind::Vnic, &name)?)
            },
        },
        Entry {
            syntax: "vnic move <vnic:name> vtep <vtep:ip>",
            help: "Remove a vNIC that goes to another host, and place its addresses there, in one change",
            rpc: "Tenants.MoveVnic",
            run: vnic_move,
        },
        Entry {
            syntax: "show vlt [<vni:vni>]",
            help: "Where destinations are",
            rpc: "Tenants.ListLocations",
            run: |session, args| {
                let request = v1::ListLocationsRequest { vni: args.maybe::<Vni>("vni").map(Vni::get) };
                shown(ask!(session, TenantsClient.list_locations(request))?)
            },
        },
        Entry {
            syntax: "vlt set <vni:vni> <vip:ip> [mac <mac:mac>] vtep <vtep:ip>",
            help: "Place a destination behind a VTEP, or move it; the MAC of a known one may be left out",
            rpc: "Objects.Update",
            run: vlt_set,
        },
        Entry {
            syntax: "vlt move <vni:vni> <mac:mac> vtep <vtep:ip>",
            help: "Place all addresses of a machine behind another VTEP, in one change",
            rpc: "Tenants.MoveLocations",
            run: vlt_move,
        },
        Entry {
            syntax: "vlt del <vni:vni> <vip:ip>",
            help: "Forget a destination",
            rpc: "Objects.Delete",
            run: |session, args| {
                let (vni, vip): (Vni, IpAddr) = (args.get("vni")?, args.get("vip")?);
                let answer = delete(session, Kind::Location, &format!("{vni} {vip}"))?;
                told(format!("{vip} in VNI {vni} is forgotten"), answer)
            },
        },
        Entry {
            syntax: "show services [<vnic:name>]",
            help: "vNICs that DHCP or router advertisements are for: what they are told, when they asked last, and what came of it",
            rpc: "Tenants.ListServed",
            run: |session, args| {
                let request = v1::ListServedRequest { vnic: optional(args, "vnic") };
                shown(ask!(session, TenantsClient.list_served(request))?)
            },
        },
    ]
}

fn vpc_add(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
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
    told(format!("VPC {name} added"), create(session, Kind::Vpc, &vpc)?)
}

/// With its subnets, as one change.
fn vpc_del(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vpc")?;
    let subnets = list(session, Kind::Subnet)?.into_iter().filter_map(|entry| entry.key);
    let of_vpc = subnets.filter(|key| key.id.split(' ').next() == Some(name.as_str()));
    let operations = of_vpc.map(|key| to_delete(Kind::Subnet, key.id)).collect::<Vec<_>>();
    let vpc = to_delete(Kind::Vpc, name.as_str());
    told(format!("VPC {name} removed"), apply(session, operations.into_iter().chain([vpc]))?)
}

fn vnic_add(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
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
        Err(_) => VnicPort::Own(spec_of(&text)?),
    };
    let (vpc, mac): (Name, MacAddr) = (args.get("vpc")?, args.get("mac")?);
    let from = moves_from(session, &vpc, mac, &vips)?;
    let security_groups = match (args.maybe::<String>("groups"), &from) {
        (Some(names), _) => group_names(args, "groups", &names)?,
        (None, Some(location)) => location.groups.iter().filter_map(|group| Name::new(group).ok()).collect(),
        (None, None) => Vec::new(),
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
    let answer = create(session, Kind::Vnic, &vnic)?;
    let from = from.map(|location| format!("; it moved here from VTEP {}", location.vtep));
    told(format!("vNIC {name} added{}", from.unwrap_or_default()), answer)
}

/// Where another host has an address that a vNIC is to have, with its MAC address, too: so it is this vNIC that moves here.
fn moves_from(
    session: &Session,
    vpc: &Name,
    mac: MacAddr,
    vips: &[IpAddr],
) -> Result<Option<v1::Location>, CommandError> {
    let vpc = find(session, Kind::Vpc, vpc)?.and_then(|entry| entry.object?.spec);
    let Some(Spec::Vpc(v1::Vpc { vni: Some(vni), .. })) = vpc else { return Ok(None) };
    for vip in vips {
        let known = find(session, Kind::Location, &format!("{vni} {vip}"))?;
        if let Some(Spec::Location(location)) = known.and_then(|entry| entry.object?.spec)
            && location.mac == mac.to_string()
        {
            return Ok(Some(location));
        }
    }
    Ok(None)
}

pub(super) fn group_names(args: &Args, argument: &str, names: &str) -> Result<Vec<Name>, CommandError> {
    let names =
        names.split(',').map(|name| Name::new(name).map_err(|error| args.error(argument, error.to_string())));
    names.collect()
}

fn vnic_move(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, vtep): (Name, IpAddr) = (args.get("vnic")?, args.get("vtep")?);
    let (vnic, vtep) = (name.to_string(), vtep.to_string());
    let request = v1::MoveVnicRequest { vnic, vtep: vtep.clone(), force: true, ..Default::default() };
    let answer = ask!(session, TenantsClient.move_vnic(request))?;
    let are = if answer.vips.len() == 1 { "is" } else { "are" };
    told(format!("vNIC {name} left this host; {} {are} behind {vtep}", answer.vips.join(" ")), answer)
}

fn vlt_move(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (vni, mac, vtep): (Vni, MacAddr, IpAddr) = (args.get("vni")?, args.get("mac")?, args.get("vtep")?);
    let (mac, vtep) = (mac.to_string(), vtep.to_string());
    let (vni, force) = (vni.get(), true);
    let request = v1::MoveLocationsRequest { vni, mac, vtep: vtep.clone(), force, ..Default::default() };
    let answer = ask!(session, TenantsClient.move_locations(request))?;
    let addresses = if answer.moved == 1 { "address is" } else { "addresses are" };
    told(format!("{} {addresses} behind {vtep}", answer.moved), answer)
}

fn vlt_set(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (vni, vip, vtep): (Vni, IpAddr, IpAddr) = (args.get("vni")?, args.get("vip")?, args.get("vtep")?);
    let mac: Option<MacAddr> = args.maybe("mac");
    if let Some(mac) = mac.filter(|mac| !mac.is_station()) {
        return Err(
            args.error("mac", format!("{mac} is a group address or zero; a location has a station's MAC"))
        );
    }
    let known = find(session, Kind::Location, &format!("{vni} {vip}"))?;
    let location = v1::Location {
        vni: Some(vni.get()),
        vip: vip.to_string(),
        mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        vtep: vtep.to_string(),
        groups: Vec::new(),
    };
    let text = format!("{vip} in VNI {vni} is behind {vtep}");
    if known.is_some() {
        // It stays in the groups that it is in.
        let paths: &[&str] = if mac.is_some() { &["mac", "vtep"] } else { &["vtep"] };
        return told(text, update(session, Spec::Location(location), paths)?);
    }
    if mac.is_none() {
        let message =
            format!("{vip} is not known in VNI {vni} yet: say its MAC, as in `mac 52:54:00:00:00:02`");
        return Err(args.error("vip", message));
    }
    let location = v1::Object { spec: Some(Spec::Location(location)) };
    told(text, super::objects::create_object(session, location)?)
}

impl View for v1::ListVpcsResponse {
    fn text(&self) -> String {
        let mut table =
            Table::new(["name", "vni", "router mac", "subnets", "routes", "vnics", "flood", "inner vlan"]);
        for vpc in &self.vpcs {
            table.row([
                vpc.name.clone(),
                vpc.vni.to_string(),
                vpc.router_mac.clone(),
                vpc.subnets.join(" "),
                vpc.routes.to_string(),
                vpc.vnics.to_string(),
                if vpc.flood { "yes" } else { "no" }.to_string(),
                vpc.inner_vlan.clone(),
            ]);
        }
        table.to_string()
    }
}

impl View for v1::ListVnicsResponse {
    fn text(&self) -> String {
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
        for vnic in &self.vnics {
            table.row([
                vnic.name.clone(),
                vnic.vpc.clone(),
                vnic.vni.to_string(),
                vnic.mac.clone(),
                vnic.vips.join(" "),
                vnic.mtu.to_string(),
                vnic.port.clone(),
                vnic.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
                vnic.rx_packets.to_string(),
                vnic.tx_packets.to_string(),
                vnic.drops.to_string(),
                vnic.nft_misses.to_string(),
            ]);
        }
        table.to_string()
    }
}

impl View for v1::ListLocationsResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["vni", "vip", "mac", "where", "next hop", "state"]);
        for location in &self.locations {
            table.row([
                location.vni.to_string(),
                location.vip.clone(),
                location.mac.clone(),
                location.r#where.clone(),
                location.next_hop.clone(),
                location.state.clone(),
            ]);
        }
        format!("{table}{} of {} slots in use\n", self.used, self.capacity)
    }
}

impl View for v1::ListServedResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "vnic",
            "vpc",
            "addresses",
            "host name",
            "s ago",
            "requests",
            "given",
            "told",
            "refused",
            "released",
            "declined",
            "advertised",
        ]);
        for vnic in &self.vnics {
            let counts = [
                vnic.requests,
                vnic.given,
                vnic.told,
                vnic.refused,
                vnic.released,
                vnic.declined,
                vnic.advertised,
            ];
            let ago = vnic.seconds_ago.map_or("never".into(), |ago| format!("{ago:.1}"));
            let name = vnic.host_name.clone().unwrap_or_default();
            let first = [vnic.vnic.clone(), vnic.vpc.clone(), vnic.addresses.join(" "), name, ago];
            table.row(first.into_iter().chain(counts.map(|count| count.to_string())));
        }
        table.to_string()
    }
}
