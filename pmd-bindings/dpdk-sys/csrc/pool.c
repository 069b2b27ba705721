/* Pools of packet buffers: see shim.h. */
#include "shim.h"

#include <errno.h>
#include <stdbool.h>
#include <rte_errno.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_vhost.h>

/* What this thread may still take from bounded pools, whether it has taken some, and what it was refused. */
static __thread uint32_t allowed;
static __thread bool has_begun;
static __thread uint8_t refused;

struct rte_mempool *dpdk_sys_pool_create(const char *name, uint32_t count, uint32_t cache, uint16_t room, uint16_t spare,
	int socket)
{
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, cache, 0, room + spare, socket);

	if (pool == NULL)
		return NULL;
	((struct rte_pktmbuf_pool_private *)rte_mempool_get_priv(pool))->mbuf_data_room_size = room;
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

struct rte_mempool *dpdk_sys_long_pool_create(const char *name, uint32_t count, uint32_t cache, uint16_t room,
	struct rte_mempool *usual, int socket)
{
	struct rte_pktmbuf_pool_private sizes = { .mbuf_data_room_size = room };
	struct rte_mempool *pool = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache, sizeof(sizes),
		socket, 0);
	int ret;

	if (pool == NULL)
		return NULL;
	/* Drivers of rings of buffers have no use for this word. */
	ret = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), usual);
	if (ret == 0) {
		rte_pktmbuf_pool_init(pool, &sizes);
		ret = rte_mempool_populate_default(pool);
	}
	if (ret < 0) {
		rte_mempool_free(pool);
		rte_errno = -ret;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

struct rte_mempool *dpdk_sys_pool_of_copies(struct rte_mempool *pool)
{
	return pool->pool_config != NULL ? pool->pool_config : pool;
}

static int bounded_alloc(struct rte_mempool *bounded)
{
	(void)bounded;
	return 0;
}

static void bounded_free(struct rte_mempool *bounded)
{
	(void)bounded;
}

/* Nothing comes back here: a buffer knows the pool that it is of. */
static int bounded_enqueue(struct rte_mempool *bounded, void *const *objects, unsigned int count)
{
	(void)bounded;
	(void)objects;
	(void)count;
	return -ENOTSUP;
}

static int bounded_dequeue(struct rte_mempool *bounded, void **objects, unsigned int count)
{
	int ret;

	if (count > allowed) {
		refused = DPDK_SYS_TOO_LONG;
		return -ENOBUFS;
	}
	ret = rte_mempool_get_bulk(bounded->pool_config, objects, count);
	if (ret == 0) {
		allowed -= count;
		has_begun = true;
	} else if (has_begun) {
		/* What has no buffer at all stays with the guest. */
		refused = DPDK_SYS_NO_BUFFER;
	}
	return ret;
}

static unsigned int bounded_count(const struct rte_mempool *bounded)
{
	(void)bounded;
	return 0;
}

static const struct rte_mempool_ops bounded_ops = {
	.name = "bounded",
	.alloc = bounded_alloc,
	.free = bounded_free,
	.enqueue = bounded_enqueue,
	.dequeue = bounded_dequeue,
	.get_count = bounded_count,
};

RTE_MEMPOOL_REGISTER_OPS(bounded_ops);

struct rte_mempool *dpdk_sys_bounded_pool_create(const char *name, struct rte_mempool *pool)
{
	struct rte_mempool *bounded = rte_mempool_create_empty(name, 1, pool->elt_size, 0,
		sizeof(struct rte_pktmbuf_pool_private), pool->socket_id, 0);
	int ret;

	if (bounded == NULL)
		return NULL;
	ret = rte_mempool_set_ops_byname(bounded, bounded_ops.name, pool);
	if (ret != 0) {
		rte_mempool_free(bounded);
		rte_errno = -ret;
		return NULL;
	}
	*(struct rte_pktmbuf_pool_private *)rte_mempool_get_priv(bounded) =
		*(struct rte_pktmbuf_pool_private *)rte_mempool_get_priv(pool);
	return bounded;
}

uint16_t dpdk_sys_vhost_dequeue(int vid, uint16_t ring, struct rte_mempool *bounded, uint32_t most, struct rte_mbuf **mbufs,
	uint16_t count, uint8_t *lost)
{
	uint16_t received;

	allowed = most;
	has_begun = false;
	refused = 0;
	received = rte_vhost_dequeue_burst(vid, ring, bounded, mbufs, count);
	*lost = refused;
	return received;
}
