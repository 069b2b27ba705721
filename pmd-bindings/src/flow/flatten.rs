//! Lowered rules as one run of bytes, for a judge in a process of its own (`mlx5-gate`).
//!
//! Written is what DPDK would be handed, structure by structure: what a driver's code says of it there, it says of the
//! rules that this switch gives it.

use std::ptr::NonNull;

use dpdk_sys as sys;
use rules::{Action, FlowError, FlowRule};

use super::layout::Structure;
use super::lower::{Lowered, Shared, lower_end};
use super::template::{ActionMasks, MASK_BYTES, Shape, template_items};

/// Stands for a null pointer in place of a length.
const NULL: u32 = u32::MAX;

/// The attributes, items and actions of a rule as DPDK would get them, and what templates would be made of, appended to
/// `to`. Numbers are 32 bits in this machine's order, lengths are followed by so many bytes:
///
/// ```text
/// rule    'R', group, priority, flags (1 ingress, 2 egress, 4 transfer), items, template items, actions, masks
/// list    count, entries; the last one is an end
/// item    type, then spec, last, mask: length (0xffffffff for none), bytes
/// action  type, configuration: length, bytes; what its pointer leads to (raw_encap): length, bytes
/// ```
/// A pointer within a configuration is whatever it was here. Without `templates` their lists hold an end only. With them a
/// meter is an indirect action, as hardware steering has it; its number stands for the handle.
///
/// # Errors
/// As for a rule that is given to a port: [`rules::Cause::Unsupported`] for an item that this DPDK does not have, and, with
/// `templates`, for a range.
pub fn flatten(rule: &FlowRule, templates: bool, to: &mut Vec<u8>) -> Result<(), FlowError> {
    // The handle that a meter would be; nobody follows it.
    let handle = |(index, _): (usize, &Action)| (index, NonNull::dangling().as_ptr());
    let meters = rule.actions.iter().enumerate().filter(|(_, action)| matches!(action, Action::Meter { .. }));
    let shared: Vec<Shared> = if templates { meters.map(handle).collect() } else { Vec::new() };
    let lowered = Lowered::new(rule, 1, &shared)?;
    let (template, masks) = match templates {
        true => (template_items(&lowered), Some(ActionMasks::new(&Shape::of(rule)?, lowered.actions()))),
        false => (vec![lower_end()], None),
    };
    // SAFETY: made by the rule's own lowering, which is alive.
    let attr = unsafe { *lowered.attr() };
    to.push(b'R');
    number(to, attr.group);
    number(to, attr.priority);
    number(to, attr.ingress() | attr.egress() << 1 | attr.transfer() << 2);
    items(to, &lowered, lowered.items());
    items(to, &lowered, &template);
    number(to, lowered.actions().len() as u32);
    for (index, action) in lowered.actions().iter().enumerate() {
        number(to, action.type_);
        let (conf, data) = lowered.conf(index);
        bytes(to, Some(&conf[..]).filter(|_| !action.conf.is_null()));
        bytes(to, data);
    }
    match &masks {
        Some(masks) => list_of_masks(to, masks),
        None => [1, sys::RTE_FLOW_ACTION_TYPE_END, NULL, NULL].into_iter().for_each(|word| number(to, word)),
    }
    Ok(())
}

fn list_of_masks(to: &mut Vec<u8>, masks: &ActionMasks) {
    number(to, masks.list.len() as u32);
    for mask in &masks.list {
        number(to, mask.type_);
        let mut copy = [0u8; MASK_BYTES];
        let size = masks.size_of(mask);
        if size > 0 {
            // SAFETY: the mask is so long, and the copy at least.
            unsafe { std::ptr::copy_nonoverlapping(mask.conf.cast::<u8>(), copy.as_mut_ptr(), size) };
        }
        bytes(to, Some(&copy[..size]).filter(|_| size > 0));
        bytes(to, None);
    }
}

fn items(to: &mut Vec<u8>, lowered: &Lowered, items: &[sys::rte_flow_item]) {
    number(to, items.len() as u32);
    for (index, item) in items.iter().enumerate() {
        number(to, item.type_);
        let parts = lowered.parts(index);
        let part =
            |at: usize, wanted: bool| parts.get(at).filter(|_| wanted).map(|Structure(bytes)| &bytes[..]);
        bytes(to, part(0, !item.spec.is_null()));
        bytes(to, part(2, !item.last.is_null()));
        bytes(to, part(1, !item.mask.is_null()));
    }
}

fn number(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_ne_bytes());
}

fn bytes(to: &mut Vec<u8>, bytes: Option<&[u8]>) {
    number(to, bytes.map_or(NULL, |bytes| bytes.len() as u32));
    to.extend_from_slice(bytes.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{Attr, Encap, Item, items};

    /// Reads what was written.
    struct Reader<'a>(&'a [u8]);

    impl<'a> Reader<'a> {
        fn number(&mut self) -> u32 {
            let (number, rest) = self.0.split_first_chunk().unwrap();
            self.0 = rest;
            u32::from_ne_bytes(*number)
        }

        fn bytes(&mut self) -> Option<&'a [u8]> {
            let length = self.number();
            (length != NULL).then(|| self.0.split_off(..length as usize).unwrap_or_default())
        }

        /// Types, and `parts` runs of bytes each.
        fn list(&mut self, parts: usize) -> Vec<(u32, Vec<Option<&'a [u8]>>)> {
            (0..self.number()).map(|_| (self.number(), (0..parts).map(|_| self.bytes()).collect())).collect()
        }
    }

    fn encap() -> Encap {
        let mut outer = [0u8; 50];
        outer[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        outer[23] = 17;
        Encap::new(&outer).unwrap()
    }

    fn rule(encap: Encap) -> FlowRule {
        FlowRule {
            attr: Attr::transfer(3, 4),
            pattern: vec![Item::with(items::eth::TYPE, 0x0800u16), Item::with(items::udp::DST, 4789u16)],
            actions: vec![Action::Count, Action::RawEncap(encap), Action::RepresentedPort { port: 7 }],
        }
    }

    #[test]
    fn a_rule_is_written_as_dpdk_would_get_it() {
        let rule = rule(encap());
        let lowered = Lowered::new(&rule, 1, &[]).unwrap();
        for templates in [false, true] {
            let mut written = Vec::new();
            flatten(&rule, templates, &mut written).unwrap();
            let mut reader = Reader(&written[1..]);
            assert_eq!((written[0], [(); 3].map(|()| reader.number())), (b'R', [3, 4, 4]));
            let (items, template) = (reader.list(3), reader.list(3));
            let types: Vec<_> = lowered.items().iter().map(|item| item.type_).collect();
            assert_eq!(items.iter().map(|(type_, _)| *type_).collect::<Vec<_>>(), types);
            let spec = items[1].1[0].unwrap();
            assert_eq!((&spec[2..4], items[1].1[1]), (&4789u16.to_be_bytes()[..], None));
            let (actions, masks) = (reader.list(2), reader.list(2));
            assert_eq!(reader.0, []);
            assert_eq!(actions[1].1[1], Some(encap().bytes()));
            assert_eq!(actions[2].1[0], Some(&7u16.to_ne_bytes()[..]));
            let lengths = (template.len(), masks.len());
            assert_eq!(lengths, if templates { (items.len(), actions.len()) } else { (1, 1) });
        }
    }

    #[test]
    fn a_range_has_no_template() {
        let mut rule = rule(encap());
        rule.pattern[1] = Item::any(rules::ItemKind::Udp).between(items::udp::DST, 1u16, 9u16);
        let mut written = Vec::new();
        assert!(flatten(&rule, true, &mut written).is_err());
        flatten(&rule, false, &mut written).unwrap();
    }
}
