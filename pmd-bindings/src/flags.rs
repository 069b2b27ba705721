//! DPDK's flag constants, all as `u64`.
//!
//! bindgen gives each macro the narrowest integer type that holds its value; here they get one type, once.

#![allow(clippy::unnecessary_cast)]

use dpdk_sys as sys;

pub(crate) const RX_VLAN_STRIPPED: u64 = sys::RTE_MBUF_F_RX_VLAN_STRIPPED as u64;
pub(crate) const RX_RSS_HASH: u64 = sys::RTE_MBUF_F_RX_RSS_HASH as u64;
pub(crate) const RX_LRO: u64 = sys::RTE_MBUF_F_RX_LRO as u64;
pub(crate) const RX_IP_MASK: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_MASK as u64;
pub(crate) const RX_IP_GOOD: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD as u64;
pub(crate) const RX_IP_BAD: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_BAD as u64;
pub(crate) const RX_IP_NONE: u64 = sys::RTE_MBUF_F_RX_IP_CKSUM_NONE as u64;
pub(crate) const RX_L4_MASK: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_MASK as u64;
pub(crate) const RX_L4_GOOD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD as u64;
pub(crate) const RX_L4_BAD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_BAD as u64;
pub(crate) const RX_L4_NONE: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_NONE as u64;

pub(crate) const TX_MASK: u64 = sys::RTE_MBUF_F_TX_OFFLOAD_MASK as u64;
pub(crate) const TX_IP_CKSUM: u64 = sys::RTE_MBUF_F_TX_IP_CKSUM as u64;
pub(crate) const TX_IPV4: u64 = sys::RTE_MBUF_F_TX_IPV4 as u64;
pub(crate) const TX_IPV6: u64 = sys::RTE_MBUF_F_TX_IPV6 as u64;
pub(crate) const TX_TCP_CKSUM: u64 = sys::RTE_MBUF_F_TX_TCP_CKSUM as u64;
pub(crate) const TX_UDP_CKSUM: u64 = sys::RTE_MBUF_F_TX_UDP_CKSUM as u64;
pub(crate) const TX_L4_MASK: u64 = sys::RTE_MBUF_F_TX_L4_MASK as u64;
pub(crate) const TX_TCP_SEG: u64 = sys::RTE_MBUF_F_TX_TCP_SEG as u64;
pub(crate) const TX_OUTER_IPV4: u64 = sys::RTE_MBUF_F_TX_OUTER_IPV4 as u64;
pub(crate) const TX_OUTER_IPV6: u64 = sys::RTE_MBUF_F_TX_OUTER_IPV6 as u64;
pub(crate) const TX_OUTER_IP_CKSUM: u64 = sys::RTE_MBUF_F_TX_OUTER_IP_CKSUM as u64;
pub(crate) const TX_OUTER_UDP_CKSUM: u64 = sys::RTE_MBUF_F_TX_OUTER_UDP_CKSUM as u64;
pub(crate) const TX_TUNNEL_VXLAN: u64 = sys::RTE_MBUF_F_TX_TUNNEL_VXLAN as u64;

pub(crate) const INDIRECT: u64 = sys::RTE_MBUF_F_INDIRECT as u64;
pub(crate) const EXTERNAL: u64 = sys::RTE_MBUF_F_EXTERNAL as u64;

/// Bit positions in `rte_mbuf.tx_offload`.
pub(crate) const L3_LEN_SHIFT: u32 = sys::RTE_MBUF_L3_LEN_OFS as u32;
pub(crate) const L4_LEN_SHIFT: u32 = sys::RTE_MBUF_L4_LEN_OFS as u32;
pub(crate) const TSO_SEGSZ_SHIFT: u32 = sys::RTE_MBUF_TSO_SEGSZ_OFS as u32;
pub(crate) const OUTER_L3_LEN_SHIFT: u32 = sys::RTE_MBUF_OUTL3_LEN_OFS as u32;
pub(crate) const OUTER_L2_LEN_SHIFT: u32 = sys::RTE_MBUF_OUTL2_LEN_OFS as u32;
pub(crate) const OUTER_L3_LEN_MASK: u64 = (1 << sys::RTE_MBUF_OUTL3_LEN_BITS) - 1;
pub(crate) const OUTER_L2_LEN_MASK: u64 = (1 << sys::RTE_MBUF_OUTL2_LEN_BITS) - 1;
pub(crate) const L2_LEN_MASK: u64 = (1 << sys::RTE_MBUF_L2_LEN_BITS) - 1;
pub(crate) const L3_LEN_MASK: u64 = (1 << sys::RTE_MBUF_L3_LEN_BITS) - 1;
pub(crate) const L4_LEN_MASK: u64 = (1 << sys::RTE_MBUF_L4_LEN_BITS) - 1;

/// The number of ethdev ports that this DPDK was built for.
pub(crate) const MAX_PORTS: usize = sys::RTE_MAX_ETHPORTS as usize;
/// "Any NUMA node" (`SOCKET_ID_ANY`, a cast that bindgen does not evaluate).
pub(crate) const ANY_NODE: i32 = -1;
