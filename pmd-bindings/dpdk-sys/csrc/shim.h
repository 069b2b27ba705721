/*
 * Functions for what bindgen cannot reach: static inlines, thread-local variables and bit fields.
 * One call each, no logic, but for pools (pool.c), room behind a guest's memory (moat.c) and behind what librte_vhost notes of its
 * rings (shadow.c), and sending that blocks for nobody (nonblocking.c).
 */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stdbool.h>
#include <stdint.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

int dpdk_sys_errno(void);
unsigned int dpdk_sys_lcore_id(void);
struct rte_mbuf *dpdk_sys_mbuf_alloc(struct rte_mempool *pool);
int dpdk_sys_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void dpdk_sys_mbuf_free(struct rte_mbuf *mbuf);
void dpdk_sys_mbuf_free_segment(struct rte_mbuf *segment);
struct rte_mbuf *dpdk_sys_mbuf_clone(struct rte_mbuf *mbuf, struct rte_mempool *pool);
uint16_t dpdk_sys_mbuf_refcnt_update(struct rte_mbuf *mbuf, int16_t change);
int dpdk_sys_link_get(uint16_t port, uint32_t *mbps, uint8_t *full_duplex, uint8_t *autoneg, uint8_t *up);
uint16_t dpdk_sys_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t dpdk_sys_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
/* The next packet of a ring of packets, or NULL. */
struct rte_mbuf *dpdk_sys_ring_take(struct rte_ring *ring);
/* Packets that are in a ring. */
unsigned int dpdk_sys_ring_count(const struct rte_ring *ring);
/* Free objects in the caches of lcores, which their owners may change meanwhile. */
unsigned int dpdk_sys_mempool_cached(const struct rte_mempool *pool);
/*
 * A pool of packet buffers with `room` bytes each, behind which `spare` bytes are nobody's: what writes a little beyond a
 * buffer harms nothing there.
 */
struct rte_mempool *dpdk_sys_pool_create(const char *name, uint32_t count, uint32_t cache, uint16_t room, uint16_t spare,
	int socket);
/* A pool without buffers of its own, by which a thread takes as many from another one as it is allowed to; they go back there. */
struct rte_mempool *dpdk_sys_bounded_pool_create(const char *name, struct rte_mempool *pool);
/*
 * A pool of buffers with `room` bytes each, long enough for frames that many buffers of the usual pool would hold. Copies of its
 * packets are made in buffers of the usual one: dpdk_sys_pool_of_copies.
 */
struct rte_mempool *dpdk_sys_long_pool_create(const char *name, uint32_t count, uint32_t cache, uint16_t room,
	struct rte_mempool *usual, int socket);
/* The pool in which copies of packets of this pool are made. */
struct rte_mempool *dpdk_sys_pool_of_copies(struct rte_mempool *pool);
/*
 * rte_vhost_dequeue_burst with a bounded pool, of which it may take `most` buffers; `lost` tells why a frame was lost behind those that it
 * received, or 0: it asked for more, or there were none in the middle of the frame.
 */
#define DPDK_SYS_TOO_LONG 1
#define DPDK_SYS_NO_BUFFER 2
uint16_t dpdk_sys_vhost_dequeue(int vid, uint16_t ring, struct rte_mempool *bounded, uint32_t most, struct rte_mbuf **mbufs,
	uint16_t count, uint8_t *lost);
/*
 * Until the end, what the calling thread maps of files to share has room behind it that is nobody else's: what is written beyond such a
 * mapping is written there. The room is the caller's to unmap.
 */
#define DPDK_SYS_MOATS 16
struct dpdk_sys_moats {
	uint32_t count;
	uintptr_t start[DPDK_SYS_MOATS];
	size_t length[DPDK_SYS_MOATS];
};
void dpdk_sys_moats_begin(void);
struct dpdk_sys_moats dpdk_sys_moats_end(void);
/*
 * Whether drivers block for nothing while the calling thread sends: poll(2) does not wait then, and says EAGAIN where it would have to; send(2)
 * says ENOBUFS instead of EAGAIN after some of those.
 */
void dpdk_sys_nonblocking(bool is);
/*
 * Of what the calling thread asks for by rte_malloc_socket from now on, an array with so many places of a few bytes has as many as wanted;
 * by rte_realloc_socket it gets no less than it had. 0 for none.
 */
void dpdk_sys_vhost_shadow(uint32_t places, uint32_t wanted);
/* The number of the register that modify_field writes; where it is depends on the release. */
void dpdk_sys_modify_set_register(struct rte_flow_action_modify_field *modify, uint8_t index);
uint8_t dpdk_sys_modify_register(const struct rte_flow_action_modify_field *modify);
/* rte_flow_calc_encap_hash for the outer UDP source port, most significant byte first; -ENOTSUP before 24.03. */
int dpdk_sys_flow_encap_source_port(uint16_t port, const struct rte_flow_item *pattern, uint8_t *bytes,
	struct rte_flow_error *error);
/*
 * The bonding driver, whose functions for members have other names since 23.11. Where it is not installed: -ENOTSUP. A new
 * bond's port, or a negative error.
 */
int dpdk_sys_bond_create(const char *name, uint8_t mode, uint8_t socket);
int dpdk_sys_bond_add(uint16_t bond, uint16_t member);
int dpdk_sys_bond_hash(uint16_t bond, uint8_t policy);
/* The states of both ends of a member's link (IEEE 802.1AX); negative when the bond does not speak LACP. */
int dpdk_sys_bond_lacp(uint16_t bond, uint16_t member, uint8_t *actor, uint8_t *partner);
uint64_t dpdk_sys_sizeof_mbuf(void);
uint64_t dpdk_sys_sizeof_dev_info(void);
uint64_t dpdk_sys_sizeof_eth_conf(void);
uint64_t dpdk_sys_sizeof_fp_ops(void);

#endif
