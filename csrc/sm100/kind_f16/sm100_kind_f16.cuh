/* By tcgen05 on Blackwell, where the tokens have 16 bits
 *   gemm:      D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   dual_gemm: D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   grouped_gemm, list: the gemm of each group, of NVFP4 weights
 *   grouped_dual_gemm: the dual_gemm of each expert's tokens with its gates, its ups and their alphas
 * Weights are NVFP4, or, of experts, 16-bit as the tokens are.
 *
 * Weights, B, are the lanes of tensor memory and the product's operand A; tokens, A, are its columns and its operand B,
 * which lie in shared memory as boxes bring them. NVFP4 weights are decoded to their exact values in the tokens' type,
 * a row by a thread, and put in tensor memory, where products read them: shared memory would have them written once and
 * read once more. 16-bit weights are multiplied where boxes bring them.
 *
 * Work: a CTA, or a pair of them, walks over whole tiles of all batches, or of all experts, as in sm100_gemm.cuh, whose
 * tiles, lists, parts of K and stores these are. A product of a pair has the lanes of both, each in its own tensor
 * memory; the even CTA issues it. Each CTA loads and decodes its own lanes, and loads half of the columns. A step is
 * 128 of K.
 *
 * Roles: warps 0 - 3:  epilogue, warp w has lanes 32 w .. + 31 of tensor memory
 *        warps 4 - 11: decode; warp w has lanes 32 (w % 4) .. + 31, in the first half of a step's K, from warp 8 on in
 *                      the second
 *        next warp:    one thread loads; tokens by index come by its lanes, whose bytes that thread announces
 *        next warp:    its lanes copy the weights' scale factors
 *        last warp:    owns tensor memory; one thread issues products
 * Of 16-bit weights nobody decodes and nobody copies.
 *
 * Barriers (mbarriers; "wait" names the parity of the first; commits arrive in both CTAs of a pair):
 *   full[STAGES]              loads -> decoders; where   1 arrival + the bytes of boxes; 32 more, of each lane once its
 *                             nobody decodes, issuer     copies of scale factors are there                   wait 0
 *   empty[STAGES]             issuer -> loads            1 (commit): products have read the tokens; 8 more, of each
 *                                                        warp that decodes                                   wait 1
 *   decoded_full[SLOTS]       decoders -> issuer         8 of each CTA, of each warp: its weights, and the tokens of
 *                                                        its CTA, are there                                  wait 0
 *   decoded_empty[SLOTS]      issuer -> decoders         1 (commit)                                          wait 1
 *   sums_full[ACCUMULATORS]   issuer -> epilogue         1 (commit)                                          wait 0
 *   sums_empty[ACCUMULATORS]  epilogue -> issuer         4 of each CTA, of each warp, once its sums are in
 *                                                        registers                                           wait 1
 *   inbox_full, inbox_empty, cluster: as in sm100_gemm.cuh
 *
 * Tensor memory: ACCUMULATORS x COLUMNS of sums, of dual_gemm twice as many, then SLOTS x 64 columns of a step's
 * decoded weights, of dual_gemm twice as many.
 *
 * Shared memory: struct halves_memory of sm100_kind_f16_parts.cuh. */
#ifndef NK_SM100_KIND_F16_CUH
#define NK_SM100_KIND_F16_CUH

#include "sm100_kind_f16_decode.cuh"
#include "sm100_kind_f16_load.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* 16-bit rows, K-major, fp32 sums (PTX ISA, 9.7.16.4.2). */
__device__ inline uint32_t halves_instruction(bool bfloat, int lanes, int columns)
{
    return 1u << 4 | (uint32_t)bfloat << 7 | (uint32_t)bfloat << 10 | (uint32_t)(columns >> 3) << 17 |
           (uint32_t)(lanes >> 4) << 24;
}

/* Sixteen of K out of panels of `rows` rows. */
__device__ inline uint64_t halves_at(const uint8_t *panels, int rows, int k16)
{
    constexpr int OF_PANEL = SM100_KIND_F16_SWIZZLE_K / 16;
    return tcgen05_descriptor(shared_address(panels) + k16 / OF_PANEL * rows * SM100_KIND_F16_SWIZZLE_BYTES +
                                  k16 % OF_PANEL * 32,
                              8 * SM100_KIND_F16_SWIZZLE_BYTES, TCGEN05_SWIZZLE_128B);
}

template <class C>
__device__ inline void multiply_step(const typename halves_memory<C>::stage &stage, uint32_t sums, uint32_t decoded,
                                     uint32_t instruction, bool adds)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_K_BLOCKS; i++) {
        const uint64_t tokens = halves_at(stage.tokens[0], C::TOKENS, i);
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++) {
            const uint32_t to = sums + matrix * C::COLUMNS;
            if constexpr (C::DECODES)
                tcgen05_mma_f16<C::CTAS>(to, decoded + matrix * SM100_KIND_F16_DECODED_COLUMNS + i * 8, tokens,
                                         instruction, adds || i > 0);
            else
                tcgen05_mma_f16<C::CTAS>(to, halves_at(stage.weights[matrix], SM100_GEMM_CTA_M, i), tokens, instruction,
                                         adds || i > 0);
        }
    }
}

template <class C>
__device__ inline void issue_halves(halves_memory<C> &s, uint32_t tmem, bool bfloat, const gemm_tiles &tiles)
{
    const uint32_t instruction = halves_instruction(bfloat, C::LANES, C::COLUMNS);
    ring<C::STAGES> r;
    ring<C::SLOTS> decoded;
    ring<C::ACCUMULATORS> sums;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        wait_for_tmem(&s.sums_empty[sums.slot], sums.parity ^ 1);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance(), decoded.advance()) {
            wait_for<C>(C::DECODES ? &s.decoded_full[decoded.slot] : &s.full[r.slot],
                        C::DECODES ? decoded.parity : r.parity);
            tcgen05_fence_after_thread_sync();
            multiply_step<C>(s.stages[r.slot], tmem + sums.slot * C::SUMS, tmem + C::DECODED + decoded.slot * C::SLOT,
                             instruction, step > t.first_step);
            commit<C>(&s.empty[r.slot], tiles);
            if (C::DECODES) commit<C>(&s.decoded_empty[decoded.slot], tiles);
        }
        commit<C>(&s.sums_full[sums.slot], tiles);
        sums.advance();
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C> __device__ inline void initialise_halves(halves_memory<C> &s)
{
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1 + (C::DECODES ? 32 : 0));
        mbarrier_init(shared_address(&s.empty[i]), 1 + (C::DECODES ? SM100_KIND_F16_DECODE_WARPS : 0));
    }
    for (int i = 0; i < C::SLOTS; i++) {
        mbarrier_init(shared_address(&s.decoded_full[i]), C::CTAS * SM100_KIND_F16_DECODE_WARPS);
        mbarrier_init(shared_address(&s.decoded_empty[i]), 1);
    }
    initialise_sums<C>(s);
    fence_mbarrier_init();
}

/* Of tokens; those of a list have one. */
template <typename P> __device__ inline nk_dtype type_of(const P &p) { return p.a.dtype; }
__device__ inline nk_dtype type_of(const sm100_list_params &list) { return list.group[0].gemm.a.dtype; }

template <class C, typename P>
__device__ inline void run_halves(const code_maps &maps, const P &p, const sm100_gemm_scheduler &work,
                                  const sm100_gemm_experts &experts = {})
{
    typedef typename halves_memory<C>::stage stage;
    static_assert(sizeof(halves_memory<C>) <=
                      SM100_KIND_F16_SMEM(C::DECODES, C::CTAS, C::COLUMNS, C::PARTS, C::MATRICES),
                  "the host says how much");
    static_assert(sizeof(stage) == SM100_KIND_F16_STAGE_BYTES(C::DECODES, C::CTAS, C::COLUMNS, C::MATRICES),
                  "of a stage");
    static_assert(sizeof(stage) % 1024 == 0 && offsetof(stage, tokens) % 1024 == 0, "boxes begin where swizzles do");
    halves_memory<C> &s = *(halves_memory<C> *)shared_memory;
    const int warp = (int)threadIdx.x / 32, rank = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank();
    const bool bfloat = type_of(p) == NK_BF16;
    if (warp == C::LOADER && elect_sync()) {
        for (int of = 0; of < C::OPERANDS; of++)
            prefetch_tensormap(maps.of[of]);
        initialise_halves<C>(s);
    }
    /* From here to the tiles as in sm100_gemm.cuh: the prologue is the same, the roles behind it are not. */
    if (warp == C::ISSUER) {
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
    } else if (warp == C::ISSUER) {
        if (tiles.half == 0 && elect_sync()) issue_halves<C>(s, tmem, bfloat, tiles);
    } else if (warp == C::LOADER) {
        const bool leads = elect_sync();
        if (leads || are_by_index<C>(tiles)) load_boxes<C>(s, maps, p, tiles, leads);
    } else if constexpr (C::DECODES) {
        if (warp > C::LOADER)
            copy_factors<C>(s, p, tiles);
        else if (bfloat)
            decode<C, true>(s, tmem, p, tiles);
        else
            decode<C, false>(s, tmem, p, tiles);
    }
    __syncwarp();
    meet<C>();
    if (warp == C::ISSUER) tcgen05_dealloc<C::CTAS>(tmem, SM100_GEMM_TMEM_COLUMNS);
}

#endif
