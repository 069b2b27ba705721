//! The rig: ports, streams, and the one loop that sends what is due and reads what comes.
//!
//! One thread does both, so that a hiccup of its own delays both. It makes no judgement: a run ends in an [`Outcome`].

use std::time::Duration;

use pmd::{Burst, rdtsc};

use super::mark::Mark;
use super::observer::Observer;
use super::outcome::{Bin, Outcome, StreamOutcome};
use super::parse::{acknowledged, checksums_right};
use super::ports::{Lane, whole};
use super::rounds::Rounds;
use super::scenario::Generator;
use super::scenario::check::StreamPlan;
use super::stream::Stream;
use super::tally::{Stretch, Tally, Time};
use crate::Result;
use crate::host::interrupt;
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
    pub seconds: f64,
    /// How many frames of each stream at most.
    pub frames: Option<u64>,
    /// Tell each stream over time, in steps of so many seconds; it costs a second histogram.
    pub series: Option<f64>,
    /// So many rounds a second: in each, every flow sends a frame, and the next one begins when it is due and all of the
    /// last has come. Streams have no rates then.
    pub rounds: Option<f64>,
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
    /// Acknowledgements that wait to be sent, by lane.
    answers: Vec<Burst>,
    generator: Generator,
    run: u8,
    space: Vec<u8>,
}

/// What is counted over all streams.
#[derive(Debug, Default)]
struct Sums {
    seen: u64,
    /// The counts of the outcome, for its end.
    outcome: Outcome,
    bin: (u64, u64, u64, u64, u64),
}

impl Rig {
    /// Puts streams on lanes. `None` for streams that a plan's check does not let pass.
    pub fn new(lanes: Vec<Lane>, plans: &[StreamPlan], generator: &Generator) -> Option<Self> {
        let mut streams = Vec::new();
        let mut first_flow = 0;
        for plan in plans {
            streams.push(Stream::new(plan, first_flow, generator)?);
            first_flow += plan.flows;
        }
        let mut awaited: Vec<usize> = streams.iter().flat_map(Stream::awaited).collect();
        awaited.sort_unstable();
        awaited.dedup();
        let answers = lanes.iter().map(|_| Burst::with_capacity(2 * BURST)).collect();
        let (generator, space) = (generator.clone(), Vec::new());
        Some(Self { lanes, streams, awaited, answers, generator, run: 0, space })
    }

    pub fn into_lanes(self) -> Vec<Lane> {
        self.lanes
    }

    /// Meets a demand, or what of it is met when the user ends it.
    pub fn run(
        &mut self,
        runtime: &Runtime,
        demand: &Demand,
        observer: &mut impl Observer,
    ) -> Result<Outcome> {
        self.run = if self.run == u8::MAX { 1 } else { self.run + 1 };
        let losses_before = self.driver_losses()?;
        let hertz = runtime.clock.hz();
        let ticks = |seconds: f64| (seconds * hertz as f64) as u64;
        let mut tallies: Vec<Tally> = self.streams.iter().map(|stream| Tally::new(stream, demand)).collect();
        let mut sums = Sums::default();
        let mut burst = Burst::with_capacity(2 * BURST);
        // Nothing is due while the tallies of many flows are made.
        let start = rdtsc();
        for ((stream, tally), &rate) in self.streams.iter_mut().zip(&mut tallies).zip(&demand.rates) {
            tally.begin(rate, self.generator.backlog, Time { hertz, start });
            stream.sender.begin(hertz, start);
        }
        let step = demand.series.unwrap_or((demand.seconds / BINS).max(0.01));
        let (end, step) = (start + ticks(demand.seconds), ticks(step));
        let (mut bins, mut bin_end, mut bin_start) = (Vec::new(), start + step, start);
        let patience = runtime.clock.cycles(PATIENCE);
        let mut rounds = demand.rounds.map(|rate| Rounds::new(rate, &runtime.clock, start));
        let mut interrupted = false;
        let mut now = start;
        // A round that has begun is finished.
        while now < end || rounds.as_ref().is_some_and(Rounds::is_open) {
            if let Some(rounds) = &mut rounds {
                rounds.turn(now, now < end, &mut tallies);
            }
            let left = self.send_all(runtime, &mut tallies, demand, patience, now);
            self.receive_all(runtime, &mut tallies, &mut sums, &mut burst);
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
        self.drain(runtime, &mut tallies, &mut sums, &mut burst);
        Ok(Outcome {
            seconds,
            interrupted,
            streams: self.snapshot(&tallies, hertz),
            driver_losses: self.driver_losses()?.saturating_sub(losses_before),
            bins,
            rounds: rounds.map(|rounds| rounds.outcome(hertz)).unwrap_or_default(),
            ..sums.outcome
        })
    }

    /// The same to its end: fails where the user did not wait for that.
    pub fn run_through(
        &mut self,
        runtime: &Runtime,
        demand: &Demand,
        observer: &mut impl Observer,
    ) -> Result<Outcome> {
        let outcome = self.run(runtime, demand, observer)?;
        interrupt::check()?;
        Ok(outcome)
    }

    fn driver_losses(&self) -> Result<u64> {
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
        // In rounds one by one, so that nothing that comes meanwhile waits for us.
        let most_at_once = if demand.rounds.is_some() { 1 } else { BURST as u64 };
        for (stream, tally) in self.streams.iter_mut().zip(tallies) {
            stream.sender.turn_over(now);
            let mut due = tally.due(now);
            if let Some(most) = demand.frames {
                due = due.min(most.saturating_sub(tally.made));
                left |= tally.made < most || stream.is_waiting();
            } else {
                left = true;
            }
            let wanted = due.min(most_at_once);
            let open = tally.open(stream.window, now, patience);
            let room = wanted.min(stream.room() as u64).min(open);
            let (made, bytes) = stream.make(runtime, self.run, now, room);
            tally.take(made);
            tally.sent_bytes += bytes;
            tally.sent += stream.flush(&mut self.lanes);
            tally.blocked = made < wanted || stream.is_waiting();
        }
        left
    }

    #[inline]
    fn receive_all(
        &mut self,
        runtime: &Runtime,
        tallies: &mut [Tally],
        sums: &mut Sums,
        burst: &mut Burst,
    ) -> bool {
        let Self { lanes, streams, awaited, answers, generator, space, .. } = self;
        let mut any = false;
        for &lane in awaited.iter() {
            if !answers[lane].is_empty() {
                lanes[lane].send(&mut answers[lane]);
            }
            if lanes[lane].receive(burst) == 0 {
                continue;
            }
            any = true;
            let now = rdtsc();
            for packet in burst.iter() {
                let frame = whole(packet, space);
                sums.bin.1 += 1;
                sums.seen += 1;
                let every = u64::from(generator.verify_every);
                if every > 0 && sums.seen.is_multiple_of(every) {
                    sums.outcome.verified += 1;
                    sums.outcome.damaged += u64::from(!checksums_right(frame));
                }
                let Some(mark) = Mark::of(frame) else {
                    sums.outcome.foreign += u64::from(!take_unsigned(streams, tallies, lane, frame, now));
                    continue;
                };
                if mark.run != self.run {
                    sums.outcome.stale += 1;
                    continue;
                }
                let mut all = tallies.iter_mut().enumerate();
                let taker = all.find_map(|(index, tally)| {
                    tally.ledger.take(&mark, frame).map(|arrival| (index, tally, arrival))
                });
                let Some((index, tally, arrival)) = taker else {
                    sums.outcome.foreign += 1;
                    continue;
                };
                let stream = &streams[index];
                if stream.to != Some(lane) {
                    let taken =
                        stream.take_connected(mark.flow, lane, frame, runtime, &mut answers[lane], tally);
                    sums.outcome.misplaced += u64::from(!taken);
                }
                let delay = mark.age(now);
                tally.take_delay(arrival, delay, now);
                sums.bin.2 += delay;
                sums.bin.3 = sums.bin.3.max(delay);
                sums.bin.4 += 1;
            }
            burst.clear();
            if !answers[lane].is_empty() {
                lanes[lane].send(&mut answers[lane]);
            }
        }
        any
    }

    /// Sends what waits and reads until everything has come, or nothing comes any more.
    fn drain(&mut self, runtime: &Runtime, tallies: &mut [Tally], sums: &mut Sums, burst: &mut Burst) {
        let silence = runtime.clock.cycles(SILENCE);
        let mut last = rdtsc();
        loop {
            let mut any = self.receive_all(runtime, tallies, sums, burst);
            for (stream, tally) in self.streams.iter_mut().zip(tallies.iter_mut()) {
                let sent = stream.flush(&mut self.lanes);
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
                .all(|(tally, stream)| tally.arrived() >= tally.sent && !stream.is_waiting());
            // Something may still come twice.
            if now - last > if done { silence / 10 } else { silence } {
                break;
            }
        }
        for (stream, tally) in self.streams.iter_mut().zip(tallies) {
            for (_, burst) in &mut stream.waiting {
                tally.refused += burst.len() as u64;
                burst.clear();
            }
        }
    }

    fn snapshot(&self, tallies: &[Tally], hertz: u64) -> Vec<StreamOutcome> {
        let streams = self.streams.iter().zip(tallies);
        streams.map(|(stream, tally)| tally.outcome(stream, hertz)).collect()
    }
}

/// Takes in a frame without a signature: an acknowledgement, or of a capture. `false` when it is neither.
#[inline(never)]
fn take_unsigned(streams: &[Stream], tallies: &mut [Tally], lane: usize, frame: &[u8], now: u64) -> bool {
    let answered = streams.iter().any(|stream| stream.answers.is_some());
    let answer = if answered { acknowledged(frame) } else { None };
    let mut all = streams.iter().zip(tallies);
    all.any(|(stream, tally)| {
        answer.is_some_and(|answer| stream.take_answer(lane, answer, frame, tally))
            || stream.take_unsigned(lane, frame, now, tally)
    })
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
