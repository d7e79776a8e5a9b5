/* One GEMM planner for all rows: what a call multiplies, tile configurations, and the table by which a family of
 * kernels takes part. Data flows one way: nk_<op>_problem -> gemm_desc -> gemm_candidate -> gemm_launch -> kernels.
 *
 * A family answers five questions, each in one function: can it serve the call (why_not), can this configuration
 * (why_not_config), what does that cost (us), how is it launched (derive), and launch. All else is here: forced tiles,
 * batch invariance, the choice by cost, what is remembered of it, the gemv beside it, explain, and lists of groups. */
#ifndef NK_GEMM_FAMILY_H
#define NK_GEMM_FAMILY_H

#include "backend.h"
#include "cuda/cuda_encode.h"
#include "cuda/cuda_launch.h"
#include "gemm_gated.h"
#include "gemm_reasons.h"

#include <math.h>

typedef enum gemm_operator {
    GEMM,
    GEMM_DUAL,
    GEMM_GROUPED,      /* experts */
    GEMM_GROUPED_DUAL, /* gated experts */
    GEMM_LIST,         /* groups, of which a launch takes up to GEMM_MEMBERS */
    GEMM_OPERATORS
} gemm_operator;

#define GEMM_MEMBERS 32 /* all groups of a launch are its parameters, of 32,764 bytes at most, and travel with it */

/* Of the rows of all experts: where those of a launch begin, and how many there are in all launches. */
typedef struct gemm_slice {
    int64_t first_row, rows;
} gemm_slice;

/* What one plan multiplies. */
typedef struct gemm_desc {
    gemm_operator op;
    /* With b1, or the gates; of experts, with all their rows; of a list, its first member. */
    const nk_gemm_problem *gemm;
    const nk_operand *up;                   /* the second matrix of weights, or NULL */
    const void *params;                     /* the call as kernels of one problem take it */
    const nk_grouped_gemm_problem *experts; /* the contiguous form, or NULL */
    gemm_slice slice;                       /* which of the experts' rows `gemm` has: offsets count among all */
    const gemm_gated *gated;                /* of GEMM_GROUPED_DUAL */
    const nk_activation *activation;        /* that kernels of their own may apply: of grouped_gemm's sums, or of what
                                               grouped_dual_gemm encodes unless it is silu without a limit; or NULL */
    const nk_grouped_gemm_problem *list;    /* a whole list, of which a plan makes launches; or NULL */
    int32_t count;                          /* members: 1 but for lists */
    const nk_gemm_problem *const *members;  /* none is empty */
    bool is_partial;                        /* further launches take the rest of the list */
} gemm_desc;

static inline const nk_activation *gemm_activation_of(const nk_grouped_gemm_problem *p)
{
    return p->is_activated ? &p->activation : NULL;
}

static inline int32_t gemm_matrices(const gemm_desc *d) { return d->up ? 2 : 1; }
static inline int64_t gemm_experts(const gemm_desc *d) { return d->experts ? d->experts->groups : 0; }

/* One member as if it were all. */
static inline gemm_desc gemm_member(const gemm_desc *d, int i)
{
    gemm_desc one = *d;
    one.gemm = d->members[i];
    return one;
}

/* Whether the result is codes and scale factors. */
static inline bool gemm_encodes(const gemm_desc *d) { return d->experts && d->experts->encoded.wanted; }

/* Whether rows of the result are made of tokens that an index names. */
static inline bool gemm_gathers(const gemm_desc *d) { return d->experts && d->experts->rows.data; }

/* Tokens of `a`: as many as rows of the result, unless these are gathered. */
static inline int64_t gemm_tokens(const gemm_desc *d) { return gemm_gathers(d) ? d->experts->rows.tokens : d->gemm->m; }

/* Rows of the result that costs are of: 1 at least, unless there are none. Experts are expected to have so many. They
 * may have all m: room, limits and grids that must be large enough are for m. */
static inline int64_t gemm_expected_m(const gemm_desc *d)
{
    const int64_t m = d->gemm->m, expected = d->experts ? d->experts->expected_rows : m;
    return expected > 0 || m == 0 ? expected : 1;
}

/* Whether a tensor map can have the strides of the tokens. Those of one batch that all share are none. */
static inline bool gemm_tokens_have_boxes(const nk_gemm_problem *p)
{
    return cuda_is_stride(p->a.row_stride, p->m) && cuda_is_stride(p->a.batch_stride, p->l);
}

/* Batches of the weights: experts have the tokens of all in one. */
static inline int64_t gemm_weight_batches(const gemm_desc *d) { return d->experts ? gemm_experts(d) : d->gemm->l; }

/* Whether all batches, or experts, have the same weights. */
static inline bool gemm_has_one_matrix(const gemm_desc *d)
{
    return gemm_weight_batches(d) > 1 && d->gemm->b.batch_stride == 0;
}

/* A tile configuration. What a family has no use for is 0. */
typedef struct gemm_config {
    int32_t tile_m,
        tile_n;     /* tokens, and weight rows, of a tile. sm100: of either matrix; swapped if tokens are the MMA's M */
    int32_t tile_k; /* of a stage */
    int32_t stages; /* 0: as many as shared memory has room for, which depends on the operator */
    int32_t cluster;      /* CTAs */
    int32_t split_k;      /* parts that K of a tile is divided into, by warpgroups (sm90: consumer groups) and CTAs */
    int32_t warpgroups;   /* that consume; sm80: warps */
    int32_t ctas_per_mma; /* 2: a pair of CTAs issues one MMA (cta_group::2) */
    int32_t multicast;    /* pairs of a cluster that share the operand on the MMA's N */
    int32_t ctas_per_sm;  /* that registers allow */
    bool natural_k;       /* sm90: tokens stay in their own order of K */
} gemm_config;

/* Tiles of m rows: of experts as many as any offsets can need, since each with tokens may have one that is not full. */
int64_t gemm_m_tiles(const gemm_desc *d, int32_t tile_m);

/* The same of the rows that experts are expected to have. */
int64_t gemm_expected_m_tiles(const gemm_desc *d, int32_t tile_m);

/* The same if all experts have as many rows. */
int64_t gemm_even_m_tiles(const gemm_desc *d, int32_t tile_m);

/* Weight rows of each matrix that a tile has, and tiles of n such rows. */
static inline int32_t gemm_features(const gemm_desc *d, const gemm_config *t) { return t->tile_n / gemm_matrices(d); }
static inline int64_t gemm_n_tiles(const gemm_desc *d, const gemm_config *t, int64_t n)
{
    return nk_ceil_div(n, gemm_features(d, t));
}

typedef struct gemm_family gemm_family;

/* What a plan is asked beside the call. */
typedef struct gemm_query {
    const gemm_family *family;
    const cuda_gpu *gpu;
    int32_t forced;    /* a configuration, or NK_TILE_ANY */
    int32_t row_limit; /* of a launch: NVFP4KERN_ROW_LIMIT */
    bool batch_invariant;
    nk_pdl pdl;
} gemm_query;

/* `schedule` is what else a family chooses. sm80: CTAs per SM that all steps of K are divided among (stream-K), 0: a
 * tile each. sm90: of a list, the largest tile_m by its number. sm100: 1: tokens are the MMA's M; of a launch a bit for
 * each member. */
typedef struct gemm_candidate {
    int32_t config, schedule;
    double us;
} gemm_candidate;

#define GEMM_SLICE_ROWS 256 /* slices without experts begin at multiples of it: whole tiles, and whole atoms */

/* A planned launch: all that `run` needs beside the call. */
typedef struct gemm_launch {
    const gemm_family *family;
    cuda_kernel *kernel;
    nk_plan plan; /* the grid, threads and workspace, and what people are told */
    double us;
    int64_t slice_rows, slice_batches; /* of each launch but the last */
    int32_t config, schedule, smem_bytes;
    nk_pdl pdl;
    bool overlap;
    int32_t prologue_rows; /* sm90: of a CTA of the prologue kernel */
    /* sm90's lists: the members, those of the longest tiles first, and the number of each one's tile_m. */
    uint8_t order[GEMM_MEMBERS], tile_m_index[GEMM_MEMBERS];
} gemm_launch;

struct gemm_family {
    const nk_family *tiles; /* their names */
    const gemm_config *configs;
    int32_t count, schedules;
    int32_t invariant; /* the configuration of batch-invariant calls, or NK_TILE_ANY: all that why_not_config passes */
    cuda_kernel *(*kernel)(const gemm_desc *d, int config);          /* NULL: the operator has none of it */
    const char *(*why_not)(const gemm_desc *d, const gemm_query *q); /* NULL: never */
    /* Depends on sizes, types and layouts alone, as `us` and `derive` do: what they say is remembered by these. */
    const char *(*why_not_config)(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
    double (*us)(const gemm_desc *d, const gemm_query *q, const gemm_candidate *c);
    void (*derive)(const gemm_desc *d, const gemm_query *q, gemm_launch *launch); /* grid, shared memory, workspace */
    nk_status (*launch)(const gemm_desc *d, const gemm_launch *launch, const nk_exec *exec);
    bool (*in_one_launch)(const nk_gemm_problem *member, const nk_gemm_problem *first); /* of a list; NULL: all */
    bool longest_first;                                                                 /* order of a list's members */
    int64_t (*rows_at_once)(const gemm_desc *d); /* that fit into the workspace, of all batches; NULL: any number */
    const void *mainloop;                        /* the family's own */
};

/* Defines the gemm_family <row>_<name> of a file's `configs`, and the nk_family of its tiles; fields follow. */
#define GEMM_FAMILY(row, name, alias, TILES, ...)                                                                  \
    extern const gemm_family row##_##name;                                                                         \
    const nk_family row##_##name##_family = {#row,         #name, NK_TILE_NAMES(TILES), alias, gemm_describe_tile, \
                                             &row##_##name};                                                       \
    const gemm_family row##_##name = {                                                                             \
        .tiles = &row##_##name##_family, .configs = configs, .count = sizeof configs / sizeof *configs, __VA_ARGS__}

/* No reason: such a schedule is none of this configuration's, and another one serves the call. */
extern const char gemm_no_schedule[];

typedef struct gemm_row gemm_row;
struct gemm_row {
    const gemm_family *(*family)(const gemm_desc *d);                        /* by the operands' types */
    const char *(*why_not)(const gemm_desc *d, const nk_settings *settings); /* for the whole row; NULL: never */
    /* The gemv beside the tiles, or NULL. If it can serve the call it plans, and *us becomes its time. With 0 no tile
     * is asked, even if it declines; *us stays INFINITY if tiles are to be asked alone. */
    nk_status (*plan_gemv)(const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice, double *us);
    nk_status (*run_gemv)(const gemm_desc *d, const void *choice, const nk_exec *exec);
    /* Lists, or NULL: a launch for each GEMM_MEMBERS groups. */
    nk_status (*plan_list)(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan,
                           void *choice);
    nk_status (*run_list)(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec);
    bool is_last; /* no row follows that could serve the call */
};

/* An nk_family's `describe`, whose `of` is the gemm_family. */
void gemm_describe_tile(const void *of, int tile, nk_tile_info *info);

/* Whether a dimension, or the number of experts, is 0 or larger than tensor maps and kernels count. */
const char *gemm_why_not_sizes(const gemm_desc *d);

bool gemm_is_empty_group(const nk_gemm_problem *group);

/* Launches a planned kernel. */
nk_status gemm_launch_kernel(const gemm_desc *d, const gemm_launch *launch, void *const args[], const nk_exec *exec);

/* If there is a reason, refuses the forced tile of the family, or declines: another row may serve the call. */
nk_status gemm_decline(const gemm_family *family, const nk_settings *settings, const char *why, nk_plan *plan);

nk_status gemm_plan(const gemm_row *row, const gemm_desc *d, const nk_settings *settings, nk_plan *plan, void *choice);
nk_status gemm_run(const gemm_row *row, const gemm_desc *d, const void *choice, const nk_exec *exec);

/* A description, and what it points to beside the problem. */
typedef struct gemm_call {
    gemm_desc desc;
    const nk_gemm_problem *member;
    nk_gemm_problem gemm;
    nk_grouped_gemm_problem experts; /* of a slice */
    union {
        nk_dual_gemm_problem dual;
        gemm_gated gated;
    };
} gemm_call;

const gemm_desc *gemm_describe_gemm(const nk_gemm_problem *p, gemm_call *call);
const gemm_desc *gemm_describe_dual_gemm(const nk_dual_gemm_problem *p, gemm_call *call);
const gemm_desc *gemm_describe_grouped_gemm(const nk_grouped_gemm_problem *p, gemm_call *call); /* both forms */
const gemm_desc *gemm_describe_grouped_dual_gemm(const nk_grouped_dual_gemm_problem *p, gemm_call *call);

/* Defines a row's cells of all operators, by its gemm_row <row>_gemm_row. */
#define GEMM_CELL(row, op)                                                                                          \
    nk_status row##_plan_##op(const nk_##op##_problem *p, const nk_settings *settings, nk_plan *plan, void *choice) \
    {                                                                                                               \
        gemm_call call;                                                                                             \
        return gemm_plan(&row##_gemm_row, gemm_describe_##op(p, &call), settings, plan, choice);                    \
    }                                                                                                               \
    nk_status row##_run_##op(const nk_##op##_problem *p, const void *choice, const nk_exec *exec)                   \
    {                                                                                                               \
        gemm_call call;                                                                                             \
        return gemm_run(&row##_gemm_row, gemm_describe_##op(p, &call), choice, exec);                               \
    }
#define GEMM_CELLS(row) \
    GEMM_CELL(row, gemm) GEMM_CELL(row, dual_gemm) GEMM_CELL(row, grouped_gemm) GEMM_CELL(row, grouped_dual_gemm)

#endif
