//! An upgrade, as far as it is the switch's: tables that go and come, and ports that are let go and taken back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use pipelines::event::{Binding, Claim, Floating};
use pmd::{TapPlace, namespace};
use wire::{MacAddr, Qpn};

use super::opening::JobResult;
use super::plug::{Missing, TURN};
use super::ports::{WantedPort, wanted};
use super::{Switch, SwitchError, object_ids};
use crate::config::objects::ObjectId;
use crate::config::{Config, PortSpec, Relocation};
use crate::handover::LET_GO;
use crate::handover::tables::{Chunk, ROWS, Tables, split};
use crate::port::{Undo, may_block, shared_interface};
use crate::state::files::fnv;
use crate::state::journal::Saver;
use crate::state::owners::Owner;
use crate::topology::{Extent, punt_name};

/// How long ports that are taken back may take.
const GRACE: Duration = Duration::from_secs(5);
/// How long ports that are opened beside another process may take, all together.
const BESIDE: Duration = Duration::from_secs(30);
/// Packets that wait in one queue at most.
const MOST_WAITING: usize = 1 << 16;

/// Why a switch did not let go.
#[derive(Debug, thiserror::Error)]
pub enum LetGoError {
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A driver that takes long, or does not come back.
    #[error(
        "ports that were to be closed are not within {LET_GO:?}: {0}; see what their drivers do, or restart in place of an upgrade"
    )]
    Late(String),
}

impl Switch {
    /// Why it cannot be handed over, if there is a reason.
    pub fn is_bound(&self) -> Option<String> {
        self.would_be_lost().or_else(|| self.has_passing_port()).or_else(|| self.has_strayed_port())
    }

    /// What is not saved, or what clients made and no file has: a new process does not get it. Others say again what is theirs.
    fn would_be_lost(&self) -> Option<String> {
        if let Some(saver) = &self.saved {
            return saver.is_behind().then(|| {
                format!(
                    "the last changes are in force but not saved in {}, so that the new process would be without them; see the log for why, \
                     mend that, and try again after some seconds",
                    saver.path().display()
                )
            });
        }
        let ownership = self.ownership();
        let is_clients =
            |(section, id): &ObjectId| matches!(ownership.of(section, id), Owner::Api | Owner::Cni);
        let (section, id) = object_ids(&self.config, &self.topology).find(is_clients)?;
        Some(format!(
            "{section} {id} was made at run time, and there is no state file to find it in: it would be lost; write it into the config file and \
             reload that, or remove it, or restart with `state` in [control] and make it again"
        ))
    }

    fn has_passing_port(&self) -> Option<String> {
        let passing = |spec: &PortSpec| matches!(spec, PortSpec::Tap(tap) if !tap.persist);
        // Punt taps stay, whatever the config says.
        let punts = |port: &str| self.config.uplinks.iter().any(|uplink| punt_name(&uplink.name) == port);
        let (name, _) =
            self.ports.all_wanted().find(|(name, wanted)| passing(&wanted.spec) && !punts(name))?;
        Some(format!(
            "port {name} is a tap that goes with its process, and its tenant's interface with it; write `persist = true` for it"
        ))
    }

    /// A tap that is not where the config has it, nor will be for a new process, which would make another one there.
    fn has_strayed_port(&self) -> Option<String> {
        let own = Path::new(namespace::OWN);
        self.ports.iter().find_map(|(_, port)| {
            let PortSpec::Tap(spec) = &port.wanted.spec else { return None };
            let TapPlace { iface, namespace } = port.port.tap_place()?;
            let wanted = namespace::identify(spec.namespace().as_deref().unwrap_or(own)).ok();
            let has_moved = namespace.is_some_and(|now| wanted != Some(now));
            let what = match (has_moved, iface != spec.iface) {
                (false, false) => return None,
                (true, false) => "is in another network namespace".to_owned(),
                (false, true) => format!("is called {iface} now"),
                (true, true) => format!("is in another network namespace, as {iface}"),
            };
            Some(format!(
                "the tap {} of port {} {what}, where a new process would not find it: it would make another one, and the tenant of this one be \
                 cut off; say where it is by `iface` and `netns =` of its port, or bring it back",
                spec.iface, port.name
            ))
        })
    }

    /// Everything that a new process needs of its tables, in chunks; what is saved is on the disk.
    pub fn tables(&mut self) -> Vec<Chunk> {
        #[cfg(test)]
        super::testing::reach("tables");
        self.end_state();
        let snapshot = self.topology.snapshot().clone();
        let hop = |(uplink, address, hop): (u16, IpAddr, crate::topology::underlay::Neighbour)| {
            Some((snapshot.uplink(uplink)?.name.clone(), address, hop.mac()?.0))
        };
        let hops: Vec<_> = self.neighbours.list().into_iter().filter_map(hop).collect();
        let mut chunks: Vec<Chunk> = hops.chunks(ROWS).map(|rows| Chunk::Neighbours(rows.to_vec())).collect();
        for (vnic, pairs) in self.rcft.admitted(&snapshot) {
            let pairs: Vec<_> = pairs.into_iter().map(|(peer, qpn)| (peer, qpn.get())).collect();
            chunks.extend(split(&vnic, &pairs, Chunk::QueuePairs));
        }
        chunks.extend(self.ports.to_undo().chunks(ROWS).map(|rows| Chunk::Interfaces(rows.to_vec())));
        let mut floating: BTreeMap<&str, Vec<(IpAddr, [u8; 6])>> = BTreeMap::new();
        for (vnic, Binding { address, mac }) in self.topology.floating() {
            floating.entry(&vnic.name).or_default().push((address, mac.0));
        }
        for (vnic, rows) in floating {
            chunks.extend(split(vnic, &rows, Chunk::Floating));
        }
        chunks.extend(self.ports_there().chunks(ROWS).map(|rows| Chunk::Ports(rows.to_vec())));
        chunks.push(Chunk::Forwarding(self.forwarding, self.ports.stopped()));
        chunks
    }

    fn ports_there(&self) -> Vec<(String, u64)> {
        let wanted = wanted(&self.config);
        let there = self.ports.iter().filter(|(_, port)| port.fault().is_none());
        there.filter_map(|(_, port)| Some((port.name.clone(), number(wanted.get(&port.name)?)))).collect()
    }

    /// The ports that the switch before this one had, that the config wants just as they were, and that did not open, each with the reason. One
    /// that waits for its peer is not among them.
    pub fn not_taken_over(&self, tables: &Tables) -> Vec<String> {
        let there: HashMap<&str, u64> = tables.ports().collect();
        let lost = self.ports.absent().filter_map(|(name, absent)| {
            let reason = absent.reason.as_ref()?;
            let is_as_before = there.get(name) == Some(&number(&absent.wanted));
            (is_as_before && !may_block(&absent.wanted.spec)).then(|| format!("port {name}: {reason}"))
        });
        lost.collect()
    }

    /// Lets go of the state file and of all ports, but for those on interfaces on which the new process has some, too (`beside`); does `stopped` when nothing is forwarded any
    /// more. The process, its workers and its tables stay.
    ///
    /// # Errors
    /// `LetGoError`; then it has to [come back](Self::come_back).
    pub fn let_go_all(&mut self, beside: &[String], stopped: impl FnOnce()) -> Result<(), LetGoError> {
        self.end_bfd();
        self.set_forwarding(false)?;
        stopped();
        #[cfg(test)]
        super::testing::reach("let-go");
        // Nothing comes of what they wait for: they are tried anew.
        self.tend_ahead(Instant::now(), true);
        self.let_go_of_device();
        let late = self.ports.detach_all_but(&self.pool, beside, LET_GO);
        if !late.is_empty() {
            return Err(LetGoError::Late(late.join(", ")));
        }
        // With what has come since the tables went.
        self.connections.write_file(self.topology.snapshot());
        self.state_lock = None;
        Ok(())
    }

    /// Lets go of what holds the rules, for its port cannot stop before; goes on after errors, which are logged.
    pub(super) fn let_go_of_device(&mut self) {
        if let Err(error) = self.offload.let_go_all(&self.pool, self.topology.snapshot()) {
            tracing::error!(%error, "what hardware did at last is not counted");
        }
    }

    /// Opens the ports again that were let go, and goes on as before, when it forwarded or did not.
    ///
    /// # Errors
    /// The first [`SwitchError`]. All that can be is back all the same, and the rest follows in later turns.
    pub fn come_back(&mut self, forwards: bool) -> Result<(), SwitchError> {
        // The new process may have written the state file: the next change writes all of it.
        let path = self.saved.take().map(|saver| saver.path().to_owned());
        self.saved = path.as_deref().map(Saver::new);
        // One that did not get as far as letting go has it still.
        if self.state_lock.is_none() {
            self.lock_state(Instant::now());
        }
        // Nor is the file of connections this one's any more.
        self.connections.keep_again(self.topology.snapshot());
        self.ports.close_kept();
        self.bfd.begin_anew();
        let config = self.config.clone();
        // The places of the ports that went are free when no snapshot names them any more. A worker that is late learns it from the next.
        if !self.pool.has_silent()
            && let Err(error) = self.publish(&config, Extent::AllButLocations(&Relocation::NONE))
        {
            tracing::warn!(%error, "workers do not know yet that ports are gone");
        }
        for (name, wanted) in wanted(&config) {
            if self.ports.index(&name).is_none() {
                self.ports.request(&self.eal, &self.pool, &self.mempool, &name, &wanted);
            }
        }
        // A worker that is late with one step is no reason to leave out the others: what it missed is done when it answers again.
        let opened = self.await_ports(GRACE, &|_| Missing::Tolerated);
        let published = self.publish(&config, Extent::AllButLocations(&Relocation::NONE));
        let polled = self.poll_fresh();
        let forwarded = self.set_forwarding(forwards);
        opened.and(published).and(polled).and(forwarded)
    }

    /// Everything is another process's now: nothing is saved any more.
    pub fn is_succeeded(&mut self) {
        self.saved = None;
        self.rcft.forget_file();
        self.connections.leave_file();
        self.ports.leave_kept();
    }

    /// The process that this one was to take over from has come back: everything that this one has is that one's again, and what was done to
    /// interfaces stays as it is.
    pub fn is_superseded(&mut self) {
        self.is_succeeded();
        self.ports.leave_all();
        self.ahead.beside().values_mut().for_each(|ready| ready.cleanup.leave_interfaces());
    }

    /// Opens those ports of a config that two processes may have open, while another one forwards. It need not be the last word: what
    /// [`succeed`](Self::succeed) is given counts.
    pub fn open_beside(&mut self, config: &Config) {
        let mut asked = BTreeSet::new();
        let shared = |wanted: &WantedPort| shared_interface(&wanted.spec).is_some();
        for (name, wanted) in wanted(config).iter().filter(|(_, wanted)| shared(wanted)) {
            asked.insert(self.ports.open_ahead(&self.eal, &self.pool, &self.mempool, name, wanted));
        }
        let began = Instant::now();
        while !asked.is_empty() && began.elapsed() < BESIDE {
            while let Some(done) = self.ports.done(Instant::now()) {
                let JobResult::Opened(ticket, name, result) = done else { continue };
                match result {
                    Ok(ready) if asked.remove(&ticket) => {
                        self.ahead.beside().insert(name, ready);
                    }
                    // Tried again when it is alone.
                    _ => drop(asked.remove(&ticket)),
                }
            }
            std::thread::sleep(TURN);
        }
        asked.into_iter().for_each(|ticket| self.ports.cancel_ahead(ticket));
    }

    /// The interfaces of the ports that are open beside another process.
    pub fn interfaces_beside(&mut self) -> Vec<String> {
        let ports = self.ahead.beside().values();
        ports.filter_map(|ready| shared_interface(&ready.wanted.spec)).map(str::to_owned).collect()
    }

    /// What the other process has done to those interfaces, these ports undo from now on.
    pub fn inherit_interfaces(&mut self, tables: &Tables) {
        let rows = tables.chunks().iter().filter_map(|chunk| match chunk {
            Chunk::Interfaces(rows) => Some(rows),
            _ => None,
        });
        let undo: Vec<&Undo> = rows.flatten().collect();
        for ready in self.ahead.beside().values_mut() {
            let Some(iface) = shared_interface(&ready.wanted.spec) else { continue };
            undo.iter().filter(|undo| undo.iface() == iface).for_each(|undo| ready.cleanup.inherit(undo));
        }
    }

    /// Forgets what has come on ports beside another process, which has forwarded it.
    pub fn forget_beside(&mut self) {
        let mut packets = [const { None }; 64];
        for queue in self.ahead.beside().values_mut().flat_map(|ready| &mut ready.rx) {
            // As much as any ring holds: what comes meanwhile must not keep this going.
            for _ in 0..MOST_WAITING / packets.len() {
                if queue.receive_into(&mut packets) == 0 {
                    break;
                }
                packets.fill_with(|| None);
            }
        }
    }

    /// Goes on with the tables of the process before this one, and forwards if that did; one that does not say so leaves that to the config.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn succeed(&mut self, config: Config, tables: &Tables, control: &Path) -> Result<(), SwitchError> {
        let mut pairs: Vec<(String, Vec<(IpAddr, Qpn)>)> = Vec::new();
        for chunk in tables.chunks() {
            if let Chunk::QueuePairs(vnic, rows) = chunk {
                let rows = rows.iter().filter_map(|&(peer, qpn)| Some((peer, Qpn::new(qpn).ok()?)));
                pairs.push((vnic.clone(), rows.collect()));
            }
        }
        self.rcft.take_over(pairs);
        let (forwards, stopped) = tables.forwarding().unwrap_or((config.forward.auto_start, &[]));
        let is_wanted = wanted(&config);
        self.ports.stay_stopped(stopped.iter().filter(|name| is_wanted.contains_key(*name)).cloned());
        self.apply(config, Missing::Tolerated)?;
        self.discard_beside();
        self.take_tables(tables);
        self.keep_connections(control);
        self.set_forwarding(forwards)
    }

    fn take_tables(&mut self, tables: &Tables) {
        let snapshot = self.topology.snapshot().clone();
        let vnics: HashMap<&str, u32> =
            snapshot.vnics.iter().flatten().map(|vnic| (vnic.name.as_str(), vnic.index)).collect();
        let uplinks: HashMap<&str, u16> = (0..)
            .zip(&snapshot.uplinks)
            .filter_map(|(index, uplink)| Some((uplink.as_ref()?.name.as_str(), index)))
            .collect();
        let (now, mut floats) = (Instant::now(), false);
        for chunk in tables.chunks() {
            match chunk {
                Chunk::Neighbours(rows) => {
                    for (name, address, mac) in rows {
                        let Some(&uplink) = uplinks.get(name.as_str()) else { continue };
                        let binding = Binding { address: *address, mac: MacAddr(*mac) };
                        // To be confirmed: whoever answers now is believed.
                        let claim = Claim { overrides: true, confirms: false };
                        if self.neighbours.learn(uplink, binding, claim, now) {
                            self.topology.next_hop_changed(uplink, *address, &mut self.neighbours);
                        }
                    }
                }
                Chunk::Floating(name, rows) => {
                    let Some(&vnic) = vnics.get(name.as_str()) else { continue };
                    for (address, mac) in rows {
                        let binding = Binding { address: *address, mac: MacAddr(*mac) };
                        floats |= self.topology.float(&Floating { vnic, binding, here: true });
                    }
                }
                Chunk::QueuePairs(..) | Chunk::Interfaces(_) | Chunk::Forwarding(..) | Chunk::Ports(_) => {}
            }
        }
        if floats {
            self.topology.commit();
            if let Err(error) = self.hand_out() {
                tracing::error!(%error, "floating addresses of the old switch are not in use");
            }
        }
        let [hops, pairs, floating] = tables.counts();
        tracing::info!(hops, pairs, floating, "the tables of the old switch are taken over");
    }
}

/// Tells a port from one that another config wants otherwise under its name.
fn number(wanted: &WantedPort) -> u64 {
    fnv(format!("{wanted:?}").as_bytes())
}

#[cfg(test)]
mod tests;
