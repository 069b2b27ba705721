//! Meters that bundles share, and what they turn away.

use super::{RuleStore, add, inner};
use crate::offload::counter::{DeviceCounter, Growth, Pace};
use crate::offload::translate::group;
use rules::{Action, BackEnd, Cause, FlowError, FlowRule, Meter, Usage, Where};

/// Where the meter is among the actions of the rule that refers to it.
const METER: usize = 0;

/// A meter that bundles share.
pub(super) struct SharedMeter {
    /// As it was set last; unknown when that came to nothing.
    pub(super) rates: Option<Meter>,
    /// Bundles that need it.
    pub(super) users: u32,
}

/// What is known of a rule that counts what a meter turns away.
pub(super) struct Away {
    pub(super) meter: u32,
    /// Bytes of each packet that software does not count.
    pub(super) tunnel_len: usize,
    /// What was told of it.
    pub(super) told: DeviceCounter,
    /// The last round over all of them in which it was asked.
    pub(super) round: u64,
}

impl Away {
    /// What it has seen since it was told of last; nothing while its counter is not believed.
    pub(super) fn more(&mut self, seen: Usage, pace: Pace) -> Usage {
        match self.told.read(inner(seen, self.tunnel_len), pace) {
            Growth::By(more) => more,
            Growth::Back | Growth::Ahead | Growth::Doubted => Usage::default(),
        }
    }
}

/// A meter that could not be made: an action of the rules that refer to it, and no sign that the device is full of rules.
pub(super) fn of_meter(error: FlowError) -> FlowError {
    match error.cause {
        Cause::Full => FlowError { at: Where::ActionConf(METER), ..error },
        _ => error,
    }
}

/// True for a rule that counts what it sends to software.
pub(super) fn turns_away(rule: &FlowRule) -> bool {
    let to_software = |action: &Action| *action == (Action::Jump { group: group::SOFTWARE });
    rule.actions.contains(&Action::Count) && rule.actions.iter().any(to_software)
}

impl RuleStore {
    pub(super) fn leave_meter<B: BackEnd>(&mut self, back_end: &mut B, id: u32) {
        let Some(meter) = self.meters.get_mut(&id) else { return };
        meter.users -= 1;
        if meter.users == 0 {
            self.meters.remove(&id);
            // One that is gone already is what is wanted.
            let _ = back_end.set_meter(id, None);
        }
    }

    /// What meters turned away since the last time, as software counts it. With many of them not all are asked at a time: once
    /// `is_over` says so, the others are for the next call.
    pub fn turned_away<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        is_over: impl Fn() -> bool,
    ) -> Vec<(u32, Usage)> {
        let mut all = std::mem::take(&mut self.last_away);
        let mut any = false;
        let round = self.away_round + 1;
        for (number, away) in self.away.iter_mut().filter(|(_, away)| away.round < round) {
            let Some(shared) = self.rules.at(*number) else { continue };
            if std::mem::replace(&mut any, true) && is_over() {
                return all;
            }
            away.round = round;
            if let Ok(seen) = back_end.query(shared.old.unwrap_or(shared.id)) {
                all.push((away.meter, away.more(add(shared.before, seen), self.pace)));
            }
        }
        self.away_round = round;
        all
    }

    /// True for a meter that is set at the back end.
    pub fn has_meter(&self, id: u32) -> bool {
        self.meters.contains_key(&id)
    }

    /// Ids of the meters that are set at the back end.
    pub fn meters(&self) -> Vec<u32> {
        self.meters.keys().copied().collect()
    }

    /// Meters in use that the back end took and that came to nothing. Each is set again at the next call of
    /// [`set_rates`](Self::set_rates).
    pub fn failed_meters<B: BackEnd>(&mut self, back_end: &mut B) -> Vec<(u32, FlowError)> {
        let mut failed = Vec::new();
        back_end.failed_meters(&mut failed);
        failed.retain(|(id, _)| match self.meters.get_mut(id) {
            Some(meter) => {
                meter.rates = None;
                true
            }
            None => false,
        });
        failed
    }

    /// Sets a meter in use, if it is another than before.
    ///
    /// # Errors
    /// The back end's: the meter has other rates than it should, which is tried again at the next call.
    pub fn set_rates<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        id: u32,
        meter: Meter,
    ) -> Result<(), FlowError> {
        if let Some(known) = self.meters.get_mut(&id).filter(|known| known.rates != Some(meter)) {
            back_end.set_meter(id, Some(meter))?;
            known.rates = Some(meter);
        }
        Ok(())
    }
}
