/* Between the parts of the device: objects and capabilities (firmware.c), work queues (queues.c). */
#ifndef FIRMWARE_H
#define FIRMWARE_H

#include <mlx5_common.h>
#include <mlx5_glue.h>
#include <mlx5_prm.h>

#include "judge.h"

/* The number of a new object. */
uint32_t firmware_id(void);

/* Pages, all zero. */
void *firmware_memory(size_t size);

/* Calls of the driver's table about memory and queues. */
struct mlx5dv_devx_umem *queues_umem_reg(struct ibv_context *context, void *address, size_t size, uint32_t access);
int queues_umem_dereg(struct mlx5dv_devx_umem *umem);
struct ibv_cq *queues_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
				int comp_vector);
int queues_destroy_cq(struct ibv_cq *cq);
int queues_init_obj(struct mlx5dv_obj *obj, uint64_t type);

/* Commands that make queues in registered memory: one of completions, by its number; one of work. */
void queues_completions(const void *in, uint32_t id);
void queues_work(const void *in);

/* From here on work is done. */
void queues_start(void);

#endif
