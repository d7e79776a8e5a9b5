/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 *
 * E2M1 becomes E4M3 by moving bits, which takes fewer instructions than making halves. wgmma multiplies, with W from
 * registers. The sum of a block is a multiple of 1/4 up to 576, which is exact in an accumulator. The product of both
 * scale factors is exact in a half. One addition for each block rounds.
 *
 * Work: see sm90_gemv_config.h. A team is a warpgroup. Each warp has one or two octets of rows of the team's tile.
 *
 * Roles: all warps alike. A warp fetches whole lines, steps ahead (cp.async), into slots of its own. Lane (g, c) =
 * (lane / 4, lane % 4) takes two chunks, of two blocks each, of row g of each octet. A word of a chunk, of each octet,
 * is A of one wgmma: any order of K is right if A and B have the same. The columns of B are blocks. Column 2c has the
 * token's values at lane c's first block and zeros elsewhere; column 2c + 1 those at its second block. First and second
 * blocks are multiplied by the same B into two accumulators. Of one only the even columns mean anything, of the other
 * only the odd ones: these are the sums of a lane's own blocks, in its own registers.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   sums_arrived      CTAs of the cluster -> all threads   1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a slot: all its copies have come, and the slot of the step before is free
 *   __syncthreads()   the token is in shared memory, also for the asynchronous proxy; partial sums are in shared memory
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised before others send sums
 *
 * Overlap: see sm90_gemv.cu.
 *
 * Memory: see sm90_gemv_memory.h and sm90_gemv_codes.cuh. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_codes.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where a team has so many steps, the token is long, and the ring is full before the token has come. */
#define MANY_STEPS 8

/* What main_loop() does with the steps of a team. */
template <int OCTETS> struct row_products : products<OCTETS> {
    const team_work &w;
    const sm90_gemv_scheduler &s;
    float *partials;

    __device__ row_products(const team_work &w, const sm90_gemv_scheduler &s, const room &token, float *partials)
        : products<OCTETS>(token.values, token.factors), w(w), s(s), partials(partials)
    {
    }

    __device__ void end_tile(int tile)
    {
        keep_row_sums<OCTETS, SM90_GEMV_WARPGROUP_WARPS>(w, s, tile, this->sums, partials);
    }
};

template <int ACCESS, int OCTETS> __device__ inline void gemv(const sm90_gemv_args &p)
{
    constexpr bool FOUND = OCTETS == TALL; /* with short tiles the token would come later */
    const sm90_gemv_scheduler &s = p.scheduler;
    const team_work w = work_of_team<ACCESS, OCTETS, SM90_GEMV_WARPGROUP_WARPS>(p);
    const int tokens_at = sm90_gemv_tokens_at(false, blockDim.x >> 5);
    const room token = room_at(tokens_at, s, w); /* here: if it were later, ptxas would make main_loop() longer */
    const uint32_t ring = ring_of_warp();
    cursor ahead;
    token_chunk batch[BATCH];
    prepare(w, ahead);
    enter_tile<ACCESS, OCTETS, SM90_GEMV_WARPGROUP_WARPS>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<OCTETS>(ahead);
    prefetch_factors<OCTETS>(ahead);
    const source from = source_of(p, w);
    /* Waits for the kernels before this one, then asks for the token. Before, nothing but weights may be read. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_chunks<ACCESS>(from, 0, batch);
    };
    if (!s.early) begin_token();
    fill_ring<ACCESS, OCTETS, SM90_GEMV_WARPGROUP_WARPS>(p, w, ahead, ring);
    if (s.early) begin_token();
    if (OCTETS == TALL &&
        s.steps_per_consumer >= MANY_STEPS) { /* memory would idle: one step more than the ring holds */
        prefetch_codes<OCTETS>(ahead);
        prefetch_factors<OCTETS>(ahead);
    }
    ending end = ending_of<1>(s, w, 1);
    prepare_end<ACCESS, FOUND>(p, w, end);
    store_token<ACCESS>(from, batch, token);
    float *partials = (float *)((uint8_t *)smem + tokens_at + sm90_gemv_e4m3_token_bytes(s.k_steps));
    prepare_sums(s, 1, partials);
    fence_proxy_async();
    __syncthreads();
    expect_sums(s, w, s.cluster);
    row_products<OCTETS> products(w, s, token, partials);
    main_loop<ACCESS, OCTETS, SM90_GEMV_WARPGROUP_WARPS>(p, w, ahead, ring, products);
    __syncthreads();
    finish_sums<ACCESS, FOUND>(p, w, 1, end, PRODUCT_SCALE, partials);
}

#define GEMV(name, ACCESS, OCTETS)                                        \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        gemv<ACCESS, OCTETS>(p);                                          \
    }

GEMV(codes_linear, LINEAR, TALL)
GEMV(codes_blocked, BLOCKED, TALL)
GEMV(codes_short_linear, LINEAR, SHORT)
GEMV(codes_short_blocked, BLOCKED, SHORT)
GEMV(codes_short_narrow, NARROW, SHORT)
