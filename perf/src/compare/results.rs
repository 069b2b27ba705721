//! The report on comparisons: records of runs as one page of Markdown, with the targets met and missed.
//!
//! Every figure is of a record; nothing is measured here.

use std::fmt::Write as _;

use super::cases::Mix;
use super::record::{Record, RecordedRow};
use super::report::interval;
use crate::report::table::{Table, column, number};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    /// The cycles added to those of the peer, at most.
    Added(f64),
    /// The rate, as a multiple of the peer's, at least.
    Ratio(f64),
}

/// What the switch is to reach into the tunnel and out of it: one worker, TCP, rates at every level.
struct Target {
    what: &'static str,
    cases: [&'static str; 2],
    flows: &'static str,
    inner_bytes: usize,
    peer: &'static str,
    /// Of each case.
    bounds: [Bound; 2],
}

/// The same of encap and decap of 64-byte inner frames; others say what is different.
const fn target(what: &'static str, flows: &'static str, peer: &'static str, bounds: [Bound; 2]) -> Target {
    Target { what, cases: ["encap", "decap"], flows, inner_bytes: 64, peer, bounds }
}

const FLOOR: &str = "cycles above the floor";
const EXACT: &str = "OVS with exact flows";

const TARGETS: [Target; 9] = [
    target(FLOOR, "1k", "testpmd", [Bound::Added(100.0); 2]),
    target(FLOOR, "100k", "testpmd", [Bound::Added(150.0); 2]),
    target(FLOOR, "1M", "testpmd", [Bound::Added(250.0); 2]),
    target(EXACT, "1k", "ovs-exact", [Bound::Ratio(2.5), Bound::Ratio(4.0)]),
    target(EXACT, "100k", "ovs-exact", [Bound::Ratio(6.0); 2]),
    target("OVS with exact flows, limits forced", "1M", "ovs-exact", [Bound::Ratio(4.0); 2]),
    target("OVS with one flow for all", "1k", "ovs-wildcard", [Bound::Ratio(1.2), Bound::Ratio(2.3)]),
    Target {
        cases: ["trunk64", "trunk64-decap"],
        ..target("64 tenants beside one", "1k", "one-tenant", [Bound::Ratio(0.85); 2])
    },
    Target { inner_bytes: 1400, ..target("1400 bytes beside 64", "1k", "short", [Bound::Ratio(0.9); 2]) },
];

impl Target {
    /// The row that a case is judged by: the last one measured.
    fn row<'a>(&self, case: &str, records: &'a [Record]) -> Option<&'a RecordedRow> {
        let mut rows =
            records.iter().filter(|record| record.frames == "template").flat_map(|record| &record.rows);
        rows.rfind(|RecordedRow { row, .. }| {
            row.qos
                && row.burst == 0
                && row.traffic == "tcp"
                && (row.case.as_str(), row.flows.as_str()) == (case, self.flows)
                && row.inner_bytes == self.inner_bytes
                && row.mix == Mix::default()
                && !row.groups
                && row.peer == self.peer
        })
    }
}

impl Bound {
    /// Wanted, found with its spread, and whether that is enough.
    fn verdict(self, figures: &RecordedRow) -> Option<(String, String, bool)> {
        let row = &figures.row;
        Some(match self {
            Self::Added(most) => {
                let (low, high) = figures.more.added_spread?;
                let found = row.added_cycles?;
                (format!("<= {most:.0}"), format!("**{found:.0}** ({low:.0} to {high:.0})"), found <= most)
            }
            Self::Ratio(least) => {
                let (low, found, high) = (row.ratio_min?, row.ratio_median?, row.ratio_max?);
                (
                    format!(">= {least:.2} x"),
                    format!("**{found:.2}** ({low:.2} to {high:.2})"),
                    found >= least,
                )
            }
        })
    }
}

pub fn page(records: &[Record]) -> String {
    let mut text = String::from(
        "# Results of `perf compare`\n\n\
         Written by `perf report`; every figure is a median over pairs of samples, taken by turns, with the smallest and \
         the largest in brackets; the median ratio lies in the interval of the column `95 %` with 95 % confidence (sign test). Cycles are ticks of the time stamp counter per packet, of the CPU time of the one \
         forwarding thread, source and sink of the frames included; `testpmd` in io mode between the same devices shows \
         what those cost by themselves. Added cycles are ours less the peer's; ratios are ours to the peer's.\n",
    );
    machine(&mut text, records);
    targets(&mut text, records);
    stages(&mut text, records);
    rows(&mut text, records);
    text
}

// Writing into a String cannot fail; the results are dropped for that reason.

fn machine(text: &mut String, records: &[Record]) {
    let mut seen = Vec::new();
    text.push_str("\n## Machine and runs\n");
    for record in records {
        let machine = &record.machine;
        if !seen.contains(&machine.vswitch) || seen.is_empty() {
            seen.push(machine.vswitch.clone());
            let _ = write!(
                text,
                "\n{}, {} cores, TSC {:.0} MHz, {}; DPDK {}, {}, {}; {}.\n",
                machine.processor,
                machine.cores,
                machine.hertz / 1e6,
                machine.kernel,
                machine.dpdk,
                machine.ovs,
                machine.vswitch,
                machine.date
            );
        }
    }
    text.push_str(
        "\nBuilt with the release profile for x86-64-v3. Load of the machine before and after each run:\n\n",
    );
    for record in records {
        let _ = writeln!(text, "- `{}` ({:.1}, {:.1})", record.command, record.load.0, record.load.1);
    }
}

fn targets(text: &mut String, records: &[Record]) {
    text.push_str(
        "\n## Targets\n\nOne worker, TCP; guard, exact flow table, table of queue pairs, token buckets (`--qos`) and counters on.\n\n\
         | target | case | flows | inner bytes | wanted | found | |\n|---|---|---|---|---|---|---|\n",
    );
    let (mut met, mut all) = (0, 0);
    let each =
        TARGETS.iter().flat_map(|target| target.cases.iter().zip(target.bounds).map(move |of| (target, of)));
    for (target, (case, bound)) in each {
        all += 1;
        let verdict = target.row(case, records).and_then(|figures| bound.verdict(figures));
        let (wanted, found, word) = match verdict {
            Some((wanted, found, true)) => {
                met += 1;
                (wanted, found, "met")
            }
            Some((wanted, found, false)) => (wanted, found, "**missed**"),
            None => ("".into(), "-".into(), "not measured"),
        };
        let Target { what, flows, inner_bytes, .. } = target;
        let _ = writeln!(text, "| {what} | {case} | {flows} | {inner_bytes} | {wanted} | {found} | {word} |");
    }
    let _ = writeln!(text, "\n{met} of {all} met.");
}

/// What stages take, of the rows in which that was asked for.
fn stages(text: &mut String, records: &[Record]) {
    let figures = || records.iter().flat_map(|record| &record.rows).filter(|row| !row.more.stages.is_empty());
    let mut names: Vec<&str> = Vec::new();
    for stage in figures().flat_map(|figures| &figures.more.stages) {
        if !names.contains(&stage.stage.as_str()) {
            names.push(&stage.stage);
        }
    }
    if names.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "\n## Where the cycles go\n\nOur cycles for each packet by stage (`--account`: the clock is read after each stage of a \
         burst, its own cost taken off), source and sink of the frames in `rx` and `tx`.\n\n\
         | case | flows | bytes | traffic | {} | all |\n|---|---|---|---|{}---|\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for RecordedRow { row, more } in figures() {
        let of = |name: &&str| {
            let stage = more.stages.iter().find(|stage| stage.stage == **name);
            stage.map_or("-".into(), |stage| format!("{:.1}", stage.cycles))
        };
        let each: Vec<String> = names.iter().map(of).collect();
        let all: f64 = more.stages.iter().map(|stage| stage.cycles).sum();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {all:.1} |",
            row.case,
            row.flows,
            row.inner_bytes,
            row.traffic,
            each.join(" | ")
        );
    }
}

const ROWS: Table<RecordedRow> = Table(&[
    column("case", 0, |RecordedRow { row, .. }| row.case.clone()),
    column("flows", 0, |RecordedRow { row, .. }| row.flows.clone()),
    column("bytes", 0, |RecordedRow { row, .. }| row.bytes()),
    column("traffic", 0, |RecordedRow { row, .. }| row.traffic.clone()),
    column("mix", 0, |RecordedRow { row, .. }| row.mix.to_string()),
    column("groups", 0, |RecordedRow { row, .. }| if row.groups { "yes" } else { "no" }.into()),
    column("rates", 0, |RecordedRow { row, .. }| match (row.qos, row.burst) {
        (false, _) => "no".into(),
        (true, 0) => "yes".into(),
        (true, burst) => format!("bursts of {} KiB", burst >> 10),
    }),
    column("peer", 0, |RecordedRow { row, .. }| row.peer.clone()),
    column("ours Mpps", 0, |RecordedRow { row, .. }| number(row.ours_mpps, 2)),
    column("cycles", 0, |RecordedRow { more, .. }| number(more.ours_cycles, 0)),
    column("peer Mpps", 0, |RecordedRow { row, .. }| number(row.peer_mpps, 2)),
    column("cycles", 0, |RecordedRow { more, .. }| number(more.peer_cycles, 0)),
    column("added", 0, |RecordedRow { row, .. }| number(row.added_cycles, 0)),
    column("ratio", 0, |RecordedRow { row, .. }| {
        let [median, min, max] =
            [row.ratio_median, row.ratio_min, row.ratio_max].map(|ratio| number(ratio, 2));
        format!("{median} ({min} to {max})")
    }),
    column("95 %", 0, |RecordedRow { more, .. }| interval(more.ratio_interval)),
    column("pairs", 0, |RecordedRow { more, .. }| more.pairs.to_string()),
]);

fn rows(text: &mut String, records: &[Record]) {
    text.push_str("\n## All rows\n\n");
    text.push_str(&ROWS.markdown(records.iter().flat_map(|record| &record.rows)));
    let skipped: Vec<_> = records.iter().flat_map(|record| &record.skipped).collect();
    if !skipped.is_empty() {
        text.push_str("\nSkipped:\n\n");
    }
    for (case, flows, peer, reason) in skipped {
        let _ = writeln!(text, "- {case}, {flows} flows, {peer}: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(added: f64) -> Record {
        let value = json!({
            "machine": { "date": "2026-01-01", "processor": "P", "cores": 2, "hertz": 2.5e9, "kernel": "K", "dpdk": "22.11",
                         "ovs": "O", "vswitch": "V" },
            "command": "perf compare", "frames": "template", "load": [1.0, 2.0],
            "rows": [{
                "case": "decap", "flows": "1k", "inner_bytes": 64, "traffic": "tcp", "qos": true, "peer": "testpmd",
                "ours_mpps": 20.0, "peer_mpps": 100.0, "ratio_min": 0.1, "ratio_median": 0.2, "ratio_max": 0.3,
                "added_cycles": added,
                "more": { "ours_cycles": 125.0, "peer_cycles": 25.0, "added_spread": [90.0, 110.0], "pairs": 5 }
            }],
            "skipped": [["encap", "1k", "ovs-exact", "OVS is not installed"]]
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let line =
            |text: &str| text.lines().find(|line| line.contains("decap | 1k | 64 | <=")).map(str::to_owned);
        let (met, missed) = (page(&[record(100.0)]), page(&[record(100.1)]));
        assert!(line(&met).unwrap().ends_with("| **100** (90 to 110) | met |"), "{met}");
        assert!(line(&missed).unwrap().ends_with("| **missed** |"), "{missed}");
        assert_eq!(met.matches("| not measured |").count(), 17);
        assert!(met.contains("1 of 18 met") && missed.contains("0 of 18 met"));
        assert!(met.contains("- encap, 1k flows, ovs-exact: OVS is not installed"));
        assert!(line(&page(&[])).is_none());
    }

    #[test]
    fn the_last_measurement_counts_and_only_with_everything_on() {
        let both = page(&[record(120.0), record(80.0)]);
        assert!(both.contains("| **80** (90 to 110) | met |"), "{both}");
        let mut bare = record(80.0);
        bare.rows[0].row.qos = false;
        assert!(page(&[bare]).contains("0 of 18 met"));
        let mut replayed = record(80.0);
        replayed.frames = "pcap".into();
        assert!(page(&[replayed]).contains("0 of 18 met"));
    }

    #[test]
    fn stages_have_a_table_where_they_were_asked_for() {
        assert!(!page(&[record(1.0)]).contains("Where the cycles go"));
        let mut watched = record(1.0);
        let stage = |stage: &str, cycles: f64| {
            serde_json::from_value(json!({ "stage": stage, "cycles": cycles, "burst": 32.0 })).unwrap()
        };
        watched.rows[0].more.stages = vec![stage("rx", 10.0), stage("lookup", 20.5)];
        let page = page(&[record(1.0), watched]);
        assert!(
            page.contains("| rx | lookup | all |") && page.contains("| tcp | 10.0 | 20.5 | 30.5 |"),
            "{page}"
        );
    }

    #[test]
    fn a_record_reads_back() {
        let record = record(1.0);
        let text = serde_json::to_string(&record).unwrap();
        let again: Record = serde_json::from_str(&text).unwrap();
        assert_eq!((again.rows[0].more.pairs, again.rows[0].row.clone()), (5, record.rows[0].row.clone()));
    }
}
