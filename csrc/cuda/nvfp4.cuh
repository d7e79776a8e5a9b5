/* Eight E2M1 codes to four half2 in eleven integer instructions, four of them left shifts, which multiply, and E4M3
 * bytes to fp16, without fp8 hardware.
 *
 * The three magnitude bits of a code placed at bits 11..9 of an fp16, the sign at bit 15, are the value times 2^-14,
 * the fp16 subnormal of .5 included: the decode is moving bits. Times a scale factor in fp16 that stays exact (at most
 * six significant bits, smallest product 2^-24), so the 2^14 is left to the fp32 end of a sum. */
#ifndef NK_NVFP4_CUH
#define NK_NVFP4_CUH

#include "convert.cuh"
#include "cuda/ptx/registers.cuh"
#include "operand.cuh"
#include "pairs.cuh"

#define NVFP4_DECODE_SCALE 0x1p14f /* what a decoded value must be multiplied by */

/* Elements 0..7 of `codes` (element 0 in the lowest nibble) as pairs (0,4), (1,5), (2,6), (3,7). */
__device__ inline void e2m1x8_to_f16x2(uint32_t codes, uint32_t pairs[4])
{
    const uint32_t magnitude = 0x0E0E0E0E, bits = 0x8E008E00;
    const uint32_t high = lop3_select(magnitude, codes >> 3, codes);     /* odd nibbles, one a byte, among other bits */
    const uint32_t low = lop3_select(magnitude, codes << 1, codes << 4); /* even nibbles */
    pairs[0] = low << 8 & bits;
    pairs[1] = high << 8 & bits;
    pairs[2] = low & bits;
    pairs[3] = high & bits;
}

/* Elements 0, 2, 4, 6 and 1, 3, 5, 7 of `codes` as E4M3, exact: magnitude bits at 4..2 are the value times 2^-6. */
#define NVFP4_E4M3_DECODE_SCALE 0x1p6f

__device__ inline void e2m1x8_to_e4m3x4(uint32_t codes, uint32_t &even, uint32_t &odd)
{
    even = (codes << 2 & 0x1C1C1C1C) | (codes << 4 & 0x80808080);
    odd = (codes >> 2 & 0x1C1C1C1C) | (codes & 0x80808080);
}

/* Bytes 0 and 1 as fp16. Exponent and mantissa of E4M3 at bits 13..7 of an fp16 are the value times 2^-8; 0x7F would
 * be 480 and is made a NaN. */
__device__ inline uint32_t e4m3x2_to_f16x2(uint32_t bytes)
{
    uint32_t bits = __byte_perm(bytes, 0, 0x1404) >> 1 & 0x3F803F80;
    bits |= (bits + 0x00800080) & 0x40004000;
    __half2 scaled = __hmul2(*(__half2 *)&bits, __half2half2(__ushort_as_half(0x5C00))); /* 256 */
    return *(uint32_t *)&scaled;
}

/* The same pairs in bf16, whose magnitude bits are 8..6: the value times 2^-126. A multiplication shifts by two numbers
 * at once, for the sign and for the magnitude. */
__device__ inline void e2m1x8_to_bf16x2(uint32_t codes, uint32_t pairs[4])
{
    const uint32_t sign = 0x80008000, magnitude = 0x01C001C0, bits = sign | magnitude;
    pairs[0] = (codes & 0x000F000F) * (1 << 12 | 1 << 6) & bits;
    pairs[1] = (codes & 0x00F000F0) * (1 << 8 | 1 << 2) & bits;
    pairs[2] = (codes >> 2 & 0x03C003C0) * (1 << 6 | 1) & bits;
    pairs[3] = (codes & sign) | (codes >> 6 & magnitude);
}

/* Bytes 0 and 1 as bf16 times 2^112: with the codes' 2^-126 products carry 2^-14, as in fp16. */
__device__ inline uint32_t e4m3x2_to_bf16x2(uint32_t bytes)
{
    const float low = e4m3_to_float(bytes) * 0x1p112f, high = e4m3_to_float(bytes >> 8) * 0x1p112f;
    return exact_bf16x2(low, high); /* four significant bits each */
}

/* Bytes 0 and 1 as a pair of scale factors that goes with the codes of the same type. */
template <bool BF16> __device__ inline uint32_t e4m3x2_to_pair(uint32_t bytes)
{
    return BF16 ? e4m3x2_to_bf16x2(bytes) : e4m3x2_to_f16x2(bytes);
}

/* Elements 0..7 of `codes` as pairs (0,4), (1,5), (2,6), (3,7). */
template <bool BF16> __device__ inline void e2m1x8_to_pairs(uint32_t codes, uint32_t pairs[4])
{
    if (BF16)
        e2m1x8_to_bf16x2(codes, pairs);
    else
        e2m1x8_to_f16x2(codes, pairs);
}

/* The same times a scale factor, which both halves of `scale` hold. Exact, and a decoded value over NVFP4_DECODE_SCALE.
 */
template <bool BF16> __device__ inline void decode_e2m1x8(uint32_t codes, uint32_t scale, uint32_t pairs[4])
{
    e2m1x8_to_pairs<BF16>(codes, pairs);
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = multiply_pairs<BF16>(pairs[i], scale);
}

#endif
