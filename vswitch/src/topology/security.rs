//! Security groups in the snapshot: their numbers, the sets of them that vNICs and locations have, and what those sets come
//! to. Numbers of groups and sets are never given to others while the switch runs.

use std::collections::HashMap;
use std::sync::Arc;

use pipelines::security::{Group, GroupSet, Peer, Policy, Rule, SetId};
use pipelines::snapshot::Prefix;

use super::Topology;
use crate::config::{Access, Config, Name, RulePeer, SecurityGroupConfig, SecurityRule};

/// What groups are known.
#[derive(Clone, Default)]
pub(super) struct SecurityDraft {
    /// As configured.
    config: Arc<[SecurityGroupConfig]>,
    /// Numbers by name, also of groups that are gone.
    numbers: imbl::HashMap<Name, u32>,
    /// By number.
    groups: Arc<Vec<Group>>,
    /// Numbers of sets by their groups.
    sets: imbl::HashMap<Arc<[u32]>, SetId>,
}

impl SecurityDraft {
    fn number(&mut self, name: &Name) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(name.clone()).or_insert(next)
    }
}

fn policy(groups: &[Group], of: &[u32]) -> Arc<Policy> {
    Arc::new(Policy::compile(of.iter().filter_map(|&group| groups.get(group as usize))))
}

impl Topology {
    /// Takes over the groups of a config. Where rules changed, connections are held against them again.
    pub(super) fn rebuild_security(&mut self, config: &Config) {
        if *self.draft.security.config == *config.security_groups {
            return;
        }
        let known = &mut self.draft.security;
        known.config = config.security_groups.clone().into();
        let mut groups: HashMap<u32, Group> = HashMap::new();
        for given in &config.security_groups {
            let number = known.number(&given.name);
            let rules = given.rules.iter().map(|rule| compiled(known, rule)).collect();
            let group = Group {
                allows_in: given.default_in == Access::Allow,
                allows_out: given.default_out == Access::Allow,
                rules,
            };
            groups.insert(number, group);
        }
        let all = (0..known.numbers.len() as u32).map(|number| groups.remove(&number).unwrap_or_default());
        known.groups = Arc::new(all.collect());
        let security = Arc::make_mut(&mut self.draft.next.security);
        for set in &mut security.sets {
            if set.policy.is_some() {
                set.policy = Some(policy(&self.draft.security.groups, &set.groups));
            }
        }
        self.groups_changed();
    }

    /// To be called when a rule changed, or who is in which group.
    pub(super) fn groups_changed(&mut self) {
        self.new_epoch();
        for vpc in 0..self.draft.next.vpcs.len() as u32 {
            self.draft.next.touch_vpc(vpc);
        }
    }

    /// To be called when a VPC has other routes or subnets. Whose an address is follows from them: what its groups admitted is held
    /// against the rules again, and what other VPCs send here is accepted by them.
    pub(super) fn routed_otherwise(&mut self, vpc: u32) {
        if !self.draft.next.security.is_off() {
            self.new_epoch();
        }
        self.touch_related(vpc);
    }

    /// Connections are held against the rules again.
    fn new_epoch(&mut self) {
        let security = Arc::make_mut(&mut self.draft.next.security);
        security.epoch = security.epoch.wrapping_add(1);
    }

    /// To be called when a station with a set of groups has an address no more: connections that it had are held against the
    /// rules again when their flows are decided anew, which is the caller's to see to.
    pub(super) fn left_groups(&mut self, groups: SetId) {
        if groups != 0 {
            self.new_epoch();
        }
    }

    /// The number of a set of groups; `judged`: a vNIC of this host has it.
    pub(super) fn group_set(&mut self, names: &[Name], judged: bool) -> SetId {
        if names.is_empty() {
            return 0;
        }
        let known = &mut self.draft.security;
        let mut groups: Vec<u32> = names.iter().map(|name| known.number(name)).collect();
        groups.sort_unstable();
        groups.dedup();
        let groups: Arc<[u32]> = groups.into();
        let id = match known.sets.get(&groups) {
            Some(&id) => id,
            None => {
                let security = Arc::make_mut(&mut self.draft.next.security);
                security.sets.push(GroupSet { groups: groups.clone(), policy: None });
                let id = security.sets.len() as SetId;
                known.sets.insert(groups.clone(), id);
                id
            }
        };
        let is_missing = self.draft.next.security.policy(id).is_none();
        if judged && is_missing {
            let new = policy(&self.draft.security.groups, &groups);
            if let Some(set) = Arc::make_mut(&mut self.draft.next.security).sets.get_mut(id as usize - 1) {
                set.policy = Some(new);
            }
        }
        id
    }
}

fn compiled(known: &mut SecurityDraft, rule: &SecurityRule) -> Rule {
    let peer = match &rule.peer {
        RulePeer::Any => Peer::Any,
        RulePeer::Prefix(prefix) => Peer::Prefix(Prefix::new(prefix.addr(), prefix.prefix_len())),
        RulePeer::Group(name) => Peer::Group(known.number(name)),
    };
    Rule { direction: rule.direction, traffic: rule.traffic, peer }
}
