/*
 * net_template: a DPDK virtual device that makes frames and swallows frames, for measuring what lies between.
 *
 * Its receive side hands out frames made from templates by patching fields with the bits of a flow number; flow
 * numbers come in rounds, each of which visits every flow once, in an order of its own. Its transmit side counts
 * packets and bytes, keeps every so-many-th packet as a sample, and frees them. Both tell what they did on a
 * "board", a file mapped into memory, so that it can be read from outside without asking the process.
 *
 *   net_template0,frames=FILE,board=FILE     makes frames (and swallows what is sent to it)
 *   net_template1,board=FILE,sample=N        swallows frames, keeps every N-th
 *   ,key=N                                   begins with another order
 *
 * The file of frames has one line for the number of flows and one per template:
 *
 *   flows N
 *   churn N
 *   zipf
 *   template LENGTH HEX [OFFSET:WIDTH:SHIFT:MASK:FACTOR:BASE]...
 *
 * With `churn` so many flows of each round give way to new ones: the numbers of round R begin at R * N, modulo 2^24. With
 * `zipf` the flows come in whole rounds twice, so that all of them are known, and after that by chance, the one of rank K
 * with a probability of about 1 / K.
 *
 * There is a power of two of templates, and flow F is made of template F % their number. Each patch writes WIDTH (2
 * or 4) bytes at OFFSET, in network order: BASE + (F >> SHIFT & MASK) * FACTOR, modulo 2^32, where a SHIFT of 32 means the
 * number of the round instead of the flow's. HEX is the head of the frame; behind it byte I is I & 255, up to LENGTH. Blocks
 * of 64 bytes, up to 128, are written for each packet; what is behind them is written into all buffers at the start.
 * Checksums of layer 4 are the templates' own. The model in Rust, which tests hold against this, is src/compare/template.rs.
 *
 * A received packet bears what a NIC finds out about it, so that no switch is made to compute in software what hardware
 * gives: the types of its headers, a hash of its outermost 5-tuple (as with RSS; alike for packets of a flow, but CRC32C and
 * not Toeplitz, which nobody computes after it), and that the checksums are good, which they are taken to be.
 */
#include <fcntl.h>
#include <immintrin.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vdev.h"
#include <rte_errno.h>
#include <rte_ip.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>
#include <rte_udp.h>
#include <rte_vxlan.h>

#define HEAD 128
/* Frames are written anew each time in blocks of this, up to HEAD or their end. */
#define BLOCK 64
#define PATCHES 10
/* Flow numbers are below this. */
#define NUMBERS (UINT32_C(1) << 24)
/* Steps of the table of powers of two, and bits of a step that are between two of them. */
#define POWERS 1024
/* 2^(1 / POWERS). */
#define POWER 1.0006771306930664
#define BETWEEN 14
#define MOST_TEMPLATES 4096
#define TX_QUEUES 16
#define SLOTS 256
#define SLOT_BYTES 2048

RTE_LOG_REGISTER_DEFAULT(template_log, NOTICE);
#define SAY(...) rte_log(RTE_LOG_ERR, template_log, "net_template: " __VA_ARGS__)

#define RX_FLAGS (RTE_MBUF_F_RX_RSS_HASH | RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD)
#define RX_OFFLOADS (RTE_ETH_RX_OFFLOAD_CHECKSUM | RTE_ETH_RX_OFFLOAD_RSS_HASH)
#define RSS_TYPES (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP)

struct patch {
	uint32_t mask, factor, base;
	/* What its value is multiplied by in the word that the hash is taken of at last: 65536 in the first of the outermost
	 * ports, 1 in the second, an odd number in the outermost addresses, and 0 elsewhere. */
	uint32_t in_hash;
	uint16_t offset;
	uint8_t width, shift;
};

struct template {
	uint8_t head[HEAD];
	struct patch patches[PATCHES];
	uint16_t length, head_length, count;
	/* For the mbuf: types of headers, hash of addresses and protocol, and the ports that no patch writes. */
	uint32_t packet_type, hash, ports;
} __rte_cache_aligned;

/* Rounds over the numbers below `flows`: a full-period generator over the next power of two, its output mixed by a
 * bijection; what is too large is passed over. The increment, and with it the order, changes with every round.
 * `first` is what the numbers of this round begin at. By Zipf's law: `log2_ranks` is the logarithm of one more than there are flows, in
 * 2^-26, and `powers` has 2^(I / POWERS) in 2^-24. */
struct order {
	uint32_t flows, mask, half, state, increment, left, round;
	uint32_t churn, first;
	uint64_t key, draws;
	bool zipf;
	uint64_t log2_ranks;
	uint32_t powers[POWERS + 1];
};

struct board {
	uint64_t magic;
	uint32_t slots, slot_bytes;
	uint64_t samples;
	uint64_t padding[5];
	struct {
		uint64_t packets, bytes;
		uint64_t padding[6];
	} rx, tx[TX_QUEUES];
	struct {
		uint32_t length, stored;
		uint8_t bytes[SLOT_BYTES - 8];
	} slot[SLOTS];
};
#define MAGIC UINT64_C(0x6a616b69726f0001)

struct tx_queue {
	struct device *device;
	uint64_t packets, bytes;
	uint32_t number, until_sample;
} __rte_cache_aligned;

struct device {
	struct order order;
	struct rte_mempool *pool;
	struct template *templates;
	uint32_t template_mask;
	uint16_t port;
	uint64_t packets, bytes;
	uint32_t sample;
	uint16_t longest;
	struct board *board;
	struct tx_queue tx[TX_QUEUES];
	struct rte_ether_addr mac;
};

static uint64_t
mixed(uint64_t *key)
{
	uint64_t z = (*key += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void
order_begin_round(struct order *order)
{
	uint64_t word = mixed(&order->key);

	order->increment = (uint32_t)word | 1;
	order->state = (uint32_t)(word >> 32) & order->mask;
	order->left = order->mask + 1;
	order->first = (order->first + order->churn) % NUMBERS;
	order->round++;
}

/* The logarithm of a number that is at least 1, with so many binary digits behind the point. */
static uint64_t
log2_in(double number, unsigned int digits)
{
	uint64_t log = 0;

	for (; number >= 2; number /= 2)
		log++;
	while (digits-- > 0) {
		number *= number;
		log = log << 1 | (number >= 2);
		if (number >= 2)
			number /= 2;
	}
	return log;
}

static void
order_begin(struct order *order, uint32_t flows, uint32_t churn, bool zipf, uint64_t key)
{
	uint32_t bits = flows > 1 ? 32 - __builtin_clz(flows - 1) : 0;
	double power = 1 << 24;
	int i;

	*order = (struct order){ .flows = flows, .key = key, .draws = ~key, .zipf = zipf };
	order->log2_ranks = log2_in(flows + 1.0, 26);
	for (i = 0; i <= POWERS; i++, power *= POWER)
		order->powers[i] = (uint32_t)power;
	order->mask = (uint32_t)((UINT64_C(1) << bits) - 1);
	order->half = bits / 2 + 1;
	order->round = UINT32_MAX;
	order_begin_round(order);
	order->churn = churn;
}

static inline uint32_t
order_mixed(const struct order *order, uint32_t x)
{
	x ^= x >> order->half;
	x = (x * 2654435769u) & order->mask;
	return x ^ x >> order->half;
}

/* The rank is the number of ranks to the power of an even number below 1, which makes rank K come with log((K + 1) / K) of
 * their logarithm; which flow has which rank is always the same. */
static inline uint32_t
order_by_zipf(struct order *order)
{
	uint64_t power = (mixed(&order->draws) >> 32) * order->log2_ranks;
	uint32_t fraction = power >> 34 & ((1 << 24) - 1), step = fraction >> BETWEEN;
	uint64_t low = order->powers[step], high = order->powers[step + 1];
	uint64_t mantissa = low + ((high - low) * (fraction & ((1 << BETWEEN) - 1)) >> BETWEEN);
	uint32_t x = (uint32_t)(mantissa << (power >> 58) >> 24) - 1;

	do
		x = order_mixed(order, x);
	while (unlikely(x >= order->flows));
	return x;
}

static inline uint32_t
order_next(struct order *order)
{
	for (;;) {
		uint32_t x;

		if (unlikely(order->left == 0))
			order_begin_round(order);
		order->left--;
		if (order->zipf && order->round >= 2)
			return order_by_zipf(order);
		x = order->state;
		order->state = (x * 747796405u + order->increment) & order->mask;
		x = order_mixed(order, x);
		if (likely(x < order->flows))
			return (x + order->first) % NUMBERS;
	}
}

static inline void
frame_make(const struct template *t, uint32_t round, uint32_t flow, struct rte_mbuf *mbuf)
{
	uint8_t *data = rte_pktmbuf_mtod(mbuf, uint8_t *);
	uint32_t ports = t->ports;
	uint16_t i;

	/* Whole blocks, which become a few vector moves; buffers are longer than that. */
	memcpy(data, t->head, BLOCK);
	/* A longer head of another template may have been in the same buffer. */
	if (t->length > BLOCK)
		memcpy(data + BLOCK, t->head + BLOCK, HEAD - BLOCK);
	for (i = 0; i < t->count; i++) {
		const struct patch *p = &t->patches[i];
		uint32_t bits = p->shift < 32 ? flow >> p->shift : round;
		uint32_t value = p->base + (bits & p->mask) * p->factor;

		ports += value * p->in_hash;
		if (p->width == 2) {
			uint16_t word = rte_cpu_to_be_16((uint16_t)value);
			memcpy(data + p->offset, &word, 2);
		} else {
			value = rte_cpu_to_be_32(value);
			memcpy(data + p->offset, &value, 4);
		}
	}
	mbuf->data_len = t->length;
	mbuf->pkt_len = t->length;
	mbuf->packet_type = t->packet_type;
	mbuf->hash.rss = _mm_crc32_u32(t->hash, ports);
	mbuf->ol_flags = RX_FLAGS;
}

static uint16_t
rx_none(void *queue __rte_unused, struct rte_mbuf **mbufs __rte_unused, uint16_t n __rte_unused)
{
	return 0;
}

static uint16_t
rx_make(void *queue, struct rte_mbuf **mbufs, uint16_t n)
{
	struct device *device = queue;
	uint64_t bytes = 0;
	uint16_t i;

	if (rte_pktmbuf_alloc_bulk(device->pool, mbufs, n) != 0)
		return 0;
	for (i = 0; i < n; i++) {
		uint32_t flow = order_next(&device->order);
		const struct template *t = &device->templates[flow & device->template_mask];

		frame_make(t, device->order.round, flow, mbufs[i]);
		mbufs[i]->port = device->port;
		bytes += t->length;
	}
	device->packets += n;
	device->bytes += bytes;
	device->board->rx.packets = device->packets;
	device->board->rx.bytes = device->bytes;
	return n;
}

static void __attribute__((noinline, cold))
sample_keep(struct board *board, struct rte_mbuf *mbuf)
{
	uint64_t number = __atomic_fetch_add(&board->samples, 1, __ATOMIC_RELAXED) % SLOTS;
	uint32_t length = rte_pktmbuf_pkt_len(mbuf);
	uint32_t stored = RTE_MIN(length, (uint32_t)sizeof(board->slot[0].bytes));
	const void *data;

	__atomic_store_n(&board->slot[number].stored, 0, __ATOMIC_RELEASE);
	data = rte_pktmbuf_read(mbuf, 0, stored, board->slot[number].bytes);
	if (data == NULL)
		return;
	if (data != board->slot[number].bytes)
		memcpy(board->slot[number].bytes, data, stored);
	board->slot[number].length = length;
	__atomic_store_n(&board->slot[number].stored, stored, __ATOMIC_RELEASE);
}

static uint16_t
tx_count(void *queue, struct rte_mbuf **mbufs, uint16_t n)
{
	struct tx_queue *q = queue;
	struct board *board = q->device->board;
	uint64_t bytes = 0;
	uint16_t i;

	for (i = 0; i < n; i++)
		bytes += mbufs[i]->pkt_len;
	if (unlikely(q->until_sample <= n) && q->device->sample != 0) {
		uint32_t at = q->until_sample;

		for (; at <= n; at += q->device->sample)
			sample_keep(board, mbufs[at - 1]);
		q->until_sample = at;
	}
	q->until_sample -= n;
	rte_pktmbuf_free_bulk(mbufs, n);
	q->packets += n;
	q->bytes += bytes;
	board->tx[q->number].packets = q->packets;
	board->tx[q->number].bytes = q->bytes;
	return n;
}

static void
buffer_fill(struct rte_mempool *pool __rte_unused, void *opaque, void *object, unsigned int number __rte_unused)
{
	struct rte_mbuf *mbuf = object;
	const struct device *device = opaque;
	uint8_t *data = (uint8_t *)mbuf->buf_addr + RTE_PKTMBUF_HEADROOM;
	uint32_t i;

	for (i = 0; i < device->longest; i++)
		data[i] = (uint8_t)i;
}

static int
dev_configure(struct rte_eth_dev *dev __rte_unused)
{
	return 0;
}

static int
dev_start(struct rte_eth_dev *dev)
{
	dev->data->dev_link.link_status = RTE_ETH_LINK_UP;
	return 0;
}

static int
dev_stop(struct rte_eth_dev *dev)
{
	dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
	return 0;
}

static int
dev_infos(struct rte_eth_dev *dev __rte_unused, struct rte_eth_dev_info *info)
{
	info->max_mac_addrs = 1;
	info->max_rx_pktlen = UINT16_MAX;
	info->max_rx_queues = 1;
	info->max_tx_queues = TX_QUEUES;
	info->min_rx_bufsize = 0;
	info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	info->rx_offload_capa = RX_OFFLOADS;
	info->rx_queue_offload_capa = RX_OFFLOADS;
	info->flow_type_rss_offloads = RSS_TYPES;
	return 0;
}

/* Since 24.03 the list has a length; before, RTE_PTYPE_UNKNOWN ends it. */
static const uint32_t types[] = {
	RTE_PTYPE_L2_ETHER, RTE_PTYPE_L2_ETHER_VLAN, RTE_PTYPE_L3_IPV4, RTE_PTYPE_L4_TCP, RTE_PTYPE_L4_UDP,
	RTE_PTYPE_TUNNEL_VXLAN, RTE_PTYPE_INNER_L2_ETHER, RTE_PTYPE_INNER_L3_IPV4, RTE_PTYPE_INNER_L4_TCP,
	RTE_PTYPE_INNER_L4_UDP, RTE_PTYPE_UNKNOWN
};

#if RTE_VERSION >= RTE_VERSION_NUM(24, 3, 0, 0)
static const uint32_t *
packet_types(struct rte_eth_dev *dev __rte_unused, size_t *length)
{
	*length = RTE_DIM(types) - 1;
	return types;
}
#else
static const uint32_t *
packet_types(struct rte_eth_dev *dev __rte_unused)
{
	return types;
}
#endif

static int
rx_queue_setup(struct rte_eth_dev *dev, uint16_t number, uint16_t descriptors __rte_unused,
	unsigned int socket __rte_unused, const struct rte_eth_rxconf *config __rte_unused, struct rte_mempool *pool)
{
	struct device *device = dev->data->dev_private;
	uint32_t room = rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM;

	if (device->longest > room || room < HEAD) {
		SAY("frames of %u bytes do not fit buffers of %u\n", device->longest, room);
		return -EINVAL;
	}
	if (device->longest > HEAD)
		rte_mempool_obj_iter(pool, buffer_fill, device);
	device->pool = pool;
	dev->data->rx_queues[number] = device;
	return 0;
}

static int
tx_queue_setup(struct rte_eth_dev *dev, uint16_t number, uint16_t descriptors __rte_unused,
	unsigned int socket __rte_unused, const struct rte_eth_txconf *config __rte_unused)
{
	struct device *device = dev->data->dev_private;

	dev->data->tx_queues[number] = &device->tx[number];
	return 0;
}

static int
stats_get(VDEV_STATS_ARGUMENTS)
{
	const struct device *device = dev->data->dev_private;
	unsigned int i;

	stats->ipackets = device->packets;
	stats->ibytes = device->bytes;
	for (i = 0; i < TX_QUEUES; i++) {
		stats->opackets += device->tx[i].packets;
		stats->obytes += device->tx[i].bytes;
	}
	return 0;
}

/* The board goes on counting; nobody here needs counters that begin again. */
static int
stats_reset(struct rte_eth_dev *dev __rte_unused)
{
	return 0;
}

static int
dev_close(struct rte_eth_dev *dev)
{
	struct device *device = dev->data->dev_private;

	if (rte_eal_process_type() != RTE_PROC_PRIMARY)
		return 0;
	if (device->board != NULL)
		munmap(device->board, sizeof(*device->board));
	rte_free(device->templates);
	/* Part of the private data, which is freed by itself. */
	dev->data->mac_addrs = NULL;
	return 0;
}

static const struct eth_dev_ops operations = {
	.dev_configure = dev_configure,
	.dev_start = dev_start,
	.dev_stop = dev_stop,
	.dev_close = dev_close,
	.dev_infos_get = dev_infos,
	.dev_supported_ptypes_get = packet_types,
	.rx_queue_setup = rx_queue_setup,
	.tx_queue_setup = tx_queue_setup,
	.stats_get = stats_get,
	.stats_reset = stats_reset,
	VDEV_OPERATIONS,
};

/* Where the IPv4 header of a head begins that holds it and the ports behind it; 0 without one. */
static unsigned int
ipv4_at(const struct template *t, unsigned int ethernet)
{
	unsigned int at = ethernet + RTE_ETHER_HDR_LEN;

	if (at > t->head_length)
		return 0;
	if (t->head[at - 2] == 0x81 && t->head[at - 1] == 0x00)
		at += RTE_VLAN_HLEN;
	if (at + sizeof(struct rte_ipv4_hdr) + 4 > t->head_length || t->head[at - 2] != 0x08 || t->head[at - 1] != 0x00 ||
	    t->head[at] != 0x45)
		return 0;
	return at;
}

static uint32_t
l4_type(uint8_t protocol, uint32_t tcp, uint32_t udp)
{
	return protocol == IPPROTO_TCP ? tcp : protocol == IPPROTO_UDP ? udp : 0;
}

/* What a NIC would say of the frames of a template. */
static void
describe(struct template *t)
{
	unsigned int i, inner, ip = ipv4_at(t, 0), ports = ip + sizeof(struct rte_ipv4_hdr);
	uint8_t protocol = t->head[ip + 9];

	t->packet_type = RTE_PTYPE_L2_ETHER;
	if (ip == 0)
		return;
	if (ip > RTE_ETHER_HDR_LEN)
		t->packet_type = RTE_PTYPE_L2_ETHER_VLAN;
	t->packet_type |= RTE_PTYPE_L3_IPV4 | l4_type(protocol, RTE_PTYPE_L4_TCP, RTE_PTYPE_L4_UDP);
	t->hash = _mm_crc32_u8(UINT32_MAX, protocol);
	for (i = ip + 12; i < ports; i++)
		t->hash = _mm_crc32_u8(t->hash, t->head[i]);
	for (i = 0; i < t->count; i++) {
		struct patch *p = &t->patches[i];

		if (p->width == 2 && (p->offset == ports || p->offset == ports + 2u))
			p->in_hash = p->offset == ports ? UINT32_C(1) << 16 : 1;
		else if (p->offset >= ip + 12 && p->offset < ports)
			p->in_hash = UINT32_C(0x9e3779b1);
	}
	for (i = 0; i < 4; i++)
		t->ports = t->ports << 8 | t->head[ports + i];
	for (i = 0; i < t->count; i++)
		t->ports &= t->patches[i].offset == ports ? 0xffffu : t->patches[i].offset == ports + 2u ? 0xffff0000u : UINT32_MAX;
	if (protocol != IPPROTO_UDP || t->head[ports + 2] != RTE_VXLAN_DEFAULT_PORT >> 8 ||
	    t->head[ports + 3] != (RTE_VXLAN_DEFAULT_PORT & 0xff))
		return;
	t->packet_type |= RTE_PTYPE_TUNNEL_VXLAN | RTE_PTYPE_INNER_L2_ETHER;
	inner = ipv4_at(t, ports + sizeof(struct rte_udp_hdr) + sizeof(struct rte_vxlan_hdr));
	if (inner != 0)
		t->packet_type |= RTE_PTYPE_INNER_L3_IPV4 |
			l4_type(t->head[inner + 9], RTE_PTYPE_INNER_L4_TCP, RTE_PTYPE_INNER_L4_UDP);
}

static int
parse_template(struct template *t, char *line)
{
	char *word, *rest = NULL;
	unsigned int length, n = 0;

	word = strtok_r(line, " \n", &rest);
	if (word == NULL || (length = strtoul(word, NULL, 10)) == 0 || length > 9216)
		return -EINVAL;
	word = strtok_r(NULL, " \n", &rest);
	if (word == NULL || strlen(word) % 2 != 0 || strlen(word) > 2 * HEAD)
		return -EINVAL;
	t->length = length;
	t->head_length = strlen(word) / 2;
	/* What is copied beyond the head belongs to the rest of the frame. */
	for (; n < HEAD; n++)
		t->head[n] = (uint8_t)n;
	for (n = 0; n < t->head_length; n++)
		if (sscanf(word + 2 * n, "%2hhx", &t->head[n]) != 1)
			return -EINVAL;
	while ((word = strtok_r(NULL, " \n", &rest)) != NULL) {
		struct patch *p = &t->patches[t->count];

		if (t->count == PATCHES ||
		    sscanf(word, "%hu:%hhu:%hhu:%u:%u:%u", &p->offset, &p->width, &p->shift, &p->mask, &p->factor,
			   &p->base) != 6 ||
		    (p->width != 2 && p->width != 4) || p->offset + p->width > t->head_length || p->shift > 32)
			return -EINVAL;
		t->count++;
	}
	describe(t);
	return 0;
}

static int
parse_frames(struct device *device, const char *path, uint64_t key)
{
	FILE *file = fopen(path, "r");
	char *line = NULL;
	size_t room = 0;
	uint32_t flows = 0, churn = 0, count = 0;
	bool zipf = false;
	int result = -EINVAL;

	if (file == NULL) {
		SAY("cannot open %s\n", path);
		return -ENOENT;
	}
	device->templates = rte_zmalloc("templates", MOST_TEMPLATES * sizeof(*device->templates), 64);
	if (device->templates == NULL)
		goto out;
	while (getline(&line, &room, file) > 0) {
		if (sscanf(line, "flows %u", &flows) == 1 || sscanf(line, "churn %u", &churn) == 1)
			continue;
		if (strcmp(line, "zipf\n") == 0) {
			zipf = true;
			continue;
		}
		if (strncmp(line, "template ", 9) != 0 || count == MOST_TEMPLATES ||
		    parse_template(&device->templates[count], line + 9) != 0) {
			SAY("%s: bad line: %.40s\n", path, line);
			goto out;
		}
		device->longest = RTE_MAX(device->longest, device->templates[count].length);
		count++;
	}
	if (flows == 0 || flows > NUMBERS || churn > flows || count == 0 || (count & (count - 1)) != 0) {
		SAY("%s: %u flows of %u templates\n", path, flows, count);
		goto out;
	}
	device->template_mask = count - 1;
	order_begin(&device->order, flows, churn, zipf, key);
	result = 0;
out:
	free(line);
	fclose(file);
	return result;
}

static struct board *
board_open(const char *path)
{
	struct board *board = MAP_FAILED;
	int file = open(path, O_RDWR | O_CREAT, 0600);

	if (file >= 0 && ftruncate(file, sizeof(*board)) == 0)
		board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	if (file >= 0)
		close(file);
	if (board == MAP_FAILED) {
		SAY("cannot map %s\n", path);
		return NULL;
	}
	memset(board, 0, sizeof(*board));
	board->slots = SLOTS;
	board->slot_bytes = SLOT_BYTES;
	__atomic_store_n(&board->magic, MAGIC, __ATOMIC_RELEASE);
	return board;
}

static int
template_probe(struct rte_vdev_device *vdev)
{
	static const char *const keys[] = { "frames", "board", "sample", "key", NULL };
	char text[4][VDEV_TEXT] = { "", "", "0", "1" };
	struct rte_eth_dev *dev;
	struct device *device;
	unsigned int i;
	int result = 0;

	if (vdev_arguments(vdev, keys, text) != 0 || text[1][0] == '\0') {
		SAY("board=FILE is needed\n");
		return -EINVAL;
	}
	dev = rte_eth_vdev_allocate(vdev, sizeof(*device));
	if (dev == NULL)
		return -ENOMEM;
	device = dev->data->dev_private;
	memset(device, 0, sizeof(*device));
	device->port = dev->data->port_id;
	device->sample = strtoul(text[2], NULL, 10);
	for (i = 0; i < TX_QUEUES; i++)
		device->tx[i] = (struct tx_queue){ .device = device, .number = i, .until_sample = 1 };
	device->board = board_open(text[1]);
	if (device->board == NULL)
		result = -EIO;
	else if (text[0][0] != '\0')
		result = parse_frames(device, text[0], strtoull(text[3], NULL, 10));
	vdev_describe(dev, &device->mac, &operations);
	dev->rx_pkt_burst = text[0][0] != '\0' ? rx_make : rx_none;
	dev->tx_pkt_burst = tx_count;
	if (result != 0) {
		dev_close(dev);
		rte_eth_dev_release_port(dev);
		return result;
	}
	rte_eth_dev_probing_finish(dev);
	return 0;
}

static struct rte_vdev_driver driver = { .probe = template_probe, .remove = vdev_remove };
RTE_PMD_REGISTER_VDEV(net_template, driver);
RTE_PMD_REGISTER_PARAM_STRING(net_template, "frames=<file> board=<file> sample=<n> key=<n>");
