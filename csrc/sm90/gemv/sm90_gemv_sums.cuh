/* The epilogue of the kernels for few tokens: from the sums of warps to rows of D. */
#ifndef NK_SM90_GEMV_SUMS_CUH
#define NK_SM90_GEMV_SUMS_CUH

#include "cuda/epilogue.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "sm90_gemv.cuh"

/* Which part of a tile's sums this warp's team has. */
__device__ inline int part_of_tile(const team_work &w, int tile) { return tile == w.first_tile ? w.teams_before : 0; }

/* One token: adds the sums that four lanes have of each row, and stores them as partial sums. Sets `sums` to 0. */
template <int OCTETS, int TEAM>
__device__ inline void keep_row_sums(const team_work &w, const sm90_gemv_scheduler &s, int tile, float sums[2],
                                     float *partials)
{
    const int lane = threadIdx.x & 31, part = part_of_tile(w, tile);
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const int position = first_position<OCTETS, TEAM>(tile) + o * SM90_GEMV_M8 + (lane >> 2);
        sums[o] += __shfl_xor_sync(~0u, sums[o], 1);
        sums[o] += __shfl_xor_sync(~0u, sums[o], 2);
        if ((lane & 3) == 0 && position < s.rows) partials[part * s.rows + position] = sums[o];
        sums[o] = 0;
    }
}

/* More tokens: stores the sums of an mma's accumulator as partial sums. Sets `sums` to 0. */
__device__ inline void keep_token_sums(const team_work &w, const sm90_gemv_scheduler &s, int tile, int tokens,
                                       float sums[4], float *partials)
{
    const int lane = threadIdx.x & 31, c = lane & 3, part = part_of_tile(w, tile);
#pragma unroll
    for (int o = 0; o < TALL; o++) {
        const int position = first_position<TALL, 1>(tile) + o * SM90_GEMV_M8 + (lane >> 2);
        float *at = partials + (part * s.rows + position) * tokens;
        if (position < s.rows) {
            if (2 * c < tokens) at[2 * c] = sums[2 * o];
            if (2 * c + 1 < tokens) at[2 * c + 1] = sums[2 * o + 1];
        }
    }
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
}

/* Where CTAs share rows, each ends some of them. Its inbox receives what all CTAs have of these rows, and an mbarrier
 * counts the bytes. Here the inbox is [CTA][row that this CTA ends][token]; sm90_gemv_map.cu has another. */
__device__ inline const float *inbox_of(const sm90_gemv_scheduler &s, int tokens, const float *partials)
{
    return partials + s.split_k * s.rows * tokens;
}

__device__ inline uint32_t inbox_barrier() { return shared_address(&head().sums_arrived); }

/* Tells the other CTAs that the inbox is ready, without waiting for them. */
__device__ inline void prepare_inbox(const sm90_gemv_scheduler &s)
{
    if (s.cluster == 1) return;
    if (threadIdx.x == 0) {
        mbarrier_init(inbox_barrier(), 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed_aligned();
}

/* Sets partial sums to 0, since a tile may have fewer parts. A barrier of the CTA must follow before the first sums. */
__device__ inline void prepare_sums(const sm90_gemv_scheduler &s, int tokens, float *partials)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < s.split_k * s.rows * tokens; i += blockDim.x)
        partials[i] = 0;
    prepare_inbox(s);
}

/* Says how many sums will come for each of the CTA's rows. It needs a barrier of the CTA after prepare_inbox(): without
 * one ptxas makes the init an instruction of the warp and this one of a lane, which `racecheck` takes for a race. */
__device__ inline void expect_sums(const sm90_gemv_scheduler &s, const team_work &w, int of_row)
{
    const int rows = max(0, min(s.epilogue_rows, w.positions - (int)blockIdx.y * s.epilogue_rows));
    if (s.cluster > 1 && threadIdx.x == 0) mbarrier_arrive_expect_tx(inbox_barrier(), rows * of_row * 4);
}

/* log2 of `tokens`, rounded up. */
__device__ inline int log_columns_of(int tokens) { return tokens == 1 ? 0 : 32 - __clz(tokens - 1); }

/* Where an element of D lies, and its alpha and bias. */
typedef struct result {
    uint8_t *at; /* NULL where the row does not exist */
    float alpha, bias;
} result;

/* Those of the work's expert. */
__device__ inline nk_alpha alpha_of(nk_alpha alpha, const team_work &w)
{
    if (alpha.data) alpha.data += w.expert * alpha.group_stride;
    return alpha;
}

__device__ inline nk_bias bias_of(nk_bias bias, const team_work &w)
{
    if (bias.data) bias.data += w.expert * bias.group_stride;
    return bias;
}

template <int ACCESS>
__device__ inline result result_of(const sm90_gemv_args &p, const team_work &w, int token, int position)
{
    const int row = row_at<ACCESS>(p, w, position);
    const int64_t n = w.first_row + row;
    if (row >= w.rows) return {nullptr, 0, 0};
    return {output_at(p.d, w.l, w.row + token, n), alpha_at(alpha_of(p.alpha, w), n), bias_at(bias_of(p.bias, w), n)};
}

/* The elements of D that a thread ends: those of `token` in the CTA's rows `row`, `row + step`, .. A power of two of
 * threads have a row, and the first `tokens` of them something to do. */
typedef struct ending {
    int token, row, step;
    int first_end; /* the position of the cluster at which the CTA's rows begin */
    int rows;      /* that the CTA ends */
    result to;     /* the first element */
} ending;

template <int MOST_TOKENS>
__device__ inline ending ending_of(const sm90_gemv_scheduler &s, const team_work &w, int tokens)
{
    const int log_columns = MOST_TOKENS == 1 ? 0 : log_columns_of(tokens), thread = threadIdx.x;
    ending e = {thread & ((1 << log_columns) - 1), thread >> log_columns, (int)blockDim.x >> log_columns};
    e.first_end = blockIdx.y * s.epilogue_rows;
    if (e.token < tokens) e.rows = min(s.epilogue_rows, w.positions - e.first_end);
    return e;
}

template <int ACCESS> __device__ inline void find_result(const sm90_gemv_args &p, const team_work &w, ending &e)
{
    if (e.row < e.rows) e.to = result_of<ACCESS>(p, w, e.token, e.first_end + e.row);
}

/* Prepares the epilogue while something else is waited for. FOUND: finds the first element. Otherwise it stores a
 * parameter where nobody reads it, which brings the parameter's line. */
template <int ACCESS, bool FOUND>
__device__ inline void prepare_end(const sm90_gemv_args &p, const team_work &w, ending &e)
{
    if (FOUND)
        find_result<ACCESS>(p, w, e);
    else if (threadIdx.x == 0)
        st_shared(shared_address(&head().touched), p.d.dtype);
}

/* at[0] + at[stride] + .., in this order. */
__device__ inline float sum_of(const float *at, int count, int stride)
{
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < count; i += 4, at += 4 * stride) {
        float values[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            values[j] = i + j < count ? at[j * stride] : 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum += values[j];
    }
    return sum;
}

/* Adds the parts of each row and sends the sum to the CTA that ends the row. */
__device__ inline void send_sums(const sm90_gemv_scheduler &s, const team_work &w, int tokens, const ending &e,
                                 const float *partials)
{
    const float *inbox = inbox_of(s, tokens, partials) + e.token, *sums = partials + e.token;
    barrier_cluster_wait_aligned(); /* every inbox is ready */
#pragma unroll 1
    for (int position = e.row; position < w.positions && e.token < tokens; position += e.step) {
        const float sum = sum_of(sums + position * tokens, s.split_k, s.rows * tokens);
        const int owner = sm90_gemv_divide(position, s.epilogue_rows_inverse);
        const float *at = inbox + (e.first_end + position - owner * s.epilogue_rows) * tokens;
        st_async(mapa((uint32_t)__cvta_generic_to_shared(at), owner), sum, mapa(inbox_barrier(), owner));
    }
}

/* Adds the parts of each sum in order; where CTAs share rows, then the sums of the CTAs. A sum of decoded values must
 * be multiplied by `product_scale`. FOUND: as for prepare_end(). All of this runs once, so it is short rather than
 * unrolled. */
template <int ACCESS, bool FOUND>
__device__ inline void finish_sums(const sm90_gemv_args &p, const team_work &w, int tokens, ending e,
                                   float product_scale, const float *partials)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const bool shared = s.cluster > 1;
    const float *sums = (shared ? inbox_of(s, tokens, partials) : partials) + e.token;
    const int summands = shared ? s.cluster : s.split_k;
    if (shared) send_sums(s, w, tokens, e, partials);
#pragma unroll 1
    while (e.row < e.rows) {
        if (!FOUND) find_result<ACCESS>(p, w, e);
        if (shared) mbarrier_wait_cluster(inbox_barrier(), 0); /* waits in the first round only */
        const float sum = sum_of(sums + e.row * tokens, summands, s.epilogue_rows * tokens);
        if (e.to.at) store_float(e.to.at, p.d.dtype, __fmaf_rn(e.to.alpha, sum * product_scale, e.to.bias));
        e.row += e.step;
        if (FOUND) find_result<ACCESS>(p, w, e);
    }
}

/* As finish_sums(), of two matrices and one token. The rows of D that a CTA ends have both their sums there. */
__device__ inline void finish_pairs(const sm90_gemv_args &p, const team_work &w, const ending &e, float product_scale,
                                    const float *partials)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const bool shared = s.cluster > 1;
    const float *sums = shared ? inbox_of(s, 1, partials) : partials;
    const int summands = shared ? s.cluster : s.split_k, stride = shared ? s.epilogue_rows : s.rows;
    const int first = paired_row(w.first_row + e.first_end);
    const nk_alpha gates = alpha_of(p.alpha, w), ups = alpha_of(p.pair.alpha, w);
    if (shared) send_sums(s, w, 1, e, partials);
#pragma unroll 1
    for (int row = threadIdx.x; 2 * row < e.rows; row += blockDim.x) {
        const float *at = sums + (row >> 3 << 4 | (row & 7));
        if (shared) mbarrier_wait_cluster(inbox_barrier(), 0); /* waits in the first round only */
        float gate[1] = {__fmul_rn(alpha_at(gates, first + row), sum_of(at, summands, stride) * product_scale)};
        const float up = sum_of(at + SM90_GEMV_M8, summands, stride) * product_scale;
        activate<1>(p.pair.activation, gate);
        store_float(output_at(p.d, w.l, w.row, first + row), p.d.dtype,
                    __fmul_rn(gate[0], __fmul_rn(alpha_at(ups, first + row), up)));
    }
}

#endif
