/*
 * Room behind mappings of a guest's memory: see shim.h.
 *
 * librte_vhost writes a packet into a guest's buffer as if that were long enough when it is shorter than a virtio-net header, or when the
 * one behind such a one is shorter than what is left of that (mbuf_to_desc and virtio_dev_rx_sync_batch_check of lib/vhost/virtio_net.c,
 * where an unsigned difference wraps). So a guest can have a whole packet written behind the end of its memory. What was mapped there, for
 * instance the memory of another guest, must not be harmed. Descriptors can be changed at any time, so nobody can look at them before;
 * and the library maps memory itself. It does so by mmap, which is therefore defined here, for the whole process.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * More than the longest packet, which is written once, and than what is read by an index of 16 bits behind a packed ring: its index runs
 * wild when the chains of one packet have more descriptors than the ring (vq_inc_last_avail_packed of lib/vhost/vhost.h).
 */
#define MOAT ((1u << 20) + (256u << 10))

/* What this thread has mapped since it began, and whether it is to have room behind it. */
static __thread struct dpdk_sys_moats moats;
static __thread bool digs;

static void *call(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
	return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

/* Huge pages lie at multiples of their size. */
static size_t alignment_of(int file)
{
	struct stat status;

	if (fstat(file, &status) != 0 || status.st_blksize <= 0 || (status.st_blksize & (status.st_blksize - 1)) != 0)
		return 0;
	return status.st_blksize;
}

/* Maps a file with room behind it that is ours; MAP_FAILED as mmap(2). */
static void *map_with_moat(size_t length, int protection, int flags, int file, off_t offset)
{
	const int ours = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	size_t alignment = alignment_of(file), all;
	char *place, *start, *moat;

	if (alignment == 0 || __builtin_add_overflow(length, alignment + MOAT, &all))
		return call(NULL, length, protection, flags, file, offset);
	place = call(NULL, all, PROT_NONE, ours, -1, 0);
	if (place == MAP_FAILED)
		return MAP_FAILED;
	start = (char *)(((uintptr_t)place + alignment - 1) & ~(alignment - 1));
	moat = start + length;
	if (call(start, length, protection, flags | MAP_FIXED, file, offset) == MAP_FAILED ||
			mprotect(moat, MOAT, PROT_READ | PROT_WRITE) != 0) {
		munmap(place, all);
		return MAP_FAILED;
	}
	if (start > place)
		munmap(place, start - place);
	if (moat + MOAT < place + all)
		munmap(moat + MOAT, place + all - (moat + MOAT));
	moats.start[moats.count] = (uintptr_t)moat;
	moats.length[moats.count] = MOAT;
	moats.count++;
	return start;
}

static void *map(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
	bool is_shared_file = (flags & MAP_TYPE) == MAP_SHARED && file >= 0 && address == NULL;

	if (digs && is_shared_file && moats.count < DPDK_SYS_MOATS)
		return map_with_moat(length, protection, flags, file, offset);
	return call(address, length, protection, flags, file, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
	return map(address, length, protection, flags, file, offset);
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
	return map(address, length, protection, flags, file, offset);
}

void dpdk_sys_moats_begin(void)
{
	digs = true;
}

struct dpdk_sys_moats dpdk_sys_moats_end(void)
{
	struct dpdk_sys_moats made = moats;

	digs = false;
	moats.count = 0;
	return made;
}
