//! Trials of a steady stream, alone and with another one beside it by turns: what both ends have counted.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::config::Counted;
use super::testbed::TestBed;
use crate::generator::outcome::{Outcome, StreamOutcome};
use crate::generator::rig::Demand;
use crate::host::threads::cpu_seconds;
use crate::{Error, Result};

/// A trial of two streams: the first is steady, the second begins nothing but new flows.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    pub pair: usize,
    /// Whether the second stream was sent.
    pub disturbed: bool,
    /// Share of the core that the worker had.
    pub core_share: f64,
    /// Packets of the steady stream that the switch counted as received, those of them that it did not send, and those that it
    /// counted as dropped.
    pub received_by_switch: u64,
    pub lost_by_switch: u64,
    pub steady_drops: u64,
    /// Packets that found no flow.
    pub misses: u64,
    /// What the switch dropped of either, by name.
    pub drops: BTreeMap<String, u64>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Beside {
    pub fn steady(&self) -> &StreamOutcome {
        &self.outcome.streams[0]
    }

    pub fn other(&self) -> &StreamOutcome {
        &self.outcome.streams[1]
    }
}

impl TestBed<'_> {
    /// Takes pairs of trials; who goes first changes from pair to pair. `steady` is the vNIC of the steady stream, and `demand`
    /// says what both streams send, with the second one or without.
    pub fn beside(
        &mut self,
        pairs: usize,
        steady: &str,
        demand: impl Fn(bool) -> Demand,
        mut finished: impl FnMut(&Beside),
    ) -> Result<Vec<Beside>> {
        let mut trials = Vec::new();
        for pair in 0..pairs {
            for disturbed in if pair % 2 == 0 { [false, true] } else { [true, false] } {
                let trial = self.trial(pair, steady, &demand(disturbed), disturbed)?;
                finished(&trial);
                trials.push(trial);
            }
        }
        Ok(trials)
    }

    fn trial(&mut self, pair: usize, steady: &str, demand: &Demand, disturbed: bool) -> Result<Beside> {
        let pid = self.daemon.process().pid();
        let before = Counted::at_rest(&mut self.daemon)?;
        let (cpu_before, start) = (cpu_seconds(pid, self.thread)?, Instant::now());
        let outcome = self.run(demand)?;
        let (cpu, wall) = (cpu_seconds(pid, self.thread)? - cpu_before, start.elapsed().as_secs_f64());
        let after = Counted::at_rest(&mut self.daemon)?;
        let served = match &outcome.streams[..] {
            [stream, _] if stream.sent > 0 => stream.sent - stream.lost,
            _ => return Err(Error::Failed(format!("{steady} sent nothing"))),
        };
        let received = after.port(steady, "rx-packets")? - before.port(steady, "rx-packets")?;
        Ok(Beside {
            pair,
            disturbed,
            core_share: cpu / wall,
            received_by_switch: received,
            lost_by_switch: received.saturating_sub(served),
            steady_drops: after.vnic(steady, "drops")? - before.vnic(steady, "drops")?,
            misses: after.worker("nft-misses")? - before.worker("nft-misses")?,
            drops: after.drops_since(&before),
            outcome,
        })
    }
}
