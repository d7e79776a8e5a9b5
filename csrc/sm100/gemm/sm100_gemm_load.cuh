/* The producers of sm100_gemm.cuh: one thread loads codes by tensor map, and scale factors by bulk copies of whole
 * atoms; four warps arrange the scale factors that cannot be copied so. */
#ifndef NK_SM100_GEMM_LOAD_CUH
#define NK_SM100_GEMM_LOAD_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm100_gemm_gather.cuh"

/* MMAs of a step: the last step may have fewer. */
__device__ inline int k_blocks_of_step(int64_t k, int step)
{
    const int64_t rest = nk_ceil_div(k, SM100_GEMM_MMA_K) - (int64_t)step * SM100_GEMM_K_BLOCKS;
    return rest < SM100_GEMM_K_BLOCKS ? (int)rest : SM100_GEMM_K_BLOCKS;
}

/* Tensor maps of the codes, by SM100_GEMM_OPERAND_.. */
typedef struct code_maps {
    const cuda_tensor_map *of[SM100_GEMM_OPERANDS];
} code_maps;

template <typename P> __device__ inline code_maps maps_of_tile(const code_maps &maps, const P &, const mma_tile &)
{
    return maps;
}

__device__ inline code_maps maps_of_tile(const code_maps &, const sm100_list_params &list, const mma_tile &t)
{
    return {{&list.group[t.group].map_m, &list.group[t.group].map_n}};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Where scale factors lie                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* An atom row: the atoms of the same 128 rows, one for each K block of a stage. How many of them a stage has of an
 * operand, and which entry of stage.sf is the first. */
template <class C> __device__ constexpr int atom_rows_of_operand(int operand)
{
    return operand == SM100_GEMM_OPERAND_N ? C::N_ATOM_ROWS : 1;
}

template <class C> __device__ constexpr int first_atom_row_of_operand(int operand)
{
    return operand == SM100_GEMM_OPERAND_N ? C::MATRICES : operand / SM100_GEMM_OPERAND_UP; /* matrix 1 is the ups */
}

/* 128 rows of a tile's operand: row 0 of them is row `first` of the matrix, and row `sf_row` of blocked scale factors,
 * which clamping may have made another one. Rows from `end` on do not exist. */
typedef struct sf_rows {
    const nk_operand &operand;
    int64_t l, first, end, sf_row;
} sf_rows;

/* Atom row `atom` of the tile's operand, clamped to the last one that memory holds: bulk copies must not leave the
 * buffer, whatever offsets say. Scale factors of clamped rows are wrong, and multiply rows that are not stored, unless
 * offsets are invalid. All experts' tokens are one batch. */
template <class C, typename P>
__device__ inline sf_rows sf_rows_of(const P &p, const mma_tile &t, int operand, int atom)
{
    const nk_operand &o = operand_of_mma(p, t.params, operand);
    if (operand == SM100_GEMM_OPERAND_N)
        return {o, C::EXPERTS ? 0 : t.l, t.n - t.row_in_atom + atom * SF_ATOM_ROWS, t.n_end,
                min(t.atom_row + atom, t.atom_rows - 1) * SF_ATOM_ROWS};
    const int64_t rows = rows_of_operand(p, t.params, operand),
                  before = operand == SM100_GEMM_OPERAND_UP ? t.params.up_row_in_atom : 0;
    return {o, t.l, t.m, rows, sf_atom_of_row(min(t.m, rows - 1)) * SF_ATOM_ROWS + before};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The producer warp                                                                                                */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where the atoms of f begin, from K block `block` on. K is a multiple of 64. */
__device__ inline const uint8_t *sf_block_atoms_at(const sf_rows &f, int64_t k, int64_t block)
{
    const int64_t atom = sf_atom_of_row(f.sf_row) * (k / SM100_GEMM_MMA_K) + block;
    return f.operand.sf + f.l * f.operand.sf_batch_stride + sf_bytes_of_atoms(atom);
}

/* A tile that ends inside an atom also gets its neighbour's scale factors, which nothing uses. */
__device__ inline void copy_sf_atoms(uint32_t to, const sf_rows &f, int64_t k, int step, uint32_t full)
{
    cp_async_bulk(to, sf_block_atoms_at(f, k, (int64_t)step * SM100_GEMM_K_BLOCKS),
                  sf_bytes_of_atoms(k_blocks_of_step(k, step)), full);
}

/* Each CTA of the cluster copies K_BLOCKS / CLUSTER atoms of an atom row of operand N, to all CTAs. */
template <class C>
__device__ inline void multicast_sf_atoms(uint32_t to, const sf_rows &f, int64_t k, int step, uint32_t full,
                                          const mma_tile_scheduler &scheduler)
{
    constexpr int EACH = SM100_GEMM_K_BLOCKS / C::CLUSTER;
    const int first = (scheduler.pair * C::CTA_GROUP + scheduler.rank_in_pair) * EACH,
              count = min(EACH, k_blocks_of_step(k, step) - first);
    if (count > 0)
        cp_async_bulk_multicast(to + sf_bytes_of_atoms(first),
                                sf_block_atoms_at(f, k, (int64_t)step * SM100_GEMM_K_BLOCKS + first),
                                sf_bytes_of_atoms(count), full, C::CLUSTER_MASK);
}

/* Each pair loads 1 / PAIRS of a CTA's rows of operand N, to the CTAs of the same rank in both pairs. */
template <class C>
__device__ inline void multicast_codes(const uint8_t *to, const cuda_tensor_map *map, int k, int64_t row, int l,
                                       uint32_t full, const mma_tile_scheduler &scheduler)
{
    const int first = scheduler.pair * (C::CTA_N / C::PAIRS);
    cp_async_bulk_tensor_3d_multicast(shared_address(to) + first * SM100_GEMM_CODE_BYTES, map, {k, (int)row + first, l},
                                      full, (uint16_t)((1 | 1 << C::CTA_GROUP) << scheduler.rank_in_pair));
}

/* Atom rows that bulk copies bring to a stage. */
template <class C> __device__ inline int bulk_copied_atom_rows(const sm100_gemm_params &params)
{
    int atom_rows = 0;
    for (int operand = 0; operand < C::OPERANDS; operand++)
        atom_rows += params.sf_by_bulk_copy[operand] ? atom_rows_of_operand<C>(operand) : 0;
    return atom_rows;
}

/* One thread. Each CTA loads its own rows of operand M, its share of operand N, and all of operand N's scale factors,
 * which both CTAs of a pair need. Its barrier counts all bytes that arrive in this CTA, also those that warp 4 gathers
 * and that other CTAs multicast. A box's bytes count in full: what lies outside the operand is zeros. */
template <class C, typename P>
__device__ inline void produce_stages(mxf4nvf4_smem<C> &s, const code_maps &all_maps, const P &launch,
                                      const mma_tile_scheduler &scheduler)
{
    constexpr uint32_t CODES = sizeof s.stages[0].operand_m + sizeof s.stages[0].operand_n;
    pipeline_state load;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const auto &p = problem_of_tile(launch, t);
        const code_maps maps = maps_of_tile(all_maps, launch, t);
        const sm100_gemm_params &params = t.params;
        const int atom_rows = bulk_copied_atom_rows<C>(params);
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES)) {
            auto &stage = s.stages[load.stage];
            const uint32_t full = shared_address(&s.full[load.stage]);
            wait_cta_group<C>(&s.empty[load.stage], load.parity ^ 1);
            mbarrier_arrive_expect_tx(full, CODES + sf_bytes_of_atoms(atom_rows * k_blocks_of_step(p.k, step)));
#pragma unroll
            for (int operand = 0; operand < C::OPERANDS; operand++) {
                const bool is_n = operand == SM100_GEMM_OPERAND_N;
                if (is_n && has_tokens_by_index<C>(scheduler)) continue;
                const uint8_t *to = is_n ? stage.operand_n : stage.operand_m[operand / SM100_GEMM_OPERAND_UP];
                const int64_t row = is_n ? t.n + scheduler.rank_in_pair * C::CTA_N : t.m;
                const int l = params.one_matrix[operand] ? 0 : (int)t.l;
                if (is_n && C::PAIRS > 1)
                    multicast_codes<C>(to, maps.of[operand], step * SM100_GEMM_CODE_BYTES, row, l, full, scheduler);
                else
                    cp_async_bulk_tensor_3d(shared_address(to), maps.of[operand],
                                            {step * SM100_GEMM_CODE_BYTES, (int)row, l}, full);
                if (!params.sf_by_bulk_copy[operand]) continue;
#pragma unroll
                for (int i = 0; i < atom_rows_of_operand<C>(operand); i++) {
                    const uint32_t sf = shared_address(stage.sf[first_atom_row_of_operand<C>(operand) + i]);
                    const sf_rows f = sf_rows_of<C>(p, t, operand, i);
                    if (is_n && C::PAIRS > 1)
                        multicast_sf_atoms<C>(sf, f, p.k, step, full, scheduler);
                    else
                        copy_sf_atoms(sf, f, p.k, step, full);
                }
            }
        }
    });
    drain_pipeline<C::STAGES>(s.empty, load);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The scale-factor warps                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Whether they have work; the same for all tiles of a launch. */
template <class C> __device__ inline bool arranges_sf(const sm100_gemm_params &params)
{
    bool copied = true;
    for (int operand = 0; operand < C::OPERANDS; operand++)
        copied = copied && params.sf_by_bulk_copy[operand];
    return !copied;
}

/* The row of the operand's scale factors (the token, if by index) for row `row` of `f`; -1 if there is none. */
template <class C>
__device__ inline int64_t sf_row_at(const mma_tile_scheduler &scheduler, const sf_rows &f, int operand, int row)
{
    const int64_t index = f.first + row;
    if (index >= f.end) return -1;
    if (operand == SM100_GEMM_OPERAND_N && has_tokens_by_index<C>(scheduler)) return token_of_row(scheduler, index);
    return f.operand.sf_layout == NK_SF_BLOCKED ? f.sf_row + row : index;
}

/* Four scale factors of a row, from a block of 64 of K on. Those beyond K are zero, as their codes are: the padding of
 * blocked ones may be NaN. */
__device__ inline uint32_t load_four_sf(const sf_rows &f, int64_t row, int64_t block, int64_t k)
{
    const int64_t cols = k / NK_SF_VEC, col = block * SF_ATOM_COLS, valid = cols - col;
    if (row < 0 || valid <= 0) return 0;
    const uint8_t *at = sf_at(f.operand, f.l, row, col, cols);
    if (valid >= 4 && is_aligned(at, 4)) return *(const uint32_t *)at;
    return fetch_bytes(at, valid < 4 ? valid : 4).x;
}

/* 128 threads, one for each row of an atom: they load the scale factors of operands without bulk copies and store them
 * as atoms. The first warp also brings the codes of tokens by index; their bytes may arrive before warp 8 expects them,
 * since the phase cannot complete before warp 8 and this warp have arrived. */
template <class C, typename P>
__device__ inline void arrange_sf(mxf4nvf4_smem<C> &s, const code_maps &maps, const P &launch,
                                  const mma_tile_scheduler &scheduler)
{
    const int row = (int)threadIdx.x - 32 * SM100_GEMM_EPILOGUE_WARPS;
    pipeline_state load;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const auto &p = problem_of_tile(launch, t);
        const sm100_gemm_params &params = t.params;
        int64_t sf_row[C::ATOM_ROWS];
#pragma unroll
        for (int operand = 0; operand < C::OPERANDS; operand++)
#pragma unroll
            for (int i = 0; i < atom_rows_of_operand<C>(operand); i++)
                sf_row[first_atom_row_of_operand<C>(operand) + i] =
                    params.sf_by_bulk_copy[operand]
                        ? -1
                        : sf_row_at<C>(scheduler, sf_rows_of<C>(p, t, operand, i), operand, row);
        const bool gathers = has_tokens_by_index<C>(scheduler) && row < gather4_copies<C>();
        const gathered_tokens tokens = gathers ? tokens_to_gather<C>(scheduler, t, row) : gathered_tokens{};
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES)) {
            uint32_t words[C::ATOM_ROWS][SM100_GEMM_K_BLOCKS];
#pragma unroll
            for (int operand = 0; operand < C::OPERANDS; operand++) {
                const int first = first_atom_row_of_operand<C>(operand);
                if (params.sf_by_bulk_copy[operand]) continue;
#pragma unroll
                for (int i = 0; i < atom_rows_of_operand<C>(operand) * SM100_GEMM_K_BLOCKS; i++)
                    words[first + i / SM100_GEMM_K_BLOCKS][i % SM100_GEMM_K_BLOCKS] = load_four_sf(
                        sf_rows_of<C>(p, t, operand, i / SM100_GEMM_K_BLOCKS), sf_row[first + i / SM100_GEMM_K_BLOCKS],
                        (int64_t)step * SM100_GEMM_K_BLOCKS + i % SM100_GEMM_K_BLOCKS, p.k);
            }
            wait_cta_group<C>(&s.empty[load.stage], load.parity ^ 1);
            if (gathers)
                gather_codes(s.stages[load.stage].operand_n, maps.of[SM100_GEMM_OPERAND_N], step, row, tokens,
                             &s.full[load.stage]);
#pragma unroll
            for (int operand = 0; operand < C::OPERANDS; operand++) {
                const int first = first_atom_row_of_operand<C>(operand);
                const uint32_t to = shared_address(s.stages[load.stage].sf[first]) +
                                    sf_offset_in_atom(row % SF_QUARTER_ROWS, 0) +
                                    sf_offset_of_quarter(row / SF_QUARTER_ROWS);
                if (params.sf_by_bulk_copy[operand]) continue;
#pragma unroll
                for (int i = 0; i < atom_rows_of_operand<C>(operand) * SM100_GEMM_K_BLOCKS; i++)
                    st_shared(to + sf_bytes_of_atoms(i),
                              words[first + i / SM100_GEMM_K_BLOCKS][i % SM100_GEMM_K_BLOCKS]);
            }
            fence_proxy_async();
            __syncwarp();
            mbarrier_arrive_if(threadIdx.x % 32 == 0, shared_address(&s.full[load.stage]));
        }
    });
}

#endif
