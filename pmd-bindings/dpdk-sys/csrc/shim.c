/* See shim.h. */
#include "shim.h"

#include <rte_errno.h>
#include <rte_lcore.h>

int dpdk_sys_errno(void)
{
	return rte_errno;
}

unsigned int dpdk_sys_lcore_id(void)
{
	return rte_lcore_id();
}

struct rte_mbuf *dpdk_sys_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int dpdk_sys_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void dpdk_sys_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

void dpdk_sys_mbuf_free_segment(struct rte_mbuf *segment)
{
	rte_pktmbuf_free_seg(segment);
}

struct rte_mbuf *dpdk_sys_mbuf_clone(struct rte_mbuf *mbuf, struct rte_mempool *pool)
{
	return rte_pktmbuf_clone(mbuf, pool);
}

uint16_t dpdk_sys_mbuf_refcnt_update(struct rte_mbuf *mbuf, int16_t change)
{
	return rte_mbuf_refcnt_update(mbuf, change);
}

int dpdk_sys_link_get(uint16_t port, uint32_t *mbps, uint8_t *full_duplex, uint8_t *autoneg, uint8_t *up)
{
	struct rte_eth_link link = { 0 };
	int ret = rte_eth_link_get_nowait(port, &link);

	*mbps = link.link_speed;
	*full_duplex = link.link_duplex;
	*autoneg = link.link_autoneg;
	*up = link.link_status;
	return ret;
}

uint16_t dpdk_sys_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, mbufs, count);
}

uint16_t dpdk_sys_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

struct rte_mbuf *dpdk_sys_ring_take(struct rte_ring *ring)
{
	void *object = NULL;

	return rte_ring_dequeue(ring, &object) == 0 ? object : NULL;
}

unsigned int dpdk_sys_ring_count(const struct rte_ring *ring)
{
	return rte_ring_count(ring);
}

unsigned int dpdk_sys_mempool_cached(const struct rte_mempool *pool)
{
	unsigned int cached = 0;
	unsigned int lcore;

	if (pool->cache_size == 0)
		return 0;
	for (lcore = 0; lcore < RTE_MAX_LCORE; lcore++)
		cached += pool->local_cache[lcore].len;
	return cached;
}

void dpdk_sys_modify_set_register(struct rte_flow_action_modify_field *modify, uint8_t index)
{
	/* Releases with a field of its own for it (23.11 and later) read this one where that is 0. */
	modify->dst.level = index;
}

uint8_t dpdk_sys_modify_register(const struct rte_flow_action_modify_field *modify)
{
	return (uint8_t)modify->dst.level;
}

int dpdk_sys_flow_encap_source_port(uint16_t port, const struct rte_flow_item *pattern, uint8_t *bytes,
	struct rte_flow_error *error)
{
#ifdef DPDK_SYS_HAS_FLOW_ENCAP_HASH
	return rte_flow_calc_encap_hash(port, pattern, RTE_FLOW_ENCAP_HASH_FIELD_SRC_PORT, sizeof(uint16_t), bytes, error);
#else
	(void)port;
	(void)pattern;
	(void)bytes;
	return rte_flow_error_set(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
		"this DPDK has no rte_flow_calc_encap_hash");
#endif
}

uint64_t dpdk_sys_sizeof_mbuf(void)
{
	return sizeof(struct rte_mbuf);
}

uint64_t dpdk_sys_sizeof_dev_info(void)
{
	return sizeof(struct rte_eth_dev_info);
}

uint64_t dpdk_sys_sizeof_eth_conf(void)
{
	return sizeof(struct rte_eth_conf);
}

uint64_t dpdk_sys_sizeof_fp_ops(void)
{
	return sizeof(struct rte_eth_fp_ops);
}
