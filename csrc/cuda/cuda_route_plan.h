/* What plans and runs of routers share: tensor maps of x and w, and how long CTAs wait for each other. */
#ifndef NK_CUDA_ROUTE_PLAN_H
#define NK_CUDA_ROUTE_PLAN_H

#include "cuda_tensor_map.h"
#include "nk_problem.h"

/* Why no tile that multiplies 16-bit x and w by tensor map can serve the problem, or NULL. invariant: whether a token's
 * row has a map may not depend on M. */
const char *cuda_route_why_no_map(const nk_route_problem *p, bool invariant);

/* Makes the maps of w and of x. A box has `k` elements of so many rows: 128 bytes, which it swizzles. */
nk_status cuda_route_maps(const nk_route_problem *p, int32_t k, int32_t w_rows, int32_t x_rows,
                          cuda_tensor_map *const maps[2]);

/* How many clocks a CTA waits for others before it leaves their tokens to the last: long enough for CTAs that started
 * together, also on slower GPUs. us: what the launch may take. */
static inline int32_t cuda_route_timeout(double us) { return us < 1e4 ? (int32_t)(us * 10e3) + 40000 : 100000000; }

#endif
