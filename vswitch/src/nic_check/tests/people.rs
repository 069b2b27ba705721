//! BRINGUP.md and the check are one list.

use super::tree::Tree;
use crate::nic_check::commands;

const BRINGUP: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../pmd-bindings/BRINGUP.md"));

/// The rows of the list.
fn rows() -> Vec<Vec<&'static str>> {
    let list = BRINGUP.split("<!-- nic check -->").nth(1).unwrap();
    let rows = list.lines().filter(|line| line.starts_with("| ")).skip(1);
    // A bar inside of a command is written \|; none has one so far.
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn people_find_the_same_things_in_the_same_order() {
    let report = Tree::fine().report();
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.name.as_str()).collect();
    let listed: Vec<&str> = rows().iter().map(|row| row[0]).collect();
    assert_eq!(listed, found);
}

#[test]
fn people_find_every_command_in_the_order_of_the_check() {
    let text: String = rows().iter().map(|row| format!("{}\n", row.last().unwrap())).collect();
    let at = |command: &commands::Template| {
        let quoted = format!("`{}`", command.text());
        text.find(&quoted).unwrap_or_else(|| panic!("BRINGUP.md lacks {quoted}"))
    };
    let places: Vec<usize> = commands::ALL.iter().map(at).collect();
    assert!(places.is_sorted(), "{places:?}");
}
