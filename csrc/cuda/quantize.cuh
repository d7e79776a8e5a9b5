/* Codes and scale bytes of x, or of silu(x) * up in the gated kernels: the formula is in quantize_encode.cuh, that of
 * the recipe four_six in quantize_four_six.cuh.
 *
 * Launches, in this order:
 * - ROW_quantize_amax_*, with "amax": each CTA writes its largest finite magnitude to the workspace.
 * - ROW_quantize_experts, with experts: writes which rows of x every atom row of the scale factors holds.
 * - ROW_quantize_*: codes and scale bytes. Each CTA finds the largest of all magnitudes by itself, while its first
 *   blocks arrive. With "token" ROW_quantize_token_* in its place: quantize_token.cuh.
 *
 * Work: rows have positions, the order of the scale factors: padding has positions, so that it is written.
 * With experts the rows outside all of them come last: they have positions, and get codes only. A tile is columns of
 * blocks x positions. The threads of a warp lie side by side along K if a row has 32 blocks. A thread goes down its
 * column, and has one or two blocks under way while it encodes another.
 *
 * Roles: all threads alike.
 *
 * Barriers, all of the CTA (__syncthreads): warps that found maxima -> all warps, which take the largest;
 *   warps that summed atoms of experts -> all warps, which read the sums, and back before of_warp is written again.
 * Nothing is atomic: a maximum is the same in any order.
 *
 * Memory: a launch reads x once, a thread 32 or 64 bytes at a time, and writes codes 8 bytes at a time. Shared memory:
 * a number for each warp. */
#ifndef NK_QUANTIZE_CUH
#define NK_QUANTIZE_CUH

#include "expert.cuh"
#include "quantize_recipes.cuh"
#include "sf_layout.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The largest finite magnitude                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t finite_or_zero(uint32_t magnitude, uint32_t infinity)
{
    return magnitude < infinity ? magnitude : 0;
}

/* The magnitude of a word, or of both halves of a pair; 0 for those that are not finite. */
template <nk_dtype DTYPE> __device__ inline uint32_t finite_magnitudes(uint32_t word)
{
    if (DTYPE == NK_F32) return finite_or_zero(word & 0x7FFFFFFF, INFINITY_BITS);
    const uint32_t infinity = DTYPE == NK_F16 ? 0x7C00 : 0x7F80;
    return finite_or_zero(word & 0x7FFF, infinity) | finite_or_zero(word >> 16 & 0x7FFF, infinity) << 16;
}

/* The larger of `amax` and the finite elements in 16 bytes; each half of a pair by itself. */
template <nk_dtype DTYPE> __device__ inline uint32_t finite_max(uint32_t amax, const uint32_t words[4])
{
    /* Added to infinity or NaN it reaches the sign bit. */
    const uint32_t ulp_of_exponent = DTYPE == NK_F32 ? 0x00800000 : DTYPE == NK_F16 ? 0x04000400 : 0x00800080;
    const uint32_t signs = DTYPE == NK_F32 ? 0x80000000 : 0x80008000;
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        all = max_magnitudes<DTYPE>(all, words[i] & ~signs);
    if (all + ulp_of_exponent & signs) {
        all = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            all = max_magnitudes<DTYPE>(all, finite_magnitudes<DTYPE>(words[i]));
    }
    return max_magnitudes<DTYPE>(amax, all);
}

/* The same for silu(x) * up; `amax` is the bits of a float. |x| * |up| is never smaller, so elements are looked at only
 * if that is larger than `amax`. */
template <nk_dtype DTYPE> __device__ inline uint32_t gated_max(uint32_t amax, const uint32_t x[4], const uint32_t up[4])
{
    constexpr int COUNT = DTYPE == NK_F32 ? 4 : 8;
    float values[COUNT], factors[COUNT], bound = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        values[i] = DTYPE == NK_F32 ? __uint_as_float(x[i % 4]) : pair_half<DTYPE>(x[i / 2], i & 1);
        factors[i] = DTYPE == NK_F32 ? __uint_as_float(up[i % 4]) : pair_half<DTYPE>(up[i / 2], i & 1);
        bound = fmaxf(bound, fabsf(__fmul_rn(values[i], factors[i]))); /* passes over NaN, as the maximum does */
    }
    if (bound <= __uint_as_float(amax)) return amax;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        amax = max(amax, finite_magnitudes<NK_F32>(__float_as_uint(__fmul_rn(nk_silu(values[i]), factors[i]))));
    return amax;
}

template <nk_dtype DTYPE, bool WIDE, bool GATED>
__device__ inline void amax_of(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    constexpr int VECTORS = GATED ? CUDA_AMAX_VECTORS / 2 : CUDA_AMAX_VECTORS;
    const cuda_amax_rows &r = q.amax_rows;
    const uint32_t first_row = cuda_divide(blockIdx.x, r.pieces);
    int64_t row = first_row, piece = blockIdx.x - first_row * r.pieces.value;
    uint32_t amax = 0; /* bits as elements have them; of a float if gated */
    while (row < r.all_rows) {
        const uint8_t *x = p.x, *up = p.up;
        if (r.all_rows > 1) {
            const int64_t l = r.l > 1 ? row / r.rows : 0, in_batch = row - l * r.rows;
            x += l * r.batch_stride + in_batch * r.row_stride;
            up += l * r.up_batch_stride + in_batch * r.up_row_stride;
        }
        const int64_t first = piece * r.piece_bytes + threadIdx.x * 16;
        uint4 of_x[VECTORS], of_up[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int64_t offset = first + i * cuda_amax_piece(1);
            const bool there = i < r.vectors && offset < r.bytes;
            of_x[i] = of_up[i] = make_uint4(0, 0, 0, 0);
            if (there) of_x[i] = load_vector<DTYPE, WIDE>(x + offset);
            if (GATED && there) of_up[i] = load_vector<DTYPE, WIDE>(up + offset);
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (i >= r.vectors) break;
            const uint32_t words[4] = {of_x[i].x, of_x[i].y, of_x[i].z, of_x[i].w};
            const uint32_t ups[4] = {of_up[i].x, of_up[i].y, of_up[i].z, of_up[i].w};
            amax = GATED ? gated_max<DTYPE>(amax, words, ups) : finite_max<DTYPE>(amax, words);
        }
        if (GATED) amax = __reduce_max_sync(~0u, amax); /* so that every lane can leave out more */
        row += r.step_rows;
        piece += r.step_pieces;
        if (piece >= r.pieces.value) {
            piece -= r.pieces.value;
            row++;
        }
    }
    if (!GATED && DTYPE != NK_F32)
        amax = max(__float_as_uint(pair_half<DTYPE>(amax, 0)), __float_as_uint(pair_half<DTYPE>(amax, 1)));
    const uint32_t all = max_of_cta<CUDA_AMAX_THREADS>(amax);
    if (threadIdx.x == 0) q.maxima[blockIdx.x] = all;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Experts: which rows of x every atom row of the scale factors holds                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The sum over the threads before this one, and over all of them. */
__device__ inline int64_t exclusive_sum(int64_t mine, int64_t *of_warp, int64_t *total)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t sum = scan_sum(mine);
    int64_t before = 0;
    __syncthreads(); /* of_warp may still be read */
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    *total = 0;
    for (int w = 0; w < CUDA_EXPERT_THREADS / 32; w++) {
        if (w == warp) before = *total;
        *total += of_warp[w];
    }
    return before + sum - mine;
}

/* One CTA. A warp writes the atom rows of its 32 experts, one expert after the other. */
__device__ inline void find_atom_rows(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    __shared__ int64_t of_warp[CUDA_EXPERT_THREADS / 32];
    int64_t used = 0;
    for (int64_t chunk = 0; chunk < p.groups; chunk += CUDA_EXPERT_THREADS) {
        const int64_t g = chunk + threadIdx.x;
        const int32_t first = g < p.groups ? clamped_offset(p.offsets, g, p.rows) : 0;
        const int32_t rows = g < p.groups ? max(clamped_offset(p.offsets, g + 1, p.rows) - first, 0) : 0;
        int64_t total;
        const int64_t start = used + exclusive_sum(nk_ceil_div(rows, SF_ATOM_ROWS), of_warp, &total);
        for (int i = 0; i < 32; i++) {
            const int32_t their_first = __shfl_sync(~0u, first, i), their_rows = __shfl_sync(~0u, rows, i);
            const int64_t to = __shfl_sync(~0u, start, i);
            for (int64_t a = threadIdx.x % 32; a * SF_ATOM_ROWS < their_rows && to + a < q.atoms; a += 32) {
                const int32_t before = (int32_t)(a * SF_ATOM_ROWS);
                q.experts[to + a] = {their_first + before, min(their_rows - before, SF_ATOM_ROWS)};
            }
        }
        used += total;
    }
    for (int64_t a = used + threadIdx.x; a < q.atoms; a += CUDA_EXPERT_THREADS)
        q.experts[a] = {0, 0};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Codes and scale factors                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The rows of one tile. */
typedef struct tile_rows {
    int64_t first;            /* row of x */
    int count;                /* rows of x from there on .. */
    int hole_begin, hole_end; /* .. without these, counted from the first: another tile takes them */
    int scales;               /* rows that have scale factors */
} tile_rows;

__device__ inline int clamp_rows(int64_t rows, int most) { return (int)max(min(rows, (int64_t)most), (int64_t)0); }

/* `position`: of the tile's first row. A tile of blocked scale factors lies in one atom row. */
__device__ inline tile_rows tile_rows_of(const nk_quantize_problem &p, const cuda_quantize_params &q, int64_t position)
{
    const int most = q.tile_rows;
    tile_rows r = {position, clamp_rows(p.rows - position, most), 0, 0, most};
    if (p.layout == NK_SF_LINEAR) r.scales = r.count;
    if (!p.offsets) return r;
    const int64_t atom = sf_atom_of_row(position);
    if (atom < q.atoms) {
        const cuda_atom_rows rows = q.experts[atom];
        const int in_atom = (int)sf_row_in_atom(position);
        r.first = (int64_t)rows.first + in_atom;
        r.count = clamp_rows(rows.count - in_atom, most);
    } else {
        r.first = position - q.atoms * SF_ATOM_ROWS;
        r.count = clamp_rows(p.rows - r.first, most);
        r.hole_begin = clamp_rows(clamped_offset(p.offsets, 0, p.rows) - r.first, most);
        r.hole_end = clamp_rows(clamped_offset(p.offsets, p.groups, p.rows) - r.first, most);
        r.scales = 0;
    }
    return r;
}

/* Where a thread is in its column: it takes rows that are `apart`. */
typedef struct column_cursor {
    int64_t position, col; /* position: of the tile's first row */
    uint32_t l;
    tile_rows rows;
    int row, apart, end;
    const uint8_t *x, *up; /* of the next row to fetch */
    int64_t x_step, up_step;
    uint8_t *codes, *sf; /* of the next row to write; blocked: sf of the atom */
    int64_t codes_step, sf_step;
    int sf_row; /* blocked: which row of the atom the tile's first is */
} column_cursor;

/* What to read. find_outputs() says where to write, once the first reads are under way. */
template <nk_dtype DTYPE>
__device__ inline column_cursor column_of(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    const cuda_tiles &t = q.tiles;
    const uint32_t count = (uint32_t)t.count;
    /* From the end after an amax launch, which leaves the end of x in L2. */
    const uint32_t tile = p.amax_out ? count - 1 - blockIdx.x : blockIdx.x;
    const uint32_t row_tile = cuda_divide(tile, t.col_tiles);
    column_cursor s = {};
    if (blockIdx.x >= count) return s; /* only a global scale is to be written */
    s.l = p.l > 1 ? cuda_divide(row_tile, t.row_tiles) : 0;
    s.apart = CUDA_TILE_THREADS >> t.column_bits;
    s.row = threadIdx.x >> t.column_bits;
    s.position = (int64_t)(row_tile - s.l * t.row_tiles.value) * q.tile_rows;
    s.col =
        (int64_t)(tile - row_tile * t.col_tiles.value) << t.column_bits | (threadIdx.x & ((1 << t.column_bits) - 1));
    s.rows = tile_rows_of(p, q, s.position);
    if (s.col >= q.cols) s.rows.count = 0; /* padding */
    if (s.col >= q.scale_cols) s.rows.scales = 0;
    s.end = max(s.rows.count, s.rows.scales);

    const int64_t row = s.rows.first + s.row, at = s.col * (block<DTYPE>::WORDS * 4);
    s.x = p.x + s.l * p.x_batch_stride + row * p.x_row_stride + at;
    s.up = p.up + s.l * p.up_batch_stride + row * p.up_row_stride + at;
    s.x_step = s.apart * p.x_row_stride;
    s.up_step = s.apart * p.up_row_stride;
    return s;
}

__device__ inline void find_outputs(const nk_quantize_problem &p, const cuda_quantize_params &q, column_cursor &s)
{
    const int64_t row = s.rows.first + s.row;
    s.codes = p.codes + s.l * p.codes_batch_stride + row * p.codes_row_stride + s.col * (NK_SF_VEC / 2);
    s.codes_step = s.apart * p.codes_row_stride;
    s.sf = p.sf + s.l * p.sf_batch_stride;
    if (p.layout == NK_SF_BLOCKED) {
        s.sf +=
            sf_bytes_of_atoms(sf_atom_of_row(s.position) * q.col_atoms + s.col / SF_ATOM_COLS) + s.col % SF_ATOM_COLS;
        s.sf_row = (int)sf_row_in_atom(s.position);
    } else {
        s.sf += (s.position + s.row) * p.sf_row_stride + s.col;
        s.sf_step = s.apart * p.sf_row_stride;
    }
}

__device__ inline bool is_present(const tile_rows &r, int row)
{
    const uint32_t in_hole = (uint32_t)(row - r.hole_begin), hole = (uint32_t)(r.hole_end - r.hole_begin);
    return (row < r.count) & (in_hole >= hole);
}

template <bool WIDE> __device__ inline void store_codes(uint8_t *to, const uint32_t codes[2])
{
    if (WIDE) {
        *(uint2 *)to = make_uint2(codes[0], codes[1]);
    } else {
#pragma unroll
        for (int i = 0; i < NK_SF_VEC / 2; i++)
            to[i] = (uint8_t)(codes[i / 4] >> i % 4 * 8);
    }
}

/* A block before it is encoded. */
template <nk_dtype DTYPE> struct quantize_input {
    block<DTYPE> x, up;
};

/* The block of `row`; s.x points to it. */
template <nk_dtype DTYPE, bool WIDE, bool GATED>
__device__ inline void fetch_block(column_cursor &s, int row, quantize_input<DTYPE> &in)
{
    if (is_present(s.rows, row)) {
        load_block<DTYPE, WIDE>(s.x, in.x);
        if (GATED) load_block<DTYPE, WIDE>(s.up, in.up);
    }
    s.x += s.x_step;
    s.up += s.up_step;
}

template <typename CONVERT, nk_dtype DTYPE, bool WIDE, bool GATED, typename RECIPE>
__device__ inline void write_block(const nk_quantize_problem &p, const RECIPE &recipe, column_cursor &s, int row,
                                   const quantize_input<DTYPE> &in)
{
    uint32_t codes[2], sf = 0;
    if (is_present(s.rows, row)) {
        if constexpr (GATED)
            sf = recipe.template encode<CONVERT>(p.smallest_scale, gated_block(in.x, in.up), codes);
        else
            sf = recipe.template encode<CONVERT>(p.smallest_scale, in.x, codes);
        store_codes<WIDE>(s.codes, codes);
    }
    const uint32_t in_atom = (uint32_t)(s.sf_row + row);
    uint8_t *to = s.sf + (p.layout == NK_SF_BLOCKED ? sf_offset_in_atom(in_atom, 0u) : 0);
    if (row < s.rows.scales) *to = (uint8_t)sf;
    s.codes += s.codes_step;
    s.sf += s.sf_step;
}

template <typename CONVERT, nk_dtype DTYPE, bool WIDE, bool GATED, typename RECIPE>
__device__ inline void quantize(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    constexpr int AHEAD = GATED || DTYPE == NK_F32 ? 1 : 2; /* a thread's other registers hold the block it encodes */
    column_cursor s = column_of<DTYPE>(p, q);
    quantize_input<DTYPE> in[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        fetch_block<DTYPE, WIDE, GATED>(s, s.row + i * s.apart, in[i]);
    find_outputs(p, q, s);
    const RECIPE recipe(p, q);
    for (int row = s.row; row < s.end;) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            write_block<CONVERT, DTYPE, WIDE, GATED>(p, recipe, s, row, in[i]);
            fetch_block<DTYPE, WIDE, GATED>(s, row + AHEAD * s.apart, in[i]);
            row += s.apart;
        }
    }
}

#endif
