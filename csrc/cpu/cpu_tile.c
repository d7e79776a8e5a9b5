/* Both operands NVFP4: a block of 16 products is summed in integers (2 e2m1 is a small integer), scaled by
 * sfa * sfb / 4 and added in fp32; only that last addition rounds.
 * Otherwise: every value of either operand is exact in fp32, and so is every product; the additions round. */
#include "cpu_tile.h"

#include "cpu_backend.h"
#include "cpu_operand.h"

#define BLOCKS (CPU_TILE_K / NK_SF_VEC)

typedef struct code_panel {
    int16_t twice_e2m1[CPU_TILE_M][CPU_TILE_K];
    float sf[CPU_TILE_M][BLOCKS];
} code_panel;

typedef float value_panel[CPU_TILE_M][CPU_TILE_K];

_Static_assert(CPU_TILE_M == CPU_TILE_N, "one panel type serves both operands");

static void decode_codes(const uint8_t *packed, int64_t count, int16_t *twice_e2m1)
{
    for (int64_t i = 0; i < count / 2; i++) {
        twice_e2m1[2 * i] = TWICE_E2M1[packed[i] & 15];
        twice_e2m1[2 * i + 1] = TWICE_E2M1[packed[i] >> 4];
    }
}

static void load_codes(const nk_operand *o, int64_t l, int64_t row0, int64_t rows, int64_t k0, int64_t kb, int64_t k,
                       code_panel *panel)
{
    for (int64_t r = 0; r < rows; r++) {
        decode_codes(operand_row(o, l, row0 + r) + k0 / 2, kb, panel->twice_e2m1[r]);
        for (int64_t block = 0; block < kb / NK_SF_VEC; block++) {
            panel->sf[r][block] = e4m3_to_float(operand_sf(o, l, row0 + r, k0 / NK_SF_VEC + block, k / NK_SF_VEC));
        }
    }
}

static void load_values(const nk_operand *o, int64_t l, int64_t row0, int64_t rows, int64_t k0, int64_t kb, int64_t k,
                        value_panel panel)
{
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *row = operand_row(o, l, row0 + r);
        if (o->dtype != NK_E2M1X2) {
            for (int64_t i = 0; i < kb; i++)
                panel[r][i] = load_float(row + (k0 + i) * o->k_stride, o->dtype);
            continue;
        }
        int16_t twice_e2m1[CPU_TILE_K];
        decode_codes(row + k0 / 2, kb, twice_e2m1);
        for (int64_t i = 0; i < kb; i++) {
            uint8_t sf = operand_sf(o, l, row0 + r, (k0 + i) / NK_SF_VEC, k / NK_SF_VEC);
            panel[r][i] = (float)twice_e2m1[i] * (0.5f * e4m3_to_float(sf));
        }
    }
}

static float dot_codes(const int16_t *a, const float *sfa, const int16_t *b, const float *sfb, int64_t kb, float sum)
{
    for (int64_t block = 0; block < kb / NK_SF_VEC; block++) {
        int32_t dot = 0;
        for (int i = 0; i < NK_SF_VEC; i++)
            dot += a[block * NK_SF_VEC + i] * b[block * NK_SF_VEC + i];
        sum += (float)dot * (0.25f * sfa[block] * sfb[block]);
    }
    return sum;
}

static float dot_values(const float *a, const float *b, int64_t kb, float sum)
{
    float lanes[NK_SF_VEC] = {0}; /* independent sums, so that compilers can use vectors */
    for (int64_t i = 0; i < kb; i += NK_SF_VEC) {
        for (int lane = 0; lane < NK_SF_VEC; lane++)
            lanes[lane] += a[i + lane] * b[i + lane];
    }
    for (int lane = 0; lane < NK_SF_VEC; lane++)
        sum += lanes[lane];
    return sum;
}

static void accumulate_codes(const nk_operand *a, const nk_operand *b, int64_t l, int64_t m0, int64_t mb, int64_t n0,
                             int64_t nb, int64_t k, cpu_tile acc)
{
    code_panel pa, pb;
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t kb = cpu_min(CPU_TILE_K, k - k0);
        load_codes(a, l, m0, mb, k0, kb, k, &pa);
        load_codes(b, l, n0, nb, k0, kb, k, &pb);
        for (int64_t i = 0; i < mb; i++) {
            for (int64_t j = 0; j < nb; j++) {
                acc[i][j] = dot_codes(pa.twice_e2m1[i], pa.sf[i], pb.twice_e2m1[j], pb.sf[j], kb, acc[i][j]);
            }
        }
    }
}

static void accumulate_values(const nk_operand *a, const nk_operand *b, int64_t l, int64_t m0, int64_t mb, int64_t n0,
                              int64_t nb, int64_t k, cpu_tile acc)
{
    value_panel pa, pb;
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t kb = cpu_min(CPU_TILE_K, k - k0);
        load_values(a, l, m0, mb, k0, kb, k, pa);
        load_values(b, l, n0, nb, k0, kb, k, pb);
        for (int64_t i = 0; i < mb; i++) {
            for (int64_t j = 0; j < nb; j++)
                acc[i][j] = dot_values(pa[i], pb[j], kb, acc[i][j]);
        }
    }
}

void cpu_accumulate(const nk_operand *a, const nk_operand *b, int64_t l, int64_t m0, int64_t mb, int64_t n0, int64_t nb,
                    int64_t k, cpu_tile acc)
{
    for (int64_t i = 0; i < mb; i++)
        memset(acc[i], 0, (size_t)nb * sizeof acc[i][0]);
    bool codes = a->dtype == NK_E2M1X2 && b->dtype == NK_E2M1X2;
    (codes ? accumulate_codes : accumulate_values)(a, b, l, m0, mb, n0, nb, k, acc);
}
