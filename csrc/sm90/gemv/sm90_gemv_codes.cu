/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 *
 * MMA: wgmma.m64n8k32 of E4M3. A (M) is rows of W from registers, B (N) the token from shared memory. E2M1 becomes E4M3
 * by moving bits, which takes fewer instructions than a conversion to fp16. The sum of a block is a multiple of 1/4 up
 * to 576, which is exact in an accumulator. The product of both scale factors is exact in fp16. One addition for each
 * block rounds. Lane (g, c) = (lane / 4, lane % 4) has two chunks, of two blocks each, of row g of each 8 rows of its
 * warp. A word of a chunk, of each 8 rows, is A of one wgmma: any order of K is right if A and B have the same. The
 * columns of B are blocks. Column 2c has the token's values at lane c's first block and zeros elsewhere; column 2c + 1
 * those at its second block. First and second blocks are multiplied by the same B into two accumulators. Accumulator 0
 * is valid in even columns, accumulator 1 in odd ones: these are the sums of a lane's own blocks, in its own registers.
 *
 * Scheduler: see sm90_gemv_config.h. A consumer is a warpgroup. Each of its warps has 16 rows of a tile (TALL) or 8
 * (SHORT).
 *
 * Roles: all warps are consumers. Each fetches whole lines by cp.async into a pipeline of its own, STAGES - 1 steps
 * ahead.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   inbox_full        CTAs of the cluster -> all threads   1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a stage: its copies are complete, and the stage of the step before is free
 *   __syncthreads()   the token is in shared memory, also for the asynchronous proxy; partial sums are in shared memory
 *   cluster (bar 0)   if a cluster splits K: inbox_full is initialised before other CTAs send sums
 *
 * Overlap: see sm90_gemv.cu.
 *
 * Memory: see sm90_gemv_memory.h and sm90_gemv_codes.cuh. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_codes.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* With so many steps of a consumer the token is long, and the pipeline is full before the token is there. */
#define MANY_STEPS 8

/* The steps of a warpgroup, for gemv_mainloop(). */
template <int M8S> struct codes_mma : warpgroup_mma<M8S> {
    const work_tile_info &w;
    const sm90_gemv_scheduler &s;
    float *partials;

    __device__ codes_mma(const work_tile_info &w, const sm90_gemv_scheduler &s, const token_buffer &token,
                         float *partials)
        : warpgroup_mma<M8S>(token.values, token.factors), w(w), s(s), partials(partials)
    {
    }

    __device__ void store_partials(int tile)
    {
        store_row_partials<M8S, SM90_GEMV_WARPGROUP_WARPS>(w, s, tile, this->sums, partials);
    }
};

template <int ACCESS, int M8S> __device__ inline void run_codes_gemv(const sm90_gemv_args &p)
{
    constexpr bool EARLY_OUTPUT = M8S == TALL; /* with short tiles the token would come later */
    const sm90_gemv_scheduler &s = p.scheduler;
    const work_tile_info w = initial_work_tile_info<ACCESS, M8S, SM90_GEMV_WARPGROUP_WARPS>(p);
    const int tokens_at = sm90_gemv_tokens_at(false, blockDim.x >> 5);
    const token_buffer token =
        token_buffer_at(tokens_at, s, w); /* here: if it were later, ptxas would make the main loop longer */
    const uint32_t pipeline = pipeline_of_warp();
    weight_cursor ahead;
    token_chunk batch[CODE_BATCH];
    cursor_init(w, ahead);
    cursor_to_tile<ACCESS, M8S, SM90_GEMV_WARPGROUP_WARPS>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<M8S>(ahead);
    prefetch_sf<M8S>(ahead);
    const code_source from = code_source_of(p, w);
    /* Waits for the kernels before this one, then loads the token. Before, nothing but weights may be read. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_code_chunks<ACCESS>(from, 0, batch);
    };
    if (!s.early) begin_token();
    fill_pipeline<ACCESS, M8S, SM90_GEMV_WARPGROUP_WARPS>(p, w, ahead, pipeline);
    if (s.early) begin_token();
    if (M8S == TALL &&
        s.steps_per_consumer >= MANY_STEPS) { /* memory would idle: one step more than the pipeline holds */
        prefetch_codes<M8S>(ahead);
        prefetch_sf<M8S>(ahead);
    }
    thread_outputs outputs = thread_outputs_of<1>(s, w, 1);
    prepare_epilogue<ACCESS, EARLY_OUTPUT>(p, w, outputs);
    store_token<ACCESS>(from, batch, token);
    float *partials = (float *)((uint8_t *)smem + tokens_at + sm90_gemv_e4m3_token_bytes(s.k_steps));
    clear_partials(s, 1, partials);
    fence_proxy_async();
    __syncthreads();
    expect_inbox(s, w, s.cluster);
    codes_mma<M8S> mma(w, s, token, partials);
    gemv_mainloop<ACCESS, M8S, SM90_GEMV_WARPGROUP_WARPS>(p, w, ahead, pipeline, mma);
    __syncthreads();
    epilogue_store<ACCESS, EARLY_OUTPUT>(p, w, 1, outputs, PRODUCT_SCALE, partials);
}

#define GEMV(name, ACCESS, M8S)                                           \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        run_codes_gemv<ACCESS, M8S>(p);                                   \
    }

GEMV(codes_linear, LINEAR, TALL)
GEMV(codes_blocked, BLOCKED, TALL)
GEMV(codes_short_linear, LINEAR, SHORT)
GEMV(codes_short_blocked, BLOCKED, SHORT)
GEMV(codes_short_narrow, NARROW, SHORT)
