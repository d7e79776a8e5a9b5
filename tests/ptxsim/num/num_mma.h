/* Matrix multiply-accumulate: how tensor cores add, and which thread holds which element.
 *
 * Model of one step, D = C + sum of k products: the significands of the products (not normalised: [0, 4)) and of C are
 * aligned to the largest exponent among those that are not zero, truncated towards zero after `fraction_bits` binary
 * places, added exactly, and the sum is rounded towards zero to f32. An instruction with more products than a step
 * takes them in steps of ascending k, each adding to the last one's result. Overflow gives an infinity; any NaN,
 * infinity times zero, or infinities of both signs give 0x7FFFFFFF. A sum of zero is +0. The smallest common exponent
 * (min_exponent) shows only below 2^-126 and rests on one source. So do mma.sync, wgmma and tcgen05.
 *
 * An H200 confirms row 90's step_16 and fraction_bits to the bit; its e4m3 and e5m2 (wgmma) and smallest exponents rest
 * on what is published, as do the other rows.
 * Sources: Fasi, Higham, Mikaitis, Pranesh 2021 (V100, T4, A100); Khattak, Mikaitis 2025, arXiv:2512.07004 (V100, A100,
 * L40S, H100, H200, B200; their `neab` is fraction_bits - 23); Xie et al. 2025, arXiv:2511.10909 (the same machines and
 * block-scaled FP4). Fragments: PTX ISA 9.1, 9.7.14.5 and 9.7.15.5.1.
 */
#ifndef PTXSIM_NUM_MMA_H
#define PTXSIM_NUM_MMA_H

#include "num_float.h"

typedef struct {
    int arch;               /* 80, 89, 90, 100, 120, 121 */
    int step_16;            /* products a step: f16 and bf16 */
    int step_8;             /* e4m3, e5m2 */
    int fraction_bits;      /* kept after the binary point when aligning */
    int fraction_bits_8;    /* the same for e4m3 and e5m2 operands */
    int result_bits_8;      /* fraction bits of an f32 result of e4m3 and e5m2 operands */
    int min_exponent;       /* the common exponent is at least this */
    int fraction_bits_nvf4; /* block-scaled e2m1: one step of k = 64; 0: no such instruction */
} num_mma_model;

/* The row for a compute capability (90, 100 ...); NULL if there is none. */
const num_mma_model *num_mma_model_of(int arch);

enum { NUM_MMA_MAX_M = 256, NUM_MMA_MAX_K = 64 };

/* D[m][n] = sum over k of A[m][k] B[n][k] + D[m][n]. A code an uint32_t (f16, bf16, e5m2,
 * e4m3), D f32. m <= 256, n % 8 == 0, k <= 64. The machine applies an instruction's signs and "D = A B" (zero D
 * first) itself. */
void num_mma(const num_mma_model *model, num_format a_format, num_format b_format, int m, int n, int k,
             const uint32_t *a, const uint32_t *b, uint32_t *d);

/* kind::mxf4nvf4 with one scale per 16 elements, k = 64: D[m][n] += sum over the four blocks j of
 * sfa[m][j] sfb[n][j] * (sum of A[m][16j..] B[n][16j..]). A block's sum of products is exact; its scale's exponents
 * align it, its magnitude does not, and a block of products that cancel still does. a, b: an e2m1 code a byte, [m][64]
 * and [n][64]; sfa, sfb: [m][4] and [n][4] ue4m3 (the sign bit is ignored). A NaN scale gives NaN;
 * with zeros_win not where its block's products add to zero, the other answer that hardware may give.
 * Published for mma.sync on sm_120 and for tcgen05; only hardware can settle it here. */
void num_mma_nvf4(const num_mma_model *model, bool zeros_win, int m, int n, const uint8_t *a, const uint8_t *sfa,
                  const uint8_t *b, const uint8_t *sfb, uint32_t *d);

/* ---- mma.sync ------------------------------------------------------------------------------------------------ */

typedef struct {
    int row, col;
} num_position;

/* Element i of a lane's fragment of m16n8k*, elements of `bits` 16 or 8; 32/bits elements a register, element 0
 * in the low bits. A is [16][k], B [k][8] (row is k), C and D [16][8]. */
num_position num_mma_a_position(int bits, int lane, int i);
num_position num_mma_b_position(int bits, int lane, int i);
num_position num_mma_d_position(int lane, int i);

/* A warp's operands: registers of 32 lanes. */
typedef struct {
    const uint32_t *a[4], *b[2], *c[4];
} num_mma_registers;

/* mma.sync.aligned.m16n8k*.row.col of a warp, f16 or bf16, k 8 or 16: k/4 registers of a, k/8 of b, 4 of c and d.
 * d may be c. */
void num_mma_sync(const num_mma_model *model, num_format format, int k, const num_mma_registers *in,
                  uint32_t *const *d);

/* ---- wgmma --------------------------------------------------------------------------------------------------- */

/* Accumulator element i (0 .. n/2-1) of thread 0..127 of a warpgroup: of D [64][n]. */
num_position num_wgmma_d_position(int thread, int i);
/* Element i of the A fragment that thread 0..127 holds: of A [64][k], elements of `bits` 16 or 8. */
num_position num_wgmma_a_position(int bits, int thread, int i);

#endif
