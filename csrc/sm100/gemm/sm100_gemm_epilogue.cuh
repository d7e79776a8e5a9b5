/* The epilogue of sm100 GEMMs: from an accumulator in tensor memory to elements of the output. A thread has one lane,
 * which is one row of operand M: a token's sums, or a weight row's. */
#ifndef NK_SM100_GEMM_EPILOGUE_CUH
#define NK_SM100_GEMM_EPILOGUE_CUH

#include "cuda/epilogue.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/registers.cuh"
#include "sm100_gemm_gather.cuh"
#include "sm100_gemm_split_k.cuh"

#define STORE_N 16 /* columns that a thread stores at once: 32 bytes of 16-bit elements */

/* A thread's row of a tile, in the output. */
typedef struct output_row {
    uint8_t *at;           /* the tile's first column of it */
    int64_t column_stride; /* bytes */
    int64_t m;             /* of operand M, or 0 if the row does not exist */
    int64_t n, n_end;      /* the tile's first column; one past the last of the output, or of the expert */
    bool exists;
    bool by_four;   /* columns are neighbours in memory, and four of them are aligned to their size */
    bool by_sector; /* columns are neighbours, and 16 of them begin a 32-byte sector */
} output_row;

template <class C, typename P> __device__ inline output_row output_row_of(const P &p, const mma_tile &t)
{
    const sm100_gemm_params &params = t.params;
    const int64_t l = C::EXPERTS ? 0 : t.l;
    const nk_output &d = p.d;
    const int64_t m = t.m + threadIdx.x, size = d.dtype == NK_F32 ? 4 : 2;
    output_row o = {.column_stride = params.tokens_are_mma_m ? d.col_stride : d.row_stride,
                    .n = t.n,
                    .n_end = t.n_end,
                    .exists = m < rows_of_operand(p, params, SM100_GEMM_OPERAND_M)};
    o.m = o.exists ? m : 0;
    o.at = params.tokens_are_mma_m ? output_at(d, l, o.m, t.n) : output_at(d, l, t.n, o.m);
    o.by_four = o.column_stride == size && is_aligned(o.at, (uint32_t)(4 * size));
    o.by_sector = o.column_stride == size && is_aligned(o.at, 32);
    return o;
}

/* row_scale of one token, if there is any: of the thread's row, or of its lane's among 32 columns from n on. */
template <class C, typename P>
__device__ inline float row_factor(const P &p, const mma_tile_scheduler &scheduler, const mma_tile &t,
                                   const output_row &o, int64_t n)
{
    const nk_row_scale &scale = p.row_scale;
    if (!scale.data) return 1;
    const int64_t row = t.params.tokens_are_mma_m ? o.m : min(n + threadIdx.x % 32, o.n_end - 1);
    const int64_t token = has_tokens_by_index<C>(scheduler) ? token_of_row(scheduler, row) : row;
    return scale.data[(C::EXPERTS ? 0 : t.l) * scale.batch_stride + token * scale.stride];
}

/* Multiplies the sums of STORE_N columns by their tokens' factors, which shuffles hand round if tokens are columns.
 * kept(): lanes to read from, one for each column, would stay in registers from tile to tile. */
template <class C>
__device__ inline void scale_sums(bool tokens_are_mma_m, float factor, int first,
                                  uint32_t (&sums)[C::MATRICES][C::LOAD_N])
{
    const int lane = (int)kept(threadIdx.x % 32);
#pragma unroll
    for (int i = first; i < first + STORE_N; i++) {
        const float its = __shfl_sync(~0u, factor, tokens_are_mma_m ? lane : i);
#pragma unroll
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            sums[matrix][i] = __float_as_uint(__fmul_rn(its, __uint_as_float(sums[matrix][i])));
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* What an operator makes of sums: apply() makes COUNT elements from the sums of columns n .. , of which `remaining`
 * exist. Its second argument is the ups of a dual GEMM.                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

struct gemm_row_epilogue {
    nk_alpha alphas;
    nk_bias biases;
    bool tokens_are_mma_m;
    float alpha, bias; /* if weights are operand M: this row's */

    __device__ gemm_row_epilogue(const nk_gemm_problem &p, const sm100_gemm_params &params, const output_row &o,
                                 int64_t expert)
        : alphas(p.alpha), biases(p.bias), tokens_are_mma_m(params.tokens_are_mma_m), alpha(0), bias(0)
    {
        if (alphas.data) alphas.data += expert * alphas.group_stride;
        if (biases.data) biases.data += expert * biases.group_stride;
        if (tokens_are_mma_m) return;
        alpha = alpha_at(alphas, o.m);
        bias = bias_at(biases, o.m);
    }

    template <int COUNT>
    __device__ void apply(const uint32_t *sums, const uint32_t *, int64_t n, int64_t remaining, float v[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int64_t weight = n + (i < remaining ? i : 0);
            v[i] = __fmaf_rn(tokens_are_mma_m ? alpha_at(alphas, weight) : alpha, __uint_as_float(sums[i]),
                             tokens_are_mma_m ? bias_at(biases, weight) : bias);
        }
    }
};

struct dual_row_epilogue {
    nk_activation activation;
    float alpha1, alpha2, bias1, bias2;

    __device__ static float alpha_of(nk_alpha alphas, int64_t expert, int64_t weight)
    {
        if (alphas.data) alphas.data += expert * alphas.group_stride;
        return alpha_at(alphas, weight);
    }

    __device__ static float bias_of(nk_bias biases, int64_t expert, int64_t weight)
    {
        if (biases.data) biases.data += expert * biases.group_stride;
        return bias_at(biases, weight);
    }

    __device__ dual_row_epilogue(const nk_dual_gemm_problem &p, const sm100_gemm_params &, const output_row &o,
                                 int64_t expert)
        : activation(p.activation), alpha1(alpha_of(p.alpha1, expert, o.m)), alpha2(alpha_of(p.alpha2, expert, o.m)),
          bias1(bias_of(p.bias1, expert, o.m)), bias2(bias_of(p.bias2, expert, o.m))
    {
    }

    template <int COUNT>
    __device__ void apply(const uint32_t *gates, const uint32_t *ups, int64_t, int64_t, float v[COUNT]) const
    {
        float up[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            v[i] = __fmaf_rn(alpha1, __uint_as_float(gates[i]), bias1);
            up[i] = __fmaf_rn(alpha2, __uint_as_float(ups[i]), bias2);
        }
        activate<COUNT>(activation, v, up);
    }
};

template <typename P> struct row_epilogue;
template <> struct row_epilogue<nk_gemm_problem> {
    typedef gemm_row_epilogue type;
};
template <> struct row_epilogue<nk_dual_gemm_problem> {
    typedef dual_row_epilogue type;
};
template <> struct row_epilogue<sm100_list_params> : row_epilogue<nk_gemm_problem> {};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Stores                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Sixteen neighbouring elements: one whole sector of L2, or two. */
__device__ inline void store_sectors(uint8_t *at, nk_dtype dtype, const float v[STORE_N])
{
    uint32_t words[2][8];
    if (dtype == NK_F32) {
#pragma unroll
        for (int i = 0; i < STORE_N; i++)
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

/* STORE_N columns of the tile, from `column` on. */
__device__ inline void store_lane(const output_row &o, nk_dtype dtype, int column, const float v[STORE_N])
{
    const int64_t remaining = o.n_end - o.n - column;
    uint8_t *at = o.at + column * o.column_stride;
    if (o.by_sector && remaining >= STORE_N) {
        store_sectors(at, dtype, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < STORE_N; i += 4) {
        if (o.by_four && remaining >= i + 4) {
            store_four(at + i * o.column_stride, dtype, v + i);
            continue;
        }
#pragma unroll
        for (int j = i; j < i + 4; j++) {
            if (j < remaining) store_float(at + j * o.column_stride, dtype, v[j]);
        }
    }
}

/* The epilogue warps. An accumulator is free again once its last columns are in registers. */
template <class C, typename SMEM, typename P>
__device__ inline void run_epilogue(SMEM &s, uint32_t tmem, const P &launch, const mma_tile_scheduler &scheduler)
{
    const uint32_t lanes = tmem + (threadIdx.x / 32 * 32 << 16);
    const int first = scheduler.split * C::EPILOGUE_N;
    pipeline_state accumulator, inbox;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const auto &p = problem_of_tile(launch, t);
        const output_row out = output_row_of<C>(p, t);
        const typename row_epilogue<P>::type epilogue(p, t.params, out, C::EXPERTS ? t.l : 0);
        const uint32_t at = lanes + accumulator.stage * C::ACCUMULATOR_COLUMNS;
        float factor = row_factor<C>(p, scheduler, t, out, out.n + first);
        wait_tmem(&s.accumulator_full[accumulator.stage], accumulator.parity);
        if constexpr (C::SPLIT_K > 1) {
            send_sums_to_peers<C>(s, scheduler, at, inbox.parity);
            mbarrier_wait_cluster(shared_address(&s.inbox_full), inbox.parity);
        }
#pragma unroll 1
        for (int column = first; column < first + C::EPILOGUE_N; column += C::LOAD_N) {
            uint32_t sums[C::MATRICES][C::LOAD_N];
            load_accumulator<C>(at + column, sums);
            if (column + C::LOAD_N == first + C::EPILOGUE_N) {
                tcgen05_fence_before_thread_sync();
                __syncwarp();
                if (threadIdx.x % 32 == 0)
                    mbarrier_arrive_cluster_relaxed(
                        leader_barrier<C>(&s.accumulator_empty[accumulator.stage], scheduler));
            }
            if constexpr (C::SPLIT_K > 1) add_partial_sums<C>(s, scheduler.split, column - first, sums);
#pragma unroll
            for (int i = 0; i < C::LOAD_N; i += STORE_N) {
                const int64_t n = out.n + column + i;
                float v[STORE_N];
                if (p.row_scale.data) {
                    scale_sums<C>(t.params.tokens_are_mma_m, factor, i, sums);
                    if (i + STORE_N == C::LOAD_N) /* of the next columns: it arrives beside stores */
                        factor = row_factor<C>(p, scheduler, t, out, n + STORE_N);
                }
                if (!out.exists || n >= out.n_end) continue;
                epilogue.template apply<STORE_N>(sums[0] + i, sums[C::MATRICES - 1] + i, n, out.n_end - n, v);
                if constexpr (C::ACTIVATED) activate_alone<STORE_N>((nk_activation_kind)t.params.activation, v);
                store_lane(out, p.d.dtype, column + i, v);
            }
        }
        if constexpr (C::SPLIT_K > 1) release_inbox<C>(s, scheduler);
        inbox.advance(1);
        accumulator.advance(C::ACCUMULATORS);
    });
    if constexpr (C::SPLIT_K > 1) drain_pipeline<1>(&s.peers_ready, inbox);
}

#undef STORE_N

#endif
