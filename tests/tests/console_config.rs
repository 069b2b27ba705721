//! Bad config files: each error says where (line and column), what, and what to do; and a reload that fails changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{Family, Scene, Workdir, binary, process};

const GOOD: &str = r#"[[uplink]]
name = "up"
port = { kind = "ring" }
addresses = ["172.16.0.1/24"]
mtu = 1600
peers = ["172.16.0.2"]

[[vpc]]
name = "red"
vni = 100

[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"

[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:01:01"
vips = ["10.0.0.1"]
mtu = 1450
port = { kind = "tap", iface = "tap1" }
"#;

/// What `vswitch check` says to a config: Ok(output) or Err(error output).
fn check(text: &str) -> Result<String, String> {
    let dir = Workdir::new("check");
    let file = dir.write("bad.toml", text).display().to_string();
    let program = binary::release("vswitch").display().to_string();
    let output = process::try_run(&[&program, "check", "--config", &file]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// The line number (from 1) of the first line of a text that contains a word.
fn line_of(text: &str, word: &str) -> usize {
    text.lines().position(|l| l.contains(word)).unwrap() + 1
}

#[test]
fn console_check_accepts_a_good_config() {
    check(GOOD).unwrap();
}

#[test]
fn console_check_names_every_fault_with_its_place() {
    let vnic = "\n[[vnic]]\nname = \"two\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:02\"\nvips = [\"10.0.0.2\"]\nmtu = 1450\nport = { kind = \"tap\", iface = \"tap2\" }\n";
    let with = |more: &str| format!("{GOOD}{more}");
    // The config, a word on the line at fault (if the place is one line), words the error must say.
    let cases: Vec<(&str, String, Option<&str>, &[&str])> = vec![
        ("a broken line", with("\n[[broken\n"), Some("[[broken"), &[]),
        ("an unknown key", with("\n[nft]\nentriez = 5\n"), Some("entriez"), &["entriez", "entries"]),
        ("an unknown section", with("\n[nfft]\nentries = 5\n"), Some("[nfft]"), &["nfft"]),
        (
            "a VNI over 24 bits",
            GOOD.replace("vni = 100", "vni = 16777216"),
            Some("16777216"),
            &["16777216", "16777215"],
        ),
        ("a duplicate vNIC name", with(&vnic.replace("two", "one")), None, &["one"]),
        ("a duplicate MAC", with(&vnic.replace("01:02", "01:01")), None, &["02:00:00:00:01:01"]),
        ("a duplicate VIP", with(&vnic.replace("10.0.0.2", "10.0.0.1")), None, &["10.0.0.1"]),
        (
            "a VIP outside its subnets",
            with(&vnic.replace("10.0.0.2", "10.9.0.2")),
            Some("10.9.0.2"),
            &["10.9.0.2"],
        ),
        (
            "a group MAC",
            with(&vnic.replace("02:00:00:00:01:02", "03:00:00:00:01:02")),
            Some("03:00:00:00:01:02"),
            &["03:00:00:00:01:02"],
        ),
        ("an unknown VPC", with(&vnic.replace("\"red\"", "\"green\"")), Some("green"), &["green"]),
        ("one interface twice", with(&vnic.replace("tap2", "tap1")), None, &["tap1"]),
        (
            "overlapping subnets",
            with("\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.128/25\"\n"),
            Some("10.0.0.128/25"),
            &["10.0.0.128/25", "10.0.0.0/24"],
        ),
        (
            "a location for an unknown VNI",
            with(
                "\n[[location]]\nvni = 999\nvip = \"10.0.0.3\"\nmac = \"02:00:00:00:01:03\"\nvtep = \"172.16.0.2\"\n",
            ),
            Some("vni = 999"),
            &["999"],
        ),
        (
            "a VTEP that is our own",
            with(
                "\n[[location]]\nvni = 100\nvip = \"10.0.0.3\"\nmac = \"02:00:00:00:01:03\"\nvtep = \"172.16.0.1\"\n",
            ),
            Some("vtep = \"172.16.0.1\""),
            &["172.16.0.1"],
        ),
        (
            "an MTU that does not fit",
            GOOD.replace("mtu = 1600", "mtu = 1499"),
            None,
            &["1499", "1450", "1500"],
        ),
        ("a bare number for a unit", with("\n[nft]\nidle-timeout = 30\n"), Some("idle-timeout"), &["30s"]),
        ("no entries", with("\n[nft]\nentries = 0\n"), Some("entries = 0"), &["entries"]),
        ("a name of 10 kB", GOOD.replace("\"one\"", &format!("\"{}\"", "n".repeat(10_000))), None, &["63"]),
        ("an unknown port kind", GOOD.replace("\"tap\"", "\"tapp\""), Some("tapp"), &["tapp", "tap"]),
    ];
    for (what, text, at, words) in cases {
        let error = check(&text).expect_err(what);
        assert!(error.len() < 4_000, "{what}: the error is {} bytes long", error.len());
        assert!(error.contains("bad.toml:"), "{what}: the error does not say where: {error}");
        if let Some(at) = at {
            let place = format!("bad.toml:{}:", line_of(&text, at));
            assert!(error.contains(&place), "{what}: expected {place} in: {error}");
        }
        for word in words {
            assert!(error.contains(word), "{what}: the error does not say '{word}': {error}");
        }
    }
}

#[test]
fn console_check_tells_all_faults_at_once() {
    let text = GOOD.replace("vpc = \"red\"\nmac", "vpc = \"green\"\nmac").replace("mtu = 1600", "mtu = 1499");
    let error = check(&text).unwrap_err();
    assert!(error.contains("green") && error.contains("1499"), "{error}");
}

#[test]
fn console_a_missing_or_unreadable_config_is_named() {
    let program = binary::release("vswitch").display().to_string();
    for path in ["/nonexistent/vswitch.toml", "/"] {
        for verb in ["check", "run"] {
            let output = process::try_run(&[&program, verb, "--config", path]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error.contains(path), "{verb} {path}: {error}");
        }
    }
}

#[test]
fn console_a_port_that_does_not_exist_is_named_and_nothing_stays() {
    let netns = tests::Netns::new("noport");
    let dir = Workdir::new("noport");
    let socket = dir.path().join("vswitch.sock");
    let prefix = format!("vs{}-np", std::process::id());
    let text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"256MiB\"\nfile-prefix = \"{prefix}\"\n[api]\nsocket = \"{}\"\n{}",
        socket.display(),
        GOOD.replace("kind = \"ring\"", "kind = \"af-packet\", iface = \"nosuch0\"")
    );
    let file = dir.write("vswitch.toml", &text).display().to_string();
    let program = binary::release("vswitch").display().to_string();
    // It runs with what there is, until it is told to end.
    let output = netns.try_run(&["timeout", "--preserve-status", "8", &program, "run", "--config", &file]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && error.contains("nosuch0"), "{error}");
    assert!(!socket.exists());
    assert_eq!(netns.interfaces(), ["lo"]);
    assert!(!std::path::Path::new("/var/run/dpdk").join(&prefix).exists());
}

#[test]
fn console_a_file_in_the_socket_s_place_is_left_alone() {
    let netns = tests::Netns::new("file");
    let dir = Workdir::new("file");
    let socket = dir.write("vswitch.sock", "precious");
    let prefix = format!("vs{}-fs", std::process::id());
    let text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"256MiB\"\nfile-prefix = \"{prefix}\"\n[api]\nsocket = \"{}\"\n{GOOD}",
        socket.display()
    );
    let file = dir.write("vswitch.toml", &text).display().to_string();
    let program = binary::release("vswitch").display().to_string();
    let output = netns.try_run(&[&program, "run", "--config", &file]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("vswitch.sock"), "{error}");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn console_a_failed_load_changes_nothing() {
    let mut scene = Scene::start(Family::V4, "", "");
    let before = scene.daemon.ctl("show vlt");
    // The first line is fine, the second is not: the switch says which, and the console stops there.
    let file = scene
        .daemon
        .dir()
        .write("commands", "show workers\nvlt set 999 10.0.0.3 mac 02:00:00:00:01:03 vtep 172.16.0.2\nvlt set 100 10.0.0.4 mac 02:00:00:00:01:04 vtep 172.16.0.2\n");
    let error = scene.daemon.try_ctl(&format!("load {}", file.display())).unwrap_err();
    assert!(error.contains("999") && error.contains('2'), "{error}");
    assert_eq!(scene.daemon.ctl("show vlt"), before);
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}
