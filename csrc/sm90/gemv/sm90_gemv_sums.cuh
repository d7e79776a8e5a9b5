/* The epilogue of the kernels for few tokens: from the partial sums of consumers to rows of D. */
#ifndef NK_SM90_GEMV_SUMS_CUH
#define NK_SM90_GEMV_SUMS_CUH

#include "cuda/epilogue.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "sm90_gemv.cuh"

/* Which of the tile's splits within the CTA this warp's consumer has. */
__device__ inline int split_of_tile(const work_tile_info &w, int tile)
{
    return tile == w.first_tile ? w.consumers_before : 0;
}

/* One token: adds the four lanes' sums of each row, and stores them as partial sums. Sets `sums` to 0. */
template <int M8S, int WARPS>
__device__ inline void store_row_partials(const work_tile_info &w, const sm90_gemv_scheduler &s, int tile,
                                          float sums[2], float *partials)
{
    const int lane = threadIdx.x & 31, split = split_of_tile(w, tile);
#pragma unroll
    for (int m8 = 0; m8 < M8S; m8++) {
        const int position = position_of_warp<M8S, WARPS>(tile) + m8 * SM90_GEMV_M8 + (lane >> 2);
        sums[m8] += __shfl_xor_sync(~0u, sums[m8], 1);
        sums[m8] += __shfl_xor_sync(~0u, sums[m8], 2);
        if ((lane & 3) == 0 && position < s.rows) partials[split * s.rows + position] = sums[m8];
        sums[m8] = 0;
    }
}

/* More tokens: stores the sums of an mma's accumulator as partial sums. Sets `sums` to 0. */
__device__ inline void store_token_partials(const work_tile_info &w, const sm90_gemv_scheduler &s, int tile, int tokens,
                                            float sums[4], float *partials)
{
    const int lane = threadIdx.x & 31, c = lane & 3, split = split_of_tile(w, tile);
#pragma unroll
    for (int m8 = 0; m8 < TALL; m8++) {
        const int position = position_of_warp<TALL, 1>(tile) + m8 * SM90_GEMV_M8 + (lane >> 2);
        float *at = partials + (split * s.rows + position) * tokens;
        if (position < s.rows) {
            if (2 * c < tokens) at[2 * c] = sums[2 * m8];
            if (2 * c + 1 < tokens) at[2 * c + 1] = sums[2 * m8 + 1];
        }
    }
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
}

/* If a cluster splits K, each CTA runs the epilogue of some rows, its own. All CTAs send their sums of these rows to
 * its inbox, and an mbarrier counts the bytes. The inbox is [CTA][row of this CTA's epilogue][token]; sm90_gemv_map.cu
 * has another. */
__device__ inline const float *inbox_at(const sm90_gemv_scheduler &s, int tokens, const float *partials)
{
    return partials + s.split_k * s.rows * tokens;
}

__device__ inline uint32_t inbox_mbarrier() { return shared_address(&smem_head().inbox_full); }

/* Tells the other CTAs that the inbox is ready, without waiting for them. */
__device__ inline void init_inbox(const sm90_gemv_scheduler &s)
{
    if (s.cluster == 1) return;
    if (threadIdx.x == 0) {
        mbarrier_init(inbox_mbarrier(), 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed_aligned();
}

/* Sets partial sums to 0, since a tile may have fewer splits. A barrier of the CTA must follow before the first sums.
 */
__device__ inline void clear_partials(const sm90_gemv_scheduler &s, int tokens, float *partials)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < s.split_k * s.rows * tokens; i += blockDim.x)
        partials[i] = 0;
    init_inbox(s);
}

/* Expects `of_row` sums for each row of the CTA's epilogue. It needs a barrier of the CTA after init_inbox(): without
 * one ptxas makes the init an instruction of the warp and this one of a lane, which `racecheck` takes for a race. */
__device__ inline void expect_inbox(const sm90_gemv_scheduler &s, const work_tile_info &w, int of_row)
{
    const int rows = max(0, min(s.epilogue_rows, w.positions - (int)blockIdx.y * s.epilogue_rows));
    if (s.cluster > 1 && threadIdx.x == 0) mbarrier_arrive_expect_tx(inbox_mbarrier(), rows * of_row * 4);
}

/* log2 of `tokens`, rounded up. */
__device__ inline int log2_ceil(int tokens) { return tokens == 1 ? 0 : 32 - __clz(tokens - 1); }

/* The address of an element of D, its alpha and its bias. */
typedef struct output_element {
    uint8_t *at; /* NULL if the row does not exist */
    float alpha, bias;
} output_element;

/* The alpha and bias of the CTA's expert. */
__device__ inline nk_alpha expert_alpha(nk_alpha alpha, const work_tile_info &w)
{
    if (alpha.data) alpha.data += w.expert * alpha.group_stride;
    return alpha;
}

__device__ inline nk_bias expert_bias(nk_bias bias, const work_tile_info &w)
{
    if (bias.data) bias.data += w.expert * bias.group_stride;
    return bias;
}

template <int ACCESS>
__device__ inline output_element output_element_at(const sm90_gemv_args &p, const work_tile_info &w, int token,
                                                   int position)
{
    const int row = row_at<ACCESS>(p, w, position);
    const int64_t n = w.first_row + row;
    if (row >= w.rows) return {nullptr, 0, 0};
    return {output_at(p.d, w.l, w.row + token, n), alpha_at(expert_alpha(p.alpha, w), n),
            bias_at(expert_bias(p.bias, w), n)};
}

/* row_scale of a token of the CTA, or 1. It is read behind the main loop, which has no register for it. */
__device__ inline float token_factor(const sm90_gemv_args &p, const work_tile_info &w, int token)
{
    const nk_row_scale &scale = p.row_scale;
    return scale.data ? scale.data[w.l * scale.batch_stride + (w.token + token) * scale.stride] : 1;
}

/* The elements of D that a thread stores: `token` in rows `row`, `row + step`, .. of the CTA's epilogue. Each row has a
 * power of two of threads; the first `tokens` of them store an element. */
typedef struct thread_outputs {
    int token, row, step;
    int first_position; /* of the cluster, at which the epilogue's rows begin */
    int rows;           /* of the CTA's epilogue */
    output_element to;  /* the first element */
} thread_outputs;

template <int MOST_TOKENS>
__device__ inline thread_outputs thread_outputs_of(const sm90_gemv_scheduler &s, const work_tile_info &w, int tokens)
{
    const int log_tokens = MOST_TOKENS == 1 ? 0 : log2_ceil(tokens), thread = threadIdx.x;
    thread_outputs e = {thread & ((1 << log_tokens) - 1), thread >> log_tokens, (int)blockDim.x >> log_tokens};
    e.first_position = blockIdx.y * s.epilogue_rows;
    if (e.token < tokens) e.rows = min(s.epilogue_rows, w.positions - e.first_position);
    return e;
}

template <int ACCESS>
__device__ inline void load_output_element(const sm90_gemv_args &p, const work_tile_info &w, thread_outputs &e)
{
    if (e.row < e.rows) e.to = output_element_at<ACCESS>(p, w, e.token, e.first_position + e.row);
}

/* Prepares the epilogue while the kernel waits for something else. EARLY_OUTPUT: loads the first element's alpha and
 * bias. Otherwise it stores a parameter that nothing reads, which brings the parameter's line. */
template <int ACCESS, bool EARLY_OUTPUT>
__device__ inline void prepare_epilogue(const sm90_gemv_args &p, const work_tile_info &w, thread_outputs &e)
{
    if (EARLY_OUTPUT)
        load_output_element<ACCESS>(p, w, e);
    else if (threadIdx.x == 0)
        st_shared(shared_address(&smem_head().parameter_touch), p.d.dtype);
}

/* at[0] + at[stride] + .., in this order. */
__device__ inline float sum_strided(const float *at, int count, int stride)
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

/* Adds the splits of each row, and sends the sum times `product_scale` to the CTA with the row's epilogue. */
__device__ inline void send_partials(const sm90_gemv_scheduler &s, const work_tile_info &w, int tokens,
                                     const thread_outputs &e, float product_scale, const float *partials)
{
    const float *inbox = inbox_at(s, tokens, partials) + e.token, *sums = partials + e.token;
    barrier_cluster_wait_aligned(); /* every inbox is ready */
#pragma unroll 1
    for (int position = e.row; position < w.positions && e.token < tokens; position += e.step) {
        const float sum = sum_strided(sums + position * tokens, s.split_k, s.rows * tokens);
        const int owner = sm90_gemv_divide(position, s.epilogue_rows_inverse);
        const float *at = inbox + (e.first_position + position - owner * s.epilogue_rows) * tokens;
        st_async(mapa((uint32_t)__cvta_generic_to_shared(at), owner), sum * product_scale,
                 mapa(inbox_mbarrier(), owner));
    }
}

/* Adds the splits of each sum in order; if a cluster splits K, then the sums of its CTAs. A sum of decoded values must
 * be multiplied by `product_scale`, a power of two, which CTAs of a cluster need not share. EARLY_OUTPUT: as for
 * prepare_epilogue(). It runs once, so it is short rather than unrolled. */
template <int ACCESS, bool EARLY_OUTPUT>
__device__ inline void epilogue_store(const sm90_gemv_args &p, const work_tile_info &w, int tokens, thread_outputs e,
                                      float product_scale, const float *partials)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const bool in_cluster = s.cluster > 1;
    const float *sums = (in_cluster ? inbox_at(s, tokens, partials) : partials) + e.token;
    const int summands = in_cluster ? s.cluster : s.split_k;
    const float scale = in_cluster ? 1 : product_scale, factor = token_factor(p, w, min(e.token, tokens - 1));
    if (in_cluster) send_partials(s, w, tokens, e, product_scale, partials);
#pragma unroll 1
    while (e.row < e.rows) {
        if (!EARLY_OUTPUT) load_output_element<ACCESS>(p, w, e);
        if (in_cluster) mbarrier_wait_cluster(inbox_mbarrier(), 0); /* waits in the first round only */
        const float sum = sum_strided(sums + e.row * tokens, summands, s.epilogue_rows * tokens);
        if (e.to.at) store_float(e.to.at, p.d.dtype, __fmaf_rn(e.to.alpha, factor * (sum * scale), e.to.bias));
        e.row += e.step;
        if (EARLY_OUTPUT) load_output_element<ACCESS>(p, w, e);
    }
}

/* As epilogue_store(), with two matrices. A CTA has both sums of the rows of D that it stores. */
template <int ACCESS>
__device__ inline void epilogue_store_dual(const sm90_gemv_args &p, const work_tile_info &w, int tokens,
                                           const thread_outputs &e, float product_scale, const float *partials)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const bool in_cluster = s.cluster > 1;
    const float *sums = (in_cluster ? inbox_at(s, tokens, partials) : partials) + e.token;
    const int summands = in_cluster ? s.cluster : s.split_k, stride = (in_cluster ? s.epilogue_rows : s.rows) * tokens;
    const float scale = in_cluster ? 1 : product_scale, factor = token_factor(p, w, min(e.token, tokens - 1));
    const int first = dual_position(w.first_row + e.first_position);
    const nk_alpha gates = expert_alpha(p.alpha, w), ups = expert_alpha(p.dual.alpha, w);
    const nk_bias bias = expert_bias(p.bias, w), bias_ups = expert_bias(p.dual.bias, w);
    if (in_cluster) send_partials(s, w, tokens, e, product_scale, partials);
#pragma unroll 1
    for (int position = e.row; 2 * position < e.rows; position += e.step) {
        const float *at = sums + (position >> 3 << 4 | (position & 7)) * tokens;
        const int n = dual_row<ACCESS>(first + position);
        if (in_cluster) mbarrier_wait_cluster(inbox_mbarrier(), 0); /* waits in the first round only */
        if (2 * n >= s.n) continue;                                 /* a position without a row */
        const float sum = sum_strided(at, summands, stride) * scale,
                    sum_of_up = sum_strided(at + SM90_GEMV_M8 * tokens, summands, stride) * scale;
        float gate[1] = {__fmaf_rn(alpha_at(gates, n), factor * sum, bias_at(bias, n))},
              up[1] = {__fmaf_rn(alpha_at(ups, n), factor * sum_of_up, bias_at(bias_ups, n))};
        activate<1>(p.dual.activation, gate, up);
        store_float(output_at(p.d, w.l, w.row + e.token, n), p.d.dtype, gate[0]);
    }
}

#endif
