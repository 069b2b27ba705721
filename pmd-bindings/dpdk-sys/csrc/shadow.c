/*
 * Shadow used rings of librte_vhost: see shim.h.
 *
 * The library notes each buffer that it has used until it tells the guest (shadow_used_split and shadow_used_packed of lib/vhost/vhost.h)
 * in as many places as the ring has descriptors, and counts them nowhere. A guest can have it use more of them at a time: the index of a
 * split ring says what it likes, chains of a packed ring may go around it, packets are spread over buffers of nothing; in one call, each of
 * 32 packets over as many buffers as the ring has, but one (reserve_avail_buf_split and vhost_enqueue_single_packed of
 * lib/vhost/virtio_net.c). What is behind the places is others' memory then. Rings change at any time, so nobody can look at them
 * before. The library asks for the places by functions that are therefore defined here, for the whole process.
 *
 * And it copies a table of descriptors that lies across two regions of a guest's memory, however long the guest says it is, and forgets
 * the copy when an address in it is nobody's (fill_vec_buf_packed_indirect). No driver has such tables: there is no memory for them.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <rte_malloc.h>

/* Of the message that this thread has handled: places that the library asks for, and that it gets. Others handle none. */
static __thread uint32_t asked, given;
static __thread bool handles;

/* Bytes of an entry at most; what else the library has of each descriptor is longer. */
#define ENTRY 16

void dpdk_sys_vhost_shadow(uint32_t places, uint32_t wanted)
{
	asked = places;
	given = wanted;
	handles = true;
}

/* What DPDK has by this name. */
static void *actual(const char *name, void *_Atomic *known)
{
	void *function = atomic_load_explicit(known, memory_order_relaxed);

	if (function == NULL) {
		function = dlsym(RTLD_NEXT, name);
		atomic_store_explicit(known, function, memory_order_relaxed);
	}
	return function;
}

void *rte_malloc_socket(const char *type, size_t size, unsigned int align, int socket)
{
	static void *_Atomic known;
	void *(*allocate)(const char *, size_t, unsigned int, int) = actual("rte_malloc_socket", &known);

	if (type != NULL && strcmp(type, "vhost_alloc_copy_ind_table") == 0)
		return NULL;
	if (asked > 0 && given > asked && size % asked == 0 && size / asked <= ENTRY)
		size = size / asked * given;
	return allocate(type, size, align, socket);
}

/* Used where rings are on another NUMA node than they were: nothing is to become shorter by it. */
void *rte_realloc_socket(void *memory, size_t size, unsigned int align, int socket)
{
	static void *_Atomic known;
	void *(*allocate)(void *, size_t, unsigned int, int) = actual("rte_realloc_socket", &known);
	size_t before;

	if (handles && memory != NULL && rte_malloc_validate(memory, &before) == 0 && before > size)
		size = before;
	return allocate(memory, size, align, socket);
}
