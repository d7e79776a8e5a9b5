/* Makes the tensor maps of routers. */
#include "cuda_route_plan.h"

#include "cuda_encode.h"

#define LARGEST_EXTENT (1 << 30)          /* tensor maps and kernels count in 32 bits */
#define LARGEST_STRIDE ((int64_t)1 << 40) /* of a tensor map */

static bool has_route_map(const nk_operand *o, bool has_stride)
{
    if ((uintptr_t)o->data % 16) return false;
    return !has_stride || (o->row_stride % 16 == 0 && o->row_stride > 0 && o->row_stride < LARGEST_STRIDE);
}

const char *cuda_route_why_no_map(const nk_route_problem *p, bool invariant)
{
    if (!nk_route_has_halves(p)) return "its tiles multiply x and w of one 16-bit type";
    if (p->m == 0 || p->k == 0) return p->m == 0 ? "M is 0" : "K is 0";
    if (p->m > LARGEST_EXTENT || p->k > LARGEST_EXTENT) return "M or K is more than 2^30";
    if (has_route_map(&p->x, p->m > 1 || invariant) && has_route_map(&p->w, p->n > 1)) return NULL;
    return "no tensor map describes x and w: their rows are not aligned to 16 bytes";
}

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static cuda_boxes route_boxes(const char *name, const nk_operand *o, int64_t k, int64_t rows, int32_t box_k,
                              int32_t box_rows)
{
    return (cuda_boxes){.name = name,
                        .at = o->data,
                        .dtype = o->dtype,
                        .rank = 2,
                        .dims = {(uint64_t)k, (uint64_t)rows},
                        .strides = {rows > 1 ? (uint64_t)o->row_stride : 16},
                        .box = {(uint32_t)box_k, (uint32_t)box_rows},
                        .swizzle = CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

nk_status cuda_route_maps(const nk_route_problem *p, int32_t k, int32_t w_rows, int32_t x_rows,
                          cuda_tensor_map *const maps[2])
{
    const cuda_boxes boxes[] = {route_boxes("w", &p->w, p->k, p->n, k, w_rows),
                                route_boxes("x", &p->x, p->k, p->m, k, x_rows)};
    return cuda_encode_maps(p->device, 2, boxes, maps);
}
