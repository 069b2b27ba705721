//! Snapshots of the switch's counters, and assertions on what moved between two of them.
//!
//! A snapshot is every number of a JSON answer under its path (`drops.unknown-vni`). A scenario names the counters that
//! must have moved and by how much; any other counter that moved fails it. Figures of time and load (cycles, polls,
//! bursts, shares, ages) are no counters of packets and are left out.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Parts of a path that mark a figure of time or load.
const NOT_COUNTERS: [&str; 18] = [
    "cycles",
    "polls",
    "burst",
    "share",
    "idle",
    "busy",
    "age",
    "seen",
    "rate",
    "pps",
    "bps",
    "uptime",
    "tsc",
    "time",
    "seconds",
    "generation",
    "version",
    "mbufs",
];

/// What a counter must have done between two snapshots.
#[derive(Debug, Clone, Copy)]
pub enum Moved {
    /// By exactly so much.
    By(i64),
    /// By at least so much.
    AtLeast(i64),
    /// By something between the two, both included.
    Between(i64, i64),
    /// In any way, or not at all: the scenario cannot know.
    Anyhow,
}

/// Every number of one or more JSON answers, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, i64>);

impl Counters {
    /// Takes in an answer under a prefix.
    pub fn add(&mut self, prefix: &str, answer: &Value) {
        match answer {
            Value::Number(number) => {
                let value = number.as_i64().or_else(|| number.as_u64().map(|n| n as i64));
                if let Some(value) = value
                    && !is_not_a_counter(prefix)
                {
                    self.0.insert(prefix.to_owned(), value);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.add(&join(prefix, &item_name(item, index)), item);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    self.add(&join(prefix, name), field);
                }
            }
            _ => {}
        }
    }

    /// The value under a path, 0 when there is none: a counter that never moved may be missing.
    pub fn get(&self, path: &str) -> i64 {
        self.0.get(path).copied().unwrap_or(0)
    }

    /// Every path and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(path, value)| (path.as_str(), *value))
    }

    /// What moved from `before` to this snapshot.
    pub fn since(&self, before: &Counters) -> BTreeMap<String, i64> {
        let paths = self.0.keys().chain(before.0.keys());
        paths
            .map(|path| (path.clone(), self.get(path) - before.get(path)))
            .filter(|(_, moved)| *moved != 0)
            .collect()
    }

    /// Asserts that the listed counters moved as said since `before`, and that no other counter did.
    ///
    /// A name that ends in `*` stands for every counter whose path begins so.
    #[track_caller]
    pub fn assert_moved(&self, before: &Counters, expected: &[(&str, Moved)]) {
        let moved = self.since(before);
        let complaints = compare(&moved, expected);
        assert!(complaints.is_empty(), "{complaints}all that moved: {moved:#?}");
    }
}

fn compare(moved: &BTreeMap<String, i64>, expected: &[(&str, Moved)]) -> String {
    let mut complaints = String::new();
    let matches = |name: &str, path: &str| match name.strip_suffix('*') {
        Some(stem) => path.starts_with(stem),
        None => path == name,
    };
    for (name, wanted) in expected {
        // A group of counters is judged by its sum.
        let value: i64 = moved.iter().filter(|(path, _)| matches(name, path)).map(|(_, v)| v).sum();
        let right = match *wanted {
            Moved::By(n) => value == n,
            Moved::AtLeast(n) => value >= n,
            Moved::Between(low, high) => (low..=high).contains(&value),
            Moved::Anyhow => true,
        };
        if !right {
            let _ = writeln!(complaints, "{name} moved by {value}, expected {wanted:?}");
        }
    }
    for (path, value) in moved {
        if !expected.iter().any(|(name, _)| matches(name, path)) {
            let _ = writeln!(complaints, "{path} moved by {value}, expected to stand still");
        }
    }
    complaints
}

fn is_not_a_counter(path: &str) -> bool {
    // Packets are counted under whatever name a drop reason has.
    !path.contains("drops.") && path.split(['.', '-', '_', ' ']).any(|part| NOT_COUNTERS.contains(&part))
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Rows of a table are known by their name where they have one, so that a row more does not rename the others.
fn item_name(item: &Value, index: usize) -> String {
    let field = |name: &str| {
        item.get(name)
            .and_then(|v| v.as_str().map(str::to_owned).or_else(|| v.as_u64().map(|n| n.to_string())))
    };
    field("name")
        .or_else(|| field("port"))
        .or_else(|| field("reason"))
        .or_else(|| field("id"))
        .unwrap_or_else(|| index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(answer: &Value) -> Counters {
        let mut counters = Counters::default();
        counters.add("", answer);
        counters
    }

    #[test]
    fn answers_are_flattened_by_name() {
        let counters =
            snapshot(&json!({"received": 3, "ports": [{"name": "up", "rx": 7, "cycles": 99}], "text": "x"}));
        let all: Vec<_> = counters.iter().collect();
        assert_eq!(all, [("ports.up.rx", 7), ("received", 3)]);
    }

    #[test]
    fn drops_are_counters_whatever_their_reason_is_called() {
        let counters = snapshot(&json!({"version": 4, "drops": {"ipv4-version": 2, "flood-rate": 1}}));
        let all: Vec<_> = counters.iter().collect();
        assert_eq!(all, [("drops.flood-rate", 1), ("drops.ipv4-version", 2)]);
    }

    #[test]
    fn a_counter_that_moved_unasked_is_a_complaint() {
        let moved = BTreeMap::from([("a.x".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(compare(&moved, &[("a.*", Moved::By(2)), ("b", Moved::AtLeast(1))]), "");
        assert!(compare(&moved, &[("a.x", Moved::By(2))]).contains("b moved by 1"));
        assert!(compare(&moved, &[("a.x", Moved::By(3)), ("b", Moved::Anyhow)]).contains("a.x moved by 2"));
        assert!(
            compare(&moved, &[("*", Moved::Anyhow), ("c", Moved::Between(1, 2))]).contains("c moved by 0")
        );
    }
}
