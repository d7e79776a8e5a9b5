/* The producers of sm100_kind_f16.cuh: boxes of weights and tokens by tensor map, tokens by index four rows at a time,
 * the weights' scale factors by cp.async. */
#ifndef NK_SM100_KIND_F16_LOAD_CUH
#define NK_SM100_KIND_F16_LOAD_CUH

#include "sm100_kind_f16_traits.cuh"

/* A step's boxes of 16-bit rows. */
__device__ inline void load_boxes(uint32_t to, int rows, const cuda_tensor_map *map, int step, int row, int l,
                                  uint32_t full)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_BOXES; i++)
        cp_async_bulk_tensor_3d(to + i * rows * SM100_KIND_F16_SWIZZLE_BYTES, map,
                                {step * SM100_KIND_F16_TILE_K + i * SM100_KIND_F16_SWIZZLE_K, row, l}, full);
}

/* Likewise four tokens by index of each box. */
__device__ inline void gather_boxes(uint32_t to, int rows, const cuda_tensor_map *map, int step, int copy,
                                    const gathered_tokens &tokens, uint32_t full)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_BOXES; i++)
        cp_async_bulk_tensor_2d_gather4(to + (i * rows + 4 * copy) * SM100_KIND_F16_SWIZZLE_BYTES, map,
                                        step * SM100_KIND_F16_TILE_K + i * SM100_KIND_F16_SWIZZLE_K, tokens.token,
                                        full);
}

/* The producer warp: its elected thread loads boxes and expects all bytes; with tokens by index all its threads gather
 * these. Gathered bytes may come before they are expected, since the phase cannot complete until then. A box has zeros
 * where it lies outside the operand, and its bytes count in full. A CTA of a pair loads its own weights and its half of
 * the tokens. */
template <class C, typename P>
__device__ inline void produce_16bit_stages(kind_f16_smem<C> &s, const code_maps &all_maps, const P &p,
                                            const mma_tile_scheduler &scheduler, bool is_elected)
{
    constexpr uint32_t BYTES = sizeof s.stages[0].weights + sizeof s.stages[0].tokens;
    const int copy = (int)threadIdx.x % 32;
    const bool by_index = has_tokens_by_index<C>(scheduler), gathers = by_index && copy < gather4_copies<C>();
    pipeline_state load;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const code_maps maps = maps_of_tile(all_maps, p, t);
        const auto batch_of = [&](int operand) { return t.params.one_matrix[operand] ? 0 : (int)t.l; };
        const gathered_tokens tokens = gathers ? tokens_to_gather<C>(scheduler, t, copy) : gathered_tokens{};
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES)) {
            auto &stage = s.stages[load.stage];
            const uint32_t full = shared_address(&s.full[load.stage]);
            wait_cta_group<C>(&s.empty[load.stage], load.parity ^ 1);
            if (gathers)
                gather_boxes(shared_address(stage.tokens), C::CTA_N, maps.of[SM100_GEMM_OPERAND_N], step, copy, tokens,
                             full);
            if (!is_elected) continue;
            mbarrier_arrive_expect_tx(full, BYTES);
#pragma unroll
            for (int matrix = 0; matrix < C::MATRICES; matrix++) {
                const int operand = weight_operand(matrix);
                const uint32_t to = shared_address(stage.weights[matrix]);
                if constexpr (C::DECODES)
                    cp_async_bulk_tensor_3d(to, maps.of[operand],
                                            {step * SM100_KIND_F16_CODE_BYTES, (int)t.m, batch_of(operand)}, full);
                else
                    load_boxes(to, SM100_GEMM_CTA_M, maps.of[operand], step, (int)t.m, batch_of(operand), full);
            }
            if (!by_index)
                load_boxes(shared_address(stage.tokens), C::CTA_N, maps.of[SM100_GEMM_OPERAND_N], step,
                           (int)t.n + scheduler.rank_in_pair * C::CTA_N, batch_of(SM100_GEMM_OPERAND_N), full);
        }
    });
    drain_pipeline<C::STAGES>(s.empty, load);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The scale-factor warp                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where in an atom of blocked scale factors a matrix begins. */
__device__ inline int first_row_in_atom(const sm100_gemm_params &params, int matrix)
{
    return matrix ? params.up_row_in_atom : 0;
}

/* Bytes of one copy: 16 if four rows lie side by side, as blocked ones do; 4; or 1, which stands for a load and a store
 * instead. */
__device__ inline int sf_copy_bytes(const nk_operand &o, int row_in_atom, int64_t batches)
{
    const bool blocked = o.sf_layout == NK_SF_BLOCKED;
    const uint64_t where = (uint64_t)(uintptr_t)o.sf | (uint64_t)(batches > 1 ? o.sf_batch_stride : 0) |
                           (uint64_t)(blocked ? 0 : o.sf_row_stride);
    return blocked && !row_in_atom && where % 16 == 0 ? 16 : where % 4 == 0 ? 4 : 1;
}

/* One atom by the threads of a warp, four rows each: rows `row` .. + 127, scale factors `col` .. + 3 of the `cols` that
 * a row has. Those beyond K become zero, those beyond the last row any bytes. */
__device__ inline void copy_sf_atom(uint32_t to, const nk_operand &o, int row_in_atom, int bytes, int64_t l,
                                    int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const int lane = (int)threadIdx.x % 32;
    const bool exists = row < rows && col < cols;
    const int valid = exists ? (int)min(cols - col, (int64_t)SF_ATOM_COLS) : 0;
    if (!exists) row = col = 0;
    to += sf_offset_in_atom(lane, 0);
    if (bytes == SF_QUAD_BYTES) {
        cp_async_cg_zfill(to, sf_at(o, l, row + lane, col, cols), exists ? SF_QUAD_BYTES : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t *at = sf_at(o, l, min(row + lane + SF_QUARTER_ROWS * i, rows - 1) + row_in_atom, col, cols);
        if (bytes == 4)
            cp_async_ca_zfill<4>(to + sf_offset_of_quarter(i), at, valid);
        else
            st_shared(to + sf_offset_of_quarter(i), fetch_bytes(at, valid).x);
    }
}

/* One warp. */
template <class C, typename P>
__device__ inline void copy_weight_sf(kind_f16_smem<C> &s, const P &launch, const mma_tile_scheduler &scheduler)
{
    pipeline_state load;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const auto &p = problem_of_tile(launch, t);
        const int64_t cols = p.k / NK_SF_VEC, batches = C::EXPERTS ? scheduler.expert_count : p.l;
        int bytes = 16;
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            bytes = min(bytes, sf_copy_bytes(operand_of_mma(p, t.params, weight_operand(matrix)),
                                             first_row_in_atom(t.params, matrix), batches));
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, load.advance(C::STAGES)) {
            const uint32_t full = shared_address(&s.full[load.stage]);
            wait_cta_group<C>(&s.empty[load.stage], load.parity ^ 1);
#pragma unroll
            for (int i = 0; i < C::MATRICES * SM100_KIND_F16_SF_ATOMS; i++) {
                const int matrix = i / SM100_KIND_F16_SF_ATOMS, atom = i % SM100_KIND_F16_SF_ATOMS;
                copy_sf_atom(shared_address(s.stages[load.stage].sf[matrix][atom]),
                             operand_of_mma(p, t.params, weight_operand(matrix)), first_row_in_atom(t.params, matrix),
                             bytes, t.l, t.m, p.n, ((int64_t)step * SM100_KIND_F16_SF_ATOMS + atom) * SF_ATOM_COLS,
                             cols);
            }
            if (bytes == 1)
                mbarrier_arrive(full);
            else
                cp_async_mbarrier_arrive_noinc(full);
        }
    });
}

#endif
