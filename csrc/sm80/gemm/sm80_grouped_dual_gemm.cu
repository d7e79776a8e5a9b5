/* D[m,n] = convert(act(alpha_g[n] * sum_k A[m,k] B_g[n,k] + bias_g[n])
 *                  * (alpha_ups_g[n] * sum_k A[m,k] ups_g[n,k] + bias_ups_g[n]))
 * for the tokens m of every expert g; or codes and scale factors of fl(act(..) * ..) in place of convert, with nk_silu
 * for silu
 *
 * Work: a tile is WARPS * 16 features (n) x TILE_M tokens (m) of one expert: half of its weight rows are gates, half
 * the ups of the same features, N rows or one row further in the same matrix. Sums lie and are stored as in
 * sm80_dual_gemm.cu; tiles are found as in sm80_grouped_gemm.cu, contiguous form. Each is one CTA's.
 *
 * Roles, barriers, memory: sm80_gemm.cuh, sm80_mainloop.cuh. */
#include "sm80_encode.cuh"
#include "sm80_groups.cuh"

#define RUN (SF_ATOM_ROWS / 2) /* of a token's staged sums 64 are gates, the next 64 their ups */

template <int TILE_M, int WARPS> struct sm80_grouped_dual_gemm_operator : group_operator<TILE_M, WARPS, WARPS * 16> {
    const sm80_gating &gating;

    __device__ sm80_grouped_dual_gemm_operator(const cuda_groups &q, const sm80_gating &gating)
        : group_operator<TILE_M, WARPS, WARPS * 16>(q), gating(gating)
    {
    }

    /* A lane has two features, 32 apart: its first pair of rows are their gates, its second pair their ups. Blocked
     * factors of two ups are side by side if they are in one half of an atom, as those of two gates are. */
    __device__ void point_rows(const group_tile &tile, weight_rows &w) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t feature = first_row<WARPS, RUN>(tile.n_tile), up = p.n + feature, rows = 2 * p.n;
        if (p.b.sf_layout == NK_SF_LINEAR) {
            point_pair(p.b, tile.expert, feature, p.n, p.k, 0, w);
            point_pair(gating.ups, tile.expert, feature, p.n, p.k, 1, w);
            w.adjacent = false;
            return;
        }
        point_pair(p.b, tile.expert, feature, rows, p.k, 0, w);
        point_pair(p.b, tile.expert, up, rows, p.k, 1, w);
        w.adjacent = false;
        if (p.n % RUN == 0) return;
        w.apart = true;
        w.sf_step[0] = sf_offset_of_quarter(1);
        w.sf_step[1] = sf_at(p.b, tile.expert, min(up + 32, rows - 1), 0, p.k / NK_SF_VEC) - w.sf[1];
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const group_tile &tile, int first) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        nk_alpha ups = gating.alpha_ups;
        nk_bias bias_ups = gating.bias_ups;
        if (ups.data) ups.data += tile.expert * ups.group_stride;
        if (bias_ups.data) bias_ups.data += tile.expert * bias_ups.group_stride;
        const gated_sums<RUN> epilogue = {p.alpha, ups, p.bias, bias_ups, gating.activation};
        if (gating.encoded.wanted)
            encode_tile<WARPS * 16, WARPS * 32>(staged, this->out_of(p, tile, first), encoded_gated_sums<RUN>{epilogue},
                                                gating.encoded);
        else
            this->store_by(epilogue, staged, p, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ cuda_groups q, const __grid_constant__ sm80_gating gating
#define OPERATOR(TILE_M, WARPS) sm80_grouped_dual_gemm_operator<TILE_M, WARPS>(q, gating)
#define KERNELS(...) SM80_GEMM_FP4_KERNELS(sm80_grouped_dual_gemm, __VA_ARGS__)

SM80_T32_TILE(KERNELS)
