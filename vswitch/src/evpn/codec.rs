//! Routes to what gobgpd's interface has for them, and back. What comes is as others made it: each part is looked at before it is
//! believed, and a route that is not for this switch is named with the reason.

use std::net::IpAddr;

use ipnet::IpNet;
use prost::{Message, Name};
use prost_types::Any;
use vswitch_api::gobgp;
use wire::{MacAddr, Vni};

use super::route::{Distinguisher, Key, Route};
use crate::config::RouteTargetForm;

/// AFI L2VPN, SAFI EVPN (RFC 7432 section 7).
pub const EVPN: gobgp::Family = gobgp::Family { afi: 25, safi: 70 };
/// The sub-type of route targets (RFC 4360 section 4).
const ROUTE_TARGET: u32 = 2;
/// VxLAN as tunnel type of the encapsulation community (RFC 8365 section 11).
const VXLAN: u32 = 8;
/// Ingress replication as a tunnel of the provider (RFC 6514 section 5).
const INGRESS_REPLICATION: u32 = 6;
/// The type of a VNI in a route target (RFC 8365 section 5.1.2.1): A is 0, the type 1 (VxLAN), the domain 0.
const VXLAN_TARGET: u32 = 1 << 28;

/// Why a route is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Of a type that the switch does not use.
    #[error("of another type: {0}")]
    OtherType(String),
    /// It cannot be read.
    #[error("malformed: {0}")]
    Malformed(String),
    /// For another kind of tunnel.
    #[error("for no VxLAN tunnel")]
    OtherTunnel,
    /// An Ethernet tag: one network with several broadcast domains.
    #[error("with an Ethernet tag, {0}")]
    Tag(u32),
    /// No route target that says the VNI of its label.
    #[error("VNI {0} is not that of its route targets")]
    OtherTarget(u32),
}

fn malformed<T>(what: impl Into<String>) -> Result<T, Unusable> {
    Err(Unusable::Malformed(what.into()))
}

/// A message packed as its type.
fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

/// The message, where it is of that type.
fn unpack<M: Message + Name + Default>(any: &Any) -> Option<Result<M, Unusable>> {
    let (_, name) = any.type_url.rsplit_once('/')?;
    (name == M::full_name())
        .then(|| M::decode(any.value.as_slice()).map_err(|error| Unusable::Malformed(error.to_string())))
}

fn address(text: &str, what: &str) -> Result<IpAddr, Unusable> {
    text.parse().or_else(|_| malformed(format!("{what} {text:?}")))
}

/// An address that may be none.
fn maybe_address(text: &str, what: &str) -> Result<Option<IpAddr>, Unusable> {
    match text {
        "" | "<nil>" => Ok(None),
        text => address(text, what).map(Some),
    }
}

fn mac(text: &str) -> Result<MacAddr, Unusable> {
    let mac = text.parse::<MacAddr>();
    match mac {
        Ok(mac) if mac.is_station() => Ok(mac),
        _ => malformed(format!("MAC address {text:?}")),
    }
}

fn distinguisher(any: Option<&Any>) -> Result<Distinguisher, Unusable> {
    let Some(any) = any else { return malformed("no route distinguisher") };
    let number = |wide: u32| u16::try_from(wide).or_else(|_| malformed("route distinguisher"));
    if let Some(rd) = unpack::<gobgp::RouteDistinguisherIpAddress>(any) {
        let rd = rd?;
        return match address(&rd.admin, "route distinguisher")? {
            IpAddr::V4(admin) => Ok(Distinguisher::Address(admin, number(rd.assigned)?)),
            IpAddr::V6(_) => malformed("route distinguisher"),
        };
    }
    if let Some(rd) = unpack::<gobgp::RouteDistinguisherTwoOctetAsn>(any) {
        let rd = rd?;
        return Ok(Distinguisher::Asn2(number(rd.admin)?, rd.assigned));
    }
    if let Some(rd) = unpack::<gobgp::RouteDistinguisherFourOctetAsn>(any) {
        let rd = rd?;
        return Ok(Distinguisher::Asn4(rd.admin, number(rd.assigned)?));
    }
    malformed(format!("route distinguisher {:?}", any.type_url))
}

fn any_of(rd: Distinguisher) -> Any {
    match rd {
        Distinguisher::Asn2(admin, assigned) => {
            pack(&gobgp::RouteDistinguisherTwoOctetAsn { admin: admin.into(), assigned })
        }
        Distinguisher::Address(admin, assigned) => {
            pack(&gobgp::RouteDistinguisherIpAddress { admin: admin.to_string(), assigned: assigned.into() })
        }
        Distinguisher::Asn4(admin, assigned) => {
            pack(&gobgp::RouteDistinguisherFourOctetAsn { admin, assigned: assigned.into() })
        }
    }
}

/// What the NLRI of a path says.
struct Nlri {
    key: Key,
    tag: u32,
    label: Option<u32>,
    gateway: Option<IpAddr>,
}

fn nlri(path: &gobgp::Path) -> Result<Nlri, Unusable> {
    let Some(any) = &path.nlri else { return malformed("no NLRI") };
    if let Some(route) = unpack::<gobgp::EvpnmacipAdvertisementRoute>(any) {
        let route = route?;
        let (rd, tag) = (distinguisher(route.rd.as_ref())?, route.ethernet_tag);
        let ip = maybe_address(&route.ip_address, "IP address")?;
        let key = Key::Station { rd, tag, mac: mac(&route.mac_address)?, ip };
        return Ok(Nlri { key, tag, label: route.labels.first().copied(), gateway: None });
    }
    if let Some(route) = unpack::<gobgp::EvpnInclusiveMulticastEthernetTagRoute>(any) {
        let route = route?;
        let (rd, tag) = (distinguisher(route.rd.as_ref())?, route.ethernet_tag);
        let key = Key::Flood { rd, tag, originator: address(&route.ip_address, "originating router")? };
        return Ok(Nlri { key, tag, label: None, gateway: None });
    }
    if let Some(route) = unpack::<gobgp::EvpnipPrefixRoute>(any) {
        let route = route?;
        let (rd, tag) = (distinguisher(route.rd.as_ref())?, route.ethernet_tag);
        let first = address(&route.ip_prefix, "prefix")?;
        let length = u8::try_from(route.ip_prefix_len).unwrap_or(u8::MAX);
        let Ok(to) = IpNet::new(first, length) else { return malformed("prefix length") };
        let gateway =
            maybe_address(&route.gw_address, "gateway")?.filter(|address| !address.is_unspecified());
        let key = Key::Prefix { rd, tag, to: to.trunc() };
        return Ok(Nlri { key, tag, label: Some(route.label), gateway });
    }
    let name = any.type_url.rsplit_once('/').map_or(any.type_url.as_str(), |(_, name)| name);
    Err(Unusable::OtherType(name.chars().take(80).collect()))
}

/// The key of a path's route.
///
/// # Errors
/// Why it has none.
pub fn key(path: &gobgp::Path) -> Result<Key, Unusable> {
    nlri(path).map(|nlri| nlri.key)
}

/// The number of a route target; none of any other community.
fn target(any: &Any) -> Result<Option<u32>, Unusable> {
    if let Some(community) = unpack::<gobgp::TwoOctetAsSpecificExtended>(any) {
        let community = community?;
        return Ok((community.sub_type == ROUTE_TARGET).then_some(community.local_admin));
    }
    if let Some(community) = unpack::<gobgp::FourOctetAsSpecificExtended>(any) {
        let community = community?;
        return Ok((community.sub_type == ROUTE_TARGET).then_some(community.local_admin));
    }
    Ok(None)
}

/// The route that a path is.
///
/// # Errors
/// Why it is not for this switch.
pub fn route(path: &gobgp::Path) -> Result<Route, Unusable> {
    let Nlri { key, tag, mut label, gateway } = nlri(path)?;
    if tag != 0 {
        return Err(Unusable::Tag(tag));
    }
    let (mut vtep, mut targets, mut tunnels) = (None, Vec::new(), Vec::new());
    let (mut sequence, mut sticky, mut router_mac) = (0, false, None);
    for attribute in &path.pattrs {
        if let Some(reach) = unpack::<gobgp::MpReachNlriAttribute>(attribute) {
            let reach = reach?;
            let Some(first) = reach.next_hops.first() else { return malformed("no next hop") };
            vtep = Some(address(first, "next hop")?);
        } else if let Some(tunnel) = unpack::<gobgp::PmsiTunnelAttribute>(attribute) {
            let tunnel = tunnel?;
            if tunnel.r#type != INGRESS_REPLICATION {
                return Err(Unusable::OtherTunnel);
            }
            label = Some(tunnel.label);
        } else if let Some(communities) = unpack::<gobgp::ExtendedCommunitiesAttribute>(attribute) {
            for community in communities?.communities {
                targets.extend(target(&community)?);
                if let Some(tunnel) = unpack::<gobgp::EncapExtended>(&community) {
                    tunnels.push(tunnel?.tunnel_type);
                } else if let Some(mobility) = unpack::<gobgp::MacMobilityExtended>(&community) {
                    let mobility = mobility?;
                    (sequence, sticky) = (mobility.sequence_num, mobility.is_sticky);
                } else if let Some(router) = unpack::<gobgp::RouterMacExtended>(&community) {
                    router_mac = Some(mac(&router?.mac)?);
                }
            }
        }
    }
    if !tunnels.is_empty() && !tunnels.contains(&VXLAN) {
        return Err(Unusable::OtherTunnel);
    }
    let Some(vtep) = vtep else { return malformed("no next hop") };
    let vni_of = |target: &u32| target & !VXLAN_TARGET;
    let Some(number) = label.or_else(|| targets.first().map(vni_of)) else {
        return malformed("neither label nor route target");
    };
    if !targets.iter().any(|target| vni_of(target) == number) {
        return Err(Unusable::OtherTarget(number));
    }
    let Ok(vni) = Vni::new(number) else { return malformed(format!("VNI {number}")) };
    Ok(Route { key, vni, vtep, sequence, sticky, router_mac, gateway })
}

/// True for a path that came by gobgpd's own interface and not from a peer.
pub fn is_local(path: &gobgp::Path) -> bool {
    matches!(path.neighbor_ip.as_str(), "" | "<nil>")
}

/// How routes are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    pub asn: u32,
    pub form: RouteTargetForm,
}

impl Targets {
    /// The route target of a network: of an AS number of four octets the lower two, as FRR does it.
    fn of(self, vni: Vni) -> Any {
        let local_admin = match self.form {
            RouteTargetForm::Plain => vni.get(),
            RouteTargetForm::Rfc8365 => VXLAN_TARGET | vni.get(),
        };
        let asn = self.asn & 0xffff;
        pack(&gobgp::TwoOctetAsSpecificExtended {
            is_transitive: true,
            sub_type: ROUTE_TARGET,
            asn,
            local_admin,
        })
    }
}

fn any_nlri(route: &Route) -> Any {
    let label = route.vni.get();
    let esi = Some(gobgp::EthernetSegmentIdentifier { r#type: 0, value: vec![0; 9] });
    match route.key {
        Key::Station { rd, tag, mac, ip } => pack(&gobgp::EvpnmacipAdvertisementRoute {
            rd: Some(any_of(rd)),
            esi,
            ethernet_tag: tag,
            mac_address: mac.to_string(),
            ip_address: ip.map(|ip| ip.to_string()).unwrap_or_default(),
            labels: vec![label],
        }),
        Key::Flood { rd, tag, originator } => pack(&gobgp::EvpnInclusiveMulticastEthernetTagRoute {
            rd: Some(any_of(rd)),
            ethernet_tag: tag,
            ip_address: originator.to_string(),
        }),
        Key::Prefix { rd, tag, to } => {
            let unspecified = if to.addr().is_ipv4() { "0.0.0.0" } else { "::" };
            pack(&gobgp::EvpnipPrefixRoute {
                rd: Some(any_of(rd)),
                esi,
                ethernet_tag: tag,
                ip_prefix: to.addr().to_string(),
                ip_prefix_len: to.prefix_len().into(),
                gw_address: route.gateway.map_or(unspecified.into(), |gateway| gateway.to_string()),
                label,
            })
        }
    }
}

/// A path that announces a route.
pub fn path(route: &Route, targets: Targets) -> gobgp::Path {
    let mut path = bare(route);
    let mut communities = vec![targets.of(route.vni), pack(&gobgp::EncapExtended { tunnel_type: VXLAN })];
    if let Key::Station { .. } = route.key {
        let (is_sticky, sequence_num) = (route.sticky, route.sequence);
        communities.push(pack(&gobgp::MacMobilityExtended { is_sticky, sequence_num }));
    }
    if let Some(mac) = route.router_mac {
        communities.push(pack(&gobgp::RouterMacExtended { mac: mac.to_string() }));
    }
    path.pattrs.push(pack(&gobgp::ExtendedCommunitiesAttribute { communities }));
    if let Key::Flood { .. } = route.key {
        let id = match route.vtep {
            IpAddr::V4(vtep) => vtep.octets().to_vec(),
            IpAddr::V6(vtep) => vtep.octets().to_vec(),
        };
        path.pattrs.push(pack(&gobgp::PmsiTunnelAttribute {
            flags: 0,
            r#type: INGRESS_REPLICATION,
            label: route.vni.get(),
            id,
        }));
    }
    path
}

/// A path that withdraws it: with a sequence number gobgpd would hold that against those of others, and refuse it.
pub fn bare(route: &Route) -> gobgp::Path {
    let nlri = any_nlri(route);
    let reach = gobgp::MpReachNlriAttribute {
        family: Some(EVPN),
        next_hops: vec![route.vtep.to_string()],
        nlris: vec![nlri.clone()],
    };
    gobgp::Path {
        nlri: Some(nlri),
        pattrs: vec![pack(&gobgp::OriginAttribute { origin: 0 }), pack(&reach)],
        family: Some(EVPN),
        ..gobgp::Path::default()
    }
}

#[cfg(test)]
mod tests;
