/* What brings a tile to the ring of sm90_gemm.cuh: a thread asks for codes, tokens and whole atoms of scale factors; a
 * warp beside it copies scale factors that are no whole atoms. They compete with the warps that multiply for issue
 * slots. Therefore what stays the same for a tile is worked out once. */
#ifndef NK_SM90_GEMM_LOAD_CUH
#define NK_SM90_GEMM_LOAD_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm90_gemm_tile.cuh"

/* Blocked scale factors of a tile's weights: the first atom of its rows, or of those that lie `further` rows of atoms
 * on, where there are some. */
template <typename P>
__device__ inline const uint8_t *atoms_of(const P &p, bool second, const gemm_tile &tile, int atoms, int further)
{
    const nk_operand &b = weights_of(p, second);
    const int64_t row = min(tile.row / NK_SF_ATOM_ROWS + further, (int)(p.n - 1) / NK_SF_ATOM_ROWS);
    return b.sf + tile.l * b.sf_batch_stride + row * atoms * NK_SF_ATOM_BYTES;
}

/* The thread that loads: where it is. */
template <class C> struct loader {
    typedef typename gemm_memory<C>::slot slot;
    static constexpr uint32_t SLOT_SF = C::STEPS * SM90_GEMM_SF_BYTES;
    static constexpr uint32_t TOKEN_BYTES = C::STEPS * 2 * SM90_GEMM_STEP; /* of a slot and a token */
    const addresses<C> at;
    ring_at r;
    bool waited;

    __device__ explicit loader(const gemm_memory<C> &s) : at(s), r{0, 0}, waited(false) {}

    /* All slots of a tile. The first tile's first weights are asked for before the first kernel has ended. */
    template <typename P>
    __device__ void load_tile(const weight_maps &weights, const cuda_tensor_map &tokens, const P &p,
                              const gemm_tile &tile, span k, bool one_matrix, int width)
    {
        const uint32_t bytes = (uint32_t)(offsetof(slot, sf) + width * TOKEN_BYTES);
        const bool atoms_wanted = !lanes_copy_sf<C>(p);
        const int atoms = (int)((p.k + 63) / 64), last = (atoms - 1) / (2 * C::STEPS); /* slot of K */
        const uint32_t last_sf = (atoms - last * 2 * C::STEPS) * NK_SF_ATOM_BYTES;
        const gemm_tile other = band_of<C>(p, tile, C::BANDS - 1);
        const uint8_t *sf[C::BANDS][C::SF_PIECES];
#pragma unroll
        for (int i = 0; i < C::BANDS * C::SF_PIECES; i++) {
            const bool second = C::DUAL && i >= C::SF_PIECES / 2;
            sf[i / C::SF_PIECES][i % C::SF_PIECES] =
                atoms_of(p, second, i < C::SF_PIECES ? tile : other, atoms, C::SF_PIECES == 1 ? 0 : i % 2);
        }
        auto load_weights = [&](int i, int slot_of_k, bool is_other) {
            const uint32_t full = at.full(i), to = at.slot_at(i);
            const int row = is_other ? other.row : tile.row, matrix = one_matrix ? 0 : tile.l;
            const uint32_t sf_bytes = !atoms_wanted ? 0 : slot_of_k == last ? last_sf : SLOT_SF;
            mbarrier_arrive_expect_tx(full, bytes + C::SF_PIECES * sf_bytes);
#pragma unroll
            for (int n = 0; n < C::STEPS; n++) {
                const int from[3] = {(slot_of_k * C::STEPS + n) * SM90_GEMM_CODE_BYTES, row, matrix};
                const uint32_t codes = to + n * (uint32_t)sizeof(slot::codes[0]);
                cp_async_bulk_tensor_3d(codes, &weights.first, from, full);
                if (C::DUAL)
                    cp_async_bulk_tensor_3d(codes + C::FEATURES * SM90_GEMM_CODE_BYTES, &weights.second, from, full);
            }
            if (sf_bytes) {
#pragma unroll
                for (int j = 0; j < C::SF_PIECES; j++)
                    cp_async_bulk(to + offsetof(slot, sf[j]),
                                  (is_other ? sf[C::BANDS - 1][j] : sf[0][j]) + (int64_t)slot_of_k * SLOT_SF, sf_bytes,
                                  full);
            }
        };
        int early = 0;
        if (!waited) {
            early = min(C::EARLY, C::BANDS * (k.end - k.begin));
#pragma unroll 1
            for (int i = 0; i < early; i++)
                load_weights(i, k.begin + i / C::BANDS, i % C::BANDS);
            griddepcontrol_wait();
            waited = true;
        }
#pragma unroll 1
        for (int i = 0; i < C::BANDS * (k.end - k.begin); i++) {
            const int slot_of_k = k.begin + i / C::BANDS;
            if (i >= early) {
                mbarrier_wait(at.empty(r.slot), r.phase ^ 1);
                load_weights(r.slot, slot_of_k, i % C::BANDS);
            }
            const int from[4] = {0, tile.token, slot_of_k * C::STEPS * 2, batch_of<C>(tile)};
            cp_async_bulk_tensor_4d(at.slot_at(r.slot) + offsetof(slot, tokens), &tokens, from, at.full(r.slot));
            advance<C::SLOTS>(r, 1);
        }
    }
};

/* By one thread. */
template <class C, typename P>
__device__ inline void load(const gemm_memory<C> &s, const weight_maps &weights, const cuda_tensor_map &tokens,
                            const P &p, const gemm_tiles &tiles, span k)
{
    loader<C> to(s);
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        to.load_tile(weights, tokens, p, tile, k, tiles.scheduler.one_matrix, C::TOKENS);
    });
}

template <class C>
__device__ inline void load(const gemm_memory<C> &s, const weight_maps &, const cuda_tensor_map &,
                            const sm90_list &list, const gemm_tiles &tiles, span)
{
    loader<C> to(s);
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        const sm90_list_group &g = list.group[tile.l];
        to.load_tile({g.weights, g.weights}, list.tokens[g.tile_m_index], g.gemm, tile, span_of<C>(g.scheduler), true,
                     g.tile_m);
    });
}

/* Linear scale factors of a tile: from[i] is row 32 i + lane of the slot, which has those of all its steps. */
template <class C, typename P> struct linear_rows {
    static constexpr int BYTES = 8 * C::STEPS;
    static constexpr int QUARTERS = C::SLOT_ROWS / 32;
    const uint8_t *from[QUARTERS];
    int cols, aligned;

    __device__ linear_rows(const P &p, const sm90_gemm_scheduler &scheduler, const gemm_tile &tile)
        : cols((int)(p.k / NK_SF_VEC)), aligned(scheduler.sf_alignment)
    {
#pragma unroll
        for (int i = 0; i < QUARTERS; i++) {
            const int of_matrix = C::DUAL ? i % (QUARTERS / 2) : i;
            const nk_operand &b = weights_of(p, i != of_matrix);
            const int64_t row = (int64_t)tile.row + of_matrix * 32 + threadIdx.x % 32;
            from[i] = kept_global(b.sf + tile.l * b.sf_batch_stride + min(row, p.n - 1) * b.sf_row_stride);
        }
    }

    /* Zeros beyond K. */
    __device__ void copy(uint32_t to, int slot_of_k) const
    {
        if (aligned >= BYTES && cols - slot_of_k * BYTES >= BYTES)
            copy_pieces<BYTES>(to, slot_of_k);
        else if (aligned >= 8)
            copy_pieces<8>(to, slot_of_k);
        else
            copy_pieces<4>(to, slot_of_k);
    }

    template <int PIECE> __device__ void copy_pieces(uint32_t to, int slot_of_k) const
    {
        const int col = slot_of_k * BYTES;
#pragma unroll
        for (int i = 0; i < QUARTERS; i++) {
#pragma unroll
            for (int j = 0; j < BYTES; j += PIECE) {
                const int valid = min(max(cols - col - j, 0), PIECE);
                const uint32_t at = to + (threadIdx.x % 32 + 32 * i) * BYTES + j;
                cp_async_ca_zfill<PIECE>(at, from[i] + (valid ? col + j : 0), valid);
            }
        }
    }
};

/* Blocked scale factors of a tile of dual_gemm: a lane's row quad of an atom is 16 bytes, of which the tile's 64 rows
 * are one half. */
template <class C, typename P> struct half_atoms {
    static_assert(C::FEATURES == 64, "half of an atom's rows");
    const uint8_t *from[2]; /* of each matrix */
    int atoms;

    __device__ half_atoms(const P &p, const sm90_gemm_scheduler &, const gemm_tile &tile)
        : atoms((int)((p.k + 63) / 64))
    {
        const int64_t first = (int64_t)(tile.row / NK_SF_ATOM_ROWS) * atoms * NK_SF_ATOM_BYTES;
        const int half = tile.row % NK_SF_ATOM_ROWS / 64;
#pragma unroll
        for (int matrix = 0; matrix < 2; matrix++) {
            const nk_operand &b = weights_of(p, matrix);
            const uint8_t *at = b.sf + tile.l * b.sf_batch_stride + first;
            from[matrix] = kept_global(at + threadIdx.x % 32 * 16 + half * 8);
        }
    }

    /* Of each step: [matrix][atom][lane] of eight bytes; zeros beyond K. */
    __device__ void copy(uint32_t to, int slot_of_k) const
    {
#pragma unroll
        for (int i = 0; i < 4 * C::STEPS; i++) {
            const int n = i / 4, matrix = i / 2 % 2, atom = (slot_of_k * C::STEPS + n) * 2 + i % 2;
            const uint8_t *at = from[matrix] + (int64_t)min(atom, atoms - 1) * NK_SF_ATOM_BYTES;
            const uint32_t lane = to + n * SM90_GEMM_SF_BYTES + matrix * 512 + i % 2 * 256 + threadIdx.x % 32 * 8;
            cp_async_ca_zfill<8>(lane, at, atom < atoms ? 8 : 0);
        }
    }
};

/* By a warp: scale factors that lanes copy, each slot's as soon as it is free. */
template <class C, typename SOURCE>
__device__ inline void copy_slots(const gemm_memory<C> &s, ring_at &r, span k, const SOURCE (&bands)[C::BANDS])
{
    typedef typename gemm_memory<C>::slot slot;
    const addresses<C> at(s);
#pragma unroll 1
    for (int i = 0; i < C::BANDS * (k.end - k.begin); i++) {
        const uint32_t to = at.slot_at(r.slot) + offsetof(slot, sf);
        mbarrier_wait(at.empty(r.slot), r.phase ^ 1);
        if (C::BANDS == 2 && i % 2)
            bands[C::BANDS - 1].copy(to, k.begin + i / 2);
        else
            bands[0].copy(to, k.begin + i / C::BANDS);
        cp_async_mbarrier_arrive_noinc(at.full(r.slot));
        advance<C::SLOTS>(r, 1);
    }
}

/* A source for each band of a tile. */
template <class C, typename SOURCE, int BANDS = C::BANDS> struct in_bands {
    SOURCE of[2];
    template <typename P>
    __device__ in_bands(const P &p, const sm90_gemm_scheduler &scheduler, const gemm_tile &tile)
        : of{SOURCE(p, scheduler, tile), SOURCE(p, scheduler, band_of<C>(p, tile, 1))}
    {
    }
};
template <class C, typename SOURCE> struct in_bands<C, SOURCE, 1> {
    SOURCE of[1];
    template <typename P>
    __device__ in_bands(const P &p, const sm90_gemm_scheduler &scheduler, const gemm_tile &tile)
        : of{SOURCE(p, scheduler, tile)}
    {
    }
};

template <class C, typename P>
__device__ inline void copy_sf(const gemm_memory<C> &s, const P &p, const gemm_tiles &tiles, span k)
{
    ring_at r = {0, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        if (weights_of(p, 0).sf_layout == NK_SF_LINEAR)
            copy_slots<C>(s, r, k, in_bands<C, linear_rows<C, P>>(p, tiles.scheduler, tile).of);
        else if constexpr (C::DUAL && C::SF_PIECES == 1)
            copy_slots<C>(s, r, k, in_bands<C, half_atoms<C, P>>(p, tiles.scheduler, tile).of);
    });
}

template <class C>
__device__ inline void copy_sf(const gemm_memory<C> &s, const sm90_list &list, const gemm_tiles &tiles, span)
{
    ring_at r = {0, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        const sm90_list_group &g = list.group[tile.l];
        const linear_rows<C, nk_gemm_problem> rows[] = {{g.gemm, g.scheduler, tile}};
        copy_slots<C>(s, r, span_of<C>(g.scheduler), rows);
    });
}

#endif
