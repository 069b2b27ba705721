/*
 * What bindgen reads: the public DPDK headers this project uses, the shim's declarations, and field offsets
 * that do not depend on how a DPDK release nests its anonymous unions (22.11 has struct rte_mbuf's rearm
 * fields at the top level, 24.11 inside a union).
 */
#include <stddef.h>
#include <rte_bus.h>
#include <rte_config.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mempool.h>
#include <rte_mtr.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <rte_vhost.h>
#if __has_include(<rte_eth_ring.h>)
#include <rte_eth_ring.h>
#endif
#include "shim.h"

enum {
	DPDK_SYS_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	DPDK_SYS_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	DPDK_SYS_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	DPDK_SYS_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	DPDK_SYS_MBUF_PORT = offsetof(struct rte_mbuf, port),
	DPDK_SYS_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	DPDK_SYS_MBUF_PACKET_TYPE = offsetof(struct rte_mbuf, packet_type),
	DPDK_SYS_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	DPDK_SYS_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	DPDK_SYS_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	DPDK_SYS_MBUF_HASH_RSS = offsetof(struct rte_mbuf, hash),
	DPDK_SYS_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	DPDK_SYS_MBUF_POOL = offsetof(struct rte_mbuf, pool),
	DPDK_SYS_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	DPDK_SYS_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
	DPDK_SYS_MBUF_SHINFO = offsetof(struct rte_mbuf, shinfo),
	DPDK_SYS_SHINFO_REFCNT = offsetof(struct rte_mbuf_ext_shared_info, refcnt),
	DPDK_SYS_MBUF_SIZE = sizeof(struct rte_mbuf),
#ifdef RTE_ETHDEV_RXTX_CALLBACKS
	DPDK_SYS_RXTX_CALLBACKS = 1,
#else
	DPDK_SYS_RXTX_CALLBACKS = 0,
#endif
};
