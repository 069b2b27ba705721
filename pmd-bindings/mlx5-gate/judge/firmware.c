/*
 * A device that says yes: the calls of the driver that would go to rdma-core and to firmware.
 *
 * The driver reaches all of them through one table of functions, mlx5_glue. Here capabilities are answered from the
 * assumptions, objects are made and numbered, memory is registered, and work queues are completed by a thread. A call that
 * is not here ends the process with its place in the table, so that nothing is judged by accident.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mlx5_common.h>
#include <mlx5_glue.h>
#include <mlx5_prm.h>

#include "judge.h"

static const struct capabilities *caps;
static atomic_uint last_id = 1;

static void *new_zeroed(size_t size)
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

/* Registered memory, and queues of work in it. */

struct memory {
	struct mlx5dv_devx_umem umem;
	void *address;
	struct memory *next;
};

static struct memory *memories;

static struct mlx5dv_devx_umem *umem_reg(struct ibv_context *context, void *address, size_t size, uint32_t access)
{
	struct memory *memory = new_zeroed(sizeof(*memory));

	(void)context, (void)size, (void)access;
	memory->umem.umem_id = last_id++;
	memory->address = address;
	memory->next = memories;
	memories = memory;
	return &memory->umem;
}

static int umem_dereg(struct mlx5dv_devx_umem *umem)
{
	for (struct memory **at = &memories; *at; at = &(*at)->next)
		if (&(*at)->umem == umem) {
			struct memory *gone = *at;

			*at = gone->next;
			free(gone);
			break;
		}
	return 0;
}

static uint8_t *memory_of(uint32_t umem_id, uint64_t offset)
{
	for (struct memory *memory = memories; memory; memory = memory->next)
		if (memory->umem.umem_id == umem_id)
			return (uint8_t *)memory->address + offset;
	return NULL;
}

struct completions {
	struct ibv_cq cq;
	uint32_t cqn, count, size;
	uint32_t produced;
	uint8_t *entries;
	__be32 *doorbell;
	struct completions *next;
};

struct work {
	uint32_t mask, done;
	uint8_t *entries;
	volatile __be32 *doorbell;
	struct completions *completions;
	struct work *next;
};

static struct completions *all_completions;
static struct work *all_work;
static pthread_mutex_t queues = PTHREAD_MUTEX_INITIALIZER;

static void add_completions(struct completions *new)
{
	/* No entry is the device's yet: an invalid operation. */
	for (uint32_t i = 0; i < new->count; i++)
		new->entries[i * new->size + new->size - 1] = MLX5_CQE_INVALID << 4 | 1;
	pthread_mutex_lock(&queues);
	new->next = all_completions;
	all_completions = new;
	pthread_mutex_unlock(&queues);
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	struct completions *new = new_zeroed(sizeof(*new));

	(void)context, (void)cq_context, (void)channel, (void)comp_vector;
	new->count = rte_align32pow2(cqe + 1);
	new->size = sizeof(struct mlx5_cqe64);
	new->entries = new_zeroed(new->count * new->size);
	new->doorbell = new_zeroed(64);
	new->cqn = last_id++;
	add_completions(new);
	return &new->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	/* The queue of work that points here may still be looked at; a process that judges ends soon. */
	(void)cq;
	return 0;
}

static int init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	if (type & MLX5DV_OBJ_PD)
		obj->pd.out->pdn = 1;
	if (type & MLX5DV_OBJ_CQ) {
		struct completions *completions = (struct completions *)obj->cq.in;

		obj->cq.out->buf = completions->entries;
		obj->cq.out->dbrec = completions->doorbell;
		obj->cq.out->cqe_cnt = completions->count;
		obj->cq.out->cqe_size = completions->size;
		obj->cq.out->cqn = completions->cqn;
	}
	return 0;
}

/* A queue of completions that is made by a command; its memory is registered. */
static void devx_cq(const void *in, uint32_t id)
{
	void *ctx = MLX5_ADDR_OF(create_cq_in, in, cq_context);
	struct completions *new = new_zeroed(sizeof(*new));

	new->cqn = id;
	new->count = 1u << MLX5_GET(cqc, ctx, log_cq_size);
	new->size = MLX5_GET(cqc, ctx, cqe_sz) ? 128 : 64;
	new->entries = memory_of(MLX5_GET(create_cq_in, in, cq_umem_id), MLX5_GET64(create_cq_in, in, cq_umem_offset));
	if (!new->entries)
		DIE("a queue of completions in memory that is not registered");
	add_completions(new);
}

static void devx_sq(const void *in)
{
	void *ctx = MLX5_ADDR_OF(create_sq_in, in, ctx);
	void *wq = MLX5_ADDR_OF(sqc, ctx, wq);
	uint32_t cqn = MLX5_GET(sqc, ctx, cqn);
	struct work *new = new_zeroed(sizeof(*new));

	new->mask = (1u << MLX5_GET(wq, wq, log_wq_sz)) - 1;
	new->entries = memory_of(MLX5_GET(wq, wq, wq_umem_id), MLX5_GET64(wq, wq, wq_umem_offset));
	new->doorbell = (void *)memory_of(MLX5_GET(wq, wq, dbr_umem_id), MLX5_GET64(wq, wq, dbr_addr));
	pthread_mutex_lock(&queues);
	for (new->completions = all_completions; new->completions; new->completions = new->completions->next)
		if (new->completions->cqn == cqn)
			break;
	if (!new->completions || !new->entries || !new->doorbell)
		DIE("a queue of work without memory or completions");
	new->next = all_work;
	all_work = new;
	pthread_mutex_unlock(&queues);
}

static void complete(struct completions *to, uint16_t counter)
{
	struct mlx5_cqe64 *entry = (void *)(to->entries + (to->produced % to->count + 1) * to->size - sizeof(*entry));
	uint8_t owner = to->produced / to->count & 1;

	memset(entry, 0, sizeof(*entry) - 1);
	entry->wqe_counter = htobe16(counter);
	rte_io_wmb();
	entry->op_own = MLX5_CQE_REQ << 4 | owner;
	to->produced++;
}

static void work_off(struct work *work)
{
	uint16_t posted = be32toh(work->doorbell[MLX5_SND_DBR]);

	while ((uint16_t)work->done != posted) {
		const __be32 *control = (void *)(work->entries + (work->done & work->mask) * MLX5_SEND_WQE_BB);
		uint32_t blocks = ((be32toh(control[1]) & 0x3f) * 16 + MLX5_SEND_WQE_BB - 1) / MLX5_SEND_WQE_BB;

		if (!blocks)
			DIE("an entry of work without a length");
		if (be32toh(control[2]) & MLX5_WQE_CTRL_CQ_UPDATE)
			complete(work->completions, work->done);
		work->done += blocks;
	}
}

static void *run(void *nothing)
{
	for (;;) {
		pthread_mutex_lock(&queues);
		for (struct work *work = all_work; work; work = work->next)
			work_off(work);
		pthread_mutex_unlock(&queues);
		usleep(20);
	}
	return nothing;
}

/* Objects: all kinds are numbered, and the number is at one place in every answer. */

struct mlx5dv_devx_obj {
	uint32_t id;
};

static struct mlx5dv_devx_obj *obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out,
					  size_t outlen)
{
	struct mlx5dv_devx_obj *obj = new_zeroed(sizeof(*obj));

	(void)context, (void)inlen;
	/* Numbers of objects come in ranges: the next one begins behind the longest. */
	obj->id = atomic_fetch_add(&last_id, 1);
	memset(out, 0, outlen);
	MLX5_SET(general_obj_out_cmd_hdr, out, obj_id, obj->id);
	switch (MLX5_GET(general_obj_in_cmd_hdr, in, opcode)) {
	case MLX5_CMD_OP_CREATE_CQ:
		devx_cq(in, obj->id);
		break;
	case MLX5_CMD_OP_CREATE_SQ:
		devx_sq(in);
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
	struct mlx5dv_devx_uar *uar = new_zeroed(sizeof(*uar));
	uint8_t *page = new_zeroed(4096);

	(void)context, (void)flags;
	uar->base_addr = page;
	uar->reg_addr = page + 0x800;
	uar->page_id = last_id++;
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
	struct ibv_pd *pd = new_zeroed(sizeof(*pd));

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
	struct ibv_mr *mr = new_zeroed(sizeof(*mr));

	(void)access;
	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = last_id++ };
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
	return new_zeroed(64);
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
	glue.devx_umem_reg = umem_reg;
	glue.devx_umem_dereg = umem_dereg;
	glue.create_cq = create_cq;
	glue.destroy_cq = destroy_cq;
	glue.dv_init_obj = init_obj;
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
	/* Rules of the kernel's root table, which the driver makes for itself. */
	glue.dv_create_flow_matcher_root = (void *)any_object;
	glue.dv_destroy_flow_matcher_root = (void *)done;
}

const struct mlx5_glue *mlx5_glue = &glue;

void firmware_start(const struct capabilities *capabilities)
{
	pthread_t thread;

	caps = capabilities;
	if (pthread_create(&thread, NULL, run, NULL))
		DIE("no thread for the device");
}
