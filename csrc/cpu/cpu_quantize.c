/* quantize: codes and scale factors of x, which is the input or silu(input) * up.
 * With S = min(fl(1/s2), FLT_MAX), or S itself where that is given, or min(fl(2688/g), FLT_MAX) for the amax g, and a
 * the largest |x| of a block of 16:
 *   sf   = e4m3_rne(min(max(fl(a * fl(S * fl(1/6))), smallest_scale), 448))
 *   code = e2m1_rne(fl(x * min(fl(1 / fl(sf * fl(1/S))), FLT_MAX)))
 * The recipe four_six is written in cpu_scalar.c.
 * The order of these fp32 operations is the contract: every backend writes the same bytes. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_path.h"
#include "cpu_pool.h"

#include <float.h>
#include <stdatomic.h>

#define L1_ELEMENTS 1024   /* of silu(x) up at a time: they stay in L1 until they are encoded */
#define IN_PLACE 8192      /* elements to encode at a time where they need no silu */
#define AHEAD 2048         /* elements to prefetch */
#define JOB_ELEMENTS 65536 /* some tens of microseconds */

typedef struct quantization {
    const nk_quantize_problem *problem;
    const cpu_path *path;
    cpu_encoder encoder;
    int64_t rows;          /* of a job; rows of all batches are numbered in turn */
    _Atomic uint32_t amax; /* the bits of a float: they compare as the floats do */
} quantization;

static cpu_encoder encoder_of_scale(float s)
{
    return (cpu_encoder){.valid = s > 0, .to_sf = s * (1.0f / NK_E2M1_MAX), .inverse_s = 1.0f / s};
}

/* S */
static float scale_of(const nk_alpha *global_scale)
{
    const float given = cpu_alpha_at(global_scale, 0), s = global_scale->inverse ? given : 1.0f / given;
    return s > FLT_MAX ? FLT_MAX : s; /* keeps NaN */
}

cpu_encoder cpu_encoder_of(const nk_alpha *global_scale) { return encoder_of_scale(scale_of(global_scale)); }

static cpu_encoder four_six_encoder(float s2) { return (cpu_encoder){.valid = s2 > 0 && s2 <= FLT_MAX, .s2 = s2}; }

/* Of numbers whose largest finite magnitude is `amax`; *s2 becomes their global scale. */
static cpu_encoder encoder_of_amax(const nk_quantize_problem *p, float amax, float *s2)
{
    const float full = NK_E2M1_MAX * NK_E4M3_MAX;
    if (p->recipe == NK_RECIPE_FOUR_SIX) {
        *s2 = amax / NK_FOUR_SIX_MAX;
        if (!(*s2 > 0)) *s2 = 1.0f;
        return four_six_encoder(*s2);
    }
    *s2 = amax > 0 ? fmaxf(amax / full, 1.0f / FLT_MAX) : 1.0f; /* 1/S where S is FLT_MAX */
    return encoder_of_scale(amax > 0 ? fminf(full / amax, FLT_MAX) : 1.0f);
}

/* Loads elements k .. k + count - 1 of a row, and prefetches those that follow. */
static void load_elements(const quantization *q, const uint8_t *row, int64_t k, int64_t count,
                          float values[L1_ELEMENTS])
{
    nk_dtype dtype = q->problem->x_dtype;
    int64_t size = float_bytes(dtype);
    for (int64_t i = 0; i < L1_ELEMENTS * size; i += 64)
        PREFETCH(row + (k + AHEAD) * size + i);
    q->path->load(row + k * size, dtype, count, values);
}

/* silu(x) up for x[l, row, k .. k + count - 1]. */
static void load_gated(const quantization *q, int64_t l, int64_t row, int64_t k, int64_t count,
                       float values[L1_ELEMENTS])
{
    const nk_quantize_problem *p = q->problem;
    float up[L1_ELEMENTS];
    load_elements(q, p->x + l * p->x_batch_stride + row * p->x_row_stride, k, count, values);
    load_elements(q, p->up + l * p->up_batch_stride + row * p->up_row_stride, k, count, up);
    q->path->gate(values, up, count);
}

/* The next elements from k on: where they lie, or silu(x) up in `values`. */
typedef struct elements {
    const uint8_t *from;
    nk_dtype dtype;
    int64_t count;
} elements;

static elements next_elements(const quantization *q, int64_t i, int64_t k, float values[L1_ELEMENTS])
{
    const nk_quantize_problem *p = q->problem;
    int64_t l = i / p->rows, row = i % p->rows;
    if (!p->up) {
        const uint8_t *from = p->x + l * p->x_batch_stride + row * p->x_row_stride;
        return (elements){from + k * float_bytes(p->x_dtype), p->x_dtype, cpu_min(IN_PLACE, p->k - k)};
    }
    int64_t count = cpu_min(L1_ELEMENTS, p->k - k);
    load_gated(q, l, row, k, count, values);
    return (elements){(const uint8_t *)values, NK_F32, count};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The global scale                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The largest finite |x| of a row. A NaN or an infinity must spoil no block but its own. */
static float amax_of_row(const quantization *q, int64_t i)
{
    float amax = 0, values[L1_ELEMENTS];
    elements x;
    for (int64_t k = 0; k < q->problem->k; k += x.count) {
        x = next_elements(q, i, k, values);
        amax = fmaxf(amax, q->path->finite_amax(x.from, x.dtype, x.count));
    }
    return amax;
}

static void find_amax(void *context, int64_t job)
{
    quantization *q = context;
    const nk_quantize_problem *p = q->problem;
    float amax = 0;
    for (int64_t i = job * q->rows; i < cpu_min((job + 1) * q->rows, p->l * p->rows); i++)
        amax = fmaxf(amax, amax_of_row(q, i));
    uint32_t mine = nk_bits_of_float(amax), known = atomic_load(&q->amax);
    while (mine > known && !atomic_compare_exchange_weak(&q->amax, &known, mine)) {
    }
}

/* That of all rows; each has its own where p->per_token. */
static nk_status find_encoder(quantization *q, const nk_exec *exec, int64_t jobs, int threads)
{
    const nk_quantize_problem *p = q->problem;
    if (p->per_token) return NK_OK;
    if (!p->amax_out) {
        const bool four_six = p->recipe == NK_RECIPE_FOUR_SIX;
        q->encoder = four_six ? four_six_encoder(cpu_alpha_at(&p->global_scale, 0)) : cpu_encoder_of(&p->global_scale);
        return NK_OK;
    }
    NK_TRY(cpu_for_each(exec, jobs, threads, find_amax, q));
    q->encoder = encoder_of_amax(p, nk_float_of_bits(atomic_load(&q->amax)), p->amax_out);
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rows                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Finds the first atom row of the expert that has `row`, and the row's number in that expert. False where no expert has
 * it. */
static bool locate(const nk_quantize_problem *p, int64_t row, int64_t *atom_row, int64_t *in_expert)
{
    *atom_row = 0;
    *in_expert = row;
    if (!p->offsets) return true;
    for (int64_t g = 0; g < p->groups; g++) {
        cpu_rows rows = cpu_rows_of_expert(p->offsets, g, p->rows);
        *in_expert = row - rows.begin;
        if (row >= rows.begin && row < rows.end) return *atom_row * NK_SF_ATOM_ROWS + *in_expert < p->sf_padded_rows;
        *atom_row += nk_ceil_div(rows.end - rows.begin, NK_SF_ATOM_ROWS);
    }
    return false;
}

/* Stores the scale bytes of blocks col .. col + count - 1; `col` is a multiple of 4. */
static void store_sf(const nk_quantize_problem *p, const uint8_t *from, int64_t l, int64_t row, int64_t col,
                     int64_t count)
{
    uint8_t *sf = p->sf + l * p->sf_batch_stride;
    if (p->layout == NK_SF_LINEAR) {
        memcpy(sf + row * p->sf_row_stride + col, from, (size_t)count);
        return;
    }
    int64_t atom_row, in_expert;
    if (!locate(p, row, &atom_row, &in_expert)) return;
    sf += nk_sf_blocked_offset(atom_row * NK_SF_ATOM_ROWS + in_expert, col, p->k / NK_SF_VEC);
    for (; count > 0; count -= NK_SF_ATOM_COLS, from += NK_SF_ATOM_COLS, sf += NK_SF_ATOM_BYTES)
        memcpy(sf, from, (size_t)cpu_min(NK_SF_ATOM_COLS, count));
}

static void quantize_rows(void *context, int64_t job)
{
    const quantization *q = context;
    const nk_quantize_problem *p = q->problem;
    float values[L1_ELEMENTS];
    uint8_t sf[IN_PLACE / NK_SF_VEC];
    cpu_encoder encoder = q->encoder;
    for (int64_t i = job * q->rows; i < cpu_min((job + 1) * q->rows, p->l * p->rows); i++) {
        int64_t l = i / p->rows, row = i % p->rows;
        if (p->per_token) {
            float *s2 = p->amax_out + l * p->amax_batch_stride + row * p->amax_row_stride;
            encoder = encoder_of_amax(p, amax_of_row(q, i), s2);
        }
        encoder.smallest = p->smallest_scale;
        /* An encoder that is not valid makes the same bytes by any recipe. */
        const bool four_six = p->recipe == NK_RECIPE_FOUR_SIX && encoder.valid;
        void (*encode)(const cpu_encoder *, const uint8_t *, nk_dtype, int64_t, uint8_t *, uint8_t *) =
            four_six ? q->path->encode_four_six : q->path->encode;
        uint8_t *codes = p->codes + l * p->codes_batch_stride + row * p->codes_row_stride;
        elements x;
        for (int64_t k = 0; k < p->k; k += x.count) {
            x = next_elements(q, i, k, values);
            encode(&encoder, x.from, x.dtype, x.count / NK_SF_VEC, codes + k / 2, sf);
            store_sf(p, sf, l, row, k / NK_SF_VEC, x.count / NK_SF_VEC);
        }
    }
}

nk_status cpu_quantize(const nk_quantize_problem *p, cpu_means means, const nk_exec *exec)
{
    int64_t rows = p->k < JOB_ELEMENTS ? JOB_ELEMENTS / (p->k + 1) + 1 : 1, jobs = nk_ceil_div(p->l * p->rows, rows);
    quantization q = {.problem = p, .path = means.path, .rows = rows};
    NK_TRY(find_encoder(&q, exec, jobs, means.threads));
    int64_t padded = p->sf_padded_rows * nk_sf_padded_cols(p->k / NK_SF_VEC);
    for (int64_t l = 0; p->layout == NK_SF_BLOCKED && padded && l < p->l; l++)
        memset(p->sf + l * p->sf_batch_stride, 0, (size_t)padded);
    return cpu_for_each(exec, jobs, means.threads, quantize_rows, &q);
}
