/* What a tile of the sm100 halves family makes of a product with 16-bit tokens, and its launch. */
#ifndef NK_SM100_KIND_F16_H
#define NK_SM100_KIND_F16_H

#include "sm100/gemm/sm100_list.h"

nk_status sm100_kind_f16_plan(const sm100_gemm_product *product, const nk_settings *settings, nk_plan *plan,
                              sm100_gemm_choice *choice);
/* Of 16-bit tokens, and NVFP4 weights. */
extern const sm100_list_family sm100_kind_f16_list;

nk_status sm100_kind_f16_run(const sm100_gemm_product *product, const sm100_gemm_choice *choice, const nk_exec *exec);

#endif
