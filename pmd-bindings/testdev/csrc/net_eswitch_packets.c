/*
 * net_eswitch: packets between an interface of the kernel and whoever polls the port, spread over its queues as it was
 * configured to.
 */
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_eswitch.h"
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_thash.h>

#define VXLAN 4789

/* The default key of drivers that have one. */
const uint8_t usual_key[RSS_KEY] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

/* The words that the port hashes of the headers of this frame, and how many; 0 of what it does not hash. `inside` is where a
 * frame in VxLAN begins, 0 without one. */
static uint32_t
fields(const struct port *port, const uint8_t *frame, uint16_t length, uint32_t tuple[9], uint16_t *inside)
{
	const uint64_t any = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP;
	uint16_t type, at = RTE_ETHER_HDR_LEN;
	bool fragment = false, has_ports;
	uint32_t words, i;
	uint8_t protocol;
	uint64_t l4;

	*inside = 0;
	if (length < RTE_ETHER_HDR_LEN)
		return 0;
	type = frame[12] << 8 | frame[13];
	if (type == RTE_ETHER_TYPE_IPV4 && length >= at + 20) {
		protocol = frame[at + 9];
		fragment = ((frame[at + 6] << 8 | frame[at + 7]) & 0x3fff) != 0;
		memcpy(tuple, frame + at + 12, 8);
		words = 2;
		l4 = protocol == IPPROTO_UDP ? RTE_ETH_RSS_NONFRAG_IPV4_UDP : RTE_ETH_RSS_NONFRAG_IPV4_TCP;
		at += (frame[at] & 15) * 4;
	} else if (type == RTE_ETHER_TYPE_IPV6 && length >= at + 40) {
		protocol = frame[at + 6];
		memcpy(tuple, frame + at + 8, 32);
		words = 8;
		l4 = protocol == IPPROTO_UDP ? RTE_ETH_RSS_NONFRAG_IPV6_UDP : RTE_ETH_RSS_NONFRAG_IPV6_TCP;
		at += 40;
	} else {
		return 0;
	}
	has_ports = (protocol == IPPROTO_UDP || protocol == IPPROTO_TCP) && !fragment && at + 4 <= length;
	if (has_ports && protocol == IPPROTO_UDP && (frame[at + 2] << 8 | frame[at + 3]) == VXLAN && at + 16 <= length)
		*inside = at + 16;
	if (has_ports && (port->rss_hf & l4))
		memcpy(&tuple[words++], frame + at, 4);
	for (i = 0; i < words; i++)
		tuple[i] = rte_be_to_cpu_32(tuple[i]);
	return port->rss_hf & any ? words : 0;
}

/* The hash that the port was configured for. What is in a tunnel and has nothing to hash is told by the tunnel. */
static uint32_t
rss_hash(const struct port *port, const uint8_t *frame, uint16_t length)
{
	bool innermost = (port->rss_hf & RTE_ETH_RSS_LEVEL_MASK) == RTE_ETH_RSS_LEVEL_INNERMOST;
	uint32_t tuple[9], inner[9], words;
	uint16_t inside, deeper;

	words = fields(port, frame, length, tuple, &inside);
	if (innermost && inside != 0) {
		uint32_t count = fields(port, frame + inside, length - inside, inner, &deeper);

		if (count > 0)
			return rte_softrss(inner, count, port->rss_key);
	}
	return words == 0 ? 0 : rte_softrss(tuple, words, port->rss_key);
}

/* Takes what waits in the socket, and gives each frame to its queue. */
static void
distribute(struct port *port)
{
	uint16_t queues = port->dev->data->nb_rx_queues;
	unsigned int i;

	for (i = 0; i < 64; i++) {
		struct rte_mbuf *mbuf = rte_pktmbuf_alloc(port->rx[0].pool);
		struct sockaddr_ll from;
		socklen_t from_length = sizeof(from);
		struct rx_queue *queue;
		ssize_t length;
		uint8_t *data;

		if (mbuf == NULL)
			return;
		data = rte_pktmbuf_mtod(mbuf, uint8_t *);
		length = recvfrom(port->socket, data, rte_pktmbuf_tailroom(mbuf), MSG_DONTWAIT | MSG_TRUNC,
			(struct sockaddr *)&from, &from_length);
		if (length <= 0 || length > rte_pktmbuf_tailroom(mbuf) || from.sll_pkttype == PACKET_OUTGOING) {
			rte_pktmbuf_free(mbuf);
			if (length <= 0)
				return;
			continue;
		}
		mbuf->data_len = mbuf->pkt_len = length;
		mbuf->port = port->dev->data->port_id;
		if (port->rss_hf != 0) {
			mbuf->hash.rss = rss_hash(port, data, length);
			mbuf->ol_flags |= RTE_MBUF_F_RX_RSS_HASH;
		}
		queue = &port->rx[port->rss_hf != 0 ? mbuf->hash.rss % queues : 0];
		if (queue->head - queue->tail == WAITING) {
			queue->lost++;
			rte_pktmbuf_free(mbuf);
			continue;
		}
		queue->waiting[queue->head++ % WAITING] = mbuf;
	}
}

uint16_t
packets_receive(void *opaque, struct rte_mbuf **mbufs, uint16_t room)
{
	struct rx_queue *queue = opaque;
	struct port *port = queue->port;
	uint16_t count = 0;

	if (port->socket < 0 || port->isolated)
		return 0;
	rte_spinlock_lock(&port->rx_lock);
	if (queue->head == queue->tail)
		distribute(port);
	while (count < room && queue->head != queue->tail) {
		mbufs[count] = queue->waiting[queue->tail++ % WAITING];
		queue->bytes += mbufs[count]->pkt_len;
		count++;
	}
	queue->packets += count;
	rte_spinlock_unlock(&port->rx_lock);
	return count;
}

uint16_t
packets_transmit(void *opaque, struct rte_mbuf **mbufs, uint16_t count)
{
	struct tx_queue *queue = opaque;
	uint8_t room[RTE_ETHER_MAX_JUMBO_FRAME_LEN];
	uint16_t i;

	for (i = 0; i < count; i++) {
		uint32_t length = rte_pktmbuf_pkt_len(mbufs[i]);
		const void *data;

		if (mbufs[i]->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
			tso_transmit(queue, mbufs[i]);
			continue;
		}
		data = length > sizeof(room) ? NULL : rte_pktmbuf_read(mbufs[i], 0, length, room);

		if (data == NULL || (queue->port->socket >= 0 &&
		    send(queue->port->socket, data, length, MSG_DONTWAIT) != (ssize_t)length))
			queue->lost++;
		queue->packets++;
		queue->bytes += length;
	}
	rte_pktmbuf_free_bulk(mbufs, count);
	return count;
}

int
packets_socket(const char *interface)
{
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	struct packet_mreq all = { .mr_type = PACKET_MR_PROMISC };
	int packets = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));

	if (packets < 0)
		return -1;
	address.sll_ifindex = all.mr_ifindex = if_nametoindex(interface);
	if (address.sll_ifindex == 0 || bind(packets, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(packets, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) < 0) {
		close(packets);
		return -1;
	}
	return packets;
}
