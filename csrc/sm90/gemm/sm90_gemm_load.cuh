/* The producer warps of sm90_gemm.cuh. A thread loads codes, tokens and whole atoms or boxes of scale factors by
 * TMA; a warp or two beside it copy other scale factors. They compete for issue slots with the consumers, so what is
 * the same for all stages of a tile is computed once. */
#ifndef NK_SM90_GEMM_LOAD_CUH
#define NK_SM90_GEMM_LOAD_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm90_gemm_tile.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The producer thread                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The blocked scale factors of a tile's first weight rows, or those `atoms_below` further down, but not below the last
 * row's. A row of atoms has `atoms_along_k`. */
template <typename P>
__device__ inline const uint8_t *sf_atoms_at(const P &p, bool second, const tile_coord &tile, int atoms_along_k,
                                             int atoms_below)
{
    const nk_operand &b = weights_of(p, second);
    const int64_t atom = min(sf_atom_of_row(tile.n) + atoms_below, sf_atom_of_row((int)(p.n - 1)));
    return b.sf + tile.l * b.sf_batch_stride + sf_bytes_of_atoms(atom * atoms_along_k);
}

template <class C> struct tma_producer {
    typedef typename sm90_gemm_memory<C>::stage stage;
    static constexpr int STAGE_ATOMS = sf_atoms_of_k(SM90_GEMM_STEP) * C::STEPS; /* side by side in a stage */
    static constexpr uint32_t STAGE_SF = C::STEPS * SM90_GEMM_SF_BYTES;          /* and their bytes */
    static constexpr int MATRICES = C::DUAL ? 2 : 1;
    static constexpr uint32_t TOKEN_BYTES = C::STEPS * 2 * SM90_GEMM_STEP; /* of a token in a stage */
    const smem_addresses<C> at;
    sm90_pipeline_state r;
    bool waited;

    __device__ explicit tma_producer(const sm90_gemm_memory<C> &s) : at(s), r{0, 0}, waited(false) {}

    /* All stages of a tile. The early ones of the first tile get their weights before the prologue kernel has ended. */
    template <typename P>
    __device__ void load_tile(const weight_maps &weights, const cuda_tensor_map &tokens, const P &p,
                              const sm90_gemm_params &params, const tile_coord &tile, k_range k, int tile_m)
    {
        const uint32_t code_bytes = (uint32_t)sizeof(stage::codes), token_bytes = tile_m * TOKEN_BYTES;
        const sf_source source = sf_source_of<C>(p, params);
        const int matrix = C::LIST || params.one_matrix ? 0 : tile.l;
        const int atoms = (int)sf_atoms_of_k(p.k), last_k_tile = (atoms - 1) / STAGE_ATOMS;
        const uint32_t last_sf_bytes = sf_bytes_of_atoms(atoms - last_k_tile * STAGE_ATOMS);
        const uint8_t *sf[C::SF_ATOMS_N]; /* of two matrices, gates come first; unused if they are no whole atoms */
#pragma unroll
        for (int i = 0; i < C::SF_ATOMS_N; i++) {
            constexpr int ATOMS_OF_MATRIX = C::SF_ATOMS_N == 1 ? 1 : C::SF_ATOMS_N / MATRICES;
            sf[i] = sf_atoms_at(p, i >= ATOMS_OF_MATRIX, tile, atoms, i % ATOMS_OF_MATRIX);
        }
        auto load_weights = [&](int stage_index, int k_tile) {
            const uint32_t full = at.full(stage_index), to = at.stage_at(stage_index);
            const uint32_t codes_full = C::NATURAL_K ? at.codes_full(stage_index) : full;
            const uint32_t sf_bytes = source != SF_ATOMS ? 0 : k_tile == last_k_tile ? last_sf_bytes : STAGE_SF;
            const uint32_t box_bytes = source == SF_BOXES ? C::TILE_N * SM90_GEMM_SF_BOX_BYTES : 0;
            if (C::NATURAL_K) mbarrier_arrive_expect_tx(codes_full, code_bytes);
            mbarrier_arrive_expect_tx(full, (C::NATURAL_K ? 0 : code_bytes) + token_bytes + C::SF_ATOMS_N * sf_bytes +
                                                box_bytes);
#pragma unroll
            for (int step = 0; step < C::STEPS; step++) {
                const int from[3] = {(k_tile * C::STEPS + step) * SM90_GEMM_CODE_BYTES, tile.n, matrix};
                const uint32_t codes = to + step * (uint32_t)sizeof(stage::codes[0]);
                cp_async_bulk_tensor_3d(codes, &weights.first, from, codes_full);
                if (C::DUAL)
                    cp_async_bulk_tensor_3d(codes + C::FEATURES * SM90_GEMM_CODE_BYTES, &weights.second, from, full);
            }
            if (sf_bytes) {
#pragma unroll
                for (int i = 0; i < C::SF_ATOMS_N; i++)
                    cp_async_bulk(to + offsetof(stage, sf) + i * STAGE_SF, sf[i] + (int64_t)k_tile * STAGE_SF, sf_bytes,
                                  full);
            }
            if constexpr (C::HAS_SF_BOXES) {
                const int from[3] = {k_tile * C::STEPS / 2 * SM90_GEMM_SF_BOX_BYTES, tile.n, matrix};
#pragma unroll
                for (int i = 0; i < MATRICES && box_bytes; i++)
                    cp_async_bulk_tensor_3d(to + offsetof(stage, sf) + i * C::FEATURES * SM90_GEMM_SF_BOX_BYTES,
                                            &weights.sf[i], from, full);
            }
        };
        int early = 0;
        if (!waited) {
            early = min(C::EARLY_STAGES, k.end - k.begin);
#pragma unroll 1
            for (int i = 0; i < early; i++)
                load_weights(i, k.begin + i);
            griddepcontrol_wait();
            waited = true;
        }
#pragma unroll 1
        for (int i = 0; i < k.end - k.begin; i++) {
            const int k_tile = k.begin + i;
            if (i >= early) {
                mbarrier_wait(at.empty(r.stage), r.parity ^ 1);
                load_weights(r.stage, k_tile);
            }
            const int from[4] = {0, tile.m, k_tile * C::STEPS * 2, batch_of<C>(tile)};
            cp_async_bulk_tensor_4d(at.stage_at(r.stage) + offsetof(stage, tokens), &tokens, from, at.full(r.stage));
            advance_pipeline<C::STAGES>(r, 1);
        }
    }
};

template <class C, typename P>
__device__ inline void load_tiles(const sm90_gemm_memory<C> &s, const weight_maps &weights,
                                  const cuda_tensor_map *tokens, const P &p, const gemm_tile_scheduler &scheduler,
                                  k_range k)
{
    tma_producer<C> producer(s);
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        const int m_steps = C::EXPERTS ? m_steps_of<C>(tile) : 1;
        producer.load_tile(weights, tokens[m_steps - 1], p, scheduler.params, tile, k, m_steps * C::TILE_M_STEP);
    });
}

template <class C>
__device__ inline void load_tiles(const sm90_gemm_memory<C> &s, const weight_maps &, const cuda_tensor_map *,
                                  const sm90_list &list, const gemm_tile_scheduler &scheduler, k_range)
{
    tma_producer<C> producer(s);
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        const sm90_list_group &g = list.group[tile.l];
        producer.load_tile({g.weights, g.weights, nullptr}, list.tokens[g.tile_m_index], g.gemm, g.params, tile,
                           k_tiles_of_cta<C>(g.params), g.tile_m);
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Producer warps that rearrange codes                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Byte b of four words, elements 8 i + 2 b and 8 i + 2 b + 1 of word i, becomes word b. Its nibbles j and j + 4, which
 * are decoded as a pair, are neighbours of K: the two of byte b of word j. */
__device__ inline void gather_bytes(uint32_t (&words)[4])
{
    const uint32_t even = 0x0F0F0F0F;
    const uint32_t first01 = lop3_select(even, words[0], words[1] << 4),
                   first23 = lop3_select(even, words[2], words[3] << 4),
                   second01 = lop3_select(even, words[0] >> 4, words[1]),
                   second23 = lop3_select(even, words[2] >> 4, words[3]);
#pragma unroll
    for (int half = 0; half < 2; half++) { /* words 2 half and 2 half + 1, in bytes */
        const uint32_t select = half ? 0x7362 : 0x5140;
        const uint32_t first = __byte_perm(first01, first23, select), second = __byte_perm(second01, second23, select);
        words[2 * half] = __byte_perm(first, second, 0x5410);
        words[2 * half + 1] = __byte_perm(first, second, 0x7632);
    }
}

/* Puts the codes of each stage into the order in which lanes decode them, in place. wgmma wants of lane c elements 2 c,
 * 2 c + 1, 2 c + 8 and 2 c + 9 of each 16: chunk c gets byte c of all words. A lane has a chunk of one row; the four
 * lanes of a row have read all of it before one writes. */
template <class C>
__device__ inline void rearrange_codes(const sm90_gemm_memory<C> &s, const gemm_tile_scheduler &scheduler, k_range k,
                                       int warp)
{
    const smem_addresses<C> at(s);
    const int lane = threadIdx.x % 32, chunk = lane % 4, first_row = warp * 8 + lane / 4;
    const int swizzle = first_row >> 1 & 3; /* rows are multiples of eight apart */
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &) {
#pragma unroll 1
        for (int k_tile = k.begin; k_tile < k.end; k_tile++) {
            mbarrier_wait(at.codes_full(r.stage), r.parity);
            const uint32_t rows = at.stage_at(r.stage) + first_row * SM90_GEMM_CODE_BYTES;
#pragma unroll 2
            for (int i = 0; i < C::TILE_N / 8 / C::REARRANGE_WARPS; i++) {
                const uint32_t row = rows + i * (8 * C::REARRANGE_WARPS * SM90_GEMM_CODE_BYTES);
                const uint4 v = ld_shared_v4(row + (chunk ^ swizzle) * 16);
                uint32_t words[4] = {v.x, v.y, v.z, v.w};
                __syncwarp();
                gather_bytes(words);
#pragma unroll
                for (int b = 0; b < 4; b++)
                    st_shared(row + (b ^ swizzle) * 16 + chunk * 4, words[b]);
            }
            fence_proxy_async(); /* the next codes that are loaded come behind these */
            mbarrier_arrive(at.full(r.stage));
            advance_pipeline<C::STAGES>(r, 1);
        }
    });
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The producer warp of scale factors that are no whole atoms                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The rows of a stage whose scale factors a lane copies: every 32nd of its warp's. */
template <class C> struct copied_rows {
    static constexpr int BLOCKS = C::TILE_N / 32, COUNT = BLOCKS / C::COPY_WARPS; /* of a lane */
    int first;                                                                    /* block of 32 rows */

    __device__ int block(int i) const { return first + i; }
    __device__ int stage_row(int i) const { return 32 * block(i) + (int)threadIdx.x % 32; }
    /* Of two matrices, the ups come second. */
    __device__ bool is_up(int i) const { return C::DUAL && block(i) >= BLOCKS / 2; }
    __device__ int row(const tile_coord &tile, int64_t n, int i) const
    {
        return min(tile.n + stage_row(i) - (is_up(i) ? C::FEATURES : 0), (int)n - 1);
    }
};

/* Linear scale factors of a tile; from[i] is where those of the lane's i-th row begin. */
template <class C, typename P> struct linear_sf {
    static constexpr int BYTES = 8 * C::STEPS, ROWS = copied_rows<C>::COUNT;
    const copied_rows<C> rows;
    const uint8_t *from[ROWS];
    int cols, alignment;

    __device__ linear_sf(const P &p, const sm90_gemm_params &params, const tile_coord &tile, int copy_warp)
        : rows{copy_warp * ROWS}, cols((int)(p.k / NK_SF_VEC)), alignment(params.sf_alignment)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const nk_operand &b = weights_of(p, rows.is_up(i));
            from[i] = kept_global(b.sf + tile.l * b.sf_batch_stride + rows.row(tile, p.n, i) * b.sf_row_stride);
        }
    }

    /* Zeros beyond K. */
    __device__ void copy(uint32_t to, int k_tile) const
    {
        if (alignment >= BYTES && cols - k_tile * BYTES >= BYTES)
            copy_pieces<BYTES>(to, k_tile);
        else if (alignment >= 8)
            copy_pieces<8>(to, k_tile);
        else
            copy_pieces<4>(to, k_tile);
    }

    template <int PIECE> __device__ void copy_pieces(uint32_t to, int k_tile) const
    {
        const int col = k_tile * BYTES;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < BYTES; j += PIECE) {
                const int valid = min(max(cols - col - j, 0), PIECE);
                const uint32_t at = to + rows.stage_row(i) * BYTES + j;
                cp_async_ca_zfill<PIECE>(at, from[i] + (valid ? col + j : 0), valid);
            }
        }
    }
};

/* Blocked scale factors of 64 rows of each of two matrices: half of each atom. A lane copies its half of a row quad. */
template <class C, typename P> struct half_atom_sf {
    static_assert(C::FEATURES == SF_ATOM_ROWS / 2, "half of an atom's rows");
    static constexpr int QUAD_BYTES = SF_QUAD_BYTES / 2, BYTES = SF_ATOM_BYTES / 2;
    const uint8_t *from[2]; /* of each matrix */
    int atoms;              /* side by side */

    __device__ half_atom_sf(const P &p, const sm90_gemm_params &, const tile_coord &tile)
        : atoms((int)sf_atoms_of_k(p.k))
    {
        const int64_t first = sf_bytes_of_atoms((int64_t)sf_atom_of_row(tile.n) * atoms);
        const int half = sf_row_in_atom(tile.n) / C::FEATURES;
#pragma unroll
        for (int matrix = 0; matrix < 2; matrix++) {
            const nk_operand &b = weights_of(p, matrix);
            const uint8_t *at = b.sf + tile.l * b.sf_batch_stride + first;
            from[matrix] = kept_global(at + threadIdx.x % 32 * SF_QUAD_BYTES + half * QUAD_BYTES);
        }
    }

    /* Of each step: [matrix][atom] halves; zeros beyond K. */
    __device__ void copy(uint32_t to, int k_tile) const
    {
#pragma unroll
        for (int i = 0; i < 4 * C::STEPS; i++) {
            const int step = i / 4, matrix = i / 2 % 2, atom = (k_tile * C::STEPS + step) * 2 + i % 2;
            const uint8_t *from_atom = from[matrix] + sf_bytes_of_atoms((int64_t)min(atom, atoms - 1));
            const uint32_t to_quad =
                to + step * SM90_GEMM_SF_BYTES + matrix * 2 * BYTES + i % 2 * BYTES + threadIdx.x % 32 * QUAD_BYTES;
            cp_async_ca_zfill<QUAD_BYTES>(to_quad, from_atom, atom < atoms ? QUAD_BYTES : 0);
        }
    }
};

/* Blocked scale factors of gates and ups whose atoms are not the same rows': row by row, as linear ones lie in a stage.
 */
template <class C, typename P> struct blocked_rows_sf {
    static constexpr int BYTES = 8 * C::STEPS, ROWS = copied_rows<C>::COUNT;
    const copied_rows<C> rows;
    const uint8_t *from[ROWS];
    int atoms; /* side by side */

    __device__ blocked_rows_sf(const P &p, const tile_coord &tile, int copy_warp)
        : rows{copy_warp * ROWS}, atoms((int)sf_atoms_of_k(p.k))
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const nk_operand &b = weights_of(p, rows.is_up(i));
            const int row = rows.row(tile, p.n, i) + (rows.is_up(i) ? ups_row_in_atom<C>(p) : 0);
            from[i] = kept_global(b.sf + tile.l * b.sf_batch_stride +
                                  sf_bytes_of_atoms((int64_t)sf_atom_of_row(row) * atoms) +
                                  sf_offset_in_atom(sf_row_in_atom(row), 0));
        }
    }

    /* Zeros beyond the last atom; what the last one has beyond K is masked. */
    __device__ void copy(uint32_t to, int k_tile) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < 2 * C::STEPS; j++) {
                const int atom = 2 * C::STEPS * k_tile + j;
                cp_async_ca_zfill<SF_ATOM_COLS>(to + rows.stage_row(i) * BYTES + j * SF_ATOM_COLS,
                                                from[i] + sf_bytes_of_atoms((int64_t)min(atom, atoms - 1)),
                                                atom < atoms ? SF_ATOM_COLS : 0);
            }
        }
    }
};

/* All stages of a tile, each as soon as it is empty. Scale factors are weights, so the first ones are copied before the
 * prologue kernel has ended. */
template <class C, typename SOURCE>
__device__ inline void copy_stages(const sm90_gemm_memory<C> &s, sm90_pipeline_state &r, k_range k,
                                   const SOURCE &source)
{
    typedef typename sm90_gemm_memory<C>::stage stage;
    const smem_addresses<C> at(s);
#pragma unroll 1
    for (int k_tile = k.begin; k_tile < k.end; k_tile++) {
        mbarrier_wait(at.empty(r.stage), r.parity ^ 1);
        source.copy(at.stage_at(r.stage) + offsetof(stage, sf), k_tile);
        cp_async_mbarrier_arrive_noinc(at.full(r.stage));
        advance_pipeline<C::STAGES>(r, 1);
    }
}

template <class C, typename P>
__device__ inline void copy_sf(const sm90_gemm_memory<C> &s, const P &p, const gemm_tile_scheduler &scheduler,
                               k_range k, int copy_warp)
{
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        if (weights_of(p, 0).sf_layout == NK_SF_LINEAR)
            copy_stages<C>(s, r, k, linear_sf<C, P>(p, scheduler.params, tile, copy_warp));
        else if (ups_row_in_atom<C>(p) != 0)
            copy_stages<C>(s, r, k, blocked_rows_sf<C, P>(p, tile, copy_warp));
        else if constexpr (has_half_atoms<C>())
            copy_stages<C>(s, r, k, half_atom_sf<C, P>(p, scheduler.params, tile));
    });
}

template <class C>
__device__ inline void copy_sf(const sm90_gemm_memory<C> &s, const sm90_list &list,
                               const gemm_tile_scheduler &scheduler, k_range, int copy_warp)
{
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        const sm90_list_group &g = list.group[tile.l];
        copy_stages<C>(s, r, k_tiles_of_cta<C>(g.params),
                       linear_sf<C, nk_gemm_problem>(g.gemm, g.params, tile, copy_warp));
    });
}

#endif
