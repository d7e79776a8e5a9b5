/* By wgmma on Hopper
 *   gemm:       D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   grouped_gemm, a list: the gemm of each group
 *   dual_gemm:  D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *   grouped_dual_gemm: the dual_gemm of each expert's tokens; B2 are rows of the same matrices as B1, N rows further;
 *     or codes and scale factors in place of convert (sm90_gemm_encode.cuh)
 *
 * Weights, B, are wgmma's operand A: codes come to shared memory and are decoded in registers. Tokens, A, are its
 * operand B: 16-bit rows in shared memory, which a first kernel (sm90_prepare_a.cu) has put in the decode's order of
 * K. Of a step of K = 128 lane (g, c) = (lane / 4, lane % 4) takes chunk c, 16 bytes, of weight rows g and g + 8 of its
 * warp's 16: two scale factors each. Word i of a chunk makes the fragments of k16 products 2 i and 2 i + 1.
 *
 * A tile of two products has rows of B1, the gates, in its first half, then the same rows of B2, the ups. A warp takes
 * eight of both, so that weight rows g and g + 8 of the product are the gate and the up of one feature, and one lane
 * has both sums.
 *
 * Work: a tile is 128 or 192 weight rows x TOKENS tokens of one batch; each warpgroup of a team has 64 of the rows.
 * PARTS teams take the slots of a CTA's K in turn; the CTAs of a cluster take half of K each. Both add up in a fixed
 * order. Or a tile is 256 rows, and two teams have 128 of them each, whose slots take turns in the ring: more warps
 * decode, nothing is added up. Each group of a list has tiles of its own width, in TOKENS of a slot or less.
 *
 * Roles: warpgroups 0 .. T PARTS - 1, T of a team: consumers; warpgroup w has rows 64 (w % T) .. + 63 in part w / T
 *        the next warp: one thread loads; the one behind it: copies scale factors that are no whole atoms
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[SLOTS]    loads -> a part's consumers     1 arrival + the slot's bytes; 32 more, of each lane's   wait 0
 *                                                  own copies, where lanes copy scale factors
 *   empty[SLOTS]   a part's consumers -> loads     1 of each lane, which has read its bytes: the only      wait 1
 *                                                  order that compute-sanitizer's racecheck knows
 *   sums_full      the peer's consumers -> ours    1 arrival + the bytes of their sums, once               wait 0
 *   BARRIER_CONSUMERS  all consumers               nobody reads the ring any more; what parts give is there
 *   BARRIER_PAIRS ..   two warps of a block        see sm90_gemm_encode.cuh
 *   cluster        begin: sums_full is there before the peer sends. Whoever is sent to waits for it, so no CTA goes
 *                  before its peer has sent
 *
 * Shared memory: struct gemm_memory of sm90_gemm_tile.cuh. What parts give each other takes the place of the ring. */
#ifndef NK_SM90_GEMM_CUH
#define NK_SM90_GEMM_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90_gemm_encode.cuh"
#include "sm90_gemm_load.cuh"
#include "sm90_gemm_store.cuh"
#include "sm90_gemm_sums.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Which of the two scale factors of this lane's chunk there are; bit 7 of a factor is ignored. */
__device__ inline uint32_t factor_mask(int64_t k, int step, int chunk)
{
    const int64_t rest = k / NK_SF_VEC - (int64_t)step * 8 - 2 * chunk;
    return rest >= 2 ? 0x7F7F : rest == 1 ? 0x7F : 0;
}

/* Two scale factors as pairs, ready to multiply codes with. */
template <bool BFLOAT> __device__ inline uint32_t factors(uint32_t bytes)
{
    const uint32_t halves = cvt_f16x2_e4m3x2(bytes);
    if (!BFLOAT) return halves;
    return exact_bf16x2(float_of<false>(halves, 0) * 0x1p112f, float_of<false>(halves, 1) * 0x1p112f);
}

/* Where blocked scale factors of a row's chunk are: in whole atoms, or in halves of the atoms of two matrices. */
template <class C> __device__ inline uint32_t blocked_sf_at(int row, int chunk)
{
    const int atom = chunk / 2, byte = row / 32 * 4 + chunk % 2 * 2;
    const bool halves = C::DUAL && C::SF_PIECES == 1;
    return halves ? atom * 256 + row % 32 * 8 + byte : atom * NK_SF_ATOM_BYTES + row % 32 * 16 + byte;
}

/* Slots of 192 rows have the atoms that their tile's rows begin and end in: where a warp's 32 rows are in them. */
template <class C> __device__ inline uint32_t blocked_quarter_at(const gemm_tile &tile, const consumer &c)
{
    const int quarter = tile.row % NK_SF_ATOM_ROWS / 32 + (C::DUAL ? c.rows : 2 * c.rows + c.warp / 2);
    return quarter / 4 * (C::STEPS * SM90_GEMM_SF_BYTES) + quarter % 4 * 4;
}

/* What a lane reads of every slot, and where. */
template <class C, typename P> struct lane_of_slot {
    static constexpr int NEXT = C::DUAL ? C::FEATURES : 8; /* rows from a lane's first row to its second one */
    static constexpr int BLOCKED_UPS = C::SF_PIECES == 1 ? 512 : C::SF_PIECES / 2 * C::STEPS * SM90_GEMM_SF_BYTES;
    uint32_t codes, sf, sf_next, sf_step;
    uint32_t tails[C::STEPS]; /* masks of the last slot's scale factors */
    int last;

    __device__ lane_of_slot(const P &p, const sm90_gemm_scheduler &scheduler, const consumer &c)
        : last((scheduler.k_steps - 1) / C::STEPS)
    {
        const int chunk = c.lane % 4, row = (C::DUAL ? 32 : 64) * c.rows + (C::DUAL ? 8 : 16) * c.warp + c.lane / 4;
        const int blocked_row = C::SF_PIECES == 1 ? row : row % 32; /* see sf_of() */
        const bool linear = is_linear(p);
        codes = kept(row * SM90_GEMM_CODE_BYTES + (chunk ^ (row >> 1 & 3)) * 16);
        sf = kept(offsetof(typename gemm_memory<C>::slot, sf) +
                  (linear ? row * 8 * C::STEPS + chunk * 2 : blocked_sf_at<C>(blocked_row, chunk)));
        sf_next = kept(linear    ? NEXT * 8 * C::STEPS
                       : C::DUAL ? BLOCKED_UPS
                                 : 8 * 16); /* eight rows are in one quarter */
        sf_step = kept(linear ? 8 : SM90_GEMM_SF_BYTES);
#pragma unroll
        for (int n = 0; n < C::STEPS; n++)
            tails[n] = factor_mask(p.k, last * C::STEPS + n, chunk);
    }

    static __device__ bool is_linear(const P &p) { return weights_of(p, 0).sf_layout == NK_SF_LINEAR; }

    /* What a tile adds to `sf`. */
    __device__ uint32_t sf_of(const P &p, const gemm_tile &tile, const consumer &c) const
    {
        return C::SF_PIECES == 1 || is_linear(p) ? 0 : kept(blocked_quarter_at<C>(tile, c));
    }
};

/* Adds this part's slots of a tile to `sums`, which are of weight row lane / 4, or eight further (dual_gemm: of a gate,
 * or its up), and token 2 (lane % 4), or the next, of every eight. */
template <class C, typename P, int SUMS>
__device__ inline void multiply(const gemm_memory<C> &s, const addresses<C> &at, const lane_of_slot<C, P> &lane,
                                uint32_t sf_of_tile, span k, const consumer &c, ring_at &r, float (&sums)[SUMS])
{
    constexpr int TOKENS = 2 * SUMS;
    typedef typename gemm_memory<C>::slot slot;
    const uint64_t first_tokens = /* not of `at`: the compiler does not know that what is kept is uniform */
        wgmma_descriptor(shared_address(s.ring[0].tokens), 16, 8 * 128, WGMMA_SWIZZLE_128B);
    uint32_t fragments[2][2][4], before = 0; /* the slot before, until it is given back */
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int slot_of_k = k.begin + (C::DIVISIONS == 2 ? c.part : 0); slot_of_k < k.end; slot_of_k += C::DIVISIONS) {
        const uint32_t from = at.slot_at(r.slot);
        const uint64_t tokens = first_tokens + r.slot * (uint32_t)(sizeof(slot) / 16);
        const bool is_last = slot_of_k == lane.last;
        mbarrier_wait(at.full(r.slot), r.phase);
#pragma unroll
        for (int n = 0; n < C::STEPS; n++) {
            const uint32_t codes = from + lane.codes + n * (uint32_t)sizeof(slot::codes[0]);
            const uint32_t sf = from + lane.sf + sf_of_tile + n * lane.sf_step, mask = is_last ? lane.tails[n] : 0x7F7F;
            const uint4 word[2] = {ld_shared_v4(codes), ld_shared_v4(codes + lane.NEXT * SM90_GEMM_CODE_BYTES)};
            const uint32_t factor[2] = {factors<C::BFLOAT>(ld_shared_u16(sf) & mask),
                                        factors<C::BFLOAT>(ld_shared_u16(sf + lane.sf_next) & mask)};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t (&a)[2][4] = fragments[i % 2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t pairs[4];
                    const uint32_t both = __byte_perm(factor[half], 0, i < 2 ? 0x1010 : 0x3232);
                    decode_e2m1x8<C::BFLOAT>(word_of(word[half], i), both, pairs);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        a[j / 2][2 * (j % 2) + half] = pairs[j];
                }
                wgmma_fence(a);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint64_t x = tokens + ((2 * n + i / 2) * TOKENS * 128 + (i % 2 * 2 + j) * 32) / 16;
                    if (C::BFLOAT)
                        wgmma_bf16(sums, a[j], x, true);
                    else
                        wgmma_f16(sums, a[j], x, true);
                }
                wgmma_commit_group();
                wgmma_wait_group<1>(sums);
                /* All products of the slot before are done. */
                if (n == 0 && i == 0) mbarrier_arrive_if(before, before);
            }
        }
        before = at.empty(r.slot);
        advance<C::SLOTS>(r, C::PARTS);
    }
    wgmma_wait_group<0>(sums);
    mbarrier_arrive_if(before, before);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Roles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* `sums` are of the eights from `first` on, which this part of the CTA ends. */
template <class C, typename P, int N>
__device__ inline void end_tile(gemm_memory<C> &s, const P &p, const sm90_gemm_scheduler &scheduler,
                                const gemm_tile &tile, const consumer &c, int first, float (&sums)[N])
{
    griddepcontrol_wait(); /* long over: tokens came after it */
    if constexpr (C::ENCODERS > 0) {
        if (p.encoded.wanted)
            encode<C>(s, p, scheduler, tile, c, sums);
        else
            store<C>(p, scheduler, tile, c, first, sums);
    } else if constexpr (C::CLUSTER == 1) {
        store<C>(p, scheduler, tile, c, first, sums);
    } else if constexpr (C::BOTH_END) { /* CTA 1 ends the upper half */
        const int rank = (int)cluster_ctarank(), warpgroup = C::WARPGROUPS * c.part + c.rows;
        float ours[N / 2], theirs[N / 2];
        halve(sums, rank == 1, ours, theirs);
        barrier_cluster_wait();
        send_sums(s, warpgroup, c.thread, theirs);
        add_sent(s, warpgroup, c.thread, ours);
        store<C>(p, scheduler, tile, c, first + rank * (N / 8), ours);
    } else { /* CTA i ends what part i has */
        barrier_cluster_wait();
        if ((int)cluster_ctarank() != c.part) {
            send_sums(s, c.rows, c.thread, sums);
        } else {
            add_sent(s, c.rows, c.thread, sums);
            store<C>(p, scheduler, tile, c, first, sums);
        }
    }
}

template <class C, typename P>
__device__ inline void consume(gemm_memory<C> &s, const P &p, const gemm_tiles &tiles, span k, int number)
{
    const consumer c = consumer_of<C>(number);
    const addresses<C> at(s);
    const lane_of_slot<C, P> lane(p, tiles.scheduler, c);
    ring_at r = {c.part, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        float sums[C::SUMS];
        gemm_tile mine = tile;
        if (C::BANDS == 2) mine.row += c.part * C::FEATURES; /* or behind all rows */
        multiply(s, at, lane, lane.sf_of(p, tile, c), k, c, r, sums);
        if constexpr (C::DIVISIONS == 2) {
            float ours[C::SUMS / 2];
            join_parts<C>(s, c, sums, ours);
            end_tile<C>(s, p, tiles.scheduler, tile, c, c.part * C::OF_PART, ours);
        } else {
            end_tile<C>(s, p, tiles.scheduler, mine, c, 0, sums);
        }
    });
}

template <class C>
__device__ inline void consume(gemm_memory<C> &s, const sm90_list &list, const gemm_tiles &tiles, span, int number)
{
    const consumer c = consumer_of<C>(number);
    const addresses<C> at(s);
    ring_at r = {0, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        const sm90_list_group &g = list.group[tile.l];
        const lane_of_slot<C, nk_gemm_problem> lane(g.gemm, g.scheduler, c);
        C::WIDTHS::call(g.tile_m_index, [&](auto width) {
            float sums[width.TOKENS / 2];
            multiply(s, at, lane, 0, span_of<C>(g.scheduler), c, r, sums);
            end_tile<C>(s, g.gemm, g.scheduler, tile, c, 0, sums);
        });
    });
}

template <class C, typename P> __device__ inline void init_barriers(gemm_memory<C> &s, const P &p)
{
    for (int i = 0; i < C::SLOTS; i++) {
        mbarrier_init(shared_address(&s.full[i]), lanes_copy_sf<C>(p) ? 33 : 1);
        mbarrier_init(shared_address(&s.empty[i]), WARPGROUP * C::WARPGROUPS);
    }
    if (C::CLUSTER == 2) mbarrier_init(shared_address(&s.sums_full), 1);
    fence_mbarrier_init();
    if (C::CLUSTER == 2) mbarrier_arrive_expect_tx(shared_address(&s.sums_full), sizeof s.sums);
}

template <class C, typename P>
__device__ inline void run(const weight_maps &weights, const cuda_tensor_map &tokens, const P &p,
                           const sm90_gemm_scheduler &scheduler, const sm90_gemm_experts &experts = {})
{
    extern __shared__ __align__(1024) uint8_t raw[];
    gemm_memory<C> &s = *(gemm_memory<C> *)raw;
    static_assert(sizeof(gemm_memory<C>) <= C::SMEM, "what the host asks");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x % WARPGROUP / 32, 0);
    const span k = span_of<C>(scheduler);
    gemm_tiles tiles = {scheduler, s.experts, experts.count, scheduler.tiles, list_of(p)};
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) init_barriers<C>(s, p);
    if constexpr (C::EXPERTS) {
        if (experts.wait_first) griddepcontrol_wait();
        list_experts<C::TOKENS>(s.scan[0], experts.offsets, experts.count, p.m, s.experts);
        tiles.count = s.experts[experts.count].x * scheduler.n_tiles;
    } else {
        __syncthreads();
    }
    if (C::CLUSTER == 2) barrier_cluster_arrive();
    if (warpgroup == C::WARPGROUPS * C::PARTS) {
        if (C::WIDE) setmaxnreg_dec<C::LIST ? 72 : 56>();
        if (warp == 0 && elect_sync()) load<C>(s, weights, tokens, p, tiles, k);
        if (warp == 1 && lanes_copy_sf<C>(p)) copy_sf<C>(s, p, tiles, k);
    } else {
        if (C::WIDE) setmaxnreg_inc<C::WARPGROUPS == 3 ? 152 : C::LIST ? 216 : 224>();
        consume<C>(s, p, tiles, k, warpgroup);
    }
    griddepcontrol_wait(); /* of all threads: the next kernel relies on it */
    if (C::CLUSTER == 2 && warpgroup == C::WARPGROUPS * C::PARTS) barrier_cluster_wait(); /* as the others have */
}

#endif
