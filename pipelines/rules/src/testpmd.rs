//! Rules as testpmd writes them, read: the counterpart of [`FlowRule`]'s printing.
//!
//! `[group N] [priority N] ingress|egress|transfer pattern ITEM / ... / end actions ACTION / ... / end`. A field of an item
//! `is` a value, or has a `spec` with a `mask` (or `prefix`) and perhaps a `last`. Everything that can be printed can be
//! read; names of items, fields and actions are the rule model's.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::{FromStr, SplitWhitespace};

use wire::MacAddr;

use crate::modify::{ModifyOp, Target};
use crate::{Action, Attr, Domain, Encap, Field, FlowRule, Format, Item, ItemKind, Modify, items};

/// Headers that `raw_encap index N` puts in front.
pub type Encaps = BTreeMap<u16, Encap>;

/// The words of a rule.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self, wanted: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("the rule ends where {wanted} should be"))
    }

    fn number<N: FromStr>(&mut self, of: &str) -> Result<N, String> {
        let word = self.next(&format!("the number of {of:?}"))?;
        word.parse().map_err(|_| format!("{word:?} is no number for {of:?}"))
    }

    /// What is between two slashes, up to `end` in that place.
    fn parts(&mut self, of: &str, end: &str) -> Result<Vec<Vec<&'a str>>, String> {
        let mut parts = Vec::new();
        loop {
            let mut part = Vec::new();
            loop {
                match self.next(&format!("\"/\" or \"{end}\" of the {of}"))? {
                    "/" => break,
                    word if word == end && part.is_empty() => return Ok(parts),
                    word => part.push(word),
                }
            }
            if part.is_empty() {
                return Err(format!("an empty place in the {of}, between two slashes"));
            }
            parts.push(part);
        }
    }
}

/// The rule that `text` describes: what testpmd's `flow create` takes behind the port.
///
/// # Errors
/// What is wrong with the text, and what may be written there.
pub fn rule(text: &str, encaps: &Encaps) -> Result<FlowRule, String> {
    let mut words = Words(text.split_whitespace());
    let (mut group, mut priority, mut domain) = (0, 0, None);
    loop {
        match words.next("\"pattern\"")? {
            "group" => group = words.number("group")?,
            "priority" => priority = words.number("priority")?,
            "ingress" => domain = Some(Domain::Ingress),
            "egress" => domain = Some(Domain::Egress),
            "transfer" => domain = Some(Domain::Transfer),
            "pattern" => break,
            word => {
                return Err(unknown(word, ["group", "priority", "ingress", "egress", "transfer", "pattern"]));
            }
        }
    }
    let domain = domain.ok_or("a rule is one of ingress, egress, transfer: write it before \"pattern\"")?;
    let pattern =
        words.parts("pattern", "end")?.into_iter().map(|part| item(&part)).collect::<Result<_, _>>()?;
    match words.next("\"actions\"")? {
        "actions" => {}
        word => return Err(unknown(word, ["actions"])),
    }
    let actions = words.parts("actions", "end")?;
    let actions = actions.into_iter().map(|part| action(&part, encaps)).collect::<Result<_, _>>()?;
    match words.0.next() {
        None => Ok(FlowRule { attr: Attr { group, priority, domain }, pattern, actions }),
        Some(word) => Err(format!("{word:?} behind the end of the rule")),
    }
}

/// The header that `text` describes: items up to `end_set`, whose fields are the header's.
///
/// # Errors
/// What is wrong with the text, or why its bytes are no header to encapsulate with.
pub fn encap(text: &str) -> Result<Encap, String> {
    let mut words = Words(text.split_whitespace());
    let mut bytes = Vec::new();
    for part in words.parts("header", "end_set")? {
        let item = item(&part)?;
        let flags = [items::eth::HAS_VLAN, items::vlan::HAS_MORE_VLAN, items::ipv6::HAS_FRAG_EXT];
        let flagged = flags.iter().any(|flag| flag.kind == item.kind());
        let from = bytes.len();
        bytes.extend_from_slice(&item.spec()[..item.kind().size() - usize::from(flagged)]);
        // As testpmd fills them in.
        match item.kind() {
            ItemKind::Ipv4 => items::ipv4::VERSION_IHL.set(&mut bytes[from..], 0x45),
            ItemKind::Ipv6 => bytes[from] |= 0x60,
            _ => {}
        }
    }
    Encap::new(&bytes).map_err(|error| error.to_string())
}

/// The rules of commands as [`FlowRule::testpmd`] writes them, one a line: `set raw_encap N ...`, `flow create PORT ...`.
/// Lines that begin with `#` say nothing.
///
/// # Errors
/// The number of the line, from 1, and what is wrong with it.
pub fn commands(text: &str) -> Result<Vec<FlowRule>, String> {
    let (mut encaps, mut rules) = (Encaps::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let wrong = |message| format!("line {}: {message}", number + 1);
        let index = |text: &str| text.parse().map_err(|_| wrong(format!("{text:?} is no number")));
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["set", "raw_encap", number, ..] => {
                let header = line.split_once(number).map_or("", |(_, header)| header);
                encaps.insert(index(number)?, encap(header).map_err(wrong)?);
            }
            ["flow", "create" | "validate", port, ..] => {
                index(port)?;
                let text = line.split_once(port).map_or("", |(_, text)| text);
                rules.push(rule(text, &encaps).map_err(wrong)?);
            }
            _ => return Err(wrong("neither `set raw_encap N ...` nor `flow create PORT ...`".to_owned())),
        }
    }
    Ok(rules)
}

fn unknown<T: Display>(word: &str, known: impl IntoIterator<Item = T>) -> String {
    let known: Vec<String> = known.into_iter().map(|word| word.to_string()).collect();
    format!("{word:?} is none of {}", known.join(", "))
}

fn item(part: &[&str]) -> Result<Item, String> {
    let (name, mut rest) = part.split_first().ok_or("an item without a name")?;
    let kind = ItemKind::ALL.iter().copied().find(|kind| kind.name() == *name);
    let kind = kind.ok_or_else(|| unknown(name, ItemKind::ALL.iter().map(|kind| kind.name())))?;
    let empty = || vec![0; kind.size()];
    let (mut spec, mut mask, mut last, mut ranged) = (empty(), empty(), empty(), false);
    let mut given = Vec::new();
    while let [name, how, value, more @ ..] = rest {
        let field = kind.fields().iter().find(|field| field.name == *name);
        let field = *field.ok_or_else(|| unknown(name, kind.fields().iter().map(|field| field.name)))?;
        match *how {
            "is" => {
                let value = number(field, value, false)?;
                field.set(&mut spec, value);
                field.set(&mut last, value);
                field.set(&mut mask, field.ones());
            }
            "spec" => {
                let value = number(field, value, false)?;
                field.set(&mut spec, value);
                given.push(field);
            }
            "last" => {
                field.set(&mut last, number(field, value, false)?);
                ranged = true;
            }
            "mask" => field.set(&mut mask, number(field, value, true)?),
            "prefix" => {
                let bits = value.parse::<u32>().ok().filter(|bits| *bits <= u32::from(field.bits));
                let bits = bits.ok_or_else(|| format!("{value:?} is no prefix of {} bits", field.bits))?;
                let host = u32::from(field.bits) - bits;
                field.set(&mut mask, field.ones().checked_shr(host).map_or(0, |ones| ones << host));
            }
            word => return Err(unknown(word, ["is", "spec", "last", "mask", "prefix"])),
        }
        rest = more;
    }
    if let [word, ..] = rest {
        return Err(format!("{word:?} of {name} has no value; write for example `{name} {word} is 1`"));
    }
    if let Some(field) = given.iter().find(|field| field.get(&mask) == 0) {
        // testpmd takes a default of its own then.
        if field.get(&spec) != 0 {
            return Err(format!("{} of {name} has a spec and no mask; write both, or `is`", field.name));
        }
    }
    let item = Item::from_bytes(kind, &spec, &mask, ranged.then_some(&last[..]));
    item.ok_or_else(|| format!("{name} cannot be matched like that"))
}

/// A value of a field, as it is written there.
fn number(field: Field, text: &str, is_mask: bool) -> Result<u128, String> {
    let wanted = match field.format {
        Format::Mac => "a MAC address",
        Format::Ipv4 => "an IPv4 address",
        Format::Ipv6 => "an IPv6 address",
        Format::Colour if !is_mask => "green, yellow or red",
        Format::Colour | Format::Number | Format::Hex => "a number",
    };
    let plain = || match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let value = match field.format {
        Format::Mac => {
            mac(text).map(|MacAddr(mac)| mac.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
        }
        Format::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|ip| u32::from(ip).into()),
        Format::Ipv6 => text.parse::<Ipv6Addr>().ok().map(u128::from),
        Format::Colour if !is_mask => {
            ["green", "yellow", "red"].iter().position(|colour| *colour == text).map(|colour| colour as u128)
        }
        Format::Colour | Format::Number | Format::Hex => plain(),
    };
    let value = value.filter(|value| *value <= field.ones());
    value.ok_or_else(|| format!("{text:?} is not {wanted} of {} bits, as {} is", field.bits, field.name))
}

fn mac(text: &str) -> Option<MacAddr> {
    text.parse().ok()
}

/// The values of an action: `name value` pairs.
struct Values<'a>(&'a [&'a str]);

impl Values<'_> {
    fn get(&self, name: &str) -> Result<&str, String> {
        let pair = self.0.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
        pair.copied().ok_or_else(|| format!("{} is missing: write `{name} VALUE`", name))
    }

    fn number<N: TryFrom<u64>>(&self, name: &str) -> Result<N, String> {
        let text = self.get(name)?;
        let value = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let value = value.and_then(|value| N::try_from(value).ok());
        value.ok_or_else(|| format!("{text:?} is no number that {name} takes"))
    }

    /// All names must be among those that the action knows.
    fn only(&self, known: &[&str]) -> Result<(), String> {
        let names = self.0.chunks(2).map(|pair| pair[0]);
        match names.into_iter().find(|name| !known.contains(name)) {
            Some(name) if known.is_empty() => {
                Err(format!("{name:?} does not fit: this action takes nothing"))
            }
            Some(name) => Err(unknown(name, known)),
            None => Ok(()),
        }
    }
}

fn action(part: &[&str], encaps: &Encaps) -> Result<Action, String> {
    let (name, rest) = part.split_first().ok_or("an action without a name")?;
    let values = Values(rest);
    let read = || -> Result<Action, String> {
        let takes = |known: &[&str]| values.only(known);
        Ok(match *name {
            "vxlan_decap" => takes(&[]).map(|()| Action::VxlanDecap)?,
            "count" => takes(&[]).map(|()| Action::Count)?,
            "drop" => takes(&[]).map(|()| Action::Drop)?,
            "raw_encap" => {
                takes(&["index"])?;
                let index = values.number("index")?;
                let header = encaps.get(&index);
                let message = || format!("there is no header {index}: `set raw_encap {index} ...` first");
                Action::RawEncap(*header.ok_or_else(message)?)
            }
            "age" => {
                takes(&["timeout"])?;
                let timeout = values.number("timeout")?;
                if timeout >= 1 << 24 {
                    return Err(format!("{timeout} s are over the 24 bits of an age"));
                }
                Action::Age { timeout }
            }
            "jump" => takes(&["group"]).and_then(|()| Ok(Action::Jump { group: values.number("group")? }))?,
            "meter" => {
                takes(&["mtr_id"]).and_then(|()| Ok(Action::Meter { mtr_id: values.number("mtr_id")? }))?
            }
            "modify_field" => Action::ModifyField(modify(&values)?),
            "mark" => takes(&["id"]).and_then(|()| Ok(Action::Mark { id: values.number("id")? }))?,
            "represented_port" => {
                takes(&["ethdev_port_id"])?;
                Action::RepresentedPort { port: values.number("ethdev_port_id")? }
            }
            "port_representor" => {
                takes(&["port_id"])?;
                Action::PortRepresentor { port: values.number("port_id")? }
            }
            "port_id" => takes(&["id"]).and_then(|()| Ok(Action::PortId { id: values.number("id")? }))?,
            "queue" => {
                takes(&["index"]).and_then(|()| Ok(Action::Queue { index: values.number("index")? }))?
            }
            word => return Err(unknown(word, ACTIONS)),
        })
    };
    read().map_err(|message| format!("action {name}: {message}"))
}

const ACTIONS: [&str; 13] = [
    "vxlan_decap",
    "raw_encap",
    "count",
    "age",
    "jump",
    "meter",
    "modify_field",
    "mark",
    "represented_port",
    "port_representor",
    "port_id",
    "queue",
    "drop",
];

/// `op set dst_type ipv4_ecn src_type value src_value 03 width 2`; `dst_level` is the number of a tag register.
fn modify(values: &Values<'_>) -> Result<Modify, String> {
    values.only(&["op", "dst_type", "dst_level", "src_type", "src_value", "width"])?;
    let operation = match values.get("op")? {
        "set" => ModifyOp::Set,
        "add" => ModifyOp::Add,
        word => return Err(unknown(word, ["set", "add"])),
    };
    let name = values.get("dst_type")?;
    let target = Target::ALL.into_iter().find(|target| target.name() == name);
    let target = target.ok_or_else(|| unknown(name, Target::ALL.map(Target::name)))?;
    let index = if target == Target::Tag { values.number("dst_level")? } else { 0 };
    for (name, only) in [("src_type", "value".to_owned()), ("width", target.width().to_string())] {
        let word = values.get(name)?;
        if word != only {
            return Err(format!("{name} of {} can be {only} only, not {word:?}", target.name()));
        }
    }
    let text = values.get("src_value")?;
    let value =
        bytes(text).ok_or_else(|| format!("{text:?} is no value: write up to 16 bytes in hexadecimal"))?;
    Modify::of(operation, target, index, value).ok_or_else(|| {
        format!("this value is not written to {}: TTLs have ff added, ECN is 00 to 03", target.name())
    })
}

/// Hexadecimal digits as bytes, zeroes behind.
fn bytes(text: &str) -> Option<[u8; 16]> {
    let mut value = [0; 16];
    if !text.len().is_multiple_of(2) || text.is_empty() {
        return None;
    }
    for (at, pair) in text.as_bytes().chunks(2).enumerate() {
        *value.get_mut(at)? = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use wire::Ecn;

    /// Reads what testpmd would be told; returns how many rules there were.
    fn reads_what_it_prints(text: &str) -> usize {
        let rules = commands(text).unwrap();
        let printed: String = rules.iter().map(|rule| rule.testpmd(0)).collect();
        let lines: String =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        assert_eq!(printed, lines);
        rules.len()
    }

    #[test]
    fn every_golden_chain_is_read_as_it_is_printed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/offload/golden");
        let files = std::fs::read_dir(folder).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let count: usize = texts.map(|text| reads_what_it_prints(&text)).sum();
        assert!(count > 100, "{count} rules");
    }

    #[test]
    fn every_field_and_action_is_read_as_it_is_printed() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut actions = vec![
            Action::VxlanDecap,
            Action::Count,
            Action::Age { timeout: 0xff_ffff },
            Action::Jump { group: u32::MAX },
            Action::Meter { mtr_id: 9 },
            Action::set_tag(1, 0x8000_0005),
            Action::Mark { id: u32::MAX },
            Action::ModifyField(Modify::Ttl { ipv6: false }),
            Action::ModifyField(Modify::Ttl { ipv6: true }),
            Action::ModifyField(Modify::MacSrc(mac)),
            Action::ModifyField(Modify::MacDst(mac)),
            Action::RepresentedPort { port: 3 },
            Action::PortRepresentor { port: 3 },
            Action::PortId { id: 0 },
            Action::Queue { index: 3 },
            Action::Drop,
        ];
        actions.extend(Ecn::ALL.map(|ecn| Action::set_ecn(ecn == Ecn::Ce, ecn)));
        let mut pattern: Vec<Item> = ItemKind::ALL.iter().map(|kind| Item::any(*kind)).collect();
        for field in ItemKind::ALL.iter().flat_map(|kind| kind.fields()) {
            let most = if field.format == Format::Colour { 2 } else { field.ones() };
            pattern.push(Item::with(*field, most));
            // Colours are words: there is no mask of them, and no range.
            if field.format != Format::Colour {
                pattern.push(Item::any(field.kind).masked(*field, 1u8, 1));
            }
            if field.bits > 1 && field.format != Format::Colour {
                pattern.push(Item::any(field.kind).between(*field, 1u8, most));
            }
        }
        for item in &pattern {
            let text = format!("ingress pattern {item} / end actions drop / end");
            assert_eq!(rule(&text, &Encaps::new()).map(|rule| rule.pattern[0]), Ok(*item), "{text}");
        }
        let rule_made =
            FlowRule { attr: Attr { group: 1, priority: 2, domain: Domain::Egress }, pattern, actions };
        assert_eq!(rule(&rule_made.to_string(), &Encaps::new()), Ok(rule_made));
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("ingress eth", "\"eth\" is none of group"),
            ("pattern eth / end actions drop / end", "one of ingress, egress, transfer"),
            ("ingress pattern eth", "ends where \"/\""),
            ("ingress pattern ether / end actions drop / end", "\"ether\" is none of eth, vlan"),
            ("ingress pattern eth / / end actions drop / end", "between two slashes"),
            ("ingress pattern ipv4 dest is 1 / end actions drop / end", "\"dest\" is none of version_ihl"),
            (
                "ingress pattern ipv4 dst is 1.2.3 / end actions drop / end",
                "\"1.2.3\" is not an IPv4 address",
            ),
            (
                "ingress pattern udp dst is 65536 / end actions drop / end",
                "\"65536\" is not a number of 16 bits",
            ),
            ("ingress pattern udp dst spec 5 / end actions drop / end", "a spec and no mask"),
            ("ingress pattern udp dst 5 / end actions drop / end", "of udp has no value"),
            ("ingress pattern udp dst eq 5 / end actions drop / end", "\"eq\" is none of is, spec"),
            ("ingress pattern ipv4 src prefix 33 / end actions drop / end", "no prefix of 32 bits"),
            (
                "ingress pattern eth / end actions dropp / end",
                "action dropp: \"dropp\" is none of vxlan_decap",
            ),
            ("ingress pattern eth / end actions jump / end", "action jump: group is missing"),
            ("ingress pattern eth / end actions queue index 70000 / end", "no number that index takes"),
            ("ingress pattern eth / end actions drop now / end", "takes nothing"),
            ("ingress pattern eth / end actions raw_encap index 1 / end", "`set raw_encap 1 ...` first"),
            ("ingress pattern eth / end actions drop / end end", "behind the end"),
        ];
        for (text, wanted) in cases {
            let error = rule(text, &Encaps::new()).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(encap("eth / ipv4 / end_set").is_err());
        let line = |text| commands(&format!("# a rule\n{text}\n")).unwrap_err();
        assert!(line("flow destroy 0 rule 1").starts_with("line 2: neither"));
        assert!(line("flow create zero ingress pattern end actions end").contains("no number"));
    }

    #[test]
    fn a_prefix_is_a_mask_from_the_top() {
        let text = "ingress pattern ipv4 src spec 10.0.0.0 src prefix 8 / end actions drop / end";
        let read = rule(text, &Encaps::new()).unwrap();
        assert_eq!(
            read.pattern,
            [Item::any(ItemKind::Ipv4).masked(items::ipv4::SRC, 0x0a00_0000u32, 0xff00_0000)]
        );
        for (bits, mask) in [(0, 0), (32, 0xffff_ffff)] {
            let text = format!("ingress pattern ipv4 src prefix {bits} / end actions drop / end");
            let wanted = Item::any(ItemKind::Ipv4).masked(items::ipv4::SRC, 0u8, mask);
            assert_eq!(rule(&text, &Encaps::new()).unwrap().pattern, [wanted]);
        }
    }
}
