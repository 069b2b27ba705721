//! Rules of rte_flow that a driver takes: a tap on a kernel with the flower classifier, inside a guest; and the failsafe
//! driver over another tap, which hands them on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::guest::{self, Site, site};
use tests::lab::Lab;
use tests::{Family, Workdir};

const CONFIG: &str = r#"
[eal]
huge-pages = "never"
memory = "128MiB"
mbufs = 4096
plugins = PLUGINS
[api]
socket = "/run/vs.sock"
[workers]
cores = [0]
idle = "sleep"
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.1.0.0/24"
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:0a:01"
vips = ["10.1.0.1"]
port = { kind = "raw", vdev = "net_tap0,iface=one" }
"#;

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_offload_rules_go_into_a_tap_whose_kernel_has_flower() {
    if !guest::can_run() {
        return;
    }
    let dir = Workdir::new("inner");
    let (parts, plugins) =
        guest::switch_parts(&dir, &["librte_mempool_ring", "librte_net_tap", "librte_net_failsafe"]);
    let image = guest::image_with(&parts, &dir.path().join("initrd.cpio"));
    let [mut a, ..] = site::two_tenants();
    a.memory = 768;
    let site = Site::start_with(Lab::new(Family::V4), &site::vpcs(""), &[a], &[], &image);
    let guest = site.guest("a");
    guest.run(&format!(
        "cat >/tmp/vs.toml <<'END'\n{}END",
        CONFIG.replace("PLUGINS", &format!("{plugins:?}"))
    ));
    let inner = guest.start("exec vswitch run --config /tmp/vs.toml");
    let asked = "vswitch ctl --socket /run/vs.sock 'show workers' >/dev/null 2>&1";
    if !guest.until_or_end(&inner, asked, Duration::from_secs(90)) {
        panic!("the switch in the guest ended:\n{}", guest.finish(inner, guest::SCRIPT).output);
    }
    let ctl = |command: &str| guest.run(&format!("vswitch ctl --socket /run/vs.sock '{command}' 2>&1"));
    let refused = |command: &str, words: &str| {
        let said =
            guest.run(&format!("vswitch ctl --socket /run/vs.sock '{command}' 2>&1 && echo DONE || true"));
        assert!(said.contains(words) && !said.contains("DONE"), "{command}: {said}");
    };
    // To a queue, and away: what the driver's rules can do.
    let drop = "ingress pattern eth / ipv4 dst is 10.1.0.9 / udp / end actions drop / end";
    let queue = "ingress pattern eth / ipv4 dst is 10.1.0.8 / udp / end actions queue index 0 / end";
    assert!(ctl(&format!("flow validate one {drop}")).contains("would take"));
    let create_on = |port: &str, rule: &str| {
        let said = ctl(&format!("flow create {port} {rule}"));
        let number = said.strip_prefix("rule ").and_then(|rest| rest.split_once(" created on port"));
        number.unwrap_or_else(|| panic!("{rule}: {said}")).0.parse::<u64>().unwrap()
    };
    let create = |rule: &str| create_on("one", rule);
    let (first, second) = (create(drop), create(queue));
    let listed = ctl("flow list one");
    assert!(listed.contains(drop) && listed.contains(queue), "{listed}");
    // What a rule drops does not reach the switch; the rest does.
    guest.run(
        "echo 1 >/proc/sys/net/ipv6/conf/one/disable_ipv6; ip address add 10.1.0.2/24 dev one; ip link set one up
         for to in 7 9; do ip neighbour add 10.1.0.$to lladdr 02:00:00:00:0a:09 dev one; done",
    );
    let received = |port: &str| -> u64 {
        let stats = guest.run(&format!("vswitch ctl --socket /run/vs.sock --json 'show port stats {port}'"));
        let stats: Value = serde_json::from_str(&stats).unwrap();
        stats[0]["rx-packets"].as_u64().unwrap_or_else(|| panic!("{stats:#}"))
    };
    let pings_through = |port: &str, to: &str| {
        let before = received(port);
        guest.run(&format!("ping -c 5 -i 0.2 -W 1 {to} || true"));
        received(port) - before
    };
    let pings = |to: &str| pings_through("one", to);
    let all = create("ingress pattern eth / ipv4 dst is 10.1.0.9 / end actions drop / end");
    assert_eq!((pings("10.1.0.7"), pings("10.1.0.9")), (5, 0), "with the rule");
    ctl(&format!("flow destroy one rule {all}"));
    assert_eq!((pings("10.1.0.7"), pings("10.1.0.9")), (5, 5), "without");
    // The same rule twice, and what it has no notion of: the driver's and the kernel's words.
    refused(&format!("flow create one {drop}"), "overlapping rules");
    refused(
        "flow create one ingress pattern eth / vxlan / end actions drop / end",
        "item not supported (item 1)",
    );
    refused(
        "flow create one ingress pattern eth / end actions mark id 1 / end",
        "action not supported (action 0)",
    );
    refused("flow create one transfer pattern eth / end actions drop / end", "transfer is not supported");
    refused(&format!("flow query one {first} count"), "the port refused: ");
    assert!(ctl(&format!("flow destroy one rule {first}")).contains("1 rule gone"));
    refused(&format!("flow destroy one rule {first}"), &format!("no rule {first}"));
    // Gone in the kernel too: it can be made again, under another number.
    let third = create(drop);
    assert!(first < second && second < third, "{first}, {second}, {third}");
    assert!(ctl("flow flush one").contains("2 rules gone"));
    create(drop);
    // The failsafe driver gives its rules to the tap that it stands for, and tells that one's words.
    let said = ctl("port attach fs raw vdev=net_failsafe0,dev(net_tap9,iface=two)");
    assert!(said.contains("(fs) attached"), "{said}");
    guest.run(
        "echo 1 >/proc/sys/net/ipv6/conf/two/disable_ipv6; ip address add 10.2.0.2/24 dev two; ip link set two up
         for to in 7 9; do ip neighbour add 10.2.0.$to lladdr 02:00:00:00:0a:09 dev two; done",
    );
    let pings = |to: &str| pings_through("fs", to);
    assert_eq!((pings("10.2.0.7"), pings("10.2.0.9")), (5, 5), "without a rule");
    let drop = "ingress pattern eth / ipv4 dst is 10.2.0.9 / end actions drop / end";
    assert!(ctl(&format!("flow validate fs {drop}")).contains("would take"));
    let fourth = create_on("fs", drop);
    assert!(ctl("flow list fs").contains(drop) && !ctl("flow list one").contains(drop));
    assert_eq!((pings("10.2.0.7"), pings("10.2.0.9")), (5, 0), "with the rule");
    refused(&format!("flow create fs {drop}"), "overlapping rules");
    refused(
        "flow create fs ingress pattern eth / end actions mark id 1 / end",
        "Failed to create flow on sub_device 0 (action 0)",
    );
    refused(&format!("flow query fs {fourth} count"), "the rule has no count action");
    assert!(ctl(&format!("flow destroy fs rule {fourth}")).contains("1 rule gone"));
    assert_eq!(pings("10.2.0.9"), 5, "without it again");
    // What either takes of the switch's own rules: none, in the tap's words.
    let shown: Value = serde_json::from_str(
        &guest.run("vswitch ctl --socket /run/vs.sock --json 'show offload capabilities'"),
    )
    .unwrap();
    for port in shown["ports"].as_array().unwrap() {
        for answer in port["chains"].as_array().unwrap() {
            let words = answer["words"].as_str().unwrap_or_default();
            let of_dpdk = words.contains("cannot match QPs");
            // No rule was asked for yet: the meter that it needs is refused.
            let of_meter = answer["rule"].is_null() && words.contains("Function not implemented");
            assert!(of_dpdk || of_meter || words.contains("transfer is not supported"), "{answer:#}");
        }
    }
    create_on("fs", drop);
    // A switch that ends gives its rules back; the tap goes, and the kernel says nothing.
    let ended = guest.stop(inner);
    assert!(!ended.output.contains("were left at stop"), "{}", ended.output);
    site.stop();
}
