/* Fills stages: boxes of codes by tensor map, scale factors by bulk copies of whole atoms or by lanes. */
#ifndef NK_SM100_GEMM_LOAD_CUH
#define NK_SM100_GEMM_LOAD_CUH

#include "sm100_gemm_rows.cuh"

/* Blocks of K in a step. */
__device__ inline int blocks_of(int64_t k, int step)
{
    const int64_t rest = nk_ceil_div(k, SM100_GEMM_MMA_K) - (int64_t)step * SM100_GEMM_K_BLOCKS;
    return rest < SM100_GEMM_K_BLOCKS ? (int)rest : SM100_GEMM_K_BLOCKS;
}

/* A row of atoms, of which K is whole blocks, from a block on. */
__device__ inline const uint8_t *atoms_at(const tile_factors &f, int64_t k, int64_t block)
{
    const int64_t atom = f.sf_row / NK_SF_ATOM_ROWS * (k / SM100_GEMM_MMA_K) + block;
    return f.of.sf + f.l * f.of.sf_batch_stride + atom * NK_SF_ATOM_BYTES;
}

/* A step's atoms: with those of neighbours, too, where a tile ends inside of them. */
__device__ inline void copy_atoms(uint32_t to, const tile_factors &f, int64_t k, int step, uint32_t full)
{
    cp_async_bulk(to, atoms_at(f, k, (int64_t)step * SM100_GEMM_K_BLOCKS), blocks_of(k, step) * NK_SF_ATOM_BYTES, full);
}

/* Of shared columns each CTA copies some of them, for all. */
template <class C>
__device__ inline void share_atoms(uint32_t to, const tile_factors &f, int64_t k, int step, uint32_t full,
                                   const gemm_tiles &tiles)
{
    constexpr int EACH = SM100_GEMM_K_BLOCKS / C::CLUSTER;
    const int first = (tiles.pair * C::CTAS + tiles.half) * EACH, count = min(EACH, blocks_of(k, step) - first);
    if (count > 0)
        cp_async_bulk_multicast(to + first * NK_SF_ATOM_BYTES,
                                atoms_at(f, k, (int64_t)step * SM100_GEMM_K_BLOCKS + first), count * NK_SF_ATOM_BYTES,
                                full, C::EVERYONE);
}

/* The codes of shared columns: a part of what this half of each pair has, for these CTAs. */
template <class C>
__device__ inline void share_codes(const uint8_t *to, const cuda_tensor_map *map, int k, int64_t row, int l,
                                   uint32_t full, const gemm_tiles &tiles)
{
    const int first = tiles.pair * (C::COLUMNS / C::CTAS / C::PAIRS);
    cp_async_bulk_tensor_3d_multicast(shared_address(to) + first * SM100_GEMM_CODE_BYTES, map, {k, (int)row + first, l},
                                      full, (uint16_t)((1 | 1 << C::CTAS) << tiles.half));
}

/* Tensor maps of the codes, by SM100_GEMM_OF_... */
typedef struct code_maps {
    const cuda_tensor_map *of[SM100_GEMM_OPERANDS];
} code_maps;

/* Those of a tile. */
template <typename P> __device__ inline code_maps maps_of(const code_maps &maps, const P &, const gemm_tile &)
{
    return maps;
}

__device__ inline code_maps maps_of(const code_maps &, const sm100_list_params &list, const gemm_tile &t)
{
    return {{&list.group[t.group].map_m, &list.group[t.group].map_n}};
}

/* Of a step, the operands whose factors are copied. */
template <class C> __device__ inline int copied_atoms(const sm100_gemm_scheduler &work)
{
    int atoms = 0;
    for (int of = 0; of < C::OPERANDS; of++)
        atoms += work.sf_by_bulk_copy[of] ? atoms_of<C>(of) : 0;
    return atoms;
}

/* One thread. What a box has outside the operand is zero, and its bytes count in full. Of a pair each CTA loads its own
 * lanes, its half of the columns, and all of the columns' scale factors, which both need. Where pairs share columns
 * each CTA loads a part of these, and its barrier counts the bytes of what others load for it, too. */
template <class C, typename P>
__device__ inline void produce(memory<C> &s, const code_maps &maps, const P &all, const gemm_tiles &tiles)
{
    constexpr uint32_t CODES = sizeof s.stages[0].lanes + sizeof s.stages[0].columns;
    ring<C::STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const auto &p = problem_of(all, t);
        const code_maps of_tile = maps_of(maps, all, t);
        const sm100_gemm_scheduler &work = t.work;
        const int copied = copied_atoms<C>(work);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance()) {
            auto &stage = s.stages[r.slot];
            const uint32_t full = shared_address(&s.full[r.slot]);
            wait_for<C>(&s.empty[r.slot], r.parity ^ 1);
            mbarrier_arrive_expect_tx(full, CODES + copied * blocks_of(p.k, step) * NK_SF_ATOM_BYTES);
#pragma unroll
            for (int of = 0; of < C::OPERANDS; of++) {
                const bool columns = of == SM100_GEMM_OPERAND_N;
                if (columns && are_by_index<C>(tiles)) continue;
                const uint8_t *to = columns ? stage.columns : stage.lanes[of / SM100_GEMM_OPERAND_UP];
                const int64_t row = columns ? t.column + tiles.half * (C::COLUMNS / C::CTAS) : t.lane;
                const int l = work.one_matrix[of] ? 0 : (int)t.l;
                if (columns && C::PAIRS > 1)
                    share_codes<C>(to, of_tile.of[of], step * SM100_GEMM_CODE_BYTES, row, l, full, tiles);
                else
                    cp_async_bulk_tensor_3d(shared_address(to), of_tile.of[of],
                                            {step * SM100_GEMM_CODE_BYTES, (int)row, l}, full);
                if (!work.sf_by_bulk_copy[of]) continue;
#pragma unroll
                for (int i = 0; i < atoms_of<C>(of); i++) {
                    const uint32_t sf = shared_address(stage.sf[first_atom_of<C>(of) + i]);
                    const tile_factors f = factors_of<C>(p, t, of, i);
                    if (columns && C::PAIRS > 1)
                        share_atoms<C>(sf, f, p.k, step, full, tiles);
                    else
                        copy_atoms(sf, f, p.k, step, full);
                }
            }
        }
    });
#pragma unroll 1
    for (int i = 0; i < C::STAGES; i++, r.advance()) /* the last commits must not find this CTA gone */
        mbarrier_wait_cluster_relaxed(shared_address(&s.empty[r.slot]), r.parity ^ 1);
}

/* Row `row` of a row of atoms, by its number in the operand's scale factors, or -1 where it is not there. */
template <class C>
__device__ inline int64_t factor_row_of(const gemm_tiles &tiles, const tile_factors &f, int of, int row)
{
    const int64_t index = f.first + row;
    if (index >= f.end) return -1;
    if (of == SM100_GEMM_OPERAND_N && are_by_index<C>(tiles)) return token_of(tiles, index);
    return f.of.sf_layout == NK_SF_BLOCKED ? f.sf_row + row : index;
}

/* Four scale factors of a row as a word, from a block of K on. Those beyond K are zero, as their codes are: the padding
 * of blocked ones may be NaN. */
__device__ inline uint32_t four_factors(const tile_factors &f, int64_t row, int64_t block, int64_t k)
{
    const int64_t cols = k / NK_SF_VEC, col = block * NK_SF_ATOM_COLS, valid = cols - col;
    if (row < 0 || valid <= 0) return 0;
    const uint8_t *at = sf_at(f.of, f.l, row, col, cols);
    if (valid >= 4 && is_aligned(at, 4)) return *(const uint32_t *)at;
    return fetch_bytes(at, valid < 4 ? valid : 4).x;
}

/* The warps of scale factors: a thread has a row of each row of atoms of the operands whose factors are not copied. The
 * first of these warps brings the codes of tokens that come by index. */
template <class C, typename P>
__device__ inline void arrange_factors(memory<C> &s, const code_maps &maps, const P &all, const gemm_tiles &tiles)
{
    const int row = (int)threadIdx.x - 32 * SM100_GEMM_EPILOGUE_WARPS;
    ring<C::STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const auto &p = problem_of(all, t);
        const sm100_gemm_scheduler &work = t.work;
        int64_t factor_row[C::ATOMS];
#pragma unroll
        for (int of = 0; of < C::OPERANDS; of++)
#pragma unroll
            for (int i = 0; i < atoms_of<C>(of); i++)
                factor_row[first_atom_of<C>(of) + i] =
                    work.sf_by_bulk_copy[of] ? -1 : factor_row_of<C>(tiles, factors_of<C>(p, t, of, i), of, row);
        const bool gathers = are_by_index<C>(tiles) && row < quads<C>();
        const four_tokens tokens = gathers ? tokens_of<C>(tiles, t, row) : four_tokens{};
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance()) {
            uint32_t words[C::ATOMS][SM100_GEMM_K_BLOCKS];
#pragma unroll
            for (int of = 0; of < C::OPERANDS; of++) {
                if (work.sf_by_bulk_copy[of]) continue;
#pragma unroll
                for (int i = 0; i < atoms_of<C>(of) * SM100_GEMM_K_BLOCKS; i++)
                    words[first_atom_of<C>(of) + i / SM100_GEMM_K_BLOCKS][i % SM100_GEMM_K_BLOCKS] =
                        four_factors(factors_of<C>(p, t, of, i / SM100_GEMM_K_BLOCKS),
                                     factor_row[first_atom_of<C>(of) + i / SM100_GEMM_K_BLOCKS],
                                     (int64_t)step * SM100_GEMM_K_BLOCKS + i % SM100_GEMM_K_BLOCKS, p.k);
            }
            wait_for<C>(&s.empty[r.slot], r.parity ^ 1);
            if (gathers)
                gather_codes(s.stages[r.slot].columns, maps.of[SM100_GEMM_OPERAND_N], step, row, tokens,
                             &s.full[r.slot]);
#pragma unroll
            for (int of = 0; of < C::OPERANDS; of++) {
                const int first = first_atom_of<C>(of);
                const uint32_t to = shared_address(s.stages[r.slot].sf[first]) + row % 32 * 16 + row / 32 * 4;
                if (work.sf_by_bulk_copy[of]) continue;
#pragma unroll
                for (int i = 0; i < atoms_of<C>(of) * SM100_GEMM_K_BLOCKS; i++)
                    st_shared(to + i * NK_SF_ATOM_BYTES,
                              words[first + i / SM100_GEMM_K_BLOCKS][i % SM100_GEMM_K_BLOCKS]);
            }
            fence_proxy_async();
            __syncwarp();
            mbarrier_arrive_if(threadIdx.x % 32 == 0, shared_address(&s.full[r.slot]));
        }
    });
}

#endif
