/*
 * What virtual devices of ours have in common: their arguments, their ethdev, and the operations that every ethdev needs
 * and none of them has anything to do for. Included by one source file of each driver.
 */
#ifndef VDEV_H
#define VDEV_H

#include <errno.h>
#include <limits.h>
#include <string.h>

#include <bus_vdev_driver.h>
#include <ethdev_driver.h>
#include <ethdev_vdev.h>
#include <rte_kvargs.h>
#include <rte_version.h>

/* The longest argument: a path. */
#define VDEV_TEXT PATH_MAX

static int
vdev_copy_text(const char *key __rte_unused, const char *value, void *opaque)
{
	if (value == NULL || strlen(value) >= VDEV_TEXT)
		return -EINVAL;
	strcpy(opaque, value);
	return 0;
}

/* Fills in the texts of those keys that the arguments have; a key that is not listed is an error. */
static inline int
vdev_arguments(struct rte_vdev_device *vdev, const char *const keys[], char text[][VDEV_TEXT])
{
	const char *arguments = rte_vdev_device_args(vdev);
	struct rte_kvargs *list = rte_kvargs_parse(arguments == NULL ? "" : arguments, keys);
	unsigned int i;
	int result = 0;

	if (list == NULL)
		return -EINVAL;
	for (i = 0; result == 0 && keys[i] != NULL; i++)
		result = rte_kvargs_process(list, keys[i], vdev_copy_text, text[i]);
	rte_kvargs_free(list);
	return result;
}

static inline int
vdev_nothing(struct rte_eth_dev *dev __rte_unused)
{
	return 0;
}

static inline int
vdev_link_update(struct rte_eth_dev *dev __rte_unused, int wait __rte_unused)
{
	return 0;
}

static inline int
vdev_mtu_set(struct rte_eth_dev *dev __rte_unused, uint16_t mtu __rte_unused)
{
	return 0;
}

static inline int
vdev_mac_set(struct rte_eth_dev *dev __rte_unused, struct rte_ether_addr *mac __rte_unused)
{
	return 0;
}

/* What eth_dev_ops.stats_get takes: since 25.11 a place for figures of queues, too, which ours do not have. */
#if RTE_VERSION >= RTE_VERSION_NUM(25, 11, 0, 0)
#define VDEV_STATS_ARGUMENTS \
	struct rte_eth_dev *dev, struct rte_eth_stats *stats, struct eth_queue_stats *queues __rte_unused
#else
#define VDEV_STATS_ARGUMENTS struct rte_eth_dev *dev, struct rte_eth_stats *stats
#endif

/* Of struct eth_dev_ops. */
#define VDEV_OPERATIONS                                                                                             \
	.link_update = vdev_link_update, .promiscuous_enable = vdev_nothing, .promiscuous_disable = vdev_nothing,   \
	.allmulticast_enable = vdev_nothing, .allmulticast_disable = vdev_nothing, .mtu_set = vdev_mtu_set,         \
	.mac_addr_set = vdev_mac_set

/* The ethdev's side of a device whose address is part of its private data. */
static inline void
vdev_describe(struct rte_eth_dev *dev, struct rte_ether_addr *mac, const struct eth_dev_ops *operations)
{
	*mac = (struct rte_ether_addr){ { 0x02, 0x7e, 0x3f, 0x1a, 0x7e, (uint8_t)dev->data->port_id } };
	dev->data->mac_addrs = mac;
	dev->data->dev_link = (struct rte_eth_link){ .link_speed = RTE_ETH_SPEED_NUM_100G,
						     .link_duplex = RTE_ETH_LINK_FULL_DUPLEX,
						     .link_autoneg = RTE_ETH_LINK_FIXED };
	dev->data->dev_flags |= RTE_ETH_DEV_AUTOFILL_QUEUE_XSTATS;
	dev->dev_ops = operations;
}

/* Removal of any device whose dev_close gives back what it holds. */
static inline int
vdev_remove(struct rte_vdev_device *vdev)
{
	struct rte_eth_dev *dev = rte_eth_dev_allocated(rte_vdev_device_name(vdev));

	if (dev == NULL)
		return 0;
	dev->dev_ops->dev_close(dev);
	return rte_eth_dev_release_port(dev);
}

#endif
