/* What the kernels for few tokens share: the order in which a warp walks over its weights, and fetching them. */
#ifndef NK_SM90_GEMV_CUH
#define NK_SM90_GEMV_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm90_gemv_memory.h"

#include <stddef.h>

extern __shared__ __align__(1024) uint4 smem[]; /* as tensor maps swizzle */

__device__ inline sm90_gemv_head &head() { return *(sm90_gemv_head *)smem; }

/* How weights are read: every address aligned and K % 64 = 0, in one of the layouts of scale factors; or byte by byte.
 */
enum { LINEAR, BLOCKED, NARROW };

/* The same for all lanes, which the compiler learns of the shuffle. */
__device__ inline uint32_t warp_index() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

/* Octets of rows that a warp has of a tile. A tile is a team's: TEAM warps side by side. */
enum { SHORT = 1, TALL = 2 };

template <int OCTETS, int TEAM> constexpr int rows_of_tile = OCTETS * TEAM * SM90_GEMV_OCTET;

/* What a CTA has to do, and this warp's team of it. */
typedef struct share {
    int l, first_row;             /* an atom's first where scale factors are blocked: */
    int skew, places;             /* so many places behind it the CTA's begin */
    int rows;                     /* that there are from first_row on */
    int first_unit, units, words; /* of the CTA's part of K; the last CTA's may be shorter */
    int tile, unit, steps;
    int first_tile, teams_before; /* that have begun this tile before; it is the first of all others */
} share;

/* What a warp fetches next: whole lines, eight lanes for a row's codes of a unit, four for its scale factors. */
typedef struct cursor {
    const uint8_t *codes[4], *sf[2]; /* this lane's, in every fourth, every eighth of the warp's rows */
    int tile, unit;
    int codes_units, sf_units; /* of which units this lane has something: those below */
    int codes_rows, sf_rows;   /* how many of its rows there are */
    uint32_t codes_to, sf_to;  /* where in a slot */
} cursor;

template <int PATH> __device__ inline bool is_blocked(const nk_operand &o)
{
    return PATH == BLOCKED || (PATH == NARROW && o.sf_layout == NK_SF_BLOCKED);
}

template <int PATH, int OCTETS, int TEAM> __device__ inline share share_of_warp(const sm90_gemv_args &p)
{
    const sm90_gemv_work &s = p.work;
    const int team = warp_index() / TEAM, rank = blockIdx.y, first = blockIdx.x * s.rows;
    share w;
    w.l = blockIdx.z;
    w.skew = is_blocked<PATH>(p.b) ? first & (NK_SF_ATOM_ROWS - 1) : 0;
    w.first_row = first - w.skew;
    w.places = min(s.rows, s.all_places - first);
    w.rows = s.n - w.first_row;
    w.first_unit = rank * s.units;
    w.units = max(0, min(s.units, s.all_units - w.first_unit));
    w.words = min(w.units * SM90_GEMV_WORDS, s.all_words - w.first_unit * SM90_GEMV_WORDS);
    const uint32_t start = p.starts[team][w.units < s.units];
    w.tile = w.first_tile = sm90_gemv_start_tile(start);
    w.unit = sm90_gemv_start_unit(start);
    w.teams_before = sm90_gemv_teams_before(start);
    const uint32_t rows = rows_of_tile<OCTETS, TEAM>;
    w.steps = max(0, min(s.run, (int)((w.places + rows - 1) / rows) * w.units - team * s.run));
    return w;
}

/* The row at a place of the CTA, counted from first_row. */
template <int PATH> __device__ inline int row_at(const sm90_gemv_args &p, const share &w, int place)
{
    const int at = w.skew + place;
    return is_blocked<PATH>(p.b) ? sm90_gemv_blocked_row(at) : at;
}

/* The same, or another row where an atom lacks it. */
template <int PATH> __device__ inline uint32_t some_row_at(const sm90_gemv_args &p, const share &w, int place)
{
    const int row = row_at<PATH>(p, w, place);
    return is_blocked<PATH>(p.b) ? min(row, w.rows - 1) : row;
}

/* Where chunk `chunk` of a row's codes lies in a slot: lanes (row, chunk / 2) meet no bank twice. Row + 4 lies
 * HALF_SLOT behind. */
constexpr int SLOT_BYTES = sizeof(sm90_gemv_slot), SLOT_LINE = sizeof(sm90_gemv_slot::codes[0]),
              HALF_SLOT = sizeof(sm90_gemv_slot::codes) / 2, SF_OF_SLOT = offsetof(sm90_gemv_slot, sf);

__device__ inline uint32_t slot_at(int row, int chunk) { return row * SLOT_LINE + (chunk ^ (row & 1)) * 16; }

/* Slots are counted from this byte: each lane has its own address of a slot, see createpolicy_evict_first(). */
__device__ inline uint32_t own_byte() { return (threadIdx.x & 31) * 16; }

__device__ inline uint32_t ring_of_warp()
{
    return shared_address(smem) + (uint32_t)sizeof(sm90_gemv_head) + warp_index() * SM90_GEMV_RING_BYTES + own_byte();
}

/* In how many units there is something from word `first` on. */
__device__ inline int units_with(const share &w, int first) { return (w.words - first + SM90_GEMV_WORDS - 1) >> 5; }

/* At which of the CTA's places the warp's rows of a tile begin. */
template <int OCTETS, int TEAM> __device__ inline int first_place(int tile)
{
    return (tile * TEAM + warp_index() % TEAM) * (OCTETS * SM90_GEMV_OCTET);
}

/* Bytes from one unit of a row's scale factors to the next. */
template <int PATH> __device__ inline int64_t sf_of_unit(const sm90_gemv_args &p)
{
    return is_blocked<PATH>(p.b) ? SM90_GEMV_CHUNKS / 2 * NK_SF_ATOM_BYTES : 2 * SM90_GEMV_CHUNKS;
}

/* Strides of rows and of rows of atoms fit 32 bits, or are those of a lone row, which lead nowhere. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void enter_tile(const sm90_gemv_args &p, const share &w, int tile, int unit, cursor &at)
{
    const int lane = threadIdx.x & 31, first = first_place<OCTETS, TEAM>(tile);
    const int64_t from_first = w.first_unit + unit;
    const uint32_t stride = (uint32_t)p.b.row_stride, sf_stride = (uint32_t)p.b.sf_row_stride, first_row = w.first_row,
                   atoms_bytes = p.work.atoms_bytes;
    const uint64_t to_first_sf =
        is_blocked<PATH>(p.b) ? (uint64_t)(first_row / NK_SF_ATOM_ROWS) * atoms_bytes : (uint64_t)first_row * sf_stride;
    const uint8_t *codes = p.b.data + w.l * p.b.batch_stride + (uint64_t)first_row * stride +
                           from_first * (SM90_GEMV_UNIT / 2),
                  *sf = p.b.sf + w.l * p.b.sf_batch_stride + to_first_sf + from_first * sf_of_unit<PATH>(p);
    at.tile = tile;
    at.unit = unit;
    at.codes_rows = (w.places - first - (lane >> 3) + 3) >> 2;
    at.sf_rows = (w.places - first - (lane >> 2) + 7) >> 3;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] = kept(codes + (some_row_at<PATH>(p, w, first + 4 * i + (lane >> 3)) * stride + (lane & 7) * 16));
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t place = w.skew + first + 8 * i + (lane >> 2), c = lane & 3;
        at.sf[i] =
            kept(sf + (is_blocked<PATH>(p.b) ? sm90_gemv_blocked_factors(place, atoms_bytes) + c * NK_SF_ATOM_BYTES
                                             : place * sf_stride + c * NK_SF_ATOM_COLS));
    }
}

/* So many steps of the same tile on. */
template <int PATH, int OCTETS> __device__ inline void move_on(const sm90_gemv_args &p, int steps, cursor &at)
{
    at.unit += steps;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] += steps * (SM90_GEMV_UNIT / 2);
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] += steps * sf_of_unit<PATH>(p);
}

/* What stays for all tiles. */
__device__ inline void prepare(const share &w, cursor &at)
{
    const int lane = threadIdx.x & 31;
    at.codes_units = units_with(w, 4 * (lane & 7));
    at.sf_units = units_with(w, 8 * (lane & 3));
    at.codes_to = kept(slot_at(lane >> 3, lane & 7) - own_byte());
    at.sf_to = kept(SF_OF_SLOT + lane * 4 - own_byte());
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline void advance(const sm90_gemv_args &p, const share &w, cursor &at)
{
    if (at.unit + 1 == w.units)
        enter_tile<PATH, OCTETS, TEAM>(p, w, at.tile + 1, 0, at);
    else
        move_on<PATH, OCTETS>(p, 1, at);
}

/* The scale factors of two chunks of which `words` are there. */
__device__ inline uint32_t fetch_factors(const uint8_t *sf, int words)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= 2 * i < words ? (uint32_t)sf[i] << 8 * i : 0;
    return bytes;
}

/* Of a step's weights what lies in so many rows of this lane, into a slot; zeros for other scale factors. */
template <int PATH, int OCTETS>
__device__ inline void fetch_rows(const share &w, const cursor &at, int codes_rows, int sf_rows, uint32_t slot)
{
    const int lane = threadIdx.x & 31, words = w.words - at.unit * SM90_GEMV_WORDS;
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

/* A step's weights. Scale factors beyond K and of rows that are not there are zero: any codes do there. */
template <int PATH, int OCTETS> __device__ inline void fetch(const share &w, const cursor &at, uint32_t slot)
{
    fetch_rows<PATH, OCTETS>(w, at, at.unit < at.codes_units ? at.codes_rows : 0,
                             at.unit < at.sf_units ? at.sf_rows : 0, slot);
}

/* The same, in a unit that is all there. */
template <int PATH, int OCTETS> __device__ inline void fetch_whole(const share &w, const cursor &at, uint32_t slot)
{
    fetch_rows<PATH, OCTETS>(w, at, at.codes_rows, at.sf_rows, slot);
}

/* A step's weights to L2. Kernels before this one may still write them: nothing is read. */
template <int OCTETS> __device__ inline void prefetch_codes(const cursor &at)
{
    const int rows = at.unit < at.codes_units ? at.codes_rows : 0;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        prefetch_global_l2_if(i < rows, at.codes[i]);
}

template <int OCTETS> __device__ inline void prefetch_factors(const cursor &at)
{
    const int rows = at.unit < at.sf_units ? at.sf_rows : 0;
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        prefetch_global_l2_if(i < rows, at.sf[i]);
}

/* Steps in units that are all there, from where a team is to the end of the tile. */
template <int PATH> __device__ inline int whole_steps(const share &w, const cursor &at)
{
    return PATH == NARROW ? 0 : (w.words >> 5) - at.unit;
}

/* The first steps, as many as there is room for but one. Here and before, what most calls run has no jumps back to what
 * comes later in the code, and few over what they leave out: instructions are fetched ahead, and a CTA on an SM that
 * lacks them waits for memory, up to 2 us. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void fill_ring(const sm90_gemv_args &p, const share &w, cursor &ahead, uint32_t ring)
{
    constexpr int STEPS = SM90_GEMV_SLOTS / OCTETS - 1;
    const bool whole = STEPS < whole_steps<PATH>(w, ahead) && STEPS <= w.steps;
#pragma unroll 1 /* code is fetched from memory, too */
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

/* Where in a slot a lane finds them. */
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

/* Through all of a team's steps: products.begin_tile(unit), .step(weights) for each, .end_tile(tile). SLOTS - 1 steps
 * are under way. Those in units that are all there, nearly all, are fetched two at a time with one move of the
 * addresses. A team's warps take the same way through here, whatever rows they have: a wgmma is one instruction of all
 * four. */
template <int PATH, int OCTETS, int TEAM, typename PRODUCTS>
__device__ inline void walk(const sm90_gemv_args &p, const share &w, cursor &ahead, uint32_t ring, PRODUCTS &products)
{
    constexpr int SLOTS = SM90_GEMV_SLOTS / OCTETS;
    const slot_offsets offsets = slot_offsets_of_lane();
    uint32_t slot = ring, free_slot = ring + (SLOTS - 1) * OCTETS * SLOT_BYTES; /* of the step before */
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
    for (int left = w.steps, tile = w.tile, unit = w.unit; left > 0;) {
        const int here = min(left, w.units - unit), rest = left - here; /* in later tiles */
        /* A fetch that moves on to another tile is not among the whole ones, unless nothing is fetched after it. */
        const int fetches = left - SLOTS + 1, there = whole_steps<PATH>(w, ahead);
        const int whole = PATH == NARROW ? 0 : min(min(here, fetches), there - (there < fetches));
        products.begin_tile(unit);
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
        unit = 0;
    }
}

#endif
