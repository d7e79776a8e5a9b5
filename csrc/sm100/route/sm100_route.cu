/* By tcgen05 on Blackwell
 *   logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k]; the best experts of each row and their weights; all in one launch.
 *
 * Work: a cluster has a tile of tokens, all experts and all of K. Each of its CTAs multiplies a tile of experts over a
 * part of K (sm100_route_product.cuh). Sums are fp32 numbers in tensor memory.
 * Many tokens: they are its lanes, a CTA is a cluster, and a thread routes the token of its lane out of tensor memory
 * (sm100_route_thread.cuh).
 * Else tokens are mostly its columns, so that few of them leave no lane empty. The CTAs of a cluster show each other
 * their sums in shared memory, and share the tokens: a warp adds the parts of a token's logits in the order of K, and
 * routes it (cuda/route_topk.cuh).
 *
 * Roles: warps 0 - 3: take sums out of tensor memory, warp w those of lanes 32 w and up
 *        warp 4:      one thread loads
 *        warp 5:      owns tensor memory; one thread issues products
 *        all warps:   route tokens, unless threads do
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[stages]    loads -> issuer            1 arrival + the bytes of both boxes         wait 0
 *   empty[stages]   issuer -> loads            1 (commit): the stage's products are done   wait 1
 *   sums_full       issuer -> warps 0 - 3      1 (commit): all products are done           wait 0
 *   __syncthreads   the issuer has seen all loads -> what takes the ring's place
 *   cluster, first  all CTAs' sums are in shared memory, where the ring was
 *   cluster, last   nobody's memory goes before others have read it
 *
 * Shared memory: see sm100_route_config.h. Tensor memory: the sums, a row of the other operand a column. */
#include "sm100_route_thread.cuh"

extern __shared__ __align__(1024) uint8_t shared_memory[];

/* All threads of the cluster. */
__device__ inline void meet(int cluster)
{
    __syncwarp();
    if (cluster == 1) {
        __syncthreads();
        return;
    }
    barrier_cluster_arrive_aligned();
    barrier_cluster_wait_aligned();
}

/* Logits of experts n .. n + 3 of a CTA's tile: the sum of all parts of K, of which `sums` is where this CTA has its
 * own. */
__device__ inline float4 sum_parts(const place &at, uint32_t sums, int tile)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int part = 0; part < at.work.parts; part++)
        sum = sum + ld_shared_cluster_v4(mapa(sums, (uint32_t)(part * at.work.expert_tiles + tile)));
    return sum;
}

/* A warp collects the logits of a token of the tile. */
__device__ inline void collect_logits(const place &at, const nk_route_problem &p, int token, const scratch_t &s)
{
    const int pitch = SM100_ROUTE_PITCH(at.work.experts), last = (int)p.n - 1;
#pragma unroll 1
    for (int tile = 0; tile < at.work.expert_tiles; tile++) {
#pragma unroll 1
        for (int n = threadIdx.x % 32 * 4; n < at.work.experts; n += 128) {
            const float4 sum = sum_parts(at, shared_address(at.memory) + (token * pitch + n) * 4, tile);
            const int expert = tile * at.work.experts + n;
            s.logits[expert] = __fmul_rn(alpha_at(p.alpha, min(expert, last)), sum.x);
            s.logits[expert + 1] = __fmul_rn(alpha_at(p.alpha, min(expert + 1, last)), sum.y);
            s.logits[expert + 2] = __fmul_rn(alpha_at(p.alpha, min(expert + 2, last)), sum.z);
            s.logits[expert + 3] = __fmul_rn(alpha_at(p.alpha, min(expert + 3, last)), sum.w);
        }
    }
    __syncwarp();
}

/* This CTA's share of the cluster's tokens. */
__device__ inline void route_tokens(const place &at, const nk_route_problem &p)
{
    const int warp = threadIdx.x / 32, cluster = at.work.expert_tiles * at.work.parts;
    const scratch_t s = scratch_at(at.memory + at.work.scratch_at, warp, at.work.scratch_experts);
#pragma unroll 1
    for (int token = at.rank + cluster * warp; token < at.tokens; token += cluster * SM100_ROUTE_WARPS) {
        collect_logits(at, p, token, s);
        route_token(p, at.token + token, s);
        __syncwarp();
    }
    __syncwarp();
}

/* Warps 0 - 3, once products are done. */
__device__ inline void take_sums(const place &at, const nk_route_problem &p, uint32_t tmem)
{
    const uint32_t lanes = tmem + (threadIdx.x / 32 * 32 << 16);
    mbarrier_wait(shared_address(&at.barriers.sums_full), 0);
    tcgen05_fence_after_thread_sync();
    if (at.work.by_thread) {
        const int lane = (int)threadIdx.x;
        float *keys = (float *)at.memory + lane * SM100_ROUTE_PITCH(at.work.experts);
        float *words = (float *)(at.memory + at.work.scratch_at) + lane * SM100_ROUTE_THREAD_WORDS;
        route_lane({p, lanes, at.work.experts / 16, keys, words, (uint32_t *)words}, at.token + lane);
    } else {
        stage_sums(at, lanes);
    }
}

extern "C" __global__ void __launch_bounds__(SM100_ROUTE_THREADS, 1)
    sm100_route(const __grid_constant__ cuda_tensor_map w, const __grid_constant__ cuda_tensor_map x,
                const __grid_constant__ nk_route_problem p, const __grid_constant__ sm100_route_work work)
{
    static_assert(sizeof(barriers_t) <= SM100_ROUTE_BARRIER_BYTES, "the host makes room");
    const int warp = (int)threadIdx.x / 32, cluster = work.expert_tiles * work.parts;
    const place at = place_of(p, work, shared_memory);
    griddepcontrol_launch_dependents();
    if (warp == SM100_ROUTE_PRODUCER && elect_sync()) {
        prefetch_tensormap(&w);
        prefetch_tensormap(&x);
        init_barriers(at);
    }
    if (warp == SM100_ROUTE_ISSUER) {
        tcgen05_alloc<1>(shared_address(&at.barriers.tmem), (uint32_t)work.tmem_columns);
        tcgen05_relinquish_alloc_permit<1>();
    }
    __syncthreads(); /* each role has a tcgen05 fence of its own behind its wait, or is the warp that allocated */
    const uint32_t tmem = ld_shared(shared_address(&at.barriers.tmem));
    if (warp == SM100_ROUTE_PRODUCER) {
        if (elect_sync()) load(at, &w, &x);
        __syncwarp();
    }
    griddepcontrol_wait();
    if (warp == SM100_ROUTE_ISSUER) {
        if (elect_sync()) multiply(at, tmem);
        __syncwarp();
    }
    __syncthreads();
    if (warp < SM100_ROUTE_LANE_WARPS) take_sums(at, p, tmem);
    meet(cluster);
    if (warp == SM100_ROUTE_ISSUER) tcgen05_dealloc<1>(tmem, (uint32_t)work.tmem_columns);
    if (work.by_thread) return;
    route_tokens(at, p);
    if (cluster == 1) return;
    barrier_cluster_arrive_aligned(); /* route_tokens() ends with lanes together */
    barrier_cluster_wait_aligned();
}
