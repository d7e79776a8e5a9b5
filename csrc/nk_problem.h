/* Checked problems: what an operator hands to a backend. They are plain data with nothing left to check. Strides are in
 * bytes; the stride of a dimension of extent 1 is unused and may be any number. */
#ifndef NK_PROBLEM_H
#define NK_PROBLEM_H

#include "nk_format.h"
#include "nvfp4kern.h"

/* [L, rows, K]: NVFP4, or floats without scale factors, as dtype says. Pointers of empty tensors may be NULL. */
typedef struct nk_operand {
    const uint8_t *data;
    nk_dtype dtype; /* NK_E2M1X2, NK_F16 or NK_BF16; of route also NK_F32 */
    nk_sf_layout sf_layout;
    int64_t row_stride, batch_stride;
    int64_t k_stride; /* of 16-bit elements; NVFP4 is contiguous along K */
    const uint8_t *sf;
    int64_t sf_row_stride; /* linear only */
    int64_t sf_batch_stride;
} nk_operand;

/* [L, M, N] of fp16, bf16 or fp32. Row-major: col_stride is the size of an element. Column-major: row_stride is. */
typedef struct nk_output {
    uint8_t *data;
    nk_dtype dtype;
    int64_t row_stride, col_stride, batch_stride;
} nk_output;

/* A factor per feature: data[n * stride], or `value` for all features where data is NULL. A global scale to quantise by
 * may be given as its `inverse`. */
typedef struct nk_alpha {
    float value;
    bool inverse;
    const float *data;
    int64_t stride;       /* in elements; 0 for a 1-element tensor */
    int64_t group_stride; /* in elements, from expert to expert */
} nk_alpha;

/* A factor per token: data[l * batch_stride + m * stride], in elements; none where data is NULL. */
typedef struct nk_row_scale {
    const float *data;
    int64_t stride, batch_stride;
} nk_row_scale;

/* An addend per feature; none where data is NULL. */
typedef struct nk_bias {
    const uint8_t *data;
    nk_dtype dtype; /* NK_F32, NK_F16 or NK_BF16 */
    int64_t stride, group_stride;
} nk_bias;

/* D[l,m,n] = alpha[n] * (row_scale[l,m] * sum_k A[l,m,k] B[l,n,k]) + bias[n]: A are the tokens, B the weights.
 * A gemv is the gemm of one token: its vector is A (m = 1), its matrix is B, its result [L,1,N] is D. */
typedef struct nk_gemm_problem {
    nk_device device;
    int64_t l, m, n, k;
    nk_operand a, b;
    nk_output d;
    nk_alpha alpha;
    nk_bias bias;
    nk_row_scale row_scale;
} nk_gemm_problem;

typedef struct nk_dual_gemm_problem {
    nk_device device;
    int64_t l, m, n, k;
    nk_operand a, b1, b2;
    nk_output d;
    nk_alpha alpha1, alpha2;
    nk_bias bias1, bias2;
    nk_activation activation;
    nk_row_scale row_scale;
} nk_dual_gemm_problem;

/* Which token each row of a result is made of: row p is made of token data[p] / per_token of `tokens`. Where data is
 * NULL it is made of token p. */
typedef struct nk_token_rows {
    const int32_t *data;
    int32_t per_token;
    int64_t tokens;
} nk_token_rows;

/* The token that `value` of such data names, clamped to 0 .. tokens - 1: nobody checks what a GPU's memory holds, and
 * other threads may write what a CPU's holds. */
NK_HD int64_t nk_token_of(int32_t value, int32_t per_token, int64_t tokens)
{
    const int64_t token = value < 0 ? 0 : value / per_token;
    return token < tokens ? token : tokens - 1;
}

/* Rows [M, N] as codes and linear scale factors, which a GEMM writes in place of an nk_output. If `wanted` is false,
 * all other fields are zero. */
typedef struct nk_encoded_output {
    bool wanted;
    uint8_t *codes, *sf;
    int64_t codes_row_stride, sf_row_stride;
    nk_alpha global_scale;
} nk_encoded_output;

/* List form: `list` holds `groups` gemms. Contiguous form: `list` is NULL and `groups` counts experts. `all` then has
 * the tokens of all experts, with l = 1. Expert g has tokens offsets[g] .. offsets[g+1] and the weights of batch g of
 * b. A blocked sfa has a_sf_bytes bytes. Where `rows` has data, all.m counts rows of the result, offsets are among
 * these, and a blocked sfa is that of one matrix of rows.tokens rows, of which there is at least one. all.row_scale has
 * a factor for each token, too. Experts are expected to have expected_rows of the all.m rows, which plans alone read.
 * Where is_activated, D[m,n] = convert(act(h)) of what a gemm converts, by an activation without limit and gate. Where
 * `encoded` is wanted, of the contiguous form alone, d is none: act(h) is encoded instead of converted, with nk_silu
 * for silu, and N is a multiple of 16. is_activated is true then, also by identity, but not of gates. */
typedef struct nk_grouped_gemm_problem {
    nk_device device;
    int64_t groups;
    const nk_gemm_problem *list;
    nk_gemm_problem all;
    const int32_t *offsets;
    int64_t a_sf_bytes;
    nk_token_rows rows;
    int64_t expected_rows;
    bool is_activated;
    nk_activation activation;
    nk_encoded_output encoded;
} nk_grouped_gemm_problem;

/* D[m,n] = convert(act(h) * u) of the gate h = alpha[g,n] * sum_k A[m,k] B[g,n,k] + bias[g,n] and of the up u alike,
 * where g is the expert of row m. `gates` is the contiguous form's product with the N rows of b that are gates, and its
 * d is the result. `ups` are the other N: behind the gates, or one behind each gate, where strides of rows are twice
 * those of the argument b. Blocked scale factors of ups behind gates that do not begin an atom begin in that of the
 * last gates. Where gates.encoded is wanted, d is none: act(h) * u is encoded instead of converted. */
typedef struct nk_grouped_dual_gemm_problem {
    nk_device device;
    nk_grouped_gemm_problem gates;
    nk_operand ups;
    nk_alpha alpha_ups;
    nk_bias bias_ups;
    nk_activation activation;
} nk_grouped_dual_gemm_problem;

/* The sums are those of x and w: fp16, bf16 or fp32 each, without scale factors, contiguous along K. K is any number,
 * and rows begin at any element. Where `from_logits`, the sums are `logits` themselves, x and w are empty, and k is 0.
 */
typedef struct nk_route_problem {
    nk_device device;
    int64_t m, n, k;
    nk_operand x, w;
    bool from_logits;
    nk_operand logits; /* [M, N] of fp16, bf16 or fp32, contiguous along N */
    nk_alpha alpha;
    int64_t top_k, n_group, topk_group;
    nk_score score;
    bool renormalize, dense;
    float scaling_factor;
    const float *correction_bias;   /* or NULL */
    int64_t correction_bias_stride; /* in elements */
    const float *per_expert_scale;  /* or NULL */
    int64_t per_expert_scale_stride;
    nk_output weights;
    int32_t *ids;
    int64_t ids_row_stride, ids_col_stride; /* in elements */
    bool returns_logits;
    nk_output logits_out;                    /* [M, N] of fp32 */
    bool sorts;                              /* what follows is wanted */
    int32_t *counts, *offsets, *sorted_rows; /* contiguous */
    int32_t *row_of;                         /* the same, or NULL: not wanted */
    const int32_t *expert_map;               /* [N], or NULL: an expert is its own local index */
    int64_t expert_map_stride;               /* in elements */
    int64_t local_experts;                   /* extent of counts; N without a map */
} nk_route_problem;

/* Uses only m, n, top_k, `ids`, which are an input, and the fields of the permutation. */
typedef nk_route_problem nk_sort_by_expert_problem;

/* Whether x and w are 16-bit, of one type: what tensor cores multiply as it is. */
static inline bool nk_route_has_halves(const nk_route_problem *p)
{
    return !p->from_logits && p->x.dtype == p->w.dtype && p->x.dtype != NK_F32;
}

/* `index`, which ids or a map hold, or -1 where it is none of `experts`: others may write such memory meanwhile. */
NK_HD int32_t nk_expert_of(int32_t index, int64_t experts) { return index >= 0 && index < experts ? index : -1; }

/* out[m,h] = sum_j weights[m,j] products[row_of[m k + j],h] + residual[m,h]. Operands are floats, one batch. */
typedef struct nk_combine_problem {
    nk_device device;
    int64_t m, k, h;
    int64_t rows;          /* of `products` */
    nk_operand products;   /* [rows, h] */
    const int32_t *row_of; /* [m k] */
    nk_operand weights;    /* [m, k] */
    nk_operand residual;   /* [m, h]; none where data is NULL */
    nk_output out;
} nk_combine_problem;

/* The row of the products that row_of says, or -1 where it is none of them: others may write such memory meanwhile. */
NK_HD int32_t nk_row_among(int32_t row, int64_t rows) { return row >= 0 && row < rows ? row : -1; }

typedef struct nk_quantize_problem {
    nk_device device;
    int64_t l, rows, k;
    const uint8_t *x;
    nk_dtype x_dtype;
    int64_t x_row_stride, x_batch_stride;
    const uint8_t *up; /* not NULL: silu(x) * up is quantised; it has x's type */
    int64_t up_row_stride, up_batch_stride;
    nk_alpha global_scale;
    float *amax_out; /* not NULL: the global scale is computed from x and written here */
    bool per_token;  /* that of each row: amax_out[l * amax_batch_stride + row * amax_row_stride] */
    int64_t amax_row_stride, amax_batch_stride; /* in elements */
    float smallest_scale;                       /* scale factors below it become it; +0 for none */
    nk_recipe recipe;                           /* NK_RECIPE_FOUR_SIX: neither `up` nor global_scale.inverse */
    uint8_t *codes;
    int64_t codes_row_stride, codes_batch_stride;
    uint8_t *sf;
    nk_sf_layout layout;
    int64_t sf_row_stride; /* linear only */
    int64_t sf_batch_stride;
    int64_t sf_padded_rows; /* blocked: rows of one batch's buffer, with padding */
    const int32_t *offsets; /* of experts (blocked only), or NULL */
    int64_t groups;         /* experts */
} nk_quantize_problem;

typedef struct nk_dequantize_problem {
    nk_device device;
    int64_t l, rows, k;
    nk_operand q;
    nk_alpha global_scale; /* of each row: `stride` apart, of each batch `group_stride` */
    nk_output out;
} nk_dequantize_problem;

typedef struct nk_relayout_problem {
    nk_device device;
    nk_sf_layout to;
    int64_t l, rows, cols;
    uint8_t *linear; /* the source, or the destination where `to` is linear */
    int64_t linear_row_stride, linear_batch_stride;
    uint8_t *blocked;
    int64_t blocked_batch_stride;
} nk_relayout_problem;

#endif
