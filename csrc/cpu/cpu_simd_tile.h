/* The sums of a tile, in vectors, written with the operations that cpu_avx2.c, cpu_avx512.h and cpu_neon.h define.
 * Lanes are columns of B, and K goes on inside a lane. A strip of columns is decoded once and multiplied by all rows of
 * the tile.
 *
 * Codes: the 16 products of a block are summed in integers, four at a time in a 32-bit lane. A has 2 e2m1 as signed
 * bytes. B has 2 e2m1 + 12 as unsigned bytes, since the instructions multiply unsigned by signed; so each sum begins at
 * -12 times the sum of A. The sum, the product of scale factors, and their product are exact. Only the addition rounds,
 * in the order of K: the same bits as the scalar path.
 *
 * The elements of a block lie in the order in which nibbles are taken out: the even ones of codes 0..3 and 4..7, then
 * the odd ones. Lanes beyond the last column repeat it, and their sums are not stored. */
#ifndef NK_CPU_SIMD_TILE_H
#define NK_CPU_SIMD_TILE_H

#include "cpu_operand.h"

#define RAISE 12
#define CODES_K 512 /* elements of K at a time: a strip stays in the L1 of a core, the rows in its L2 */
#define VALUES_K 256
#define BLOCKS (CODES_K / NK_SF_VEC)

typedef struct code_rows {
    ALIGNED int8_t twice_e2m1[CPU_TILE_M][CODES_K];
    ALIGNED int32_t bias[CPU_TILE_M][BLOCKS];
    ALIGNED float quarter_sf[CPU_TILE_M][BLOCKS];
} code_rows;

typedef struct code_strip {
    ALIGNED uint8_t raised[BLOCKS][CODE_VECTORS][4][4 * LANES];
    ALIGNED float sf[BLOCKS][CODE_VECTORS][LANES];
} code_strip;

typedef struct value_rows {
    ALIGNED float value[CPU_TILE_M][VALUES_K];
} value_rows;

typedef struct value_strip {
    ALIGNED float value[VALUES_K][VALUE_VECTORS][LANES];
} value_strip;

/* ---------------------------------------------------------------------------------------------------------------- */
/* Scales                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Loads the scale factors of LANES columns as floats [block][lane], from block k0 / 16 on. Blocks are `pitch` floats
 * apart. */
CPU_TARGET static void load_column_sf(const nk_operand *o, int64_t l, int64_t n0, int64_t nb, int64_t k0, int64_t kb,
                                      int64_t k, float *to, int64_t pitch)
{
    ALIGNED uint8_t bytes[BLOCKS / 4][LANES][4];
    int64_t blocks = kb / NK_SF_VEC, step = o->sf_layout == NK_SF_BLOCKED ? NK_SF_ATOM_BYTES : NK_SF_ATOM_COLS;
    for (int64_t lane = 0; lane < LANES; lane++) {
        const uint8_t *from = operand_sf_at(o, l, n0 + cpu_min(lane, nb - 1), k0 / NK_SF_VEC, k / NK_SF_VEC);
        for (int64_t four = 0; four < blocks / 4; four++)
            memcpy(bytes[four][lane], from + four * step, 4);
        if (blocks % 4) memcpy(bytes[blocks / 4][lane], from + blocks / 4 * step, (size_t)(blocks % 4));
    }
    for (int64_t block = 0; block < blocks; block += 4) {
        vi four = vi_load(bytes[block / 4]);
        for (int j = 0; j < 4; j++)
            vf_store(to + (block + j) * pitch, vf_of_e4m3(vi_and(vi_srl(four, 8 * j), vi_set(0x7F))));
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Codes                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

CPU_TARGET static void load_code_rows(const cpu_tile_gemm *p, int64_t k0, int64_t kb, code_rows *rows)
{
    uint8_t sf[BLOCKS];
    int64_t blocks = kb / NK_SF_VEC;
    memset(sf, 0, sizeof sf);
    for (int64_t r = 0; r < p->mb; r++) {
        const uint8_t *codes = operand_row(p->a, p->l, cpu_row_of_a(p, r)) + k0 / 2;
        for (int64_t block = 0; block < blocks; block += 4) {
            int8_t *to = &rows->twice_e2m1[r][block * NK_SF_VEC];
            decode_four_blocks(codes + block * 8, blocks - block, to, &rows->bias[r][block]);
        }
        gather_sf(p->a, p->l, cpu_row_of_a(p, r), k0 / NK_SF_VEC, blocks, p->k / NK_SF_VEC, sf);
        for (int64_t block = 0; block < blocks; block += LANES) {
            vf scale = vf_of_e4m3(vi_and(vi_of_bytes(sf + block), vi_set(0x7F)));
            vf_store(&rows->quarter_sf[r][block], vf_mul(scale, vf_set(0.25f)));
        }
    }
}

/* Loads the next LANES words (4 bytes) of LANES rows. Vector j has word j of all rows. Only `words` words exist. */
OPERATION void load_columns(const uint8_t *const row[LANES], int64_t byte, int64_t words, vi column[LANES])
{
    UNROLL for (int i = 0; i < LANES; i++)
    {
        column[i] = words >= LANES ? vi_load(row[i] + byte) : vi_load_some(row[i] + byte, words);
    }
    vi_transpose(column);
}

OPERATION void find_columns(const cpu_tile_gemm *p, int64_t n0, int64_t byte, const uint8_t *row[LANES])
{
    for (int64_t i = 0; i < LANES; i++)
        row[i] = operand_row(p->b, p->l, n0 + cpu_min(i, p->n0 + p->nb - 1 - n0)) + byte;
}

CPU_TARGET static void load_code_columns(const cpu_tile_gemm *p, int64_t n0, int64_t v, int64_t k0, int64_t kb,
                                         code_strip *strip)
{
    const uint8_t *row[LANES];
    find_columns(p, n0, k0 / 2, row);
    load_column_sf(p->b, p->l, n0, p->n0 + p->nb - n0, k0, kb, p->k, strip->sf[0][v], CODE_VECTORS * LANES);
    for (int64_t byte = 0; byte < kb / 2; byte += 4 * LANES) {
        vi column[LANES];
        for (int i = 0; i < LANES; i++)
            PREFETCH(row[i] + byte + CODES_K / 2);
        load_columns(row, byte, (kb / 2 - byte) / 4, column);
        UNROLL for (int i = 0; i < LANES / 2; i++)
        {
            uint8_t (*to)[4 * LANES] = strip->raised[byte / 8 + i][v];
            vi_store(to[0], raised_of_nibbles(column[2 * i]));
            vi_store(to[1], raised_of_nibbles(column[2 * i + 1]));
            vi_store(to[2], raised_of_nibbles(vi_srl(column[2 * i], 4)));
            vi_store(to[3], raised_of_nibbles(vi_srl(column[2 * i + 1], 4)));
        }
    }
}

OPERATION void multiply_codes(const code_rows *a, int64_t row, int rows, const code_strip *b, int64_t blocks,
                              float (*acc)[CPU_TILE_N])
{
    vf sum[CODE_ROWS][CODE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int v = 0; v < CODE_VECTORS; v++) sum[r][v] = vf_load(&acc[r][v * LANES]);
    }
    for (int64_t block = 0; block < blocks; block++) {
        vi codes[CODE_VECTORS][4];
        UNROLL for (int v = 0; v < CODE_VECTORS; v++)
        {
            UNROLL for (int q = 0; q < 4; q++) codes[v][q] = vi_load(b->raised[block][v][q]);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            vi bias = vi_set(a->bias[row + r][block]);
            vf sfa = vf_set(a->quarter_sf[row + r][block]);
            const int8_t *elements = &a->twice_e2m1[row + r][block * NK_SF_VEC];
            UNROLL for (int v = 0; v < CODE_VECTORS; v++)
            {
                vf dot = vf_of_int(dot_block(bias, codes[v], elements));
                sum[r][v] = vf_fma(dot, vf_mul(sfa, vf_load(b->sf[block][v])), sum[r][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int v = 0; v < CODE_VECTORS; v++) vf_store(&acc[r][v * LANES], sum[r][v]);
    }
}

CPU_TARGET static void multiply_code_strip(const code_rows *a, int64_t mb, const code_strip *b, int64_t blocks,
                                           int64_t column, cpu_tile acc)
{
    int64_t row = 0;
    for (; row + CODE_ROWS <= mb; row += CODE_ROWS)
        multiply_codes(a, row, CODE_ROWS, b, blocks, (float (*)[CPU_TILE_N]) & acc[row][column]);
    for (; row + 2 <= mb; row += 2)
        multiply_codes(a, row, 2, b, blocks, (float (*)[CPU_TILE_N]) & acc[row][column]);
    if (row < mb) multiply_codes(a, row, 1, b, blocks, (float (*)[CPU_TILE_N]) & acc[row][column]);
}

CPU_TARGET static void gemm_tile_codes(const cpu_tile_gemm *p, cpu_tile acc)
{
    code_rows rows;
    code_strip strip;
    for (int64_t k0 = 0; k0 < p->k; k0 += CODES_K) {
        int64_t kb = cpu_min(CODES_K, p->k - k0);
        load_code_rows(p, k0, kb, &rows);
        for (int64_t column = 0; column < p->nb; column += CODE_VECTORS * LANES) {
            for (int64_t v = 0; v < CODE_VECTORS; v++) {
                int64_t n0 = cpu_min(column + v * LANES, p->nb - 1);
                load_code_columns(p, p->n0 + n0, v, k0, kb, &strip);
            }
            multiply_code_strip(&rows, p->mb, &strip, kb / NK_SF_VEC, column, acc);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A of floats: fp32 values                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

CPU_TARGET static void load_value_rows(const cpu_tile_gemm *p, int64_t k0, int64_t kb, value_rows *rows)
{
    for (int64_t r = 0; r < p->mb; r++) {
        const uint8_t *from = operand_row(p->a, p->l, cpu_row_of_a(p, r)) + k0 * p->a->k_stride;
        load_strided(from, p->a->dtype, p->a->k_stride, kb, rows->value[r]);
    }
}

/* Decodes NVFP4 columns, a word of 8 codes at a time. */
CPU_TARGET static void decode_value_columns(const cpu_tile_gemm *p, int64_t n0, int64_t v, int64_t k0, int64_t kb,
                                            value_strip *strip)
{
    const uint8_t *row[LANES];
    ALIGNED float sf[VALUES_K / NK_SF_VEC + 3][LANES];
    find_columns(p, n0, k0 / 2, row);
    load_column_sf(p->b, p->l, n0, p->n0 + p->nb - n0, k0, kb, p->k, sf[0], LANES);
    for (int64_t byte = 0; byte < kb / 2; byte += 4 * LANES) {
        vi column[LANES];
        int64_t words = cpu_min(LANES, (kb / 2 - byte) / 4);
        for (int i = 0; i < LANES; i++)
            PREFETCH(row[i] + byte + VALUES_K / 2);
        load_columns(row, byte, words, column);
        for (int64_t word = 0; word < words; word++) {
            int64_t k_first = 2 * byte + 8 * word;
            vf scale = vf_load(sf[k_first / NK_SF_VEC]);
            for (int i = 0; i < 8; i++)
                vf_store(strip->value[k_first + i][v], vf_mul(vf_of_e2m1(vi_srl(column[word], 4 * i)), scale));
        }
    }
}

/* Copies fp32 columns that are contiguous along K. */
CPU_TARGET static void copy_value_columns(const cpu_tile_gemm *p, int64_t n0, int64_t v, int64_t k0, int64_t kb,
                                          value_strip *strip)
{
    const uint8_t *row[LANES];
    find_columns(p, n0, k0 * 4, row);
    for (int64_t k_first = 0; k_first < kb; k_first += LANES) {
        vi column[LANES];
        int64_t words = cpu_min(LANES, kb - k_first);
        load_columns(row, 4 * k_first, words, column);
        for (int64_t word = 0; word < words; word++)
            vf_store(strip->value[k_first + word][v], vf_of_bits(column[word]));
    }
}

/* Converts 16-bit columns that are contiguous along K: a word has two elements of a column. An odd one is the last. */
CPU_TARGET static void convert_value_columns(const cpu_tile_gemm *p, int64_t n0, int64_t v, int64_t k0, int64_t kb,
                                             value_strip *strip)
{
    const uint8_t *row[LANES];
    find_columns(p, n0, k0 * 2, row);
    for (int64_t lane = 0; kb % 2 && lane < LANES; lane++)
        strip->value[kb - 1][v][lane] = cpu_load_float(row[lane] + 2 * (kb - 1), p->b->dtype);
    for (int64_t byte = 0; byte < kb / 2 * 4; byte += 4 * LANES) {
        vi column[LANES];
        int64_t words = cpu_min(LANES, (kb / 2 * 4 - byte) / 4);
        load_columns(row, byte, words, column);
        for (int64_t word = 0; word < words; word++) {
            float (*to)[VALUE_VECTORS][LANES] = &strip->value[byte / 2 + 2 * word];
            vi upper = vi_srl(column[word], 16);
            bool half = p->b->dtype == NK_F16;
            vf_store(to[0][v], half ? vf_of_half(column[word]) : vf_of_bits(vi_sll(column[word], 16)));
            vf_store(to[1][v], half ? vf_of_half(upper) : vf_of_bits(vi_sll(upper, 16)));
        }
    }
}

CPU_TARGET static void load_value_columns(const cpu_tile_gemm *p, int64_t n0, int64_t v, int64_t k0, int64_t kb,
                                          value_strip *strip)
{
    if (p->b->dtype == NK_E2M1X2) {
        decode_value_columns(p, n0, v, k0, kb, strip);
    } else if (p->b->dtype == NK_F32) {
        copy_value_columns(p, n0, v, k0, kb, strip);
    } else if (p->b->k_stride == 2) {
        convert_value_columns(p, n0, v, k0, kb, strip);
    } else { /* contiguous along N */
        int64_t count = cpu_min(LANES, p->n0 + p->nb - n0);
        for (int64_t i = 0; i < kb; i++) {
            const uint8_t *from = operand_row(p->b, p->l, n0) + (k0 + i) * p->b->k_stride;
            load_strided(from, p->b->dtype, p->b->row_stride, count, strip->value[i][v]);
        }
    }
}

OPERATION void multiply_values(const value_rows *a, int64_t row, int rows, const value_strip *b, int64_t kb,
                               float (*acc)[CPU_TILE_N])
{
    vf sum[VALUE_ROWS][VALUE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int v = 0; v < VALUE_VECTORS; v++) sum[r][v] = vf_load(&acc[r][v * LANES]);
    }
    for (int64_t i = 0; i < kb; i++) {
        UNROLL for (int r = 0; r < rows; r++)
        {
            vf element = vf_set(a->value[row + r][i]);
            UNROLL for (int v = 0; v < VALUE_VECTORS; v++)
            {
                sum[r][v] = vf_fma(element, vf_load(b->value[i][v]), sum[r][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int v = 0; v < VALUE_VECTORS; v++) vf_store(&acc[r][v * LANES], sum[r][v]);
    }
}

CPU_TARGET static void multiply_value_strip(const value_rows *a, int64_t mb, const value_strip *b, int64_t kb,
                                            int64_t column, cpu_tile acc)
{
    int64_t row = 0;
    for (; row + VALUE_ROWS <= mb; row += VALUE_ROWS)
        multiply_values(a, row, VALUE_ROWS, b, kb, (float (*)[CPU_TILE_N]) & acc[row][column]);
    for (; row + 2 <= mb; row += 2)
        multiply_values(a, row, 2, b, kb, (float (*)[CPU_TILE_N]) & acc[row][column]);
    if (row < mb) multiply_values(a, row, 1, b, kb, (float (*)[CPU_TILE_N]) & acc[row][column]);
}

CPU_TARGET static void gemm_tile_values(const cpu_tile_gemm *p, cpu_tile acc)
{
    value_rows rows;
    value_strip strip;
    for (int64_t k0 = 0; k0 < p->k; k0 += VALUES_K) {
        int64_t kb = cpu_min(VALUES_K, p->k - k0);
        load_value_rows(p, k0, kb, &rows);
        for (int64_t column = 0; column < p->nb; column += VALUE_VECTORS * LANES) {
            for (int64_t v = 0; v < VALUE_VECTORS; v++) {
                int64_t n0 = cpu_min(column + v * LANES, p->nb - 1);
                load_value_columns(p, p->n0 + n0, v, k0, kb, &strip);
            }
            multiply_value_strip(&rows, p->mb, &strip, kb, column, acc);
        }
    }
}

CPU_TARGET static void sum_gemm_tile(const cpu_tile_gemm *p, cpu_tile acc)
{
    for (int64_t i = 0; i < p->mb; i++)
        memset(acc[i], 0, sizeof acc[i]);
    bool codes = p->a->dtype == NK_E2M1X2 && p->b->dtype == NK_E2M1X2;
    (codes ? gemm_tile_codes : gemm_tile_values)(p, acc);
}

#endif
