//! The service `QueuePairs`: queue pairs of vNICs, what is in use, what each of them does, and eviction.
//!
//! Which two directions belong together is told only where it is sure ([`pair`]).

mod direction;
mod pair;

use std::cmp::Reverse;
use std::net::IpAddr;

use pipelines::Direction;
use pipelines::TICK_MS;
use pipelines::flow_key::Scope;
use pipelines::rcft::{LedgerView, QpKey, QpView};
use pipelines::snapshot::Vnic;
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::queue_pairs_server::QueuePairs;
use wire::Qpn;

use self::direction::{DirectionRow, Order};
use super::named::{MOST_LISTED, vnic};
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::controller::Controller;
use crate::switch::Switch;
use crate::view;
use crate::view::qps::{self, Views};

/// Queue pairs of each direction in a list.
const LISTED: usize = 1000;

service! { QueuePairs {
    reads get_queue_pair_usage(GetQueuePairUsageRequest) -> GetQueuePairUsageResponse: "counting queue pairs",
    reads get_queue_pair_quota(GetQueuePairQuotaRequest) -> GetQueuePairQuotaResponse: "looking at a quota of queue pairs",
    reads list_queue_pairs(ListQueuePairsRequest) -> ListQueuePairsResponse: "listing queue pairs",
    reads list_top_queue_pairs(ListTopQueuePairsRequest) -> ListTopQueuePairsResponse: "sorting queue pairs",
    reads get_queue_pair(GetQueuePairRequest) -> GetQueuePairResponse: "looking at a queue pair",
    changes evict_queue_pair(EvictQueuePairRequest) -> EvictQueuePairResponse: "evicting a queue pair",
    changes evict_queue_pairs(EvictQueuePairsRequest) -> EvictQueuePairsResponse: "evicting queue pairs",
} }

/// The number of a queue pair, by the field `qpn`.
fn qpn(number: u32) -> Result<Qpn, Problem> {
    Qpn::new(number).map_err(|_| {
        Problem::invalid("qpn", format!("{number} is no number of a queue pair; give 0 to 16777215"))
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

fn get_queue_pair_usage(
    controller: &mut Controller,
    _: v1::GetQueuePairUsageRequest,
) -> Result<v1::GetQueuePairUsageResponse, Problems> {
    let switch = &controller.switch;
    let (sums, guests) = qps::counts(switch.pool())?;
    let of = |vnic: &Vnic| {
        let totals = view::vnic(switch, vnic.index);
        v1::VnicQueuePairs {
            name: vnic.name.clone(),
            in_use: switch.rcft().in_use(vnic.index),
            quota: quota_of(switch, vnic.index),
            opened: totals.qps_opened,
            refused: totals.qps_refused,
            packets_dropped: totals.qp_drops,
            rejected: totals.qps_rejected,
            cm_messages: totals.cm_messages,
            cm_unheard: totals.cm_unheard,
            from_wire: guests.get(vnic.index as usize).copied().unwrap_or(0),
        }
    };
    let vnics: Vec<_> = switch.snapshot().vnics.iter().flatten().map(|vnic| of(vnic)).collect();
    let shared = switch.rcft().shared();
    Ok(v1::GetQueuePairUsageResponse {
        in_use: vnics.iter().map(|vnic| u64::from(vnic.in_use)).sum(),
        vnics,
        entries: shared.config().entries,
        memory_bytes: shared.total_bytes() as u64,
        worker_entries: Some(v1::WorkerQueuePairs { outbound: sums.out.into(), inbound: sums.into.into() }),
        untracked: sums.untracked,
        unknown: sums.unknown,
        count_opcodes: switch.bare_config().rcft.count_opcodes.to_string(),
    })
}

fn get_queue_pair_quota(
    controller: &mut Controller,
    request: v1::GetQueuePairQuotaRequest,
) -> Result<v1::GetQueuePairQuotaResponse, Problem> {
    let switch = &controller.switch;
    let index = vnic(switch.snapshot(), &request.vnic)?.index;
    Ok(v1::GetQueuePairQuotaResponse {
        vnic: request.vnic,
        in_use: switch.rcft().in_use(index),
        quota: quota_of(switch, index),
        entries: switch.rcft().shared().config().entries,
    })
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

fn list_queue_pairs(
    controller: &mut Controller,
    request: v1::ListQueuePairsRequest,
) -> Result<v1::ListQueuePairsResponse, Problems> {
    let switch = &mut controller.switch;
    let snapshot = switch.snapshot().clone();
    let vnic = vnic(&snapshot, &request.vnic)?;
    let now = switch.pool().now().tick;
    let (seen, used) = admitted(switch, LISTED, |of, _| of == vnic.index);
    let keys: Vec<QpKey> = seen.iter().map(|seen| QpKey::from_words(seen.key)).collect();
    let out = qps::of(switch.pool(), Direction::Out, &keys)?;
    let mut into: Vec<QpView> =
        qps::all(switch, Direction::In, |key| is_to(vnic, key))?.into_values().collect();
    into.sort_by_key(|view| (view.key.address(), view.key.qpn().get()));
    let from_wire = into.len() as u64;
    let out = seen
        .iter()
        .zip(&keys)
        .map(|(seen, key)| DirectionRow::admitted(&vnic.name, seen, out.get(key), now).message);
    let into = into.iter().take(LISTED).map(|view| DirectionRow::from_wire(&vnic.name, view, now).message);
    Ok(v1::ListQueuePairsResponse {
        vnic: vnic.name.clone(),
        in_use: switch.rcft().in_use(vnic.index),
        quota: quota_of(switch, vnic.index),
        admitted: used as u64,
        from_wire,
        queue_pairs: out.chain(into).collect(),
    })
}

fn list_top_queue_pairs(
    controller: &mut Controller,
    request: v1::ListTopQueuePairsRequest,
) -> Result<v1::ListTopQueuePairsResponse, Problems> {
    let v1::ListTopQueuePairsRequest { vnic: name, count, order: by } = request;
    if count == 0 || count > MOST_LISTED {
        let message = format!("{count} is out of range; ask for 1 to {MOST_LISTED} queue pairs");
        return Err(Problem::invalid("count", message).into());
    }
    let order = Order::read(&by)?;
    let switch = &mut controller.switch;
    let snapshot = switch.snapshot().clone();
    let wanted = (!name.is_empty()).then(|| vnic(&snapshot, &name)).transpose()?;
    let of_vnic = |key: &QpKey| match (wanted, key.scope()) {
        (None, _) => true,
        (Some(vnic), Scope::Vnic(index)) => index == vnic.index,
        (Some(vnic), Scope::Vpc(_)) => is_to(vnic, key),
    };
    let figure = |view: &QpView| order.figure(view);
    let most = |views: Views| {
        let mut views: Vec<QpView> = views.into_values().filter(|view| figure(view) > 0).collect();
        views.sort_by_key(|view| (Reverse(figure(view)), view.key.words()[2], view.key.words()[1]));
        views.truncate(count as usize);
        views
    };
    let mut both: Vec<(Direction, QpView)> = Vec::new();
    for way in [Direction::Out, Direction::In] {
        both.extend(most(qps::all(switch, way, of_vnic)?).into_iter().map(|view| (way, view)));
    }
    both.sort_by_key(|(_, view)| Reverse(figure(view)));
    both.truncate(count as usize);
    let now = switch.pool().now().tick;
    let name_of = |vnic: Option<u32>| {
        vnic.and_then(|vnic| snapshot.vnic(vnic)).map_or("(gone)".into(), |vnic| vnic.name.clone())
    };
    let row = |(way, view): &(Direction, QpView)| match (way, view.key.scope()) {
        (Direction::Out, Scope::Vnic(vnic)) => {
            let name = name_of(Some(vnic));
            Some(match switch.rcft().keeper().get(view.key.words()) {
                Some(seen) => DirectionRow::admitted(&name, &seen, Some(view), now),
                None => DirectionRow::gone(&name, view, now),
            })
        }
        (_, Scope::Vpc(vpc)) => {
            let name = name_of(snapshot.local_vnic(vpc, view.key.address()));
            Some(DirectionRow::from_wire(&name, view, now))
        }
        (Direction::In, Scope::Vnic(_)) => None,
    };
    let queue_pairs = both.iter().filter_map(row).map(|row| row.message).collect();
    Ok(v1::ListTopQueuePairsResponse { by, queue_pairs })
}

fn get_queue_pair(
    controller: &mut Controller,
    request: v1::GetQueuePairRequest,
) -> Result<v1::GetQueuePairResponse, Problems> {
    let switch = &controller.switch;
    let snapshot = switch.snapshot().clone();
    let (vnic, qpn) = (vnic(&snapshot, &request.vnic)?, qpn(request.qpn)?);
    let queue_pairs = pair::of(switch, &snapshot, vnic, qpn)?;
    let refused = if queue_pairs.is_empty() { refused(switch, vnic, qpn) } else { None };
    if queue_pairs.is_empty() && refused.is_none() {
        let (name, number) = (&vnic.name, qpn.get());
        let message =
            format!("{name} has no queue pair {number} ({number:#x}); `show rcft {name}` lists them");
        return Err(Problem::new(Code::NotFound, "qpn", message).into());
    }
    Ok(v1::GetQueuePairResponse { vnic: vnic.name.clone(), qpn: qpn.get(), queue_pairs, refused })
}

/// What is remembered of a refusal.
fn refused(switch: &Switch, vnic: &Vnic, qpn: Qpn) -> Option<v1::RefusedQueuePair> {
    let is_it = |event: &&crate::switch::events::Happening| {
        event.kind == "qp-refused" && event.facts["vnic"] == *vnic.name && event.facts["qpn"] == qpn.get()
    };
    let event = switch.events().iter().rev().find(is_it)?;
    let fact = |name: &str| event.facts[name].as_str().unwrap_or_default().to_owned();
    Some(v1::RefusedQueuePair {
        reason: fact("reason"),
        peer: fact("peer"),
        seconds_ago: event.at.elapsed().unwrap_or_default().as_secs_f64(),
        text: event.text.clone(),
    })
}

fn evict_queue_pair(
    controller: &mut Controller,
    request: v1::EvictQueuePairRequest,
) -> Result<v1::EvictQueuePairResponse, Problem> {
    let snapshot = controller.switch.snapshot().clone();
    let vnic = vnic(&snapshot, &request.vnic)?;
    let peer: IpAddr = request.peer.parse().map_err(|_| {
        let shown = crate::config::error::quote(&request.peer);
        Problem::invalid("peer", format!("{shown} is no IP address; give that of the peer, such as 10.0.0.2"))
    })?;
    let qpn = qpn(request.qpn)?;
    if !controller.switch.evict(vnic.index, peer, qpn) {
        let (name, number) = (&vnic.name, qpn.get());
        let message =
            format!("{name} has no queue pair to {peer} qp {number:#x}; `show rcft {name}` lists them");
        return Err(Problem::new(Code::NotFound, "qpn", message));
    }
    Ok(v1::EvictQueuePairResponse { evicted: 1 })
}

fn evict_queue_pairs(
    controller: &mut Controller,
    request: v1::EvictQueuePairsRequest,
) -> Result<v1::EvictQueuePairsResponse, Problem> {
    let index = vnic(controller.switch.snapshot(), &request.vnic)?.index;
    Ok(v1::EvictQueuePairsResponse { evicted: controller.switch.evict_all(index) })
}
