/*
 * net_eswitch: what its files share. The whole of it is explained in net_eswitch.c.
 */
#ifndef NET_ESWITCH_H
#define NET_ESWITCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <ethdev_driver.h>
#include <rte_flow.h>
#include <rte_flow_driver.h>
#include <rte_log.h>
#include <rte_mtr.h>
#include <rte_mtr_driver.h>
#include <rte_spinlock.h>
#include <rte_version.h>

/* The asynchronous calls have a table of their own in the ethdev since 24.03. */
#define HAS_FP_OPS (RTE_VERSION >= RTE_VERSION_NUM(24, 3, 0, 0))
#define HAS_ENCAP_HASH HAS_FP_OPS
#define HAS_IB_BTH (RTE_VERSION >= RTE_VERSION_NUM(23, 7, 0, 0))

#define RX_QUEUES 16
#define RSS_KEY 40
/* Frames that wait in a receive queue. */
#define WAITING 256
#define GROUPS 1024
#define LOWEST_PRIORITY 21844
#define MOST_ITEMS 24
#define MOST_ACTIONS 24
/* Segments of memory of a packet that is sent. */
#define TSO_SEGMENTS 40

extern int eswitch_log;
#define SAY(level, ...) rte_log(RTE_LOG_##level, eswitch_log, "net_eswitch: " __VA_ARGS__)

/* What the device has, and what it does wrong; arguments of the uplink. A number of 0 is "never". */
struct traits {
	/* Flow queues and their depth at most; without queues there is no template API. */
	uint32_t queues, depth;
	/* Counters, ages, meters that may be set aside; profiles of meters, 0 for as many as wanted. */
	uint32_t counters, ages, meters, profiles;
	/* Rules in all. */
	uint32_t rules;
	/* It has the synchronous API; it takes actions that hardware steering does not. */
	uint32_t sync, legacy;
	/* Microseconds from push to result; of every late-th operation, so many. */
	uint32_t delay, late, late_delay;
	/* Of so many operations one comes to nothing; one removal; one is not taken (EAGAIN). */
	uint32_t fail, keep, busy;
	/* After so many operations no other is ever answered. */
	uint32_t mute;
	/* A counter's first queries answer EAGAIN, so many of them. */
	uint32_t fresh;
	/* Counters are found no more (ENOENT). */
	uint32_t lost;
	/* It starts for rules alone: isolated, and without a receive queue. */
	uint32_t rules_only;
	/* Which hash it tells of. */
	uint32_t hash;
	/* The uplink cuts TCP super-frames inside VxLAN. */
	uint32_t tso;
};

enum count {
	RULES, CREATED, DESTROYED, FAILED, KEPT, NOT_TAKEN, REFUSED, MISUSED, DANGLING, TABLES, TEMPLATES, COUNTERS, METERS,
	ACTIONS_SHARED, PROFILES, SUPER_FRAMES, COUNTS
};
extern const char *const count_names[COUNTS];

struct rates {
	uint64_t cir, cbs, eir, ebs;
};

/* What is done with a rule or, where there is one, with a shared action. */
struct operation {
	TAILQ_ENTRY(operation) next;
	struct rte_flow *flow;
	struct rte_flow_action_handle *handle;
	/* Those of the profile at the moment at which the operation was enqueued. */
	struct rates rates;
	void *user_data;
	uint64_t ready;
	bool removes, fails;
};
TAILQ_HEAD(operations, operation);

struct queue {
	uint32_t depth;
	struct operation *all;
	/* Not pushed; on their way, of usual and of unusual delay; done and not pulled. */
	struct operations unused, staged, flying, late, done;
};

struct action_kind;
struct item_kind;

struct action_copy {
	const struct action_kind *kind;
	bool constant;
	uint16_t length;
	uint8_t *conf;
};

struct rte_flow_pattern_template {
	LIST_ENTRY(rte_flow_pattern_template) next;
	uint32_t users, count;
	const struct item_kind *kinds[MOST_ITEMS];
	bool matches[MOST_ITEMS];
	uint8_t masks[MOST_ITEMS][48];
	unsigned int direction;
	bool has_bth;
};

struct rte_flow_actions_template {
	LIST_ENTRY(rte_flow_actions_template) next;
	uint32_t users, count;
	struct action_copy actions[MOST_ACTIONS];
	unsigned int direction;
	bool has_shared;
};

struct rte_flow_template_table {
	LIST_ENTRY(rte_flow_template_table) next;
	struct rte_flow_attr attr;
	struct rte_flow_pattern_template *pattern;
	struct rte_flow_actions_template *actions;
	uint32_t rules, room;
};

struct rte_flow {
	/* Among those in force, and among all that were made. */
	TAILQ_ENTRY(rte_flow) next;
	LIST_ENTRY(rte_flow) made;
	struct rte_flow_template_table *table;
	uint64_t cookie;
	uint32_t group, priority, jump, fresh;
	bool listed, pending, going, counts;
	uint8_t direction;
	struct rte_flow_action_handle *meter;
	/* What it says, in words. */
	uint32_t items, actions, length;
	uint8_t body[];
};
TAILQ_HEAD(flows, rte_flow);

struct rte_flow_action_handle {
	LIST_ENTRY(rte_flow_action_handle) next;
	enum rte_flow_action_type type;
	/* Rules that name it. */
	uint32_t users;
	/* Of a meter: which it is, what it meters, the profile that it was made with, operations that are under way. */
	uint32_t number;
	bool ready, going;
	struct rates rates;
	struct thing *profile;
	uint32_t pending;
};

struct port;

struct eswitch {
	LIST_ENTRY(eswitch) next;
	rte_spinlock_t lock;
	unsigned int number, ports, started;
	uint16_t domain;
	struct port *uplink;
	struct traits traits;
	/* While there is a file of this name no operation is answered; NULL: all are. */
	char *silent;
	bool configured;
	uint16_t queue_count;
	uint32_t counters, marks, last_mark;
	struct queue *queues;
	struct flows flows;
	LIST_HEAD(, rte_flow) made;
	LIST_HEAD(, rte_flow_pattern_template) patterns;
	LIST_HEAD(, rte_flow_actions_template) action_lists;
	LIST_HEAD(, rte_flow_template_table) tables;
	LIST_HEAD(, rte_flow_action_handle) handles;
	uint64_t counts[COUNTS];
	/* Operations seen so far, for those that go wrong. */
	uint64_t operations, removals, enqueued, pushed, sent;
	/* Rules in force in a group, and rules in force that lead there. */
	uint32_t in_group[GROUPS], leads_to[GROUPS];
	struct meters *meters;
};

struct port {
	struct eswitch *eswitch;
	struct rte_eth_dev *dev;
	/* The number of the VF that it stands for; below 0 for the uplink. */
	int representor;
	bool started, isolated;
	int socket;
	uint64_t rss_types;
	struct rte_ether_addr mac;
	rte_spinlock_t rx_lock;
	struct rx_queue {
		struct port *port;
		struct rte_mempool *pool;
		uint16_t number;
		uint32_t head, tail;
		struct rte_mbuf *waiting[WAITING];
		uint64_t packets, bytes, lost;
	} rx[RX_QUEUES];
	struct tx_queue {
		struct port *port;
		uint64_t packets, bytes, lost, super_frames;
	} tx[RX_QUEUES];
	uint8_t rss_key[RSS_KEY];
	uint64_t rss_hf;
};

static inline struct port *
port_of(struct rte_eth_dev *dev)
{
	return dev->data->dev_private;
}

static inline int
refuse(struct eswitch *eswitch, struct rte_flow_error *error, int code, enum rte_flow_error_type type, const void *cause,
	const char *words)
{
	eswitch->counts[REFUSED]++;
	return rte_flow_error_set(error, code, type, cause, words);
}

/* True every so-many-th time; 0: never. */
static inline bool
is_due(uint64_t *count, uint32_t every)
{
	return every != 0 && ++*count % every == 0;
}

/* What an application that keeps the rules of the API never does. */
static inline int
misuse(struct eswitch *eswitch, struct rte_flow_error *error, const char *words)
{
	eswitch->counts[MISUSED]++;
	SAY(ERR, "misuse: %s\n", words);
	return rte_flow_error_set(error, EINVAL, RTE_FLOW_ERROR_TYPE_HANDLE, NULL, words);
}

/* net_eswitch_packets.c: packets, and the queues that they come to. */
/* The key of a port that was given none. */
extern const uint8_t usual_key[RSS_KEY];
uint16_t packets_receive(void *opaque, struct rte_mbuf **mbufs, uint16_t room);
uint16_t packets_transmit(void *opaque, struct rte_mbuf **mbufs, uint16_t count);
/* A packet socket on this interface; below 0 without one. */
int packets_socket(const char *interface);

/* net_eswitch_tso.c: what the uplink cuts. */
uint64_t tso_offloads(void);
uint16_t tso_prepare(void *opaque, struct rte_mbuf **mbufs, uint16_t count);
void tso_transmit(struct tx_queue *queue, const struct rte_mbuf *mbuf);

/* net_eswitch_rules.c: what the device takes, and what it holds. */
struct item_kind {
	enum rte_flow_item_type type;
	const char *name;
	uint16_t size;
};
struct action_kind {
	enum rte_flow_action_type type;
	const char *name;
	uint16_t size;
	/* Its place in the order of actions. */
	uint8_t stage;
	/* Hardware steering does not take it. */
	bool legacy;
};
unsigned int direction_of(uint32_t ingress, uint32_t egress, uint32_t transfer);
int attr_check(struct port *port, const struct rte_flow_attr *attr, struct rte_flow_error *error);
int pattern_check(struct port *port, bool root, const struct rte_flow_item items[], bool templates,
	struct rte_flow_error *error);
int actions_check(struct port *port, bool root, const struct rte_flow_action actions[],
	const struct rte_flow_action masks[], struct rte_flow_error *error);
const struct item_kind *item_kind(enum rte_flow_item_type type);
const struct action_kind *action_kind(enum rte_flow_action_type type);
uint32_t conf_length(const struct rte_flow_action *action);
void conf_copy(const struct rte_flow_action *action, uint8_t *to);
struct rte_flow *flow_new(struct eswitch *eswitch, const struct rte_flow_attr *attr,
	struct rte_flow_template_table *table, const struct rte_flow_item items[], const struct rte_flow_action actions[]);
void flow_enter(struct eswitch *eswitch, struct rte_flow *flow);
void flow_leave(struct eswitch *eswitch, struct rte_flow *flow);
void flow_free(struct eswitch *eswitch, struct rte_flow *flow);
void flow_print(const struct rte_flow *flow, FILE *file);

/* net_eswitch_queues.c: templates, tables, queues. */
int queues_info(struct rte_eth_dev *, struct rte_flow_port_info *, struct rte_flow_queue_info *, struct rte_flow_error *);
int queues_configure(struct rte_eth_dev *, const struct rte_flow_port_attr *, uint16_t, const struct rte_flow_queue_attr *[],
	struct rte_flow_error *);
struct rte_flow_pattern_template *pattern_create(struct rte_eth_dev *, const struct rte_flow_pattern_template_attr *,
	const struct rte_flow_item[], struct rte_flow_error *);
int pattern_destroy(struct rte_eth_dev *, struct rte_flow_pattern_template *, struct rte_flow_error *);
struct rte_flow_actions_template *actions_create(struct rte_eth_dev *, const struct rte_flow_actions_template_attr *,
	const struct rte_flow_action[], const struct rte_flow_action[], struct rte_flow_error *);
int actions_destroy(struct rte_eth_dev *, struct rte_flow_actions_template *, struct rte_flow_error *);
struct rte_flow_template_table *table_create(struct rte_eth_dev *, const struct rte_flow_template_table_attr *,
	struct rte_flow_pattern_template *[], uint8_t, struct rte_flow_actions_template *[], uint8_t,
	struct rte_flow_error *);
int table_destroy(struct rte_eth_dev *, struct rte_flow_template_table *, struct rte_flow_error *);
struct rte_flow *async_create(struct rte_eth_dev *, uint32_t, const struct rte_flow_op_attr *,
	struct rte_flow_template_table *, const struct rte_flow_item[], uint8_t, const struct rte_flow_action[], uint8_t,
	void *, struct rte_flow_error *);
int async_destroy(struct rte_eth_dev *, uint32_t, const struct rte_flow_op_attr *, struct rte_flow *, void *,
	struct rte_flow_error *);
int queue_push(struct rte_eth_dev *, uint32_t, struct rte_flow_error *);
int queue_pull(struct rte_eth_dev *, uint32_t, struct rte_flow_op_result[], uint16_t, struct rte_flow_error *);
struct rte_flow_action_handle *async_handle_create(struct rte_eth_dev *, uint32_t, const struct rte_flow_op_attr *,
	const struct rte_flow_indir_action_conf *, const struct rte_flow_action *, void *, struct rte_flow_error *);
int async_handle_destroy(struct rte_eth_dev *, uint32_t, const struct rte_flow_op_attr *, struct rte_flow_action_handle *,
	void *, struct rte_flow_error *);
int async_handle_update(struct rte_eth_dev *, uint32_t, const struct rte_flow_op_attr *, struct rte_flow_action_handle *,
	const void *, void *, struct rte_flow_error *);
/* What has become due. */
void queues_advance(struct eswitch *eswitch);
/* Nothing is under way any more, and nothing waits to be pulled. */
void queues_empty(struct eswitch *eswitch);
/* Everything that was made through queues goes. */
void queues_end(struct eswitch *eswitch);

/* net_eswitch_flows.c: the synchronous API, counters, shared actions. */
extern const struct rte_flow_ops flow_operations;
#if HAS_FP_OPS
extern const struct rte_flow_fp_ops fast_operations;
#endif
/* All rules go, as when the uplink stops. */
void flows_end(struct eswitch *eswitch);

#if HAS_ENCAP_HASH
/* net_eswitch_hash.c: the outer source port that the device would write. */
int encap_hash(struct rte_eth_dev *, const struct rte_flow_item[], enum rte_flow_encap_hash_field, uint8_t *,
	struct rte_flow_error *);
#endif

/* net_eswitch_meters.c */
extern const struct rte_mtr_ops meter_operations;
/* METER_MARK: a meter that is not made yet, with a profile; NULL, and why, where there is none. */
struct rte_flow_action_handle *mark_new(struct eswitch *eswitch, const struct rte_flow_action_meter_mark *mark,
	struct rte_flow_error *error);
/* The rates that a profile has now. False without such a profile. */
bool profile_rates(const struct rte_flow_action_meter_mark *mark, struct rates *rates);
/* An operation on a meter has ended. */
void mark_end(struct eswitch *eswitch, struct operation *operation);
void mark_print(const struct rte_flow_action_handle *handle, FILE *file);
bool mark_known(const struct eswitch *eswitch, const struct rte_flow_action_handle *handle);
/* Rules may name it: it is made, and nobody has asked for its removal. */
bool mark_usable(const struct eswitch *eswitch, const struct rte_flow_action_handle *handle);
void meters_end(struct eswitch *eswitch);
bool meter_known(const struct eswitch *eswitch, uint32_t number);

#endif
