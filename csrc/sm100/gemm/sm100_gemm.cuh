/* By tcgen05 on Blackwell
 *   gemm:      D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   dual_gemm: D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   grouped_gemm, list: the gemm of each group
 *   grouped_dual_gemm: the dual_gemm of each expert's tokens with its gates, its ups and their alphas
 * NVFP4 by NVFP4.
 *
 * The tensor cores multiply codes and their scale factors as they are; sums are fp32 numbers in tensor memory. One
 * operand's rows are its lanes, 128 of a CTA, the other one's its columns. Which is which is the plan's choice: few
 * tokens are columns, so that a tile has no empty lanes. Of dual_gemm rows of B1, the gates, and the same rows of B2,
 * the ups, are the lanes of an accumulator's two halves: a thread has both sums of an element.
 *
 * Work: a CTA, or a pair of them, walks over whole tiles of all batches, of all experts, which each CTA has listed in
 * shared memory, or of all groups, whose tensor maps and problems are parameters. A product of a pair has the lanes of
 * both; the even CTA issues it. Each CTA loads its own lanes and half of the columns. Of a step of K = 256 a stage has
 * all operands' codes, 128 bytes a row, and their scale factors, as atoms of 128 rows x 64 of K: those of all columns,
 * in either CTA. Blocked scale factors of whole atoms are copied. Others (linear; K that ends inside an atom, whose
 * padding may be NaN) are arranged by lanes. Of a split tile each part, a CTA or a pair, has some steps of K; parts
 * finish columns of their own, of which the others send them their sums. Pairs that share columns have lanes beside
 * each other: of the columns each CTA loads a part for all (multicast), also one whose own lanes are not there.
 *
 * Roles: warps 0 - 3: epilogue, warp w has lanes 32 w .. + 31 of tensor memory
 *        warps 4 - 7: arrange the scale factors that are not copied; none may be left for them. Where tokens come by
 *                     index, warp 4 brings their codes, too, whose bytes warp 8 announces
 *        warp 8:      one thread loads
 *        warp 9:      owns tensor memory; one thread issues products, or, in the odd CTA, tells that a stage is full
 *        warp 10:     one thread asks for tiles (launch control); only where pairs share columns
 *
 * Barriers (mbarriers; "wait" names the parity of the first; those that the issuer waits for count in the even CTA):
 *   full[STAGES]              loads, lanes -> issuer   1 arrival + the bytes of boxes and copies; 4 more, of each warp
 *                                                      that arranges, where any operand's factors are not copied;
 *                                                      in the even CTA of a pair 1 more, of the odd one's warp 9,
 *                                                      which has waited for its own CTA's              wait 0
 *   empty[STAGES]             issuer -> loads, lanes   1 (commit, in both CTAs): products and copies to tensor memory
 *                                                      are done. Of pairs that share columns 1 of each, in all CTAs:
 *                                                      each writes to the stages of all                wait 1
 *   sums_full[ACCUMULATORS]   issuer -> epilogue       1 (commit, in both CTAs)                        wait 0
 *   sums_empty[ACCUMULATORS]  epilogue -> issuer       4 of each CTA, of each warp, once its sums are in registers
 *                                                                                                      wait 1
 *   inbox_full                other parts -> epilogue  1 arrival + the bytes of their sums                    wait 0
 *   inbox_empty               epilogues -> other parts 4 of each, of each warp, once it has added them        wait 1
 *   launch full[RESPONSES]    launch control -> all    1 arrival, of the CTA's own warp 10, + the bytes of a response
 *                                                                                                      wait 0
 *   launch empty[RESPONSES]   all -> warp 10           in the first CTA: of each CTA 4 of the epilogue's warps, 4 of
 *                                                      those that arrange, if any, 1 each of warps 8 to 10
 *                                                                                                      wait 1
 *   cluster (pairs, parts)    barriers are there before anybody arrives at another CTA's; of experts the even CTA's
 *                             list is there for the odd one; all have finished before a CTA, or tensor memory, goes
 *
 * Tensor memory: ACCUMULATORS x COLUMNS of sums, of dual_gemm twice as many, then SF_SLOTS x 16 columns of scale
 * factors for each row of atoms. Where there are as many of them as stages, they are free when the stage is: the
 * products that read them are done. Where there are fewer, the issuer waits for the stage of so many steps before.
 *
 * Shared memory: struct memory of sm100_gemm_parts.cuh. */
#ifndef NK_SM100_GEMM_CUH
#define NK_SM100_GEMM_CUH

#include "sm100_gemm_load.cuh"
#include "sm100_gemm_store.cuh"

extern __shared__ __align__(1024) uint8_t shared_memory[];

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* E2M1 times E2M1, scaled by UE4M3 (PTX ISA, 9.7.16.4.2). */
__device__ constexpr uint32_t instruction_of(int lanes, int columns)
{
    return 1u << 7 | 1u << 10 | (columns >> 3) << 17 | (lanes >> 7) << 27;
}

/* An atom is 32 rows of 16 bytes; eight of them are a core matrix. Each CTA of a pair has it at the same address. */
template <class C> __device__ inline void copy_atom(uint32_t tmem, uint32_t atom)
{
    tcgen05_cp_32x128b_warpx4<C::CTAS>(tmem, tcgen05_descriptor(atom, 8 * 16, TCGEN05_NO_SWIZZLE));
}

/* Codes of eight rows: the span of the swizzle. */
__device__ inline uint64_t codes_at(const uint8_t *matrix, int block)
{
    return tcgen05_descriptor(shared_address(matrix) + block * (SM100_GEMM_MMA_K / 2), 8 * SM100_GEMM_CODE_BYTES,
                              TCGEN05_SWIZZLE_128B);
}

/* A stage's scale factors go to tensor memory, then its products follow, which wait for them by themselves. Block by
 * block an operand's rows of atoms lie side by side. `quarter`: of the columns' atoms, where the tile begins. */
template <class C>
__device__ inline void multiply_stage(const typename memory<C>::stage &stage, uint32_t sums, uint32_t sf,
                                      uint32_t quarter, int blocks, bool adds)
{
    constexpr int OF_BLOCK = SM100_GEMM_SF_ATOM_COLUMNS, OF_COLUMNS = C::MATRICES * SM100_GEMM_SF_COLUMNS;
#pragma unroll 1
    for (int i = 0; i < blocks; i++) {
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            copy_atom<C>(sf + matrix * SM100_GEMM_SF_COLUMNS + i * OF_BLOCK,
                         shared_address(stage.sf[matrix]) + i * NK_SF_ATOM_BYTES);
#pragma unroll
        for (int atom = 0; atom < C::COLUMN_ATOMS; atom++)
            copy_atom<C>(sf + OF_COLUMNS + (i * C::COLUMN_ATOMS + atom) * OF_BLOCK,
                         shared_address(stage.sf[C::MATRICES + atom]) + i * NK_SF_ATOM_BYTES);
    }
#pragma unroll 1
    for (int i = 0; i < blocks; i++) {
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            tcgen05_mma_mxf4nvf4<C::CTAS>(sums + matrix * C::COLUMNS, codes_at(stage.lanes[matrix], i),
                                          codes_at(stage.columns, i), instruction_of(C::LANES, C::COLUMNS),
                                          sf + matrix * SM100_GEMM_SF_COLUMNS + i * OF_BLOCK,
                                          sf + OF_COLUMNS + i * C::COLUMN_ATOMS * OF_BLOCK + quarter, adds || i > 0);
    }
}

/* In both CTAs of a pair. */
template <class C> __device__ inline void commit(const uint64_t *barrier, const gemm_tiles &tiles)
{
    if constexpr (C::CTAS == 1)
        tcgen05_commit<1>(shared_address(barrier));
    else
        tcgen05_commit_multicast<2>(shared_address(barrier), (uint16_t)(3 << issuer_of<C>(tiles)));
}

/* Of a stage: in every CTA that writes to this one's. */
template <class C> __device__ inline void commit_stage(const uint64_t *barrier, const gemm_tiles &tiles)
{
    if constexpr (C::PAIRS == 1)
        commit<C>(barrier, tiles);
    else
        tcgen05_commit_multicast<2>(shared_address(barrier), C::EVERYONE);
}

template <class C, typename P>
__device__ inline void issue(memory<C> &s, uint32_t tmem, const P &all, const gemm_tiles &tiles)
{
    ring<C::STAGES> r, done; /* done: of the step SF_SLOTS before */
    ring<C::ACCUMULATORS> sums;
    ring<C::SF_SLOTS> sf;
    int unused = C::SF_SLOTS; /* slots of scale factors */
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        wait_for_tmem(&s.sums_empty[sums.slot], sums.parity ^ 1);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance(), sf.advance()) {
            wait_for<C>(&s.full[r.slot], r.parity);
            if (C::SF_SLOTS < C::STAGES && unused > 0) {
                unused--;
            } else if (C::SF_SLOTS < C::STAGES) {
                wait_for_tmem(&s.empty[done.slot], done.parity);
                done.advance();
            }
            multiply_stage<C>(s.stages[r.slot], tmem + sums.slot * C::SUMS, tmem + C::SF_COLUMN + sf.slot * C::SF_SLOT,
                              (uint32_t)t.into_atom / 32, blocks_of(problem_of(all, t).k, step), step > t.first_step);
            commit_stage<C>(&s.empty[r.slot], tiles);
        }
        commit<C>(&s.sums_full[sums.slot], tiles);
        sums.advance();
    });
}

/* The odd CTA: its stages are full for the issuer, too, whose products read them. */
template <class C> __device__ inline void tell_issuer(memory<C> &s, const gemm_tiles &tiles)
{
    ring<C::STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance()) {
            wait_for<C>(&s.full[r.slot], r.parity);
            mbarrier_arrive_cluster(of_issuer<C>(&s.full[r.slot], tiles));
        }
    });
}

/* The first CTA asks for a tile when it begins one, and never again when there is none. All get the response. */
template <class C> __device__ inline void ask(const gemm_tiles &tiles)
{
    const bool asks = tiles.half == 0 && tiles.pair == 0;
    ring<SM100_GEMM_SCHEDULER_STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &) {
        const uint32_t full = shared_address(&tiles.launch->full[r.slot]);
        if (asks) mbarrier_wait_cluster(shared_address(&tiles.launch->empty[r.slot]), r.parity ^ 1);
        mbarrier_arrive_expect_tx(full, sizeof tiles.launch->responses[0]);
        if (asks) clusterlaunchcontrol_try_cancel(shared_address(&tiles.launch->responses[r.slot]), full);
        r.advance();
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C> __device__ inline void initialise(memory<C> &s, const sm100_gemm_scheduler &work, int half)
{
    const int others = half == 0 ? C::CTAS - 1 : 0;
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1 + (arranges<C>(work) ? SM100_GEMM_SF_WARPS : 0) + others);
        mbarrier_init(shared_address(&s.empty[i]), C::PAIRS);
    }
    if constexpr (C::ASKS) {
        constexpr int ALWAYS = SM100_GEMM_EPILOGUE_WARPS + 3; /* who loads, issues or tells, and asks */
        for (int i = 0; i < SM100_GEMM_SCHEDULER_STAGES; i++) {
            mbarrier_init(shared_address(&s.launch->full[i]), 1);
            mbarrier_init(shared_address(&s.launch->empty[i]),
                          C::CLUSTER * (ALWAYS + (arranges<C>(work) ? SM100_GEMM_SF_WARPS : 0)));
        }
    }
    initialise_sums<C>(s);
    fence_mbarrier_init();
}

/* All threads of the cluster. */
template <class C> __device__ inline void meet()
{
    if constexpr (C::CLUSTER == 1) {
        __syncthreads();
    } else {
        barrier_cluster_arrive_aligned();
        barrier_cluster_wait_aligned();
    }
}

template <class C, typename M>
__device__ inline void list_experts(M &s, const sm100_gemm_experts &experts, int64_t rows)
{
    if (threadIdx.x == 0) s.experts[experts.count] = {0, 0, 0, 0}; /* there may be none */
    scan_experts<C::COLUMNS>(s.scan[0], experts.offsets, experts.count, rows, NO_TILE, [&](const scanned_expert &e) {
        s.experts[e.expert] = {(int)e.first_tile, e.begin, e.first_atom, 0};
        if (e.expert == experts.count - 1) s.experts[e.expert + 1] = {(int)(e.first_tile + e.tiles), e.end, 0, 0};
    });
}

/* The list that the even CTA of a pair has made. */
template <typename M> __device__ inline void copy_list(M &s, int64_t experts)
{
    for (int i = (int)threadIdx.x; i <= experts; i += (int)blockDim.x)
        *(float4 *)&s.experts[i] = ld_shared_cluster_v4(mapa(shared_address(&s.experts[i]), 0));
}

/* Lists the experts, where there are any, by all threads. Offsets may change while they are read, and a pair that
 * disagrees would wait for ever: its even CTA reads them for both. */
template <class C, typename M, typename P>
__device__ inline gemm_tiles tiles_of(M &s, const P &p, const sm100_gemm_scheduler &work,
                                      const sm100_gemm_experts &experts, int rank)
{
    const int part = C::PAIRS > 1 ? 0 : rank / C::CTAS, pair = C::PAIRS > 1 ? rank / C::CTAS : 0;
    gemm_tiles tiles = {work,       s.experts,      experts.count, experts.rows, list_of(p),
                        work.tiles, rank % C::CTAS, part,          pair};
    if constexpr (C::ASKS) tiles.launch = s.launch;
    if constexpr (!C::LIST) {
        tiles.column_end = rows_of(p, work, SM100_GEMM_OPERAND_N);
        tiles.atom_rows = C::EXPERTS ? experts.atom_rows : nk_ceil_div(tiles.column_end, NK_SF_ATOM_ROWS);
    }
    if constexpr (C::EXPERTS) {
        if (rank == 0) list_experts<C>(s, experts, p.m);
        if constexpr (C::CLUSTER > 1) {
            meet<C>();
            if (rank != 0) copy_list(s, experts.count);
        }
        __syncthreads();
        tiles.count = s.experts[experts.count].first_tile * work.mma_m_tiles;
    }
    return tiles;
}

template <class C, typename P>
__device__ inline void run(const code_maps &maps, const P &p, const sm100_gemm_scheduler &work,
                           const sm100_gemm_experts &experts = {})
{
    typedef typename memory<C>::stage stage;
    static_assert(sizeof(memory<C>) <= SM100_GEMM_SMEM(C::CTAS, C::COLUMNS, C::PARTS, C::MATRICES),
                  "the host says how much");
    static_assert(sizeof(stage) == SM100_GEMM_STAGE_BYTES(C::CTAS, C::COLUMNS, C::MATRICES), "of a stage");
    static_assert(sizeof(stage) % 1024 == 0 && offsetof(stage, sf) % 1024 == 0, "boxes begin where the swizzle does");
    memory<C> &s = *(memory<C> *)shared_memory;
    const int warp = (int)threadIdx.x / 32, rank = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank();
    if (warp == SM100_GEMM_PRODUCER_WARP && elect_sync()) {
        for (int of = 0; of < C::OPERANDS; of++)
            prefetch_tensormap(maps.of[of]);
        initialise<C>(s, work, rank % C::CTAS);
    }
    if (warp == SM100_GEMM_MMA_WARP) {
        tcgen05_alloc<C::CTAS>(shared_address(&s.tmem), SM100_GEMM_TMEM_COLUMNS);
        tcgen05_relinquish_alloc_permit<C::CTAS>();
    }
    __syncwarp();
    meet<C>(); /* each role has a tcgen05 fence of its own behind its first wait */
    griddepcontrol_wait();
    const uint32_t tmem = ld_shared(shared_address(&s.tmem));
    const gemm_tiles tiles = tiles_of<C>(s, p, work, experts, rank);
    if (warp < SM100_GEMM_EPILOGUE_WARPS) {
        store<C>(s, tmem, p, tiles);
    } else if (warp < SM100_GEMM_PRODUCER_WARP) {
        if (arranges<C>(work)) arrange_factors<C>(s, maps, p, tiles);
    } else if (warp == SM100_GEMM_PRODUCER_WARP) {
        if (elect_sync()) produce<C>(s, maps, p, tiles);
    } else if (C::ASKS && warp == SM100_GEMM_SCHEDULER_WARP) {
        if (elect_sync()) ask<C>(tiles);
    } else if (tiles.half == 0) {
        if (elect_sync()) issue<C>(s, tmem, p, tiles);
    } else {
        if (elect_sync()) tell_issuer<C>(s, tiles);
    }
    __syncwarp();
    meet<C>();
    if (warp == SM100_GEMM_MMA_WARP) tcgen05_dealloc<C::CTAS>(tmem, SM100_GEMM_TMEM_COLUMNS);
}

#endif
