/*
 * A judge of flow rules: the mlx5 driver's own code in a process without a NIC.
 *
 *   rules, lowered by pmd --- input.c ---> arrays of rte_flow --- main.c ---> rte_flow of a port of mlx5 (device.c)
 *                                                                               |  commands, objects, queues
 *                                                                             firmware.c, queues.c: a device that says yes
 *
 * The driver is the one of Debian's static library, its structures are those of the headers in Debian's source package of
 * the same version. The device answers what capabilities.h assumes, makes every object it is asked for and completes all
 * work at once, so whatever is refused was refused by the driver.
 */
#ifndef JUDGE_H
#define JUDGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <rte_flow.h>

/* What the firmware of a NIC says of itself, as far as the driver's judgement depends on it. */
struct capabilities {
	const char *name;
	/* Which device it is, in the driver's numbers: 1 is ConnectX-6 Dx, 2 is ConnectX-7. */
	unsigned int steering_format_version;
	/* Selectors of a match: whether all nine 32-bit words of the large format are free to choose. */
	bool format_select_dw_8_6_ext;
	/* Whether the length of IPv4 headers can be matched, outside and inside. */
	bool ipv4_ihl;
	/* Whether the ECN bits of the outer IP header can be written. */
	bool modify_outer_ip_ecn;
	/* The registers that rules may write, bit 0 for C_0; and those that meters may put colours in. */
	uint8_t metadata_reg_c;
	uint8_t flow_meter_reg_c;
	/* Age and meter objects of rules in groups other than 0. */
	bool flow_hit_aso;
	bool flow_meter_aso;
};

const struct capabilities *capabilities_find(const char *name);
void capabilities_list(FILE *to);

/* Engines of the driver, as the device argument dv_flow_en has them. */
enum engine { ENGINE_SOFTWARE = 1, ENGINE_HARDWARE = 2 };

/*
 * So many rules are judged at most. Counters and ages of rules that are gone are used again only after a while, so that a
 * rule would be refused for want of them.
 */
#define MAX_RULES 32768

/* The longest list of items or actions, its end included. */
#define MAX_ACTIONS 64

/* What was read: a rule as the synchronous API takes it, and the templates for the queues. */
struct rule {
	struct rte_flow_attr attr;
	struct rte_flow_item *items;
	struct rte_flow_action *actions;
	/* Without spec: what pmd makes a pattern template of. */
	struct rte_flow_item *template_items;
	struct rte_flow_action *masks;
};

/* The next rule; false at the end. A truncated or senseless input ends the process. */
bool rule_read(FILE *from, struct rule *rule);
void rule_free(struct rule *rule);

/* Starts the device. */
void firmware_start(const struct capabilities *capabilities);

/* So many meters are set aside for hardware steering, unless more are asked for. */
#define METERS 4096

/*
 * Makes ports: one uplink, all others representors of one e-switch, with so many meters. Ends the process if the driver does
 * not take them.
 */
void device_start(enum engine engine, uint16_t uplink, uint16_t ports, uint32_t meters);

/* Flow queues of a port, as pmd asks for them when the uplink starts. */
void device_queues(uint16_t port, uint32_t meters);

/* The object of the first two meters of the uplink; each further one has the meters that follow. */
uint32_t device_first_meter(uint16_t uplink);

/* Makes sure that a meter of this number exists, as pmd makes them; false, and the driver's words, if it refuses. */
bool device_meter(uint16_t uplink, uint32_t id, const char **message);

/* What the device without hardware was told of a meter: bytes and bytes a second, as far as its numbers are exact. */
struct device_rates {
	uint64_t cir, cbs, eir, ebs;
	bool disabled;
};

/* False where nothing was written to this half of this object. Waits for the work that is under way. */
bool device_rates(uint32_t object, bool half, struct device_rates *rates);

/* Meters of hardware steering, by the numbers that rules have: METER_MARK with the driver's only profile. */
struct rte_flow_meter_profile *meters_profile(uint16_t uplink);
struct rte_flow_action_handle *meters_handle(uint16_t uplink, uint32_t id);

/* Does what the lines say, and writes an answer for each. */
void meters_run(uint16_t uplink, FILE *from);

/* Hands over the one operation that is in the flow queue; whether it was done. */
bool queue_completed(uint16_t uplink, struct rte_flow_error *error);

/* Lines that the driver logged since the last call, at error level. */
void words_start(void);
char *words_take(void);

#define DIE(...) die(__FILE__, __LINE__, __VA_ARGS__)
void die(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

#endif
