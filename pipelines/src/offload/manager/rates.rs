//! Rates of classes in hardware: their meters follow their shares, and their shares what their flows send.

use super::super::translate::{self, Tables};
use super::Manager;
use super::flow::{OffloadFlow, Status};
use super::time::Work;
use crate::offload::hasher::Map;
use crate::qos::Leaf;
use rules::{BackEnd, Cause, FlowError};

/// The meter at which a round over all of them ended, because the back end had to be asked again.
#[derive(Clone, Copy)]
pub(super) struct RatesDue {
    meter: u32,
    since_ns: u64,
}

/// A class in hardware is expected to send this part more than it did: so much its flows may grow by, and their mean frame
/// change, before its meter holds them back.
const HEADROOM: u64 = 8;

impl Manager {
    /// Sets the meters of classes to their shares as they are now. Flows of a class whose meter the device does not change
    /// leave hardware, pinned or not: they would be held to a rate that is no longer theirs.
    ///
    /// A back end may take its time, also before it says that it is to be asked again, and control has other things to do: the
    /// round ends there, and the next one begins with that meter, so that all have their turn.
    pub(super) fn set_rates<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables, now_ns: u64) {
        let mut refused = self.store.failed_meters(back_end);
        let due = self.rates_due.take();
        let mut meters = self.store.meters();
        meters.sort_unstable();
        let first = due.map_or(0, |due| meters.partition_point(|meter| *meter < due.meter));
        meters.rotate_left(first);
        for (done, id) in meters.into_iter().enumerate() {
            if done > 0 && self.time.is_over(Work::Rates) {
                self.rates_due = Some(RatesDue { meter: id, since_ns: now_ns });
                break;
            }
            let leaf = Leaf(id - 1);
            // A class whose share is not known at the moment keeps the one it had.
            let Ok(meter) = translate::meter(tables, leaf) else { continue };
            let overhead = tables.snapshot.settings.red.overhead;
            let meter = self.classes.metered(leaf, meter, overhead);
            match self.store.set_rates(back_end, id, meter) {
                Ok(()) => {}
                Err(error) if error.cause == Cause::Again => {
                    let since_ns = due.filter(|due| due.meter == id).map_or(now_ns, |due| due.since_ns);
                    let is_over = now_ns.saturating_sub(since_ns) >= self.policy.retry_ns;
                    if is_over {
                        refused.push((id, error));
                    }
                    let meter = if is_over { id + 1 } else { id };
                    self.rates_due = Some(RatesDue { meter, since_ns });
                    break;
                }
                Err(error) => refused.push((id, error)),
            }
        }
        for (id, error) in refused {
            self.withdraw_class(back_end, Leaf(id - 1), &error, now_ns);
        }
    }

    /// Tells the tree what the classes of flows in hardware, and on their way there, are going to send until `until_ns`: the
    /// next turn, and as long again, for it may come late. The tree itself sees nothing of them before.
    pub(super) fn expect(&mut self, tables: &Tables, until_ns: u64) {
        let overhead = u64::from(tables.snapshot.settings.red.overhead);
        let held_back = self.classes.take_held_back();
        let mut rates: Map<Leaf, u64> = Map::default();
        for flow in self.flows.iter() {
            let leaf = flow.state.installed().and_then(|installed| installed.facts.leaf);
            let Some(leaf) = leaf else { continue };
            let rate = flow.rate();
            let bytes = rate.bytes.saturating_add(rate.packets.saturating_mul(overhead));
            let sum = rates.entry(leaf).or_default();
            *sum = sum.saturating_add(bytes.saturating_mul(8));
        }
        for (leaf, rate) in rates {
            let more = rate.saturating_add(rate / HEADROOM);
            tables.tree.expect(leaf, if held_back.contains(&leaf) { u64::MAX } else { more }, until_ns);
        }
    }

    fn withdraw_class<B: BackEnd>(&mut self, back_end: &mut B, leaf: Leaf, error: &FlowError, now_ns: u64) {
        let of_class = |flow: &OffloadFlow| {
            flow.state.installed().is_some_and(|installed| installed.facts.leaf == Some(leaf))
        };
        for number in self.installed(of_class) {
            let why = Status::RefusedByDevice(format!("its rate cannot be changed: {error}"));
            self.withdraw(back_end, number, why, now_ns + self.policy.retry_ns);
        }
    }
}
