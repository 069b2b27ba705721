//! A [`FlowRule`] as the C arrays that rte_flow takes, with everything they point to.
//!
//! All of it is owned by one value, whose arrays are made last and never change: what they point to stays where it is
//! for as long as the value lives, however it is moved.

use std::ffi::c_void;
use std::fmt;
use std::ptr;

use dpdk_sys as sys;
use rules::modify::{ModifyOp, Target};
use rules::{Action, Cause, Domain, FlowError, FlowRule, Item, Modify, Where};

use super::layout::{self, Structure};

/// Attributes, items and actions of a rule.
pub(super) struct Lowered {
    attr: sys::rte_flow_attr,
    items: Vec<sys::rte_flow_item>,
    actions: Vec<sys::rte_flow_action>,
    structures: Vec<Structure>,
    confs: Vec<Conf>,
}

impl fmt::Debug for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lowered({} items, {} actions)", self.items.len() - 1, self.actions.len() - 1)
    }
}

/// An action of the rule, by its index, that an indirect one stands in for.
pub(super) type Shared = (usize, *mut sys::rte_flow_action_handle);

impl Lowered {
    /// Lowers a rule. `context` is what its age action, if any, hands back when it runs out; `shared` names actions, by
    /// their index, that are replaced by indirect ones.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for an item that this DPDK does not have.
    pub(super) fn new(rule: &FlowRule, context: u64, shared: &[Shared]) -> Result<Self, FlowError> {
        let mut structures = Vec::with_capacity(3 * rule.pattern.len());
        let mut types = Vec::with_capacity(rule.pattern.len());
        for (index, item) in rule.pattern.iter().enumerate() {
            let layout = layout::of(item.kind()).ok_or_else(|| refusal(item, index))?;
            types.push(layout.type_);
            structures.push(layout.lower(item.spec()));
            structures.push(layout.lower(item.mask()));
            structures.push(item.last().map_or(Structure::EMPTY, |last| layout.lower(last)));
        }
        let confs: Vec<Conf> = rule.actions.iter().map(|action| Conf::new(action, context)).collect();

        // From here on nothing that is pointed to changes.
        let parts = rule.pattern.iter().zip(types).zip(structures.chunks_exact(3));
        let mut items: Vec<_> = parts.map(|((item, type_), parts)| lower_item(item, type_, parts)).collect();
        items.push(lower_end());
        let mut actions: Vec<_> = rule.actions.iter().zip(&confs).map(lower_action).collect();
        for (index, handle) in shared {
            let Some(action) = actions.get_mut(*index) else {
                let message = format!("the rule has no action {index} to be shared");
                return Err(FlowError::new(Cause::Invalid, Where::ActionNum, message));
            };
            *action = sys::rte_flow_action {
                type_: sys::RTE_FLOW_ACTION_TYPE_INDIRECT,
                conf: handle.cast_const().cast(),
            };
        }
        actions.push(END);
        Ok(Self { attr: lower_attr(rule), items, actions, structures, confs })
    }

    /// Group, priority, direction.
    pub(super) fn attr(&self) -> *const sys::rte_flow_attr {
        &raw const self.attr
    }

    /// The same, by value.
    pub(super) fn attr_copy(&self) -> sys::rte_flow_attr {
        self.attr
    }

    /// The direction, for an action that rules share.
    pub(super) fn shared_conf(&self) -> sys::rte_flow_indir_action_conf {
        // SAFETY: bit fields, for which zero is a value.
        let mut conf: sys::rte_flow_indir_action_conf = unsafe { std::mem::zeroed() };
        conf.set_ingress(self.attr.ingress());
        conf.set_egress(self.attr.egress());
        conf.set_transfer(self.attr.transfer());
        conf
    }

    /// The items, an end behind them.
    pub(super) fn items(&self) -> &[sys::rte_flow_item] {
        &self.items
    }

    /// The actions, an end behind them.
    pub(super) fn actions(&self) -> &[sys::rte_flow_action] {
        &self.actions
    }

    /// The bytes of spec, mask and last of an item.
    pub(super) fn parts(&self, item: usize) -> &[Structure] {
        self.structures.get(3 * item..3 * item + 3).unwrap_or_default()
    }

    /// The bytes of an action's configuration, and of what it points to.
    pub(super) fn conf(&self, action: usize) -> (Vec<u8>, Option<&[u8]>) {
        self.confs.get(action).map_or((Vec::new(), None), Conf::bytes)
    }

    /// Which item a pointer is, or belongs to.
    pub(super) fn item_at(&self, pointer: *const c_void) -> Option<usize> {
        let items = &self.items[..self.items.len() - 1];
        index_in(items, pointer).or_else(|| index_in(&self.structures, pointer).map(|index| index / 3))
    }

    /// Which action a pointer is, or is the configuration of.
    pub(super) fn action_at(&self, pointer: *const c_void) -> Option<usize> {
        let actions = &self.actions[..self.actions.len() - 1];
        let conf = || actions.iter().position(|action| !pointer.is_null() && action.conf == pointer);
        index_in(actions, pointer).or_else(conf)
    }
}

/// Ends a list of actions.
pub(super) const END: sys::rte_flow_action =
    sys::rte_flow_action { type_: sys::RTE_FLOW_ACTION_TYPE_END, conf: ptr::null() };

fn index_in<T>(slice: &[T], pointer: *const c_void) -> Option<usize> {
    let offset = pointer.addr().checked_sub(slice.as_ptr().addr())?;
    Some(offset / size_of::<T>()).filter(|index| *index < slice.len())
}

fn refusal(item: &Item, index: usize) -> FlowError {
    let what = match item.kind() {
        rules::ItemKind::IbBth => "match QPs (it has no item ib_bth; 23.07 and later have)",
        _ => "match this item",
    };
    FlowError::new(
        Cause::Unsupported,
        Where::Item(index),
        format!("this DPDK, {}, cannot {what}", sys::DPDK_VERSION),
    )
}

fn lower_attr(rule: &FlowRule) -> sys::rte_flow_attr {
    // SAFETY: integers and bit fields, for which zero is a value.
    let mut attr: sys::rte_flow_attr = unsafe { std::mem::zeroed() };
    attr.group = rule.attr.group;
    attr.priority = rule.attr.priority;
    match rule.attr.domain {
        Domain::Ingress => attr.set_ingress(1),
        Domain::Egress => attr.set_egress(1),
        Domain::Transfer => attr.set_transfer(1),
    }
    attr
}

/// An item; `parts` are its spec, mask and last. One that matches anything has none of them.
fn lower_item(item: &Item, type_: sys::rte_flow_item_type, parts: &[Structure]) -> sys::rte_flow_item {
    let pointer = |index: usize, wanted: bool| -> *const c_void {
        let part = parts.get(index).filter(|_| wanted);
        part.map_or(ptr::null(), |part| ptr::from_ref(part).cast())
    };
    let counts = !item.is_any();
    sys::rte_flow_item {
        type_,
        spec: pointer(0, counts),
        mask: pointer(1, counts),
        last: pointer(2, counts && item.last().is_some()),
    }
}

/// Ends a pattern.
pub(super) fn lower_end() -> sys::rte_flow_item {
    sys::rte_flow_item {
        type_: sys::RTE_FLOW_ITEM_TYPE_END,
        spec: ptr::null(),
        last: ptr::null(),
        mask: ptr::null(),
    }
}

fn lower_action((action, conf): (&Action, &Conf)) -> sys::rte_flow_action {
    let type_ = match action {
        Action::VxlanDecap => sys::RTE_FLOW_ACTION_TYPE_VXLAN_DECAP,
        Action::RawEncap(_) => sys::RTE_FLOW_ACTION_TYPE_RAW_ENCAP,
        Action::Count => sys::RTE_FLOW_ACTION_TYPE_COUNT,
        Action::Age { .. } => sys::RTE_FLOW_ACTION_TYPE_AGE,
        Action::Jump { .. } => sys::RTE_FLOW_ACTION_TYPE_JUMP,
        Action::Meter { .. } => sys::RTE_FLOW_ACTION_TYPE_METER,
        Action::ModifyField(_) => sys::RTE_FLOW_ACTION_TYPE_MODIFY_FIELD,
        Action::Mark { .. } => sys::RTE_FLOW_ACTION_TYPE_MARK,
        Action::RepresentedPort { .. } => sys::RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT,
        Action::PortRepresentor { .. } => sys::RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR,
        Action::PortId { .. } => sys::RTE_FLOW_ACTION_TYPE_PORT_ID,
        Action::Queue { .. } => sys::RTE_FLOW_ACTION_TYPE_QUEUE,
        Action::Drop => sys::RTE_FLOW_ACTION_TYPE_DROP,
    };
    sys::rte_flow_action { type_, conf: conf.pointer() }
}

/// The field of DPDK that is written to.
fn target(target: Target) -> sys::rte_flow_field_id {
    match target {
        Target::MacDst => sys::RTE_FLOW_FIELD_MAC_DST,
        Target::MacSrc => sys::RTE_FLOW_FIELD_MAC_SRC,
        Target::Ipv4Ecn => sys::RTE_FLOW_FIELD_IPV4_ECN,
        Target::Ipv6Ecn => sys::RTE_FLOW_FIELD_IPV6_ECN,
        Target::Ipv4Ttl => sys::RTE_FLOW_FIELD_IPV4_TTL,
        Target::Ipv6HopLimit => sys::RTE_FLOW_FIELD_IPV6_HOPLIMIT,
        Target::Tag => sys::RTE_FLOW_FIELD_TAG,
    }
}

fn lower_modify(modify: &Modify) -> sys::rte_flow_action_modify_field {
    // SAFETY: integers and unions of them, for which zero is a value.
    let mut lowered: sys::rte_flow_action_modify_field = unsafe { std::mem::zeroed() };
    lowered.operation = match modify.operation() {
        ModifyOp::Set => sys::RTE_FLOW_MODIFY_SET,
        ModifyOp::Add => sys::RTE_FLOW_MODIFY_ADD,
    };
    lowered.dst.field = target(modify.target());
    // SAFETY: the structure above.
    unsafe { sys::dpdk_sys_modify_set_register(&raw mut lowered, modify.index()) };
    lowered.src.field = sys::RTE_FLOW_FIELD_VALUE;
    lowered.src.__bindgen_anon_1.value = modify.value();
    lowered.width = modify.target().width();
    lowered
}

/// The configuration of an action.
enum Conf {
    None,
    RawEncap { conf: sys::rte_flow_action_raw_encap, header: Vec<u8> },
    Count(sys::rte_flow_action_count),
    Age(sys::rte_flow_action_age),
    Jump(sys::rte_flow_action_jump),
    Meter(sys::rte_flow_action_meter),
    ModifyField(Box<sys::rte_flow_action_modify_field>),
    Mark(sys::rte_flow_action_mark),
    Ethdev(sys::rte_flow_action_ethdev),
    PortId(sys::rte_flow_action_port_id),
    Queue(sys::rte_flow_action_queue),
}

impl Conf {
    fn new(action: &Action, context: u64) -> Self {
        match *action {
            Action::VxlanDecap | Action::Drop => Self::None,
            Action::RawEncap(encap) => {
                let mut header = encap.bytes().to_vec();
                let (data, size) = (header.as_mut_ptr(), header.len());
                let conf = sys::rte_flow_action_raw_encap { data, preserve: ptr::null_mut(), size };
                Self::RawEncap { conf, header }
            }
            Action::Count => Self::Count(sys::rte_flow_action_count { id: 0 }),
            Action::Age { timeout } => {
                // SAFETY: integers and a pointer, for which zero is a value.
                let mut age: sys::rte_flow_action_age = unsafe { std::mem::zeroed() };
                age.set_timeout(timeout);
                // A number that DPDK hands back and nobody follows.
                age.context = ptr::without_provenance_mut(context as usize);
                Self::Age(age)
            }
            Action::Jump { group } => Self::Jump(sys::rte_flow_action_jump { group }),
            Action::Meter { mtr_id } => Self::Meter(sys::rte_flow_action_meter { mtr_id }),
            Action::ModifyField(modify) => Self::ModifyField(Box::new(lower_modify(&modify))),
            Action::Mark { id } => Self::Mark(sys::rte_flow_action_mark { id }),
            Action::RepresentedPort { port } | Action::PortRepresentor { port } => {
                Self::Ethdev(sys::rte_flow_action_ethdev { port_id: port })
            }
            Action::PortId { id } => {
                // SAFETY: integers and bit fields, for which zero is a value.
                let mut port: sys::rte_flow_action_port_id = unsafe { std::mem::zeroed() };
                port.id = id;
                Self::PortId(port)
            }
            Action::Queue { index } => Self::Queue(sys::rte_flow_action_queue { index }),
        }
    }

    fn pointer(&self) -> *const c_void {
        match self {
            Self::None => ptr::null(),
            Self::RawEncap { conf, .. } => ptr::from_ref(conf).cast(),
            Self::Count(conf) => ptr::from_ref(conf).cast(),
            Self::Age(conf) => ptr::from_ref(conf).cast(),
            Self::Jump(conf) => ptr::from_ref(conf).cast(),
            Self::Meter(conf) => ptr::from_ref(conf).cast(),
            Self::ModifyField(conf) => ptr::from_ref(&**conf).cast(),
            Self::Mark(conf) => ptr::from_ref(conf).cast(),
            Self::Ethdev(conf) => ptr::from_ref(conf).cast(),
            Self::PortId(conf) => ptr::from_ref(conf).cast(),
            Self::Queue(conf) => ptr::from_ref(conf).cast(),
        }
    }
}

impl Conf {
    /// How many bytes [`Self::pointer`] points to.
    fn size(&self) -> usize {
        match self {
            Self::None => 0,
            Self::RawEncap { conf, .. } => size_of_val(conf),
            Self::Count(conf) => size_of_val(conf),
            Self::Age(conf) => size_of_val(conf),
            Self::Jump(conf) => size_of_val(conf),
            Self::Meter(conf) => size_of_val(conf),
            Self::ModifyField(conf) => size_of_val(&**conf),
            Self::Mark(conf) => size_of_val(conf),
            Self::Ethdev(conf) => size_of_val(conf),
            Self::PortId(conf) => size_of_val(conf),
            Self::Queue(conf) => size_of_val(conf),
        }
    }

    /// The bytes of the structure, and those that a pointer in it leads to.
    fn bytes(&self) -> (Vec<u8>, Option<&[u8]>) {
        let mut bytes = vec![0; self.size()];
        if !self.pointer().is_null() {
            // SAFETY: the structure is so long, and so is the copy; only the copy's bytes are looked at afterwards.
            unsafe { ptr::copy_nonoverlapping(self.pointer().cast::<u8>(), bytes.as_mut_ptr(), bytes.len()) };
        }
        match self {
            Self::RawEncap { header, .. } => (bytes, Some(header)),
            _ => (bytes, None),
        }
    }
}

#[cfg(test)]
#[path = "raise.rs"]
mod raise;
