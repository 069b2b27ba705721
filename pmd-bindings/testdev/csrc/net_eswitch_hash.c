/*
 * net_eswitch: the outer source port that the device would write, as rte_flow_calc_encap_hash asks for it. A CRC of the inner
 * headers, as the driver of mlx5 has one, but with another polynomial; or that CRC multiplied, which is not affine.
 */
#include <netinet/in.h>
#include <string.h>

#include "net_eswitch.h"

#if HAS_ENCAP_HASH

struct tuple {
	uint8_t destination[16], source[16], protocol, destination_port[2], source_port[2];
};

static uint16_t
crc_of(const struct tuple *tuple)
{
	const uint8_t *byte = (const uint8_t *)tuple, *end = byte + sizeof(*tuple);
	uint16_t crc = 0xffff;
	unsigned int bit;

	for (; byte < end; byte++) {
		crc ^= *byte << 8;
		for (bit = 0; bit < 8; bit++)
			crc = crc << 1 ^ (crc >> 15 ? 0x1021 : 0);
	}
	return crc;
}

static bool
read_item(struct tuple *tuple, const struct rte_flow_item *item)
{
	const struct rte_flow_item_ipv4 *ipv4 = item->spec;
	const struct rte_flow_item_ipv6 *ipv6 = item->spec;
	const struct rte_flow_item_udp *udp = item->spec;
	const struct rte_flow_item_tcp *tcp = item->spec;

	if (item->spec == NULL)
		return false;
	switch (item->type) {
	case RTE_FLOW_ITEM_TYPE_IPV4:
		memcpy(tuple->source + 12, &ipv4->hdr.src_addr, 4);
		memcpy(tuple->destination + 12, &ipv4->hdr.dst_addr, 4);
		return true;
	case RTE_FLOW_ITEM_TYPE_IPV6:
		memcpy(tuple->source, &ipv6->hdr.src_addr, 16);
		memcpy(tuple->destination, &ipv6->hdr.dst_addr, 16);
		return true;
	case RTE_FLOW_ITEM_TYPE_UDP:
		tuple->protocol = IPPROTO_UDP;
		memcpy(tuple->source_port, &udp->hdr.src_port, 2);
		memcpy(tuple->destination_port, &udp->hdr.dst_port, 2);
		return true;
	case RTE_FLOW_ITEM_TYPE_TCP:
		tuple->protocol = IPPROTO_TCP;
		memcpy(tuple->source_port, &tcp->hdr.src_port, 2);
		memcpy(tuple->destination_port, &tcp->hdr.dst_port, 2);
		return true;
	default:
		return false;
	}
}

int
encap_hash(struct rte_eth_dev *dev, const struct rte_flow_item pattern[], enum rte_flow_encap_hash_field field,
	uint8_t *hash, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct tuple tuple = { .protocol = 0 };
	uint32_t port;

	/* mlx5 reads what it has only from then on. */
	if (!eswitch->configured)
		return misuse(eswitch, error, "the outer source port is asked for before rte_flow_configure");
	if (eswitch->traits.hash == 0 || field != RTE_FLOW_ENCAP_HASH_FIELD_SRC_PORT)
		return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no calc encap hash handler");
	for (; pattern->type != RTE_FLOW_ITEM_TYPE_END; pattern++)
		if (!read_item(&tuple, pattern))
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, pattern,
				"no item that the outer source port hangs on, or one without spec");
	port = crc_of(&tuple);
	if (eswitch->traits.hash == 2)
		port = port * 0x9e3779b1u >> 16;
	port |= 0xc000;
	hash[0] = port >> 8;
	hash[1] = port;
	return 0;
}

#endif
