//! The result: one row per case, flow count and peer, as a table for people and as JSON for scripts.
//!
//! Pure arithmetic and text.

use serde::{Deserialize, Serialize};

use super::Skipped;
use super::cases::{Job, Mix, Peer, is_default};
use super::peer::StageTime;
use super::sample::Sample;
use crate::report::stats::{Spread, median, median_interval};
use crate::report::table::{Table, column, number};

/// Samples of both switches, taken one right after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Ours; `None` when the peer was measured alone.
    pub ours: Option<Sample>,
    pub peer: Sample,
}

/// What was measured for a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    pub pairs: Vec<Pair>,
    /// What our stages take, if that was asked for.
    pub stages: Vec<StageTime>,
}

/// A row of the JSON file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// l2, encap, decap, both, or a trunk's.
    pub case: String,
    /// Number of flows, in the words of the command line.
    pub flows: String,
    /// Length of the inner frame.
    pub inner_bytes: usize,
    /// tcp, rocev2, mixed, udp or udp-few.
    pub traffic: String,
    /// How the packets differ from those of other rows; said only what is not as usual.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mix: Mix,
    /// Whether we had rates; said only if so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qos: bool,
    /// Bytes that each rate could save up; said only if not as much as comes with the rate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub burst: u32,
    /// Whether our vNICs were in security groups; said only if so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub groups: bool,
    /// Ports of ours on which nothing came; said only if there were some.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idle_ports: u16,
    /// The peer, as on the command line.
    pub peer: String,
    /// Our median rate, in millions of packets per CPU-second of the forwarding thread.
    pub ours_mpps: Option<f64>,
    pub peer_mpps: f64,
    /// The smallest ratio of a pair, ours to the peer's.
    pub ratio_min: Option<f64>,
    pub ratio_median: Option<f64>,
    pub ratio_max: Option<f64>,
    /// Median of our cycles per packet minus the peer's; only against testpmd, which does no switching, and
    /// against ourselves with something else to do.
    pub added_cycles: Option<f64>,
    /// What the table has beside that.
    #[serde(skip)]
    pub more: More,
}

/// Figures of a row that are in the table and in records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct More {
    /// Our median cycles per packet.
    pub ours_cycles: Option<f64>,
    /// The peer's median cycles per packet.
    pub peer_cycles: f64,
    /// The fewest and the most cycles that a pair added.
    pub added_spread: Option<(f64, f64)>,
    /// Between which ratios the median is with 95 % confidence, where there are pairs enough.
    #[serde(default)]
    pub ratio_interval: Option<(f64, f64)>,
    pub pairs: usize,
    /// What our stages take, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTime>,
}

impl CompareRow {
    /// Sums up the pairs of a job; `None` if there are none.
    pub fn new(job: &Job, peer: Peer, measured: Measured, hertz: f64) -> Option<Self> {
        let Measured { pairs, stages } = measured;
        let each =
            |value: &dyn Fn(&Pair) -> Option<f64>| -> Vec<f64> { pairs.iter().filter_map(value).collect() };
        let ratios = each(&|pair| Some(pair.ours?.mpps() / pair.peer.mpps()));
        let ratio = Spread::of(&ratios);
        let added = Spread::of(&each(&|pair| Some(pair.ours?.cycles(hertz) - pair.peer.cycles(hertz))));
        Some(Self {
            case: job.label(),
            flows: job.flows.given.clone(),
            inner_bytes: job.inner_bytes,
            traffic: job.traffic.to_string(),
            mix: job.mix,
            qos: job.qos,
            burst: job.burst.unwrap_or(0),
            groups: job.groups,
            idle_ports: job.idle_ports,
            peer: peer.to_string(),
            ours_mpps: median(&each(&|pair| Some(pair.ours?.mpps()))),
            peer_mpps: median(&each(&|pair| Some(pair.peer.mpps())))?,
            ratio_min: ratio.map(|ratio| ratio.min),
            ratio_median: ratio.map(|ratio| ratio.median),
            ratio_max: ratio.map(|ratio| ratio.max),
            added_cycles: added
                .filter(|_| peer.moves_only() || peer.is_ourselves())
                .map(|added| added.median),
            more: More {
                ours_cycles: median(&each(&|pair| Some(pair.ours?.cycles(hertz)))),
                peer_cycles: median(&each(&|pair| Some(pair.peer.cycles(hertz))))?,
                added_spread: added.map(|added| (added.min, added.max)),
                ratio_interval: median_interval(&ratios),
                pairs: pairs.len(),
                stages,
            },
        })
    }
}

impl CompareRow {
    /// Lengths of inner frames.
    pub fn bytes(&self) -> String {
        if self.mix.imix { "imix".to_owned() } else { self.inner_bytes.to_string() }
    }
}

/// An interval of ratios in words.
pub fn interval(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:.2} to {high:.2}"))
}

pub const TABLE: Table<CompareRow> = Table(&[
    column("case", -13, |row| row.case.clone()),
    column("flows", 6, |row| row.flows.clone()),
    column("bytes", 6, |row| row.bytes()),
    column("traffic", -7, |row| row.traffic.clone()),
    column("mix", -9, |row| row.mix.to_string()),
    column("peer", -13, |row| row.peer.clone()),
    column("ours Mpps", 10, |row| number(row.ours_mpps, 2)),
    column("cyc", 6, |row| number(row.more.ours_cycles, 0)),
    column("peer Mpps", 10, |row| number(row.peer_mpps, 2)),
    column("cyc", 6, |row| number(row.more.peer_cycles, 0)),
    column("ratio min/median/max", 23, |row| {
        [row.ratio_min, row.ratio_median, row.ratio_max].map(|ratio| number(ratio, 2)).join(" / ")
    }),
    column("95 %", 12, |row| interval(row.more.ratio_interval)),
    column("added", 7, |row| number(row.added_cycles, 0)),
    column("pairs", 6, |row| row.more.pairs.to_string()),
]);

/// A row that says why there is none.
pub fn skipped_row(skipped: &Skipped) -> String {
    let Skipped { job, peer, reason } = skipped;
    let Job { flows, inner_bytes, traffic, mix, .. } = job;
    let case = job.label();
    format!("{case:<13} {flows:>6} {inner_bytes:>6} {traffic:<7} {mix:<9} {peer:<13} skipped: {reason}")
}

/// The line below a row that says what our stages take; nothing if that was not asked for.
pub fn stages_line(row: &CompareRow) -> Option<String> {
    let stages = &row.more.stages;
    let sum: f64 = stages.iter().map(|stage| stage.cycles).sum();
    let each: Vec<String> =
        stages.iter().map(|stage| format!("{} {:.1}", stage.stage, stage.cycles)).collect();
    (!each.is_empty()).then(|| format!("  cycles by stage: {} = {sum:.1}", each.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::Case;

    fn job() -> Job {
        Job::plain(Case::Encap, "1k")
    }

    fn sample(packets: u64) -> Sample {
        Sample { packets, made: None, cpu: 1.0, wall: 1.0 }
    }

    fn pairs() -> Measured {
        let pairs = [(10, 5), (9, 10), (12, 6)]
            .map(|(ours, peer)| Pair { ours: Some(sample(ours * 1_000_000)), peer: sample(peer * 1_000_000) })
            .into();
        Measured { pairs, stages: Vec::new() }
    }

    #[test]
    fn ratios_are_those_of_pairs() {
        let row = CompareRow::new(&job(), Peer::OvsExact, pairs(), 1e9).unwrap();
        assert_eq!((row.ratio_min, row.ratio_median, row.ratio_max), (Some(0.9), Some(2.0), Some(2.0)));
        assert_eq!((row.ours_mpps, row.peer_mpps), (Some(10.0), 6.0));
        assert_eq!(row.added_cycles, None);
    }

    #[test]
    fn cycles_are_added_to_testpmd_only() {
        let row = CompareRow::new(&job(), Peer::Testpmd, pairs(), 1e9).unwrap();
        // 100 - 200, 111 - 100, 83 - 167: the median is 83 - 167.
        let added = row.added_cycles.unwrap();
        assert!((added - (1e9 / 12e6 - 1e9 / 6e6)).abs() < 1e-6, "{added}");
    }

    #[test]
    fn no_pairs_no_row() {
        assert_eq!(CompareRow::new(&job(), Peer::Testpmd, Measured::default(), 1e9), None);
    }

    #[test]
    fn json_has_exactly_the_agreed_fields() {
        let row = CompareRow::new(&job(), Peer::OvsWildcard, pairs(), 1e9).unwrap();
        let value = serde_json::to_value([row]).unwrap();
        let mut names: Vec<&str> = value[0].as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut agreed = [
            "case",
            "flows",
            "inner_bytes",
            "traffic",
            "peer",
            "ours_mpps",
            "peer_mpps",
            "ratio_min",
            "ratio_median",
            "ratio_max",
            "added_cycles",
        ];
        agreed.sort_unstable();
        assert_eq!(names, agreed);
        assert_eq!(value[0]["flows"], "1k");
        assert_eq!(value[0]["inner_bytes"], 64);
        assert!(value[0]["added_cycles"].is_null());
        let row = CompareRow::new(&Job { qos: true, ..job() }, Peer::NoQos, pairs(), 1e9).unwrap();
        assert!(serde_json::to_value(row).unwrap()["qos"] == true);
    }

    #[test]
    fn a_peer_alone_leaves_our_side_empty() {
        let pairs = vec![Pair { ours: None, peer: sample(5_000_000) }];
        let alone = Measured { pairs, stages: Vec::new() };
        let row = CompareRow::new(&job(), Peer::Testpmd, alone, 1e9).unwrap();
        assert_eq!((row.ours_mpps, row.ratio_median, row.added_cycles), (None, None, None));
        assert_eq!(row.peer_mpps, 5.0);
        assert!(TABLE.row(&row).contains("- / - / -"));
    }

    #[test]
    fn stages_are_told_below_the_row() {
        let stage = |name: &str, cycles: f64| StageTime { stage: name.to_owned(), cycles, burst: 32.0 };
        let mut measured = pairs();
        let bare = CompareRow::new(&job(), Peer::Testpmd, measured.clone(), 1e9).unwrap();
        assert_eq!(stages_line(&bare), None);
        measured.stages = vec![stage("rx", 9.96), stage("lookup", 20.0)];
        let row = CompareRow::new(&job(), Peer::Testpmd, measured, 1e9).unwrap();
        assert_eq!(stages_line(&row).unwrap(), "  cycles by stage: rx 10.0, lookup 20.0 = 30.0");
    }
}
