/*
 * net_eswitch: DPDK virtual devices that are the ports of a NIC with an embedded switch, as far as rules go: a lab and test
 * device, never a claim about hardware. It takes rules of rte_flow through the synchronous API and through templates and
 * queues, refuses what mlx5's hardware steering refuses, answers late, fails, and tells what it holds. Rules move no
 * packet: packets go on between an interface of the kernel and whoever polls the port.
 *
 *   net_eswitch0                      the uplink of e-switch 0: the transfer proxy
 *   net_eswitch1,representor=0        a representor of the same e-switch
 *   ,switch=N                         of e-switch N
 *   ,iface=NAME                       frames come from and go to this interface (AF_PACKET); none without it
 *   ,rss=BITS                         what it can hash on, and at which level it can be told to (RTE_ETH_RSS_*)
 *
 * Of the uplink, what the e-switch has and does wrong (struct traits; a number of 0 is "never" or "none"):
 *
 *   queues=16 depth=1024 counters=N ages=N meters=N rules=N    what there is
 *   profiles=N        profiles of meters (numbers below N, which can be written again while meters have them); as many as
 *                     wanted without it, which must stay as long as their meters
 *   sync=1            the synchronous API
 *   legacy=0          actions that hardware steering does not take: set_tag, set_mac, dec_ttl, meter, port_id
 *   delay=US          from push to result
 *   late=N late-us=US one operation in N takes so long
 *   fail=N keep=N     one creation, one removal in N comes to nothing
 *   mute=N            after N operations no other is ever answered
 *   silent=PATH       while there is a file of this name no operation of a queue is answered
 *   busy=N            one operation in N is not taken (EAGAIN)
 *   fresh=N           the first N queries of a counter answer EAGAIN
 *   lost=1            queries of counters answer ENOENT
 *   rules-only=1      does not start unless it is isolated and has no receive queue
 *   tso=1             it cuts TCP super-frames inside VxLAN that it is given
 *   hash=N            it tells the outer source port that it would write (24.03 and later): 1 a CRC of the inner headers, 2 a
 *                     hash that is not affine in them
 *
 * An isolated port receives nothing: no rule of this e-switch leads to a queue. It keeps order: a representor does not start before its uplink nor the uplink stop before its representors; queues are
 * configured once. What an application must never do is logged as "misuse" and counted (extended statistics of
 * the uplink, which count rules and operations, too). rte_flow_dev_dump prints the rules in force, and meters that rules share.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_eswitch.h"
#include "vdev.h"
#include <rte_ether.h>
#include <rte_malloc.h>

RTE_LOG_REGISTER_DEFAULT(eswitch_log, NOTICE);

#define RSS_TYPES (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP)

static LIST_HEAD(, eswitch) eswitches = LIST_HEAD_INITIALIZER(eswitches);

const char *const count_names[COUNTS] = {
	[RULES] = "flow_rules",
	[CREATED] = "flow_created",
	[DESTROYED] = "flow_destroyed",
	[FAILED] = "flow_create_failed",
	[KEPT] = "flow_destroy_failed",
	[NOT_TAKEN] = "flow_again",
	[REFUSED] = "flow_refused",
	[MISUSED] = "flow_misused",
	[DANGLING] = "flow_dangling_jumps",
	[TABLES] = "flow_tables",
	[TEMPLATES] = "flow_templates",
	[COUNTERS] = "flow_counters",
	[METERS] = "flow_meters",
	[ACTIONS_SHARED] = "flow_shared_actions",
	[PROFILES] = "flow_profiles",
	[SUPER_FRAMES] = "tx_super_frames",
};

static int
dev_configure(struct rte_eth_dev *dev)
{
	struct port *port = port_of(dev);
	const struct rte_eth_rss_conf *rss = &dev->data->dev_conf.rx_adv_conf.rss_conf;
	bool spreads = dev->data->dev_conf.rxmode.mq_mode & RTE_ETH_MQ_RX_RSS_FLAG;

	port->rss_hf = spreads ? rss->rss_hf : 0;
	memcpy(port->rss_key, rss->rss_key != NULL && rss->rss_key_len == RSS_KEY ? rss->rss_key : usual_key, RSS_KEY);
	return 0;
}

static int
dev_start(struct rte_eth_dev *dev)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;

	if (port->representor >= 0 && (eswitch->uplink == NULL || !eswitch->uplink->started)) {
		SAY(ERR, "port %u: transfer proxy port must be started first\n", dev->data->port_id);
		return -EAGAIN;
	}
	if (eswitch->traits.rules_only && (!port->isolated || dev->data->nb_rx_queues > 0)) {
		SAY(ERR, "port %u: started to receive, and is here for rules only\n", dev->data->port_id);
		return -EPERM;
	}
	port->started = true;
	eswitch->started += port->representor >= 0;
	dev->data->dev_link.link_status = RTE_ETH_LINK_UP;
	return 0;
}

static int
dev_stop(struct rte_eth_dev *dev)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	unsigned int i;

	if (!port->started)
		return 0;
	if (port->representor < 0 && eswitch->started > 0) {
		SAY(ERR, "port %u: transfer proxy port stops last; %u representors are started\n", dev->data->port_id,
			eswitch->started);
		return -EBUSY;
	}
	if (port->representor < 0) {
		rte_spinlock_lock(&eswitch->lock);
		flows_end(eswitch);
		rte_spinlock_unlock(&eswitch->lock);
	} else {
		eswitch->started--;
	}
	port->started = false;
	dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
	for (i = 0; i < RX_QUEUES; i++)
		while (port->rx[i].head != port->rx[i].tail)
			rte_pktmbuf_free(port->rx[i].waiting[port->rx[i].tail++ % WAITING]);
	return 0;
}

static int
dev_infos(struct rte_eth_dev *dev, struct rte_eth_dev_info *info)
{
	const struct port *port = port_of(dev);

	info->max_mac_addrs = 1;
	info->max_rx_pktlen = RTE_ETHER_MAX_JUMBO_FRAME_LEN;
	info->max_mtu = RTE_ETHER_MAX_JUMBO_FRAME_LEN - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN;
	info->max_rx_queues = info->max_tx_queues = RX_QUEUES;
	info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if (port->representor < 0 && port->eswitch->traits.tso) {
		info->tx_offload_capa |= tso_offloads();
		info->tx_desc_lim.nb_seg_max = TSO_SEGMENTS;
	}
	info->rx_offload_capa = RTE_ETH_RX_OFFLOAD_RSS_HASH;
	info->flow_type_rss_offloads = port->rss_types;
	info->hash_key_size = RSS_KEY;
	info->switch_info.name = "net_eswitch";
	info->switch_info.domain_id = port->eswitch->domain;
	info->switch_info.port_id = port->representor + 1;
	return 0;
}

static int
rss_conf_get(struct rte_eth_dev *dev, struct rte_eth_rss_conf *conf)
{
	struct port *port = port_of(dev);

	conf->rss_hf = port->rss_hf;
	if (conf->rss_key != NULL && conf->rss_key_len >= RSS_KEY)
		memcpy(conf->rss_key, port->rss_key, RSS_KEY);
	return 0;
}

static int
rx_queue_setup(struct rte_eth_dev *dev, uint16_t number, uint16_t descriptors __rte_unused,
	unsigned int socket __rte_unused, const struct rte_eth_rxconf *config __rte_unused, struct rte_mempool *pool)
{
	struct rx_queue *queue = &port_of(dev)->rx[number];

	queue->pool = pool;
	dev->data->rx_queues[number] = queue;
	return 0;
}

static int
tx_queue_setup(struct rte_eth_dev *dev, uint16_t number, uint16_t descriptors __rte_unused,
	unsigned int socket __rte_unused, const struct rte_eth_txconf *config __rte_unused)
{
	dev->data->tx_queues[number] = &port_of(dev)->tx[number];
	return 0;
}

static int
stats_get(VDEV_STATS_ARGUMENTS)
{
	const struct port *port = port_of(dev);
	unsigned int i;

	for (i = 0; i < RX_QUEUES; i++) {
		stats->ipackets += port->rx[i].packets;
		stats->ibytes += port->rx[i].bytes;
		stats->imissed += port->rx[i].lost;
		stats->opackets += port->tx[i].packets - port->tx[i].lost;
		stats->obytes += port->tx[i].bytes;
		stats->oerrors += port->tx[i].lost;
	}
	return 0;
}

static int
stats_reset(struct rte_eth_dev *dev)
{
	struct port *port = port_of(dev);
	unsigned int i;

	for (i = 0; i < RX_QUEUES; i++) {
		port->rx[i].packets = port->rx[i].bytes = port->rx[i].lost = 0;
		port->tx[i].packets = port->tx[i].bytes = port->tx[i].lost = 0;
	}
	return 0;
}

/* Each receive queue's packets; of the uplink, the e-switch's counts besides. */
static unsigned int
xstats_count(const struct rte_eth_dev *dev)
{
	const struct port *port = dev->data->dev_private;

	return dev->data->nb_rx_queues + (port->representor < 0 ? COUNTS : 0);
}

static int
xstats_get(struct rte_eth_dev *dev, struct rte_eth_xstat *stats, unsigned int room)
{
	const struct port *port = port_of(dev);
	unsigned int i, queues = dev->data->nb_rx_queues, count = xstats_count(dev);

	if (stats == NULL || room < count)
		return count;
	rte_spinlock_lock(&port->eswitch->lock);
	queues_advance(port->eswitch);
	port->eswitch->counts[SUPER_FRAMES] = 0;
	for (i = 0; i < RX_QUEUES; i++)
		port->eswitch->counts[SUPER_FRAMES] += port->tx[i].super_frames;
	for (i = 0; i < count; i++) {
		stats[i].id = i;
		stats[i].value = i < queues ? port->rx[i].packets : port->eswitch->counts[i - queues];
	}
	rte_spinlock_unlock(&port->eswitch->lock);
	return count;
}

static int
xstats_names(struct rte_eth_dev *dev, struct rte_eth_xstat_name *names, unsigned int room)
{
	unsigned int i, queues = dev->data->nb_rx_queues, count = xstats_count(dev);

	if (names == NULL || room < count)
		return count;
	for (i = 0; i < count; i++) {
		if (i < queues)
			snprintf(names[i].name, sizeof(names[i].name), "eswitch_rx_q%u", i);
		else
			snprintf(names[i].name, sizeof(names[i].name), "%s", count_names[i - queues]);
	}
	return count;
}

static int
flow_ops_get(struct rte_eth_dev *dev __rte_unused, const struct rte_flow_ops **operations)
{
	*operations = &flow_operations;
	return 0;
}

static int
mtr_ops_get(struct rte_eth_dev *dev __rte_unused, void *operations)
{
	*(const struct rte_mtr_ops **)operations = &meter_operations;
	return 0;
}

static void
eswitch_leave(struct port *port)
{
	struct eswitch *eswitch = port->eswitch;

	if (eswitch == NULL)
		return;
	port->eswitch = NULL;
	if (eswitch->uplink == port) {
		eswitch->uplink = NULL;
		queues_end(eswitch);
		meters_end(eswitch);
	}
	if (--eswitch->ports > 0)
		return;
	LIST_REMOVE(eswitch, next);
	rte_eth_switch_domain_free(eswitch->domain);
	free(eswitch->silent);
	free(eswitch);
}

static int
dev_close(struct rte_eth_dev *dev)
{
	struct port *port = port_of(dev);

	if (rte_eal_process_type() != RTE_PROC_PRIMARY)
		return 0;
	if (port->socket >= 0)
		close(port->socket);
	port->socket = -1;
	eswitch_leave(port);
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
	.rx_queue_setup = rx_queue_setup,
	.tx_queue_setup = tx_queue_setup,
	.stats_get = stats_get,
	.stats_reset = stats_reset,
	.xstats_get = xstats_get,
	.xstats_get_names = xstats_names,
	.rss_hash_conf_get = rss_conf_get,
	.flow_ops_get = flow_ops_get,
	.mtr_ops_get = mtr_ops_get,
	VDEV_OPERATIONS,
};

static struct eswitch *
eswitch_of(unsigned int number)
{
	struct eswitch *eswitch;

	LIST_FOREACH(eswitch, &eswitches, next)
		if (eswitch->number == number)
			return eswitch;
	eswitch = calloc(1, sizeof(*eswitch));
	if (eswitch == NULL)
		return NULL;
	if (rte_eth_switch_domain_alloc(&eswitch->domain) != 0) {
		free(eswitch);
		return NULL;
	}
	eswitch->number = number;
	rte_spinlock_init(&eswitch->lock);
	TAILQ_INIT(&eswitch->flows);
	LIST_INSERT_HEAD(&eswitches, eswitch, next);
	return eswitch;
}

#define ARGUMENT(word, member, usual) { word, offsetof(struct traits, member), usual }
static const struct {
	const char *word;
	size_t at;
	uint32_t usual;
} numbers[] = {
	ARGUMENT("queues", queues, 16),
	ARGUMENT("depth", depth, 1024),
	ARGUMENT("counters", counters, 1 << 22),
	ARGUMENT("ages", ages, 1 << 22),
	ARGUMENT("meters", meters, 1 << 16),
	ARGUMENT("profiles", profiles, 0),
	ARGUMENT("rules", rules, 1 << 24),
	ARGUMENT("sync", sync, 1),
	ARGUMENT("legacy", legacy, 0),
	ARGUMENT("delay", delay, 0),
	ARGUMENT("late", late, 0),
	ARGUMENT("late-us", late_delay, 0),
	ARGUMENT("fail", fail, 0),
	ARGUMENT("keep", keep, 0),
	ARGUMENT("busy", busy, 0),
	ARGUMENT("mute", mute, 0),
	ARGUMENT("fresh", fresh, 0),
	ARGUMENT("lost", lost, 0),
	ARGUMENT("rules-only", rules_only, 0),
	ARGUMENT("hash", hash, 0),
	ARGUMENT("tso", tso, 0),
};

enum { SWITCH, REPRESENTOR, IFACE, RSS, SILENT, TEXTS };

static int
probe(struct rte_vdev_device *vdev)
{
	const char *keys[TEXTS + RTE_DIM(numbers) + 1] = { "switch", "representor", "iface", "rss", "silent" };
	char text[TEXTS + RTE_DIM(numbers)][VDEV_TEXT] = { "0", "-1" };
	struct rte_eth_dev *dev;
	struct eswitch *eswitch;
	struct port *port;
	unsigned int i;

	for (i = 0; i < RTE_DIM(numbers); i++) {
		keys[TEXTS + i] = numbers[i].word;
		snprintf(text[TEXTS + i], VDEV_TEXT, "%u", numbers[i].usual);
	}
	keys[TEXTS + i] = NULL;
	if (vdev_arguments(vdev, keys, text) != 0) {
		SAY(ERR, "an argument is not known\n");
		return -EINVAL;
	}
	dev = rte_eth_vdev_allocate(vdev, sizeof(*port));
	if (dev == NULL)
		return -ENOMEM;
	port = port_of(dev);
	memset(port, 0, sizeof(*port));
	port->dev = dev;
	port->representor = atoi(text[REPRESENTOR]);
	port->rss_types = text[RSS][0] == '\0' ? RSS_TYPES : strtoull(text[RSS], NULL, 0);
	port->socket = -1;
	rte_spinlock_init(&port->rx_lock);
	for (i = 0; i < RX_QUEUES; i++) {
		port->rx[i].port = port->tx[i].port = port;
		port->rx[i].number = i;
	}
	vdev_describe(dev, &port->mac, &operations);
	dev->rx_pkt_burst = packets_receive;
	dev->tx_pkt_burst = packets_transmit;
	dev->tx_pkt_prepare = tso_prepare;
#if HAS_FP_OPS
	dev->flow_fp_ops = &fast_operations;
#endif
	eswitch = eswitch_of(strtoul(text[SWITCH], NULL, 10));
	if (eswitch == NULL || (port->representor < 0 && eswitch->uplink != NULL)) {
		SAY(ERR, "e-switch %s has an uplink already, or there is no room for one\n", text[SWITCH]);
		goto fail;
	}
	port->eswitch = eswitch;
	eswitch->ports++;
	if (port->representor < 0) {
		eswitch->uplink = port;
		for (i = 0; i < RTE_DIM(numbers); i++)
			*(uint32_t *)((char *)&eswitch->traits + numbers[i].at) = strtoul(text[TEXTS + i], NULL, 10);
		free(eswitch->silent);
		eswitch->silent = text[SILENT][0] == '\0' ? NULL : strdup(text[SILENT]);
	} else {
		dev->data->dev_flags |= RTE_ETH_DEV_REPRESENTOR;
		dev->data->representor_id = port->representor;
		dev->data->backer_port_id = eswitch->uplink == NULL ? dev->data->port_id :
			eswitch->uplink->dev->data->port_id;
	}
	if (text[IFACE][0] != '\0') {
		port->socket = packets_socket(text[IFACE]);
		if (port->socket < 0) {
			SAY(ERR, "cannot open interface %s\n", text[IFACE]);
			goto fail;
		}
	}
	rte_eth_dev_probing_finish(dev);
	return 0;
fail:
	dev_close(dev);
	rte_eth_dev_release_port(dev);
	return -EINVAL;
}

static struct rte_vdev_driver driver = { .probe = probe, .remove = vdev_remove };
RTE_PMD_REGISTER_VDEV(net_eswitch, driver);
