//! What happened lately, for `show events`: the newest of it, in memory only. The log has the same and more.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// Events that are remembered, and as many of those that tenants cause.
pub const REMEMBERED: usize = 256;
/// What tenants cause as often as they like: such an event pushes out no other.
const OF_TENANTS: [&str; 4] = ["qp-refused", "quota-reached", "qps-gave-way", "dhcp-declined"];

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// Counts up from 1.
    pub number: u64,
    pub at: SystemTime,
    /// What kind of thing: a word such as `qp-refused`.
    pub kind: &'static str,
    /// In a sentence.
    pub text: String,
    /// In facts, for programs.
    pub facts: Map<String, Value>,
}

/// The newest events.
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    own: VecDeque<Happening>,
    of_tenants: VecDeque<Happening>,
    count: watch::Sender<u64>,
}

impl EventLog {
    /// Remembers an event; the oldest of its sort gives way.
    pub fn add(&mut self, kind: &'static str, text: String, facts: Value) {
        let number = *self.count.borrow() + 1;
        let ring = if OF_TENANTS.contains(&kind) { &mut self.of_tenants } else { &mut self.own };
        if ring.len() == REMEMBERED {
            ring.pop_front();
        }
        let facts = match facts {
            Value::Object(facts) => facts,
            other => Map::from_iter([("value".to_string(), other)]),
        };
        ring.push_back(Happening { number, at: SystemTime::now(), kind, text, facts });
        self.count.send_replace(number);
    }

    /// The events that are remembered, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Happening> + ExactSizeIterator {
        let mut events: Vec<&Happening> = self.own.iter().chain(&self.of_tenants).collect();
        events.sort_unstable_by_key(|event| event.number);
        events.into_iter()
    }

    /// How many there were in all.
    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// The number of the newest event, as it changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }
}

impl Happening {
    /// The event for programs.
    pub fn json(&self) -> Value {
        let seconds = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut facts = self.facts.clone();
        facts.insert("number".into(), json!(self.number));
        facts.insert("time".into(), json!(seconds));
        facts.insert("event".into(), json!(self.kind));
        facts.insert("text".into(), json!(self.text));
        facts.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way() {
        let mut log = EventLog::default();
        for n in 0..300 {
            log.add("test", format!("event {n}"), json!({ "n": n }));
        }
        assert_eq!((log.iter().len(), log.count()), (REMEMBERED, 300));
        let first = log.iter().next().unwrap();
        assert_eq!((first.number, first.text.as_str()), (45, "event 44"));
        assert_eq!(log.iter().next_back().unwrap().json()["n"], 299);
    }

    #[test]
    fn what_a_tenant_causes_pushes_out_nothing_else() {
        let mut log = EventLog::default();
        log.add("uplink-down", "an uplink".into(), json!({}));
        for n in 0..10_000 {
            log.add(OF_TENANTS[n % OF_TENANTS.len()], "a vNIC".into(), json!({ "n": n }));
        }
        log.add("port-down", "a port".into(), json!({}));
        assert_eq!((log.iter().len(), log.count()), (REMEMBERED + 2, 10_002));
        let numbers: Vec<u64> = log.iter().map(|event| event.number).collect();
        assert!(numbers.is_sorted() && numbers[..2] == [1, 10_002 - REMEMBERED as u64], "{numbers:?}");
        assert_eq!(log.iter().next().unwrap().kind, "uplink-down");
        assert_eq!(log.iter().next_back().unwrap().kind, "port-down");
    }
}
