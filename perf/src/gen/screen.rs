//! The live screen: a small table, written anew every second. Nothing of it where nobody watches.

use std::io::{IsTerminal, Write as _};
use std::ops::Range;

use super::observer::Observer;
use super::outcome::{StreamOutcome, rate_text};
use crate::Result;
use crate::report::parts::{self, Part};
use crate::report::table::number;

#[derive(Debug, Default)]
pub struct Screen {
    /// Ticks of a second; 0 where nobody watches.
    second: u64,
    next: u64,
    title: String,
    lines: usize,
    before: Vec<(u64, u64)>,
    at: f64,
}

impl Screen {
    /// A screen if standard error is a terminal and nobody asked for silence.
    pub fn new(quiet: bool, hertz: u64) -> Self {
        let watched = !quiet && std::io::stderr().is_terminal();
        Self { second: if watched { hertz } else { 0 }, ..Self::default() }
    }

    /// What is being done from now on.
    pub fn begin(&mut self, title: &str) {
        *self = Self { second: self.second, title: title.into(), ..Self::default() };
    }
}

impl Observer for Screen {
    /// Whether a second has passed.
    #[inline]
    fn is_due(&mut self, now: u64) -> bool {
        if self.second == 0 || now < self.next {
            return false;
        }
        // The first look shows nothing yet.
        let first = self.next == 0;
        self.next = now + self.second;
        !first
    }

    /// Shows how far it has come.
    fn look(&mut self, at: f64, streams: &[StreamOutcome]) -> Result<bool> {
        if self.before.is_empty() {
            self.before = vec![(0, 0); streams.len()];
        }
        let text = table(&self.title, self.at..at, &self.before, streams);
        let up = match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A"),
        };
        let mut stderr = std::io::stderr().lock();
        // A screen that went away is nothing to stop for.
        let _ = write!(stderr, "{up}{}", text.replace('\n', "\x1b[K\n"));
        self.lines = text.lines().count();
        self.before = streams.iter().map(|stream| (stream.sent, stream.received.frames)).collect();
        self.at = at;
        Ok(true)
    }
}

fn table(title: &str, time: Range<f64>, before: &[(u64, u64)], streams: &[StreamOutcome]) -> String {
    let seconds = (time.end - time.start).max(1e-3);
    let rate = |now: u64, before: u64| rate_text(now.saturating_sub(before) as f64 / seconds);
    let row = |(stream, before): (&StreamOutcome, &(u64, u64))| {
        vec![
            stream.name.clone(),
            rate(stream.sent, before.0),
            rate(stream.received.frames, before.1),
            stream.lost.to_string(),
            stream.refused.to_string(),
            number(stream.delay.map(|delay| delay.p50), 1),
            number(stream.delay.map(|delay| delay.p99), 1),
        ]
    };
    let titles = vec!["stream", "sent/s", "received/s", "on the way", "not taken", "p50 us", "p99 us"];
    let rows = streams.iter().zip(before).map(row).collect();
    parts::text(&[Part::Words(format!("{title}, {:.0} s", time.end)), Part::Rows { titles, rows }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_at_every_second_where_somebody_watches() {
        let mut screen = Screen::new(true, 1000);
        assert!(!screen.is_due(1) && !screen.is_due(5000), "nobody watches");
        screen.second = 1000;
        let looks: Vec<u64> = (5000..8500).filter(|&now| screen.is_due(now)).collect();
        assert_eq!(looks, [6000, 7000, 8000]);
        screen.begin("next");
        assert!(!screen.is_due(8500) && screen.is_due(9500));
    }

    #[test]
    fn rates_are_those_since_the_last_look() {
        let stream = StreamOutcome {
            name: "one".into(),
            sent: 3_000_000,
            refused: 5,
            lost: 7,
            received: super::super::ledger::Received { frames: 2_500_000, ..Default::default() },
            ..Default::default()
        };
        let text = table("traffic", 1.0..3.0, &[(1_000_000, 500_000)], &[stream]);
        let row = text.lines().nth(2).unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words, ["one", "1.000", "Mpps", "1.000", "Mpps", "7", "5", "-", "-"]);
        assert!(text.starts_with("traffic, 3 s\n"));
    }
}
