/*
 * net_eswitch: templates, tables, and queues of operations, whose results come after a while and not always well.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_cycles.h>

#include "net_eswitch.h"

int
queues_info(struct rte_eth_dev *dev, struct rte_flow_port_info *info, struct rte_flow_queue_info *queue,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	const struct traits *traits = &eswitch->traits;

	if (traits->queues == 0)
		return rte_flow_error_set(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"info get with incorrect steering mode");
	memset(info, 0, sizeof(*info));
	info->max_nb_queues = traits->queues;
	info->max_nb_counters = traits->counters;
	info->max_nb_aging_objects = traits->ages;
	info->max_nb_meters = traits->meters;
	queue->max_size = traits->depth;
	return 0;
}

int
queues_configure(struct rte_eth_dev *dev, const struct rte_flow_port_attr *attr, uint16_t count,
	const struct rte_flow_queue_attr *queues[], struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	const struct traits *traits = &eswitch->traits;
	unsigned int i;

	if (traits->queues == 0)
		return rte_flow_error_set(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"flow configure with incorrect steering mode");
	/* Here only the uplink has queues: it takes all rules. */
	if (port->representor >= 0)
		return refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"flow queues are the proxy port's");
	if (eswitch->configured)
		return misuse(eswitch, error, "the flow engine was configured before, and cannot be changed");
	if (count == 0 || count > traits->queues || attr->nb_counters > traits->counters ||
	    attr->nb_aging_objects > traits->ages || attr->nb_meters > traits->meters)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"more queues, counters, ages or meters than there are");
	for (i = 0; i < count; i++)
		if (queues[i]->size == 0 || queues[i]->size > traits->depth)
			return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
				"the queue is deeper than any can be");
	eswitch->queues = calloc(count, sizeof(*eswitch->queues));
	if (eswitch->queues == NULL)
		return rte_flow_error_set(error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory");
	for (i = 0; i < count; i++) {
		struct queue *queue = &eswitch->queues[i];

		queue->all = calloc(queues[i]->size, sizeof(*queue->all));
		if (queue->all != NULL)
			queue->depth = queues[i]->size;
	}
	eswitch->queue_count = count;
	queues_empty(eswitch);
	eswitch->counters = attr->nb_counters;
	eswitch->marks = attr->nb_meters;
	eswitch->configured = true;
	return 0;
}

static int
template_check(struct port *port, unsigned int direction, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port->eswitch;

	if (direction != 1 && direction != 2 && direction != 4)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR, NULL,
			"a template has exactly one of ingress, egress and transfer");
	if (direction == 4 && port->representor >= 0)
		return refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, NULL,
			"transfer templates are supported only on proxy port");
	return 0;
}

struct rte_flow_pattern_template *
pattern_create(struct rte_eth_dev *dev, const struct rte_flow_pattern_template_attr *attr,
	const struct rte_flow_item items[], struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	unsigned int direction = direction_of(attr->ingress, attr->egress, attr->transfer);
	struct rte_flow_pattern_template *template = NULL;

	rte_spinlock_lock(&eswitch->lock);
	if (template_check(port, direction, error) < 0 || pattern_check(port, false, items, true, error) < 0)
		goto out;
	template = calloc(1, sizeof(*template));
	if (template == NULL) {
		refuse(eswitch, error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory");
		goto out;
	}
	template->direction = direction;
	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		const struct item_kind *kind = item_kind(items->type);

		template->kinds[template->count] = kind;
		template->matches[template->count] = items->mask != NULL;
		if (items->mask != NULL)
			memcpy(template->masks[template->count], items->mask, kind->size);
		template->has_bth |= strcmp(kind->name, "ib_bth") == 0;
		template->count++;
	}
	LIST_INSERT_HEAD(&eswitch->patterns, template, next);
	eswitch->counts[TEMPLATES]++;
out:
	rte_spinlock_unlock(&eswitch->lock);
	return template;
}

int
pattern_destroy(struct rte_eth_dev *dev, struct rte_flow_pattern_template *template, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (template->users != 0) {
		result = misuse(eswitch, error, "a table has this pattern template");
	} else {
		LIST_REMOVE(template, next);
		free(template);
		eswitch->counts[TEMPLATES]--;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

/* True for what all rules of the template have in common: the mask's configuration says so by any bit. */
static bool
is_constant(const struct rte_flow_action *action, const struct rte_flow_action *mask)
{
	const uint8_t *bytes = mask->conf;
	uint32_t i, size = action_kind(action->type)->size;

	if (bytes == NULL || action->conf == NULL)
		return false;
	if (action->type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP)
		return ((const struct rte_flow_action_raw_encap *)mask->conf)->data != NULL;
	if (action->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD) {
		/* What is written may vary; the rest is always masked. */
		bytes = ((const struct rte_flow_action_modify_field *)mask->conf)->src.value;
		size = sizeof(((struct rte_flow_action_modify_field *)NULL)->src.value);
	}
	for (i = 0; i < size; i++)
		if (bytes[i] != 0)
			return true;
	return false;
}

static void
actions_free(struct rte_flow_actions_template *template)
{
	uint32_t i;

	for (i = 0; i < template->count; i++)
		free(template->actions[i].conf);
	free(template);
}

struct rte_flow_actions_template *
actions_create(struct rte_eth_dev *dev, const struct rte_flow_actions_template_attr *attr,
	const struct rte_flow_action actions[], const struct rte_flow_action masks[], struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	unsigned int direction = direction_of(attr->ingress, attr->egress, attr->transfer);
	struct rte_flow_actions_template *template = NULL;

	rte_spinlock_lock(&eswitch->lock);
	if (template_check(port, direction, error) < 0 || actions_check(port, false, actions, masks, error) < 0)
		goto out;
	template = calloc(1, sizeof(*template));
	for (; template != NULL && actions->type != RTE_FLOW_ACTION_TYPE_END; actions++, masks++) {
		struct action_copy *copy = &template->actions[template->count++];

		copy->kind = action_kind(actions->type);
		template->has_shared |= actions->type == RTE_FLOW_ACTION_TYPE_INDIRECT;
		copy->constant = is_constant(actions, masks);
		copy->length = conf_length(actions);
		copy->conf = malloc(copy->length + 1);
		if (copy->conf == NULL) {
			actions_free(template);
			template = NULL;
		} else if (copy->length != 0) {
			conf_copy(actions, copy->conf);
		}
	}
	if (template == NULL) {
		refuse(eswitch, error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory");
		goto out;
	}
	template->direction = direction;
	LIST_INSERT_HEAD(&eswitch->action_lists, template, next);
	eswitch->counts[TEMPLATES]++;
out:
	rte_spinlock_unlock(&eswitch->lock);
	return template;
}

int
actions_destroy(struct rte_eth_dev *dev, struct rte_flow_actions_template *template, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (template->users != 0) {
		result = misuse(eswitch, error, "a table has this actions template");
	} else {
		LIST_REMOVE(template, next);
		actions_free(template);
		eswitch->counts[TEMPLATES]--;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

struct rte_flow_template_table *
table_create(struct rte_eth_dev *dev, const struct rte_flow_template_table_attr *attr,
	struct rte_flow_pattern_template *patterns[], uint8_t pattern_count, struct rte_flow_actions_template *actions[],
	uint8_t action_count, struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	struct rte_flow_template_table *table = NULL;
	const struct rte_flow_attr *place = &attr->flow_attr;
	unsigned int direction = direction_of(place->ingress, place->egress, place->transfer);

	rte_spinlock_lock(&eswitch->lock);
	if (attr_check(port, place, error) < 0)
		goto out;
	if (pattern_count != 1 || action_count != 1 || attr->nb_flows == 0 || patterns[0]->direction != direction ||
	    actions[0]->direction != direction) {
		refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"a table has room, and one template of each kind, of its own direction");
		goto out;
	}
	if (patterns[0]->has_bth && place->group == 0) {
		refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ITEM, NULL, "IB BTH item is not supported on group 0");
		goto out;
	}
	if (actions[0]->has_shared && place->group == 0) {
		refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION, NULL,
			"Indirect action is not supported in root table.");
		goto out;
	}
	table = calloc(1, sizeof(*table));
	if (table == NULL) {
		refuse(eswitch, error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory");
		goto out;
	}
	*table = (struct rte_flow_template_table){ .attr = *place, .pattern = patterns[0], .actions = actions[0],
						   .room = attr->nb_flows };
	patterns[0]->users++;
	actions[0]->users++;
	LIST_INSERT_HEAD(&eswitch->tables, table, next);
	eswitch->counts[TABLES]++;
out:
	rte_spinlock_unlock(&eswitch->lock);
	return table;
}

int
table_destroy(struct rte_eth_dev *dev, struct rte_flow_template_table *table, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (table->rules != 0) {
		result = misuse(eswitch, error, "rules are left in this table");
	} else {
		table->pattern->users--;
		table->actions->users--;
		LIST_REMOVE(table, next);
		free(table);
		eswitch->counts[TABLES]--;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

static struct queue *
queue_of(struct eswitch *eswitch, uint32_t number)
{
	return number < eswitch->queue_count ? &eswitch->queues[number] : NULL;
}

/* A place in the queue, if it has one. */
static struct operation *
operation_new(struct eswitch *eswitch, struct queue *queue, struct rte_flow_error *error)
{
	struct operation *operation = TAILQ_FIRST(&queue->unused);

	if (operation == NULL || is_due(&eswitch->enqueued, eswitch->traits.busy)) {
		eswitch->counts[NOT_TAKEN]++;
		rte_flow_error_set(error, EAGAIN, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			operation == NULL ? "the flow queue is full" : "the flow queue is busy");
		return NULL;
	}
	return operation;
}

static void
fly(struct eswitch *eswitch, struct queue *queue, struct operation *operation, uint64_t now)
{
	const struct traits *traits = &eswitch->traits;
	bool late = is_due(&eswitch->pushed, traits->late);
	uint64_t microseconds = late ? traits->late_delay : traits->delay;

	operation->ready = now + microseconds * rte_get_tsc_hz() / 1000000;
	if (traits->mute != 0 && ++eswitch->sent > traits->mute)
		operation->ready = UINT64_MAX;
	TAILQ_INSERT_TAIL(late ? &queue->late : &queue->flying, operation, next);
}

static void
operation_begin(struct eswitch *eswitch, struct queue *queue, struct operation *operation, bool postpone)
{
	TAILQ_REMOVE(&queue->unused, operation, next);
	if (postpone)
		TAILQ_INSERT_TAIL(&queue->staged, operation, next);
	else
		fly(eswitch, queue, operation, rte_rdtsc());
}

/* What the rule says must fit the table. */
static int
fits(struct port *port, const struct rte_flow_template_table *table, const struct rte_flow_item items[],
	const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	const struct rte_flow_pattern_template *pattern = table->pattern;
	struct eswitch *eswitch = port->eswitch;
	uint32_t i, byte;

	for (i = 0; items[i].type != RTE_FLOW_ITEM_TYPE_END; i++) {
		const uint8_t *spec = items[i].spec;

		if (i >= pattern->count || pattern->kinds[i]->type != items[i].type)
			return misuse(eswitch, error, "the rule's items are not those of the pattern template");
		if (pattern->matches[i] && spec == NULL)
			return misuse(eswitch, error, "the pattern template matches an item of which the rule says nothing");
		for (byte = 0; pattern->matches[i] && byte < pattern->kinds[i]->size; byte++)
			if (spec[byte] & ~pattern->masks[i][byte])
				return misuse(eswitch, error, "bits of the spec are outside of the mask: the rule never matches");
	}
	if (i != pattern->count)
		return misuse(eswitch, error, "the rule's items are not those of the pattern template");
	for (i = 0; actions[i].type != RTE_FLOW_ACTION_TYPE_END; i++) {
		if (i >= table->actions->count || table->actions->actions[i].kind->type != actions[i].type)
			return misuse(eswitch, error, "the rule's actions are not those of the actions template");
		if (actions[i].type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP &&
		    conf_length(&actions[i]) != table->actions->actions[i].length)
			return misuse(eswitch, error, "the header's length is not that of the actions template");
		if (actions[i].type == RTE_FLOW_ACTION_TYPE_INDIRECT) {
			const struct rte_flow_action_handle *handle = actions[i].conf;

			if (!mark_usable(eswitch, handle))
				return misuse(eswitch, error, "the shared action is not there, is not made yet, or is to go");
		}
	}
	if (i != table->actions->count)
		return misuse(eswitch, error, "the rule's actions are not those of the actions template");
	return 0;
}

struct rte_flow *
async_create(struct rte_eth_dev *dev, uint32_t number, const struct rte_flow_op_attr *attr,
	struct rte_flow_template_table *table, const struct rte_flow_item items[], uint8_t pattern,
	const struct rte_flow_action actions[], uint8_t action_list, void *user_data, struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct operation *operation;
	struct rte_flow *flow = NULL;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL || pattern != 0 || action_list != 0) {
		misuse(eswitch, error, "there is no such queue or template");
		goto out;
	}
	if (fits(port, table, items, actions, error) < 0)
		goto out;
	operation = operation_new(eswitch, queue, error);
	if (operation == NULL)
		goto out;
	if (table->rules >= table->room) {
		refuse(eswitch, error, ENOSPC, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "the table is full");
		goto out;
	}
	flow = flow_new(eswitch, &table->attr, table, items, actions);
	if (flow == NULL) {
		refuse(eswitch, error, ENOSPC, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"there is no room for the rule or its counter");
		goto out;
	}
	flow->cookie = (uint64_t)(uintptr_t)user_data;
	flow->pending = true;
	operation->flow = flow;
	operation->handle = NULL;
	operation->user_data = user_data;
	operation->removes = false;
	operation->fails = is_due(&eswitch->operations, eswitch->traits.fail);
	operation_begin(eswitch, queue, operation, attr->postpone);
out:
	rte_spinlock_unlock(&eswitch->lock);
	return flow;
}

int
async_destroy(struct rte_eth_dev *dev, uint32_t number, const struct rte_flow_op_attr *attr, struct rte_flow *flow,
	void *user_data, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct operation *operation;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL || flow->table == NULL) {
		result = misuse(eswitch, error, "the rule was not made through a queue, or there is no such queue");
		goto out;
	}
	if (flow->pending || flow->going) {
		result = misuse(eswitch, error, "an operation on this rule is under way");
		goto out;
	}
	operation = operation_new(eswitch, queue, error);
	if (operation == NULL) {
		result = -EAGAIN;
		goto out;
	}
	flow->going = true;
	operation->flow = flow;
	operation->handle = NULL;
	operation->user_data = user_data;
	operation->removes = true;
	operation->fails = is_due(&eswitch->removals, eswitch->traits.keep);
	operation_begin(eswitch, queue, operation, attr->postpone);
out:
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

/* An operation on a meter, which reads the profile's rates now; its answer comes later, as a rule's. */
static int
mark_begin(struct eswitch *eswitch, struct queue *queue, const struct rte_flow_op_attr *attr,
	struct rte_flow_action_handle *handle, const struct rates *rates, void *user_data, struct rte_flow_error *error)
{
	struct operation *operation = operation_new(eswitch, queue, error);
	bool removes = rates == NULL;

	if (operation == NULL)
		return -EAGAIN;
	operation->handle = handle;
	operation->user_data = user_data;
	operation->removes = removes;
	if (!removes)
		operation->rates = *rates;
	operation->fails = removes ? is_due(&eswitch->removals, eswitch->traits.keep) :
		is_due(&eswitch->operations, eswitch->traits.fail);
	handle->pending++;
	operation_begin(eswitch, queue, operation, attr->postpone);
	return 0;
}

struct rte_flow_action_handle *
async_handle_create(struct rte_eth_dev *dev, uint32_t number, const struct rte_flow_op_attr *attr,
	const struct rte_flow_indir_action_conf *conf, const struct rte_flow_action *action, void *user_data,
	struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct rte_flow_action_handle *handle = NULL;
	struct rates rates;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL || !conf->transfer || port->representor >= 0) {
		misuse(eswitch, error, "there is no such queue, or the action is not the e-switch's");
	} else if (action->type != RTE_FLOW_ACTION_TYPE_METER_MARK) {
		refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action, "action type not supported");
	} else if ((handle = mark_new(eswitch, action->conf, error)) != NULL) {
		if (!profile_rates(action->conf, &rates) ||
		    mark_begin(eswitch, queue, attr, handle, &rates, user_data, error) < 0) {
			LIST_REMOVE(handle, next);
			free(handle);
			eswitch->counts[ACTIONS_SHARED]--;
			eswitch->counts[METERS]--;
			handle = NULL;
		}
	}
	rte_spinlock_unlock(&eswitch->lock);
	return handle;
}

int
async_handle_destroy(struct rte_eth_dev *dev, uint32_t number, const struct rte_flow_op_attr *attr,
	struct rte_flow_action_handle *handle, void *user_data, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	int result;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL || !mark_known(eswitch, handle) || handle->pending != 0 || handle->going)
		result = misuse(eswitch, error, "there is no such queue or meter, or an operation on it is under way");
	else if (handle->users != 0)
		result = misuse(eswitch, error, "rules have this meter");
	else if ((result = mark_begin(eswitch, queue, attr, handle, NULL, user_data, error)) == 0)
		handle->going = true;
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

int
async_handle_update(struct rte_eth_dev *dev, uint32_t number, const struct rte_flow_op_attr *attr,
	struct rte_flow_action_handle *handle, const void *update, void *user_data, struct rte_flow_error *error)
{
	const struct rte_flow_update_meter_mark *change = update;
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct rates rates;
	int result;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL || !mark_known(eswitch, handle) || handle->going) {
		result = misuse(eswitch, error, "there is no such queue or meter, or the meter is to go");
	} else if (!change->profile_valid || !profile_rates(&change->meter_mark, &rates)) {
		result = misuse(eswitch, error, "the change has no profile, or one that was deleted");
	} else {
		result = mark_begin(eswitch, queue, attr, handle, &rates, user_data, error);
		/* The driver looks at it from now on, whatever becomes of the operation. */
		if (result == 0)
			handle->profile = (struct thing *)change->meter_mark.profile;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

static void
operation_end(struct eswitch *eswitch, struct queue *queue, struct operations *from, struct operation *operation)
{
	struct rte_flow *flow = operation->flow;

	TAILQ_REMOVE(from, operation, next);
	TAILQ_INSERT_TAIL(&queue->done, operation, next);
	if (operation->handle != NULL) {
		mark_end(eswitch, operation);
		return;
	}
	flow->pending = false;
	if (operation->fails) {
		flow->going = false;
		eswitch->counts[operation->removes ? KEPT : FAILED]++;
	} else if (operation->removes) {
		flow_leave(eswitch, flow);
		flow_free(eswitch, flow);
	} else {
		flow_enter(eswitch, flow);
	}
}

void
queues_advance(struct eswitch *eswitch)
{
	uint64_t now = rte_rdtsc();
	struct operation *operation, *next;
	unsigned int i;

	if (eswitch->silent != NULL && access(eswitch->silent, F_OK) == 0)
		return;
	for (i = 0; i < eswitch->queue_count; i++) {
		struct queue *queue = &eswitch->queues[i];

		while ((operation = TAILQ_FIRST(&queue->flying)) != NULL && operation->ready <= now)
			operation_end(eswitch, queue, &queue->flying, operation);
		for (operation = TAILQ_FIRST(&queue->late); operation != NULL; operation = next) {
			next = TAILQ_NEXT(operation, next);
			if (operation->ready <= now)
				operation_end(eswitch, queue, &queue->late, operation);
		}
	}
}

int
queue_push(struct rte_eth_dev *dev, uint32_t number, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct operation *operation;
	uint64_t now = rte_rdtsc();
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (queue == NULL)
		result = misuse(eswitch, error, "there is no such queue");
	while (queue != NULL && (operation = TAILQ_FIRST(&queue->staged)) != NULL) {
		TAILQ_REMOVE(&queue->staged, operation, next);
		fly(eswitch, queue, operation, now);
	}
	queues_advance(eswitch);
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

int
queue_pull(struct rte_eth_dev *dev, uint32_t number, struct rte_flow_op_result results[], uint16_t room,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct queue *queue = queue_of(eswitch, number);
	struct operation *operation;
	int count = 0;

	rte_spinlock_lock(&eswitch->lock);
	queues_advance(eswitch);
	if (queue == NULL)
		count = misuse(eswitch, error, "there is no such queue");
	while (queue != NULL && count < room && (operation = TAILQ_FIRST(&queue->done)) != NULL) {
		TAILQ_REMOVE(&queue->done, operation, next);
		TAILQ_INSERT_HEAD(&queue->unused, operation, next);
		results[count].user_data = operation->user_data;
		results[count].status = operation->fails ? RTE_FLOW_OP_ERROR : RTE_FLOW_OP_SUCCESS;
		count++;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return count;
}

void
queues_empty(struct eswitch *eswitch)
{
	unsigned int i, j;

	for (i = 0; i < eswitch->queue_count; i++) {
		struct queue *queue = &eswitch->queues[i];

		TAILQ_INIT(&queue->unused);
		TAILQ_INIT(&queue->staged);
		TAILQ_INIT(&queue->flying);
		TAILQ_INIT(&queue->late);
		TAILQ_INIT(&queue->done);
		for (j = 0; j < queue->depth; j++)
			TAILQ_INSERT_TAIL(&queue->unused, &queue->all[j], next);
	}
}

void
queues_end(struct eswitch *eswitch)
{
	struct rte_flow_template_table *table;
	struct rte_flow_pattern_template *pattern;
	struct rte_flow_actions_template *actions;
	unsigned int i;

	for (i = 0; i < eswitch->queue_count; i++)
		free(eswitch->queues[i].all);
	free(eswitch->queues);
	eswitch->queues = NULL;
	eswitch->queue_count = 0;
	eswitch->configured = false;
	while ((table = LIST_FIRST(&eswitch->tables)) != NULL) {
		LIST_REMOVE(table, next);
		free(table);
	}
	while ((pattern = LIST_FIRST(&eswitch->patterns)) != NULL) {
		LIST_REMOVE(pattern, next);
		free(pattern);
	}
	while ((actions = LIST_FIRST(&eswitch->action_lists)) != NULL) {
		LIST_REMOVE(actions, next);
		actions_free(actions);
	}
	eswitch->counts[TABLES] = eswitch->counts[TEMPLATES] = 0;
}
