/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token, if CTAs begin at whole tiles. W is
 * loaded by tensor map (TMA): two instructions for a step of a consumer.
 *
 * MMA: see sm90_gemv_codes.cu. Scheduler: see sm90_gemv_config.h. A consumer is a warpgroup.
 *
 * Roles: all warps are consumers. One lane of each warpgroup is also its producer, up to STAGES steps ahead. A
 * warpgroup sends its sums of a row at once to the CTA of the cluster with the row's epilogue, which adds the sums of
 * all warpgroups.
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[warpgroup][stage]  TMA -> the warpgroup's warps            1 arrival, of the producer lane, + a stage   wait 0
 *   inbox_full              CTAs of the cluster -> all threads      1 arrival, of thread 0, + all sums           wait 0
 *   BARRIER_WARPGROUP       the warpgroup has read a stage into registers, before it is filled again
 *   __syncthreads()         the token is in shared memory, also for the asynchronous proxy; in a CTA alone, sums are
 *   cluster (bar 0)         if a cluster splits K: inbox_full is initialised before other CTAs send sums
 *
 * Overlap: see sm90_gemv.cu. Without `early` the token is loaded before the tiles: behind all of them it would come
 * late.
 *
 * Memory: see sm90_gemv_memory.h and sm90_gemv_codes.cuh. */
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm90_gemv_codes.cuh"

constexpr int ROWS = SM90_GEMV_MAP_ROWS, STAGES = SM90_GEMV_MAP_STAGES /* of a warpgroup */,
              WORDS = SM90_GEMV_STEP / NK_SF_VEC / 4 /* of four scale factors of a row, one for each of four lanes */,
              STAGE_BYTES = sizeof(sm90_gemv_map_stage), ROW_BYTES = sizeof(sm90_gemv_map_stage::codes[0]),
              STAGE_SF = offsetof(sm90_gemv_map_stage, sf);

static_assert(ROWS == tile_rows<TALL, SM90_GEMV_WARPGROUP_WARPS> && ROW_BYTES == 128, "a row of the swizzle");
static_assert(SM90_GEMV_WARPGROUP_WARPS * SM90_GEMV_PIPELINE_BYTES == STAGES * STAGE_BYTES,
              "the token lies behind the stages");

/* Named barriers: __syncthreads()'s, then one of each warpgroup. */
enum { BARRIER_CTA, BARRIER_WARPGROUP };

/* ---------------------------------------------------------------------------------------------------------------- */
/* The pipeline                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The coordinates of a step's boxes in the tensor maps. */
typedef struct box_coordinates {
    int codes[5], sf[4];
} box_coordinates;

template <int ACCESS>
__device__ inline box_coordinates box_coordinates_of(const work_tile_info &w, int tile, int k_step)
{
    const int position = w.skew + tile * ROWS;
    const int from_first = w.first_k_step + k_step, k = from_first * (SM90_GEMV_STEP / 2),
              sf_k = from_first * (SM90_GEMV_STEP / NK_SF_VEC);
    if (ACCESS == LINEAR) return {{k, w.first_row + position, 0, 0, w.l}, {sf_k, w.first_row + position, 0, w.l}};
    const int atom = sf_atom_of_row(w.first_row + position), first = sf_row_in_atom(position);
    return {{k, 0, first / 4, atom, w.l}, {sf_offset_of_position(first), sf_atom_of_col(sf_k), atom, w.l}};
}

/* The addresses of a stage and of its mbarrier. */
typedef struct map_stage {
    uint32_t at, full;
} map_stage;

__device__ inline map_stage first_stage_of_warpgroup()
{
    const int index = warp_index() / SM90_GEMV_WARPGROUP_WARPS * STAGES;
    return {shared_address(smem) + (uint32_t)sizeof(sm90_gemv_map_head) + index * STAGE_BYTES,
            shared_address(((sm90_gemv_map_head *)smem)->full) + index * 8};
}

/* The step that the producer loads next. */
typedef struct map_cursor {
    int tile, k_step;
} map_cursor;

template <int ACCESS>
__device__ inline void load_stage_by_map(const sm90_gemv_maps &maps, const work_tile_info &w, map_cursor &next,
                                         const map_stage &to)
{
    const box_coordinates at = box_coordinates_of<ACCESS>(w, next.tile, next.k_step);
    mbarrier_arrive_expect_tx(to.full, STAGE_BYTES);
    cp_async_bulk_tensor_5d_hint(to.at, &maps.codes, at.codes, to.full, createpolicy_evict_first());
    cp_async_bulk_tensor_4d_hint(to.at + STAGE_SF, &maps.sf, at.sf, to.full, createpolicy_evict_first());
    if (++next.k_step == w.k_steps) {
        next.k_step = 0;
        next.tile++;
    }
}

/* Bytes in a stage from a row's scale factors to the next row's, and from four scale factors of a row to the next four.
 */
template <int ACCESS> constexpr int sf_of_row = ACCESS == BLOCKED ? 4 : 4 * WORDS;
template <int ACCESS> constexpr int sf_of_word = ACCESS == BLOCKED ? 4 * ROWS : 4;

/* The swizzle permutes the chunks of a row by the row's number. */
template <int ACCESS> __device__ inline stage_offsets map_stage_offsets_of_lane()
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t row = warp_index() % SM90_GEMV_WARPGROUP_WARPS * (TALL * SM90_GEMV_M8) + g,
                   chunks = row * ROW_BYTES + (2 * c ^ g) * 16;
    return {chunks, chunks ^ 16, STAGE_SF + row * sf_of_row<ACCESS> + c * sf_of_word<ACCESS>};
}

template <int ACCESS> __device__ inline weight_fragment load_map_stage(uint32_t stage, const stage_offsets &at)
{
    weight_fragment w = {};
#pragma unroll
    for (int m8 = 0; m8 < TALL; m8++) {
        const uint32_t row = m8 * SM90_GEMV_M8;
        w.codes[m8][0] = ld_shared_v4(stage + at.first + row * ROW_BYTES);
        w.codes[m8][1] = ld_shared_v4(stage + at.second + row * ROW_BYTES);
        w.sf[m8] = ld_shared(stage + at.sf + row * sf_of_row<ACCESS>);
    }
    return w;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The epilogue                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Sends the sum of a split within the CTA to the CTA with the epilogue of the row at `position`. A lane that sends
 * nothing (not `wanted`) may have a position behind the last. */
__device__ inline void send_partial(const sm90_gemv_scheduler &s, uint32_t inbox, int split, int position, float sum,
                                    bool wanted)
{
    const int owner = min(sm90_gemv_divide(position, s.epilogue_rows_inverse), s.cluster - 1),
              row = position - owner * s.epilogue_rows;
    const uint32_t to = inbox + ((row * s.cluster + blockIdx.y) * s.split_k + split) * 4;
    if (s.cluster > 1)
        st_async_if(wanted, mapa(to, owner), sum, mapa(inbox_mbarrier(), owner));
    else
        st_shared_if(wanted, to, __float_as_uint(sum));
}

/* Adds the four lanes' sums of each row of a tile, and sends them. The tile's last warpgroup also sends zeros for
 * splits that other tiles have and this one lacks. Sets `sums` to 0. */
__device__ inline void send_tile_partials(const sm90_gemv_scheduler &s, const work_tile_info &w, uint32_t inbox,
                                          int tile, bool is_last, float sums[2])
{
    const int lane = threadIdx.x & 31, m8_of_lane = lane & 3, first_split = split_of_tile(w, tile);
#pragma unroll
    for (int m8 = 0; m8 < TALL; m8++) {
        sums[m8] += __shfl_xor_sync(~0u, sums[m8], 1);
        sums[m8] += __shfl_xor_sync(~0u, sums[m8], 2);
    }
    const int position =
        position_of_warp<TALL, SM90_GEMV_WARPGROUP_WARPS>(tile) + m8_of_lane * SM90_GEMV_M8 + (lane >> 2);
    float sum = m8_of_lane ? sums[1] : sums[0];
#pragma unroll 1
    for (int split = first_split; split < (is_last ? s.split_k : first_split + 1); split++) {
        send_partial(s, inbox, split, position, sum, m8_of_lane < TALL && position < w.positions);
        sum = __int_as_float(s.cluster >> 16); /* zero, but not for ptxas: see st_async_if() */
    }
    sums[0] = sums[1] = 0;
}

enum { REDUCERS = 8 }; /* lanes that add a sum */

__device__ inline thread_outputs thread_outputs_by_reducers(const sm90_gemv_scheduler &s, const work_tile_info &w)
{
    thread_outputs e = {0, (int)threadIdx.x / REDUCERS, (int)blockDim.x / REDUCERS};
    e.first_position = blockIdx.y * s.epilogue_rows;
    e.rows = min(s.epilogue_rows, w.positions - e.first_position);
    return e;
}

/* Adds the inbox's sums of each row of the CTA's epilogue. The lanes of a warp stay together. */
template <int ACCESS>
__device__ inline void reduce_and_store(const sm90_gemv_args &p, const work_tile_info &w, const float *inbox,
                                        thread_outputs e)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const int reducer = threadIdx.x % REDUCERS, rows_ahead = (threadIdx.x & 31) / REDUCERS,
              summands = s.cluster * s.split_k;
    const float factor = token_factor(p, w, 0);
    if (s.cluster > 1)
        mbarrier_wait_cluster(inbox_mbarrier(), 0);
    else
        __syncthreads();
#pragma unroll 1
    while (e.row - rows_ahead < e.rows) {
        const bool there = e.row < e.rows;
        float sum = 0;
        for (int i = reducer; there && i < summands; i += REDUCERS)
            sum += inbox[e.row * summands + i];
#pragma unroll
        for (int other = 1; other < REDUCERS; other *= 2)
            sum += __shfl_xor_sync(~0u, sum, other);
        if (there && reducer == 0 && e.to.at)
            store_float(e.to.at, p.d.dtype, __fmaf_rn(e.to.alpha, factor * (sum * PRODUCT_SCALE), e.to.bias));
        e.row += e.step;
        load_output_element<ACCESS>(p, w, e);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <int ACCESS> __device__ inline void run_map_gemv(const sm90_gemv_args &p, const sm90_gemv_maps &maps)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const work_tile_info w = initial_work_tile_info<ACCESS, TALL, SM90_GEMV_WARPGROUP_WARPS>(p);
    const int tokens_at = sm90_gemv_tokens_at(true, blockDim.x >> 5);
    const token_buffer token = token_buffer_at(tokens_at, s, w);
    const bool is_producer = threadIdx.x % (32 * SM90_GEMV_WARPGROUP_WARPS) == 0;
    const map_stage first = first_stage_of_warpgroup();
    map_cursor next = {w.tile, w.k_step};
    token_chunk batch[CODE_BATCH];
    if (is_producer) {
        const box_coordinates at = box_coordinates_of<ACCESS>(w, w.tile, w.k_step);
        prefetch_tensormap(&maps.codes);
        prefetch_tensormap(&maps.sf);
        if (w.steps > 0) {
            cp_async_bulk_tensor_5d_prefetch(&maps.codes, at.codes);
            cp_async_bulk_tensor_4d_prefetch(&maps.sf, at.sf);
        }
        for (int i = 0; i < STAGES; i++)
            mbarrier_init(first.full + 8 * i, 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    griddepcontrol_launch_dependents();
    init_inbox(s);
    const code_source from = code_source_of(p, w);
    /* Waits for the kernels before this one, then loads the token. Before, nothing but weights may be read. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_code_chunks<ACCESS>(from, 0, batch);
    };
    if (!s.early) begin_token();
    if (is_producer)
        for (int i = 0; i < min(w.steps, (int)STAGES); i++)
            load_stage_by_map<ACCESS>(maps, w, next, {first.at + i * STAGE_BYTES, first.full + i * 8});
    __syncwarp();
    if (s.early) begin_token();
    thread_outputs outputs = thread_outputs_by_reducers(s, w);
    load_output_element<ACCESS>(p, w, outputs);
    store_token<ACCESS>(from, batch, token);
    fence_proxy_async();
    __syncthreads();
    expect_inbox(s, w, s.cluster * s.split_k);
    if (s.cluster > 1) barrier_cluster_wait_aligned(); /* all inboxes are ready */
    const int inbox_offset = tokens_at + sm90_gemv_e4m3_token_bytes(s.k_steps);
    const uint32_t inbox = shared_address(smem) + inbox_offset;
    const stage_offsets offsets = map_stage_offsets_of_lane<ACCESS>();
    warpgroup_mma<TALL> mma(token.values, token.factors);
    map_stage now = first;
    int number = 0, parity = 0;
    for (int left = w.steps, tile = w.tile, k_step = w.k_step; left > 0; tile++, k_step = 0) {
        const int rest = left - (w.k_steps - k_step); /* steps in later tiles; negative if this one is not finished */
        mma.begin_tile(k_step);
#pragma unroll 1
        for (; left > max(0, rest); left--) {
            mbarrier_wait(now.full, parity);
            const weight_fragment taken = load_map_stage<ACCESS>(now.at, offsets);
            if (left > STAGES) {
                bar_sync<32 * SM90_GEMV_WARPGROUP_WARPS>(BARRIER_WARPGROUP + warp_index() / SM90_GEMV_WARPGROUP_WARPS);
                if (is_producer) load_stage_by_map<ACCESS>(maps, w, next, now);
                __syncwarp();
            }
            now = {now.at + STAGE_BYTES, now.full + 8};
            if (++number == STAGES) {
                now = first;
                number = 0;
                parity ^= 1;
            }
            mma.step(taken);
        }
        send_tile_partials(s, w, inbox, tile, rest >= 0, mma.sums);
    }
    reduce_and_store<ACCESS>(p, w, (const float *)((const uint8_t *)smem + inbox_offset), outputs);
}

#define GEMV(name, ACCESS)                                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1)                                       \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p, const __grid_constant__ sm90_gemv_maps maps) \
    {                                                                                                           \
        run_map_gemv<ACCESS>(p, maps);                                                                          \
    }

GEMV(map_linear, LINEAR)
GEMV(map_blocked, BLOCKED)
