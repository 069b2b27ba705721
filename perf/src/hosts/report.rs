//! What `perf hosts` found: a line for each stream, a table of the cases, JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::stream::TcpStream;
use crate::compare::record::Machine;
use crate::host::ovs;
use crate::report::stats::Spread;
use crate::report::table::{Table, by_name, column, number};

/// Reasons to drop that say nothing against a switch here: kernels announce multicast groups, which the VPC does not flood, and TCP
/// fills queues.
const HARMLESS: [&str; 4] = ["bum-disabled", "tx-full", "tx-stalled", "tx-handoff-full"];

/// A stream of a round.
#[derive(Debug, Clone, Serialize)]
pub struct HostsSample {
    /// From 0.
    pub round: usize,
    /// The case, and the build of the daemon behind it unless that is the first.
    pub contender: String,
    #[serde(flatten)]
    pub stream: TcpStream,
    /// What the switches dropped meanwhile, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// A case over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct HostsRow {
    /// As in the samples.
    pub contender: String,
    /// Gigabits (10^9) of data a second.
    pub gbits: Spread,
    /// The rate in the kernel's of the same round; none unless both were measured.
    pub to_kernel: Option<Spread>,
    pub retransmissions: Spread,
    /// The sum of all rounds, by reason.
    pub drops: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct HostsReport {
    pub machine: Machine,
    /// Length of a stream.
    pub seconds: u32,
    pub samples: Vec<HostsSample>,
    pub rows: Vec<HostsRow>,
}

impl HostsReport {
    pub fn new(machine: Machine, seconds: u32) -> Self {
        Self { machine, seconds, samples: Vec::new(), rows: Vec::new() }
    }

    /// What stands above the samples.
    pub fn head(&self) -> String {
        let Machine { processor, cores, kernel, .. } = &self.machine;
        format!(
            "{processor}, {cores} cores, {kernel}; one TCP stream of {} s each\n\
             both ends, the traffic and the switch share the cores: figures compare cases, no more\n{}\n",
            self.seconds,
            SAMPLES.head()
        )
    }

    /// Makes the rows, of contenders and the kernel's case beside each, from the samples.
    pub fn summarise(&mut self, contenders: impl IntoIterator<Item = (String, String)>) {
        let rows = contenders.into_iter().filter_map(|(contender, kernel)| self.sum_up(contender, &kernel));
        self.rows = rows.collect();
    }

    fn sum_up(&self, contender: String, kernel: &str) -> Option<HostsRow> {
        let of = |name: &str| -> Vec<&HostsSample> {
            self.samples.iter().filter(|sample| sample.contender == name).collect()
        };
        let (own, kernels) = (of(&contender), of(kernel));
        let figures = |figure: fn(&TcpStream) -> f64| -> Vec<f64> {
            own.iter().map(|sample| figure(&sample.stream)).collect()
        };
        let ratios = own.iter().filter_map(|sample| {
            let kernel = kernels.iter().find(|other| other.round == sample.round)?;
            Some(sample.stream.gbits / kernel.stream.gbits)
        });
        let ratios: Vec<f64> = ratios.collect();
        let mut drops = BTreeMap::new();
        for (reason, count) in own.iter().flat_map(|sample| &sample.drops) {
            *drops.entry(reason.clone()).or_default() += count;
        }
        Some(HostsRow {
            gbits: Spread::of(&figures(|stream| stream.gbits))?,
            to_kernel: Spread::of(&ratios),
            retransmissions: Spread::of(&figures(|stream| stream.retransmissions as f64))?,
            contender,
            drops,
        })
    }

    pub fn text(&self) -> String {
        if self.rows.is_empty() { String::new() } else { format!("\n{}", ROWS.text(&self.rows)) }
    }

    /// Fails where a switch dropped something that a full queue does not explain.
    pub fn verdict(&self) -> Result<(), String> {
        let odd = |row: &HostsRow| {
            let mut drops = row.drops.clone();
            // Open vSwitch's are told, and its own affair.
            drops.retain(|reason, _| !HARMLESS.contains(&reason.as_str()) && !reason.starts_with(ovs::DROP));
            (!drops.is_empty()).then(|| format!("{}: {}", row.contender, by_name(&drops)))
        };
        let odd: Vec<String> = self.rows.iter().filter_map(odd).collect();
        if odd.is_empty() {
            return Ok(());
        }
        Err(format!("the switch dropped packets for which no full queue is the reason ({})", odd.join("; ")))
    }
}

/// Of samples, as they come.
pub const SAMPLES: Table<HostsSample> = Table(&[
    column("round", 5, |sample| (sample.round + 1).to_string()),
    column("case", -24, |sample| sample.contender.clone()),
    column("Gbit/s", 7, |sample| number(sample.stream.gbits, 2)),
    column("retransmissions", 15, |sample| sample.stream.retransmissions.to_string()),
    column("drops", 0, |sample| by_name(&sample.drops)),
]);

/// Of cases: medians and ranges over the rounds.
const ROWS: Table<HostsRow> = Table(&[
    column("case", -24, |row| row.contender.clone()),
    column("Gbit/s", 24, |row| row.gbits.text(2)),
    column("to the kernel's", 24, |row| row.to_kernel.map_or("-".into(), |ratio| ratio.text(2))),
    column("retransmissions", 22, |row| row.retransmissions.text(0)),
    column("drops", 0, |row| by_name(&row.drops)),
]);

#[cfg(test)]
mod tests {
    use super::*;

    fn report(samples: &[(usize, &str, f64, &str)]) -> HostsReport {
        let mut report = HostsReport::new(Machine::here(None), 1);
        report.samples.extend(samples.iter().map(|&(round, contender, gbits, drop)| HostsSample {
            round,
            contender: contender.into(),
            stream: TcpStream { bytes: 1, gbits, retransmissions: 2 },
            drops: [(drop.to_owned(), 3)].into_iter().filter(|(reason, _)| !reason.is_empty()).collect(),
        }));
        report.summarise(["kernel", "ours"].map(|name| (name.to_owned(), "kernel".to_owned())));
        report
    }

    #[test]
    fn ratios_are_within_a_round() {
        // The second round is of a machine twice as fast, and the third one ended before the kernel's turn.
        let samples =
            [(0, "kernel", 4.0, ""), (0, "ours", 3.0, ""), (1, "ours", 6.0, ""), (1, "kernel", 8.0, "")];
        let report = report(&[&samples[..], &[(2, "ours", 7.0, "")]].concat());
        assert_eq!(report.rows[1].to_kernel, Some(Spread { min: 0.75, median: 0.75, max: 0.75 }));
        assert_eq!(report.rows[1].gbits, Spread { min: 3.0, median: 6.0, max: 7.0 });
        assert!(report.text().contains("6.00 (3.00 to 7.00)"), "{}", report.text());
        assert_eq!(report.verdict(), Ok(()));
    }

    #[test]
    fn drops_other_than_of_full_queues_fail() {
        let full = report(&[(0, "ours", 1.0, "tx-full"), (1, "ours", 1.0, "tx-full")]);
        assert_eq!((full.rows[0].drops["tx-full"], full.verdict()), (6, Ok(())));
        assert_eq!(report(&[(0, "ours", 1.0, "datapath_drop_upcall_error")]).verdict(), Ok(()));
        let words = report(&[(0, "ours", 1.0, "outer-checksum")]).verdict().unwrap_err();
        assert!(words.contains("ours: outer-checksum 3"), "{words}");
    }
}
