//! One or two hosts with a switch each, and guests behind them.
//!
//! ```text
//!  guests ──vhost-user── vswitch (host) ──up0 ═ VxLAN ═ up0── vswitch (peer) ──vhost-user── guests
//! ```
//! It builds, waits until every guest is there, and takes all of it down again with the checks that a scenario owes.

use super::{Cable, Guest, Hardware, Image, image};
use crate::lab::{Lab, location, vpc};
use crate::{Daemon, Workdir};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Memory of a guest in MiB, when nothing is said.
pub const MEMORY: u32 = 384;
/// The MTU of guests: what a tunnel over IPv4 leaves of the lab's underlay, less room for a VLAN tag.
pub const MTU: u32 = 1450;

/// A guest to be.
#[derive(Debug, Clone)]
pub struct Vm {
    /// Its name, also that of its vNIC.
    pub name: String,
    /// Its VPC.
    pub vpc: String,
    /// The VPC's VNI.
    pub vni: u32,
    /// Its MAC address.
    pub mac: String,
    /// Its addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// A VLAN device of its own over `eth0`, with addresses that are VIPs too.
    pub vlan: Option<(u16, Vec<String>)>,
    /// Further lines of its `[[vnic]]`.
    pub more: String,
    /// Its memory in MiB.
    pub memory: u32,
    /// Further properties of its `eth0`, each after a comma, as QEMU names them.
    pub nic: String,
}

impl Vm {
    /// A guest of a VPC.
    pub fn new(name: &str, vpc: (&str, u32), mac: &str, addresses: &[&str]) -> Vm {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        let (vpc, vni) = (vpc.0.to_owned(), vpc.1);
        Vm {
            name: name.to_owned(),
            vpc,
            vni,
            mac: mac.to_owned(),
            addresses,
            vlan: None,
            more: String::new(),
            memory: MEMORY,
            nic: String::new(),
        }
    }

    /// The same guest with a VLAN device.
    #[must_use]
    pub fn with_vlan(mut self, id: u16, addresses: &[&str]) -> Vm {
        self.vlan = Some((id, addresses.iter().map(|a| (*a).to_owned()).collect()));
        self
    }

    /// All its addresses, those of its VLAN device last.
    fn all_addresses(&self) -> Vec<&str> {
        let tagged = self.vlan.iter().flat_map(|(_, addresses)| addresses);
        self.addresses.iter().chain(tagged).map(String::as_str).collect()
    }

    /// All its addresses without prefix lengths.
    pub fn vips(&self) -> Vec<&str> {
        self.all_addresses().into_iter().map(bare).collect()
    }

    /// Its first address of IPv4, or of IPv6.
    #[track_caller]
    pub fn ip(&self, v6: bool) -> IpAddr {
        first(&self.addresses, v6)
    }

    /// The first address of its VLAN device, of IPv4 or of IPv6.
    #[track_caller]
    pub fn vlan_ip(&self, v6: bool) -> IpAddr {
        first(self.vlan.as_ref().map_or(&[], |(_, addresses)| addresses), v6)
    }

    /// Its `[[vnic]]`, with a socket for QEMU.
    pub fn vnic(&self, socket: &Path) -> String {
        let vips: Vec<String> = self.vips().iter().map(|vip| format!("\"{vip}\"")).collect();
        format!(
            "[[vnic]]\nname = \"{}\"\nvpc = \"{}\"\nmac = \"{}\"\nvips = [{}]\nmtu = {MTU}\nport = {{ kind = \"vhost-user\", path = \"{}\" }}\n{}\n",
            self.name,
            self.vpc,
            self.mac,
            vips.join(", "),
            socket.display(),
            self.more
        )
    }

    fn location(&self, vtep: &str) -> String {
        location(vtep, self.vni, &self.mac, &self.all_addresses())
    }
}

fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or(address)
}

#[track_caller]
fn first(addresses: &[String], v6: bool) -> IpAddr {
    let mut parsed = addresses.iter().filter_map(|a| bare(a).parse::<IpAddr>().ok());
    parsed.find(|ip| ip.is_ipv6() == v6).expect("the guest has an address of this family")
}

/// The tenants of most scenarios: guests a and b of the VPC red (VNI 100), c and d of blue (VNI 200).
///
/// a has the addresses of c, and b those of d.
pub fn two_tenants() -> [Vm; 4] {
    let (red, blue) = (("red", 100), ("blue", 200));
    let (first, second) = (["10.0.0.1/24", "fd00:1::1/64"], ["10.0.0.2/24", "fd00:1::2/64"]);
    [
        Vm::new("a", red, "02:00:00:00:0a:01", &first),
        Vm::new("b", red, "02:00:00:00:0a:02", &second),
        Vm::new("c", blue, "02:00:00:00:0b:01", &first),
        Vm::new("d", blue, "02:00:00:00:0b:02", &second),
    ]
}

/// The VPCs of these tenants; `more` are further lines of both.
pub fn vpcs(more: &str) -> String {
    let subnets = ["10.0.0.0/24", "fd00:1::/64"];
    [vpc("red", 100, &subnets, more), vpc("blue", 200, &subnets, more)].concat()
}

/// Why a switch may drop packets in any scenario with guests, through no fault of its own.
const HARMLESS: [&str; 5] = [
    // Guests report their multicast groups unasked, and their VPCs do not flood.
    "bum-disabled",
    // A guest that is emulated may not empty its ring in time.
    "tx-full",
    "tx-stalled",
    "link-down",
    // The kernels of the hosts speak of their own on the underlay (IPv6 neighbours and groups).
    "underlay-other",
];

/// Fails the test when the switch dropped packets for a reason that is neither harmless nor one of these.
#[track_caller]
pub fn assert_no_drops_but(switch: &Daemon, reasons: &[&str]) {
    let counters = switch.counters();
    let unexpected: Vec<(&str, i64)> = counters
        .iter()
        .filter_map(|(path, n)| Some((path.strip_prefix("fwd.drops.")?, n)))
        .filter(|(reason, n)| *n != 0 && !reasons.contains(reason) && !HARMLESS.contains(reason))
        .collect();
    assert!(unexpected.is_empty(), "packets were dropped that should not have been: {unexpected:?}");
}

/// A running site. The fields go in this order: guests, switches, network.
#[derive(Debug)]
pub struct Site {
    /// The guests, in the order they were named in: those of the first host, then those of the second.
    pub guests: Vec<(Vm, Guest)>,
    /// The switches: one a host.
    pub switches: Vec<Daemon>,
    /// The network.
    pub lab: Lab,
    dir: Workdir,
}

impl Site {
    /// Starts one switch with all guests behind it (`there` empty), or two with guests behind either.
    ///
    /// `vpcs` are the `[[vpc]]` and `[[subnet]]` sections and whatever else both configs take.
    #[track_caller]
    pub fn start(lab: Lab, vpcs: &str, here: &[Vm], there: &[Vm]) -> Site {
        Site::start_with(lab, vpcs, here, there, &image())
    }

    /// As `start`, with another image.
    #[track_caller]
    pub fn start_with(lab: Lab, vpcs: &str, here: &[Vm], there: &[Vm], image: &Image) -> Site {
        let dir = Workdir::new("site");
        let family = lab.family();
        let socket = |vm: &Vm| socket(dir.path(), &vm.name);
        let config = |uplink: String, own: &[Vm], others: &[Vm], vtep: &str| {
            let mut text = uplink + vpcs;
            text.extend(own.iter().map(|vm| vm.vnic(&socket(vm))));
            text.extend(others.iter().map(|vm| vm.location(vtep)));
            text
        };
        let mut switches = Vec::new();
        if !there.is_empty() {
            lab.peer.ip("addr flush dev up0");
            let uplink = lab.reversed().uplink("");
            switches.push(Daemon::start_alone(&lab.peer, &config(uplink, there, here, family.local_vtep())));
        }
        switches
            .insert(0, Daemon::start(&lab.host, &config(lab.uplink(""), here, there, family.remote_vtep())));
        switches.iter_mut().for_each(Daemon::wait_until_resolved);
        let vms: Vec<Vm> = here.iter().chain(there).cloned().collect();
        let guests = boot(&vms, dir.path(), image);
        Site { guests: vms.into_iter().zip(guests).collect(), switches, lab, dir }
    }

    /// A guest by its name.
    #[track_caller]
    pub fn guest(&self, name: &str) -> &Guest {
        &self.pick(name).1
    }

    /// What a guest was made as.
    #[track_caller]
    pub fn vm(&self, name: &str) -> &Vm {
        &self.pick(name).0
    }

    #[track_caller]
    fn pick(&self, name: &str) -> &(Vm, Guest) {
        self.guests
            .iter()
            .find(|(vm, _)| vm.name == name)
            .unwrap_or_else(|| panic!("there is no guest {name}"))
    }

    /// [`new_plug`] of a guest here.
    #[track_caller]
    pub fn new_plug(&self, name: &str) -> PathBuf {
        new_plug(self.dir.path(), name)
    }

    /// The socket that a guest's `eth0` was plugged into when it was turned on.
    pub fn socket(&self, name: &str) -> PathBuf {
        socket(self.dir.path(), name)
    }

    /// Turns the guests off and stops the switches with every check a scenario owes.
    #[track_caller]
    pub fn stop(self) {
        for (_, guest) in self.guests {
            guest.off();
        }
        for switch in self.switches {
            switch.stop();
        }
    }
}

/// The socket in a folder that a guest's `eth0` is plugged into at first.
pub fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}

/// Turns guests on, each at its [`socket`], and waits until they are ready.
#[track_caller]
pub fn boot(vms: &[Vm], dir: &Path, image: &Image) -> Vec<Guest> {
    let boot = |vm: &Vm| {
        // QEMU follows the link anew whenever it connects.
        let plug = dir.join(format!("{}.plug", vm.name));
        symlink(socket(dir, &vm.name), &plug).expect("a link in a folder of ours");
        let (name, mac, more) = (&vm.name, &vm.mac, &vm.nic);
        let (cable, memory) = (Cable::VhostUser(&plug), vm.memory);
        Guest::boot(&Hardware { name, mac, cable, memory, image, more })
    };
    let guests: Vec<Guest> = vms.iter().map(boot).collect();
    for (vm, guest) in vms.iter().zip(&guests) {
        guest.wait_ready();
        set_up(vm, guest);
    }
    guests
}

/// Makes ready to move a guest: its `eth0` goes to the returned socket as soon as the present one closes.
#[track_caller]
pub fn new_plug(dir: &Path, name: &str) -> PathBuf {
    let socket = dir.join(format!("{name}-moved.sock"));
    let (plug, fresh) = (dir.join(format!("{name}.plug")), dir.join("fresh.plug"));
    symlink(&socket, &fresh).expect("a link in a folder of ours");
    std::fs::rename(&fresh, &plug).expect("a link in a folder of ours");
    socket
}

/// Addresses, MTU and the soft-RoCE device of a guest.
#[track_caller]
pub(super) fn set_up(vm: &Vm, guest: &Guest) {
    let mut script = format!("set -e\nip link set eth0 mtu {MTU} up\n");
    let give = |script: &mut String, addresses: &[String], device: &str| {
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            *script += &format!("ip addr add {address} dev {device} {nodad}\n");
        }
    };
    give(&mut script, &vm.addresses, "eth0");
    if let Some((id, addresses)) = &vm.vlan {
        let mtu = MTU - 4;
        script += &format!(
            "ip link add link eth0 name eth0.{id} mtu {mtu} type vlan id {id}\nip link set eth0.{id} up\n"
        );
        give(&mut script, addresses, &format!("eth0.{id}"));
    }
    script += "rdma link add rxe0 type rxe netdev eth0\n";
    guest.run(&script);
}
