//! One direction of a queue pair as people and programs see it.

use std::net::IpAddr;

use pipelines::rcft::{LedgerView, QpEvents, QpKey, QpView};
use serde_json::{Map, Value, json};
use wire::roce::opcode::{Operation, RoceClass};

use super::age_seconds;
use crate::console::Table;

/// What is known of one direction.
#[derive(Clone, Debug)]
pub(super) struct DirectionRow {
    vnic: String,
    direction: &'static str,
    key: QpKey,
    /// Whether it has a place.
    state: &'static str,
    /// Seconds since it was admitted.
    admitted: Option<f64>,
    seen: Option<Counts>,
}

/// What workers have counted.
#[derive(Clone, Copy, Debug)]
struct Counts {
    view: QpView,
    first: f64,
    last: f64,
}

impl Counts {
    fn of(view: &QpView, now: u32) -> Self {
        let (first, last) = (age_seconds(now, view.events.first_seen), age_seconds(now, view.last_seen));
        Self { view: *view, first, last }
    }
}

/// NAKs of all kinds, RNR not among them.
pub(super) fn naks(events: &QpEvents) -> u64 {
    events.nak_fatal.iter().map(|n| u64::from(*n)).sum::<u64>() + u64::from(events.nak_sequence)
}

/// What `top` sorts by.
pub(super) fn figure(view: &QpView, order: &str) -> u64 {
    let events = &view.events;
    match order {
        "bytes" => view.bytes,
        "cnp" => u64::from(events.cnp),
        "nak" => naks(events),
        "retrans" => u64::from(events.retransmissions),
        "gaps" => u64::from(events.gaps),
        _ => view.packets,
    }
}

/// A table of rows.
pub(super) fn table(with_vnic: bool) -> Table {
    let head = [
        "direction",
        "address",
        "qpn",
        "state",
        "packets",
        "bytes",
        "acks",
        "naks",
        "rnr",
        "cnp",
        "ce",
        "gaps",
        "retrans",
        "idle s",
    ];
    Table::new(with_vnic.then_some("vnic").into_iter().chain(head))
}

impl DirectionRow {
    /// Toward the wire; `view` is missing when no worker has seen a packet.
    pub fn admitted(vnic: &str, seen: &LedgerView, view: Option<&QpView>, now: u32) -> Self {
        Self {
            vnic: vnic.into(),
            direction: "out",
            key: QpKey::from_words(seen.key),
            state: if seen.leaving { "leaving" } else { "admitted" },
            admitted: Some(age_seconds(now, seen.born)),
            seen: view.map(|view| Counts::of(view, now)),
        }
    }

    /// Toward the wire, with no place any more.
    pub fn gone(vnic: &str, view: &QpView, now: u32) -> Self {
        let seen = Some(Counts::of(view, now));
        Self { vnic: vnic.into(), direction: "out", key: view.key, state: "leaving", admitted: None, seen }
    }

    /// From the wire: counted, not admitted.
    pub fn from_wire(vnic: &str, view: &QpView, now: u32) -> Self {
        let seen = Some(Counts::of(view, now));
        Self { vnic: vnic.into(), direction: "in", key: view.key, state: "counted", admitted: None, seen }
    }

    /// From another vNIC of this host, which sends it: one packet, one entry.
    pub fn from_vnic(vnic: &str, seen: &LedgerView, view: Option<&QpView>, now: u32) -> Self {
        Self { direction: "in", ..Self::admitted(vnic, seen, view, now) }
    }

    pub fn address(&self) -> IpAddr {
        self.key.address()
    }

    pub fn key(&self) -> &QpKey {
        &self.key
    }

    pub fn address_and_qpn(&self) -> String {
        format!("{} qp {:#x}", self.address(), self.key.qpn().get())
    }

    pub fn cells(&self, with_vnic: bool) -> Vec<String> {
        let mut cells = if with_vnic { vec![self.vnic.clone()] } else { Vec::new() };
        cells.extend([
            self.direction.to_string(),
            self.address().to_string(),
            format!("{:#x}", self.key.qpn().get()),
            self.state.to_string(),
        ]);
        let Some(Counts { view, last, .. }) = &self.seen else {
            cells.push("0".into());
            return cells;
        };
        let events = &view.events;
        let rare = [events.rnr, events.cnp, events.ce, events.gaps, events.retransmissions];
        cells.extend([
            view.packets.to_string(),
            view.bytes.to_string(),
            acks(view),
            naks(events).to_string(),
        ]);
        cells.extend(rare.iter().map(u32::to_string));
        cells.push(format!("{last:.1}"));
        cells
    }

    pub fn json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_string(), value);
        put("vnic", json!(self.vnic));
        put("direction", json!(self.direction));
        put("address", json!(self.address()));
        put("qpn", json!(self.key.qpn().get()));
        put("state", json!(self.state));
        put("admitted-seconds", json!(self.admitted));
        if let Some(Counts { view, first, last }) = &self.seen {
            let events = &view.events;
            let [invalid, access, operational, other] = events.nak_fatal;
            for (name, count) in [("packets", view.packets), ("bytes", view.bytes), ("acks", view.acks)] {
                put(name, json!(count));
            }
            // Hardware counts packets, but not what they are.
            put("hardware-took-some", json!(view.in_part));
            for (name, count) in [
                ("ce", events.ce),
                ("cnp", events.cnp),
                ("nak-sequence", events.nak_sequence),
                ("nak-invalid-request", u32::from(invalid)),
                ("nak-remote-access", u32::from(access)),
                ("nak-remote-operational", u32::from(operational)),
                ("nak-other", u32::from(other)),
                ("rnr", events.rnr),
                ("gaps", events.gaps),
                ("retransmissions", events.retransmissions),
            ] {
                put(name, json!(count));
            }
            put("path-mtu", json!(view.path_mtu));
            put("next-psn", json!(view.next_psn));
            put("last-opcode", json!(opcode_name(view.last_opcode)));
            put("first-seen-seconds", json!(first));
            put("last-seen-seconds", json!(last));
        }
        object.into()
    }

    /// The facts one below the other, for a single queue pair.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let state = match self.admitted {
            Some(seconds) => format!("{}, for {seconds:.1} s", self.state),
            None => self.state.to_string(),
        };
        let mut facts = vec![("state", state)];
        let Some(Counts { view, first, last }) = &self.seen else {
            facts.push(("packets", "none seen by a worker yet".into()));
            return facts;
        };
        let events = &view.events;
        let [invalid, access, operational, other] = events.nak_fatal;
        let unknown = || "unknown".to_string();
        facts.extend([
            ("packets", view.packets.to_string()),
            ("bytes", view.bytes.to_string()),
            ("ce", events.ce.to_string()),
            ("cnp", events.cnp.to_string()),
            (
                "acks",
                match view.in_part {
                    true => format!("{} or more: hardware took packets, of which it does not say what they were", view.acks),
                    false => view.acks.to_string(),
                },
            ),
            (
                "naks",
                format!(
                    "{} ({} psn sequence, {invalid} invalid request, {access} remote access, {operational} remote operational, {other} other)",
                    naks(events),
                    events.nak_sequence
                ),
            ),
            ("rnr", events.rnr.to_string()),
            ("psn gaps", events.gaps.to_string()),
            ("retransmissions", events.retransmissions.to_string()),
            ("path mtu", view.path_mtu.map_or_else(unknown, |mtu| mtu.to_string())),
            ("next psn", view.next_psn.map_or_else(unknown, |psn| psn.to_string())),
            ("last opcode", opcode_name(view.last_opcode)),
            ("first seen", format!("{first:.1} s ago")),
            ("last seen", format!("{last:.1} s ago")),
        ]);
        facts
    }
}

/// `rc send-only`, or the number of an opcode that has no name.
fn opcode_name(opcode: u8) -> String {
    let class = RoceClass::of(opcode, wire::Qpn::truncated(2)).name();
    match Operation::of(opcode) {
        Some(operation) => format!("{class} {}", operation.name()),
        None => format!("{opcode:#04x}"),
    }
}

/// Acknowledgements, with a mark where hardware took packets that software did not see: there may be more.
fn acks(view: &QpView) -> String {
    format!("{}{}", view.acks, if view.in_part { "+" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_names() {
        assert_eq!(opcode_name(0x04), "rc send-only");
        assert_eq!(opcode_name(0x11), "rc ack");
        assert_eq!(opcode_name(0xff), "0xff");
    }

    #[test]
    fn a_fresh_row_says_zero() {
        let key = QpKey::from_words([0, 0xffff_0a00_0002, 0x1100]);
        let seen = LedgerView { slot: 0, key: *key.words(), born: 10, seen: 10, leaving: false };
        let row = DirectionRow::admitted("one", &seen, None, 25);
        assert_eq!(row.cells(true)[..6], ["one", "out", "10.0.0.2", "0x11", "admitted", "0"]);
        assert_eq!(row.json()["admitted-seconds"], 1.5);
        assert!(row.json().get("packets").is_none());
    }
}
