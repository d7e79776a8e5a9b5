/* What the kernels for few tokens share: the order in which a warp walks over its weights, and fetching them. */
#ifndef NK_SM90_GEMV_CUH
#define NK_SM90_GEMV_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm90_gemv_memory.h"

#include <stddef.h>

extern __shared__ __align__(1024) uint4 smem[]; /* the period of a tensor map's swizzle */

__device__ inline sm90_gemv_head &head() { return *(sm90_gemv_head *)smem; }

/* How weights are read: in 16-byte chunks with linear or with blocked scale factors, where every address is aligned and
 * K % 64 = 0; else byte by byte. */
enum { LINEAR, BLOCKED, NARROW };

/* The same for all lanes. The shuffle tells the compiler so. */
__device__ inline uint32_t warp_index() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

/* How many octets of a tile's rows a warp has. A tile belongs to a team: TEAM warps side by side. */
enum { SHORT = 1, TALL = 2 };

template <int OCTETS, int TEAM> constexpr int rows_of_tile = OCTETS * TEAM * SM90_GEMV_OCTET;

/* What a CTA does, and what this warp's team does of it. */
typedef struct team_work {
    int l;
    int first_row;      /* of the CTA; with blocked scale factors the first row of its atom */
    int skew;           /* positions from first_row to the CTA's first */
    int positions;      /* of the CTA */
    int rows;           /* of the matrix from first_row on */
    int first_k_step;   /* of the CTA's K */
    int k_steps, words; /* of the CTA's K; the last CTA of a cluster may have fewer */
    int tile, k_step;   /* where the team begins */
    int steps;          /* of the team */
    int first_tile;     /* the team's first */
    int teams_before;   /* how many teams begin first_tile before this one; every later tile is the team's alone */
} team_work;

/* What a warp fetches next. Eight lanes fetch a row's codes of one K step, which are a line; four its scale factors. */
typedef struct cursor {
    const uint8_t *codes[4]; /* this lane's chunk, in every fourth of the warp's rows */
    const uint8_t *sf[2];    /* this lane's scale factors, in every eighth of the warp's rows */
    int tile, k_step;
    int codes_k_steps, sf_k_steps; /* this lane has codes, or scale factors, in K steps below these */
    int codes_rows, sf_rows;       /* how many of the lane's rows exist */
    uint32_t codes_to, sf_to;      /* where they go in a slot */
} cursor;

template <int PATH> __device__ inline bool is_blocked(const nk_operand &o)
{
    return PATH == BLOCKED || (PATH == NARROW && o.sf_layout == NK_SF_BLOCKED);
}

template <int PATH, int OCTETS, int TEAM> __device__ inline team_work work_of_team(const sm90_gemv_args &p)
{
    const sm90_gemv_work &s = p.work;
    const int team = warp_index() / TEAM, rank = blockIdx.y, first = blockIdx.x * s.rows;
    team_work w;
    w.l = blockIdx.z;
    w.skew = is_blocked<PATH>(p.b) ? first & (NK_SF_ATOM_ROWS - 1) : 0;
    w.first_row = first - w.skew;
    w.positions = min(s.rows, s.all_positions - first);
    w.rows = s.n - w.first_row;
    w.first_k_step = rank * s.k_steps;
    w.k_steps = max(0, min(s.k_steps, s.all_k_steps - w.first_k_step));
    w.words = min(w.k_steps * SM90_GEMV_WORDS, s.all_words - w.first_k_step * SM90_GEMV_WORDS);
    const uint32_t start = p.starts[team][w.k_steps < s.k_steps];
    w.tile = w.first_tile = sm90_gemv_start_tile(start);
    w.k_step = sm90_gemv_start_k_step(start);
    w.teams_before = sm90_gemv_teams_before(start);
    const uint32_t rows = rows_of_tile<OCTETS, TEAM>;
    w.steps =
        max(0, min(s.steps_per_team, (int)((w.positions + rows - 1) / rows) * w.k_steps - team * s.steps_per_team));
    return w;
}

/* The row at a position of the CTA, counted from first_row. */
template <int PATH> __device__ inline int row_at(const sm90_gemv_args &p, const team_work &w, int position)
{
    const int at = w.skew + position;
    return is_blocked<PATH>(p.b) ? sm90_gemv_blocked_row(at) : at;
}

/* The same, or the last row where the atom has no such row. */
template <int PATH> __device__ inline uint32_t some_row_at(const sm90_gemv_args &p, const team_work &w, int position)
{
    const int row = row_at<PATH>(p, w, position);
    return is_blocked<PATH>(p.b) ? min(row, w.rows - 1) : row;
}

/* The offset of a chunk of codes in a slot. It keeps lanes (row, chunk / 2) off each other's banks. Row + 4 lies
 * HALF_SLOT bytes behind row. */
constexpr int SLOT_BYTES = sizeof(sm90_gemv_slot), SLOT_LINE = sizeof(sm90_gemv_slot::codes[0]),
              HALF_SLOT = sizeof(sm90_gemv_slot::codes) / 2, SF_OF_SLOT = offsetof(sm90_gemv_slot, sf);

__device__ inline uint32_t slot_at(int row, int chunk) { return row * SLOT_LINE + (chunk ^ (row & 1)) * 16; }

/* A lane's address of a slot is this many bytes behind the slot: addresses must differ from lane to lane, see
 * createpolicy_evict_first(). */
__device__ inline uint32_t own_byte() { return (threadIdx.x & 31) * 16; }

__device__ inline uint32_t ring_of_warp()
{
    return shared_address(smem) + (uint32_t)sizeof(sm90_gemv_head) + warp_index() * SM90_GEMV_RING_BYTES + own_byte();
}

/* How many K steps have words of a lane whose first word is `first`. */
__device__ inline int k_steps_with(const team_work &w, int first)
{
    return (w.words - first + SM90_GEMV_WORDS - 1) >> 5;
}

/* The CTA's position at which the warp's rows of a tile begin. */
template <int OCTETS, int TEAM> __device__ inline int first_position(int tile)
{
    return (tile * TEAM + warp_index() % TEAM) * (OCTETS * SM90_GEMV_OCTET);
}

/* Bytes of a row's scale factors from one K step to the next. */
template <int PATH> __device__ inline int64_t sf_of_k_step(const sm90_gemv_args &p)
{
    return is_blocked<PATH>(p.b) ? SM90_GEMV_CHUNKS / 2 * NK_SF_ATOM_BYTES : 2 * SM90_GEMV_CHUNKS;
}

/* Points the cursor at a tile. Strides of rows and of rows of atoms fit 32 bits; that of a single row is unused. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void enter_tile(const sm90_gemv_args &p, const team_work &w, int tile, int k_step, cursor &at)
{
    const int lane = threadIdx.x & 31, first = first_position<OCTETS, TEAM>(tile);
    const int64_t from_first = w.first_k_step + k_step;
    const uint32_t stride = (uint32_t)p.b.row_stride, sf_stride = (uint32_t)p.b.sf_row_stride, first_row = w.first_row,
                   atoms_bytes = p.work.atoms_bytes;
    const uint64_t to_first_sf =
        is_blocked<PATH>(p.b) ? (uint64_t)(first_row / NK_SF_ATOM_ROWS) * atoms_bytes : (uint64_t)first_row * sf_stride;
    const uint8_t *codes = p.b.data + w.l * p.b.batch_stride + (uint64_t)first_row * stride +
                           from_first * (SM90_GEMV_K_STEP / 2),
                  *sf = p.b.sf + w.l * p.b.sf_batch_stride + to_first_sf + from_first * sf_of_k_step<PATH>(p);
    at.tile = tile;
    at.k_step = k_step;
    at.codes_rows = (w.positions - first - (lane >> 3) + 3) >> 2;
    at.sf_rows = (w.positions - first - (lane >> 2) + 7) >> 3;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] = kept(codes + (some_row_at<PATH>(p, w, first + 4 * i + (lane >> 3)) * stride + (lane & 7) * 16));
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t position = w.skew + first + 8 * i + (lane >> 2), c = lane & 3;
        at.sf[i] =
            kept(sf + (is_blocked<PATH>(p.b) ? sm90_gemv_blocked_factors(position, atoms_bytes) + c * NK_SF_ATOM_BYTES
                                             : position * sf_stride + c * NK_SF_ATOM_COLS));
    }
}

/* Moves on by `steps` in the same tile. */
template <int PATH, int OCTETS> __device__ inline void move_on(const sm90_gemv_args &p, int steps, cursor &at)
{
    at.k_step += steps;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] += steps * (SM90_GEMV_K_STEP / 2);
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] += steps * sf_of_k_step<PATH>(p);
}

/* Fills what is the same in all tiles. */
__device__ inline void prepare(const team_work &w, cursor &at)
{
    const int lane = threadIdx.x & 31;
    at.codes_k_steps = k_steps_with(w, 4 * (lane & 7));
    at.sf_k_steps = k_steps_with(w, 8 * (lane & 3));
    at.codes_to = kept(slot_at(lane >> 3, lane & 7) - own_byte());
    at.sf_to = kept(SF_OF_SLOT + lane * 4 - own_byte());
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline void advance(const sm90_gemv_args &p, const team_work &w, cursor &at)
{
    if (at.k_step + 1 == w.k_steps)
        enter_tile<PATH, OCTETS, TEAM>(p, w, at.tile + 1, 0, at);
    else
        move_on<PATH, OCTETS>(p, 1, at);
}

/* The scale factors of two chunks, byte by byte. Of their words, `words` exist. */
__device__ inline uint32_t fetch_factors(const uint8_t *sf, int words)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= 2 * i < words ? (uint32_t)sf[i] << 8 * i : 0;
    return bytes;
}

/* Fetches a step's weights into a slot: of this lane's rows the first `codes_rows`, and scale factors of the first
 * `sf_rows`. The other scale factors become zero. */
template <int PATH, int OCTETS>
__device__ inline void fetch_rows(const team_work &w, const cursor &at, int codes_rows, int sf_rows, uint32_t slot)
{
    const int lane = threadIdx.x & 31, words = w.words - at.k_step * SM90_GEMV_WORDS;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++) {
        const uint32_t to = slot + at.codes_to + i / 2 * SLOT_BYTES + (i & 1) * HALF_SLOT;
        const uint8_t *from = at.codes[i];
        if (PATH != NARROW)
            cp_async_cg_hint_if(i < codes_rows, to, from, createpolicy_evict_first());
        else
            st_shared_v4(to, fetch_bytes(from, i < codes_rows ? 4 * (words - 4 * (lane & 7)) : 0));
    }
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t to = slot + at.sf_to + i * SLOT_BYTES;
        const uint8_t *from = at.sf[i];
        if (PATH != NARROW)
            cp_async_ca_l2_128b_zfill_hint<4>(to, from, i < sf_rows ? 4 : 0, createpolicy_evict_first());
        else
            st_shared(to, fetch_factors(from, i < sf_rows ? words - 8 * (lane & 3) : 0));
    }
}

/* Fetches a step's weights. Beyond K, and in rows that do not exist, scale factors are zero and codes are anything. */
template <int PATH, int OCTETS> __device__ inline void fetch(const team_work &w, const cursor &at, uint32_t slot)
{
    fetch_rows<PATH, OCTETS>(w, at, at.k_step < at.codes_k_steps ? at.codes_rows : 0,
                             at.k_step < at.sf_k_steps ? at.sf_rows : 0, slot);
}

/* The same, in a K step that lies within K. */
template <int PATH, int OCTETS> __device__ inline void fetch_whole(const team_work &w, const cursor &at, uint32_t slot)
{
    fetch_rows<PATH, OCTETS>(w, at, at.codes_rows, at.sf_rows, slot);
}

/* Brings a step's weights to L2. Kernels before this one may still write them, since nothing is read. */
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

/* How many steps of the tile lie within K, from the cursor on. */
template <int PATH> __device__ inline int whole_steps(const team_work &w, const cursor &at)
{
    return PATH == NARROW ? 0 : (w.words >> 5) - at.k_step;
}

/* Fetches the first steps, one fewer than the ring has slots. Up to the end of this function the code of most calls
 * lies in the order in which it runs, with few jumps: instructions are fetched ahead, and an SM that lacks them waits
 * up to 2 us for memory. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void fill_ring(const sm90_gemv_args &p, const team_work &w, cursor &ahead, uint32_t ring)
{
    constexpr int STEPS = SM90_GEMV_SLOTS / OCTETS - 1;
    const bool whole = STEPS < whole_steps<PATH>(w, ahead) && STEPS <= w.steps;
#pragma unroll 1 /* short, since code is fetched from memory, too */
    for (int i = 0; whole && i < STEPS; i++) {
        fetch_whole<PATH, OCTETS>(w, ahead, ring + i * OCTETS * SLOT_BYTES);
        cp_async_commit_group();
        move_on<PATH, OCTETS>(p, 1, ahead);
    }
#pragma unroll 1
    for (int i = 0; !whole && i < STEPS; i++) {
        if (i < w.steps) {
            fetch<PATH, OCTETS>(w, ahead, ring + i * OCTETS * SLOT_BYTES);
            advance<PATH, OCTETS, TEAM>(p, w, ahead);
        }
        cp_async_commit_group();
    }
}

/* What a lane multiplies in a step: two chunks of one row of each octet, and their scale factors. */
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

/* Walks through all of a team's steps. It calls products.begin_tile(k_step), .step(weights) for each step, and
 * .end_tile(tile). SLOTS - 1 steps are under way. Steps that lie within K, nearly all, are fetched two at a time with
 * one move of the addresses. All warps of a team take the same way through here, whatever rows they have, since a wgmma
 * is one instruction of all four. */
template <int PATH, int OCTETS, int TEAM, typename PRODUCTS>
__device__ inline void walk(const sm90_gemv_args &p, const team_work &w, cursor &ahead, uint32_t ring,
                            PRODUCTS &products)
{
    constexpr int SLOTS = SM90_GEMV_SLOTS / OCTETS;
    const slot_offsets offsets = slot_offsets_of_lane();
    uint32_t slot = ring, free_slot = ring + (SLOTS - 1) * OCTETS * SLOT_BYTES; /* that of the step before */
    const auto step = [&](auto &&fetch_next) {
        cp_async_wait_group<SLOTS - 2>();
        __syncwarp();
        const weights now = load_slot<OCTETS>(slot, offsets);
        fetch_next();
        cp_async_commit_group();
        free_slot = slot;
        slot += OCTETS * SLOT_BYTES;
        if (slot == ring + SM90_GEMV_RING_BYTES) slot = ring;
        products.step(now);
    };
    const auto fetch_ahead = [&](int steps_on) {
        cursor at = ahead;
        move_on<PATH, OCTETS>(p, steps_on, at);
        fetch_whole<PATH, OCTETS>(w, at, free_slot);
    };
    for (int left = w.steps, tile = w.tile, k_step = w.k_step; left > 0;) {
        const int here = min(left, w.k_steps - k_step), rest = left - here; /* in later tiles */
        /* A fetch that moves on to another tile is no whole one, unless nothing is fetched after it. */
        const int fetches = left - SLOTS + 1, there = whole_steps<PATH>(w, ahead);
        const int whole = PATH == NARROW ? 0 : min(min(here, fetches), there - (there < fetches));
        products.begin_tile(k_step);
#pragma unroll 1
        for (int i = whole; i > 1; i -= 2, left -= 2) {
            step([&] { fetch_ahead(0); });
            step([&] { fetch_ahead(1); });
            move_on<PATH, OCTETS>(p, 2, ahead);
        }
#pragma unroll 1
        for (; left > rest; left--) {
            step([&] {
                if (left < SLOTS) return;
                fetch<PATH, OCTETS>(w, ahead, free_slot);
                advance<PATH, OCTETS, TEAM>(p, w, ahead);
            });
        }
        products.end_tile(tile++);
        k_step = 0;
    }
}

#endif
