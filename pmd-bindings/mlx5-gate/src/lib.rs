//! Would mlx5 take these rules? Asked of mlx5's own code, without a NIC.
//!
//! ```text
//!  FlowRule --- pmd::flow::flatten ---> bytes ---> mlx5-judge (judge/*.c) ---> lines ---> Verdict
//!                                                  Debian's static library of the driver, a device that says yes
//! ```
//! Rules are judged as they are lowered for DPDK, on the uplink of an e-switch among representors, for the engines and
//! NICs of [`Engine`] and [`Nic`]. What is accepted here a NIC may still refuse: firmware, insertion and packets are not
//! part of it. What is refused here the driver refuses on every NIC of that kind.

#![warn(missing_docs)]

pub mod chains;
pub mod judge;
mod program;
pub mod table;
pub mod wrong;

pub use judge::{Engine, GateError, Nic, Refusal, Verdict, judge};
