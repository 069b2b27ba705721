//! Router advertisements (RFC 4861) to one vNIC: about the subnets of IPv6 that its addresses are in, and about what it was told and
//! what holds no longer.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use pipelines::snapshot::{Vnic, Vpc};
use wire::MacAddr;
use wire::build::router::{NameServer, OnLinkPrefix, RouterAdvertisement};

use crate::config::{Config, RaConfig, SubnetConfig};

/// The shortest and the longest time between two that nobody asked for (RFC 4861 section 6.2.1), seconds.
const INTERVALS: [u64; 2] = [200, 600];
/// How long prefixes and name servers hold at least: three times the longest time between two advertisements (RFC 8106 section 5.1),
/// seconds.
const LEAST_LIFETIME: u32 = 3 * INTERVALS[1] as u32;
/// How often it is said that something holds no longer (RFC 4861 section 10, MAX_FINAL_RTR_ADVERTISEMENTS).
const FINAL_TIMES: u8 = 3;
/// Between two such (RFC 4861 section 10, MIN_DELAY_BETWEEN_RAS).
const FINAL_EVERY: Duration = Duration::from_secs(3);

/// What a virtual router says of itself to a vNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The router's MAC address.
    pub router: MacAddr,
    /// What it says.
    pub said: RouterAdvertisement,
}

impl Offer {
    /// What the config says for a vNIC; `None` when it has no address in a subnet with advertisements.
    pub fn of(config: &Config, vpc: &Vpc, vnic: &Vnic) -> Option<Self> {
        let of_vnic = |subnet: &&SubnetConfig| {
            subnet.vpc.as_str() == vpc.name && vnic.vips.iter().any(|vip| subnet.prefix.contains(vip))
        };
        let subnets = config.subnets.iter().filter(of_vnic);
        let told: Vec<(&SubnetConfig, &RaConfig)> =
            subnets.filter_map(|subnet| Some((subnet, subnet.ra.as_ref()?))).collect();
        let lifetime = told.iter().map(|(_, ra)| ra.lifetime.as_secs()).max()?;
        let lifetime = u16::try_from(lifetime).unwrap_or(u16::MAX);
        let others = LEAST_LIFETIME.max(lifetime.into());
        let servers = told.iter().flat_map(|(subnet, ra)| match (&ra.dns, &subnet.dhcp) {
            (dns, Some(dhcp)) if dns.is_empty() => &dhcp.dns,
            (dns, _) => dns,
        });
        let mut dns: Vec<NameServer> = Vec::new();
        for server in servers {
            if let IpAddr::V6(address) = *server
                && !dns.iter().any(|known| known.address == address)
            {
                dns.push(NameServer { address, lifetime: others });
            }
        }
        let prefixes = told.iter().filter_map(|(subnet, _)| match subnet.prefix {
            IpNet::V6(prefix) => {
                Some(OnLinkPrefix { prefix: prefix.network(), len: prefix.prefix_len(), lifetime: others })
            }
            IpNet::V4(_) => None,
        });
        let said = RouterAdvertisement {
            managed: told.iter().any(|(subnet, _)| subnet.dhcp.is_some()),
            lifetime,
            mtu: vnic.mtu,
            prefixes: prefixes.collect(),
            dns,
        };
        Some(Self { router: vpc.router_mac, said })
    }

    /// Everything in it, as what is over.
    fn over(mut self) -> impl Iterator<Item = Over> {
        let (prefixes, dns) = (std::mem::take(&mut self.said.prefixes), std::mem::take(&mut self.said.dns));
        self.said.lifetime = 0;
        let prefixes = prefixes.into_iter().map(|prefix| Over::Prefix(prefix.prefix, prefix.len));
        let servers = dns.into_iter().map(|server| Over::Server(server.address));
        prefixes.chain(servers).chain([Over::Router(self)])
    }

    /// True when it says that what is over holds.
    fn says(&self, over: &Over) -> bool {
        match over {
            Over::Router(other) => other.router == self.router,
            Over::Prefix(prefix, len) => {
                self.said.prefixes.iter().any(|own| (own.prefix, own.len) == (*prefix, *len))
            }
            Over::Server(address) => self.said.dns.iter().any(|own| own.address == *address),
        }
    }
}

/// What a vNIC was told and what holds no longer.
#[derive(Clone, Debug)]
enum Over {
    /// This is a router, and what it says for the last time.
    Router(Offer),
    /// A prefix of this length is on the link.
    Prefix(Ipv6Addr, u8),
    /// This is a name server.
    Server(Ipv6Addr),
}

/// What a vNIC is told, and what of it is to be taken back, so many times yet.
#[derive(Clone, Debug, Default)]
pub struct Told {
    offer: Option<Offer>,
    over: Vec<(Over, u8)>,
    is_new: bool,
}

impl Told {
    /// Takes down what the vNIC is to be told from now on. What it was told besides is over.
    pub fn update(&mut self, offer: Option<Offer>) {
        if self.offer == offer {
            return;
        }
        let before = std::mem::replace(&mut self.offer, offer);
        self.over.extend(before.into_iter().flat_map(Offer::over).map(|over| (over, FINAL_TIMES)));
        if let Some(offer) = &self.offer {
            self.over.retain(|(over, _)| !offer.says(over));
        }
        self.is_new = true;
    }

    /// True when some of it was not said yet.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// The frames that say it: those of routers that are none any more, and last that of the one that is. The last one takes back
    /// whatever nobody says any more.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let past = self.over.iter().filter_map(|(over, _)| match over {
            Over::Router(offer) => Some(offer),
            Over::Prefix(..) | Over::Server(_) => None,
        });
        let mut offers: Vec<Offer> = past.chain(&self.offer).cloned().collect();
        if let Some(Offer { said, .. }) = offers.last_mut() {
            for (over, _) in &self.over {
                match *over {
                    Over::Prefix(prefix, len) => {
                        said.prefixes.push(OnLinkPrefix { prefix, len, lifetime: 0 })
                    }
                    Over::Server(address) => said.dns.push(NameServer { address, lifetime: 0 }),
                    Over::Router(_) => {}
                }
            }
        }
        offers.iter().map(|offer| offer.said.frame(offer.router)).collect()
    }

    /// Counts that it was tried to say it, and whether a worker took it.
    pub fn said(&mut self, is_sent: bool) {
        self.is_new &= !is_sent;
        self.over.iter_mut().for_each(|(_, times)| *times -= 1);
        self.over.retain(|(_, times)| *times > 0);
    }

    /// How long after its `n`th advertisement a vNIC is sent the next one: any time between the shortest and the longest, so that they
    /// do not come at once; soon where something is to be taken back. `None`: there is nothing to say.
    pub fn interval(&self, vnic: u32, n: u64) -> Option<Duration> {
        if !self.over.is_empty() {
            return Some(FINAL_EVERY);
        }
        let [least, most] = INTERVALS;
        let mixed = (u64::from(vnic) << 32 | n & 0xffff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.offer.is_some().then(|| Duration::from_secs(least + mixed % (most - least + 1)))
    }
}
