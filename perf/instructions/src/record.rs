//! Counts on record, and the comparison of two records.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// A count may differ from that on record by so much.
const TOLERANCE: f64 = 0.03;

const HEAD: &str = "\
# Instructions per packet, counted by callgrind: of single stages, and of the whole way through the overlay.
# Written by: cargo run --release -p instructions -- --write
";

#[derive(Clone, Debug, PartialEq)]
pub struct Count {
    /// What was counted: `stage` or `whole`, and which of them.
    pub name: String,
    /// Instructions per packet, to a hundredth.
    pub per_packet: f64,
}

/// What counts hang on beside the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    pub rustc: String,
    /// Instruction sets that it may use.
    pub features: String,
}

impl Built {
    pub fn this() -> Self {
        Self { rustc: env!("RUSTC_VERSION").to_owned(), features: env!("TARGET_FEATURES").to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub built: Built,
    pub counts: Vec<Count>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rustc: String,
    features: String,
    stage: BTreeMap<String, f64>,
    whole: BTreeMap<String, f64>,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// The text is not TOML, or a key is missing or unknown.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let File { rustc, features, stage, whole } = toml::from_str(text)?;
        let counts = [("stage", stage), ("whole", whole)].into_iter().flat_map(|(group, counts)| {
            counts
                .into_iter()
                .map(move |(name, per_packet)| Count { name: format!("{group} {name}"), per_packet })
        });
        Ok(Self { built: Built { rustc, features }, counts: counts.collect() })
    }

    /// The record as it is written.
    pub fn text(&self) -> String {
        let mut text =
            format!("{HEAD}\nrustc = {:?}\nfeatures = {:?}\n", self.built.rustc, self.built.features);
        for group in ["stage", "whole"] {
            text += &format!("\n[{group}]\n");
            for Count { name, per_packet } in &self.counts {
                if let Some((_, name)) = name.split_once(' ').filter(|(of, _)| *of == group) {
                    text += &format!("{name} = {per_packet:.2}\n");
                }
            }
        }
        text
    }

    fn find(&self, name: &str) -> Option<f64> {
        self.counts.iter().find(|count| count.name == name).map(|count| count.per_packet)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    before: Option<f64>,
    now: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    More,
    Less,
    New,
    Gone,
}

impl Row {
    fn verdict(&self) -> Verdict {
        match (self.before, self.now) {
            (None, _) => Verdict::New,
            (_, None) => Verdict::Gone,
            (Some(before), Some(now)) if now > before * (1.0 + TOLERANCE) => Verdict::More,
            (Some(before), Some(now)) if now < before * (1.0 - TOLERANCE) => Verdict::Less,
            _ => Verdict::Same,
        }
    }
}

pub struct Comparison {
    rows: Vec<Row>,
    other: Option<String>,
}

/// Compares what is on record with what is now.
pub fn compare(before: &Record, now: &Record) -> Comparison {
    let gone = before.counts.iter().filter(|count| now.find(&count.name).is_none());
    let rows = now.counts.iter().chain(gone).map(|Count { name, .. }| Row {
        name: name.clone(),
        before: before.find(name),
        now: now.find(name),
    });
    let other = (before.built != now.built).then(|| {
        format!(
            "the record is of another build, so nothing is compared: --write makes a new one\n  \
             record: {} ({})\n  now:    {} ({})",
            before.built.rustc, before.built.features, now.built.rustc, now.built.features
        )
    });
    Comparison { rows: rows.collect(), other }
}

impl Comparison {
    /// True unless something takes more than on record, or is not there on one side.
    pub fn passes(&self) -> bool {
        let fine = |row: &Row| matches!(row.verdict(), Verdict::Same | Verdict::Less);
        self.other.is_some() || self.rows.iter().all(fine)
    }

    fn names(&self, verdict: Verdict) -> Vec<&str> {
        let rows = self.rows.iter().filter(|row| row.verdict() == verdict);
        rows.map(|row| row.name.as_str()).collect()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.2}"));
        writeln!(f, "{:<32} {:>10} {:>10} {:>9}  instructions per packet", "", "record", "now", "change")?;
        for row in &self.rows {
            let change = match (row.before, row.now) {
                (Some(before), Some(now)) => format!("{:+.2} %", (now / before - 1.0) * 100.0),
                _ => String::new(),
            };
            let verdict = match row.verdict() {
                _ if self.other.is_some() => "",
                Verdict::Same => "",
                Verdict::More => "MORE",
                Verdict::Less => "less",
                Verdict::New => "NOT ON RECORD",
                Verdict::Gone => "NOT COUNTED",
            };
            let line = format!(
                "{:<32} {:>10} {:>10} {change:>9}  {verdict}",
                row.name,
                number(row.before),
                number(row.now)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        if let Some(other) = &self.other {
            return writeln!(f, "{other}");
        }
        let write = "cargo run --release -p instructions -- --write";
        for (verdict, what, to_do) in [
            (
                Verdict::More,
                "over 3 % more than on record",
                format!("make it less, or if it has to be: {write}"),
            ),
            (Verdict::Less, "over 3 % less than on record, well done", format!("keep it: {write}")),
            (Verdict::New, "not on record", write.to_owned()),
            (Verdict::Gone, "on record and not counted any more", write.to_owned()),
        ] {
            let names = self.names(verdict);
            if !names.is_empty() {
                writeln!(f, "{} {what}: {}\n  {to_do}", names.len(), names.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(counts: &[(&str, f64)]) -> Record {
        let count = |&(name, per_packet): &(&str, f64)| Count { name: name.into(), per_packet };
        let built = Built { rustc: "rustc 1.95.0".into(), features: "avx2,sse2".into() };
        Record { built, counts: counts.iter().map(count).collect() }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = record(&[("stage bind", 9.91), ("stage parse", 150.0), ("whole encap", 709.34)]);
        assert_eq!(Record::parse(&written.text()).unwrap(), written);
        let error = Record::parse("rustc = 1").unwrap_err().to_string();
        assert!(error.contains("rustc"), "{error}");
        assert!(Record::parse(&(written.text() + "[table]\n")).is_err(), "unknown keys");
    }

    #[test]
    fn more_than_three_percent_more_fails() {
        let before = record(&[("stage bind", 100.0), ("whole encap", 700.0)]);
        for (bind, passes, says) in [
            (100.0, true, ""),
            (103.0, true, ""),
            (97.0, true, ""),
            (103.01, false, "1 over 3 % more than on record: stage bind\n"),
            (96.99, true, "1 over 3 % less than on record, well done: stage bind\n"),
        ] {
            let comparison = compare(&before, &record(&[("stage bind", bind), ("whole encap", 700.0)]));
            assert_eq!(comparison.passes(), passes, "{bind}");
            let text = comparison.to_string();
            assert!(text.contains(says), "{text}");
            assert_eq!(text.contains("over 3 %"), !says.is_empty(), "{text}");
        }
    }

    #[test]
    fn what_is_on_one_side_only_fails() {
        let (one, two) = (record(&[("stage bind", 1.0)]), record(&[("stage bind", 1.0), ("stage key", 2.0)]));
        let comparison = compare(&one, &two);
        assert!(!comparison.passes() && comparison.to_string().contains("1 not on record: stage key"));
        let comparison = compare(&two, &one);
        assert!(!comparison.passes() && comparison.to_string().contains("not counted any more: stage key"));
    }

    #[test]
    fn other_builds_are_not_compared() {
        let before = record(&[("stage bind", 1.0)]);
        let mut now = record(&[("stage bind", 2.0)]);
        now.built.rustc = "rustc 1.96.0".into();
        let comparison = compare(&before, &now);
        assert!(comparison.passes());
        let text = comparison.to_string();
        assert!(
            text.contains("rustc 1.96.0") && text.contains("--write") && !text.contains("MORE"),
            "{text}"
        );
    }
}
