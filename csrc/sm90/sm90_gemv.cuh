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

/* What a CTA has to do, and this warp's team of it: steps begin .. end. */
typedef struct share {
    int64_t l, first_place;
    int places;
    int first_unit, units, words; /* of the CTA's part of K; the last CTA's may be shorter */
    int begin, end;
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

/* sf_at where the layout is known. */
template <int PATH>
__device__ inline const uint8_t *factors_at(const nk_operand &o, int64_t l, int64_t row, int64_t block, int64_t k)
{
    const uint8_t *sf = o.sf + l * o.sf_batch_stride;
    if (is_blocked<PATH>(o)) return sf + nk_sf_blocked_offset(row, block, k / NK_SF_VEC);
    return sf + row * o.sf_row_stride + block;
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline share share_of_warp(const nk_gemm_problem &p, const sm90_gemv_params &s)
{
    const int team = warp_index() / TEAM, rows = rows_of_tile<OCTETS, TEAM>, k = (int)p.k;
    const uint32_t cluster = blockIdx.x >> s.log_cluster, rank = blockIdx.x - (cluster << s.log_cluster);
    const uint32_t batch = s.clusters == gridDim.x >> s.log_cluster ? 0 : cluster / s.clusters;
    share w;
    w.l = batch;
    w.first_place = (int64_t)(cluster - batch * s.clusters) * s.rows;
    w.places = (int)min((int64_t)s.rows, sm90_gemv_places(p.n, is_blocked<PATH>(p.b)) - w.first_place);
    w.first_unit = rank * s.units;
    w.units = max(0, min(s.units, (int)sm90_gemv_units(k) - w.first_unit));
    w.words = min(w.units * SM90_GEMV_WORDS, k / 8 - w.first_unit * SM90_GEMV_WORDS);
    const int tiles = (w.places + rows - 1) / rows, steps = tiles * w.units;
    w.begin = min(team * s.run, steps);
    w.end = min(w.begin + s.run, steps);
    return w;
}

/* The row at a place of the CTA, or another one where there is none. */
template <int PATH> __device__ inline int64_t row_at(const nk_gemm_problem &p, const share &w, int place)
{
    const int64_t at = w.first_place + min(place, w.places - 1);
    if (!is_blocked<PATH>(p.b)) return at;
    const int64_t row = sm90_gemv_row(at, true);
    return row < p.n ? row : sm90_gemv_row(at & ~(int64_t)3, true);
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
    at.codes_to = kept(slot_at(lane >> 3, lane & 7));
    at.sf_to = kept(1024 + lane * 4);
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++) {
        const int64_t row = row_at<PATH>(p, w, first + 4 * i + (lane >> 3));
        at.codes[i] = p.b.data + w.l * p.b.batch_stride + row * p.b.row_stride + k / 2 + (lane & 7) * 16;
    }
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const int64_t row = row_at<PATH>(p, w, first + 8 * i + (lane >> 2));
        at.sf[i] = factors_at<PATH>(p.b, w.l, row, k / NK_SF_VEC, p.k) +
                   (lane & 3) * (is_blocked<PATH>(p.b) ? NK_SF_ATOM_BYTES : NK_SF_ATOM_COLS);
    }
}

template <int PATH, int OCTETS, int TEAM>
__device__ inline void advance(const nk_gemm_problem &p, const share &w, cursor &at)
{
    if (++at.unit == w.units) return enter_tile<PATH, OCTETS, TEAM>(p, w, at.tile + 1, 0, at);
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++)
        at.codes[i] += SM90_GEMV_UNIT / 2;
#pragma unroll
    for (int i = 0; i < OCTETS; i++)
        at.sf[i] += is_blocked<PATH>(p.b) ? SM90_GEMV_CHUNKS / 2 * NK_SF_ATOM_BYTES : 2 * SM90_GEMV_CHUNKS;
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

/* A step's weights into a slot, nothing where there is no step. Scale factors beyond K and of rows that are not there
 * are zero: any codes do there. */
template <int PATH, int OCTETS>
__device__ inline void fetch(const share &w, const cursor &at, bool wanted, uint32_t slot)
{
    const int lane = threadIdx.x & 31, words = w.words - at.unit * SM90_GEMV_WORDS;
    const int codes_rows = wanted && at.unit < at.codes_units ? at.codes_rows : 0;
    const int sf_rows = wanted && at.unit < at.sf_units ? at.sf_rows : 0;
    const uint32_t codes_to = slot + at.codes_to, sf_to = slot + at.sf_to;
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++) {
        const uint32_t to = codes_to + i / 2 * SM90_GEMV_SLOT_BYTES + (i & 1) * 512;
        if (PATH != NARROW)
            cp_async_16(to, at.codes[i], i < codes_rows);
        else
            st_shared_v4(to, fetch_bytes(at.codes[i], i < codes_rows ? 4 * (words - 4 * (lane & 7)) : 0));
    }
#pragma unroll
    for (int i = 0; i < OCTETS; i++) {
        const uint32_t to = sf_to + i * SM90_GEMV_SLOT_BYTES;
        if (PATH != NARROW)
            cp_async_4_or_zero(to, at.sf[i], i < sf_rows);
        else
            st_shared(to, fetch_factors(at.sf[i], i < sf_rows ? words - 8 * (lane & 3) : 0));
    }
    cp_async_commit_group();
}

/* The first steps, as many as there is room for but one. */
template <int PATH, int OCTETS, int TEAM>
__device__ inline void fill_ring(const nk_gemm_problem &p, const share &w, cursor &ahead, uint32_t ring)
{
#pragma unroll 1 /* code is fetched from memory, too */
    for (int i = 0; i < SM90_GEMV_SLOTS / OCTETS - 1; i++) {
        const bool wanted = w.begin + i < w.end;
        fetch<PATH, OCTETS>(w, ahead, wanted, ring + i * OCTETS * SM90_GEMV_SLOT_BYTES);
        if (wanted) advance<PATH, OCTETS, TEAM>(p, w, ahead);
    }
}

#endif
