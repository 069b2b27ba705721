//! Control's side of the connection table: how many each vNIC may have, and which have ended.

use std::time::Duration;

use pipelines::Now;
use pipelines::connections::{ConnectionKeeper, ConnectionTimes, Connections};
use pipelines::rcft::ticks;
use pipelines::snapshot::Snapshot;
use std::sync::Arc;

use crate::config::Config;
use crate::worker::MAX_VNICS;

/// Turns of [`ConnectionControl::tend`] in which the whole table is looked at.
const TURNS: u32 = 1000 / super::TEND_EVERY_MS as u32;
/// The fewest places of a turn.
const MIN_SLICE: u32 = 256;

/// Control of the connections.
pub struct ConnectionControl {
    keeper: ConnectionKeeper,
    /// Most connections of a vNIC, and how many new ones a second.
    limits: (u32, u32),
}

/// Times in ticks of the workers' clock.
fn times(config: &Config) -> ConnectionTimes {
    let of = |time: Duration| ticks(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).max(1);
    let security = &config.security;
    ConnectionTimes {
        tcp_opening: of(security.tcp_opening),
        tcp_established: of(security.tcp_established),
        tcp_closing: of(security.tcp_closing),
        one_way: of(security.one_way),
        both_ways: of(security.both_ways),
        icmp: of(security.icmp),
        rdma: of(config.rcft.idle_timeout),
    }
}

impl ConnectionControl {
    /// Control of a table that workers share.
    pub fn new(connections: Arc<Connections>, config: &Config) -> Self {
        let mut control = Self { keeper: ConnectionKeeper::new(connections, times(config)), limits: (0, 0) };
        control.configure(config);
        control
    }

    /// Takes over bounds and times.
    pub fn configure(&mut self, config: &Config) {
        self.keeper.set_times(times(config));
        let limits = (config.security.connections_per_vnic, config.security.new_rate);
        if std::mem::replace(&mut self.limits, limits) != limits {
            (0..MAX_VNICS as u32).for_each(|vnic| self.keeper.set_limits(vnic, limits.0, limits.1));
        }
    }

    /// Until [`restore_rate`](Self::restore_rate) vNICs may have any number of new connections at once: those that another process
    /// has admitted.
    pub fn lift_rate(&self) {
        (0..MAX_VNICS as u32).for_each(|vnic| self.keeper.set_limits(vnic, self.limits.0, 0));
    }

    /// Sets the limits that are configured.
    pub fn restore_rate(&self) {
        (0..MAX_VNICS as u32).for_each(|vnic| self.keeper.set_limits(vnic, self.limits.0, self.limits.1));
    }

    /// Lets vNICs that come under rules keep the connections that they may have.
    pub fn pick_up(&self, config: &Config, now: Now, vnics: impl Iterator<Item = u32>) {
        let grace = ticks(u64::try_from(config.security.restart_grace.as_millis()).unwrap_or(u64::MAX));
        let until = now.tick.wrapping_add(grace.min(u32::MAX / 2));
        vnics.for_each(|vnic| self.keeper.connections().pick_up_until(vnic, until));
    }

    /// Which connections there are.
    pub fn keeper(&self) -> &ConnectionKeeper {
        &self.keeper
    }

    /// Connections that a vNIC has now.
    pub fn in_use(&self, vnic: u32) -> u32 {
        self.keeper.connections().ledger().count(vnic)
    }

    /// One turn, every [`super::TEND_EVERY_MS`].
    pub fn tend(&mut self, snapshot: &Snapshot, now: Now) {
        let slots = self.keeper.connections().ledger().slots() as u32;
        let is_gone = |vnic: u32| snapshot.vnic(vnic).is_none();
        self.keeper.sweep((slots / TURNS).max(MIN_SLICE), now.tick, is_gone);
        self.keeper.advance();
    }

    /// True while some are on their way out: then [`advance`](Self::advance) wants to be called more often.
    pub fn is_busy(&self) -> bool {
        self.keeper.is_busy()
    }

    /// Goes on with what is on its way out.
    pub fn advance(&mut self) {
        self.keeper.advance();
    }
}
