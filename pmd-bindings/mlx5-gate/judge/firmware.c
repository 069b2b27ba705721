/*
 * A device that says yes: the calls of the driver that would go to rdma-core and to firmware.
 *
 * The driver reaches all of them through one table of functions, mlx5_glue. Here capabilities are answered from the
 * assumptions, and objects are made and numbered; memory and work queues are in queues.c. A call that is not here ends the
 * process, so that nothing is judged by accident.
 */
#include <stdlib.h>
#include <string.h>

#include <rte_version.h>

#include "firmware.h"

static const struct capabilities *caps;

uint32_t firmware_id(void)
{
	static uint32_t last;

	return ++last;
}

void *firmware_memory(size_t size)
{
	void *memory = NULL;

	if (posix_memalign(&memory, 4096, size))
		DIE("out of memory");
	memset(memory, 0, size);
	return memory;
}

/* Answers to "what can you do". */

#define HCA(field, value) MLX5_SET(query_hca_cap_out, out, capability.field, value)
#define HCA64(field, value) MLX5_SET64(query_hca_cap_out, out, capability.field, value)

static void answer_general(void *out)
{
	uint64_t objects = 0;

	if (caps->flow_hit_aso)
		objects |= MLX5_GENERAL_OBJ_TYPES_CAP_FLOW_HIT_ASO;
	if (caps->flow_meter_aso)
		objects |= MLX5_GENERAL_OBJ_TYPES_CAP_FLOW_METER_ASO;
	HCA64(cmd_hca_cap.general_obj_types, objects);
	HCA(cmd_hca_cap.steering_format_version, caps->steering_format_version);
	HCA(cmd_hca_cap.eswitch_manager, 1);
	HCA(cmd_hca_cap.wqe_based_flow_table_update_cap, 1);
	HCA(cmd_hca_cap.hca_cap_2, 1);
	HCA(cmd_hca_cap.nic_flow_table, 1);
	HCA(cmd_hca_cap.eth_net_offloads, 1);
	HCA(cmd_hca_cap.qos, 1);
	HCA(cmd_hca_cap.reg_c_preserve, 1);
	HCA(cmd_hca_cap.alloc_flow_counter_pd, 1);
	HCA(cmd_hca_cap.flow_counter_access_aso, 1);
	HCA(cmd_hca_cap.flow_counter_bulk_alloc, 0xff);
	HCA(cmd_hca_cap.max_flow_counter_31_16, 0x100);
	HCA(cmd_hca_cap.log_max_cq, 16);
	HCA(cmd_hca_cap.log_max_cq_sz, 16);
	HCA(cmd_hca_cap.log_max_wq_sz, 16);
	HCA64(cmd_hca_cap.match_definer_format_supported, UINT64_C(1) << MLX5_IFC_DEFINER_FORMAT_ID_SELECT);
	HCA(cmd_hca_cap.log_header_modify_argument_granularity, 0);
	HCA(cmd_hca_cap.log_header_modify_argument_max_alloc, 23);
}

static void answer_general_2(void *out)
{
	HCA(cmd_hca_cap_2.format_select_dw_8_6_ext, caps->format_select_dw_8_6_ext);
	HCA(cmd_hca_cap_2.flow_counter_bulk_log_max_alloc, 20);
	HCA(cmd_hca_cap_2.flow_counter_bulk_log_granularity, 0);
}

static void answer_qos(void *out)
{
	HCA(qos_cap.flow_meter_old, 1);
	HCA(qos_cap.flow_meter, 1);
	HCA(qos_cap.log_max_flow_meter, 16);
	HCA(qos_cap.flow_meter_reg_id, caps->flow_meter_reg_c);
	HCA(qos_cap.log_meter_aso_granularity, 0);
	HCA(qos_cap.log_meter_aso_max_alloc, 16);
	HCA(qos_cap.log_max_num_meter_aso, 16);
}

static void answer_nic_flow_table(void *out)
{
	HCA(flow_table_nic_cap.flow_table_properties_nic_receive.max_ft_level, 64);
	HCA(flow_table_nic_cap.flow_table_properties_nic_receive.reparse, 1);
	HCA(flow_table_nic_cap.ft_field_support_2_nic_receive.tunnel_header_0_1, 1);
	HCA(flow_table_nic_cap.ft_field_support_2_nic_receive.inner_ipv4_ihl, caps->ipv4_ihl);
	HCA(flow_table_nic_cap.ft_field_support_2_nic_receive.outer_ipv4_ihl, caps->ipv4_ihl);
	HCA(flow_table_nic_cap.ft_header_modify_nic_receive.outer_ip_ecn, caps->modify_outer_ip_ecn);
	HCA(flow_table_nic_cap.ft_header_modify_nic_receive.metadata_reg_c_x, caps->metadata_reg_c);
	HCA(flow_table_nic_cap.ft_header_modify_nic_transmit.metadata_reg_c_x, caps->metadata_reg_c);
}

static void answer_esw_flow_table(void *out)
{
	/* The driver reads levels and reparse of the e-switch at the places of the NIC's. */
	HCA(flow_table_nic_cap.flow_table_properties_nic_receive.max_ft_level, 64);
	HCA(flow_table_nic_cap.flow_table_properties_nic_receive.reparse, 1);
	HCA(flow_table_esw_cap.ft_header_modify_esw_fdb.metadata_reg_c_x, caps->metadata_reg_c);
}

static void answer_wqe_based(void *out)
{
	HCA(wqe_based_flow_table_cap.rtc_reparse_mode, 1 << MLX5_IFC_RTC_REPARSE_ALWAYS);
	HCA(wqe_based_flow_table_cap.ste_format, 1 << MLX5_IFC_RTC_STE_FORMAT_8DW);
	HCA(wqe_based_flow_table_cap.rtc_index_mode,
	    1 << MLX5_IFC_RTC_STE_UPDATE_MODE_BY_HASH | 1 << MLX5_IFC_RTC_STE_UPDATE_MODE_BY_OFFSET);
	HCA(wqe_based_flow_table_cap.rtc_log_depth_max, 16);
	HCA(wqe_based_flow_table_cap.ste_alloc_log_max, 26);
	HCA(wqe_based_flow_table_cap.ste_alloc_log_granularity, 0);
	HCA(wqe_based_flow_table_cap.stc_alloc_log_max, 16);
	HCA(wqe_based_flow_table_cap.stc_alloc_log_granularity, 0);
	HCA(wqe_based_flow_table_cap.trivial_match_definer, 1);
#if RTE_VERSION >= RTE_VERSION_NUM(24, 3, 0, 0)
	HCA(wqe_based_flow_table_cap.max_header_modify_pattern_length, 32);
#endif
}

static int general_cmd(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
	uint16_t opcode = MLX5_GET(query_hca_cap_in, in, opcode);

	(void)context, (void)inlen;
	memset(out, 0, outlen);
	if (opcode != MLX5_CMD_OP_QUERY_HCA_CAP)
		return 0;
	switch (MLX5_GET(query_hca_cap_in, in, op_mod) & ~1u) {
	case MLX5_GET_HCA_CAP_OP_MOD_GENERAL_DEVICE:
		answer_general(out);
		break;
	case MLX5_GET_HCA_CAP_OP_MOD_GENERAL_DEVICE_2:
		answer_general_2(out);
		break;
	case MLX5_GET_HCA_CAP_OP_MOD_QOS_CAP:
		answer_qos(out);
		break;
	case MLX5_GET_HCA_CAP_OP_MOD_NIC_FLOW_TABLE:
		answer_nic_flow_table(out);
		break;
	case MLX5_GET_HCA_CAP_OP_MOD_ESW_FLOW_TABLE:
		answer_esw_flow_table(out);
		break;
	case MLX5_GET_HCA_CAP_OP_MOD_WQE_BASED_FLOW_TABLE:
		answer_wqe_based(out);
		break;
	default:
		break;
	}
	return 0;
}

/* Objects: all kinds are numbered, and the number is at one place in every answer. */

struct mlx5dv_devx_obj {
	uint32_t id;
};

static struct mlx5dv_devx_obj *obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out,
					  size_t outlen)
{
	struct mlx5dv_devx_obj *obj = firmware_memory(sizeof(*obj));

	(void)context, (void)inlen;
	obj->id = firmware_id();
	memset(out, 0, outlen);
	MLX5_SET(general_obj_out_cmd_hdr, out, obj_id, obj->id);
	switch (MLX5_GET(general_obj_in_cmd_hdr, in, opcode)) {
	case MLX5_CMD_OP_CREATE_CQ:
		queues_completions(in, obj->id);
		break;
	case MLX5_CMD_OP_CREATE_SQ:
		queues_work(in);
		break;
	default:
		break;
	}
	return obj;
}

static int obj_destroy(struct mlx5dv_devx_obj *obj)
{
	free(obj);
	return 0;
}

static int obj_command(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen)
{
	(void)obj, (void)in, (void)inlen;
	memset(out, 0, outlen);
	return 0;
}

static struct mlx5dv_devx_uar *alloc_uar(struct ibv_context *context, uint32_t flags)
{
	struct mlx5dv_devx_uar *uar = firmware_memory(sizeof(*uar));
	uint8_t *page = firmware_memory(4096);

	(void)context, (void)flags;
	uar->base_addr = page;
	uar->reg_addr = page + 0x800;
	uar->page_id = firmware_id();
	return uar;
}

static void free_uar(struct mlx5dv_devx_uar *uar)
{
	free(uar->base_addr);
	free(uar);
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr)
{
	(void)context, (void)input;
	memset(attr, 0, sizeof(*attr));
	return 0;
}

static int port_query(struct ibv_context *context, uint32_t port, struct mlx5_port_info *info)
{
	(void)context;
	memset(info, 0, sizeof(*info));
	info->query_flags = MLX5_PORT_QUERY_VPORT | MLX5_PORT_QUERY_ESW_OWNER_VHCA_ID;
	info->vport_id = port;
	return 0;
}

static int query_eqn(struct ibv_context *context, uint32_t cpus, uint32_t *eqn)
{
	(void)context, (void)cpus;
	*eqn = 0;
	return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = firmware_memory(sizeof(*pd));

	pd->context = context;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct ibv_mr *mr = firmware_memory(sizeof(*mr));

	(void)access;
	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = firmware_id() };
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

/* Software steering of rdma-core: a rule that gets here was accepted by the driver. */
static void *any_object(void)
{
	return firmware_memory(64);
}

static int done(void)
{
	return 0;
}

static struct mlx5_glue glue;

static void not_there(void)
{
	DIE("the driver asked rdma-core for something that the device without hardware does not have");
}

/* Before main: the driver looks at the table when its library is loaded. */
__attribute__((constructor(101))) static void fill(void)
{
	void (**calls)(void) = (void *)&glue;

	for (size_t i = 0; i < sizeof(glue) / sizeof(*calls); i++)
		calls[i] = not_there;
	glue.version = MLX5_GLUE_VERSION;
	glue.fork_init = (void *)done;
	glue.devx_general_cmd = general_cmd;
	glue.devx_umem_reg = queues_umem_reg;
	glue.devx_umem_dereg = queues_umem_dereg;
	glue.create_cq = queues_create_cq;
	glue.destroy_cq = queues_destroy_cq;
	glue.dv_init_obj = queues_init_obj;
	glue.devx_obj_create = obj_create;
	glue.devx_obj_destroy = obj_destroy;
	glue.devx_obj_query = obj_command;
	glue.devx_obj_modify = obj_command;
	glue.devx_alloc_uar = alloc_uar;
	glue.devx_free_uar = free_uar;
	glue.query_device_ex = query_device_ex;
	glue.devx_port_query = port_query;
	glue.devx_query_eqn = query_eqn;
	glue.alloc_pd = alloc_pd;
	glue.dealloc_pd = dealloc_pd;
	glue.reg_mr = reg_mr;
	glue.dereg_mr = dereg_mr;
	glue.dr_create_flow_action_default_miss = any_object;
	glue.dr_create_flow_action_drop = any_object;
	glue.dr_create_flow_action_dest_flow_tbl = (void *)any_object;
	glue.dr_create_flow_action_dest_port = (void *)any_object;
	glue.dr_create_flow_tbl = (void *)any_object;
	glue.dr_destroy_flow_tbl = (void *)done;
	glue.dv_create_flow_matcher = (void *)any_object;
	glue.dv_destroy_flow_matcher = (void *)done;
	glue.dv_create_flow = (void *)any_object;
	glue.dv_destroy_flow = (void *)done;
	glue.dv_create_flow_action_counter = (void *)any_object;
	glue.dv_create_flow_action_tag = (void *)any_object;
	glue.dv_create_flow_action_meter = (void *)any_object;
	glue.dv_create_flow_action_aso = (void *)any_object;
	glue.dv_create_flow_action_modify_header = (void *)any_object;
	glue.dv_create_flow_action_packet_reformat = (void *)any_object;
	glue.destroy_flow_action = (void *)done;
#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
	glue.create_steering_anchor = (void *)any_object;
	glue.destroy_steering_anchor = (void *)done;
#endif
	/* Rules of the kernel's root table, which the driver makes for itself. */
	glue.dv_create_flow_matcher_root = (void *)any_object;
	glue.dv_destroy_flow_matcher_root = (void *)done;
}

const struct mlx5_glue *mlx5_glue = &glue;

void firmware_start(const struct capabilities *capabilities)
{
	caps = capabilities;
	queues_start();
}
