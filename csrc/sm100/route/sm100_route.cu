/* A router by tcgen05.mma.kind::f16, in one launch:
 *   logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k]; the best experts of each row and their weights.
 *
 * Tiles: a cluster has a tile of tokens, all experts and all of K. Each of its CTAs multiplies a tile of experts over a
 * share of K (sm100_route_mainloop.cuh). Sums are fp32 numbers in tensor memory.
 * If tokens are operand M, a cluster is one CTA, and a thread routes the token of its lane out of tensor memory
 * (sm100_route_thread.cuh); with many selections warps route tokens here, too.
 * If tokens are operand N, few of them leave no lane empty. The CTAs of a cluster read each other's sums in shared
 * memory, and divide the tokens: a warp adds the splits of a token's logits in the order of K, and routes it
 * (cuda/route_topk.cuh).
 *
 * Roles: warps 0 - 3: epilogue; warp w reads lanes 32 w .. + 31 of tensor memory
 *        warp 4:      producer; one thread loads
 *        warp 5:      allocates tensor memory; one thread issues MMAs
 *        all warps:   route tokens, unless threads of the epilogue do
 *
 * Barriers (mbarriers; "wait" is the parity of the first wait):
 *   full[stages]    producer -> MMA warp       1 arrival + the bytes of both boxes         wait 0
 *   empty[stages]   MMA warp -> producer       1 (commit): the stage's MMAs are done       wait 1
 *   sums_full       MMA warp -> epilogue       1 (commit): all MMAs are done               wait 0
 *   __syncthreads   the MMA warp has seen all loads: the pipeline's shared memory may be overwritten
 *   cluster, first  all CTAs' sums are in shared memory, where the pipeline was
 *   cluster, last   a CTA's shared memory outlives its peers' reads
 *
 * Shared memory: see sm100_route_config.h. Tensor memory: the sums, one column for each row of operand N. */
#include "sm100_route_thread.cuh"

extern __shared__ __align__(1024) uint8_t shared_memory[];

/* All threads of the cluster. */
__device__ inline void sync_route_cluster(int cluster)
{
    __syncwarp();
    if (cluster == 1) {
        __syncthreads();
        return;
    }
    barrier_cluster_arrive_aligned();
    barrier_cluster_wait_aligned();
}

/* Four experts of a CTA's tile: adds all splits of K. `sums` is where this CTA has its own. */
__device__ inline float4 sum_k_splits(const route_cta_tile &at, uint32_t sums, int tile)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int split = 0; split < at.params.split_k; split++)
        sum = sum + ld_shared_cluster_v4(mapa(sums, (uint32_t)(split * at.params.expert_tiles + tile)));
    return sum;
}

/* A warp collects the logits of a token of the tile. */
__device__ inline void collect_logits(const route_cta_tile &at, const nk_route_problem &p, int token,
                                      const scratch_t &s)
{
    const int pitch = SM100_ROUTE_PITCH(at.params.experts), last = (int)p.n - 1;
#pragma unroll 1
    for (int tile = 0; tile < at.params.expert_tiles; tile++) {
#pragma unroll 1
        for (int n = threadIdx.x % 32 * 4; n < at.params.experts; n += 128) {
            const float4 sum = sum_k_splits(at, shared_address(at.memory) + (token * pitch + n) * 4, tile);
            const int expert = tile * at.params.experts + n;
            s.logits[expert] = __fmul_rn(alpha_at(p.alpha, min(expert, last)), sum.x);
            s.logits[expert + 1] = __fmul_rn(alpha_at(p.alpha, min(expert + 1, last)), sum.y);
            s.logits[expert + 2] = __fmul_rn(alpha_at(p.alpha, min(expert + 2, last)), sum.z);
            s.logits[expert + 3] = __fmul_rn(alpha_at(p.alpha, min(expert + 3, last)), sum.w);
        }
    }
    __syncwarp();
}

/* This CTA's share of the cluster's tokens. */
__device__ inline void route_cluster_tokens(const route_cta_tile &at, const nk_route_problem &p)
{
    const int warp = threadIdx.x / 32, cluster = at.params.expert_tiles * at.params.split_k;
    const scratch_t s = scratch_at(at.memory + at.params.scratch_at, warp, at.params.scratch_experts);
#pragma unroll 1
    for (int token = at.rank + cluster * warp; token < at.tokens; token += cluster * SM100_ROUTE_WARPS) {
        collect_logits(at, p, token, s);
        route_token<false>(p, at.token + token, s);
        __syncwarp();
    }
    __syncwarp();
}

/* The epilogue warps. */
__device__ inline void tcgen05_route_epilogue(const route_cta_tile &at, const nk_route_problem &p, uint32_t tmem)
{
    const uint32_t lanes = tmem + (threadIdx.x / 32 * 32 << 16);
    mbarrier_wait(shared_address(&at.barriers.sums_full), 0);
    tcgen05_fence_after_thread_sync();
    if (at.params.by_thread) {
        const int lane = (int)threadIdx.x;
        float *keys = (float *)at.memory + lane * SM100_ROUTE_PITCH(at.params.experts);
        float *words = (float *)(at.memory + at.params.scratch_at) + lane * SM100_ROUTE_THREAD_WORDS;
        route_by_thread({p, lanes, at.params.experts / 16, keys, words, (uint32_t *)words}, at.token + lane);
    } else {
        store_sums_to_smem(at, lanes);
    }
}

extern "C" __global__ void __launch_bounds__(SM100_ROUTE_THREADS, 1)
    sm100_route(const __grid_constant__ cuda_tensor_map w, const __grid_constant__ cuda_tensor_map x,
                const __grid_constant__ nk_route_problem p, const __grid_constant__ sm100_route_params params)
{
    static_assert(sizeof(route_barriers) <= SM100_ROUTE_BARRIER_BYTES, "the host makes room");
    const int warp = (int)threadIdx.x / 32, cluster = params.expert_tiles * params.split_k;
    const route_cta_tile at = route_cta_tile_of(p, params, shared_memory);
    if (warp == SM100_ROUTE_PRODUCER_WARP && elect_sync()) {
        prefetch_tensormap(&w);
        prefetch_tensormap(&x);
        init_route_barriers(at);
    }
    if (warp == SM100_ROUTE_MMA_WARP) {
        tcgen05_alloc<1>(shared_address(&at.barriers.tmem), (uint32_t)params.tmem_columns);
        tcgen05_relinquish_alloc_permit<1>();
    }
    __syncthreads(); /* each role has a tcgen05 fence of its own behind its wait, or is the warp that allocated */
    /* Behind the allocation: a dependent that took the tensor memory first would wait for this kernel, and it for that.
     */
    griddepcontrol_launch_dependents();
    const uint32_t tmem = ld_shared(shared_address(&at.barriers.tmem));
    if (warp == SM100_ROUTE_PRODUCER_WARP) {
        if (elect_sync()) produce_route_stages(at, &w, &x);
        __syncwarp();
    }
    griddepcontrol_wait();
    if (warp == SM100_ROUTE_MMA_WARP) {
        if (elect_sync()) issue_route_mmas(at, tmem);
        __syncwarp();
    }
    __syncthreads();
    if (warp < SM100_ROUTE_EPILOGUE_WARPS) tcgen05_route_epilogue(at, p, tmem);
    sync_route_cluster(cluster);
    if (warp == SM100_ROUTE_MMA_WARP) tcgen05_dealloc<1>(tmem, (uint32_t)params.tmem_columns);
    if (params.by_thread) return;
    route_cluster_tokens(at, p);
    if (cluster == 1) return;
    barrier_cluster_arrive_relaxed_aligned(); /* route_cluster_tokens() ends with converged warps */
    barrier_cluster_wait_aligned();
}
