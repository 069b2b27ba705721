//! Offload: hot flows as rules of a NIC's embedded switch.
//!
//! ```text
//!   tables -> translator -> FlowRule -> BackEnd: a DPDK port's rte_flow, or a simulated e-switch
//! ```
//! A [`FlowRule`] is the project's own form of a rule; its items, actions and fields have the names that rte_flow and
//! testpmd give them. Nothing here knows DPDK: whoever does lowers a rule to C arrays behind the [`BackEnd`] trait.

pub mod actions;
pub mod back_end;
pub mod encap;
mod few;
pub mod field;
mod hasher;
pub mod items;
pub mod manager;
pub mod rule;
pub mod sim;
mod slots;
pub mod store;
pub mod translate;

pub use actions::Action;
pub use back_end::{BackEnd, Cause, FlowError, Guard, Meter, RuleId, Stamp, Usage, Where};
pub use encap::{Encap, EncapError};
pub use field::{Field, Format};
pub use items::{Item, Kind};
pub use rule::{Attr, Direction, FlowRule};
pub use store::{Installed, State, Store};
