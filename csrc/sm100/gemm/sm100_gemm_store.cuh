/* From sums in tensor memory to elements of the output. A thread has a lane: a token's or a weight row's sums. */
#ifndef NK_SM100_GEMM_STORE_CUH
#define NK_SM100_GEMM_STORE_CUH

#include "cuda/epilogue.cuh"
#include "cuda/ptx/global.cuh"
#include "sm100_gemm_sums.cuh"

#define PIECE 16 /* columns that a thread stores at once where it can */

/* A thread's lane of a tile, in the output. */
typedef struct lane_out {
    uint8_t *at;         /* at the tile's first column */
    int64_t next;        /* bytes to the next column */
    int64_t lane;        /* of the output, or 0 where it is not there */
    int64_t column, end; /* the tile's first column, and where the output's, or the expert's, end */
    bool is_there;
    bool whole, wide; /* columns are neighbours, four of them aligned to their size; to 32 bytes */
} lane_out;

template <class C, typename P> __device__ inline lane_out lane_out_of(const P &p, const gemm_tile &t)
{
    const sm100_gemm_scheduler &work = t.work;
    const int64_t l = C::EXPERTS ? 0 : t.l;
    const nk_output &d = p.d;
    const int64_t lane = t.lane + threadIdx.x, size = d.dtype == NK_F32 ? 4 : 2;
    lane_out o = {.next = work.tokens_are_mma_m ? d.col_stride : d.row_stride,
                  .column = t.column,
                  .end = t.column_end,
                  .is_there = lane < rows_of(p, work, SM100_GEMM_OPERAND_M)};
    o.lane = o.is_there ? lane : 0;
    o.at = work.tokens_are_mma_m ? output_at(d, l, o.lane, t.column) : output_at(d, l, t.column, o.lane);
    o.whole = o.next == size && is_aligned(o.at, (uint32_t)(4 * size));
    o.wide = o.next == size && is_aligned(o.at, 32);
    return o;
}

/* What follows a lane's sums: its `apply` makes COUNT elements of them, those of the output from `first` on. */
struct scaled_lane {
    nk_alpha alphas;
    nk_bias biases;
    bool tokens_are_mma_m;
    float alpha, bias; /* weights on lanes: of this one */

    __device__ scaled_lane(const nk_gemm_problem &p, const sm100_gemm_scheduler &work, const lane_out &o,
                           int64_t expert)
        : alphas(p.alpha), biases(p.bias), tokens_are_mma_m(work.tokens_are_mma_m), alpha(0), bias(0)
    {
        if (alphas.data) alphas.data += expert * alphas.group_stride;
        if (biases.data) biases.data += expert * biases.group_stride;
        if (tokens_are_mma_m) return;
        alpha = alpha_at(alphas, o.lane);
        bias = bias_at(biases, o.lane);
    }

    template <int COUNT>
    __device__ void apply(const uint32_t *sums, const uint32_t *, int64_t first, int64_t left, float v[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int64_t n = first + (i < left ? i : 0);
            v[i] = __fmaf_rn(tokens_are_mma_m ? alpha_at(alphas, n) : alpha, __uint_as_float(sums[i]),
                             tokens_are_mma_m ? bias_at(biases, n) : bias);
        }
    }
};

struct gated_lane {
    nk_activation activation;
    float alpha1, alpha2;

    __device__ static float alpha_of(nk_alpha alphas, int64_t expert, int64_t n)
    {
        if (alphas.data) alphas.data += expert * alphas.group_stride;
        return alpha_at(alphas, n);
    }

    __device__ gated_lane(const nk_dual_gemm_problem &p, const sm100_gemm_scheduler &, const lane_out &o,
                          int64_t expert)
        : activation(p.activation), alpha1(alpha_of(p.alpha1, expert, o.lane)),
          alpha2(alpha_of(p.alpha2, expert, o.lane))
    {
    }

    template <int COUNT>
    __device__ void apply(const uint32_t *gates, const uint32_t *ups, int64_t, int64_t, float v[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            v[i] = __fmul_rn(alpha1, __uint_as_float(gates[i]));
        activate<COUNT>(activation, v);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            v[i] = __fmul_rn(v[i], __fmul_rn(alpha2, __uint_as_float(ups[i])));
    }
};

template <typename P> struct lane_epilogue;
template <> struct lane_epilogue<nk_gemm_problem> {
    typedef scaled_lane type;
};
template <> struct lane_epilogue<nk_dual_gemm_problem> {
    typedef gated_lane type;
};
template <> struct lane_epilogue<sm100_list_params> : lane_epilogue<nk_gemm_problem> {};

/* Sixteen neighbouring elements: a sector of L2, or two, as a whole. */
__device__ inline void store_sectors(uint8_t *at, nk_dtype dtype, const float v[PIECE])
{
    uint32_t words[2][8];
    if (dtype == NK_F32) {
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            words[i / 8][i % 8] = __float_as_uint(v[i]);
        st_global_v8(at + 32, words[1]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            words[0][i] =
                dtype == NK_F16 ? pair_of<false>(v[2 * i], v[2 * i + 1]) : pair_of<true>(v[2 * i], v[2 * i + 1]);
    }
    st_global_v8(at, words[0]);
}

/* A piece, which is columns of the tile from `column` on. */
__device__ inline void store_piece(const lane_out &o, nk_dtype dtype, int column, const float v[PIECE])
{
    const int64_t left = o.end - o.column - column;
    uint8_t *at = o.at + column * o.next;
    if (o.wide && left >= PIECE) {
        store_sectors(at, dtype, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < PIECE; i += 4) {
        if (o.whole && left >= i + 4) {
            store_four(at + i * o.next, dtype, v + i);
            continue;
        }
#pragma unroll
        for (int j = i; j < i + 4; j++) {
            if (j < left) store_float(at + j * o.next, dtype, v[j]);
        }
    }
}

/* The epilogue's warps. An accumulator is free again once its last window is in registers. */
template <class C, typename M, typename P>
__device__ inline void store(M &s, uint32_t tmem, const P &all, const gemm_tiles &tiles)
{
    const uint32_t lanes = tmem + (threadIdx.x / 32 * 32 << 16);
    const int first = tiles.part * C::OWN;
    ring<C::ACCUMULATORS> r;
    ring<1> inbox;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const auto &p = problem_of(all, t);
        const lane_out out = lane_out_of<C>(p, t);
        const typename lane_epilogue<P>::type lane(p, t.work, out, C::EXPERTS ? t.l : 0);
        const uint32_t at = lanes + r.slot * C::SUMS;
        wait_for_tmem(&s.sums_full[r.slot], r.parity);
        if constexpr (C::PARTS > 1) {
            send_sums<C>(s, tiles, at, inbox.parity);
            mbarrier_wait_cluster(shared_address(&s.inbox_full), inbox.parity);
        }
#pragma unroll 1
        for (int column = first; column < first + C::OWN; column += C::WINDOW) {
            uint32_t sums[C::MATRICES][C::WINDOW];
            load_sums<C>(at + column, sums);
            if (column + C::WINDOW == first + C::OWN) {
                tcgen05_fence_before_thread_sync();
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster_relaxed(of_issuer<C>(&s.sums_empty[r.slot], tiles));
            }
            if constexpr (C::PARTS > 1) add_parts<C>(s, tiles.part, column - first, sums);
#pragma unroll
            for (int i = 0; i < C::WINDOW; i += PIECE) {
                const int64_t index = out.column + column + i;
                float v[PIECE];
                if (!out.is_there || index >= out.end) continue;
                lane.template apply<PIECE>(sums[0] + i, sums[C::MATRICES - 1] + i, index, out.end - index, v);
                store_piece(out, p.d.dtype, column + i, v);
            }
        }
        if constexpr (C::PARTS > 1) free_inbox<C>(s, tiles);
        inbox.advance();
        r.advance();
    });
}

#undef PIECE

#endif
