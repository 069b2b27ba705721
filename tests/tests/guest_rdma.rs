//! The switch on a machine with an RDMA device: it runs inside a guest, where soft-RoCE is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::time::Duration;
use tests::guest::{self, Site, site};
use tests::lab::Lab;
use tests::{Family, Workdir};

/// DPDK's drivers that the switch in the guest loads by name: buffers, and a port that needs nothing.
const DRIVERS: [&str; 2] = ["librte_mempool_ring", "librte_net_null"];

fn config(plugins: &[String]) -> String {
    format!(
        r#"
[eal]
huge-pages = "never"
memory = "128MiB"
mbufs = 4096
plugins = {plugins:?}
[api]
socket = "/run/vs.sock"
[workers]
cores = [0]
idle = "sleep"
[rcft]
entries = 65536
quota = "25% of rxe0"
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:0a:01"
vips = ["10.0.0.1"]
qp-quota = 7
port = {{ kind = "null" }}
"#
    )
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_rdma_devices_are_shown_where_there_is_one() {
    if !guest::can_run() {
        return;
    }
    let dir = Workdir::new("inner");
    let (parts, plugins) = guest::switch_parts(&dir, &DRIVERS);
    let image = guest::image_with(&parts, &dir.path().join("initrd.cpio"));
    let [mut a, ..] = site::two_tenants();
    a.memory = 768;
    let site = Site::start_with(Lab::new(Family::V4), &site::vpcs(""), &[a], &[], &image);
    let guest = site.guest("a");
    guest.run(&format!("cat >/tmp/vs.toml <<'END'\n{}END", config(&plugins)));
    let inner = guest.start("exec vswitch run --config /tmp/vs.toml");
    let asked = "vswitch ctl --socket /run/vs.sock 'show workers' >/dev/null 2>&1";
    if !guest.until_or_end(&inner, asked, Duration::from_secs(90)) {
        panic!("the switch in the guest ended:\n{}", guest.finish(inner, guest::SCRIPT).output);
    }
    let ask =
        |command: &str| guest.run(&format!("vswitch ctl --socket /run/vs.sock --json '{command}' 2>&1"));
    let text = guest.run("vswitch ctl --socket /run/vs.sock 'show rdma devices' 2>&1");
    eprintln!("{text}");
    let answer: Value = serde_json::from_str(&ask("show rdma devices")).unwrap();
    let devices = answer["devices"].as_array().unwrap();
    let [device] = &devices[..] else { panic!("one device: {answer:#}") };
    assert_eq!(device["name"], "rxe0", "{answer:#}");
    // What libibverbs says of it, in other words.
    let info = guest.run("ibv_devinfo -v -d rxe0");
    let said = |field: &str| {
        let line = info.lines().find(|l| l.trim().starts_with(&format!("{field}:")));
        line.unwrap_or_else(|| panic!("ibv_devinfo has no {field}:\n{info}"))
            .split_once(':')
            .unwrap()
            .1
            .trim()
            .to_owned()
    };
    let max_qp: u64 = said("max_qp").parse().unwrap();
    assert_eq!(device["limits"]["max-qp"], max_qp, "{answer:#}");
    assert_eq!(device["node-guid"], said("node_guid"), "{answer:#}");
    assert_eq!(device["firmware"], said("fw_ver"), "{answer:#}");
    let port = &device["ports"][0];
    assert_eq!((port["port"].as_i64(), port["state"].as_str()), (Some(1), Some("ACTIVE")), "{answer:#}");
    assert_eq!(port["active-mtu"], 1024, "{answer:#}");
    // Its GIDs: link-local, the vNIC's VIP, and an address that is no VIP of the switch in the guest.
    let gids = port["gids"].as_array().unwrap();
    let of = |address: &str| {
        gids.iter().find(|g| g["ip"] == address).unwrap_or_else(|| panic!("no GID {address}: {answer:#}"))
    };
    assert!(of("10.0.0.1")["vnics"].to_string().contains("one"), "{answer:#}");
    assert_eq!(of("fd00:1::1")["vnics"].as_array().map(Vec::len), Some(0), "{answer:#}");
    assert_eq!(answer["gids-without-vip"], 1, "{answer:#}");
    // A quarter of what the device offers, as far as the table goes.
    let quota = &answer["quotas"][0];
    assert_eq!(quota["quota"], "25% of rxe0", "{answer:#}");
    assert_eq!(quota["queue-pairs"].as_u64(), Some((max_qp / 4).min(65536)), "{answer:#}");
    guest.run("rdma link del rxe0");
    let answer: Value = serde_json::from_str(&ask("show rdma devices")).unwrap();
    assert_eq!(answer["devices"].as_array().map(Vec::len), Some(0), "{answer:#}");
    let ended = guest.stop(inner);
    assert!(ended.ok(), "the switch in the guest ended with {}:\n{}", ended.status, ended.output);
    site.stop();
}
