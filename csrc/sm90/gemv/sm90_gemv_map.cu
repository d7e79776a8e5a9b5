/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token, where CTAs begin at whole tiles. W
 * comes by tensor map (TMA): two instructions for a step of a team.
 *
 * Work, products: see sm90_gemv_codes.cu.
 *
 * Roles: one lane of each team asks for its tiles, steps ahead. All warps multiply. A team sends its sums of a row at
 * once to the CTA of the cluster that ends the row. That CTA adds what all teams have sent.
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   tile_arrived[team][slot]  tensor maps -> the team's warps       1 arrival, of the lane that asks, + a tile   wait 0
 *   sums_arrived              CTAs of the cluster -> all threads    1 arrival, of thread 0, + all sums           wait 0
 *   BARRIER_TEAM              the team has a tile in registers, before its slot is filled again
 *   __syncthreads()           the token is in shared memory, also for the asynchronous proxy; in a CTA alone, sums are
 *   cluster (bar 0)           where CTAs share rows: sums_arrived is initialised before others send sums
 *
 * Overlap: see sm90_gemv.cu. Where weights wait, too, the token is asked for before the tiles: behind all of them it
 * would come late.
 *
 * Memory: see sm90_gemv_memory.h and sm90_gemv_codes.cuh. */
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm90_gemv_codes.cuh"

constexpr int ROWS = SM90_GEMV_MAP_ROWS, SLOTS = SM90_GEMV_MAP_STAGES /* of a team */,
              WORDS = SM90_GEMV_STEP / NK_SF_VEC / 4 /* of four scale factors of a row, one for each of four lanes */,
              SLOT = sizeof(sm90_gemv_map_stage), LINE = sizeof(sm90_gemv_map_stage::codes[0]),
              SF_OF_TILE = offsetof(sm90_gemv_map_stage, sf);

static_assert(ROWS == rows_of_tile<TALL, SM90_GEMV_WARPGROUP_WARPS> && LINE == 128, "a row of the swizzle");
static_assert(SM90_GEMV_WARPGROUP_WARPS * SM90_GEMV_PIPELINE_BYTES == SLOTS * SLOT, "the token lies behind the slots");

/* Named barriers: __syncthreads()'s, then one of each team. */
enum { BARRIER_CTA, BARRIER_TEAM };

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The coordinates of a step's boxes in the tensor maps. */
typedef struct corner {
    int codes[5], sf[4];
} corner;

template <int ACCESS> __device__ inline corner corner_of(const team_work &w, int tile, int k_step)
{
    const int position = w.skew + tile * ROWS;
    const int from_first = w.first_k_step + k_step, k = from_first * (SM90_GEMV_STEP / 2),
              sf_k = from_first * (SM90_GEMV_STEP / NK_SF_VEC);
    if (ACCESS == LINEAR) return {{k, w.first_row + position, 0, 0, w.l}, {sf_k, w.first_row + position, 0, w.l}};
    const int atom = (w.first_row + position) / NK_SF_ATOM_ROWS, first = position % NK_SF_ATOM_ROWS;
    return {{k, 0, first / 4, atom, w.l}, {first * NK_SF_ATOM_COLS, sf_k / NK_SF_ATOM_COLS, atom, w.l}};
}

/* The addresses of a slot and of its mbarrier. */
typedef struct slot {
    uint32_t at, full;
} slot;

__device__ inline slot first_slot_of_team()
{
    const int index = warp_index() / SM90_GEMV_WARPGROUP_WARPS * SLOTS;
    return {shared_address(smem) + (uint32_t)sizeof(sm90_gemv_map_head) + index * SLOT,
            shared_address(((sm90_gemv_map_head *)smem)->tile_arrived) + index * 8};
}

/* The step that the team asks for next. One lane keeps it. */
typedef struct request {
    int tile, k_step;
} request;

template <int ACCESS>
__device__ inline void ask_for_tile(const sm90_gemv_maps &maps, const team_work &w, request &next, const slot &to)
{
    const corner at = corner_of<ACCESS>(w, next.tile, next.k_step);
    mbarrier_arrive_expect_tx(to.full, SLOT);
    cp_async_bulk_tensor_5d_hint(to.at, &maps.codes, at.codes, to.full, createpolicy_evict_first());
    cp_async_bulk_tensor_4d_hint(to.at + SF_OF_TILE, &maps.sf, at.sf, to.full, createpolicy_evict_first());
    if (++next.k_step == w.k_steps) {
        next.k_step = 0;
        next.tile++;
    }
}

/* Bytes in a slot from a row's scale factors to the next row's, and from four scale factors of a row to the next four.
 */
template <int ACCESS> constexpr int sf_of_row = ACCESS == BLOCKED ? 4 : 4 * WORDS;
template <int ACCESS> constexpr int sf_of_word = ACCESS == BLOCKED ? 4 * ROWS : 4;

/* The swizzle permutes the chunks of a row by the row's number. */
template <int ACCESS> __device__ inline slot_offsets tile_offsets_of_lane()
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t row = warp_index() % SM90_GEMV_WARPGROUP_WARPS * (TALL * SM90_GEMV_M8) + g,
                   chunks = row * LINE + (2 * c ^ g) * 16;
    return {chunks, chunks ^ 16, SF_OF_TILE + row * sf_of_row<ACCESS> + c * sf_of_word<ACCESS>};
}

template <int ACCESS> __device__ inline weights load_tile(uint32_t slot, const slot_offsets &at)
{
    weights w = {};
#pragma unroll
    for (int o = 0; o < TALL; o++) {
        const uint32_t row = o * SM90_GEMV_M8;
        w.codes[o][0] = ld_shared_v4(slot + at.first + row * LINE);
        w.codes[o][1] = ld_shared_v4(slot + at.second + row * LINE);
        w.sf[o] = ld_shared(slot + at.sf + row * sf_of_row<ACCESS>);
    }
    return w;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Sums                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Sends a sum to the CTA that ends the row at `position`, as part `part` of this CTA. A lane that sends nothing (not
 * `wanted`) may have a position behind the last. */
__device__ inline void send_sum(const sm90_gemv_scheduler &s, uint32_t inbox, int part, int position, float sum,
                                bool wanted)
{
    const int owner = min(sm90_gemv_divide(position, s.epilogue_rows_inverse), s.cluster - 1),
              row = position - owner * s.epilogue_rows;
    const uint32_t to = inbox + ((row * s.cluster + blockIdx.y) * s.split_k + part) * 4;
    if (s.cluster > 1)
        st_async_if(wanted, mapa(to, owner), sum, mapa(inbox_barrier(), owner));
    else
        st_shared_if(wanted, to, __float_as_uint(sum));
}

/* Adds the sums that four lanes have of each row of a tile, and sends them. The last team of a tile also sends zeros
 * for the parts that this tile has less than others. Sets `sums` to 0. */
__device__ inline void send_tile(const sm90_gemv_scheduler &s, const team_work &w, uint32_t inbox, int tile,
                                 bool is_last, float sums[2])
{
    const int lane = threadIdx.x & 31, octet = lane & 3, first_part = part_of_tile(w, tile);
#pragma unroll
    for (int o = 0; o < TALL; o++) {
        sums[o] += __shfl_xor_sync(~0u, sums[o], 1);
        sums[o] += __shfl_xor_sync(~0u, sums[o], 2);
    }
    const int position = first_position<TALL, SM90_GEMV_WARPGROUP_WARPS>(tile) + octet * SM90_GEMV_M8 + (lane >> 2);
    float sum = octet ? sums[1] : sums[0];
#pragma unroll 1
    for (int part = first_part; part < (is_last ? s.split_k : first_part + 1); part++) {
        send_sum(s, inbox, part, position, sum, octet < TALL && position < w.positions);
        sum = __int_as_float(s.cluster >> 16); /* zero, but not for ptxas: see st_async_if() */
    }
    sums[0] = sums[1] = 0;
}

enum { ADDERS = 8 }; /* lanes that add a sum */

__device__ inline ending ending_by_adders(const sm90_gemv_scheduler &s, const team_work &w)
{
    ending e = {0, (int)threadIdx.x / ADDERS, (int)blockDim.x / ADDERS};
    e.first_end = blockIdx.y * s.epilogue_rows;
    e.rows = min(s.epilogue_rows, w.positions - e.first_end);
    return e;
}

/* Adds what has come for each row that the CTA ends. The lanes of a warp stay together. */
template <int ACCESS>
__device__ inline void add_sums(const sm90_gemv_args &p, const team_work &w, const float *inbox, ending e)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const int adder = threadIdx.x % ADDERS, rows_ahead = (threadIdx.x & 31) / ADDERS, summands = s.cluster * s.split_k;
    if (s.cluster > 1)
        mbarrier_wait_cluster(inbox_barrier(), 0);
    else
        __syncthreads();
#pragma unroll 1
    while (e.row - rows_ahead < e.rows) {
        const bool there = e.row < e.rows;
        float sum = 0;
        for (int i = adder; there && i < summands; i += ADDERS)
            sum += inbox[e.row * summands + i];
#pragma unroll
        for (int other = 1; other < ADDERS; other *= 2)
            sum += __shfl_xor_sync(~0u, sum, other);
        if (there && adder == 0 && e.to.at)
            store_float(e.to.at, p.d.dtype, __fmaf_rn(e.to.alpha, sum * PRODUCT_SCALE, e.to.bias));
        e.row += e.step;
        find_result<ACCESS>(p, w, e);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

template <int ACCESS> __device__ inline void gemv(const sm90_gemv_args &p, const sm90_gemv_maps &maps)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const team_work w = work_of_team<ACCESS, TALL, SM90_GEMV_WARPGROUP_WARPS>(p);
    const int tokens_at = sm90_gemv_tokens_at(true, blockDim.x >> 5);
    const room token = room_at(tokens_at, s, w);
    const bool asks = threadIdx.x % (32 * SM90_GEMV_WARPGROUP_WARPS) == 0;
    const slot first = first_slot_of_team();
    request next = {w.tile, w.k_step};
    token_chunk batch[BATCH];
    if (asks) {
        const corner at = corner_of<ACCESS>(w, w.tile, w.k_step);
        prefetch_tensormap(&maps.codes);
        prefetch_tensormap(&maps.sf);
        if (w.steps > 0) {
            cp_async_bulk_tensor_5d_prefetch(&maps.codes, at.codes);
            cp_async_bulk_tensor_4d_prefetch(&maps.sf, at.sf);
        }
        for (int i = 0; i < SLOTS; i++)
            mbarrier_init(first.full + 8 * i, 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    griddepcontrol_launch_dependents();
    prepare_inbox(s);
    const source from = source_of(p, w);
    /* Waits for the kernels before this one, then asks for the token. Before, nothing but weights may be read. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_chunks<ACCESS>(from, 0, batch);
    };
    if (!s.early) begin_token();
    if (asks)
        for (int i = 0; i < min(w.steps, (int)SLOTS); i++)
            ask_for_tile<ACCESS>(maps, w, next, {first.at + i * SLOT, first.full + i * 8});
    __syncwarp();
    if (s.early) begin_token();
    ending end = ending_by_adders(s, w);
    find_result<ACCESS>(p, w, end);
    store_token<ACCESS>(from, batch, token);
    fence_proxy_async();
    __syncthreads();
    expect_sums(s, w, s.cluster * s.split_k);
    if (s.cluster > 1) barrier_cluster_wait_aligned(); /* all inboxes are ready */
    const int inbox_at = tokens_at + sm90_gemv_e4m3_token_bytes(s.k_steps);
    const uint32_t inbox = shared_address(smem) + inbox_at;
    const slot_offsets offsets = tile_offsets_of_lane<ACCESS>();
    products<TALL> products(token.values, token.factors);
    slot now = first;
    int number = 0, parity = 0;
    for (int left = w.steps, tile = w.tile, k_step = w.k_step; left > 0; tile++, k_step = 0) {
        const int rest = left - (w.k_steps - k_step); /* steps in later tiles; negative if this one is not finished */
        products.begin_tile(k_step);
#pragma unroll 1
        for (; left > max(0, rest); left--) {
            mbarrier_wait(now.full, parity);
            const weights taken = load_tile<ACCESS>(now.at, offsets);
            if (left > SLOTS) {
                bar_sync<32 * SM90_GEMV_WARPGROUP_WARPS>(BARRIER_TEAM + warp_index() / SM90_GEMV_WARPGROUP_WARPS);
                if (asks) ask_for_tile<ACCESS>(maps, w, next, now);
                __syncwarp();
            }
            now = {now.at + SLOT, now.full + 8};
            if (++number == SLOTS) {
                now = first;
                number = 0;
                parity ^= 1;
            }
            products.step(taken);
        }
        send_tile(s, w, inbox, tile, rest >= 0, products.sums);
    }
    add_sums<ACCESS>(p, w, (const float *)((const uint8_t *)smem + inbox_at), end);
}

#define GEMV(name, ACCESS)                                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1)                                       \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p, const __grid_constant__ sm90_gemv_maps maps) \
    {                                                                                                           \
        gemv<ACCESS>(p, maps);                                                                                  \
    }

GEMV(map_linear, LINEAR)
GEMV(map_blocked, BLOCKED)
