//! What drivers without rte_flow, or with little of it, say to rules: typed, with their words; and rules of a port that
//! stops.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{eal, in_own_namespace, pool, start, stop};
use pmd::{FlowDevice, FlowEngine, FlowQueues, Flows, Port, PortConfig, PortError};
use rules::{
    Action, Attr, BackEnd, Cause, Domain, FlowError, FlowRule, Item, ItemKind, Meter, RuleId, Where, items,
};

fn ingress(pattern: Vec<Item>, actions: Vec<Action>) -> FlowRule {
    FlowRule { attr: Attr { group: 0, priority: 0, domain: Domain::Ingress }, pattern, actions }
}

fn simple() -> FlowRule {
    ingress(vec![Item::any(ItemKind::Eth), Item::with(items::ipv4::DST, 0x0a00_0001u32)], vec![Action::Drop])
}

const METER: Meter = Meter { cir: 1_000_000, cbs: 10_000, eir: 0, ebs: 0 };

#[test]
fn drivers_without_rte_flow_say_so_to_every_call() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    for (name, args) in [("net_ring0", ""), ("net_null0", ""), ("net_pcap0", "iface=lo")] {
        let (port, rx, tx) = start(Port::attach(&eal, name, args).unwrap(), &PortConfig::default(), &pool);
        let mut flows = port.flows();
        let unsupported = |what: &str, result: Result<(), FlowError>| {
            let error = result.unwrap_err();
            assert_eq!(error.cause, Cause::Unsupported, "{name}: {what}: {error}");
            assert!(error.message.contains("not implemented"), "{name}: {what}: {error}");
        };
        unsupported("validate", flows.validate(&simple()));
        unsupported("create", flows.create(&simple()).map(|_| ()));
        unsupported("flush", flows.flush());
        unsupported("aged", flows.aged().map(|_| ()));
        unsupported("share", flows.share(simple().attr, Action::Count).map(|_| ()));
        unsupported("flow limits", port.flow_limits().map(|_| ()));
        let error = flows.set_meter(1, Some(METER)).unwrap_err();
        assert_eq!(error.cause, Cause::Unsupported, "{name}: {error}");
        assert_eq!(flows.set_meter(1, None).unwrap_err().cause, Cause::Gone);
        // What is not there is told without asking the driver.
        assert_eq!(flows.destroy(RuleId(1)).unwrap_err().cause, Cause::Gone);
        assert_eq!(flows.query(RuleId(1)).unwrap_err().cause, Cause::Gone);
        assert_eq!(flows.share(simple().attr, Action::Drop).unwrap_err().cause, Cause::Invalid);
        unsupported("transfer proxy", flows.transfer_proxy().map(|_| ()));
        let back_end: &mut dyn BackEnd = &mut flows;
        assert_eq!(back_end.create(&simple()).unwrap_err().cause, Cause::Unsupported);
        let mut completed = Vec::new();
        back_end.completed(&mut completed);
        assert!(completed.is_empty());
        stop(port, rx, tx).detach().unwrap();
    }
}

#[test]
fn a_stopped_port_takes_no_rules_through_an_old_handle() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, rx, tx) = start(Port::attach(&eal, "net_null0", "").unwrap(), &PortConfig::default(), &pool);
    let flows = port.flows();
    let port = stop(port, rx, tx);
    let error = flows.validate(&simple()).unwrap_err();
    assert_eq!((error.cause, error.message.as_str()), (Cause::NoDevice, "the port was stopped"));
    for error in
        [flows.flush().unwrap_err(), flows.aged().unwrap_err(), flows.set_meter(1, Some(METER)).unwrap_err()]
    {
        assert_eq!(error.cause, Cause::NoDevice);
    }
    // Started again it is another port to that handle.
    let (port, rx, tx) = start(port, &PortConfig::default(), &pool);
    assert_eq!(flows.validate(&simple()).unwrap_err().cause, Cause::NoDevice);
    assert_eq!(port.flows().validate(&simple()).unwrap_err().cause, Cause::Unsupported);
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn a_port_without_flow_queues_does_not_start_with_them() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let queues = FlowQueues { queues: 2, depth: 64, counters: 10, ages: 0, meters: 0, rules_per_table: 100 };
    let config = PortConfig { flow_engine: FlowEngine::Async(queues), ..PortConfig::default() };
    let port = Port::attach(&eal, "net_null0", "").unwrap();
    let (port, error) = port.start(&config, &pool).map(|_| ()).unwrap_err();
    let PortError::FlowQueues { name, error } = error else { panic!("{error}") };
    assert_eq!((name.as_str(), error.cause), ("net_null0", Cause::Unsupported));
    let (port, rx, tx) = start(port, &PortConfig::default(), &pool);
    let error = port.flow_queue(0).unwrap_err();
    assert_eq!(error.cause, Cause::Invalid);
    assert!(error.message.contains("not started with a flow queue 0"), "{error}");
    stop(port, rx, tx).detach().unwrap();
}

/// A device made of another one: its rules go to that one, and the words of both come back.
#[test]
fn failsafe_hands_on_what_its_device_says() {
    if in_own_namespace("failsafe_hands_on_what_its_device_says") {
        return;
    }
    let eal = eal();
    let pool = pool(&eal, 4095);
    let attach = |name, args| start(Port::attach(&eal, name, args).unwrap(), &PortConfig::default(), &pool);
    let (port, rx, tx) = attach("net_failsafe0", "dev(net_ring0)");
    let flows = port.flows();
    let error = flows.validate(&simple()).unwrap_err();
    assert_eq!(error.cause, Cause::Unsupported);
    assert!(error.message.contains("not implemented; DPDK says: "), "{error}");
    assert!(error.message.contains("sub_device 0"), "{error}");
    assert_eq!(flows.create(&simple()).unwrap_err().cause, Cause::Unsupported);
    // Rules do not stray to another port: this one takes transfer rules itself.
    assert_eq!(flows.transfer_proxy().unwrap(), port.id());
    stop(port, rx, tx).detach().unwrap();

    let (port, rx, tx) = attach("net_failsafe1", "dev(net_tap0,iface=tapf)");
    let flows = port.flows();
    flows.validate(&simple()).unwrap();
    let error = flows.validate(&marks()).unwrap_err();
    assert_eq!((error.cause, error.at), (Cause::Unsupported, Where::Action(0)));
    assert!(error.message.contains("action not supported"), "{error}");
    give_and_take(&flows);
    stop(port, rx, tx).detach().unwrap();
}

fn marks() -> FlowRule {
    ingress(vec![Item::any(ItemKind::Eth)], vec![Action::Mark { id: 1 }])
}

/// A rule that a tap takes goes in, out, and in again for the flush; or the kernel's refusal is told.
fn give_and_take(flows: &Flows) {
    match flows.create(&simple()) {
        Ok(first) => {
            assert_eq!(flows.rules(), [first]);
            flows.destroy(first).unwrap();
            assert_eq!(flows.destroy(first).unwrap_err().cause, Cause::Gone);
            let second = flows.create(&simple()).unwrap();
            assert_ne!(first, second, "numbers are not used twice");
            flows.flush().unwrap();
        }
        Err(error) => {
            assert_eq!((error.cause, error.at), (Cause::Exists, Where::Handle));
            assert!(error.message.contains("Kernel too old for flower support"), "{error}");
            assert!(error.message.contains("Kernel refused TC filter rule creation"), "{error}");
            flows.flush().unwrap();
        }
    }
    assert_eq!(flows.rules(), []);
}

#[test]
fn a_tap_says_which_part_of_a_rule_it_refuses() {
    if in_own_namespace("a_tap_says_which_part_of_a_rule_it_refuses") {
        return;
    }
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, rx, tx) =
        start(Port::attach(&eal, "net_tap0", "iface=tapf").unwrap(), &PortConfig::default(), &pool);
    let flows = port.flows();
    flows.validate(&simple()).unwrap();
    let ttl = Item::with(items::ipv4::TTL, 3u8);
    let refused = [
        (
            ingress(vec![Item::any(ItemKind::Eth), Item::any(ItemKind::Vxlan)], vec![Action::Drop]),
            Where::Item(1),
            "item",
        ),
        (ingress(vec![Item::any(ItemKind::Eth), ttl], vec![Action::Drop]), Where::Item(1), "item"),
        (marks(), Where::Action(0), "action"),
        (FlowRule { attr: Attr::transfer(0, 0), ..simple() }, Where::AttrTransfer, "transfer"),
    ];
    for (rule, at, what) in refused {
        let (validate, create) = (flows.validate(&rule).unwrap_err(), flows.create(&rule).unwrap_err());
        assert_eq!(validate, create, "{rule}");
        assert_eq!((create.cause, create.at), (Cause::Unsupported, at), "{rule}: {create}");
        assert!(
            create.message.contains(what) && create.message.contains("not supported"),
            "{rule}: {create}"
        );
    }
    give_and_take(&flows);
    stop(port, rx, tx).detach().unwrap();
}

/// Ports of drivers that know of no e-switch: the driver of the one that takes the rules refuses them.
#[test]
fn a_device_asks_the_driver_where_no_e_switch_is_known() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let attach = |name| start(Port::attach(&eal, name, "").unwrap(), &PortConfig::default(), &pool);
    let (first, first_rx, first_tx) = attach("net_ring0");
    let (second, rx, tx) = attach("net_null0");
    assert_eq!(first.info().unwrap().switch_domain, None);
    let mut device = FlowDevice::new(&first).unwrap();
    assert!(device.proxy() == first.id() && !device.is_queued() && !device.has(second.id().get()));
    device.join(&second).unwrap();
    assert!(device.has(first.id().get()) && device.has(second.id().get()));

    let transfer = FlowRule { attr: Attr::transfer(0, 0), ..simple() };
    for rule in [simple(), transfer] {
        assert_eq!(device.validate(&rule).unwrap_err().cause, Cause::Unsupported);
        assert_eq!(device.create(&rule).unwrap_err().cause, Cause::Unsupported);
    }
    assert_eq!(device.set_meter(1, Some(METER)).unwrap_err().cause, Cause::Unsupported);
    assert_eq!(device.destroy(RuleId(1)).unwrap_err().cause, Cause::Gone);
    let (mut completed, mut aged) = (Vec::new(), Vec::new());
    device.completed(&mut completed);
    device.aged(&mut aged);
    assert!(completed.is_empty() && aged.is_empty() && device.is_empty());
    // It has no rules: there is nothing that could not be taken away, and nothing that the driver must be asked for.
    device.flush().unwrap();

    device.leave(second.id().get());
    assert!(!device.has(second.id().get()));
    stop(second, rx, tx).detach().unwrap();
    // The port that takes the rules goes first: all of it is refused from then on, and the device can still be dropped.
    let first = stop(first, first_rx, first_tx);
    let error = device.create(&simple()).unwrap_err();
    assert_eq!((error.cause, error.message.as_str()), (Cause::NoDevice, "the port was stopped"));
    drop(device);
    first.detach().unwrap();
}

#[test]
fn a_device_over_a_tap_takes_away_its_own_rules_only() {
    if in_own_namespace("a_device_over_a_tap_takes_away_its_own_rules_only") {
        return;
    }
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, rx, tx) =
        start(Port::attach(&eal, "net_tap0", "iface=tapf").unwrap(), &PortConfig::default(), &pool);
    let flows = port.flows();
    let mut device = FlowDevice::new(&port).unwrap();
    let transfer = FlowRule { attr: Attr::transfer(1, 0), ..simple() };
    let error = device.create(&transfer).unwrap_err();
    assert_eq!((error.cause, error.at), (Cause::Unsupported, Where::AttrTransfer), "{error}");
    // Where the kernel has the classifier: one rule of the device and one by hand, which outlives it.
    let other = ingress(
        vec![Item::any(ItemKind::Eth), Item::with(items::ipv4::DST, 0x0a00_0002u32)],
        vec![Action::Drop],
    );
    match device.create(&simple()) {
        Ok(rule) => {
            let by_hand = flows.create(&other).unwrap();
            assert!(by_hand > rule && device.len() == 1);
            let mut completed = Vec::new();
            device.completed(&mut completed);
            assert_eq!(completed, [(rule, Ok(()))]);
            // It does not count: the device is not asked.
            assert_eq!(device.query(rule).unwrap_err().cause, Cause::Invalid);
            device.flush().unwrap();
            assert_eq!(flows.rules(), [by_hand]);
            let again = device.create(&simple()).unwrap();
            assert!(again > by_hand, "numbers are not used twice");
            drop(device);
            assert_eq!(flows.rules(), [by_hand]);
            flows.flush().unwrap();
        }
        Err(error) => {
            assert!(error.message.contains("Kernel too old for flower support"), "{error}");
            assert!(device.is_empty() && flows.rules().is_empty());
        }
    }
    stop(port, rx, tx).detach().unwrap();
}
