//! Which rules mlx5 takes, as one table of facts for whoever stands in for a NIC.
//!
//! ```text
//!            hardware steering: items, actions, their order (here), room for the match (fit.rs)
//!   FlowRule <                                                                                  > taken | refused, and why
//!            software steering: layers, fields, actions (software.rs)
//! ```
//! The facts are those of the driver's code in DPDK 22.11, where `mlx5-gate` holds this table against the driver itself, rule by
//! rule; of queue pairs, which 22.11 cannot say, and of layers what 24.11.4 said when it was asked by hand. What firmware refuses nobody has asked (unconfirmed on
//! hardware).

mod fit;
mod software;

use std::fmt;

use crate::items::{ib_bth, ipv4, tag};
use crate::{Action, Cause, FlowError, FlowRule, Item, ItemKind, Modify, Where};

/// A NIC, as far as it tells which rules are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Nic {
    /// ConnectX-6 Dx: of the nine words of a match, three are for headers without addresses only.
    ConnectX6Dx,
    /// ConnectX-7.
    #[default]
    ConnectX7,
    /// BlueField-3, whose NIC is a ConnectX-7.
    BlueField3,
}

impl Nic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ConnectX6Dx, Self::ConnectX7, Self::BlueField3];

    /// The name in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConnectX6Dx => "connectx-6-dx",
            Self::ConnectX7 => "connectx-7",
            Self::BlueField3 => "bluefield-3",
        }
    }

    /// Words of a match that may be addresses, a tunnel's header or registers.
    const fn far_words(self) -> usize {
        match self {
            Self::ConnectX6Dx => 6,
            Self::ConnectX7 | Self::BlueField3 => fit::WORDS,
        }
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectX6Dx => "ConnectX-6 Dx",
            Self::ConnectX7 => "ConnectX-7",
            Self::BlueField3 => "BlueField-3",
        })
    }
}

/// How the driver writes rules, its device argument `dv_flow_en`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// `dv_flow_en=1`: software steering, `rte_flow_validate` and `rte_flow_create`.
    Software,
    /// `dv_flow_en=2`: hardware steering, templates and queues.
    #[default]
    Hardware,
}

impl Engine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Software, Self::Hardware];

    /// The name in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Hardware => "hardware",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`dv_flow_en={}`", if *self == Self::Software { 1 } else { 2 })
    }
}

/// Items that hardware steering does not match, and why.
const NO_ITEMS: [(ItemKind, &str); 2] =
    [(ItemKind::PortId, "port_id is not matched"), (ItemKind::Mark, NO_MARK)];

const NO_MARK: &str = "mark is not matched on the e-switch";
/// Why one VLAN tag is matched: the hardware steering of 22.11 takes two, and that of 24.11 does not.
pub const VLAN_TWICE: &str = "vlan is there twice";
/// Why no bits of IPv4's protocol number are matched: the hardware steering of 22.11 takes them, and that of 24.11 does not.
pub const PART_OF_PROTOCOL: &str = "the protocol number is matched as a whole only";

/// Why no field is matched between two values: the software steering of 22.11 takes that of fields of IPv4, and heeds the lower
/// one alone.
pub const NO_RANGES: &str = "ranges are not supported";
const PART_OF_BTH: &str = "ib_bth is matched by opcode and dst_qp only";
const BTH_IN_ROOT: &str = "ib_bth is not matched in group 0";
const VXLAN_IN_VXLAN: &str = "vxlan within vxlan is not matched";
const ONE_WAY: &str = "packets go one way only";

/// Items that have a value: without one, the driver of 22.11 follows a null pointer.
const WITH_VALUE: [ItemKind; 2] = [ItemKind::RepresentedPort, ItemKind::Tag];

/// Registers that rules may use: those from C_1 on that neither meters nor the driver needs.
const REGISTERS: u128 = 5;

/// Where the hardware carries an action out, in the order of the e-switch; none for what it does not have there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Decap,
    Count,
    Meter,
    Modify,
    Encap,
    Fate,
}

fn stage(action: &Action) -> Option<Stage> {
    match action {
        Action::VxlanDecap => Some(Stage::Decap),
        Action::Count | Action::Age { .. } => Some(Stage::Count),
        Action::Meter { .. } => Some(Stage::Meter),
        Action::ModifyField(_) => Some(Stage::Modify),
        Action::RawEncap(_) => Some(Stage::Encap),
        Action::Jump { .. } | Action::RepresentedPort { .. } | Action::Drop => Some(Stage::Fate),
        Action::Mark { .. }
        | Action::PortRepresentor { .. }
        | Action::PortId { .. }
        | Action::Queue { .. } => None,
    }
}

/// Whether a NIC takes a transfer rule, as far as its driver knows. With software steering all NICs take the same.
///
/// # Errors
/// Why not: [`Cause::Unsupported`], and the item or action.
pub fn check(rule: &FlowRule, nic: Nic, engine: Engine) -> Result<(), FlowError> {
    match engine {
        Engine::Software => software::check(rule),
        Engine::Hardware => check_hardware(rule, nic),
    }
}

fn check_hardware(rule: &FlowRule, nic: Nic) -> Result<(), FlowError> {
    let items = rule.pattern.iter().enumerate();
    items.into_iter().try_for_each(|(index, item)| check_item(rule, index, item))?;
    check_actions(&rule.actions)?;
    fit::check(&rule.pattern, nic)
}

fn refuse(at: Where, words: impl Into<String>) -> Result<(), FlowError> {
    Err(FlowError::new(Cause::Unsupported, at, words))
}

fn check_item(rule: &FlowRule, index: usize, item: &Item) -> Result<(), FlowError> {
    let at = Where::Item(index);
    let kind = item.kind();
    if let Some((_, words)) = NO_ITEMS.iter().find(|(other, _)| *other == kind) {
        return refuse(at, *words);
    }
    if item.last().is_some() {
        return refuse(Where::ItemLast(index), NO_RANGES);
    }
    if WITH_VALUE.contains(&kind) && item.is_any() {
        return refuse(at, format!("{} is matched with a value only", kind.name()));
    }
    let before = &rule.pattern[..index];
    match kind {
        ItemKind::IbBth if rule.attr.group == 0 => refuse(at, BTH_IN_ROOT),
        ItemKind::IbBth if item.field(ib_bth::PKEY).1 != 0 => refuse(at, PART_OF_BTH),
        ItemKind::Vlan if twice_in_a_level(before) => refuse(at, VLAN_TWICE),
        ItemKind::Ipv4 if ![0, ipv4::PROTO.ones()].contains(&item.field(ipv4::PROTO).1) => {
            refuse(Where::ItemMask(index), PART_OF_PROTOCOL)
        }
        ItemKind::Vxlan if before.iter().any(|other| other.kind() == ItemKind::Vxlan) => {
            refuse(at, VXLAN_IN_VXLAN)
        }
        ItemKind::Tag if tag::INDEX.get(item.spec()) >= REGISTERS => {
            refuse(at, format!("tag registers are 0 to {}", REGISTERS - 1))
        }
        ItemKind::Tag => {
            let register = |item: &Item| (item.kind(), tag::INDEX.get(item.spec()));
            let twice = before.iter().any(|other| register(other) == register(item));
            if twice { refuse(at, "a register is matched twice") } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Whether there is a VLAN tag in front of another one, on the same side of a tunnel's header.
fn twice_in_a_level(before: &[Item]) -> bool {
    let level = before.rsplit(|item| item.kind() == ItemKind::Vxlan).next().unwrap_or_default();
    level.iter().any(|item| item.kind() == ItemKind::Vlan)
}

/// Why a rule has one of decap and encap: the driver of 22.11 has room for one, and takes some rules with two all the same.
pub const ONE_HEADER: &str = "a rule takes one header off, or puts one in front, not both";

/// Counts share a place with ages, and fields with each other, where the first of them is; of all else there is one.
fn check_actions(actions: &[Action]) -> Result<(), FlowError> {
    let moves_header =
        |(_, action): &(usize, &Action)| matches!(stage(action), Some(Stage::Decap | Stage::Encap));
    if let Some((second, _)) = actions.iter().enumerate().filter(moves_header).nth(1) {
        return refuse(Where::Action(second), ONE_HEADER);
    }
    let mut reached: Option<Stage> = None;
    for (index, action) in actions.iter().enumerate() {
        let (at, before) = (Where::Action(index), &actions[..index]);
        let Some(stage) = stage(action) else {
            return refuse(at, format!("{} is no action of the e-switch", action.name()));
        };
        let same = |other: &Action| std::mem::discriminant(other) == std::mem::discriminant(action);
        if matches!(action, Action::Count | Action::Age { .. }) && before.iter().any(same) {
            return refuse(at, format!("{} is there twice", action.name()));
        }
        if let Action::ModifyField(Modify::Tag { index, .. }) = action
            && u128::from(*index) >= REGISTERS
        {
            return refuse(at, format!("tag registers are 0 to {}", REGISTERS - 1));
        }
        let shares = matches!(stage, Stage::Count | Stage::Modify);
        if shares && before.iter().any(|other| self::stage(other) == Some(stage)) {
            continue;
        }
        match reached {
            Some(last) if stage == last && stage == Stage::Fate => {
                return refuse(Where::ActionNum, ONE_WAY);
            }
            Some(last) if stage == last => return refuse(at, format!("{} is there twice", action.name())),
            Some(last) if stage < last => {
                let words = format!(
                    "{} comes too late: the order is decap, count and age, meter, modify_field, encap, way out",
                    action.name()
                );
                return refuse(at, words);
            }
            _ => reached = Some(stage),
        }
    }
    Ok(())
}
