/* D[m,n] = alpha * sum over k of W[m,k] X[n,k] on Hopper, the rehearsal of the product's: it uses everything that the
 * product will, at a size that the simulated GPU runs often.
 *
 * W: E2M1 codes [M][K/2] with an E4M3 scale per 16 of K in blocked form; X [N][K] and D [M][N]: fp16 or bf16, rows of
 * W and X contiguous, M, N and K with remainders. A CTA computes tiles of 128 x 64 in steps of K = 64, one after the
 * other (persistent). A cluster has MULTICAST x SPLIT CTAs: MULTICAST neighbours along M share their tile of X, each
 * fetches a part for all of them; SPLIT = 2 parts of K meet in distributed shared memory.
 *
 * Roles: warpgroup 0 load: one thread fetches tiles (TMA)
 *        warpgroup 1 decode (DECODER only): codes and scales to 16-bit tiles for wgmma; without, consumers decode into
 *                    registers
 *        the last two: consumers, 64 rows each: wgmma, the sum of both parts of K, the epilogue
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[STAGES]      load -> decode, consumers   1 arrival + the step's bytes           wait 0
 *   empty[STAGES]     consumers -> load           8 x MULTICAST, a warp each of all      wait 1
 *                                                 that share X; they come after decode
 *   w_full[DECODED]   decode -> consumers         128                                    wait 0
 *   w_empty[DECODED]  consumers -> decode         8, a warp each                         wait 1
 *   part_full         peer's consumers -> ours    1 arrival + the bytes of the sums      wait 0
 *   part_empty        our consumers -> peer's     4, a warp each                         wait 1
 *   BARRIER_D         inside a consumer warpgroup: D's place in shared memory is free; is written
 *   cluster           (else BARRIER_CTA) after the mbarriers are there; before anybody's shared memory goes
 *
 * Shared memory: struct storage. A tile of 16-bit rows lies in panels of SPAN bytes a row (16: no swizzle, 32, 64, 128:
 * the swizzle of that name), panel after panel along K (of D: along N). */
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm90_gemm_tile.cuh"

typedef struct storage {
    uint8_t x[STAGES][X_BYTES];
    uint8_t w[DECODED][TILE_M * ROW_BYTES];
    uint8_t d[CONSUMERS][ROWS * TILE_N * 2];
    uint8_t codes[STAGES][TILE_M * CODE_BYTES];
    uint8_t part[PART_BYTES];
    uint8_t sf[STAGES][NK_SF_ATOM_BYTES];
    uint64_t full[STAGES], empty[STAGES], w_full[DECODED], w_empty[DECODED], part_full, part_empty;
} storage;

static_assert(sizeof(storage) <= 105 * 1024, "what the launch asks for; an SM has 227 KB");

/* Named barriers: of all threads, then one of each consumer. */
enum { BARRIER_CTA, BARRIER_D };

/* sf: [M/128][K/64] atoms of 512 bytes */
typedef struct problem {
    const uint8_t *sf;
    int m, n, k;
    float alpha;
} problem;

/* Which part of what this CTA computes. */
typedef struct place {
    uint32_t first_rank; /* of those that share X */
    int m_rank, k_rank;
    int first_tile, tiles, clusters, m_groups;
    int begin, end; /* steps */
} place;

template <class C> __device__ inline place place_of(const problem &p)
{
    const int rank = (int)cluster_ctarank(), size = C::MULTICAST * C::SPLIT;
    const int steps = (p.k + TILE_K - 1) / TILE_K, share = (steps + C::SPLIT - 1) / C::SPLIT;
    place w;
    w.m_rank = rank % C::MULTICAST;
    w.k_rank = rank / C::MULTICAST;
    w.first_rank = (uint32_t)(rank - w.m_rank);
    w.m_groups = (p.m + TILE_M * C::MULTICAST - 1) / (TILE_M * C::MULTICAST);
    w.tiles = w.m_groups * ((p.n + TILE_N - 1) / TILE_N);
    w.clusters = (int)gridDim.x / size;
    w.first_tile = (int)blockIdx.x / size;
    w.begin = w.k_rank * share;
    w.end = min(w.begin + share, steps);
    return w;
}

template <class C> __device__ inline int first_row(const place &w, int tile)
{
    return (tile % w.m_groups * C::MULTICAST + w.m_rank) * TILE_M;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Prologue                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C> __device__ inline void init_barriers(storage &s)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1);
        mbarrier_init(shared_address(&s.empty[i]), 8 * C::MULTICAST);
    }
    for (int i = 0; C::DECODER && i < DECODED; i++) {
        mbarrier_init(shared_address(&s.w_full[i]), WARPGROUP);
        mbarrier_init(shared_address(&s.w_empty[i]), 8);
    }
    if (C::SPLIT == 2) {
        mbarrier_init(shared_address(&s.part_full), 1);
        mbarrier_init(shared_address(&s.part_empty), 4);
    }
    fence_mbarrier_init();
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Load                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* This CTA's part of the rows of X, for all that share them. */
template <class C>
__device__ inline void load_x(storage &s, const cuda_tensor_map &map, const place &w, int slot, int x, int y)
{
    const int rows = TILE_N / C::MULTICAST, first = w.m_rank * rows;
    const uint32_t full = shared_address(&s.full[slot]);
#pragma unroll
    for (int i = 0; i < ROW_BYTES / C::SPAN; i++) {
        const uint32_t to = shared_address(s.x[slot]) + (uint32_t)(i * TILE_N + first) * C::SPAN;
        const int at[2] = {x + i * C::PANEL_COLS, y + first};
        if (C::MULTICAST == 1)
            cp_async_bulk_tensor_2d(to, &map, at, full);
        else
            cp_async_bulk_tensor_2d_multicast(to, &map, at, full,
                                              (uint16_t)(((1 << C::MULTICAST) - 1) << w.first_rank));
    }
}

template <class C>
__device__ inline void load(storage &s, const cuda_tensor_map &codes, const cuda_tensor_map &x, const problem &p,
                            const place &w)
{
    const int atoms = (p.k + TILE_K - 1) / TILE_K, last_m = (p.m - 1) / TILE_M;
    ring r = {0, 0};
    for (int tile = w.first_tile; tile < w.tiles; tile += w.clusters) {
        const int m = first_row<C>(w, tile), n = tile / w.m_groups * TILE_N;
        const uint8_t *sf = p.sf + (int64_t)min(m / TILE_M, last_m) * atoms * NK_SF_ATOM_BYTES;
#pragma unroll 1
        for (int step = w.begin; step < w.end; step++) {
            const uint32_t full = shared_address(&s.full[r.slot]);
            if (C::MULTICAST == 1)
                wait(s.empty[r.slot], r.phase ^ 1);
            else
                wait_for_cluster(s.empty[r.slot], r.phase ^ 1);
            mbarrier_arrive_expect_tx(full, STEP_BYTES);
            cp_async_bulk_tensor_2d(shared_address(s.codes[r.slot]), &codes, {step * CODE_BYTES, m}, full);
            cp_async_bulk(shared_address(s.sf[r.slot]), sf + step * NK_SF_ATOM_BYTES, NK_SF_ATOM_BYTES, full);
            load_x<C>(s, x, w, r.slot, step * TILE_K, n);
            advance<STAGES>(r);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Decode                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C> __device__ inline void decode(storage &s, const place &w)
{
    const int row = (int)threadIdx.x % WARPGROUP;
    ring from = {0, 0}, to = {0, 0};
    for (int tile = w.first_tile; tile < w.tiles; tile += w.clusters) {
#pragma unroll 1
        for (int step = w.begin; step < w.end; step++) {
            wait(s.full[from.slot], from.phase);
            wait(s.w_empty[to.slot], to.phase ^ 1);
            decode_row<C>(shared_address(s.codes[from.slot]), shared_address(s.sf[from.slot]),
                          shared_address(s.w[to.slot]), row);
            fence_proxy_async(); /* wgmma reads it */
            mbarrier_arrive(shared_address(&s.w_full[to.slot]));
            advance<STAGES>(from);
            advance<DECODED>(to);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Consumers                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct consumer {
    int number, warp, lane; /* of the warpgroups, of its warps */
    ring from, w, part;
} consumer;

/* This warp has done with a step, in every CTA that may write to the slot. */
template <class C> __device__ inline void release_step(storage &s, const place &w, const consumer &c, int slot)
{
    const uint32_t empty = shared_address(&s.empty[slot]);
    if (c.lane) return;
    if (C::MULTICAST == 1) return mbarrier_arrive(empty);
#pragma unroll
    for (int i = 0; i < C::MULTICAST; i++)
        mbarrier_arrive_cluster(mapa(empty, w.first_rank + i));
}

/* Products of tiles that the decoder made; a step's are under way while the next one's are issued. */
template <class C>
__device__ inline void multiply_from_shared(storage &s, const place &w, consumer &c, float (&sums)[32])
{
    int last_slot = -1, last_w = 0;
#pragma unroll 1
    for (int step = w.begin; step < w.end; step++) {
        wait(s.full[c.from.slot], c.from.phase);
        wait(s.w_full[c.w.slot], c.w.phase);
        const uint32_t x = shared_address(s.x[c.from.slot]), tile = shared_address(s.w[c.w.slot]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TILE_K / 16; i++)
            multiply<C>(sums, descriptor<C>(tile, TILE_M, ROWS * c.number, i), descriptor<C>(x, TILE_N, 0, i),
                        step > w.begin || i > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(sums);
        if (last_slot >= 0) {
            release_step<C>(s, w, c, last_slot);
            if (c.lane == 0) mbarrier_arrive(shared_address(&s.w_empty[last_w]));
        }
        last_slot = c.from.slot;
        last_w = c.w.slot;
        advance<STAGES>(c.from);
        advance<DECODED>(c.w);
    }
    wgmma_wait_group<0>(sums);
    release_step<C>(s, w, c, last_slot);
    if (c.lane == 0) mbarrier_arrive(shared_address(&s.w_empty[last_w]));
}

template <class C>
__device__ inline void multiply_from_registers(storage &s, const place &w, consumer &c, float (&sums)[32])
{
#pragma unroll 1
    for (int step = w.begin; step < w.end; step++) {
        uint32_t fragments[4][4];
        wait(s.full[c.from.slot], c.from.phase);
        decode_fragments<C>(shared_address(s.codes[c.from.slot]), shared_address(s.sf[c.from.slot]),
                            ROWS * c.number + 16 * c.warp, fragments);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TILE_K / 16; i++)
            multiply<C>(sums, fragments[i], descriptor<C>(shared_address(s.x[c.from.slot]), TILE_N, 0, i),
                        step > w.begin || i > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>(sums);
        __syncwarp(); /* all have read codes and scales */
        release_step<C>(s, w, c, c.from.slot);
        advance<STAGES>(c.from);
    }
}

/* The other part of K: of the two CTAs, rank 0 collects the sums of consumer 0, rank 1 those of consumer 1. True where
 * this warpgroup has them. */
template <class C> __device__ inline bool join_parts(storage &s, const place &w, consumer &c, float (&sums)[32])
{
    const uint32_t peer = cluster_ctarank() ^ C::MULTICAST, thread = threadIdx.x % WARPGROUP;
    const uint32_t part = shared_address(s.part) + thread * 16, full = shared_address(&s.part_full);
    const bool collects = c.number == w.k_rank;
    if (!collects) {
        wait_for_cluster(s.part_empty, c.part.phase ^ 1);
        for (int i = 0; i < 8; i++)
            st_async_v4(mapa(part + i * WARPGROUP * 16, peer), sums + 4 * i, mapa(full, peer));
    } else {
        if (thread == 0) mbarrier_arrive_expect_tx(full, PART_BYTES);
        wait_for_cluster(s.part_full, c.part.phase);
        for (int i = 0; i < 8; i++) {
            const uint4 other = ld_shared_v4(part + i * WARPGROUP * 16);
            sums[4 * i] += __uint_as_float(other.x);
            sums[4 * i + 1] += __uint_as_float(other.y);
            sums[4 * i + 2] += __uint_as_float(other.z);
            sums[4 * i + 3] += __uint_as_float(other.w);
        }
        __syncwarp(); /* all have read */
        if (c.lane == 0) mbarrier_arrive_cluster(mapa(shared_address(&s.part_empty), peer));
    }
    advance<1>(c.part);
    return collects;
}

/* Sums to a tile of D: row lane / 4 and eight further, columns 2 * (lane % 4) and the next, of every eight. */
template <class C>
__device__ inline void store(storage &s, const cuda_tensor_map &map, const consumer &c, float scale,
                             const float sums[32], int m, int n)
{
    const bool issues = c.warp == 0 && c.lane == 0;
    const uint32_t tile = shared_address(s.d[c.number]);
    if (issues) cp_async_bulk_wait_group_read<0>(); /* of the tile before */
    bar_sync<WARPGROUP>(BARRIER_D + c.number);
#pragma unroll
    for (int i = 0; i < TILE_N / 16; i++) {
        uint32_t pairs[4];
        for (int k = 0; k < 4; k++)
            pairs[k] = pair_of<C::BF16>(sums[8 * i + 2 * k] * scale, sums[8 * i + 2 * k + 1] * scale);
        stmatrix_x4(swizzled<C>(tile, ROWS, 16 * c.warp + c.lane % 16, 32 * i + c.lane / 16 * 16), pairs);
    }
    fence_proxy_async(); /* the copy reads it */
    bar_sync<WARPGROUP>(BARRIER_D + c.number);
    if (!issues) return;
    for (int i = 0; i < TILE_N / C::PANEL_COLS; i++)
        cp_async_bulk_tensor_2d_store(&map, {n + i * C::PANEL_COLS, m + ROWS * c.number}, tile + i * ROWS * C::SPAN);
    cp_async_bulk_commit_group();
}

template <class C>
__device__ inline void consume(storage &s, const cuda_tensor_map &d, const problem &p, const place &w, int number)
{
    consumer c = {number, (int)threadIdx.x / 32 % 4, (int)threadIdx.x % 32, {0, 0}, {0, 0}, {0, 0}};
    for (int tile = w.first_tile; tile < w.tiles; tile += w.clusters) {
        float sums[32];
        if (C::DECODER)
            multiply_from_shared<C>(s, w, c, sums);
        else
            multiply_from_registers<C>(s, w, c, sums);
        if (C::SPLIT == 2 && !join_parts<C>(s, w, c, sums)) continue;
        store<C>(s, d, c, p.alpha * NVFP4_DECODE_SCALE, sums, first_row<C>(w, tile), tile / w.m_groups * TILE_N);
    }
    cp_async_bulk_wait_group_read<0>(); /* shared memory must last until then */
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernels                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C>
__device__ inline void run(const cuda_tensor_map &codes, const cuda_tensor_map &x, const cuda_tensor_map &d,
                           const problem &p)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    storage &s = *(storage *)raw;
    const int warpgroup = (int)threadIdx.x / WARPGROUP, consumer = warpgroup - 1 - C::DECODER;
    const place w = place_of<C>(p);
    if (threadIdx.x == 0) init_barriers<C>(s);
    if (C::MULTICAST * C::SPLIT > 1) {
        barrier_cluster_arrive(); /* not .aligned, as the last: lanes of the load warp come one by one there */
        barrier_cluster_wait();
    } else {
        bar_sync<C::THREADS>(BARRIER_CTA);
    }
    if (warpgroup == 0) {
        setmaxnreg_dec<C::LOAD_REGISTERS>();
        if (threadIdx.x == 0) load<C>(s, codes, x, p, w);
    } else if (C::DECODER && consumer < 0) {
        setmaxnreg_dec<C::DECODE_REGISTERS>();
        decode<C>(s, w);
    } else {
        setmaxnreg_inc<C::CONSUMER_REGISTERS>();
        consume<C>(s, d, p, w, consumer);
    }
    if (C::MULTICAST * C::SPLIT > 1) { /* peers may have yet to signal or write here */
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait();
    }
}

#define KERNEL(name, ...)                                                                         \
    extern "C" __global__ __launch_bounds__(config<__VA_ARGS__>::THREADS, 1) void name(           \
        const __grid_constant__ cuda_tensor_map codes, const __grid_constant__ cuda_tensor_map x, \
        const __grid_constant__ cuda_tensor_map d, const problem p)                               \
    {                                                                                             \
        run<config<__VA_ARGS__>>(codes, x, d, p);                                                 \
    }

/* span, multicast, split, decoder, bf16 */
KERNEL(sm90_gemm_ss_128, 128, 1, 1, true, false)
KERNEL(sm90_gemm_ss_64_multicast_2, 64, 2, 1, true, false)
KERNEL(sm90_gemm_ss_32_multicast_4, 32, 4, 1, true, false)
KERNEL(sm90_gemm_ss_none, 16, 1, 1, true, true)
KERNEL(sm90_gemm_rs_128_multicast_2, 128, 2, 1, false, true)
KERNEL(sm90_gemm_rs_64_split_2, 64, 1, 2, false, false)
KERNEL(sm90_gemm_ss_128_multicast_2_split_2, 128, 2, 2, true, true)
