//! [`Siege`]: a switch with a hostile peer, beside two that pay for nothing of it.

use super::honest::Honest;
use super::{FrontEnd, PLAIN, Station, datagram};
use crate::lab::vpc;
use crate::{Daemon, Family, Lab, Workdir, wait_for};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// A switch with so many vNICs, whose sockets are in a folder.
#[must_use]
#[track_caller]
pub fn start(vnics: u16) -> (Lab, Workdir, Daemon) {
    let lab = Lab::new(Family::V4);
    let dir = Workdir::new("vhost");
    let mut config = lab.uplink("") + &vpc("red", 100, &["10.0.0.0/16"], "");
    for number in 1..=vnics {
        config += &Station(number).vnic("red", dir.path());
    }
    let daemon = Daemon::start(&lab.host, &config);
    (lab, dir, daemon)
}

/// A peer of a station that can be talked to.
#[must_use]
#[track_caller]
pub fn ready(dir: &Workdir, station: Station, features: u64) -> FrontEnd {
    FrontEnd::ready(&station.socket(dir.path()), features)
        .unwrap_or_else(|error| panic!("{station:?}: {error}"))
}

/// Waits until so many vNICs have a peer.
#[track_caller]
pub fn with_links(daemon: &Daemon, count: usize) {
    wait_for(&format!("{count} links"), PATIENCE, || {
        let rows = daemon.json("port list");
        let up = |row: &&serde_json::Value| row["kind"] == "vhost-user" && row["link"] == "up";
        (rows.as_array()?.iter().filter(up).count() == count).then_some(())
    });
}

/// A switch with two honest vNICs and a third one, whose peer is to be the enemy.
#[derive(Debug)]
pub struct Siege {
    /// The switch.
    pub daemon: Daemon,
    honest: Option<Honest>,
    /// Where the sockets are.
    pub dir: Workdir,
    _lab: Lab,
}

/// The third vNIC.
pub const ENEMY: Station = Station(3);

impl Siege {
    /// Starts them.
    #[must_use]
    #[track_caller]
    pub fn start() -> Siege {
        Self::beside(0)
    }

    /// Starts them, and so many more vNICs that nobody is behind.
    #[must_use]
    #[track_caller]
    pub fn beside(others: u16) -> Siege {
        let (lab, dir, daemon) = start(3 + others);
        let stations = [Station(1), Station(2)];
        let honest = Honest::start(stations.map(|station| ready(&dir, station, PLAIN)), stations);
        with_links(&daemon, 2);
        Siege { daemon, honest: Some(honest), dir, _lab: lab }
    }

    /// A connection to the third one, over which nothing is said yet.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> FrontEnd {
        FrontEnd::connect(&ENEMY.socket(self.dir.path())).expect("the socket is there")
    }

    /// A peer of the third vNIC, when the port is there to be connected to.
    #[must_use]
    #[track_caller]
    pub fn enemy(&self, features: u64) -> FrontEnd {
        wait_for("the port of the third vNIC", PATIENCE, || {
            FrontEnd::ready(&ENEMY.socket(self.dir.path()), features).ok()
        })
    }

    /// A peer of the third vNIC with a lot of memory.
    #[must_use]
    #[track_caller]
    pub fn vast(&self, features: u64) -> FrontEnd {
        wait_for("the port of the third vNIC", PATIENCE, || {
            FrontEnd::vast(&ENEMY.socket(self.dir.path()), features).ok()
        })
    }

    /// Whether an event says this more often than so many times.
    #[must_use]
    pub fn events(&self, words: &str, before: usize) -> Option<()> {
        (self.daemon.ctl("show events").matches(words).count() > before).then_some(())
    }

    /// The port of the third vNIC is taken down for this reason, once more than before.
    #[track_caller]
    pub fn is_caught(&self, words: &str, before: usize) {
        wait_for("the port to go down", PATIENCE, || self.events(words, before));
    }

    /// The third vNIC serves a peer that behaves, again; and the honest ones never lost anything.
    #[track_caller]
    pub fn stop(mut self) {
        let mut peer = self.enemy(PLAIN);
        wait_for("the third vNIC to be heard", PATIENCE, || {
            let heard = || self.daemon.figure("show vnic v3", "/0/rx-packets");
            let before = heard();
            peer.send(&datagram(ENEMY, Station(1), 1 << 30)).ok()?;
            std::thread::sleep(Duration::from_millis(50));
            (heard() > before).then_some(())
        });
        drop(peer);
        self.honest.take().unwrap().stop();
        self.daemon.assert_conserved();
        self.daemon.stop();
    }
}
