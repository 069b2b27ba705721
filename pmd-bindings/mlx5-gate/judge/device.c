/*
 * Ports of mlx5 without a NIC: an uplink, which takes the rules of the e-switch, and representors.
 *
 * What the driver's probing would find out with a device is filled in by hand in the driver's own structures; where it has
 * a function for a step that needs no device, that function is called.
 */
#include <stdlib.h>
#include <string.h>

#include <ethdev_driver.h>
#include <rte_malloc.h>
#include <rte_mtr.h>
#include <rte_version.h>

#include <mlx5.h>
#include <mlx5_flow.h>

#include "judge.h"

/* Since 24.03 registers are the e-switch's and found when it is probed, and other functions of one NIC share something. */
#if RTE_VERSION >= RTE_VERSION_NUM(24, 3, 0, 0)
#define REGISTERS_OF_E_SWITCH
#endif

#define QUEUE_SIZE 64
#define METER_POLICY 1

static struct rte_driver driver = { .name = MLX5_PCI_DRIVER_NAME };
static struct rte_device device = { .name = "judge", .driver = &driver };
static struct mlx5_common_device cdev;
static struct ibv_context context;
static struct mlx5_dev_ctx_shared *sh;

static int no_configure(struct rte_eth_dev *dev)
{
	(void)dev;
	return 0;
}

static int no_infos(struct rte_eth_dev *dev, struct rte_eth_dev_info *info)
{
	(void)dev;
	memset(info, 0, sizeof(*info));
	return 0;
}

static const struct eth_dev_ops operations = {
	.dev_configure = no_configure,
	.dev_infos_get = no_infos,
	.flow_ops_get = mlx5_flow_ops_get,
	.mtr_ops_get = mlx5_flow_meter_ops_get,
};

static void *new_zeroed(size_t size)
{
	void *memory = rte_zmalloc(NULL, size, RTE_CACHE_LINE_SIZE);

	if (!memory)
		DIE("out of memory");
	return memory;
}

static struct mlx5_indexed_pool *make_pool(size_t size)
{
	struct mlx5_indexed_pool_config config = {
		.size = size,
		.trunk_size = 64,
		.need_lock = 1,
		.malloc = mlx5_malloc,
		.free = mlx5_free,
		.type = "judge",
	};

	return mlx5_ipool_create(&config);
}

/* Pools of what rules, groups, meters and their policies are made of, with the driver's sizes. */
static void make_pools(enum engine engine)
{
	const size_t sizes[MLX5_IPOOL_MAX] = {
		[MLX5_IPOOL_JUMP] = engine == ENGINE_HARDWARE ? sizeof(struct mlx5_flow_group) :
								sizeof(struct mlx5_flow_tbl_data_entry),
		[MLX5_IPOOL_DECAP_ENCAP] = sizeof(struct mlx5_flow_dv_encap_decap_resource),
		[MLX5_IPOOL_PUSH_VLAN] = sizeof(struct mlx5_flow_dv_push_vlan_action_resource),
		[MLX5_IPOOL_TAG] = sizeof(struct mlx5_flow_dv_tag_resource),
		[MLX5_IPOOL_PORT_ID] = sizeof(struct mlx5_flow_dv_port_id_action_resource),
		[MLX5_IPOOL_MLX5_FLOW] = sizeof(struct mlx5_flow_handle),
		[MLX5_IPOOL_RTE_FLOW] = sizeof(struct rte_flow),
		[MLX5_IPOOL_RSS_EXPANTION_FLOW_ID] = sizeof(uint64_t),
		[MLX5_IPOOL_MTR] = sizeof(struct mlx5_legacy_flow_meter),
		[MLX5_IPOOL_MTR_POLICY] = sizeof(struct mlx5_flow_meter_sub_policy),
	};

	for (int i = 0; i < MLX5_IPOOL_MAX; i++)
		if (sizes[i])
			sh->ipool[i] = make_pool(sizes[i]);
}

/* Counters of software steering, none of them made yet; by ranges, as on NICs whose firmware makes them so. */
static void make_counters(void)
{
	struct mlx5_flow_counter_mng *counters = &sh->sws_cmng;

	counters->counter_fallback = 0;
	counters->pools = new_zeroed(MLX5_COUNTER_POOLS_MAX_NUM * sizeof(*counters->pools));
	counters->min_id = MLX5_CNT_BATCH_OFFSET;
	counters->max_id = -1;
	counters->last_pool_idx = POOL_IDX_INVALID;
	TAILQ_INIT(&counters->flow_counters);
	rte_spinlock_init(&counters->pool_update_sl);
	for (int i = 0; i < MLX5_COUNTER_TYPE_MAX; i++) {
		TAILQ_INIT(&counters->counters[i]);
		rte_spinlock_init(&counters->csl[i]);
	}
}

/* The register of meters' colours and of ages: C_3 before others, as the driver prefers it. */
static enum modify_reg colour_register(void)
{
	const struct mlx5_hca_attr *attr = &cdev.config.hca_attr;
	uint8_t registers = attr->qos.flow_meter_reg_c_ids & 0xfc;

	if (!attr->qos.sup || !attr->qos.flow_meter_old || !registers)
		return REG_NON;
	return registers & 1 << (REG_C_3 - REG_C_0) ? REG_C_3 : (enum modify_reg)(REG_C_0 + rte_bsf32(registers));
}

#ifdef REGISTERS_OF_E_SWITCH
/* What is left for rules with hardware steering: all but those of the e-switch, of meters, and C_6, which the driver keeps. */
static void configure_registers(enum engine engine)
{
	const uint32_t kept = 1 << 0 | 1 << 6;
	struct mlx5_dev_registers *registers = &sh->registers;
	unsigned int tags = 0;

	registers->aso_reg = colour_register();
	for (unsigned int i = 0; engine == ENGINE_HARDWARE && i < MLX5_FLOW_HW_TAGS_MAX; i++)
		if (cdev.config.hca_attr.set_reg_c & ~kept & 1 << i && mlx5_regc_value(i) != registers->aso_reg)
			registers->hw_avl_tags[tags++] = mlx5_regc_value(i);
}
#endif

/* The device arguments as they are by default, but for the engine. */
static void configure_shared(enum engine engine, uint16_t ports)
{
	struct mlx5_hca_attr *attr = &cdev.config.hca_attr;

	cdev.dev = &device;
	cdev.ctx = &context;
	cdev.pd = mlx5_glue->alloc_pd(&context);
	cdev.config.devx = 1;
	mlx5_os_set_reg_mr_cb(&cdev.mr_scache.reg_mr_cb, &cdev.mr_scache.dereg_mr_cb);
	if (mlx5_devx_cmd_query_hca_attr(&context, attr))
		DIE("the driver does not understand the capabilities");
	sh = new_zeroed(sizeof(*sh) + ports * sizeof(sh->port[0]));
	sh->refcnt = 1;
	sh->esw_mode = 1;
	sh->max_port = ports;
	sh->cdev = &cdev;
	snprintf(sh->ibdev_name, sizeof(sh->ibdev_name), "judge");
	sh->dev_cap.dv_flow_en = 1;
	sh->dev_cap.dv_esw_en = 1;
	sh->dev_cap.dest_tir = 1;
	sh->config.dv_flow_en = engine;
	sh->config.dv_esw_en = 1;
	sh->config.dv_xmeta_en = MLX5_XMETA_MODE_LEGACY;
	sh->config.fdb_def_rule = 1;
	sh->config.repr_matching = 1;
	sh->config.decap_en = 1;
	sh->config.l3_vxlan_en = 1;
	sh->config.allow_duplicate_pattern = 1;
	sh->config.cnt_svc.cycle_time = MLX5_CNT_SVC_CYCLE_TIME_DEFAULT;
	sh->steering_format_version = attr->steering_format_version;
	sh->tunnel_header_0_1 = attr->flow.tunnel_header_0_1;
	sh->tunnel_header_2_3 = attr->flow.tunnel_header_2_3;
	/* What the driver finds out by trying matchers on a device. */
	sh->misc5_cap = 1;
	sh->flow_max_priority = 16;
	sh->flow_priority_check_flag = 1;
	sh->metadata_regc_check_flag = 1;
	for (int i = 0; i < MLX5_MREG_C_NUM; i++)
		sh->flow_mreg_c[i] = attr->set_reg_c & 1 << i ? (enum modify_reg)(REG_C_0 + i) : REG_NON;
	sh->fdb_domain = &context;
	sh->rx_domain = &context;
	sh->tx_domain = &context;
	sh->dr_drop_action = mlx5_glue->dr_create_flow_action_drop();
	sh->default_miss_action = mlx5_glue->dr_create_flow_action_default_miss();
#ifdef REGISTERS_OF_E_SWITCH
	sh->phdev = new_zeroed(sizeof(*sh->phdev));
	configure_registers(engine);
#endif
	make_pools(engine);
	/* As many counters as a range of them, a power of two, holds. */
	sh->hws_max_log_bulk_sz = attr->flow_counter_bulk_log_max_alloc;
	sh->hws_max_nb_counters = 1u << attr->flow_counter_bulk_log_max_alloc;
	if (mlx5_flow_os_init_workspace_once())
		DIE("no memory for rules");
	sh->port_id_action_list = mlx5_list_create("ports", sh, true, flow_dv_port_id_create_cb, flow_dv_port_id_match_cb,
						   flow_dv_port_id_remove_cb, flow_dv_port_id_clone_cb,
						   flow_dv_port_id_clone_free_cb);
	make_counters();
	if (mlx5_devx_uar_prepare(&cdev, &sh->tx_uar))
		DIE("no doorbells");
	rte_spinlock_init(&sh->cpool_lock);
	LIST_INIT(&sh->hws_cpool_list);
}

/* Managers of objects that meters and ages are. */
static void configure_meters(struct mlx5_priv *priv)
{
	const struct mlx5_hca_attr *attr = &cdev.config.hca_attr;
	enum modify_reg colour = colour_register();

	if (colour == REG_NON)
		return;
#ifndef REGISTERS_OF_E_SWITCH
	priv->mtr_color_reg = colour;
#endif
	priv->mtr_en = 1;
	priv->mtr_reg_share = attr->qos.flow_meter;
	sh->meter_aso_en = attr->qos.flow_meter_aso_sup;
	if (mlx5_aso_flow_mtrs_mng_init(sh))
		DIE("no memory for meters");
	sh->flow_hit_aso_en = attr->flow_hit_aso && colour == REG_C_3;
	if (sh->flow_hit_aso_en && mlx5_flow_aso_age_mng_init(sh))
		DIE("the queue of aged rules cannot be made");
}

static struct rte_eth_dev *new_port(uint16_t number, bool is_uplink)
{
	struct mlx5_priv *priv = new_zeroed(sizeof(*priv));
	struct rte_eth_dev *dev;
	char name[32];

	snprintf(name, sizeof(name), "judge%u", number);
	dev = rte_eth_dev_allocate(name);
	if (!dev || dev->data->port_id != number)
		DIE("port %u cannot be made", number);
	priv->dev_data = dev->data;
	priv->sh = sh;
	priv->dev_port = number + 1;
	priv->master = is_uplink;
	priv->representor = !is_uplink;
	priv->representor_id = is_uplink ? UINT16_MAX : number;
	priv->vport_id = is_uplink ? UINT16_MAX : number;
	priv->domain_id = 1;
	priv->pf_bond = -1;
	/* A tag of the e-switch's own in register C_0 says which port a packet came from. */
	priv->vport_meta_mask = 0xffff0000;
	priv->vport_meta_tag = (uint32_t)(number + 1) << 16;
	priv->fdb_def_rule = sh->config.fdb_def_rule;
	rte_spinlock_init(&priv->flow_list_lock);
	rte_spinlock_init(&priv->shared_act_sl);
	rte_rwlock_init(&priv->ind_tbls_lock);
	TAILQ_INIT(&priv->flow_meters);
	dev->device = &device;
	dev->dev_ops = &operations;
	dev->data->dev_private = priv;
	dev->data->dev_configured = 1;
	dev->state = RTE_ETH_DEV_ATTACHED;
	configure_meters(priv);
	if (priv->mtr_en)
		priv->mtr_profile_tbl = mlx5_l3t_create(MLX5_L3T_TYPE_PTR);
	for (int i = 0; i < MLX5_FLOW_TYPE_MAXI; i++)
		priv->flows[i] = make_pool(sizeof(struct rte_flow));
	mlx5_set_metadata_mask(dev);
	return dev;
}

void device_queues(uint16_t port, uint32_t meters)
{
	const struct rte_flow_port_attr attr = {
		.nb_counters = MAX_RULES,
		.nb_aging_objects = MAX_RULES,
		.nb_meters = meters,
	};
	const struct rte_flow_queue_attr queue = { .size = QUEUE_SIZE };
	const struct rte_flow_queue_attr *queues[] = { &queue };
	struct rte_flow_error error = { 0 };

	/* That comes before the port is started. */
	rte_eth_devices[port].data->dev_started = 0;
	if (rte_flow_configure(port, &attr, 1, queues, &error))
		DIE("the driver does not configure flow queues: %s", error.message ? error.message : strerror(rte_errno));
	rte_eth_devices[port].data->dev_started = 1;
}

void device_start(enum engine engine, uint16_t uplink, uint16_t ports, uint32_t meters)
{
	configure_shared(engine, ports);
	for (uint16_t number = 0; number < ports; number++) {
		struct rte_eth_dev *dev = new_port(number, number == uplink);

		if (number == 0 && mlx5_alloc_table_hash_list(dev->data->dev_private))
			DIE("no memory for tables");
		if (engine == ENGINE_HARDWARE) {
			flow_hw_set_port_info(dev);
#ifndef REGISTERS_OF_E_SWITCH
			flow_hw_init_tags_set(dev);
			flow_hw_init_flow_metadata_config(dev);
#endif
		}
	}
	if (engine == ENGINE_HARDWARE)
		device_queues(uplink, meters);
	for (uint16_t number = 0; number < ports; number++)
		rte_eth_devices[number].data->dev_started = 1;
}

/* What red packets do: pass like the others, or else be dropped. */
static int add_policy(uint16_t uplink, struct rte_mtr_error *error)
{
	const struct rte_flow_action pass[] = { { .type = RTE_FLOW_ACTION_TYPE_END } };
	const struct rte_flow_action drop[] = { { .type = RTE_FLOW_ACTION_TYPE_DROP },
						{ .type = RTE_FLOW_ACTION_TYPE_END } };
	struct rte_mtr_meter_policy_params passes = { .actions = { pass, pass, pass } };
	struct rte_mtr_meter_policy_params drops = { .actions = { pass, pass, drop } };

	if (!rte_mtr_meter_policy_add(uplink, METER_POLICY, &passes, error))
		return 0;
	return rte_mtr_meter_policy_add(uplink, METER_POLICY, &drops, error);
}

static struct rte_mtr_meter_profile profile = {
	.alg = RTE_MTR_SRTCM_RFC2697,
	.srtcm_rfc2697 = { .cir = 10000000, .cbs = 1000000, .ebs = 250000 },
};

bool device_meter(uint16_t uplink, uint32_t id, const char **message)
{
	static bool made[UINT16_MAX + 1], policy;
	struct rte_mtr_params params = { .meter_profile_id = id, .meter_policy_id = METER_POLICY, .meter_enable = 1 };
	struct rte_mtr_error error = { 0 };

	if (id > UINT16_MAX)
		DIE("meter %u: numbers up to %u are known", id, UINT16_MAX);
	if (made[id])
		return true;
	policy = policy || !add_policy(uplink, &error);
	made[id] = policy && !rte_mtr_meter_profile_add(uplink, id, &profile, &error) &&
		   !rte_mtr_create(uplink, id, &params, 1, &error);
	if (!made[id])
		*message = error.message ? error.message : strerror(rte_errno);
	return made[id];
}

uint32_t device_first_meter(uint16_t uplink)
{
	const struct mlx5_priv *priv = rte_eth_devices[uplink].data->dev_private;

	return priv->mtr_bulk.devx_obj->id;
}
