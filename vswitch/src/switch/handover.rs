//! An upgrade, as far as it is the switch's: tables that go and come, and ports that are let go and taken back.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::connections::{ConnectionKey, ConnectionState, Made, Record};
use pipelines::event::{Binding, Claim, Floating};
use wire::{MacAddr, Qpn};

use super::plug::Missing;
use super::ports::wanted;
use super::{Switch, SwitchError};
use crate::config::{Config, PortSpec};
use crate::handover::tables::{Chunk, ROWS, Tables, split};
use crate::topology::Extent;

/// How long ports that are taken back may take.
const GRACE: Duration = Duration::from_secs(5);

impl Switch {
    /// Why its ports cannot be handed over, if there is a reason.
    pub fn is_bound(&self) -> Option<String> {
        let passing = |spec: &PortSpec| matches!(spec, PortSpec::Tap(tap) if !tap.persist);
        let (name, _) = self.ports.all_wanted().find(|(_, wanted)| passing(&wanted.spec))?;
        Some(format!(
            "port {name} is a tap that goes with its process, and its tenant's interface with it; write `persist = true` for it"
        ))
    }

    /// Everything that a new process needs of its tables, in chunks; what is saved is on the disk.
    pub fn tables(&mut self) -> Vec<Chunk> {
        if let Some(saver) = &mut self.saved {
            saver.finish();
        }
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
        for (vnic, rows) in self.live_connections() {
            if let Some(vnic) = snapshot.vnic(vnic) {
                chunks.extend(split(&vnic.name, &rows, Chunk::Connections));
            }
        }
        let mut floating: BTreeMap<&str, Vec<(IpAddr, [u8; 6])>> = BTreeMap::new();
        for (vnic, Binding { address, mac }) in self.topology.floating() {
            floating.entry(&vnic.name).or_default().push((address, mac.0));
        }
        for (vnic, rows) in floating {
            chunks.extend(split(vnic, &rows, Chunk::Floating));
        }
        chunks
    }

    fn live_connections(&self) -> BTreeMap<u32, Vec<([u64; 6], u32)>> {
        let keeper = self.connections.keeper();
        let mut live: BTreeMap<u32, Vec<([u64; 6], u32)>> = BTreeMap::new();
        let mut from = Some(0);
        while let Some(start) = from {
            let (page, next) = keeper.scan(start, ROWS);
            for seen in page.iter().filter(|seen| !seen.leaving) {
                let state = keeper.connections().record(seen.slot).state;
                if !state.is_over() {
                    let vnic = ConnectionKey::from_words(seen.key).vnic();
                    live.entry(vnic).or_default().push((seen.key, state.bits()));
                }
            }
            from = next;
        }
        live
    }

    /// Lets go of all ports. The process, its workers and its tables stay.
    pub fn let_go_all(&mut self) -> Result<(), SwitchError> {
        self.end_bfd();
        self.set_forwarding(false)?;
        self.ports.detach_all(&self.pool);
        Ok(())
    }

    /// Opens the ports again that were let go, and goes on as before.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn come_back(&mut self) -> Result<(), SwitchError> {
        // The new process may have written the state file: the next change writes all of it.
        let path = self.saved.as_ref().map(|saver| saver.path().to_owned());
        self.set_state_file(path.as_deref());
        let config = self.config.clone();
        for (name, wanted) in wanted(&config) {
            self.ports.request(&self.eal, &self.pool, &self.mempool, &name, &wanted);
        }
        self.await_ports(GRACE, Missing::Tolerated)?;
        self.publish(&config, Extent::AllButLocations(&[]))?;
        self.poll_fresh()?;
        self.set_forwarding(true)
    }

    /// Everything is another process's now: nothing is saved any more.
    pub fn is_succeeded(&mut self) {
        self.saved = None;
        self.rcft.forget_file();
    }

    /// Begins to forward with the tables of the process before this one.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn succeed(&mut self, config: Config, tables: &Tables) -> Result<(), SwitchError> {
        let mut pairs: Vec<(String, Vec<(IpAddr, Qpn)>)> = Vec::new();
        for chunk in tables.chunks() {
            if let Chunk::QueuePairs(vnic, rows) = chunk {
                let rows = rows.iter().filter_map(|&(peer, qpn)| Some((peer, Qpn::new(qpn).ok()?)));
                pairs.push((vnic.clone(), rows.collect()));
            }
        }
        self.rcft.take_over(pairs);
        let forwards = config.forward.auto_start;
        self.apply(config, Missing::Tolerated)?;
        self.take_tables(tables);
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
        // Held against the rules of this process with each connection's next packet.
        let epoch = snapshot.security.epoch.wrapping_sub(1);
        let (mut taken, mut refused) = (0usize, 0usize);
        self.connections.lift_rate();
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
                Chunk::Connections(name, rows) => {
                    let Some(&vnic) = vnics.get(name.as_str()) else { continue };
                    for (words, bits) in rows {
                        let key = ConnectionKey::from_words(*words).of_vnic(vnic);
                        let record = Record { state: ConnectionState::from_bits(*bits), epoch };
                        let made =
                            self.connections.keeper().connections().make(&key, record, self.pool.now());
                        let count = if matches!(made, Made::In(_)) { &mut taken } else { &mut refused };
                        *count += 1;
                    }
                }
                Chunk::Floating(name, rows) => {
                    let Some(&vnic) = vnics.get(name.as_str()) else { continue };
                    for (address, mac) in rows {
                        let binding = Binding { address: *address, mac: MacAddr(*mac) };
                        floats |= self.topology.float(&Floating { vnic, binding, here: true });
                    }
                }
                Chunk::QueuePairs(..) => {}
            }
        }
        self.connections.restore_rate();
        if floats {
            let before = self.snapshot().clone();
            let snapshot = self.topology.commit();
            if let Err(error) = self.hand_out(&before, &snapshot) {
                tracing::error!(%error, "floating addresses of the old switch are not in use");
            }
        }
        let [hops, pairs, ..] = tables.counts();
        tracing::info!(
            hops,
            pairs,
            connections = taken,
            refused,
            "the tables of the old switch are taken over"
        );
    }
}
