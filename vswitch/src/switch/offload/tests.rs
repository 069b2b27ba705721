//! Ports on a device that stop, go and come back, and the rules about them. DPDK runs once per process, so each test wants a process of
//! its own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipelines::flow_key::FlowKey;
use pipelines::stage::key::CLASS_RC;
use wire::{L3, MacAddr, Qpn, protocol};
use worker::Mode;

use super::*;
use crate::switch::{Switch, SwitchError, testing};

const PATIENCE: Duration = Duration::from_secs(20);
const TWO: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// A switch with an uplink and two vNICs on these ports, all on this device; `more` is of `[offload]`.
fn start(device: &str, ports: [&str; 3], more: &str, plugins: Vec<std::path::PathBuf>) -> Switch {
    let [up, one, two] = ports;
    let text = format!(
        r#"{process}
[offload]
sync-every = "20ms"
retry-after = "50ms"
{more}
[[uplink]]
name = "up"
addresses = ["172.16.0.1/24"]
port = {up}
offload = "{device}"
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = {one}
offload = "{device}"
[[vnic]]
name = "two"
vpc = "red"
mac = "{TWO}"
vips = ["10.0.0.2"]
port = {two}
offload = "{device}"
"#,
        process = testing::process(8191)
    );
    let mut config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    config.eal.plugins = plugins;
    Switch::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// On the simulated e-switch.
fn simulated() -> Switch {
    let ring = |name: &str| format!("{{ kind = \"ring\", name = \"{name}\" }}");
    let ports = ["up", "one", "two"].map(ring);
    start("simulated", ports.each_ref().map(String::as_str), "", Vec::new())
}

/// On the e-switch of a NIC, through this API of rte_flow.
fn nic(engine: &str) -> Switch {
    nic_with(engine, "")
}

/// As [`nic`], with more arguments of its device.
fn nic_with(engine: &str, device: &str) -> Switch {
    let folder = std::env::temp_dir().join(format!("offload-{}", std::process::id()));
    let plugin = testdev::ESWITCH.build(&folder).map_err(|error| error.to_string()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let uplink = format!(r#"{{ kind = "raw", vdev = "net_eswitch0,legacy=1{device}" }}"#);
    let ports = [
        uplink.as_str(),
        r#"{ kind = "raw", vdev = "net_eswitch1,representor=0" }"#,
        r#"{ kind = "raw", vdev = "net_eswitch2,representor=1" }"#,
    ];
    start("rte-flow", ports, &format!("engine = \"{engine}\""), vec![plugin])
}

/// TCP from "one" to "two", which an operator wants in hardware.
fn pin(switch: &mut Switch) -> FlowSelector {
    pin_flow(switch, protocol::TCP, 0, 4000 << 16 | 80, None)
}

/// The same of a queue pair of "two".
fn pin_queue_pair(switch: &mut Switch) -> FlowSelector {
    pin_flow(switch, protocol::UDP, CLASS_RC, 4791, Some(Qpn::truncated(17)))
}

fn pin_flow(switch: &mut Switch, proto: u8, class: u8, ports: u64, qpn: Option<Qpn>) -> FlowSelector {
    let vnic = switch.topology().vnic("one").unwrap().index;
    let [from, to] = [1, 2].map(|host| u64::from(u32::from(Ipv4Addr::new(10, 0, 0, host))));
    let mac = TWO.0.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
    let kind = u64::from(proto) | u64::from(class) << 8 | (L3::Ipv4 as u64) << 16;
    let words = [from << 32 | to, 0, 0, 0, u64::from(vnic) << 32 | ports, mac << 16, kind];
    let selector = FlowSelector { key: FlowKey::from_words(words), qpn, source_port: None };
    let now = switch.pool().now().ns;
    switch.offload_mut().pin(selector, Some(Pin::Hardware), now);
    selector
}

/// Rules of the device, as it says itself.
fn rules_of_device(switch: &Switch) -> usize {
    if let Some((_, rules)) = switch.offload().device_stats() {
        return rules;
    }
    let Some(up) = switch.ports().index("up").and_then(|index| switch.ports().get(index)) else { return 0 };
    let counts = up.port.xstats().unwrap();
    counts.iter().find(|(name, _)| name == "flow_rules").map_or(0, |(_, rules)| *rules as usize)
}

fn turns(switch: &mut Switch, lasting: Duration) {
    let began = Instant::now();
    while began.elapsed() < lasting {
        switch.tend(Instant::now());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn until_in_hardware(switch: &mut Switch) {
    let began = Instant::now();
    while switch.offload().states().hardware != 1 {
        let flows: Vec<_> = switch.offload().flows().map(|flow| flow.status).collect();
        assert!(began.elapsed() < PATIENCE, "{flows:?}");
        turns(switch, Duration::from_millis(10));
    }
    assert!(rules_of_device(switch) > 0 && switch.offload().rules() == rules_of_device(switch));
}

#[track_caller]
fn assert_all_in_software(switch: &Switch) {
    assert_eq!((switch.offload().rules(), rules_of_device(switch)), (0, 0));
    assert_eq!(switch.offload().states().hardware, 0);
}

/// All ports are there, and the device has them under the numbers that they have now.
#[track_caller]
fn assert_all_on_device(switch: &Switch) {
    let there: BTreeMap<PortIndex, u16> =
        switch.ports().iter().map(|(index, port)| (index, port.port.id().get())).collect();
    let absent: Vec<_> = switch.ports().absent().collect();
    assert!(there.len() == 3 && absent.is_empty(), "{absent:?}");
    assert_eq!(switch.offload().ports().collect::<BTreeMap<_, _>>(), there);
}

/// Another process is to have the device, and ends at once.
fn comes_back(mut switch: Switch) {
    pin(&mut switch);
    for _ in 0..2 {
        until_in_hardware(&mut switch);
        switch.let_go_all(&[], || {}).unwrap();
        assert_eq!((switch.offload().rules(), switch.offload().device()), (0, None));
        assert_eq!(switch.offload().ports().count(), 0);
        switch.come_back(true).unwrap();
        assert_all_on_device(&switch);
    }
    until_in_hardware(&mut switch);
    switch.stop();
    assert_eq!((switch.offload().rules(), switch.offload().device()), (0, None));
}

#[test]
fn a_switch_that_comes_back_offloads_as_before_to_the_simulated_e_switch() {
    comes_back(simulated());
}

#[test]
fn a_switch_that_comes_back_offloads_as_before_through_queues() {
    comes_back(nic("async"));
}

#[test]
fn a_switch_that_comes_back_offloads_as_before_through_synchronous_calls() {
    comes_back(nic("sync"));
}

/// What is stopped is stopped in hardware, too, before whoever asked is answered, and stays so.
fn stops(mut switch: Switch) {
    type Step = fn(&mut Switch);
    let steps: [(Step, Step); 5] = [
        (|switch| switch.set_forwarding(false).unwrap(), |switch| switch.set_forwarding(true).unwrap()),
        (|switch| switch.set_mode(Mode::Io).unwrap(), |switch| switch.set_mode(Mode::Overlay).unwrap()),
        (|switch| switch.set_mode(Mode::Mac).unwrap(), |switch| switch.set_mode(Mode::Overlay).unwrap()),
        (|switch| switch.stop_port("one").unwrap(), |switch| switch.start_port("one").unwrap()),
        (|switch| switch.stop_port("two").unwrap(), |switch| switch.start_port("two").unwrap()),
    ];
    pin(&mut switch);
    for (stop, start) in steps {
        until_in_hardware(&mut switch);
        stop(&mut switch);
        assert_all_in_software(&switch);
        turns(&mut switch, Duration::from_millis(200));
        assert_all_in_software(&switch);
        assert_all_on_device(&switch);
        start(&mut switch);
    }
    // Also where an operator switches offload on meanwhile.
    until_in_hardware(&mut switch);
    switch.set_forwarding(false).unwrap();
    switch.offload_mut().switch(true);
    turns(&mut switch, Duration::from_millis(200));
    assert_all_in_software(&switch);
    switch.set_forwarding(true).unwrap();
    // And on the way through an upgrade that came to nothing.
    until_in_hardware(&mut switch);
    switch.stop_port("one").unwrap();
    switch.let_go_all(&[], || {}).unwrap();
    switch.come_back(true).unwrap();
    turns(&mut switch, Duration::from_millis(200));
    assert_all_in_software(&switch);
    switch.start_port("one").unwrap();
    until_in_hardware(&mut switch);
    // A mode that a worker does not take is in force nowhere: when it answers, all is as before.
    let silent = testing::stop_worker(&switch);
    assert!(switch.set_mode(Mode::Io).is_err());
    assert_all_in_software(&switch);
    drop(silent);
    assert_eq!(switch.mode(), Mode::Overlay);
    until_in_hardware(&mut switch);
    switch.stop();
}

#[test]
fn what_is_stopped_is_stopped_in_the_simulated_e_switch() {
    stops(simulated());
}

#[test]
fn what_is_stopped_is_stopped_in_a_nic() {
    stops(nic("async"));
}

/// Has the vNIC "one" in a security group, or in none: then its TCP may be in hardware.
fn guard(switch: &mut Switch, on: bool) -> Result<(), SwitchError> {
    switch.edit(|config| {
        let vpc = "[[vpc]]\nname = \"red\"\nvni = 100\n";
        let group = if on { "[[security-group]]\nname = \"web\"\nvpc = \"red\"\n" } else { "" };
        let groups = Config::parse(&format!("{vpc}{group}"), "test")?.security_groups;
        let mut one = (*config.vnics[0]).clone();
        one.security_groups = groups.iter().map(|group| group.name.clone()).collect();
        config.vnics[0] = Arc::new(one);
        config.security_groups = groups;
        Ok(())
    })
}

fn told(switch: &Switch, kind: &str) -> Vec<String> {
    let of_kind = switch.events().iter().filter(|event| event.kind == kind);
    of_kind.map(|event| event.text.clone()).collect()
}

/// Nobody waits for a NIC that does not answer, and nobody is told that it did.
#[test]
fn a_nic_that_does_not_answer_holds_up_no_change_and_is_told() {
    let silent = std::env::temp_dir().join(format!("silent-{}", std::process::id()));
    let mut switch = nic_with("async", &format!(",silent={}", silent.display()));
    pin(&mut switch);
    until_in_hardware(&mut switch);
    std::fs::write(&silent, "").unwrap();
    let began = Instant::now();
    let changed = guard(&mut switch, true);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let Err(SwitchError::NotWithdrawn { port, rules: 1.. }) = &changed else { panic!("{changed:?}") };
    assert_eq!(port, "up");
    assert!(changed.is_err_and(|error| error.is_in_force()));
    assert_eq!(switch.bare_config().security_groups.len(), 1);
    assert!(rules_of_device(&switch) > 0, "the device has its rules");
    let late = told(&switch, "offload-late");
    assert!(late.len() == 1 && late[0].contains("port up"), "{late:?}");
    // What asks for the same is told the same; what takes no rule away is done.
    assert!(matches!(switch.save_what_is_not(), Err(SwitchError::NotWithdrawn { .. })));
    switch.edit(|_| Ok(())).unwrap();
    turns(&mut switch, Duration::from_millis(200));
    assert_eq!((told(&switch, "offload-late").len(), told(&switch, "offload-let-go").len()), (1, 0));
    std::fs::remove_file(&silent).unwrap();
    let began = Instant::now();
    while told(&switch, "offload-let-go").is_empty() {
        assert!(began.elapsed() < PATIENCE);
        turns(&mut switch, Duration::from_millis(10));
    }
    assert_all_in_software(&switch);
    switch.save_what_is_not().unwrap();
    guard(&mut switch, false).unwrap();
    until_in_hardware(&mut switch);
    // What is stopped by hand is told of, too.
    std::fs::write(&silent, "").unwrap();
    let stopped = switch.stop_port("one");
    assert!(matches!(stopped, Err(SwitchError::NotWithdrawn { .. })), "{stopped:?}");
    std::fs::remove_file(&silent).unwrap();
    turns(&mut switch, Duration::from_millis(200));
    assert_all_in_software(&switch);
    switch.start_port("one").unwrap();
    until_in_hardware(&mut switch);
    guard(&mut switch, true).unwrap();
    assert_all_in_software(&switch);
    switch.stop();
}

/// A NIC that answers that it keeps the rules forwards as before: that is told as of one that does not answer.
fn keeps_rules(engine: &str) {
    let mut switch = nic_with(engine, ",keep=1");
    pin(&mut switch);
    let began = Instant::now();
    // It keeps those by which it was asked what it takes, too.
    while switch.offload().states().hardware != 1 {
        assert!(began.elapsed() < PATIENCE);
        turns(&mut switch, Duration::from_millis(10));
    }
    let changed = guard(&mut switch, true);
    let Err(SwitchError::NotWithdrawn { port, rules: 1.. }) = &changed else { panic!("{changed:?}") };
    assert_eq!(port, "up");
    assert!(rules_of_device(&switch) > 0, "the device has its rules");
    turns(&mut switch, Duration::from_millis(200));
    assert_eq!((told(&switch, "offload-late").len(), told(&switch, "offload-let-go").len()), (1, 0));
    assert!(matches!(switch.save_what_is_not(), Err(SwitchError::NotWithdrawn { .. })));
    switch.stop();
}

#[test]
fn a_change_is_not_acknowledged_while_a_nic_keeps_what_it_forbids() {
    keeps_rules("async");
}

#[test]
fn a_change_is_not_acknowledged_while_a_nic_keeps_what_it_forbids_through_synchronous_calls() {
    keeps_rules("sync");
}

/// One worker that is late with its samples keeps no flow in hardware.
#[test]
fn flows_leave_hardware_while_a_worker_does_not_answer() {
    let mut switch = simulated();
    let selector = pin(&mut switch);
    until_in_hardware(&mut switch);
    let now_ns = switch.pool().now().ns;
    switch.offload_mut().watch.tell(selector, 0, now_ns);
    let late = testing::stop_worker(&switch);
    switch.offload_mut().switch(false);
    turns(&mut switch, Duration::from_millis(200));
    assert_all_in_software(&switch);
    drop(late);
    switch.stop();
}

/// What RCFT has not admitted is never in hardware, whatever an operator wants, and goes there once it is admitted.
#[test]
fn a_queue_pair_that_is_not_admitted_stays_in_software() {
    let mut switch = simulated();
    let selector = pin_queue_pair(&mut switch);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        switch.tend(Instant::now());
        let made = switch.offload().device_stats().unwrap().0.created;
        assert_eq!((made, switch.offload().rules()), (0, 0));
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = switch.offload().flows().map(|flow| flow.status.to_string()).next();
    assert_eq!(status.as_deref(), Some("software: its queue pair is not admitted"));
    let (_, key) = queue_pair(&selector.key, Qpn::truncated(17)).unwrap();
    let (vnic, now) = (switch.topology().vnic("one").unwrap().index, switch.pool().now());
    switch.pool().rcft.ledger.admit(vnic, key.words(), now.tick, now.ns, || true);
    until_in_hardware(&mut switch);
    switch.stop();
}
