/* By wgmma on Hopper
 *   gemm:       D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   grouped_gemm, contiguous: the gemm of each expert's tokens with its weights, alpha and bias
 *   dual_gemm:  D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *
 * Weights, B, are wgmma's operand A: codes come to shared memory and are decoded in registers. Tokens, A, are its
 * operand B: 16-bit rows in shared memory, which a first kernel (sm90_gemm_tokens.cu) has put in the decode's order of
 * K. Of a step of K = 128 lane (g, c) = (lane / 4, lane % 4) takes chunk c, 16 bytes, of weight rows g and g + 8 of its
 * warp's 16: two scale factors each. Word i of a chunk makes the fragments of k16 products 2 i and 2 i + 1.
 *
 * A tile of dual_gemm has 64 rows of B1, the gates, then the same 64 of B2, the ups. A warp takes eight of both, so
 * that weight rows g and g + 8 of the product are the gate and the up of one feature, and one lane has both sums.
 *
 * Work: a tile is 128 weight rows x TOKENS tokens of one batch. PARTS pairs of warpgroups take the slots of a CTA's K
 * in turn; the CTAs of a cluster take half of K each. Both add up in a fixed order.
 *
 * Roles: warpgroups 0 .. 2 PARTS - 1: consumers; warpgroup w multiplies rows 64 (w % 2) .. + 63 in part w / 2
 *        the last warp, or the first one of the last warpgroup: loads
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[SLOTS]    loads -> a part's consumers     1 arrival + the slot's bytes; 32 more, of each lane's   wait 0
 *                                                  own copies, where lanes copy scale factors
 *   empty[SLOTS]   a part's consumers -> loads     8, a warp each                                          wait 1
 *   sums_full      the peer's part 0 -> ours       1 arrival + the bytes of its sums, once                 wait 0
 *   BARRIER_CONSUMERS  all consumers               nobody reads the ring any more; part 1's sums are there
 *   cluster        begin: sums_full is there before the peer sends. Whoever is sent to waits for it, so no CTA goes
 *                  before its peer has sent
 *
 * Shared memory: struct memory of sm90_gemm_tile.cuh. Part 1's sums take the place of the ring. */
#ifndef NK_SM90_GEMM_CUH
#define NK_SM90_GEMM_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90_gemm_store.cuh"
#include "sm90_gemm_tile.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* Loads                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Rows 32 i + lane of the tile's are of this matrix, and this row of it. */
template <class C> __device__ inline int64_t row_of(const gemm_tile &tile, int64_t n, int i)
{
    return min((int64_t)tile.row + (C::DUAL ? i % 2 : i) * 32 + threadIdx.x % 32, n - 1);
}

/* Linear scale factors of a slot: four rows a lane, eight bytes of each step; zeros beyond K. */
template <class C, typename P>
__device__ inline void load_linear_sf(typename memory<C>::slot &s, const P &p, const sm90_gemm_work &work,
                                      const gemm_tile &tile, int slot_of_k)
{
    const int lane = threadIdx.x % 32, cols = (int)(p.k / NK_SF_VEC);
#pragma unroll
    for (int n = 0; n < C::STEPS; n++) {
        const int col = (slot_of_k * C::STEPS + n) * 8, valid = min(max(cols - col, 0), 8);
#pragma unroll
        for (int i = 0; i < SM90_GEMM_ROWS / 32; i++) {
            const nk_operand &b = weights_of(p, C::DUAL && i >= 2);
            const uint32_t to = shared_address(s.sf[n]) + (lane + 32 * i) * 8;
            const uint8_t *from = b.sf + tile.l * b.sf_batch_stride + row_of<C>(tile, p.n, i) * b.sf_row_stride;
            from += valid ? col : 0;
            if (work.aligned_sf) {
                cp_async_ca_zfill<8>(to, from, valid);
            } else {
                cp_async_ca_zfill<4>(to, from, min(valid, 4));
                cp_async_ca_zfill<4>(to + 4, valid > 4 ? from + 4 : from, max(valid - 4, 0));
            }
        }
    }
}

/* Blocked scale factors of a slot of dual_gemm: a lane's row quad of an atom is 16 bytes, of which the tile's 64 rows
 * are one half. [matrix][atom][lane] of eight bytes; zeros beyond K. */
template <class C>
__device__ inline void load_half_atoms(typename memory<C>::slot &s, const nk_dual_gemm_problem &p,
                                       const gemm_tile &tile, int slot_of_k)
{
    const int lane = threadIdx.x % 32, atoms = (int)((p.k + 63) / 64);
    const int64_t first = (int64_t)(tile.row / NK_SF_ATOM_ROWS) * atoms;
    const int half = tile.row % NK_SF_ATOM_ROWS / 64;
#pragma unroll
    for (int i = 0; i < 4 * C::STEPS; i++) {
        const int n = i / 4, matrix = i / 2 % 2, atom = (slot_of_k * C::STEPS + n) * 2 + i % 2;
        const nk_operand &b = weights_of(p, matrix);
        const int64_t at = (first + min(atom, atoms - 1)) * NK_SF_ATOM_BYTES + lane * 16 + half * 8;
        const uint32_t to = shared_address(s.sf[n]) + matrix * 512 + i % 2 * 256 + lane * 8;
        cp_async_ca_zfill<8>(to, b.sf + tile.l * b.sf_batch_stride + at, atom < atoms ? 8 : 0);
    }
}

/* Whole atoms of a slot of gemm are one piece of memory. */
template <class C>
__device__ inline void load_atoms(memory<C> &s, const nk_gemm_problem &p, const gemm_tile &tile, int slot, int atom,
                                  int atoms, uint32_t bytes)
{
    const int64_t first = (int64_t)(tile.row / NK_SF_ATOM_ROWS) * atoms + atom;
    const uint8_t *sf = p.b.sf + tile.l * p.b.sf_batch_stride + first * NK_SF_ATOM_BYTES;
    cp_async_bulk(shared_address(s.ring[slot].sf), sf, bytes, shared_address(&s.full[slot]));
}

/* By all lanes of the warp: weights and scale factors of a slot, and the bytes that the slot waits for. */
template <class C, typename P>
__device__ inline void load_weights(memory<C> &s, const weight_maps &maps, const P &p, const sm90_gemm_work &work,
                                    const gemm_tile &tile, int slot, int slot_of_k)
{
    auto &to = s.ring[slot];
    const uint32_t full = shared_address(&s.full[slot]);
    if (lanes_copy_sf(p)) {
        if (weights_of(p, 0).sf_layout == NK_SF_LINEAR)
            load_linear_sf<C>(to, p, work, tile, slot_of_k);
        else if constexpr (C::DUAL)
            load_half_atoms<C>(to, p, tile, slot_of_k);
        cp_async_mbarrier_arrive_noinc(full);
    }
    if (threadIdx.x % 32) return;
    const int atoms = (int)((p.k + 63) / 64), atom = slot_of_k * C::STEPS * 2;
    const uint32_t sf_bytes = lanes_copy_sf(p) ? 0 : min(2 * C::STEPS, atoms - atom) * NK_SF_ATOM_BYTES;
    mbarrier_arrive_expect_tx(full, C::STEPS * (sizeof to.codes[0] + 2 * sizeof to.tokens[0]) + sf_bytes);
#pragma unroll
    for (int n = 0; n < C::STEPS; n++) {
        const int at[3] = {(slot_of_k * C::STEPS + n) * SM90_GEMM_CODE_BYTES, tile.row, tile.l};
        cp_async_bulk_tensor_3d(shared_address(to.codes[n]), &maps.first, at, full);
        if (C::DUAL) cp_async_bulk_tensor_3d(shared_address(to.codes[n][C::FEATURES]), &maps.second, at, full);
    }
    if constexpr (!C::DUAL)
        if (sf_bytes) load_atoms<C>(s, p, tile, slot, atom, atoms, sf_bytes);
}

template <class C>
__device__ inline void load_tokens(memory<C> &s, const cuda_tensor_map &map, const gemm_tile &tile, int slot,
                                   int slot_of_k)
{
    if (threadIdx.x % 32) return;
    const int at[4] = {0, tile.token, slot_of_k * C::STEPS * 2, batch_of<C>(tile)};
    cp_async_bulk_tensor_4d(shared_address(s.ring[slot].tokens), &map, at, shared_address(&s.full[slot]));
}

/* By a warp. The first weights are asked for before the first kernel has ended. */
template <class C, typename P>
__device__ inline void load(memory<C> &s, const weight_maps &weights, const cuda_tensor_map &tokens, const P &p,
                            const sm90_gemm_work &work, const gemm_tile &only, span k)
{
    ring_place r = {0, 0};
    int early = min(C::EARLY, k.end - k.begin);
    bool waited = false;
    each_tile<C>(work, only, [&](const gemm_tile &tile) {
        if (!waited) {
#pragma unroll 1
            for (int i = 0; i < early; i++)
                load_weights<C>(s, weights, p, work, tile, i, k.begin + i);
            griddepcontrol_wait();
            waited = true;
        } else {
            early = 0;
        }
#pragma unroll 1
        for (int slot_of_k = k.begin; slot_of_k < k.end; slot_of_k++) {
            if (slot_of_k - k.begin >= early) {
                mbarrier_wait(shared_address(&s.empty[r.slot]), r.phase ^ 1);
                load_weights<C>(s, weights, p, work, tile, r.slot, slot_of_k);
            }
            load_tokens<C>(s, tokens, tile, r.slot, slot_of_k);
            advance<C::SLOTS>(r, 1);
        }
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* All lanes have read the slot, and all products of it are done. A __syncwarp here would make ptxas serialise products,
 * so it lies elsewhere. */
template <class C> __device__ inline void release(memory<C> &s, const consumer &c, int slot)
{
    if (c.lane == 0) mbarrier_arrive(shared_address(&s.empty[slot]));
}

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
    return exact_bfloats(float_of<false>(halves, 0) * 0x1p112f, float_of<false>(halves, 1) * 0x1p112f);
}

/* Where blocked scale factors of a row's chunk are: in whole atoms, or in halves of the atoms of two matrices. */
template <class C> __device__ inline uint32_t blocked_sf_at(int row, int chunk)
{
    const int atom = chunk / 2, byte = row / 32 * 4 + chunk % 2 * 2;
    return C::DUAL ? atom * 256 + row % 32 * 8 + byte : atom * NK_SF_ATOM_BYTES + row % 32 * 16 + byte;
}

/* Adds this part's slots of a tile to `sums`, which are of weight row lane / 4, or eight further (dual_gemm: of a gate,
 * or its up), and token 2 (lane % 4), or the next, of every eight. */
template <class C, typename P>
__device__ inline void multiply(memory<C> &s, const P &p, const sm90_gemm_work &work, span k, const consumer &c,
                                ring_place &r, float (&sums)[C::SUMS])
{
    constexpr int NEXT = C::DUAL ? C::FEATURES : 8; /* rows from a lane's first row to its second one */
    const int row = (C::FEATURES / 2) * c.rows + (C::DUAL ? 8 : 16) * c.warp + c.lane / 4, chunk = c.lane % 4;
    const bool linear = weights_of(p, 0).sf_layout == NK_SF_LINEAR;
    const uint32_t code_at = row * SM90_GEMM_CODE_BYTES + (chunk ^ (row >> 1 & 3)) * 16;
    const uint32_t sf_at = linear ? row * 8 + chunk * 2 : blocked_sf_at<C>(row, chunk);
    const uint32_t sf_next = linear ? NEXT * 8 : C::DUAL ? 512 : 8 * 16; /* in gemm eight rows are in one quarter */
    const uint32_t tail = factor_mask(p.k, work.steps - 1, chunk);
    uint32_t fragments[2][2][4];
#pragma unroll
    for (int i = 0; i < C::SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int slot_of_k = k.begin + c.part; slot_of_k < k.end; slot_of_k += C::PARTS) {
        auto &from = s.ring[r.slot];
        __syncwarp(); /* all lanes have read the slot before, so release() may give it back */
        mbarrier_wait(shared_address(&s.full[r.slot]), r.phase);
#pragma unroll
        for (int n = 0; n < C::STEPS; n++) {
            const uint32_t codes = shared_address(from.codes[n]) + code_at, sf = shared_address(from.sf[n]) + sf_at;
            const uint4 word[2] = {ld_shared_v4(codes), ld_shared_v4(codes + NEXT * SM90_GEMM_CODE_BYTES)};
            const int step = slot_of_k * C::STEPS + n;
            const uint32_t mask = step + 1 < work.steps ? 0x7F7F : step < work.steps ? tail : 0;
            const uint32_t factor[2] = {factors<C::BFLOAT>(ld_shared_u16(sf) & mask),
                                        factors<C::BFLOAT>(ld_shared_u16(sf + sf_next) & mask)};
            const uint64_t x = wgmma_descriptor(shared_address(from.tokens[2 * n]), 16, 8 * 128, WGMMA_SWIZZLE_128B);
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
                    const uint64_t at = x + (i / 2 * C::TOKENS * 128 + (i % 2 * 2 + j) * 32) / 16;
                    if (C::BFLOAT)
                        wgmma_bf16(sums, a[j], at, true);
                    else
                        wgmma_f16(sums, a[j], at, true);
                }
                wgmma_commit_group();
                wgmma_wait_group<1>(sums);
                if (n == 0 && i == 0 && slot_of_k >= k.begin + C::PARTS) release<C>(s, c, slot_before<C>(r));
            }
        }
        advance<C::SLOTS>(r, C::PARTS);
    }
    wgmma_wait_group<0>(sums);
    __syncwarp();
    if (k.begin + c.part < k.end) release<C>(s, c, slot_before<C>(r));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Sums                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline void add_quad(float *sums, uint4 quad)
{
    sums[0] += __uint_as_float(quad.x);
    sums[1] += __uint_as_float(quad.y);
    sums[2] += __uint_as_float(quad.z);
    sums[3] += __uint_as_float(quad.w);
}

/* Of both parts, which part 0 then has. */
template <class C> __device__ inline void join_parts(memory<C> &s, const consumer &c, float (&sums)[C::SUMS])
{
    const uint32_t at = shared_address(s.ring) + (c.rows * C::EIGHTS * WARPGROUP + c.thread) * 16;
    bar_sync<C::CONSUMERS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::EIGHTS && c.part == 1; i++) {
        const float *quad = sums + 4 * i;
        st_shared_v4(at + i * WARPGROUP * 16, make_uint4(__float_as_uint(quad[0]), __float_as_uint(quad[1]),
                                                         __float_as_uint(quad[2]), __float_as_uint(quad[3])));
    }
    bar_sync<C::CONSUMERS>(BARRIER_CONSUMERS);
#pragma unroll
    for (int i = 0; i < C::EIGHTS && c.part == 0; i++)
        add_quad(sums + 4 * i, ld_shared_v4(at + i * WARPGROUP * 16));
}

/* Sends the peer its half of the tokens' sums and adds what it sends: eights FIRST .. FIRST + EIGHTS / 2 are ours. */
template <class C, int FIRST> __device__ inline void join_peers(memory<C> &s, const consumer &c, float (&sums)[C::SUMS])
{
    constexpr int HALF = C::EIGHTS / 2, THEIRS = HALF - FIRST;
    const uint32_t peer = cluster_ctarank() ^ 1, full = shared_address(&s.sums_full);
    const uint32_t at = shared_address(&s.sums) + (c.rows * HALF * WARPGROUP + c.thread) * 16;
    barrier_cluster_wait();
#pragma unroll
    for (int i = 0; i < HALF; i++)
        st_async_v4(mapa(at + i * WARPGROUP * 16, peer), sums + 4 * (THEIRS + i), mapa(full, peer));
    mbarrier_wait_cluster(full, 0);
#pragma unroll
    for (int i = 0; i < HALF; i++)
        add_quad(sums + 4 * (FIRST + i), ld_shared_v4(at + i * WARPGROUP * 16));
}

template <class C, typename P>
__device__ inline void consume(memory<C> &s, const P &p, const sm90_gemm_work &work, const gemm_tile &only, span k,
                               int number)
{
    const int thread = threadIdx.x % WARPGROUP;
    const consumer c = {number / 2, number % 2, thread, thread / 32, thread % 32};
    ring_place r = {c.part, 0};
    each_tile<C>(work, only, [&](const gemm_tile &tile) {
        float sums[C::SUMS];
        multiply<C>(s, p, work, k, c, r, sums);
        if (C::PARTS == 2) join_parts<C>(s, c, sums);
        if (C::PARTS == 2 && c.part == 1) return;
        griddepcontrol_wait(); /* long over: tokens came after it */
        if (C::CLUSTER == 1) {
            store<C, 0, C::EIGHTS>(p, work, tile, c, sums);
        } else if (cluster_ctarank() == 0) {
            join_peers<C, 0>(s, c, sums);
            store<C, 0, C::EIGHTS / 2>(p, work, tile, c, sums);
        } else {
            join_peers<C, C::EIGHTS / 2>(s, c, sums);
            store<C, C::EIGHTS / 2, C::EIGHTS / 2>(p, work, tile, c, sums);
        }
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */

template <class C, typename P> __device__ inline void init_barriers(memory<C> &s, const P &p)
{
    for (int i = 0; i < C::SLOTS; i++) {
        mbarrier_init(shared_address(&s.full[i]), lanes_copy_sf(p) ? 33 : 1);
        mbarrier_init(shared_address(&s.empty[i]), 8);
    }
    if (C::CLUSTER == 2) mbarrier_init(shared_address(&s.sums_full), 1);
    fence_mbarrier_init();
    if (C::CLUSTER == 2) mbarrier_arrive_expect_tx(shared_address(&s.sums_full), sizeof s.sums);
}

template <class C, typename P>
__device__ inline void run(const weight_maps &weights, const cuda_tensor_map &tokens, const P &p,
                           const sm90_gemm_work &work, const sm90_gemm_experts &experts = {})
{
    extern __shared__ __align__(1024) uint8_t raw[];
    memory<C> &s = *(memory<C> *)raw;
    static_assert(sizeof(memory<C>) <= SM90_GEMM_SMEM(C::TOKENS, C::CLUSTER, C::SLOTS, C::STEPS), "what the host asks");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    const span k = span_of<C>(work);
    griddepcontrol_launch_dependents();
    gemm_tile only = {};
    if constexpr (C::EXPERTS) {
        if (experts.wait_first) griddepcontrol_wait();
        only = find_tile<C>(s, work, experts, p.m);
        if (only.end == 0) {
            griddepcontrol_wait();
            return; /* with the others of the cluster */
        }
    }
    if (threadIdx.x == 0) init_barriers<C>(s, p);
    __syncthreads();
    if (C::CLUSTER == 2) barrier_cluster_arrive();
    if (warpgroup == 2 * C::PARTS) {
        if (C::WIDE) setmaxnreg_dec<56>();
        if (threadIdx.x % WARPGROUP < 32) load<C>(s, weights, tokens, p, work, only, k);
    } else {
        if (C::WIDE) setmaxnreg_inc<224>();
        consume<C>(s, p, work, only, k, warpgroup);
    }
    griddepcontrol_wait(); /* of all threads: the next kernel relies on it */
    if (C::CLUSTER == 2 && (warpgroup == 2 * C::PARTS || warpgroup / 2 == 1))
        barrier_cluster_wait(); /* as the others have */
}

#endif
