//! Meters of hardware steering: METER_MARK actions that rules share by handle, made and changed through a flow queue.
//!
//! ```text
//!   set_meter --> making --> made <--> changing        the handle is known at once, the answer comes later
//!                    |         |                       rules that name it wait for it, control does not
//!                    +---------+--> removing --> gone  behind the last rule that names it
//! ```
//! One operation of a meter is under way at a time. mlx5 reads the profile when a handle is made or changed, and never
//! again, so the profile is written in the same step. It is done through the queue: in 22.11 the calls without one give a
//! meter that went to two others (the gate's test `mlx5_gives_a_meter_out_twice_without_the_queue`).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rules::{Action, Cause, FlowError, FlowRule, Meter, RuleId, Where};

use super::super::lower::Shared;
use super::PATIENCE;
use super::handle::Handle;

/// For so long in all a turn of whoever has the queue waits for room for new meters.
pub(super) const ROOM: Duration = Duration::from_millis(100);

/// A meter of ours in the device. Its number is never used again: a late answer is never taken for that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MarkId(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Make,
    Change,
    Remove,
}

/// The operation that the device has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) step: Step,
    pub(super) since: Instant,
    /// It was told of as unanswered.
    pub(super) is_late: bool,
}

#[derive(Debug)]
pub(super) struct Mark {
    /// The number that rules have.
    pub(super) mtr_id: u32,
    pub(super) handle: Handle,
    /// Profiles that the driver may still look at on its behalf, the newest at the end.
    pub(super) profiles: Vec<u32>,
    /// That of a change that the driver refused, which it may look at all the same.
    pub(super) refused_profile: Option<u32>,
    pub(super) under_way: Option<UnderWay>,
    /// The device has said that it is there.
    pub(super) is_made: bool,
    /// Rates that it is to have once nothing is under way.
    pub(super) rates: Option<Meter>,
    /// It goes with the last rule that names it.
    pub(super) unwanted: bool,
    /// Rules that name it.
    pub(super) rules: u32,
    /// Those that wait until it is made.
    pub(super) waiting: Vec<RuleId>,
    /// Removals that came to nothing.
    pub(super) refusals: u32,
    /// It is among those that are due.
    pub(super) is_due: bool,
}

impl Mark {
    /// What is to be asked of the device next.
    pub(super) fn next(&self) -> Option<Step> {
        match (self.under_way, self.unwanted) {
            (None, true) if self.rules == 0 => Some(Step::Remove),
            (None, false) if self.rates.is_some() => Some(Step::Change),
            _ => None,
        }
    }

    /// All that the driver may look at on its behalf.
    pub(super) fn into_profiles(self) -> Vec<u32> {
        self.profiles.into_iter().chain(self.refused_profile).collect()
    }
}

/// The meters of a flow queue.
#[derive(Debug)]
pub(super) struct Marks {
    pub(super) all: BTreeMap<MarkId, Mark>,
    /// By the numbers that rules have: those that can be named, and those that can be wanted again.
    pub(super) by_number: BTreeMap<u32, MarkId>,
    /// Meters that are to be changed or to go.
    pub(super) due: VecDeque<MarkId>,
    /// Since when the device answers EAGAIN to the first of them.
    pub(super) again_since: Option<Instant>,
    /// Operations in the order in which they were asked for, for those that are never answered.
    pub(super) asked: VecDeque<(Instant, MarkId)>,
    /// Operations that were told of as unanswered.
    pub(super) late: usize,
    /// Meters that the device would not let go several times.
    pub(super) stuck: Vec<MarkId>,
    /// What is to be told of meters that were made or changed in vain.
    pub(super) failed: Vec<(u32, FlowError)>,
    /// For so long may be waited for room.
    pub(super) room: Duration,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            by_number: BTreeMap::new(),
            due: VecDeque::new(),
            again_since: None,
            asked: VecDeque::new(),
            late: 0,
            stuck: Vec::new(),
            failed: Vec::new(),
            room: ROOM,
        }
    }
}

/// The meter that a rule names, and in which of its actions. One is the most: hardware takes no two.
fn meter_of(rule: &FlowRule) -> Option<(usize, u32)> {
    (0..).zip(&rule.actions).find_map(|(index, action)| match action {
        Action::Meter { mtr_id } => Some((index, *mtr_id)),
        _ => None,
    })
}

impl Marks {
    /// The meter that a rule names, and the handle in place of its action.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a meter that is not there.
    pub(super) fn named(&self, rule: &FlowRule) -> Result<Option<(MarkId, Shared)>, FlowError> {
        let Some((index, mtr_id)) = meter_of(rule) else { return Ok(None) };
        let id = self.by_number.get(&mtr_id);
        let known = id.and_then(|id| Some((*id, self.all.get(id).filter(|mark| !mark.unwanted)?)));
        let (id, mark) = known.ok_or_else(|| no_such_meter(Where::Action(index), mtr_id))?;
        Ok(Some((id, (index, mark.handle.as_ptr()))))
    }

    /// True once the device has said that a meter is there.
    pub(super) fn is_made(&self, id: MarkId) -> bool {
        self.all.get(&id).is_some_and(|mark| mark.is_made)
    }

    /// A rule that names this meter is there from now on, or waits until the meter is made.
    pub(super) fn enter(&mut self, id: MarkId, rule: RuleId) {
        if let Some(mark) = self.all.get_mut(&id) {
            mark.rules += 1;
            if !mark.is_made {
                mark.waiting.push(rule);
            }
        }
    }

    /// A rule that named this meter is there no more.
    pub(super) fn leave(&mut self, id: MarkId) {
        if let Some(mark) = self.all.get_mut(&id) {
            mark.rules -= 1;
        }
        self.schedule(id);
    }

    /// True until the device has been asked for all that is due.
    pub(super) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Meters that the device would not let go several times.
    pub(super) fn stuck(&self) -> usize {
        self.stuck.len()
    }

    /// Those are asked for again.
    pub(super) fn retry(&mut self) {
        for id in std::mem::take(&mut self.stuck) {
            self.schedule(id);
        }
    }

    /// A turn begins, which may wait for room again.
    pub(super) fn begin_turn(&mut self) {
        self.room = ROOM;
    }

    /// Meters that could not be made or changed, since the last call.
    pub(super) fn take_failed(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        failed.append(&mut self.failed);
    }

    /// Nobody wants any of them any more.
    pub(super) fn let_all_go(&mut self) {
        for mark in self.all.values_mut() {
            mark.unwanted = true;
        }
        for id in self.all.keys().copied().collect::<Vec<_>>() {
            self.schedule(id);
        }
    }

    /// Profiles of meters that were left in the device; how many those are.
    pub(super) fn left(&mut self) -> (usize, Vec<u32>) {
        let left = std::mem::take(&mut self.all);
        (left.len(), left.into_values().flat_map(Mark::into_profiles).collect())
    }

    pub(super) fn schedule(&mut self, id: MarkId) {
        if let Some(mark) = self.all.get_mut(&id)
            && mark.next().is_some()
            && !std::mem::replace(&mut mark.is_due, true)
        {
            self.due.push_back(id);
        }
    }

    pub(super) fn begin(&mut self, id: MarkId, step: Step) -> UnderWay {
        let since = Instant::now();
        self.asked.push_back((since, id));
        UnderWay { step, since, is_late: false }
    }

    /// A meter came to nothing: no rule can name it, and its handle is to be given back all the same. The rules that waited.
    pub(super) fn abandon(&mut self, id: MarkId, error: FlowError) -> Vec<RuleId> {
        let Some(mark) = self.all.get_mut(&id) else { return Vec::new() };
        let mtr_id = mark.mtr_id;
        if !std::mem::replace(&mut mark.unwanted, true) {
            self.failed.push((mtr_id, error));
        }
        let waiting = std::mem::take(&mut mark.waiting);
        self.unname(mtr_id, id);
        waiting
    }

    /// The number is free for another meter.
    pub(super) fn unname(&mut self, mtr_id: u32, id: MarkId) {
        if self.by_number.get(&mtr_id) == Some(&id) {
            self.by_number.remove(&mtr_id);
        }
    }

    /// Operations that the device has not answered for long, each once.
    pub(super) fn take_late(&mut self) -> Vec<(MarkId, Step)> {
        let mut late = Vec::new();
        while let Some((since, id)) = self.asked.front().copied() {
            let under_way = self.all.get_mut(&id).and_then(|mark| mark.under_way.as_mut());
            let under_way = under_way.filter(|under_way| under_way.since == since);
            if under_way.is_some() && since.elapsed() <= PATIENCE {
                break;
            }
            self.asked.pop_front();
            if let Some(under_way) = under_way {
                under_way.is_late = true;
                self.late += 1;
                late.push((id, under_way.step));
            }
        }
        late
    }

    pub(super) fn not_due(&mut self, id: MarkId) {
        if let Some(mark) = self.all.get_mut(&id) {
            mark.is_due = false;
        }
    }
}

pub(super) fn no_such_meter(at: Where, mtr_id: u32) -> FlowError {
    FlowError::new(Cause::Gone, at, format!("there is no meter {mtr_id}"))
}
