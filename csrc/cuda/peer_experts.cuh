/* Experts on several GPUs: tokens to where their experts are, and what these make of them back.
 *
 * Rank r has tokens t of its own, at most `room`, and a range of the experts. Dispatch: rank d gets, of every token
 * (s, t), the experts that are its own, by their numbers there or as -1, and the token itself if there are any.
 * Combine:
 *     out[t,h] = convert(sum + residual[t,h]), sum = fl(sum + fl(weights[t,j] product(t,j)[h])) for j = 0 .. k-1
 * from +0 on, where product(t,j) is what the expert's rank has in row row_of[(s room + t) k + j]. That is what combine
 * computes on one GPU of all experts, to the bit.
 *
 * Few bytes go as records, many as plain bytes and flags behind them.
 *
 * Roles: all threads alike. CTA i of a rank sends what CTA i of the others waits for, so there is no barrier of the
 * grid. A token, or a piece of one, is the same CTA's on all ranks. */
#ifndef NK_PEER_EXPERTS_CUH
#define NK_PEER_EXPERTS_CUH

#include "combine.cuh"
#include "peer_records.cuh"
#include "peer_store.cuh"
#include "peer_wait.cuh"

/* Experts of `first` .. `first` + `count` - 1 are the rank's: side by side, the first ranks may have one more. */
typedef struct expert_range {
    int32_t first, count;
} expert_range;

__device__ inline expert_range experts_of(int32_t experts, int world, int rank)
{
    const int32_t each = experts / world, more = experts % world;
    return {rank * each + min(rank, more), each + (rank < more)};
}

/* -1: nobody's. */
__device__ inline int rank_of_expert(int32_t expert, int32_t experts, int world)
{
    const int32_t each = experts / world, more = experts % world, longer = more * (each + 1);
    if (nk_expert_of(expert, experts) < 0) return -1;
    return expert < longer ? expert / (each + 1) : more + (expert - longer) / each;
}

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

__device__ inline void copy_row(uint8_t *to, const uint8_t *from, int64_t bytes)
{
    for (int64_t b = 16 * threadIdx.x; b < bytes; b += 16 * blockDim.x)
        *(uint4 *)(to + b) = *(const uint4 *)(from + b);
}

/* The same as records: record i has bytes 8 i .. 8 i + 7 of the row. */
__device__ inline void send_row(uint4 *to, const uint8_t *from, int64_t bytes, uint32_t epoch)
{
    for (int64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
        send_record(to + i, ((const uint2 *)from)[i], epoch);
}

/* Selection j of own token t as `range` numbers it. */
__device__ inline int32_t local_expert(const nk_peer_dispatch_problem &p, int64_t t, int j, const expert_range &range)
{
    return t < p.n && j < p.k ? nk_expert_of(p.ids[t * p.k + j] - range.first, range.count) : -1;
}

/* Own token t to all ranks. `ranks`: which of them have an expert of it. */
template <bool RECORDS>
__device__ inline void send_token(const nk_peer_dispatch_problem &p, const peer_launch &l, int64_t plain, int64_t t,
                                  uint64_t ranks)
{
    const nk_peer_group &g = p.group;
    const int64_t at = g.rank * p.room + t;
    for (int r = 0; r < g.world; r++) {
        const int to = (g.rank + r) % g.world; /* not all to the same one at once */
        const expert_range range = experts_of(p.experts, g.world, to);
        const uint8_t *token = p.tokens + t * p.token_bytes, *scales = p.scales + t * p.scale_bytes;
        if (RECORDS && r) {
            uint4 *record = records_of(arena_of(g, to), l, 0, 0) + at * (p.sent_bytes / 8);
            uint4 *ids = record + (p.token_bytes + p.scale_bytes) / 8;
            for (int j = 2 * threadIdx.x; j < p.k; j += 2 * blockDim.x) {
                const int32_t first = local_expert(p, t, j, range), second = local_expert(p, t, j + 1, range);
                send_record(ids + j / 2, make_uint2((uint32_t)first, (uint32_t)second), l.epoch);
            }
            if (!(ranks >> to & 1)) continue;
            send_row(record, token, p.token_bytes, l.epoch);
            send_row(record + p.token_bytes / 8, scales, p.scale_bytes, l.epoch);
            continue;
        }
        const sent_token there = r ? token_in_arena(p, arena_of(g, to) + plain, at) : token_in_outputs(p, at);
        for (int j = threadIdx.x; j < p.k; j += blockDim.x)
            there.ids[j] = local_expert(p, t, j, range);
        if (!(ranks >> to & 1)) continue;
        copy_row(there.token, token, p.token_bytes);
        copy_row(there.scales, scales, p.scale_bytes);
    }
}

/* Token t of rank `from`, out of the arena. */
__device__ inline void take_token(const nk_peer_dispatch_problem &p, uint8_t *half, int from, int64_t t, bool come)
{
    const int64_t at = from * p.room + t;
    const sent_token here = token_in_arena(p, half, at), out = token_in_outputs(p, at);
    bool wanted = false;
    for (int j = 0; j < p.k && come; j++)
        wanted |= here.ids[j] >= 0;
    for (int j = threadIdx.x; j < p.k; j += blockDim.x)
        out.ids[j] = come ? here.ids[j] : -1;
    if (!wanted) return;
    copy_row(out.token, here.token, p.token_bytes);
    copy_row(out.scales, here.scales, p.scale_bytes);
}

__device__ inline bool receive_row(const nk_peer_group &g, peer_launch &l, int from, uint8_t *to, const uint4 *records,
                                   int64_t bytes)
{
    bool come = true;
    for (int64_t i = threadIdx.x; i < bytes / 8 && come; i += blockDim.x) {
        uint2 payload;
        come = receive_record(g, l, from, records + i, payload);
        ((uint2 *)to)[i] = payload;
    }
    return come;
}

/* The same out of records. Every thread waits for all ids, since they say whether there is more to wait for: so each
 * rank hears of every other one in every launch. False in threads for whose part `from` has not come. */
__device__ inline bool receive_token(const nk_peer_dispatch_problem &p, peer_launch &l, int from, int64_t t, bool come)
{
    const nk_peer_group &g = p.group;
    const int64_t at = from * p.room + t;
    const uint4 *record = records_of((uint8_t *)l.header, l, 0, 0) + at * (p.sent_bytes / 8);
    const uint4 *ids = record + (p.token_bytes + p.scale_bytes) / 8;
    const sent_token out = token_in_outputs(p, at);
    bool wanted = false;
    for (int j = 0; j < p.k; j += 2) {
        uint2 pair;
        come = come && receive_record(g, l, from, ids + j / 2, pair);
        if (!come) pair = make_uint2(0xFFFFFFFFu, 0xFFFFFFFFu);
        wanted |= (int32_t)pair.x >= 0 || (int32_t)pair.y >= 0;
        if (j / 2 % blockDim.x != threadIdx.x) continue;
        out.ids[j] = (int32_t)pair.x;
        if (j + 1 < p.k) out.ids[j + 1] = (int32_t)pair.y;
    }
    if (!wanted || !come) return come;
    come = receive_row(g, l, from, out.token, record, p.token_bytes);
    return come && receive_row(g, l, from, out.scales, record + p.token_bytes / 8, p.scale_bytes);
}

template <bool RECORDS> __device__ inline void peer_dispatch(const nk_peer_dispatch_problem &p)
{
    __shared__ unsigned long long ranks;
    const nk_peer_group &g = p.group;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    peer_launch l = begin_peer_launch(g);
    const int64_t plain = peer_plain_at(g.arena_bytes, l.epoch & 1);
    bool come = !l.failed;
    for (int64_t t = blockIdx.x; t < p.room && come; t += gridDim.x) {
        if (threadIdx.x == 0) ranks = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < p.k && t < p.n; j += blockDim.x) {
            const int to = rank_of_expert(p.ids[t * p.k + j], p.experts, g.world);
            if (to >= 0) atomicOr(&ranks, 1ull << to);
        }
        __syncthreads();
        const uint64_t wanting = ranks;
        __syncthreads(); /* all have read it before it is zero again */
        send_token<RECORDS>(p, l, plain, t, wanting);
    }
    if (!RECORDS) come = come && exchange_arrivals(g, l, 0);
    for (int64_t t = blockIdx.x; t < p.room; t += gridDim.x) {
        for (int r = come ? 1 : 0; r < g.world; r++) {
            const int from = (g.rank + r) % g.world;
            if (RECORDS)
                come = receive_token(p, l, from, t, come);
            else
                take_token(p, (uint8_t *)l.header + plain, from, t, come);
        }
    }
    end_peer_launch(l);
}

/* Columns of a token that a CTA has, of as many pieces of 8 as it has threads. */
typedef struct token_piece {
    int64_t t, h;
} token_piece;

__device__ inline token_piece piece_of(const nk_peer_combine_problem &p, int64_t unit)
{
    const int64_t ctas = (p.h + 8 * blockDim.x - 1) / (8 * blockDim.x);
    return {unit / ctas, (unit % ctas * blockDim.x + threadIdx.x) * 8};
}

/* Rows that a thread asks for at once. A record takes twice the registers of its payload. */
template <nk_dtype DTYPE, bool RECORDS> constexpr int peer_rows_at_once = RECORDS && DTYPE == NK_F32 ? 2 : 4;

/* Where products lie among records: behind one from each rank that says no more than that it is there. */
__device__ inline uint4 *product_records(const nk_peer_combine_problem &p, uint8_t *arena, const peer_launch &l)
{
    return records_of(arena, l, 0, 0) + p.group.world;
}

/* What this rank's experts have made of token t of rank `to`. */
template <nk_dtype DTYPE, bool RECORDS>
__device__ inline void send_products(const nk_peer_combine_problem &p, const peer_launch &l, int64_t plain, int to,
                                     int64_t t, int64_t h)
{
    using elements = row_elements<DTYPE, 8>;
    constexpr int ROWS = peer_rows_at_once<DTYPE, RECORDS>;
    const int32_t *row_of = p.row_of + (to * p.room + t) * p.k;
    const int64_t offset = (t * p.k * p.h + h) * elements::SIZE, row_bytes = p.h * elements::SIZE;
    uint8_t *arena = arena_of(p.group, to);
#pragma unroll 1
    for (int j0 = 0; j0 < p.k; j0 += ROWS) {
        elements pieces[ROWS];
        int32_t rows[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            rows[i] = j0 + i < p.k ? nk_row_among(row_of[j0 + i], p.rows) : -1;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (rows[i] >= 0)
                pieces[i].template load<16>(p.products + (rows[i] * p.h + h) * elements::SIZE);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t at = offset + (j0 + i) * row_bytes;
            if (rows[i] < 0) continue;
#pragma unroll
            for (int c = 0; c < elements::CHUNKS; c++) {
                const uint4 v = pieces[i].chunks[c];
                uint4 *record = product_records(p, arena, l) + at / 8 + 2 * c;
                if (RECORDS) {
                    send_record(record, make_uint2(v.x, v.y), l.epoch);
                    send_record(record + 1, make_uint2(v.z, v.w), l.epoch);
                } else {
                    ((uint4 *)(arena + plain + at))[c] = v;
                }
            }
        }
    }
}

/* Reads some rows' pieces out of records, all at once, until all have come. at: where they begin. owners: -1 where
 * there is none to wait for. False where one does not come. */
template <int ROWS, typename elements>
__device__ inline bool receive_pieces(const nk_peer_group &g, peer_launch &l, const uint8_t *const (&at)[ROWS],
                                      const int (&owners)[ROWS], elements (&pieces)[ROWS])
{
    for (uint32_t looks = 1;; looks++) {
        int missing = -1;
        uint4 v[ROWS][2 * elements::CHUNKS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int c = 0; c < 2 * elements::CHUNKS; c++)
                if (owners[i] >= 0) v[i][c] = ld_volatile_v4((const uint4 *)at[i] + c);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (owners[i] < 0) continue;
#pragma unroll
            for (int c = 0; c < elements::CHUNKS; c++) {
                const uint4 &a = v[i][2 * c], &b = v[i][2 * c + 1];
                if (a.y != l.epoch || a.w != l.epoch || b.y != l.epoch || b.w != l.epoch) missing = owners[i];
                pieces[i].chunks[c] = make_uint4(a.x, a.z, b.x, b.z);
            }
        }
        if (missing < 0) return true;
        if (gives_up(g, l, missing, looks)) return false;
    }
}

/* Adds what all experts have made of own token t, in the router's order. False where a rank has not come. */
template <nk_dtype DTYPE, bool RECORDS>
__device__ inline bool add_products(const nk_peer_combine_problem &p, peer_launch &l, int64_t plain, int64_t t,
                                    int64_t h, float sum[8])
{
    using elements = row_elements<DTYPE, 8>;
    constexpr int ROWS = peer_rows_at_once<DTYPE, RECORDS>;
    const nk_peer_group &g = p.group;
    uint8_t *arena = (uint8_t *)l.header;
    const int32_t *row_of = p.row_of + (g.rank * p.room + t) * p.k;
#pragma unroll 1
    for (int j0 = 0; j0 < p.k; j0 += ROWS) {
        elements pieces[ROWS];
        const uint8_t *at[ROWS];
        int owners[ROWS];
        float weights[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int j = min(j0 + i, (int)p.k - 1);
            const int64_t offset = ((t * p.k + j) * p.h + h) * elements::SIZE;
            const int owner = j0 + i < p.k ? rank_of_expert(p.ids[t * p.k + j], p.experts, g.world) : -1;
            const int32_t row = nk_row_among(row_of[j], p.rows);
            weights[i] = load_float(p.weights + (t * p.k + j) * p.weight_size, p.weight_dtype);
            owners[i] = owner == g.rank ? -1 : owner;
            at[i] = RECORDS ? (uint8_t *)(product_records(p, arena, l) + offset / 8) : arena + plain + offset;
            if (owner == g.rank) at[i] = row < 0 ? NULL : p.products + (row * p.h + h) * elements::SIZE;
            if (owner < 0) at[i] = NULL;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (at[i] && !(RECORDS && owners[i] >= 0)) pieces[i].template load<16>(at[i]);
        if (RECORDS && !receive_pieces(g, l, at, owners, pieces)) return false;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (!at[i]) continue;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = __fadd_rn(sum[e], __fmul_rn(weights[i], pieces[i][e]));
        }
    }
    return true;
}

/* A rank may have no product for another one. So that each hears of every other one in every launch, CTA 0 says that it
 * is there. */
__device__ inline void send_presence(const nk_peer_group &g, const peer_launch &l)
{
    const int to = threadIdx.x;
    if (blockIdx.x || to >= g.world || to == g.rank) return;
    send_record(records_of(arena_of(g, to), l, 0, 0) + g.rank, make_uint2(0, 0), l.epoch);
}

__device__ inline void receive_presence(const nk_peer_group &g, peer_launch &l)
{
    const int from = threadIdx.x;
    uint2 nothing;
    if (blockIdx.x || from >= g.world || from == g.rank) return;
    receive_record(g, l, from, records_of((uint8_t *)l.header, l, 0, 0) + from, nothing);
}

template <nk_dtype DTYPE, bool RECORDS> __device__ inline void peer_combine(const nk_peer_combine_problem &p)
{
    const nk_peer_group &g = p.group;
    const int64_t units = p.room * ((p.h + 8 * blockDim.x - 1) / (8 * blockDim.x));
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    peer_launch l = begin_peer_launch(g);
    const int64_t plain = peer_plain_at(g.arena_bytes, l.epoch & 1);
    bool come = !l.failed;
    if (RECORDS && come) send_presence(g, l);
    for (int64_t unit = blockIdx.x; unit < units && come; unit += gridDim.x) {
        const token_piece piece = piece_of(p, unit);
        for (int r = 1; r < g.world && piece.h < p.h; r++) {
            const int to = (g.rank + r) % g.world;
            send_products<DTYPE, RECORDS>(p, l, plain, to, piece.t, piece.h);
        }
    }
    if (!RECORDS) come = come && exchange_arrivals(g, l, 0);
    for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const token_piece piece = piece_of(p, unit);
        if (piece.t >= p.n || piece.h >= p.h) continue;
        float sum[8] = {};
        const int64_t at = piece.t * p.h + piece.h;
        come = come && add_products<DTYPE, RECORDS>(p, l, plain, piece.t, piece.h, sum);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if (p.residual)
                sum[e] = __fadd_rn(sum[e], load_float(p.residual + (at + e) * p.residual_size, p.residual_dtype));
            if (!come) sum[e] = __int_as_float(0x7FC00000);
        }
        store_eight(p.out + at * p.out_size, p.out_dtype, sum);
    }
    if (RECORDS && come) receive_presence(g, l);
    end_peer_launch(l);
}

#define PEER_COMBINE_KERNEL(name, DTYPE, RECORDS)                              \
    extern "C" __global__ void __launch_bounds__(PEER_THREADS, 1)              \
        name(const __grid_constant__ nk_peer_combine_problem p)                \
    {                                                                          \
        peer_combine<DTYPE, RECORDS>(p);                                       \
    }

#define PEER_DISPATCH_KERNEL(name, RECORDS)                                    \
    extern "C" __global__ void __launch_bounds__(PEER_THREADS, 1)              \
        name(const __grid_constant__ nk_peer_dispatch_problem p)               \
    {                                                                          \
        peer_dispatch<RECORDS>(p);                                             \
    }

#endif
