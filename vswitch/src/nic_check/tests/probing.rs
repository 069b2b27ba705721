//! What is said of a device by whoever asks it: a switch that runs with it, or a process that may die.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use pipelines::offload::sim::{Eswitch, EswitchConfig};
use vswitch_api::v1;

use super::tree::{DEVICE, PCI, Tree, finding};
use crate::capabilities::{self, CapabilityAnswer};
use crate::nic_check::probe::running::{self, NotAsked};
use crate::nic_check::probe::{Probe, Probed, Program};
use crate::nic_check::{Device, FindingState, HostView};

/// The ports of a switch: the device, and a representor on it.
fn ports() -> Vec<v1::PortInfo> {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    let port = |id: u32, kind: &str, device: &str| v1::PortInfo {
        id,
        kind: kind.into(),
        device: device.into(),
        ..v1::PortInfo::default()
    };
    vec![
        port(4, "representor", PCI),
        v1::PortInfo {
            rss_types: words(&["ipv4", "ipv4-udp"]),
            rss_levels: words(&["outermost", "innermost"]),
            ..port(7, "pci", PCI)
        },
        port(8, "raw", "net_x0"),
    ]
}

/// Probes a switch whose port 7 is a device like this.
fn probed(config: EswitchConfig) -> Probed {
    let report = capabilities::probe(&mut Eswitch::new(config), 7, 8).unwrap();
    let answers = |answers: &[CapabilityAnswer]| {
        let message = |answer: &CapabilityAnswer| v1::CapabilityAnswer {
            name: answer.name.into(),
            taken: answer.taken.is_ok(),
            words: answer.taken.as_ref().err().map(|(_, error)| error.to_string()),
            rule: None,
        };
        answers.iter().map(message).collect()
    };
    let port = v1::PortCapabilities {
        features: answers(&report.features),
        chains: answers(&report.chains),
        ..v1::PortCapabilities::default()
    };
    let ports = ports();
    let asked = running::port_on(&ports, PCI).unwrap();
    assert_eq!(asked.id, 7);
    running::probed(asked, &v1::GetOffloadCapabilitiesResponse { dpdk: None, ports: vec![port] }).unwrap()
}

/// Asks by a shell's script where no switch is.
fn by_script(tree: &Tree, script: &str, patience: Duration) -> Result<Probed, String> {
    let host = HostView { root: tree.root.clone(), tools: Box::new(crate::nic_check::host::Installed) };
    let none = crate::config::Config::parse(
        &format!("[api]\nsocket = \"{}\"\n", tree.root.join("none.sock").display()),
        "test",
    );
    let device = Device::parse(PCI).unwrap();
    let program = Program::shell(script);
    Probe { host: &host, device: &device, config: Some(&none.unwrap()), socket: None, program, patience }
        .ask()
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn chains_are_told_as_the_device_answers() {
    let mut tree = Tree::fine();
    let all = tree.probed(&Ok(probed(EswitchConfig::default())));
    assert_eq!(
        (finding(&all, "chain tcp-encap").state, all.status()),
        (FindingState::Fine, 0),
        "{}",
        all.text()
    );
    assert_eq!(finding(&all, "asked by").value, "the switch that runs with it");
    let rss = &finding(&all, "queues, RSS").value;
    assert!(rss.ends_with("DPDK can hash ipv4 ipv4-udp; level outermost innermost"), "{rss}");
    let some = tree.probed(&Ok(probed(EswitchConfig { ib_bth: false, ..EswitchConfig::default() })));
    let refused = finding(&some, "chain rc-encap");
    assert!(refused.value.contains("this device does not match ib_bth"), "{refused:?}");
    assert_eq!(some.findings.len(), all.findings.len());
    tree.eswitch("legacy");
    assert_eq!(tree.probed(&Err("no switch".into())).status(), 1);
}

#[test]
fn a_switch_that_is_not_there_is_told_from_one_that_does_not_tell() {
    let tree = Tree::fine();
    let gone = running::ask(&tree.root.join("none.sock"), PCI);
    assert!(matches!(&gone, Err(NotAsked::NoSwitch(words)) if words.contains("none.sock")), "{gone:?}");
    let report = tree.probed(&Err("nobody".into()));
    assert_eq!((finding(&report, "chains").state, report.status()), (FindingState::Unknown, 2));
    let command = finding(&report, "chains").command.as_deref();
    assert_eq!(command, Some("vswitch nic check 0000:3b:00.0 --probe"));
    let nameless = v1::PortInfo { kind: "pci".into(), ..v1::PortInfo::default() };
    for answer in [vec![], vec![v1::PortInfo::default()], vec![nameless]] {
        let error = running::port_on(&answer, PCI).unwrap_err();
        assert!(
            matches!(&error, NotAsked::NotThere(words) if words.contains("has no port on 0000:3b:00.0")),
            "{error:?}"
        );
    }
    let none = v1::GetOffloadCapabilitiesResponse::default();
    let empty =
        v1::GetOffloadCapabilitiesResponse { dpdk: None, ports: vec![v1::PortCapabilities::default()] };
    for answer in [none, empty] {
        let error = running::probed(&ports()[1], &answer).unwrap_err();
        assert!(matches!(&error, NotAsked::Failed(words) if words.contains("another version")), "{error:?}");
    }
    let ports = ports();
    assert_eq!(running::port_on(&ports, "net_x0").unwrap().id, 8, "a virtual device by its whole name");
    let error = running::port_on(&ports, "net_x");
    assert!(matches!(error, Err(NotAsked::NotThere(_))), "and by nothing less: {error:?}");
}

#[test]
fn a_process_that_answers_is_believed() {
    let tree = Tree::fine();
    let answer =
        r#"{"answer":{"by":"me","chains":[["a",{"Ok":null}],["b",{"Err":"no"}]],"features":[],"rss":null}}"#;
    let script = format!("echo noise; echo '{{\"stage\":\"it ran\"}}'; echo '{answer}'; echo more");
    let told = by_script(&tree, &script, LONG).unwrap();
    assert_eq!(told.by, "me");
    assert_eq!(told.chains, [("a".into(), Ok(())), ("b".into(), Err("no".into()))]);
    // What comes after the answer does not take it away, and is told.
    let dies = by_script(&tree, &format!("{script}; kill -SEGV $$"), LONG).unwrap();
    assert!(dies.by.starts_with("me; then the driver's process died (signal: 11"), "{}", dies.by);
    let refused = by_script(&tree, r#"echo '{"refused":"no such device"}'"#, LONG);
    assert_eq!(refused, Err("no such device".into()));
}

#[test]
fn a_process_that_dies_hangs_or_talks_nonsense_is_told_and_ended() {
    let tree = Tree::fine();
    let opened = r#"echo '{"stage":"the device was opened"}'; echo one >&2; echo 'last \033words' >&2"#;
    let died = by_script(&tree, &format!("{opened}; kill -SEGV $$"), LONG).unwrap_err();
    assert!(died.starts_with("the driver's process died (signal: 11"), "{died}");
    assert!(died.contains(") while the device was opened; its last words: one | last"), "{died}");
    assert!(!died.contains(char::is_control), "{died:?}");
    for script in
        ["exit 0", "exit 3", "echo '{}'", "echo '[1'", "head -c 9000000 /dev/zero", "printf '\\377'"]
    {
        let nothing = by_script(&tree, script, LONG).unwrap_err();
        assert!(nothing.contains("while its process started"), "{script}: {nothing}");
    }
    // One that hangs, and one whose child hangs on with its output.
    for script in [format!("{opened}; exec sleep 60"), format!("{opened}; sleep 60 & wait")] {
        let began = Instant::now();
        let hung = by_script(&tree, &script, Duration::from_millis(300)).unwrap_err();
        assert!(hung.contains("s while the device was opened: its process was killed"), "{hung}");
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    }
    // Who shouts is heard no longer than who is silent.
    let began = Instant::now();
    by_script(&tree, "yes", Duration::from_millis(300)).unwrap_err();
    assert!(began.elapsed() < LONG);
}

#[test]
fn a_switch_that_is_named_is_the_only_one_asked() {
    let tree = Tree::fine();
    let host = HostView { root: tree.root.clone(), tools: Box::new(crate::nic_check::host::Installed) };
    let (device, socket) = (Device::parse(PCI).unwrap(), tree.root.join("named.sock"));
    let program = Program::shell("touch $0.started");
    let (config, patience) = (None, LONG);
    let error =
        Probe { host: &host, device: &device, config, socket: Some(&socket), program, patience }.ask();
    assert!(error.as_ref().unwrap_err().contains("named.sock"), "{error:?}");
}

#[test]
fn a_device_on_which_another_process_runs_dpdk_is_left_alone() {
    const REFUSED: &str = r#"echo '{"refused":"it ran"}'"#;
    let mut tree = Tree::fine();
    tree.write(&format!("{DEVICE}/infiniband_verbs/uverbs3/ibdev"), "mlx5_0");
    let fd = "proc/4194999/fd";
    tree.write(&format!("{fd}/.there"), "");
    symlink("/dev/infiniband/uverbs3", tree.root.join(fd).join("7")).unwrap();
    tree.write("proc/4194999/comm", "testpmd");
    // An RDMA application has the same file open.
    tree.write("proc/4194999/maps", "7f00-7f01 r-xp 0 0:0 0 /usr/lib/libibverbs.so.1");
    assert_eq!(by_script(&tree, REFUSED, LONG), Err("it ran".into()));
    let lines = "00-01 rw-p 0 0:0 0 [heap]\n".repeat(20_000);
    tree.write("proc/4194999/maps", &format!("{lines}7f00-7f01 r-xp 0 0:0 0 /usr/lib/librte_eal.so.23"));
    let held = by_script(&tree, REFUSED, LONG).unwrap_err();
    assert!(held.starts_with("process 4194999 (testpmd) runs DPDK on this device"), "{held}");
    // Another device of the same kind is nobody's business here.
    tree.remove(&format!("{fd}/7"));
    symlink("/dev/infiniband/uverbs4", tree.root.join(fd).join("7")).unwrap();
    assert_eq!(by_script(&tree, REFUSED, LONG), Err("it ran".into()));
}
