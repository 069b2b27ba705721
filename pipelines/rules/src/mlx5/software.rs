//! What the software steering of mlx5 refuses (`dv_flow_en=1`): which layers follow each other, which fields of them are matched,
//! and which actions a rule may have, in which order.
//!
//! The driver judges a rule without asking which NIC it is for, and knows no limit of what fits a match: rdma-core finds room in
//! the hardware's formats afterwards, or does not, which nobody has asked (unconfirmed on hardware).

use super::{
    BTH_IN_ROOT, NO_MARK, NO_RANGES, ONE_HEADER, ONE_WAY, PART_OF_BTH, PART_OF_PROTOCOL, REGISTERS,
    VXLAN_IN_VXLAN, refuse,
};
use crate::items::{eth, ib_bth, ipv4, ipv6, port_id, represented_port, tag, udp, vlan};
use crate::{Action, Field, FlowError, FlowRule, Item, ItemKind, Modify, Where};
use wire::ethernet::ethertype;
use wire::protocol;

/// The last priority of a group; two less than the driver's guide says.
const LAST_PRIORITY: u32 = 21_843;

/// Words of 32 bits that a rule writes at most, a meter's one among them.
const WRITTEN_WORDS: u32 = 32;

/// Actions of a rule at most, all `modify_field` together as one.
const ACTIONS: usize = 8;

const MARKS: u32 = 0xff_fff0;

/// Next headers of IPv6 that are extensions: those are matched by items of their own.
const EXTENSIONS: [u128; 6] = [0, 43, 44, 50, 51, 60];
/// IP behind IP is a tunnel to the driver, with items of its own kind.
const IN_IP: [u128; 2] = [4, 41];

/// Where the driver knows BTH behind UDP.
const ROCE_PORT: u128 = 4791;

/// Whether the driver takes a transfer rule.
pub(super) fn check(rule: &FlowRule) -> Result<(), FlowError> {
    if rule.attr.priority > LAST_PRIORITY {
        return refuse(Where::AttrPriority, format!("priorities end at {LAST_PRIORITY}"));
    }
    let mut before = Before::default();
    for (index, item) in rule.pattern.iter().enumerate() {
        check_item(rule, &mut before, index, item)?;
    }
    check_actions(rule)
}

/// Headers outside or inside of a tunnel that were in the pattern so far.
#[derive(Clone, Copy, Default)]
struct Level {
    eth: bool,
    vlan: bool,
    ip: bool,
    udp: bool,
    tcp: bool,
}

/// What the items before said.
#[derive(Default)]
struct Before {
    levels: [Level; 2],
    /// Behind a VxLAN header.
    inside: bool,
    /// Of an Ethernet or VLAN item right in front, where that says so.
    ether_type: Option<u128>,
    /// Of the last IP header, where that says so; the driver takes 255 for none.
    protocol: Option<u128>,
    /// Where the last UDP header with any field goes, 0 for anywhere.
    udp_port: u128,
    registers: u32,
    represented_port: bool,
    port_id: bool,
}

impl Before {
    fn level(&mut self) -> &mut Level {
        &mut self.levels[usize::from(self.inside)]
    }
}

fn check_item(rule: &FlowRule, before: &mut Before, index: usize, item: &Item) -> Result<(), FlowError> {
    let at = Where::Item(index);
    if item.last().is_some() {
        return refuse(Where::ItemLast(index), NO_RANGES);
    }
    let ether_type = before.ether_type.take();
    let wrong = |words: &str| refuse(at, format!("{} {words}", item.kind().name()));
    match item.kind() {
        ItemKind::Eth | ItemKind::Vlan => layer2(before, at, item),
        ItemKind::Ipv4 | ItemKind::Ipv6 => layer3(before, index, item, ether_type),
        ItemKind::Udp | ItemKind::Tcp => layer4(before, at, item),
        ItemKind::Vxlan if before.inside => refuse(at, VXLAN_IN_VXLAN),
        ItemKind::Vxlan if !before.level().udp => wrong("needs a UDP header in front of it"),
        ItemKind::Vxlan => {
            before.inside = true;
            Ok(())
        }
        ItemKind::IbBth if rule.attr.group == 0 => refuse(at, BTH_IN_ROOT),
        ItemKind::IbBth if ![0, ROCE_PORT].contains(&before.udp_port) => {
            wrong("stands behind another UDP port")
        }
        ItemKind::IbBth if item.field(ib_bth::PKEY).1 != 0 => refuse(at, PART_OF_BTH),
        ItemKind::IbBth => Ok(()),
        _ => metadata(before, at, item),
    }
}

fn layer2(before: &mut Before, at: Where, item: &Item) -> Result<(), FlowError> {
    let level = before.level();
    let is_tag = item.kind() == ItemKind::Vlan;
    let name = item.kind().name();
    if if is_tag { level.vlan } else { level.eth } {
        return refuse(at, format!("{name} is there twice"));
    }
    if level.ip || level.udp || level.tcp || !is_tag && level.vlan {
        return refuse(at, format!("{name} comes too late"));
    }
    if is_tag {
        level.vlan = true;
        before.ether_type = known(item, vlan::INNER_TYPE);
    } else {
        level.eth = true;
        before.ether_type = known(item, eth::TYPE);
    }
    Ok(())
}

fn layer3(before: &mut Before, index: usize, item: &Item, ether_type: Option<u128>) -> Result<(), FlowError> {
    let at = Where::Item(index);
    let name = item.kind().name();
    let level = before.level();
    if level.ip {
        return refuse(at, "there are two IP headers");
    }
    if level.udp || level.tcp {
        return refuse(at, format!("{name} comes too late"));
    }
    level.ip = true;
    let (wanted, number) = match item.kind() {
        ItemKind::Ipv4 => (ethertype::IPV4, ipv4::PROTO),
        _ => (ethertype::IPV6, ipv6::PROTO),
    };
    if ether_type.is_some_and(|ether_type| ![0, u128::from(wanted)].contains(&ether_type)) {
        return refuse(at, format!("{name} stands behind another EtherType"));
    }
    if item.kind() == ItemKind::Ipv4 { fields_of_ipv4(index, item) } else { fields_of_ipv6(at, item) }?;
    let protocol = known(item, number);
    if !before.inside && protocol.is_some_and(|protocol| IN_IP.contains(&protocol)) {
        return refuse(at, "IP within IP is not matched");
    }
    before.protocol = protocol.filter(|protocol| *protocol != 0xff);
    Ok(())
}

fn fields_of_ipv4(index: usize, item: &Item) -> Result<(), FlowError> {
    let mask = |field: Field| item.field(field).1;
    if mask(ipv4::PROTO) != 0 && mask(ipv4::PROTO) != ipv4::PROTO.ones() {
        return refuse(Where::ItemMask(index), PART_OF_PROTOCOL);
    }
    // Version alone: the driver's own mask has it only beside the header's length.
    if mask(ipv4::VERSION_IHL) != 0 && mask(ipv4::VERSION_IHL) & 0xf == 0 {
        return refuse(Where::ItemMask(index), "the version is matched with the header's length only");
    }
    if item.field(ipv4::FRAGMENT_OFFSET).0 != 0 {
        return refuse(Where::Item(index), "one fragment is not told from another");
    }
    Ok(())
}

fn fields_of_ipv6(at: Where, item: &Item) -> Result<(), FlowError> {
    let (number, mask) = item.field(ipv6::PROTO);
    if mask == ipv6::PROTO.ones() && EXTENSIONS.contains(&number) {
        return refuse(at, "an extension header is no protocol number");
    }
    Ok(())
}

fn layer4(before: &mut Before, at: Where, item: &Item) -> Result<(), FlowError> {
    let is_udp = item.kind() == ItemKind::Udp;
    let wrong = |words: &str| refuse(at, format!("{} {words}", item.kind().name()));
    let wanted = if is_udp { protocol::UDP } else { protocol::TCP };
    if before.protocol.is_some_and(|protocol| protocol != u128::from(wanted)) {
        return wrong("stands behind another protocol number");
    }
    let level = before.level();
    if !level.ip {
        return wrong("needs an IP header in front of it");
    }
    if level.udp || level.tcp {
        return refuse(at, "there are two headers of layer 4");
    }
    level.udp = is_udp;
    level.tcp = !is_udp;
    if is_udp && !item.is_any() {
        before.udp_port = item.field(udp::DST).0;
    }
    Ok(())
}

/// Ports, registers, colours: what is no header.
fn metadata(before: &mut Before, at: Where, item: &Item) -> Result<(), FlowError> {
    let wrong = |words: &str| refuse(at, format!("{} {words}", item.kind().name()));
    match item.kind() {
        ItemKind::RepresentedPort | ItemKind::PortId => {
            let (field, there) = match item.kind() {
                ItemKind::PortId => (port_id::ID, &mut before.port_id),
                _ => (represented_port::ETHDEV_PORT_ID, &mut before.represented_port),
            };
            if std::mem::replace(there, true) {
                return wrong("is there twice");
            }
            if !item.is_any() && item.field(field).1 != field.ones() {
                return wrong("is matched as a whole only");
            }
            Ok(())
        }
        ItemKind::MeterColor if item.is_any() => wrong("is matched with a value only"),
        ItemKind::Tag => {
            let (register, whole) = item.field(tag::INDEX);
            if item.field(tag::DATA).1 == 0 || whole != tag::INDEX.ones() {
                return wrong("is matched with a value and a register only");
            }
            if register >= REGISTERS {
                return refuse(at, format!("tag registers are 0 to {}", REGISTERS - 1));
            }
            if before.registers & 1 << register != 0 {
                return refuse(at, "a register is matched twice");
            }
            before.registers |= 1 << register;
            Ok(())
        }
        ItemKind::Mark => refuse(at, NO_MARK),
        _ => Ok(()),
    }
}

/// What a field is to be, where the item says so: bits that do not count are 0.
fn known(item: &Item, field: Field) -> Option<u128> {
    let (value, mask) = item.field(field);
    (mask != 0).then_some(value)
}

fn check_actions(rule: &FlowRule) -> Result<(), FlowError> {
    let actions = &rule.actions;
    let decaps = rule.pattern.iter().any(|item| item.kind() == ItemKind::Vxlan);
    let mut written = 0;
    for (index, action) in actions.iter().enumerate() {
        let (at, before) = (Where::Action(index), &actions[..index]);
        let name = action.name();
        let is_written = |action: &Action| matches!(action, Action::ModifyField(_));
        let writes = usize::from(before.iter().any(is_written));
        if before.iter().filter(|action| !is_written(action)).count() + writes >= ACTIONS {
            return refuse(Where::ActionNum, format!("a rule has {ACTIONS} actions at most"));
        }
        let there = |is: fn(&Action) -> bool| before.iter().any(is);
        let twice =
            before.iter().any(|other| std::mem::discriminant(other) == std::mem::discriminant(action));
        match action {
            Action::VxlanDecap | Action::RawEncap(_) if there(moves_header) => {
                return refuse(at, ONE_HEADER);
            }
            Action::VxlanDecap if !decaps => {
                return refuse(at, "vxlan_decap needs a VxLAN header in the pattern");
            }
            Action::VxlanDecap if there(|action| matches!(action, Action::ModifyField(_))) => {
                return refuse(at, "vxlan_decap comes too late: fields are written behind it");
            }
            Action::ModifyField(_) if there(|action| matches!(action, Action::RawEncap(_))) => {
                return refuse(at, "modify_field comes too late: headers are put in front behind it");
            }
            Action::ModifyField(Modify::Tag { index, .. }) if u128::from(*index) >= REGISTERS => {
                return refuse(at, format!("tag registers are 0 to {}", REGISTERS - 1));
            }
            Action::ModifyField(modify) => written += modify.target().width().div_ceil(32),
            Action::Count | Action::Age { .. } | Action::Meter { .. } | Action::Mark { .. } if twice => {
                return refuse(at, format!("{name} is there twice"));
            }
            Action::Age { timeout: 0 } => return refuse(at, "age needs a time"),
            Action::Meter { .. } if there(|action| matches!(action, Action::Jump { .. })) => {
                return refuse(at, "meter comes too late: the way out is behind it");
            }
            Action::Meter { .. } => written += 1,
            Action::Jump { .. } | Action::RepresentedPort { .. } | Action::PortId { .. }
                if there(Action::is_fate) =>
            {
                return refuse(Where::ActionNum, ONE_WAY);
            }
            Action::Mark { id } if *id >= MARKS => {
                return refuse(Where::ActionConf(index), format!("marks end at {}", MARKS - 1));
            }
            Action::PortRepresentor { .. } | Action::Queue { .. } => {
                return refuse(at, format!("{name} is no action of the e-switch"));
            }
            _ => {}
        }
    }
    let has = |is: fn(&Action) -> bool| actions.iter().any(is);
    if has(|action| *action == Action::Drop)
        && !actions.iter().all(|action| matches!(action, Action::Drop | Action::Count | Action::Age { .. }))
    {
        return refuse(Where::ActionNum, "what is dropped is counted and aged, and nothing else");
    }
    if !has(Action::is_fate) {
        return refuse(Where::ActionNum, "no action says where packets go");
    }
    // One object of the hardware for each of them, unless a counter says when the rule was met last.
    let aged_alone = has(|action| matches!(action, Action::Age { .. })) && !actions.contains(&Action::Count);
    if aged_alone && has(|action| matches!(action, Action::Meter { .. })) {
        return refuse(Where::ActionNum, "age beside a meter needs a count");
    }
    if written > WRITTEN_WORDS {
        return refuse(Where::ActionNum, format!("a rule writes {WRITTEN_WORDS} words at most"));
    }
    Ok(())
}

const fn moves_header(action: &Action) -> bool {
    matches!(action, Action::VxlanDecap | Action::RawEncap(_))
}
