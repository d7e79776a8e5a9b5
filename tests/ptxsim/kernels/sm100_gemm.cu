/* D[m,n] = fp16(alpha * sum_k A[m,k] SFA[m,k/16] B[n,k] SFB[n,k/16]): NVFP4, K-major, scale factors in atoms (128 rows,
 * 64 of K). K is a multiple of 64, M and N are any; a row of D starts at a multiple of 16 bytes.
 *
 * No part of the package: a rehearsal, executed by the simulated GPU, of what kernels for sm_100 need.
 *
 * Work: a group is the CTA or the pair of CTAs that an MMA spans (cta_group); its tile is 128 or 256 rows by N columns.
 * A cluster is one group, or two whose tiles lie side by side: along N they share A, along M they share B. Of a shared
 * operand each CTA loads a part, for all (multicast); so do both CTAs of a pair with SFB, which both need whole.
 * Clusters take every tile at a distance (STATIC), or ask for that of a cluster yet to start (CLC).
 *
 * Roles, a warp each: producer (TMA and bulk copies fill stages), MMA issuer (in the even CTA of a pair), owner of the
 * tensor memory, scheduler (CLC), and four epilogue warps, each of them with the 32 rows of its lanes of tensor memory.
 *
 * Barriers (phases alternate; who waits for "empty" begins with the phase before the first, which is over):
 *   full[stage]     producer -> MMA issuer, of the group's even CTA: 1 arrival with the bytes of all CTAs of the group,
 *                   and these bytes, whoever loads them
 *   empty[stage]    MMA issuers -> producers, in every CTA of the cluster: 1 arrival of each group (commit), as what a
 *                   producer writes goes to all groups
 *   acc_full[a]     MMA issuer -> epilogue, in each CTA of the group: 1 arrival (commit)
 *   acc_empty[a]    epilogue -> MMA issuer, in the even CTA: 4 warps of each CTA of the group, once they have loaded
 *   clc_full[c]     scheduler -> all roles of its CTA: 1 arrival with the bytes of a response, and these
 *   clc_empty[c]    all who read a response -> scheduler of the cluster's first CTA: producer, scheduler and epilogue
 *                   warps of each CTA, the MMA issuer of each group
 *   cluster         barriers are initialised and tensor memory is there, before anybody uses what is another's; all
 *                   have finished, before tensor memory and CTAs go. The producers wait for all commits first.
 *
 * Scale factors: the MMA issuer copies a stage's atoms to tensor memory (tcgen05.cp), which the MMAs behind them in its
 * queue may rely on. Each stage has columns of its own there, free again when the stage is: empty, then full.
 *
 * Memory: sm100_gemm_config.cuh. */
#include <cuda_fp16.h>

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm100_gemm_place.cuh"

/* As the test packs it. */
typedef struct gemm_params {
    const uint8_t *sfa, *sfb; /* of kernels with a cta_group of 1; the others have tensor maps */
    float alpha;
    int m, n, k;
} gemm_params;

typedef struct operands {
    const cuda_tensor_map *a, *b, *sfa, *sfb, *d;
} operands;

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The tiles that a cluster computes: this CTA's rows of D, its group's columns. */
typedef struct tile_walk {
    int tile, tiles, tiles_m;
    int m, n;
    ring responses;
} tile_walk;

template <class S> __device__ inline tile_walk first_tile(const gemm_params &p)
{
    tile_walk w;
    w.tiles_m = (p.m + S::ROWS - 1) / S::ROWS;
    w.tiles = w.tiles_m * ((p.n + S::COLUMNS - 1) / S::COLUMNS);
    w.tile = (int)blockIdx.x / S::CLUSTER;
    w.responses = {0, 0};
    return w;
}

template <class S> __device__ inline bool locate(tile_walk &w, const place &at)
{
    if (w.tile >= w.tiles) return false;
    const int row = w.tile % w.tiles_m, column = w.tile / w.tiles_m;
    w.m = row * S::ROWS + (S::ALONG_M > 1 ? at.group * S::CTAS + at.half : at.half) * TILE_M;
    w.n = column * S::COLUMNS + (S::ALONG_N > 1 ? at.group * S::N : 0);
    return true;
}

/* The cluster whose place this one takes, or the end; WARP: all lanes ask, else one thread. */
template <class S, bool WARP> __device__ inline void take_response(tile_walk &w, const place &at)
{
    const int slot = w.responses.slot;
    uint32_t block;
    wait(at.clc_full, slot, w.responses.phase);
    w.tile = clusterlaunchcontrol_query_cancel(at.responses + CLC_BYTES * slot, block) ? block / S::CLUSTER : w.tiles;
    fence_proxy_async(); /* the next response may overwrite this one */
    if (WARP) __syncwarp();
    if (!WARP || threadIdx.x % 32 == 0) mbarrier_arrive_cluster(mapa(at.clc_empty + 8 * slot, 0));
    advance<CLC_SLOTS>(w.responses);
}

template <class S, bool WARP> __device__ inline void next_tile(tile_walk &w, const place &at)
{
    if (S::SCHEDULE == CLC)
        take_response<S, WARP>(w, at);
    else
        w.tile += (int)gridDim.x / S::CLUSTER;
}

/* The first CTA asks, one ahead of those who work, and never again once there is no more; all get the response. */
template <class S> __device__ inline void schedule(const gemm_params &p, const place &at)
{
    ring ask = {0, 1};
    for (tile_walk w = first_tile<S>(p); locate<S>(w, at); next_tile<S, false>(w, at)) {
        const uint32_t full = at.clc_full + 8 * ask.slot;
        if (at.rank == 0) wait(at.clc_empty, ask.slot, ask.phase);
        mbarrier_arrive_expect_tx(full, CLC_BYTES);
        if (at.rank == 0) clusterlaunchcontrol_try_cancel(at.responses + CLC_BYTES * ask.slot, full);
        advance<CLC_SLOTS>(ask);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Producer                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Which part of an operand's tile this CTA loads, and for whom. */
typedef struct part {
    int index;
    uint16_t mask;
} part;

/* Of what the same half of each group has. */
template <class S> __device__ inline part part_of_half(const place &at, int sharers)
{
    if (sharers == 1) return {0, 0};
    return {at.group, (uint16_t)((1 | 1 << S::CTAS) << at.half)};
}

/* Both halves of a group have all of SFB. */
template <class S> __device__ inline part part_of_sfb(const place &at)
{
    if (S::CTAS == 1) return part_of_half<S>(at, S::SFB_SHARERS);
    if (S::SFB_SHARERS == 4) return {at.rank, 15};
    return {at.half, (uint16_t)(3 << 2 * at.group)};
}

template <class S, int SHARERS, int ROWS>
__device__ inline void load_rows(uint32_t to, const cuda_tensor_map *map, int k, int row, part of, uint32_t full)
{
    const int first = of.index * (ROWS / SHARERS);
    load_box_2d<S::CTAS, SHARERS>(to + first * (TILE_K / 2), map, {k, row + first}, full, of.mask);
}

/* Scale factors of an operand: a tensor map of atoms (a cta_group of 2), or where they are. */
typedef struct factors {
    const cuda_tensor_map *map;
    const uint8_t *data;
    int rows, blocks; /* blocks: atoms along K */
} factors;

/* The atoms of 128 rows and a step of K; the last step may have fewer, though a tensor map's tiles are whole. Rows
 * beyond the last count for nothing in D, but atoms must exist. */
template <class S, int SHARERS>
__device__ inline void load_atoms(uint32_t to, const factors &sf, int row, int block, part of, uint32_t full)
{
    const int each = BLOCKS / SHARERS, first = block + of.index * each, atoms = row / 128;
    to += of.index * each * ATOM_BYTES;
    if (S::CTAS == 2) {
        load_box_3d_of_pair<SHARERS>(to, sf.map, {0, first, atoms}, full, of.mask);
        return;
    }
    const int64_t atom = (int64_t)min(atoms, (sf.rows - 1) / 128) * sf.blocks + first;
    const int count = min(each, sf.blocks - first);
    if (count > 0) load_bytes<SHARERS>(to, sf.data + atom * ATOM_BYTES, count * ATOM_BYTES, full, of.mask);
}

template <class S>
__device__ inline void load_stage(const operands &o, const gemm_params &p, const place &at, const tile_walk &w, int k,
                                  int slot)
{
    const uint32_t a = at.stages + slot * S::STAGE, b = a + A_BYTES, sfa = b + B_BYTES(S::CTAS, S::N),
                   sfb = sfa + SF_BYTES, own = at.full + 8 * slot;
    const uint32_t full = of_even_cta<S>(at, own);
    const int block = k / BLOCK_K, blocks = p.k / BLOCK_K;
    const int sf_bytes = S::CTAS == 2 ? SF_BYTES : min(BLOCKS, blocks - block) * ATOM_BYTES;
    const part of_a = part_of_half<S>(at, S::A_SHARERS), of_b = part_of_half<S>(at, S::B_SHARERS);
    if (at.half == 0) mbarrier_arrive_expect_tx(own, S::CTAS * (A_BYTES + B_BYTES(S::CTAS, S::N) + 2 * sf_bytes));
    load_rows<S, S::A_SHARERS, TILE_M>(a, o.a, k, w.m, of_a, full);
    load_rows<S, S::B_SHARERS, S::B_ROWS>(b, o.b, k, w.n + at.half * S::B_ROWS, of_b, full);
    load_atoms<S, S::A_SHARERS>(sfa, {o.sfa, p.sfa, p.m, blocks}, w.m, block, of_a, full);
    load_atoms<S, S::SFB_SHARERS>(sfb, {o.sfb, p.sfb, p.n, blocks}, w.n, block, part_of_sfb<S>(at), full);
}

template <class S> __device__ inline void produce(const operands &o, const gemm_params &p, const place &at)
{
    ring r = {0, 1};
    for (tile_walk w = first_tile<S>(p); locate<S>(w, at); next_tile<S, false>(w, at)) {
#pragma unroll 1
        for (int k = 0; k < p.k; k += TILE_K) {
            wait(at.empty, r.slot, r.phase);
            load_stage<S>(o, p, at, w, k, r.slot);
            advance<STAGES>(r);
        }
    }
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) { /* the last commits must not find this CTA gone */
        wait(at.empty, r.slot, r.phase);
        advance<STAGES>(r);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* MMA issuer                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

#define ROWS_BYTES(span) (8 * (span)) /* from 8 rows to the next */

/* E2M1 times E2M1, scaled by UE4M3. */
__device__ constexpr uint32_t instruction_of(int m, int n)
{
    return 1u << 7 | 1u << 10 | (n >> 3) << 17 | (m >> 7) << 27;
}

/* The blocks of a stage: their atoms into tensor memory, then the products. */
template <class S>
__device__ inline void multiply_stage(uint32_t a, uint32_t d, uint32_t sfa, int column, int blocks, bool accumulate)
{
    const uint32_t b = a + A_BYTES, atoms_a = b + B_BYTES(S::CTAS, S::N), atoms_b = atoms_a + SF_BYTES;
    const uint32_t sfb = sfa + BLOCKS * SF_COLUMNS;
    for (int i = 0; i < blocks; i++) {
        const int at = i * ATOM_BYTES, to = i * SF_COLUMNS;
        tcgen05_cp_32x128b_warpx4<S::CTAS>(sfa + to,
                                           tcgen05_descriptor(atoms_a + at, ROWS_BYTES(16), TCGEN05_NO_SWIZZLE));
        tcgen05_cp_32x128b_warpx4<S::CTAS>(sfb + to,
                                           tcgen05_descriptor(atoms_b + at, ROWS_BYTES(16), TCGEN05_NO_SWIZZLE));
    }
    const uint32_t half = S::N == 64 ? column % 128 / 32 : 0; /* of SFB's atom: 32 rows a column */
    for (int i = 0; i < blocks; i++) {
        const int at = i * (BLOCK_K / 2), to = i * SF_COLUMNS;
        tcgen05_mma_mxf4nvf4<S::CTAS>(d, tcgen05_descriptor(a + at, ROWS_BYTES(128), TCGEN05_SWIZZLE_128B),
                                      tcgen05_descriptor(b + at, ROWS_BYTES(128), TCGEN05_SWIZZLE_128B),
                                      instruction_of(TILE_M * S::CTAS, S::N), sfa + to, sfb + half + to,
                                      accumulate || i > 0);
    }
}

template <class S> __device__ inline void multiply(const gemm_params &p, const place &at, uint32_t tmem)
{
    const uint16_t everyone = (1 << S::CLUSTER) - 1, group = ((1 << S::CTAS) - 1) << at.group * S::CTAS;
    ring r = {0, 0}, acc = {0, 1};
    for (tile_walk w = first_tile<S>(p); locate<S>(w, at); next_tile<S, false>(w, at)) {
        wait_for_tmem(at.acc_empty, acc.slot, acc.phase);
#pragma unroll 1
        for (int k = 0; k < p.k; k += TILE_K) {
            wait(at.full, r.slot, r.phase);
            multiply_stage<S>(at.stages + r.slot * S::STAGE, tmem + acc.slot * S::N,
                              tmem + SF_COLUMN(S::N) + r.slot * SF_STAGE_COLUMNS, w.n, min(BLOCKS, (p.k - k) / BLOCK_K),
                              k > 0);
            commit<S::CTAS, S::CLUSTER != 1>(at.empty + 8 * r.slot, everyone);
            advance<STAGES>(r);
        }
        commit<S::CTAS, S::CTAS != 1>(at.acc_full + 8 * acc.slot, group);
        advance<ACCUMULATORS>(acc);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Epilogue                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t two_halves(const uint32_t v[2], float alpha)
{
    __half2 pair = __floats2half2_rn(__uint_as_float(v[0]) * alpha, __uint_as_float(v[1]) * alpha);
    return *(uint32_t *)&pair;
}

/* Half a row of a box, swizzled as its tensor map has it. */
__device__ inline void store_half_row(uint32_t box, int half, const uint32_t (&v)[32], float alpha)
{
    const int row = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 word = make_uint4(two_halves(v + 8 * i, alpha), two_halves(v + 8 * i + 2, alpha),
                                      two_halves(v + 8 * i + 4, alpha), two_halves(v + 8 * i + 6, alpha));
        st_shared_v4(box + row * 128 + (((half * 4 + i) ^ (row & 7)) << 4), word);
    }
}

template <class S> __device__ inline void store(const operands &o, const gemm_params &p, const place &at, uint32_t tmem)
{
    const int warp = (int)threadIdx.x / 32 - WARP_EPILOGUE;
    const bool leads = threadIdx.x % 32 == 0;
    const uint32_t acc_empty = of_even_cta<S>(at, at.acc_empty), lanes = tmem + (warp * 32u << 16);
    ring acc = {0, 0}, out = {0, 0};
    for (tile_walk w = first_tile<S>(p); locate<S>(w, at); next_tile<S, true>(w, at)) {
        wait_for_tmem(at.acc_full, acc.slot, acc.phase);
        for (int column = 0; column < S::N; column += BOX_COLUMNS) {
            const uint32_t box = at.boxes + (warp * BOXES + out.slot) * BOX_BYTES;
            uint32_t left[32], right[32];
            __syncwarp();
            tcgen05_ld_32x32b_x32(lanes + acc.slot * S::N + column, left);
            tcgen05_ld_32x32b_x32(lanes + acc.slot * S::N + column + 32, right);
            tcgen05_wait_ld();
            if (column + BOX_COLUMNS == S::N) tcgen05_fence_before_thread_sync();
            if (leads) cp_async_bulk_wait_group_read<BOXES - 1>(); /* this box has been read */
            __syncwarp();
            if (leads && column + BOX_COLUMNS == S::N) mbarrier_arrive_cluster_relaxed(acc_empty + 8 * acc.slot);
            store_half_row(box, 0, left, p.alpha);
            store_half_row(box, 1, right, p.alpha);
            fence_proxy_async();
            __syncwarp();
            if (leads) {
                cp_async_bulk_tensor_2d_store(o.d, {w.n + column, w.m + warp * 32}, box);
                cp_async_bulk_commit_group();
            }
            advance<BOXES>(out);
        }
        advance<ACCUMULATORS>(acc);
    }
    if (leads) cp_async_bulk_wait_group_read<0>();
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class S> __device__ inline void initialise(const place &at)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(at.full + 8 * i, 1);
        mbarrier_init(at.empty + 8 * i, S::GROUPS);
    }
    for (int i = 0; i < ACCUMULATORS; i++) {
        mbarrier_init(at.acc_full + 8 * i, 1);
        mbarrier_init(at.acc_empty + 8 * i, EPILOGUE_WARPS * S::CTAS);
    }
    for (int i = 0; S::SCHEDULE == CLC && i < CLC_SLOTS; i++) {
        mbarrier_init(at.clc_full + 8 * i, 1);
        mbarrier_init(at.clc_empty + 8 * i, S::CLUSTER * (EPILOGUE_WARPS + 2) + S::GROUPS);
    }
    fence_mbarrier_init();
}

template <class S> __device__ inline void gemm(const operands &o, const gemm_params &p)
{
    const place at = place_of_cta<S>();
    const int warp = (int)threadIdx.x / 32;
    if (warp == WARP_PRODUCER && elect_sync()) initialise<S>(at);
    if (warp == WARP_TMEM) {
        tcgen05_alloc<S::CTAS>(at.tmem_at, TMEM_COLUMNS);
        tcgen05_relinquish_alloc_permit<S::CTAS>();
    }
    __syncwarp();
    barrier_cluster(); /* each role has a tcgen05 fence of its own behind its first wait */
    const uint32_t tmem = ld_shared(at.tmem_at);
    if (warp == WARP_PRODUCER) {
        if (elect_sync()) produce<S>(o, p, at);
    } else if (warp == WARP_MMA) {
        if (at.half == 0 && elect_sync()) multiply<S>(p, at, tmem);
    } else if (warp == WARP_SCHEDULER) {
        if (S::SCHEDULE == CLC && elect_sync()) schedule<S>(p, at);
    } else if (warp >= WARP_EPILOGUE) {
        store<S>(o, p, at, tmem);
    }
    __syncwarp();
    barrier_cluster();
    if (warp == WARP_TMEM) tcgen05_dealloc<S::CTAS>(tmem, TMEM_COLUMNS);
}

#define KERNEL(name, ctas, groups, share, n, schedule)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                        \
        sm100_gemm_##name(const __grid_constant__ cuda_tensor_map a, const __grid_constant__ cuda_tensor_map b,     \
                          const __grid_constant__ cuda_tensor_map sfa, const __grid_constant__ cuda_tensor_map sfb, \
                          const __grid_constant__ cuda_tensor_map d, const __grid_constant__ gemm_params p)         \
    {                                                                                                               \
        gemm<shape<ctas, groups, share, n, schedule>>({&a, &b, &sfa, &sfb, &d}, p);                                 \
    }

SM100_GEMM_VARIANTS(KERNEL)
