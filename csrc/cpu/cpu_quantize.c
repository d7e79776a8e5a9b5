/* x is the input, or silu(input) * up.
 * With S = min(fl(1/s2), FLT_MAX), or min(fl(2688/g), FLT_MAX) for the amax g, and a the largest |x| of a block of 16:
 *   sf   = e4m3_rne(min(fl(a * fl(S * fl(1/6))), 448))
 *   code = e2m1_rne(fl(x * min(fl(1 / fl(sf * fl(1/S))), FLT_MAX)))
 * The order of these fp32 operations is the contract: every backend writes the same bytes. */
#include "cpu_backend.h"

#include "../nk_math.h"
#include "cpu_operand.h"

#include <float.h>

typedef struct encoder {
    bool valid;      /* S > 0; a global scale of NaN, infinity or below 0 poisons every block */
    float to_sf;     /* fl(S * fl(1/6)) */
    float inverse_s; /* fl(1/S) */
} encoder;

static encoder encoder_of(float s)
{
    return (encoder){.valid = s > 0, .to_sf = s * (1.0f / NK_E2M1_MAX), .inverse_s = 1.0f / s};
}

static uint8_t encode_block(const encoder *e, const float x[NK_SF_VEC], uint8_t codes[NK_SF_VEC / 2])
{
    float amax = 0;
    bool poisoned = !e->valid;
    for (int i = 0; i < NK_SF_VEC; i++) {
        poisoned = poisoned || isnan(x[i]);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    memset(codes, 0, NK_SF_VEC / 2);
    if (poisoned) return NK_E4M3_NAN;
    uint8_t sf = e4m3_of_float(fminf(amax * e->to_sf, NK_E4M3_MAX));
    if (sf == 0) return 0;

    float to_code = fminf(1.0f / (e4m3_to_float(sf) * e->inverse_s), FLT_MAX);
    for (int i = 0; i < NK_SF_VEC; i++) {
        /* An infinity saturates even where to_code is 0. */
        uint8_t code = e2m1_of_float(isinf(x[i]) ? copysignf(NK_E2M1_MAX, x[i]) : x[i] * to_code);
        codes[i / 2] |= (uint8_t)(i % 2 ? code << 4 : code);
    }
    return sf;
}

/* x[l, row, k .. k + 15] */
static void load_block(const nk_quantize_problem *p, int64_t l, int64_t row, int64_t k, float block[NK_SF_VEC])
{
    int64_t size = p->x_dtype == NK_F32 ? 4 : 2;
    const uint8_t *x = p->x + l * p->x_batch_stride + row * p->x_row_stride + k * size;
    for (int i = 0; i < NK_SF_VEC; i++)
        block[i] = load_float(x + i * size, p->x_dtype);
    if (!p->up) return;
    const uint8_t *up = p->up + l * p->up_batch_stride + row * p->up_row_stride + k * size;
    for (int i = 0; i < NK_SF_VEC; i++)
        block[i] = nk_silu(block[i]) * load_float(up + i * size, p->x_dtype);
}

/* Largest finite |x|: a NaN or an infinity poisons its own block only. */
static float finite_amax(const nk_quantize_problem *p)
{
    float amax = 0;
    for (int64_t l = 0; l < p->l; l++) {
        for (int64_t row = 0; row < p->rows; row++) {
            for (int64_t k = 0; k < p->k; k += NK_SF_VEC) {
                float block[NK_SF_VEC];
                load_block(p, l, row, k, block);
                for (int i = 0; i < NK_SF_VEC; i++) {
                    float v = fabsf(block[i]);
                    if (v > amax && v <= FLT_MAX) amax = v;
                }
            }
        }
    }
    return amax;
}

static float encode_scale(const nk_quantize_problem *p)
{
    float s = 1.0f / alpha_at(&p->global_scale, 0);
    if (!p->amax_out) return s > FLT_MAX ? FLT_MAX : s; /* keeps NaN */
    float amax = finite_amax(p), full = NK_E2M1_MAX * NK_E4M3_MAX;
    *p->amax_out = amax > 0 ? amax / full : 1.0f;
    return amax > 0 ? fminf(full / amax, FLT_MAX) : 1.0f;
}

/* First atom row of the expert that `row` belongs to and the row within it; false where it belongs to none. */
static bool locate(const nk_quantize_problem *p, int64_t row, int64_t *atom_row, int64_t *in_expert)
{
    *atom_row = 0;
    *in_expert = row;
    if (!p->offsets) return true;
    for (int64_t g = 0; g < p->groups; g++) {
        *in_expert = row - p->offsets[g];
        if (row >= p->offsets[g] && row < p->offsets[g + 1]) return true;
        *atom_row += nk_ceil_div(p->offsets[g + 1] - p->offsets[g], NK_SF_ATOM_ROWS);
    }
    return false;
}

static void quantize_row(const nk_quantize_problem *p, const encoder *e, int64_t l, int64_t row)
{
    uint8_t *codes = p->codes + l * p->codes_batch_stride + row * p->codes_row_stride;
    uint8_t *sf = p->sf + l * p->sf_batch_stride;
    int64_t cols = p->k / NK_SF_VEC, atom_row, in_expert;
    bool owned = locate(p, row, &atom_row, &in_expert);
    for (int64_t col = 0; col < cols; col++) {
        float block[NK_SF_VEC];
        load_block(p, l, row, col * NK_SF_VEC, block);
        uint8_t byte = encode_block(e, block, codes + col * (NK_SF_VEC / 2));
        if (p->layout == NK_SF_LINEAR)
            sf[row * p->sf_row_stride + col] = byte;
        else if (owned)
            sf[nk_sf_blocked_offset(atom_row * NK_SF_ATOM_ROWS + in_expert, col, cols)] = byte;
    }
}

void cpu_quantize(const nk_quantize_problem *p)
{
    encoder e = encoder_of(encode_scale(p));
    int64_t padded = p->sf_padded_rows * nk_sf_padded_cols(p->k / NK_SF_VEC);
    for (int64_t l = 0; l < p->l; l++) {
        if (p->layout == NK_SF_BLOCKED && padded) memset(p->sf + l * p->sf_batch_stride, 0, (size_t)padded);
        for (int64_t row = 0; row < p->rows; row++)
            quantize_row(p, &e, l, row);
    }
}
