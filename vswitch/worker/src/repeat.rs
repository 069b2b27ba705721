//! Packets of BFD sessions that a worker goes on sending while control is busy with something long.
//!
//! Control sends the packets of BFD sessions in its turns, and one of them may take seconds: a reload of a hundred thousand locations
//! does. Peers would take this host for dead although it forwards all the while. So control leaves each packet that only says that
//! a session is up with the worker that sends it, which sends it again when none has followed in time.

use std::time::Duration;

use pipelines::Now;
use pipelines::snapshot::{PortIndex, Snapshot};
use wire::PacketBuf;

/// So long a worker speaks for control: some multiples of the longest change that was seen. Control that is not back by then may
/// not come back at all.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two packets that a worker sends: so much of the interval in parts of a hundred, varied so that sessions do not fall into step
/// (RFC 5880 section 6.8.7 asks for 75 to 100, and to 90 of what is [a tenth shorter](BfdPacket::repeat_after) already).
const JITTER: std::ops::Range<u64> = 84..100;
/// No packet follows another sooner, in the same parts.
const SOONEST: u64 = 75;

/// A packet of a BFD session, and how long there may be nothing newer.
#[derive(Debug)]
pub struct BfdPacket<P> {
    /// The session's place, in which one packet at most is repeated: the last.
    pub slot: u16,
    /// Where it is sent.
    pub port: PortIndex,
    /// The packet.
    pub packet: P,
    /// When it is sent again, from now; never, when it is to be sent once.
    pub repeat_after: Option<Duration>,
}

/// A packet that is sent again.
#[derive(Debug)]
struct Repeat<P> {
    slot: u16,
    port: PortIndex,
    packet: P,
    every_ns: u64,
    /// When the worker sent it the last time, if it did after control.
    sent_ns: Option<u64>,
    due_ns: u64,
    end_ns: u64,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Repeats<P> {
    kept: Vec<Repeat<P>>,
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

    /// Takes in a packet of control's, in the place of the last one of its session; the packet to send now, which is none when the
    /// worker has just sent one in control's name: then it follows in time.
    pub(super) fn take(&mut self, packet: BfdPacket<P>, now: Now) -> Option<P> {
        let BfdPacket { slot, port, packet, repeat_after } = packet;
        let before = self.kept.iter().position(|repeat| repeat.slot == slot);
        let before = before.map(|at| self.kept.swap_remove(at));
        let Some(every) = repeat_after else {
            self.renew();
            return Some(packet);
        };
        let every_ns = nanos(every);
        // By the worker, so lately that this would follow too soon.
        let sent_ns = before.and_then(|repeat| repeat.sent_ns);
        let sent_ns = sent_ns.filter(|sent| now.ns < sent.saturating_add(every_ns / 100 * SOONEST));
        let now_sent = if sent_ns.is_none() { packet.try_clone() } else { None };
        let due_ns = sent_ns.unwrap_or(now.ns).saturating_add(every_ns);
        let end_ns = now.ns.saturating_add(nanos(LONGEST));
        self.kept.push(Repeat { slot, port, packet, every_ns, sent_ns, due_ns, end_ns });
        self.renew();
        now_sent
    }

    /// Sends nothing of the session in this place any more.
    pub(super) fn forget(&mut self, slot: u16) {
        self.retain(|repeat| repeat.slot != slot);
    }

    /// Sends nothing to this port any more.
    pub(super) fn forget_port(&mut self, port: PortIndex) {
        self.retain(|repeat| repeat.port != port);
    }

    /// Sends nothing any more.
    pub(super) fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Sends nothing any more by uplinks of which the link header is another one now.
    pub(super) fn follow(&mut self, before: &Snapshot, after: &Snapshot) {
        if self.kept.is_empty() {
            return;
        }
        let header = |snapshot: &Snapshot, port: PortIndex| {
            let uplink = snapshot.uplinks.iter().flatten().find(|uplink| uplink.port == port)?;
            Some((uplink.mac, uplink.vlan))
        };
        self.retain(|repeat| header(before, repeat.port) == header(after, repeat.port));
    }

    /// Sends what is due. What there is no buffer for is lost, as any packet would be.
    #[cold]
    pub(super) fn send(&mut self, now: Now, mut send: impl FnMut(PortIndex, P)) {
        for repeat in self.kept.iter_mut().filter(|repeat| repeat.due_ns <= now.ns && now.ns < repeat.end_ns)
        {
            if let Some(packet) = repeat.packet.try_clone() {
                send(repeat.port, packet);
            }
            // The time has no pattern in its last bits, and nobody gains by foreseeing it.
            let parts = JITTER.start + (now.ns >> 4) % (JITTER.end - JITTER.start);
            repeat.sent_ns = Some(now.ns);
            repeat.due_ns = now.ns.saturating_add(repeat.every_ns / 100 * parts);
        }
        self.retain(|repeat| now.ns < repeat.end_ns);
    }

    /// The buffers that are kept, by port.
    pub(super) fn buffers(&self) -> impl Iterator<Item = (PortIndex, usize)> {
        self.kept.iter().map(|repeat| (repeat.port, repeat.packet.segments().count()))
    }

    fn retain(&mut self, keep: impl Fn(&Repeat<P>) -> bool) {
        self.kept.retain(keep);
        self.renew();
    }

    fn renew(&mut self) {
        let dues = self.kept.iter().map(|repeat| repeat.due_ns.min(repeat.end_ns));
        self.due_ns = dues.min().unwrap_or(u64::MAX);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pipelines::next_hop::LinkSource;
    use pipelines::snapshot::{NO_PORT, Uplink};
    use pipelines::vlt::Vlt;
    use wire::heap::HeapBuf;

    use super::*;

    const EVERY: u64 = 100;

    fn packet(slot: u16, port: PortIndex, byte: u8) -> BfdPacket<HeapBuf> {
        let repeat_after = Some(Duration::from_millis(EVERY));
        BfdPacket { slot, port, packet: HeapBuf::new(&[byte; 60]), repeat_after }
    }

    fn at(ms: u64) -> Now {
        // As little even as the time is.
        Now::from_ns(ms * 1_000_000 + ms * 7919 % 100_000)
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
        assert!(!repeats.is_due(at(1 << 40)));
        // Control that comes in time is all that is heard.
        for turn in 0..10u8 {
            let from = 90 * u64::from(turn);
            assert!(repeats.take(packet(7, 3, turn), at(from)).is_some());
            assert_eq!(sent(&mut repeats, from..from + 90), []);
        }
        // Then it is busy: its last word is repeated, never sooner nor later than a session may.
        let said = sent(&mut repeats, 900..9_000);
        let times: Vec<u64> = [810].into_iter().chain(said.iter().map(|said| said.0)).collect();
        let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (80..=EVERY + 1).contains(gap)), "{gaps:?}");
        assert!(gaps.iter().max() > gaps.iter().min(), "{gaps:?}");
        assert!(said.iter().all(|said| (said.1, said.2) == (3, 9)));
        // It is back right after a packet: its word follows in time.
        let last = *times.last().unwrap();
        let mut repeats = Repeats::default();
        assert!(repeats.take(packet(7, 3, 1), at(last - EVERY - 1)).is_some());
        assert_eq!(sent(&mut repeats, last - EVERY..last + 1), [(last, 3, 1)]);
        assert!(repeats.take(packet(7, 4, 42), at(last + 10)).is_none());
        let said = sent(&mut repeats, last + 10..last + 102);
        assert!(matches!(said[..], [(ms, 4, 42)] if (99..102).contains(&(ms - last))), "{said:?}");
        // What is news is said at once, and once.
        let news = BfdPacket { repeat_after: None, ..packet(7, 4, 43) };
        assert!(repeats.take(news, at(last + 102)).is_some());
        assert_eq!(sent(&mut repeats, last + 102..last + 1000), []);
    }

    #[test]
    fn repeat_ends_by_its_session_its_port_and_its_time() {
        let mut repeats = Repeats::default();
        for (slot, port) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            assert!(repeats.take(packet(slot, port, slot as u8), at(0)).is_some());
        }
        assert_eq!(repeats.buffers().filter(|held| *held == (2, 1)).count(), 2);
        repeats.forget(3);
        let mut first = sent(&mut repeats, 0..102);
        first.sort_unstable();
        assert_eq!(first, [(100, 1, 1), (100, 1, 2), (100, 2, 4)]);
        repeats.forget_port(1);
        let rest = sent(&mut repeats, 102..200_000);
        assert!(rest.iter().all(|said| (said.1, said.2) == (2, 4)));
        let last = rest.last().unwrap().0;
        assert!((59_890..60_000).contains(&last), "the last at {last} ms");
        assert!(!repeats.is_due(at(1 << 40)), "nothing is left");
        assert!(repeats.take(packet(5, 1, 5), at(200_000)).is_some());
        repeats.clear();
        assert_eq!(sent(&mut repeats, 200_000..200_500), []);
    }

    #[test]
    fn repeat_ends_where_frames_begin_otherwise_now() {
        let uplink = |port, vlan, mac| {
            let (name, source) = (String::new(), LinkSource::default());
            let (v4, v6, silent) = (Vec::new(), Vec::new(), Vec::new());
            let (mtu, udp6_zero_checksum, punt, punt_mtu) = (1600, false, NO_PORT, 1500);
            let uplink = Uplink {
                name,
                port,
                mac,
                source,
                v4,
                v6,
                mtu,
                vlan,
                udp6_zero_checksum,
                silent,
                punt,
                punt_mtu,
            };
            Some(Arc::new(uplink))
        };
        let snapshot = |vlan, mac| {
            let mut snapshot = Snapshot::empty(Vlt::new(16).0);
            snapshot.uplinks = vec![uplink(1, None, 7), None, uplink(2, vlan, mac)];
            snapshot
        };
        for (vlan, mac, stays) in
            [(Some(5), 9, true), (Some(6), 9, false), (None, 9, false), (Some(5), 8, false)]
        {
            let mut repeats = Repeats::default();
            for slot in [1, 2] {
                assert!(repeats.take(packet(slot, slot, 0), at(0)).is_some());
            }
            repeats.follow(&snapshot(Some(5), 9), &snapshot(vlan, mac));
            let ports: Vec<PortIndex> = repeats.buffers().map(|(port, _)| port).collect();
            assert_eq!(ports, if stays { vec![1, 2] } else { vec![1] }, "{vlan:?} {mac}");
        }
    }
}
