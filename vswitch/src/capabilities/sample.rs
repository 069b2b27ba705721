//! A small network of documentation addresses, and the chains that its flows become: what a port is asked about before
//! there is any flow.
//!
//! The chains come out of the very translation that real flows go through. No packet on a real wire is of these flows.

use pipelines::Direction;
use pipelines::flow_key::{FlowKey, FlowPorts, Scope};
use pipelines::offload::translate::{FlowSelector, Tables, TranslateOptions, Translator};
use pipelines::qos::{Class, NodeLimits, Tree, TreeSize};
use pipelines::snapshot::{NO_PORT, PortIndex, Settings};
use pipelines::stage::key::class_code;
use rules::{FlowRule, Meter};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{MacAddr, Psn, Qpn};

use crate::config::Config;
use crate::topology::underlay::Neighbours;
use crate::topology::{Ports, Topology};

const NETWORK: &str = r#"
[[uplink]]
name = "up"
port = { kind = "null" }
addresses = ["192.0.2.1/24", "2001:db8:ffff::1/64"]
mtu = 1600
udp6-zero-checksum = true
neighbours = [
    { ip = "192.0.2.2", mac = "02:00:5e:10:00:02" },
    { ip = "2001:db8:ffff::2", mac = "02:00:5e:10:00:02" },
]
[[vpc]]
name = "sample"
vni = 16777214
inner-vlan = "keep"
[[subnet]]
vpc = "sample"
prefix = "198.51.100.0/24"
[[subnet]]
vpc = "sample"
prefix = "2001:db8::/64"
[[vnic]]
name = "one"
vpc = "sample"
mac = "02:00:5e:10:01:01"
vips = ["198.51.100.1", "2001:db8::1"]
mtu = 1450
port = { kind = "null" }
[[vnic]]
name = "two"
vpc = "sample"
mac = "02:00:5e:10:01:02"
vips = ["198.51.100.2"]
mtu = 1450
port = { kind = "null" }
[[location]]
vni = 16777214
vip = "198.51.100.9"
mac = "02:00:5e:10:01:09"
vtep = "192.0.2.2"
[[location]]
vni = 16777214
vip = "2001:db8::9"
mac = "02:00:5e:10:01:09"
vtep = "2001:db8:ffff::2"
"#;

const UPLINK: PortIndex = 0;
const ONE: PortIndex = 1;
/// Names of the ports, by index.
const PORTS: [&str; 3] = ["up", "one", "two"];
/// A metered class gets so many bits per second.
const CEILING: u64 = 1_000_000_000;
const QUEUE_PAIR: Qpn = Qpn::truncated(17);
const SOURCE_PORT: u16 = 50_001;

/// Ports that are a list of names; they carry nothing.
struct SamplePorts;

impl Ports for SamplePorts {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let at = PORTS.iter().position(|known| *known == name)? as PortIndex;
        Some((at, self.mac(at)))
    }

    fn partial_checksums(&self, _: PortIndex) -> bool {
        false
    }

    fn takes_super_frames(&self, _: PortIndex) -> bool {
        false
    }

    fn partner(&self, _: PortIndex) -> PortIndex {
        NO_PORT
    }

    fn count(&self) -> usize {
        PORTS.len()
    }

    fn mac(&self, port: PortIndex) -> MacAddr {
        MacAddr([2, 0, 0x5e, 0x10, 0xff, port as u8])
    }
}

/// A flow whose chain a port is asked about.
pub struct SampleChain {
    /// What the flow is, in a few words.
    pub name: &'static str,
    /// The rules of its chain, in the order in which they are made.
    pub rules: Vec<FlowRule>,
    /// The meter that they refer to.
    pub meter: Option<Meter>,
}

/// The packet of a sample, and where it comes from.
struct SamplePacket {
    name: &'static str,
    frame: Vec<u8>,
    /// It comes out of the tunnel.
    tunnelled: bool,
    /// It is of a queue pair.
    pair: bool,
    /// Its class has a rate.
    metered: bool,
}

fn flows() -> Vec<SamplePacket> {
    let mac = |n: u8| MacAddr([2, 0, 0x5e, 0x10, 1, n]);
    let v4 = |from: u8, to: u8| {
        Path::v4((mac(from), [198, 51, 100, from].into()), (mac(to), [198, 51, 100, to].into()))
    };
    let address = |n: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n);
    let v6 = |from: u8, to: u8| Path::v6((mac(from), address(from.into())), (mac(to), address(to.into())));
    let tcp = |path: Path| path.tcp(1000, 80, 0x10, b"sample");
    let rdma = |path: Path, opcode: u8| {
        path.with_tos(2).roce(SOURCE_PORT, Bth::new(opcode, QUEUE_PAIR, Psn::truncated(1)), &[0; 32])
    };
    let write = opcode::RC_WRITE_ONLY;
    let plain = |name, frame| SamplePacket { name, frame, tunnelled: false, pair: false, metered: false };
    vec![
        plain("tcp-encap", tcp(v4(1, 9))),
        SamplePacket { tunnelled: true, ..plain("tcp-decap", tcp(v4(9, 1))) },
        plain("local", tcp(v4(1, 2))),
        plain("vlan-encap", tcp(v4(1, 9).tagged(5))),
        SamplePacket { tunnelled: true, ..plain("vlan-decap", tcp(v4(9, 1).tagged(5))) },
        plain("ipv6-encap", tcp(v6(1, 9))),
        SamplePacket { tunnelled: true, ..plain("ipv6-decap", tcp(v6(9, 1))) },
        SamplePacket { pair: true, ..plain("rc-encap", rdma(v4(1, 9), write)) },
        SamplePacket { pair: true, tunnelled: true, ..plain("rc-decap", rdma(v4(9, 1), write)) },
        SamplePacket { pair: true, ..plain("rc-ipv6-encap", rdma(v6(1, 9), write)) },
        SamplePacket { pair: true, tunnelled: true, ..plain("rc-ipv6-decap", rdma(v6(9, 1), write)) },
        plain("ud-encap", rdma(v4(1, 9), opcode::UD_SEND_ONLY)),
        SamplePacket { metered: true, ..plain("tcp-metered", tcp(v4(1, 9))) },
        SamplePacket { pair: true, metered: true, ..plain("rc-metered", rdma(v4(1, 9), write)) },
    ]
}

/// The chains of all samples, for packets that come from DPDK port `from` and go out of DPDK port `to`.
///
/// # Errors
/// In words; not with the network above.
pub fn chains(from: u16, to: u16) -> Result<Vec<SampleChain>, String> {
    let config = Config::parse(NETWORK, "sample").map_err(|errors| errors.to_string())?;
    let (mut topology, neighbours) = (Topology::new(64), Neighbours::default());
    topology.rebuild(&config, &SamplePorts, &neighbours).map_err(|error| error.to_string())?;
    let snapshot = topology.commit();
    let vnic = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == PORTS[usize::from(ONE)]);
    let (vnic, vpc) = vnic.map(|vnic| (vnic.index, vnic.vpc)).ok_or("the sample has no vNIC")?;
    let options = TranslateOptions::default();
    let one = |flow: SamplePacket| -> Result<SampleChain, String> {
        let tree = Tree::new(TreeSize { tenants: 2, vnics: 4 }, &|_, _| {});
        if flow.metered {
            for class in [Class::Rdma, Class::Tcp] {
                let node = tree.leaf_node(tree.leaf(Direction::Out, vnic, class));
                tree.set(node, &NodeLimits { ceil: CEILING, ..NodeLimits::FREE }, 0);
            }
        }
        let source = if flow.tunnelled { UPLINK } else { ONE };
        let place = |port| Some(if port == source { from } else { to });
        let ports: Vec<_> = (0..PORTS.len() as PortIndex).map(place).collect();
        let scope = if flow.tunnelled { Scope::Vpc(vpc) } else { Scope::Vnic(vnic) };
        let tables =
            Tables { snapshot: &snapshot, tree: &tree, ports: &ports, connections: None, options: &options };
        let selector = FlowSelector {
            key: key(&flow.frame, scope, &snapshot.settings)?,
            qpn: flow.pair.then_some(QUEUE_PAIR),
            source_port: Some(SOURCE_PORT),
        };
        let mut translator = Translator::default();
        let chain =
            translator.chain(&tables, &selector).map_err(|refusal| format!("{}: {refusal}", flow.name))?;
        let rules = chain.rules().into_iter().cloned().collect();
        Ok(SampleChain { name: flow.name, rules, meter: chain.meter.map(|(_, meter)| meter) })
    };
    flows().into_iter().map(one).collect()
}

fn key(frame: &[u8], scope: Scope, settings: &Settings) -> Result<FlowKey, String> {
    let headers = wire::parse::parse(frame, frame.len()).map_err(|_| "a sample packet is malformed")?;
    let is_rdma = headers.dport == settings.rdma_port;
    let class = if is_rdma { class_code(headers.payload(frame), &settings.roce_classes) } else { 0 };
    let ports = FlowPorts { source: headers.sport, destination: headers.dport };
    Ok(FlowKey::build(frame, &headers, scope, ports, class, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipelines::offload::sim::{Eswitch, EswitchConfig};
    use rules::{Action, BackEnd, Item, ItemKind, items};

    #[test]
    fn every_sample_is_a_chain_that_an_e_switch_takes() {
        let samples = chains(7, 8).unwrap();
        let names: Vec<_> = samples.iter().map(|sample| sample.name).collect();
        assert_eq!(names, flows().iter().map(|flow| flow.name).collect::<Vec<_>>());
        for SampleChain { name, rules, meter } in &samples {
            let mut eswitch = Eswitch::new(EswitchConfig::default());
            for rule in rules {
                eswitch.create(rule).unwrap_or_else(|error| panic!("{name}: {rule}: {error}"));
            }
            let all = |wanted: &dyn Fn(&Item) -> bool| {
                rules.iter().flat_map(|rule| &rule.pattern).filter(|item| wanted(item)).count()
            };
            let from = Item::with(items::represented_port::ETHDEV_PORT_ID, 7u16);
            assert!(all(&|item| *item == from) > 0, "{name} comes from port 7");
            let out = Action::RepresentedPort { port: 8 };
            assert!(rules.iter().any(|rule| rule.actions.contains(&out)), "{name} goes out of port 8");
            let has = |action: &str| {
                rules.iter().flat_map(|rule| &rule.actions).any(|known| known.name() == action)
            };
            assert_eq!(
                all(&|item| item.kind() == ItemKind::IbBth) > 0,
                name.starts_with("rc") || name.starts_with("ud"),
                "{name}"
            );
            assert_eq!(all(&|item| item.kind() == ItemKind::Vlan) > 0, name.starts_with("vlan"), "{name}");
            assert_eq!(all(&|item| item.kind() == ItemKind::Ipv6) > 0, name.contains("ipv6"), "{name}");
            assert_eq!(
                (has("meter"), meter.is_some()),
                (name.ends_with("metered"), name.ends_with("metered")),
                "{name}"
            );
            assert_eq!(has("vxlan_decap"), name.ends_with("decap"), "{name}");
            assert_eq!(has("raw_encap"), !name.ends_with("decap") && *name != "local", "{name}");
        }
    }
}
