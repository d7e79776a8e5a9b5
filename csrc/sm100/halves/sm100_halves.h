/* What a tile of the sm100 halves family makes of a product with 16-bit tokens, and its launch. */
#ifndef NK_SM100_HALVES_H
#define NK_SM100_HALVES_H

#include "sm100/gemm/sm100_gemm_plan.h"

nk_status sm100_halves_plan(const sm100_gemm_product *product, const nk_settings *settings, nk_plan *plan,
                            sm100_gemm_choice *choice);
nk_status sm100_halves_run(const sm100_gemm_product *product, const sm100_gemm_choice *choice, const nk_exec *exec);

#endif
