//! Queue pairs over all workers: each of them counts what it saw; here it becomes one view of each direction.
//!
//! Asks workers page by page, so that none is kept from its packets for long.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::rcft::{QpKey, QpView, RcftStats};
use worker::mailbox::WorkerError;
use worker::{Pool, WorkerCommand};

use crate::switch::Switch;

/// Queue pairs read from a worker at a time.
const PAGE: usize = 256;
/// Queue pairs asked for by key at a time.
const KEYS: usize = 32;

/// Views by key.
pub type Views = HashMap<QpKey, QpView>;

/// How far it is through the workers' tables: which worker, and from which line on.
type At = (usize, u32);

/// All queue pairs of one direction that `keep` holds for. Control does what cannot wait between two pages.
///
/// # Errors
/// [`WorkerError`].
pub fn all(
    switch: &mut Switch,
    direction: Direction,
    keep: impl Fn(&QpKey) -> bool,
) -> Result<Views, WorkerError> {
    let (mut views, mut at) = (Views::new(), Some((0, 0)));
    while let Some(from) = at {
        at = page(switch.pool(), direction, from, &keep, &mut views)?;
        switch.tend_if_due();
    }
    Ok(views)
}

/// As [`all`], without a pause.
///
/// # Errors
/// [`WorkerError`].
pub fn all_at_once(
    pool: &Pool,
    direction: Direction,
    keep: impl Fn(&QpKey) -> bool,
) -> Result<Views, WorkerError> {
    let (mut views, mut at) = (Views::new(), Some((0, 0)));
    while let Some(from) = at {
        at = page(pool, direction, from, &keep, &mut views)?;
    }
    Ok(views)
}

/// A page more, and where to go on.
fn page(
    pool: &Pool,
    direction: Direction,
    (number, from): At,
    keep: &impl Fn(&QpKey) -> bool,
    views: &mut Views,
) -> Result<Option<At>, WorkerError> {
    let Some(worker) = pool.workers.get(number) else { return Ok(None) };
    let page = worker.mailbox().ask(|reply| WorkerCommand::Qps(direction, from, PAGE, reply))?;
    page.entries.iter().filter(|view| keep(&view.key)).for_each(|view| add(views, view));
    Ok(Some(page.next.map_or((number + 1, 0), |next| (number, next))))
}

/// These queue pairs of one direction, as far as a worker has seen them.
///
/// # Errors
/// [`WorkerError`].
pub fn of(pool: &Pool, direction: Direction, keys: &[QpKey]) -> Result<Views, WorkerError> {
    let mut views = Views::new();
    for worker in &pool.workers {
        for keys in keys.chunks(KEYS) {
            let page = worker.mailbox().ask(|reply| WorkerCommand::QpsOf(direction, keys.to_vec(), reply))?;
            page.entries.iter().for_each(|view| add(&mut views, view));
        }
    }
    Ok(views)
}

/// What the workers count: sums, and the entries from the wire by vNIC. A queue pair that two workers have seen
/// counts twice.
///
/// # Errors
/// [`WorkerError`].
pub fn counts(pool: &Pool) -> Result<(RcftStats, Vec<u32>), WorkerError> {
    let (mut sum, mut guests) = (RcftStats::default(), Vec::new());
    for worker in &pool.workers {
        let counts = worker.mailbox().ask(WorkerCommand::QpCounts)?;
        sum.out += counts.stats.out;
        sum.into += counts.stats.into;
        sum.untracked += counts.stats.untracked;
        sum.unknown += counts.stats.unknown;
        if guests.len() < counts.guests.len() {
            guests.resize(counts.guests.len(), 0);
        }
        guests.iter_mut().zip(&counts.guests).for_each(|(sum, n)| *sum += n);
    }
    Ok((sum, guests))
}

fn add(views: &mut Views, view: &QpView) {
    views.entry(view.key).and_modify(|known| *known = merge(known, view)).or_insert(*view);
}

/// What two workers have seen of one direction of a queue pair.
pub fn merge(a: &QpView, b: &QpView) -> QpView {
    // Of what cannot be summed, that of the later packet holds.
    let later = if b.last_seen.wrapping_sub(a.last_seen) as i32 > 0 { b } else { a };
    let first = if b.events.first_seen.wrapping_sub(a.events.first_seen) as i32 > 0 { a } else { b };
    let mut sum = QpView {
        bytes: a.bytes + b.bytes,
        packets: a.packets + b.packets,
        acks: a.acks + b.acks,
        in_part: a.in_part || b.in_part,
        path_mtu: a.path_mtu.max(b.path_mtu),
        ..*later
    };
    let (x, y, events) = (&a.events, &b.events, &mut sum.events);
    events.ce = x.ce.saturating_add(y.ce);
    events.cnp = x.cnp.saturating_add(y.cnp);
    events.gaps = x.gaps.saturating_add(y.gaps);
    events.retransmissions = x.retransmissions.saturating_add(y.retransmissions);
    events.nak_sequence = x.nak_sequence.saturating_add(y.nak_sequence);
    events.rnr = x.rnr.saturating_add(y.rnr);
    events.nak_fatal = std::array::from_fn(|kind| x.nak_fatal[kind].saturating_add(y.nak_fatal[kind]));
    events.first_seen = first.events.first_seen;
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipelines::flow_key::Scope;
    use pipelines::rcft::QpEvents;
    use wire::Qpn;

    #[test]
    fn counters_add_up_and_times_span() {
        let key = QpKey::new(Scope::Vnic(3), "10.0.0.2".parse().unwrap(), Qpn::truncated(17));
        let view = |packets: u64, first: u32, last: u32, opcode: u8| QpView {
            key,
            bytes: packets * 100,
            packets,
            acks: 1,
            in_part: false,
            last_opcode: opcode,
            last_seen: last,
            path_mtu: (packets > 5).then_some(1024),
            next_psn: Some(last),
            events: QpEvents {
                ce: 1,
                gaps: 2,
                nak_fatal: [1, 200, 0, 0],
                first_seen: first,
                ..QpEvents::default()
            },
        };
        let (a, b) = (view(10, u32::MAX - 1, 40, 4), view(3, 5, 60, 17));
        for sum in [merge(&a, &b), merge(&b, &a)] {
            assert_eq!((sum.packets, sum.bytes, sum.acks), (13, 1300, 2));
            assert_eq!((sum.last_seen, sum.last_opcode, sum.next_psn), (60, 17, Some(60)));
            assert_eq!((sum.events.first_seen, sum.path_mtu), (u32::MAX - 1, Some(1024)), "the clock wraps");
            assert_eq!((sum.events.ce, sum.events.gaps, sum.events.nak_fatal), (2, 4, [2, 255, 0, 0]));
        }
        let mut views = Views::new();
        add(&mut views, &a);
        add(&mut views, &b);
        assert_eq!(views[&key], merge(&a, &b));
    }
}
