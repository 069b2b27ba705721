//! What the simulated e-switch does not take: what the NIC that it stands for refuses ([`rules::mlx5`]), and what it cannot
//! execute itself.

use super::EswitchConfig;
use super::layers::TAGS;
use rules::{Action, Cause, Domain, FlowError, FlowRule, ItemKind, Modify, Where, mlx5};

/// Checks a rule, room aside.
pub fn check(rule: &FlowRule, config: &EswitchConfig) -> Result<(), FlowError> {
    let unsupported = |at, text: &str| Err(FlowError::new(Cause::Unsupported, at, text));
    if config.refuse_all {
        return unsupported(Where::Unspecified, "this device takes no rules");
    }
    match rule.attr.domain {
        Domain::Transfer => {}
        Domain::Ingress => {
            return unsupported(Where::AttrIngress, "the simulated e-switch takes transfer rules");
        }
        Domain::Egress => {
            return unsupported(Where::AttrEgress, "the simulated e-switch takes transfer rules");
        }
    }
    if rule.attr.group >= config.groups {
        return unsupported(Where::AttrGroup, &format!("groups end at {}", config.groups - 1));
    }
    check_items(rule, config)?;
    check_actions(rule, config)?;
    config.nic.map_or(Ok(()), |nic| mlx5::check(rule, nic, config.steering))
}

fn check_items(rule: &FlowRule, config: &EswitchConfig) -> Result<(), FlowError> {
    for (index, item) in rule.pattern.iter().enumerate() {
        let refuse = |at: Where, text: &str| Err(FlowError::new(Cause::Unsupported, at, text));
        match item.kind() {
            ItemKind::IbBth if !config.ib_bth => {
                return refuse(Where::Item(index), "this device does not match ib_bth");
            }
            ItemKind::MeterColor if !config.meter_mark => {
                return refuse(Where::Item(index), "colours are matched with hardware steering only");
            }
            _ => {}
        }
        if item.last().is_some() && !config.ranges {
            return refuse(Where::ItemLast(index), "ranges are not supported");
        }
    }
    Ok(())
}

fn check_actions(rule: &FlowRule, config: &EswitchConfig) -> Result<(), FlowError> {
    let fates = rule.actions.iter().filter(|action| action.is_fate()).count();
    if fates != 1 {
        let text = if fates == 0 { "no action says where packets go" } else { "packets go one way only" };
        return Err(FlowError::new(Cause::Invalid, Where::ActionNum, text));
    }
    for (index, action) in rule.actions.iter().enumerate() {
        let refuse = |cause: Cause, text: &str| Err(FlowError::new(cause, Where::Action(index), text));
        if rule.actions[..index].iter().any(|other| same(other, action)) {
            return refuse(Cause::Unsupported, "the action is there twice");
        }
        match action {
            Action::Age { timeout } if *timeout == 0 || *timeout >= 1 << 24 => {
                return refuse(Cause::Invalid, "the timeout is 1 to 16777215 seconds");
            }
            Action::Jump { group } if *group == rule.attr.group => {
                return refuse(Cause::Invalid, "a jump leads to another group");
            }
            Action::Jump { group } if *group >= config.groups => {
                return refuse(Cause::Unsupported, &format!("groups end at {}", config.groups - 1));
            }
            Action::ModifyField(Modify::Ecn { .. }) if !config.modify_ecn => {
                return refuse(Cause::Unsupported, "this device does not modify ECN");
            }
            Action::ModifyField(Modify::Tag { index, .. }) if usize::from(*index) >= TAGS => {
                return refuse(Cause::Unsupported, &format!("tag registers are 0 to {}", TAGS - 1));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Two actions of which a rule has one at most.
fn same(a: &Action, b: &Action) -> bool {
    match (a, b) {
        (Action::ModifyField(a), Action::ModifyField(b)) => {
            (a.target(), a.index()) == (b.target(), b.index())
        }
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}
