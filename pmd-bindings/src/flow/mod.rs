//! rte_flow: rules of the switch's own model ([`rules`]) given to a port.
//!
//! ```text
//!   FlowRule -- lower.rs (layout.rs) --> attr, items, actions -- port.rs, queue.rs --> rte_flow
//!   FlowError <-- error.rs ------------- rte_flow_error, errno, what the driver logged
//! ```
//! [`Flows`] is the synchronous API, which every driver with rte_flow has; [`FlowQueue`] the one with templates and
//! queues, for ports started with [`FlowQueues`] ([`FlowEngine`]). [`FlowDevice`] is either of them on the port that takes the rules of a
//! whole e-switch: the back end of the offload manager. Rules belong to their port: they go when it stops. What is
//! offloaded, and when, is decided elsewhere.
//!
//! No hardware was at hand: what only a NIC can show (that rules match, count, age and meter) is unconfirmed.

mod backlog;
mod device;
mod dump;
mod encap_hash;
mod engine;
mod error;
mod flatten;
mod held;
mod isolate;
mod layout;
mod lower;
mod meter;
mod port;
mod queue;
mod tables;
mod template;

pub use device::{FlowDevice, transfer_proxy};
pub(crate) use engine::configure;
pub use engine::{FlowEngine, FlowLimits, FlowQueues};
pub use flatten::flatten;
pub(crate) use held::Held;
pub use port::{Flows, SharedId};
pub use queue::FlowQueue;

/// What the DPDK that this was built with has of rte_flow. Whether a driver has it, too, only the driver can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Its version.
    pub version: &'static str,
    /// It can say "match the InfiniBand base transport header", so that queue pairs can be told apart.
    pub ib_bth: bool,
    /// It has the meter whose colours later rules see, of which red packets may go on.
    pub meter_mark: bool,
    /// It can say "match the colour that a meter gave".
    pub meter_color: bool,
    /// It has templates and queues.
    pub queues: bool,
    /// It can ask a driver which outer UDP source port its device writes.
    pub encap_hash: bool,
}

/// What the DPDK that this was built with has of rte_flow.
pub const BUILD: Build = Build {
    version: dpdk_sys::DPDK_VERSION,
    ib_bth: dpdk_sys::HAS_ITEM_IB_BTH,
    meter_mark: dpdk_sys::HAS_ACTION_METER_MARK,
    meter_color: dpdk_sys::HAS_ITEM_METER_COLOR,
    queues: dpdk_sys::HAS_FLOW_TEMPLATES,
    encap_hash: dpdk_sys::HAS_FLOW_ENCAP_HASH,
};
