//! Actions of rules, and the messages that say them.

use rules::{Action, Encap, Modify};
use vswitch_api::v1::flow_action::modify_field::{Decrement, Tag, Write};
use vswitch_api::v1::flow_action::{self, Action as Message};
use wire::{Ecn, MacAddr};

use crate::api::refusal::Problem;

/// The message that says an action.
pub(super) fn message(action: &Action) -> Message {
    match *action {
        Action::VxlanDecap => Message::VxlanDecap(flow_action::VxlanDecap {}),
        Action::RawEncap(encap) => {
            Message::RawEncap(flow_action::RawEncap { header: encap.bytes().to_vec() })
        }
        Action::Count => Message::Count(flow_action::Count {}),
        Action::Age { timeout } => Message::Age(flow_action::Age { timeout }),
        Action::Jump { group } => Message::Jump(flow_action::Jump { group }),
        Action::Meter { mtr_id } => Message::Meter(flow_action::Meter { mtr_id }),
        Action::ModifyField(modify) => {
            Message::ModifyField(flow_action::ModifyField { write: Some(write(modify)) })
        }
        Action::Mark { id } => Message::Mark(flow_action::Mark { id }),
        Action::RepresentedPort { port } => {
            Message::RepresentedPort(flow_action::RepresentedPort { ethdev_port_id: port.into() })
        }
        Action::PortRepresentor { port } => {
            Message::PortRepresentor(flow_action::PortRepresentor { port_id: port.into() })
        }
        Action::PortId { id } => Message::PortId(flow_action::PortId { id }),
        Action::Queue { index } => Message::Queue(flow_action::Queue { index: index.into() }),
        Action::Drop => Message::Drop(flow_action::Drop {}),
    }
}

fn write(modify: Modify) -> Write {
    match modify {
        Modify::MacDst(mac) => Write::MacDst(mac.to_string()),
        Modify::MacSrc(mac) => Write::MacSrc(mac.to_string()),
        Modify::Ecn { ipv6: false, ecn } => Write::Ipv4Ecn(u32::from(ecn as u8)),
        Modify::Ecn { ipv6: true, ecn } => Write::Ipv6Ecn(u32::from(ecn as u8)),
        Modify::Ttl { ipv6: false } => Write::Ipv4Ttl(Decrement {}),
        Modify::Ttl { ipv6: true } => Write::Ipv6Hoplimit(Decrement {}),
        Modify::Tag { index, data } => Write::Tag(Tag { index: index.into(), data }),
    }
}

/// The action that a message says.
pub(super) fn action(message: &Message) -> Result<Action, Problem> {
    Ok(match message {
        Message::VxlanDecap(_) => Action::VxlanDecap,
        Message::RawEncap(encap) => {
            Action::RawEncap(header(&encap.header, "header").map_err(|problem| problem.within("raw_encap"))?)
        }
        Message::Count(_) => Action::Count,
        Message::Age(age) if age.timeout >= 1 << 24 => {
            let message = format!("{} s are over the 24 bits of an age; give at most 16777215", age.timeout);
            return Err(Problem::invalid("age.timeout", message));
        }
        Message::Age(age) => Action::Age { timeout: age.timeout },
        Message::Jump(jump) => Action::Jump { group: jump.group },
        Message::Meter(meter) => Action::Meter { mtr_id: meter.mtr_id },
        Message::ModifyField(field) => {
            Action::ModifyField(modify(field).map_err(|problem| problem.within("modify_field"))?)
        }
        Message::Mark(mark) => Action::Mark { id: mark.id },
        Message::RepresentedPort(port) => Action::RepresentedPort {
            port: number("represented_port.ethdev_port_id", port.ethdev_port_id, u16::MAX)?,
        },
        Message::PortRepresentor(port) => {
            Action::PortRepresentor { port: number("port_representor.port_id", port.port_id, u16::MAX)? }
        }
        Message::PortId(port) => Action::PortId { id: port.id },
        Message::Queue(queue) => Action::Queue { index: number("queue.index", queue.index, u16::MAX)? },
        Message::Drop(_) => Action::Drop,
    })
}

/// The header of these bytes, which the field `field` has.
pub(super) fn header(bytes: &[u8], field: &str) -> Result<Encap, Problem> {
    Encap::new(bytes).map_err(|error| Problem::invalid(field, error.to_string()))
}

/// A number that has fewer bits than its field has room for.
pub(super) fn number<N: TryFrom<u32> + Into<u32>>(field: &str, value: u32, most: N) -> Result<N, Problem> {
    N::try_from(value).map_err(|_| {
        let most: u32 = most.into();
        Problem::invalid(field, format!("{value} is too large; give at most {most}"))
    })
}

fn modify(field: &flow_action::ModifyField) -> Result<Modify, Problem> {
    let mac = |name: &str, text: &str| {
        let wrong = || {
            format!(
                "{} is not a MAC address; write one such as 52:54:00:00:00:01",
                crate::config::error::quote(text)
            )
        };
        text.parse::<MacAddr>().map_err(|_| Problem::invalid(name, wrong()))
    };
    let ecn = |name: &str, ipv6: bool, value: u32| match u8::try_from(value) {
        Ok(value @ 0..=3) => Ok(Modify::Ecn { ipv6, ecn: Ecn::from_tos(value) }),
        _ => Err(Problem::invalid(name, format!("{value} is no ECN codepoint; give 0 to 3"))),
    };
    match &field.write {
        Some(Write::MacDst(text)) => Ok(Modify::MacDst(mac("mac_dst", text)?)),
        Some(Write::MacSrc(text)) => Ok(Modify::MacSrc(mac("mac_src", text)?)),
        Some(Write::Ipv4Ecn(value)) => ecn("ipv4_ecn", false, *value),
        Some(Write::Ipv6Ecn(value)) => ecn("ipv6_ecn", true, *value),
        Some(Write::Ipv4Ttl(_)) => Ok(Modify::Ttl { ipv6: false }),
        Some(Write::Ipv6Hoplimit(_)) => Ok(Modify::Ttl { ipv6: true }),
        Some(Write::Tag(tag)) => {
            Ok(Modify::Tag { index: number("tag.index", tag.index, u8::MAX)?, data: tag.data })
        }
        None => Err(Problem::invalid("", "it writes nothing; set one of its fields, such as `tag`".into())),
    }
}
