/*
 * net_eswitch: which rules the device takes, and the rules that it holds. Its refusals are those of mlx5's hardware
 * steering, as its driver (DPDK 24.11) and its guide tell them; no hardware was at hand.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_eswitch.h"

#define ITEM(word, name, structure) { RTE_FLOW_ITEM_TYPE_##word, name, sizeof(struct structure) }
static const struct item_kind item_kinds[] = {
	ITEM(ETH, "eth", rte_flow_item_eth),
	ITEM(VLAN, "vlan", rte_flow_item_vlan),
	ITEM(IPV4, "ipv4", rte_flow_item_ipv4),
	ITEM(IPV6, "ipv6", rte_flow_item_ipv6),
	ITEM(UDP, "udp", rte_flow_item_udp),
	ITEM(TCP, "tcp", rte_flow_item_tcp),
	ITEM(VXLAN, "vxlan", rte_flow_item_vxlan),
	ITEM(REPRESENTED_PORT, "represented_port", rte_flow_item_ethdev),
	ITEM(METER_COLOR, "meter_color", rte_flow_item_meter_color),
	ITEM(TAG, "tag", rte_flow_item_tag),
	ITEM(MARK, "mark", rte_flow_item_mark),
#if HAS_IB_BTH
	ITEM(IB_BTH, "ib_bth", rte_flow_item_ib_bth),
#endif
};

/* The order of actions in the FDB; the last is the one that says where the packet goes, exactly one in a rule. */
enum { DECAP = 1, COUNT, MARK, METER, MODIFY, ENCAP, FATE };
#define PLAIN(word, name, stage) { RTE_FLOW_ACTION_TYPE_##word, name, 0, stage, false }
#define ACTION(word, name, structure, stage) { RTE_FLOW_ACTION_TYPE_##word, name, sizeof(struct structure), stage, false }
#define LEGACY(word, name, structure, stage) { RTE_FLOW_ACTION_TYPE_##word, name, sizeof(struct structure), stage, true }
static const struct action_kind action_kinds[] = {
	PLAIN(VXLAN_DECAP, "vxlan_decap", DECAP),
	ACTION(RAW_DECAP, "raw_decap", rte_flow_action_raw_decap, DECAP),
	ACTION(COUNT, "count", rte_flow_action_count, COUNT),
	ACTION(AGE, "age", rte_flow_action_age, COUNT),
	ACTION(MARK, "mark", rte_flow_action_mark, MARK),
	ACTION(METER_MARK, "meter_mark", rte_flow_action_meter_mark, METER),
	ACTION(MODIFY_FIELD, "modify_field", rte_flow_action_modify_field, MODIFY),
	ACTION(RAW_ENCAP, "raw_encap", rte_flow_action_raw_encap, ENCAP),
	ACTION(JUMP, "jump", rte_flow_action_jump, FATE),
	ACTION(REPRESENTED_PORT, "represented_port", rte_flow_action_ethdev, FATE),
	ACTION(PORT_REPRESENTOR, "port_representor", rte_flow_action_ethdev, FATE),
	ACTION(QUEUE, "queue", rte_flow_action_queue, FATE),
	PLAIN(DROP, "drop", FATE),
	{ RTE_FLOW_ACTION_TYPE_INDIRECT, "indirect", 0, 0, false },
	LEGACY(METER, "meter", rte_flow_action_meter, METER),
	LEGACY(SET_TAG, "set_tag", rte_flow_action_set_tag, MODIFY),
	LEGACY(SET_MAC_SRC, "set_mac_src", rte_flow_action_set_mac, MODIFY),
	LEGACY(SET_MAC_DST, "set_mac_dst", rte_flow_action_set_mac, MODIFY),
	{ RTE_FLOW_ACTION_TYPE_DEC_TTL, "dec_ttl", 0, MODIFY, true },
	LEGACY(PORT_ID, "port_id", rte_flow_action_port_id, FATE),
};

/* The longest header that may be put in front, and the shortest that is one of a tunnel. */
#define LONGEST_ENCAP 132
#define SHORTEST_ENCAP 35

const struct item_kind *
item_kind(enum rte_flow_item_type type)
{
	unsigned int i;

	for (i = 0; i < RTE_DIM(item_kinds); i++)
		if (item_kinds[i].type == type)
			return &item_kinds[i];
	return NULL;
}

const struct action_kind *
action_kind(enum rte_flow_action_type type)
{
	unsigned int i;

	for (i = 0; i < RTE_DIM(action_kinds); i++)
		if (action_kinds[i].type == type)
			return &action_kinds[i];
	return NULL;
}

/* 1 for ingress, 2 for egress, 4 for transfer, and their sum. */
unsigned int
direction_of(uint32_t ingress, uint32_t egress, uint32_t transfer)
{
	return (ingress ? 1 : 0) | (egress ? 2 : 0) | (transfer ? 4 : 0);
}

int
attr_check(struct port *port, const struct rte_flow_attr *attr, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port->eswitch;
	unsigned int direction = direction_of(attr->ingress, attr->egress, attr->transfer);

	if (direction != 1 && direction != 2 && direction != 4)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR, attr, "exactly one direction is needed");
	if (attr->transfer && port->representor >= 0)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, attr,
			"transfer rules are the proxy port's");
	if (attr->group >= GROUPS)
		return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_GROUP, attr, "there is no such group");
	if (attr->priority > LOWEST_PRIORITY)
		return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ATTR_PRIORITY, attr,
			"priorities end at 21844");
	return 0;
}

/* Packet sequence numbers are never matched. */
static bool
bth_wants_psn(const struct rte_flow_item *item __rte_unused)
{
#if HAS_IB_BTH
	const struct rte_flow_item_ib_bth *mask = item->mask;

	return mask != NULL && (mask->hdr.psn[0] | mask->hdr.psn[1] | mask->hdr.psn[2]) != 0;
#else
	return false;
#endif
}

int
pattern_check(struct port *port, bool root, const struct rte_flow_item items[], bool templates,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port->eswitch;
	unsigned int count = 0;

	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		const struct item_kind *kind = item_kind(items->type);

		if (kind == NULL || ++count > MOST_ITEMS)
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM, items, "the item is not supported");
		if (items->last != NULL)
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_LAST, items,
				"ranges are not supported");
		if (!templates && (items->spec == NULL) != (items->mask == NULL))
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, items,
				"an item has both spec and mask or neither");
		if (strcmp(kind->name, "ib_bth") == 0) {
			if (root)
				return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, items,
					"IB BTH item is not supported on group 0");
			if (bth_wants_psn(items))
				return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM_MASK, items,
					"IB BTH: the packet sequence number cannot be matched");
		}
	}
	return 0;
}

#define ALL_ONES(value) ((value) == (__typeof__(value))~(__typeof__(value))0)

static int
modify_check(struct eswitch *eswitch, const struct rte_flow_action *action, const struct rte_flow_action *mask,
	struct rte_flow_error *error)
{
	const struct rte_flow_action_modify_field *conf = action->conf;
	const struct rte_flow_action_modify_field *bits = mask == NULL ? NULL : mask->conf;

	if (conf == NULL || conf->width == 0)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, conf, "modify_field: no width");
	/* Of a register it is the number, as before 23.11 said so. */
	if (conf->dst.level > 1 && conf->dst.field != RTE_FLOW_FIELD_TAG)
		return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
			"inner header fields modification is not supported");
	if (mask == NULL)
		return 0;
	if (bits == NULL || bits->operation != conf->operation || bits->dst.field != conf->dst.field ||
	    bits->src.field != conf->src.field)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
			"modify_field: the mask must be like the action in operation and fields");
	if (!ALL_ONES(bits->width) || !ALL_ONES(bits->dst.level) || !ALL_ONES(bits->dst.offset))
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
			"modify_field: width, level and offset must be fully masked");
	return 0;
}

static int
conf_check(struct port *port, bool root, const struct rte_flow_action *action, const struct rte_flow_action *mask,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port->eswitch;

	switch ((int)action->type) {
	case RTE_FLOW_ACTION_TYPE_RAW_ENCAP: {
		const struct rte_flow_action_raw_encap *conf = action->conf, *bits = mask == NULL ? NULL : mask->conf;

		if (mask != NULL && (bits == NULL || bits->size == 0))
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"raw_encap: size must be masked");
		if (conf == NULL || conf->data == NULL || conf->size < SHORTEST_ENCAP || conf->size > LONGEST_ENCAP)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"raw_encap: a header has 35 to 132 bytes");
		return 0;
	}
	case RTE_FLOW_ACTION_TYPE_MODIFY_FIELD:
		return modify_check(eswitch, action, mask, error);
	case RTE_FLOW_ACTION_TYPE_JUMP: {
		const struct rte_flow_action_jump *conf = action->conf;

		if (conf == NULL || conf->group == 0 || conf->group >= GROUPS)
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"jump to the root table is not supported");
		return 0;
	}
	case RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR: {
		const struct rte_flow_action_ethdev *conf = action->conf;

		if (!eswitch->traits.legacy && (conf == NULL || conf->port_id != UINT16_MAX))
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"port_representor: the port must be 0xffff");
		return 0;
	}
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT: {
		const struct rte_flow_action_ethdev *conf = action->conf;
		const struct rte_eth_dev *other;

		if (conf == NULL || !rte_eth_dev_is_valid_port(conf->port_id))
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action, "there is no such port");
		other = &rte_eth_devices[conf->port_id];
		if (other->dev_ops != port->dev->dev_ops || port_of(port->dev)->eswitch != eswitch ||
		    ((struct port *)other->data->dev_private)->eswitch != eswitch)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"the port is of another e-switch");
		return 0;
	}
	case RTE_FLOW_ACTION_TYPE_METER: {
		const struct rte_flow_action_meter *conf = action->conf;

		if (mask == NULL && (conf == NULL || !meter_known(eswitch, conf->mtr_id)))
			return refuse(eswitch, error, ENOENT, RTE_FLOW_ERROR_TYPE_ACTION, action, "there is no such meter");
		return 0;
	}
	default:
		RTE_SET_USED(root);
		return 0;
	}
}

int
actions_check(struct port *port, bool root, const struct rte_flow_action actions[],
	const struct rte_flow_action masks[], struct rte_flow_error *error)
{
	struct eswitch *eswitch = port->eswitch;
	unsigned int i, stage = 0, fates = 0, meters = 0;

	for (i = 0; actions[i].type != RTE_FLOW_ACTION_TYPE_END; i++) {
		const struct rte_flow_action *action = &actions[i], *mask = masks == NULL ? NULL : &masks[i];
		const struct action_kind *kind = action_kind(action->type);
		bool shared = action->type == RTE_FLOW_ACTION_TYPE_INDIRECT;

		if (kind == NULL || i >= MOST_ACTIONS || (kind->legacy && !eswitch->traits.legacy))
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"the action is not supported");
		if (shared && action->conf == NULL)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action, "there is no shared action");
		if (shared && mask == NULL && !mark_usable(eswitch, action->conf))
			return misuse(eswitch, error, "the shared action is not there, is not made yet, or is to go");
		/* What it stands for, the mask says, or itself. */
		if (shared)
			kind = action_kind(mask != NULL ? mask->type : ((const struct rte_flow_action_handle *)action->conf)->type);
		if (kind == NULL)
			return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action, "the action is not supported");
		if (mask != NULL && mask->type != action->type && !shared)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"mask type does not match action type");
		if (kind->stage != 0 && kind->stage < stage)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"the order of actions is decap, count and age, mark, meter, modify, encap, fate");
		stage = RTE_MAX(stage, (unsigned int)kind->stage);
		fates += kind->stage == FATE;
		meters += kind->stage == METER;
		if (meters > 1)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"two meters in one rule are not supported");
		if (kind->type == RTE_FLOW_ACTION_TYPE_METER_MARK && eswitch->marks == 0)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, action,
				"meter_mark pool not initialized");
		if (conf_check(port, root, action, mask, error) < 0)
			return -rte_errno;
	}
	if (fates != 1)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_NUM, actions,
			"exactly one action says where the packet goes");
	return 0;
}

/* A header to put in front is kept itself, not where it was. */
uint32_t
conf_length(const struct rte_flow_action *action)
{
	const struct rte_flow_action_raw_encap *encap = action->conf;

	if (action->conf == NULL)
		return 0;
	if (action->type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP)
		return encap->data == NULL ? 0 : encap->size;
	return action_kind(action->type)->size;
}

void
conf_copy(const struct rte_flow_action *action, uint8_t *to)
{
	const struct rte_flow_action_raw_encap *encap = action->conf;
	bool encaps = action->type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP;

	memcpy(to, encaps ? (const void *)encap->data : action->conf, conf_length(action));
}

/* One piece of a rule: what it is, and how many bytes of it follow. */
struct piece {
	const char *name, *part;
	uint16_t length;
};

static uint8_t *
piece_add(uint8_t *at, const char *name, const char *part, const void *bytes, uint16_t length)
{
	struct piece piece = { .name = name, .part = part, .length = length };

	memcpy(at, &piece, sizeof(piece));
	if (length != 0)
		memcpy(at + sizeof(piece), bytes, length);
	return at + sizeof(piece) + length;
}

/*
 * A rule with copies of all that it says. Of a table's rule, masks and constant actions are the templates'. What has no
 * room is not made (NULL).
 */
struct rte_flow *
flow_new(struct eswitch *eswitch, const struct rte_flow_attr *attr, struct rte_flow_template_table *table,
	const struct rte_flow_item items[], const struct rte_flow_action actions[])
{
	uint8_t room[MOST_ITEMS * (48 + 48 + 2 * sizeof(struct piece)) + MOST_ACTIONS * (160 + sizeof(struct piece))];
	uint32_t count = 0, acts = 0, jump = 0, length;
	struct rte_flow_action_handle *meter = NULL;
	struct rte_flow *flow;
	uint8_t *at = room;
	bool counts = false;

	if (eswitch->counts[RULES] + 1 > eswitch->traits.rules)
		return NULL;
	for (; items[count].type != RTE_FLOW_ITEM_TYPE_END; count++) {
		const struct rte_flow_item *item = &items[count];
		const struct item_kind *kind = table == NULL ? item_kind(item->type) : table->pattern->kinds[count];
		const void *mask = table == NULL ? item->mask :
			table->pattern->matches[count] ? table->pattern->masks[count] : NULL;

		at = piece_add(at, kind->name, "", NULL, 0);
		if (mask != NULL && item->spec != NULL) {
			at = piece_add(at, NULL, "spec", item->spec, kind->size);
			at = piece_add(at, NULL, "mask", mask, kind->size);
		}
	}
	for (; actions[acts].type != RTE_FLOW_ACTION_TYPE_END; acts++) {
		const struct rte_flow_action *action = &actions[acts];
		const struct action_copy *copy = table == NULL ? NULL : &table->actions->actions[acts];
		uint8_t conf[160];
		uint16_t bytes;

		if (action->type == RTE_FLOW_ACTION_TYPE_INDIRECT) {
			struct rte_flow_action_handle *handle = (void *)(uintptr_t)action->conf;

			bytes = sizeof(handle->number);
			memcpy(conf, &handle->number, bytes);
			if (handle->type == RTE_FLOW_ACTION_TYPE_METER_MARK)
				meter = handle;
		} else if (copy != NULL && copy->constant) {
			bytes = copy->length;
			memcpy(conf, copy->conf, bytes);
		} else {
			bytes = conf_length(action);
			if (bytes != 0)
				conf_copy(action, conf);
		}
		if (action->type == RTE_FLOW_ACTION_TYPE_JUMP)
			jump = ((const struct rte_flow_action_jump *)conf)->group;
		counts |= action->type == RTE_FLOW_ACTION_TYPE_COUNT;
		at = piece_add(at, action_kind(action->type)->name, "conf", conf, bytes);
	}
	if (counts && eswitch->configured && eswitch->counts[COUNTERS] >= eswitch->counters)
		return NULL;
	length = at - room;
	flow = malloc(sizeof(*flow) + length);
	if (flow == NULL)
		return NULL;
	*flow = (struct rte_flow){ .table = table, .group = attr->group, .priority = attr->priority, .jump = jump,
				   .counts = counts, .fresh = eswitch->traits.fresh, .items = count, .actions = acts,
				   .length = length, .meter = meter,
				   .direction = direction_of(attr->ingress, attr->egress, attr->transfer) };
	memcpy(flow->body, room, length);
	LIST_INSERT_HEAD(&eswitch->made, flow, made);
	eswitch->counts[COUNTERS] += counts;
	eswitch->counts[RULES]++;
	if (meter != NULL)
		meter->users++;
	if (table != NULL)
		table->rules++;
	return flow;
}

/* A jump that is in force and leads to an empty group: packets miss there, which is half a chain unless it is meant. */
static void
look_for_dangling(struct eswitch *eswitch, uint32_t group)
{
	if (group != 0 && eswitch->leads_to[group] != 0 && eswitch->in_group[group] == 0) {
		eswitch->counts[DANGLING]++;
		SAY(DEBUG, "a rule in force leads to group %u, which is empty\n", group);
	}
}

void
flow_enter(struct eswitch *eswitch, struct rte_flow *flow)
{
	flow->listed = true;
	TAILQ_INSERT_TAIL(&eswitch->flows, flow, next);
	eswitch->in_group[flow->group]++;
	if (flow->jump != 0)
		eswitch->leads_to[flow->jump]++;
	eswitch->counts[CREATED]++;
	look_for_dangling(eswitch, flow->jump);
}

void
flow_leave(struct eswitch *eswitch, struct rte_flow *flow)
{
	if (!flow->listed)
		return;
	flow->listed = false;
	TAILQ_REMOVE(&eswitch->flows, flow, next);
	eswitch->in_group[flow->group]--;
	if (flow->jump != 0)
		eswitch->leads_to[flow->jump]--;
	eswitch->counts[DESTROYED]++;
	look_for_dangling(eswitch, flow->group);
}

void
flow_free(struct eswitch *eswitch, struct rte_flow *flow)
{
	eswitch->counts[COUNTERS] -= flow->counts;
	eswitch->counts[RULES]--;
	if (flow->table != NULL)
		flow->table->rules--;
	if (flow->meter != NULL)
		flow->meter->users--;
	LIST_REMOVE(flow, made);
	free(flow);
}

/* One line: "7 transfer group 1 priority 0 | ipv4 spec=.. mask=.. udp | count conf=.. drop". */
void
flow_print(const struct rte_flow *flow, FILE *file)
{
	const uint8_t *at = flow->body, *end = at + flow->length;
	uint32_t left = flow->items;
	const char *direction = flow->direction == 1 ? "ingress" : flow->direction == 2 ? "egress" : "transfer";

	fprintf(file, "%" PRIu64 " %s group %u priority %u |", flow->cookie, direction, flow->group, flow->priority);
	while (at < end) {
		struct piece piece;
		unsigned int i;

		memcpy(&piece, at, sizeof(piece));
		at += sizeof(piece);
		if (piece.name != NULL) {
			if (piece.part[0] != '\0' && left != UINT32_MAX) {
				fputs(" |", file);
				left = UINT32_MAX;
			}
			fprintf(file, " %s", piece.name);
		}
		if (piece.length != 0) {
			fprintf(file, " %s=", piece.part);
			for (i = 0; i < piece.length; i++)
				fprintf(file, "%02x", at[i]);
		}
		at += piece.length;
	}
	fputs("\n", file);
}
