//! A TCP sender with data without end: slow start and congestion avoidance of NewReno (RFC 5681, RFC 6582), without
//! timeouts; a lost packet is noticed a round trip later.

use std::collections::VecDeque;

/// Bytes of a segment's frame.
pub const FRAME: u32 = 1514;

#[derive(Clone, Debug)]
pub struct Tcp {
    window: f64,
    threshold: f64,
    in_flight: u32,
    /// When acknowledgements come.
    acks: VecDeque<u64>,
    /// When losses are noticed.
    losses: VecDeque<u64>,
    /// Losses before this belong to the same event.
    recovered_ns: u64,
    rtt_ns: u64,
    pub dropped: u64,
}

impl Tcp {
    /// A sender over a path with this round trip, queues not counted.
    pub fn new(rtt_ns: u64) -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            in_flight: 0,
            acks: VecDeque::new(),
            losses: VecDeque::new(),
            recovered_ns: 0,
            rtt_ns,
            dropped: 0,
        }
    }

    /// Takes in what has come by now.
    pub fn tick(&mut self, now_ns: u64) {
        while self.acks.front().is_some_and(|at| *at <= now_ns) {
            self.acks.pop_front();
            self.in_flight -= 1;
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        }
        while let Some(at) = self.losses.front().copied().filter(|at| *at <= now_ns) {
            self.losses.pop_front();
            self.in_flight -= 1;
            if at >= self.recovered_ns {
                self.threshold = (self.window / 2.0).max(2.0);
                self.window = self.threshold;
                self.recovered_ns = now_ns + self.rtt_ns;
            }
        }
    }

    /// True when it has a packet to send; then that is in flight.
    pub fn send(&mut self) -> bool {
        let may = f64::from(self.in_flight) + 1.0 <= self.window;
        self.in_flight += u32::from(may);
        may
    }

    pub fn left(&mut self, now_ns: u64) {
        self.acks.push_back(now_ns + self.rtt_ns);
    }

    pub fn lost(&mut self, now_ns: u64) {
        self.dropped += 1;
        self.losses.push_back(now_ns + self.rtt_ns);
    }
}
