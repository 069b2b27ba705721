/*
 * net_eswitch: meters by number, with their profiles and their policy (rte_mtr), and METER_MARK, which copies the rates of
 * its profile when it is made or changed, and never again. They meter nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "net_eswitch.h"

#define MOST 65536

enum { PROFILE, POLICY, METER, KINDS };

/* What there is of each kind, by the low bits of its number, and how many refer to it. */
struct thing {
	bool is;
	uint32_t number, users, profile, policy;
	struct rates rates;
};
struct meters {
	struct thing things[KINDS][MOST];
};

static int
no(struct eswitch *eswitch, struct rte_mtr_error *error, int code, const char *words)
{
	eswitch->counts[REFUSED]++;
	return -rte_mtr_error_set(error, code, RTE_MTR_ERROR_TYPE_UNSPECIFIED, NULL, words);
}

static struct thing *
thing(struct rte_eth_dev *dev, unsigned int kind, uint32_t number)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct thing *one;

	if (eswitch->meters == NULL)
		eswitch->meters = calloc(1, sizeof(*eswitch->meters));
	if (eswitch->meters == NULL)
		return NULL;
	one = &eswitch->meters->things[kind][number % MOST];
	return one->is && one->number != number ? NULL : one;
}

static int
add(struct rte_eth_dev *dev, unsigned int kind, uint32_t number, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, kind, number);

	if (one == NULL || one->is)
		return no(port_of(dev)->eswitch, error, one == NULL ? ENOMEM : EEXIST, "there is no room, or it is there");
	*one = (struct thing){ .is = true, .number = number };
	return 0;
}

static int
take_away(struct rte_eth_dev *dev, unsigned int kind, uint32_t number, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, kind, number);

	if (one == NULL || !one->is || one->users != 0)
		return no(port_of(dev)->eswitch, error, one != NULL && one->is ? EBUSY : ENOENT,
			"it is not there, or it is in use");
	one->is = false;
	return 0;
}

static int
profile_add(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_meter_profile *profile, struct rte_mtr_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct thing *one;

	if (eswitch->traits.profiles != 0 && number >= eswitch->traits.profiles)
		return no(eswitch, error, EINVAL, "Meter profile id not valid.");
	if (add(dev, PROFILE, number, error) < 0)
		return -rte_errno;
	eswitch->counts[PROFILES]++;
	one = thing(dev, PROFILE, number);
	if (profile->alg == RTE_MTR_SRTCM_RFC2697)
		one->rates = (struct rates){ .cir = profile->srtcm_rfc2697.cir, .cbs = profile->srtcm_rfc2697.cbs,
					     .ebs = profile->srtcm_rfc2697.ebs };
	else
		one->rates = (struct rates){ .cir = profile->trtcm_rfc4115.cir, .cbs = profile->trtcm_rfc4115.cbs,
					     .eir = profile->trtcm_rfc4115.eir, .ebs = profile->trtcm_rfc4115.ebs };
	return 0;
}

static int
profile_delete(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct rte_flow_action_handle *handle;

	/* Where there are few, their places stay; where each is made, its meters look at it until they are gone. */
	if (eswitch->traits.profiles == 0)
		LIST_FOREACH(handle, &eswitch->handles, next)
			if (handle->profile != NULL && handle->profile == thing(dev, PROFILE, number)) {
				misuse(eswitch, NULL, "a meter was made with this profile, and is still there");
				return no(eswitch, error, EBUSY, "a meter was made with this profile");
			}
	if (take_away(dev, PROFILE, number, error) < 0)
		return -rte_errno;
	eswitch->counts[PROFILES]--;
	return 0;
}

static int
policy_add(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_meter_policy_params *policy __rte_unused,
	struct rte_mtr_error *error)
{
	return add(dev, POLICY, number, error);
}

static int
policy_delete(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_error *error)
{
	return take_away(dev, POLICY, number, error);
}

/* METER_MARK names profile and policy by pointers of the driver's. */
static struct rte_flow_meter_profile *
profile_get(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, PROFILE, number);

	if (one != NULL && one->is)
		return (struct rte_flow_meter_profile *)one;
	no(port_of(dev)->eswitch, error, ENOENT, "there is no such profile");
	return NULL;
}

static struct rte_flow_meter_policy *
policy_get(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, POLICY, number);

	if (one != NULL && one->is)
		return (struct rte_flow_meter_policy *)one;
	no(port_of(dev)->eswitch, error, ENOENT, "there is no such policy");
	return NULL;
}

static int
meter_create(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_params *params, int shared __rte_unused,
	struct rte_mtr_error *error)
{
	struct eswitch *eswitch = port_of(dev)->eswitch;
	struct thing *profile = thing(dev, PROFILE, params->meter_profile_id);
	struct thing *policy = thing(dev, POLICY, params->meter_policy_id), *one = thing(dev, METER, number);

	if (!eswitch->traits.legacy)
		return no(eswitch, error, ENOTSUP, "meters by number are not supported: use METER_MARK");
	if (profile == NULL || policy == NULL || !profile->is || !policy->is)
		return no(eswitch, error, ENOENT, "there is no such profile or policy");
	if (add(dev, METER, number, error) < 0)
		return -rte_errno;
	one->profile = params->meter_profile_id;
	one->policy = params->meter_policy_id;
	profile->users++;
	policy->users++;
	eswitch->counts[METERS]++;
	return 0;
}

static int
meter_destroy(struct rte_eth_dev *dev, uint32_t number, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, METER, number);

	if (take_away(dev, METER, number, error) < 0)
		return -rte_errno;
	thing(dev, PROFILE, one->profile)->users--;
	thing(dev, POLICY, one->policy)->users--;
	port_of(dev)->eswitch->counts[METERS]--;
	return 0;
}

static int
meter_update(struct rte_eth_dev *dev, uint32_t number, uint32_t profile, struct rte_mtr_error *error)
{
	struct thing *one = thing(dev, METER, number), *other = thing(dev, PROFILE, profile);

	if (one == NULL || other == NULL || !one->is || !other->is)
		return no(port_of(dev)->eswitch, error, ENOENT, "there is no such meter or profile");
	thing(dev, PROFILE, one->profile)->users--;
	other->users++;
	one->profile = profile;
	return 0;
}

bool
profile_rates(const struct rte_flow_action_meter_mark *mark, struct rates *rates)
{
	const struct thing *profile = (const struct thing *)mark->profile;

	if (profile == NULL || !profile->is)
		return false;
	*rates = profile->rates;
	return true;
}

bool
mark_known(const struct eswitch *eswitch, const struct rte_flow_action_handle *handle)
{
	const struct rte_flow_action_handle *known;

	LIST_FOREACH(known, &eswitch->handles, next)
		if (known == handle)
			return true;
	return false;
}

bool
mark_usable(const struct eswitch *eswitch, const struct rte_flow_action_handle *handle)
{
	return mark_known(eswitch, handle) &&
		(handle->type != RTE_FLOW_ACTION_TYPE_METER_MARK || (handle->ready && !handle->going));
}

struct rte_flow_action_handle *
mark_new(struct eswitch *eswitch, const struct rte_flow_action_meter_mark *mark, struct rte_flow_error *error)
{
	struct thing *profile = (struct thing *)mark->profile;
	struct rte_flow_action_handle *handle;

	if (profile == NULL || !profile->is) {
		misuse(eswitch, error, "a meter has a profile");
		return NULL;
	}
	if (eswitch->counts[METERS] >= eswitch->marks) {
		refuse(eswitch, error, ENOMEM, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, "there is no meter left");
		return NULL;
	}
	handle = calloc(1, sizeof(*handle));
	if (handle == NULL)
		return NULL;
	*handle = (struct rte_flow_action_handle){ .type = RTE_FLOW_ACTION_TYPE_METER_MARK, .profile = profile,
						   .number = ++eswitch->last_mark };
	LIST_INSERT_HEAD(&eswitch->handles, handle, next);
	eswitch->counts[ACTIONS_SHARED]++;
	eswitch->counts[METERS]++;
	return handle;
}

void
mark_end(struct eswitch *eswitch, struct operation *operation)
{
	struct rte_flow_action_handle *handle = operation->handle;

	handle->pending--;
	if (operation->fails) {
		handle->going = false;
		eswitch->counts[operation->removes ? KEPT : FAILED]++;
	} else if (operation->removes) {
		LIST_REMOVE(handle, next);
		free(handle);
		eswitch->counts[ACTIONS_SHARED]--;
		eswitch->counts[METERS]--;
	} else {
		handle->ready = true;
		handle->rates = operation->rates;
	}
}

/* "meter 1 cir 1000 cbs 4096 eir 0 ebs 0". */
void
mark_print(const struct rte_flow_action_handle *handle, FILE *file)
{
	if (handle->type == RTE_FLOW_ACTION_TYPE_METER_MARK)
		fprintf(file, "meter %" PRIu32 " cir %" PRIu64 " cbs %" PRIu64 " eir %" PRIu64 " ebs %" PRIu64 "\n",
			handle->number, handle->rates.cir, handle->rates.cbs, handle->rates.eir, handle->rates.ebs);
}

bool
meter_known(const struct eswitch *eswitch, uint32_t number)
{
	const struct thing *one = eswitch->meters == NULL ? NULL : &eswitch->meters->things[METER][number % MOST];

	return one != NULL && one->is && one->number == number;
}

void
meters_end(struct eswitch *eswitch)
{
	free(eswitch->meters);
	eswitch->meters = NULL;
	eswitch->counts[METERS] = eswitch->counts[PROFILES] = 0;
}

/* Each operation holds the e-switch's lock: queues make and remove meters on other threads. */
#define LOCKED(type, name, arguments, ...) \
	static type \
	name##_locked(struct rte_eth_dev *dev, __VA_ARGS__) \
	{ \
		struct eswitch *eswitch = port_of(dev)->eswitch; \
		type result; \
\
		rte_spinlock_lock(&eswitch->lock); \
		result = name arguments; \
		rte_spinlock_unlock(&eswitch->lock); \
		return result; \
	}
LOCKED(int, profile_add, (dev, number, profile, error), uint32_t number, struct rte_mtr_meter_profile *profile,
	struct rte_mtr_error *error)
LOCKED(int, profile_delete, (dev, number, error), uint32_t number, struct rte_mtr_error *error)
LOCKED(struct rte_flow_meter_profile *, profile_get, (dev, number, error), uint32_t number, struct rte_mtr_error *error)
LOCKED(int, policy_add, (dev, number, policy, error), uint32_t number, struct rte_mtr_meter_policy_params *policy,
	struct rte_mtr_error *error)
LOCKED(int, policy_delete, (dev, number, error), uint32_t number, struct rte_mtr_error *error)
LOCKED(struct rte_flow_meter_policy *, policy_get, (dev, number, error), uint32_t number, struct rte_mtr_error *error)
LOCKED(int, meter_create, (dev, number, params, shared, error), uint32_t number, struct rte_mtr_params *params, int shared,
	struct rte_mtr_error *error)
LOCKED(int, meter_destroy, (dev, number, error), uint32_t number, struct rte_mtr_error *error)
LOCKED(int, meter_update, (dev, number, profile, error), uint32_t number, uint32_t profile, struct rte_mtr_error *error)

const struct rte_mtr_ops meter_operations = {
	.meter_profile_add = profile_add_locked,
	.meter_profile_delete = profile_delete_locked,
	.meter_profile_get = profile_get_locked,
	.meter_policy_add = policy_add_locked,
	.meter_policy_delete = policy_delete_locked,
	.meter_policy_get = policy_get_locked,
	.create = meter_create_locked,
	.destroy = meter_destroy_locked,
	.meter_profile_update = meter_update_locked,
};
