/* Facts of the NVFP4 format, for host and device: codes, scale bytes, the 128x4-blocked scale layout and its sizes. */
#ifndef NK_FORMAT_H
#define NK_FORMAT_H

#include <stdint.h>

#ifdef __CUDACC__
#define NK_HD __host__ __device__ static inline
#else
#define NK_HD static inline
#endif

#define NK_SF_VEC 16            /* elements that share one scale factor */
#define NK_E2M1_MAX 6.0f        /* largest code */
#define NK_E4M3_MAX 448.0f      /* largest scale factor */
#define NK_FOUR_SIX_MAX 1536.0f /* 6 * 256: where the largest magnitude becomes 4, 256 becomes 384 */
#define NK_E4M3_NAN 0x7F        /* a NaN scale factor, which poisons its outputs; bit 7 of a scale byte is ignored */
#define NK_SF_ATOM_ROWS 128     /* an atom of the blocked layout holds 128 rows x 4 scale factors in 512 bytes */
#define NK_SF_ATOM_COLS 4
#define NK_SF_ATOM_BYTES 512

NK_HD int64_t nk_ceil_div(int64_t x, int64_t y) { return x / y + (x % y != 0); }

/* Rows and columns that a blocked buffer has for rows x cols scale factors. */
NK_HD int64_t nk_sf_padded_rows(int64_t rows) { return nk_ceil_div(rows, NK_SF_ATOM_ROWS) * NK_SF_ATOM_ROWS; }
NK_HD int64_t nk_sf_padded_cols(int64_t cols) { return nk_ceil_div(cols, NK_SF_ATOM_COLS) * NK_SF_ATOM_COLS; }

/* Byte offset of scale factor (row, col) in a blocked buffer of `cols` scale factors a row. Atoms lie row-major. Inside
 * an atom lie 32 row quads of 16 bytes: for each of its four rows, 32 apart, four scale factors. cuBLAS calls this
 * 128x4 tiles, torch SWIZZLE_32_4_4. */
NK_HD int64_t nk_sf_blocked_offset(int64_t row, int64_t col, int64_t cols)
{
    uint64_t r = (uint64_t)row, c = (uint64_t)col, atoms = ((uint64_t)cols + NK_SF_ATOM_COLS - 1) / NK_SF_ATOM_COLS;
    uint64_t atom = r / NK_SF_ATOM_ROWS * atoms + c / NK_SF_ATOM_COLS;
    return (int64_t)(atom * NK_SF_ATOM_BYTES + r % 32 * 16 + r / 32 % 4 * 4 + c % 4);
}

#endif
