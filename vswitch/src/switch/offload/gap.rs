//! Gaps: moments in which no packet of a flow is on its way in software, so that hardware may have the next ones.

use std::collections::HashSet;

use pipelines::Direction;
use pipelines::flow_key::Scope;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::translate::{FlowSelector, Tables};
use pipelines::qos::{Class, Leaf};
use rules::ArrivalCount;
use worker::{Pool, WorkerCommand};

use super::device::{ANY, Simulated};
use super::watch::FlowWatch;
use crate::config::Barrier;

/// What is known of packets on their way from the device to software.
pub(super) struct ArrivalSource<'a> {
    /// The simulated e-switch, which knows of each flow how many it has sent there.
    pub simulated: Option<&'a Simulated>,
    /// Of a NIC: flows of which no packet came in the last turn.
    pub idle: &'a HashSet<FlowSelector>,
}

/// How many packets of a flow had come to software, when none of them is on its way there; `None` when one may be.
pub(super) fn quiet(
    pool: &Pool,
    tables: &Tables,
    arrivals: &ArrivalSource,
    barrier: Barrier,
    selector: &FlowSelector,
) -> Option<ArrivalCount> {
    let rdma = selector.key.class() != 0;
    match barrier {
        Barrier::All => {}
        Barrier::Rdma if rdma => {}
        _ => return Some(ANY),
    }
    let flow = flow_of(selector, FlowOrigin::of(tables, &selector.key)?);
    let count = match arrivals.simulated {
        Some(Simulated(device)) => ArrivalCount(device.lock().drained(flow)?),
        None => arrivals.idle.contains(selector).then_some(ANY)?,
    };
    // Looked at after that: what left the receive side may wait for tokens.
    let leaf = leaf_of(tables, selector, rdma)?;
    (waiting(pool, leaf) == Some(0)).then_some(count)
}

/// What the view of a queue pair knows of its sequence is void from the moment on from which hardware has its packets.
pub(super) fn begin_anew(pool: &Pool, watch: &FlowWatch, selector: &FlowSelector) -> bool {
    selector.qpn.is_none() || watch.begin_anew(pool, selector).is_ok()
}

/// Who pays for a flow.
fn leaf_of(tables: &Tables, selector: &FlowSelector, rdma: bool) -> Option<Leaf> {
    let class = if rdma { Class::Rdma } else { Class::Tcp };
    match selector.key.scope() {
        Scope::Vnic(vnic) => Some(tables.tree.leaf(Direction::Out, vnic, class)),
        Scope::Vpc(vpc) => {
            let receiver = selector.key.addresses()?.destination;
            let vnic = tables.snapshot.local_vnic(vpc, receiver)?;
            Some(tables.tree.leaf(Direction::In, vnic, class))
        }
    }
}

/// Packets of a class that wait for tokens; `None` when a worker is gone.
fn waiting(pool: &Pool, leaf: Leaf) -> Option<u32> {
    if pool.workers.iter().all(|worker| worker.stats.pipeline.waiting.get() == 0) {
        return Some(0);
    }
    let depth = |worker: &worker::pool::WorkerHandle| {
        let depths = worker.mailbox().ask(|reply| WorkerCommand::Depths(vec![leaf], reply)).ok()?;
        depths.first().map(|depth| depth.packets)
    };
    pool.workers.iter().map(depth).sum()
}
