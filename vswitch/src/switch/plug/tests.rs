//! Ports that come and go at odd moments. DPDK runs once per process, so each test wants a process of its own.

mod silent;

use super::*;
use crate::switch::ahead::Next;
use crate::switch::testing;

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
    testing::start(CONFIG)
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
    switch.carry_out(&plan, Missing::Refused);
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

#[test]
fn what_other_hosts_say_neither_waits_for_ports_nor_takes_any_away() {
    let mut switch = start();
    let file = std::env::temp_dir().join(format!("plug-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    // A file is where the socket of a vNIC is to be: no absence, and somebody has to mend it.
    let text = format!("{{ kind = \"vhost-user\", path = \"{}\" }}", file.display());
    let wanted = with_port(&text);
    let wanted = crate::switch::ports::wanted(&wanted)["late"].clone();
    let config = switch.config.clone();
    switch.take_out(&["late".into()], &config).unwrap();
    switch.ports.request(&switch.eal, &switch.pool, &switch.mempool, "late", &wanted);
    let asked = Instant::now();
    switch
        .edit_heard(Vec::new(), |config| {
            config.vpcs[0].flood = true;
            Ok(())
        })
        .unwrap();
    assert!(asked.elapsed() < GRACE / 2, "{:?}", asked.elapsed());
    turn_until(&mut switch, "it is down", |switch| {
        let absent = switch.ports.absent().find(|(name, _)| *name == "late");
        absent.is_some_and(|(_, absent)| absent.reason.is_some())
    });
    // And with a port of its own that comes.
    switch.ports.request(&switch.eal, &switch.pool, &switch.mempool, "late", &wanted);
    switch
        .edit_heard(Vec::new(), |config| {
            let ring = r#"[[port]]
                name = "more"
                port = { kind = "ring", name = "more" }"#;
            config
                .ports
                .extend(Config::parse(ring, "test").unwrap_or_else(|errors| panic!("{errors}")).ports);
            Ok(())
        })
        .unwrap();
    assert!(switch.ports.index("more").is_some());
    assert!(switch.ports.absent().any(|(name, _)| name == "late"), "it is tried again");
    std::fs::remove_file(&file).unwrap();
    switch.stop();
}

#[test]
fn a_port_goes_before_another_comes_that_shares_a_device_with_it() {
    let port = |name: &str, spec: &str| {
        let text = format!("[[port]]\nname = \"{name}\"\nport = {spec}");
        let config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
        wanted(&config)
    };
    let nothing = BTreeMap::new();
    for (old, new, makes_room) in [
        ("{ kind = \"veth\", iface = \"v0\" }", "{ kind = \"veth\", iface = \"v0\", queues = 2 }", true),
        ("{ kind = \"veth\", iface = \"v0\" }", "{ kind = \"tap\", iface = \"v0\" }", true),
        ("{ kind = \"veth\", iface = \"v0\" }", "{ kind = \"veth\", iface = \"v1\" }", false),
        (
            "{ kind = \"pci\", address = \"01:00.0\" }",
            "{ kind = \"bond\", mode = \"802.3ad\", members = [{ kind = \"pci\", address = \"0000:01:00.0\" }, \
             { kind = \"pci\", address = \"01:00.1\" }] }",
            true,
        ),
    ] {
        let plan = PortChanges::between(&port("old", old), &port("new", new), &nothing);
        assert_eq!(
            (plan.first.len(), plan.last.len()),
            (usize::from(makes_room), usize::from(!makes_room)),
            "{new}"
        );
    }
}

/// Another device for the vNIC: one that cannot be opened, or one that can.
fn replace(switch: &mut Switch, attempt: u64, port: &str) -> Result<(), SwitchError> {
    switch.begin_try(attempt);
    switch.edit(|config| {
        config.vnics = with_port(port).vnics;
        Ok(())
    })
}

/// The networks with another port for the vNIC.
fn with_port(port: &str) -> Config {
    let text = CONFIG.replacen("{ kind = \"null\" }", port, 1);
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"))
}

fn turn_until(switch: &mut Switch, what: &str, is_so: impl Fn(&mut Switch) -> bool) {
    let began = Instant::now();
    while !is_so(switch) {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        switch.tend_ports(Instant::now());
        std::thread::sleep(TURN);
    }
}

#[test]
fn a_port_that_makes_room_is_out_until_the_change_is_carried_out_refused_or_given_up() {
    const BAD: &str = "{ kind = \"af-packet\", iface = \"nosuch0\" }";
    const GOOD: &str = "{ kind = \"ring\", name = \"room\" }";
    let mut switch = start();
    switch.tend_ports(Instant::now());
    let is_up = |switch: &mut Switch| {
        let index = switch.topology.vnic("late").unwrap().port;
        switch.ports.get(index).is_some_and(|port| port.running)
    };
    for refused in [true, false] {
        let before = switch.config();
        let attempt = switch.new_attempt();
        let tried = replace(&mut switch, attempt, BAD);
        assert!(matches!(tried, Err(SwitchError::NotYet)), "{tried:?}");
        assert_eq!(switch.end_try(), Next::TryAgain);
        assert!(!is_up(&mut switch) && switch.config() == before);
        let reason = switch.ports.absent().find(|(name, _)| *name == "late").unwrap().1.reason.clone();
        assert!(reason.unwrap().contains("makes room"));
        // Somebody else changes something meanwhile, and waits for nothing.
        let other = switch.new_attempt();
        switch.begin_try(other);
        let asked = Instant::now();
        switch
            .edit(|config| {
                config.vpcs[0].flood = refused;
                Ok(())
            })
            .unwrap();
        assert_ne!(switch.end_try(), Next::TryAgain);
        assert!(asked.elapsed() < GRACE && !is_up(&mut switch));
        if refused {
            turn_until(&mut switch, "it has failed", |switch| switch.is_ripe(attempt));
            let tried = replace(&mut switch, attempt, BAD);
            assert!(tried.unwrap_err().to_string().contains("nosuch0"));
            assert_eq!(switch.end_try(), Next::AnswerWhenClosed);
            turn_until(&mut switch, "it is answered", |switch| !switch.has_ports_under_way());
        } else {
            // Nobody asks any more.
            std::thread::sleep(Duration::from_secs(2));
            turn_until(&mut switch, "it is there again", is_up);
        }
        assert!(is_up(&mut switch), "the answer comes when it is there again");
    }
    let attempt = switch.new_attempt();
    assert!(replace(&mut switch, attempt, GOOD).is_err());
    assert_eq!(switch.end_try(), Next::TryAgain);
    turn_until(&mut switch, "the other one is open", |switch| switch.is_ripe(attempt));
    replace(&mut switch, attempt, GOOD).unwrap();
    assert_ne!(switch.end_try(), Next::TryAgain);
    assert!(is_up(&mut switch) && switch.ports.absent().next().is_none());
    switch.stop();
}

/// DPDK would never find it, and a reload would leave it `down` for ever.
#[test]
fn a_first_port_on_the_pci_bus_is_refused_while_the_switch_runs() {
    let mut switch = start();
    assert!(!switch.eal.uses_pci());
    let before = switch.config.clone();
    for missing in [Missing::Refused, Missing::Awaited, Missing::Later] {
        let result = switch.edit_and_place(Relocation::NONE, missing, Vec::new(), |config| {
            let nic = "[[port]]\nname = \"nic\"\nport = { kind = \"pci\", address = \"0000:01:00.0\" }\n";
            let ports = Config::parse(nic, "test").unwrap_or_else(|errors| panic!("{errors}")).ports;
            config.ports.extend(ports);
            Ok(())
        });
        assert!(
            matches!(&result, Err(SwitchError::NoPciBus { name, path }) if name == "nic" && path == "port[name=nic].port"),
            "{result:?}"
        );
        assert!(switch.config == before && switch.ports.absent().next().is_none());
    }
    switch.stop();
}
