/*
 * Work queues of the device that says yes: whatever is posted is done at once, and completed where that was asked for.
 *
 * A queue lives as long as the process: the thread looks at its memory all the time.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "firmware.h"

struct memory {
	struct mlx5dv_devx_umem umem;
	void *address;
	struct memory *next;
};

static struct memory *memories;

struct mlx5dv_devx_umem *queues_umem_reg(struct ibv_context *context, void *address, size_t size, uint32_t access)
{
	struct memory *memory = firmware_memory(sizeof(*memory));

	(void)context, (void)size, (void)access;
	memory->umem.umem_id = firmware_id();
	memory->address = address;
	memory->next = memories;
	memories = memory;
	return &memory->umem;
}

int queues_umem_dereg(struct mlx5dv_devx_umem *umem)
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

struct ibv_cq *queues_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				struct ibv_comp_channel *channel, int comp_vector)
{
	struct completions *new = firmware_memory(sizeof(*new));

	(void)context, (void)cq_context, (void)channel, (void)comp_vector;
	new->count = rte_align32pow2(cqe + 1);
	new->size = sizeof(struct mlx5_cqe64);
	new->entries = firmware_memory(new->count * new->size);
	new->doorbell = firmware_memory(64);
	new->cqn = firmware_id();
	add_completions(new);
	return &new->cq;
}

int queues_destroy_cq(struct ibv_cq *cq)
{
	/* The queue of work that points here may still be looked at; a process that judges ends soon. */
	(void)cq;
	return 0;
}

int queues_init_obj(struct mlx5dv_obj *obj, uint64_t type)
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

void queues_completions(const void *in, uint32_t id)
{
	void *ctx = MLX5_ADDR_OF(create_cq_in, in, cq_context);
	struct completions *new = firmware_memory(sizeof(*new));

	new->cqn = id;
	new->count = 1u << MLX5_GET(cqc, ctx, log_cq_size);
	new->size = MLX5_GET(cqc, ctx, cqe_sz) ? 128 : 64;
	new->entries = memory_of(MLX5_GET(create_cq_in, in, cq_umem_id), MLX5_GET64(create_cq_in, in, cq_umem_offset));
	if (!new->entries)
		DIE("a queue of completions in memory that is not registered");
	add_completions(new);
}

void queues_work(const void *in)
{
	void *ctx = MLX5_ADDR_OF(create_sq_in, in, ctx);
	void *wq = MLX5_ADDR_OF(sqc, ctx, wq);
	uint32_t cqn = MLX5_GET(sqc, ctx, cqn);
	struct work *new = firmware_memory(sizeof(*new));

	new->mask = (1u << MLX5_GET(wq, wq, log_wq_sz)) - 1;
	new->entries = memory_of(MLX5_GET(wq, wq, wq_umem_id), MLX5_GET64(wq, wq, wq_umem_offset));
	new->doorbell = (void *)memory_of(MLX5_GET(wq, wq, dbr_umem_id), MLX5_GET64(wq, wq, dbr_addr));
	pthread_mutex_lock(&queues);
	for (new->completions = all_completions; new->completions; new->completions = new->completions->next)
		if (new->completions->cqn == cqn)
			break;
	if (!new->completions || !new->entries || !new->doorbell)
		DIE("a queue of work without memory or completions");
	/* A device looks here when it is told to; this one does all the time, and nobody has cleared it. */
	new->doorbell[MLX5_SND_DBR] = 0;
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

/* A meter, as it was written last: which half of which object, and the words of its rates and bursts. */
struct meter {
	uint32_t object;
	bool half;
	struct device_rates rates;
	struct meter *next;
};

static struct meter *meters;

static struct meter *meter_find(uint32_t object, bool half)
{
	struct meter *meter = meters;

	while (meter && (meter->object != object || meter->half != half))
		meter = meter->next;
	return meter;
}

/* Rates are a mantissa of 8 bits and an exponent of 5, bursts the same; each pair in one word. */
static void decode(uint32_t word, uint64_t *rate, uint64_t *burst)
{
	*rate = (UINT64_C(1000000000) * (word & 0xff)) >> (word >> 8 & 0x1f);
	*burst = (uint64_t)(word >> 16 & 0xff) << (word >> 24 & 0x1f);
}

static void write_meter(const struct mlx5_aso_wqe *entry)
{
	/* Two meters share an object; the mask says which of them is written. */
	bool half = !(be64toh(entry->aso_cseg.data_mask) >> 32);
	uint32_t object = be32toh(entry->general_cseg.misc);
	const struct mlx5_aso_mtr_dseg *words = &entry->aso_dseg.mtrs[half];
	struct meter *meter = meter_find(object, half);

	if (!meter) {
		meter = firmware_memory(sizeof(*meter));
		*meter = (struct meter){ .object = object, .half = half, .next = meters };
		meters = meter;
	}
	decode(be32toh(words->cbs_cir), &meter->rates.cir, &meter->rates.cbs);
	decode(be32toh(words->ebs_eir), &meter->rates.eir, &meter->rates.ebs);
	meter->rates.disabled = words->cbs_cir == RTE_BE32(MLX5_IFC_FLOW_METER_DISABLE_CBS_CIR_VAL) && !words->ebs_eir;
}

bool device_rates(uint32_t object, bool half, struct device_rates *rates)
{
	const struct meter *meter;
	bool idle;

	do {
		idle = true;
		pthread_mutex_lock(&queues);
		for (struct work *work = all_work; work; work = work->next)
			idle = idle && (uint16_t)work->done == (uint16_t)be32toh(work->doorbell[MLX5_SND_DBR]);
		meter = meter_find(object, half);
		if (meter)
			*rates = meter->rates;
		pthread_mutex_unlock(&queues);
		usleep(20);
	} while (!idle);
	return meter;
}

static void work_off(struct work *work)
{
	uint16_t posted = be32toh(work->doorbell[MLX5_SND_DBR]);

	while ((uint16_t)work->done != posted) {
		const __be32 *control = (void *)(work->entries + (work->done & work->mask) * MLX5_SEND_WQE_BB);
		uint32_t blocks = ((be32toh(control[1]) & 0x3f) * 16 + MLX5_SEND_WQE_BB - 1) / MLX5_SEND_WQE_BB;

		if (!blocks)
			DIE("an entry of work without a length");
		if ((be32toh(control[0]) & 0xff) == MLX5_OPCODE_ACCESS_ASO &&
		    be32toh(control[0]) >> WQE_CSEG_OPC_MOD_OFFSET == ASO_OPC_MOD_POLICER)
			write_meter((const void *)control);
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

void queues_start(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL))
		DIE("no thread for the device");
}
