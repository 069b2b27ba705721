//! The network of a case: containers on veths, hosts, and who forwards between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{Case, Forwarder, ovs};
use crate::host::cores::{self, Cores};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::netns::Netns;
use crate::host::ovs::OpenVswitch;
use crate::host::{interrupt, scratch};
use crate::live::config::{Config, Counted, await_ports};
use crate::live::testbed::{VNI, station, vtep};
use crate::{Error, Result};

/// Of containers: what a tunnel leaves of an Ethernet's 1500.
const MTU: u16 = 1450;
const UNDERLAY_MTU: u16 = 1600;
/// The hosts' ends of the containers' veths, by container.
pub const PORTS: [&str; 2] = ["va", "vb"];
pub const UPLINK: &str = "up0";
/// An uplink that is a tap, where a bridge joins it with [`UPLINK`].
const TAP: &str = "ut0";
/// Of a switch, in MiB.
pub const MEMORY: u64 = 384;
/// How long the containers may take to reach each other.
const REACHED: Duration = Duration::from_secs(20);

/// Containers that reach each other. What it holds goes in this order: switches before what their ports are on.
pub struct Network {
    daemons: Vec<Daemon>,
    ovs: Vec<OpenVswitch>,
    pub containers: [Netns; 2],
    _hosts: Vec<Netns>,
}

impl Network {
    /// Makes everything, and waits until a container reaches the other. `vswitch` is the daemon where one takes part; its files
    /// are in `folder`.
    pub fn start(case: Case, vswitch: Option<&Path>, folder: &Path) -> Result<Self> {
        let hosts: Vec<Netns> = match case.is_remote() {
            false => vec![Netns::create("host1")?],
            true => vec![Netns::create("host1")?, Netns::create("host2")?],
        };
        for host in &hosts {
            // What the kernel says on its own is nobody's traffic.
            host.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
        }
        let containers = [Netns::create("a")?, Netns::create("b")?];
        let whole = case.leaves_segments_whole();
        for (number, (container, port)) in (1..).zip(containers.iter().zip(PORTS)) {
            let (host, (mac, ip)) = (host_of(&hosts, number), station(number));
            cable([(host, port), (container, "eth0")], MTU)?;
            container.ip(&format!("link set eth0 address {mac}"))?;
            container.ip(&format!("addr add {ip}/24 dev eth0"))?;
            if !whole {
                leave_nothing_to_the_device(container, "eth0")?;
            }
        }
        if let [one, two] = &hosts[..] {
            cable([(one, UPLINK), (two, UPLINK)], UNDERLAY_MTU)?;
            for (number, host) in (1..).zip(&hosts) {
                host.ip(&format!("link set {UPLINK} address {}", vtep(number).0))?;
                if !whole {
                    leave_nothing_to_the_device(host, UPLINK)?;
                }
            }
        }
        let (mut daemons, mut switches) = (Vec::new(), Vec::new());
        for (number, host) in (1..).zip(&hosts) {
            let far = case.is_remote().then_some(3 - number);
            let local = if far.is_some() { vec![number] } else { vec![1, 2] };
            let place = Place { host, number, local, far };
            let folder = folder.join(format!("host{number}"));
            std::fs::create_dir(&folder).map_err(Error::io(format!("create {}", folder.display())))?;
            match (case.forwarder(), vswitch) {
                (Forwarder::Switch { ports, uplink }, Some(vswitch)) => {
                    daemons.push(switch(&place, [ports, uplink], vswitch, &folder)?);
                }
                (Forwarder::Ovs, _) => switches.push(ovs::start(&place, place.cores()?, &folder)?),
                _ => bridge(&place)?,
            }
        }
        let network = Self { daemons, ovs: switches, containers, _hosts: hosts };
        let ping = format!("ping -q -c 1 -W 1 {}", station(2).1);
        let reached = interrupt::until(REACHED, || {
            Ok::<_, Error>(network.containers[0].run(&ping).is_ok().then_some(()))
        })?;
        let silent = || Error::Failed(format!("{}: the containers do not reach each other", case.name()));
        reached.ok_or_else(silent)?;
        Ok(network)
    }

    /// What each switch has counted.
    pub fn counted(&mut self) -> Result<NetworkCounted> {
        let ours = self.daemons.iter_mut().map(Counted::of).collect::<Result<_, _>>()?;
        let ovs = self.ovs.iter().map(OpenVswitch::drops).collect::<Result<_, _>>()?;
        Ok(NetworkCounted { ours, ovs })
    }

    /// What all switches dropped since then, by reason.
    pub fn drops_since(&mut self, before: &NetworkCounted) -> Result<BTreeMap<String, u64>> {
        let after = self.counted()?;
        let ours = after.ours.iter().zip(&before.ours).map(|(after, before)| after.drops_since(before));
        let ovs = after.ovs.into_iter().zip(&before.ovs).map(|(mut after, before)| {
            after.iter_mut().for_each(|(reason, count)| *count -= before.get(reason).unwrap_or(&0));
            after.retain(|_, count| *count > 0);
            after
        });
        let mut drops = BTreeMap::new();
        for (reason, count) in ours.chain(ovs).flatten() {
            *drops.entry(reason).or_default() += count;
        }
        Ok(drops)
    }
}

/// What the switches of a network have counted: all of ours, and what Open vSwitch dropped.
pub struct NetworkCounted {
    ours: Vec<Counted>,
    ovs: Vec<BTreeMap<String, u64>>,
}

/// A host in its place; numbers are from 1.
pub struct Place<'a> {
    pub host: &'a Netns,
    pub number: u8,
    /// Its containers.
    pub local: Vec<u8>,
    /// The other host, whose container has the same number.
    pub far: Option<u8>,
}

impl Place<'_> {
    /// The cores of its switch: each forwards on one of its own, from the last one on.
    fn cores(&self) -> Result<Cores> {
        let available = cores::available();
        let own = available.iter().rev().cycle().nth(usize::from(self.number - 1)).copied();
        cores::choose(&available, own)
    }
}

/// The host of the container with that number: its own, or the only one.
fn host_of(hosts: &[Netns], container: u8) -> &Netns {
    &hosts[usize::from(container - 1).min(hosts.len() - 1)]
}

/// A veth between two namespaces, up at both ends.
fn cable([near, far]: [(&Netns, &str); 2], mtu: u16) -> Result<()> {
    let ((netns, name), (other, peer)) = (near, (far.0.name(), far.1));
    netns
        .ip(&format!("link add name {name} mtu {mtu} type veth peer name {peer} mtu {mtu} netns {other}"))?;
    for (netns, interface) in [near, far] {
        netns.ip(&format!("link set {interface} up"))?;
    }
    Ok(())
}

/// Packet sockets of ports of kind `af-packet` are told nothing of checksums and segments that are left to do.
fn leave_nothing_to_the_device(netns: &Netns, interface: &str) -> Result<()> {
    netns.run(&format!("ethtool -K {interface} tx off tso off gso off")).map(|_| ())
}

/// The kernel's bridge, with its vxlan device as a port where there is another host.
fn bridge(place: &Place<'_>) -> Result<()> {
    let host = place.host;
    host.ip("link add br0 type bridge")?;
    host.ip("link set br0 up")?;
    for &container in &place.local {
        host.ip(&format!("link set {} master br0", PORTS[usize::from(container - 1)]))?;
    }
    if let Some(far) = place.far {
        let (local, remote) = (vtep(place.number).1, vtep(far).1);
        host.ip(&format!("addr add {local}/24 dev {UPLINK}"))?;
        host.ip(&format!(
            "link add vx0 type vxlan id {VNI} dstport 4789 local {local} remote {remote} dev {UPLINK}"
        ))?;
        host.ip("link set vx0 master br0 up")?;
    }
    Ok(())
}

/// A tap for the switch's uplink, and a bridge that joins it with what leads to the other host. The kernel's ends keep addresses of their
/// own: a bridge keeps what is for its interfaces.
fn tap_behind_bridge(host: &Netns) -> Result<()> {
    host.ip(&format!("link add br0 mtu {UNDERLAY_MTU} type bridge"))?;
    host.ip("link set br0 up")?;
    host.ip(&format!("tuntap add {TAP} mode tap multi_queue"))?;
    host.ip(&format!("link set {TAP} mtu {UNDERLAY_MTU} master br0 up"))?;
    host.ip(&format!("link set {UPLINK} address 02:00:00:00:fe:01"))?;
    host.ip(&format!("link set {UPLINK} master br0"))?;
    Ok(())
}

/// Our switch, with ports of one kind and an uplink of one. Its worker sleeps when it has nothing to do: the containers need the cores,
/// too.
fn switch(place: &Place<'_>, kinds: [&str; 2], vswitch: &Path, folder: &Path) -> Result<Daemon> {
    let &Place { host, number, ref local, far } = place;
    let cores = place.cores()?;
    let prefix = scratch::file_prefix(usize::from(number));
    let netns = Some(host.name());
    let setup = DaemonSetup { program: vswitch, folder, prefix: &prefix, cores, netns };
    let mut config = Config::new(&setup);
    let memory = format!("{MEMORY}MiB");
    config.set(&json!({ "eal": { "memory": memory, "mbufs": 65_536 }, "workers": { "idle": "sleep" } }));
    config.vpc("tenant", VNI, &json!({}));
    let [kind, uplink_kind] = kinds;
    let port = |interface: &str| json!({ "kind": kind, "iface": interface });
    for &container in local {
        let (name, (mac, ip)) = (PORTS[usize::from(container - 1)], station(container));
        let settings = json!({ "vpc": "tenant", "mtu": MTU, "port": port(name) });
        config.vnic(name, mac, &[ip], &settings);
    }
    if let Some(far) = far {
        let interface = match uplink_kind {
            "tap" => {
                tap_behind_bridge(host)?;
                TAP
            }
            _ => UPLINK,
        };
        let port = json!({ "kind": uplink_kind, "iface": interface });
        let port = json!({ "port": port });
        config.uplink("up", vtep(number), &[vtep(far)], UNDERLAY_MTU, &port);
        config.location(VNI, station(far), vtep(far).1);
    }
    let mut daemon = Daemon::start(&setup, &config.text())?;
    await_ports(&mut daemon, local.len() + usize::from(far.is_some()))?;
    Ok(daemon)
}
