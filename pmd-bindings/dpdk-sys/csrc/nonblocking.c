/*
 * Sending that blocks for nobody: see shim.h.
 *
 * net_af_packet waits in poll(2) without limit for a place in its ring (eth_af_packet_tx), and net_af_xdp calls send(2) again for as long as
 * that says EAGAIN (kick_tx). How long it takes is up to whoever has the other end of the interface. Both come here, because poll and send
 * are defined here for the whole process; in all other threads and at all other times they are those of the C library.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>

/* Refusals of send(2) in a row after which one is final. */
#define REFUSALS 16

static __thread bool nonblocking;
static __thread unsigned int refused;

int poll(struct pollfd *files, nfds_t count, int milliseconds)
{
	struct timespec limit = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
	struct timespec nothing = { 0, 0 };
	int ready;

	if (!nonblocking)
		return ppoll(files, count, milliseconds < 0 ? NULL : &limit, NULL);
	ready = ppoll(files, count, &nothing, NULL);
	if (ready != 0)
		return ready;
	errno = EAGAIN;
	return -1;
}

ssize_t send(int file, const void *bytes, size_t length, int flags)
{
	ssize_t sent = sendto(file, bytes, length, flags, NULL, 0);

	/* The driver goes on with what it has in hand when it is another error. */
	if (nonblocking && sent < 0 && errno == EAGAIN && ++refused >= REFUSALS)
		errno = ENOBUFS;
	return sent;
}

void dpdk_sys_nonblocking(bool is)
{
	nonblocking = is;
	refused = 0;
}
