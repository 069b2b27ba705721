//! The result of group traffic: a table for people, JSON for scripts, and a plot over time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{GroupOptions, Layout, MEMBERS};
use crate::Result;
use crate::generator::outcome::{Outcome, StreamBin, StreamOutcome};
use crate::live::config::Counted;
use crate::report::delay::Quantiles;
use crate::report::parts::Part;
use crate::report::plot::{self, Panel, Series};
use crate::report::table::{Table, by_name, column, number};

#[derive(Debug, Clone, Default, Serialize)]
pub struct GroupTraffic {
    pub seconds: f64,
    pub rounds: u64,
    /// Rounds that were due while another one was under way.
    pub late_rounds: u64,
    /// Packets sent: writes, acknowledgements, datagrams.
    pub sent: u64,
    /// Packets that found no room or buffer here.
    pub unsent: u64,
    pub received: u64,
    /// Packets that never came, not even after their round.
    pub lost: u64,
    /// Packets whose sequence number was not the next one that their queue pair was sent.
    pub gaps: u64,
    /// Packets from or to another member or queue pair than theirs, and what is none of the group's.
    pub strays: u64,
    /// Packets whose ICRC is wrong, or that are cut.
    pub damaged: u64,
    /// Delays of writes and datagrams between members of one switch.
    pub local: Option<Quantiles>,
    pub remote: Option<Quantiles>,
    /// From the first packet of a round to its last acknowledgement.
    pub round_time: Option<Quantiles>,
    /// Delays over time, the local ones and the remote ones.
    #[serde(skip)]
    series: Vec<Vec<StreamBin>>,
}

impl GroupTraffic {
    fn new(outcome: &Outcome) -> Self {
        let sum = |of: fn(&StreamOutcome) -> u64| outcome.streams.iter().map(of).sum();
        let delay = |stream: usize| outcome.streams.get(stream)?.delay;
        Self {
            seconds: outcome.seconds,
            rounds: outcome.rounds.begun,
            late_rounds: outcome.rounds.late,
            sent: sum(|stream| stream.sent + stream.answers_sent),
            unsent: outcome.refused(),
            received: sum(|stream| stream.received.frames + stream.answers.frames),
            lost: sum(|stream| stream.lost + stream.answers_sent - stream.answers.distinct()),
            gaps: sum(|stream| stream.received.out_of_sequence() + stream.answers.out_of_sequence()),
            strays: outcome.foreign + outcome.misplaced + outcome.stale,
            damaged: outcome.damaged,
            local: delay(0),
            remote: delay(1),
            round_time: outcome.rounds.time,
            series: outcome.streams.iter().map(|stream| stream.series.clone()).collect(),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct SwitchReport {
    pub before: Counted,
    pub after: Counted,
    /// What it dropped meanwhile, by name.
    pub drops: BTreeMap<String, u64>,
}

impl SwitchReport {
    pub fn new(before: Counted, after: Counted) -> Self {
        Self { drops: after.drops_since(&before), before, after }
    }
}

/// The switches' own view of the queue pairs, summed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QpSums {
    pub in_use: u64,
    /// Entries toward the wire.
    pub out: u64,
    pub from_wire: u64,
    pub packets: u64,
    pub gaps: u64,
    /// Repetitions that they saw.
    pub retransmissions: u64,
}

impl QpSums {
    /// Sums the answers to `show rcft <vnic>`.
    pub fn of(answers: &[Value]) -> Self {
        let mut sums = Self::default();
        for answer in answers {
            sums.in_use += answer["in-use"].as_u64().unwrap_or(0);
            for row in answer["queue-pairs"].as_array().into_iter().flatten() {
                let count = |name: &str| row[name].as_u64().unwrap_or(0);
                *(if row["direction"] == "out" { &mut sums.out } else { &mut sums.from_wire }) += 1;
                sums.packets += count("packets");
                sums.gaps += count("gaps");
                sums.retransmissions += count("retransmissions");
            }
        }
        sums
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct GroupReport {
    pub switches: usize,
    pub members: usize,
    /// Bytes of a row.
    pub row: usize,
    /// Rounds per second asked for.
    pub rounds_per_second: u64,
    /// Whether the workers shared a core and slept when idle.
    pub shared_core: bool,
    /// Delays without any switch.
    pub floor: Quantiles,
    #[serde(flatten)]
    pub outcome: GroupTraffic,
    /// The switch's own delay: the one measured less the middle one without a switch.
    pub own_local: Option<Quantiles>,
    /// Across the tunnel: of both switches together.
    pub own_remote: Option<Quantiles>,
    /// Ticks of the time stamp counter per second.
    pub tsc_hz: u64,
    pub queue_pairs: QpSums,
    pub counted: Vec<SwitchReport>,
}

impl GroupReport {
    pub fn new(
        options: &GroupOptions,
        layout: &Layout,
        floor: Quantiles,
        outcome: &Outcome,
        counted: Vec<SwitchReport>,
        queue_pairs: &[Value],
        tsc_hz: u64,
    ) -> Self {
        let outcome = GroupTraffic::new(outcome);
        let own = |delay: Option<Quantiles>| delay.map(|delay| delay.less(floor.p50));
        Self {
            switches: options.switches,
            members: MEMBERS,
            row: options.row,
            rounds_per_second: options.rounds,
            shared_core: layout.shared,
            own_local: own(outcome.local),
            own_remote: own(outcome.remote),
            floor,
            outcome,
            tsc_hz,
            queue_pairs: QpSums::of(queue_pairs),
            counted,
        }
    }

    /// True without any loss, gap, damage or drop.
    pub fn is_clean(&self) -> bool {
        let outcome = &self.outcome;
        let faults = [outcome.lost, outcome.gaps, outcome.strays, outcome.damaged, outcome.unsent];
        faults == [0; 5]
            && outcome.sent == outcome.received
            && (self.queue_pairs.gaps, self.queue_pairs.retransmissions) == (0, 0)
            && self.counted.iter().all(|switch| switch.drops.is_empty())
    }

    /// The report for people.
    pub fn parts(&self) -> Vec<Part> {
        let (outcome, sums) = (&self.outcome, &self.queue_pairs);
        let mut lines = vec![
            format!(
                "{} members on {} switch{}, rows of {} bytes; {} rounds in {:.1} s ({} a second wanted, {} not begun in time)",
                self.members,
                self.switches,
                if self.switches == 1 { "" } else { "es" },
                self.row,
                outcome.rounds,
                outcome.seconds,
                self.rounds_per_second,
                outcome.late_rounds,
            ),
            format!(
                "packets: sent {}, received {}, lost {}, out of sequence {}, stray {}, damaged {}",
                outcome.sent, outcome.received, outcome.lost, outcome.gaps, outcome.strays, outcome.damaged
            ),
            format!(
                "the switches' view: {} queue pairs in use, {} packets, gaps {}, retransmissions {}",
                sums.in_use, sums.packets, sums.gaps, sums.retransmissions
            ),
        ];
        let drops = self.counted.iter().enumerate();
        lines.extend(drops.map(|(n, switch)| format!("drops of switch {n}: {}", by_name(&switch.drops))));
        let rows = [
            ("no switch: two memifs", Some(self.floor)),
            ("on one switch", outcome.local),
            ("  the switch's own", self.own_local),
            ("across two switches", outcome.remote),
            ("  the switches' own", self.own_remote),
            ("a whole round", outcome.round_time),
        ];
        let rows: Vec<_> = rows.into_iter().filter_map(|(name, delay)| Some((name, delay?))).collect();
        let mut parts: Vec<Part> = lines.into_iter().map(Part::Words).collect();
        parts.push(Part::table(&DELAYS, &rows));
        if self.shared_core {
            let words = "(two workers shared one core and slept when idle: their waking up is in the delays)";
            parts.push(Part::Words(words.into()));
        }
        parts
    }

    /// Draws the delays over time: `stem.svg` and `stem.png`.
    pub fn plot(&self, stem: &Path) -> Result<()> {
        let titles = ["delay on one switch, microseconds", "delay across two switches, microseconds"];
        let panel = |(title, series): (&str, &Vec<StreamBin>)| {
            Panel::new(title, true, Series::percentiles(series.iter().map(|bin| (bin.at, bin.delay))))
        };
        let panels: Vec<Panel> = titles.into_iter().zip(&self.outcome.series).map(panel).collect();
        let title = format!(
            "{} members, all to all: {} rounds, {} packets, {} lost",
            self.members, self.outcome.rounds, self.outcome.sent, self.outcome.lost
        );
        plot::draw(stem, &title, "seconds", &panels, &[])
    }
}

/// Delays on a line.
const DELAYS: Table<(&str, Quantiles)> = Table(&[
    column("microseconds", 0, |(name, _)| (*name).to_owned()),
    column("packets", 0, |(_, delay)| delay.packets.to_string()),
    column("p50", 0, |(_, delay)| number(delay.p50, 1)),
    column("p99", 0, |(_, delay)| number(delay.p99, 1)),
    column("p99.9", 0, |(_, delay)| number(delay.p999, 1)),
]);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queue_pairs_are_summed_by_direction() {
        let answer = json!({ "in-use": 2, "queue-pairs": [
            { "direction": "out", "packets": 5, "gaps": 1, "retransmissions": 0 },
            { "direction": "out" },
            { "direction": "in", "packets": 7, "gaps": 0, "retransmissions": 2 },
        ] });
        let sums = QpSums::of(&[answer.clone(), answer]);
        let expected = QpSums { in_use: 4, out: 4, from_wire: 2, packets: 24, gaps: 2, retransmissions: 4 };
        assert_eq!(sums, expected);
    }
}
