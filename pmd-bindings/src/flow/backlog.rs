//! What is still to be handed to a flow queue, in an order in which no packet meets half a chain.
//!
//! Operations of a queue may be reordered by the device (rte_flow guide, "Flow queues"), so what must come later is
//! not handed over before the device has answered what must come first:
//!
//! - creations wait for nothing among themselves: whoever makes a chain opens it when all of it is in force;
//! - of removals those of lower groups come first, for chains lead from lower to higher ones;
//! - creations and removals wait for each other.

use std::collections::{BTreeMap, VecDeque};

use rules::RuleId;

/// An operation whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create(RuleId),
    Destroy(RuleId),
}

/// Operations that may be under way at the same time, but for what [`Phase::next`] says.
#[derive(Debug)]
enum Phase {
    Creations(VecDeque<RuleId>),
    /// By group; the group of those that are under way.
    Removals(BTreeMap<u32, VecDeque<RuleId>>, u32),
}

impl Phase {
    /// The removal of a rule of this group.
    fn removal(rule: RuleId, group: u32) -> Self {
        Self::Removals(BTreeMap::from([(group, VecDeque::from([rule]))]), group)
    }

    /// Has a rule of this group go with others, if rules go in this phase.
    fn removes(&mut self, rule: RuleId, group: u32) -> bool {
        let Self::Removals(groups, _) = self else { return false };
        groups.entry(group).or_default().push_back(rule);
        true
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Creations(rules) => rules.is_empty(),
            Self::Removals(groups, _) => groups.is_empty(),
        }
    }

    /// What may be handed over now, while so many operations are under way.
    fn next(&self, under_way: u32) -> Option<Step> {
        match self {
            Self::Creations(rules) => rules.front().copied().map(Step::Create),
            Self::Removals(groups, level) => {
                let (group, rules) = groups.first_key_value()?;
                let may = under_way == 0 || group == level;
                rules.front().copied().filter(|_| may).map(Step::Destroy)
            }
        }
    }

    /// What [`next`](Self::next) said is done with.
    fn advance(&mut self) {
        match self {
            Self::Creations(rules) => drop(rules.pop_front()),
            Self::Removals(groups, level) => {
                if let Some(mut first) = groups.first_entry() {
                    *level = *first.key();
                    first.get_mut().pop_front();
                    if first.get().is_empty() {
                        first.remove();
                    }
                }
            }
        }
    }
}

/// What is still to be handed over. The first phase is the one of which operations are under way.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    phases: VecDeque<Phase>,
}

impl Backlog {
    /// True with nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.phases.iter().all(Phase::is_empty)
    }

    /// True when a creation need not wait: it counts as handed over then.
    pub(super) fn may_create(&mut self, under_way: u32) -> bool {
        self.begin(under_way);
        if self.phases.is_empty() {
            self.phases.push_back(Phase::Creations(VecDeque::new()));
        }
        let [Phase::Creations(rules)] = self.phases.make_contiguous() else { return false };
        rules.is_empty()
    }

    /// A rule is to be made. It may be gone when its turn comes.
    pub(super) fn create(&mut self, rule: RuleId) {
        if let Some(Phase::Creations(rules)) = self.phases.back_mut() {
            return rules.push_back(rule);
        }
        self.phases.push_back(Phase::Creations(VecDeque::from([rule])));
    }

    /// A rule of this group is to go.
    pub(super) fn destroy(&mut self, rule: RuleId, group: u32) {
        if !self.phases.back_mut().is_some_and(|phase| phase.removes(rule, group)) {
            self.phases.push_back(Phase::removal(rule, group));
        }
    }

    /// A rule that was to go did not: it goes before what comes after such rules.
    pub(super) fn destroy_again(&mut self, rule: RuleId, group: u32) {
        if !self.phases.front_mut().is_some_and(|phase| phase.removes(rule, group)) {
            self.phases.push_front(Phase::removal(rule, group));
        }
    }

    /// What may be handed over now, while so many operations are under way.
    pub(super) fn next(&mut self, under_way: u32) -> Option<Step> {
        self.begin(under_way);
        self.phases.front()?.next(under_way)
    }

    /// Begins the next phase when the first one has ended.
    fn begin(&mut self, under_way: u32) {
        while under_way == 0 && self.phases.front().is_some_and(Phase::is_empty) {
            self.phases.pop_front();
        }
    }

    /// What [`next`](Self::next) said was handed over, or is not wanted any more.
    pub(super) fn advance(&mut self) {
        if let Some(phase) = self.phases.front_mut() {
            phase.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands over what may be, and says what it was.
    fn hand_over(backlog: &mut Backlog, under_way: &mut u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = backlog.next(*under_way) {
            backlog.advance();
            *under_way += 1;
            steps.push(step);
        }
        steps
    }

    #[test]
    fn chains_go_from_their_beginning_on() {
        let mut backlog = Backlog::default();
        for chain in 0..3 {
            for group in [1, 3, 2] {
                backlog.destroy(RuleId(10 * chain + u64::from(group)), group);
            }
        }
        let mut under_way = 0;
        for group in [1, 2, 3] {
            let steps = hand_over(&mut backlog, &mut under_way);
            assert_eq!(steps, [0, 10, 20].map(|chain| Step::Destroy(RuleId(chain + group))), "group {group}");
            // All but one are answered: what comes after them waits.
            under_way = 1;
            assert_eq!(hand_over(&mut backlog, &mut under_way), []);
            under_way = 0;
        }
        assert!(backlog.is_empty());
    }

    #[test]
    fn creations_and_removals_wait_for_each_other() {
        let mut backlog = Backlog::default();
        let mut under_way = 0;
        backlog.create(RuleId(1));
        backlog.create(RuleId(2));
        assert_eq!(hand_over(&mut backlog, &mut under_way), [1, 2].map(|id| Step::Create(RuleId(id))));
        backlog.create(RuleId(3));
        backlog.destroy(RuleId(1), 0);
        backlog.create(RuleId(4));
        assert_eq!(hand_over(&mut backlog, &mut under_way), [Step::Create(RuleId(3))]);
        under_way = 0;
        assert_eq!(hand_over(&mut backlog, &mut under_way), [Step::Destroy(RuleId(1))]);
        assert!(!backlog.is_empty());
        under_way = 0;
        assert_eq!(hand_over(&mut backlog, &mut under_way), [Step::Create(RuleId(4))]);
    }

    #[test]
    fn a_removal_that_failed_is_not_overtaken() {
        let mut backlog = Backlog::default();
        backlog.destroy(RuleId(1), 1);
        backlog.destroy(RuleId(2), 2);
        backlog.create(RuleId(3));
        backlog.destroy(RuleId(4), 4);
        let mut under_way = 0;
        assert_eq!(hand_over(&mut backlog, &mut under_way), [Step::Destroy(RuleId(1))]);
        backlog.destroy_again(RuleId(1), 1);
        for step in [Step::Destroy(RuleId(1)), Step::Destroy(RuleId(2)), Step::Create(RuleId(3))] {
            assert_eq!(hand_over(&mut backlog, &mut 0), [step]);
        }
    }

    #[test]
    fn a_creation_waits_for_removals_only() {
        let mut backlog = Backlog::default();
        assert!(backlog.may_create(0) && backlog.may_create(1));
        backlog.create(RuleId(2));
        assert!(!backlog.may_create(1), "another one waits");
        assert_eq!(hand_over(&mut backlog, &mut 1), [Step::Create(RuleId(2))]);
        backlog.destroy(RuleId(1), 0);
        assert!(!backlog.may_create(1));
        assert_eq!(hand_over(&mut backlog, &mut 0), [Step::Destroy(RuleId(1))]);
        assert!(!backlog.may_create(1), "the removal is under way");
        assert!(backlog.may_create(0));
    }
}
