//! An error of each kind: what a client is told of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rules::{Cause, FlowError, Where};
use wire::Vni;

use super::super::{Problem, Problems};
use super::*;
use crate::config::tests::faults::tells;
use crate::config::{Config, ConfigError, ConfigErrors, PortSpec};
use crate::control::asking::Unanswered;
use crate::control::guard::Fault;
use crate::port::QueueError;

/// Words with which somebody who runs a switch is told what to do, besides those with which a config is mended.
const REMEDIES: &[&str] =
    &["ask", "check", "detach", "install", "load", "look", "restart", "run", "start", "stop", "try"];

#[track_caller]
fn assert_told(problem: &Problem, code: Code, field: &str) {
    assert_eq!((problem.code, problem.field.as_str()), (code, field), "{problem:?}");
    // A command in backticks says what to do, too.
    let has_command = [": `", "; `"].iter().any(|command| problem.message.contains(command));
    let has_remedy = has_command || tells(&problem.message, REMEDIES);
    assert!(has_remedy, "nobody is told what to do: {}", problem.message);
}

#[track_caller]
fn assert_refused(error: impl Into<SwitchError>, code: Code, field: &str) {
    let error: SwitchError = error.into();
    let Problems(problems) = error.into();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_told(problem, code, field);
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::WouldBlock)
}

fn fault(path: &str) -> ConfigErrors {
    let (path, message) = (path.to_owned(), "it cannot be so; choose another".to_owned());
    ConfigErrors(vec![ConfigError { origin: String::new(), place: None, path, message }])
}

const PATH: &str = "vnic[name=web-1.a].port";

#[test]
fn each_error_of_the_switch_has_a_code_a_field_and_a_remedy() {
    let path = || PATH.to_owned();
    let name = || "web-1.a".to_owned();
    let file = || SwitchError::File { file: "/var/lib/vswitch/state".into(), source: full() };
    let toml = || SwitchError::from(toml::to_string(&7).unwrap_err());
    let available = vec![0, 1];
    let cases: Vec<(SwitchError, Code, &str)> = vec![
        (
            fault("vnic[name=vm1].security-groups[0]").into(),
            Code::InvalidArgument,
            "vnic[name=vm1].security_groups[0]",
        ),
        (pmd::EalError::Memory(1).into(), Code::FailedPrecondition, "eal"),
        (
            SwitchError::Memory { path: path(), text: "too few; set [eal] memory".into() },
            Code::ResourceExhausted,
            PATH,
        ),
        (pmd::MempoolError::Empty("packets".into()).into(), Code::ResourceExhausted, "eal.memory"),
        (SwitchError::Watchdog(full()), Code::ResourceExhausted, ""),
        (PoolError::Thread { worker: 0, source: full() }.into(), Code::ResourceExhausted, ""),
        (PoolError::Divider(full()).into(), Code::ResourceExhausted, ""),
        (
            PoolError::Core { worker: 0, reason: "core 9 is not there; choose another".into() }.into(),
            Code::FailedPrecondition,
            "workers.cores",
        ),
        (WorkerError::Gone { worker: 0, core: 1 }.into(), Code::Unavailable, ""),
        (WorkerError::Stuck { worker: 0, core: 1 }.into(), Code::Unavailable, ""),
        (
            SwitchError::NoSuchCore { missing: vec![9], available: available.clone() },
            Code::FailedPrecondition,
            "workers.cores",
        ),
        (SwitchError::TooFewCores { wanted: 9, available }, Code::FailedPrecondition, "workers.count"),
        (SwitchError::NotYet, Code::Unavailable, ""),
        (
            SwitchError::NotLive { what: "[nft] idle-timeout", path: "nft.idle-timeout" },
            Code::FailedPrecondition,
            "nft.idle_timeout",
        ),
        (SwitchError::NoPciBus { name: name(), path: path() }, Code::FailedPrecondition, PATH),
        (
            SwitchError::Unknown {
                what: "vNIC",
                name: name(),
                list: "show vnic",
                path: "vnic[name=web-1.a]".into(),
            },
            Code::NotFound,
            "vnic[name=web-1.a]",
        ),
        (
            SwitchError::Nowhere { name: name(), path: "vnic[name=web-1.a].vips".into() },
            Code::FailedPrecondition,
            "vnic[name=web-1.a].vips",
        ),
        (
            SwitchError::InUse {
                what: "port",
                name: "up".into(),
                by: "port one".into(),
                path: "uplink[name=up]".into(),
            },
            Code::FailedPrecondition,
            "uplink[name=up]",
        ),
        (file(), Code::DataLoss, ""),
        (SwitchError::NotSaved(Box::new(file())), Code::DataLoss, ""),
        (SwitchError::NotWithdrawn { port: "up".into(), rules: 3 }, Code::DeadlineExceeded, ""),
        (toml(), Code::Internal, ""),
    ];
    for (error, code, field) in cases {
        assert_refused(error, code, field);
    }
}

#[test]
fn each_error_of_a_port_has_a_code_a_field_and_a_remedy() {
    let path = || PATH.to_owned();
    let name = || "web-1.a".to_owned();
    let queues =
        QueueError::Range { key: "rx-queues", wanted: 9, min: 1, max: 4, remedy: "give one of these" };
    let device = PortError::Busy("net_null0".into());
    let cases: Vec<(PortsError, Code, &str)> = vec![
        (
            PortsError::Open {
                name: name(),
                path: format!("{PATH}.rx-pcap"),
                source: OpenError::NobodyListens { path: "/run/v.sock".into() }.into(),
            },
            Code::FailedPrecondition,
            "vnic[name=web-1.a].port.rx_pcap",
        ),
        (
            PortsError::Queues { name: name(), path: "uplink[name=up].rx-queues".into(), source: queues },
            Code::FailedPrecondition,
            "uplink[name=up].rx_queues",
        ),
        (
            PortsError::Queues {
                name: name(),
                path: "port[name=p].rx-queues".into(),
                source: QueueError::Unequal { rx: 1, tx: 2 },
            },
            Code::FailedPrecondition,
            "port[name=p].rx_queues",
        ),
        (
            PortsError::SmallBuffers {
                name: name(),
                path: "vnic[name=web-1.a].mtu".into(),
                room: 2048,
                wanted: 9000,
            },
            Code::FailedPrecondition,
            "vnic[name=web-1.a].mtu",
        ),
        (PortsError::NoPeer { name: name(), path: path(), seconds: 10 }, Code::FailedPrecondition, PATH),
        (
            PortsError::NoProxy { name: name(), path: path(), words: "it is gone".into() },
            Code::FailedPrecondition,
            PATH,
        ),
        (
            PortsError::Ethdev { name: name(), path: path(), source: device.into() },
            Code::FailedPrecondition,
            PATH,
        ),
        (PortsError::TooMany { path: path() }, Code::ResourceExhausted, PATH),
        (PortsError::Thread { name: name(), source: full() }, Code::ResourceExhausted, ""),
        (PortsError::Ended { name: name() }, Code::Internal, ""),
        (PortsError::NotThere(name()), Code::FailedPrecondition, "port"),
        (PortsError::Unknown(name()), Code::NotFound, "port"),
        (
            PortsError::AlreadySo { name: name(), state: "started", command: "stop" },
            Code::FailedPrecondition,
            "port",
        ),
        (WorkerError::Stuck { worker: 0, core: 1 }.into(), Code::Unavailable, ""),
    ];
    for (error, code, field) in cases {
        assert_refused(error, code, field);
    }
}

#[test]
fn each_error_of_the_topology_has_a_code_a_field_and_a_remedy() {
    const VTEP: &str = "location[vni=7,vip=10.0.0.1].vtep";
    let (vip, vni) = ("10.0.0.1".parse().unwrap(), Vni::new(7).unwrap());
    let (vtep, path) = ("172.16.0.2".parse().unwrap(), || VTEP.to_owned());
    let route = "vpc[name=red].routes[to=10.9.0.0/16].vnic";
    let cases: Vec<(TopologyError, Code, &str)> = vec![
        (
            fault("location[vni=7,vip=10.0.0.1].mac").into(),
            Code::InvalidArgument,
            "location[vni=7,vip=10.0.0.1].mac",
        ),
        (TopologyError::NotUnicast { vtep, path: path() }, Code::InvalidArgument, VTEP),
        (TopologyError::OwnVtep { vtep, path: path() }, Code::FailedPrecondition, VTEP),
        (TopologyError::NoRoute { vtep, path: path() }, Code::FailedPrecondition, VTEP),
        (
            TopologyError::UnknownVni { vip, vni },
            Code::FailedPrecondition,
            "location[vni=7,vip=10.0.0.1].vni",
        ),
        (
            TopologyError::LocalVip { vip, vni, vnic: "vm1".into() },
            Code::FailedPrecondition,
            "location[vni=7,vip=10.0.0.1].vip",
        ),
        (
            TopologyError::UnknownVnic { vnic: "vm1".into(), path: route.into() },
            Code::FailedPrecondition,
            route,
        ),
        (TopologyError::VltFull { entries: 5, path: path() }, Code::ResourceExhausted, VTEP),
        (
            TopologyError::TooManyVnics { path: "vnic[name=vm1]".into() },
            Code::ResourceExhausted,
            "vnic[name=vm1]",
        ),
    ];
    for (error, code, field) in cases {
        assert_refused(error, code, field);
    }
}

#[test]
fn each_error_of_an_rdma_device_has_a_code_a_field_and_a_remedy() {
    let device = || "mlx5_0".to_owned();
    let of = |why| {
        let (whose, path) = ("vnic vm1: qp-quota".to_owned(), "vnic[name=vm1].qp-quota".to_owned());
        rdma::Error::Quota { whose, path, why: Box::new(why) }
    };
    let why = pmd::rdma::Unopened::NoUverbs;
    let cases: Vec<(rdma::Error, Code, &str)> = vec![
        (
            of(rdma::Error::NoDevice { device: device(), known: "there are none".into() }),
            Code::FailedPrecondition,
            "vnic[name=vm1].qp_quota",
        ),
        (
            of(rdma::Error::NoLimit { device: device(), why }),
            Code::FailedPrecondition,
            "vnic[name=vm1].qp_quota",
        ),
        (
            of(rdma::Error::Nothing { quota: "1% of mlx5_0".into(), max_qp: 10 }),
            Code::FailedPrecondition,
            "vnic[name=vm1].qp_quota",
        ),
        (of(rdma::Error::Slow), Code::Unavailable, "vnic[name=vm1].qp_quota"),
        (rdma::Error::Slow, Code::Unavailable, ""),
        (rdma::Error::NoThread("no room".into()), Code::ResourceExhausted, ""),
    ];
    for (error, code, field) in cases {
        assert_refused(error, code, field);
    }
}

#[test]
fn who_gets_no_answer_is_told_why() {
    assert_told(&Unanswered::Ending.into(), Code::Unavailable, "");
    let fault = Fault { what: "a change by the API".into(), message: "index 5 of 3".into() };
    assert_told(&fault.clone().into(), Code::Internal, "");
    assert_told(&Unanswered::from(fault).into(), Code::Internal, "");
}

fn spec(port: &str) -> PortSpec {
    let text = format!("[[port]]\nname = \"p\"\nport = {{ {port} }}\n");
    let config = Config::parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{port}: {errors}"));
    config.ports[0].port.clone()
}

const TAP: &str = "kind = \"tap\", iface = \"t0\", netns = \"n\"";
const VETH: &str = "kind = \"veth\", iface = \"v0\"";
const VHOST: &str = "kind = \"vhost-user\", path = \"/run/v.sock\"";
const MEMIF: &str = "kind = \"memif\", socket = \"/run/m.sock\"";
const PCAP: &str = "kind = \"pcap\", rx-iface = \"v0\", tx-pcap = \"/tmp/a.pcap\"";
const PCI: &str = "kind = \"pci\", address = \"0000:01:00.0\"";
const REPRESENTOR: &str = "kind = \"representor\", pf = \"0000:01:00.0\", vf = 3";
const BOND: &str = "kind = \"bond\", members = [{ kind = \"pci\", address = \"0000:01:00.0\" }]";
const RING: &str = "kind = \"ring\", name = \"r\"";

#[test]
fn each_error_of_opening_a_port_is_about_a_key_of_it_and_has_a_remedy() {
    const HERE: Code = Code::FailedPrecondition;
    let sock = || "/run/v.sock".into();
    let iface = || "v0".to_owned();
    let in_use = || OpenError::InUse { what: "it".into(), by: "other".into() };
    let busy = || Box::new(PortError::Busy("net_null0".into()));
    let no_folder = || OpenError::NoFolder { path: "/a/b".into(), folder: "/a".into() };
    let no_pci =
        || OpenError::Pci { address: "01:00.0".into(), why: "there is none; `lspci -D` lists them".into() };
    let value = |key| OpenError::Value { key, value: String::new(), why: "is empty; write it" };
    let cases: Vec<(OpenError, &str, Code, Option<&str>)> = vec![
        (OpenError::Capability { kind: "tap", capability: "CAP_NET_ADMIN" }, TAP, HERE, None),
        (in_use(), TAP, HERE, Some("iface")),
        (in_use(), VETH, HERE, Some("iface")),
        (in_use(), VHOST, HERE, Some("path")),
        (in_use(), MEMIF, HERE, Some("id")),
        (in_use(), PCI, HERE, Some("address")),
        (in_use(), REPRESENTOR, HERE, Some("vf")),
        (in_use(), BOND, HERE, Some("members")),
        (in_use(), RING, HERE, Some("name")),
        (in_use(), PCAP, HERE, None),
        (in_use(), "kind = \"raw\", vdev = \"net_null7\"", HERE, Some("vdev")),
        (in_use(), "kind = \"null\"", HERE, None),
        (OpenError::NoInterface { iface: iface(), namespaces: Vec::new() }, VETH, HERE, Some("iface")),
        (
            OpenError::NoInterface { iface: iface(), namespaces: vec!["n".into()] },
            PCAP,
            HERE,
            Some("rx-iface"),
        ),
        (OpenError::InterfaceDown { iface: iface() }, VETH, HERE, Some("iface")),
        (OpenError::Namespace { path: "/run/netns/n".into(), source: full() }, TAP, HERE, Some("netns")),
        (OpenError::NoTap { iface: iface(), why: "its driver is veth".into() }, TAP, HERE, Some("iface")),
        (OpenError::NoAccount { what: "user", name: "nobody7".into() }, VHOST, HERE, Some("owner")),
        (OpenError::NoAccount { what: "group", name: "nobody7".into() }, VHOST, HERE, Some("group")),
        (
            OpenError::Access { path: sock(), operation: "change its owner", source: full() },
            VHOST,
            HERE,
            None,
        ),
        (OpenError::NoVeth { iface: iface(), driver: "tun".into() }, VETH, HERE, Some("iface")),
        (
            OpenError::Interface { iface: iface(), operation: "read its MTU".into(), source: full() },
            VETH,
            HERE,
            Some("iface"),
        ),
        (OpenError::NoDeviceFile { path: "/dev/net/tun".into(), remedy: "load the module" }, TAP, HERE, None),
        (no_folder(), VHOST, HERE, Some("path")),
        (no_folder(), MEMIF, HERE, Some("socket")),
        (no_folder(), PCAP, HERE, Some("tx-pcap")),
        (
            OpenError::SocketPathLength { path: "/x".into(), length: 108 },
            VHOST,
            Code::InvalidArgument,
            Some("path"),
        ),
        (OpenError::NotASocket { path: sock(), what: "a folder" }, MEMIF, HERE, Some("socket")),
        (OpenError::SocketLive { path: sock(), other: "client" }, VHOST, HERE, Some("path")),
        (OpenError::NobodyListens { path: sock() }, VHOST, HERE, Some("path")),
        (OpenError::File { key: "tx-pcap", path: "/a".into(), source: full() }, PCAP, HERE, Some("tx-pcap")),
        (OpenError::File { key: "path", path: "/a".into(), source: full() }, MEMIF, HERE, Some("socket")),
        (
            OpenError::Capture { key: "rx-pcap", path: "/a".into(), why: "it is empty" },
            PCAP,
            HERE,
            Some("rx-pcap"),
        ),
        (no_pci(), PCI, HERE, Some("address")),
        (no_pci(), REPRESENTOR, HERE, Some("pf")),
        (no_pci(), BOND, HERE, Some("members")),
        (value("devargs"), PCI, Code::InvalidArgument, Some("devargs")),
        (value("address"), REPRESENTOR, Code::InvalidArgument, Some("pf")),
        (OpenError::Mtu { kind: "veth", port: "p".into(), wanted: 9000, max: 1500 }, VETH, HERE, None),
        (
            OpenError::Ring { name: "r".into(), why: "it is its own peer; leave the peer out".into() },
            RING,
            HERE,
            Some("name"),
        ),
        (
            OpenError::NoDriver {
                kind: "memif",
                library: "librte_net_memif".into(),
                package: "librte-net-memif23".into(),
                source: busy(),
            },
            MEMIF,
            HERE,
            None,
        ),
        (OpenError::Device { kind: "pci", port: "p".into(), source: busy() }, PCI, HERE, None),
        (OpenError::LeftBehind { what: "socket /run/v.sock".into(), source: full() }, VHOST, HERE, None),
    ];
    for (source, port, code, key) in cases {
        assert_eq!(source.key(&spec(port)), key, "{port}: {source}");
        let path = key.map_or(PATH.to_owned(), |key| format!("{PATH}.{key}"));
        let field = path.replace("-pcap", "_pcap").replace("-iface", "_iface");
        assert_refused(PortsError::Open { name: "p".into(), path, source: source.into() }, code, &field);
    }
}

#[test]
fn each_refusal_of_a_driver_has_a_code_and_a_remedy() {
    const HERE: Code = Code::FailedPrecondition;
    let name = || "net_null0".to_owned();
    let attach =
        |errno| PortError::Attach { name: name(), args: String::new(), errno, words: Default::default() };
    let operation =
        |errno| PortError::Operation { name: name(), operation: "start", errno, words: Default::default() };
    let (no_memory, no_space) = (Errno::new(12), Errno::new(28));
    let error = FlowError::new(Cause::Unsupported, Where::Unspecified, "no such queues");
    let cases: Vec<(PortError, Code)> = vec![
        (PortError::LimitReached { name: name(), limit: 32 }, Code::ResourceExhausted),
        (PortError::Name { name: name(), why: "it is over 63 bytes long" }, Code::InvalidArgument),
        (PortError::Exists(name()), HERE),
        (PortError::Busy(name()), HERE),
        (PortError::NotFound { name: name(), words: Default::default() }, HERE),
        (attach(Errno::EINVAL), HERE),
        (attach(no_memory), Code::ResourceExhausted),
        (PortError::Range { name: name(), what: "MTU", value: 1, min: 68, max: 1500 }, HERE),
        (
            PortError::Offloads { name: name(), direction: "rx", missing: Vec::new(), available: Vec::new() },
            HERE,
        ),
        (PortError::Rss { name: name(), missing: Vec::new(), available: Vec::new() }, HERE),
        (PortError::RssKey { name: name(), given: 7, wanted: 40 }, HERE),
        (PortError::FlowQueues { name: name(), error }, HERE),
        (PortError::Unsupported { name: name(), operation: "set the MTU" }, HERE),
        (operation(Errno::ENODEV), HERE),
        (operation(no_space), Code::ResourceExhausted),
        (PortError::QueuesMissing { name: name(), rx: vec![0], tx: Vec::new() }, Code::Internal),
        (PortError::FlowQueuesOut { name: name(), queues: vec![0] }, Code::Internal),
        (PortError::ForeignQueues { name: name(), count: 1 }, Code::Internal),
    ];
    for (source, code) in cases {
        assert_told(&Problem::of_device(&source, "port"), code, "port");
        let path = PATH.to_owned();
        assert_refused(PortsError::Ethdev { name: "p".into(), path, source: source.into() }, code, PATH);
    }
}

/// Problems of the interface's own that have no field: the file, how many are there, and what they are about.
const WITHOUT_FIELD: &[(&str, usize, &str)] = &[
    ("answers.rs", 2, "what all clients together have not read, or one has not sent"),
    ("configuration.rs", 1, "a switch that was started without a file"),
    ("flow_rules/actions.rs", 1, "an action, whose path it gets"),
    ("flow_rules/message.rs", 2, "an item or an action, whose path it gets"),
    ("mod.rs", 1, "what all clients together watch"),
    ("objects.rs", 1, "an operation, whose path it gets"),
    ("offloading/mod.rs", 1, "rules of the switch's own"),
    ("offloading/selector.rs", 2, "the selector, whose path it gets"),
    ("probing.rs", 1, "probes that take too long"),
    ("service.rs", 1, "who asks"),
    ("watching.rs", 3, "a stream that its client does not read, or has left"),
];

/// The problems without a field in the text of a program.
fn without_field(text: &str) -> usize {
    fn is_empty(argument: &str) -> bool {
        argument.trim_start().starts_with("\"\",")
    }
    let program = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let new = program.split("Problem::new(").skip(1);
    let new = new.filter(|rest| rest.split_once(',').is_some_and(|(_, rest)| is_empty(rest)));
    let invalid = program.split("Problem::invalid(").skip(1).filter(|rest| is_empty(rest));
    new.count() + invalid.count()
}

#[test]
fn what_has_no_field_is_about_none() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![folder.clone()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&folder).unwrap().display().to_string();
            let count = without_field(&std::fs::read_to_string(&path).unwrap());
            if count > 0 && !name.ends_with("tests.rs") {
                found.insert(name, count);
            }
        }
    }
    let known: BTreeMap<_, _> =
        WITHOUT_FIELD.iter().map(|(name, count, _)| ((*name).to_owned(), *count)).collect();
    assert_eq!(found, known, "name the field, or say here why there is none");
}
