//! Header layouts, checked newtypes, checksums and the packet buffer trait.
//!
//! The bottom of the house: everything that knows what bytes mean, and nothing that knows where they come
//! from. No crate of this workspace is below it; it performs no I/O and allocates only in [`heap::HeapBuf`],
//! the buffer that tests and control-plane code use.

pub mod heap;
pub mod packet;
pub mod types;

pub use heap::HeapBuf;
pub use packet::{ChecksumState, PacketBuf, RxFacts, TxRequest};
pub use types::{Dscp, Ecn, MacAddr, Psn, Qpn, Vni};
