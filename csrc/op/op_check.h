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

/* Of functions that few calls need: they are not inlined into those that every call needs, since messages take stack
 * and registers. */
#define NK_COLD __attribute__((noinline))

/* "(2, 3)" */
typedef struct nk_text {
    char s[128];
} nk_text;
nk_text nk_shape_text(const nk_tensor *t);
nk_text nk_stride_text(const nk_tensor *t);

const char *nk_dtype_name(nk_dtype dtype);
static inline int64_t nk_dtype_size(nk_dtype dtype)
{
    static const int64_t sizes[] = {[NK_U8] = 1,   [NK_E2M1X2] = 1, [NK_E4M3] = 1, [NK_F16] = 2,
                                    [NK_BF16] = 2, [NK_F32] = 4,    [NK_I32] = 4,  [NK_OTHER] = 1};
    return sizes[dtype];
}

/* Sets of dtypes, as bits. */
#define NK_DTYPE_BIT(dtype) (1u << (dtype))
#define NK_FLOATS (NK_DTYPE_BIT(NK_F16) | NK_DTYPE_BIT(NK_BF16) | NK_DTYPE_BIT(NK_F32))
#define NK_HALVES (NK_DTYPE_BIT(NK_F16) | NK_DTYPE_BIT(NK_BF16))
#define NK_FP4 (NK_DTYPE_BIT(NK_U8) | NK_DTYPE_BIT(NK_E2M1X2))
#define NK_FP8 (NK_DTYPE_BIT(NK_U8) | NK_DTYPE_BIT(NK_E4M3))

/* *product = x y. Where that overflows, the message names `t`. */
nk_status nk_fail_product(int64_t x, int64_t y, const nk_tensor *t);
static inline nk_status nk_mul(int64_t x, int64_t y, const nk_tensor *t, int64_t *product)
{
    return __builtin_mul_overflow(x, y, product) ? nk_fail_product(x, y, t) : NK_OK;
}

/* `t` has a dtype of `dtypes`, is on the device of `first`, is aligned, and its sizes fit 64 bits. Every tensor is
 * checked by this once. */
nk_status nk_check_tensor(const nk_tensor *t, unsigned dtypes, const nk_tensor *first);

/* A tensor of any rank as a batch of matrices. Its last two dimensions are rows and columns; those before them count as
 * one L. [K] is one row. Strides in bytes. */
typedef struct nk_view {
    int32_t rank;
    const int64_t *lead; /* extents of the dimensions before the rows; rank - 2 of them */
    int64_t l, rows, cols;
    int64_t batch_stride, row_stride, col_stride;
} nk_view;

/* From rank 4 on the dimensions that count as L must merge without a copy. `what` is the shape that messages expect, as
 * in "[.., M, K/2]". */
nk_status nk_view_of(const nk_tensor *t, const char *what, nk_view *v);
/* The same with all dimensions before the last as rows: l = 1. They must merge without a copy. */
nk_status nk_rows_of(const nk_tensor *t, const char *what, nk_view *v);
/* Whether x and y have the same rank and the same dimensions before the rows. */
bool nk_same_lead(const nk_view *x, const nk_view *y);

/* Checks an operand [.., rows, K] and its scales; *v becomes its view, *k its K. It is NVFP4 where its dtype is that of
 * codes or uint8. It is 16-bit where `dtypes` allows that; then `sf` must be NULL. */
nk_status nk_check_operand(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, nk_operand *operand, nk_view *v, int64_t *k);

/* The same for weights: [N, K] for every batch of `like`, with batch strides of 0, or [L, N, K] with the L of `like`.
 * `like_t` is the tensor whose view is `like`. */
nk_status nk_check_weights(const nk_tensor *t, const nk_tensor *sf, const char *sf_name, nk_sf_layout layout,
                           unsigned dtypes, const nk_tensor *first, const nk_view *like, const nk_tensor *like_t,
                           nk_operand *operand, nk_view *v, int64_t *k);

/* `t` is [.., cols] of floats, contiguous along its columns; *operand becomes it as one matrix, all dimensions before
 * the last as rows. `what` and `cols` are for messages. */
nk_status nk_check_float_rows(const nk_tensor *t, const char *what, const char *cols, const nk_tensor *first,
                              nk_operand *operand, nk_view *v);

/* A 16-bit operand is contiguous along K. */
nk_status nk_check_k_innermost(const nk_tensor *t, const nk_operand *operand);

/* `sf` holds the scales of the l x rows of `of`, for k elements a row. */
nk_status nk_check_scales(const nk_tensor *sf, nk_sf_layout layout, const nk_view *of, int64_t k,
                          const nk_tensor *first, const uint8_t **data, int64_t *row_stride, int64_t *batch_stride);

/* How many bytes the blocked scales of one batch take. Where that overflows, the message names `t`. */
nk_status nk_blocked_bytes(const nk_tensor *t, int64_t rows, int64_t k, int64_t *bytes);

/* The K of `t` equals the K of `like_t`. */
nk_status nk_check_same_k(const nk_tensor *t, int64_t k, const nk_tensor *like_t, int64_t like_k);

/* alpha is a number, or fp32 with one element or [n]; bias is [n] or NULL. */
nk_status nk_check_alpha(const nk_scalar *alpha, int64_t n, const nk_tensor *first, nk_alpha *checked);
nk_status nk_check_bias(const nk_tensor *bias, int64_t n, const nk_tensor *first, nk_bias *checked);

/* `t` is NULL, or fp32 with a factor for each row of `tokens`, whose view is `like`: of its shape without the last
 * dimension; of one row, one element. */
nk_status nk_check_row_scale(const nk_tensor *t, const nk_tensor *tokens, const nk_view *like, const nk_tensor *first,
                             nk_row_scale *checked);

/* `offsets` are int32 [G+1], contiguous. On the CPU they must lie in 0..rows and never fall, and *atoms becomes the
 * number of atom rows that blocked scales of these experts take. On a GPU the host cannot read them: *atoms is 0 and
 * kernels clamp. */
nk_status nk_check_offsets(const nk_tensor *offsets, int64_t rows, const nk_tensor *first, int64_t *atoms);

/* The dtype that a call asks for, or with NK_OTHER that of 16-bit tokens, and fp16 of others. */
nk_dtype nk_result_dtype(nk_dtype asked, const nk_tensor *tokens);

/* The output that the inputs ask for: contiguous, without data. */
nk_tensor nk_spec(const char *name, nk_dtype dtype, nk_device device, int ndim, const int64_t *shape);
nk_status nk_spec_matrix(const char *name, nk_dtype dtype, const nk_tensor *first, const nk_view *like, int64_t rows,
                         int64_t cols, nk_tensor *spec);

/* The shape of `first`, which has m rows, with `cols` in place of its last extent. */
nk_status nk_spec_rows(const char *name, nk_dtype dtype, const nk_tensor *first, int64_t m, int64_t cols,
                       nk_tensor *spec);

/* *out has the shape of `spec` and a dtype of `dtypes`, and is writable. In a dry run it may be missing: *out becomes
 * the spec. */
nk_status nk_check_out(const nk_tensor **out, const nk_tensor *spec, unsigned dtypes, const nk_exec *exec,
                       const nk_tensor *first);
/* `t` is not read-only, and no two of its elements have one address. */
nk_status nk_check_writable(const nk_tensor *t);
/* As nk_check_out, and rows or columns are contiguous. */
nk_status nk_check_out_matrix(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                              nk_output *checked);
/* The same with all dimensions before the last as rows, as nk_rows_of has them, and a dtype of `dtypes`. */
nk_status nk_check_out_rows(const nk_tensor *out, const nk_tensor *spec, unsigned dtypes, const nk_exec *exec,
                            const nk_tensor *first, nk_output *checked);

/* `out` has no byte in common with any of `others`. NULL and `out` itself are skipped. */
nk_status nk_check_disjoint(const nk_tensor *out, const nk_tensor *const *others, int count);

/* No output of the list has a byte in common with any other tensor of the list. For each group `memory` has
 * nk_disjoint_bytes(). */
size_t nk_disjoint_bytes(void);
nk_status nk_check_disjoint_groups(const nk_gemm_args *list, int64_t groups, void *memory, const nk_exec *exec);

/* The dimensions of an extent above 1, by rising stride; returns how many there are. */
int nk_sorted_dims(const nk_tensor *t, int dims[NK_MAX_DIMS]);
int64_t nk_numel(const nk_tensor *t);

#endif
