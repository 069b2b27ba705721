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

    /// These addresses, with the prefixes and routes that the pod has: what another plugin said of them is there and nowhere else. A call
    /// that was killed may have left out the default routes.
    pub fn found_in_pod(&self, mut addresses: Addresses, has: &[IpNet], routes: Vec<Route>) -> Addresses {
        for ip in &mut addresses.ips {
            let same = has.iter().find(|net| net.addr() == ip.address.addr());
            ip.address = same.copied().unwrap_or(ip.address);
        }
        self.with_defaults(Addresses { routes, ..addresses })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gw: &str) -> Route {
        Route { dst: dst.parse().unwrap(), gw: Some(gw.parse().unwrap()) }
    }

    #[test]
    fn a_pod_that_was_left_without_its_default_routes_has_them_again() {
        let known = [("10.0.0.0/24", "10.0.0.254"), ("fd00::/64", "fd00::ff")];
        let known = known.map(|(subnet, gateway)| (subnet.parse().unwrap(), gateway.parse().ok()));
        let subnets = Subnets { subnets: known.to_vec(), default_route: true };
        let ips = ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().unwrap());
        let has = ["10.0.0.5/16", "fd00::5/64"].map(|net| net.parse().unwrap());
        let found = |subnets: &Subnets, routes: &[Route]| {
            subnets.found_in_pod(subnets.addresses(&ips, &Value::Null), &has, routes.to_vec())
        };
        let (v4, v6) = (route("0.0.0.0/0", "10.0.0.254"), route("::/0", "fd00::ff"));
        let other = route("10.9.0.0/16", "10.0.0.254");
        let elsewhere = route("0.0.0.0/0", "10.0.0.253");
        for (there, wanted) in [
            (vec![], vec![v4.clone(), v6.clone()]),
            (vec![other.clone()], vec![other.clone(), v4.clone(), v6.clone()]),
            (vec![v6.clone()], vec![v6.clone(), v4.clone()]),
            // The other plugin's own.
            (vec![elsewhere.clone(), v6.clone()], vec![elsewhere, v6]),
        ] {
            let whole = found(&subnets, &there);
            assert_eq!(whole.routes, wanted);
            assert_eq!(whole.ips.iter().map(|ip| ip.address).collect::<Vec<_>>(), has);
        }
        let without = Subnets { default_route: false, ..subnets };
        assert_eq!(found(&without, std::slice::from_ref(&other)).routes, [other]);
    }
}
