/* What the kernels for few tokens share: the order in which a warp walks over its weights, and fetching them. */
#ifndef NK_SM90_GEMV_CUH
#define NK_SM90_GEMV_CUH

#include "../cuda/nvfp4.cuh"
#include "sm90_gemv_config.h"
#include "sm90_ptx.cuh"

/* How weights are read: every address aligned and K % 32 = 0, in one of the layouts of scale factors; or byte by byte.
 */
enum { LINEAR, BLOCKED, NARROW };

/* The same for all lanes, which the compiler learns of the shuffle. */
__device__ inline int warp_index() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

/* Octets of rows that a warp has of a tile. A tile is a team's: TEAM warps side by side. */
enum { SHORT = 1, TALL = 2 };

template <int OCTETS, int TEAM> constexpr int rows_of_tile = OCTETS * TEAM * SM90_GEMV_OCTET;

template <int TEAM> constexpr int side_of = TEAM == 1 ? SM90_GEMV_SIDE : 1;

/* What a CTA has to do, and this warp's team of it: steps begin .. end, every side_of<TEAM>-th of them. */
typedef struct share {
    int64_t l, first_row;         /* an atom's first where scale factors are blocked: */
    int skew, places;             /* so many places behind it the CTA's begin */
    int rows;                     /* that there are from first_row on, or more than anyone asks for */
    int first_unit, units, words; /* of the CTA's part of K; the last CTA's may be shorter */
    int begin, end;
} share;

/* The team's next step after that of (tile, unit). */
template <int TEAM> __device__ inline void next_step(const share &w, int &tile, int &unit)
{
    unit += side_of<TEAM>;
    while (unit >= w.units) {
        unit -= w.units;
        tile++;
        if (TEAM != 1) break; /* one unit at a time */
    }
}

/* What a warp fetches next: whole lines, eight lanes for a row's codes of a unit, four for its scale factors. */
typedef struct cursor {
    const uint8_t *codes[4], *sf[2]; /* this lane's, in every fourth, every eighth of the warp's rows */
    int tile, unit;
    int codes_units, sf_units; /* of which units this lane has something: those below */
    int codes_rows, sf_rows;   /* how many of its rows there are */
    int whole_units;           /* units below this have all that the warp fetches */
    uint32_t codes_to, sf_to;  /* where in a slot */
} cursor;

template <int PATH> __device__ inline bool is_blocked(const nk_operand &o)
{
    return PATH == BLOCKED || (PATH == NARROW && o.sf_layout == NK_SF_BLOCKED);
}

/* Where scale factor `block` of a row lies from the beginning of W's, or of an atom's. */
template <int PATH> __device__ inline int64_t factors_at(const nk_gemm_problem &p, int64_t row, int block)
{
    return is_blocked<PATH>(p.b) ? nk_sf_blocked_offset(row, block, (uint32_t)p.k / NK_SF_VEC)
                                 : row * p.b.sf_row_stride + block;
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline share share_of_warp(const nk_gemm_problem &p, const sm90_gemv_params &s)
{
    const int team = warp_index() / TEAM, rows = rows_of_tile<OCTETS, TEAM>, k = (int)p.k;
    const uint32_t cluster = blockIdx.x >> s.log_cluster, rank = blockIdx.x - (cluster << s.log_cluster);
    const uint32_t batch = s.clusters == gridDim.x >> s.log_cluster ? 0 : cluster / s.clusters;
    share w;
    w.l = batch;
    const int64_t first = (int64_t)(cluster - batch * s.clusters) * s.rows;
    w.skew = is_blocked<PATH>(p.b) ? (int)first & (NK_SF_ATOM_ROWS - 1) : 0;
    w.first_row = first - w.skew;
    w.places = (int)min((int64_t)s.rows, sm90_gemv_places(p.n, is_blocked<PATH>(p.b)) - first);
    w.rows = (int)min(p.n - w.first_row, (int64_t)2 * SM90_GEMV_ROWS);
    w.first_unit = rank * s.units;
    w.units = max(0, min(s.units, (int)sm90_gemv_units(k) - w.first_unit));
    w.words = min(w.units * SM90_GEMV_WORDS, k / 8 - w.first_unit * SM90_GEMV_WORDS);
    const int tiles = (w.places + rows - 1) / rows, steps = tiles * w.units;
    const int lot = team / side_of<TEAM>;
    w.end = min((lot + 1) * s.run, steps);
    w.begin = min(lot * s.run + team % side_of<TEAM>, w.end);
    return w;
}

/* The row at a place of the CTA, counted from first_row. */
template <int PATH> __device__ inline int row_at(const nk_gemm_problem &p, const share &w, int place)
{
    const int at = w.skew + place;
    return is_blocked<PATH>(p.b) ? sm90_gemv_blocked_row(at) : at;
}

/* The same, or another row where there is none. */
template <int PATH> __device__ inline uint32_t some_row_at(const nk_gemm_problem &p, const share &w, int place)
{
    const int row = row_at<PATH>(p, w, min(place, w.places - 1));
    return is_blocked<PATH>(p.b) && row >= w.rows ? row & 31 | row & ~(NK_SF_ATOM_ROWS - 1) : row;
}

/* Where part `part` of 16 bytes of a row of eight lies in a slot: lanes (row, part / 2) meet no bank twice. Row + 4 is
 * 512 bytes on. */
__device__ inline uint32_t slot_at(int row, int part) { return row * 128 + (part ^ (row & 1)) * 16; }

/* In how many units there is something from word `first` on. */
__device__ inline int units_with(const share &w, int first)
{
    return (w.words - first + SM90_GEMV_WORDS - 1) / SM90_GEMV_WORDS;
}

/* At which of the CTA's places the warp's rows of a tile begin. */
template <int OCTETS, int TEAM> __device__ inline int first_place(int tile)
{
    return (tile * TEAM + (TEAM == 1 ? 0 : warp_index() % TEAM)) * (OCTETS * SM90_GEMV_OCTET);
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline void enter_tile(const nk_gemm_problem &p, const share &w, int tile, int unit, cursor &at)
{
    const int lane = threadIdx.x & 31, first = first_place<OCTETS, TEAM>(tile);
    const int k = (w.first_unit + unit) * SM90_GEMV_UNIT;
    at.tile = tile;
    at.unit = unit;
    at.codes_units = units_with(w, 4 * (lane & 7));
    at.sf_units = units_with(w, 8 * (lane & 3));
    at.codes_rows = (w.places - first - (lane >> 3) + 3) >> 2;
    at.sf_rows = (w.places - first - (lane >> 2) + 7) >> 3;
    at.whole_units = first + OCTETS * SM90_GEMV_OCTET <= w.places ? w.words / SM90_GEMV_WORDS : 0;
    at.codes_to = kept(slot_at(lane >> 3, lane & 7));
    at.sf_to = kept(1024 + lane * 4);
    const uint8_t *codes = p.b.data + w.l * p.b.batch_stride + w.first_row * p.b.row_stride + k / 2 + (lane & 7) * 16,
                  *sf = p.b.sf + w.l * p.b.sf_batch_stride +
                        factors_at<PATH>(p, w.first_row, k / NK_SF_VEC + (lane & 3) * NK_SF_ATOM_COLS);
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] = codes + some_row_at<PATH>(p, w, first + 4 * i + (lane >> 3)) * p.b.row_stride;
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] = sf + factors_at<PATH>(p, some_row_at<PATH>(p, w, first + 8 * i + (lane >> 2)), 0);
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline void advance(const nk_gemm_problem &p, const share &w, cursor &at)
{
    int tile = at.tile, unit = at.unit;
    next_step<TEAM>(w, tile, unit);
    if (tile != at.tile) return enter_tile<PATH, OCTETS, TEAM>(p, w, tile, unit, at);
    at.unit = unit;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] += side_of<TEAM> * (SM90_GEMV_UNIT / 2);
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] +=
            side_of<TEAM> * (is_blocked<PATH>(p.b) ? SM90_GEMV_CHUNKS / 2 * NK_SF_ATOM_BYTES : 2 * SM90_GEMV_CHUNKS);
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
        const uint32_t to = slot + at.codes_to + i / 2 * SM90_GEMV_SLOT_BYTES + (i & 1) * 512;
        if (PATH != NARROW)
            cp_async_16(to, at.codes[i], i < codes_rows);
        else
            st_shared_v4(to, fetch_bytes(at.codes[i], i < codes_rows ? 4 * (words - 4 * (lane & 7)) : 0));
    }
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t to = slot + at.sf_to + i * SM90_GEMV_SLOT_BYTES;
        if (PATH != NARROW)
            cp_async_4_or_zero(to, at.sf[i], i < sf_rows);
        else
            st_shared(to, fetch_factors(at.sf[i], i < sf_rows ? words - 8 * (lane & 3) : 0));
    }
}

/* A step's weights. Scale factors beyond K and of rows that are not there are zero: any codes do there. */
template <int PATH, int OCTETS> __device__ inline void fetch(const share &w, const cursor &at, uint32_t slot)
{
    if (PATH != NARROW && at.unit < at.whole_units)
        return fetch_rows<PATH, OCTETS>(w, at, 2 * OCTETS, OCTETS, slot); /* nothing to compare */
    fetch_rows<PATH, OCTETS>(w, at, at.unit < at.codes_units ? at.codes_rows : 0,
                             at.unit < at.sf_units ? at.sf_rows : 0, slot);
}

/* The first steps, as many as there is room for but one. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void fill_ring(const nk_gemm_problem &p, const share &w, cursor &ahead, uint32_t ring)
{
#pragma unroll 1 /* code is fetched from memory, too */
    for (int i = 0; i < SM90_GEMV_SLOTS / OCTETS - 1; i++) {
        if (w.begin + i * side_of<TEAM> < w.end) {
            fetch<PATH, OCTETS>(w, ahead, ring + i * OCTETS * SM90_GEMV_SLOT_BYTES);
            advance<PATH, OCTETS, TEAM>(p, w, ahead);
        }
        cp_async_commit_group();
    }
}

#endif
