/*
 * Meters as hardware steering has them: METER_MARK by handle, each made with the rates that the driver's profile has at that
 * moment. The calls are those of pmd (src/flow/mark.rs): operations of a flow queue, each waited for.
 *
 * Steps are lines of words: profile NUMBER and rates; forget NUMBER; make ID; change ID; remove ID; ask HANDLE. Rates are
 * cir, cbs, eir, ebs. Each is answered by a line: "done", "handle NUMBER", "rates ..." and "off", or "refused" and why.
 * make-sync and remove-sync are the same by the calls without a queue.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_mtr.h>

#include "judge.h"

/* The number of the profile, where there is one for all meters. */
#define PROFILE 0
#define MOST 65536

static struct rte_flow_action_handle *handles[MOST];

static int profile_write(uint16_t uplink, uint32_t number, const struct device_rates *rates, struct rte_mtr_error *error)
{
	struct rte_mtr_meter_profile profile = {
		.alg = RTE_MTR_SRTCM_RFC2697,
		.srtcm_rfc2697 = { .cir = rates->cir, .cbs = rates->cbs, .ebs = rates->ebs },
	};

	if (rates->eir) {
		profile.alg = RTE_MTR_TRTCM_RFC4115;
		profile.trtcm_rfc4115.cir = rates->cir;
		profile.trtcm_rfc4115.cbs = rates->cbs;
		profile.trtcm_rfc4115.eir = rates->eir;
		profile.trtcm_rfc4115.ebs = rates->ebs;
	}
	return rte_mtr_meter_profile_add(uplink, number, &profile, error);
}

static struct rte_flow_meter_profile *profile_get(uint16_t uplink)
{
	struct rte_mtr_error error = { 0 };

	return rte_mtr_meter_profile_get(uplink, PROFILE, &error);
}

struct rte_flow_meter_profile *meters_profile(uint16_t uplink)
{
	const struct device_rates rates = { .cir = 10000000, .cbs = 1000000, .ebs = 250000 };
	struct rte_mtr_error error = { 0 };
	static bool made;

	made = made || !profile_write(uplink, PROFILE, &rates, &error);
	if (!made)
		DIE("the driver takes no profile of a meter: %s", error.message ? error.message : "");
	return profile_get(uplink);
}

/* Operations of the queue wait there until they are pushed. */
static const struct rte_flow_op_attr later = { .postpone = 1 };

static struct rte_flow_action_handle *make(uint16_t uplink, bool queued, struct rte_flow_error *error)
{
	const struct rte_flow_indir_action_conf conf = { .transfer = 1 };
	const struct rte_flow_action_meter_mark meter = { .profile = profile_get(uplink), .state = 1 };
	const struct rte_flow_action action = { .type = RTE_FLOW_ACTION_TYPE_METER_MARK, .conf = &meter };
	struct rte_flow_action_handle *handle;

	if (!queued)
		return rte_flow_action_handle_create(uplink, &conf, &action, error);
	handle = rte_flow_async_action_handle_create(uplink, 0, &later, &conf, &action, NULL, error);
	return handle && queue_completed(uplink, error) ? handle : NULL;
}

static bool change(uint16_t uplink, struct rte_flow_action_handle *handle, struct rte_flow_error *error)
{
	const struct rte_flow_update_meter_mark update = {
		.meter_mark.profile = profile_get(uplink), .profile_valid = 1,
	};

	return !rte_flow_async_action_handle_update(uplink, 0, &later, handle, &update, NULL, error) &&
	       queue_completed(uplink, error);
}

static bool take_away(uint16_t uplink, struct rte_flow_action_handle *handle, bool queued, struct rte_flow_error *error)
{
	if (!queued)
		return !rte_flow_action_handle_destroy(uplink, handle, error);
	return !rte_flow_async_action_handle_destroy(uplink, 0, &later, handle, NULL, error) &&
	       queue_completed(uplink, error);
}

struct rte_flow_action_handle *meters_handle(uint16_t uplink, uint32_t id)
{
	struct rte_flow_error error = { 0 };

	if (id >= MOST)
		DIE("meter %u: numbers below %u are known", id, MOST);
	meters_profile(uplink);
	if (!handles[id])
		handles[id] = make(uplink, true, &error);
	if (!handles[id])
		DIE("the driver makes no indirect meter: %s", error.message ? error.message : "");
	return handles[id];
}

/* Two meters to an object: what the device holds of the meter that a handle stands for. */
static void answer_rates(uint16_t uplink, uint32_t handle)
{
	uint32_t number = (handle & 0x1fffffff) - 1;
	struct device_rates rates;

	if (!device_rates(device_first_meter(uplink) + number / 2, number % 2, &rates))
		printf("nothing\n");
	else if (rates.disabled)
		printf("off\n");
	else
		printf("rates %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", rates.cir, rates.cbs, rates.eir, rates.ebs);
}

static void answer(bool done, const char *message)
{
	char *words = words_take();

	if (done)
		printf("done\n");
	else
		printf("refused %s%s%s\n", message ? message : "", *words ? ": " : "", words);
	free(words);
}

static void step(uint16_t uplink, const char *word, uint32_t number, const struct device_rates *rates)
{
	struct rte_flow_action_handle **handle = &handles[number % MOST];
	bool queued = !strstr(word, "-sync"), done = true;
	struct rte_mtr_error meter_error = { 0 };
	struct rte_flow_error error = { 0 };

	if (!strcmp(word, "ask")) {
		answer_rates(uplink, number);
		return;
	}
	if (!strcmp(word, "profile"))
		done = !profile_write(uplink, number, rates, &meter_error);
	else if (!strcmp(word, "forget"))
		done = !rte_mtr_meter_profile_delete(uplink, number, &meter_error);
	else if (!strncmp(word, "make", 4))
		done = (*handle = make(uplink, queued, &error)) != NULL;
	else if (!strcmp(word, "change"))
		done = change(uplink, *handle, &error);
	else if (!strncmp(word, "remove", 6))
		done = take_away(uplink, *handle, queued, &error);
	else
		DIE("no step is called %s", word);
	if (done && !strncmp(word, "make", 4))
		printf("handle %" PRIuPTR "\n", (uintptr_t)*handle);
	else
		answer(done, error.message ? error.message : meter_error.message);
}

void meters_run(uint16_t uplink, FILE *from)
{
	char line[256], word[16];

	while (fgets(line, sizeof(line), from)) {
		struct device_rates rates = { 0 };
		uint32_t number;

		if (sscanf(line, "%15s %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, word, &number, &rates.cir,
			   &rates.cbs, &rates.eir, &rates.ebs) < 2)
			DIE("a step is a word and a number: %s", line);
		step(uplink, word, number, &rates);
	}
}
