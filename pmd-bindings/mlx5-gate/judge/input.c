/*
 * Reading rules: what pmd's `flow::flatten` writes, in this machine's byte order.
 *
 *   rule    := 'R' attr items template_items actions masks
 *   attr    := group u32, priority u32, flags u32 (1 ingress, 2 egress, 4 transfer)
 *   list    := count u32, entries
 *   item    := type u32, spec, last, mask        each a blob
 *   action  := type u32, conf blob, data blob    data: what conf.data of raw_encap points to
 *   blob    := length u32 (0xffffffff: a null pointer), bytes
 */
#include <stdlib.h>
#include <string.h>

#include "judge.h"

#define NO_BLOB UINT32_MAX
#define LONGEST 65536

static void read_exactly(FILE *from, void *to, size_t length)
{
	if (fread(to, 1, length, from) != length)
		DIE("the input ends in the middle of a rule");
}

static uint32_t read_u32(FILE *from)
{
	uint32_t value;

	read_exactly(from, &value, sizeof(value));
	return value;
}

static void *new_zeroed(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory)
		DIE("out of memory");
	return memory;
}

/* With room behind it, all zero, for a structure that is longer here than where it came from. */
static void *read_blob(FILE *from)
{
	uint32_t length = read_u32(from);
	void *blob;

	if (length == NO_BLOB)
		return NULL;
	if (length > LONGEST)
		DIE("a structure of %u bytes", length);
	blob = new_zeroed(1, length + 64);
	read_exactly(from, blob, length);
	return blob;
}

static uint32_t read_count(FILE *from)
{
	uint32_t count = read_u32(from);

	if (count == 0 || count > MAX_ACTIONS)
		DIE("a list of %u entries", count);
	return count;
}

static struct rte_flow_item *read_items(FILE *from)
{
	uint32_t count = read_count(from);
	struct rte_flow_item *items = new_zeroed(count, sizeof(*items));

	for (uint32_t i = 0; i < count; i++) {
		items[i].type = (enum rte_flow_item_type)read_u32(from);
		items[i].spec = read_blob(from);
		items[i].last = read_blob(from);
		items[i].mask = read_blob(from);
	}
	if (items[count - 1].type != RTE_FLOW_ITEM_TYPE_END)
		DIE("a pattern without an end");
	return items;
}

static struct rte_flow_action *read_actions(FILE *from)
{
	uint32_t count = read_count(from);
	struct rte_flow_action *actions = new_zeroed(count, sizeof(*actions));

	for (uint32_t i = 0; i < count; i++) {
		void *conf, *data;

		actions[i].type = (enum rte_flow_action_type)read_u32(from);
		conf = read_blob(from);
		data = read_blob(from);
		if (data) {
			if (!conf || actions[i].type != RTE_FLOW_ACTION_TYPE_RAW_ENCAP)
				DIE("data of an action that has none");
			((struct rte_flow_action_raw_encap *)conf)->data = data;
		}
		actions[i].conf = conf;
	}
	if (actions[count - 1].type != RTE_FLOW_ACTION_TYPE_END)
		DIE("actions without an end");
	return actions;
}

bool rule_read(FILE *from, struct rule *rule)
{
	int mark = fgetc(from);
	uint32_t flags;

	if (mark == EOF)
		return false;
	if (mark != 'R')
		DIE("a rule does not begin with R");
	memset(rule, 0, sizeof(*rule));
	rule->attr.group = read_u32(from);
	rule->attr.priority = read_u32(from);
	flags = read_u32(from);
	rule->attr.ingress = !!(flags & 1);
	rule->attr.egress = !!(flags & 2);
	rule->attr.transfer = !!(flags & 4);
	rule->items = read_items(from);
	rule->template_items = read_items(from);
	rule->actions = read_actions(from);
	rule->masks = read_actions(from);
	return true;
}

static void free_items(struct rte_flow_item *items)
{
	for (struct rte_flow_item *item = items; item->type != RTE_FLOW_ITEM_TYPE_END; item++) {
		free((void *)(uintptr_t)item->spec);
		free((void *)(uintptr_t)item->last);
		free((void *)(uintptr_t)item->mask);
	}
	free(items);
}

static void free_actions(struct rte_flow_action *actions)
{
	for (struct rte_flow_action *action = actions; action->type != RTE_FLOW_ACTION_TYPE_END; action++) {
		struct rte_flow_action_raw_encap *conf = (void *)(uintptr_t)action->conf;

		if (conf && action->type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP)
			free(conf->data);
		free(conf);
	}
	free(actions);
}

void rule_free(struct rule *rule)
{
	free_items(rule->items);
	free_items(rule->template_items);
	free_actions(rule->actions);
	free_actions(rule->masks);
}
