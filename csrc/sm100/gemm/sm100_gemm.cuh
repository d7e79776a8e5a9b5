/* GEMMs of NVFP4 by NVFP4 with tcgen05.mma.kind::mxf4nvf4 (block-scaled, a UE4M3 scale factor for 16 elements):
 *   gemm:       D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   dual_gemm:  D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                                  * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   grouped_gemm, list:       the gemm of each group
 *   grouped_dual_gemm:        the dual_gemm of each expert's tokens with its gates, its ups and their alphas
 *   row_scale, if given:      fl(row_scale[l,m] * sum) takes the place of each sum
 *
 * Operands: the MMA's M and N need not be the problem's. A row of operand M is a lane of tensor memory, 128 for each
 * CTA; a row of operand N is a column. The plan says which of them tokens are (params.tokens_are_mma_m): few tokens are
 * operand N, so that no lanes are empty. Dual GEMMs have two accumulators for the same rows of B1, the gates, and B2,
 * the ups, both as operand M: a thread of the epilogue has both sums of an element.
 *
 * Tiles: CTA_GROUP x 128 rows of operand M by MMA_N rows of operand N. With CTA_GROUP 2 a pair of CTAs shares each MMA,
 * which its leader issues; the other is its follower. Each loads its 128 rows of operand M and half of operand N. With
 * SPLIT_K a tile's K is divided over the cluster, and partial sums are reduced there (sm100_gemm_split_k.cuh). With
 * PAIRS 2 a cluster's pairs have neighbouring rows of operand M, and each of its four CTAs loads a share of operand N
 * for all (multicast). CTAs are persistent; sm100_gemm_scheduler.cuh says in which order they take tiles.
 *
 * K: a step is 256 elements, one stage, at most four MMAs of 64 for each matrix. A stage has all operands' codes, 128
 * bytes a row, and their scale factors as atoms of 128 rows x 4 (cuBLAS's blocked layout), in both CTAs of a pair those
 * of all of operand N. Blocked scale factors of whole atoms come by bulk copies. Threads arrange all others:
 *   - linear ones, and those of tokens by index
 *   - those of a K that ends inside an atom, whose padding may be NaN
 *   - those of an up matrix that begins inside an atom
 *   - those at addresses that are no multiple of 16
 *   - in a list, those that any group must arrange (sm100_launch_list())
 *
 * Roles: warps 0 - 3: epilogue
 *        warps 4 - 7: arrange the scale factors that bulk copies do not bring, if any. With tokens by index, warp 4
 *                     brings their codes, too (gather4), whose bytes warp 8 expects
 *        warp 8:      producer; one thread loads
 *        warp 9:      allocates tensor memory; in the leader CTA one thread issues MMAs, in its follower one thread
 *                     tells the leader which stages are full
 *        warp 10:     one thread asks cluster launch control for tiles; only with multicast
 *
 * Pipelines (a barrier with _empty leads back):
 *   full               producer, scale-factor warps -> MMA warp; a follower's by way of its own warp 9
 *   accumulator_full   MMA warp -> epilogue warps, of both CTAs of the pair
 *   inbox_full         epilogue warps of the peers with other shares of K -> epilogue warps
 *   responses->full    launch control, asked by warp 10 -> all roles
 *
 * Barriers (mbarriers): the arrivals that complete a phase, and the parity of the first wait. The MMA thread waits at
 * the barriers of its own CTA, the leader. "One lane" arrives for its warp.
 *   full[STAGES]             1: warp 8, which also expects the bytes of boxes, gathered rows and bulk copies   wait 0
 *                            + 4: one lane of each scale-factor warp, if arranges_sf()
 *                            + 1 in a leader: warp 9 of its follower, once the follower's own barrier completed
 *   empty[STAGES]            PAIRS: each pair's commit of the copies and MMAs that read the stage. It arrives
 *                            in both CTAs of the pair; with multicast in all, since each CTA writes to all      wait 1
 *   accumulator_full[..]     1: the commit of a tile's last MMA; it arrives in both CTAs of the pair            wait 0
 *   accumulator_empty[..]    4 x CTA_GROUP, at the leader's: one lane of each epilogue warp of both CTAs,
 *                            once the last columns are in registers                                             wait 1
 *   inbox_full               1: the CTA's own thread 0, which also expects the bytes of its peers' st.async     wait 0
 *   peers_ready              4 x (SPLIT_K - 1): one lane of each epilogue warp of each peer, once that peer
 *                            has read its own inbox                                                             wait 1
 *   responses->full[..]      1: the CTA's own warp 10, which also expects the bytes of the response             wait 0
 *   responses->empty[..]     only rank 0's is used. From each CTA of the cluster 4 + 3: one lane of each
 *                            epilogue warp, the threads of warps 8, 9 and 10; + 4 if arranges_sf()              wait 1
 *   cluster barrier          first: mbarriers are initialised, all CTAs run; then warp 9 allocates tensor memory.
 *                            Second, of experts in pairs: the leader's table can be read. Last: no CTA needs
 *                            another one any more; then warp 9 frees tensor memory
 *
 * Tensor memory (512 columns): ACCUMULATORS x MMA_N columns of fp32 sums, twice as many for dual GEMMs; then SF_STAGES
 * x 16 columns of scale factors for each 128 rows. PTX orders a tcgen05.mma behind earlier tcgen05.cp, but no
 * tcgen05.cp behind an earlier tcgen05.mma, so a stage's columns may be overwritten only when its MMAs are done. If
 * SF_STAGES equals STAGES, `full` implies that: the producer waited for the stage's `empty`. If there are fewer, the
 * MMA thread waits for the commit of SF_STAGES steps before.
 *
 * Shared memory: struct mxf4nvf4_smem of sm100_gemm_traits.cuh. */
#ifndef NK_SM100_GEMM_CUH
#define NK_SM100_GEMM_CUH

#include "cuda/ptx/grid.cuh"
#include "sm100_gemm_epilogue.cuh"
#include "sm100_gemm_load.cuh"

extern __shared__ __align__(1024) uint8_t shared_memory[];

/* ---------------------------------------------------------------------------------------------------------------- */
/* The MMA warp                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The instruction descriptor (PTX ISA, tcgen05 instruction descriptor): A and B are E2M1 (1 at bits 7 and 10), N / 8 at
 * bit 17, M / 128 at bit 27; UE4M3 scale factors are 0 at bit 23. */
__device__ constexpr uint32_t mxf4nvf4_instruction(int mma_m, int mma_n)
{
    return 1u << 7 | 1u << 10 | (mma_n >> 3) << 17 | (mma_m >> 7) << 27;
}

/* Atoms: 32 rows of 16 bytes, which a copy takes to four columns; eight of these rows are a core matrix. In a pair each
 * CTA's atom comes from the same address of its own shared memory. */
__device__ inline uint64_t sf_atom_descriptor(const void *atoms)
{
    return tcgen05_descriptor(shared_address(atoms), 8 * SF_QUAD_BYTES, TCGEN05_NO_SWIZZLE);
}

/* The codes of an MMA; the swizzle spans eight rows. */
__device__ inline uint64_t codes_descriptor(const void *codes)
{
    return tcgen05_descriptor(shared_address(codes), 8 * SM100_GEMM_CODE_BYTES, TCGEN05_SWIZZLE_128B);
}

/* Copies a stage's scale factors to tensor memory, then issues the stage's MMAs, which hardware orders behind the
 * copies. Columns from `sf` on: operand M's, [matrix][K block]; then operand N's, [K block][atom row], since one MMA
 * reads all its atom rows side by side. `quarter`: how many 32-row quarters (columns) of the first atom row come before
 * the tile.
 *
 * `rest`: the tile's K blocks from this stage on. FULL: they are a stage's or more. Then the stage is unrolled, and its
 * descriptors and columns are sums with constants: half the instructions of the one thread that issues all. */
template <class C, bool FULL>
__device__ inline void mma_stage(const typename mxf4nvf4_smem<C>::stage &stage, uint32_t accumulator, uint32_t sf,
                                 uint32_t quarter, int rest, bool accumulates)
{
    constexpr int ATOM = SM100_GEMM_SF_ATOM_COLUMNS, SF_N = C::MATRICES * SM100_GEMM_SF_COLUMNS;
    constexpr int UNROLL = FULL ? SM100_GEMM_K_BLOCKS : 1, MATRIX_BYTES = sizeof(stage.operand_m[0]),
                  OPERAND_N = offsetof(typename mxf4nvf4_smem<C>::stage, operand_n);
    const int blocks = FULL ? SM100_GEMM_K_BLOCKS : rest;
    const uint64_t atoms = sf_atom_descriptor(stage.sf), codes = codes_descriptor(stage.operand_m);
#pragma unroll UNROLL
    for (int i = 0; i < blocks; i++) {
#pragma unroll
        for (int row = 0; row < C::ATOM_ROWS; row++)
            tcgen05_cp_32x128b_warpx4<C::CTA_GROUP>(
                row < C::MATRICES ? sf + row * SM100_GEMM_SF_COLUMNS + i * ATOM
                                  : sf + SF_N + (i * C::N_ATOM_ROWS + row - C::MATRICES) * ATOM,
                tcgen05_descriptor_behind(atoms, row * SM100_GEMM_SF_BYTES + sf_bytes_of_atoms(i)));
    }
#pragma unroll UNROLL
    for (int i = 0; i < blocks; i++) {
        const uint64_t block = tcgen05_descriptor_behind(codes, i * (SM100_GEMM_MMA_K / 2));
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            tcgen05_mma_mxf4nvf4<C::CTA_GROUP>(
                accumulator + matrix * C::MMA_N, tcgen05_descriptor_behind(block, matrix * MATRIX_BYTES),
                tcgen05_descriptor_behind(block, OPERAND_N), mxf4nvf4_instruction(C::MMA_M, C::MMA_N),
                sf + matrix * SM100_GEMM_SF_COLUMNS + i * ATOM,
                sf + SF_N + i * C::N_ATOM_ROWS * ATOM + quarter, accumulates || i > 0);
    }
}

/* Arrives, in both CTAs of a pair, once all copies and MMAs issued so far are done. */
template <class C> __device__ inline void commit(const uint64_t *barrier, const mma_tile_scheduler &scheduler)
{
    if constexpr (C::CTA_GROUP == 1)
        tcgen05_commit<1>(shared_address(barrier));
    else
        tcgen05_commit_multicast<2>(shared_address(barrier), (uint16_t)(3 << leader_rank<C>(scheduler)));
}

/* The same for a stage, which with multicast every CTA of the cluster writes to. */
template <class C> __device__ inline void commit_stage(const uint64_t *barrier, const mma_tile_scheduler &scheduler)
{
    if constexpr (C::PAIRS == 1)
        commit<C>(barrier, scheduler);
    else
        tcgen05_commit_multicast<2>(shared_address(barrier), C::CLUSTER_MASK);
}

/* One thread of the leader CTA. */
template <class C, typename P>
__device__ inline void issue_mmas(mxf4nvf4_smem<C> &s, uint32_t tmem, const P &launch,
                                  const mma_tile_scheduler &scheduler)
{
    pipeline_state load, accumulator, sf;
    /* The step SF_STAGES before, whose columns this step overwrites. At first there is none: a stage that nobody has
     * used passes a wait for parity 1. */
    pipeline_state reuse = {C::STAGES - C::SF_STAGES, 1};
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const int k_blocks = (int)nk_ceil_div(problem_of_tile(launch, t).k, SM100_GEMM_MMA_K);
        const uint32_t quarter = (uint32_t)t.row_in_atom / SF_QUARTER_ROWS;
        wait_tmem(&s.accumulator_empty[accumulator.stage], accumulator.parity ^ 1);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES), sf.advance(C::SF_STAGES)) {
            const auto &stage = s.stages[load.stage];
            const uint32_t sums = tmem + accumulator.stage * C::ACCUMULATOR_COLUMNS;
            const uint32_t sf_columns = tmem + C::SF_COLUMN + sf.stage * C::SF_STAGE_COLUMNS;
            const int rest = k_blocks - step * SM100_GEMM_K_BLOCKS;
            wait_cta_group<C>(&s.full[load.stage], load.parity);
            if constexpr (C::SF_STAGES < C::STAGES) {
                wait_tmem(&s.empty[reuse.stage], reuse.parity);
                reuse.advance(C::STAGES);
            }
            if (rest >= SM100_GEMM_K_BLOCKS)
                mma_stage<C, true>(stage, sums, sf_columns, quarter, rest, step > t.first_step);
            else
                mma_stage<C, false>(stage, sums, sf_columns, quarter, rest, step > t.first_step);
            commit_stage<C>(&s.empty[load.stage], scheduler);
        }
        commit<C>(&s.accumulator_full[accumulator.stage], scheduler);
        accumulator.advance(C::ACCUMULATORS);
    });
    if constexpr (C::CTA_GROUP == 2) drain_pipeline<C::ACCUMULATORS>(s.accumulator_empty, accumulator);
}

/* One thread of the follower: the leader's MMAs read the follower's stages, too. */
template <class C> __device__ inline void notify_leader(mxf4nvf4_smem<C> &s, const mma_tile_scheduler &scheduler)
{
    pipeline_state load;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES)) {
            wait_cta_group<C>(&s.full[load.stage], load.parity);
            arrive_at_leader<C>(&s.full[load.stage], scheduler);
        }
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C>
__device__ inline void init_mxf4nvf4_barriers(mxf4nvf4_smem<C> &s, const sm100_gemm_params &params, int rank_in_pair)
{
    const int followers = rank_in_pair == 0 ? C::CTA_GROUP - 1 : 0;
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1 + (arranges_sf<C>(params) ? SM100_GEMM_SF_WARPS : 0) + followers);
        mbarrier_init(shared_address(&s.empty[i]), C::PAIRS);
    }
    if constexpr (C::DYNAMIC) {
        constexpr int ALWAYS = SM100_GEMM_EPILOGUE_WARPS + 3; /* one thread of each of warps 8, 9 and 10 */
        for (int i = 0; i < SM100_GEMM_SCHEDULER_STAGES; i++) {
            mbarrier_init(shared_address(&s.responses->full[i]), 1);
            mbarrier_init(shared_address(&s.responses->empty[i]),
                          C::CLUSTER * (ALWAYS + (arranges_sf<C>(params) ? SM100_GEMM_SF_WARPS : 0)));
        }
    }
    init_epilogue_barriers<C>(s);
    fence_mbarrier_init();
}

template <class C, typename P>
__device__ inline void run_mxf4nvf4(const code_maps &maps, const P &p, const sm100_gemm_params &params,
                                    const sm100_gemm_experts &experts = {})
{
    typedef typename mxf4nvf4_smem<C>::stage stage;
    static_assert(sizeof(mxf4nvf4_smem<C>) <= SM100_GEMM_SMEM(C::CTA_GROUP, C::MMA_N, C::SPLIT_K, C::MATRICES),
                  "the host launches with so much");
    static_assert(sizeof(stage) == SM100_GEMM_STAGE_BYTES(C::CTA_GROUP, C::MMA_N, C::MATRICES), "the host's size");
    static_assert(sizeof(stage) % 1024 == 0 && offsetof(stage, sf) % 1024 == 0, "boxes begin where the swizzle does");
    mxf4nvf4_smem<C> &s = *(mxf4nvf4_smem<C> *)shared_memory;
    const int warp = (int)threadIdx.x / 32, rank = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank();
    if (warp == SM100_GEMM_PRODUCER_WARP && elect_sync()) {
        for (int operand = 0; operand < C::OPERANDS; operand++)
            prefetch_tensormap(maps.of[operand]);
        init_mxf4nvf4_barriers<C>(s, params, rank % C::CTA_GROUP);
    }
    const uint32_t tmem = alloc_tmem<C>(s, warp == SM100_GEMM_MMA_WARP);
    griddepcontrol_wait();
    const mma_tile_scheduler scheduler = make_scheduler<C>(s, p, params, experts, rank);
    if (warp < SM100_GEMM_EPILOGUE_WARPS) {
        run_epilogue<C>(s, tmem, p, scheduler);
    } else if (warp < SM100_GEMM_PRODUCER_WARP) {
        if (arranges_sf<C>(params)) arrange_sf<C>(s, maps, p, scheduler);
    } else if (warp == SM100_GEMM_PRODUCER_WARP) {
        if (elect_sync()) produce_stages<C>(s, maps, p, scheduler);
    } else if (C::DYNAMIC && warp == SM100_GEMM_SCHEDULER_WARP) {
        if (elect_sync()) query_launch_control<C>(scheduler);
    } else if (scheduler.rank_in_pair == 0) {
        if (elect_sync()) issue_mmas<C>(s, tmem, p, scheduler);
    } else {
        if (elect_sync()) notify_leader<C>(s, scheduler);
    }
    dealloc_tmem<C>(tmem, warp == SM100_GEMM_MMA_WARP);
}

#endif
