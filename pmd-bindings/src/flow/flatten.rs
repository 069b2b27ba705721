//! Lowered rules as one run of bytes, for a judge in a process of its own (`mlx5-gate`).
//!
//! Written is what DPDK would be handed, structure by structure: what a driver's code says of it there, it says of the
//! rules that this switch gives it.

use dpdk_sys as sys;
use rules::{FlowError, FlowRule};

use super::layout::Structure;
use super::lower::{Lowered, lower_end};
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
/// A pointer within a configuration is whatever it was here. Without `templates` their lists hold an end only.
///
/// # Errors
/// As for a rule that is given to a port: [`rules::Cause::Unsupported`] for an item that this DPDK does not have, and, with
/// `templates`, for a range.
pub fn flatten(rule: &FlowRule, templates: bool, to: &mut Vec<u8>) -> Result<(), FlowError> {
    let lowered = Lowered::new(rule, 1, &[])?;
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
