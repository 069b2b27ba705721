/*
 * mlx5-judge CAPABILITIES software|hardware UPLINK PORTS [PORT] <rules >verdicts
 * mlx5-judge CAPABILITIES METERS UPLINK PORTS <steps >answers
 * mlx5-judge --list
 *
 * For each rule one line: "accepted", or for each refusal "refused", the stage, mlx5's message and what it logged, each with a
 * tab behind it. PORT is asked, or else the uplink. With a number of meters, which are set aside for hardware steering: steps of meters.c.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_version.h>

#include "judge.h"

#define RULES_PER_TABLE 64
/* Seconds. */
#define TIME_LIMIT 120

void die(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fflush(stdout);
	fprintf(stderr, "mlx5-judge: %s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(2);
}

static FILE *words;
static char *words_text;
static size_t words_length;

void words_start(void)
{
	words = open_memstream(&words_text, &words_length);
	if (!words || rte_openlog_stream(words))
		DIE("the log cannot be kept");
	rte_log_set_global_level(RTE_LOG_ERR);
	rte_log_set_level_pattern("*", RTE_LOG_ERR);
}

/* What the driver logged first says most. */
char *words_take(void)
{
	char *first;

	fflush(words);
	first = strndup(words_text, strcspn(words_text, "\n"));
	rewind(words);
	memset(words_text, 0, words_length);
	return first;
}

/* A line has all refusals of a rule: stage, message, log of each. */
static void refused(const char *stage, const char *message)
{
	char *log = words_take();

	printf("refused\t%s\t%s\t%s\t", stage, message ? message : "", log);
	free(log);
}

static void judge_software(uint16_t uplink, const struct rule *rule)
{
	struct rte_flow_error error = { 0 };
	struct rte_flow *flow;

	for (const struct rte_flow_action *action = rule->actions; action->type != RTE_FLOW_ACTION_TYPE_END; action++) {
		const struct rte_flow_action_meter *meter = action->conf;
		const char *message;

		if (action->type == RTE_FLOW_ACTION_TYPE_METER && !device_meter(uplink, meter->mtr_id, &message)) {
			refused("meter", message);
			return;
		}
	}
	if (rte_flow_validate(uplink, &rule->attr, rule->items, rule->actions, &error)) {
		refused("validate", error.message);
		return;
	}
	flow = rte_flow_create(uplink, &rule->attr, rule->items, rule->actions, &error);
	if (!flow) {
		refused("create", error.message);
		return;
	}
	printf("accepted");
	if (rte_flow_destroy(uplink, flow, &error))
		DIE("a rule that was taken is not given back");
}

/* The device always answers; a machine that is busy may take its time. */
bool queue_completed(uint16_t uplink, struct rte_flow_error *error)
{
	struct rte_flow_op_result result;
	int count;

	if (rte_flow_push(uplink, 0, error))
		return false;
	while ((count = rte_flow_pull(uplink, 0, &result, 1, error)) == 0)
		usleep(20);
	return count == 1 && result.status == RTE_FLOW_OP_SUCCESS;
}

/*
 * Meters are pointers of the process that has the port. Where a rule has METER_MARK, its profile is the driver's; where it has
 * an indirect action whose mask says METER_MARK, its configuration is the number of a meter, which is made.
 */
static void lend_meters(uint16_t uplink, const struct rule *rule, struct rte_flow_action *actions)
{
	for (size_t i = 0;; i++) {
		actions[i] = rule->actions[i];
		if (actions[i].type == RTE_FLOW_ACTION_TYPE_END)
			break;
		if (actions[i].type == RTE_FLOW_ACTION_TYPE_METER_MARK && actions[i].conf)
			((struct rte_flow_action_meter_mark *)(uintptr_t)actions[i].conf)->profile =
				meters_profile(uplink);
		if (actions[i].type == RTE_FLOW_ACTION_TYPE_INDIRECT &&
		    rule->masks[i].type == RTE_FLOW_ACTION_TYPE_METER_MARK && actions[i].conf)
			actions[i].conf = meters_handle(uplink, *(const uint32_t *)actions[i].conf);
	}
}

static void insert(uint16_t uplink, struct rte_flow_template_table *table, const struct rule *rule,
		   const struct rte_flow_action *actions)
{
	const struct rte_flow_op_attr later = { .postpone = 1 };
	struct rte_flow_error error = { 0 };
	struct rte_flow *flow;

	flow = rte_flow_async_create(uplink, 0, &later, table, rule->items, 0, actions, 0, NULL, &error);
	if (!flow || !queue_completed(uplink, &error)) {
		refused("rule", error.message);
		return;
	}
	printf("accepted");
	if (rte_flow_async_destroy(uplink, 0, &later, flow, NULL, &error) || !queue_completed(uplink, &error))
		DIE("a rule that was taken is not given back");
}

/* Templates, the table with them, a rule in the table: as pmd's flow queues go. */
static void judge_hardware(uint16_t uplink, const struct rule *rule)
{
	const struct rte_flow_pattern_template_attr pattern_attr = {
		.ingress = rule->attr.ingress, .egress = rule->attr.egress, .transfer = rule->attr.transfer,
	};
	const struct rte_flow_actions_template_attr actions_attr = {
		.ingress = rule->attr.ingress, .egress = rule->attr.egress, .transfer = rule->attr.transfer,
	};
	const struct rte_flow_template_table_attr table_attr = { .flow_attr = rule->attr, .nb_flows = RULES_PER_TABLE };
	struct rte_flow_action lent[MAX_ACTIONS];
	struct rte_flow_pattern_template *pattern;
	struct rte_flow_actions_template *actions;
	struct rte_flow_template_table *table;
	struct rte_flow_error error = { 0 };

	lend_meters(uplink, rule, lent);
	/* What one of them is refused for says nothing about the other. */
	pattern = rte_flow_pattern_template_create(uplink, &pattern_attr, rule->template_items, &error);
	if (!pattern)
		refused("pattern template", error.message);
	error = (struct rte_flow_error){ 0 };
	actions = rte_flow_actions_template_create(uplink, &actions_attr, lent, rule->masks, &error);
	if (!actions)
		refused("actions template", error.message);
	if (pattern && actions) {
		error = (struct rte_flow_error){ 0 };
		table = rte_flow_template_table_create(uplink, &table_attr, &pattern, 1, &actions, 1, &error);
		if (table) {
			insert(uplink, table, rule, lent);
			rte_flow_template_table_destroy(uplink, table, &error);
		} else {
			refused("table", error.message);
		}
	}
	if (actions)
		rte_flow_actions_template_destroy(uplink, actions, &error);
	if (pattern)
		rte_flow_pattern_template_destroy(uplink, pattern, &error);
}

int main(int argc, char **argv)
{
	char *eal[] = { argv[0], "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "-m", "256", "-l", "0",
			"--log-level=3", "--file-prefix", "mlx5-judge", NULL };
	const struct capabilities *capabilities;
	enum engine engine;
	uint16_t uplink, ports, asked;
	uint32_t meters;
	struct rule rule;

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		capabilities_list(stdout);
		return 0;
	}
	if (argc != 5 && argc != 6)
		DIE("usage: mlx5-judge CAPABILITIES software|hardware|METERS UPLINK PORTS [PORT] <rules or steps");
	capabilities = capabilities_find(argv[1]);
	if (!capabilities)
		DIE("no capabilities called %s", argv[1]);
	/* Nothing here takes long; what does not end would be a fault, of ours or of the driver. */
	alarm(TIME_LIMIT);
	engine = strcmp(argv[2], "software") ? ENGINE_HARDWARE : ENGINE_SOFTWARE;
	meters = atoi(argv[2]);
	uplink = atoi(argv[3]);
	ports = atoi(argv[4]);
	asked = argc == 6 ? atoi(argv[5]) : uplink;
	if (rte_eal_init(sizeof(eal) / sizeof(eal[0]) - 1, eal) < 0)
		DIE("EAL does not start: %s", rte_strerror(rte_errno));
	firmware_start(capabilities);
	device_start(engine, uplink, ports, meters ? meters : METERS);
	if (engine == ENGINE_HARDWARE && asked != uplink)
		device_queues(asked, METERS);
	words_start();
	if (meters)
		meters_run(uplink, stdin);
	for (size_t count = 0; !meters && rule_read(stdin, &rule); count++) {
		if (count == MAX_RULES)
			DIE("more than %d rules at a time", MAX_RULES);
		if (engine == ENGINE_HARDWARE)
			judge_hardware(asked, &rule);
		else
			judge_software(asked, &rule);
		putchar('\n');
		rule_free(&rule);
	}
	fflush(stdout);
	/* Without giving anything back: what a device would have to confirm is not worth waiting for. */
	_exit(0);
}
