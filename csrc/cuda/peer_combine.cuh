/* What experts have made of tokens, back to these, and its sum: see peer_experts.cuh.
 *
 *     rows of products --> arena of the token's rank, [token][selection]
 *     flags
 *     sum over the selections, in their order --> out
 *
 * A unit is a piece of a token: of the other ranks' tokens of one number, and of the own one. */
#ifndef NK_PEER_COMBINE_CUH
#define NK_PEER_COMBINE_CUH

#include "combine.cuh"
#include "peer_experts.cuh"

/* Columns h .. h + 7 of token t, of as many pieces as a CTA has threads. */
typedef struct token_piece {
    int64_t t, h;
} token_piece;

__device__ inline token_piece piece_of(const peer_unit &unit)
{
    return {unit.t, ((int64_t)unit.part * blockDim.x + threadIdx.x) * 8};
}

/* Rows that a thread asks for at once. */
template <nk_dtype DTYPE> constexpr int peer_rows_at_once = DTYPE == NK_F32 ? 4 : 8;

/* A row of this rank's products that rank `to` shall have, of selection j of a token there. */
typedef struct sent_product {
    int32_t row, to, j;
} sent_product;

/* Columns h .. h + 7 of some of them. */
template <nk_dtype DTYPE>
__device__ inline void send_pieces(const nk_peer_combine_problem &p, int64_t plain, const token_piece &piece,
                                   const sent_product *products, int count)
{
    using elements = row_elements<DTYPE, 8>;
    constexpr int ROWS = peer_rows_at_once<DTYPE>;
#pragma unroll 1
    for (int i0 = 0; i0 < count; i0 += ROWS) {
        elements pieces[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t row = products[min(i0 + i, count - 1)].row;
            pieces[i].template load<16>(p.products + (row * p.h + piece.h) * elements::SIZE);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i0 + i >= count) continue;
            const sent_product one = products[i0 + i];
            const int64_t at = ((piece.t * p.k + one.j) * p.h + piece.h) * elements::SIZE;
            uint8_t *there = arena_of(p.group, one.to) + plain;
#pragma unroll
            for (int c = 0; c < elements::CHUNKS; c++)
                ((uint4 *)(there + at))[c] = pieces[i].chunks[c];
        }
    }
}

/* What this rank's experts have made of all other ranks' tokens of this number. Few of the selections are of these
 * experts, so the CTA looks for them first: each warp among those of one rank. */
template <nk_dtype DTYPE>
__device__ inline void send_products(const nk_peer_combine_problem &p, int64_t plain, const token_piece &piece)
{
    __shared__ sent_product found[PEER_THREADS];
    __shared__ int count;
    const nk_peer_group &g = p.group;
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int distance = 1; distance < g.world; distance += warps) {
        for (int j0 = 0; j0 < p.k; j0 += 32) {
            __syncthreads(); /* those found before have been sent */
            if (threadIdx.x == 0) count = 0;
            __syncthreads();
            const int j = j0 + lane;
            if (distance + warp < g.world && j < p.k) {
                const int to = rank_after(g, distance + warp);
                const int32_t row = nk_row_among(p.row_of[(to * p.room + piece.t) * p.k + j], p.rows);
                if (row >= 0) found[atomicAdd(&count, 1)] = {row, to, j};
            }
            __syncthreads();
            if (piece.h < p.h) send_pieces<DTYPE>(p, plain, piece, found, count);
        }
    }
}

/* Where a selection's product lies, with all its columns. */
typedef struct taken_product {
    const uint8_t *at; /* NULL: there is none */
    float weight;
} taken_product;

/* All selections of own token t, which all threads may read behind the next __syncthreads. */
template <nk_dtype DTYPE>
__device__ inline void find_products(const nk_peer_combine_problem &p, int64_t plain, int64_t t, taken_product *found)
{
    const nk_peer_group &g = p.group;
    const int j = blockDim.x - 1 - threadIdx.x; /* with few ranks other warps look for what is to be sent */
    if (t >= p.n || j >= p.k) return;
    const int64_t i = t * p.k + j, row_bytes = p.h * row_elements<DTYPE, 8>::SIZE;
    const int32_t row = nk_row_among(p.row_of[(g.rank * p.room + t) * p.k + j], p.rows);
    const int owner = rank_of_expert(p.ids[i], p.experts);
    taken_product product = {NULL, load_float(p.weights + i * p.weight_size, p.weight_dtype)};
    if (owner == g.rank && row >= 0) product.at = p.products + row * row_bytes;
    if (owner >= 0 && owner != g.rank) product.at = g.arena + plain + i * row_bytes;
    found[j] = product;
}

/* Adds columns of what all experts have made of a token, in the router's order. */
template <nk_dtype DTYPE>
__device__ inline void add_products(const taken_product *found, int32_t k, int64_t h, float sum[8])
{
    using elements = row_elements<DTYPE, 8>;
    constexpr int ROWS = peer_rows_at_once<DTYPE>;
#pragma unroll 1
    for (int j0 = 0; j0 < k; j0 += ROWS) {
        elements pieces[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const uint8_t *at = found[min(j0 + i, k - 1)].at;
            if (at) pieces[i].template load<16>(at + h * elements::SIZE);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (j0 + i >= k || !found[j0 + i].at) continue;
            const float weight = found[j0 + i].weight;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = __fadd_rn(sum[e], __fmul_rn(weight, pieces[i][e]));
        }
    }
}

template <nk_dtype DTYPE> __device__ inline void peer_combine(const nk_peer_combine_problem &p)
{
    __shared__ taken_product found[NK_MOST_PEER_SELECTIONS];
    const nk_peer_group &g = p.group;
    const peer_unit first = first_unit(p.units);
    peer_launch l = begin_peer_launch(g);
    const int64_t plain = peer_plain_at(g.arena_bytes, l.epoch & 1);
    bool come = !l.failed;
    find_products<DTYPE>(p, plain, first.t, found); /* read behind the exchange of arrivals */
    for (peer_unit unit = first; unit.t < p.room && come; unit = unit_after(unit, p.units))
        send_products<DTYPE>(p, plain, piece_of(unit));
    come = come && exchange_arrivals(g, l, 0);
    for (peer_unit unit = first; unit.t < p.n; unit = unit_after(unit, p.units)) {
        const token_piece piece = piece_of(unit);
        if (unit.t != first.t) { /* no thread reads those before any more */
            __syncthreads();
            find_products<DTYPE>(p, plain, unit.t, found);
            __syncthreads();
        }
        if (piece.h >= p.h) continue;
        float sum[8] = {};
        const int64_t at = piece.t * p.h + piece.h;
        if (come) add_products<DTYPE>(found, p.k, piece.h, sum);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if (p.residual)
                sum[e] = __fadd_rn(sum[e], load_float(p.residual + (at + e) * p.residual_size, p.residual_dtype));
            if (!come) sum[e] = __int_as_float(0x7FC00000);
        }
        store_eight(p.out + at * p.out_size, p.out_dtype, sum);
    }
    end_peer_launch(l);
}

#define PEER_COMBINE_KERNEL(name, DTYPE)                                       \
    extern "C" __global__ void __launch_bounds__(PEER_THREADS, 1)              \
        name(const __grid_constant__ nk_peer_combine_problem p)                \
    {                                                                          \
        peer_combine<DTYPE>(p);                                                \
    }

#endif
