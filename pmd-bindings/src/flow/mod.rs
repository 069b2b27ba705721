//! rte_flow: rules of the switch's own model ([`pipelines::offload`]) given to a port.
//!
//! ```text
//!   FlowRule -- lower.rs (layout.rs) --> attr, items, actions -- port.rs, queue.rs --> rte_flow
//!   FlowError <-- error.rs ------------- rte_flow_error, errno, what the driver logged
//! ```
//! [`Flows`] is the synchronous API, which every driver with rte_flow has; [`FlowQueue`] the one with templates and
//! queues, for ports started with [`FlowQueues`]. Both are back ends for the offload manager. Rules belong to their
//! port: they go when it stops. What is offloaded, and when, is decided elsewhere.
//!
//! No hardware was at hand: what only a NIC can show (that rules match, count, age and meter) is unconfirmed.

mod error;
mod held;
mod layout;
mod lower;
mod meter;
mod port;
mod queue;
mod template;

pub(crate) use held::Held;
pub use port::{Flows, SharedId};
pub(crate) use queue::configure;
pub use queue::{FlowLimits, FlowQueue, FlowQueues};
