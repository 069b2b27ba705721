//! A set that workers share without locks, and in which each vNIC has a bounded number of places: the queue pairs of the
//! RCFT ([`crate::rcft`]), and the connections of security groups ([`crate::connections`]).
//!
//! [`Ledger`] is the workers' side, which admits; [`Keeper`] is control's, which alone takes out. A key has `K` words, the
//! last of which has the vNIC in its upper half; a slot of it has `N = 2 * K + 4` words of 32 bits.

mod admission;
mod base;
mod keeper;
mod limits;
mod slot;

pub use admission::{Attendance, Ledger, LedgerAnswer, LedgerParams, MAX_SLOTS};
pub(crate) use base::hash;
pub use keeper::{Keeper, LedgerView, vnic_of};
pub use limits::LedgerLimits;
pub use slot::Chain;
