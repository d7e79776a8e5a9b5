/* Tokens to the ranks that have their experts: see peer_experts.cuh.
 *
 *     token --> arenas of ranks that have an expert of it; its experts' numbers --> all
 *     flags
 *     tokens in the arena --> outputs
 *
 * A unit is a token's way to one rank, and that of another rank's token of the same number here. */
#ifndef NK_PEER_DISPATCH_CUH
#define NK_PEER_DISPATCH_CUH

#include "peer_experts.cuh"

/* A token as it lies in an arena or in the outputs. */
typedef struct sent_token {
    uint8_t *token, *scales;
    int32_t *ids;
} sent_token;

__device__ inline sent_token token_in_arena(const nk_peer_dispatch_problem &p, uint8_t *half, int64_t at)
{
    uint8_t *row = half + at * p.sent_bytes;
    return {row, row + p.token_bytes, (int32_t *)(row + p.token_bytes + p.scale_bytes)};
}

__device__ inline sent_token token_in_outputs(const nk_peer_dispatch_problem &p, int64_t at)
{
    return {p.out_tokens + at * p.token_bytes, p.out_scales + at * p.scale_bytes, p.out_ids + at * p.k};
}

/* A token on its way to rank `to`, and the token of the same number that comes from rank `from`: `part` ranks further,
 * and as many before. So it is the same unit on all ranks. */
typedef struct token_way {
    int64_t t;
    int to, from;
} token_way;

__device__ inline token_way way_of(const nk_peer_group &g, const peer_unit &unit)
{
    return {unit.t, rank_after(g, unit.part), rank_after(g, unit.part ? g.world - unit.part : 0)};
}

/* Selection j of own token t as `range` numbers it. */
__device__ inline int32_t local_expert(const nk_peer_dispatch_problem &p, int64_t t, int j, const expert_range &range)
{
    return t < p.n && j < p.k ? nk_expert_of(p.ids[t * p.k + j] - range.first, range.count) : -1;
}

/* A token and its experts' numbers, to a rank that has some of them; to others the numbers alone. */
__device__ inline void send_token(const nk_peer_dispatch_problem &p, int64_t plain, const token_way &way)
{
    const nk_peer_group &g = p.group;
    const int64_t at = g.rank * p.room + way.t;
    const expert_range range = experts_of(p.experts, way.to);
    const uint8_t *token = p.tokens + way.t * p.token_bytes, *scales = p.scales + way.t * p.scale_bytes;
    peer_bytes begin; /* loaded before it is known whether it is wanted: that takes as long */
    bool wanted = false;
    begin.load(token, 0, way.t < p.n ? p.token_bytes : 0);
#pragma unroll 8
    for (int j = 0; j < p.k; j++)
        wanted |= local_expert(p, way.t, j, range) >= 0;
    const sent_token there =
        way.to != g.rank ? token_in_arena(p, arena_of(g, way.to) + plain, at) : token_in_outputs(p, at);
    for (int j = threadIdx.x; j < p.k; j += blockDim.x)
        there.ids[j] = local_expert(p, way.t, j, range);
    if (!wanted) return;
    begin.store(there.token, 0, p.token_bytes);
    copy_bytes(there.token, token, peer_bytes::all(), p.token_bytes);
    copy_bytes(there.scales, scales, 0, p.scale_bytes);
}

/* Another rank's token, out of the arena. */
__device__ inline void take_token(const nk_peer_dispatch_problem &p, uint8_t *half, const token_way &way, bool come)
{
    const int64_t at = way.from * p.room + way.t;
    const sent_token here = token_in_arena(p, half, at), out = token_in_outputs(p, at);
    peer_bytes begin;
    bool wanted = false;
    begin.load(here.token, 0, p.token_bytes);
#pragma unroll 8
    for (int j = 0; j < p.k; j++)
        wanted |= come && here.ids[j] >= 0;
    for (int j = threadIdx.x; j < p.k; j += blockDim.x)
        out.ids[j] = come ? here.ids[j] : -1;
    if (!wanted) return;
    begin.store(out.token, 0, p.token_bytes);
    copy_bytes(out.token, here.token, peer_bytes::all(), p.token_bytes);
    copy_bytes(out.scales, here.scales, 0, p.scale_bytes);
}

__device__ inline void peer_dispatch(const nk_peer_dispatch_problem &p)
{
    const nk_peer_group &g = p.group;
    const peer_unit first = first_unit(p.units);
    peer_launch l = begin_peer_launch(g);
    const int64_t plain = peer_plain_at(g.arena_bytes, l.epoch & 1);
    bool come = !l.failed;
    for (peer_unit unit = first; unit.t < p.room && come; unit = unit_after(unit, p.units))
        send_token(p, plain, way_of(g, unit));
    come = come && exchange_arrivals(g, l, 0);
    for (peer_unit unit = first; unit.t < p.room; unit = unit_after(unit, p.units)) {
        const token_way way = way_of(g, unit);
        if (way.from == g.rank && come) continue; /* in the outputs already */
        take_token(p, g.arena + plain, way, come);
    }
    end_peer_launch(l);
}

#define PEER_DISPATCH_KERNEL(name)                                             \
    extern "C" __global__ void __launch_bounds__(PEER_THREADS, 1)              \
        name(const __grid_constant__ nk_peer_dispatch_problem p)               \
    {                                                                          \
        peer_dispatch(p);                                                      \
    }

#endif
