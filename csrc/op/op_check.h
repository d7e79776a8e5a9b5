/* The checks that operators share. Each names the argument, what came and what was expected. */
#ifndef NK_OP_CHECK_H
#define NK_OP_CHECK_H

#include "nk_format.h"
#include "nk_problem.h"

/* Fails with "<name>: <text>", "<name>[<index>]: <text>" inside a list. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
nk_status nk_fail_at(nk_status status, const nk_tensor *t, const char *format, ...);

#define NK_CHECK_AT(condition, status, t, ...)                           \
    do {                                                                 \
        if (!(condition)) return nk_fail_at((status), (t), __VA_ARGS__); \
    } while (0)

/* A function that few calls need, kept out of those that all calls need: what makes messages wants room and registers.
 */
#define NK_APART __attribute__((noinline))

/* "(2, 3)" */
typedef struct nk_text {
    char s[128];
} nk_text;
nk_text nk_shape_text(const nk_tensor *t);

const char *nk_dtype_name(nk_dtype dtype);
static inline int64_t nk_dtype_size(nk_dtype dtype)
{
    static const int64_t sizes[] = {[NK_U8] = 1,   [NK_E2M1X2] = 1, [NK_E4M3] = 1, [NK_F16] = 2,
                                    [NK_BF16] = 2, [NK_F32] = 4,    [NK_I32] = 4};
    return sizes[dtype];
}

/* Sets of dtypes, as bits. */
#define NK_DTYPE_BIT(dtype) (1u << (dtype))
#define NK_FLOATS (NK_DTYPE_BIT(NK_F16) | NK_DTYPE_BIT(NK_BF16) | NK_DTYPE_BIT(NK_F32))
#define NK_HALVES (NK_DTYPE_BIT(NK_F16) | NK_DTYPE_BIT(NK_BF16))
#define NK_FP4 (NK_DTYPE_BIT(NK_U8) | NK_DTYPE_BIT(NK_E2M1X2))
#define NK_FP8 (NK_DTYPE_BIT(NK_U8) | NK_DTYPE_BIT(NK_E4M3))

/* Products that no 64-bit arithmetic may overflow silently; `t` is blamed. */
nk_status nk_fail_product(int64_t x, int64_t y, const nk_tensor *t);
static inline nk_status nk_mul(int64_t x, int64_t y, const nk_tensor *t, int64_t *product)
{
    return __builtin_mul_overflow(x, y, product) ? nk_fail_product(x, y, t) : NK_OK;
}

/* dtype in `dtypes`, the device of `first`, aligned, sizes within 64 bits. Every tensor passes here once. */
nk_status nk_check_tensor(const nk_tensor *t, unsigned dtypes, const nk_tensor *first);

/* A matrix or a batch of them. Strides in bytes. */
typedef struct nk_view {
    bool batched;
    int64_t l, rows, cols;
    int64_t batch_stride, row_stride, col_stride;
} nk_view;

/* Rank 2 or 3; where `like` is given, its batch. `what` names the shape that was expected, "[L, M, K/2]" say. */
nk_status nk_view_of(const nk_tensor *t, const char *what, const nk_view *like, const nk_tensor *like_t, nk_view *v);

/* A [L, rows, K] operand and its scales; *v gets its view and *k its K. NVFP4 when its dtype says so (uint8 counts),
 * 16-bit where `dtypes` allows that, `sf` then has to be NULL. */
nk_status nk_check_operand(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, const nk_view *like, nk_operand *operand,
                           nk_view *v, int64_t *k);

/* A 16-bit operand that has to be contiguous along K. */
nk_status nk_check_k_innermost(const nk_tensor *t, const nk_operand *operand);

/* Scale bytes for the l x rows of `of` and k elements a row. */
nk_status nk_check_scales(const nk_tensor *sf, nk_sf_layout layout, const nk_view *of, int64_t k,
                          const nk_tensor *first, const uint8_t **data, int64_t *row_stride, int64_t *batch_stride);

/* Bytes that one batch's blocked buffer needs. */
nk_status nk_blocked_bytes(const nk_tensor *t, int64_t rows, int64_t k, int64_t *bytes);

/* K of `t` against the K that `like_t` has. */
nk_status nk_check_same_k(const nk_tensor *t, int64_t k, const nk_tensor *like_t, int64_t like_k);

/* fp32, one element or [n]. */
nk_status nk_check_alpha(const nk_scalar *alpha, int64_t n, const nk_tensor *first, nk_alpha *checked);
nk_status nk_check_bias(const nk_tensor *bias, int64_t n, const nk_tensor *first, nk_bias *checked);

/* int32 [G+1], contiguous. Where the host can read them (CPU): rising within 0..rows, and *atoms is the number of atom
 * rows that blocked scales of such experts take. Elsewhere *atoms is 0 and kernels clamp. */
nk_status nk_check_offsets(const nk_tensor *offsets, int64_t rows, const nk_tensor *first, int64_t *atoms);

/* An output that inputs ask for: contiguous, no data. */
nk_tensor nk_spec(const char *name, nk_dtype dtype, nk_device device, int ndim, const int64_t *shape);
nk_status nk_spec_matrix(const char *name, nk_dtype dtype, const nk_tensor *first, const nk_view *like, int64_t rows,
                         int64_t cols, nk_tensor *spec);

/* `out` has the shape of `spec`, a dtype in `dtypes`, can be written and has no two elements in one place. In a dry run
 * it may be missing: *out is then the spec. */
nk_status nk_check_out(const nk_tensor **out, const nk_tensor *spec, unsigned dtypes, const nk_exec *exec,
                       const nk_tensor *first);
/* Can be written, no two elements in one place. */
nk_status nk_check_writable(const nk_tensor *t);
/* And for matrices: rows or columns are contiguous. */
nk_status nk_check_out_matrix(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                              nk_output *checked);

/* No byte of `out` belongs to any of `others` (NULL entries and `out` itself are passed over). */
nk_status nk_check_disjoint(const nk_tensor *out, const nk_tensor *const *others, int count);

/* The same for many outputs at once: every tensor of the list against every output. */
nk_status nk_check_disjoint_groups(const nk_gemm_args *list, int64_t groups);

/* Dimensions of more than one element, by rising stride; returns how many. */
int nk_sorted_dims(const nk_tensor *t, int dims[NK_MAX_DIMS]);
int64_t nk_numel(const nk_tensor *t);

#endif
