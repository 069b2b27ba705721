//! Answers about queue pairs, for people.

use vswitch_api::v1;

use super::super::View;
use crate::config::QuotaConfig;
use crate::console::Table;

impl View for v1::GetQueuePairUsageResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "vnic",
            "in use",
            "quota",
            "opened",
            "refused",
            "packets dropped",
            "rejected",
            "cm messages",
            "unheard",
            "from the wire",
        ]);
        for vnic in &self.vnics {
            table.row([
                vnic.name.clone(),
                vnic.in_use.to_string(),
                vnic.quota.map_or("none".into(), |quota| quota.to_string()),
                vnic.opened.to_string(),
                vnic.refused.to_string(),
                vnic.packets_dropped.to_string(),
                vnic.rejected.to_string(),
                vnic.cm_messages.to_string(),
                vnic.cm_unheard.to_string(),
                vnic.from_wire.to_string(),
            ]);
        }
        let Self { in_use, entries, memory_bytes: bytes, untracked, unknown, count_opcodes, .. } = self;
        let counted = match count_opcodes.as_str() {
            "" => String::new(),
            opcodes => format!("opcodes of vendors that count as reliable connection: {opcodes}\n"),
        };
        format!(
            "{table}{in_use} of {entries} queue pairs in use; the tables take {} MiB ({} bytes a queue pair)\n\
             passed without an entry of a worker: {untracked} packets of admitted queue pairs (untracked), {unknown} from the wire \
             (unknown)\n{counted}",
            bytes >> 20,
            bytes / u64::from(*entries).max(1),
        )
    }
}

/// What a quota is, once it is set to `given`.
pub(super) fn quota(now: &v1::GetQueuePairQuotaResponse, given: Option<&QuotaConfig>) -> String {
    let v1::GetQueuePairQuotaResponse { vnic, in_use, quota, entries } = now;
    let text = match (quota, given) {
        (None, _) => {
            format!("{vnic} may have as many queue pairs as the table holds ({entries}); {in_use} in use")
        }
        (Some(limit), None) => format!("{vnic} has the quota of [rcft]: {limit}; {in_use} in use"),
        (Some(limit), Some(QuotaConfig::Count(_))) => {
            format!("{vnic} may have {limit} queue pairs; {in_use} in use")
        }
        (Some(limit), Some(share)) => {
            format!("{vnic} may have {limit} queue pairs ({share}); {in_use} in use")
        }
    };
    match quota {
        Some(limit) if in_use > limit => {
            format!("{text}, quota {limit}: no new queue pairs until under {limit}")
        }
        _ => text,
    }
}

/// A table of directions.
fn table(with_vnic: bool, rows: &[v1::QueuePairDirection]) -> Table {
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
    let mut table = Table::new(with_vnic.then_some("vnic").into_iter().chain(head));
    for row in rows {
        table.row(cells(row, with_vnic));
    }
    table
}

fn cells(row: &v1::QueuePairDirection, with_vnic: bool) -> Vec<String> {
    let mut cells = if with_vnic { vec![row.vnic.clone()] } else { Vec::new() };
    cells.extend([
        row.direction.clone(),
        row.address.clone(),
        format!("{:#x}", row.qpn),
        row.state.clone(),
        row.packets().to_string(),
    ]);
    if row.packets.is_none() {
        return cells;
    }
    // A mark where hardware took packets that software did not see: there may be more.
    let acks = format!("{}{}", row.acks(), if row.hardware_took_some() { "+" } else { "" });
    let rare = [row.rnr(), row.cnp(), row.ce(), row.gaps(), row.retransmissions()];
    cells.extend([row.bytes().to_string(), acks, naks(row).to_string()]);
    cells.extend(rare.map(|count| count.to_string()));
    cells.push(format!("{:.1}", row.last_seen_seconds()));
    cells
}

/// NAKs of all kinds, RNR not among them.
fn naks(row: &v1::QueuePairDirection) -> u64 {
    let kinds = [
        row.nak_sequence(),
        row.nak_invalid_request(),
        row.nak_remote_access(),
        row.nak_remote_operational(),
        row.nak_other(),
    ];
    kinds.map(u64::from).iter().sum()
}

/// The facts one below the other, for a single queue pair.
fn facts(row: &v1::QueuePairDirection) -> Vec<(&'static str, String)> {
    let state = match row.admitted_seconds {
        Some(seconds) => format!("{}, for {seconds:.1} s", row.state),
        None => row.state.clone(),
    };
    let mut facts = vec![("state", state)];
    let Some(packets) = row.packets else {
        facts.push(("packets", "none seen by a worker yet".into()));
        return facts;
    };
    let or_unknown = |number: Option<u32>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let acks = match row.hardware_took_some() {
        true => {
            format!("{} or more: hardware took packets, of which it does not say what they were", row.acks())
        }
        false => row.acks().to_string(),
    };
    let naks = format!(
        "{} ({} psn sequence, {} invalid request, {} remote access, {} remote operational, {} other)",
        naks(row),
        row.nak_sequence(),
        row.nak_invalid_request(),
        row.nak_remote_access(),
        row.nak_remote_operational(),
        row.nak_other(),
    );
    facts.extend([
        ("packets", packets.to_string()),
        ("bytes", row.bytes().to_string()),
        ("ce", row.ce().to_string()),
        ("cnp", row.cnp().to_string()),
        ("acks", acks),
        ("naks", naks),
        ("rnr", row.rnr().to_string()),
        ("psn gaps", row.gaps().to_string()),
        ("retransmissions", row.retransmissions().to_string()),
        ("path mtu", or_unknown(row.path_mtu)),
        ("next psn", or_unknown(row.next_psn)),
        ("last opcode", row.last_opcode().to_owned()),
        ("first seen", format!("{:.1} s ago", row.first_seen_seconds())),
        ("last seen", format!("{:.1} s ago", row.last_seen_seconds())),
    ]);
    facts
}

impl View for v1::ListQueuePairsResponse {
    fn text(&self) -> String {
        let Self { vnic, in_use, from_wire, .. } = self;
        let table = table(false, &self.queue_pairs);
        let of = self.quota.map_or("no quota".into(), |quota| format!("quota {quota}"));
        let out = self.queue_pairs.iter().filter(|row| row.direction == "out").count();
        let most = out.max(self.queue_pairs.len() - out);
        let cut = if (self.queue_pairs.len() as u64) < self.admitted.saturating_add(*from_wire) {
            format!("the first {most} of each direction; `show rcft {vnic} top N by packets` for others\n")
        } else {
            String::new()
        };
        format!("{table}{in_use} in use, {of}; {from_wire} seen from the wire\n{cut}")
    }
}

impl View for v1::ListTopQueuePairsResponse {
    fn text(&self) -> String {
        match self.queue_pairs.as_slice() {
            [] => format!("no queue pair has any {}\n", self.by),
            rows => table(true, rows).to_string(),
        }
    }
}

impl View for v1::GetQueuePairResponse {
    fn text(&self) -> String {
        if let Some(refused) = &self.refused {
            return format!("{}; {:.1} s ago\n", refused.text, refused.seconds_ago);
        }
        let mut text = String::new();
        for pair in &self.queue_pairs {
            let missing = match (&pair.outbound, &pair.inbound) {
                (Some(_), Some(_)) => "",
                (Some(_), None) => " (the other direction is not paired)",
                (None, _) => " (the direction toward the wire is not paired)",
            };
            let by = pair.paired_by.as_ref().map(|by| format!(", paired by {by}")).unwrap_or_default();
            text += &format!("queue pair {:#x} of {}{by}{missing}\n", self.qpn, self.vnic);
            for (row, way) in [(&pair.outbound, "to"), (&pair.inbound, "from the wire to")] {
                let Some(row) = row else { continue };
                let mut table = Table::bare(3);
                for (name, value) in facts(row) {
                    table.row(["".into(), name.to_string(), value]);
                }
                text += &format!("{way} {} qp {:#x}\n{table}", row.address, row.qpn);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> v1::QueuePairDirection {
        v1::QueuePairDirection {
            vnic: "one".into(),
            direction: "out".into(),
            address: "10.0.0.2".into(),
            qpn: 0x11,
            state: "admitted".into(),
            admitted_seconds: Some(1.5),
            ..v1::QueuePairDirection::default()
        }
    }

    #[test]
    fn a_fresh_row_says_zero() {
        assert_eq!(cells(&fresh(), true), ["one", "out", "10.0.0.2", "0x11", "admitted", "0"]);
        let json = crate::api::json(&fresh());
        assert_eq!(json["admitted-seconds"], 1.5);
        assert!(json.get("packets").is_none(), "{json}");
    }

    #[test]
    fn what_hardware_took_has_a_mark() {
        let row = v1::QueuePairDirection {
            packets: Some(9),
            acks: Some(2),
            hardware_took_some: Some(true),
            nak_sequence: Some(1),
            nak_other: Some(2),
            ..fresh()
        };
        assert_eq!(cells(&row, false)[4..8], ["9", "0", "2+", "3"]);
        assert!(facts(&row).iter().any(|(name, value)| *name == "acks" && value.starts_with("2 or more")));
    }

    #[test]
    fn a_list_says_what_it_leaves_out() {
        let whole = v1::ListQueuePairsResponse {
            vnic: "one".into(),
            in_use: 1,
            admitted: 1,
            queue_pairs: vec![fresh()],
            ..v1::ListQueuePairsResponse::default()
        };
        assert!(whole.text().ends_with("1 in use, no quota; 0 seen from the wire\n"), "{}", whole.text());
        let cut = v1::ListQueuePairsResponse { admitted: 3, ..whole };
        assert!(cut.text().contains("the first 1 of each direction; `show rcft one top N"), "{}", cut.text());
    }

    #[test]
    fn a_quota_says_when_there_are_too_many() {
        let now =
            v1::GetQueuePairQuotaResponse { vnic: "one".into(), in_use: 5, quota: Some(2), entries: 4096 };
        let said = quota(&now, Some(&QuotaConfig::Count(2)));
        assert_eq!(said, "one may have 2 queue pairs; 5 in use, quota 2: no new queue pairs until under 2");
        let none = v1::GetQueuePairQuotaResponse { quota: None, ..now };
        assert!(quota(&none, None).contains("as the table holds (4096); 5 in use"));
    }
}
