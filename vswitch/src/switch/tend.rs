//! What the switch does by itself, a few times a second: it resolves next hops, takes in what workers and the watchdog
//! report, and frees old snapshots.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use pipelines::event::{Binding, Event, Floating};
use pipelines::flow_key::Scope;
use pipelines::rcft::QpKey;
use pipelines::snapshot::mac_from;
use serde_json::json;
use wire::Qpn;
use wire::build::control;
use worker::watchdog::WatchedThread;
use worker::{MAX_VNICS, WorkerCommand};

pub use hold_down::HoldDown;

use super::Switch;
use super::rcft::refusals::{ConnectionRejection, QpRefusal};
use crate::topology::underlay::NeighbourProbe;

/// Queue pairs that a worker forgets between two bursts.
const FORGOTTEN: usize = 64;

/// How often link-local addresses are learned.
const LEARN_EVERY: Duration = Duration::from_secs(1);

/// How often it is taken in where floating addresses are: what others send there waits for it. Of a vNIC whose addresses move all the
/// time [not as often](HoldDown).
const FLOAT_EVERY: Duration = Duration::from_millis(100);

/// Most events that are taken in at a time.
const EVENTS: usize = 8192;

/// How often all neighbours are asked at most because something that one of them said was forgotten: strangers may say as much as they
/// like.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

impl Switch {
    /// One turn. Called every [`super::TEND_EVERY_MS`].
    pub fn tend(&mut self, now: Instant) {
        self.tend_ports(now);
        self.tend_mode();
        self.tend_forwarding();
        self.tend_network(now);
        self.tend_state(now);
        self.changes.tell_ports(self.ports.generation());
    }

    /// A change that takes long, or a string of them, must not keep what else there is to do waiting.
    pub(crate) fn tend_if_due(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.tended) >= Duration::from_millis(super::TEND_EVERY_MS) {
            self.tend_network(now);
        }
    }

    /// All of a turn but the ports that come and go: also done while a change waits for those.
    pub(super) fn tend_network(&mut self, now: Instant) {
        self.tended = now;
        self.take_reports();
        let (mut moved, mut ended) = (false, Vec::new());
        // Tenants make some of them faster than they can be read.
        for _ in 0..EVENTS {
            let Some(event) = self.pool.events.pop() else { break };
            match event {
                Event::Neighbour { uplink, binding, claim } => {
                    if self.neighbours.learn(uplink, binding, claim, now) {
                        let Binding { address, mac } = binding;
                        tracing::info!(uplink, %address, %mac, "underlay neighbour resolved");
                        self.topology.next_hop_changed(uplink, address, &mut self.neighbours);
                        moved = true;
                    }
                }
                Event::QpRefused { vnic, peer, qpn, reason } => {
                    let (snapshot, now) = (self.topology.snapshot(), self.pool.now());
                    self.rcft.refused(QpRefusal { vnic, peer, qpn, reason }, snapshot, now, &mut self.events);
                }
                Event::ConnectionRejected { vnic, peer, asked, qpn } => {
                    let (snapshot, now) = (self.topology.snapshot(), self.pool.now());
                    self.rcft.rejected(
                        ConnectionRejection { vnic, peer, asked, qpn },
                        snapshot,
                        now,
                        &mut self.events,
                    );
                }
                Event::Cm { vnic, peer, sends, message } => {
                    if let Some(own) = self.rcft.observe(vnic, peer, sends, &message) {
                        ended.push((vnic, own));
                    }
                }
            }
        }
        self.forget_ended(&ended);
        self.doubt_neighbours(now);
        self.tend_services(now);
        self.qos.tend(self.pool.now().ns);
        self.ports.tend(&self.pool);
        moved |= self.tend_bfd(now);
        moved |= self.tend_uplinks(now);
        self.tend_probes(now);
        let (probes, lost) = self.neighbours.tick(now);
        for (uplink, address) in lost {
            tracing::warn!(uplink, %address, "underlay neighbour lost");
            self.topology.next_hop_changed(uplink, address, &mut self.neighbours);
            moved = true;
        }
        if moved {
            self.offload.follow(&self.pool, self.topology.snapshot());
        }
        let result = self.offload.tend(&self.pool, self.topology.snapshot());
        self.tell_late();
        // With what hardware has done of them: after a long change none is taken for one that is silent.
        self.tend_queue_pairs();
        let stood = std::mem::replace(&mut self.offload_stands, result.is_err());
        if let (Err(error), false) = (result, stood) {
            tracing::error!(%error, "offload stands still");
        }
        for probe in probes {
            // Nobody would hear it, and it takes the place of others in the worker's mailbox.
            if self.topology.is_up(probe.uplink) {
                self.ask(probe);
            }
        }
        for worker in &self.pool.workers {
            worker.mailbox().free_retired();
        }
        self.tend_heap(now);
        self.learn_addresses(now);
    }

    /// Has all neighbours asked when one of them may have said something that was forgotten.
    fn doubt_neighbours(&mut self, now: Instant) {
        let is_due = self.doubted.is_none_or(|at| now.saturating_duration_since(at) >= DOUBT_EVERY);
        if is_due && self.pool.events.take_missed() {
            self.doubted = Some(now);
            self.neighbours.doubt_reachable();
        }
    }

    /// Gives vNICs the addresses that they asked for or announced, not often, so that no guest makes more snapshots than that; and VTEPs
    /// the slots that they wait for.
    fn learn_addresses(&mut self, now: Instant) {
        let placed = self.place_left_out();
        let floated = self.learn_floating(now);
        let asked = self.learn_link_local(now);
        if placed || floated || asked {
            self.topology.commit();
            if let Err(error) = self.hand_out() {
                tracing::error!(%error, "addresses that vNICs asked for or announced, or VTEPs that there is room for again, are not in use");
            }
        }
    }

    /// Takes in where floating addresses are. True when that is news.
    fn learn_floating(&mut self, now: Instant) -> bool {
        if now.duration_since(self.floated) < FLOAT_EVERY {
            return false;
        }
        let mut looked = self.hold_down.due(now);
        while let Some(floating) = self.pool.events.floated() {
            let Some(vnic) = self.topology.snapshot().vnic(floating.vnic) else { continue };
            looked.extend(self.hold_down.admit(vnic.vpc, floating, now));
        }
        // Not before there is one: the first is taken in at once.
        if !looked.is_empty() {
            self.floated = now;
        }
        let mut moved = BTreeSet::new();
        for Floating { vnic, binding, here } in looked {
            if self.topology.float(&Floating { vnic, binding, here }) {
                let Binding { address, mac } = binding;
                tracing::info!(vnic, %address, %mac, here, "floating address moved");
                moved.insert(vnic);
            }
        }
        moved.iter().for_each(|vnic| self.hold_down.moved(*vnic, now));
        !moved.is_empty()
    }

    /// Gives vNICs the link-local addresses that they asked for: of each the last one, once a second. True when there is one.
    fn learn_link_local(&mut self, now: Instant) -> bool {
        if now.duration_since(self.learned) < LEARN_EVERY {
            return false;
        }
        self.learned = now;
        let mut any = false;
        // Of every index, so that none inherits what a vNIC before it asked for.
        for vnic in 0..MAX_VNICS as u32 {
            let Some(address) = self.pool.events.wished(vnic) else { continue };
            if self.topology.learn(vnic, address) {
                tracing::debug!(vnic, %address, "link-local address learned");
                any = true;
            }
        }
        any
    }

    /// Has workers forget what they counted from the wire of queue pairs whose connections have ended: a list of them
    /// would look alive for as long as the idle timeout. What is lost in a full mailbox ages as ever.
    fn forget_ended(&self, ended: &[(u32, Qpn)]) {
        let snapshot = self.topology.snapshot();
        let keys: Vec<QpKey> = ended
            .iter()
            .filter_map(|(vnic, qpn)| Some((snapshot.vnic(*vnic)?, *qpn)))
            .flat_map(|(vnic, qpn)| {
                vnic.addresses().map(move |address| QpKey::new(Scope::Vpc(vnic.vpc), address, qpn))
            })
            .collect();
        for worker in &self.pool.workers {
            for keys in keys.chunks(FORGOTTEN) {
                worker.mailbox().offer(WorkerCommand::QpForget(keys.to_vec()));
            }
        }
    }

    fn tend_queue_pairs(&mut self) {
        let snapshot = self.topology.snapshot();
        let vnics = snapshot.vnics.iter().flatten().map(|vnic| vnic.index as usize);
        let opened = |index| {
            let workers = self.pool.workers.iter();
            workers
                .map(|worker| worker.stats.pipeline.vnic(index).qps_opened.get())
                .fold(0, u64::wrapping_add)
        };
        let opened = vnics.map(opened).fold(0, u64::wrapping_add);
        self.rcft.tend(snapshot, self.pool.now(), opened, &mut self.events);
        let held_since = self.rcft.held_since(self.pool.now());
        self.connections.tend(snapshot, self.pool.now(), held_since);
        let released = self.rcft.released(self.topology.held());
        for index in released.into_iter().filter(|&index| self.connections.in_use(index) == 0) {
            self.topology.let_go(index);
        }
        self.tidying.tend(&self.pool);
    }

    /// True while queue pairs are on their way out: then [`hurry`](Self::hurry) wants to be called every
    /// [`super::rcft::BUSY_EVERY_MS`].
    pub fn is_busy(&self) -> bool {
        self.rcft.is_busy() || self.connections.is_busy()
    }

    /// Goes on with queue pairs that are on their way out.
    pub fn hurry(&mut self) {
        self.rcft.hurry(self.topology.snapshot(), self.pool.now(), &mut self.events);
        self.connections.advance();
    }

    /// Takes in what the watchdog has seen.
    fn take_reports(&mut self) {
        self.watchdog.turn();
        for report in self.watchdog.reports() {
            let worker = match report.thread {
                WatchedThread::Worker(worker, core) => json!({ "worker": worker, "core": core }),
                WatchedThread::Divider => json!({ "thread": "divider" }),
                WatchedThread::Control => json!({ "thread": "control" }),
            };
            let kind = if report.stalled.is_some() { "stalled" } else { "stalled-no-more" };
            self.events.add(kind, report.to_string(), worker);
        }
    }

    /// Sends an ARP request or a neighbour solicitation.
    fn ask(&mut self, probe: NeighbourProbe) {
        let Some(uplink) = self.topology.snapshot().uplink(probe.uplink) else { return };
        let mac = mac_from(uplink.mac);
        // A question says that its asker's address is here, which is not so where another uplink answers for that: then it is an
        // ARP probe (RFC 5227 section 2.1.1), or comes from the link-local address.
        let speaks = uplink.answers_for(probe.source);
        let mut frame = match (probe.source, probe.target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let source = if speaks { source } else { Ipv4Addr::UNSPECIFIED };
                control::arp_request((mac, source), target)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let source = if speaks { source } else { mac.link_local() };
                control::neighbour_solicitation((mac, source), target, probe.to)
            }
            _ => return,
        };
        if let (Some(to), true) = (probe.to, probe.target.is_ipv4()) {
            frame[..6].copy_from_slice(&to.0);
        }
        self.inject(probe.uplink, frame);
    }
}

mod hold_down;
#[cfg(test)]
mod tests;
