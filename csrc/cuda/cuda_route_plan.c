/* Makes the tensor maps of routers. */
#include "cuda_route_plan.h"

#include "cuda_encode.h"

#define LARGEST_EXTENT (1 << 30) /* tensor maps and kernels count in 32 bits */

static bool has_route_map(const nk_operand *o, int64_t rows)
{
    return (uintptr_t)o->data % 16 == 0 && cuda_is_stride(o->row_stride, rows);
}

const char *cuda_route_why_no_map(const nk_route_problem *p, bool invariant)
{
    if (!nk_route_has_halves(p)) return "its tiles multiply x and w of one 16-bit type";
    if (p->m == 0 || p->k == 0) return p->m == 0 ? "M is 0" : "K is 0";
    if (p->m > LARGEST_EXTENT || p->k > LARGEST_EXTENT) return "M or K is more than 2^30";
    if (has_route_map(&p->x, invariant ? INT64_MAX : p->m) && has_route_map(&p->w, p->n)) return NULL;
    return "no tensor map describes x and w: their rows are not aligned to 16 bytes";
}

nk_status cuda_route_maps(const nk_route_problem *p, int32_t k, int32_t w_rows, int32_t x_rows,
                          cuda_tensor_map *const maps[2])
{
    const cuda_boxes boxes[] = {cuda_k_major_boxes(&p->w, "w", p->k, p->n, 0, k, w_rows),
                                cuda_k_major_boxes(&p->x, "x", p->k, p->m, 0, k, x_rows)};
    return cuda_encode_maps(p->device, 2, boxes, maps);
}
