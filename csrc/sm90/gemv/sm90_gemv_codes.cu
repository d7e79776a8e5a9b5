/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 *
 * E2M1 becomes E4M3 by moving bits, which takes fewer instructions than making halves of it. wgmma multiplies W from
 * registers. The sum of a block is a multiple of 1/4 up to 576, exact in its accumulators. The product of both scale
 * factors is exact in a half. So each block costs one rounded addition.
 *
 * Work: see sm90_gemv_config.h. A team is four warps. Its step is a tile of W (one octet of rows a warp, or two) in one
 * K step.
 *
 * Roles: all warps do the same. A warp fetches its weights steps ahead, in whole lines, into slots of its own
 * (cp.async). Lane (g, c) = (lane / 4, lane % 4) takes two chunks of 32 elements, two blocks each, of row g of each
 * octet. A word of each octet's chunk is A of one wgmma. Any order of K is right where both operands have it. The
 * columns of B are blocks. Column 2c has the token's values in lane c's first block, column 2c + 1 in its second;
 * elsewhere they are zero. First and second blocks are multiplied by the same B into different D. Only the even columns
 * of the one and the odd columns of the other mean anything: they are the sums of a lane's own blocks, in its own
 * registers.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   sums_arrived      CTAs of the cluster -> all threads   1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a slot: all its copies have come; the slot of the step before is free
 *   __syncthreads()   the token is in shared memory, for the asynchronous proxy too; partial sums are
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised, before others send sums
 *
 * Kernels before and after: see sm90_gemv.cu.
 *
 * Memory: see sm90_gemv_memory.h and sm90_gemv_codes.cuh. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_codes.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Steps of a team. A team with so many has a long token, and its ring is full before the token is there. */
#define LONG_RUN 8

/* What walk() does with a team's steps. */
template <int OCTETS> struct row_products : products<OCTETS> {
    const team_work &w;
    const sm90_gemv_work &s;
    float *partials;

    __device__ row_products(const team_work &w, const sm90_gemv_work &s, const room &token, float *partials)
        : products<OCTETS>(token.values, token.factors), w(w), s(s), partials(partials)
    {
    }

    __device__ void end_tile(int tile) { keep_row_sums<OCTETS, SM90_GEMV_TEAM>(w, s, tile, this->sums, partials); }
};

template <int PATH, int OCTETS> __device__ inline void gemv(const sm90_gemv_args &p)
{
    constexpr bool FOUND = OCTETS == TALL; /* where tiles are short it would delay the token */
    const sm90_gemv_work &s = p.work;
    const team_work w = work_of_team<PATH, OCTETS, SM90_GEMV_TEAM>(p);
    const int tokens_at = sm90_gemv_tokens_at(false, blockDim.x >> 5);
    const room token =
        room_at(tokens_at, s, w); /* found here, since found later it makes ptxas's loop in walk() longer */
    const uint32_t ring = ring_of_warp();
    cursor ahead;
    token_chunk batch[BATCH];
    prepare(w, ahead);
    enter_tile<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<OCTETS>(ahead);
    prefetch_factors<OCTETS>(ahead);
    const source from = source_of(p, w);
    /* Waits for the kernels before this one, then asks for the token. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_token_chunks<PATH>(from, 0, batch);
    };
    if (!s.early) begin_token();
    fill_ring<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, ahead, ring);
    if (s.early) begin_token();
    if (OCTETS == TALL &&
        s.steps_per_team >= LONG_RUN) { /* one step more than the ring holds, since memory would idle */
        prefetch_codes<OCTETS>(ahead);
        prefetch_factors<OCTETS>(ahead);
    }
    ending end = ending_of<1>(s, w, 1);
    prepare_end<PATH, FOUND>(p, w, end);
    store_token<PATH>(from, batch, token);
    float *partials = (float *)((uint8_t *)smem + tokens_at + sm90_gemv_code_token_bytes(s.k_steps));
    prepare_sums(s, 1, partials);
    fence_proxy_async();
    __syncthreads();
    expect_sums(s, w, s.cluster);
    row_products<OCTETS> products(w, s, token, partials);
    walk<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, ahead, ring, products);
    __syncthreads();
    finish_sums<PATH, FOUND>(p, w, 1, end, PRODUCT_SCALE, partials);
}

#define GEMV(name, PATH, OCTETS)                                          \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        gemv<PATH, OCTETS>(p);                                            \
    }

GEMV(codes_linear, LINEAR, TALL)
GEMV(codes_blocked, BLOCKED, TALL)
GEMV(codes_short_linear, LINEAR, SHORT)
GEMV(codes_short_blocked, BLOCKED, SHORT)
GEMV(codes_short_narrow, NARROW, SHORT)
