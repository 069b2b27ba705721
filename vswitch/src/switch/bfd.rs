//! Control's side of BFD: the sessions, what they send, and what becomes of paths.
//!
//! Everything happens in turns, [`super::TEND_EVERY_MS`] apart: what was heard is taken in first, so that a turn that comes late
//! finds nobody silent who spoke. What a session that is up said last is left with the worker that sent it, which repeats it when
//! the next turn is late.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipelines::bfd::{BfdSession, BfdSessions, MAX_SESSIONS, MOST_WAITING};
use pipelines::snapshot::mac_from;
use serde_json::json;
use wire::bfd::{Control, FIRST_SOURCE_PORT, MULTIHOP_PORT, PORT, State, TTL};
use wire::build::Path;
use wire::{MacAddr, View};
use worker::{BfdPacket, Mode, WorkerCommand};

use super::uplinks::ByUplink;
use super::{Switch, TEND_EVERY_MS};
use crate::bfd::{Session, Timing};
use crate::config::Config;

/// Traffic class of the packets: CS6, network control (RFC 4594 section 3.2).
const NETWORK_CONTROL: u8 = 48 << 2;
/// A session that is given up says so for as long.
const FAREWELL: Duration = Duration::from_secs(3);
/// Between two events of one session: a peer that comes and goes does not crowd others out of `show events`.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// All sessions.
#[derive(Debug, Default)]
pub struct BfdControl {
    /// By place.
    sessions: BTreeMap<u16, Running>,
    /// They are over, and their peers are told so.
    leaving: Vec<(Instant, Running)>,
    /// By place: the worker that repeats what was said last.
    repeating: BTreeMap<u16, usize>,
    /// Those of the snapshot in force.
    known: Arc<BfdSessions>,
}

/// A session, and what is shown of it.
#[derive(Debug)]
pub struct Running {
    /// Its place, its ends and its discriminator.
    pub of: BfdSession,
    /// The state machine.
    pub session: Session,
    /// When it came into its state.
    pub since: Instant,
    /// Packets that were taken in.
    pub heard: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Times it came up.
    pub ups: u64,
    /// The state that was last told as an event, and when.
    told: (bool, Option<Instant>),
}

/// A packet to be sent.
struct Outgoing {
    of: BfdSession,
    control: Control,
    /// It may be repeated while the next one is late.
    repeat_after: Option<Duration>,
}

impl BfdControl {
    /// All begin anew, as they do when a switch starts: their peers were told that they are over.
    pub fn begin_anew(&mut self) {
        self.sessions.clear();
        self.leaving.clear();
        self.known = Arc::default();
    }

    /// The sessions, in order of their places.
    pub fn sessions(&self) -> impl Iterator<Item = &Running> {
        self.sessions.values()
    }

    /// What all sessions have to send now.
    fn transmit(&mut self, now: Instant) -> Vec<Outgoing> {
        self.leaving.retain(|(until, _)| now < *until);
        let all = self.sessions.values_mut().chain(self.leaving.iter_mut().map(|(_, running)| running));
        all.filter_map(|running| {
            let control = running.session.transmit(now)?;
            // A question or an answer is asked or given once.
            let is_once = control.state_flags & (Control::POLL | Control::FINAL) != 0;
            let repeat_after = running.session.repeat_after().filter(|_| !is_once);
            Some(Outgoing { of: running.of, control, repeat_after })
        })
        .collect()
    }
}

impl Running {
    fn new(of: BfdSession, timing: Timing, now: Instant) -> Self {
        let granularity = Duration::from_millis(TEND_EVERY_MS);
        let session = Session::new(timing, of.discriminator, granularity);
        Self { of, session, since: now, heard: 0, sent: 0, ups: 0, told: (false, None) }
    }

    /// Takes in a packet, unless it is doubtful: over several hops no TTL shows that its sender is on the link.
    fn hear(&mut self, control: &Control, now: Instant) {
        if !(self.of.multihop && self.session.is_doubtful(control, now)) {
            self.heard += 1;
            self.change(now, |session| session.receive(control, now));
        }
    }

    /// Has the session change, and notes when its state did.
    fn change(&mut self, now: Instant, change: impl FnOnce(&mut Session)) {
        let before = self.session.state();
        change(&mut self.session);
        let after = self.session.state();
        if before != after {
            self.since = now;
            self.ups += u64::from(after == State::Up);
        }
    }

    /// True when it went up or down and nobody was told.
    fn is_news(&mut self, now: Instant) -> bool {
        let (told, at) = self.told;
        let is_up = self.session.state() == State::Up;
        let news = is_up != told && at.is_none_or(|at| now.saturating_duration_since(at) >= TELL_EVERY);
        if news {
            self.told = (is_up, Some(now));
        }
        news
    }
}

/// What the config says of the session of an uplink.
fn timing(config: &Config, uplink: &str) -> Option<Timing> {
    let uplink = config.uplinks.iter().find(|row| row.name.as_str() == uplink)?;
    let bfd = uplink.bfd.as_ref()?;
    Some(Timing { min_tx: bfd.min_tx, min_rx: bfd.min_rx, multiplier: bfd.multiplier })
}

impl Switch {
    /// The BFD sessions.
    pub fn bfd(&self) -> &BfdControl {
        &self.bfd
    }

    /// Follows the snapshot in force: sessions come and go, and keep to the intervals that the config has now.
    pub(super) fn follow_bfd(&mut self, now: Instant) {
        let snapshot = self.topology.snapshot().clone();
        let changed = !Arc::ptr_eq(&self.bfd.known, &snapshot.bfd);
        self.bfd.known = snapshot.bfd.clone();
        if changed {
            let is_there = |of: &BfdSession| snapshot.bfd.iter().any(|session| session == of);
            let (stay, go): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.bfd.sessions)
                .into_iter()
                .partition(|(_, running)| is_there(&running.of));
            self.bfd.sessions = stay;
            for mut running in go.into_values() {
                self.topology.set_bfd(&running.of, false, &mut self.neighbours);
                running.session.shut(now);
                self.bfd.leaving.push((now + FAREWELL, running));
            }
            self.topology.forget_neighbours(&mut self.neighbours);
        }
        for of in snapshot.bfd.iter() {
            let Some(uplink) = snapshot.uplink(of.uplink) else { continue };
            let Some(timing) = timing(&self.config, &uplink.name) else { continue };
            // It is back under another number: the old one has nothing to say any more.
            let ends = |of: &BfdSession| (of.uplink, of.peer, of.local, of.multihop);
            self.bfd.leaving.retain(|(_, running)| ends(&running.of) != ends(of));
            let has_failed = self.topology.has_failed(of);
            let running = self.bfd.sessions.entry(of.slot).or_insert_with(|| {
                let mut running = Running::new(*of, timing, now);
                // A path that was left before all began anew is left until its peer is heard.
                running.session.begin_failed(has_failed);
                running
            });
            running.session.configure(timing, now);
        }
    }

    /// Takes in what sessions heard, and that others heard nothing; sends what is due. True when next hops of flows are others
    /// now.
    pub(super) fn tend_bfd(&mut self, now: Instant) -> bool {
        for _ in 0..MAX_SESSIONS * usize::from(MOST_WAITING) {
            let Some(heard) = self.pool.events.heard() else { break };
            let running = self.bfd.sessions.get_mut(&heard.slot);
            // Its place may be another one's by now.
            let Some(running) = running.filter(|running| running.of.discriminator == heard.discriminator)
            else {
                continue;
            };
            running.hear(&heard.control, now);
        }
        let mut moved = false;
        for running in self.bfd.sessions.values_mut() {
            running.change(now, |session| session.expire(now));
            let failed = running.session.is_failed();
            moved |= self.topology.set_bfd(&running.of, failed, &mut self.neighbours);
            if running.is_news(now) {
                let uplink = self.topology.snapshot().uplink(running.of.uplink);
                let uplink = uplink.map_or("", |uplink| uplink.name.as_str());
                let (kind, text) = event(uplink, running);
                tracing::warn!("{text}");
                let Running { of, session, .. } = &*running;
                let facts = json!({
                    "uplink": uplink, "peer": of.peer, "multihop": of.multihop, "state": session.state().name(),
                    "diagnostic": session.diagnostic().name(), "path-left": failed,
                });
                self.events.add(kind, text, facts);
            }
        }
        for outgoing in self.bfd.transmit(now) {
            self.send_bfd(&outgoing);
        }
        // Those that are gone, or whose packets are more than a sign of life now.
        self.end_repeats(|_, session| session.is_none_or(|session| session.repeat_after().is_none()));
        moved
    }

    /// Has workers repeat nothing any more of some sessions, which are told by their places and what is there now.
    fn end_repeats(&mut self, ends: impl Fn(u16, Option<&Session>) -> bool) {
        let BfdControl { sessions, repeating, .. } = &mut self.bfd;
        repeating.retain(|slot, worker| {
            let ends = ends(*slot, sessions.get(slot).map(|running| &running.session));
            // A mailbox that is full is tried again when the session has something to say.
            !(ends && self.pool.workers[*worker].mailbox().offer(WorkerCommand::EndBfdRepeat(*slot)))
        });
    }

    /// Tells all peers that the sessions are over: the switch ends.
    pub(super) fn end_bfd(&mut self) {
        let now = Instant::now();
        self.bfd.leaving.clear();
        self.bfd.sessions.values_mut().for_each(|running| running.session.shut(now));
        for outgoing in self.bfd.transmit(now) {
            self.send_bfd(&outgoing);
        }
    }

    /// Sends a packet. One that nobody would hear, or that there is no way for, is lost like any other, and nothing is said in its
    /// place.
    fn send_bfd(&mut self, outgoing: &Outgoing) {
        let Outgoing { of, repeat_after, .. } = outgoing;
        let Some(ByUplink { worker, port, packet }) = self.bfd_packet(outgoing) else {
            let is_its_own = self.bfd.sessions.get(&of.slot).is_some_and(|running| running.of == *of);
            self.end_repeats(|slot, _| is_its_own && slot == of.slot);
            return;
        };
        let BfdControl { sessions, repeating, .. } = &mut self.bfd;
        let mailbox = self.pool.workers[worker].mailbox();
        // What finds the mailbox full is lost; it is sent again a little later.
        let Some(running) = sessions.get_mut(&of.slot).filter(|running| running.of == *of) else {
            // The place of one that says farewell may be another one's by now.
            mailbox.offer(WorkerCommand::Inject(port, packet));
            return;
        };
        running.sent += 1;
        let packet = BfdPacket { slot: of.slot, port, packet, repeat_after: *repeat_after };
        if mailbox.offer(WorkerCommand::Bfd(packet)) {
            match repeat_after {
                Some(_) => repeating.insert(of.slot, worker),
                None => repeating.remove(&of.slot),
            };
        }
    }

    fn bfd_packet(&mut self, Outgoing { of, control, .. }: &Outgoing) -> Option<ByUplink> {
        let uplink = self.topology.snapshot().uplink(of.uplink)?;
        let (mac, port) = (mac_from(uplink.mac), uplink.port);
        // In another mode nothing would be heard: then nothing is said either.
        let has_link = self.ports.get(port).is_some_and(|port| port.has_link());
        if !has_link || self.mode != Mode::Overlay {
            return None;
        }
        let next_hop = self.next_hop_of(of)?;
        let path = match (of.local, of.peer) {
            (IpAddr::V4(local), IpAddr::V4(peer)) => Path::v4((mac, local), (next_hop, peer)),
            (IpAddr::V6(local), IpAddr::V6(peer)) => Path::v6((mac, local), (next_hop, peer)),
            _ => return None,
        };
        let path = Path { tos: NETWORK_CONTROL, ..path.with_ttl(TTL) };
        // One for each session, and the same all the time (RFC 5881 section 4).
        let source_port = FIRST_SOURCE_PORT + of.slot;
        let frame = path.udp(source_port, if of.multihop { MULTIHOP_PORT } else { PORT }, control.bytes());
        self.by_uplink(of.uplink, frame)
    }

    /// The MAC address of the station that a session's packets go to: the peer, or a router on the way. It is asked for where it
    /// is not known.
    fn next_hop_of(&mut self, of: &BfdSession) -> Option<MacAddr> {
        let hops = self.topology.bfd_hops(of);
        let known = hops.iter().find_map(|hop| self.neighbours.mac(*hop));
        known.or_else(|| hops.first().and_then(|hop| self.neighbours.want(*hop)))
    }
}

/// What is said of a session that went up or down.
fn event(uplink: &str, running: &Running) -> (&'static str, String) {
    let Running { of, session, .. } = running;
    let with = format!("the BFD session of uplink {uplink} with {}", of.peer);
    if session.state() == State::Up {
        return ("bfd-up", format!("{with} is up"));
    }
    let why = session.diagnostic().name();
    let path = if session.is_failed() { "its path is left" } else { "its path stays" };
    ("bfd-down", format!("{with} is down ({why}): {path}"))
}

#[cfg(test)]
mod tests {
    use wire::bfd::Diagnostic;

    use super::*;

    fn said(state: State, mine: u32, yours: u32) -> Control {
        let mut control = Control::new(state, Diagnostic::NONE);
        control.detect_multiplier = 3;
        control.my_discriminator.set(mine);
        control.your_discriminator.set(yours);
        control.desired_min_tx.set(100_000);
        control.required_min_rx.set(100_000);
        control
    }

    /// Over one hop the TTL has shown where it comes from, and a peer that was started anew is believed at once.
    #[test]
    fn bfd_one_forged_packet_takes_no_session_over_several_hops_down() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let timing = Timing { min_tx: ms(100), min_rx: ms(100), multiplier: 3 };
        let [peer, local] = [2, 1].map(|host| IpAddr::from([10, 255, 0, host]));
        for multihop in [true, false] {
            let of = BfdSession { slot: 0, discriminator: 7, uplink: 0, peer, local, multihop };
            for word in [State::Down, State::AdminDown] {
                let mut running = Running::new(of, timing, now);
                running.hear(&said(State::Init, 99, 7), now);
                assert_eq!((running.session.state(), running.heard), (State::Up, 1));
                running.hear(&said(word, 98, 0), now + ms(100));
                let (state, heard) = if multihop { (State::Up, 1) } else { (State::Down, 2) };
                assert_eq!((running.session.state(), running.heard), (state, heard), "{word:?}");
                assert_eq!(running.session.is_failed(), !multihop && word == State::Down, "{word:?}");
            }
        }
    }
}
