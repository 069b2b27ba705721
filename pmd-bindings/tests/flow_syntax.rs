//! What rules print as, `dpdk-testpmd` reads: its own parser is fed every golden chain of the translator, and one rule for
//! each field of each item and for each action.
//!
//! The port there is a null port, which refuses every rule: a refusal shows that the rule was read to its end, "Bad
//! arguments" that it was not. On a DPDK without the item `ib_bth`, and only there, rules with it are bad arguments.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rules::{Action, Attr, Encap, FlowRule, Item, ItemKind, Modify, items};
use wire::{Ecn, MacAddr};

/// What testpmd made of commands; one that is done counts as neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answers {
    /// Rules that the port refused: read to their end.
    refused: usize,
    /// Commands that were not understood.
    bad: usize,
}

/// Feeds commands to testpmd.
fn testpmd(commands: &[String]) -> Answers {
    let prefix = format!("syntax-test-{}", std::process::id());
    let core = pmd::lcore::available()[0];
    let lcores = format!("(0,1)@{core}");
    // Children of a killed test end by their time limit.
    let mut child = Command::new("timeout")
        .args(["--kill-after=2", "60", "dpdk-testpmd", "--no-huge", "-m", "256", "--no-pci", "--no-shconf"])
        .args(["--no-telemetry", "--lcores", &lcores, "--file-prefix", &prefix, "--vdev", "net_null0", "--"])
        .args(["-i", "--total-num-mbufs=2048", "--no-lsc-interrupt"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = commands.iter().map(|command| format!("{command}\n")).collect::<String>() + "quit\n";
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let fed = feeder.join().unwrap();
    for base in ["/var/run/dpdk", "/run/dpdk"] {
        std::fs::remove_dir_all(Path::new(base).join(&prefix)).ok();
    }
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        fed.is_ok() && output.status.success(),
        "dpdk-testpmd ({}; package dpdk-dev, scripts/bootstrap installs it):\n{errors}",
        output.status
    );
    // Which stream gets what depends on the release.
    let lines = |words: &str| said.lines().chain(errors.lines()).filter(|line| line.contains(words)).count();
    Answers {
        refused: lines("Caught PMD error"),
        bad: lines("Bad arguments") + lines("Command not found") + lines("Ambiguous"),
    }
}

/// Whether this DPDK can match queue pairs.
fn has_ib_bth() -> bool {
    let version = pmd::Eal::dpdk_version();
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (23, 7)
}

/// Bytes that testpmd's prompt takes of a line (22.11).
const LINE: usize = 511;

/// A rule that is longer than a line, as two that are read by themselves: its pattern, and its actions.
fn within_a_line(command: &str) -> Vec<String> {
    if command.len() <= LINE {
        return vec![command.to_owned()];
    }
    let (pattern, actions) = command.split_once(" / end actions ").unwrap();
    let (attributes, _) = command.split_once(" pattern ").unwrap();
    vec![
        format!("{pattern} / end actions drop / end"),
        format!("{attributes} pattern eth / end actions {actions}"),
    ]
}

/// Feeds commands, and holds what testpmd makes of them against what it should.
#[track_caller]
fn read_by_testpmd(commands: &[String]) {
    let knows_queue_pairs = has_ib_bth();
    let bad = |command: &String| command.contains("ib_bth") && !knows_queue_pairs;
    let lines = commands.iter().flat_map(|command| within_a_line(command));
    let (unknown, known): (Vec<String>, Vec<String>) = lines.partition(bad);
    let rules = |commands: &[String]| commands.iter().filter(|command| command.starts_with("flow ")).count();
    let answers = testpmd(&known);
    if answers != (Answers { refused: rules(&known), bad: 0 }) {
        panic!("{} rules, {answers:?}; testpmd does not read: {:?}", rules(&known), first_bad(&known));
    }
    if !unknown.is_empty() {
        assert_eq!(testpmd(&unknown), Answers { refused: 0, bad: unknown.len() });
    }
}

/// A command that testpmd does not read, found by halves.
fn first_bad(commands: &[String]) -> Option<&String> {
    if testpmd(commands).bad == 0 {
        return None;
    }
    let (front, back) = commands.split_at(commands.len() / 2);
    if front.is_empty() { back.first() } else { first_bad(front).or_else(|| first_bad(back)) }
}

#[test]
fn testpmd_reads_every_golden_chain() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pipelines/tests/offload/golden");
    let mut commands = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        commands.extend(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned));
    }
    let with = |words: &str| commands.iter().filter(|command| command.contains(words)).count();
    assert!(with("flow create") > 100 && with("ib_bth") > 10 && with("set raw_encap") > 10);
    read_by_testpmd(&commands);
}

fn rule(pattern: Vec<Item>, actions: Vec<Action>) -> FlowRule {
    FlowRule { attr: Attr::transfer(1, 2), pattern, actions }
}

#[test]
fn testpmd_reads_every_field_of_every_item() {
    let mut commands = Vec::new();
    for kind in ItemKind::ALL {
        commands.push(rule(vec![Item::any(*kind)], vec![Action::Drop]).testpmd(0));
        for field in kind.fields() {
            // A colour is a word, and there are three; a mask of it is a number.
            let high = if kind == &ItemKind::MeterColor { 2 } else { field.ones() };
            let mut forms = vec![Item::with(*field, 0u8), Item::with(*field, high)];
            // testpmd takes the number of a tag register as a whole only.
            if *field != items::tag::INDEX {
                forms.push(Item::any(*kind).masked(*field, 1u8, 1));
            }
            if field.bits > 1 && ![items::tag::INDEX, items::meter_color::COLOR].contains(field) {
                forms.push(Item::any(*kind).between(*field, 1u8, field.ones()));
            }
            commands.extend(forms.into_iter().map(|item| rule(vec![item], vec![Action::Drop]).testpmd(0)));
        }
    }
    read_by_testpmd(&lines(&commands));
}

#[test]
fn testpmd_reads_every_action() {
    let mut outer = [0u8; 50];
    outer[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    outer[23] = 17;
    let mut tagged = [0u8; 74];
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    tagged[16..19].copy_from_slice(&[0x86, 0xdd, 0x60]);
    tagged[24] = 17;
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut actions = vec![
        Action::VxlanDecap,
        Action::RawEncap(Encap::new(&outer).unwrap()),
        Action::RawEncap(Encap::new(&tagged).unwrap()),
        Action::Count,
        Action::Age { timeout: 0xff_ffff },
        Action::Jump { group: 7 },
        Action::Meter { mtr_id: 9 },
        Action::set_tag(1, 0x8000_0005),
        Action::Mark { id: u32::MAX },
        Action::ModifyField(Modify::Ttl { ipv6: false }),
        Action::ModifyField(Modify::Ttl { ipv6: true }),
        Action::ModifyField(Modify::MacSrc(mac)),
        Action::ModifyField(Modify::MacDst(mac)),
        Action::RepresentedPort { port: 3 },
        Action::PortRepresentor { port: 3 },
        Action::PortId { id: 0 },
        Action::Queue { index: 3 },
        Action::Drop,
    ];
    actions.extend(Ecn::ALL.map(|ecn| Action::set_ecn(false, ecn)));
    actions.extend(Ecn::ALL.map(|ecn| Action::set_ecn(true, ecn)));
    let commands: Vec<_> = actions
        .into_iter()
        .map(|action| rule(vec![Item::with(items::eth::TYPE, 0x0800u16)], vec![action]).testpmd(0))
        .collect();
    read_by_testpmd(&lines(&commands));
}

fn lines(commands: &[String]) -> Vec<String> {
    commands.iter().flat_map(|command| command.lines()).map(str::to_owned).collect()
}
