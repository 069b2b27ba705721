//! Path probes: which packets pass on the ways to other VTEPs. Control sends echo requests there by its turns, as many as it may, and
//! whoever asked hears of it when all is known, or when the time is up.
//!
//! A request goes by one next hop, as tunnel packets of the flows that have that hop do, and is answered by the switch or the kernel
//! that has the VTEP. It has DF set over IPv4, and nobody on the way fragments it over IPv6.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::probe::{ProbeAnswer, ProbeMark};
use pipelines::snapshot::mac_from;
use pipelines::stage::tunnel;
use tokio::sync::oneshot;
use wire::build::Path;
use wire::{MacAddr, icmp, ipv4, ipv6};
use worker::Mode;

use super::Switch;
use crate::probe::{Found, Search};
use crate::state::files::unpredictable;
use crate::topology::paths::RankedHop;

/// Requests of one turn of control: a thousand a second.
const PER_TURN: usize = 20;
/// Ways that are looked at at once; the others wait.
const AT_ONCE: usize = 64;
/// VTEPs of one run.
const MOST_VTEPS: usize = 4096;
/// Next hops of one VTEP.
const MOST_PATHS: usize = 16;
/// What is not known by then is told as not known.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// A next hop that has not answered by then is not there.
const RESOLVE: Duration = Duration::from_secs(2);

/// Why no probes are sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// One run at a time.
    #[error("other paths are being probed; ask again in a few seconds")]
    Busy,
    /// There is no way there.
    #[error("no uplink has a route to {0}; add a gateway or a route to an [[uplink]]")]
    NoRoute(IpAddr),
    /// It is here.
    #[error("{0} is an address of this switch itself; name the VTEP of another host")]
    Own(IpAddr),
    #[error("{0} VTEPs are more than can be probed at once; name at most {MOST_VTEPS}")]
    TooMany(usize),
    /// Nothing would be heard.
    #[error("nothing is heard from other VTEPs in this forwarding mode; `set fwd overlay` first")]
    Mode,
}

/// What was found out about a way to a VTEP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    pub vtep: IpAddr,
    /// The own address that tunnels to it have.
    pub source: IpAddr,
    /// The uplink, and the next hop there.
    pub uplink: String,
    pub hop: IpAddr,
    /// False for one that takes over only when others fail.
    pub preferred: bool,
    /// The MTU of the uplink, which should pass.
    pub mtu: u16,
    pub state: PathState,
    pub round_trip: Option<Duration>,
    pub requests: u64,
    /// Answers that nobody asked for.
    pub stray: u64,
}

/// What is known of a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathState {
    Found(Found),
    /// The uplink has no link.
    NoLink,
    /// The next hop does not say where it is.
    NoNextHop,
    /// There was no time for it.
    Unknown,
}

#[derive(Debug)]
struct Probed {
    path: RankedHop,
    report: PathReport,
    /// When it began to be looked at.
    since: Instant,
    search: Option<Search>,
}

impl Probed {
    fn report(self) -> PathReport {
        let Self { mut report, search, .. } = self;
        if let Some(search) = search {
            report.requests = search.requests;
            report.stray = search.stray;
            report.round_trip = search.round_trip;
        }
        report
    }
}

/// One run, and who waits for it.
#[derive(Debug)]
struct Run {
    until: Instant,
    waiting: VecDeque<Probed>,
    active: Vec<Probed>,
    done: Vec<PathReport>,
    answer: oneshot::Sender<Vec<PathReport>>,
    mark: ProbeMark,
    next: u16,
    /// Who sent a request: source and destination.
    senders: HashMap<u16, (IpAddr, RankedHop)>,
}

/// The run that is under way.
#[derive(Debug, Default)]
pub struct ProbeControl(Option<Run>);

impl Switch {
    /// Begins to probe all ways to some VTEPs. What was found comes by `answer`, within [`DEADLINE`]; when nobody waits for that any
    /// more, it ends.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn probe(
        &mut self,
        vteps: &[IpAddr],
        answer: oneshot::Sender<Vec<PathReport>>,
    ) -> Result<(), ProbeError> {
        if self.probing.0.as_ref().is_some_and(|run| !run.answer.is_closed()) {
            return Err(ProbeError::Busy);
        }
        if self.mode != Mode::Overlay {
            return Err(ProbeError::Mode);
        }
        if vteps.len() > MOST_VTEPS {
            return Err(ProbeError::TooMany(vteps.len()));
        }
        let now = Instant::now();
        let mut waiting = VecDeque::new();
        for &vtep in vteps {
            let snapshot = self.topology.snapshot();
            if self.is_own_vtep(vtep) {
                return Err(ProbeError::Own(vtep));
            }
            let found = self.topology.paths(vtep).ok_or(ProbeError::NoRoute(vtep))?;
            // A gateway that would take over from a link to the VTEP itself loses its own link with that: it is no other way.
            let preferred: BTreeSet<u16> =
                found.paths.iter().filter(|path| path.rank == 0).map(|path| path.hop.uplink).collect();
            let matters = |path: &RankedHop| path.rank == 0 || !preferred.contains(&path.hop.uplink);
            for path in found.paths.into_iter().filter(matters).take(MOST_PATHS) {
                let Some(uplink) = snapshot.uplink(path.hop.uplink) else { continue };
                let report = PathReport {
                    vtep,
                    source: found.source,
                    uplink: uplink.name.clone(),
                    hop: path.hop.address,
                    preferred: path.rank == 0,
                    mtu: uplink.mtu,
                    state: PathState::Unknown,
                    round_trip: None,
                    requests: 0,
                    stray: 0,
                };
                waiting.push_back(Probed { path, report, since: now, search: None });
            }
        }
        let random = unpredictable();
        let mark = ProbeMark { id: (random >> 16) as u16, cookie: unpredictable() };
        self.pool.events.probes.set(Some(mark));
        self.probing.0 = Some(Run {
            until: now + DEADLINE,
            waiting,
            active: Vec::new(),
            done: Vec::new(),
            answer,
            mark,
            next: random as u16,
            senders: HashMap::new(),
        });
        Ok(())
    }

    /// True for an address of an uplink of this switch.
    pub fn is_own_vtep(&self, vtep: IpAddr) -> bool {
        self.topology.snapshot().uplinks.iter().flatten().any(|uplink| uplink.owns(vtep))
    }

    /// The largest outer packet that a vNIC of this host may make of what it sends, over IPv4 or IPv6; 0 without vNICs.
    pub fn largest_tunnel_packet(&self, ipv6: bool) -> u16 {
        // The inner Ethernet header is in the packet, the outer one is not.
        let most = self.config.vnics.iter().map(|vnic| usize::from(vnic.mtu)).max();
        most.map_or(0, |mtu| (mtu + tunnel::overhead(ipv6, false)).min(usize::from(u16::MAX)) as u16)
    }

    /// Takes in what came back, sends what is due, and tells whoever asked.
    pub(super) fn tend_probes(&mut self, now: Instant) {
        let Some(mut run) = self.probing.0.take() else { return };
        while let Some(heard) = self.pool.events.probes.heard() {
            run.take_in(&heard, now);
        }
        let mut left = PER_TURN;
        while run.active.len() < AT_ONCE
            && let Some(mut next) = run.waiting.pop_front()
        {
            next.since = now;
            run.active.push(next);
        }
        for mut probed in std::mem::take(&mut run.active) {
            match self.advance(&mut run, &mut probed, &mut left, now) {
                Some(state) => {
                    probed.report.state = state;
                    run.done.push(probed.report());
                }
                None => run.active.push(probed),
            }
        }
        let is_over = run.active.is_empty() && run.waiting.is_empty() || now >= run.until;
        if !is_over && !run.answer.is_closed() {
            // Who had to wait for its turn is the first in the next one.
            let first = run.active.len().min(PER_TURN);
            run.active.rotate_left(first);
            self.probing.0 = Some(run);
            return;
        }
        self.pool.events.probes.set(None);
        self.topology.forget_neighbours(&mut self.neighbours);
        let rest = run.active.into_iter().chain(run.waiting).map(Probed::report);
        let mut all: Vec<PathReport> = run.done.into_iter().chain(rest).collect();
        all.sort_by(|one, other| {
            (one.vtep, !one.preferred, &one.uplink, one.hop).cmp(&(
                other.vtep,
                !other.preferred,
                &other.uplink,
                other.hop,
            ))
        });
        // Whoever asked may be gone.
        let _ = run.answer.send(all);
    }

    /// Goes on with a way; what is known of it when it is over.
    fn advance(
        &mut self,
        run: &mut Run,
        probed: &mut Probed,
        left: &mut usize,
        now: Instant,
    ) -> Option<PathState> {
        let hop = probed.path.hop;
        let Some(uplink) = self.topology.snapshot().uplink(hop.uplink) else {
            return Some(PathState::NoLink);
        };
        let mac = mac_from(uplink.mac);
        if !self.ports.get(uplink.port).is_some_and(|port| port.has_link()) {
            return Some(PathState::NoLink);
        }
        let Some(next_hop) = self.neighbours.want(hop) else {
            let waits = now.saturating_duration_since(probed.since) < RESOLVE;
            return (!waits).then_some(PathState::NoNextHop);
        };
        let search = probed.search.get_or_insert_with(|| Search::new(probed.report.mtu, now));
        while *left > 0
            && let Some(size) = search.due(now)
        {
            *left -= 1;
            let sequence = run.next;
            run.next = run.next.wrapping_add(1);
            run.senders.insert(sequence, (probed.report.vtep, probed.path));
            search.sent(sequence, size, now);
            let ends = ((mac, probed.report.source), (next_hop, probed.report.vtep));
            if let Some(frame) = request(ends, run.mark, sequence, size) {
                self.inject(hop.uplink, frame);
            }
        }
        search.found().cloned().map(PathState::Found)
    }
}

impl Run {
    /// An answer belongs to the way that its request went, if it comes from where that went to.
    fn take_in(&mut self, heard: &pipelines::probe::ProbeHeard, now: Instant) {
        let Some((vtep, path)) = self.senders.get(&heard.sequence).copied() else { return };
        let is_of = |probed: &&mut Probed| probed.report.vtep == vtep && probed.path == path;
        let Some(probed) = self.active.iter_mut().find(is_of) else { return };
        let Some(search) = &mut probed.search else { return };
        match heard.answer {
            ProbeAnswer::Reply(len) if heard.from == vtep => search.replied(heard.sequence, len, now),
            ProbeAnswer::TooBig(to, mtu) if to == vtep => search.too_big(heard.sequence, mtu, heard.from),
            _ => search.stray += 1,
        }
    }
}

/// An echo request that is an IP packet of so many bytes.
fn request(
    ((mac, source), (next_hop, vtep)): ((MacAddr, IpAddr), (MacAddr, IpAddr)),
    mark: ProbeMark,
    sequence: u16,
    size: u16,
) -> Option<Vec<u8>> {
    let (path, header) = match (source, vtep) {
        (IpAddr::V4(source), IpAddr::V4(vtep)) => {
            (Path::v4((mac, source), (next_hop, vtep)), ipv4::HEADER_LEN)
        }
        (IpAddr::V6(source), IpAddr::V6(vtep)) => {
            (Path::v6((mac, source), (next_hop, vtep)), ipv6::HEADER_LEN)
        }
        _ => return None,
    };
    let mut data = mark.cookie.to_be_bytes().to_vec();
    data.resize(usize::from(size).checked_sub(header + icmp::HEADER_LEN)?, 0);
    Some(path.echo_request(mark.id, sequence, &data))
}
