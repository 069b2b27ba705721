//! Checks of what stands behind ports: addresses, interface names, paths, queues, and how many there are.

use std::collections::HashSet;
use std::path::Path;

use super::super::error::quote;
use super::super::network::VnicPort;
use super::super::port_spec::{
    BondModeConfig, BondPort, MemifPort, PcapPort, PortSpec, RingPort, VhostUserPort,
};
use super::super::secret::hide;
use super::super::{Config, MAX_PORTS};
use super::devices::{full_pci_address, resources};
use super::{Checker, devices};

/// The longest name of a kernel interface (IFNAMSIZ less the closing zero).
const LONGEST_IFACE: usize = 15;
/// The longest path of a Unix socket (`sun_path` less the closing zero).
const LONGEST_SOCKET: usize = 107;
/// The longest memif secret.
const LONGEST_SECRET: usize = 24;

/// A port that the config asks for.
pub(super) struct Written<'c> {
    /// Of the value that says what stands behind it.
    pub path: String,
    pub who: String,
    pub spec: &'c PortSpec,
}

impl<'c> Written<'c> {
    fn new(section: &str, index: usize, name: &str, spec: &'c PortSpec) -> Self {
        Self { path: format!("{section}[{index}].port"), who: format!("{section} {name}"), spec }
    }
}

pub(super) fn check(checker: &mut Checker<'_>) {
    let config = checker.config;
    let mut ports = Vec::new();
    for (index, uplink) in config.uplinks.iter().enumerate() {
        ports.push(Written::new("uplink", index, &uplink.name, &uplink.port));
        queues(checker, &format!("uplink[{index}]"), uplink.rx_queues, uplink.tx_queues);
    }
    for (index, trunk) in config.trunks.iter().enumerate() {
        let port = Written::new("trunk", index, &trunk.name, &trunk.port);
        trust(checker, &port);
        ports.push(port);
        queues(checker, &format!("trunk[{index}]"), trunk.rx_queues, trunk.tx_queues);
    }
    for (index, vnic) in config.vnics.iter().enumerate() {
        if let VnicPort::Own(spec) = &vnic.port {
            let port = Written::new("vnic", index, &vnic.name, spec);
            trust(checker, &port);
            ports.push(port);
        }
        if vnic.queues == Some(0) {
            checker.fail(
                format!("vnic[{index}].queues"),
                "queues is 0; a port needs at least one, so give 1 or more",
            );
        }
    }
    for (index, port) in config.ports.iter().enumerate() {
        ports.push(Written::new("port", index, &port.name, &port.port));
        queues(checker, &format!("port[{index}]"), port.rx_queues, port.tx_queues);
    }

    let rings: HashSet<&str> = ports.iter().filter_map(|port| ring_name(port.spec)).collect();
    for Written { path, who, spec } in &ports {
        for (key, problem) in problems(spec, &rings) {
            checker.fail(format!("{path}.{key}"), format!("{who}: {problem}"));
        }
    }
    // Their names are checked with what else uplinks say. They come before tenants' ports, which are told what is too much.
    let taps = punt_taps(config);
    let taps = taps.iter().map(|(path, who, spec)| Written { path: path.clone(), who: who.clone(), spec });
    ports.splice(config.uplinks.len()..config.uplinks.len(), taps);
    number(checker, &ports);
    devices::check(checker, &ports);
}

/// The taps for what uplinks leave to the host: where they are asked for, whose they are, and what they are.
fn punt_taps(config: &Config) -> Vec<(String, String, PortSpec)> {
    let taps = config.uplinks.iter().enumerate().filter_map(|(index, uplink)| {
        let key = if uplink.host_tap.is_some() { "host-tap" } else { "host" };
        let tap = PortSpec::Tap(uplink.punt_tap()?);
        Some((format!("uplink[{index}].{key}"), format!("the punt tap of uplink {}", uplink.name), tap))
    });
    taps.collect()
}

/// Tenants are never trusted unless the config says so.
fn trust(checker: &mut Checker<'_>, port: &Written<'_>) {
    if let Some(reach) = port.spec.untrusted_reach() {
        let message = format!(
            "{}: {reach}. Tenants take vhost-user, which checks every address; if this peer is as trusted as the switch \
             itself, write trusted-peer = true beside kind",
            port.who
        );
        checker.fail(&port.path, message);
    }
}

/// The switch has room for so many ports, and DPDK for so many of its devices.
fn number(checker: &mut Checker<'_>, ports: &[Written<'_>]) {
    if let Some(Written { path, who, .. }) = ports.get(MAX_PORTS) {
        let all = ports.len();
        let message = format!(
            "{who}: the config has {all} ports, and the switch takes {MAX_PORTS}: put tenants on a trunk port, by VLAN"
        );
        checker.fail(path, message);
    }
    sockets(checker, ports);
    let all: usize = ports.iter().map(|port| port.spec.ethdevs()).sum();
    let (limit, mut so_far) = (pmd::port::limit(), 0);
    let beyond = ports.iter().find(|port| {
        so_far += port.spec.ethdevs();
        so_far > limit
    });
    if let Some(Written { path, who, .. }) = beyond {
        let message = format!(
            "{who}: the config's ports take {all} devices of DPDK, which was built for {limit} \
             (RTE_MAX_ETHPORTS): put containers on ports of kind \"veth\" or \"tap\" and virtual machines on \"vhost-user\", which are no \
             such devices, others on a trunk port, by VLAN"
        );
        checker.fail(path, message);
    }
}

/// librte_vhost has room for so many vhost-user sockets.
fn sockets(checker: &mut Checker<'_>, ports: &[Written<'_>]) {
    let (mut servers, mut clients) = (0, 0);
    for Written { path, who, spec } in ports {
        let PortSpec::VhostUser(vhost) = spec else { continue };
        if vhost.server {
            servers += 1
        } else {
            clients += 1
        }
        if let Some((needed, room)) = pmd::vhost::too_many(servers, clients) {
            let message = format!(
                "{who}: librte_vhost waits for at most {room} descriptors, and {servers} vhost-user sockets that the switch makes (two \
                 descriptors each) with {clients} that it connects to (one each) need {needed}: let virtual machine monitors make more of \
                 them (server = false), or put tenants on other kinds of ports"
            );
            return checker.fail(path, message);
        }
    }
}

fn queues(checker: &mut Checker<'_>, path: &str, rx: Option<u16>, tx: Option<u16>) {
    for (key, queues) in [("rx-queues", rx), ("tx-queues", tx)] {
        if queues == Some(0) {
            checker.fail(
                format!("{path}.{key}"),
                format!("{key} is 0; a port needs at least one, so give 1 or more"),
            );
        }
    }
}

fn ring_name(spec: &PortSpec) -> Option<&str> {
    match spec {
        PortSpec::Ring(ring) => ring.name.as_deref(),
        _ => None,
    }
}

/// What is wrong with one port: the key, and a sentence.
fn problems(spec: &PortSpec, rings: &HashSet<&str>) -> Vec<(&'static str, String)> {
    let mut found = PortProblems(Vec::new());
    match spec {
        PortSpec::Pci(pci) => {
            found.check("address", check_pci_address(&pci.address));
            found.check("devargs", pci.devargs.as_deref().map_or(Ok(()), check_arguments));
        }
        PortSpec::Representor(vf) => found.check("pf", check_pci_address(&vf.pf)),
        PortSpec::VhostUser(vhost) => {
            found.check("path", check_device_socket(&vhost.path));
            found.check("queues", check_queues(vhost.queues).and_then(|()| check_pairs(vhost.queues)));
            access_problems(vhost, &mut found);
        }
        PortSpec::VirtioUser(virtio) => {
            found.check("path", check_device_socket(&virtio.path));
            found.check("queues", check_queues(virtio.queues));
        }
        PortSpec::Tap(tap) => {
            found.check("iface", check_iface(&tap.iface));
            found.check("netns", tap.netns.as_deref().map_or(Ok(()), check_netns));
            found.check("queues", check_queues(tap.queues));
            if let Some(mac) = tap.mac.filter(|mac| !mac.is_station()) {
                found.check(
                    "mac",
                    Err(format!("{mac} is not the address of one station; write one like 52:54:00:00:00:01")),
                );
            }
        }
        PortSpec::AfPacket(packet) => {
            found.check("iface", check_iface(&packet.iface));
            found.check("queues", check_queues(packet.queues));
        }
        PortSpec::Veth(veth) => {
            found.check("iface", check_iface(&veth.iface));
            found.check("queues", check_queues(veth.queues));
        }
        PortSpec::AfXdp(xdp) => {
            found.check("iface", check_iface(&xdp.iface));
            found.check("queues", check_queues(xdp.queues));
        }
        PortSpec::Memif(memif) => memif_problems(memif, &mut found),
        PortSpec::Pcap(pcap) => pcap_problems(pcap, &mut found),
        PortSpec::Ring(ring) => ring_problems(ring, rings, &mut found),
        PortSpec::Null(null) => {
            if !(14..=9728).contains(&null.size) {
                found.check("size", Err(format!("{} bytes is not a frame; write 14 to 9728", null.size)));
            }
        }
        PortSpec::Bond(bond) => bond_problems(bond, rings, &mut found),
        PortSpec::Raw(raw) => found.check("vdev", check_vdev(&raw.vdev)),
    }
    found.0
}

struct PortProblems(Vec<(&'static str, String)>);

impl PortProblems {
    fn check(&mut self, key: &'static str, result: Result<(), String>) {
        if let Err(problem) = result {
            self.0.push((key, format!("{key} {problem}")));
        }
    }
}

fn memif_problems(memif: &MemifPort, found: &mut PortProblems) {
    found.check("socket", check_device_socket(&memif.socket));
    if let Some(secret) = &memif.secret {
        // It is not quoted: errors are read by more people than the config.
        if check_value(secret.reveal()).is_err() {
            let problem = "is empty or has a comma, a bracket or a control character, which device arguments cannot carry; remove it";
            found.check("secret", Err(problem.into()));
        }
        let length = secret.reveal().len();
        if length > LONGEST_SECRET {
            let problem = format!(
                "is {length} bytes long; a memif secret has at most {LONGEST_SECRET}: choose a shorter one"
            );
            found.check("secret", Err(problem));
        }
    }
}

fn pcap_problems(pcap: &PcapPort, found: &mut PortProblems) {
    for (key, path) in [("rx-pcap", &pcap.rx_pcap), ("tx-pcap", &pcap.tx_pcap)] {
        found.check(key, path.as_deref().map_or(Ok(()), |path| check_value(&path.to_string_lossy())));
    }
    for (key, iface) in [("rx-iface", &pcap.rx_iface), ("tx-iface", &pcap.tx_iface), ("iface", &pcap.iface)] {
        found.check(key, iface.as_deref().map_or(Ok(()), check_iface));
    }
    if pcap.rx_pcap.is_some() && pcap.rx_iface.is_some() {
        found.check(
            "rx-iface",
            Err("stands beside rx-pcap; packets come from one of them, so keep one".into()),
        );
    }
    if pcap.tx_pcap.is_some() && pcap.tx_iface.is_some() {
        found.check("tx-iface", Err("stands beside tx-pcap; packets go to one of them, so keep one".into()));
    }
    let sources = pcap.rx_pcap.is_some() || pcap.rx_iface.is_some();
    let sinks = pcap.tx_pcap.is_some() || pcap.tx_iface.is_some();
    if pcap.iface.is_some() && (sources || sinks) {
        found.check("iface", Err("is both ways; leave out the rx- and tx- keys beside it".into()));
    }
    if pcap.iface.is_none() && !sources && !sinks {
        found.check("kind", Err("pcap needs a source or a sink; give rx-pcap, tx-pcap or iface".into()));
    }
    if pcap.infinite_rx && pcap.rx_pcap.is_none() {
        found.check(
            "infinite-rx",
            Err("needs rx-pcap, for only a file can be played again; give that, or leave this out".into()),
        );
    }
}

/// Most members of a bond.
const MOST_MEMBERS: usize = 8;

fn bond_problems(bond: &BondPort, rings: &HashSet<&str>, found: &mut PortProblems) {
    if !(1..=MOST_MEMBERS).contains(&bond.members.len()) {
        let problem = format!("are {}; a bond has 1 to {MOST_MEMBERS}: name so many", bond.members.len());
        found.check("members", Err(problem));
    }
    for member in &bond.members {
        if !matches!(member, PortSpec::Pci(_) | PortSpec::AfPacket(_)) {
            let problem = format!(
                "have one of kind \"{}\"; a bond is made of NICs, of kind \"pci\", or of kernel interfaces, of kind \"af-packet\": take those",
                member.kind()
            );
            found.check("members", Err(problem));
            continue;
        }
        for (_, problem) in problems(member, rings) {
            found.check("members", Err(format!("have one whose {problem}")));
        }
    }
    let devices: Vec<String> = bond.members.iter().flat_map(resources).collect();
    if let Some(twice) = (1..devices.len()).find(|&at| devices[..at].contains(&devices[at])) {
        found.check("members", Err(format!("have {} twice; keep one", devices[twice])));
    }
    let is_of_interfaces = bond.members.iter().any(|member| matches!(member, PortSpec::AfPacket(_)));
    if is_of_interfaces && bond.mode != BondModeConfig::Lacp {
        let problem = "needs members of kind \"pci\": DPDK's packet sockets do not tell that a link is gone; take mode = \"802.3ad\", or \
                       two uplinks that share a VTEP address";
        found.check("mode", Err(problem.into()));
    }
    if bond.members.windows(2).any(|pair| pair[0].kind() != pair[1].kind()) {
        found
            .check("members", Err("are of different kinds; they take turns, so take all of one kind".into()));
    }
    let queues = |member: &PortSpec| match member {
        PortSpec::AfPacket(packet) => packet.queues,
        _ => 1,
    };
    if bond.members.windows(2).any(|pair| queues(&pair[0]) != queues(&pair[1])) {
        found.check("members", Err("have different numbers of queues; give all of them the same".into()));
    }
}

fn ring_problems(ring: &RingPort, rings: &HashSet<&str>, found: &mut PortProblems) {
    for (key, name) in [("name", &ring.name), ("peer", &ring.peer)] {
        found.check(key, name.as_deref().map_or(Ok(()), check_value));
    }
    let Some(peer) = &ring.peer else { return };
    if ring.name.is_none() {
        found.check(
            "peer",
            Err("needs a name beside it, by which the peer finds this ring; give it one".into()),
        );
    } else if ring.name == ring.peer {
        found.check("peer", Err("is the ring itself; leave it out for a loopback".into()));
    } else if !rings.contains(peer.as_str()) {
        found.check("peer", Err(format!("{} is no ring; give another port that name", quote(peer))));
    }
}

/// `0000:01:00.0`, or without the domain.
pub(super) fn check_pci_address(address: &str) -> Result<(), String> {
    let full = full_pci_address(address);
    let hex = |text: &str, digits| text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = full.split([':', '.']).collect();
    let good = full.len() == 12
        && full.rfind(':') < full.find('.')
        && matches!(parts[..], [domain, bus, device, function]
            if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1));
    if good {
        Ok(())
    } else {
        Err(format!("{} is not a PCI address; write one such as 0000:01:00.0", quote(address)))
    }
}

/// A Unix socket's path.
pub(super) fn check_socket_path(path: &Path) -> Result<(), String> {
    let text = path.to_string_lossy();
    if text.is_empty() {
        return Err("is empty; write a path".into());
    }
    if text.contains(char::is_control) {
        return Err(format!("{} has control characters; choose another path", quote(&text)));
    }
    if text.len() > LONGEST_SOCKET {
        let length = text.len();
        return Err(format!(
            "{} is {length} bytes long; a socket's path has at most {LONGEST_SOCKET}: choose a shorter one",
            quote(&text)
        ));
    }
    Ok(())
}

/// Who may connect to a socket is said where it is made.
fn access_problems(vhost: &VhostUserPort, found: &mut PortProblems) {
    for (key, given) in [("owner", &vhost.owner), ("group", &vhost.group), ("mode", &vhost.mode)] {
        let Some(text) = given else { continue };
        let octal = (3..=4).contains(&text.len()) && text.chars().all(|digit| ('0'..='7').contains(&digit));
        let why = if !vhost.server {
            "is for the end that makes the socket; leave it out where server = false".to_owned()
        } else if text.is_empty() || text.chars().any(char::is_control) {
            "is no name; write one as `id` shows it, or a number".to_owned()
        } else if key == "mode" && (!octal || text.len() == 4 && !text.starts_with('0')) {
            format!("{} is not the mode of a socket; write three octal digits, such as \"0660\"", quote(text))
        } else {
            continue;
        };
        found.check(key, Err(why));
    }
}

/// A Unix socket's path that goes into device arguments.
fn check_device_socket(path: &Path) -> Result<(), String> {
    check_value(&path.to_string_lossy())?;
    check_socket_path(path)
}

/// A value that goes into device arguments.
fn check_value(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty; write it, or leave the key out".into());
    }
    if text.contains(|c: char| c.is_control() || matches!(c, ',' | '[' | ']')) {
        return Err(format!(
            "{} has a comma, a bracket or a control character, which device arguments cannot carry; remove it",
            quote(text)
        ));
    }
    Ok(())
}

/// The name of a kernel interface.
pub(super) fn check_iface(name: &str) -> Result<(), String> {
    check_value(name)?;
    let bad = |c: char| c.is_whitespace() || matches!(c, '/' | ':');
    if name.len() > LONGEST_IFACE || name.contains(bad) || matches!(name, "." | "..") {
        return Err(format!(
            "{} is not an interface's name; choose one of at most {LONGEST_IFACE} bytes, with no blanks, no / and no :",
            quote(name)
        ));
    }
    Ok(())
}

/// A name of `ip netns`, or a whole path.
fn check_netns(netns: &Path) -> Result<(), String> {
    let is_name = netns.file_name().is_some_and(|name| name == netns.as_os_str());
    if netns.is_absolute() || is_name {
        return Ok(());
    }
    Err(format!(
        "{} is neither a name of `ip netns` nor a whole path; write one of them, such as /proc/7/ns/net",
        quote(&netns.to_string_lossy())
    ))
}

fn check_queues(queues: u16) -> Result<(), String> {
    if queues == 0 { Err("is 0; a port needs at least one, so give 1 or more".into()) } else { Ok(()) }
}

/// librte_vhost knows no more pairs of virtqueues.
fn check_pairs(queues: u16) -> Result<(), String> {
    const MOST: usize = pmd::vhost::MAX_PAIRS;
    if usize::from(queues) <= MOST {
        return Ok(());
    }
    Err(format!(
        "is {queues}; librte_vhost knows {MOST} pairs of virtqueues for a guest: take as many as there are workers"
    ))
}

/// Arguments a driver reads, `key=value,key=value`.
fn check_arguments(text: &str) -> Result<(), String> {
    if text.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(format!("{} has blanks or control characters; remove them", quote(&hide(text))));
    }
    Ok(())
}

/// `net_x0,key=value`.
fn check_vdev(text: &str) -> Result<(), String> {
    let name = text.split(',').next().unwrap_or_default();
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.len() > 63 || !name.starts_with("net_") || !name.chars().all(good) {
        let shown = quote(&hide(text));
        return Err(format!(
            "{shown} is not a network device; write one such as net_ring0 or net_x0,key=value"
        ));
    }
    // A peer that may would send super-frames, and want them whole: `Traits::super_frames` is false of such a port.
    let lets_super_frames_in =
        |argument: &str| argument.strip_prefix("tso=").is_some_and(|value| value.trim() != "0");
    if name.starts_with("net_vhost") && text.split(',').skip(1).any(lets_super_frames_in) {
        return Err(format!(
            "{} negotiates super-frames, which this kind of port does not take; remove tso",
            quote(&hide(text))
        ));
    }
    check_arguments(text)
}
