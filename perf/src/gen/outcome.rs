//! What a run came to.

use serde::{Deserialize, Serialize};

use super::ledger::Received;
use crate::report::delay::Quantiles;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// How long it sent, in seconds.
    pub seconds: f64,
    pub interrupted: bool,
    pub streams: Vec<StreamOutcome>,
    /// Frames that are none of the streams'.
    pub foreign: u64,
    /// Frames of streams that came out of another port than the one that awaits them.
    pub misplaced: u64,
    /// Frames of earlier runs.
    pub stale: u64,
    /// Frames of which the checksums or the ICRC were looked at.
    pub verified: u64,
    pub damaged: u64,
    pub driver_losses: u64,
    #[serde(skip_deserializing)]
    pub bins: Vec<Bin>,
    /// Of a run in rounds.
    #[serde(skip)]
    pub rounds: RoundsOutcome,
}

/// What became of rounds, in each of which every flow sends a frame.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundsOutcome {
    pub begun: u64,
    /// Those that were due while another one was under way.
    pub late: u64,
    /// From the first frame of a round to its last answer.
    pub time: Option<Quantiles>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StreamOutcome {
    pub name: String,
    pub sent: u64,
    /// Frames that were due while the port had no room: offered, and not taken.
    pub refused: u64,
    /// Frames that were due while the generator was late; nobody was offered them.
    pub late: u64,
    /// Frames sent and never received.
    pub lost: u64,
    pub new_flows: u64,
    #[serde(flatten)]
    pub received: Received,
    /// Bytes sent and received per frame on average, in memory.
    pub sent_bytes: u64,
    /// From making a frame to reading it, in microseconds.
    pub delay: Option<Quantiles>,
    /// Acknowledgements that its receivers sent, and what became of them.
    #[serde(skip)]
    pub answers_sent: u64,
    #[serde(skip)]
    pub answers: Received,
    /// Over time, where that was asked for.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<StreamBin>,
}

/// A stream in a stretch of time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StreamBin {
    /// Its end, in seconds from the beginning.
    pub at: f64,
    /// Frames sent per second.
    pub sent: f64,
    /// Frames received per second, repetitions not counted.
    pub received: f64,
    pub delay: Option<Quantiles>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bin {
    /// Its end, in seconds from the beginning.
    pub at: f64,
    /// Frames sent per second.
    pub sent: f64,
    /// Frames received per second.
    pub received: f64,
    /// Mean delay in microseconds.
    pub delay_mean: f64,
    /// The longest delay in microseconds.
    pub delay_max: f64,
}

impl Outcome {
    fn sum(&self, of: impl Fn(&StreamOutcome) -> u64) -> u64 {
        self.streams.iter().map(of).sum()
    }

    pub fn sent(&self) -> u64 {
        self.sum(|stream| stream.sent)
    }

    /// Frames that arrived, each counted once.
    pub fn arrived(&self) -> u64 {
        self.sum(|stream| stream.sent - stream.lost)
    }

    /// Frames lost between being sent and received.
    pub fn lost(&self) -> u64 {
        self.sum(|stream| stream.lost)
    }

    /// Frames that ports did not take.
    pub fn refused(&self) -> u64 {
        self.sum(|stream| stream.refused)
    }

    /// Frames that the generator was late for.
    pub fn late(&self) -> u64 {
        self.sum(|stream| stream.late)
    }

    /// Frames offered per second.
    pub fn offered_rate(&self) -> f64 {
        (self.sent() + self.refused()) as f64 / self.seconds
    }

    /// Frames received per second.
    pub fn arrived_rate(&self) -> f64 {
        self.arrived() as f64 / self.seconds
    }

    /// The share of offered frames that did not arrive. A frame that a port had no room for was offered.
    pub fn loss(&self) -> f64 {
        let offered = self.sent() + self.refused();
        (self.lost() + self.refused()) as f64 / offered.max(1) as f64
    }

    /// The share of what was due that the generator was late for: its own fault.
    pub fn lateness(&self) -> f64 {
        let due = self.sent() + self.refused() + self.late();
        self.late() as f64 / due.max(1) as f64
    }
}

/// A rate in a few characters.
pub fn rate_text(packets: f64) -> String {
    match packets {
        packets if packets >= 1e6 => format!("{:.3} Mpps", packets / 1e6),
        packets if packets >= 1e3 => format!("{:.2} kpps", packets / 1e3),
        packets => format!("{packets:.1} pps"),
    }
}
