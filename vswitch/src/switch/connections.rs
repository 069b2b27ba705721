//! Control's side of the connection table: how many each vNIC may have, and which have ended.

pub mod file;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use pipelines::Now;
use pipelines::connections::{
    ConnectionKeeper, ConnectionKey, ConnectionState, ConnectionTimes, Connections, Made, Record,
};
use pipelines::rcft::ticks;
use pipelines::snapshot::Snapshot;
use std::sync::Arc;
use worker::MAX_VNICS;

use self::file::{ConnectionFile, path_beside, read, vnic_hash};
use super::Switch;
use super::kept::{has_left, name_of};
use crate::config::Config;

/// Turns of [`ConnectionControl::tend`] in which the whole table is looked at.
const TURNS: u32 = 1000 / super::TEND_EVERY_MS as u32;
/// The fewest places of a turn.
const MIN_SLICE: u32 = 256;

/// Control of the connections.
pub struct ConnectionControl {
    keeper: ConnectionKeeper,
    /// Most connections of a vNIC, and how many new ones a second.
    limits: (u32, u32),
    /// Where they outlive the process, if anywhere.
    file: Option<ConnectionFile>,
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
        let keeper = ConnectionKeeper::new(connections, times(config));
        let mut control = Self { keeper, limits: (0, 0), file: None };
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

    /// Takes in a connection that another process had; `false` when there is no place for it. Held against the rules of this
    /// process with its next packet.
    pub fn take(&self, key: &ConnectionKey, state: ConnectionState, snapshot: &Snapshot, now: Now) -> bool {
        let record = Record { state, epoch: snapshot.security.epoch.wrapping_sub(1) };
        matches!(self.keeper.connections().make(key, record, now), Made::In(_))
    }

    /// Keeps connections in a file from now on, in place of what is there.
    ///
    /// # Errors
    /// The system's; then they are not kept.
    pub fn keep_in(&mut self, path: &Path, snapshot: &Snapshot) -> io::Result<()> {
        self.file = None;
        self.file = Some(ConnectionFile::create(path, &self.keeper, &names(snapshot))?);
        Ok(())
    }

    /// Writes what has changed to the file, all of it: the process ends, or another one takes over.
    pub fn write_file(&mut self, snapshot: &Snapshot) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(&self.keeper, &names(snapshot)) {
            tracing::warn!(%error, "the last connections are not saved");
        }
    }

    /// Keeps them in a new file, in place of what another process may have put there.
    pub fn keep_again(&mut self, snapshot: &Snapshot) {
        let Some(path) = self.file.take().map(ConnectionFile::into_path) else { return };
        if let Err(error) = self.keep_in(&path, snapshot) {
            tracing::warn!(%error, "connections are not saved: a restart ends those of vNICs under rules");
        }
    }

    /// The file is another process's now.
    pub fn leave_file(&mut self) {
        self.file = None;
    }

    /// Leaves the file to the next process, if there is anything in it.
    pub fn end_file(&mut self, snapshot: &Snapshot) {
        self.write_file(snapshot);
        if let Some(file) = self.file.take() {
            file.remove_if_empty();
        }
    }

    /// Which connections there are.
    pub fn keeper(&self) -> &ConnectionKeeper {
        &self.keeper
    }

    /// Connections that a vNIC has now.
    pub fn in_use(&self, vnic: u32) -> u32 {
        self.keeper.connections().ledger().count(vnic)
    }

    /// One turn, every [`super::TEND_EVERY_MS`]. `held_since`: as [`RcftControl::held_since`](super::rcft::RcftControl::held_since).
    pub fn tend(&mut self, snapshot: &Snapshot, now: Now, held_since: Option<u32>) {
        self.keeper.set_held_since(held_since);
        let slots = self.keeper.connections().ledger().slots() as u32;
        let is_gone = |vnic: u32| snapshot.vnic(vnic).is_none();
        let budget = (slots / TURNS).max(MIN_SLICE);
        self.keeper.sweep(budget, now.tick, is_gone);
        self.keeper.advance();
        if let Some(file) = &mut self.file {
            file.turn(budget, &self.keeper, &names(snapshot));
        }
    }

    /// Ends the connections of vNICs that are in another network than before, as where their VPC has another VNI: they were opened to
    /// machines of that one, and the same addresses may be others' here.
    pub fn follow(&mut self, before: &Snapshot, after: &Snapshot) {
        let moved: HashSet<u32> = after
            .vnics
            .iter()
            .flatten()
            .map(|vnic| vnic.index)
            .filter(|&vnic| before.vnic(vnic).is_some() && has_left(vnic, before, after))
            .collect();
        if !moved.is_empty() {
            self.keeper.take_out(|vnic| moved.contains(&vnic));
            self.keeper.advance();
        }
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

impl Switch {
    /// Takes in the connections that the process before this one had, and keeps its own where those were: in a file beside the control
    /// socket.
    pub fn keep_connections(&mut self, control: &Path) {
        let path = path_beside(control);
        let kept = read(&path).unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "connections of before are not known");
            Vec::new()
        });
        let snapshot = self.topology.snapshot();
        let name = names(snapshot);
        let indices = snapshot.vnics.iter().flatten().map(|vnic| vnic.index);
        let vnics: HashMap<u64, u32> = indices.filter_map(|index| Some((name(index)?, index))).collect();
        let now = self.pool.now();
        self.connections.lift_rate();
        let known = kept.iter().filter_map(|kept| Some((kept, *vnics.get(&kept.vnic)?)));
        let taken = known
            .filter(|(kept, vnic)| self.connections.take(&kept.key.of_vnic(*vnic), kept.state, snapshot, now))
            .count();
        self.connections.restore_rate();
        if !kept.is_empty() {
            tracing::info!(connections = taken, of = kept.len(), "connections of before go on");
        }
        if let Err(error) = self.connections.keep_in(&path, snapshot) {
            tracing::warn!(file = %path.display(), %error, "connections are not saved: a restart ends those of vNICs under rules");
        }
    }
}

fn names(snapshot: &Snapshot) -> impl Fn(u32) -> Option<u64> {
    |vnic| Some(vnic_hash(&name_of(snapshot, vnic)?))
}

#[cfg(test)]
mod tests {
    use wire::Vni;

    use super::*;
    use crate::switch::testing;

    const NETWORKS: &str = "[[vpc]]\nname = \"red\"\nvni = 100\n[[vpc]]\nname = \"blue\"\nvni = 200\n\
             [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n[[subnet]]\nvpc = \"blue\"\nprefix = \"10.0.0.0/24\"\n\
             [[vnic]]\nname = \"goes\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"10.0.0.1\"]\n\
             port = { kind = \"null\" }\n\
             [[vnic]]\nname = \"stays\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:02\"\nvips = [\"10.0.0.2\"]\n\
             port = { kind = \"null\" }\n";

    fn index(switch: &Switch, name: &str) -> u32 {
        switch.topology.vnic(name).unwrap().index
    }

    fn in_use(switch: &Switch, name: &str) -> u32 {
        switch.connections.in_use(index(switch, name))
    }

    /// Gives each of the two vNICs a connection to the same machine.
    fn connect(switch: &Switch) {
        for (own, name) in [(1, "goes"), (2, "stays")] {
            open(switch, name, own, 5000);
        }
    }

    /// Gives a vNIC a connection from its address, by the last number of that, and from a port.
    fn open(switch: &Switch, name: &str, own: u64, port: u64) {
        let vnic = u64::from(index(switch, name));
        let words = [0, 0xffff_0a00_0000 + own, 0, 0xffff_0a00_0035, 17, vnic << 32 | port << 16 | 53];
        let key = ConnectionKey::from_words(words);
        let state = ConnectionState::opened(true, 0, false, 0);
        assert!(switch.connections.take(&key, state, switch.topology.snapshot(), switch.pool.now()));
    }

    /// The snapshot of a switch where the vNIC that goes is in the other network.
    fn moved(switch: &Switch) -> Snapshot {
        let mut moved = (**switch.topology.snapshot()).clone();
        let goes = index(switch, "goes") as usize;
        let other = moved.vpcs.iter().flatten().find(|vpc| vpc.name == "blue").unwrap().index;
        Arc::make_mut(moved.vnics[goes].as_mut().unwrap()).vpc = other;
        moved
    }

    #[test]
    fn restart_a_vnic_takes_no_connection_into_another_network() {
        let folder = std::env::temp_dir().join(format!("vswitch-networks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let control = folder.join("vswitch.sock");
        let mut switch = testing::start(NETWORKS);
        connect(&switch);
        switch.keep_connections(&control);
        let snapshot = switch.topology.snapshot().clone();
        switch.connections.write_file(&snapshot);
        let kept = read(&path_beside(&control)).unwrap();
        assert_eq!(kept.len(), 2);
        // As the next process finds it, where one of the vNICs is in the other network.
        let moved = moved(&switch);
        let known = |snapshot: &Snapshot, name: &str| {
            let hash = names(snapshot)(index(&switch, name)).unwrap();
            kept.iter().any(|kept| kept.vnic == hash)
        };
        assert_eq!(["goes", "stays"].map(|name| known(&snapshot, name)), [true, true]);
        assert_eq!(["goes", "stays"].map(|name| known(&moved, name)), [false, true]);
        switch.stop();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Lets connections leave until only so many are left of the two vNICs.
    #[track_caller]
    fn assert_left(switch: &mut Switch, wanted: [u32; 2]) {
        let mut left = [u32::MAX; 2];
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(10));
            switch.connections.advance();
            left = ["goes", "stays"].map(|name| in_use(switch, name));
            if left == wanted {
                break;
            }
        }
        assert_eq!(left, wanted);
    }

    #[test]
    fn a_vnic_takes_no_connection_into_another_network() {
        let mut switch = testing::start(NETWORKS);
        connect(&switch);
        switch
            .edit(|config| {
                let mut vnic = (*config.vnics[0]).clone();
                vnic.vpc = config.vpcs[1].name.clone();
                config.vnics[0] = Arc::new(vnic);
                Ok(())
            })
            .unwrap();
        assert_left(&mut switch, [0, 1]);
        switch.stop();
    }

    /// The turns that end idle connections have passed some of them when the vNIC goes.
    #[test]
    fn a_vnic_leaves_no_connection_behind_the_sweep_under_way() {
        let small = format!("[security]\nconnections = 1024\nconnections-per-vnic = 1024\n{NETWORKS}");
        let mut switch = testing::start(&small);
        connect(&switch);
        (1..=u64::from(MIN_SLICE)).for_each(|port| open(&switch, "stays", 2, port));
        let before = switch.topology.snapshot().clone();
        switch.connections.tend(&before, switch.pool.now(), None);
        let after = moved(&switch);
        switch.connections.follow(&before, &after);
        assert_left(&mut switch, [0, 1 + MIN_SLICE]);
        switch.stop();
    }

    /// The VNI is what tells a network from others, as over a restart: names and indices stay.
    #[test]
    fn a_vnic_keeps_no_connection_when_its_network_gets_another_vni() {
        let mut switch = testing::start(NETWORKS);
        let set = |switch: &mut Switch, vnis: [u32; 2]| {
            let change = |config: &mut Config| {
                for (vpc, vni) in config.vpcs.iter_mut().zip(vnis) {
                    vpc.vni = Vni::new(vni).unwrap();
                }
                Ok(())
            };
            switch.edit(change).unwrap();
        };
        connect(&switch);
        set(&mut switch, [100, 300]);
        assert_left(&mut switch, [1, 1]);
        set(&mut switch, [200, 300]);
        assert_left(&mut switch, [0, 0]);
        connect(&switch);
        set(&mut switch, [300, 200]);
        assert_left(&mut switch, [0, 0]);
        switch.stop();
    }
}
