/* What a path can do. A path is written for one instruction set, or in portable C. All paths have one interface and one
 * meaning; the scalar path is the specification. */
#ifndef NK_CPU_PATH_H
#define NK_CPU_PATH_H

#include "nk_format.h"
#include "nk_problem.h"

#include <stdbool.h>

#define CPU_TILE_M 128
#define CPU_TILE_N 128

typedef float cpu_tile[CPU_TILE_M][CPU_TILE_N];

/* The GEMM of one tile: sum_k A[l, m, k] B[l, n, k] for the `mb` rows from m0 and the `nb` columns from n0. If
 * `rows_of_a` is not NULL, its `mb` numbers say which rows of A they are. */
typedef struct cpu_tile_gemm {
    const nk_operand *a, *b;
    int64_t l, m0, mb, n0, nb, k;
    const int64_t *rows_of_a;
} cpu_tile_gemm;

/* Which row of A is row r of the tile. */
static inline int64_t cpu_row_of_a(const cpu_tile_gemm *p, int64_t r)
{
    return p->rows_of_a ? p->rows_of_a[r] : p->m0 + r;
}

/* What encoding needs of the global scale, see cpu_quantize.c. */
typedef struct cpu_encoder {
    bool valid;      /* S > 0; a global scale of NaN, infinity or below 0 poisons every block */
    float to_sf;     /* fl(S * fl(1/6)) */
    float inverse_s; /* fl(1/S) */
    float smallest;  /* scale factor, or +0 */
    float s2;        /* recipe four_six alone */
} cpu_encoder;

typedef struct cpu_path {
    const char *name; /* NVFP4KERN_CPU says all of it, or what precedes the dash */
    const char *why;  /* for explain */
    bool (*available)(void);

    /* The sums of one tile. A sum does not depend on the tile that it is in, so a row's result does not depend on the
     * other rows. Outside mb x nb, acc may become anything. */
    void (*gemm_tile)(const cpu_tile_gemm *tile, cpu_tile acc);

    /* The sums of one row (mb = 1) for NVFP4 B. Their order differs: B is read in the order in which memory is fastest.
     * NULL if the path has no such function. */
    void (*gemv)(const cpu_tile_gemm *tile, float *sums);

    /* Rows of `count` elements.
     *   scale      v = alpha v + bias, rounded once; v = alpha v if bias is NULL
     *   gate       v = nk_silu(v) up, which is quantised
     *   limit      v = min(v, limit), up = max(min(up, limit), -limit)
     *   activate   v = activation(v) up, with two roundings, both limited before
     *   exp        v = exp(v - shift) */
    void (*load)(const uint8_t *from, nk_dtype dtype, int64_t count, float *to);
    void (*store)(const float *from, nk_dtype dtype, int64_t count, uint8_t *to);
    void (*scale)(float *values, const float *alpha, const float *bias, int64_t count);
    void (*gate)(float *values, const float *up, int64_t count);
    void (*limit)(float limit, float *values, float *up, int64_t count);
    void (*activate)(nk_activation activation, float *values, float *up, int64_t count);
    void (*exp)(float *values, float shift, int64_t count);
    void (*sigmoid)(const float *from, int64_t count, float *to);
    void (*sqrt_softplus)(const float *from, int64_t count, float *to);

    /* Rows of whole blocks of 16 elements.
     *   finite_amax   the largest finite magnitude, or 0
     *   encode        codes and scale factors
     *   encode_four_six  the same by the recipe four_six, for a valid encoder
     *   decode        e2m1 * sf * s2; sf must be readable up to a multiple of 16 bytes */
    float (*finite_amax)(const uint8_t *from, nk_dtype dtype, int64_t count);
    void (*encode)(const cpu_encoder *encoder, const uint8_t *from, nk_dtype dtype, int64_t blocks, uint8_t *codes,
                   uint8_t *sf);
    void (*encode_four_six)(const cpu_encoder *encoder, const uint8_t *from, nk_dtype dtype, int64_t blocks,
                            uint8_t *codes, uint8_t *sf);
    void (*decode)(const uint8_t *codes, const uint8_t *sf, float s2, int64_t blocks, float *values);
} cpu_path;

extern const cpu_path cpu_path_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
#define CPU_X86 1
extern const cpu_path cpu_path_avx2, cpu_path_avx512_bw, cpu_path_avx512_vnni;
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
#define CPU_NEON 1
extern const cpu_path cpu_path_neon_mul, cpu_path_neon_dotprod;
#endif

/* The best path of this processor, or the one that `forced` (NVFP4KERN_CPU, or "") names. */
nk_status cpu_path_pick(const char *forced, const cpu_path **path);

/* What an operator computes with: the choice of every plan of this row. */
typedef struct cpu_means {
    const cpu_path *path;
    int threads;
    bool batch_invariant; /* NVFP4KERN_BATCH_INVARIANT=1: one order for all sums */
} cpu_means;

static inline int64_t cpu_min(int64_t x, int64_t y) { return x < y ? x : y; }

#endif
