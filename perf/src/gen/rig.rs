//! The rig: ports, streams, and the one loop that sends what is due and reads what comes.
//!
//! One thread does both, so that a hiccup of its own delays both. It makes no judgement: a run ends in an [`Outcome`].

use std::time::Duration;

use pmd::{Burst, rdtsc};

use super::frame::checksums_right;
use super::ledger::Ledger;
use super::mark::Mark;
use super::observer::Observer;
use super::outcome::{Bin, Outcome, StreamBin, StreamOutcome};
use super::ports::{Lane, whole};
use super::scenario::Generator;
use super::scenario::check::StreamPlan;
use super::sender::Sender;
use crate::host::interrupt;
use crate::live::LiveError;
use crate::live::delay::Delays;
use crate::live::pace::Pace;
use crate::live::ports::{BURST, Runtime};

/// How long nothing may come before what is missing counts as lost.
const SILENCE: Duration = Duration::from_millis(300);
/// How long frames on their way keep the window closed.
const PATIENCE: Duration = Duration::from_millis(50);
/// Stretches of time that a run is told in.
const BINS: f64 = 100.0;

/// What a run is to do.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Frames per second of each stream; `None` for as fast as it goes.
    pub rates: Vec<Option<f64>>,
    /// How long.
    pub seconds: f64,
    /// How many frames of each stream at most.
    pub frames: Option<u64>,
    /// Tell each stream over time, in steps of so many seconds; it costs a second histogram.
    pub series: Option<f64>,
}

impl Demand {
    /// Streams at these rates for so long.
    pub fn new(rates: Vec<Option<f64>>, seconds: f64) -> Self {
        Self { rates, seconds, ..Self::default() }
    }
}

#[derive(Debug)]
pub struct Rig {
    lanes: Vec<Lane>,
    streams: Vec<Stream>,
    /// Ports at which something is awaited.
    awaited: Vec<usize>,
    generator: Generator,
    run: u8,
    space: Vec<u8>,
}

#[derive(Debug)]
struct Stream {
    name: String,
    sender: Sender,
    to: usize,
    /// Frames on their way at a time, at most; 0 for any number.
    window: u64,
    waiting: Burst,
}

/// The counter of a run: its ticks a second, and where the run began.
#[derive(Debug, Clone, Copy)]
struct Time {
    hertz: u64,
    start: u64,
}

/// Ticks from one end of a bin to the other.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: u64,
    to: u64,
}

/// The counts of a stream while it runs.
#[derive(Debug)]
struct Tally {
    ledger: Ledger,
    pace: Option<Pace>,
    skipped: u64,
    blocked: bool,
    sent: u64,
    sent_bytes: u64,
    made: u64,
    refused: u64,
    late: u64,
    /// When something of it came last, and the frames that nobody waits for any more: they leave the window.
    arrival: u64,
    written_off: u64,
    /// What came of a capture: its frames have no signature.
    unmarked: (u64, u64),
    delays: Delays,
    /// The step under way of the series, and the steps before it; nothing where it is not asked for.
    step: Option<Step>,
    series: Vec<StreamBin>,
}

/// A step of a series: what there was at its beginning, and the delays in it.
#[derive(Debug, Default)]
struct Step {
    sent: u64,
    arrived: u64,
    delays: Delays,
}

#[derive(Debug, Default)]
struct Sums {
    foreign: u64,
    misplaced: u64,
    stale: u64,
    seen: u64,
    verified: u64,
    damaged: u64,
    bin: (u64, u64, u64, u64, u64),
}

impl Rig {
    /// Puts streams on lanes. `None` for streams that a plan's check does not let pass.
    pub fn new(lanes: Vec<Lane>, plans: &[StreamPlan], generator: &Generator) -> Option<Self> {
        let mut streams = Vec::new();
        let mut first_flow = 0;
        for plan in plans {
            let sender = Sender::new(plan, first_flow, generator.seed)?;
            first_flow += plan.flows;
            let waiting = Burst::with_capacity(BURST);
            let window = plan.window.unwrap_or(generator.window);
            streams.push(Stream { name: plan.name.clone(), sender, to: plan.to, window, waiting });
        }
        let mut awaited: Vec<usize> = streams.iter().map(|stream| stream.to).collect();
        awaited.sort_unstable();
        awaited.dedup();
        Some(Self { lanes, streams, awaited, generator: generator.clone(), run: 0, space: Vec::new() })
    }

    pub fn into_lanes(self) -> Vec<Lane> {
        self.lanes
    }

    pub fn run(
        &mut self,
        runtime: &Runtime,
        demand: &Demand,
        observer: &mut impl Observer,
    ) -> Result<Outcome, LiveError> {
        self.run = if self.run == u8::MAX { 1 } else { self.run + 1 };
        let losses_before = self.driver_losses()?;
        let hertz = runtime.clock.hz();
        let ticks = |seconds: f64| (seconds * hertz as f64) as u64;
        let start = rdtsc();
        let mut tallies: Vec<Tally> = self
            .streams
            .iter()
            .zip(&demand.rates)
            .map(|(stream, &rate)| self.tally(stream, rate, demand.series, Time { hertz, start }))
            .collect();
        self.streams.iter_mut().for_each(|stream| stream.sender.begin(hertz, start));
        let mut sums = Sums::default();
        let mut burst = Burst::with_capacity(2 * BURST);
        let step = demand.series.unwrap_or((demand.seconds / BINS).max(0.01));
        let (end, step) = (start + ticks(demand.seconds), ticks(step));
        let (mut bins, mut bin_end, mut bin_start) = (Vec::new(), start + step, start);
        let patience = runtime.clock.cycles(PATIENCE);
        let mut interrupted = false;
        let mut now = start;
        while now < end {
            let left = self.send_all(runtime, &mut tallies, demand, patience, now);
            self.receive_all(&mut tallies, &mut sums, &mut burst);
            if now >= bin_end {
                let stretch = Stretch { from: bin_start, to: now };
                bins.push(bin(&tallies, &mut sums, Time { hertz, start }, stretch));
                for tally in &mut tallies {
                    tally.end_step(Time { hertz, start }, stretch);
                }
                (bin_start, bin_end) = (now, now + step);
                interrupted = interrupt::check().is_err();
                if interrupted {
                    break;
                }
            }
            if observer.is_due(now) {
                let seconds = (now - start) as f64 / hertz as f64;
                if !observer.look(seconds, &self.snapshot(&tallies, hertz))? {
                    break;
                }
            }
            now = rdtsc();
            if !left {
                break;
            }
        }
        let seconds = (now - start) as f64 / hertz as f64;
        self.drain(&mut tallies, &mut sums, &mut burst, runtime.clock.cycles(SILENCE));
        Ok(Outcome {
            seconds,
            interrupted,
            streams: self.snapshot(&tallies, hertz),
            foreign: sums.foreign,
            misplaced: sums.misplaced,
            stale: sums.stale,
            verified: sums.verified,
            damaged: sums.damaged,
            driver_losses: self.driver_losses()?.saturating_sub(losses_before),
            bins,
        })
    }

    fn tally(&self, stream: &Stream, rate: Option<f64>, series: Option<f64>, time: Time) -> Tally {
        let Time { hertz, start } = time;
        // In thousandths of a frame, so that slow rates are exact.
        let pace = rate.map(|rate| {
            Pace::new((rate * 1000.0) as u64, hertz.saturating_mul(1000), start, self.generator.backlog)
        });
        Tally {
            ledger: Ledger::new(stream.sender.first_flow, stream.sender.numbers()),
            pace,
            skipped: 0,
            blocked: false,
            sent: 0,
            sent_bytes: 0,
            made: 0,
            refused: 0,
            late: 0,
            arrival: start,
            written_off: 0,
            unmarked: (0, 0),
            delays: Delays::new(),
            step: series.map(|_| Step::default()),
            series: Vec::new(),
        }
    }

    fn driver_losses(&self) -> Result<u64, LiveError> {
        self.lanes.iter().map(Lane::losses).sum()
    }

    /// Sends what is due. `false` when no stream has anything left to send.
    #[inline]
    fn send_all(
        &mut self,
        runtime: &Runtime,
        tallies: &mut [Tally],
        demand: &Demand,
        patience: u64,
        now: u64,
    ) -> bool {
        let mut left = false;
        for (stream, tally) in self.streams.iter_mut().zip(tallies) {
            stream.sender.turn_over(now);
            let mut due = tally.due(now);
            if let Some(most) = demand.frames {
                due = due.min(most.saturating_sub(tally.made));
                left |= tally.made < most || !stream.waiting.is_empty();
            } else {
                left = true;
            }
            let wanted = due.min(BURST as u64);
            let open = tally.open(stream.window, now, patience);
            let room = wanted.min(stream.waiting.spare() as u64).min(open);
            let mut made = 0;
            let mut bytes = 0;
            while made < room {
                let Some(packet) = stream.sender.make(runtime.pool(), self.run, now) else { break };
                bytes += wire::PacketBuf::len(&packet) as u64;
                if stream.waiting.push(packet).is_err() {
                    break;
                }
                made += 1;
            }
            tally.take(made);
            tally.sent_bytes += bytes;
            tally.sent += self.lanes[stream.sender.from].send(&mut stream.waiting) as u64;
            tally.blocked = made < wanted || !stream.waiting.is_empty();
        }
        left
    }

    #[inline]
    fn receive_all(&mut self, tallies: &mut [Tally], sums: &mut Sums, burst: &mut Burst) -> bool {
        let mut any = false;
        for &lane in &self.awaited {
            if self.lanes[lane].receive(burst) == 0 {
                continue;
            }
            any = true;
            let now = rdtsc();
            for packet in burst.iter() {
                let frame = whole(packet, &mut self.space);
                sums.bin.1 += 1;
                sums.seen += 1;
                let every = u64::from(self.generator.verify_every);
                if every > 0 && sums.seen.is_multiple_of(every) {
                    sums.verified += 1;
                    sums.damaged += u64::from(!checksums_right(frame));
                }
                let Some(mark) = Mark::of(frame) else {
                    let replayed = |stream: &Stream| stream.to == lane && !stream.sender.is_marked();
                    match self.streams.iter().position(replayed) {
                        Some(index) => {
                            tallies[index].arrival = now;
                            tallies[index].unmarked.0 += 1;
                            tallies[index].unmarked.1 += frame.len() as u64;
                        }
                        None => sums.foreign += 1,
                    }
                    continue;
                };
                if mark.run != self.run {
                    sums.stale += 1;
                    continue;
                }
                let taker = tallies
                    .iter_mut()
                    .enumerate()
                    .find_map(|(index, tally)| tally.ledger.take(&mark, frame).then_some((index, tally)));
                let Some((index, tally)) = taker else {
                    sums.foreign += 1;
                    continue;
                };
                sums.misplaced += u64::from(self.streams[index].to != lane);
                tally.arrival = now;
                let delay = mark.age(now);
                tally.delays.record(delay);
                if let Some(step) = &mut tally.step {
                    step.delays.record(delay);
                }
                sums.bin.2 += delay;
                sums.bin.3 = sums.bin.3.max(delay);
                sums.bin.4 += 1;
            }
            burst.clear();
        }
        any
    }

    /// Sends what waits and reads until everything has come, or nothing comes any more.
    fn drain(&mut self, tallies: &mut [Tally], sums: &mut Sums, burst: &mut Burst, silence: u64) {
        let mut last = rdtsc();
        loop {
            let mut any = self.receive_all(tallies, sums, burst);
            for (stream, tally) in self.streams.iter_mut().zip(tallies.iter_mut()) {
                let sent = self.lanes[stream.sender.from].send(&mut stream.waiting) as u64;
                tally.sent += sent;
                any |= sent > 0;
            }
            let now = rdtsc();
            if any {
                last = now;
            }
            let done = tallies
                .iter()
                .zip(&self.streams)
                .all(|(tally, stream)| tally.arrived() >= tally.sent && stream.waiting.is_empty());
            // Something may still come twice.
            if now - last > if done { silence / 10 } else { silence } {
                break;
            }
        }
        for (stream, tally) in self.streams.iter_mut().zip(tallies) {
            tally.refused += stream.waiting.len() as u64;
            stream.waiting.clear();
        }
    }

    fn snapshot(&self, tallies: &[Tally], hertz: u64) -> Vec<StreamOutcome> {
        let outcome = |(stream, tally): (&Stream, &Tally)| {
            let mut received = tally.ledger.received;
            received.frames += tally.unmarked.0;
            received.bytes += tally.unmarked.1;
            StreamOutcome {
                name: stream.name.clone(),
                sent: tally.sent,
                refused: tally.refused,
                late: tally.late,
                lost: tally.sent.saturating_sub(tally.arrived()),
                new_flows: stream.sender.begun,
                received,
                sent_bytes: tally.sent_bytes,
                delay: tally.delays.quantiles(hertz),
                series: tally.series.clone(),
            }
        };
        self.streams.iter().zip(tallies).map(outcome).collect()
    }
}

impl Tally {
    fn arrived(&self) -> u64 {
        self.ledger.distinct() + self.unmarked.0
    }

    /// How many frames the window lets go. What does not arrive leaves it after a while.
    #[inline]
    fn open(&mut self, window: u64, now: u64, patience: u64) -> u64 {
        if window == 0 {
            return u64::MAX;
        }
        let on_their_way = self.sent.saturating_sub(self.arrived() + self.written_off);
        if on_their_way >= window && now.saturating_sub(self.arrival) > patience {
            self.written_off += on_their_way;
            return window;
        }
        window.saturating_sub(on_their_way)
    }

    /// Frames due; what was given up since the last time is somebody's fault.
    #[inline]
    fn due(&mut self, now: u64) -> u64 {
        let Some(pace) = &mut self.pace else { return u64::MAX };
        let due = pace.due(now);
        let given_up = pace.skipped() - self.skipped;
        if given_up > 0 {
            self.skipped = pace.skipped();
            if self.blocked {
                self.refused += given_up;
            } else {
                self.late += given_up;
            }
        }
        due
    }

    /// Ends a step of the series, if there is one.
    fn end_step(&mut self, time: Time, stretch: Stretch) {
        let (sent, arrived) = (self.sent, self.arrived());
        let Some(step) = &mut self.step else { return };
        let seconds = (stretch.to - stretch.from).max(1) as f64 / time.hertz as f64;
        self.series.push(StreamBin {
            at: (stretch.to - time.start) as f64 / time.hertz as f64,
            sent: (sent - step.sent) as f64 / seconds,
            received: (arrived - step.arrived) as f64 / seconds,
            delay: step.delays.quantiles(time.hertz),
        });
        (step.sent, step.arrived) = (sent, arrived);
        step.delays.clear();
    }

    #[inline]
    fn take(&mut self, made: u64) {
        self.made += made;
        if let Some(pace) = &mut self.pace {
            pace.take(made);
        }
    }
}

fn bin(tallies: &[Tally], sums: &mut Sums, time: Time, stretch: Stretch) -> Bin {
    let (Time { hertz, start }, Stretch { from, to }) = (time, stretch);
    let sent: u64 = tallies.iter().map(|tally| tally.sent).sum();
    let (sent_before, received, delay, longest, timed) = sums.bin;
    sums.bin = (sent, 0, 0, 0, 0);
    let seconds = (to - from).max(1) as f64 / hertz as f64;
    let micros = |ticks: f64| ticks * 1e6 / hertz as f64;
    Bin {
        at: (to - start) as f64 / hertz as f64,
        sent: (sent - sent_before) as f64 / seconds,
        received: received as f64 / seconds,
        delay_mean: if timed == 0 { f64::NAN } else { micros(delay as f64 / timed as f64) },
        delay_max: if timed == 0 { f64::NAN } else { micros(longest as f64) },
    }
}
