//! What `to_toml` writes, `parse` reads back to the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use wire::{Dscp, MacAddr, Vni};

use crate::config::port_spec::*;
use crate::config::*;

fn same_again(config: &Config) {
    let text = config.to_toml().unwrap();
    match Config::parse(&text, "written") {
        Ok(read) => assert_eq!(&read, config, "{text}"),
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

#[test]
fn the_example_and_the_empty_config_round_trip() {
    same_again(&Config::default());
    same_again(&Config::parse(include_str!("../../../example.toml"), "example").unwrap());
}

fn station(n: u32) -> MacAddr {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddr([0x52, 0x54, a, b, c, d])
}

fn net(ip: IpAddr, len: u8) -> IpNet {
    IpNet::new(ip, len).unwrap()
}

fn share(ppm: u32) -> QuotaConfig {
    QuotaConfig::Share { share: Share::from_ppm(ppm).unwrap(), device: Name::new("rxe0").unwrap() }
}

pub(crate) fn rcft() -> impl Strategy<Value = RcftConfig> {
    let entries = RcftConfig::MIN_ENTRIES..=RcftConfig::MAX_ENTRIES;
    let quota = prop_oneof![
        Just(None),
        (0..=RcftConfig::MIN_ENTRIES).prop_map(|count| Some(count.into())),
        (1u32..=1_000_000).prop_map(|ppm| Some(share(ppm))),
    ];
    let times = [1..u64::MAX, 1_000_000_000..u64::MAX, 1..u64::MAX, 0..u64::MAX, 0..u64::MAX];
    (entries, quota, any::<u32>(), any::<bool>(), any::<u64>(), times).prop_map(
        |(entries, quota, new_rate, reject, opcodes, times)| {
            let [idle_timeout, silent_after, half_open_timeout, grace, restart_grace] =
                times.map(Duration::from_nanos);
            let refuse = if reject { Refuse::Reject } else { Refuse::Drop };
            RcftConfig {
                entries,
                quota,
                new_rate,
                refuse,
                count_opcodes: VendorOpcodes::from_bits(opcodes),
                idle_timeout,
                silent_after,
                half_open_timeout,
                grace,
                restart_grace,
            }
        },
    )
}

pub(crate) fn qos() -> impl Strategy<Value = QosConfig> {
    let rates =
        [proptest::option::of(1_000_000_000u64..1 << 40), proptest::option::of(1_000_000_000u64..1 << 40)];
    let debts = (0u64..1 << 28, 0u64..1 << 28, 1u64..1 << 28);
    let queues = (1u32..=QosConfig::MAX_PACKETS, 64u64 << 10..1 << 30);
    (rates, 0u32..=QosConfig::MAX_OVERHEAD, debts, [1u32..=1_000_000, 1..=1_000_000], queues, any::<bool>())
        .prop_map(|([out, into], overhead, (kmin, more, most), shares, (packets, bytes), tcp_ecn)| {
            let [pmax, control_rate] = shares.map(|ppm| Percent(Share::from_ppm(ppm).unwrap()));
            QosConfig {
                link: LinkConfig { out: out.map(BitRate), into: into.map(BitRate) },
                overhead,
                kmin: ByteSize(kmin),
                kmax: ByteSize(kmin + more),
                pmax,
                hard_limit: ByteSize(kmin + more + most),
                control_rate,
                queue_packets: packets,
                queue_bytes: ByteSize(bytes),
                queue_time: Duration::from_micros(1_000 + u64::from(packets)),
                tcp_ecn,
                tcp_ecn_target: Duration::from_nanos(bytes),
            }
        })
}

/// Limits of a node that always fit: what is assured is little.
fn limits(pick: usize) -> LimitsConfig {
    let some = |bit: usize| pick & 1 << bit != 0;
    LimitsConfig {
        assured: some(0).then_some(BitRate(1_000 + pick as u64 % 1000)),
        ceil: some(1).then_some(BitRate(500_000_000 + pick as u64 % 1000)),
        weight: some(2).then_some(1 + (pick % 1000) as u32),
        burst: some(3).then_some(ByteSize(1 + pick as u64 % 100_000)),
    }
}

fn dhcp(pick: usize) -> DhcpConfig {
    let via = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
    DhcpConfig {
        lease: Duration::from_secs(4 + pick as u64 % 100_000),
        dns: vec![Ipv4Addr::new(10, 9, 9, 9).into(); pick % 3],
        domain: DomainName::near("blue.example").filter(|_| pick & 1 == 0),
        mtu: (pick & 2 == 0).then_some(1400),
        routes: vec![DhcpRoute { to: net(Ipv4Addr::new(10, 9, 0, 0).into(), 16), via: Some(via) }; pick % 4],
    }
}

/// Valid sections of the process, any values.
fn process() -> impl Strategy<Value = Config> {
    let eal = (0..3usize, 32u64..4096, proptest::option::of(1u32..1 << 20), 0..3u8);
    let workers = (
        proptest::option::of(1usize..64),
        any::<bool>(),
        any::<bool>(),
        WorkersConfig::MIN_BURST..=WorkersConfig::MAX_BURST,
    );
    let nft = (1u32..1 << 24, 1u64..10_000_000_000, any::<u32>(), 1u16..);
    let vxlan = (1u16.., any::<bool>(), 0..3usize, 1u8.., proptest::option::of(0u8..64));
    (eal, workers, nft, vxlan, (rcft(), qos()), proptest::option::of("/[a-z]{1,20}")).prop_map(
        |(eal, workers, nft, vxlan, (rcft, qos), state)| {
            let mut config = Config::default();
            config.eal.huge_pages = [HugePages::Auto, HugePages::Never, HugePages::Require][eal.0];
            config.eal.memory = ByteSize::mebibytes(eal.1);
            config.eal.mbufs = eal.2;
            config.eal.plugins = (0..eal.3).map(|n| format!("/lib/x{n}.so").into()).collect();
            config.eal.pci = (0..eal.3).map(|n| format!("0000:01:00.{n},a=1,b=2")).collect();
            match workers.0 {
                Some(n) if workers.1 => config.workers.cores = Some((0..n).collect()),
                count => config.workers.count = count,
            }
            config.workers.idle = if workers.2 { Idle::Sleep } else { Idle::Poll };
            config.workers.burst = workers.3;
            config.nft.entries = nft.0;
            config.nft.idle_timeout = Duration::from_nanos(nft.1);
            config.nft.miss_rate = nft.2;
            config.nft.miss_budget = nft.3;
            config.vxlan.udp_port = vxlan.0;
            config.vxlan.reserved = if vxlan.1 { ReservedBits::Strict } else { ReservedBits::Ignore };
            config.vxlan.ecn_encap =
                [EcnEncapConfig::Rfc6040, EcnEncapConfig::Rfc3168, EcnEncapConfig::Rfc6040Compat][vxlan.2];
            config.vxlan.ttl = vxlan.3;
            config.vxlan.dscp =
                vxlan.4.map_or(DscpConfig::Copy, |raw| DscpConfig::Fixed(Dscp::new(raw).unwrap()));
            config.rcft = rcft;
            config.qos = qos;
            config.control.state = state.map(Into::into);
            config
        },
    )
}

/// Pairs of a vNIC: floating ones, a nested prefix.
fn allowed(pick: usize, m: u8) -> Vec<AllowedConfig> {
    let pairs = [
        AllowedConfig { ip: IpAddr::from([10, 0, 0, 200]).into(), mac: None },
        AllowedConfig { ip: net([10, 9, m, 0].into(), 24), mac: None },
        AllowedConfig { ip: "fd00:9::7".parse::<IpAddr>().unwrap().into(), mac: Some(station(0x1_0000)) },
    ];
    pairs.into_iter().enumerate().filter(|(n, _)| pick & 1 << n != 0).map(|(_, pair)| pair).collect()
}

/// One port of any kind; `n` keeps devices apart.
pub(crate) fn port(kind: usize, n: u16, flag: bool) -> PortSpec {
    let queues = n % 4 + 1;
    match kind % PortSpec::KINDS.len() {
        0 => PortSpec::Pci(PciPort {
            address: format!("0000:{:02x}:00.0", n % 256),
            devargs: flag.then(|| "a=1,b=2".into()),
        }),
        1 => PortSpec::Representor(RepresentorPort { pf: "0000:01:00.0".into(), vf: n }),
        2 => PortSpec::VhostUser(VhostUserPort {
            path: format!("/run/v{n}").into(),
            server: flag,
            queues,
            owner: flag.then(|| "libvirt-qemu".into()),
            group: flag.then(|| "107".into()),
            mode: flag.then(|| "0660".into()),
        }),
        3 => PortSpec::VirtioUser(VirtioUserPort {
            path: format!("/run/u{n}").into(),
            server: flag,
            queues,
            trusted_peer: true,
        }),
        4 => PortSpec::Tap(TapPort {
            iface: format!("t{n}"),
            netns: flag.then(|| format!("pod{n}").into()),
            queues,
            mac: flag.then(|| station(u32::from(n))),
            persist: flag,
        }),
        5 => PortSpec::AfPacket(AfPacketPort { iface: format!("p{n}"), queues }),
        6 => PortSpec::AfXdp(AfXdpPort {
            iface: format!("x{n}"),
            queues,
            start_queue: n,
            busy_poll: flag.then_some(64),
        }),
        7 => PortSpec::Memif(MemifPort {
            socket: "/run/m".into(),
            id: n.into(),
            role: if flag { MemifRole::Client } else { MemifRole::Server },
            secret: flag.then(|| "word".into()),
            trusted_peer: true,
        }),
        8 => PortSpec::Pcap(PcapPort {
            rx_pcap: Some("in.pcap".into()),
            tx_pcap: flag.then(|| format!("out{n}.pcap").into()),
            infinite_rx: flag,
            ..PcapPort::default()
        }),
        9 => PortSpec::Ring(RingPort { name: flag.then(|| format!("r{n}")), peer: None }),
        11 => PortSpec::Veth(VethPort { iface: format!("v{n}"), queues }),
        10 => PortSpec::Null(NullPort { size: 64 + n % 1000, copy: flag }),
        12 => PortSpec::Bond(BondPort {
            mode: BondModeConfig::Lacp,
            hash: if flag { BondHashConfig::Layer2 } else { BondHashConfig::Layer34 },
            members: ["a", "b"]
                .map(|end| PortSpec::AfPacket(AfPacketPort { iface: format!("m{n}{end}"), queues }))
                .into(),
        }),
        _ => PortSpec::Raw(RawPort { vdev: format!("net_ring{n},a=1"), trusted_peer: flag }),
    }
}

/// A few rules of each kind.
fn rules(group: &Name, seed: usize) -> Vec<SecurityRule> {
    let texts = [
        "in any",
        "out rdma",
        "in tcp 80-443",
        "in icmp 8",
        "in icmpv6 1/4",
        "out 47",
        "in udp",
        "in sctp 5",
    ];
    let peers = ["", " from 10.0.0.0/8", " to fd00::/16"].map(str::to_owned);
    let peers = [&peers[..], &[format!(" from group {group}")]].concat();
    let rule = |n: usize| SecurityRule::from_words(&format!("{}{}", texts[n % 8], peers[n / 8 % 4])).unwrap();
    (0..seed % 5).map(|n| rule(seed / 7 + 5 * n)).collect()
}

/// A simulated device where one may stand before a port.
fn device(port: &PortSpec, wanted: bool) -> Option<OffloadDevice> {
    (wanted && !matches!(port, PortSpec::Veth(_))).then_some(OffloadDevice::Simulated)
}

/// Valid networks: some uplinks, VPCs with the same prefixes, vNICs on ports and trunks, locations.
pub(crate) fn networks() -> impl Strategy<Value = Config> {
    let counts = (1usize..3, 0usize..4, 0usize..6, 0usize..6);
    (process(), counts, any::<u64>(), any::<bool>()).prop_map(
        |(mut config, (uplinks, vpcs, vnics, far), seed, flag)| {
            let pick = |n: usize| (seed >> (n % 60)) as usize;
            for n in 0..uplinks {
                let octet = n as u8;
                let v4 = |host| IpAddr::V4(Ipv4Addr::new(172, 16, octet, host));
                config.uplinks.push(UplinkConfig {
                    name: Name::new(&format!("up{n}")).unwrap(),
                    port: port(pick(n), n as u16, flag),
                    addresses: vec![
                        net(v4(1), 24),
                        net(IpAddr::V6(Ipv6Addr::new(0xfd00, n as u16, 0, 0, 0, 0, 0, 1)), 64),
                    ],
                    gateway: if flag { vec![v4(254)] } else { Vec::new() },
                    routes: vec![UnderlayRoute {
                        to: net(Ipv4Addr::new(10, 9, 0, 0).into(), 16),
                        via: v4(9),
                    }],
                    metric: n as u32,
                    mtu: 1600,
                    peers: vec![v4(7)],
                    vlan: flag.then_some(5),
                    udp6_zero_checksum: flag,
                    software_tso: !flag,
                    mac: flag.then(|| station(0xff00)),
                    host: (!flag).then_some(HostTraffic::Punt),
                    host_tap: (!flag).then(|| format!("host{n}")),
                    neighbours: vec![StaticNeighbour { ip: v4(2), mac: station(2) }],
                    bfd: flag.then(|| BfdConfig {
                        min_tx: Duration::from_millis(80 + pick(n + 3) as u64 % 1000),
                        multiplier: 2 + pick(n + 5) as u8 % 200,
                        peers: if pick(n + 7) % 2 == 0 { Vec::new() } else { vec![v4(9), v4(77)] },
                        vteps: if pick(n + 9) % 2 == 0 {
                            Vec::new()
                        } else {
                            vec![Ipv4Addr::new(10, 9, 0, 7).into()]
                        },
                        ..BfdConfig::default()
                    }),
                    rx_queues: flag.then_some(2),
                    tx_queues: None,
                    offload: device(&port(pick(n), n as u16, flag), flag),
                });
            }
            for n in 0..vpcs {
                let vpc = Name::new(&format!("vpc-{n}")).unwrap();
                let gateway =
                    |last| GatewayConfig { vtep: Ipv4Addr::new(172, 16, 0, last).into(), mac: station(9) };
                let peer = config.vpcs.first().map(|vpc| vpc.name.clone());
                let targets = [
                    peer.map(|vpc| RouteTargetConfig::Peer { vpc }),
                    Some(RouteTargetConfig::Gateways(vec![gateway(3)])),
                    Some(RouteTargetConfig::Gateways(vec![gateway(3), gateway(4)])),
                    Some(RouteTargetConfig::Blackhole),
                    Some(RouteTargetConfig::Station { mac: station(5) }),
                    (vnics > 0)
                        .then(|| RouteTargetConfig::Vnic { vnic: Name::new(&format!("vm{n}.0")).unwrap() }),
                ];
                let prefixes = (0u8..).map(|second| net(Ipv4Addr::new(10, second, 0, 0).into(), 16));
                let routes = prefixes.zip(targets.into_iter().flatten());
                config.vpcs.push(VpcConfig {
                    name: vpc.clone(),
                    vni: Vni::new(n as u32 * 1000).unwrap(),
                    given_router_mac: flag.then(|| station(0xfe)),
                    flood: flag,
                    vteps: (2..2 + pick(n + 41) as u8 % 3)
                        .map(|host| Ipv4Addr::new(172, 16, 0, host).into())
                        .collect(),
                    inner_vlan: if flag { InnerVlan::Keep } else { InnerVlan::Drop },
                    routes: routes.map(|(to, target)| VpcRoute { to, target }).collect(),
                    qos: BothWays { out: limits(pick(n + 23)), into: limits(pick(n + 29)) },
                });
                config.subnets.push(SubnetConfig {
                    vpc: vpc.clone(),
                    prefix: net(Ipv4Addr::new(10, 0, 0, 0).into(), 24),
                    gateway: flag.then(|| Ipv4Addr::new(10, 0, 0, 254).into()),
                    dhcp: flag.then(|| dhcp(pick(n + 31))),
                    ra: None,
                });
                let group = Name::new(&format!("group-{n}")).unwrap();
                config.security_groups.push(SecurityGroupConfig {
                    name: group.clone(),
                    vpc: vpc.clone(),
                    default_in: if flag { Access::Allow } else { Access::Deny },
                    default_out: if flag { Access::Deny } else { Access::Allow },
                    rules: rules(&group, pick(n + 31)),
                });
                config.subnets.push(SubnetConfig {
                    vpc: vpc.clone(),
                    prefix: net(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0).into(), 64),
                    gateway: None,
                    dhcp: flag.then(DhcpConfig::default),
                    ra: flag.then(|| RaConfig {
                        lifetime: Duration::from_secs(1200 + pick(n + 33) as u64 % 7800),
                        dns: vec![Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x35).into(); pick(n + 35) % 3],
                    }),
                });
                config.trunks.push(TrunkConfig {
                    name: Name::new(&format!("trunk{n}")).unwrap(),
                    port: port(pick(n), 100 + n as u16, flag),
                    rx_queues: Some(1),
                    tx_queues: Some(1),
                });
                for m in 0..vnics {
                    let own = !pick(m).is_multiple_of(2);
                    let id = 200 + 10 * n as u16 + m as u16;
                    config.vnics.push_back(Arc::new(VnicConfig {
                        name: Name::new(&format!("vm{n}.{m}")).unwrap(),
                        vpc: vpc.clone(),
                        mac: station(m as u32 + 1),
                        vips: vec![Ipv4Addr::new(10, 0, 0, m as u8 + 1).into()],
                        link_local: if flag { LinkLocal::Eui64 } else { LinkLocal::Learn },
                        allowed: allowed(pick(m + 31), m as u8),
                        guard: if pick(m + 37) % 2 == 0 { GuardConfig::On } else { GuardConfig::Off },
                        host_name: flag.then(|| DomainName::near(&format!("host{m}")).unwrap()),
                        mtu: 1450,
                        port: match own {
                            true => VnicPort::Own(port(pick(m), id, flag)),
                            false => VnicPort::Trunk(config.trunks[n].name.clone()),
                        },
                        vlan: (!own).then_some(id),
                        queues: own.then_some(1),
                        offload: device(&port(pick(m), id, flag), own && flag),
                        qp_quota: [None, Some(7.into()), Some(share(1 + m as u32))][pick(m + 7) % 3].clone(),
                        refuse: [None, Some(Refuse::Drop), Some(Refuse::Reject)][pick(m + 9) % 3],
                        qos: VnicQos {
                            out: limits(pick(m + 11)),
                            into: limits(pick(m + 13)),
                            rdma: BothWays { out: limits(pick(m + 17)), ..BothWays::default() },
                            tcp: BothWays { into: limits(pick(m + 19)), ..BothWays::default() },
                        },
                        security_groups: if m.is_multiple_of(2) { vec![group.clone()] } else { Vec::new() },
                    }));
                }
                for m in 0..far {
                    config.locations.push(LocationConfig {
                        vni: config.vpcs[n].vni,
                        vip: Ipv4Addr::new(10, 0, 0, m as u8 + 100).into(),
                        mac: station(m as u32 + 100),
                        vtep: Ipv4Addr::new(172, 16, 0, 2).into(),
                        groups: if flag { vec![group.clone()] } else { Vec::new() },
                    });
                }
            }
            config.ports.push(PortConfig {
                name: Name::new("plain").unwrap(),
                port: port(pick(7), 999, flag),
                rx_queues: None,
                tx_queues: Some(2),
            });
            config
        },
    )
}

proptest! {
    #[test]
    fn any_valid_config_round_trips(config in networks()) {
        let mut config = config;
        config.eal.mbufs = config.eal.mbufs.map(|mbufs| mbufs.min(buffers::most(&config, false)));
        prop_assert!(config.validate().is_ok(), "{}", config.validate().unwrap_err());
        same_again(&config);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(\\PC|\n){0,200}") {
        let _ = Config::parse(&text, "f");
    }
}
