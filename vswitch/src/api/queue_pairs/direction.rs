//! One direction of a queue pair as a message.

use pipelines::rcft::{LedgerView, QpEvents, QpKey, QpView};
use vswitch_api::v1;
use wire::roce::opcode::{Operation, RoceClass};

use super::age_seconds;
use crate::api::refusal::Problem;

/// What is known of one direction.
#[derive(Clone, Debug)]
pub(super) struct DirectionRow {
    pub key: QpKey,
    pub message: v1::QueuePairDirection,
}

/// NAKs of all kinds, RNR not among them.
fn naks(events: &QpEvents) -> u64 {
    events.nak_fatal.iter().map(|n| u64::from(*n)).sum::<u64>() + u64::from(events.nak_sequence)
}

/// Of what there may be most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Bytes,
    Packets,
    Cnp,
    Nak,
    Retransmissions,
    Gaps,
}

impl Order {
    pub fn read(word: &str) -> Result<Self, Problem> {
        Ok(match word {
            "bytes" => Self::Bytes,
            "packets" => Self::Packets,
            "cnp" => Self::Cnp,
            "nak" => Self::Nak,
            "retrans" => Self::Retransmissions,
            "gaps" => Self::Gaps,
            _ => {
                let shown = crate::config::error::quote(word);
                let message = format!("{shown} is no order; say bytes, packets, cnp, nak, retrans or gaps");
                return Err(Problem::invalid("order", message));
            }
        })
    }

    pub fn figure(self, view: &QpView) -> u64 {
        let events = &view.events;
        match self {
            Self::Bytes => view.bytes,
            Self::Packets => view.packets,
            Self::Cnp => u64::from(events.cnp),
            Self::Nak => naks(events),
            Self::Retransmissions => u64::from(events.retransmissions),
            Self::Gaps => u64::from(events.gaps),
        }
    }
}

impl DirectionRow {
    fn new(vnic: &str, direction: &str, key: QpKey, state: &str) -> Self {
        let message = v1::QueuePairDirection {
            vnic: vnic.into(),
            direction: direction.into(),
            address: key.address().to_string(),
            qpn: key.qpn().get(),
            state: state.into(),
            ..v1::QueuePairDirection::default()
        };
        Self { key, message }
    }

    /// The same with what workers have counted.
    fn with_counts(mut self, view: &QpView, now: u32) -> Self {
        let events = &view.events;
        let [invalid, access, operational, other] = events.nak_fatal.map(|count| Some(count.into()));
        self.message = v1::QueuePairDirection {
            packets: Some(view.packets),
            bytes: Some(view.bytes),
            acks: Some(view.acks),
            hardware_took_some: Some(view.in_part),
            ce: Some(events.ce),
            cnp: Some(events.cnp),
            nak_sequence: Some(events.nak_sequence),
            nak_invalid_request: invalid,
            nak_remote_access: access,
            nak_remote_operational: operational,
            nak_other: other,
            rnr: Some(events.rnr),
            gaps: Some(events.gaps),
            retransmissions: Some(events.retransmissions),
            path_mtu: view.path_mtu.map(u32::from),
            next_psn: view.next_psn,
            last_opcode: Some(opcode_name(view.last_opcode)),
            first_seen_seconds: Some(age_seconds(now, events.first_seen)),
            last_seen_seconds: Some(age_seconds(now, view.last_seen)),
            ..self.message
        };
        self
    }

    /// Toward the wire; `view` is missing when no worker has seen a packet.
    pub fn admitted(vnic: &str, seen: &LedgerView, view: Option<&QpView>, now: u32) -> Self {
        let state = if seen.leaving { "leaving" } else { "admitted" };
        let mut row = Self::new(vnic, "out", QpKey::from_words(seen.key), state);
        row.message.admitted_seconds = Some(age_seconds(now, seen.born));
        match view {
            Some(view) => row.with_counts(view, now),
            None => row,
        }
    }

    /// Toward the wire, with no place any more.
    pub fn gone(vnic: &str, view: &QpView, now: u32) -> Self {
        Self::new(vnic, "out", view.key, "leaving").with_counts(view, now)
    }

    /// From the wire: counted, not admitted.
    pub fn from_wire(vnic: &str, view: &QpView, now: u32) -> Self {
        Self::new(vnic, "in", view.key, "counted").with_counts(view, now)
    }

    /// From another vNIC of this host, which sends it: one packet, one entry.
    pub fn from_vnic(vnic: &str, seen: &LedgerView, view: Option<&QpView>, now: u32) -> Self {
        let mut row = Self::admitted(vnic, seen, view, now);
        row.message.direction = "in".into();
        row
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
    fn what_no_worker_has_seen_has_no_counts() {
        let key = QpKey::from_words([0, 0xffff_0a00_0002, 0x1100]);
        let seen = LedgerView { slot: 0, key: *key.words(), born: 10, seen: 10, leaving: false };
        let row = DirectionRow::admitted("one", &seen, None, 25).message;
        let expected = v1::QueuePairDirection {
            vnic: "one".into(),
            direction: "out".into(),
            address: "10.0.0.2".into(),
            qpn: 0x11,
            state: "admitted".into(),
            admitted_seconds: Some(1.5),
            ..v1::QueuePairDirection::default()
        };
        assert_eq!(row, expected);
    }

    #[test]
    fn orders_are_words() {
        for word in ["bytes", "packets", "cnp", "nak", "retrans", "gaps"] {
            assert!(Order::read(word).is_ok(), "{word}");
        }
        for word in ["", "Bytes", "packet"] {
            assert_eq!(Order::read(word).unwrap_err().field, "order", "{word}");
        }
    }
}
