//! Commands about queue pairs: what is in use, what each of them does, quotas, eviction.
//!
//! A vNIC's queue pair has two directions: toward the wire it is known by the peer's address and the peer's number,
//! from the wire by the vNIC's own. Which two belong together is shown only where it is sure ([`pair`]).

mod pair;
mod row;

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::Direction;
use pipelines::TICK_MS;
use pipelines::flow_key::Scope;
use pipelines::rcft::{LedgerView, QpKey, QpView};
use pipelines::snapshot::{Snapshot, Vnic};
use serde_json::{Value, json};
use wire::Qpn;

use super::{Entry, Shell};
use crate::config::{Name, QuotaConfig};
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::{Switch, SwitchError};
use crate::view;
use crate::view::qps::{self, Views};
use crate::worker::mailbox::WorkerError;

/// Queue pairs of each direction that a list shows.
const LISTED: usize = 1000;
/// Most queue pairs that `top` shows.
const MOST_TOP: u64 = 10_000;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show rcft [<vnic:name>]",
            help: "RC queue pairs in use, quotas and refusals of all vNICs; or the queue pairs of one",
            run: show,
        },
        Entry {
            syntax: "show rcft [<vnic:name>] top <count:uint> by <order:bytes|packets|cnp|nak|retrans|gaps>",
            help: "The queue pairs with the most of something, of all vNICs or of one",
            run: top,
        },
        Entry {
            syntax: "show qp <vnic:name> <qpn:word>",
            help: "A queue pair by the peer's number or the vNIC's own (17 or 0x11): both directions where they are paired",
            run: pair::show,
        },
        Entry {
            syntax: "rcft set <vnic:name> quota <quota:text>",
            help: "Queue pairs a vNIC may have in use: a number, a share such as 25% of mlx5_0, or none of its own",
            run: set_quota,
        },
        Entry {
            syntax: "rcft evict <vnic:name> all",
            help: "Take the places of all queue pairs of a vNIC back; their next packets must find new ones",
            run: evict_all,
        },
        Entry {
            syntax: "rcft evict <vnic:name> <peer:ip> <qpn:word>",
            help: "Take the place of a queue pair back, by the peer's address and number",
            run: evict,
        },
    ]
}

impl From<WorkerError> for CommandError {
    fn from(error: WorkerError) -> Self {
        Self::new(error.to_string())
    }
}

/// A vNIC of the snapshot, by the argument `vnic`.
fn vnic<'s>(snapshot: &'s Snapshot, args: &Args) -> Result<&'s Vnic, CommandError> {
    let name: Name = args.get("vnic")?;
    let found = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == *name);
    found
        .map(AsRef::as_ref)
        .ok_or_else(|| args.error("vnic", format!("no vNIC {name}; `show vnic` lists them")))
}

/// The number of a queue pair, as 17 or 0x11.
pub(super) fn read_qpn(text: &str) -> Option<Qpn> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    Qpn::new(number?).ok()
}

/// The number of a queue pair, by the argument `qpn`.
fn qpn(args: &Args) -> Result<Qpn, CommandError> {
    let text: String = args.get("qpn")?;
    read_qpn(&text).ok_or_else(|| {
        let shown = crate::config::error::quote(&text);
        args.error("qpn", format!("{shown} is no number of a queue pair; give 0 to 16777215, as 17 or 0x11"))
    })
}

fn age_seconds(now: u32, then: u32) -> f64 {
    // Workers may be a tick ahead.
    f64::from((now.wrapping_sub(then) as i32).max(0)) * f64::from(TICK_MS) / 1000.0
}

/// The vNIC's limit; nothing where only the table's size limits it.
fn quota_of(switch: &Switch, vnic: u32) -> Option<u32> {
    match switch.rcft().limits(vnic).quota {
        u32::MAX => None,
        quota => Some(quota),
    }
}

fn show(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    if args.maybe::<Name>("vnic").is_some() {
        return list(shell, args);
    }
    let switch = &shell.switch;
    let (sums, guests) = qps::counts(switch.pool())?;
    let mut table = Table::new([
        "vnic",
        "in use",
        "quota",
        "opened",
        "refused",
        "packets dropped",
        "rejected",
        "cm messages",
        "from the wire",
    ]);
    let mut rows = Vec::new();
    let mut used = 0u64;
    for vnic in switch.snapshot().vnics.iter().flatten() {
        let totals = view::vnic(switch, vnic.index);
        let in_use = switch.rcft().in_use(vnic.index);
        let quota = quota_of(switch, vnic.index);
        let from_wire = guests.get(vnic.index as usize).copied().unwrap_or(0);
        used += u64::from(in_use);
        table.row([
            vnic.name.clone(),
            in_use.to_string(),
            quota.map_or("none".into(), |quota| quota.to_string()),
            totals.qps_opened.to_string(),
            totals.qps_refused.to_string(),
            totals.qp_drops.to_string(),
            totals.qps_rejected.to_string(),
            totals.cm_messages.to_string(),
            from_wire.to_string(),
        ]);
        rows.push(json!({
            "name": vnic.name, "in-use": in_use, "quota": quota, "opened": totals.qps_opened,
            "refused": totals.qps_refused, "packets-dropped": totals.qp_drops, "rejected": totals.qps_rejected,
            "cm-messages": totals.cm_messages, "from-wire": from_wire,
        }));
    }
    let shared = switch.rcft().shared();
    let (entries, bytes) = (shared.config().entries, shared.total_bytes());
    let text = format!(
        "{table}{used} of {entries} queue pairs in use; the tables take {} MiB ({} bytes a queue pair)\n\
         passed without an entry of a worker: {} packets of admitted queue pairs (untracked), {} from the wire (unknown)\n",
        bytes >> 20,
        bytes / entries.max(1) as usize,
        sums.untracked,
        sums.unknown,
    );
    let json = json!({
        "vnics": rows, "in-use": used, "entries": entries, "memory-bytes": bytes,
        "worker-entries": { "out": sums.out, "in": sums.into },
        "untracked": sums.untracked, "unknown": sums.unknown,
    });
    Ok(Output::new(text, json))
}

/// The admitted queue pairs that `keep` holds for, at most `limit` of them, and how many there are.
fn admitted(switch: &Switch, limit: usize, keep: impl Fn(u32, &QpKey) -> bool) -> (Vec<LedgerView>, usize) {
    let (mut found, mut count) = (Vec::new(), 0);
    let mut from = Some(0);
    while let Some(start) = from {
        let (page, next) = switch.rcft().keeper().scan(start, 4096);
        for seen in page {
            let key = QpKey::from_words(seen.key);
            let Scope::Vnic(vnic) = key.scope() else { continue };
            if keep(vnic, &key) {
                count += 1;
                if found.len() < limit {
                    found.push(seen);
                }
            }
        }
        from = next;
    }
    (found, count)
}

/// True for keys of packets from the wire to a vNIC.
fn is_to(vnic: &Vnic, key: &QpKey) -> bool {
    key.scope() == Scope::Vpc(vnic.vpc) && vnic.has(key.address())
}

fn list(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let snapshot = switch.snapshot().clone();
    let vnic = vnic(&snapshot, args)?;
    let now = switch.pool().now().tick;
    let (seen, used) = admitted(switch, LISTED, |of, _| of == vnic.index);
    let keys: Vec<QpKey> = seen.iter().map(|seen| QpKey::from_words(seen.key)).collect();
    let out = qps::of(switch.pool(), Direction::Out, &keys)?;
    let mut table = row::table(false);
    let mut rows: Vec<Value> = Vec::new();
    for (seen, key) in seen.iter().zip(&keys) {
        let row = row::DirectionRow::admitted(&vnic.name, seen, out.get(key), now);
        table.row(row.cells(false));
        rows.push(row.json());
    }
    let mut into: Vec<QpView> =
        qps::all(switch.pool(), Direction::In, |key| is_to(vnic, key))?.into_values().collect();
    into.sort_by_key(|view| (view.key.address(), view.key.qpn().get()));
    let from_wire = into.len();
    for view in into.iter().take(LISTED) {
        let row = row::DirectionRow::from_wire(&vnic.name, view, now);
        table.row(row.cells(false));
        rows.push(row.json());
    }
    let quota = quota_of(switch, vnic.index);
    let of = quota.map_or("no quota".into(), |quota| format!("quota {quota}"));
    let in_use = switch.rcft().in_use(vnic.index);
    let cut = if used > LISTED || from_wire > LISTED {
        format!(
            "the first {LISTED} of each direction; `show rcft {} top N by packets` for others\n",
            vnic.name
        )
    } else {
        String::new()
    };
    let text = format!("{table}{in_use} in use, {of}; {from_wire} seen from the wire\n{cut}");
    let json = json!({
        "vnic": vnic.name, "in-use": in_use, "quota": quota, "admitted": used, "from-wire": from_wire,
        "queue-pairs": rows,
    });
    Ok(Output::new(text, json))
}

fn top(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (count, order): (u64, String) = (args.get("count")?, args.get("order")?);
    if count == 0 || count > MOST_TOP {
        return Err(
            args.error("count", format!("{count} is out of range; ask for 1 to {MOST_TOP} queue pairs"))
        );
    }
    let switch = &shell.switch;
    let snapshot = switch.snapshot().clone();
    let wanted = args.maybe::<Name>("vnic").map(|_| vnic(&snapshot, args)).transpose()?;
    let of_vnic = |key: &QpKey| match (wanted, key.scope()) {
        (None, _) => true,
        (Some(vnic), Scope::Vnic(index)) => index == vnic.index,
        (Some(vnic), Scope::Vpc(_)) => is_to(vnic, key),
    };
    let figure = |view: &QpView| row::figure(view, &order);
    let most = |views: Views| {
        let mut views: Vec<QpView> = views.into_values().filter(|view| figure(view) > 0).collect();
        views.sort_by_key(|view| (Reverse(figure(view)), view.key.words()[2], view.key.words()[1]));
        views.truncate(count as usize);
        views
    };
    let out = most(qps::all(switch.pool(), Direction::Out, of_vnic)?)
        .into_iter()
        .map(|view| (Direction::Out, view));
    let into =
        most(qps::all(switch.pool(), Direction::In, of_vnic)?).into_iter().map(|view| (Direction::In, view));
    let mut both: Vec<(Direction, QpView)> = out.chain(into).collect();
    both.sort_by_key(|(_, view)| Reverse(figure(view)));
    both.truncate(count as usize);
    let now = switch.pool().now().tick;
    let mut table = row::table(true);
    let mut rows: Vec<Value> = Vec::new();
    for (way, view) in &both {
        let name = |vnic: Option<u32>| {
            vnic.and_then(|vnic| snapshot.vnic(vnic)).map_or("(gone)".into(), |vnic| vnic.name.clone())
        };
        let row = match (way, view.key.scope()) {
            (Direction::Out, Scope::Vnic(vnic)) => {
                let seen = switch.rcft().keeper().get(view.key.words());
                match seen {
                    Some(seen) => row::DirectionRow::admitted(&name(Some(vnic)), &seen, Some(view), now),
                    None => row::DirectionRow::gone(&name(Some(vnic)), view, now),
                }
            }
            (_, Scope::Vpc(vpc)) => {
                row::DirectionRow::from_wire(&name(snapshot.local_vnic(vpc, view.key.address())), view, now)
            }
            (Direction::In, Scope::Vnic(_)) => continue,
        };
        table.row(row.cells(true));
        rows.push(row.json());
    }
    let text = if rows.is_empty() { format!("no queue pair has any {order}\n") } else { table.to_string() };
    Ok(Output::new(text, json!({ "by": order, "queue-pairs": rows })))
}

fn set_quota(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vnic")?;
    let text: String = args.get("quota")?;
    let quota: Option<QuotaConfig> = match text.trim() {
        "none" => None,
        text => {
            let quota = text.parse().map_err(|error| args.error("quota", format!("{error}; or say none")))?;
            Some(quota)
        }
    };
    let unknown = || SwitchError::Unknown { what: "vNIC", name: name.to_string(), list: "show vnic" };
    shell.switch.edit(|config| {
        let vnic = config.vnics.iter_mut().find(|vnic| vnic.name == name).ok_or_else(unknown)?;
        Arc::make_mut(vnic).qp_quota.clone_from(&quota);
        Ok(())
    })?;
    let switch = &shell.switch;
    let index = vnic(switch.snapshot(), args)?.index;
    let (used, limit) = (switch.rcft().in_use(index), quota_of(switch, index));
    let entries = switch.rcft().shared().config().entries;
    let mut text = match (limit, &quota) {
        (None, _) => {
            format!("{name} may have as many queue pairs as the table holds ({entries}); {used} in use")
        }
        (Some(limit), None) => format!("{name} has the quota of [rcft]: {limit}; {used} in use"),
        (Some(limit), Some(QuotaConfig::Count(_))) => {
            format!("{name} may have {limit} queue pairs; {used} in use")
        }
        (Some(limit), Some(share)) => format!("{name} may have {limit} queue pairs ({share}); {used} in use"),
    };
    if let Some(limit) = limit
        && used > limit
    {
        text = format!("{text}, quota {limit}: no new queue pairs until under {limit}");
    }
    let json = json!({ "message": text, "vnic": name.as_str(), "quota": limit, "in-use": used });
    Ok(Output::new(text, json))
}

fn evict(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let snapshot = shell.switch.snapshot().clone();
    let vnic = vnic(&snapshot, args)?;
    let (peer, qpn): (IpAddr, Qpn) = (args.get("peer")?, qpn(args)?);
    let shown = format!("{peer} qp {:#x}", qpn.get());
    if !shell.switch.evict(vnic.index, peer, qpn) {
        let hint =
            format!("{} has no queue pair to {shown}; `show rcft {}` lists them", vnic.name, vnic.name);
        return Err(args.error("qpn", hint));
    }
    let text = format!("the queue pair of {} to {shown} lost its place", vnic.name);
    Ok(Output::new(text.clone(), json!({ "message": text, "evicted": 1 })))
}

fn evict_all(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let index = vnic(shell.switch.snapshot(), args)?.index;
    let count = shell.switch.evict_all(index);
    let name: Name = args.get("vnic")?;
    let text = match count {
        0 => format!("{name} has no queue pairs in use"),
        count => format!("{count} queue pairs of {name} lose their places"),
    };
    Ok(Output::new(text.clone(), json!({ "message": text, "evicted": count })))
}
