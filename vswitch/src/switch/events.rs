//! What happened lately, for `show events`: the newest of it, in memory only. The log has the same and more.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// Events that are remembered.
pub const REMEMBERED: usize = 256;

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
    ring: VecDeque<Happening>,
    count: watch::Sender<u64>,
}

impl EventLog {
    /// Remembers an event; the oldest gives way.
    pub fn add(&mut self, kind: &'static str, text: String, facts: Value) {
        let number = *self.count.borrow() + 1;
        if self.ring.len() == REMEMBERED {
            self.ring.pop_front();
        }
        let facts = match facts {
            Value::Object(facts) => facts,
            other => Map::from_iter([("value".to_string(), other)]),
        };
        self.ring.push_back(Happening { number, at: SystemTime::now(), kind, text, facts });
        self.count.send_replace(number);
    }

    /// The events that are remembered, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Happening> + ExactSizeIterator {
        self.ring.iter()
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
}
