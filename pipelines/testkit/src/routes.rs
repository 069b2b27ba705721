//! Routes of the tests' VPCs.

use pipelines::snapshot::{Gateway, Prefix, RouteTarget};
use wire::MacAddr;

use super::{World, host_v4};

impl World {
    /// Gives a VPC other routes, and makes its flows stale.
    pub fn route(&mut self, vpc: u32, routes: &[(&str, RouteTarget)]) {
        let prefix = |text: &str| {
            let (address, len) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), len.parse().unwrap())
        };
        self.vpc(vpc).set_routes(routes.iter().map(|(to, target)| (prefix(to), target.clone())).collect());
        self.snapshot.touch_vpc(vpc);
    }

    /// A gateway behind the VTEP of a host, for a VPC.
    pub fn gateway(&mut self, vpc: u32, host: u8) -> Gateway {
        let slot = self.writer.allocate(self.tunnel(vpc, host)).unwrap();
        Gateway { vtep: host_v4(host).into(), slot, mac: MacAddr([2, 0, 0, 0, 8, host]) }
    }

    /// A route to gateways behind the VTEPs of hosts.
    pub fn gateways(&mut self, vpc: u32, hosts: &[u8]) -> RouteTarget {
        RouteTarget::Gateways(hosts.iter().map(|&host| self.gateway(vpc, host)).collect())
    }
}
