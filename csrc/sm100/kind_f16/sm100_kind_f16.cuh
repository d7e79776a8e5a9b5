/* GEMMs with fp16 or bf16 tokens by tcgen05.mma.kind::f16:
 *   gemm:       D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   dual_gemm:  D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                                  * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   grouped_gemm, list:       the gemm of each group, of NVFP4 weights
 *   grouped_dual_gemm:        the dual_gemm of each expert's tokens with its gates, its ups and their alphas
 *   row_scale, if given:      fl(row_scale[l,m] * sum) takes the place of each sum
 * Weights are NVFP4 or, with experts, 16-bit as the tokens are.
 *
 * Operands: weights are operand M, rows of tensor memory's lanes; tokens are operand N, in shared memory as boxes bring
 * them. NVFP4 weights are decoded to their exact values in the tokens' type, a row by a thread, into tensor memory,
 * where the MMA reads operand M: through shared memory they would be written once and read once more. 16-bit weights
 * are multiplied where boxes bring them.
 *
 * Tiles, scheduler, split K and epilogue are those of sm100_gemm.cuh. A CTA of a pair loads and decodes its own 128
 * rows of weights into its own tensor memory, and loads half of the tokens. A step of K, one stage, is 128 elements,
 * eight MMAs of 16.
 *
 * Roles: warps 0 - 3:  epilogue; warp w reads lanes 32 w .. + 31 of tensor memory
 *        warps 4 - 11: decode; warp w writes lanes 32 (w % 4) .. + 31, warps 4 - 7 the first half of a step's K, warps
 *                      8 - 11 the second
 *        next warp:    producer; one thread loads. With tokens by index all threads gather them
 *        next warp:    copies the weights' scale factors
 *        last warp:    allocates tensor memory; in the leader CTA one thread issues MMAs
 * With 16-bit weights there are only the epilogue, the producer and the last warp.
 *
 * Pipelines: producers --full--> decode warps --decoded_full--> MMA warp --accumulator_full--> epilogue
 *            and back: empty, decoded_empty, accumulator_empty. With 16-bit weights: producer --full--> MMA warp
 *
 * Barriers (mbarriers; "wait" is the parity of the first wait; commits arrive in both CTAs of a pair):
 *   full[STAGES]               1, of the producer, + the bytes of boxes                                      wait 0
 *                              + 32, of each thread of the scale-factor warp when its copies have arrived
 *   empty[STAGES]              1, a commit: MMAs have read the tokens                                        wait 1
 *                              + 8, of each decode warp
 *   decoded_full[..]           8 of each CTA, of each decode warp: its weights and its CTA's tokens are
 *                              there; the leader's                                                           wait 0
 *   decoded_empty[..]          1, a commit                                                                   wait 1
 *   accumulator_full[..], accumulator_empty[..], inbox_full, peers_ready, cluster barrier: as in sm100_gemm.cuh
 *
 * Tensor memory (512 columns): ACCUMULATORS x MMA_N columns of fp32 sums, then DECODED_STAGES x 64 columns of a step's
 * decoded weights; both twice for dual GEMMs.
 *
 * Shared memory: struct kind_f16_smem of sm100_kind_f16_traits.cuh. */
#ifndef NK_SM100_KIND_F16_CUH
#define NK_SM100_KIND_F16_CUH

#include "sm100_kind_f16_decode.cuh"
#include "sm100_kind_f16_load.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The MMA warp                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* 16-bit rows, K-major, fp32 sums (PTX ISA, 9.7.16.4.2). */
__device__ inline uint32_t kind_f16_instruction(bool bf16, int mma_m, int mma_n)
{
    return 1u << 4 | (uint32_t)bf16 << 7 | (uint32_t)bf16 << 10 | (uint32_t)(mma_n >> 3) << 17 |
           (uint32_t)(mma_m >> 4) << 24;
}

/* One MMA's rows, in boxes of `rows` rows. */
__device__ inline uint64_t boxes_descriptor(const uint8_t *boxes, int rows, int k_block)
{
    constexpr int OF_BOX = SM100_KIND_F16_SWIZZLE_K / 16;
    return tcgen05_descriptor(shared_address(boxes) + k_block / OF_BOX * rows * SM100_KIND_F16_SWIZZLE_BYTES +
                                  k_block % OF_BOX * 32,
                              8 * SM100_KIND_F16_SWIZZLE_BYTES, TCGEN05_SWIZZLE_128B);
}

template <class C>
__device__ inline void mma_16bit_stage(const typename kind_f16_smem<C>::stage &stage, uint32_t accumulator,
                                       uint32_t decoded, uint32_t instruction, bool accumulates)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_K_BLOCKS; i++) {
        const uint64_t tokens = boxes_descriptor(stage.tokens[0], C::CTA_N, i);
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++) {
            const uint32_t to = accumulator + matrix * C::MMA_N;
            if constexpr (C::DECODES)
                tcgen05_mma_f16<C::CTA_GROUP>(to, decoded + matrix * SM100_KIND_F16_DECODED_COLUMNS + i * 8, tokens,
                                              instruction, accumulates || i > 0);
            else
                tcgen05_mma_f16<C::CTA_GROUP>(to, boxes_descriptor(stage.weights[matrix], SM100_GEMM_CTA_M, i), tokens,
                                              instruction, accumulates || i > 0);
        }
    }
}

/* One thread of the leader CTA. */
template <class C>
__device__ inline void issue_16bit_mmas(kind_f16_smem<C> &s, uint32_t tmem, bool bf16,
                                        const mma_tile_scheduler &scheduler)
{
    const uint32_t instruction = kind_f16_instruction(bf16, C::MMA_M, C::MMA_N);
    pipeline_state load, decoded, accumulator;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        wait_tmem(&s.accumulator_empty[accumulator.stage], accumulator.parity ^ 1);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step;
             step++, load.advance(C::STAGES), decoded.advance(C::DECODED_STAGES)) {
            wait_cta_group<C>(C::DECODES ? &s.decoded_full[decoded.stage] : &s.full[load.stage],
                              C::DECODES ? decoded.parity : load.parity);
            tcgen05_fence_after_thread_sync();
            mma_16bit_stage<C>(s.stages[load.stage], tmem + accumulator.stage * C::ACCUMULATOR_COLUMNS,
                               tmem + C::DECODED_COLUMN + decoded.stage * C::DECODED_STAGE_COLUMNS, instruction,
                               step > t.first_step);
            commit<C>(&s.empty[load.stage], scheduler);
            if (C::DECODES) commit<C>(&s.decoded_empty[decoded.stage], scheduler);
        }
        commit<C>(&s.accumulator_full[accumulator.stage], scheduler);
        accumulator.advance(C::ACCUMULATORS);
    });
    if constexpr (C::CTA_GROUP == 2) drain_pipeline<C::ACCUMULATORS>(s.accumulator_empty, accumulator);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C> __device__ inline void init_kind_f16_barriers(kind_f16_smem<C> &s)
{
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1 + (C::DECODES ? 32 : 0));
        mbarrier_init(shared_address(&s.empty[i]), 1 + (C::DECODES ? SM100_KIND_F16_DECODE_WARPS : 0));
    }
    for (int i = 0; i < C::DECODED_STAGES; i++) {
        mbarrier_init(shared_address(&s.decoded_full[i]), C::CTA_GROUP * SM100_KIND_F16_DECODE_WARPS);
        mbarrier_init(shared_address(&s.decoded_empty[i]), 1);
    }
    init_epilogue_barriers<C>(s);
    fence_mbarrier_init();
}

/* All groups of a list have tokens of one type. */
template <typename P> __device__ inline nk_dtype token_dtype(const P &p) { return p.a.dtype; }
__device__ inline nk_dtype token_dtype(const sm100_list_params &list) { return list.group[0].gemm.a.dtype; }

template <class C, typename P>
__device__ inline void run_kind_f16(const code_maps &maps, const P &p, const sm100_gemm_params &params,
                                    const sm100_gemm_experts &experts = {})
{
    typedef typename kind_f16_smem<C>::stage stage;
    static_assert(sizeof(kind_f16_smem<C>) <=
                      SM100_KIND_F16_SMEM(C::DECODES, C::CTA_GROUP, C::MMA_N, C::SPLIT_K, C::MATRICES),
                  "the host launches with so much");
    static_assert(sizeof(stage) == SM100_KIND_F16_STAGE_BYTES(C::DECODES, C::CTA_GROUP, C::MMA_N, C::MATRICES),
                  "the host's size");
    static_assert(sizeof(stage) % 1024 == 0 && offsetof(stage, tokens) % 1024 == 0, "boxes begin where swizzles do");
    kind_f16_smem<C> &s = *(kind_f16_smem<C> *)shared_memory;
    const int warp = (int)threadIdx.x / 32, rank = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank();
    const bool bf16 = token_dtype(p) == NK_BF16;
    if (warp == C::PRODUCER_WARP && elect_sync()) {
        for (int operand = 0; operand < C::OPERANDS; operand++)
            prefetch_tensormap(maps.of[operand]);
        init_kind_f16_barriers<C>(s);
    }
    const uint32_t tmem = alloc_tmem<C>(s, warp == C::MMA_WARP);
    griddepcontrol_wait();
    const mma_tile_scheduler scheduler = make_scheduler<C>(s, p, params, experts, rank);
    if (warp < SM100_GEMM_EPILOGUE_WARPS) {
        run_epilogue<C>(s, tmem, p, scheduler);
    } else if (warp == C::MMA_WARP) {
        if (scheduler.rank_in_pair == 0 && elect_sync()) issue_16bit_mmas<C>(s, tmem, bf16, scheduler);
    } else if (warp == C::PRODUCER_WARP) {
        const bool is_elected = elect_sync();
        if (is_elected || has_tokens_by_index<C>(scheduler)) produce_16bit_stages<C>(s, maps, p, scheduler, is_elected);
    } else if constexpr (C::DECODES) {
        if (warp > C::PRODUCER_WARP)
            copy_weight_sf<C>(s, p, scheduler);
        else if (bf16)
            decode_weights_to_tmem<C, true>(s, tmem, p, scheduler);
        else
            decode_weights_to_tmem<C, false>(s, tmem, p, scheduler);
    }
    dealloc_tmem<C>(tmem, warp == C::MMA_WARP);
}

#endif
