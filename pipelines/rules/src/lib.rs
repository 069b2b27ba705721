//! Rules of a NIC's embedded switch in the terms of rte_flow and testpmd, and the trait of what takes them.
//!
//! A [`FlowRule`] is the project's own form of a rule. Nothing here knows DPDK or the tables of the pipeline: a port lowers
//! a rule to C arrays behind [`BackEnd`], the simulated e-switch executes it as it is, the console reads and writes it.

#![warn(missing_docs)]

pub mod actions;
pub mod back_end;
pub mod encap;
pub mod field;
pub mod inner_tuple;
pub mod items;
pub mod mlx5;
pub mod modify;
pub mod rule;
pub mod testpmd;

pub use actions::Action;
pub use back_end::{
    ArrivalCount, BackEnd, Cause, Colour, FlowError, Guard, Meter, Removal, RuleId, Usage, Where,
};
pub use encap::{Encap, EncapError};
pub use field::{Field, Format};
pub use inner_tuple::{InnerProtocol, InnerTuple};
pub use items::{Item, ItemKind};
pub use modify::Modify;
pub use rule::{Attr, Domain, FlowRule};
