//! Header layouts, checked newtypes, checksums and the packet buffer trait.
//!
//! The bottom of the house: everything that knows what bytes mean, and nothing that knows where they come
//! from. No crate of this workspace is below it; it performs no I/O and has no unsafe code. It allocates only in
//! [`heap::HeapBuf`] and [`build`], which tests and control-plane code use.
//!
//! | to | see |
//! |---|---|
//! | find the headers of a packet | [`parse::parse_into`], [`Headers`], [`Malformed`] |
//! | read or write one header | [`View`] and the file of the protocol |
//! | check or fill a checksum | [`l4`], [`ipv4::checksum_ok`], [`checksum::update`], [`icrc`] |
//! | read what RDMA connection managers say | [`cm::Cm`] |
//! | find the flow of an ICMP error | [`quoted`] |
//! | cut a TCP super-frame into packets | [`segment::Segmentation`], [`segment::SuperFrame`] |
//! | compose a packet | [`build`], [`build::control`] |

#![warn(missing_docs)]

pub mod arp;
pub mod bfd;
pub mod build;
pub mod checksum;
pub mod cm;
pub mod crc;
pub mod dhcp;
pub mod dhcpv6;
pub mod ethernet;
pub mod headers;
pub mod heap;
pub mod icmp;
pub mod icmpv6;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
pub mod l4;
pub mod llc;
pub mod mad;
pub mod malformed;
pub mod packet;
pub mod parse;
pub mod protocol;
pub mod quoted;
pub mod roce;
pub mod sctp;
pub mod segment;
pub mod tcp;
pub mod types;
pub mod udp;
pub mod view;
pub mod vlan;
pub mod vxlan;

pub use headers::{Flags, Headers, L3};
pub use heap::HeapBuf;
pub use malformed::Malformed;
pub use packet::{ChecksumState, OuterHeaders, PacketBuf, RxFacts, TunnelTso, TxRequest};
pub use types::{Dscp, Ecn, MacAddr, Psn, Qpn, Vni};
pub use view::View;
