//! The rounds: everybody writes to everybody, answers, and sends datagrams; and the loop without a switch.

use pmd::{Burst, rdtsc};
use wire::{PacketBuf, Qpn, icrc};

use super::members::{self, Fault, Sequences};
use super::port::Memif;
use super::report::{Bin, Outcome};
use super::testbed::{GroupTestBed, home};
use super::verbs::{self, Kind, Mark, Seen};
use super::{MEMBERS, Options};
use crate::host::interrupt;
use crate::live::LiveError;
use crate::live::delay::{Delays, Quantiles};
use crate::live::pace::Pace;
use crate::live::ports::BURST;

/// How long a round may take before what is missing counts as lost.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
/// Length of a step of the time series.
const BIN: std::time::Duration = std::time::Duration::from_millis(100);
/// Turns of the measurement without a switch, and those of them that only warm up.
const DIRECT: (usize, usize) = (22_000, 2_000);
/// Packets that one member sends to another at the start of a round.
const AT_ONCE: usize = 2;

struct Play {
    sequences: Sequences,
    outcome: Outcome,
    /// Packets that the round under way still waits for.
    missing: u64,
    local: Delays,
    remote: Delays,
    bin_local: Delays,
    bin_remote: Delays,
    round_times: Delays,
    acks: Vec<(usize, Qpn, u32)>,
}

/// Plays rounds for as long as asked.
pub fn rounds(testbed: &mut GroupTestBed, options: &Options) -> Result<Outcome, LiveError> {
    let clock = testbed.runtime.clock;
    let hertz = clock.hz();
    let mut play = Play {
        sequences: Sequences::default(),
        outcome: Outcome::default(),
        missing: 0,
        local: Delays::new(),
        remote: Delays::new(),
        bin_local: Delays::new(),
        bin_remote: Delays::new(),
        round_times: Delays::new(),
        acks: Vec::with_capacity(BURST),
    };
    let mut burst = Burst::with_capacity(BURST);
    let start = rdtsc();
    let end = start + clock.cycles(std::time::Duration::from_secs_f64(options.seconds));
    let (patience, step) = (clock.cycles(PATIENCE), clock.cycles(BIN));
    let mut pace = Pace::new(options.rounds, hertz, start, 1);
    let (mut began, mut bin_end) = (start, start + step);
    loop {
        let now = rdtsc();
        if play.missing == 0 {
            if now >= end {
                break;
            }
            if pace.due(now) > 0 {
                pace.take(1);
                play.outcome.rounds += 1;
                began = now;
                play.begin(testbed, &mut burst);
            }
        }
        play.look_around(testbed, &mut burst);
        if play.missing == 0 && began != 0 && play.outcome.rounds > 0 {
            play.round_times.record(rdtsc().saturating_sub(began));
            began = 0;
        } else if play.missing > 0 && now.saturating_sub(began) > patience {
            play.outcome.lost += play.missing;
            play.missing = 0;
            began = 0;
        }
        if now >= bin_end {
            play.outcome.bins.push(Bin {
                at: clock.nanos(now - start) as f64 / 1e9,
                local: play.bin_local.quantiles(hertz),
                remote: play.bin_remote.quantiles(hertz),
            });
            play.bin_local.clear();
            play.bin_remote.clear();
            bin_end = now + step;
            interrupt::check()?;
        }
    }
    let mut outcome = play.outcome;
    outcome.seconds = clock.nanos(rdtsc() - start) as f64 / 1e9;
    outcome.late_rounds = pace.skipped();
    outcome.local = play.local.quantiles(hertz);
    outcome.remote = play.remote.quantiles(hertz);
    outcome.round_time = play.round_times.quantiles(hertz);
    if outcome.received == 0 {
        return Err(LiveError::Silent("no packet of the group came through the switch".into()));
    }
    Ok(outcome)
}

impl Play {
    /// Sends everybody's writes and datagrams, and reads what comes meanwhile: nothing is to wait for us.
    fn begin(&mut self, testbed: &mut GroupTestBed, burst: &mut Burst) {
        // A write is answered.
        self.missing = 3 * (MEMBERS * (MEMBERS - 1)) as u64;
        for from in 0..MEMBERS {
            for to in (0..MEMBERS).filter(|&to| to != from) {
                for kind in [Kind::Write, Kind::Datagram] {
                    let psn = self.sequences.next(kind, from, to);
                    let qpn = members::destination(kind, from, to);
                    let Some(templates) = &mut testbed.templates[from][to] else { continue };
                    let template = match kind {
                        Kind::Write => &mut templates.write,
                        _ => &mut templates.datagram,
                    };
                    let frame = template.fill(qpn, psn, Mark { stamp: rdtsc(), serial: from as u64 });
                    self.push(&mut testbed.members[from], frame);
                }
                self.look_around(testbed, burst);
            }
        }
    }

    /// Sends what waits and reads what has come, for every member.
    fn look_around(&mut self, testbed: &mut GroupTestBed, burst: &mut Burst) {
        testbed.members.iter_mut().for_each(|port| {
            port.flush();
        });
        for member in 0..MEMBERS {
            self.receive(testbed, member, burst);
            testbed.members[member].flush();
        }
    }

    fn push(&mut self, port: &mut Memif, frame: &[u8]) {
        while port.room() == 0 {
            if port.flush() == 0 {
                break;
            }
        }
        if port.push(frame) {
            self.outcome.sent += 1;
        } else {
            self.outcome.unsent += 1;
        }
    }

    /// Reads what a member got, checks it, and answers writes.
    fn receive(&mut self, testbed: &mut GroupTestBed, member: usize, burst: &mut Burst) {
        if testbed.members[member].receive(burst) == 0 {
            return;
        }
        let now = rdtsc();
        for packet in burst.iter() {
            self.outcome.received += 1;
            let Some(seen) = whole(packet.head()) else {
                self.outcome.damaged += 1;
                continue;
            };
            let from = match self.sequences.check(&seen, member) {
                Ok(from) => from,
                Err(Fault::Stray) => {
                    self.outcome.strays += 1;
                    continue;
                }
                Err(Fault::Gap) => {
                    self.outcome.gaps += 1;
                    continue;
                }
            };
            self.missing = self.missing.saturating_sub(1);
            if seen.kind == Kind::Ack {
                continue;
            }
            let delay = now.saturating_sub(seen.mark.stamp);
            if home(from, testbed.switches) == home(member, testbed.switches) {
                self.local.record(delay);
                self.bin_local.record(delay);
            } else {
                self.remote.record(delay);
                self.bin_remote.record(delay);
            }
            if seen.kind == Kind::Write {
                self.acks.push((from, members::destination(Kind::Ack, member, from), seen.psn));
            }
        }
        burst.clear();
        for (to, qpn, psn) in std::mem::take(&mut self.acks) {
            let Some(templates) = &mut testbed.templates[member][to] else { continue };
            let frame = templates.ack.fill(qpn, psn, Mark::default());
            self.push(&mut testbed.members[member], frame);
        }
    }
}

/// What a frame holds, if it is whole and its ICRC is right.
fn whole(frame: &[u8]) -> Option<Seen> {
    let headers = wire::parse::parse(frame, frame.len()).ok()?;
    if icrc::verify(&headers, [frame]) != Some(true) {
        return None;
    }
    verbs::read(frame, 0)
}

/// The same frames in the same portions over two memifs that are each other's far end: what sending, copying twice
/// and receiving take by themselves.
pub fn direct_loop(testbed: &mut GroupTestBed) -> Result<Quantiles, LiveError> {
    let mut delays = Delays::new();
    let mut burst = Burst::with_capacity(BURST);
    let Some(templates) = &mut testbed.templates[0][1] else {
        return Err(LiveError::Silent("member 0 has no frames".into()));
    };
    let (near, far) = (&mut testbed.direct.0, &mut testbed.direct.1);
    let clock = testbed.runtime.clock;
    for turn in 0..DIRECT.0 {
        let (from, to) = if turn % 2 == 0 { (&mut *near, &mut *far) } else { (&mut *far, &mut *near) };
        for psn in 0..AT_ONCE {
            let frame = templates.write.fill(
                members::queue_pair(1, 0),
                psn as u32,
                Mark { stamp: rdtsc(), serial: 0 },
            );
            from.push(frame);
        }
        // A client hands its server room to send into when it is polled.
        to.receive(&mut burst);
        let mut left = from.flush();
        let patience = rdtsc() + clock.cycles(PATIENCE);
        while left > 0 {
            let count = to.receive(&mut burst);
            let now = rdtsc();
            for packet in burst.iter() {
                if let Some(seen) = whole(packet.head())
                    && turn >= DIRECT.1
                {
                    delays.record(now.saturating_sub(seen.mark.stamp));
                }
            }
            burst.clear();
            left = left.saturating_sub(count);
            if now > patience {
                return Err(LiveError::Silent("frames vanish between two memifs of this process".into()));
            }
        }
        if turn % 256 == 0 {
            interrupt::check()?;
        }
    }
    delays
        .quantiles(clock.hz())
        .ok_or_else(|| LiveError::Silent("no frame came through two memifs of this process".into()))
}
