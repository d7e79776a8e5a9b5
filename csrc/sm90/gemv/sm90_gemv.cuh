/* What all kernels for few tokens share: the order of a consumer's steps, and the cp.async pipeline of weights. */
#ifndef NK_SM90_GEMV_CUH
#define NK_SM90_GEMV_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sf_layout.cuh"
#include "sm90_gemv_memory.h"

#include <stddef.h>

extern __shared__ __align__(1024) uint4 smem[]; /* the period of a tensor map's swizzle */

__device__ inline sm90_gemv_head &smem_head() { return *(sm90_gemv_head *)smem; }

/* How weights are read. LINEAR and BLOCKED, the layouts of scale factors, need aligned addresses and K % 64 = 0. NARROW
 * reads byte by byte, in both layouts. DUAL_LINEAR and DUAL_BLOCKED are for two matrices: see sm90_gemv_dual. */
enum { LINEAR, BLOCKED, NARROW, DUAL_LINEAR, DUAL_BLOCKED };

template <int ACCESS> constexpr bool is_dual = ACCESS == DUAL_LINEAR || ACCESS == DUAL_BLOCKED;

/* The shuffle tells the compiler that all lanes have the same value. */
__device__ inline uint32_t warp_index() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

/* M8S: how many times 8 rows of a tile a warp has. A tile belongs to a consumer of WARPS warps, which have consecutive
 * rows. */
enum { SHORT = 1, TALL = 2 };

template <int M8S, int WARPS> constexpr int tile_rows = M8S * WARPS * SM90_GEMV_M8;

/* The rows and K of the CTA, and the steps of this warp's consumer. */
typedef struct work_tile_info {
    int l, first_row;                 /* batch; a row of W: if scale factors are blocked, the first of its atom */
    int matrix;                       /* batch of W */
    int expert, token, row;           /* with experts: whose alpha and bias; rows of X and of D. Else 0 */
    int skew, positions;              /* the CTA has `positions` of them, from first_row + skew on */
    int rows;                         /* of W from first_row on */
    int first_k_step, k_steps, words; /* of K: what the CTA has; the last CTA of a cluster may have fewer */
    int tile, k_step, steps;          /* where the consumer begins; how many steps it has */
    int first_tile, consumers_before; /* consumers that begin first_tile before this one; it begins its other tiles */
} work_tile_info;

/* What a warp fetches next, in whole lines: eight lanes fetch a row's codes of a K step, four its scale factors. */
typedef struct weight_cursor {
    const uint8_t *codes[4], *sf[2]; /* this lane's addresses: in every fourth row of the warp, in every eighth */
    int tile, k_step;
    int codes_k_steps, sf_k_steps; /* this lane fetches something of the K steps below these */
    int codes_rows, sf_rows;       /* how many of its rows exist */
    uint32_t codes_to, sf_to;      /* offsets in a stage */
} weight_cursor;

template <int ACCESS> __device__ inline bool is_blocked(const nk_operand &o)
{
    return ACCESS == BLOCKED || ACCESS == DUAL_BLOCKED || (ACCESS == NARROW && o.sf_layout == NK_SF_BLOCKED);
}

template <int ACCESS, int M8S, int WARPS>
__device__ inline work_tile_info initial_work_tile_info(const sm90_gemv_args &p)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const int consumer = warp_index() / WARPS, rank = blockIdx.y, first = blockIdx.x * s.rows;
    work_tile_info w;
    w.l = w.matrix = blockIdx.z;
    w.expert = w.token = w.row = 0;
    w.skew = !is_dual<ACCESS> && is_blocked<ACCESS>(p.b) ? sf_row_in_atom((uint32_t)first) : 0;
    w.first_row = first - w.skew;
    w.positions = min(s.rows, s.all_positions - first);
    w.rows = s.n - w.first_row;
    w.first_k_step = rank * s.k_steps;
    w.k_steps = max(0, min(s.k_steps, s.all_k_steps - w.first_k_step));
    w.words = min(w.k_steps * SM90_GEMV_WORDS, s.all_words - w.first_k_step * SM90_GEMV_WORDS);
    const uint32_t start = p.starts[consumer][w.k_steps < s.k_steps];
    w.tile = w.first_tile = sm90_gemv_start_tile(start);
    w.k_step = sm90_gemv_start_k_step(start);
    w.consumers_before = sm90_gemv_consumers_before(start);
    const uint32_t rows = tile_rows<M8S, WARPS>;
    w.steps = max(0, min(s.steps_per_consumer,
                         (int)((w.positions + rows - 1) / rows) * w.k_steps - consumer * s.steps_per_consumer));
    return w;
}

/* The row at a position of the CTA, less first_row. */
template <int ACCESS> __device__ inline int row_at(const sm90_gemv_args &p, const work_tile_info &w, int position)
{
    const int at = w.skew + position;
    return is_blocked<ACCESS>(p.b) ? sf_row_of_position(at) : at;
}

/* As row_at(), but a row that W has. */
template <int ACCESS>
__device__ inline uint32_t clamped_row_at(const sm90_gemv_args &p, const work_tile_info &w, int position)
{
    const int row = row_at<ACCESS>(p, w, position);
    return is_blocked<ACCESS>(p.b) ? min(row, w.rows - 1) : row;
}

/* The offset of chunk `chunk` of a row's codes among 8 rows of a stage. The swizzle keeps lanes (row, chunk / 2) off
 * each other's banks. Row + 4 lies M4_BYTES behind. */
constexpr int M8_BYTES = sizeof(sm90_gemv_m8_stage), M8_ROW_BYTES = sizeof(sm90_gemv_m8_stage::codes[0]),
              M4_BYTES = sizeof(sm90_gemv_m8_stage::codes) / 2, M8_SF = offsetof(sm90_gemv_m8_stage, sf);

__device__ inline uint32_t m8_chunk_at(int row, int chunk) { return row * M8_ROW_BYTES + (chunk ^ (row & 1)) * 16; }

/* Addresses of stages include this offset, so that each lane has its own: see createpolicy_evict_first(). */
__device__ inline uint32_t own_byte() { return (threadIdx.x & 31) * 16; }

__device__ inline uint32_t pipeline_of_warp()
{
    return shared_address(smem) + (uint32_t)sizeof(sm90_gemv_head) + warp_index() * SM90_GEMV_PIPELINE_BYTES +
           own_byte();
}

/* In how many K steps word `first` of the step exists. */
__device__ inline int k_steps_with(const work_tile_info &w, int first)
{
    return (w.words - first + SM90_GEMV_WORDS - 1) >> 5;
}

/* The position of the CTA at which the warp's rows of a tile begin. */
template <int M8S, int WARPS> __device__ inline int position_of_warp(int tile)
{
    return (tile * WARPS + warp_index() % WARPS) * (M8S * SM90_GEMV_M8);
}

/* Bytes from a row's scale factors of one K step to those of the next. */
template <int ACCESS> __device__ inline int64_t sf_of_step(const sm90_gemv_args &p)
{
    return is_blocked<ACCESS>(p.b) ? sf_bytes_of_atoms(sf_atoms_of_k(SM90_GEMV_STEP)) : 2 * SM90_GEMV_CHUNKS;
}

/* Two matrices: first_row and positions of the CTA count the rows of both. The position in each of them, from one of
 * the first matrix in both. */
__device__ inline int dual_position(int position) { return position >> 4 << 3 | (position & 7); }

/* The row at a position in one of them. */
template <int ACCESS> __device__ inline int dual_row(int position)
{
    return ACCESS == DUAL_BLOCKED ? sf_row_of_position(position) : position;
}

/* As cursor_to_tile(), with two matrices. Positions without a row, in an atom that is not full, read the last row. */
template <int ACCESS>
__device__ inline void cursor_to_dual_tile(const sm90_gemv_args &p, const work_tile_info &w, int tile, int k_step,
                                           weight_cursor &at)
{
    const int lane = threadIdx.x & 31, first = position_of_warp<TALL, 1>(tile);
    const int position = dual_position(w.first_row + first), last_row = p.scheduler.n / 2 - 1;
    const auto row_at = [&](int i) { return min(dual_row<ACCESS>(position + i), last_row); };
    const int64_t row = row_at(lane >> 3), fourth = row_at((lane >> 3) + 4), from_first = w.first_k_step + k_step;
    const int sf_row = row_at(lane >> 2);
    at.tile = tile;
    at.k_step = k_step;
    at.codes_rows = first < w.positions ? 2 * TALL : 0;
    at.sf_rows = first < w.positions ? TALL : 0;
#pragma unroll
    for (int i = 0; i < TALL; i++) {
        const nk_operand &b = i ? p.dual.b : p.b;
        const uint8_t *codes = b.data + w.matrix * b.batch_stride + from_first * (SM90_GEMV_STEP / 2) + (lane & 7) * 16;
        const uint8_t *sf = b.sf + w.matrix * b.sf_batch_stride + from_first * sf_of_step<ACCESS>(p);
        at.codes[2 * i] = kept(codes + row * b.row_stride);
        at.codes[2 * i + 1] = kept(codes + fourth * b.row_stride);
        const int in_atoms = sf_row + (i ? p.dual.first_sf_row : 0);
        at.sf[i] = kept(sf + (ACCESS == DUAL_BLOCKED ? (int64_t)sf_atom_of_row(in_atoms) * p.scheduler.atoms_bytes +
                                                           sf_offset_in_atoms(sf_row_in_atom(in_atoms), lane & 3, 0)
                                                     : sf_row * b.sf_row_stride + (lane & 3) * SF_ATOM_COLS));
    }
}

/* Moves to a step of another tile. Strides of rows and of rows of atoms fit 32 bits; the stride of a single row is
 * unused. */
template <int ACCESS, int M8S, int WARPS>
__device__ inline void cursor_to_tile(const sm90_gemv_args &p, const work_tile_info &w, int tile, int k_step,
                                      weight_cursor &at)
{
    if constexpr (is_dual<ACCESS>) return cursor_to_dual_tile<ACCESS>(p, w, tile, k_step, at);
    const int lane = threadIdx.x & 31, first = position_of_warp<M8S, WARPS>(tile);
    const int64_t from_first = w.first_k_step + k_step;
    const uint32_t stride = (uint32_t)p.b.row_stride, sf_stride = (uint32_t)p.b.sf_row_stride, first_row = w.first_row,
                   atoms_bytes = p.scheduler.atoms_bytes;
    const uint64_t to_first_sf =
        is_blocked<ACCESS>(p.b) ? (uint64_t)sf_atom_of_row(first_row) * atoms_bytes : (uint64_t)first_row * sf_stride;
    const uint8_t *codes = p.b.data + w.matrix * p.b.batch_stride + (uint64_t)first_row * stride +
                           from_first * (SM90_GEMV_STEP / 2),
                  *sf = p.b.sf + w.matrix * p.b.sf_batch_stride + to_first_sf + from_first * sf_of_step<ACCESS>(p);
    at.tile = tile;
    at.k_step = k_step;
    at.codes_rows = (w.positions - first - (lane >> 3) + 3) >> 2;
    at.sf_rows = (w.positions - first - (lane >> 2) + 7) >> 3;
#pragma unroll
    for (int i = 0; i < 2 * M8S; i++)
        at.codes[i] =
            kept(codes + (clamped_row_at<ACCESS>(p, w, first + 4 * i + (lane >> 3)) * stride + (lane & 7) * 16));
#pragma unroll
    for (int i = 0; i < M8S; i++) {
        const uint32_t position = w.skew + first + 8 * i + (lane >> 2), c = lane & 3;
        at.sf[i] =
            kept(sf + (is_blocked<ACCESS>(p.b) ? sf_offset_of_position(position, atoms_bytes) + sf_bytes_of_atoms(c)
                                               : position * sf_stride + c * SF_ATOM_COLS));
    }
}

/* Moves on by `steps` steps of the same tile. */
template <int ACCESS, int M8S>
__device__ inline void cursor_advance_k(const sm90_gemv_args &p, int steps, weight_cursor &at)
{
    at.k_step += steps;
#pragma unroll
    for (int i = 0; i < 2 * M8S; i++)
        at.codes[i] += steps * (SM90_GEMV_STEP / 2);
#pragma unroll
    for (int i = 0; i < M8S; i++)
        at.sf[i] += steps * sf_of_step<ACCESS>(p);
}

/* Sets what is the same for all tiles. */
__device__ inline void cursor_init(const work_tile_info &w, weight_cursor &at)
{
    const int lane = threadIdx.x & 31;
    at.codes_k_steps = k_steps_with(w, 4 * (lane & 7));
    at.sf_k_steps = k_steps_with(w, 8 * (lane & 3));
    at.codes_to = kept(m8_chunk_at(lane >> 3, lane & 7) - own_byte());
    at.sf_to = kept(M8_SF + lane * 4 - own_byte());
}

template <int ACCESS, int M8S, int WARPS>
__device__ inline void cursor_next(const sm90_gemv_args &p, const work_tile_info &w, weight_cursor &at)
{
    if (at.k_step + 1 == w.k_steps)
        cursor_to_tile<ACCESS, M8S, WARPS>(p, w, at.tile + 1, 0, at);
    else
        cursor_advance_k<ACCESS, M8S>(p, 1, at);
}

/* 16 bytes of a token: a chunk of 32 codes with its two scale factors, or a word of 16-bit elements. */
typedef struct token_chunk {
    uint4 data;
    uint32_t sf;
} token_chunk;

/* The scale factors of two chunks. Only `words` words of them exist. */
__device__ inline uint32_t load_sf_bytes(const uint8_t *sf, int words)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= 2 * i < words ? (uint32_t)sf[i] << 8 * i : 0;
    return bytes;
}

/* Fetches a step's weights to a stage: the first codes_rows and sf_rows of this lane's rows. Scale factors of its other
 * rows become 0. */
template <int ACCESS, int M8S>
__device__ inline void fetch_stage_rows(const work_tile_info &w, const weight_cursor &at, int codes_rows, int sf_rows,
                                        uint32_t stage)
{
    const int lane = threadIdx.x & 31, words = w.words - at.k_step * SM90_GEMV_WORDS;
#pragma unroll
    for (int i = 0; i < 2 * M8S; i++) {
        const uint32_t to = stage + at.codes_to + i / 2 * M8_BYTES + (i & 1) * M4_BYTES;
        const uint8_t *from = at.codes[i];
        if (ACCESS != NARROW)
            cp_async_cg_hint_if(i < codes_rows, to, from, createpolicy_evict_first());
        else
            st_shared_v4(to, fetch_bytes(from, i < codes_rows ? 4 * (words - 4 * (lane & 7)) : 0));
    }
#pragma unroll
    for (int i = 0; i < M8S; i++) {
        const uint32_t to = stage + at.sf_to + i * M8_BYTES;
        const uint8_t *from = at.sf[i];
        if (ACCESS != NARROW)
            cp_async_ca_l2_128b_zfill_hint<4>(to, from, i < sf_rows ? 4 : 0, createpolicy_evict_first());
        else
            st_shared(to, load_sf_bytes(from, i < sf_rows ? words - 8 * (lane & 3) : 0));
    }
}

/* Fetches any step. Scale factors are 0 beyond K and for rows that do not exist, so codes may be anything there. */
template <int ACCESS, int M8S>
__device__ inline void fetch_stage(const work_tile_info &w, const weight_cursor &at, uint32_t stage)
{
    fetch_stage_rows<ACCESS, M8S>(w, at, at.k_step < at.codes_k_steps ? at.codes_rows : 0,
                                  at.k_step < at.sf_k_steps ? at.sf_rows : 0, stage);
}

/* Fetches a step that lies within K. */
template <int ACCESS, int M8S>
__device__ inline void fetch_full_stage(const work_tile_info &w, const weight_cursor &at, uint32_t stage)
{
    fetch_stage_rows<ACCESS, M8S>(w, at, at.codes_rows, at.sf_rows, stage);
}

/* Brings a step's weights to L2. Kernels before this one may still be writing them, which does no harm, since nothing
 * is read. */
template <int M8S> __device__ inline void prefetch_codes(const weight_cursor &at)
{
    const int rows = at.k_step < at.codes_k_steps ? at.codes_rows : 0;
#pragma unroll
    for (int i = 0; i < 2 * M8S; i++)
        prefetch_global_l2_if(i < rows, at.codes[i]);
}

template <int M8S> __device__ inline void prefetch_sf(const weight_cursor &at)
{
    const int rows = at.k_step < at.sf_k_steps ? at.sf_rows : 0;
#pragma unroll
    for (int i = 0; i < M8S; i++)
        prefetch_global_l2_if(i < rows, at.sf[i]);
}

/* How many of the tile's steps, from the next one on, lie within K. */
template <int ACCESS> __device__ inline int full_steps(const work_tile_info &w, const weight_cursor &at)
{
    return ACCESS == NARROW ? 0 : (w.words >> 5) - at.k_step;
}

/* Fetches the first steps, to all stages but one. Up to here the code that most calls run is contiguous, with few jumps
 * over what they skip, since instructions are fetched ahead, and a CTA on an SM that lacks them waits for memory, up to
 * 2 us. */
template <int ACCESS, int M8S, int WARPS>
__device__ inline void fill_pipeline(const sm90_gemv_args &p, const work_tile_info &w, weight_cursor &ahead,
                                     uint32_t pipeline)
{
    constexpr int STEPS = SM90_GEMV_PIPELINE_M8S / M8S - 1;
    const bool whole = STEPS < full_steps<ACCESS>(w, ahead) && STEPS <= w.steps;
#pragma unroll 1 /* less code to fetch from memory */
    for (int i = 0; whole && i < STEPS; i++) {
        fetch_full_stage<ACCESS, M8S>(w, ahead, pipeline + i * M8S * M8_BYTES);
        cp_async_commit_group();
        cursor_advance_k<ACCESS, M8S>(p, 1, ahead);
    }
#pragma unroll 1
    for (int i = 0; !whole && i < STEPS; i++) {
        if (i < w.steps) {
            fetch_stage<ACCESS, M8S>(w, ahead, pipeline + i * M8S * M8_BYTES);
            cursor_next<ACCESS, M8S, WARPS>(p, w, ahead);
        }
        cp_async_commit_group();
    }
}

/* What a lane multiplies in a step: two chunks of one row in each 8, and their scale factors. */
typedef struct weight_fragment {
    uint4 codes[2][2]; /* [8 rows][chunk] */
    uint32_t sf[2];
} weight_fragment;

/* Their offsets in a stage. */
typedef struct stage_offsets {
    uint32_t first, second, sf;
} stage_offsets;

__device__ inline stage_offsets stage_offsets_of_lane()
{
    const uint32_t lane = threadIdx.x & 31, chunks = m8_chunk_at(lane >> 2, 2 * (lane & 3));
    return {kept(chunks - own_byte()), kept((chunks ^ 16) - own_byte()), kept(M8_SF + lane * 4 - own_byte())};
}

template <int M8S> __device__ inline weight_fragment load_stage(uint32_t stage, const stage_offsets &at)
{
    weight_fragment w = {};
#pragma unroll
    for (int m8 = 0; m8 < M8S; m8++, stage += M8_BYTES) {
        w.codes[m8][0] = ld_shared_v4(stage + at.first);
        w.codes[m8][1] = ld_shared_v4(stage + at.second);
        w.sf[m8] = ld_shared(stage + at.sf);
    }
    return w;
}

/* Runs the steps of a consumer: mma.begin_tile(k_step) before a tile's first step, .step(fragment) for each,
 * .store_partials(tile) after the last. STAGES - 1 steps are in flight. Steps within K, nearly all, are fetched two at
 * a time with one update of the addresses. All warps of a consumer take the same branches, whichever rows exist, since
 * a wgmma is one instruction of all four. */
template <int ACCESS, int M8S, int WARPS, typename MMA>
__device__ inline void gemv_mainloop(const sm90_gemv_args &p, const work_tile_info &w, weight_cursor &ahead,
                                     uint32_t pipeline, MMA &mma)
{
    constexpr int STAGES = SM90_GEMV_PIPELINE_M8S / M8S;
    const stage_offsets offsets = stage_offsets_of_lane();
    uint32_t stage = pipeline, free_stage = pipeline + (STAGES - 1) * M8S * M8_BYTES; /* the step before has read it */
    const auto step = [&](auto &&fetch_next) {
        cp_async_wait_group<STAGES - 2>();
        __syncwarp();
        const weight_fragment now = load_stage<M8S>(stage, offsets);
        fetch_next();
        cp_async_commit_group();
        free_stage = stage;
        stage += M8S * M8_BYTES;
        if (stage == pipeline + SM90_GEMV_PIPELINE_BYTES) stage = pipeline;
        mma.step(now);
    };
    const auto fetch_ahead = [&](int steps_on) {
        weight_cursor at = ahead;
        cursor_advance_k<ACCESS, M8S>(p, steps_on, at);
        fetch_full_stage<ACCESS, M8S>(w, at, free_stage);
    };
    for (int left = w.steps, tile = w.tile, k_step = w.k_step; left > 0;) {
        const int here = min(left, w.k_steps - k_step), rest = left - here; /* steps in later tiles */
        /* A fetch that ends a tile moves to the next one, so it is not among the whole ones, unless it is the last. */
        const int fetches = left - STAGES + 1, there = full_steps<ACCESS>(w, ahead);
        const int whole = ACCESS == NARROW ? 0 : min(min(here, fetches), there - (there < fetches));
        mma.begin_tile(k_step);
#pragma unroll 1
        for (int i = whole; i > 1; i -= 2, left -= 2) {
            step([&] { fetch_ahead(0); });
            step([&] { fetch_ahead(1); });
            cursor_advance_k<ACCESS, M8S>(p, 2, ahead);
        }
#pragma unroll 1
        for (; left > rest; left--) {
            step([&] {
                if (left < STAGES) return;
                fetch_stage<ACCESS, M8S>(w, ahead, free_stage);
                cursor_next<ACCESS, M8S, WARPS>(p, w, ahead);
            });
        }
        mma.store_partials(tile++);
        k_step = 0;
    }
}

#endif
