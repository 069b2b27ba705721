//! The translation: golden chains, and what is refused.
//!
//! `OFFLOAD_GOLDEN=write` writes the golden chains anew; read the difference before you keep it.

use std::path::Path as File;

use pipelines::Direction;
use pipelines::offload::translate::{Chain, EntropySource, FlowSelector, OffloadRefusal};
use pipelines::offload::{sim::Eswitch, sim::EswitchConfig};
use pipelines::qos::Class;
use pipelines::snapshot::{Destination, DscpPolicy, PortIndex};
use rules::BackEnd;
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{MacAddr, Psn, Qpn, Vni};

use crate::host::*;
use crate::mixed::ascends;
use testkit::*;

/// Compares the commands of a chain with a file, and has the simulated e-switch take them.
#[track_caller]
fn golden(name: &str, chain: &Chain) {
    ascends(chain);
    let mut text: String = chain.rules().iter().map(|rule| rule.testpmd(0)).collect();
    if let Some((id, meter)) = chain.meter {
        let rules::Meter { cir, cbs, eir, ebs } = meter;
        text = format!("# meter {id}: cir {cir} cbs {cbs} eir {eir} ebs {ebs} (bytes)\n{text}");
    }
    let file = File::new(env!("CARGO_MANIFEST_DIR")).join("tests/offload/golden").join(format!("{name}.txt"));
    if std::env::var_os("OFFLOAD_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(text == expected, "{name}: this is not what {} says:\n{text}", file.display());
    let mut eswitch = Eswitch::new(EswitchConfig::default());
    for rule in chain.rules() {
        eswitch.create(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    }
}

fn rdma(path: Path, opcode: u8, qpn: u32) -> Vec<u8> {
    path.roce(50_001, Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(1)), &[0; 32])
}

fn host() -> Host {
    Host::new(plain())
}

fn over(underlay: Underlay, inner: &[u8]) -> Vec<u8> {
    outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), inner)
}

#[track_caller]
fn made(host: &mut Host, selector: FlowSelector) -> Chain {
    host.chain(selector).unwrap_or_else(|refusal| panic!("{selector:?}: {refusal}"))
}

#[test]
fn translate_tcp_into_the_tunnel() {
    let mut host = host();
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let chain = made(&mut host, whole(key));
    assert_eq!(chain.facts.leaf, Some(host.tree().leaf(Direction::Out, 0, Class::Tcp)));
    golden("tcp-encap", &chain);
    assert_eq!(made(&mut host, whole(key)), chain, "the same again");
    assert_eq!(host.translator.numbered(), 1);
}

#[test]
fn translate_tcp_out_of_the_tunnel() {
    let mut host = host();
    let key = host.flow(UPLINK, &tunnelled(&v4(R, A).tcp(80, 1000, 0x10, b"data")));
    let chain = made(&mut host, whole(key));
    assert_eq!(chain.facts.tunnel_len, 50);
    golden("tcp-decap", &chain);
}

#[test]
fn translate_queue_pairs_both_ways() {
    let mut host = host();
    let key = host.flow(1, &rdma(v4(A, R).with_tos(2), opcode::RC_WRITE_ONLY, 17));
    golden("rc-out", &made(&mut host, pair(key, 17, 50_001)));
    let key = host.flow(UPLINK, &tunnelled(&rdma(v4(R, A).with_tos(2), opcode::RC_WRITE_ONLY, 18)));
    golden("rc-in", &made(&mut host, pair(key, 18, 50_001)));
}

#[test]
fn translate_queue_pairs_between_ipv6_addresses_in_two_matches() {
    let mut host = host();
    let key = host.flow(1, &rdma(v6(A, R).with_tos(2), opcode::RC_WRITE_ONLY, 17));
    golden("rc-ipv6-out", &made(&mut host, pair(key, 17, 50_001)));
    let key = host.flow(UPLINK, &tunnelled(&rdma(v6(R, A).with_tos(2), opcode::RC_WRITE_ONLY, 18)));
    golden("rc-ipv6-in", &made(&mut host, pair(key, 18, 50_001)));
    let key = host.flow(1, &rdma(v6(A, B).with_tos(2), opcode::RC_WRITE_ONLY, 19));
    golden("rc-ipv6-local", &made(&mut host, pair(key, 19, 50_001)));
}

#[test]
fn translate_datagrams_leave_the_connection_manager_to_software() {
    let mut host = host();
    let key = host.flow(1, &rdma(v4(A, R), opcode::UD_SEND_ONLY, 17));
    let selector = FlowSelector { source_port: Some(50_001), ..whole(key) };
    golden("ud", &made(&mut host, selector));
}

#[test]
fn translate_a_class_with_a_rate_into_a_meter() {
    let mut host = host();
    host.limit(Direction::Out, 0, Class::Rdma, 8_000_000_000);
    host.limit(Direction::In, 0, Class::Rdma, 8_000_000_000);
    host.limit(Direction::Out, 0, Class::Tcp, 80_000_000);
    let key = host.flow(1, &rdma(v4(A, R).with_tos(2), opcode::RC_WRITE_ONLY, 17));
    golden("meter-rdma-out", &made(&mut host, pair(key, 17, 50_001)));
    let key = host.flow(UPLINK, &tunnelled(&rdma(v4(R, A).with_tos(2), opcode::RC_WRITE_ONLY, 18)));
    golden("meter-rdma-in", &made(&mut host, pair(key, 18, 50_001)));
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    golden("meter-tcp-out", &made(&mut host, whole(key)));
}

#[test]
fn translate_delivery_on_the_same_host() {
    let mut host = host();
    let key = host.flow(1, &v4(A, B).tcp(1000, 80, 0x10, b"data"));
    let chain = made(&mut host, whole(key));
    assert_eq!((chain.facts.leaf, chain.meter), (None, None), "no link is crossed");
    golden("local", &chain);
    let key = host.flow(1, &routed(v4(A, C)).udp(1000, 53, b"data"));
    golden("local-routed", &made(&mut host, whole(key)));
}

#[test]
fn translate_vlan_inside_and_outside() {
    let underlay = UNDERLAYS[1];
    let mut host = Host::new(lab(1, underlay));
    host.world.keep_vlan(0);
    let key = host.flow(1, &v4(A, R).tagged(5).udp(1000, 53, b"data"));
    golden("vlan-out", &made(&mut host, whole(key)));
    let key = host.flow(UPLINK, &over(underlay, &v4(R, A).tagged(5).udp(53, 1000, b"data")));
    golden("vlan-in", &made(&mut host, whole(key)));
}

#[test]
fn translate_ipv6_inside_and_outside() {
    let mut host = host();
    let key = host.flow(1, &v6(A, R).tcp(1000, 80, 0x10, b"data"));
    golden("ipv6-in-ipv4", &made(&mut host, whole(key)));
    let underlay = UNDERLAYS[4];
    let mut host = Host::new(lab(1, underlay));
    let key = host.flow(1, &routed(v6(A, S)).tcp(1000, 80, 0x10, b"data"));
    golden("ipv6-in-ipv6-out", &made(&mut host, whole(key)));
    let key = host.flow(UPLINK, &over(underlay, &v6(R, A).tcp(80, 1000, 0x10, b"data")));
    golden("ipv6-in-ipv6-in", &made(&mut host, whole(key)));
}

#[test]
fn translate_a_location_that_moves_changes_its_ways_only() {
    let mut host = host();
    let key = host.flow(1, &v4(A, R).tcp(1000, 80, 0x10, b"data"));
    let before = made(&mut host, whole(key));
    let place = host.world.tunnel(0, 3);
    let slot = host.world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
    host.world.writer.update(slot.slot, place);
    let after = made(&mut host, whole(key));
    let pairs = before.rules().into_iter().zip(after.rules());
    let changed: Vec<_> = pairs.filter(|(before, after)| before != after).collect();
    assert_eq!(changed.len(), 4, "one for each ECN codepoint");
    for (before, after) in changed {
        assert_eq!(
            (before.attr, &before.pattern),
            (after.attr, &after.pattern),
            "an update of the same rule"
        );
        assert_eq!(before.attr.group, pipelines::offload::translate::group::ADJACENCY);
    }
}

/// Rules lead a flow to the gateway that software chose for it, and a flow out of the tunnel stays where its source is judged.
#[test]
fn translate_follows_the_routing_of_a_flow_to_its_gateway() {
    let mut host = host();
    let gateways = host.world.gateways(0, &[4, 5, 6]);
    host.world.route(0, &[("0.0.0.0/0", gateways)]);
    let mut seen = std::collections::HashSet::new();
    for port in 1..40 {
        let path = Path::v4((A.mac, A.v4), (ROUTER, "8.8.8.8".parse().unwrap()));
        let frame = path.tcp(port, 80, 0x10, b"data");
        let key = host.flow(1, &frame);
        let software = testkit::open::open(&host.world.pass(1, &frame)[0].1).dst;
        let chain = made(&mut host, whole(key));
        let text: String = chain.rules().iter().map(|rule| rule.testpmd(0)).collect();
        assert!(text.contains(&format!("src is 172.16.0.1 dst is {software} / udp")), "{software}: {text}");
        seen.insert(software);
    }
    assert_eq!(seen.len(), 3);
    let back = Path::v4((MacAddr([2, 0, 0, 0, 8, 4]), "8.8.8.8".parse().unwrap()), (A.mac, A.v4));
    let frame =
        outer(4, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), &back.tcp(80, 1, 0x10, b"x"));
    let key = host.flow(UPLINK, &frame);
    assert_eq!(host.chain(whole(key)).err(), Some(OffloadRefusal::Source));
}

#[test]
fn translate_ways_are_shared_where_the_nic_chooses_source_ports() {
    let ways = |entropy| {
        let mut host = host();
        host.options.entropy = entropy;
        let chains: Vec<_> = (0..8)
            .map(|port| {
                let key = host.flow(1, &v4(A, R).tcp(1000 + port, 80, 0x10, b"data"));
                made(&mut host, whole(key))
            })
            .collect();
        chains.iter().for_each(|chain| host.translator.forget(&chain.facts));
        assert_eq!(host.translator.numbered(), 0);
        chains.iter().map(|chain| chain.facts.adjacency).collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!((ways(EntropySource::Hardware), ways(EntropySource::Exact)), (1, 8));
    assert_eq!(ways(EntropySource::HardwareButRoce), 1);
}

#[test]
fn translate_queue_pairs_keep_their_source_ports_where_software_cannot_follow_the_nic() {
    let ways = |entropy| {
        let mut host = host();
        host.options.entropy = entropy;
        let bth = Bth::new(0x0a, Qpn::truncated(17), Psn::truncated(1));
        let key = host.flow(1, &v4(A, R).roce(1000, bth, &[0; 36]));
        let chains: Vec<_> = (0..8).map(|port| made(&mut host, pair(key, 17, 1000 + port))).collect();
        chains.iter().map(|chain| chain.facts.adjacency).collect::<std::collections::HashSet<_>>().len()
    };
    use EntropySource::{Exact, Hardware, HardwareButRoce};
    assert_eq!([Hardware, HardwareButRoce, Exact].map(ways), [1, 8, 8]);
}

#[test]
fn translate_a_fixed_dscp_asks_for_ecn_only() {
    let mut host = host();
    host.world.snapshot.settings.dscp = DscpPolicy::Fixed(26);
    let key = host.flow(1, &v4(A, R).with_tos(0xa2).tcp(1000, 80, 0x10, b"data"));
    let chain = made(&mut host, whole(key));
    let text: String = chain.rules().iter().map(|rule| rule.testpmd(0)).collect();
    assert_eq!(text.matches("tos spec 0x02 tos mask 0x03").count(), 2, "root and way\n{text}");
    assert_eq!(text.matches("tos is 0x6a").count(), 1, "DSCP 26 and ECT(0)\n{text}");
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Host), port: PortIndex, frame: &[u8], expected: OffloadRefusal) {
    let mut host = host();
    let key = host.flow(port, frame);
    change(&mut host);
    assert_eq!(host.chain(whole(key)).unwrap_err(), expected);
    assert_eq!(host.translator.numbered(), 0, "nothing is left");
    assert!(!expected.to_string().is_empty());
}

#[test]
fn translate_refuses_what_hardware_would_do_otherwise() {
    let tcp = v4(A, R).tcp(1000, 80, 0x10, b"data");
    let back = tunnelled(&v4(R, A).tcp(80, 1000, 0x10, b"data"));
    let none = |_: &mut Host| {};
    refused(none, 1, &v4(A, R).echo_request(1, 1, b"ping"), OffloadRefusal::Protocol);
    refused(none, 1, &rdma(v4(A, R), opcode::CNP, 17), OffloadRefusal::RoceClass);
    refused(none, 1, &rdma(v4(A, R), opcode::UD_SEND_ONLY, 1), OffloadRefusal::RoceClass);
    refused(none, 1, &rdma(v4(A, R), opcode::RC_WRITE_ONLY, 17), OffloadRefusal::QueuePair);
    refused(none, 1, &rdma(v4(A, R), opcode::UC_SEND_ONLY, 17), OffloadRefusal::SourcePort);
    refused(
        none,
        1,
        &routed(v4(A, Station { v4: [10, 9, 9, 9].into(), ..R })).tcp(1, 2, 0, b""),
        OffloadRefusal::NotForwarded,
    );
    refused(|host| host.ports[1] = None, 1, &tcp, OffloadRefusal::Port);
    refused(|host| host.ports[0] = None, 1, &tcp, OffloadRefusal::Port);
    refused(|host| host.ports.clear(), 0, &back, OffloadRefusal::Port);
    refused(|host| host.world.uplink().mtu = 1549, 1, &tcp, OffloadRefusal::Mtu(1564));
    refused(
        |host| host.world.snapshot.vnic_rows[1].mtu = 1400,
        1,
        &v4(A, B).udp(1, 2, b""),
        OffloadRefusal::Mtu(1500),
    );
    refused(|host| host.world.snapshot.settings.vxlan_strict = true, 0, &back, OffloadRefusal::Strict);
    refused(|host| host.world.snapshot.vnic_rows[0].vlan = 7, 1, &tcp, OffloadRefusal::Trunk);
    refused(|host| host.world.forget(0, Destination::Ip(R.v4.into())), 0, &back, OffloadRefusal::Source);
    refused(|host| host.world.forget(0, Destination::Mac(R.mac)), 1, &tcp, OffloadRefusal::NotForwarded);
    refused(none, 1, &v4(A, R).udp(1000, 4789, b"a network of their own"), OffloadRefusal::Tunnel);
    let unresolved = |host: &mut Host| {
        let slot = host.world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
        let unresolved = host.world.unresolved(0, 2);
        host.world.writer.update(slot.slot, unresolved);
    };
    refused(unresolved, 1, &tcp, OffloadRefusal::Unresolved);
    let vnic_ceiling = |host: &mut Host| {
        let node = host.tree().vnic_node(Direction::Out, 0);
        host.tree().set(
            node,
            &pipelines::qos::NodeLimits { ceil: 1_000_000, ..pipelines::qos::NodeLimits::FREE },
            0,
        );
    };
    refused(vnic_ceiling, 1, &tcp, OffloadRefusal::NoShare);
    let mut host = Host::new(lab(1, UNDERLAYS[2]));
    let key = host.flow(1, &tcp);
    assert_eq!(host.chain(whole(key)).unwrap_err(), OffloadRefusal::UdpChecksum);
    let key = host.flow(UPLINK, &over(UNDERLAYS[2], &v4(R, A).tcp(80, 1000, 0x10, b"data")));
    assert_eq!(host.chain(whole(key)).unwrap_err(), OffloadRefusal::UdpChecksum);
    assert_eq!(host.translator.numbered(), 0, "nothing is left");
    let group = MacAddr([3, 0, 0, 0, 0, 1]);
    host.world.flood(0, &[2]);
    let mut path = v4(A, R);
    path.dst_mac = group;
    let key = host.flow(1, &path.udp(1, 2, b"all"));
    assert_eq!(host.chain(whole(key)).unwrap_err(), OffloadRefusal::NotForwarded);
}
