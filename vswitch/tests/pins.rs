//! Where an operator wants flows is forgotten with the vNICs and the VPCs that they are of: whoever gets their numbers next finds
//! nothing of it.
//!
//! DPDK runs once per process, so each test wants a process of its own (`cargo nextest`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::HashSet;
use std::sync::Arc;

use pipelines::flow_key::{FlowKey, Scope};
use pipelines::offload::manager::Pin;
use pipelines::offload::translate::FlowSelector;
use vswitch::config::{Config, Name};
use vswitch::switch::Switch;

const NETWORKS: &str = r#"
[[vpc]]
name = "red"
vni = 100
[[vpc]]
name = "blue"
vni = 200
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[subnet]]
vpc = "blue"
prefix = "10.0.0.0/24"
[[vnic]]
name = "goes"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = { kind = "null" }
[[vnic]]
name = "stays"
vpc = "red"
mac = "02:00:00:00:00:02"
vips = ["10.0.0.2"]
port = { kind = "null" }
"#;

fn start() -> Switch {
    let core = pmd::lcore::available().into_iter().last().unwrap_or(0);
    let text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"128MiB\"\nfile-prefix = \"pins-{}\"\nmbufs = 4095\n\
         [workers]\ncores = [{core}]\nidle = \"sleep\"\n{NETWORKS}",
        std::process::id()
    );
    let config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    Switch::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// TCP to this machine of the network.
fn flow(scope: Scope, to: u64) -> FlowSelector {
    const IPV4: u64 = wire::L3::Ipv4 as u64;
    let mut words = [0; 7];
    words[0] = 0x0a00_0009 << 32 | 0x0a00_0000 | to;
    words[4] = u64::from(scope.raw()) << 32 | 1000 << 16 | 80;
    words[6] = IPV4 << 16 | u64::from(wire::protocol::TCP);
    FlowSelector { key: FlowKey::from_words(words), qpn: None, source_port: None }
}

/// Nothing but pins makes flows known here.
fn pinned(switch: &Switch) -> HashSet<FlowSelector> {
    switch.offload().flows().map(|flow| flow.selector).collect()
}

fn vnic(switch: &Switch, name: &str) -> Scope {
    let vnic = switch.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name);
    Scope::Vnic(vnic.unwrap().index)
}

fn vpc(switch: &Switch, name: &str) -> Scope {
    let vpc = switch.snapshot().vpcs.iter().flatten().find(|vpc| vpc.name == name);
    Scope::Vpc(vpc.unwrap().index)
}

#[test]
fn pins_go_with_their_vnics_and_their_networks() {
    let mut switch = start();
    let (own, other) = (flow(vnic(&switch, "goes"), 9), flow(vnic(&switch, "stays"), 9));
    let [to_own, to_other] = [1, 2].map(|to| flow(vpc(&switch, "red"), to));
    let elsewhere = flow(vpc(&switch, "blue"), 1);
    let all = [own, other, to_own, to_other, elsewhere];
    for pin in [Pin::Hardware, Pin::Software] {
        all.iter().for_each(|selector| switch.offload_mut().pin(*selector, Some(pin), 0));
    }
    assert_eq!(pinned(&switch), HashSet::from(all));
    let mut gone = None;
    let remove = |config: &mut Config| {
        gone = Some(config.vnics.remove(0));
        Ok(())
    };
    switch.edit(remove).unwrap();
    assert_eq!(pinned(&switch), HashSet::from([other, to_other, elsewhere]));
    // Back, or another one in its place.
    let add = |config: &mut Config| {
        config.vnics.extend(gone.take());
        Ok(())
    };
    switch.edit(add).unwrap();
    assert_eq!(pinned(&switch), HashSet::from([other, to_other, elsewhere]));
    let end = |config: &mut Config| {
        let name: Name = config.vpcs[1].name.clone();
        config.vpcs.retain(|vpc| vpc.name != name);
        config.subnets.retain(|subnet| subnet.vpc != name);
        Ok(())
    };
    switch.edit(end).unwrap();
    assert_eq!(pinned(&switch), HashSet::from([other, to_other]));
    switch.stop();
}

#[test]
fn pins_do_not_go_with_a_vnic_into_another_network() {
    let mut switch = start();
    let (own, other) = (flow(vnic(&switch, "goes"), 9), flow(vnic(&switch, "stays"), 9));
    [own, other].iter().for_each(|selector| switch.offload_mut().pin(*selector, Some(Pin::Hardware), 0));
    let change = |config: &mut Config| {
        let mut vnic = (*config.vnics[0]).clone();
        vnic.vpc = config.vpcs[1].name.clone();
        config.vnics[0] = Arc::new(vnic);
        Ok(())
    };
    switch.edit(change).unwrap();
    assert_eq!(pinned(&switch), HashSet::from([other]));
    switch.stop();
}
