//! Every command of the console is a call of the API, and what it says in JSON is the answer of that call as protobuf has it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeMap;

use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Value;
use tests::{Daemon, Family, Scene};

/// Commands that need no switch.
const ALONE: [&str; 4] = ["help [<topic:text>]", "quit", "load <file:path>", "save <file:path>"];

/// A line for every command, by how it is written, in the order in which they go: what a later one needs, an earlier one makes.
const LINES: &[(&str, &str)] = &[
    ("start", "start"),
    ("set fwd", "set fwd overlay"),
    ("show fwd stats all", "show fwd stats all"),
    ("clear fwd stats all", "clear fwd stats all"),
    ("show drops", "show drops"),
    ("show workers", "show workers"),
    ("runtime on|off", "runtime on"),
    ("show runtime", "show runtime"),
    ("show buffers", "show buffers"),
    ("show version", "show version"),
    ("show events", "show events 256"),
    ("port attach", "port attach p0 null"),
    ("port list", "port list"),
    ("port stop", "port stop p0"),
    ("port start", "port start p0"),
    ("show port info", "show port info all"),
    ("show port stats", "show port stats all"),
    ("show port xstats", "show port xstats all"),
    ("clear port stats all", "clear port stats all"),
    ("clear port xstats all", "clear port xstats all"),
    ("vpc add", "vpc add calls vni 900"),
    ("show vpc", "show vpc"),
    ("subnet add", "subnet add calls 10.90.0.0/24"),
    ("show subnet", "show subnet"),
    ("subnet del", "subnet del calls 10.90.0.0/24"),
    (
        "route add|set <vpc:name> <to:prefix> vtep",
        "route add calls 10.91.0.0/24 vtep 172.16.0.2 mac 02:00:00:00:00:09",
    ),
    (
        "route add|set <vpc:name> <to:prefix> next-hops",
        "route set calls 10.91.0.0/24 next-hops 172.16.0.2=02:00:00:00:00:09,172.16.0.3=02:00:00:00:00:0a",
    ),
    ("route add|set <vpc:name> <to:prefix> mac", "route set calls 10.92.0.0/24 mac 02:00:00:00:00:09"),
    ("route add|set <vpc:name> <to:prefix> blackhole", "route set calls 10.93.0.0/24 blackhole"),
    ("subnet add", "subnet add calls 10.90.0.0/24"),
    ("vnic add", "vnic add v0 vpc calls mac 02:00:00:00:00:77 vips 10.90.0.1 port null size=64"),
    ("route add|set <vpc:name> <to:prefix> vnic", "route add calls 10.94.0.0/24 vnic v0"),
    ("vpc add", "vpc add peer vni 901"),
    ("route add|set <vpc:name> <to:prefix> vpc", "route add calls 10.95.0.0/24 vpc peer"),
    ("show route", "show route calls"),
    ("route del", "route del calls 10.95.0.0/24"),
    ("show vnic", "show vnic"),
    ("show services", "show services"),
    ("vlt set", "vlt set 900 10.90.0.9 mac 02:00:00:00:00:09 vtep 172.16.0.2"),
    ("show vlt", "show vlt"),
    ("vlt move", "vlt move 900 02:00:00:00:00:09 vtep 172.16.0.3"),
    ("vlt del", "vlt del 900 10.90.0.9"),
    ("security-group add", "security-group add web vpc calls"),
    ("security-group allow", "security-group allow web in tcp 80"),
    ("security-group set", "security-group set v0 web"),
    ("show security-group", "show security-group"),
    ("show connections", "show connections"),
    ("security-group revoke", "security-group revoke web in tcp 80"),
    ("security-group set", "security-group set v0 none"),
    ("security-group del", "security-group del web"),
    ("show qos", "show qos"),
    ("show qos vpc", "show qos vpc calls"),
    ("show qos vnic", "show qos vnic v0"),
    ("qos set link", "qos set link out ceil 10Gbit"),
    ("qos set vpc", "qos set vpc calls out ceil 1Gbit"),
    ("qos set vnic", "qos set vnic v0 in weight 3"),
    ("qos set class", "qos set class v0 rdma out burst 128KiB"),
    ("show rcft", "show rcft"),
    ("show rcft <vnic:name>", "show rcft red"),
    ("show rcft [<vnic:name>] top", "show rcft top 5 by bytes"),
    ("rcft set", "rcft set v0 quota 5"),
    ("rcft evict <vnic:name> all", "rcft evict v0 all"),
    ("vnic move", "vnic move v0 vtep 172.16.0.2"),
    ("vnic add", "vnic add v1 vpc calls mac 02:00:00:00:00:78 vips 10.90.0.2 port null size=64"),
    ("vnic del", "vnic del v1"),
    ("vpc del", "vpc del peer"),
    ("port detach", "port detach p0"),
    ("show nft", "show nft"),
    ("clear nft", "clear nft"),
    ("show neigh", "show neigh"),
    ("show uplink", "show uplink"),
    ("show bfd", "show bfd"),
    ("ping vtep", "ping vtep 172.16.0.2"),
    ("show offload", "show offload"),
    ("show offload flows", "show offload flows"),
    ("show offload capabilities", "show offload capabilities"),
    ("offload on|off", "offload off"),
    ("offload audit", "offload audit"),
    ("flow list", "flow list red"),
    ("flow flush", "flow flush red"),
    (
        "set raw_encap",
        "set raw_encap 0 eth src is 02:00:00:00:00:01 dst is 02:00:00:00:00:02 type is 0x0800 / ipv4 proto is 17 ttl is 64 \
         src is 192.0.2.1 dst is 192.0.2.2 / udp src is 49152 dst is 4789 / vxlan vni is 7 / end_set",
    ),
    ("show hosts", "show hosts"),
    ("show control", "show control"),
    ("show evpn", "show evpn"),
    ("show rdma devices", "show rdma devices"),
    ("show config", "show config"),
    ("config diff", "config diff CONFIG"),
    ("config reload", "config reload"),
    ("config load", "config load CONFIG"),
    ("stop", "stop"),
    ("shutdown", "shutdown"),
];

/// Commands that this switch has nothing for; other scenarios show what they say. Their refusal must be the switch's own.
const REFUSED: &[(&str, &str)] = &[
    ("show qp", "show qp red 0x11"),
    ("cluster check", "cluster check"),
    ("rcft evict <vnic:name> <peer:ip>", "rcft evict red 10.0.0.2 0x11"),
    ("offload why", "offload why vnic red 10.0.0.1 10.0.0.2 tcp 1 2"),
    ("offload pin", "offload pin software vnic red 10.0.0.1 10.0.0.2 tcp 1 2"),
    ("flow validate", "flow validate red ingress pattern eth / end actions drop / end"),
    ("flow create", "flow create red ingress pattern eth / end actions drop / end"),
    ("flow destroy", "flow destroy red rule 0"),
    ("flow query", "flow query red 0 count"),
];

fn answer_of(pool: &DescriptorPool, rpc: &str) -> MessageDescriptor {
    let (service, call) = rpc.split_once('.').unwrap_or_else(|| panic!("{rpc:?} is no call"));
    let service = pool.get_service_by_name(&format!("vswitch.v1.{service}")).unwrap();
    service.methods().find(|method| method.name() == call).unwrap_or_else(|| panic!("no {rpc}")).output()
}

/// The JSON form of a command, as it came.
fn json(daemon: &Daemon, line: &str) -> Result<Value, String> {
    let (program, socket) = (daemon.program().display().to_string(), daemon.socket().display().to_string());
    let output = tests::process::try_run(&[&program, "ctl", "--json", "--socket", &socket, line]);
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn api_every_command_is_a_call_and_its_json_is_the_answer() {
    let mut scene = Scene::start(Family::V4, "", "");
    let pool = DescriptorPool::decode(vswitch_api::DESCRIPTORS).unwrap();
    let help = json(&scene.daemon, "help").unwrap();
    let calls: BTreeMap<&str, &str> = help
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["syntax"].as_str().unwrap(), entry["rpc"].as_str().unwrap()))
        .collect();
    let of = |written: &str| -> Vec<(&str, &str)> {
        let exact = calls.get_key_value(written).map(|(syntax, rpc)| (*syntax, *rpc));
        let longer = calls.iter().filter(|(syntax, _)| syntax.starts_with(written));
        exact.map_or_else(|| longer.map(|(syntax, rpc)| (*syntax, *rpc)).collect(), |one| vec![one])
    };
    let mut seen: Vec<&str> = ALONE.to_vec();
    let config = scene.daemon.config().display().to_string();
    for (written, line) in REFUSED.iter().chain(LINES) {
        let (syntax, rpc) = match of(written)[..] {
            [one] => one,
            ref several => panic!("{written}: {several:?}"),
        };
        seen.push(syntax);
        let answer = answer_of(&pool, rpc);
        match json(&scene.daemon, &line.replace("CONFIG", &config)) {
            Ok(json) => {
                let strict = DeserializeOptions::new().deny_unknown_fields(true);
                let read = DynamicMessage::deserialize_with_options(answer, json.clone(), &strict);
                read.unwrap_or_else(|error| panic!("{line} is no answer of {rpc} ({error}): {json:#}"));
            }
            Err(error) => {
                assert!(REFUSED.iter().any(|(_, refused)| refused == line), "{line}: {error}");
                assert!(!error.contains("does not know this command") && error.len() > 20, "{line}: {error}");
            }
        }
    }
    for (syntax, rpc) in &calls {
        assert!(seen.contains(syntax), "no line for {syntax}");
        assert_eq!(rpc.is_empty(), ALONE[..3].contains(syntax), "{syntax}: {rpc}");
    }
    scene.daemon.assert_clean_end();
}
