/*
 * What is assumed of NICs. None was at hand: each line is from the driver's guide (DPDK 22.11, "NVIDIA MLX5 Ethernet
 * Driver") or from what its code takes for granted, and may be wrong for a firmware.
 *
 * Not listed, and assumed of all of them: the e-switch is theirs (switchdev mode), DevX and the template API are there
 * (firmware xx.35.1012 and later), rules of other groups than 0 are written through queues by hash and by offset into
 * entries of eight words, a rule writes 32 words of headers at most (asked since 24.03; no source for the number), headers are
 * always parsed again, the VxLAN port is 4789, FDB rules of group 0 land in table 1.
 * What the driver finds out by trying on a device (device.c): 16 priorities of the root table, matchers of tunnel headers,
 * registers that keep their content from the NIC's tables to the e-switch's.
 */
#include <string.h>

#include "judge.h"

static const struct capabilities all[] = {
	{
		.name = "connectx-6-dx",
		.steering_format_version = 1,
		/* The large format of ConnectX-6 Dx limits three of the nine words to the first 64 words of headers. */
		.format_select_dw_8_6_ext = false,
		/* Among the guide's features since 21.08, without a NIC's name; the driver asks the firmware. */
		.ipv4_ihl = true,
		/* The guide names ConnectX-5 as the first ("Supported hardware offloads"); elsewhere it is ConnectX-7. */
		.modify_outer_ip_ecn = true,
		.metadata_reg_c = 0xff,
		.flow_meter_reg_c = 0xfc,
		.flow_hit_aso = true,
		.flow_meter_aso = true,
	},
	{
		.name = "connectx-7",
		.steering_format_version = 2,
		.format_select_dw_8_6_ext = true,
		.ipv4_ihl = true,
		.modify_outer_ip_ecn = true,
		.metadata_reg_c = 0xff,
		.flow_meter_reg_c = 0xfc,
		.flow_hit_aso = true,
		.flow_meter_aso = true,
	},
	{
		/* The NIC in it is a ConnectX-7; its e-switch belongs to the Arm cores, where the switch runs. */
		.name = "bluefield-3",
		.steering_format_version = 2,
		.format_select_dw_8_6_ext = true,
		.ipv4_ihl = true,
		.modify_outer_ip_ecn = true,
		.metadata_reg_c = 0xff,
		.flow_meter_reg_c = 0xfc,
		.flow_hit_aso = true,
		.flow_meter_aso = true,
	},
};

const struct capabilities *capabilities_find(const char *name)
{
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(all[i].name, name))
			return &all[i];
	return NULL;
}

void capabilities_list(FILE *to)
{
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		fprintf(to, "%s\n", all[i].name);
}
