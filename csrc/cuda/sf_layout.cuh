/* Where scale factors lie, for device code: beside nk_format.h, the only place that works the blocked layout out.
 *
 * Three layouts of scale factor (row, col) of a matrix, one col for each 16 elements of K:
 *   linear           row after row
 *   blocked          whole atoms of 128 rows x 4 cols, 512 bytes each, row-major
 *   part of an atom  ROWS rows of an atom, and no others: what a kernel keeps of one that it needs half of
 *
 * An atom is 32 row quads of 16 bytes: rows r, r + 32, r + 64 and r + 96, four cols of each. A part of ROWS rows has
 * ROWS / 32 of the four. Such 32 rows are a quarter of an atom.
 *
 * Functions are templates of an integer type, in which they compute: 32 bits or 64, as the caller's addresses are. */
#ifndef NK_SF_LAYOUT_CUH
#define NK_SF_LAYOUT_CUH

#include "nk_format.h"
#include "nk_problem.h"

#define SF_ATOM_ROWS NK_SF_ATOM_ROWS
#define SF_ATOM_COLS NK_SF_ATOM_COLS
#define SF_ATOM_BYTES NK_SF_ATOM_BYTES
#define SF_ATOM_K (NK_SF_ATOM_COLS * NK_SF_VEC) /* elements */
#define SF_QUAD_BYTES 16                        /* of a row quad */
#define SF_QUARTER_ROWS 32

/* ---------------------------------------------------------------------------------------------------------------- */
/* Which atom                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Atoms side by side that hold K elements of a row. */
template <typename I> __device__ constexpr I sf_atoms_of_k(I k) { return (k + (SF_ATOM_K - 1)) / SF_ATOM_K; }

/* The atom that a row is in, and which row of it. */
template <typename I> __device__ constexpr I sf_atom_of_row(I row) { return row / SF_ATOM_ROWS; }
template <typename I> __device__ constexpr I sf_row_in_atom(I row) { return row % SF_ATOM_ROWS; }

/* The atom that a col is in, of those side by side. */
template <typename I> __device__ constexpr I sf_atom_of_col(I col) { return col / SF_ATOM_COLS; }

/* Atoms one below the other that hold so many rows. */
template <typename I> __device__ constexpr I sf_atoms_of_rows(I rows)
{
    return rows / SF_ATOM_ROWS + (rows % SF_ATOM_ROWS != 0);
}

/* From an atom to the one that is `atoms` further. */
template <typename I> __device__ constexpr I sf_bytes_of_atoms(I atoms) { return atoms * SF_ATOM_BYTES; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Where in it                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

/* In an atom, or in a part of one: row < ROWS, col < 4. */
template <int ROWS = SF_ATOM_ROWS, typename I> __device__ constexpr I sf_offset_in_atom(I row, I col)
{
    return row % SF_QUARTER_ROWS * (ROWS / SF_QUARTER_ROWS * SF_ATOM_COLS) + row / SF_QUARTER_ROWS * SF_ATOM_COLS + col;
}

/* In atoms, or parts of them, that lie side by side: in the one of this number. */
template <int ROWS = SF_ATOM_ROWS, typename I> __device__ constexpr I sf_offset_in_atoms(I row, I atom, I col)
{
    constexpr int QUAD_BYTES = ROWS / SF_QUARTER_ROWS * SF_ATOM_COLS;
    const I in_quad = row / SF_QUARTER_ROWS * SF_ATOM_COLS + col; /* added last: ptxas schedules by the order of sums */
    return atom * (SF_QUARTER_ROWS * QUAD_BYTES) + row % SF_QUARTER_ROWS * QUAD_BYTES + in_quad;
}

/* The first row of a quarter: what it adds to offsets of rows below 32. */
template <typename I> __device__ constexpr I sf_offset_of_quarter(I quarter) { return quarter * SF_ATOM_COLS; }

/* In atoms that lie side by side: of a row below 32, cols 2 `pair` and 2 `pair` + 1, which belong to 32 elements of K.
 */
template <typename I> __device__ constexpr I sf_offset_of_pair(I row, I pair)
{
    return row * SF_QUAD_BYTES + (pair >> 1) * SF_ATOM_BYTES + (pair & 1) * 2;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* In the order of the bytes                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A position is a row's number, from the first row of an atom on, in the order in which atoms hold rows: row quad by
 * row quad. */
__device__ constexpr int sf_row_of_position(int position)
{
    const int quad = position >> 2;
    return quad + (quad >> 5) * (SF_ATOM_ROWS - SF_QUARTER_ROWS) + SF_QUARTER_ROWS * (position & 3);
}

/* In an atom; in atoms one below the other, `next_atom` bytes apart. */
template <typename I> __device__ constexpr I sf_offset_of_position(I position) { return position * SF_ATOM_COLS; }
__device__ constexpr uint32_t sf_offset_of_position(uint32_t position, uint32_t next_atom)
{
    return sf_atom_of_row(position) * next_atom + sf_offset_of_position(sf_row_in_atom(position));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Of an operand, see also sf_at() of operand.cuh                                                                   */
/* ---------------------------------------------------------------------------------------------------------------- */

/* From an operand's scale factors of one row to those of the same row four cols further: they begin the next atom. */
__device__ inline int sf_next_four(const nk_operand &o)
{
    return o.sf_layout == NK_SF_BLOCKED ? SF_ATOM_BYTES : SF_ATOM_COLS;
}

#endif
