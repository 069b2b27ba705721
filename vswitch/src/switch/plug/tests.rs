//! Ports that come and go at odd moments. DPDK runs once per process, so each test wants a process of its own.

use super::*;
use crate::switch::ahead::Next;

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

/// Another device for the vNIC: one that cannot be opened, or one that can.
fn replace(switch: &mut Switch, attempt: u64, port: &str) -> Result<(), SwitchError> {
    switch.begin_try(attempt);
    switch.edit(|config| {
        let text = CONFIG.replacen("{ kind = \"null\" }", port, 1);
        let vnics = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}")).vnics;
        config.vnics = vnics;
        Ok(())
    })
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
