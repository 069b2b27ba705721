//! The network that most scenarios share: one host that runs the switch, one that runs something else, a cable between.
//!
//! ```text
//!  tenant red1 ──veth── host (vswitch) ──up0 ═ underlay ═ up0── peer (kernel) ──vxlan── remote red2
//! ```
//! Tenants and remotes are namespaces of their own, so two of them may have the same addresses. The kernel's vxlan device
//! is made in `peer`, whose underlay it keeps, and moved into the remote. This file only builds; it asserts nothing.

use crate::{Capture, Netns, netns, process};
use std::fmt::Write as _;
use std::rc::Rc;

/// The address family of the underlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// VTEPs 172.16.0.1 (the switch) and 172.16.0.2 (the other host).
    V4,
    /// VTEPs fd00::1 (the switch) and fd00::2 (the other host).
    V6,
}

impl Family {
    /// The switch's VTEP address.
    pub fn local_vtep(self) -> &'static str {
        match self {
            Family::V4 => "172.16.0.1",
            Family::V6 => "fd00::1",
        }
    }

    /// The other host's VTEP address.
    pub fn remote_vtep(self) -> &'static str {
        match self {
            Family::V4 => "172.16.0.2",
            Family::V6 => "fd00::2",
        }
    }

    /// The length of the underlay's prefix.
    pub fn prefix_len(self) -> u8 {
        match self {
            Family::V4 => 24,
            Family::V6 => 64,
        }
    }
}

/// The MTU of the underlay: a 1450-byte inner packet fits over either family.
pub const UNDERLAY_MTU: u32 = 1600;
/// The MTU of tenants and remotes.
pub const TENANT_MTU: u32 = 1450;

/// Two hosts and the cable between them.
#[derive(Debug)]
pub struct Lab {
    /// The namespace the switch runs in; its uplink is `up0`, its tenants' ports are named after them.
    pub host: Rc<Netns>,
    /// The namespace of the other host; its end of the cable is `up0` and holds the other VTEP address.
    pub peer: Rc<Netns>,
    family: Family,
    /// Whether this is the view of the other host, which then is "the switch's".
    reversed: bool,
    _capture: Option<Capture>,
}

impl Lab {
    /// Builds the two hosts and starts a capture at the switch's host.
    #[track_caller]
    pub fn new(family: Family) -> Lab {
        Netns::reap();
        let (host, peer) = (Rc::new(Netns::new("host")), Rc::new(Netns::new("peer")));
        if family == Family::V6 {
            // The host's own kernel stays out of the way: the switch alone speaks on its uplink.
            peer.enable_ipv6();
        }
        netns::cable((&host, "up0"), (&peer, "up0"), UNDERLAY_MTU);
        peer.ip(&format!("addr add {}/{} dev up0", family.remote_vtep(), family.prefix_len()));
        let capture = Some(Capture::start(&host));
        Lab { host, peer, family, reversed: false, _capture: capture }
    }

    /// The same network seen from the other host, for scenarios that run a switch there too.
    pub fn reversed(&self) -> Lab {
        Lab {
            host: Rc::clone(&self.peer),
            peer: Rc::clone(&self.host),
            family: self.family,
            reversed: !self.reversed,
            _capture: None,
        }
    }

    fn vteps(&self) -> (&'static str, &'static str) {
        let (here, there) = (self.family.local_vtep(), self.family.remote_vtep());
        if self.reversed { (there, here) } else { (here, there) }
    }

    /// The other host's VTEP address.
    pub fn remote_vtep(&self) -> &'static str {
        self.vteps().1
    }

    /// The family of the underlay.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Adds a tenant of the switch: a namespace whose `eth0` will be a tap of the switch, see [`Tenant::plug`].
    #[track_caller]
    pub fn tenant(&self, name: &str, vpc: &str, mac: &str, addresses: &[&str]) -> Tenant {
        let netns = Netns::new(name);
        if addresses.iter().any(|a| a.contains(':')) {
            netns.enable_ipv6();
        }
        Tenant {
            name: name.to_owned(),
            vpc: vpc.to_owned(),
            mac: mac.to_owned(),
            addresses: owned(addresses),
            netns,
        }
    }

    /// Adds a tenant on a cable: `eth0` is one end, and the other, called `name`, is an interface of the host.
    ///
    /// DPDK 22.11 lets the kernel put IPv4 fragments together before a packet socket sees them, so a scenario with
    /// fragments wants a tap.
    #[track_caller]
    pub fn cabled_tenant(&self, name: &str, vpc: &str, mac: &str, addresses: &[&str]) -> Tenant {
        let tenant = self.tenant(name, vpc, mac, addresses);
        netns::cable((&tenant.netns, "eth0"), (&self.host, name), TENANT_MTU);
        tenant.netns.ip(&format!("link set eth0 address {mac}"));
        for address in addresses {
            tenant.netns.ip(&format!("addr add {address} dev eth0"));
        }
        tenant
    }

    /// Adds a remote machine behind the kernel's vxlan device: a namespace in which that device is `eth0`.
    ///
    /// `options` are further words for `ip link add ... type vxlan`.
    #[track_caller]
    pub fn remote(&self, name: &str, vni: u32, mac: &str, addresses: &[&str], options: &str) -> Remote {
        self.routed_remote(name, vni, mac, addresses, &format!("dev up0 {options}"))
    }

    /// As [`remote`](Self::remote), where the routes of the other host say by which interface the tunnel goes.
    #[track_caller]
    pub fn routed_remote(
        &self,
        name: &str,
        vni: u32,
        mac: &str,
        addresses: &[&str],
        options: &str,
    ) -> Remote {
        let netns = Netns::new(name);
        if addresses.iter().any(|a| a.contains(':')) {
            netns.enable_ipv6();
        }
        let device = format!("vx{vni}");
        let (remote, local) = self.vteps();
        self.peer.ip(&format!(
            "link add {device} address {mac} mtu {TENANT_MTU} type vxlan id {vni} dstport 4789 local {local} remote {remote} {options}"
        ));
        self.peer.ip(&format!("link set {device} netns {}", netns.name()));
        netns.ip(&format!("link set {device} name eth0"));
        netns.ip("link set eth0 up");
        for address in addresses {
            netns.ip(&format!("addr add {address} dev eth0"));
        }
        Remote { vni, mac: mac.to_owned(), addresses: owned(addresses), vtep: local.to_owned(), netns }
    }

    /// The MAC address of the switch's uplink.
    #[track_caller]
    pub fn uplink_mac(&self) -> String {
        interface_mac(&self.host, "up0")
    }

    /// The MAC address of the other host on the underlay.
    #[track_caller]
    pub fn peer_mac(&self) -> String {
        interface_mac(&self.peer, "up0")
    }

    /// The `[[uplink]]` of the switch; `more` are further lines of that section.
    pub fn uplink(&self, more: &str) -> String {
        self.uplink_on("{ kind = \"af-packet\", iface = \"up0\" }", more)
    }

    /// The `[[uplink]]` of the switch on another port ("{ kind = ... }").
    pub fn uplink_on(&self, port: &str, more: &str) -> String {
        let (here, there) = self.vteps();
        let prefix = self.family.prefix_len();
        format!(
            "[[uplink]]\nname = \"up\"\nport = {port}\naddresses = [\"{here}/{prefix}\"]\nmtu = {UNDERLAY_MTU}\npeers = [\"{there}\"]\n{more}\n"
        )
    }
}

/// A `[[vpc]]` with its `[[subnet]]`s; `more` are further lines of the vpc section.
pub fn vpc(name: &str, vni: u32, subnets: &[&str], more: &str) -> String {
    let mut text = format!("[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{more}\n");
    for subnet in subnets {
        let _ = writeln!(text, "[[subnet]]\nvpc = \"{name}\"\nprefix = \"{subnet}\"");
    }
    text
}

/// The `[[location]]` sections of a machine behind a VTEP, one an address.
pub fn location(vtep: &str, vni: u32, mac: &str, addresses: &[&str]) -> String {
    let mut text = String::new();
    for address in addresses {
        let vip = bare(address);
        let _ =
            writeln!(text, "[[location]]\nvni = {vni}\nvip = \"{vip}\"\nmac = \"{mac}\"\nvtep = \"{vtep}\"");
    }
    text
}

/// A machine behind a vNIC of the switch.
#[derive(Debug)]
pub struct Tenant {
    /// Where it lives; its interface is `eth0`.
    pub netns: Netns,
    /// Its vNIC's name, also the name of the port at the host.
    pub name: String,
    /// Its MAC address.
    pub mac: String,
    vpc: String,
    addresses: Vec<String>,
}

impl Tenant {
    /// Its `[[vnic]]` section on a tap called as itself.
    pub fn vnic(&self) -> String {
        self.vnic_on(&format!("{{ kind = \"tap\", iface = \"{}\" }}", self.name))
    }

    /// Takes the tap over from the running switch's host, as a container runtime does: it becomes `eth0` here.
    #[track_caller]
    pub fn plug(&self, host: &Netns) {
        let (name, mac) = (&self.name, &self.mac);
        host.ip(&format!("link set {name} netns {}", self.netns.name()));
        self.netns.ip(&format!("link set {name} name eth0"));
        self.netns.ip(&format!("link set eth0 address {mac} mtu {TENANT_MTU} up"));
        for address in &self.addresses {
            self.netns.ip(&format!("addr add {address} dev eth0"));
        }
    }

    /// As `plug`, with no address and no IPv6: nobody there who might say a word.
    #[track_caller]
    pub fn plug_mute(&self, host: &Netns) {
        let name = &self.name;
        self.netns.sysctl(&["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]);
        host.ip(&format!("link set {name} netns {}", self.netns.name()));
        self.netns.ip(&format!("link set {name} name eth0"));
        self.netns.ip(&format!("link set eth0 mtu {TENANT_MTU} up"));
    }

    /// Its `[[vnic]]` section on another port ("{ kind = ... }").
    pub fn vnic_on(&self, port: &str) -> String {
        let vips: Vec<String> = self.addresses.iter().map(|a| format!("\"{}\"", bare(a))).collect();
        format!(
            "[[vnic]]\nname = \"{}\"\nvpc = \"{}\"\nmac = \"{}\"\nvips = [{}]\nmtu = {TENANT_MTU}\nport = {port}\n",
            self.name,
            self.vpc,
            self.mac,
            vips.join(", ")
        )
    }

    /// Its first address of a family, without the prefix length.
    #[track_caller]
    pub fn address(&self, family: Family) -> &str {
        pick(&self.addresses, family)
    }
}

/// A machine behind another VTEP.
#[derive(Debug)]
pub struct Remote {
    /// Where it lives; its interface is `eth0`.
    pub netns: Netns,
    /// Its MAC address.
    pub mac: String,
    vni: u32,
    vtep: String,
    addresses: Vec<String>,
}

impl Remote {
    /// Its `[[location]]` sections, one an address.
    pub fn location(&self) -> String {
        let addresses: Vec<&str> = self.addresses.iter().map(String::as_str).collect();
        location(&self.vtep, self.vni, &self.mac, &addresses)
    }

    /// Its first address of a family, without the prefix length.
    #[track_caller]
    pub fn address(&self, family: Family) -> &str {
        pick(&self.addresses, family)
    }
}

/// The MAC address of an interface.
#[track_caller]
pub fn interface_mac(netns: &Netns, interface: &str) -> String {
    let text = process::run(&["ip", "-n", netns.name(), "-o", "link", "show", interface]);
    let mut words = text.split_whitespace().skip_while(|w| *w != "link/ether");
    words.nth(1).unwrap_or_else(|| panic!("{interface} has no MAC address: {text}")).to_owned()
}

fn owned(addresses: &[&str]) -> Vec<String> {
    addresses.iter().map(|a| (*a).to_owned()).collect()
}

fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or(address)
}

#[track_caller]
fn pick(addresses: &[String], family: Family) -> &str {
    let wanted = |a: &&String| a.contains(':') == (family == Family::V6);
    bare(addresses.iter().find(wanted).unwrap_or_else(|| panic!("no {family:?} address among {addresses:?}")))
}
