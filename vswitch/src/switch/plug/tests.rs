//! Ports that come and go at odd moments. DPDK runs once per process, so each test wants a process of its own.

use super::*;

const CONFIG: &str = r#"
[forward]
auto-start = false
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[vnic]]
name = "late"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = { kind = "null" }
[[port]]
name = "other"
port = { kind = "null" }
"#;

fn start() -> Switch {
    let core = pmd::lcore::available().into_iter().last().unwrap_or(0);
    let text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"128MiB\"\nfile-prefix = \"plug-{}\"\nmbufs = 4095\n\
         [workers]\ncores = [{core}]\nidle = \"sleep\"\n{CONFIG}",
        std::process::id()
    );
    let config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    Switch::start(config).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_port_that_comes_while_a_change_waits_for_another_to_go_is_used() {
    let mut switch = start();
    let config = switch.config.clone();
    let late = wanted(&config)["late"].clone();
    switch.take_out(&["late".into()], &config).unwrap();
    let of_vnic = |switch: &Switch| switch.topology.vnic("late").unwrap().port;
    assert_eq!(of_vnic(&switch), pipelines::snapshot::NO_PORT);
    // It comes back by itself, while "other" is taken out.
    switch.ports.request(&switch.eal, &switch.pool, &switch.mempool, "late", &late);
    let plan = PortChanges { added: BTreeMap::new(), first: Vec::new(), last: vec!["other".into()] };
    switch.carry_out(&plan, Missing::Refused).unwrap();
    assert!(switch.ports.index("other").is_none());
    let index = switch.ports.index("late").expect("it was taken in meanwhile");
    // No snapshot leads to it, and it is not polled: the change had published already.
    assert_eq!(of_vnic(&switch), pipelines::snapshot::NO_PORT);
    assert!(!switch.ports.get(index).unwrap().running);
    switch.tend_ports(Instant::now());
    assert_eq!(of_vnic(&switch), index);
    assert!(switch.ports.get(index).unwrap().running);
    assert!(switch.ports.fresh().next().is_none());
    switch.stop();
}
