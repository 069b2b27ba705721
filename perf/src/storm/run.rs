//! Running an arm: one loop that sends what is due and reads what comes, and the counters around it.

use std::time::{Duration, Instant};

use pmd::{Burst, rdtsc};
use wire::Qpn;

use super::field::{Field, VICTIM_QPN};
use super::report::{Arm, Bin, Capacity};
use super::{Options, WINDOW};
use crate::host::threads::cpu_seconds;
use crate::host::{HostError, interrupt};
use crate::live::LiveError;
use crate::live::config::Counted;
use crate::live::delay::Delays;
use crate::live::pace::Pace;
use crate::live::ports::BURST;
use crate::live::verbs::{self, Kind};

/// Bytes of the tunnel's headers.
const OUTER: usize = 50;
/// How long the way must be silent before what is missing counts as lost.
const SILENCE: Duration = Duration::from_millis(300);
/// Length of a step of the time series.
const BIN: Duration = Duration::from_millis(50);
/// How far behind its schedule a sender catches up.
const BACKLOG: u64 = 64;
/// How long the victim waits for packets on their way before they leave the window: longer than a thread is stopped.
const PATIENCE: Duration = Duration::from_millis(50);
const CAPACITY: Duration = Duration::from_millis(1500);

/// What went over the ports.
#[derive(Debug, Default)]
struct Traffic {
    victim_sent: u64,
    victim_served: u64,
    storm_sent: u64,
    storm_served: u64,
    gaps: u64,
    odd: u64,
    victim_held: u64,
    /// Packets of the victim that nobody waits for any more: they keep the window closed no longer.
    written_off: u64,
    /// When something came last.
    arrival: u64,
    delays: Delays,
    bin_delays: Delays,
}

impl Traffic {
    /// How many packets of the victim may be sent. What was lost leaves the window after a while.
    fn open(&mut self, now: u64, patience: u64) -> u64 {
        let on_their_way = self.victim_sent.saturating_sub(self.victim_served + self.written_off);
        if on_their_way >= WINDOW && now.saturating_sub(self.arrival) > patience {
            self.written_off += on_their_way;
            return WINDOW;
        }
        WINDOW.saturating_sub(on_their_way)
    }

    /// Sends up to `count` packets of the victim.
    fn send_victim(&mut self, field: &mut Field, count: u64, now: u64) {
        let queue_pairs = field.sent_psn.len() as u64;
        for _ in 0..count.min(field.victim.room() as u64) {
            let index = ((self.victim_sent + field.victim.waiting() as u64) % queue_pairs) as usize;
            let psn = field.sent_psn[index];
            let frame = field.write.fill(Qpn::truncated(VICTIM_QPN + index as u32), psn, (now, 0));
            if !field.victim.push(frame) {
                break;
            }
            field.sent_psn[index] = (psn + 1) & 0xff_ffff;
        }
        self.victim_sent += field.victim.flush() as u64;
    }

    /// Sends up to `count` packets of the storm, each to a queue pair that was not seen before.
    fn send_storm(&mut self, field: &mut Field, count: u64, now: u64) {
        for _ in 0..count.min(field.storm.room() as u64) {
            let qpn = field.next_storm_qpn();
            let frame = field.storm_write.fill(qpn, 0, (now, 0));
            if !field.storm.push(frame) {
                break;
            }
        }
        self.storm_sent += field.storm.flush() as u64;
    }

    /// Reads what came out of the tunnel. True when there was something.
    fn receive(&mut self, field: &mut Field, burst: &mut Burst) -> bool {
        if field.uplink.receive(burst) == 0 {
            return false;
        }
        let now = rdtsc();
        self.arrival = now;
        for packet in burst.iter() {
            let Some(seen) =
                verbs::read(wire::PacketBuf::head(packet), OUTER).filter(|seen| seen.kind == Kind::Write)
            else {
                self.odd += 1;
                continue;
            };
            let index = seen.qpn.wrapping_sub(VICTIM_QPN) as usize;
            let Some(awaited) = field.awaited_psn.get_mut(index) else {
                self.storm_served += 1;
                continue;
            };
            self.gaps += u64::from(seen.psn != *awaited);
            *awaited = (seen.psn + 1) & 0xff_ffff;
            self.victim_served += 1;
            let delay = now.saturating_sub(seen.mark.0);
            self.delays.record(delay);
            self.bin_delays.record(delay);
        }
        burst.clear();
        true
    }

    /// Reads until nothing comes any more.
    fn drain(&mut self, field: &mut Field, burst: &mut Burst) -> Result<(), LiveError> {
        let mut last = Instant::now();
        while last.elapsed() < SILENCE {
            self.victim_sent += field.victim.flush() as u64;
            self.storm_sent += field.storm.flush() as u64;
            if self.receive(field, burst) {
                last = Instant::now();
            }
            if self.victim_served == self.victim_sent
                && field.victim.waiting() == 0
                && last.elapsed() > SILENCE / 10
            {
                break;
            }
            interrupt::check()?;
        }
        Ok(())
    }
}

/// Measures what the worker can do with the victim's traffic alone: as much as the rings take.
pub fn capacity(field: &mut Field) -> Result<Capacity, LiveError> {
    let mut traffic = Traffic::default();
    let mut burst = Burst::with_capacity(2 * BURST);
    // The first turn opens the queue pairs.
    flood(field, &mut traffic, &mut burst, CAPACITY / 3)?;
    let warmed = traffic.victim_served;
    if warmed == 0 {
        return Err(LiveError::Silent("no packet of the victim came through the switch".into()));
    }
    let pid = field.daemon.process().pid();
    let before = Counted::of(&mut field.daemon)?;
    let (cpu_before, start) = (cpu_seconds(pid, field.thread)?, Instant::now());
    flood(field, &mut traffic, &mut burst, CAPACITY)?;
    let (cpu, wall) = (cpu_seconds(pid, field.thread)? - cpu_before, start.elapsed().as_secs_f64());
    let after = Counted::of(&mut field.daemon)?;
    traffic.drain(field, &mut burst)?;
    let packets = traffic.victim_served - warmed;
    let spent = |counter| -> Result<u64, LiveError> { Ok(after.worker(counter)? - before.worker(counter)?) };
    let (busy, idle) = (spent("busy-cycles")?, spent("idle-cycles")?);
    let busy_share = busy as f64 / (busy + idle).max(1) as f64;
    let lost = traffic.victim_sent - traffic.victim_served;
    if lost != 0 || traffic.gaps != 0 || packets == 0 {
        let drops = Counted::at_rest(&mut field.daemon)?.drops_since(&before);
        return Err(LiveError::Silent(format!(
            "{lost} of {} packets of the victim were lost before any storm (drops since: {drops:?}); see to that first",
            traffic.victim_sent
        )));
    }
    field.awaited_psn.clone_from(&field.sent_psn);
    Ok(Capacity {
        packets,
        busy_share,
        core_share: cpu / wall,
        packets_per_cpu_second: packets as f64 / (cpu * busy_share).max(1e-9),
    })
}

/// As much of the victim as the window allows.
fn flood(
    field: &mut Field,
    traffic: &mut Traffic,
    burst: &mut Burst,
    length: Duration,
) -> Result<(), HostError> {
    let end = rdtsc() + field.runtime.clock.cycles(length);
    let patience = field.runtime.clock.cycles(PATIENCE);
    loop {
        let now = rdtsc();
        if now >= end {
            return interrupt::check();
        }
        traffic.receive(field, burst);
        let open = traffic.open(now, patience);
        traffic.send_victim(field, open.min(BURST as u64), now);
    }
}

/// One arm: the victim at `rate`, with or without the storm.
pub fn arm(
    field: &mut Field,
    options: &Options,
    pair: usize,
    rate: u64,
    storm: bool,
) -> Result<Arm, LiveError> {
    let before = Counted::at_rest(&mut field.daemon)?;
    let pid = field.daemon.process().pid();
    let cpu_before = cpu_seconds(pid, field.thread)?;
    let mut traffic = Traffic::default();
    let mut burst = Burst::with_capacity(2 * BURST);
    let mut bins = Vec::new();
    let clock = field.runtime.clock;
    let hertz = clock.hz();
    let start = rdtsc();
    let patience = clock.cycles(PATIENCE);
    let (end, step) = (start + clock.cycles(options.length()), clock.cycles(BIN));
    let mut victim_pace = Pace::new(rate, hertz, start, BACKLOG);
    let mut storm_pace = Pace::new(if storm { options.storm_rate } else { 0 }, hertz, start, BACKLOG);
    let (mut bin_end, mut last) = (start + step, (0, 0, 0, 0));
    loop {
        let now = rdtsc();
        traffic.receive(field, &mut burst);
        let due = victim_pace.due(now);
        let open = traffic.open(now, patience);
        traffic.victim_held += u64::from(due > 0 && open == 0);
        let sent = traffic.victim_sent;
        traffic.send_victim(field, due.min(open).min(BURST as u64), now);
        victim_pace.take(traffic.victim_sent - sent);
        let due = storm_pace.due(now);
        if due > 0 {
            let sent = traffic.storm_sent;
            traffic.send_storm(field, due.min(BURST as u64), now);
            storm_pace.take(traffic.storm_sent - sent);
        }
        if now >= bin_end {
            let total =
                (traffic.victim_sent, traffic.victim_served, traffic.storm_sent, traffic.storm_served);
            bins.push(Bin::new(
                clock.nanos(now - start) as f64 / 1e9,
                clock.nanos(now + step - bin_end) as f64 / 1e9,
                [total.0 - last.0, total.1 - last.1, total.2 - last.2, total.3 - last.3],
                traffic.bin_delays.quantiles(hertz),
            ));
            traffic.bin_delays.clear();
            (bin_end, last) = (now + step, total);
            interrupt::check()?;
        }
        if now >= end {
            break;
        }
    }
    let cpu = cpu_seconds(pid, field.thread)? - cpu_before;
    let seconds = clock.nanos(rdtsc() - start) as f64 / 1e9;
    traffic.drain(field, &mut burst)?;
    let after = Counted::at_rest(&mut field.daemon)?;
    field.awaited_psn.clone_from(&field.sent_psn);
    if traffic.victim_sent == 0 {
        return Err(LiveError::Silent("the victim sent nothing".into()));
    }
    let rx = after.port("victim", "rx-packets")? - before.port("victim", "rx-packets")?;
    Ok(Arm {
        pair,
        storm,
        seconds,
        core_share: cpu / seconds,
        victim_sent: traffic.victim_sent,
        victim_received_by_switch: rx,
        victim_served: traffic.victim_served,
        victim_lost: rx.saturating_sub(traffic.victim_served),
        victim_gaps: traffic.gaps,
        victim_drops: after.vnic("victim", "drops")? - before.vnic("victim", "drops")?,
        delay: traffic.delays.quantiles(hertz),
        late: victim_pace.skipped(),
        held: traffic.victim_held,
        storm_sent: traffic.storm_sent,
        storm_admitted: traffic.storm_served,
        storm_refused: traffic.storm_sent.saturating_sub(traffic.storm_served),
        odd: traffic.odd,
        drops: after.drops_since(&before),
        bins,
    })
}
