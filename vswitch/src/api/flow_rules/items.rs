//! Items of rules, and the messages that say them.

use std::net::{Ipv4Addr, Ipv6Addr};

use rules::{Field, Format, Item, ItemKind, items};
use vswitch_api::v1::flow_item::{self, Address, Item as Message, Number};
use wire::MacAddr;

use crate::api::refusal::Problem;

/// What a field of an item must be.
struct Wanted {
    spec: u128,
    last: Option<u128>,
    /// None: all bits.
    mask: Option<u128>,
}

/// A message that says what a field must be.
trait Value: Sized {
    fn made(field: Field, wanted: &Wanted) -> Self;

    fn read(&self, field: Field) -> Result<Wanted, Problem>;

    /// What an item asks of a field; nothing where any value will do.
    fn of(item: &Item, field: Field) -> Option<Self> {
        let (spec, mask) = item.field(field);
        let wanted = Wanted { spec, last: item.upper(field), mask: (mask != field.ones()).then_some(mask) };
        (mask != 0).then(|| Self::made(field, &wanted))
    }
}

impl Value for Number {
    fn made(_: Field, wanted: &Wanted) -> Self {
        let number = |value: u128| value as u32;
        Self { spec: number(wanted.spec), last: wanted.last.map(number), mask: wanted.mask.map(number) }
    }

    fn read(&self, field: Field) -> Result<Wanted, Problem> {
        let number = |of: &str, value: u32| match u128::from(value) {
            value if value <= field.ones() => Ok(value),
            value => {
                let message =
                    format!("{value} is over its {} bits; give at most {}", field.bits, field.ones());
                Err(Problem::invalid(of, message))
            }
        };
        let maybe = |of: &str, value: Option<u32>| value.map(|value| number(of, value)).transpose();
        Ok(Wanted {
            spec: number("spec", self.spec)?,
            last: maybe("last", self.last)?,
            mask: maybe("mask", self.mask)?,
        })
    }
}

impl Value for Address {
    fn made(field: Field, wanted: &Wanted) -> Self {
        let text = |value: u128| match field.format {
            Format::Ipv4 => Ipv4Addr::from(value as u32).to_string(),
            Format::Ipv6 => Ipv6Addr::from(value).to_string(),
            _ => {
                let [_, _, mac @ ..] = (value as u64).to_be_bytes();
                MacAddr(mac).to_string()
            }
        };
        Self { spec: text(wanted.spec), last: wanted.last.map(text), mask: wanted.mask.map(text) }
    }

    fn read(&self, field: Field) -> Result<Wanted, Problem> {
        let number = |of: &str, text: &String| {
            let (value, what) = match field.format {
                Format::Ipv4 => {
                    (text.parse::<Ipv4Addr>().ok().map(|ip| u32::from(ip).into()), "an IPv4 address")
                }
                Format::Ipv6 => (text.parse::<Ipv6Addr>().ok().map(u128::from), "an IPv6 address"),
                _ => (mac(text), "a MAC address"),
            };
            value.ok_or_else(|| {
                Problem::invalid(
                    of,
                    format!("{} is not {what}; write one", crate::config::error::quote(text)),
                )
            })
        };
        let maybe = |of: &str, text: &Option<String>| text.as_ref().map(|text| number(of, text)).transpose();
        Ok(Wanted {
            spec: number("spec", &self.spec)?,
            last: maybe("last", &self.last)?,
            mask: maybe("mask", &self.mask)?,
        })
    }
}

fn mac(text: &str) -> Option<u128> {
    let MacAddr(bytes) = text.parse().ok()?;
    Some(bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// An item while its fields are read.
struct Parts {
    kind: ItemKind,
    spec: Vec<u8>,
    mask: Vec<u8>,
    last: Vec<u8>,
    is_range: bool,
}

impl Parts {
    fn new(kind: ItemKind) -> Self {
        let empty = || vec![0; kind.size()];
        Self { kind, spec: empty(), mask: empty(), last: empty(), is_range: false }
    }

    fn set<V: Value>(&mut self, field: Field, value: Option<&V>) -> Result<(), Problem> {
        let Some(value) = value else { return Ok(()) };
        let within = |problem: Problem| problem.within(field.name).within(self.kind.name());
        let Wanted { spec, last, mask } = value.read(field).map_err(within)?;
        let mask = mask.unwrap_or(field.ones());
        if let Some(last) = last
            && last & mask < spec & mask
        {
            let message =
                "the end of the range is before its beginning, which is `spec`; give one behind it".into();
            return Err(within(Problem::invalid("last", message)));
        }
        field.set(&mut self.spec, spec);
        field.set(&mut self.mask, mask);
        field.set(&mut self.last, last.unwrap_or(spec));
        self.is_range |= last.is_some();
        Ok(())
    }

    fn item(&self) -> Result<Item, Problem> {
        let last = self.is_range.then_some(&self.last[..]);
        let item = Item::from_bytes(self.kind, &self.spec, &self.mask, last);
        item.ok_or_else(|| {
            Problem::invalid(self.kind.name(), "it cannot be matched like that; leave parts of it out".into())
        })
    }
}

macro_rules! items {
    ($($message:ident $kind:ident $module:ident { $($field:ident $constant:ident,)* })*) => {
        /// The message that says an item.
        pub(super) fn message(item: &Item) -> Message {
            match item.kind() {
                $(ItemKind::$kind => Message::$message(flow_item::$message {
                    $($field: Value::of(item, items::$module::$constant),)*
                }),)*
            }
        }

        /// The item that a message says.
        pub(super) fn item(message: &Message) -> Result<Item, Problem> {
            match message {
                $(Message::$message(fields) => {
                    let mut parts = Parts::new(ItemKind::$kind);
                    $(parts.set(items::$module::$constant, fields.$field.as_ref())?;)*
                    parts.item()
                })*
            }
        }
    };
}

items! {
    Eth Eth eth { dst DST, src SRC, r#type TYPE, has_vlan HAS_VLAN, }
    Vlan Vlan vlan { pcp PCP, dei DEI, vid VID, inner_type INNER_TYPE, has_more_vlan HAS_MORE_VLAN, }
    Ipv4 Ipv4 ipv4 {
        version_ihl VERSION_IHL, tos TOS, fragment_offset FRAGMENT_OFFSET, ttl TTL, proto PROTO, src SRC, dst DST,
    }
    Ipv6 Ipv6 ipv6 { tc TC, flow FLOW, proto PROTO, hop HOP, src SRC, dst DST, has_frag_ext HAS_FRAG_EXT, }
    Udp Udp udp { src SRC, dst DST, }
    Tcp Tcp tcp { src SRC, dst DST, flags FLAGS, }
    Vxlan Vxlan vxlan { vni VNI, }
    IbBth IbBth ib_bth { opcode OPCODE, pkey PKEY, dst_qp DST_QP, }
    RepresentedPort RepresentedPort represented_port { ethdev_port_id ETHDEV_PORT_ID, }
    PortId PortId port_id { id ID, }
    Meter MeterColor meter_color { color COLOR, }
    Tag Tag tag { data DATA, index INDEX, }
    Mark Mark mark { id ID, }
}
