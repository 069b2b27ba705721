/*
 * net_eswitch: the synchronous API, counters, shared actions, and the dump by which a test sees what the device holds.
 */
#include <stdlib.h>
#include <string.h>

#include "net_eswitch.h"

static int
flow_check(struct port *port, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	bool root = attr->group == 0;

	if (!port->eswitch->traits.sync)
		return rte_flow_error_set(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"the synchronous API is not supported");
	if (attr_check(port, attr, error) < 0 || pattern_check(port, root, items, false, error) < 0 ||
	    actions_check(port, root, actions, NULL, error) < 0)
		return -rte_errno;
	return 0;
}

static int
flow_validate(struct rte_eth_dev *dev, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	int result;

	rte_spinlock_lock(&port->eswitch->lock);
	result = flow_check(port, attr, items, actions, error);
	rte_spinlock_unlock(&port->eswitch->lock);
	return result;
}

static struct rte_flow *
flow_create(struct rte_eth_dev *dev, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
	const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	struct rte_flow *flow = NULL;

	rte_spinlock_lock(&eswitch->lock);
	if (flow_check(port, attr, items, actions, error) < 0)
		goto out;
	if (!port->started) {
		misuse(eswitch, error, "the port is not started");
		goto out;
	}
	flow = flow_new(eswitch, attr, NULL, items, actions);
	if (flow == NULL)
		refuse(eswitch, error, ENOSPC, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"there is no room for the rule or its counter");
	else
		flow_enter(eswitch, flow);
out:
	rte_spinlock_unlock(&eswitch->lock);
	return flow;
}

static int
flow_destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (flow->table != NULL) {
		result = misuse(eswitch, error, "the rule is a queue's");
	} else if (is_due(&eswitch->removals, eswitch->traits.keep)) {
		/* By turns as one that others need, and as where a command to the firmware failed. */
		result = ++eswitch->counts[KEPT] % 2 != 0
			? rte_flow_error_set(error, EBUSY, RTE_FLOW_ERROR_TYPE_HANDLE, NULL, "the rule is in use")
			: rte_flow_error_set(error, EIO, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "the command failed");
	} else {
		flow_leave(eswitch, flow);
		flow_free(eswitch, flow);
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

static void
flush(struct eswitch *eswitch, bool all)
{
	struct rte_flow *flow, *next;

	for (flow = TAILQ_FIRST(&eswitch->flows); flow != NULL; flow = next) {
		next = TAILQ_NEXT(flow, next);
		if (all || flow->table == NULL) {
			/* All go at once: no packet meets half a chain. */
			if (flow->jump != 0)
				eswitch->leads_to[flow->jump]--;
			flow->jump = 0;
		}
	}
	for (flow = TAILQ_FIRST(&eswitch->flows); flow != NULL; flow = next) {
		next = TAILQ_NEXT(flow, next);
		if (all || flow->table == NULL) {
			flow_leave(eswitch, flow);
			flow_free(eswitch, flow);
		}
	}
}

static int
flow_flush(struct rte_eth_dev *dev, struct rte_flow_error *error __rte_unused)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;

	rte_spinlock_lock(&eswitch->lock);
	flush(eswitch, false);
	rte_spinlock_unlock(&eswitch->lock);
	return 0;
}

static int
count_told(struct rte_flow_query_count *count)
{
	/* No packet is ever moved by a rule here. */
	count->hits = count->bytes = 0;
	count->hits_set = count->bytes_set = 1;
	return 0;
}

static int
flow_query(struct rte_eth_dev *dev, struct rte_flow *flow, const struct rte_flow_action *actions, void *data,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result;

	rte_spinlock_lock(&eswitch->lock);
	queues_advance(eswitch);
	if (!flow->counts || actions->type != RTE_FLOW_ACTION_TYPE_COUNT)
		result = refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, actions, "the rule does not count");
	else if (!flow->listed || flow->fresh > 0)
		result = rte_flow_error_set(error, EAGAIN, RTE_FLOW_ERROR_TYPE_HANDLE, NULL,
			"the counter has not been read yet");
	else if (eswitch->traits.lost)
		result = rte_flow_error_set(error, ENOENT, RTE_FLOW_ERROR_TYPE_HANDLE, NULL, "there is no such counter");
	else
		result = count_told(data);
	if (flow->listed && flow->fresh > 0)
		flow->fresh--;
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

static int
flow_aged(struct rte_eth_dev *dev __rte_unused, void **contexts __rte_unused, uint32_t count __rte_unused,
	struct rte_flow_error *error __rte_unused)
{
	return 0;
}

static int
flow_dump(struct rte_eth_dev *dev, struct rte_flow *flow, FILE *file, struct rte_flow_error *error __rte_unused)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	const struct rte_flow_action_handle *handle;

	rte_spinlock_lock(&eswitch->lock);
	queues_advance(eswitch);
	if (flow != NULL) {
		flow_print(flow, file);
	} else {
		TAILQ_FOREACH(flow, &eswitch->flows, next)
			flow_print(flow, file);
		LIST_FOREACH(handle, &eswitch->handles, next)
			mark_print(handle, file);
	}
	rte_spinlock_unlock(&eswitch->lock);
	return 0;
}

static int
pick_proxy(struct rte_eth_dev *dev, uint16_t *proxy, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;

	if (eswitch->uplink == NULL)
		return rte_flow_error_set(error, ENODEV, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
			"the e-switch has no uplink yet: it is the transfer proxy");
	*proxy = eswitch->uplink->dev->data->port_id;
	return 0;
}

static struct rte_flow_action_handle *
handle_create(struct rte_eth_dev *dev, const struct rte_flow_indir_action_conf *conf,
	const struct rte_flow_action *action, struct rte_flow_error *error)
{
	struct port *port = port_of(dev);
	struct eswitch *eswitch = port->eswitch;
	struct rte_flow_action_handle *handle = NULL;

	rte_spinlock_lock(&eswitch->lock);
	if (conf->transfer && port->representor >= 0) {
		refuse(eswitch, error, EINVAL, RTE_FLOW_ERROR_TYPE_ATTR_TRANSFER, NULL, "transfer actions are the proxy port's");
		goto out;
	}
	if (action->type == RTE_FLOW_ACTION_TYPE_METER_MARK) {
		/* mlx5 of 22.11 gives a meter out twice when it was given back without a queue. */
		misuse(eswitch, error, "meters are made and changed through a queue");
		goto out;
	}
	if (action->type != RTE_FLOW_ACTION_TYPE_COUNT && action->type != RTE_FLOW_ACTION_TYPE_AGE) {
		refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, action, "this action cannot be shared");
		goto out;
	}
	handle = calloc(1, sizeof(*handle));
	if (handle == NULL) {
		refuse(eswitch, error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "no memory");
		goto out;
	}
	handle->type = action->type;
	LIST_INSERT_HEAD(&eswitch->handles, handle, next);
	eswitch->counts[ACTIONS_SHARED]++;
out:
	rte_spinlock_unlock(&eswitch->lock);
	return handle;
}

static int
handle_destroy(struct rte_eth_dev *dev, struct rte_flow_action_handle *handle, struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result = 0;

	rte_spinlock_lock(&eswitch->lock);
	if (!mark_known(eswitch, handle) || handle->type == RTE_FLOW_ACTION_TYPE_METER_MARK) {
		result = misuse(eswitch, error, "there is no such shared action, or it is a queue's");
	} else {
		LIST_REMOVE(handle, next);
		free(handle);
		eswitch->counts[ACTIONS_SHARED]--;
	}
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

static int
handle_query(struct rte_eth_dev *dev, const struct rte_flow_action_handle *handle, void *data,
	struct rte_flow_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	int result;

	rte_spinlock_lock(&eswitch->lock);
	if (!mark_known(eswitch, handle))
		result = misuse(eswitch, error, "there is no such shared action");
	else if (handle->type != RTE_FLOW_ACTION_TYPE_COUNT)
		result = refuse(eswitch, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, NULL, "this action does not count");
	else
		result = count_told(data);
	rte_spinlock_unlock(&eswitch->lock);
	return result;
}

void
flows_end(struct eswitch *eswitch)
{
	struct rte_flow_action_handle *handle;
	uint64_t left = eswitch->counts[RULES];
	struct rte_flow *flow;

	if (left != 0) {
		eswitch->counts[MISUSED]++;
		SAY(ERR, "misuse: %" PRIu64 " rules were left at stop\n", left);
	}
	/* What is under way ends first: it looks at rules and meters. Then rules go before the meters that they name. */
	queues_empty(eswitch);
	flush(eswitch, true);
	while ((flow = LIST_FIRST(&eswitch->made)) != NULL)
		flow_free(eswitch, flow);
	while ((handle = LIST_FIRST(&eswitch->handles)) != NULL) {
		LIST_REMOVE(handle, next);
		free(handle);
	}
	eswitch->counts[ACTIONS_SHARED] = eswitch->counts[METERS] = 0;
}

static int
flow_isolate(struct rte_eth_dev *dev, int on, struct rte_flow_error *error)
{
	struct port *port = port_of(dev);

	if (port->started)
		return rte_flow_error_set(error, EBUSY, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "port must be stopped first");
	port->isolated = on;
	return 0;
}

const struct rte_flow_ops flow_operations = {
	.validate = flow_validate,
	.create = flow_create,
	.destroy = flow_destroy,
	.flush = flow_flush,
	.query = flow_query,
	.get_aged_flows = flow_aged,
	.dev_dump = flow_dump,
	.isolate = flow_isolate,
	.pick_transfer_proxy = pick_proxy,
	.action_handle_create = handle_create,
	.action_handle_destroy = handle_destroy,
	.action_handle_query = handle_query,
	.info_get = queues_info,
	.configure = queues_configure,
	.pattern_template_create = pattern_create,
	.pattern_template_destroy = pattern_destroy,
	.actions_template_create = actions_create,
	.actions_template_destroy = actions_destroy,
	.template_table_create = table_create,
	.template_table_destroy = table_destroy,
#if HAS_ENCAP_HASH
	.flow_calc_encap_hash = encap_hash,
#endif
#if !HAS_FP_OPS
	.async_create = async_create,
	.async_destroy = async_destroy,
	.async_action_handle_create = async_handle_create,
	.async_action_handle_destroy = async_handle_destroy,
	.async_action_handle_update = async_handle_update,
	.push = queue_push,
	.pull = queue_pull,
#endif
};

#if HAS_FP_OPS
const struct rte_flow_fp_ops fast_operations = {
	.async_create = async_create,
	.async_destroy = async_destroy,
	.async_action_handle_create = async_handle_create,
	.async_action_handle_destroy = async_handle_destroy,
	.async_action_handle_update = async_handle_update,
	.push = queue_push,
	.pull = queue_pull,
};
#endif
