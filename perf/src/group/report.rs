//! The result of group traffic: a table for people, JSON for scripts, and a plot over time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{Layout, MEMBERS, Options};
use crate::live::LiveError;
use crate::live::config::Counted;
use crate::live::delay::Quantiles;
use crate::live::plot::{self, Panel, Series};

/// A step of the time series.
#[derive(Debug, Clone, Serialize)]
pub struct Bin {
    /// Seconds since the start, at its end.
    pub at: f64,
    /// Delays between members of one switch.
    pub local: Option<Quantiles>,
    /// Delays across the tunnel.
    pub remote: Option<Quantiles>,
}

/// What the members saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// How long it took.
    pub seconds: f64,
    /// Rounds begun.
    pub rounds: u64,
    /// Rounds that were due while another one was under way.
    pub late_rounds: u64,
    /// Packets sent: writes, acknowledgements, datagrams.
    pub sent: u64,
    /// Packets that found no room or buffer here.
    pub unsent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets that did not come within their round's time.
    pub lost: u64,
    /// Packets out of sequence.
    pub gaps: u64,
    /// Packets for somebody else.
    pub strays: u64,
    /// Packets whose ICRC is wrong, or that are cut.
    pub damaged: u64,
    /// Delays of writes and datagrams between members of one switch.
    pub local: Option<Quantiles>,
    /// And across the tunnel, through both switches.
    pub remote: Option<Quantiles>,
    /// From the first packet of a round to its last acknowledgement.
    pub round_time: Option<Quantiles>,
    /// Over time.
    #[serde(skip)]
    pub bins: Vec<Bin>,
}

/// What a switch counted.
#[derive(Debug, Clone, Serialize)]
pub struct SwitchReport {
    /// Its counters before the first round.
    pub before: Counted,
    /// And after the last.
    pub after: Counted,
    /// What it dropped meanwhile, by name.
    pub drops: BTreeMap<String, u64>,
}

/// The switches' own view of the queue pairs, summed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QpSums {
    /// Queue pairs that the members have in use.
    pub in_use: u64,
    /// Entries toward the wire.
    pub out: u64,
    /// Entries from the wire.
    pub from_wire: u64,
    /// Packets in all of them.
    pub packets: u64,
    /// Gaps that the switches saw.
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
                *(if row["way"] == "out" { &mut sums.out } else { &mut sums.from_wire }) += 1;
                sums.packets += count("packets");
                sums.gaps += count("gaps");
                sums.retransmissions += count("retransmissions");
            }
        }
        sums
    }
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Switches.
    pub switches: usize,
    /// Members.
    pub members: usize,
    /// Bytes of a row.
    pub row: usize,
    /// Rounds per second asked for.
    pub rounds_per_second: u64,
    /// Whether the workers shared a core and slept when idle.
    pub shared_core: bool,
    /// Delays without any switch.
    pub floor: Quantiles,
    /// What the members saw.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The switch's own delay: the one measured less the middle one without a switch.
    pub own_local: Option<Quantiles>,
    /// Across the tunnel: of both switches together.
    pub own_remote: Option<Quantiles>,
    /// Ticks of the time stamp counter per second.
    pub tsc_hz: u64,
    /// The switches' view of the queue pairs.
    pub queue_pairs: QpSums,
    /// What the switches counted.
    pub counted: Vec<SwitchReport>,
}

impl Report {
    /// Sums up.
    pub fn new(
        options: &Options,
        layout: &Layout,
        floor: Quantiles,
        outcome: Outcome,
        (before, after): (Vec<Counted>, Vec<Counted>),
        queue_pairs: Vec<Value>,
        tsc_hz: u64,
    ) -> Self {
        let own = |delay: Option<Quantiles>| delay.map(|delay| delay.less(floor.p50));
        let counted = before
            .into_iter()
            .zip(after)
            .map(|(before, after)| SwitchReport { drops: after.drops_since(&before), before, after })
            .collect();
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
            queue_pairs: QpSums::of(&queue_pairs),
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
    pub fn text(&self) -> String {
        let outcome = &self.outcome;
        let mut text = format!(
            "{} members on {} switch{}, rows of {} bytes; {} rounds in {:.1} s ({} a second wanted, {} not begun in time)\n",
            self.members,
            self.switches,
            if self.switches == 1 { "" } else { "es" },
            self.row,
            outcome.rounds,
            outcome.seconds,
            self.rounds_per_second,
            outcome.late_rounds,
        );
        text.push_str(&format!(
            "packets: sent {}, received {}, lost {}, out of sequence {}, stray {}, damaged {}\n",
            outcome.sent, outcome.received, outcome.lost, outcome.gaps, outcome.strays, outcome.damaged
        ));
        let sums = &self.queue_pairs;
        text.push_str(&format!(
            "the switches' view: {} queue pairs in use, {} packets, gaps {}, retransmissions {}\n",
            sums.in_use, sums.packets, sums.gaps, sums.retransmissions
        ));
        for (index, switch) in self.counted.iter().enumerate() {
            let drops: Vec<String> =
                switch.drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
            let drops = if drops.is_empty() { "none".into() } else { drops.join(", ") };
            text.push_str(&format!("drops of switch {index}: {drops}\n"));
        }
        text.push_str(&format!(
            "{:<34} {:>9} {:>8} {:>8} {:>9}\n",
            "microseconds", "packets", "p50", "p99", "p99.9"
        ));
        let rows = [
            ("no switch: two memifs", Some(self.floor)),
            ("on one switch", outcome.local),
            ("  the switch's own", self.own_local),
            ("across two switches", outcome.remote),
            ("  the switches' own", self.own_remote),
            ("a whole round", outcome.round_time),
        ];
        for (name, delay) in rows {
            if let Some(delay) = delay {
                text.push_str(&format!("{name:<34} {:>9} {delay}\n", delay.packets));
            }
        }
        if self.shared_core {
            text.push_str(
                "(two workers shared one core and slept when idle: their waking up is in the delays)\n",
            );
        }
        text
    }

    /// Draws the delays over time: `stem.svg` and `stem.png`.
    pub fn plot(&self, stem: &Path) -> Result<(), LiveError> {
        let line = |name: &str, value: &dyn Fn(&Bin) -> Option<f64>| Series {
            name: name.into(),
            points: self.outcome.bins.iter().map(|bin| (bin.at, value(bin).unwrap_or(f64::NAN))).collect(),
        };
        let panel = |title: &str, of: &dyn Fn(&Bin) -> Option<Quantiles>| Panel {
            title: title.into(),
            series: vec![
                line("p50", &|bin| Some(of(bin)?.p50)),
                line("p99", &|bin| Some(of(bin)?.p99)),
                line("p99.9", &|bin| Some(of(bin)?.p999)),
            ],
            logarithmic: true,
        };
        let mut panels = vec![panel("delay on one switch, microseconds", &|bin| bin.local)];
        if self.switches > 1 {
            panels.push(panel("delay across two switches, microseconds", &|bin| bin.remote));
        }
        let title = format!(
            "{} members, all to all: {} rounds, {} packets, {} lost",
            self.members, self.outcome.rounds, self.outcome.sent, self.outcome.lost
        );
        plot::draw(stem, &title, "seconds", &panels, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queue_pairs_are_summed_by_direction() {
        let answer = json!({ "in-use": 2, "queue-pairs": [
            { "way": "out", "packets": 5, "gaps": 1, "retransmissions": 0 },
            { "way": "out" },
            { "way": "in", "packets": 7, "gaps": 0, "retransmissions": 2 },
        ] });
        let sums = QpSums::of(&[answer.clone(), answer]);
        let expected = QpSums { in_use: 4, out: 4, from_wire: 2, packets: 24, gaps: 2, retransmissions: 4 };
        assert_eq!(sums, expected);
    }
}
