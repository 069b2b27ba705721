//! The service `Tenants`: VPCs, vNICs, subnets, routes, and the locations of machines, as they are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use pipelines::counters::VnicTotals;
use pipelines::event::Binding;
use pipelines::snapshot::{Destination, Gateway, NO_PORT, RouteTarget, Services, Snapshot, Vnic, Vpc};
use pipelines::vlt::{Place, SlotRef};
use tonic::Code;
use vswitch_api::v1::tenants_server::Tenants;
use vswitch_api::v1::{self, Kind};
use wire::{MacAddr, Vni};

use super::claims::Claim;
use super::kinds::location_id;
use super::named::{self, texts};
use super::refusal::{Problem, Problems};
use super::service::{counted, service};
use crate::config::{InnerVlan, Name};
use crate::controller::Controller;
use crate::switch::Switch;
use crate::switch::services::{Client, served};
use crate::topology::Topology;
use crate::topology::paths::RankedHop;
use crate::view;

service! { Tenants {
    reads list_vpcs(ListVpcsRequest) -> ListVpcsResponse: "listing VPCs",
    reads list_vnics(ListVnicsRequest) -> ListVnicsResponse: "listing vNICs",
    reads list_locations(ListLocationsRequest) -> ListLocationsResponse: "listing locations",
    reads list_subnets(ListSubnetsRequest) -> ListSubnetsResponse: "listing subnets",
    reads list_routes(ListRoutesRequest) -> ListRoutesResponse: "listing routes",
    reads list_served(ListServedRequest) -> ListServedResponse: "listing clients of DHCP",
    waits move_vnic(MoveVnicRequest) -> MoveVnicResponse: "moving a vNIC",
    changes move_locations(MoveLocationsRequest) -> MoveLocationsResponse: "moving locations",
} }

fn list_vpcs(controller: &mut Controller, _: v1::ListVpcsRequest) -> Result<v1::ListVpcsResponse, Problem> {
    let config = controller.switch.bare_config();
    let mut vnics: HashMap<&Name, u32> = HashMap::new();
    config.vnics.iter().for_each(|vnic| *vnics.entry(&vnic.vpc).or_default() += 1);
    let of = |vpc: &crate::config::VpcConfig| {
        let subnets = config.subnets.iter().filter(|subnet| subnet.vpc == vpc.name);
        let subnets = subnets.map(|subnet| match subnet.gateway {
            Some(gateway) => format!("{} (gateway {gateway})", subnet.prefix),
            None => subnet.prefix.to_string(),
        });
        v1::VpcState {
            name: vpc.name.to_string(),
            vni: vpc.vni.get(),
            router_mac: vpc.router_mac().to_string(),
            subnets: subnets.collect(),
            routes: vpc.routes.len() as u32,
            vnics: vnics.get(&vpc.name).copied().unwrap_or_default(),
            flood: vpc.flood,
            vteps: texts(&vpc.vteps),
            inner_vlan: if vpc.inner_vlan == InnerVlan::Keep { "keep" } else { "drop" }.into(),
        }
    };
    Ok(v1::ListVpcsResponse { vpcs: config.vpcs.iter().map(of).collect() })
}

fn list_vnics(
    controller: &mut Controller,
    request: v1::ListVnicsRequest,
) -> Result<v1::ListVnicsResponse, Problem> {
    let switch = &controller.switch;
    let snapshot = switch.snapshot();
    let vnics = match request.vnic.as_str() {
        "" => snapshot.vnics.iter().flatten().map(|vnic| vnic_state(switch, snapshot, vnic)).collect(),
        name => vec![vnic_state(switch, snapshot, named::vnic(snapshot, name)?)],
    };
    Ok(v1::ListVnicsResponse { vnics })
}

fn vnic_state(switch: &Switch, snapshot: &Snapshot, vnic: &Vnic) -> v1::VnicState {
    let vpc = snapshot.vpc(vnic.vpc);
    let allowed = vnic
        .allowed
        .iter()
        .map(|pair| v1::AllowedPair { ip: pair.prefix.to_string(), mac: pair.mac.to_string() });
    counted!(
        VnicTotals {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            drops,
            nft_misses,
            rdma_rx_packets,
            rdma_tx_packets,
            qps_opened,
            qps_refused,
            qp_drops,
            qps_rejected,
            cm_messages,
            cm_unheard,
        } = view::vnic(switch, vnic.index) => v1::VnicState {
            name: vnic.name.clone(),
            vpc: vpc.map(|vpc| vpc.name.clone()).unwrap_or_default(),
            vni: vpc.map(|vpc| vpc.vni.get()).unwrap_or_default(),
            mac: vnic.mac.to_string(),
            vips: texts(&vnic.vips),
            mtu: vnic.mtu.into(),
            port: switch.ports().get(vnic.port).map_or("none".into(), |port| port.name.clone()),
            vlan: vnic.vlan.map(Into::into),
            guarded: vnic.guarded,
            allowed: allowed.collect(),
        }
    )
}

fn list_locations(
    controller: &mut Controller,
    request: v1::ListLocationsRequest,
) -> Result<v1::ListLocationsResponse, Problem> {
    let (switch, snapshot) = (&controller.switch, controller.switch.snapshot());
    let wanted = |vni: Vni| request.vni.is_none_or(|wanted| wanted == vni.get());
    let mut locations = Vec::new();
    let mut add = |vni: Vni, vip: Option<IpAddr>, mac: MacAddr, place: String, hop: String, state: &str| {
        locations.push(v1::LocationState {
            vni: vni.get(),
            vip: vip.map(|vip| vip.to_string()).unwrap_or_default(),
            mac: mac.to_string(),
            r#where: place,
            next_hop: hop,
            state: state.into(),
        });
    };
    for vnic in snapshot.vnics.iter().flatten() {
        let Some(vpc) = snapshot.vpc(vnic.vpc).filter(|vpc| wanted(vpc.vni)) else { continue };
        let state = if vnic.port == NO_PORT { "no port" } else { "local" };
        for &vip in &vnic.vips {
            add(vpc.vni, Some(vip), vnic.mac, format!("vnic {}", vnic.name), String::new(), state);
        }
    }
    for (vnic, Binding { address, mac }) in switch.topology().floating() {
        let Some(vpc) = snapshot.vpc(vnic.vpc).filter(|vpc| wanted(vpc.vni)) else { continue };
        add(vpc.vni, Some(address), mac, format!("vnic {}", vnic.name), String::new(), "floating");
    }
    for location in switch.topology().locations().filter(|location| wanted(location.vni)) {
        let vpc = snapshot.vnis.get(u128::from(location.vni.get()));
        let found = vpc.and_then(|vpc| snapshot.location(vpc, Destination::Ip(location.vip)));
        let state = state_of(snapshot, found.map(|found| found.slot));
        let hops = next_hops(switch.topology(), snapshot, location.vtep);
        add(location.vni, Some(location.vip), location.mac, format!("vtep {}", location.vtep), hops, state);
    }
    for (vni, mac, vtep, slot) in switch.topology().stations().filter(|(vni, ..)| wanted(*vni)) {
        let hops = next_hops(switch.topology(), snapshot, vtep);
        add(vni, None, mac, format!("vtep {vtep}"), hops, state_of(snapshot, Some(slot)));
    }
    let (used, capacity) = switch.topology().vlt_usage();
    Ok(v1::ListLocationsResponse { locations, used: used as u64, capacity: capacity as u64 })
}

/// What is known of the way that a slot leads.
fn state_of(snapshot: &Snapshot, slot: Option<SlotRef>) -> &'static str {
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

/// The VPC that was asked for is there, if one was.
fn check_vpc(controller: &Controller, name: &str) -> Result<(), Problem> {
    if name.is_empty() { Ok(()) } else { named::vpc(controller.switch.snapshot(), name).map(|_| ()) }
}

fn list_subnets(
    controller: &mut Controller,
    request: v1::ListSubnetsRequest,
) -> Result<v1::ListSubnetsResponse, Problem> {
    check_vpc(controller, &request.vpc)?;
    let config = controller.switch.bare_config();
    let wanted = |vpc: &str| request.vpc.is_empty() || request.vpc == vpc;
    let subnets = config.subnets.iter().filter(|subnet| wanted(&subnet.vpc)).map(|subnet| {
        let is_in = |vip: &IpAddr| subnet.prefix.contains(vip);
        let vnics = config.vnics.iter().filter(|vnic| vnic.vpc == subnet.vpc);
        v1::SubnetState {
            vpc: subnet.vpc.to_string(),
            prefix: subnet.prefix.to_string(),
            gateway: subnet.gateway.map(|gateway| gateway.to_string()),
            vnics: vnics.filter(|vnic| vnic.vips.iter().any(is_in)).count() as u32,
        }
    });
    Ok(v1::ListSubnetsResponse { subnets: subnets.collect() })
}

fn list_routes(
    controller: &mut Controller,
    request: v1::ListRoutesRequest,
) -> Result<v1::ListRoutesResponse, Problem> {
    check_vpc(controller, &request.vpc)?;
    let snapshot = controller.switch.snapshot();
    let wanted = |vpc: &&std::sync::Arc<Vpc>| request.vpc.is_empty() || request.vpc == vpc.name;
    let mut routes = Vec::new();
    for vpc in snapshot.vpcs.iter().flatten().filter(wanted) {
        routes.extend(vpc.subnets().iter().map(|subnet| v1::RouteState {
            vpc: vpc.name.clone(),
            to: subnet.prefix.to_string(),
            kind: "subnet".into(),
            gateway: subnet.gateway.map(|gateway| gateway.to_string()),
            ..v1::RouteState::default()
        }));
        routes.extend(vpc.routes().iter().map(|(prefix, target)| {
            let route =
                v1::RouteState { vpc: vpc.name.clone(), to: prefix.to_string(), ..v1::RouteState::default() };
            leads(snapshot, vpc, route, target)
        }));
    }
    Ok(v1::ListRoutesResponse { routes })
}

/// Where a route leads.
fn leads(snapshot: &Snapshot, vpc: &Vpc, route: v1::RouteState, target: &RouteTarget) -> v1::RouteState {
    match target {
        RouteTarget::Gateways(gateways) => {
            let next_hops = gateways.iter().map(|gateway| next_hop(snapshot, gateway)).collect();
            v1::RouteState { kind: "gateway".into(), next_hops, ..route }
        }
        RouteTarget::Peer(peer) => {
            let peer = snapshot.vpc(*peer).map(|peer| peer.name.clone()).unwrap_or_default();
            v1::RouteState { kind: "peer".into(), peer: Some(peer), ..route }
        }
        RouteTarget::Station(mac) => {
            let found = snapshot.location(vpc.index, Destination::Mac(*mac));
            let state = found.map_or("unreachable", |found| state_of(snapshot, Some(found.slot)));
            let vnic = match found.map(|found| snapshot.vlt.read(found.slot.slot).place) {
                Some(Place::Local { vnic }) => snapshot.vnic(vnic).map(|vnic| vnic.name.clone()),
                _ => None,
            };
            let (mac, state) = (Some(mac.to_string()), Some(state.to_owned()));
            v1::RouteState { kind: "station".into(), mac, vnic, state, ..route }
        }
        RouteTarget::Blackhole => v1::RouteState { kind: "blackhole".into(), ..route },
    }
}

fn next_hop(snapshot: &Snapshot, gateway: &Gateway) -> v1::NextHopState {
    v1::NextHopState {
        vtep: gateway.vtep.to_string(),
        mac: gateway.mac.to_string(),
        state: state_of(snapshot, Some(gateway.slot)).into(),
    }
}

fn list_served(
    controller: &mut Controller,
    request: v1::ListServedRequest,
) -> Result<v1::ListServedResponse, Problem> {
    let (switch, now) = (&controller.switch, Instant::now());
    let (config, snapshot) = (switch.bare_config(), switch.snapshot());
    let named = |name: &str| request.vnic.is_empty() || request.vnic == name;
    let mut vnics = Vec::new();
    for vnic in snapshot.vnics.iter().flatten().filter(|vnic| named(&vnic.name)) {
        let told = |is_v4| served(config, snapshot, vnic, is_v4).map(|served| served.address.to_string());
        let addresses: Vec<String> = [true, false].into_iter().filter_map(told).collect();
        let hears = snapshot.serves(vnic.index, Services::ADVERTISEMENTS, Ipv6Addr::UNSPECIFIED.into());
        if addresses.is_empty() && !hears {
            continue;
        }
        let client = switch.services().client(vnic.index).cloned().unwrap_or_default();
        let Client {
            seen, host_name, requests, given, told, refused, released, declined, advertised, ..
        } = client;
        vnics.push(v1::ServedVnic {
            vnic: vnic.name.clone(),
            vpc: snapshot.vpc(vnic.vpc).map(|vpc| vpc.name.clone()).unwrap_or_default(),
            addresses,
            host_name: host_name.as_ref().map(ToString::to_string),
            seconds_ago: seen.map(|seen| now.saturating_duration_since(seen).as_secs_f64()),
            requests,
            given,
            told,
            refused,
            released,
            declined,
            advertised,
        });
    }
    if vnics.is_empty() && !request.vnic.is_empty() {
        let message = format!(
            "{} is no vNIC with an address in a subnet that has dhcp or ra; `show vnic` lists all",
            request.vnic
        );
        return Err(Problem::new(Code::NotFound, "vnic", message));
    }
    Ok(v1::ListServedResponse { vnics })
}

/// A value of a request from its text.
fn parsed<T: std::str::FromStr>(field: &str, text: &str, what: &str, like: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|_| Problem::invalid(field, format!("{text:?} is not {what}; write one such as {like}")))
}

fn move_vnic(
    controller: &mut Controller,
    request: v1::MoveVnicRequest,
) -> Result<v1::MoveVnicResponse, Problems> {
    let vtep: IpAddr = parsed("vtep", &request.vtep, "an address of a VTEP", "172.16.0.2")?;
    let (switch, claim) = (&mut controller.switch, Claim::of(request.owner, request.force)?);
    if switch.bare_config().vnics.iter().any(|vnic| vnic.name.as_str() == request.vnic) {
        claim.check_now(switch, Kind::Vnic, &request.vnic)?;
    }
    let vips = switch.move_vnic(&request.vnic, vtep, claim.owner)?;
    Ok(v1::MoveVnicResponse { vips: texts(vips) })
}

fn move_locations(
    controller: &mut Controller,
    request: v1::MoveLocationsRequest,
) -> Result<v1::MoveLocationsResponse, Problems> {
    let vtep: IpAddr = parsed("vtep", &request.vtep, "an address of a VTEP", "172.16.0.2")?;
    let mac: MacAddr = parsed("mac", &request.mac, "a MAC address", "52:54:00:00:00:01")?;
    let vni = Vni::new(request.vni).map_err(|error| Problem::invalid("vni", error.to_string()))?;
    let (switch, claim) = (&mut controller.switch, Claim::of(request.owner, request.force)?);
    for location in switch.locations_of_machine(vni, mac) {
        claim.check_now(switch, Kind::Location, &location_id(location))?;
    }
    let moved = switch.move_locations(vni, mac, vtep)?;
    Ok(v1::MoveLocationsResponse { moved: moved as u32 })
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use vswitch_api::v1::Owner;

    use super::super::owned::{assert_refused, controller};
    use super::*;
    use crate::state::owners;
    use crate::switch::testing;

    const VTEP: &str = "172.16.0.9";

    #[test]
    fn a_vpc_has_its_vnics_and_subnets() {
        let mut controller = controller();
        let copies = testing::copies();
        let vpcs = list_vpcs(&mut controller, v1::ListVpcsRequest::default()).unwrap().vpcs;
        let told: Vec<_> = vpcs.iter().map(|vpc| (vpc.name.as_str(), vpc.vnics, vpc.subnets.len())).collect();
        assert_eq!(told, [("red", 1, 1)]);
        assert_eq!(testing::copies(), copies, "who looks at the config copies none of it");
        controller.switch.stop();
    }

    #[test]
    fn a_vnic_is_moved_by_who_made_it() {
        let mut controller = controller();
        let mut go = |vnic: &str, owner: Owner, force| {
            let (vnic, vtep, owner) = (vnic.to_owned(), VTEP.to_owned(), owner.into());
            move_vnic(&mut controller, v1::MoveVnicRequest { vnic, vtep, owner, force })
        };
        assert_refused(go("pod", Owner::Api, false), Code::FailedPrecondition, "owner cni");
        assert_refused(go("nobody", Owner::Cni, false), Code::NotFound, "show vnic");
        assert_eq!(go("pod", Owner::Cni, false).unwrap().vips, ["10.0.0.1"]);
        let owner = controller.switch.owners().at_run_time("location", "100 10.0.0.1");
        assert_eq!(owner, owners::Owner::Cni);
        controller.switch.stop();
    }

    #[test]
    fn an_operator_moves_a_vnic_whoever_made_it() {
        let mut controller = controller();
        let (vnic, vtep) = ("pod".to_owned(), VTEP.to_owned());
        let request = v1::MoveVnicRequest { vnic, vtep, force: true, ..Default::default() };
        assert_eq!(move_vnic(&mut controller, request).unwrap().vips, ["10.0.0.1"]);
        controller.switch.stop();
    }

    #[test]
    fn locations_are_moved_by_who_made_them() {
        let mut controller = controller();
        let mut go = |last: u8, owner: Owner, force| {
            let (mac, vtep, owner) = (format!("02:00:00:00:00:0{last}"), VTEP.to_owned(), owner.into());
            move_locations(&mut controller, v1::MoveLocationsRequest { vni: 100, mac, vtep, owner, force })
        };
        assert_refused(go(2, Owner::Api, false), Code::FailedPrecondition, "owner etcd");
        assert_refused(go(3, Owner::Cni, false), Code::FailedPrecondition, "owner api");
        assert_refused(go(4, Owner::Cni, false), Code::NotFound, "show vlt");
        assert_eq!(go(3, Owner::Unspecified, false).unwrap().moved, 1);
        // It stays whose it was.
        assert_eq!(go(2, Owner::Api, true).unwrap().moved, 1);
        let owner = controller.switch.owners().at_run_time("location", "100 10.0.0.2");
        assert_eq!(owner, owners::Owner::Etcd);
        controller.switch.stop();
    }
}
