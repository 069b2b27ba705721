//! What the rest of the switch asks of whoever holds rules: a DPDK port, or the simulated e-switch.

use std::fmt;

use thiserror::Error;

use crate::inner_tuple::InnerTuple;
use crate::rule::FlowRule;

/// A rule that a back end holds. Never used again, even after the rule is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// A count of a flow's packets that came to software: the e-switch's own, or where nobody but software counts them,
/// software's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArrivalCount(pub u64);

/// What a gate asks for when it comes into force: that no packet of its flow came to software since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The number by which the back end tells it from others.
    pub flow: u64,
    /// When everything of the flow had left software.
    pub arrivals: ArrivalCount,
}

/// What a rule has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Packets that met the rule since it was made.
    pub packets: u64,
    /// Their bytes, as the rule met them.
    pub bytes: u64,
}

/// A meter: a two-rate three-colour marker (RFC 4115), in bytes, blind to earlier colours. Without an excess rate
/// yellow and red divide at the excess burst, as in a single-rate one (RFC 2697).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Committed rate, bytes per second: what fits is green.
    pub cir: u64,
    /// Committed burst, bytes.
    pub cbs: u64,
    /// Excess rate, bytes per second: what fits is yellow, the rest red. 0: the excess burst is filled with what
    /// overflows the committed one.
    pub eir: u64,
    /// Excess burst, bytes.
    pub ebs: u64,
}

/// What a meter says of a packet, as the `meter` item matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate.
    Green = 0,
    /// Within the excess rate or burst.
    Yellow = 1,
    /// Beyond both: turned away.
    Red = 2,
}

/// What an error is about; the names are those of rte_flow's error types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Where {
    /// The back end names no part of the rule.
    Unspecified,
    /// The rule as a whole, or its handle.
    Handle,
    /// Group, priority, direction: which of them.
    AttrGroup,
    /// The priority within the group.
    AttrPriority,
    /// The ingress attribute.
    AttrIngress,
    /// The egress attribute.
    AttrEgress,
    /// The transfer attribute: the e-switch as a whole.
    AttrTransfer,
    /// The attributes together.
    Attr,
    /// The number of items.
    ItemNum,
    /// Spec of the item at this index.
    ItemSpec(usize),
    /// Last of the item at this index.
    ItemLast(usize),
    /// Mask of the item at this index.
    ItemMask(usize),
    /// The item at this index.
    Item(usize),
    /// The number of actions.
    ActionNum,
    /// Configuration of the action at this index.
    ActionConf(usize),
    /// The action at this index.
    Action(usize),
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => write!(f, "unspecified"),
            Self::Handle => write!(f, "rule"),
            Self::AttrGroup => write!(f, "group"),
            Self::AttrPriority => write!(f, "priority"),
            Self::AttrIngress => write!(f, "ingress"),
            Self::AttrEgress => write!(f, "egress"),
            Self::AttrTransfer => write!(f, "transfer"),
            Self::Attr => write!(f, "attributes"),
            Self::ItemNum => write!(f, "number of items"),
            Self::ItemSpec(index) => write!(f, "spec of item {index}"),
            Self::ItemLast(index) => write!(f, "last of item {index}"),
            Self::ItemMask(index) => write!(f, "mask of item {index}"),
            Self::Item(index) => write!(f, "item {index}"),
            Self::ActionNum => write!(f, "number of actions"),
            Self::ActionConf(index) => write!(f, "configuration of action {index}"),
            Self::Action(index) => write!(f, "action {index}"),
        }
    }
}

/// What the refusal means to whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The device cannot do it (ENOTSUP, ENOSYS).
    Unsupported,
    /// It makes no sense (EINVAL).
    Invalid,
    /// There is no room (ENOSPC, ENOMEM).
    Full,
    /// There is such a rule already (EEXIST).
    Exists,
    /// Not now: ask again (EAGAIN, EBUSY).
    Again,
    /// There is no such rule (ENOENT).
    Gone,
    /// The device is gone (ENODEV, or EIO of one that was removed).
    NoDevice,
    /// Any other error number.
    Other(i32),
}

/// Why a back end did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} ({at})")]
pub struct FlowError {
    /// What the caller can do about it: try again, do without, or mend the rule.
    pub cause: Cause,
    /// The part of the rule that the back end names.
    pub at: Where,
    /// The back end's words.
    pub message: String,
}

impl FlowError {
    /// An error with the back end's own words, or with ours where it has none.
    pub fn new(cause: Cause, at: Where, message: impl Into<String>) -> Self {
        Self { cause, at, message: message.into() }
    }
}

/// How far the removal of a rule is that [`BackEnd::destroy`] took on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The rule is gone.
    Done,
    /// The device has not answered yet: packets may meet the rule.
    UnderWay,
    /// The device did not let it go, for this reason: packets meet it. The back end asks again by itself, until it goes.
    Refused(FlowError),
}

/// Holds rules and applies them to packets.
pub trait BackEnd {
    /// Would [`create`](Self::create) take this rule, room aside?
    ///
    /// # Errors
    /// Why not.
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError>;

    /// Takes a rule. It is in force when [`completed`](Self::completed) has said so, not before.
    ///
    /// # Errors
    /// Why not.
    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError>;

    /// Takes the rule that opens the way of a flow. Where the back end can tell, one whose guard does not hold at the
    /// moment it comes into force fails with [`Cause::Again`], and no packet of the flow is overtaken by a later one.
    ///
    /// A NIC cannot tell: packets that reach it between the count and the rule may be overtaken (unconfirmed on
    /// hardware). That window is narrowed by asking for flows that were idle for a while, not by the rule.
    ///
    /// # Errors
    /// Why not.
    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        let _ = guard;
        self.create(rule)
    }

    /// What became of rules that were taken, since the last call. Back ends that wait for the device in `create` report
    /// here too. A rule that failed is gone.
    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>);

    /// Removes a rule. What it saw in all, as exactly as the device can tell. No packet that comes later meets it; a back
    /// end that works through a queue has it gone a little later, before rules that are made afterwards are in force and
    /// at the latest when [`drain`](Self::drain) returns. Of rules that lead from one to the other those of lower groups go
    /// first.
    ///
    /// # Errors
    /// Why not; [`Cause::Gone`] when it is not there.
    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError>;

    /// How far the removal of a rule is that [`destroy`](Self::destroy) took on. Back ends that wait for the device there have
    /// nothing under way; a rule that is not known is gone.
    fn removal(&mut self, rule: RuleId) -> Removal {
        let _ = rule;
        Removal::Done
    }

    /// Hands the device what it was asked for so far, and takes in its answers, without waiting.
    fn push(&mut self) {}

    /// Waits until the device has done all that it was asked for, but for no longer than control may stand still: a second.
    ///
    /// # Errors
    /// What it did not do; [`Cause::Again`] when it does not answer, or has more to do than in that time.
    fn drain(&mut self) -> Result<(), FlowError> {
        Ok(())
    }

    /// What a rule with a `count` action has seen, as of the device's last refresh.
    ///
    /// # Errors
    /// Why not; [`Cause::Again`] when the device has no figures yet.
    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError>;

    /// Rules with an `age` action that ran out since the last call: each is reported once.
    fn aged(&mut self, rules: &mut Vec<RuleId>);

    /// Removes all rules.
    ///
    /// # Errors
    /// Why not; some may be left.
    fn flush(&mut self) -> Result<(), FlowError>;

    /// Makes or changes the meter that `meter` actions with this number refer to; `None` removes it. Rules stay.
    ///
    /// A back end that works through a queue does not wait for the device: rules that name a new meter come into force
    /// behind it, new rates hold a little later and at the latest when [`drain`](Self::drain) returns, and a meter goes behind
    /// the rules that name it. What came to nothing then, [`failed_meters`](Self::failed_meters) tells.
    ///
    /// # Errors
    /// Why not; [`Cause::Again`] when it may do it later.
    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError>;

    /// Meters that [`set_meter`](Self::set_meter) took and that came to nothing, by number and since the last call: one that
    /// was to be made is not there, and rules that name it fail; one that was to be changed may have either rates.
    fn failed_meters(&mut self, failed: &mut Vec<(u32, FlowError)>) {
        let _ = failed;
    }

    /// The outer UDP source port that the device writes when it puts a packet with these inner headers into a tunnel,
    /// whatever the header in the rule says (`rte_flow_calc_encap_hash`). Asked for by control, never for a packet.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] when the device does not tell.
    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        let _ = inner;
        let message = "the device does not tell which outer source port it writes";
        Err(FlowError::new(Cause::Unsupported, Where::Unspecified, message))
    }
}
