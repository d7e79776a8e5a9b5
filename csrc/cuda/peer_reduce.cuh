/* out[i] = convert(sum), sum = fl(sum + partial_r[i]) for ranks r = 0 .. world-1 from +0 on: the same bits on all
 * ranks.
 *
 * In one shot each rank sends all it has to all others, as records, and adds up everything by itself: for few bytes.
 * In two shots each rank adds up its share, and sends the result to all others: for many bytes.
 *
 * Roles: all threads alike. CTA i waits for CTA i of the other ranks alone, so the grid is the same
 * on all of them. */
#ifndef NK_PEER_REDUCE_CUH
#define NK_PEER_REDUCE_CUH

#include "combine.cuh"
#include "peer_records.cuh"
#include "peer_store.cuh"

/* Of a record. */
template <nk_dtype DTYPE> struct payload_elements {
    static constexpr int COUNT = DTYPE == NK_F32 ? 2 : 4;
};

template <nk_dtype DTYPE> __device__ inline float payload_element(const uint2 &p, int i)
{
    if (DTYPE == NK_F32) return __uint_as_float(i ? p.y : p.x);
    return float_of<DTYPE == NK_BF16>(i < 2 ? p.x : p.y, i % 2);
}

template <int COUNT> __device__ inline void store_few(uint8_t *out, int64_t at, nk_dtype dtype, const float *v)
{
    if (dtype == NK_F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2)
            *(float2 *)(out + 4 * (at + i)) = make_float2(v[i], v[i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2)
            *(uint32_t *)(out + 2 * (at + i)) =
                dtype == NK_F16 ? pair_of<false>(v[i], v[i + 1]) : pair_of<true>(v[i], v[i + 1]);
    }
}

template <nk_dtype DTYPE> __device__ inline void peer_one_shot(const nk_peer_reduce_problem &p)
{
    constexpr int COUNT = payload_elements<DTYPE>::COUNT, AT_ONCE = 4;
    const nk_peer_group &g = p.group;
    const uint2 *partial = (const uint2 *)p.partial;
    const int64_t records = p.elements / COUNT, step = (int64_t)gridDim.x * blockDim.x;
    const int64_t begin = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    peer_launch l = begin_peer_launch(g);
    bool come = !l.failed;
#pragma unroll 1
    for (int64_t i = begin; i < records && come; i += step) {
        const uint2 own = partial[i];
        for (int r = 1; r < g.world; r++) {
            send_record(records_of(arena_of(g, rank_after(g, r)), l, g.rank, records) + i, own, l.epoch);
        }
    }
#pragma unroll 1
    for (int64_t i = begin; i < records; i += step) {
        float sum[COUNT] = {};
#pragma unroll 1
        for (int r0 = 0; r0 < g.world && come; r0 += AT_ONCE) {
            const uint4 *at[AT_ONCE];
            int from[AT_ONCE];
            uint2 theirs[AT_ONCE];
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) {
                from[c] = r0 + c;
                at[c] = from[c] < g.world ? records_of(g.arena, l, from[c], records) + i : NULL;
                if (from[c] == g.rank) at[c] = NULL;
                theirs[c] = partial[i];
            }
            come = receive_records(g, l, from, at, theirs);
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) {
                if (from[c] >= g.world) continue;
#pragma unroll
                for (int e = 0; e < COUNT; e++)
                    sum[e] = __fadd_rn(sum[e], payload_element<DTYPE>(theirs[c], e));
            }
        }
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            sum[e] = come ? sum[e] : __int_as_float(0x7FC00000);
        store_few<COUNT>(p.out, i * COUNT, p.out_dtype, sum);
    }
    end_peer_launch(l);
}

/* Eight elements, in pieces of 16 bytes. */
template <nk_dtype DTYPE> __device__ inline void add_eight(const uint8_t *at, float sum[8])
{
    row_elements<DTYPE, 8> piece;
    piece.template load<16>(at);
#pragma unroll
    for (int e = 0; e < 8; e++)
        sum[e] = __fadd_rn(sum[e], piece[e]);
}

/* What each rank adds up; the last ones may have less. */
__device__ inline int64_t share_elements(const nk_peer_reduce_problem &p)
{
    return (p.elements / 8 + p.group.world - 1) / p.group.world * 8;
}

/* Elements of a rank's share that a CTA sees to, as indices of the whole. */
typedef struct share_range {
    int64_t begin, end;
} share_range;

__device__ inline share_range ctas_part_of(const nk_peer_reduce_problem &p, int rank)
{
    const int64_t vectors = p.elements / 8, share = share_elements(p) / 8;
    const int64_t chunk = (share + gridDim.x - 1) / gridDim.x;
    const int64_t first = rank * share, last = min(first + share, vectors);
    const int64_t begin = min(first + blockIdx.x * chunk, last), end = min(begin + chunk, last);
    return {8 * begin, 8 * end};
}

template <nk_dtype DTYPE> __device__ inline void peer_two_shot(const nk_peer_reduce_problem &p)
{
    constexpr int IN = DTYPE == NK_F32 ? 4 : 2;
    const int out_size = p.out_dtype == NK_F32 ? 4 : 2;
    const nk_peer_group &g = p.group;
    peer_launch l = begin_peer_launch(g);
    const int64_t plain = peer_plain_at(g.arena_bytes, l.epoch & 1), share = share_elements(p) * IN;
    uint8_t *mine = g.arena + plain;
    const share_range own = ctas_part_of(p, g.rank);
    bool come = !l.failed;
    /* [from][share]: what others have of a share. Behind it the results of all. */
    for (int r = 1; r < g.world && come; r++) {
        const int to = rank_after(g, r);
        const share_range theirs = ctas_part_of(p, to);
        const int64_t first = to * (share / IN); /* of the share */
        uint8_t *there = arena_of(g, to) + plain + g.rank * share - first * IN;
        copy_bytes(there, p.partial, theirs.begin * IN, theirs.end * IN);
    }
    come = come && exchange_arrivals(g, l, 0);
    const int64_t first = g.rank * (share / IN), results = g.world * share;
#pragma unroll 1
    for (int64_t i = own.begin + 8 * threadIdx.x; i < own.end && come; i += 8 * blockDim.x) {
        float sum[8] = {};
        for (int r = 0; r < g.world; r++)
            add_eight<DTYPE>(r == g.rank ? p.partial + i * IN : mine + r * share + (i - first) * IN, sum);
        store_eight(p.out + i * out_size, p.out_dtype, sum);
        for (int r = 1; r < g.world; r++)
            store_eight(arena_of(g, rank_after(g, r)) + plain + results + i * out_size, p.out_dtype, sum);
    }
    come = come && exchange_arrivals(g, l, 1);
    for (int r = 0; r < g.world; r++) {
        const share_range theirs = ctas_part_of(p, r);
        if (come && r != g.rank) copy_bytes(p.out, mine + results, theirs.begin * out_size, theirs.end * out_size);
        for (int64_t i = theirs.begin + threadIdx.x; i < theirs.end && !come; i += blockDim.x)
            store_float(p.out + i * out_size, p.out_dtype, __int_as_float(0x7FC00000));
    }
    end_peer_launch(l);
}

#define PEER_REDUCE_KERNEL(name, shots, DTYPE)                                \
    extern "C" __global__ void __launch_bounds__(PEER_THREADS, 1)              \
        name(const __grid_constant__ nk_peer_reduce_problem p)                \
    {                                                                         \
        peer_##shots<DTYPE>(p);                                               \
    }

#endif
