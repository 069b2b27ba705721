//! The table of upstream cases (`tests/CONFORMANCE.md`) is whole: every suite is there, every case that it lists has one row, and
//! a row names tests that exist and run, or says why the case does not apply.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The suites that the table must have, as its headings call them, and how many cases each has upstream.
const SUITES: [(&str, usize); 14] = [
    ("Linux: vxlan_bridge_1d", 37),
    ("Linux: vxlan_asymmetric", 5),
    ("Linux: q_in_vni", 3),
    ("Linux: dual_vxlan_bridge", 2),
    ("Linux: vxlan_reserved", 7),
    ("Open vSwitch: tunnel.at", 15),
    ("Open vSwitch: tunnel-push-pop.at, tunnel-push-pop-ipv6.at", 19),
    ("Open vSwitch: system-traffic.at", 6),
    ("Open vSwitch: dpif-netdev.at", 12),
    ("VPP: test_vxlan", 14),
    ("VPP: test_vxlan6", 11),
    ("OpenConfig: TE-16.1", 3),
    ("RFC 6040: matrix", 20),
    ("Checksums: matrix", 36),
];
/// How the last column of a case begins that is not tested, and how long its reason is at least.
const EXEMPT: &str = "not applicable: ";
const REASON: usize = 40;

/// The names in a text between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inside.split('|').map(str::trim).collect())
}

/// What is wrong with a document, given the suites it must have and a way to know whether a test exists.
fn faults(
    document: &str,
    suites: &[(&str, usize)],
    exists: impl Fn(&str) -> Result<(), String>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let sections: Vec<(&str, &str)> = document
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .collect();
    for (name, _) in &sections {
        if !suites.iter().any(|(suite, _)| suite == name) {
            faults.push(format!("'{name}' is no suite that is asked for"));
        }
    }
    for (suite, count) in suites {
        let mut found = sections.iter().filter(|(name, _)| name == suite);
        match (found.next(), found.next()) {
            (Some((_, text)), None) => faults.extend(suite_faults(suite, *count, text, &exists)),
            (None, _) => faults.push(format!("{suite} is missing")),
            (Some(_), Some(_)) => faults.push(format!("{suite} is there twice")),
        }
    }
    faults
}

fn suite_faults(
    suite: &str,
    count: usize,
    text: &str,
    exists: &impl Fn(&str) -> Result<(), String>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{suite}: {what}"));
    let list = text.split("\n\n").find(|paragraph| paragraph.trim_start().starts_with("Cases:"));
    let listed = quoted(list.unwrap_or_default());
    let distinct: BTreeSet<&str> = listed.iter().copied().collect();
    if distinct.len() != listed.len() || listed.len() != count {
        fault(format!(
            "{} cases are listed, {} of them distinct; it has {count}",
            listed.len(),
            distinct.len()
        ));
    }
    // The first two lines of a table are its headings and the line below them.
    let rows: Vec<_> = text.lines().filter_map(cells).skip(2).collect();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let &[case, asks, ours] = &row[..] else {
            fault(format!("a row of {} columns: {row:?}", row.len()));
            continue;
        };
        let &[case] = &quoted(case)[..] else {
            fault(format!("'{case}' is not the name of one case"));
            continue;
        };
        if !seen.insert(case) {
            fault(format!("{case} has two rows"));
        }
        if !distinct.contains(case) {
            fault(format!("{case} is not among the cases listed"));
        }
        if asks.len() < 10 {
            fault(format!("{case} does not say what it asks"));
        }
        let tests: Vec<&str> = quoted(ours).into_iter().filter(|name| name.contains("::")).collect();
        match ours.strip_prefix(EXEMPT) {
            Some(reason) if reason.len() < REASON => fault(format!("{case} gives no reason: '{reason}'")),
            None if tests.is_empty() => fault(format!("{case} has neither test nor reason")),
            _ => {}
        }
        let wrong = tests.into_iter().filter_map(|test| exists(test).err());
        wrong.for_each(|what| fault(format!("{case}: {what}")));
    }
    for case in distinct.iter().filter(|case| !seen.contains(**case)) {
        fault(format!("{case} has no row"));
    }
    faults
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Whether a test is in the sources and is run without being asked for: `binary::test` of a scenario, or `crate::module::test`.
fn exists(root: &Path, test: &str) -> Result<(), String> {
    let (place, function) = test.rsplit_once("::").ok_or(format!("'{test}' is not 'binary::test'"))?;
    let scenario = root.join("tests/tests").join(format!("{place}.rs"));
    let sources = if scenario.is_file() { vec![scenario] } else { module_sources(root, place) };
    let text = sources.iter().find_map(|file| fs::read_to_string(file).ok());
    let text = text.ok_or(format!("there is no source of '{test}'"))?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {function}()");
    let at = lines.iter().position(|line| line.starts_with(&head));
    let at = at.ok_or(format!("there is no function of '{test}'"))?;
    let attributes: Vec<&&str> = lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).collect();
    if !attributes.iter().any(|line| **line == "#[test]") {
        return Err(format!("'{test}' is no test"));
    }
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Err(format!("'{test}' is not run in every run"));
    }
    Ok(())
}

/// Where a module of a crate may be: `vswitch::topology::underlay::tests` in `vswitch/src/topology/underlay.rs` or below it.
fn module_sources(root: &Path, module: &str) -> Vec<PathBuf> {
    let parts: Vec<&str> = module.split("::").collect();
    let Some((name, inside)) = parts.split_first() else { return Vec::new() };
    let crates = [root.join(name), root.join("pipelines").join(name)];
    let src = crates.iter().map(|folder| folder.join("src")).find(|src| src.is_dir());
    let Some(src) = src else { return Vec::new() };
    (1..=inside.len())
        .rev()
        .flat_map(|depth| {
            let path: PathBuf = inside[..depth].iter().collect();
            [src.join(&path).with_extension("rs"), src.join(path).join("mod.rs")]
        })
        .filter(|file| file.is_file())
        .collect()
}

#[test]
fn conformance_table_is_whole() {
    let root = root();
    let document = fs::read_to_string(root.join("tests/CONFORMANCE.md")).expect("tests/CONFORMANCE.md");
    let faults = faults(&document, &SUITES, |test| exists(&root, test));
    assert!(faults.is_empty(), "tests/CONFORMANCE.md:\n{}", faults.join("\n"));
}

/// A small table, to break in every way that counts.
const GOOD: &str = "# Title

## One: a

Cases: `x`, `y`.

| case | asks | ours |
|---|---|---|
| `x` | that it works | `binary::test` |
| `y` | that it works as well | not applicable: the switch has nothing of this kind, and needs nothing of it |

## Two: b

Cases: `x`.

| case | asks | ours |
|---|---|---|
| `x` | that it works | `binary::test`, `binary::other` |
";

#[test]
fn conformance_table_with_a_gap_is_refused() {
    let judge = |document: &str| {
        faults(document, &[("One: a", 2), ("Two: b", 1)], |test| match test {
            "binary::test" | "binary::other" => Ok(()),
            _ => Err(format!("no {test}")),
        })
    };
    assert_eq!(judge(GOOD), Vec::<String>::new());
    let broken = [
        ("`binary::test` |", "`binary::gone` |", "One: a: x: no binary::gone"),
        ("`binary::other`", "`binary::gone`", "Two: b: x: no binary::gone"),
        ("`binary::test` |", " |", "One: a: x has neither test nor reason"),
        ("`binary::test` |", "some day |", "One: a: x has neither test nor reason"),
        (
            "the switch has nothing of this kind, and needs nothing of it",
            "no",
            "One: a: y gives no reason: 'no'",
        ),
        ("## Two: b", "## Three: b", "'Three: b' is no suite that is asked for|Two: b is missing"),
        ("## Two: b", "## One: a", "One: a is there twice|Two: b is missing"),
        (
            "Cases: `x`, `y`.",
            "Cases: `x`.",
            "One: a: 1 cases are listed, 1 of them distinct; it has 2|One: a: y is not among the cases listed",
        ),
        (
            "Cases: `x`, `y`.",
            "Cases: `x`, `z`.",
            "One: a: y is not among the cases listed|One: a: z has no row",
        ),
        ("| `y` |", "| `x` |", "One: a: x has two rows|One: a: y has no row"),
        ("| that it works |", "| - |", "One: a: x does not say what it asks"),
        ("| `y` | that", "| `y` | that | that", "One: a: a row of 4 columns"),
    ];
    for (old, new, wanted) in broken {
        assert!(GOOD.contains(old), "{old}");
        let found = judge(&GOOD.replacen(old, new, 1)).join("|");
        assert!(found.starts_with(wanted), "{old} -> {new}: {found}");
    }
}

#[test]
fn conformance_table_knows_which_tests_exist() {
    let root = root();
    let found = |test: &str| exists(&root, test);
    assert_eq!(found("conformance_table::conformance_table_is_whole"), Ok(()));
    assert_eq!(found("vswitch::topology::underlay::tests::neighbours_are_asked_confirmed_and_lost"), Ok(()));
    for (wrong, why) in [
        ("conformance_table", "is not 'binary::test'"),
        ("conformance_table::root", "is no test"),
        ("conformance_table::conformance_table_is", "no function of"),
        ("no_such_binary::test", "no source of"),
        ("vswitch::no::such::module::test", "no source of"),
        // A function that takes something, one that is no test, and one that is run when asked for.
        ("conformance_table::exists", "no function of"),
        ("interop_underlay::reserved_bits", "is no test"),
        ("guest_move::guest_move_breaks_nothing", "is not run in every run"),
    ] {
        let refused = found(wrong).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}
