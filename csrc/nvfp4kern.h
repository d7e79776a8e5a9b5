/* The C interface of nvfp4kern.
 *
 * The caller describes tensors (nk_tensor), fills one argument struct per operator and calls one function per operator.
 * The library allocates nothing and owns nothing: outputs and workspace belong to the caller, and the caller names the
 * stream. Every function returns nk_status. On failure nk_status_message() says which argument, what came and what was
 * expected, and nothing has been written, but see NK_INTERRUPTED.
 *
 * Each operator comes as a pair:
 *   nk_<op>_out(args, spec)   says the shape and dtype of the outputs that these inputs ask for: contiguous, data NULL
 *   nk_<op>(args, exec)       checks everything, picks a backend and a kernel (exec->plan), and runs it unless
 *                             exec->dry_run
 */
#ifndef NVFP4KERN_H
#define NVFP4KERN_H

#include "nk_settings.h"
#include "nk_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NK_MAX_DIMS 6
#define NK_MAX_EXPERTS 1024 /* route: rows of w */
#define NK_MAX_TOP_K 32

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tensors                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef enum nk_dtype {
    NK_U8,     /* raw bytes; taken for NK_E2M1X2 or NK_E4M3 wherever those are expected */
    NK_E2M1X2, /* one byte: two E2M1 codes along K, the even element in the low nibble */
    NK_E4M3,   /* float8_e4m3fn */
    NK_F16,
    NK_BF16,
    NK_F32,
    NK_I32,
    NK_OTHER, /* what no operator takes; the tensor's `other` is its name, for messages */
} nk_dtype;

typedef enum nk_device_type { NK_CPU, NK_CUDA } nk_device_type;

typedef struct nk_device {
    nk_device_type type;
    int32_t index;
} nk_device;

typedef struct nk_tensor {
    const char *name; /* of the argument, for messages */
    int32_t index;    /* position in a list argument, or -1 */
    bool read_only;
    nk_dtype dtype;
    const char *other; /* where dtype is NK_OTHER */
    nk_device device;
    int32_t ndim;
    void *data;
    int64_t shape[NK_MAX_DIMS];
    int64_t stride[NK_MAX_DIMS]; /* in elements */
} nk_tensor;

typedef enum nk_sf_layout {
    NK_SF_LINEAR,  /* [rows, K/16] */
    NK_SF_BLOCKED, /* 128x4 atoms, see nk_format.h */
} nk_sf_layout;

/* A factor of sums: a tensor (fp32, one element or one per feature), or `value` where that is NULL. */
typedef struct nk_scalar {
    float value;
    const nk_tensor *tensor;
} nk_scalar;

/* ---------------------------------------------------------------------------------------------------------------- */
/* Execution                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What a call uses, for people. Strings are static. 0 means "does not apply". */
typedef struct nk_plan {
    const char *backend, *kernel, *why;
    int64_t tile_m, tile_n, tile_k;
    int64_t grid;            /* CTAs, or tiles on the CPU */
    int64_t workspace_bytes; /* device memory that the run needs */
    const char *tile;        /* its name in NVFP4KERN_TILE; NULL where the plan chooses from none */
    int32_t threads, stages, cluster;
    int32_t split;         /* CTAs, or warps of one, that K of a tile is divided among */
    int64_t steps_per_cta; /* of K, where tiles' steps are dealt out evenly */
    int64_t slices;        /* that rows or batches are multiplied in, one after the other; 0: all at once */
    bool batch_invariant;
    const char *declined_by, *declined; /* the last row that has no kernel for this call, and why not; or NULL */
} nk_plan;

/* Where the plan wants more than `workspace_bytes`, the call asks `allocate` for all it wants, between planning and
 * running: memory of the operands' device, aligned to 64 bytes, that lives until the call has returned (on a GPU: until
 * the stream is past it). A status other than NK_OK ends the call with that status. Without `allocate` such a call ends
 * with NK_NEEDS_WORKSPACE, and can be repeated with a workspace of plan.workspace_bytes.
 *
 * A call that computes on the CPU asks `interrupted`, if there is one, about every 50 ms, on the calling thread. Where
 * that says true the call ends with NK_INTERRUPTED, once every thread has ended what it is about. */
typedef struct nk_exec {
    bool dry_run; /* check and plan only; `out` may then be missing */
    void *stream;
    void *workspace;
    int64_t workspace_bytes;
    nk_status (*allocate)(void *context, int64_t bytes, void **workspace);
    bool (*interrupted)(void *context);
    void *context;               /* of both functions */
    const nk_settings *settings; /* NULL: the call reads the environment, which no thread may change meanwhile */
    nk_plan plan;                /* written by the call */
} nk_exec;

/* Row `i` of the backend table; false past the end. `why_not` is NULL where the row can run here, and valid until this
 * thread asks for another row. `code` is what the build has of its kernels, `needs` what they need of the
 * machine, with what was found. Both are NULL where there are none of that kind. */
typedef struct nk_backend_info {
    const char *name, *devices, *why_not, *code, *needs;
} nk_backend_info;
bool nk_backend_list(int i, nk_backend_info *info);

/* Tile `i` of those that NVFP4KERN_TILE can force; false past the end. A number is 0 if its family has no use for it.
 * `operators` are those that the tile has kernels of, NULL after the last; families of GEMMs alone say them. */
typedef struct nk_tile_info {
    const char *row, *family, *tile;
    int32_t tile_m, tile_n, tile_k, stages, cluster, split_k, warpgroups, ctas_per_mma, multicast;
    const char *operators[7];
} nk_tile_info;
bool nk_tile_list(int i, nk_tile_info *info);

/* Loads everything that first calls would load: for one device, or for every device that a row serves. */
nk_status nk_warmup(nk_device device);
nk_status nk_warmup_all(void);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operators. K counts elements: codes are [.., K/2].                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* [.., M, K] is a tensor of rank 1 to NK_MAX_DIMS. [K] is one row, and its results have no dimension for it. The
 * dimensions before M count as one batch L. From rank 4 on they must merge into L without a copy. */

/* gemm: D[m,n] = alpha[n] * sum_k A[m,k] B[n,k] + bias[n].  a [..,M,K], b [N,K] for all batches or [L,N,K] for an a
 * [L,M,K], out [..,M,N]. `row_scale`, fp32 [..,M], one for each token, multiplies its sums first; of all products.
 * gemv: D[m] = alpha[m] * sum_k A[m,k] b[k].  a [M,K] or [L,M,K] the matrix, b [1,K] or [L,1,K] the vector,
 * out [M,1] or [L,M,1].
 * The weights (gemm: b, gemv: a) are NVFP4. The other operand is NVFP4, or fp16/bf16 with its scales NULL. */
typedef struct nk_gemm_args {
    const nk_tensor *a, *b, *sfa, *sfb;
    nk_sf_layout sfa_layout, sfb_layout;
    nk_scalar alpha;
    const nk_tensor *row_scale; /* or NULL. gemv: [1] or [L,1] */
    const nk_tensor *bias;      /* [N] or NULL; gemm only */
    nk_dtype out_dtype;         /* for nk_*_out only. NK_OTHER: that of 16-bit tokens, fp16 of others */
    const nk_tensor *out;
} nk_gemm_args;
nk_status nk_gemv_out(const nk_gemm_args *args, nk_tensor *spec);
nk_status nk_gemv(const nk_gemm_args *args, nk_exec *exec);
nk_status nk_gemm_out(const nk_gemm_args *args, nk_tensor *spec);
nk_status nk_gemm(const nk_gemm_args *args, nk_exec *exec);

/* dual_gemm: D = act(h) * u of h = alpha1 * A B1^T + bias1 and u = alpha2 * A B2^T + bias2.  a [..,M,K], b1 and b2 as b
 * of gemm, out [..,M,N]. NK_SWIGLU_OAI: D = h * sigmoid(scale * h) * (u + 1). With NK_SILU and NK_SWIGLU_OAI `limit`
 * bounds h from above and u on both sides before; else it is infinite. */
typedef enum nk_activation_kind {
    NK_SILU,
    NK_GELU,
    NK_GELU_TANH,
    NK_RELU,
    NK_RELU2,
    NK_IDENTITY,
    NK_SWIGLU_OAI,
} nk_activation_kind;

typedef struct nk_activation {
    nk_activation_kind kind;
    float limit, scale;
} nk_activation;

typedef struct nk_dual_gemm_args {
    const nk_tensor *a, *b1, *b2, *sfa, *sfb1, *sfb2;
    nk_sf_layout sfa_layout, sfb_layout; /* sfb_layout is that of sfb1 and sfb2 */
    nk_scalar alpha1, alpha2;
    const nk_tensor *row_scale;     /* or NULL */
    const nk_tensor *bias1, *bias2; /* [N] or NULL */
    nk_activation activation;
    nk_dtype out_dtype;
    const nk_tensor *out;
} nk_dual_gemm_args;
nk_status nk_dual_gemm_out(const nk_dual_gemm_args *args, nk_tensor *spec);
nk_status nk_dual_gemm(const nk_dual_gemm_args *args, nk_exec *exec);

/* A result that is quantised, as by quantize, in place of one of floats. */
typedef struct nk_encoding_args {
    bool wanted;
    nk_scalar global_scale;
    bool inverse; /* as of quantize */
    const nk_tensor *codes, *scales;
} nk_encoding_args;

/* grouped_gemm, list form: `groups` independent 2-D gemms of any shapes, an nk_gemm_args each in `list`.
 * grouped_gemm, contiguous form (`list` NULL): `all` has a [sum M, K], b [G, N, K], out [sum M, N]. Tokens offsets[g]
 * .. offsets[g+1] belong to expert g; `offsets` is int32 [G+1] on the device. A blocked sfa starts expert g at atom row
 * sum_{i<g} ceil(M_i/128). alpha is [1], [G] or [G,N], bias [G,N].
 * With `rows`, int32 [P] on the device: a is [M, K], out is [P, N], the offsets are in 0..P, and row p of out is made
 * of token rows[p] / rows_per_token. sfa is then that of `a` as one matrix. Operands are both NVFP4, or NVFP4 b with
 * 16-bit a, or both of one 16-bit type. 16-bit b has K or N innermost.
 * `expected_rows` says how many rows the offsets are expected to give to experts, of at most all. It is for the choice
 * of kernel, tile and split alone: any number of rows gives right results.
 * `activation`, in both forms any but NK_SWIGLU_OAI, which has a gate, is applied before rounding.
 * Contiguous form, where encoding.wanted, with N a multiple of 16: the result is that of quantize instead, codes
 * [sum M, N/2] and linear scales [sum M, N/16] in place of all.out, by a global scale given; of [P, ..] with `rows`. */

struct nk_gemm_problem;
typedef struct nk_grouped_gemm_args {
    int64_t groups;
    const nk_gemm_args *list;
    struct nk_gemm_problem *problems; /* list form: `groups` times nk_gemm_problem_size() bytes, for the call */
    nk_gemm_args all;
    const nk_tensor *offsets;
    const nk_tensor *rows;  /* or NULL */
    int64_t rows_per_token; /* 1 where rows is NULL */
    int64_t expected_rows;  /* contiguous form; below 0: all */
    nk_activation_kind activation;
    nk_encoding_args encoding;
} nk_grouped_gemm_args;
size_t nk_gemm_problem_size(void);
/* List form: one spec for each group. Contiguous form: one spec; where encoding is wanted two, of codes and scales. */
nk_status nk_grouped_gemm_out(const nk_grouped_gemm_args *args, nk_tensor *specs);
nk_status nk_grouped_gemm(const nk_grouped_gemm_args *args, nk_exec *exec);

/* grouped_dual_gemm: dual_gemm of each expert's tokens. `offsets`, `rows` and expected_rows are those of grouped_gemm's
 * contiguous form. b [G, 2 N, K], NVFP4, has the gates of each expert, then its ups, or one after the other in turn,
 * where scales are linear. alpha is [1], [G], [G, 2] (of gates, of ups) or [G, 2 N], bias [G, 2 N], both as b has its
 * rows. out [P, N], P the rows that offsets are among; or where encoding.wanted codes and scales, as in grouped_gemm.
 */
typedef enum nk_gate_up { NK_GATE_UP_HALVES, NK_GATE_UP_INTERLEAVED } nk_gate_up;

typedef struct nk_grouped_dual_gemm_args {
    const nk_tensor *a, *b, *sfa, *sfb;
    nk_sf_layout sfa_layout, sfb_layout;
    const nk_tensor *offsets;
    const nk_tensor *rows;  /* or NULL */
    int64_t rows_per_token; /* 1 where rows is NULL */
    int64_t expected_rows;  /* below 0: all */
    nk_scalar alpha;
    const nk_tensor *row_scale; /* or NULL */
    const nk_tensor *bias;      /* or NULL */
    nk_gate_up gate_up;
    nk_activation activation;
    nk_dtype out_dtype;
    const nk_tensor *out;
    nk_encoding_args encoding;
} nk_grouped_dual_gemm_args;
/* One spec; where encoding is wanted two, of codes and scales. */
nk_status nk_grouped_dual_gemm_out(const nk_grouped_dual_gemm_args *args, nk_tensor *specs);
nk_status nk_grouped_dual_gemm(const nk_grouped_dual_gemm_args *args, nk_exec *exec);

/* route: logits = alpha * X W^T, the k best experts of each token and their weights. x [..,K] and w [N,K] are fp16,
 * bf16 or fp32 each; K is any number. Or `logits` [..,N] of such a type takes the place of X W^T. All dimensions before
 * K, or N, count as M: they must merge without a copy. */
typedef enum nk_score { NK_TOPK_SOFTMAX, NK_SOFTMAX_TOPK, NK_SIGMOID, NK_SQRT_SOFTPLUS, NK_LOGITS } nk_score;

typedef struct nk_route_args {
    const nk_tensor *x, *w; /* NULL where logits are given */
    const nk_tensor *logits;
    int64_t k;
    nk_score score;
    const nk_tensor *correction_bias; /* fp32 [N] or NULL; for the selection, not for the weights */
    int64_t n_group, topk_group;
    bool renormalize;
    float scaling_factor;
    const nk_tensor *per_expert_scale; /* fp32 [N] or NULL; multiplies the weights last */
    nk_scalar alpha;
    bool dense;
    bool permutation;            /* also wanted: counts, offsets and sorted_rows */
    bool return_row_of;          /* permutation only; also wanted: row_of */
    const nk_tensor *expert_map; /* int32 [N] or NULL; permutation only: the local index of expert n, or -1 */
    int64_t num_local_experts;   /* E, where expert_map is given; else E is N */
    bool return_logits;          /* also wanted: logits_out */
    nk_dtype out_dtype;
    const nk_tensor *weights;     /* [..,k], or [..,N] where dense */
    const nk_tensor *ids;         /* int32 [..,k] */
    const nk_tensor *counts;      /* int32 [E]: how many tokens selected expert n */
    const nk_tensor *offsets;     /* int32 [E+1]: running sum of counts */
    const nk_tensor *sorted_rows; /* int32 [M*k]: m*k + j (selection j of token m), by expert, ascending; then -1 */
    const nk_tensor *row_of;      /* int32 [M*k]: where m*k + j is in sorted_rows, or -1 */
    const nk_tensor *logits_out;  /* fp32 [..,N] */
} nk_route_args;
#define NK_ROUTE_OUTPUTS 7
/* The specs of the wanted outputs, in the order of the members; *count says how many. */
nk_status nk_route_out(const nk_route_args *args, nk_tensor specs[NK_ROUTE_OUTPUTS], int *count);
nk_status nk_route(const nk_route_args *args, nk_exec *exec);

/* sort_by_expert: route's permutation of ids that are there already. A number that is no expert's belongs to nobody. */
typedef struct nk_sort_by_expert_args {
    const nk_tensor *ids; /* int32 [..,k] */
    int64_t num_experts;
    const nk_tensor *expert_map; /* as in route */
    int64_t num_local_experts;
    const nk_tensor *counts, *offsets, *sorted_rows, *row_of;
} nk_sort_by_expert_args;
#define NK_SORT_OUTPUTS 4
/* The specs of the outputs, in the order of the members. */
nk_status nk_sort_by_expert_out(const nk_sort_by_expert_args *args, nk_tensor specs[NK_SORT_OUTPUTS]);
nk_status nk_sort_by_expert(const nk_sort_by_expert_args *args, nk_exec *exec);

/* combine: out[m] = sum_j weights[m,j] products[row_of[m k + j]] + residual[m], the end of a mixture of experts. The
 * products are [P, H], `row_of` is route's (-1 adds nothing), out is [.., H]. All dimensions before k, or H, count as
 * M: they must merge without a copy. */
typedef struct nk_combine_args {
    const nk_tensor *products; /* fp16, bf16 or fp32, as weights and residual each are */
    const nk_tensor *row_of;   /* int32 [M*k] */
    const nk_tensor *weights;  /* [..,k] */
    const nk_tensor *residual; /* [..,H] or NULL */
    nk_dtype out_dtype;
    const nk_tensor *out;
} nk_combine_args;
nk_status nk_combine_out(const nk_combine_args *args, nk_tensor *spec);
nk_status nk_combine(const nk_combine_args *args, nk_exec *exec);

/* quantize: x [..,M,K] of fp16, bf16 or fp32, or silu(x) * up where `up` is not NULL -> codes [..,M,K/2] and scales
 * (linear [..,M,K/16], or blocked [..,padded M,padded K/16]). The global scale is the multiplier s2 that undoes it:
 * `global_scale`, or amax(x)/2688 where `amax` is true, which is then written to `amax_out` (fp32 [1]), of each row by
 * itself (fp32 [..,M]) where `per_token` is true, too. Where `inverse`, global_scale is S, the inverse of s2. With
 * `offsets` (int32 [G+1], blocked, x [M,K]) the scales of each expert start at an atom of their own. Scales below
 * `smallest_scale`, 0 or from 2^-9 to 448, become it. NK_RECIPE_FOUR_SIX makes the largest magnitude of a block 6 or 4,
 * whichever leaves the smaller squared error; `amax` is then amax(x)/1536. It takes no `up` and no `inverse`. */
typedef enum nk_recipe { NK_RECIPE_AMAX, NK_RECIPE_FOUR_SIX } nk_recipe;
typedef struct nk_quantize_args {
    const nk_tensor *x;
    const nk_tensor *up; /* of x's shape and dtype, or NULL */
    nk_scalar global_scale;
    bool inverse;
    bool amax, per_token;
    float smallest_scale;
    nk_recipe recipe;
    nk_sf_layout layout;
    const nk_tensor *offsets;
    const nk_tensor *codes, *scales, *amax_out;
} nk_quantize_args;
#define NK_QUANTIZE_OUTPUTS 3
/* The specs are codes, scales, amax_out; *count is 2 or 3. */
nk_status nk_quantize_out(const nk_quantize_args *args, nk_tensor specs[NK_QUANTIZE_OUTPUTS], int *count);
nk_status nk_quantize(const nk_quantize_args *args, nk_exec *exec);

/* dequantize: codes [..,M,K/2] and scales -> out [..,M,K] = code * sf * global_scale, which has one element, or one for
 * each row ([..,M]). */
typedef struct nk_dequantize_args {
    const nk_tensor *codes, *scales;
    nk_sf_layout layout;
    nk_scalar global_scale;
    nk_dtype out_dtype;
    const nk_tensor *out;
} nk_dequantize_args;
nk_status nk_dequantize_out(const nk_dequantize_args *args, nk_tensor *spec);
nk_status nk_dequantize(const nk_dequantize_args *args, nk_exec *exec);

/* relayout: scale bytes between linear [L,rows,cols] and blocked (padding written as zero); cols = K/16.
 * `rows` and `cols` count only from blocked to linear: to blocked, the shape of the input says them. */
typedef struct nk_relayout_args {
    nk_sf_layout to;
    const nk_tensor *in;
    int64_t rows, cols;
    const nk_tensor *out;
} nk_relayout_args;
nk_status nk_relayout_out(const nk_relayout_args *args, nk_tensor *spec);
nk_status nk_relayout(const nk_relayout_args *args, nk_exec *exec);

#endif
