//! What the switch itself says of rates: the bytes of its nodes over its own clock.
//!
//! Reads `show qos` and decides nothing; how fast the machine is does not matter to it.

use crate::{Daemon, wait_for};
use serde_json::Value;
use std::time::Duration;

/// A node of the tree of rates, in one direction ("out" or "in").
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    level: &'static str,
    name: Option<&'a str>,
    class: Option<&'static str>,
    direction: &'static str,
}

impl<'a> Node<'a> {
    /// The uplinks together.
    pub fn link(direction: &'static str) -> Node<'a> {
        Node { level: "link", name: None, class: None, direction }
    }

    /// A vNIC.
    pub fn vnic(name: &'a str, direction: &'static str) -> Node<'a> {
        Node { level: "vnic", name: Some(name), class: None, direction }
    }

    /// A vNIC's class: "rdma" or "tcp".
    pub fn class(name: &'a str, class: &'static str, direction: &'static str) -> Node<'a> {
        Node { level: "class", name: Some(name), class: Some(class), direction }
    }
}

/// What a switch said of its rates at one time.
#[derive(Debug, Clone)]
pub struct Look {
    /// The time, nanoseconds of the switch's clock.
    pub now_ns: u64,
    /// Packets and bytes that the uplink had sent just before, and just after.
    uplink: [[i64; 2]; 2],
    qos: Value,
}

impl Look {
    /// Asks a switch.
    #[track_caller]
    pub fn take(switch: &Daemon) -> Look {
        let uplink = || {
            let stats = switch.json("show port stats up");
            let count =
                |name: &str| stats[0][name].as_i64().unwrap_or_else(|| panic!("no {name}: {stats:#}"));
            [count("tx-packets"), count("tx-bytes")]
        };
        let (before, qos, after) = (uplink(), switch.json("show qos"), uplink());
        let now_ns = qos["now-ns"].as_u64().unwrap_or_else(|| panic!("no now-ns: {qos:#}"));
        Look { now_ns, uplink: [before, after], qos }
    }

    /// Asks again when that much of the switch's time has passed.
    #[track_caller]
    fn later(&self, switch: &Daemon, time: Duration) -> Look {
        let due = self.now_ns + time.as_nanos() as u64;
        wait_for("the switch's clock to go on", time * 4 + Duration::from_secs(10), || {
            let look = Look::take(switch);
            (look.now_ns >= due).then_some(look)
        })
    }

    /// A figure of a node: "drawn", "debt", "held-back", "waiting-packets" ...
    #[track_caller]
    pub fn of(&self, node: Node<'_>, figure: &str) -> i64 {
        let is = |row: &&Value| {
            row["level"] == node.level
                && row["name"].as_str() == node.name
                && row["class"].as_str() == node.class
                && row["direction"] == node.direction
        };
        let row = self.qos["nodes"].as_array().into_iter().flatten().find(is);
        row.and_then(|row| row[figure].as_i64())
            .unwrap_or_else(|| panic!("no {figure} of {node:?}: {:#}", self.qos))
    }

    /// A counter of the whole: "rdma-marked", "waited" ...
    #[track_caller]
    pub fn counter(&self, name: &str) -> i64 {
        self.qos["counters"][name].as_i64().unwrap_or_else(|| panic!("no {name}: {:#}", self.qos))
    }
}

/// The time between two looks at one switch.
#[derive(Debug)]
pub struct Window {
    /// How it was at first.
    pub start: Look,
    /// How it was at last.
    pub end: Look,
}

impl Window {
    /// Windows of `length` on several switches at once, which begin after `settle`; both of the switches' own time.
    #[track_caller]
    pub fn over(switches: &[&Daemon], settle: Duration, length: Duration) -> Vec<Window> {
        let later = |looks: Vec<Look>, time: Duration| -> Vec<Look> {
            switches.iter().zip(looks).map(|(switch, look)| look.later(switch, time)).collect()
        };
        let starts = later(switches.iter().map(|switch| Look::take(switch)).collect(), settle);
        let ends = later(starts.clone(), length);
        starts.into_iter().zip(ends).map(|(start, end)| Window { start, end }).collect()
    }

    /// The window right after this one.
    #[track_caller]
    pub fn next(&self, switch: &Daemon, length: Duration) -> Window {
        Window { start: self.end.clone(), end: self.end.later(switch, length) }
    }

    /// Mbit/s that `bytes` within the window are.
    pub fn megabits(&self, bytes: i64) -> f64 {
        bytes as f64 * 8e3 / (self.end.now_ns - self.start.now_ns) as f64
    }

    /// Packets and bytes that the uplink sent within the window; those of its first and last moments may be missing.
    pub fn sent(&self) -> [i64; 2] {
        [0, 1].map(|n| self.end.uplink[0][n] - self.start.uplink[1][n])
    }

    /// How far a figure of a node moved.
    #[track_caller]
    pub fn moved(&self, node: Node<'_>, figure: &str) -> i64 {
        self.end.of(node, figure) - self.start.of(node, figure)
    }

    /// Mbit/s that a node let through.
    #[track_caller]
    pub fn rate(&self, node: Node<'_>) -> f64 {
        self.megabits(self.moved(node, "drawn"))
    }
}
