/* GEMMs of NVFP4 weights by wgmma on Hopper
 *
 *   gemm               D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   grouped_gemm       the gemm of each expert's tokens with its weights, alpha and bias (contiguous form), or of
 *                      each group (list form)
 *   dual_gemm          D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                                         * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *   grouped_dual_gemm  the dual_gemm of each expert's tokens. Row n of B2 is row N + n of the expert's matrix; or row
 *                      2 n + 1, and row n of B1 is row 2 n. The output may be NVFP4 in place of convert
 *                      (sm90_gemm_encode.cuh)
 *   row_scale          if given, fl(row_scale[token] * sum) takes the place of each sum
 *
 * Operands are swapped: weights are A of wgmma, from registers, so its M is our N; tokens are its B, from shared
 * memory, so its N is our M. A weight's codes are loaded to shared memory and decoded in registers. Tokens have 16
 * bits: the prologue kernel (sm90_prepare_a.cu) has put them into the order of K in which weights are decoded. Or
 * (NATURAL_K) they are loaded as they lie, and producer warps put the codes of each stage into the tokens' order.
 *
 * Decoding: in a step of K = 128, lane (g, c) = (lane / 4, lane % 4) takes chunk c, 16 bytes, of weight rows g and
 * g + 8 of its warp's 16, and two scale factors of each. Word i of a chunk becomes the A fragments of k16 MMAs 2 i and
 * 2 i + 1.
 *
 * dual_gemm: a stage has rows of B1, the gates, then the same rows of B2, the ups. A warp takes eight of both, so rows
 * g and g + 8 of its MMA are the gate and the up of one feature, and one lane has both sums.
 *
 * Tiles: tile_m tokens x tile_n weight rows, 64 rows for each warpgroup of a consumer group (SM90_GEMM_TILES).
 *   persistent     CTA i has tiles i, i + grid, ..; of a list in alternating order, see for_each_tile()
 *   split-K        one CTA or cluster for each tile. Two consumer groups take the K tiles of a CTA in turn; each CTA
 *                  of a cluster has half of K. Partial sums are added in a fixed order (sm90_gemm_split_k.cuh)
 *   experts        a tile multiplies as many tokens as it has, in steps of SM90_GEMM_TILE_M_STEP; an expert's
 *                  tokens are divided evenly among its tiles
 *   lists          each group has its own tile_m, at most that of a stage
 *
 * Roles: G = consumer groups, W = warpgroups of each
 *   warpgroups 0 .. G W - 1   consumers: warpgroup w has weight rows 64 (w % W) .. + 63 of the stages of group w / W
 *                             (dual_gemm: 32 gates and the same 32 ups)
 *   the next warp             producer: one thread loads by TMA
 *   the next one, or two      producers of scale factors that are no whole atoms and have no boxes: all lanes copy;
 *                             two warps share 256 rows
 *   the next two              NATURAL_K: rearrange codes, in place
 *   more warps                do nothing; they are there if setmaxnreg needs a whole producer warpgroup
 *
 * Barriers (mbarriers; "wait" is the parity that the first wait is given: 1 passes at once, since stages begin empty):
 *   full[STAGES]   producers -> a consumer group   1 arrival + the stage's bytes; if lanes copy scale     wait 0
 *                                                  factors 32 more of each warp, behind its copies;
 *                                                  NATURAL_K: 32 of each warp that rearranges codes
 *   codes_full[STAGES]   producer -> warps that    1 arrival + the bytes of the codes, which are not      wait 0
 *                        rearrange codes           full's. NATURAL_K alone
 *   empty[STAGES]  a consumer group -> producers   128 W arrivals: each thread's, after its own reads.     wait 1
 *                                                  One of each warp would do, but racecheck of
 *                                                  compute-sanitizer does not see that order.
 *   sums_full      the peer CTA -> consumers       1 arrival, of this CTA's thread 0, when it initialises  wait 0
 *                                                  the barrier; + the bytes of the peer's st.async. It
 *                                                  completes once.
 *   BARRIER_CONSUMERS    all consumers: none reads stages any more; partial sums of the other group are written
 *   BARRIER_PAIRS ..     two warps that share a block, see sm90_gemm_encode.cuh
 *   cluster        at the beginning: sums_full is initialised before the peer sends. A CTA waits on sums_full before
 *                  it exits, so its shared memory outlives the peer's st.async
 *
 * Shared memory (struct sm90_gemm_memory; every part of a stage is a multiple of 1024 bytes, as swizzles need):
 *   STAGES x codes [step][weight row][64 bytes], swizzled by 64 bytes
 *            scale factors: blocked, [atom along N][step][two atoms along K]; of two matrices of 64 rows,
 *            [step][matrix][two half atoms along K]; or linear, [weight row][8 for each step, or 16 of boxes]
 *            tokens [64 elements of K][token][128 bytes], swizzled by 128 bytes
 *   partial sums of the peer CTA; barriers; the scan of offsets, the encoder's scale factors, the CTA's first
 *   tiles, the list of experts
 * Partial sums of the other consumer group reuse the stages. */
#ifndef NK_SM90_GEMM_CUH
#define NK_SM90_GEMM_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90_gemm_encode.cuh"
#include "sm90_gemm_load.cuh"
#include "sm90_gemm_split_k.cuh"
#include "sm90_gemm_store.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* What a lane reads of a stage                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A mask of the two scale factors of this lane's chunk: those beyond K, and bit 7 of each, are ignored. */
__device__ inline uint32_t sf_mask(int64_t k, int step, int chunk)
{
    const int64_t rest = k / NK_SF_VEC - (int64_t)step * 8 - 2 * chunk;
    return rest >= 2 ? 0x7F7F : rest == 1 ? 0x7F : 0;
}

/* The same of four scale factors of a step, its first ones or the others. */
__device__ inline uint32_t sf_word_mask(int64_t k, int step, int word)
{
    return sf_mask(k, step, 2 * word) | sf_mask(k, step, 2 * word + 1) << 16;
}

/* Two scale factors as a pair of 16-bit floats, ready to multiply decoded codes with. Codes decode to 2^-14 of their
 * value in fp16, to 2^-126 in bf16: 2^112 makes both products 2^-14 of theirs.
 *
 * An E4M3 value as fp16 is normal or zero, and its last seven bits are zeros. Shifted right by three it is a bf16 of
 * 2^-112 of the value; two products make that 2^113, and the sum with minus a half of it 2^112. A NaN becomes infinite
 * by the products, and a NaN again by the sum. */
template <bool BFLOAT> __device__ inline uint32_t sf_as_16bit(uint32_t bytes)
{
    const uint32_t fp16 = cvt_f16x2_e4m3x2(bytes), bf16_2_112 = 0x77807780, bf16_2_113 = 0x78007800;
    if (!BFLOAT) return fp16;
    const uint32_t twice = multiply_pairs<true>(multiply_pairs<true>(fp16 >> 3, bf16_2_112), bf16_2_113);
    return multiply_add_bf16x2(twice, 0xBF00BF00, twice);
}

/* The offset of a chunk's two scale factors in a step's blocked ones: whole atoms, or half atoms of two matrices. */
template <class C> __device__ inline uint32_t blocked_sf_offset(int row, int chunk)
{
    constexpr int ROWS = has_half_atoms<C>() ? SF_ATOM_ROWS / 2 : SF_ATOM_ROWS;
    return sf_offset_in_atoms<ROWS>(row, chunk / 2, chunk % 2 * 2);
}

/* The bytes that a warp's rows add to offsets of rows below 32. A tile of 192 rows may begin within an atom, so its
 * stages have two atoms along N; the warp's rows are in one quarter of an atom. */
template <class C> __device__ inline uint32_t quarter_offset(const tile_coord &tile, const consumer &c)
{
    const int quarter =
        sf_row_in_atom(tile.n) / SF_QUARTER_ROWS + (C::DUAL ? c.warpgroup : 2 * c.warpgroup + c.warp / 2);
    return quarter / 4 * (C::STEPS * SM90_GEMM_SF_BYTES) + sf_offset_of_quarter(quarter % 4);
}

/* Where a lane's codes and scale factors are in a stage. */
template <class C, typename P> struct stage_reader {
    static constexpr int NEXT = C::DUAL ? C::FEATURES : 8; /* rows from a lane's first row to its second one */
    static constexpr int BLOCKED_UPS =
        C::SF_ATOMS_N == 1 ? SF_ATOM_BYTES : C::SF_ATOMS_N / 2 * C::STEPS * SM90_GEMM_SF_BYTES;
    /* Boxes have the scale factors of two steps, which may be two stages. */
    static constexpr bool TWO_STAGES_OF_BOX = C::HAS_SF_BOXES && C::STEPS == 1;
    static constexpr int SF_WORDS = C::NATURAL_K ? 2 : 1; /* that a lane reads of a row: four scale factors, or two */
    uint32_t codes, sf;                                   /* offsets in a stage, of the lane's first row */
    uint32_t sf_next, sf_step;                            /* from there to its second row's, and to the next step's */
    uint32_t sf_odd;                                      /* what the stage of an odd step adds to them */
    uint32_t sf_word;                                     /* from the first four to the others, see SF_WORDS */
    uint32_t last_masks[C::STEPS * SF_WORDS];             /* of the last K tile's scale factors */
    int last_k_tile;

    __device__ stage_reader(const P &p, const sm90_gemm_params &params, const consumer &c)
        : last_k_tile((params.k_steps - 1) / C::STEPS)
    {
        const int chunk = c.lane % 4,
                  row = (C::DUAL ? 32 : 64) * c.warpgroup + (C::DUAL ? 8 : 16) * c.warp + c.lane / 4;
        const int blocked_row = C::SF_ATOMS_N == 1 ? row : row % SF_QUARTER_ROWS; /* see sf_of_tile() */
        const int first_sf = C::NATURAL_K ? 0 : chunk;                            /* in pairs */
        const bool rows = has_sf_rows<C>(p), boxes = sf_source_of<C>(p, params) == SF_BOXES;
        const int sf_row_bytes = boxes ? SM90_GEMM_SF_BOX_BYTES : 8 * C::STEPS;
        codes = kept(row * SM90_GEMM_CODE_BYTES + (chunk ^ (row >> 1 & 3)) * 16);
        sf = kept(offsetof(typename sm90_gemm_memory<C>::stage, sf) +
                  (rows ? row * sf_row_bytes + first_sf * 2 : blocked_sf_offset<C>(blocked_row, first_sf)));
        sf_next = kept(rows      ? NEXT * sf_row_bytes
                       : C::DUAL ? BLOCKED_UPS
                                 : 8 * SF_QUAD_BYTES); /* eight rows are in one quarter */
        sf_step = kept(rows ? 8 : SM90_GEMM_SF_BYTES);
        sf_odd = TWO_STAGES_OF_BOX ? kept(boxes ? 8 : 0) : 0;
        sf_word = C::NATURAL_K ? kept(rows ? 4 : SF_ATOM_BYTES) : 0;
#pragma unroll
        for (int step = 0; step < C::STEPS * SF_WORDS; step++)
            last_masks[step] = kept(C::NATURAL_K ? sf_word_mask(p.k, last_k_tile, step)
                                                 : sf_mask(p.k, last_k_tile * C::STEPS + step, chunk));
    }

    /* What a tile adds to `sf`. */
    __device__ uint32_t sf_of_tile(const P &p, const tile_coord &tile, const consumer &c) const
    {
        return C::SF_ATOMS_N == 1 || has_sf_rows<C>(p) ? 0 : kept(quarter_offset<C>(tile, c));
    }
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Main loop                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The products of word i % 4 of step i / 4, with LOW to HIGH TILE_M_STEPs of tokens, m_steps: the same in all warps.
 * Each height commits and waits for itself: behind the branches ptxas would wait for all products. */
template <class C, int LOW, int HIGH, int SUMS>
__device__ inline void multiply_word(float (&sums)[SUMS], int m_steps, uint32_t (&a)[2][4], uint64_t tokens, int i)
{
    if constexpr (LOW < HIGH) {
        constexpr int MIDDLE = (LOW + HIGH) / 2;
        if (m_steps <= MIDDLE)
            multiply_word<C, LOW, MIDDLE>(sums, m_steps, a, tokens, i);
        else
            multiply_word<C, MIDDLE + 1, HIGH>(sums, m_steps, a, tokens, i);
    } else {
        constexpr int TILE_M = C::EXPERTS ? LOW * C::TILE_M_STEP : 2 * SUMS;
        float (&used)[TILE_M / 2] = reinterpret_cast<float (&)[TILE_M / 2]>(sums);
        wgmma_fence(a);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint64_t x = tokens + (i / 2 * TILE_M * 128 + (i % 2 * 2 + j) * 32) / 16;
            if (C::BFLOAT)
                wgmma_bf16(used, a[j], x, true);
            else
                wgmma_f16(used, a[j], x, true);
        }
        wgmma_commit_group();
        wgmma_wait_group<1>(used);
    }
}

/* Adds up the K tiles of a tile that this consumer group has. A lane's sums in an n8 group are those of weight rows
 * lane / 4 and lane / 4 + 8 (dual_gemm: of a gate and its up), and of tokens 2 (lane % 4) and the next one. */
template <class C, typename P, int SUMS>
__device__ inline void wgmma_mainloop(const sm90_gemm_memory<C> &s, const smem_addresses<C> &at,
                                      const stage_reader<C, P> &reader, uint32_t sf_of_tile, int m_steps, k_range k,
                                      const consumer &c, sm90_pipeline_state &r, float (&sums)[SUMS])
{
    typedef typename sm90_gemm_memory<C>::stage stage;
    /* Of s, not of `at`: a descriptor must be uniform, and kept() hides that. */
    const uint32_t first_tokens = shared_address(s.stages[0].tokens);
    uint32_t fragments[2][2][4]; /* [word % 2][k16 MMA of the word][register] */
    uint32_t unreleased = 0;     /* the empty barrier of the previous stage; 0: none, which is no barrier's address */
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int k_tile = k.begin + (C::CTA_SPLIT_K == 2 ? c.consumer_group : 0); k_tile < k.end;
         k_tile += C::CTA_SPLIT_K) {
        const uint32_t from = at.stage_at(r.stage);
        const uint64_t tokens =
            wgmma_descriptor(first_tokens + r.stage * (uint32_t)sizeof(stage), 0, 8 * 128, WGMMA_SWIZZLE_128B);
        const bool is_last = k_tile == reader.last_k_tile;
        mbarrier_wait(at.full(r.stage), r.parity);
#pragma unroll
        for (int step = 0; step < C::STEPS; step++) {
            const uint32_t codes = from + reader.codes + step * (uint32_t)sizeof(stage::codes[0]);
            const uint32_t sf = from + reader.sf + sf_of_tile + step * reader.sf_step +
                                (reader.TWO_STAGES_OF_BOX ? (k_tile & 1) * reader.sf_odd : 0);
            const uint32_t mask = is_last ? reader.last_masks[step] : 0x7F7F;
            const uint4 chunk[2] = {ld_shared_v4(codes), ld_shared_v4(codes + reader.NEXT * SM90_GEMM_CODE_BYTES)};
            uint32_t scale[2][C::NATURAL_K ? 4 : 1]; /* [row]: of the lane's chunk, or of each of its words */
            if constexpr (C::NATURAL_K) {
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    const uint32_t at_word = sf + word / 2 * reader.sf_word;
                    const uint32_t word_mask = is_last ? reader.last_masks[word / 2] : 0x7F7F7F7F;
#pragma unroll
                    for (int row = 0; row < 2; row++)
                        scale[row][word] = sf_as_16bit<C::BFLOAT>(
                            (ld_shared(at_word + row * reader.sf_next) & word_mask) >> word % 2 * 16);
                }
            } else {
                scale[0][0] = sf_as_16bit<C::BFLOAT>(ld_shared_u16(sf) & mask);
                scale[1][0] = sf_as_16bit<C::BFLOAT>(ld_shared_u16(sf + reader.sf_next) & mask);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t (&a)[2][4] = fragments[i % 2];
#pragma unroll
                for (int row = 0; row < 2; row++) {
                    uint32_t pairs[4];
                    e2m1x8_to_pairs<C::BFLOAT>(word_of(chunk[row], i), pairs);
                    /* Of the word's first MMA, and of its second one: a chunk's scale factors have two words each. */
                    const uint32_t first = __byte_perm(scale[row][C::NATURAL_K ? i : 0], 0,
                                                       C::NATURAL_K || i < 2 ? 0x1010 : 0x3232),
                                   second = C::NATURAL_K ? __byte_perm(scale[row][i], 0, 0x3232) : first;
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        a[j / 2][2 * (j % 2) + row] = multiply_pairs<C::BFLOAT>(pairs[j], j < 2 ? first : second);
                }
                multiply_word<C, 1, C::TILE_M / C::TILE_M_STEP>(sums, m_steps, a, tokens, 4 * step + i);
                /* All MMAs of the previous stage have ended. */
                if (step == 0 && i == 0) mbarrier_arrive_if(unreleased, unreleased);
            }
        }
        unreleased = at.empty(r.stage);
        advance_pipeline<C::STAGES>(r, C::CONSUMER_GROUPS);
    }
    wgmma_wait_group<0>(sums);
    mbarrier_arrive_if(unreleased, unreleased);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Epilogue                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Adds the peer CTA's partial sums and stores. `sums` are of the n8 groups from first_n8 on: those that this consumer
 * group stores or sends. */
template <class C, typename P, int N>
__device__ inline void wgmma_epilogue(sm90_gemm_memory<C> &s, const P &p, const sm90_gemm_params &params,
                                      const sm90_gemm_experts &experts, const tile_coord &tile, const consumer &c,
                                      const lane_factors &f, int first_n8, float (&sums)[N])
{
    const auto scaled = [&](int n8, auto &sums) {
        return scale_sums<C>(p, params, experts.token_rows, tile, n8, sums);
    };
    if constexpr (C::ENCODER_WARPS > 0) {
        const float scale = scaled(first_n8, sums);
        if (C::ACTIVATED || p.encoded.wanted)
            encode_gated_tile<C>(s, p, tile, c, f, scale, sums);
        else
            store_gemm_tile<C>(p, params, tile, c, f, scale, first_n8, sums);
    } else if constexpr (C::CLUSTER == 1) {
        const float scale = scaled(first_n8, sums);
        if constexpr (C::ACTIVATED)
            if (experts.encoded.wanted) return encode_tile<C>(experts.encoded, p, params, tile, c, f, scale, sums);
        store_gemm_tile<C>(p, params, tile, c, f, scale, first_n8, sums);
    } else if constexpr (C::BOTH_CTAS_STORE) { /* CTA 1 the upper half */
        const int rank = (int)cluster_ctarank(), sender = C::WARPGROUPS * c.consumer_group + c.warpgroup;
        float ours[N / 2], theirs[N / 2];
        halve_sums(sums, rank == 1, ours, theirs);
        barrier_cluster_wait();
        send_partial_sums(s, sender, c.thread, theirs);
        add_peer_sums(s, sender, c.thread, ours);
        first_n8 += rank * (N / 8);
        store_gemm_tile<C>(p, params, tile, c, f, scaled(first_n8, ours), first_n8, ours);
    } else { /* CTA i stores what consumer group i has */
        barrier_cluster_wait();
        if ((int)cluster_ctarank() != c.consumer_group) {
            send_partial_sums(s, c.warpgroup, c.thread, sums);
        } else {
            add_peer_sums(s, c.warpgroup, c.thread, sums);
            store_gemm_tile<C>(p, params, tile, c, f, scaled(first_n8, sums), first_n8, sums);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Roles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C, typename P>
__device__ inline void consume_tiles(sm90_gemm_memory<C> &s, const P &p, const sm90_gemm_experts &experts,
                                     const gemm_tile_scheduler &scheduler, k_range k, int warpgroup)
{
    const consumer c = consumer_of<C>(warpgroup);
    const smem_addresses<C> at(s);
    const stage_reader<C, P> reader(p, scheduler.params, c);
    griddepcontrol_wait(); /* the previous kernels may have written alpha and bias; tokens come no earlier */
    sm90_pipeline_state r = {C::CONSUMER_GROUPS == 1 ? 0 : c.consumer_group, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        float sums[C::ACCUMULATORS];
        lane_factors f = factors_of_lane<C>(p, tile, c);
        /* By shuffle, so that the compiler knows that it is uniform. */
        const int m_steps = C::EXPERTS ? __shfl_sync(~0u, m_steps_of<C>(tile), 0) : 1;
        wgmma_mainloop(s, at, reader, reader.sf_of_tile(p, tile, c), m_steps, k, c, r, sums);
        read_gated_biases<C>(p, tile, c, f);
        if constexpr (C::CTA_SPLIT_K == 2) {
            float ours[C::ACCUMULATORS / 2];
            reduce_consumer_groups<C>(s, c, sums, ours);
            wgmma_epilogue<C>(s, p, scheduler.params, experts, tile, c, f, c.consumer_group * C::OWN_N8S, ours);
        } else {
            wgmma_epilogue<C>(s, p, scheduler.params, experts, tile, c, f, 0, sums);
        }
    });
}

template <class C>
__device__ inline void consume_tiles(sm90_gemm_memory<C> &s, const sm90_list &list, const sm90_gemm_experts &none,
                                     const gemm_tile_scheduler &scheduler, k_range, int warpgroup)
{
    const consumer c = consumer_of<C>(warpgroup);
    const smem_addresses<C> at(s);
    griddepcontrol_wait(); /* as for one problem */
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        const sm90_list_group &g = list.group[tile.l];
        const stage_reader<C, nk_gemm_problem> reader(g.gemm, g.params, c);
        const lane_factors f = factors_of_lane<C>(g.gemm, tile, c);
        C::TILE_MS::call(g.tile_m_index, [&](auto tile_m) {
            float sums[tile_m.TILE_M / 2];
            wgmma_mainloop(s, at, reader, 0, 1, k_tiles_of_cta<C>(g.params), c, r, sums);
            wgmma_epilogue<C>(s, g.gemm, g.params, none, tile, c, f, 0, sums);
        });
    });
}

template <class C, typename P>
__device__ inline void init_gemm_barriers(sm90_gemm_memory<C> &s, const P &p, const sm90_gemm_params &params)
{
    const bool lanes_copy = sf_source_of<C>(p, params) == SF_LANES;
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(shared_address(&s.full[i]), 1 + 32 * (lanes_copy ? C::COPY_WARPS : 0) + 32 * C::REARRANGE_WARPS);
        if (C::NATURAL_K) mbarrier_init(shared_address(&s.codes_full[i]), 1);
        mbarrier_init(shared_address(&s.empty[i]), WARPGROUP * C::WARPGROUPS);
    }
    if (C::CLUSTER == 2) mbarrier_init(shared_address(&s.sums_full), 1);
    fence_mbarrier_init();
    if (C::CLUSTER == 2) mbarrier_arrive_expect_tx(shared_address(&s.sums_full), sizeof s.peer_sums);
}

template <class C, typename P>
__device__ inline void run_gemm(const weight_maps &weights, const cuda_tensor_map *tokens, const P &p,
                                const sm90_gemm_params &params, const sm90_gemm_experts &experts = {})
{
    typedef typename sm90_gemm_memory<C>::stage stage;
    extern __shared__ __align__(1024) uint8_t raw[];
    sm90_gemm_memory<C> &s = *(sm90_gemm_memory<C> *)raw;
    static_assert(offsetof(sm90_gemm_memory<C>, listed) <= C::SMEM, "what the host asks");
    static_assert(sizeof(stage) % 1024 == 0 && offsetof(stage, tokens) % 1024 == 0, "swizzles begin at 1024 bytes");
    /* By shuffle, so that the compiler knows that they are uniform. */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x % WARPGROUP / 32, 0);
    const k_range k = k_tiles_of_cta<C>(params);
    gemm_tile_scheduler scheduler = {params, s.experts, experts.count, params.tiles, list_of(p), s.listed};
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) init_gemm_barriers<C>(s, p, params);
    if constexpr (C::EXPERTS) {
        if (experts.wait_first) griddepcontrol_wait();
        /* The prologue has prepared no rows from the last offset on: falling offsets must lead to none of them. */
        const int rows = clamped_offset(experts.offsets, experts.count, p.m, experts.first_row);
        list_experts<C::TILE_M>(s.scan[0], experts.offsets, experts.count, rows, experts.first_row,
                                s.experts); /* ends with a barrier */
        scheduler.tiles = s.experts[experts.count].x * params.n_tiles;
        list_tiles<C>(scheduler, s.listed); /* so does this */
    } else {
        __syncthreads();
    }
    /* The barrier of either branch has made the mbarriers visible. */
    if (C::CLUSTER == 2) barrier_cluster_arrive_relaxed(); /* a release is a fence of the whole GPU */
    /* Registers of all warpgroups, as launched: 2 x 224 + 56 = 2 x 216 + 72 = 3 x 168, 3 x 152 + 56 = 4 x 128, and
     * 4 x 104 + 64 = 5 x 96. */
    if (warpgroup == C::WARPGROUPS * C::CONSUMER_GROUPS) {
        if (C::HAS_PRODUCER_WARPGROUP) setmaxnreg_dec<C::WARPGROUPS == 4 ? 64 : C::LIST ? 72 : 56>();
        if (C::NATURAL_K && !params.weights_first) griddepcontrol_wait();
        if (warp == 0 && elect_sync()) load_tiles<C>(s, weights, tokens, p, scheduler, k);
        if (warp >= 1 && warp <= C::COPY_WARPS && sf_source_of<C>(p, params) == SF_LANES)
            copy_sf<C>(s, p, scheduler, k, warp - 1);
        if constexpr (C::NATURAL_K) {
            if (warp > C::COPY_WARPS) rearrange_codes<C>(s, scheduler, k, warp - 1 - C::COPY_WARPS);
        }
    } else {
        if (C::HAS_PRODUCER_WARPGROUP)
            setmaxnreg_inc<C::WARPGROUPS == 4 ? 104 : C::WARPGROUPS == 3 ? 152 : C::LIST ? 216 : 224>();
        consume_tiles<C>(s, p, experts, scheduler, k, warpgroup);
    }
    griddepcontrol_wait(); /* by all threads: the next kernel relies on it */
    if (C::CLUSTER == 2 && warpgroup == C::WARPGROUPS * C::CONSUMER_GROUPS)
        barrier_cluster_wait(); /* as the consumers have */
}

#endif
