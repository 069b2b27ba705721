//! Lowered rules, and DPDK's own copies of them, raised back to the rule they came from.

use super::*;
use crate::flow::error;
use proptest::prelude::*;
use proptest::sample::select;
use rules::{Attr, Encap, ItemKind};
use wire::{Ecn, MacAddr};

/// A place of type `T` that DPDK or we wrote.
fn read<T: Copy>(pointer: *const c_void) -> T {
    assert!(!pointer.is_null());
    // SAFETY: the configuration of an action of the type that its number stands for, alive while its rule is.
    unsafe { pointer.cast::<T>().read_unaligned() }
}

/// Entries of a C array up to its end.
fn entries<T: Copy>(first: *const T, is_end: impl Fn(&T) -> bool) -> Vec<T> {
    let mut found = Vec::new();
    loop {
        // SAFETY: DPDK's lists have an end, and it was not met yet.
        let place = unsafe { first.add(found.len()) };
        // SAFETY: as above.
        let entry = unsafe { place.read() };
        if is_end(&entry) {
            return found;
        }
        found.push(entry);
    }
}

fn raise_part(kind: ItemKind, pointer: *const c_void) -> Option<Vec<u8>> {
    if pointer.is_null() {
        return None;
    }
    let layout = layout::of(kind).unwrap();
    let mut structure = Structure::EMPTY;
    // SAFETY: at least so many bytes has the structure of this kind.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), layout.extent()) };
    structure.0[..bytes.len()].copy_from_slice(bytes);
    let mut model = vec![0; kind.size()];
    layout.raise(&structure, &mut model);
    Some(model)
}

fn raise_item(item: &sys::rte_flow_item) -> Item {
    let has_type = |kind: &&ItemKind| layout::of(**kind).is_some_and(|layout| layout.type_ == item.type_);
    let kind = *ItemKind::ALL.iter().find(has_type).unwrap();
    let Some(mask) = raise_part(kind, item.mask) else { return Item::any(kind) };
    let spec = raise_part(kind, item.spec).unwrap();
    Item::from_bytes(kind, &spec, &mask, raise_part(kind, item.last).as_deref()).unwrap()
}

fn raise_action(action: &sys::rte_flow_action, context: u64) -> Action {
    let conf = action.conf;
    let ethdev = || read::<sys::rte_flow_action_ethdev>(conf).port_id;
    match action.type_ {
        sys::RTE_FLOW_ACTION_TYPE_VXLAN_DECAP => Action::VxlanDecap,
        sys::RTE_FLOW_ACTION_TYPE_RAW_ENCAP => {
            let encap: sys::rte_flow_action_raw_encap = read(conf);
            // SAFETY: the header, as long as its size says.
            let bytes = unsafe { std::slice::from_raw_parts(encap.data, encap.size) };
            Action::RawEncap(Encap::new(bytes).unwrap())
        }
        sys::RTE_FLOW_ACTION_TYPE_COUNT => Action::Count,
        sys::RTE_FLOW_ACTION_TYPE_AGE => {
            let age: sys::rte_flow_action_age = read(conf);
            assert_eq!(age.context.addr() as u64, context);
            Action::Age { timeout: age.timeout() }
        }
        sys::RTE_FLOW_ACTION_TYPE_JUMP => {
            Action::Jump { group: read::<sys::rte_flow_action_jump>(conf).group }
        }
        sys::RTE_FLOW_ACTION_TYPE_METER => {
            Action::Meter { mtr_id: read::<sys::rte_flow_action_meter>(conf).mtr_id }
        }
        sys::RTE_FLOW_ACTION_TYPE_MODIFY_FIELD => {
            let modify: sys::rte_flow_action_modify_field = read(conf);
            assert_eq!(modify.src.field, sys::RTE_FLOW_FIELD_VALUE);
            let operation = match modify.operation {
                sys::RTE_FLOW_MODIFY_SET => ModifyOp::Set,
                sys::RTE_FLOW_MODIFY_ADD => ModifyOp::Add,
                other => panic!("operation {other}"),
            };
            let to = Target::ALL.into_iter().find(|to| target(*to) == modify.dst.field).unwrap();
            assert_eq!(modify.width, to.width());
            // SAFETY: the structure above.
            let index = unsafe { sys::dpdk_sys_modify_register(&raw const modify) };
            // SAFETY: a value, as the field says.
            let value = unsafe { modify.src.__bindgen_anon_1.value };
            Action::ModifyField(Modify::of(operation, to, index, value).unwrap())
        }
        sys::RTE_FLOW_ACTION_TYPE_MARK => Action::Mark { id: read::<sys::rte_flow_action_mark>(conf).id },
        sys::RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT => Action::RepresentedPort { port: ethdev() },
        sys::RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR => Action::PortRepresentor { port: ethdev() },
        sys::RTE_FLOW_ACTION_TYPE_PORT_ID => {
            let port: sys::rte_flow_action_port_id = read(conf);
            assert_eq!(port.original(), 0);
            Action::PortId { id: port.id }
        }
        sys::RTE_FLOW_ACTION_TYPE_QUEUE => {
            Action::Queue { index: read::<sys::rte_flow_action_queue>(conf).index }
        }
        sys::RTE_FLOW_ACTION_TYPE_DROP => Action::Drop,
        other => panic!("action {other}"),
    }
}

/// What C arrays say.
fn raise(
    attr: *const sys::rte_flow_attr,
    items: *const sys::rte_flow_item,
    actions: *const sys::rte_flow_action,
    context: u64,
) -> FlowRule {
    // SAFETY: the attributes of the rule.
    let attr = unsafe { *attr };
    let domain = match (attr.ingress(), attr.egress(), attr.transfer()) {
        (1, 0, 0) => Domain::Ingress,
        (0, 1, 0) => Domain::Egress,
        (0, 0, 1) => Domain::Transfer,
        other => panic!("domain {other:?}"),
    };
    let items = entries(items, |item| item.type_ == sys::RTE_FLOW_ITEM_TYPE_END);
    let actions = entries(actions, |action| action.type_ == sys::RTE_FLOW_ACTION_TYPE_END);
    FlowRule {
        attr: Attr { group: attr.group, priority: attr.priority, domain },
        pattern: items.iter().map(raise_item).collect(),
        actions: actions.iter().map(|action| raise_action(action, context)).collect(),
    }
}

/// Has DPDK make its own copy of a rule, and raises that.
fn raise_copy(lowered: &Lowered, context: u64) -> FlowRule {
    // SAFETY: pointers, for which zero is a value.
    let mut rule: sys::rte_flow_conv_rule = unsafe { std::mem::zeroed() };
    rule.__bindgen_anon_1.attr_ro = lowered.attr();
    rule.__bindgen_anon_2.pattern_ro = lowered.items().as_ptr();
    rule.__bindgen_anon_3.actions_ro = lowered.actions().as_ptr();
    let source = (&raw const rule).cast::<c_void>();
    let convert = |place: *mut c_void, size: usize| {
        error::check(None, |error| {
            // SAFETY: a whole rule; `place` has room for `size` bytes.
            unsafe { sys::rte_flow_conv(sys::RTE_FLOW_CONV_OP_RULE, place, size, source, error) }
        })
        .unwrap()
    };
    let size = convert(ptr::null_mut(), 0) as usize;
    let mut copy = vec![0u64; size.div_ceil(8)];
    assert_eq!(convert(copy.as_mut_ptr().cast(), size) as usize, size);
    // SAFETY: DPDK wrote such a structure at the beginning of its copy.
    let copied = unsafe { *copy.as_ptr().cast::<sys::rte_flow_conv_rule>() };
    // SAFETY: pointers of one union, all of the same meaning.
    let attr = unsafe { copied.__bindgen_anon_1.attr_ro };
    // SAFETY: as above.
    let items = unsafe { copied.__bindgen_anon_2.pattern_ro };
    // SAFETY: as above.
    let actions = unsafe { copied.__bindgen_anon_3.actions_ro };
    raise(attr, items, actions, context)
}

fn an_item() -> impl Strategy<Value = Item> {
    let kinds: Vec<ItemKind> =
        ItemKind::ALL.iter().copied().filter(|kind| layout::of(*kind).is_some()).collect();
    let field = (any::<prop::sample::Index>(), any::<u128>(), any::<u128>(), 0..4u8);
    (select(kinds), prop::collection::vec(field, 0..4)).prop_map(|(kind, fields)| {
        fields.iter().fold(Item::any(kind), |item, (which, a, b, how)| {
            let field = kind.fields()[which.index(kind.fields().len())];
            let (a, b) = (a & field.ones(), b & field.ones());
            match how {
                0 => item.is(field, a),
                1 => item.between(field, a.min(b), a.max(b)),
                _ => item.masked(field, a, b),
            }
        })
    })
}

fn an_encap() -> impl Strategy<Value = Encap> {
    (any::<[u8; 74]>(), any::<bool>(), any::<bool>()).prop_map(|(mut bytes, tagged, ipv6)| {
        let ip = if tagged { 18 } else { 14 };
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        let (type_, first, protocol, udp) =
            if ipv6 { ([0x86, 0xdd], 0x60, ip + 6, ip + 40) } else { ([0x08, 0x00], 0x45, ip + 9, ip + 20) };
        bytes[ip - 2..ip].copy_from_slice(&type_);
        (bytes[ip], bytes[protocol]) = (first, 17);
        Encap::new(&bytes[..udp + 16]).unwrap()
    })
}

fn an_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::VxlanDecap),
        Just(Action::Count),
        any::<bool>().prop_map(|ipv6| Action::ModifyField(Modify::Ttl { ipv6 })),
        Just(Action::Drop),
        an_encap().prop_map(Action::RawEncap),
        (0..1u32 << 24).prop_map(|timeout| Action::Age { timeout }),
        any::<u32>().prop_map(|group| Action::Jump { group }),
        any::<u32>().prop_map(|mtr_id| Action::Meter { mtr_id }),
        (any::<bool>(), 0..4u8).prop_map(|(ipv6, ecn)| Action::set_ecn(ipv6, Ecn::from_tos(ecn))),
        (any::<u8>(), any::<u32>()).prop_map(|(index, data)| Action::set_tag(index, data)),
        any::<u32>().prop_map(|id| Action::Mark { id }),
        any::<[u8; 6]>().prop_map(|mac| Action::ModifyField(Modify::MacSrc(MacAddr(mac)))),
        any::<[u8; 6]>().prop_map(|mac| Action::ModifyField(Modify::MacDst(MacAddr(mac)))),
        any::<u16>().prop_map(|port| Action::RepresentedPort { port }),
        any::<u16>().prop_map(|port| Action::PortRepresentor { port }),
        any::<u32>().prop_map(|id| Action::PortId { id }),
        any::<u16>().prop_map(|index| Action::Queue { index }),
    ]
}

fn a_rule() -> impl Strategy<Value = FlowRule> {
    let domain = select(vec![Domain::Ingress, Domain::Egress, Domain::Transfer]);
    let attr = (any::<u32>(), any::<u32>(), domain).prop_map(|(group, priority, domain)| Attr {
        group,
        priority,
        domain,
    });
    let parts = (attr, prop::collection::vec(an_item(), 0..8), prop::collection::vec(an_action(), 0..8));
    parts.prop_map(|(attr, pattern, actions)| FlowRule { attr, pattern, actions })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_rule_comes_back_from_its_arrays(rule in a_rule(), context in 1..u64::MAX) {
        let lowered = Lowered::new(&rule, context, &[]).unwrap();
        // Moved after it was made: what it points to stays.
        let lowered = Box::new(lowered);
        let raised = raise(lowered.attr(), lowered.items().as_ptr(), lowered.actions().as_ptr(), context);
        prop_assert_eq!(&raised, &rule);
        prop_assert_eq!(&raise_copy(&lowered, context), &rule);
    }
}

#[test]
fn a_dpdk_without_queue_pairs_refuses_them_by_name() {
    let qp = Item::with(rules::items::ib_bth::DST_QP, 17u8);
    let rule = FlowRule {
        attr: Attr::transfer(1, 0),
        pattern: vec![Item::any(ItemKind::Udp), qp],
        actions: vec![Action::Count],
    };
    let lowered = Lowered::new(&rule, 1, &[]);
    assert_eq!(lowered.is_ok(), sys::HAS_ITEM_IB_BTH);
    match lowered {
        Ok(lowered) => {
            assert_eq!(raise(lowered.attr(), lowered.items().as_ptr(), lowered.actions().as_ptr(), 1), rule);
        }
        Err(error) => {
            assert_eq!((error.cause, error.at), (Cause::Unsupported, Where::Item(1)));
            assert!(error.message.contains("cannot match QPs"), "{error}");
        }
    }
}

#[test]
fn a_shared_action_stands_in_for_one_of_the_rule() {
    let rule = FlowRule {
        attr: Attr::transfer(1, 0),
        pattern: vec![Item::any(ItemKind::Eth)],
        actions: vec![Action::Count, Action::Drop],
    };
    let handle: *mut sys::rte_flow_action_handle = ptr::without_provenance_mut(64);
    let lowered = Lowered::new(&rule, 1, &[(0, handle)]).unwrap();
    let actions = lowered.actions();
    assert_eq!((actions[0].type_, actions[0].conf.addr()), (sys::RTE_FLOW_ACTION_TYPE_INDIRECT, 64));
    assert_eq!(actions[1].type_, sys::RTE_FLOW_ACTION_TYPE_DROP);
    let error = Lowered::new(&rule, 1, &[(2, handle)]).err().unwrap();
    assert_eq!((error.cause, error.at), (Cause::Invalid, Where::ActionNum));
}
