/*
 * net_eswitch: TCP super-frames inside VxLAN, cut as NICs do it that offer RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO. What the flags and lengths of
 * a packet say is believed, as hardware believes it; what drivers rely on and does not hold is misuse.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

#include "net_eswitch.h"
#include <rte_errno.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_net.h>
#include <rte_tcp.h>
#include <rte_udp.h>

/* The smallest segment size, and most segments of memory: those of real devices lie around. */
#define LEAST_SIZE 256
#define MOST_HEADERS 256

#define WANTED (RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TUNNEL_VXLAN)

uint64_t
tso_offloads(void)
{
	return RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO | RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_TCP_CKSUM |
		RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_OUTER_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_OUTER_UDP_CKSUM;
}

static void
not_taken(struct port *port, const char *words)
{
	rte_spinlock_lock(&port->eswitch->lock);
	port->eswitch->counts[MISUSED]++;
	rte_spinlock_unlock(&port->eswitch->lock);
	SAY(ERR, "misuse: a super-frame %s\n", words);
}

/* rte_eth_tx_prepare: checksum fields as drivers of Intel's devices want them, by the same function of DPDK. */
uint16_t
tso_prepare(void *opaque, struct rte_mbuf **mbufs, uint16_t count)
{
	struct tx_queue *queue = opaque;
	uint16_t i;

	for (i = 0; i < count; i++) {
		uint64_t flags = mbufs[i]->ol_flags;
		int result;

		if ((flags & RTE_MBUF_F_TX_TCP_SEG) == 0)
			continue;
		if ((flags & WANTED) != WANTED || mbufs[i]->nb_segs > TSO_SEGMENTS) {
			not_taken(queue->port, "in no tunnel of VxLAN, or in too many segments of memory");
			rte_errno = EINVAL;
			return i;
		}
		if (mbufs[i]->tso_segsz < LEAST_SIZE) {
			rte_errno = EINVAL;
			return i;
		}
		result = rte_net_intel_cksum_prepare(mbufs[i]);
		if (result != 0) {
			rte_errno = -result;
			return i;
		}
	}
	return count;
}

static uint16_t
sum16(uint32_t sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* The two headers of a piece, from the super-frame's; `data` bytes follow them. */
static void
close_headers(uint8_t *frame, const struct rte_mbuf *mbuf, uint32_t headers, uint32_t data, uint32_t number, bool last)
{
	uint8_t *outer = frame + mbuf->outer_l2_len, *inner = outer + mbuf->outer_l3_len + mbuf->l2_len;
	struct rte_udp_hdr *udp = (struct rte_udp_hdr *)(outer + mbuf->outer_l3_len);
	struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(inner + mbuf->l3_len);
	uint32_t length = headers + data, tcp_length = mbuf->l4_len + data;

	if (mbuf->ol_flags & RTE_MBUF_F_TX_IPV4) {
		struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)inner;

		ip->total_length = rte_cpu_to_be_16(mbuf->l3_len + tcp_length);
		ip->packet_id = rte_cpu_to_be_16(rte_be_to_cpu_16(ip->packet_id) + number);
		if (mbuf->ol_flags & RTE_MBUF_F_TX_IP_CKSUM)
			ip->hdr_checksum = ~rte_raw_cksum(ip, mbuf->l3_len);
	} else {
		((struct rte_ipv6_hdr *)inner)->payload_len = rte_cpu_to_be_16(mbuf->l3_len - 40 + tcp_length);
	}
	tcp->sent_seq = rte_cpu_to_be_32(rte_be_to_cpu_32(tcp->sent_seq) + number * mbuf->tso_segsz);
	if (number > 0)
		tcp->tcp_flags &= ~RTE_TCP_CWR_FLAG;
	if (!last)
		tcp->tcp_flags &= ~(RTE_TCP_FIN_FLAG | RTE_TCP_PSH_FLAG);
	/* The pseudo header's sum is there, but for the length. */
	tcp->cksum = ~sum16(rte_raw_cksum(tcp, tcp_length) + rte_cpu_to_be_16(tcp_length));
	udp->dgram_len = rte_cpu_to_be_16(length - mbuf->outer_l2_len - mbuf->outer_l3_len);
	if (mbuf->ol_flags & RTE_MBUF_F_TX_OUTER_IPV4) {
		struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)outer;

		ip->total_length = rte_cpu_to_be_16(length - mbuf->outer_l2_len);
		if (mbuf->ol_flags & RTE_MBUF_F_TX_OUTER_IP_CKSUM)
			ip->hdr_checksum = ~rte_raw_cksum(ip, mbuf->outer_l3_len);
	} else {
		struct rte_ipv6_hdr *ip = (struct rte_ipv6_hdr *)outer;

		ip->payload_len = udp->dgram_len;
		if (mbuf->ol_flags & RTE_MBUF_F_TX_OUTER_UDP_CKSUM) {
			udp->dgram_cksum = 0;
			udp->dgram_cksum = rte_ipv6_udptcp_cksum(ip, udp);
		}
	}
}

/* Cuts a super-frame and sends its pieces. */
void
tso_transmit(struct tx_queue *queue, const struct rte_mbuf *mbuf)
{
	uint8_t whole[UINT16_MAX + 1], frame[RTE_ETHER_MAX_JUMBO_FRAME_LEN];
	uint32_t length = rte_pktmbuf_pkt_len(mbuf), headers, done, number = 0;
	const uint8_t *bytes;

	headers = mbuf->outer_l2_len + mbuf->outer_l3_len + mbuf->l2_len + mbuf->l3_len + mbuf->l4_len;
	if (length > sizeof(whole) || headers > MOST_HEADERS || headers >= length ||
	    headers + mbuf->tso_segsz > sizeof(frame) || rte_pktmbuf_data_len(mbuf) < headers) {
		not_taken(queue->port, "has lengths that no device can follow");
		queue->lost++;
		return;
	}
	bytes = rte_pktmbuf_read(mbuf, 0, length, whole);
	for (done = headers; done < length; number++) {
		uint32_t data = RTE_MIN(length - done, (uint32_t)mbuf->tso_segsz);

		memcpy(frame, bytes, headers);
		memcpy(frame + headers, bytes + done, data);
		done += data;
		close_headers(frame, mbuf, headers, data, number, done == length);
		if (queue->port->socket >= 0 &&
		    send(queue->port->socket, frame, headers + data, MSG_DONTWAIT) != (ssize_t)(headers + data))
			queue->lost++;
		queue->packets++;
		queue->bytes += headers + data;
	}
	queue->super_frames++;
}
