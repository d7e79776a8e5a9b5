/* Every group is a gemm of its own; in the contiguous form, of the rows offsets[g] .. offsets[g+1]. */
#include "cpu_backend.h"

#include "../nk_format.h"

/* `atom_row`: where a blocked sfa begins for this expert, in rows of atoms. */
static nk_gemm_problem expert(const nk_grouped_gemm_problem *p, int64_t g, int64_t atom_row)
{
    nk_gemm_problem gemm = p->all;
    int64_t row = p->offsets[g];
    gemm.m = p->offsets[g + 1] - row;
    gemm.a.data += row * gemm.a.row_stride;
    if (gemm.a.sf) {
        int64_t atom_row_bytes = nk_sf_padded_cols(gemm.k / NK_SF_VEC) * NK_SF_ATOM_ROWS;
        gemm.a.sf += gemm.a.sf_layout == NK_SF_BLOCKED ? atom_row * atom_row_bytes : row * gemm.a.sf_row_stride;
    }
    gemm.b.data += g * gemm.b.batch_stride;
    if (gemm.b.sf) gemm.b.sf += g * gemm.b.sf_batch_stride;
    gemm.d.data += row * gemm.d.row_stride;
    if (gemm.alpha.data) gemm.alpha.data += g * gemm.alpha.group_stride;
    if (gemm.bias.data) gemm.bias.data += g * gemm.bias.group_stride;
    return gemm;
}

void cpu_grouped_gemm(const nk_grouped_gemm_problem *p)
{
    int64_t atom_row = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        if (p->list) {
            cpu_gemm(&p->list[g]);
            continue;
        }
        nk_gemm_problem gemm = expert(p, g, atom_row);
        cpu_gemm(&gemm);
        atom_row += nk_ceil_div(gemm.m, NK_SF_ATOM_ROWS);
    }
}
