//! Packets that a worker goes on sending while control is busy with something long.
//!
//! Control sends the packets of BFD sessions in its turns, and one of them may take seconds: a reload of a hundred thousand locations
//! does. Peers would take this host for dead although it forwards all the while. So control leaves each packet that only says that
//! a session is up with the worker that sends it, which sends it again whenever the next one is late.

use std::time::Duration;

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use wire::PacketBuf;

/// So long a worker speaks for control: some multiples of the longest change that was seen. Control that is not back by then may
/// not come back at all.
const LONGEST: Duration = Duration::from_secs(60);
/// Of the interval, in quarters, for what is sent after the first one: clocks of peers differ, and a turn of a worker takes its time.
const QUARTERS: u64 = 3;

/// A packet, and how long there may be nothing newer.
#[derive(Debug)]
pub struct Repeat<P> {
    /// What it is the last word of: another one with this number takes its place.
    pub number: u16,
    /// Where it is sent.
    pub port: PortIndex,
    /// The packet.
    pub packet: P,
    /// When it is sent for the second time, from the first on.
    pub every: Duration,
}

#[derive(Debug)]
struct Kept<P> {
    repeat: Repeat<P>,
    due_ns: u64,
    end_ns: u64,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Repeats<P> {
    kept: Vec<Kept<P>>,
    /// When the first is due; never, where there are none.
    due_ns: u64,
}

impl<P> Default for Repeats<P> {
    fn default() -> Self {
        Self { kept: Vec::new(), due_ns: u64::MAX }
    }
}

impl<P: PacketBuf> Repeats<P> {
    /// True when something is to be sent. One comparison, in each turn of a worker.
    #[inline(always)]
    pub(super) fn is_due(&self, now: Now) -> bool {
        now.ns >= self.due_ns
    }

    /// Keeps a packet that was sent now, in the place of the one with its number.
    pub(super) fn keep(&mut self, repeat: Repeat<P>, now: Now) {
        self.forget(repeat.number);
        let at = |after: Duration| now.ns.saturating_add(nanos(after));
        let (due_ns, end_ns) = (at(repeat.every), at(LONGEST));
        self.kept.push(Kept { repeat, due_ns, end_ns });
        self.renew();
    }

    /// Sends nothing with this number any more.
    pub(super) fn forget(&mut self, number: u16) {
        self.kept.retain(|kept| kept.repeat.number != number);
        self.renew();
    }

    /// Sends nothing to this port any more.
    pub(super) fn forget_port(&mut self, port: PortIndex) {
        self.kept.retain(|kept| kept.repeat.port != port);
        self.renew();
    }

    /// Sends nothing any more.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.renew();
    }

    /// Sends what is due. What there is no buffer for is lost, as any packet would be.
    #[cold]
    pub(super) fn send(&mut self, now: Now, mut send: impl FnMut(PortIndex, P)) {
        self.kept.retain_mut(|kept| {
            if kept.end_ns <= now.ns {
                return false;
            }
            if kept.due_ns <= now.ns {
                let Repeat { port, ref packet, every, .. } = kept.repeat;
                if let Some(packet) = packet.try_clone() {
                    send(port, packet);
                }
                kept.due_ns = now.ns.saturating_add(nanos(every) / 4 * QUARTERS);
            }
            true
        });
        self.renew();
    }

    fn renew(&mut self) {
        let dues = self.kept.iter().map(|kept| kept.due_ns.min(kept.end_ns));
        self.due_ns = dues.min().unwrap_or(u64::MAX);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::heap::HeapBuf;

    const EVERY: Duration = Duration::from_millis(100);

    fn repeat(number: u16, port: PortIndex, byte: u8) -> Repeat<HeapBuf> {
        Repeat { number, port, packet: HeapBuf::new(&[byte; 60]), every: EVERY }
    }

    fn at(ms: u64) -> Now {
        Now::from_ns(ms * 1_000_000)
    }

    /// What is sent in the milliseconds of a range, in turns of one: when, where and the first byte.
    fn sent(repeats: &mut Repeats<HeapBuf>, during: std::ops::Range<u64>) -> Vec<(u64, PortIndex, u8)> {
        let mut sent = Vec::new();
        for ms in during {
            if repeats.is_due(at(ms)) {
                repeats.send(at(ms), |port, packet| sent.push((ms, port, packet.head()[0])));
            }
        }
        sent
    }

    #[test]
    fn repeat_speaks_only_while_nothing_newer_comes() {
        let mut repeats = Repeats::default();
        assert!(!repeats.is_due(at(u64::MAX / 1_000_000)));
        // Control that comes in time is all that is heard.
        for turn in 0..10 {
            repeats.keep(repeat(7, 3, turn), at(90 * u64::from(turn)));
            let from = 90 * u64::from(turn);
            assert_eq!(sent(&mut repeats, from..from + 90), []);
        }
        // Then it is busy: the last word is repeated, so that no three intervals pass without one.
        assert_eq!(sent(&mut repeats, 900..1100), [(910, 3, 9), (985, 3, 9), (1060, 3, 9)]);
        // And back.
        repeats.keep(repeat(7, 4, 42), at(1100));
        assert_eq!(sent(&mut repeats, 1100..1250), [(1200, 4, 42)]);
    }

    #[test]
    fn repeat_ends_by_its_number_its_port_and_its_time() {
        let mut repeats = Repeats::default();
        for (number, port) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            repeats.keep(repeat(number, port, number as u8), at(0));
        }
        repeats.forget(3);
        assert_eq!(sent(&mut repeats, 0..101), [(100, 1, 1), (100, 1, 2), (100, 2, 4)]);
        repeats.forget_port(1);
        assert_eq!(sent(&mut repeats, 101..176), [(175, 2, 4)]);
        let rest = sent(&mut repeats, 176..200_000);
        let last = rest.last().unwrap().0;
        assert!((59_900..60_000).contains(&last), "the last at {last} ms");
        assert!(!repeats.is_due(at(u64::MAX / 1_000_000)), "nothing is left");
        repeats.keep(repeat(5, 1, 5), at(200_000));
        repeats.clear();
        assert_eq!(sent(&mut repeats, 200_000..200_500), []);
    }
}
