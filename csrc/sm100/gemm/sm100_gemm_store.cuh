/* From sums in tensor memory to elements of the output. A thread has a lane: a token's or a weight row's sums. */
#ifndef NK_SM100_GEMM_STORE_CUH
#define NK_SM100_GEMM_STORE_CUH

#include "cuda/epilogue.cuh"
#include "sm100_gemm_parts.cuh"

#define WINDOW 32 /* columns that a thread has in registers */

/* What a thread knows of its lane in a tile. */
typedef struct lane_out {
    uint8_t *at;          /* the output at the tile's first column */
    int64_t next;         /* bytes to the next column */
    int64_t column, end;  /* the tile's first column, and how many the output has */
    float alpha, bias;    /* weights on lanes: of this one */
    bool is_there, whole; /* whole: eight columns are neighbours, of aligned pieces */
} lane_out;

__device__ inline lane_out lane_out_of(const nk_gemm_problem &p, const sm100_gemm_work &work, const gemm_tile &t)
{
    const nk_output &d = p.d;
    const int64_t lane = t.lane + threadIdx.x, size = d.dtype == NK_F32 ? 4 : 2;
    lane_out o = {.next = work.tokens_on_lanes ? d.col_stride : d.row_stride,
                  .column = t.column,
                  .end = column_rows(p, work),
                  .is_there = lane < lane_rows(p, work)};
    const int64_t known = o.is_there ? lane : 0;
    o.at = work.tokens_on_lanes ? output_at(d, t.l, known, t.column) : output_at(d, t.l, t.column, known);
    o.alpha = work.tokens_on_lanes ? 0 : alpha_at(p.alpha, known);
    o.bias = work.tokens_on_lanes ? 0 : bias_at(p.bias, known);
    o.whole = o.next == size && is_aligned(o.at, 8 * size);
    return o;
}

/* Eight columns of a lane, from `column` of the tile on. */
__device__ inline void store_eight(const nk_gemm_problem &p, bool tokens_on_lanes, const lane_out &o, int column,
                                   const uint32_t *sums)
{
    const int64_t first = o.column + column, left = o.end - first;
    uint8_t *at = o.at + column * o.next;
    float v[8];
    if (!o.is_there || left <= 0) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t n = first + (i < left ? i : 0);
        const float alpha = tokens_on_lanes ? alpha_at(p.alpha, n) : o.alpha;
        const float bias = tokens_on_lanes ? bias_at(p.bias, n) : o.bias;
        v[i] = __fmaf_rn(alpha, __uint_as_float(sums[i]), bias);
    }
    if (o.whole && left >= 8) {
        store_four(at, p.d.dtype, v);
        store_four(at + 4 * o.next, p.d.dtype, v + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < left) store_float(at + i * o.next, p.d.dtype, v[i]);
    }
}

/* The epilogue's warps. An accumulator is free again once its last window is in registers. */
template <class C>
__device__ inline void store(memory<C> &s, uint32_t tmem, const nk_gemm_problem &p, const sm100_gemm_work &work)
{
    const uint32_t lanes = tmem + (threadIdx.x / 32 * 32 << 16);
    ring<C::ACCUMULATORS> r;
    each_tile<C>(work, [&](const gemm_tile &t) {
        const lane_out out = lane_out_of(p, work, t);
        wait_for_tmem(&s.sums_full[r.slot], r.parity);
#pragma unroll 1
        for (int column = 0; column < C::COLUMNS; column += WINDOW) {
            uint32_t sums[WINDOW];
            __syncwarp();
            tcgen05_ld_32x32b_x32(lanes + r.slot * C::COLUMNS + column, sums);
            tcgen05_wait_ld();
            if (column + WINDOW == C::COLUMNS) {
                tcgen05_fence_before_thread_sync();
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster_relaxed(shared_address(&s.sums_empty[r.slot]));
            }
#pragma unroll
            for (int i = 0; i < WINDOW; i += 8)
                store_eight(p, work.tokens_on_lanes, out, column + i, sums + i);
        }
        r.advance();
    });
}

#undef WINDOW

#endif
