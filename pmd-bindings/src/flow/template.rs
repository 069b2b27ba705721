//! Templates and tables of a port with flow queues: which rules are alike, and what such rules have in common.
//!
//! Rules of one shape differ in the values they match and in what some actions carry; items, masks, the list of actions
//! and where a rule stands are the shape's. A shape becomes one pattern template, one actions template, one table.

use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::ptr::{self, NonNull};

use dpdk_sys as sys;
use rules::items::tag;
use rules::modify::Target;
use rules::{Action, Attr, Cause, Domain, FlowError, FlowRule, Item, ItemKind, Modify, Where};

use super::error;
use super::lower::{END, Lowered};

/// What rules of one table have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    attr: Attr,
    items: Vec<Pattern>,
    actions: Vec<Part>,
}

/// An item of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    kind: ItemKind,
    mask: Vec<u8>,
    /// Which register, where it is one: mlx5 reads that of the template.
    register: Option<u128>,
}

impl Pattern {
    fn of(item: &Item) -> Self {
        Self { kind: item.kind(), mask: item.mask().to_vec(), register: register(item) }
    }
}

/// The number of the register that an item is about.
fn register(item: &Item) -> Option<u128> {
    (item.kind() == ItemKind::Tag).then(|| tag::INDEX.get(item.spec()))
}

/// An action of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// The same in all rules.
    Constant(Action),
    /// Each rule brings its own; headers to put in front are alike in their length.
    Varies(&'static str, usize),
    /// Each rule writes a value of its own to this field or register.
    Writes(Target, u8),
}

impl Shape {
    /// The shape of a rule.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for a range, as templates have masks only, and for what would end the process in a driver.
    pub(super) fn of(rule: &FlowRule) -> Result<Self, FlowError> {
        if let Some(index) = rule.pattern.iter().position(|item| item.last().is_some()) {
            let message = "flow queues match no ranges: use the synchronous API";
            return Err(FlowError::new(Cause::Unsupported, Where::ItemLast(index), message));
        }
        let is_empty =
            |item: &Item| matches!(item.kind(), ItemKind::RepresentedPort | ItemKind::Tag) && item.is_any();
        if let Some(index) = rule.pattern.iter().position(is_empty) {
            let message = "a port or register without a value: mlx5 of 22.11 follows its null pointer";
            return Err(FlowError::new(Cause::Unsupported, Where::Item(index), message));
        }
        Ok(Self {
            attr: rule.attr,
            items: rule.pattern.iter().map(Pattern::of).collect(),
            actions: rule.actions.iter().map(Part::of).collect(),
        })
    }

    /// Hashes what rules of one shape have in common, without making the shape.
    pub(super) fn hash(rule: &FlowRule, hasher: &mut impl Hasher) {
        rule.attr.hash(hasher);
        for item in &rule.pattern {
            item.kind().hash(hasher);
            item.mask().hash(hasher);
            register(item).hash(hasher);
            item.last().is_some().hash(hasher);
        }
        rule.actions.iter().for_each(|action| Part::of(action).hash(hasher));
    }

    /// True for a rule of this shape.
    pub(super) fn is_of(&self, rule: &FlowRule) -> bool {
        let same_item = |(pattern, item): (&Pattern, &Item)| {
            pattern.kind == item.kind()
                && pattern.mask.as_slice() == item.mask()
                && pattern.register == register(item)
                && item.last().is_none()
        };
        self.attr == rule.attr
            && (self.items.len(), self.actions.len()) == (rule.pattern.len(), rule.actions.len())
            && self.items.iter().zip(&rule.pattern).all(same_item)
            && self.actions.iter().zip(&rule.actions).all(|(part, action)| *part == Part::of(action))
    }
}

impl Part {
    fn of(action: &Action) -> Self {
        match *action {
            Action::VxlanDecap
            | Action::Age { .. }
            | Action::Jump { .. }
            | Action::ModifyField(Modify::Ecn { .. } | Modify::Ttl { .. })
            | Action::Drop => Self::Constant(*action),
            Action::ModifyField(modify) => Self::Writes(modify.target(), modify.index()),
            Action::RawEncap(encap) => Self::Varies(action.name(), encap.bytes().len()),
            // A counter that is constant would be one for all rules, which mlx5 does not combine with an age.
            Action::Count
            | Action::Meter { .. }
            | Action::Mark { .. }
            | Action::RepresentedPort { .. }
            | Action::PortRepresentor { .. }
            | Action::PortId { .. }
            | Action::Queue { .. } => Self::Varies(action.name(), 0),
        }
    }
}

/// Bytes of the largest configuration of an action, and more.
pub(super) const MASK_BYTES: usize = 128;

/// Masks of actions' configurations: all bits for what is constant, none for what each rule brings.
#[repr(align(8))]
struct Mask([u8; MASK_BYTES]);
static CONSTANT: Mask = Mask([0xff; MASK_BYTES]);
static VARIES: Mask = Mask([0; MASK_BYTES]);

/// The list of masks beside a list of actions, and what it points to besides [`CONSTANT`] and [`VARIES`].
pub(super) struct ActionMasks {
    pub(super) list: Vec<sys::rte_flow_action>,
    fields: Vec<sys::rte_flow_action_modify_field>,
    encap: Box<sys::rte_flow_action_raw_encap>,
}

impl ActionMasks {
    pub(super) fn new(shape: &Shape, actions: &[sys::rte_flow_action]) -> Self {
        let is_field =
            |part: &Part| matches!(part, Part::Constant(Action::ModifyField(_)) | Part::Writes(..));
        let pairs = || shape.actions.iter().zip(actions);
        let fields = pairs().filter(|(part, _)| is_field(part));
        // From here on it does not grow: what is pointed to stays where it is.
        let fields: Vec<_> = fields.map(|(part, action)| field_mask(part, action.conf.cast())).collect();
        let mut next = fields.iter();
        // Headers of one length: mlx5 wants the size masked (its `flow_hw_validate_action_raw_encap`), the bytes vary.
        let encap = sys::rte_flow_action_raw_encap {
            data: ptr::null_mut(),
            preserve: ptr::null_mut(),
            size: usize::MAX,
        };
        let encap = Box::new(encap);
        let masks = pairs().map(|(part, action)| {
            let mut type_ = action.type_;
            let conf: *const c_void = match part {
                // The mask says which action the handle stands for, and nothing of what each rule brings.
                _ if action.type_ == sys::RTE_FLOW_ACTION_TYPE_INDIRECT => {
                    type_ = sys::RTE_FLOW_ACTION_TYPE_METER_MARK;
                    ptr::null()
                }
                _ if action.conf.is_null() => ptr::null(),
                part if is_field(part) => {
                    next.next().map_or(ptr::null(), |field| ptr::from_ref(field).cast())
                }
                Part::Constant(_) => CONSTANT.0.as_ptr().cast(),
                Part::Varies(_, bytes) if *bytes > 0 => ptr::from_ref(&*encap).cast(),
                Part::Varies(..) | Part::Writes(..) => VARIES.0.as_ptr().cast(),
            };
            sys::rte_flow_action { type_, conf }
        });
        let list = masks.chain([END]).collect();
        Self { list, fields, encap }
    }

    /// How many bytes a mask of the list points to.
    pub(super) fn size_of(&self, mask: &sys::rte_flow_action) -> usize {
        let is_field = |field: &sys::rte_flow_action_modify_field| ptr::from_ref(field).cast() == mask.conf;
        match mask.conf {
            conf if conf.is_null() => 0,
            _ if self.fields.iter().any(is_field) => size_of::<sys::rte_flow_action_modify_field>(),
            conf if ptr::from_ref(&*self.encap).cast() == conf => size_of_val(&*self.encap),
            _ => MASK_BYTES,
        }
    }
}

/// The mask of a `modify_field`: mlx5 wants the operation and both fields as in the action, all bits of the rest (its
/// `flow_hw_validate_action_modify_field`; unconfirmed on hardware), and none of a value that each rule brings.
fn field_mask(
    part: &Part,
    conf: *const sys::rte_flow_action_modify_field,
) -> sys::rte_flow_action_modify_field {
    let all = CONSTANT.0.as_ptr().cast::<sys::rte_flow_action_modify_field>();
    // SAFETY: integers and unions of them, smaller than CONSTANT and aligned like it.
    let mut mask = unsafe { all.read() };
    // SAFETY: the configuration of an action that the caller lowered, alive with it.
    let conf = unsafe { &*conf };
    (mask.operation, mask.dst.field, mask.src.field) = (conf.operation, conf.dst.field, conf.src.field);
    if matches!(part, Part::Writes(..)) {
        mask.src.__bindgen_anon_1.value = [0; 16];
    }
    mask
}

/// A template table with its templates.
#[derive(Debug)]
pub(super) struct Table {
    pattern: NonNull<sys::rte_flow_pattern_template>,
    actions: NonNull<sys::rte_flow_actions_template>,
    table: NonNull<sys::rte_flow_template_table>,
}

impl Table {
    /// A table for rules of this shape; `first` is one of them, lowered.
    pub(super) fn new(port: u16, shape: &Shape, first: &Lowered, rules: u32) -> Result<Self, FlowError> {
        let pattern = pattern_template(port, shape, first)?;
        let made = actions_template(port, shape, first).and_then(|actions| {
            let table = template_table(port, first, pattern, actions, rules);
            if table.is_err() {
                delete_actions(port, actions);
            }
            table.map(|table| Self { pattern, actions, table })
        });
        if made.is_err() {
            delete_pattern(port, pattern);
        }
        made
    }

    pub(super) fn raw(&self) -> *mut sys::rte_flow_template_table {
        self.table.as_ptr()
    }

    /// Gives it back; no rule is in it.
    pub(super) fn delete(self, port: u16) {
        // SAFETY: a table of this port without rules.
        let gone = error::check(None, |error| unsafe {
            sys::rte_flow_template_table_destroy(port, self.table.as_ptr(), error)
        });
        warn_left(port, "template table", gone);
        delete_actions(port, self.actions);
        delete_pattern(port, self.pattern);
    }
}

/// What a pattern template is made of: masks. Values are the rules', but for the number of a register, which mlx5 reads here.
pub(super) fn template_items(first: &Lowered) -> Vec<sys::rte_flow_item> {
    let item = |item: &sys::rte_flow_item| match item.type_ {
        sys::RTE_FLOW_ITEM_TYPE_TAG => *item,
        _ => sys::rte_flow_item { spec: ptr::null(), ..*item },
    };
    first.items().iter().map(item).collect()
}

fn pattern_template(
    port: u16,
    shape: &Shape,
    first: &Lowered,
) -> Result<NonNull<sys::rte_flow_pattern_template>, FlowError> {
    // SAFETY: bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_pattern_template_attr = unsafe { std::mem::zeroed() };
    match shape.attr.domain {
        Domain::Ingress => attr.set_ingress(1),
        Domain::Egress => attr.set_egress(1),
        Domain::Transfer => attr.set_transfer(1),
    }
    let masks = template_items(first);
    error::pointer(Some(first), |error| {
        // SAFETY: a configured port; a list with an end, which DPDK copies.
        unsafe { sys::rte_flow_pattern_template_create(port, &raw const attr, masks.as_ptr(), error) }
    })
}

fn actions_template(
    port: u16,
    shape: &Shape,
    first: &Lowered,
) -> Result<NonNull<sys::rte_flow_actions_template>, FlowError> {
    // SAFETY: bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_actions_template_attr = unsafe { std::mem::zeroed() };
    match shape.attr.domain {
        Domain::Ingress => attr.set_ingress(1),
        Domain::Egress => attr.set_egress(1),
        Domain::Transfer => attr.set_transfer(1),
    }
    let masks = ActionMasks::new(shape, first.actions());
    error::pointer(Some(first), |error| {
        let actions = first.actions().as_ptr();
        // SAFETY: a configured port; two lists with an end, of the same actions, which DPDK copies.
        unsafe {
            sys::rte_flow_actions_template_create(port, &raw const attr, actions, masks.list.as_ptr(), error)
        }
    })
}

fn template_table(
    port: u16,
    first: &Lowered,
    pattern: NonNull<sys::rte_flow_pattern_template>,
    actions: NonNull<sys::rte_flow_actions_template>,
    rules: u32,
) -> Result<NonNull<sys::rte_flow_template_table>, FlowError> {
    // SAFETY: integers and bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_template_table_attr = unsafe { std::mem::zeroed() };
    attr.flow_attr = first.attr_copy();
    attr.nb_flows = rules;
    let (mut pattern, mut actions) = (pattern.as_ptr(), actions.as_ptr());
    error::pointer(None, |error| {
        let (patterns, actions) = (&raw mut pattern, &raw mut actions);
        // SAFETY: a configured port; one template of each, both of this port.
        unsafe { sys::rte_flow_template_table_create(port, &raw const attr, patterns, 1, actions, 1, error) }
    })
}

fn delete_pattern(port: u16, template: NonNull<sys::rte_flow_pattern_template>) {
    // SAFETY: a template of this port that no table has.
    let gone = error::check(None, |error| unsafe {
        sys::rte_flow_pattern_template_destroy(port, template.as_ptr(), error)
    });
    warn_left(port, "pattern template", gone);
}

fn delete_actions(port: u16, template: NonNull<sys::rte_flow_actions_template>) {
    // SAFETY: a template of this port that no table has.
    let gone = error::check(None, |error| unsafe {
        sys::rte_flow_actions_template_destroy(port, template.as_ptr(), error)
    });
    warn_left(port, "actions template", gone);
}

fn warn_left(port: u16, what: &'static str, gone: Result<i32, FlowError>) {
    if let Err(error) = gone {
        tracing::warn!(port, what, %error, "the driver did not take it back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::items;

    fn rule(vni: u32, mask: u128, id: u32, group: u32) -> FlowRule {
        FlowRule {
            attr: Attr::transfer(1, 0),
            pattern: vec![Item::any(ItemKind::Vxlan).masked(items::vxlan::VNI, vni, mask)],
            actions: vec![Action::Mark { id }, Action::Count, Action::Jump { group }],
        }
    }

    #[test]
    fn values_may_differ_within_a_shape_and_masks_and_constants_not() {
        let shape = Shape::of(&rule(1, 0xff_ffff, 1, 2)).unwrap();
        assert_eq!(shape, Shape::of(&rule(9, 0xff_ffff, 7, 2)).unwrap());
        assert_ne!(shape, Shape::of(&rule(1, 0xff_ff00, 1, 2)).unwrap());
        assert_ne!(shape, Shape::of(&rule(1, 0xff_ffff, 1, 3)).unwrap());
        let mut other = rule(1, 0xff_ffff, 1, 2);
        other.attr.priority = 1;
        assert_ne!(shape, Shape::of(&other).unwrap());
    }

    #[test]
    fn a_port_without_a_number_has_no_shape() {
        for kind in [ItemKind::RepresentedPort, ItemKind::Tag] {
            let mut empty = rule(1, 0xff_ffff, 1, 2);
            empty.pattern.push(Item::any(kind));
            assert_eq!(Shape::of(&empty).unwrap_err().at, Where::Item(1));
        }
    }

    #[test]
    fn ranges_have_no_shape() {
        let mut ranged = rule(1, 0xff_ffff, 1, 2);
        ranged.pattern.push(Item::any(ItemKind::Udp).between(items::udp::DST, 10u16, 20u16));
        let error = Shape::of(&ranged).unwrap_err();
        assert_eq!((error.cause, error.at), (Cause::Unsupported, Where::ItemLast(1)));
    }

    #[test]
    fn constant_actions_are_masked_whole_and_others_not() {
        let rule = rule(1, 0xff_ffff, 1, 2);
        let lowered = Lowered::new(&rule, 1, &[]).unwrap();
        let masks = ActionMasks::new(&Shape::of(&rule).unwrap(), lowered.actions()).list;
        let types: Vec<_> = lowered.actions().iter().map(|action| action.type_).collect();
        assert_eq!(masks.iter().map(|mask| mask.type_).collect::<Vec<_>>(), types);
        let all: *const c_void = CONSTANT.0.as_ptr().cast();
        let varies: *const c_void = VARIES.0.as_ptr().cast();
        assert_eq!((masks[0].conf, masks[1].conf, masks[2].conf), (varies, varies, all));
        assert!(size_of::<sys::rte_flow_action_modify_field>() <= MASK_BYTES);
    }

    #[test]
    fn a_constant_field_is_masked_but_for_what_names_it() {
        let ce = Action::set_ecn(true, wire::Ecn::Ce);
        let rule = FlowRule { actions: vec![ce, ce], ..rule(1, 0xff_ffff, 1, 2) };
        let lowered = Lowered::new(&rule, 1, &[]).unwrap();
        let masks = ActionMasks::new(&Shape::of(&rule).unwrap(), lowered.actions());
        for (mask, action) in masks.list.iter().zip(lowered.actions()).take(2) {
            let [mask, conf] = [mask.conf, action.conf].map(|conf| {
                let conf: *const sys::rte_flow_action_modify_field = conf.cast();
                // SAFETY: `masks` and `lowered` are alive.
                unsafe { &*conf }
            });
            assert_eq!((mask.operation, mask.dst.field), (conf.operation, sys::RTE_FLOW_FIELD_IPV6_ECN));
            assert_eq!((mask.src.field, mask.width), (sys::RTE_FLOW_FIELD_VALUE, u32::MAX));
        }
        assert!(masks.list[2].conf.is_null());
    }

    #[test]
    fn registers_belong_to_the_shape_and_their_values_to_the_rule() {
        let with = |index: u8, data: u32| FlowRule {
            pattern: vec![Item::with(tag::DATA, data).is(tag::INDEX, index)],
            actions: vec![Action::set_tag(index, data), Action::Drop],
            ..rule(1, 0xff_ffff, 1, 2)
        };
        let (one, other) = (with(1, 5), with(1, 6));
        let shape = Shape::of(&one).unwrap();
        assert!(shape.is_of(&one) && shape.is_of(&other) && !shape.is_of(&with(2, 5)));
        let mut written = one.clone();
        written.actions = vec![Action::set_tag(2, 5), Action::Drop];
        assert!(!shape.is_of(&written));
        let lowered = Lowered::new(&one, 1, &[]).unwrap();
        let masks = ActionMasks::new(&shape, lowered.actions());
        let mask: *const sys::rte_flow_action_modify_field = masks.list[0].conf.cast();
        // SAFETY: `masks` is alive.
        let mask = unsafe { &*mask };
        // SAFETY: integers on both sides of the union.
        let value = unsafe { mask.src.__bindgen_anon_1.value };
        assert_eq!((value, mask.width, mask.dst.field), ([0; 16], u32::MAX, sys::RTE_FLOW_FIELD_TAG));
        // SAFETY: the structure above.
        assert_eq!(unsafe { sys::dpdk_sys_modify_register(mask) }, u8::MAX);
    }
}
