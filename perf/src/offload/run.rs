//! Running an arm, and the churn: one loop that sends what is due and reads what comes, and the counters around it.

use std::time::{Duration, Instant};

use pmd::{Burst, rdtsc};

use super::Options;
use super::field::Field;
use super::report::{Arm, Churn, Look};
use crate::host::interrupt;
use crate::live::LiveError;
use crate::live::config::{Counted, number};
use crate::live::pace::Pace;
use crate::live::ports::BURST;

/// Flows that carry the offloaded share, and the others.
const FAST: u16 = 8;
const SLOW: u16 = 2048;
/// Source ports of the fast flows begin here, of the slow ones there, of the churn's behind those.
const FIRST_FAST: u16 = 1000;
const FIRST_SLOW: u16 = 2000;
const FIRST_CHURN: u16 = 8000;
/// Packets of a flow of the churn, and the time between them: it is seen in some looks of the manager, and gone.
const PACKETS: usize = 12;
const GAP: Duration = Duration::from_millis(40);
/// How long the way must be silent before what is missing counts as lost.
const SILENCE: Duration = Duration::from_millis(300);
/// Packets on their way at a time, at most.
const WINDOW: u64 = 2048;
/// How far behind its schedule a sender catches up.
const BACKLOG: u64 = 64;
/// How long flows have to find their places.
const SETTLE: Duration = Duration::from_secs(15);

/// What went over the ports.
#[derive(Default)]
struct Traffic {
    sent: u64,
    came: u64,
    turn: u64,
}

impl Traffic {
    fn receive(&mut self, field: &mut Field, burst: &mut Burst) -> bool {
        let n = field.uplink.receive(burst);
        self.came += n as u64;
        burst.clear();
        n > 0
    }

    /// Sends up to `count` packets, of every hundred `share` of fast flows.
    fn send(&mut self, field: &mut Field, count: u64, share: u64) -> u64 {
        let open = WINDOW.saturating_sub(self.sent - self.came);
        for _ in 0..count.min(open).min(field.vnic.room() as u64) {
            self.turn += 1;
            // Spread evenly: 37 and 100 have no common divisor.
            let fast = self.turn * 37 % 100 < share;
            let flow = if fast {
                FIRST_FAST + (self.turn / 100 % u64::from(FAST)) as u16
            } else {
                FIRST_SLOW + (self.turn * 7 % u64::from(SLOW)) as u16
            };
            if !field.push(flow) {
                break;
            }
        }
        let sent = field.vnic.flush() as u64;
        self.sent += sent;
        sent
    }

    fn drain(&mut self, field: &mut Field, burst: &mut Burst) -> Result<(), LiveError> {
        let mut last = Instant::now();
        while last.elapsed() < SILENCE && self.came < self.sent {
            self.sent += field.vnic.flush() as u64;
            if self.receive(field, burst) {
                last = Instant::now();
            }
            interrupt::check()?;
        }
        Ok(())
    }
}

/// What the switch has counted.
struct Counts {
    received: u64,
    offloaded: u64,
    busy: u64,
    eswitch: u64,
}

impl Counts {
    fn of(field: &mut Field) -> Result<Self, LiveError> {
        let counted = Counted::of(&mut field.daemon)?;
        let fwd = |name: &str| number(&counted.fwd, &format!("/{name}"), "show fwd stats all");
        Ok(Self {
            received: fwd("received")?,
            offloaded: fwd("offloaded")?,
            busy: counted.worker("busy-cycles")?,
            eswitch: field.offload()?.figure("/eswitch/cycles")?,
        })
    }
}

/// One arm: so many percent of the packets are of flows fast enough for hardware.
pub fn arm(field: &mut Field, options: &Options, share: u64) -> Result<Arm, LiveError> {
    let clock = field.runtime.clock;
    let mut traffic = Traffic::default();
    let mut burst = Burst::with_capacity(2 * BURST);
    let wanted = if share == 0 { 0 } else { u64::from(FAST) };
    let begin = rdtsc();
    let mut pace = Pace::new(options.rate, clock.hz(), begin, BACKLOG);
    let mut step = |field: &mut Field, traffic: &mut Traffic| {
        traffic.receive(field, &mut burst);
        let due = pace.due(rdtsc());
        let sent = traffic.send(field, due.min(BURST as u64), share);
        pace.take(sent);
    };
    // Until the fast flows are where they belong.
    let mut look = begin;
    let settled = loop {
        step(field, &mut traffic);
        let now = rdtsc();
        if now >= look {
            interrupt::check()?;
            look = now + clock.cycles(Duration::from_millis(5));
            if field.offload()?.figure("/flows/hardware")? == wanted {
                break clock.nanos(rdtsc() - begin) as f64 / 1e6;
            }
            if now - begin > clock.cycles(SETTLE) {
                let shown = field.daemon.ask("show offload")?;
                return Err(LiveError::Silent(format!("{wanted} flows do not get into hardware: {shown}")));
            }
        }
    };
    let before = Counts::of(field)?;
    let end = rdtsc() + clock.cycles(options.length());
    while rdtsc() < end {
        step(field, &mut traffic);
    }
    let after = Counts::of(field)?;
    traffic.drain(field, &mut burst)?;
    let (software, hardware) = (after.received - before.received, after.offloaded - before.offloaded);
    let packets = software + hardware;
    if packets == 0 {
        return Err(LiveError::Silent("no packet came to the switch".into()));
    }
    // The fast flows of the next arm are to find an empty device.
    let empty = Instant::now();
    while field.offload()?.figure("/rules")? > 0 && empty.elapsed() < SETTLE {
        interrupt::pause(Duration::from_millis(20))?;
    }
    let per_packet = |cycles: u64| cycles as f64 / packets as f64;
    Ok(Arm {
        share,
        packets,
        offloaded: hardware as f64 / packets as f64,
        installed_after_ms: (share > 0).then_some(settled),
        worker_cycles: per_packet(after.busy - before.busy),
        worker_cycles_per_own: (software > 0).then(|| (after.busy - before.busy) as f64 / software as f64),
        eswitch_cycles: per_packet(after.eswitch - before.eswitch),
        lost: traffic.sent - traffic.came,
    })
}

/// New flows all the time; each sends for a while and is never seen again.
pub fn churn(field: &mut Field, options: &Options) -> Result<Churn, LiveError> {
    let clock = field.runtime.clock;
    let mut traffic = Traffic::default();
    let mut burst = Burst::with_capacity(2 * BURST);
    let start = rdtsc();
    let length = clock.cycles(Duration::from_secs_f64(options.churn_seconds));
    let begin = field.offload()?;
    let (installed, withdrawn) = (begin.figure("/so-far/installed")?, begin.figure("/so-far/withdrawn")?);
    let memory = field.memory();
    let mut looks = Vec::new();
    let mut look = start;
    // The flow whose n-th packet is next, for each n.
    let mut next = [0u64; PACKETS];
    // Flows that had begun some time ago.
    let begun =
        |elapsed: u64| (u128::from(elapsed) * u128::from(options.churn) / u128::from(clock.hz())) as u64;
    let gap = clock.cycles(GAP);
    while rdtsc() - start < length {
        traffic.receive(field, &mut burst);
        let elapsed = rdtsc() - start;
        let open = WINDOW.saturating_sub(traffic.sent - traffic.came).min(field.vnic.room() as u64);
        let mut left = open;
        for (n, flow) in next.iter_mut().enumerate() {
            while left > 0 && *flow < begun(elapsed.saturating_sub(gap * n as u64)) {
                if !field.push(FIRST_CHURN + (*flow % u64::from(u16::MAX - FIRST_CHURN)) as u16) {
                    break;
                }
                *flow += 1;
                left -= 1;
            }
        }
        traffic.sent += field.vnic.flush() as u64;
        let now = rdtsc();
        if now >= look {
            interrupt::check()?;
            look = now + clock.cycles(Duration::from_millis(500));
            let shown = field.offload()?;
            looks.push(Look {
                at: clock.nanos(now - start) as f64 / 1e9,
                rules: shown.figure("/rules")?,
                flows: shown.figure("/flows/hardware")?,
                installed: shown.figure("/so-far/installed")? - installed,
                memory: field.memory(),
            });
        }
    }
    traffic.drain(field, &mut burst)?;
    let empty = Instant::now();
    let left = loop {
        let shown = field.offload()?;
        let left = shown.figure("/rules")? + shown.figure("/eswitch/rules")?;
        if left == 0 || empty.elapsed() > SETTLE {
            break left;
        }
        interrupt::pause(Duration::from_millis(50))?;
    };
    let end = field.offload()?;
    Ok(Churn {
        seconds: options.churn_seconds,
        flows: next[0],
        packets: traffic.sent,
        lost: traffic.sent - traffic.came,
        installed: end.figure("/so-far/installed")? - installed,
        withdrawn: end.figure("/so-far/withdrawn")? - withdrawn,
        rules_left: left,
        memory_before: memory,
        memory_after: field.memory(),
        looks,
    })
}
