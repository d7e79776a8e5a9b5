/* Eight columns of a matrix product at a time, in the compiler's vectors: for the tensor-core files only. */
#ifndef PTXSIM_NUM_LANES_H
#define PTXSIM_NUM_LANES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };

typedef int16_t short_lanes __attribute__((vector_size(2 * LANES)));
typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t unsigned_lanes __attribute__((vector_size(4 * LANES)));
typedef int64_t long_lanes __attribute__((vector_size(8 * LANES)));
typedef uint64_t unsigned_long_lanes __attribute__((vector_size(8 * LANES)));
typedef float float_lanes __attribute__((vector_size(4 * LANES)));
typedef double double_lanes __attribute__((vector_size(8 * LANES)));

/* Into functions that are compiled once for any machine and once for AVX2, which shifts each lane by its own amount. */
#define IN_LANES static inline __attribute__((always_inline))

#ifdef __x86_64__
#define FOR_AVX2 __attribute__((target("avx2")))
static inline bool num_has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
#define FOR_AVX2
static inline bool num_has_avx2(void) { return false; }
#endif

#ifdef __AVX2__ /* what compilers do not find by themselves */
#include <immintrin.h>
#define LARGER(a, b) ((lanes)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define SMALLER(a, b) ((lanes)_mm256_min_epi32((__m256i)(a), (__m256i)(b)))
IN_LANES uint32_t num_bits_of(const lanes *mask) { return (uint32_t)_mm256_movemask_ps((__m256)*mask); }
#else
#define LARGER(a, b) (((a) & ((a) > (b))) | ((b) & ~((a) > (b))))
#define SMALLER(a, b) (((a) & ((a) < (b))) | ((b) & ~((a) < (b))))
/* A bit for each lane of a comparison. */
IN_LANES uint32_t num_bits_of(const lanes *mask)
{
    uint32_t bits = 0;
    for (int j = 0; j < LANES; j++)
        bits |= (uint32_t)((*mask)[j] & 1) << j;
    return bits;
}
#endif
#define ALL_LANES(value) ((lanes){0} + (value))

/* sum * 2^(exponent - fraction_bits) as f32 towards zero; no result may be subnormal, and no sum inexact. Cut to 23
 * fraction bits, doubles convert to f32 exactly. Overflow gives an infinity. */
IN_LANES void num_doubles_to_f32(const double_lanes *sum, const lanes *exponent, int fraction_bits, uint32_t *d)
{
    long_lanes unit = (__builtin_convertvector(*exponent, long_lanes) + (1023 - fraction_bits)) << 52;
    long_lanes cut = (long_lanes)(*sum * (double_lanes)unit) & -(INT64_C(1) << 29);
    float_lanes result = __builtin_convertvector((double_lanes)cut, float_lanes);
    memcpy(d, &result, sizeof result);
}

/* The same of integers below 2^51. */
IN_LANES void num_lanes_to_f32(const long_lanes *sum, const lanes *exponent, int fraction_bits, uint32_t *d)
{
    const double magic = 0x1.8p52; /* its last bit counts ones, so adding an integer to its bits adds to its value */
    double_lanes biased = (double_lanes){0} + magic;
    double_lanes value = (double_lanes)((long_lanes)biased + *sum) - magic;
    num_doubles_to_f32(&value, exponent, fraction_bits, d);
}

#endif
