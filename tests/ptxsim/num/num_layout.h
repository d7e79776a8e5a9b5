/* Where things lie: shared-memory swizzles and matrix descriptors, tensor-memory fragments, warp matrix loads.
 * Addresses are byte addresses in the CTA's shared memory; tensor memory is (lane 0..127, 32-bit column 0..511).
 * Sources: PTX ISA 9.1, sections 5.5.7 (swizzles), 9.7.15.5.1.2 (wgmma descriptors), 9.7.16.2 - 9.7.16.4, 9.7.16.8,
 * 9.7.16.9, 9.7.16.10 (tcgen05); where those show figures only, CUTLASS's CuTe layouts.
 */
#ifndef PTXSIM_NUM_LAYOUT_H
#define PTXSIM_NUM_LAYOUT_H

#include "num_mma.h"

/* ---- swizzles ------------------------------------------------------------------------------------------------ */

typedef enum { NUM_SWIZZLE_NONE, NUM_SWIZZLE_32B, NUM_SWIZZLE_64B, NUM_SWIZZLE_128B, NUM_SWIZZLES } num_swizzle;

/* Bytes of a row of the pattern: 16 (none), 32, 64, 128. */
int num_swizzle_span(num_swizzle swizzle);
/* Where the byte that would be at `address` is. A function of the absolute address, and its own inverse. */
uint32_t num_swizzled(num_swizzle swizzle, uint32_t address);

/* ---- shared-memory matrix descriptors ------------------------------------------------------------------------ */

typedef struct {
    uint32_t start;           /* byte address, 16-byte aligned, below 2^18 */
    uint32_t leading, stride; /* byte offsets LBO and SBO */
    int base_offset;
    num_swizzle swizzle;
} num_smem_matrix;

/* False where a field holds no legal value, or one that is not modelled: tcgen05's swizzle with atoms of 32 bytes, and
 * absolute addresses. */
bool num_wgmma_descriptor(uint64_t bits, num_smem_matrix *matrix);
bool num_tcgen05_descriptor(uint64_t bits, num_smem_matrix *matrix);

/* The byte of a matrix, its swizzle applied. K-major: `row` along M or N, `byte` along K. MN-major: `row` along K,
 * `byte` along M or N. For descriptors with a base offset of 0. A row's 16-byte pieces stay whole, so a 16-byte aligned
 * `byte` addresses 16 bytes. */
uint32_t num_smem_k_major(const num_smem_matrix *matrix, int row, int byte);
uint32_t num_smem_mn_major(const num_smem_matrix *matrix, int row, int byte);

/* ---- tcgen05 instruction descriptor -------------------------------------------------------------------------- */

typedef enum { NUM_KIND_F16, NUM_KIND_MXF4NVF4 } num_kind;

typedef struct {
    num_format a, b; /* D is f32 */
    int m, n;
    bool negate_a, negate_b, mn_major_a, mn_major_b;
} num_instruction;

/* NULL, or what is wrong: a reserved bit, an unknown type, a shape that the kind does not have for 1 or 2 CTAs, or what
 * is not modelled. */
const char *num_instruction_descriptor(num_kind kind, int cta_group, uint32_t bits, num_instruction *instruction);

/* ---- tensor memory ------------------------------------------------------------------------------------------- */

typedef struct {
    int lane, column; /* relative to the instruction's address */
} num_cell;

typedef enum { NUM_TMEM_32X32B, NUM_TMEM_16X64B, NUM_TMEM_16X128B, NUM_TMEM_16X256B, NUM_TMEM_16X32BX2 } num_tmem_shape;

/* 32-bit registers a thread has at .x1: 1, 1, 2, 4, 1. */
int num_tmem_registers(num_tmem_shape shape);
/* tcgen05.ld, .st: the cell of register `reg` of thread 0..31. `split`: 16x32bx2's immHalfSplitoff. */
num_cell num_tmem_cell(num_tmem_shape shape, int thread, int reg, int split);

typedef enum {
    NUM_CP_128X256B,
    NUM_CP_4X256B,
    NUM_CP_128X128B,
    NUM_CP_64X128B_02_13,
    NUM_CP_64X128B_01_23,
    NUM_CP_32X128B_WARPX4,
} num_cp_shape;

/* tcgen05.cp: rows of the shared-memory matrix (K-major), and 16-byte pieces of a row; piece p fills columns 4p ..
 * 4p+3. */
int num_cp_rows(num_cp_shape shape);
int num_cp_pieces(num_cp_shape shape);
/* The lanes that a row goes to; how many. */
int num_cp_lanes(num_cp_shape shape, int row, int lanes[4]);

/* The accumulator's cell of D's (row, column), as 32-bit columns, and in which CTA of the pair (0: the even one).
 * f16 accumulators take a column each. `m` and `n` of the instruction. Not for .ws. */
typedef struct {
    int cta, lane, column;
} num_pair_cell;
num_pair_cell num_accumulator_cell(int cta_group, int m, int n, int row, int column);

/* The four block scales of a row (scale_vec::4X), in the tensor memory of its CTA. The same 32 lanes are repeated in
 * each quarter. */
num_cell num_scale_factor(int row);

/* ---- ldmatrix, stmatrix -------------------------------------------------------------------------------------- */

/* m8n8.b16: element `half` (0: low bits) of register i comes from matrix i, whose row r's address lane 8*i + r gave.
 * The row and 16-bit column in that matrix; with .trans both change places. */
num_position num_ldmatrix_position(bool trans, int lane, int half);

#endif
