/* Rows of operands, and their copies into shared memory. */
#ifndef NK_SM120_ROWS_CUH
#define NK_SM120_ROWS_CUH

#include "cuda/operand.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"

/* Where a row begins: its codes, or 16-bit elements, and the scale factors of codes. */
typedef struct sm120_row {
    const uint8_t *data, *sf;
} sm120_row;

__device__ inline sm120_row sm120_row_at(const nk_operand &o, int64_t l, int64_t row, int64_t sf_row, int64_t k)
{
    return {o.data + l * o.batch_stride + row * o.row_stride, sf_at(o, l, sf_row, 0, k / NK_SF_VEC)};
}

/* Copies BYTES, of which `valid`, at most, are there; beyond them zeros. */
template <bool WIDE, int BYTES> __device__ inline void sm120_copy(void *to, const uint8_t *from, int64_t valid)
{
    const uint32_t at = shared_address(to);
    const int bytes = (int)max(min(valid, (int64_t)BYTES), (int64_t)0);
    if (WIDE) {
        if (BYTES == 16)
            cp_async_cg_zfill(at, from, bytes);
        else
            cp_async_ca_zfill<4>(at, from, bytes);
    } else if (BYTES == 16) {
        st_shared_v4(at, fetch_bytes(from, bytes));
    } else {
        st_shared(at, fetch_bytes(from, bytes).x);
    }
}

#endif
