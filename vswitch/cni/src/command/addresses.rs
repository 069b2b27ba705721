//! The addresses and routes of one attachment: chosen here, or by another plugin, and those of a vNIC that there is.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::config::{Host, NetworkConfig, OneOrMore};
use crate::error::{Error, INVALID_CONFIG, NO_ADDRESS, Result};
use crate::ipam::Range;
use crate::parameters::Parameters;
use crate::result::{Address, CniResult, Route};
use crate::switch::Switch;

/// The subnets of an attachment, with their gateways.
#[derive(Clone, Debug)]
pub struct Subnets {
    subnets: Vec<(IpNet, Option<IpAddr>)>,
    default_route: bool,
}

/// What an attachment has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    pub ips: Vec<Address>,
    pub routes: Vec<Route>,
    pub dns: Value,
}

impl Subnets {
    pub fn of(config: &NetworkConfig, vpc: &str, switch: &mut Switch) -> Result<Self> {
        let known = |subnet: &IpNet| Ok((*subnet, switch.gateway(vpc, *subnet)?));
        let subnets = config.subnet.0.iter().map(known).collect::<Result<_>>()?;
        Ok(Self { subnets, default_route: config.default_route })
    }

    fn of_ip(&self, ip: IpAddr) -> Option<(IpNet, Option<IpAddr>)> {
        self.subnets.iter().find(|(subnet, _)| subnet.contains(&ip)).copied()
    }

    /// These addresses, with a default route for each that has a gateway.
    pub fn addresses(&self, ips: &[IpAddr], dns: &Value) -> Addresses {
        let mut whole = Addresses { dns: dns.clone(), ..Addresses::default() };
        for ip in ips {
            let Some((subnet, gateway)) = self.of_ip(*ip) else { continue };
            let address = IpNet::new(*ip, subnet.prefix_len()).unwrap_or(subnet);
            whole.ips.push(Address { address, gateway, interface: None });
        }
        self.with_defaults(whole)
    }

    fn with_defaults(&self, mut whole: Addresses) -> Addresses {
        for ip in &mut whole.ips {
            let subnet = self.of_ip(ip.address.addr());
            // Other plugins guess where the router is, and the switch knows.
            ip.gateway = subnet.and_then(|(_, gateway)| gateway).or(ip.gateway);
            let is_ipv4 = ip.address.addr().is_ipv4();
            let is_there =
                whole.routes.iter().any(|r| r.dst.prefix_len() == 0 && r.dst.addr().is_ipv4() == is_ipv4);
            let any: IpAddr = if is_ipv4 { [0; 4].into() } else { [0; 16].into() };
            if let (Some(gw), Ok(dst), true) =
                (ip.gateway, IpNet::new(any, 0), self.default_route && !is_there)
            {
                whole.routes.push(Route { dst, gw: Some(gw) });
            }
        }
        whole
    }

    /// What another plugin chose.
    pub fn chosen_elsewhere(&self, chosen: CniResult, dns: &Value) -> Result<Addresses> {
        if chosen.ips.is_empty() {
            return Err(Error::config("ipam", "the plugin chose no address", "correct its section"));
        }
        if let Some(ip) = chosen.ips.iter().find(|ip| self.of_ip(ip.address.addr()).is_none()) {
            let wrong = format!("the plugin chose {}, which is outside the subnet", ip.address);
            return Err(Error::config("ipam", wrong, "give it ranges in the subnet"));
        }
        let says_nothing = chosen.dns.as_object().is_none_or(serde_json::Map::is_empty);
        let dns = if says_nothing { dns.clone() } else { chosen.dns };
        let ips = chosen.ips.into_iter().map(|ip| Address { interface: None, ..ip }).collect();
        let mut whole = self.with_defaults(Addresses { ips, routes: chosen.routes, dns });
        // A route without a gateway is by that of its family.
        for route in whole.routes.iter_mut().filter(|route| route.gw.is_none()) {
            let of_family = |ip: &&Address| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4();
            route.gw = whole.ips.iter().find(of_family).and_then(|ip| ip.gateway);
        }
        Ok(whole)
    }

    /// Of each subnet the address that is asked for, or one that is free.
    pub fn choose(&self, choice: &mut Choice<'_>, taken: &mut HashSet<IpAddr>) -> Result<Vec<IpAddr>> {
        let mut ips = Vec::new();
        for (subnet, gateway) in &self.subnets {
            taken.extend(*gateway);
            ips.push(match choice.parameters.ips.iter().find(|ip| subnet.contains(*ip)) {
                None => choice.one(*subnet, taken)?,
                Some(ip) if taken.contains(ip) || choice.is_elsewhere(*ip)? => {
                    return Err(choice.parameters.taken(*ip));
                }
                Some(ip) => *ip,
            });
        }
        Ok(ips)
    }
}

/// What addresses are chosen by.
#[derive(Debug)]
pub struct Choice<'c> {
    pub config: &'c NetworkConfig,
    pub parameters: &'c Parameters,
    pub vni: u32,
    pub switch: &'c mut Switch,
}

impl Choice<'_> {
    fn is_elsewhere(&mut self, ip: IpAddr) -> Result<bool> {
        self.switch.is_elsewhere(self.vni, ip)
    }

    fn one(&mut self, subnet: IpNet, taken: &mut HashSet<IpAddr>) -> Result<IpAddr> {
        let within =
            |ends: &OneOrMore<Host>| ends.0.iter().map(|Host(ip)| *ip).find(|ip| subnet.contains(ip));
        let ipam = &self.config.ipam;
        let range = Range::of(subnet, within(&ipam.range_start), within(&ipam.range_end));
        let mut seed = DefaultHasher::new();
        self.parameters.names.vnic.hash(&mut seed);
        loop {
            let ip = range.choose(seed.finish(), taken).ok_or_else(|| {
                let msg = format!("all addresses of {subnet} that pods may have are taken");
                Error::new(NO_ADDRESS, msg, "widen ipam.rangeStart and ipam.rangeEnd, or take pods away")
            })?;
            if !self.is_elsewhere(ip)? {
                return Ok(ip);
            }
            taken.insert(ip);
        }
    }
}

/// The addresses of a vNIC, as the switch has them.
pub fn of_vnic(vips: &[String]) -> Result<Vec<IpAddr>> {
    let read = |vip: &String| {
        vip.parse().map_err(|_| {
            Error::new(INVALID_CONFIG, format!("the vNIC has the address {vip:?}"), "look at the switch")
        })
    };
    vips.iter().map(read).collect()
}
