//! The interface in a pod: made as it should be, and compared with that.

use std::fs::{self, File};
use std::io;

use ipnet::IpNet;
use nix::errno::Errno;
use wire::MacAddr;

use crate::error::{Error, INTERFACE, Result};
use crate::netlink::{Link, Netlink, is};
use crate::netns;
use crate::result::Route;
use crate::turn::turn;

/// What the interface of a pod should be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInterface {
    pub name: String,
    pub mac: MacAddr,
    pub mtu: u32,
    pub addresses: Vec<IpNet>,
    pub routes: Vec<Route>,
}

impl PodInterface {
    /// Makes the interface that there is what it should be; what is there already stays.
    pub fn configure(&self, pod: &mut Netlink, netns: &File) -> Result<()> {
        let failed = |what: &str, error: &io::Error| {
            Error::interface(format!("{what} of {} in the pod", self.name), error)
        };
        let link = pod.link(&self.name).map_err(|error| failed("reading", &error))?;
        let link = link.ok_or_else(|| failed("reading", &io::ErrorKind::NotFound.into()))?;
        if self.addresses.iter().any(|address| address.addr().is_ipv6()) {
            self.enable_ipv6(netns).map_err(|error| failed("enabling IPv6", &error))?;
        }
        if let Some(lo) = pod.link("lo").map_err(|error| failed("reading lo beside that", &error))? {
            pod.set_up(lo.index, None).map_err(|error| failed("setting lo up beside that", &error))?;
        }
        pod.set_up(link.index, Some(self.mtu)).map_err(|error| failed("setting up", &error))?;
        let there = pod.addresses(link.index).map_err(|error| failed("reading the addresses", &error))?;
        for address in self.addresses.iter().filter(|address| !there.contains(address)) {
            pod.add_address(link.index, *address)
                .map_err(|error| failed(&format!("adding {address} to the addresses"), &error))?;
        }
        let there = pod.routes(link.index).map_err(|error| failed("reading the routes", &error))?;
        for route in self.routes.iter().filter(|route| !there.contains(route)) {
            pod.add_route(link.index, route).map_err(|error| match is(&error, Errno::EEXIST) {
                true => {
                    let msg = format!("the pod has another route to {}", route.dst);
                    let remedy =
                        "take it away, or leave it and write \"defaultRoute\": false for this network";
                    Error::new(INTERFACE, msg, remedy)
                }
                false => failed(&format!("adding the route to {}", route.dst), &error),
            })?;
        }
        Ok(())
    }

    /// Runtimes may have IPv6 off in a pod until somebody wants it.
    fn enable_ipv6(&self, netns: &File) -> io::Result<()> {
        let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.name);
        netns::inside(netns, || {
            if fs::read_to_string(&path)?.trim() == "0" {
                return Ok(());
            }
            let _turn = turn()?;
            fs::write(&path, "0")
        })
    }

    /// What is not as it should be, in sentences.
    pub fn differences(&self, pod: &mut Netlink) -> io::Result<Vec<String>> {
        let name = &self.name;
        let Some(link) = pod.link(name)? else {
            return Ok(vec![format!("the pod has no interface {name}")]);
        };
        let mut found = self.link_differences(&link);
        let (addresses, routes) = (pod.addresses(link.index)?, pod.routes(link.index)?);
        let missing = self.addresses.iter().filter(|address| !addresses.contains(address));
        found.extend(missing.map(|address| format!("{name} has no address {address}")));
        let missing = self.routes.iter().filter(|route| !routes.contains(route));
        found.extend(missing.map(|route| match route.gw {
            Some(gw) => format!("{name} has no route to {} by {gw}", route.dst),
            None => format!("{name} has no route to {}", route.dst),
        }));
        Ok(found)
    }

    fn link_differences(&self, link: &Link) -> Vec<String> {
        let name = &self.name;
        let mut found = Vec::new();
        if link.mac != Some(self.mac) {
            let has = link.mac.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
            found.push(format!("{name} has the MAC address {has}, not {}", self.mac));
        }
        if link.mtu != self.mtu {
            found.push(format!("{name} has the MTU {}, not {}", link.mtu, self.mtu));
        }
        if !link.is_up {
            found.push(format!("{name} is down"));
        }
        found
    }
}

/// The interface of this name in the pod, where there is one.
pub fn link(pod: &mut Netlink, name: &str) -> Result<Option<Link>> {
    match pod.link(name) {
        // A namespace that goes at this moment.
        Err(error) if is(&error, Errno::ENODEV) => Ok(None),
        other => other.map_err(|error| Error::interface(format!("reading {name} in the pod"), error)),
    }
}
