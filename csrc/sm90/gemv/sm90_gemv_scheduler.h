/* The tile scheduler of the gemv family on the host: which steps its clusters, CTAs and consumers get. */
#ifndef NK_SM90_GEMV_SCHEDULER_H
#define NK_SM90_GEMV_SCHEDULER_H

#include "backend.h"
#include "cuda/cuda_launch.h"
#include "gemm/gemm_family.h"
#include "sm90_gemv_config.h"

typedef enum sm90_gemv_kind {
    SM90_GEMV_CODES,
    SM90_GEMV_FP16,
    SM90_GEMV_BF16,
    SM90_GEMV_FEW_CODES,
    SM90_GEMV_FEW_FP16,
    SM90_GEMV_FEW_BF16,
    SM90_GEMV_CODES_AS_FP16 /* one NVFP4 token, of experts or for two matrices */
} sm90_gemv_kind;

typedef enum sm90_gemv_access { SM90_GEMV_LINEAR, SM90_GEMV_BLOCKED, SM90_GEMV_NARROW } sm90_gemv_access;

/* X(name, warps of a CTA, whether its tiles are short, whether W is loaded by tensor map). Two CTAs of 8 warps use one
 * SM; a CTA of 16 warps has it alone. Short tiles and tensor maps are for one NVFP4 token only. */
#define SM90_GEMV_TILES(X)               \
    X(tall8, SM90_GEMV_WARPS / 2, 0, 0)  \
    X(tall16, SM90_GEMV_WARPS, 0, 0)     \
    X(short8, SM90_GEMV_WARPS / 2, 1, 0) \
    X(short16, SM90_GEMV_WARPS, 1, 0)    \
    X(map8, SM90_GEMV_WARPS / 2, 0, 1)   \
    X(map16, SM90_GEMV_WARPS, 0, 1)

enum {
#define SM90_GEMV_INDEX(name, ...) SM90_GEMV_##name,
    SM90_GEMV_TILES(SM90_GEMV_INDEX)
#undef SM90_GEMV_INDEX
        SM90_GEMV_TILE_COUNT
};

/* Which kernels serve a problem. */
typedef struct sm90_gemv_variant {
    sm90_gemv_kind kind;
    bool is_dual;     /* two matrices; N of the problem counts the rows of both */
    bool has_experts; /* each batch of the problem is a row with an expert of its own */
    bool is_list;     /* each batch is a group with operands of its own */
} sm90_gemv_variant;

typedef struct sm90_gemv_schedule {
    sm90_gemv_scheduler scheduler;
    uint32_t starts[SM90_GEMV_WARPS][2];
    bool is_short;
    bool by_tensor_map; /* how weights are loaded */
    sm90_gemv_variant variant;
    int32_t tile, warps, smem_bytes; /* tile: SM90_GEMV_tall8, .. */
    int64_t clusters;                /* of a batch */
    double us;                       /* by the cost model */
} sm90_gemv_schedule;

/* What a plan leaves for its run. */
typedef struct sm90_gemv_choice {
    cuda_kernel *kernel; /* NULL if no schedule fits */
    sm90_gemv_schedule schedule;
    nk_pdl pdl;
} sm90_gemv_choice;

/* How many clusters of each size run at once: [0] of CTAs that have an SM alone, [1] of CTAs of which two use one SM. 0
 * if a size is not used. Only the driver knows, since a GPU's clusters of SMs (GPCs) differ in size. */
typedef struct sm90_gemv_clusters {
    const cuda_gpu *gpu;
    int32_t at_once[2][SM90_GEMV_MAX_CLUSTER + 1];
} sm90_gemv_clusters;

/* Whether the kernels' 32-bit offsets are enough. */
bool sm90_gemv_fits_32_bits(const nk_gemv_problem *p);

sm90_gemv_kind sm90_gemv_kind_of(const nk_gemv_problem *p);
sm90_gemv_access sm90_gemv_access_of(const nk_gemv_problem *p);

/* Whether tensor maps can describe the weights and their scale factors. */
bool sm90_gemv_has_maps(const nk_gemv_problem *p);

/* Rows of a tile. */
int32_t sm90_gemv_tile_rows(sm90_gemv_kind kind, bool is_short);

/* Why this tile cannot serve the problem on any GPU, or NULL. */
const char *sm90_gemv_why_not(const nk_gemv_problem *p, sm90_gemv_kind kind, int tile);

/* The fastest schedule of those that fit, of one tile or NK_TILE_ANY. False if none fits. */
bool sm90_gemv_find_schedule(const nk_gemv_problem *p, const sm90_gemv_variant *variant, const sm90_gemv_clusters *room,
                             int forced, sm90_gemv_schedule *best);

/* Plans a schedule and its kernel. Declines if none fits. */
nk_status sm90_gemv_plan(const nk_gemv_problem *p, const sm90_gemv_variant *variant, const nk_settings *settings,
                         nk_plan *plan, sm90_gemv_choice *choice);

/* Runs it. With one matrix `dual` is all zeroes, without experts `experts` is NULL. */
nk_status sm90_gemv_run(const nk_gemv_problem *p, const sm90_gemv_dual *dual, const sm90_gemv_experts *experts,
                        const sm90_gemv_choice *choice, const nk_exec *exec);

/* What both of these launches, and that of a list, consist of. */
sm90_gemv_args sm90_gemv_args_of(const nk_gemv_problem *p, const sm90_gemv_choice *choice);
nk_status sm90_gemv_launch(const nk_gemv_problem *p, const sm90_gemv_choice *choice, void *const parameters[],
                           const nk_exec *exec);

/* dual_gemm of few tokens. Declines all other calls. */
nk_status sm90_plan_gemv_dual(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, sm90_gemv_choice *choice);
nk_status sm90_run_gemv_dual(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec);

/* Experts with few rows, gated or not. Declines all other calls. */
nk_status sm90_plan_gemv_experts(const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                                 sm90_gemv_choice *choice);
nk_status sm90_run_gemv_experts(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec);

/* A list of groups with few tokens each, of the same N and K, in one launch. Declines all other calls. */
nk_status sm90_plan_gemv_list(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, sm90_gemv_choice *choice);
nk_status sm90_run_gemv_list(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec);

#endif
