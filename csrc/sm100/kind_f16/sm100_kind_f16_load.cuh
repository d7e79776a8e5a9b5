/* Fills stages: boxes of weights and tokens by tensor map, tokens by index four rows at a time, the weights' scale
 * factors by copies of each lane. */
#ifndef NK_SM100_KIND_F16_LOAD_CUH
#define NK_SM100_KIND_F16_LOAD_CUH

#include "sm100_kind_f16_parts.cuh"

/* A step's panels of 16-bit rows. */
__device__ inline void load_panels(uint32_t to, int rows, const cuda_tensor_map *map, int step, int row, int l,
                                   uint32_t full)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_BOXES; i++)
        cp_async_bulk_tensor_3d(to + i * rows * SM100_KIND_F16_SWIZZLE_BYTES, map,
                                {step * SM100_KIND_F16_TILE_K + i * SM100_KIND_F16_SWIZZLE_K, row, l}, full);
}

/* Of tokens by index a thread's four rows of each panel. */
__device__ inline void gather_panels(uint32_t to, int rows, const cuda_tensor_map *map, int step, int quad,
                                     const four_tokens &tokens, uint32_t full)
{
#pragma unroll
    for (int i = 0; i < SM100_KIND_F16_BOXES; i++)
        cp_async_bulk_tensor_2d_gather4(to + (i * rows + 4 * quad) * SM100_KIND_F16_SWIZZLE_BYTES, map,
                                        step * SM100_KIND_F16_TILE_K + i * SM100_KIND_F16_SWIZZLE_K, tokens.row, full);
}

/* The thread that leads loads boxes, and announces all bytes. Beside it lanes bring tokens by index, four each: their
 * bytes may come before they are announced, since a phase ends only behind that. What a box has outside the operand is
 * zero, and its bytes count in full. Of a pair each CTA loads its own lanes and its half of the columns. */
template <class C, typename P>
__device__ inline void load_boxes(halves_memory<C> &s, const code_maps &all, const P &p, const gemm_tiles &tiles,
                                  bool leads)
{
    constexpr uint32_t BYTES = sizeof s.stages[0].weights + sizeof s.stages[0].tokens;
    const int quad = (int)threadIdx.x % 32;
    const bool by_index = are_by_index<C>(tiles), gathers = by_index && quad < quads<C>();
    ring<C::STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const code_maps maps = maps_of(all, p, t);
        const auto batch_of = [&](int of) { return t.work.one_matrix[of] ? 0 : (int)t.l; };
        const four_tokens tokens = gathers ? tokens_of<C>(tiles, t, quad) : four_tokens{};
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance()) {
            auto &stage = s.stages[r.slot];
            const uint32_t full = shared_address(&s.full[r.slot]);
            wait_for<C>(&s.empty[r.slot], r.parity ^ 1);
            if (gathers)
                gather_panels(shared_address(stage.tokens), C::TOKENS, maps.of[SM100_GEMM_OPERAND_N], step, quad,
                              tokens, full);
            if (!leads) continue;
            mbarrier_arrive_expect_tx(full, BYTES);
#pragma unroll
            for (int matrix = 0; matrix < C::MATRICES; matrix++) {
                const int of = lanes_operand(matrix);
                const uint32_t to = shared_address(stage.weights[matrix]);
                if constexpr (C::DECODES)
                    cp_async_bulk_tensor_3d(to, maps.of[of],
                                            {step * SM100_KIND_F16_CODE_BYTES, (int)t.lane, batch_of(of)}, full);
                else
                    load_panels(to, SM100_GEMM_CTA_M, maps.of[of], step, (int)t.lane, batch_of(of), full);
            }
            if (!by_index)
                load_panels(shared_address(stage.tokens), C::TOKENS, maps.of[SM100_GEMM_OPERAND_N], step,
                            (int)t.column + tiles.half * C::TOKENS, batch_of(SM100_GEMM_OPERAND_N), full);
        }
    });
#pragma unroll 1
    for (int i = 0; i < C::STAGES; i++, r.advance()) /* the last commits must not find this CTA gone */
        mbarrier_wait_cluster_relaxed(shared_address(&s.empty[r.slot]), r.parity ^ 1);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Scale factors                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Rows of a matrix's blocked scale factors before its first one, in the same atom. */
__device__ inline int rows_before(const sm100_gemm_scheduler &work, int matrix)
{
    return matrix ? work.up_row_in_atom : 0;
}

/* Bytes that one copy takes: 16, of blocked ones, where four rows are neighbours; 4; or 1, which is no copy. */
__device__ inline int piece_of(const nk_operand &o, int before, int64_t batches)
{
    const bool blocked = o.sf_layout == NK_SF_BLOCKED;
    const uint64_t where = (uint64_t)(uintptr_t)o.sf | (uint64_t)(batches > 1 ? o.sf_batch_stride : 0) |
                           (uint64_t)(blocked ? 0 : o.sf_row_stride);
    return blocked && !before && where % 16 == 0 ? 16 : where % 4 == 0 ? 4 : 1;
}

/* An atom's row quads, a lane each: 128 rows from `row` on, four scale factors from `col` on of the `cols` that a row
 * has. Those beyond K are zero, those beyond all rows are anything: their rows are not there. */
__device__ inline void copy_atom_to(uint32_t to, const nk_operand &o, int before, int piece, int64_t l, int64_t row,
                                    int64_t rows, int64_t col, int64_t cols)
{
    const int lane = (int)threadIdx.x % 32;
    const bool is_there = row < rows && col < cols;
    const int valid = is_there ? (int)min(cols - col, (int64_t)NK_SF_ATOM_COLS) : 0;
    if (!is_there) row = col = 0;
    to += lane * 16;
    if (piece == 16) {
        cp_async_cg_zfill(to, sf_at(o, l, row + lane, col, cols), is_there ? 16 : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t *at = sf_at(o, l, min(row + lane + 32 * i, rows - 1) + before, col, cols);
        if (piece == 4)
            cp_async_ca_zfill<4>(to + i * 4, at, valid);
        else
            st_shared(to + i * 4, fetch_bytes(at, valid).x);
    }
}

/* One warp. */
template <class C, typename P>
__device__ inline void copy_factors(halves_memory<C> &s, const P &all, const gemm_tiles &tiles)
{
    ring<C::STAGES> r;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const auto &p = problem_of(all, t);
        const int64_t cols = p.k / NK_SF_VEC, batches = C::EXPERTS ? tiles.expert_count : p.l;
        int piece = 16;
        for (int matrix = 0; matrix < C::MATRICES; matrix++)
            piece = min(piece,
                        piece_of(operand_of(p, t.work, lanes_operand(matrix)), rows_before(t.work, matrix), batches));
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance()) {
            const uint32_t full = shared_address(&s.full[r.slot]);
            wait_for<C>(&s.empty[r.slot], r.parity ^ 1);
#pragma unroll
            for (int i = 0; i < C::MATRICES * SM100_KIND_F16_SF_ATOMS; i++) {
                const int matrix = i / SM100_KIND_F16_SF_ATOMS, atom = i % SM100_KIND_F16_SF_ATOMS;
                copy_atom_to(shared_address(s.stages[r.slot].sf[matrix][atom]),
                             operand_of(p, t.work, lanes_operand(matrix)), rows_before(t.work, matrix), piece, t.l,
                             t.lane, p.n, ((int64_t)step * SM100_KIND_F16_SF_ATOMS + atom) * NK_SF_ATOM_COLS, cols);
            }
            if (piece == 1)
                mbarrier_arrive(full);
            else
                cp_async_mbarrier_arrive_noinc(full);
        }
    });
}

#endif
