/* What all kernels for few tokens use: the order of a team's steps, and how weights are fetched. */
#ifndef NK_SM90_GEMV_CUH
#define NK_SM90_GEMV_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm90_gemv_memory.h"

#include <stddef.h>

extern __shared__ __align__(1024) uint4 smem[]; /* the period of a tensor map's swizzle */

__device__ inline sm90_gemv_head &head() { return *(sm90_gemv_head *)smem; }

/* How weights are read. LINEAR and BLOCKED, the layouts of scale factors, need aligned addresses and K % 64 = 0. NARROW
 * reads byte by byte, in both layouts. DUAL is LINEAR, of two matrices: see sm90_gemv_dual. */
enum { LINEAR, BLOCKED, NARROW, DUAL };

/* The shuffle tells the compiler that all lanes have the same value. */
__device__ inline uint32_t warp_index() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

/* How many octets of a tile a warp has. A team has a tile: TEAM warps, each with the octets behind those of the last.
 */
enum { SHORT = 1, TALL = 2 };

template <int OCTETS, int TEAM> constexpr int rows_of_tile = OCTETS * TEAM * SM90_GEMV_M8;

/* What the CTA has to do, and what this warp's team has to do of it. */
typedef struct team_work {
    int l, first_row;                 /* batch; a row of W: where scale factors are blocked, the first of its atom */
    int matrix;                       /* batch of W */
    int expert, token, row;           /* of experts: whose alpha and bias; rows of X and of D. Else 0 */
    int skew, positions;              /* the CTA has so many positions, from `skew` behind first_row on */
    int rows;                         /* of W from first_row on */
    int first_k_step, k_steps, words; /* of K: what the CTA has; the last CTA of a cluster may have fewer */
    int tile, k_step, steps;          /* where the team begins; how many steps it has */
    int first_tile, teams_before; /* teams that begin first_tile before this one; of its other tiles it is the first */
} team_work;

/* What a warp fetches next, in whole lines: eight lanes fetch a row's codes of a K step, four its scale factors. */
typedef struct cursor {
    const uint8_t *codes[4], *sf[2]; /* this lane's addresses: in every fourth row of the warp, in every eighth */
    int tile, k_step;
    int codes_k_steps, sf_k_steps; /* this lane fetches something of the K steps below these */
    int codes_rows, sf_rows;       /* how many of its rows exist */
    uint32_t codes_to, sf_to;      /* offsets in a slot */
} cursor;

template <int ACCESS> __device__ inline bool is_blocked(const nk_operand &o)
{
    return ACCESS == BLOCKED || (ACCESS == NARROW && o.sf_layout == NK_SF_BLOCKED);
}

template <int ACCESS, int OCTETS, int TEAM> __device__ inline team_work work_of_team(const sm90_gemv_args &p)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const int team = warp_index() / TEAM, rank = blockIdx.y, first = blockIdx.x * s.rows;
    team_work w;
    w.l = w.matrix = blockIdx.z;
    w.expert = w.token = w.row = 0;
    w.skew = is_blocked<ACCESS>(p.b) ? first & (NK_SF_ATOM_ROWS - 1) : 0;
    w.first_row = first - w.skew;
    w.positions = min(s.rows, s.all_positions - first);
    w.rows = s.n - w.first_row;
    w.first_k_step = rank * s.k_steps;
    w.k_steps = max(0, min(s.k_steps, s.all_k_steps - w.first_k_step));
    w.words = min(w.k_steps * SM90_GEMV_WORDS, s.all_words - w.first_k_step * SM90_GEMV_WORDS);
    const uint32_t start = p.starts[team][w.k_steps < s.k_steps];
    w.tile = w.first_tile = sm90_gemv_start_tile(start);
    w.k_step = sm90_gemv_start_k_step(start);
    w.teams_before = sm90_gemv_consumers_before(start);
    const uint32_t rows = rows_of_tile<OCTETS, TEAM>;
    w.steps = max(
        0, min(s.steps_per_consumer, (int)((w.positions + rows - 1) / rows) * w.k_steps - team * s.steps_per_consumer));
    return w;
}

/* The row at a position of the CTA, less first_row. */
template <int ACCESS> __device__ inline int row_at(const sm90_gemv_args &p, const team_work &w, int position)
{
    const int at = w.skew + position;
    return is_blocked<ACCESS>(p.b) ? sm90_gemv_blocked_row(at) : at;
}

/* As row_at(). Where W has no such row, another that it has. */
template <int ACCESS> __device__ inline uint32_t some_row_at(const sm90_gemv_args &p, const team_work &w, int position)
{
    const int row = row_at<ACCESS>(p, w, position);
    return is_blocked<ACCESS>(p.b) ? min(row, w.rows - 1) : row;
}

/* The offset in a slot of chunk `chunk` of a row's codes. It keeps lanes (row, chunk / 2) off each other's banks. Row +
 * 4 lies HALF_SLOT behind. */
constexpr int SLOT_BYTES = sizeof(sm90_gemv_m8_stage), SLOT_LINE = sizeof(sm90_gemv_m8_stage::codes[0]),
              HALF_SLOT = sizeof(sm90_gemv_m8_stage::codes) / 2, SF_OF_SLOT = offsetof(sm90_gemv_m8_stage, sf);

__device__ inline uint32_t slot_at(int row, int chunk) { return row * SLOT_LINE + (chunk ^ (row & 1)) * 16; }

/* Addresses of slots include this offset, so that each lane has its own: see createpolicy_evict_first(). */
__device__ inline uint32_t own_byte() { return (threadIdx.x & 31) * 16; }

__device__ inline uint32_t ring_of_warp()
{
    return shared_address(smem) + (uint32_t)sizeof(sm90_gemv_head) + warp_index() * SM90_GEMV_PIPELINE_BYTES +
           own_byte();
}

/* In how many K steps word `first` of the step exists. */
__device__ inline int k_steps_with(const team_work &w, int first)
{
    return (w.words - first + SM90_GEMV_WORDS - 1) >> 5;
}

/* The position of the CTA at which the warp's rows of a tile begin. */
template <int OCTETS, int TEAM> __device__ inline int first_position(int tile)
{
    return (tile * TEAM + warp_index() % TEAM) * (OCTETS * SM90_GEMV_M8);
}

/* Bytes from a row's scale factors of one K step to those of the next. */
template <int ACCESS> __device__ inline int64_t sf_of_step(const sm90_gemv_args &p)
{
    return is_blocked<ACCESS>(p.b) ? SM90_GEMV_CHUNKS / 2 * NK_SF_ATOM_BYTES : 2 * SM90_GEMV_CHUNKS;
}

/* The row of each of a pair's matrices at a position, which is in the octet of the first. */
__device__ inline int paired_row(int position) { return position >> 4 << 3 | (position & 7); }

/* As enter_tile(), of two matrices. */
__device__ inline void enter_paired_tile(const sm90_gemv_args &p, const team_work &w, int tile, int k_step, cursor &at)
{
    const int lane = threadIdx.x & 31, first = first_position<TALL, 1>(tile);
    const int64_t row = paired_row(w.first_row + first), from_first = w.first_k_step + k_step;
    at.tile = tile;
    at.k_step = k_step;
    at.codes_rows = first < w.positions ? 2 * TALL : 0;
    at.sf_rows = first < w.positions ? TALL : 0;
#pragma unroll
    for (int i = 0; i < TALL; i++) {
        const nk_operand &b = i ? p.pair.b : p.b;
        const uint8_t *codes = b.data + w.matrix * b.batch_stride + (row + (lane >> 3)) * b.row_stride +
                               from_first * (SM90_GEMV_STEP / 2) + (lane & 7) * 16;
        at.codes[2 * i] = kept(codes);
        at.codes[2 * i + 1] = kept(codes + 4 * b.row_stride);
        at.sf[i] = kept(b.sf + w.matrix * b.sf_batch_stride + (row + (lane >> 2)) * b.sf_row_stride +
                        from_first * sf_of_step<DUAL>(p) + (lane & 3) * NK_SF_ATOM_COLS);
    }
}

/* Moves to a step of another tile. Strides of rows and of rows of atoms fit 32 bits; that of a single row is unused. */
template <int ACCESS, int OCTETS, int TEAM>
__device__ inline void enter_tile(const sm90_gemv_args &p, const team_work &w, int tile, int k_step, cursor &at)
{
    if constexpr (ACCESS == DUAL) return enter_paired_tile(p, w, tile, k_step, at);
    const int lane = threadIdx.x & 31, first = first_position<OCTETS, TEAM>(tile);
    const int64_t from_first = w.first_k_step + k_step;
    const uint32_t stride = (uint32_t)p.b.row_stride, sf_stride = (uint32_t)p.b.sf_row_stride, first_row = w.first_row,
                   atoms_bytes = p.scheduler.atoms_bytes;
    const uint64_t to_first_sf = is_blocked<ACCESS>(p.b) ? (uint64_t)(first_row / NK_SF_ATOM_ROWS) * atoms_bytes
                                                         : (uint64_t)first_row * sf_stride;
    const uint8_t *codes = p.b.data + w.matrix * p.b.batch_stride + (uint64_t)first_row * stride +
                           from_first * (SM90_GEMV_STEP / 2),
                  *sf = p.b.sf + w.matrix * p.b.sf_batch_stride + to_first_sf + from_first * sf_of_step<ACCESS>(p);
    at.tile = tile;
    at.k_step = k_step;
    at.codes_rows = (w.positions - first - (lane >> 3) + 3) >> 2;
    at.sf_rows = (w.positions - first - (lane >> 2) + 7) >> 3;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] = kept(codes + (some_row_at<ACCESS>(p, w, first + 4 * i + (lane >> 3)) * stride + (lane & 7) * 16));
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t position = w.skew + first + 8 * i + (lane >> 2), c = lane & 3;
        at.sf[i] =
            kept(sf + (is_blocked<ACCESS>(p.b) ? sm90_gemv_blocked_factors(position, atoms_bytes) + c * NK_SF_ATOM_BYTES
                                               : position * sf_stride + c * NK_SF_ATOM_COLS));
    }
}

/* Moves on by `steps` steps of the same tile. */
template <int ACCESS, int OCTETS> __device__ inline void move_on(const sm90_gemv_args &p, int steps, cursor &at)
{
    at.k_step += steps;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] += steps * (SM90_GEMV_STEP / 2);
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] += steps * sf_of_step<ACCESS>(p);
}

/* Sets what is the same for all tiles. */
__device__ inline void prepare(const team_work &w, cursor &at)
{
    const int lane = threadIdx.x & 31;
    at.codes_k_steps = k_steps_with(w, 4 * (lane & 7));
    at.sf_k_steps = k_steps_with(w, 8 * (lane & 3));
    at.codes_to = kept(slot_at(lane >> 3, lane & 7) - own_byte());
    at.sf_to = kept(SF_OF_SLOT + lane * 4 - own_byte());
}

template <int ACCESS, int OCTETS, int TEAM>
__device__ inline void advance(const sm90_gemv_args &p, const team_work &w, cursor &at)
{
    if (at.k_step + 1 == w.k_steps)
        enter_tile<ACCESS, OCTETS, TEAM>(p, w, at.tile + 1, 0, at);
    else
        move_on<ACCESS, OCTETS>(p, 1, at);
}

/* The scale factors of two chunks. Only `words` words of them exist. */
__device__ inline uint32_t fetch_factors(const uint8_t *sf, int words)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= 2 * i < words ? (uint32_t)sf[i] << 8 * i : 0;
    return bytes;
}

/* Fetches a step's weights to a slot: of this lane's rows the first codes_rows and sf_rows. Scale factors of the others
 * become 0. */
template <int ACCESS, int OCTETS>
__device__ inline void fetch_rows(const team_work &w, const cursor &at, int codes_rows, int sf_rows, uint32_t slot)
{
    const int lane = threadIdx.x & 31, words = w.words - at.k_step * SM90_GEMV_WORDS;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++) {
        const uint32_t to = slot + at.codes_to + i / 2 * SLOT_BYTES + (i & 1) * HALF_SLOT;
        const uint8_t *from = at.codes[i];
        if (ACCESS != NARROW)
            cp_async_cg_hint_if(i < codes_rows, to, from, createpolicy_evict_first());
        else
            st_shared_v4(to, fetch_bytes(from, i < codes_rows ? 4 * (words - 4 * (lane & 7)) : 0));
    }
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t to = slot + at.sf_to + i * SLOT_BYTES;
        const uint8_t *from = at.sf[i];
        if (ACCESS != NARROW)
            cp_async_ca_l2_128b_zfill_hint<4>(to, from, i < sf_rows ? 4 : 0, createpolicy_evict_first());
        else
            st_shared(to, fetch_factors(from, i < sf_rows ? words - 8 * (lane & 3) : 0));
    }
}

/* Fetches any step. Scale factors are 0 beyond K and for rows that do not exist, so codes may be anything there. */
template <int ACCESS, int OCTETS> __device__ inline void fetch(const team_work &w, const cursor &at, uint32_t slot)
{
    fetch_rows<ACCESS, OCTETS>(w, at, at.k_step < at.codes_k_steps ? at.codes_rows : 0,
                               at.k_step < at.sf_k_steps ? at.sf_rows : 0, slot);
}

/* Fetches a step that lies within K. */
template <int ACCESS, int OCTETS>
__device__ inline void fetch_whole(const team_work &w, const cursor &at, uint32_t slot)
{
    fetch_rows<ACCESS, OCTETS>(w, at, at.codes_rows, at.sf_rows, slot);
}

/* Brings a step's weights to L2. Kernels before this one may still be writing them, which is no harm: nothing is read.
 */
template <int OCTETS> __device__ inline void prefetch_codes(const cursor &at)
{
    const int rows = at.k_step < at.codes_k_steps ? at.codes_rows : 0;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        prefetch_global_l2_if(i < rows, at.codes[i]);
}

template <int OCTETS> __device__ inline void prefetch_factors(const cursor &at)
{
    const int rows = at.k_step < at.sf_k_steps ? at.sf_rows : 0;
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        prefetch_global_l2_if(i < rows, at.sf[i]);
}

/* How many of the tile's steps, from the next one on, lie within K. */
template <int ACCESS> __device__ inline int whole_steps(const team_work &w, const cursor &at)
{
    return ACCESS == NARROW ? 0 : (w.words >> 5) - at.k_step;
}

/* Fetches the first steps, all but one that the ring has slots for. Up to here the code that most calls run lies in one
 * line, with few jumps over what they skip. For instructions are fetched ahead, and a CTA on an SM that lacks them
 * waits for memory, up to 2 us. */
template <int ACCESS, int OCTETS, int TEAM>
__device__ inline void fill_ring(const sm90_gemv_args &p, const team_work &w, cursor &ahead, uint32_t ring)
{
    constexpr int STEPS = SM90_GEMV_PIPELINE_M8S / OCTETS - 1;
    const bool whole = STEPS < whole_steps<ACCESS>(w, ahead) && STEPS <= w.steps;
#pragma unroll 1 /* less code to fetch from memory */
    for (int i = 0; whole && i < STEPS; i++) {
        fetch_whole<ACCESS, OCTETS>(w, ahead, ring + i * OCTETS * SLOT_BYTES);
        cp_async_commit_group();
        move_on<ACCESS, OCTETS>(p, 1, ahead);
    }
#pragma unroll 1
    for (int i = 0; !whole && i < STEPS; i++) {
        if (i < w.steps) {
            fetch<ACCESS, OCTETS>(w, ahead, ring + i * OCTETS * SLOT_BYTES);
            advance<ACCESS, OCTETS, TEAM>(p, w, ahead);
        }
        cp_async_commit_group();
    }
}

/* What a lane multiplies in a step: two chunks of a row of each octet, and their scale factors. */
typedef struct weights {
    uint4 codes[2][2]; /* [octet][chunk] */
    uint32_t sf[2];
} weights;

/* Their offsets in a slot. */
typedef struct slot_offsets {
    uint32_t first, second, sf;
} slot_offsets;

__device__ inline slot_offsets slot_offsets_of_lane()
{
    const uint32_t lane = threadIdx.x & 31, chunks = slot_at(lane >> 2, 2 * (lane & 3));
    return {kept(chunks - own_byte()), kept((chunks ^ 16) - own_byte()), kept(SF_OF_SLOT + lane * 4 - own_byte())};
}

template <int OCTETS> __device__ inline weights load_slot(uint32_t slot, const slot_offsets &at)
{
    weights w = {};
#pragma unroll
    for (int o = 0; o < OCTETS; o++, slot += SLOT_BYTES) {
        w.codes[o][0] = ld_shared_v4(slot + at.first);
        w.codes[o][1] = ld_shared_v4(slot + at.second);
        w.sf[o] = ld_shared(slot + at.sf);
    }
    return w;
}

/* Goes through the steps of a team: products.begin_tile(k_step) at a tile's first, .step(weights) at each,
 * .end_tile(tile) after the last. SLOTS - 1 steps are under way. Steps within K, nearly all, are fetched two at a time
 * with one move of the addresses. All warps of a team take the same branches here, whichever rows exist, since a wgmma
 * is one instruction of all four. */
template <int ACCESS, int OCTETS, int TEAM, typename PRODUCTS>
__device__ inline void main_loop(const sm90_gemv_args &p, const team_work &w, cursor &ahead, uint32_t ring,
                                 PRODUCTS &products)
{
    constexpr int SLOTS = SM90_GEMV_PIPELINE_M8S / OCTETS;
    const slot_offsets offsets = slot_offsets_of_lane();
    uint32_t slot = ring,
             free_slot = ring + (SLOTS - 1) * OCTETS * SLOT_BYTES; /* that of the step before, which is free */
    const auto step = [&](auto &&fetch_next) {
        cp_async_wait_group<SLOTS - 2>();
        __syncwarp();
        const weights now = load_slot<OCTETS>(slot, offsets);
        fetch_next();
        cp_async_commit_group();
        free_slot = slot;
        slot += OCTETS * SLOT_BYTES;
        if (slot == ring + SM90_GEMV_PIPELINE_BYTES) slot = ring;
        products.step(now);
    };
    const auto fetch_ahead = [&](int steps_on) {
        cursor at = ahead;
        move_on<ACCESS, OCTETS>(p, steps_on, at);
        fetch_whole<ACCESS, OCTETS>(w, at, free_slot);
    };
    for (int left = w.steps, tile = w.tile, k_step = w.k_step; left > 0;) {
        const int here = min(left, w.k_steps - k_step), rest = left - here; /* steps in later tiles */
        /* A fetch that ends a tile moves to the next one, so it is not among the whole ones, unless it is the last. */
        const int fetches = left - SLOTS + 1, there = whole_steps<ACCESS>(w, ahead);
        const int whole = ACCESS == NARROW ? 0 : min(min(here, fetches), there - (there < fetches));
        products.begin_tile(k_step);
#pragma unroll 1
        for (int i = whole; i > 1; i -= 2, left -= 2) {
            step([&] { fetch_ahead(0); });
            step([&] { fetch_ahead(1); });
            move_on<ACCESS, OCTETS>(p, 2, ahead);
        }
#pragma unroll 1
        for (; left > rest; left--) {
            step([&] {
                if (left < SLOTS) return;
                fetch<ACCESS, OCTETS>(w, ahead, free_slot);
                advance<ACCESS, OCTETS, TEAM>(p, w, ahead);
            });
        }
        products.end_tile(tile++);
        k_step = 0;
    }
}

#endif
