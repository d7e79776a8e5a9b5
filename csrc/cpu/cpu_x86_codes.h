/* Decoding four blocks of A at a time, in AVX2, for the AVX2 and AVX-512 paths. */
#ifndef NK_CPU_X86_CODES_H
#define NK_CPU_X86_CODES_H

/* 2 e2m1 of the next four blocks in the order of cpu_simd_tile.h, and -12 times the sum of each block. Where fewer than
 * four `blocks` are left, the rest are 0. */
OPERATION void decode_four_blocks(const uint8_t *codes, int64_t blocks, int8_t to[64], int32_t bias[4])
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i words = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(blocks < 4 ? 2 * (int)blocks : 8), words);
    __m256i packed = _mm256_maskload_epi32((const int *)(const void *)codes, there);
    __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, nibble));
    __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(packed, 4), nibble));
    __m256i first = _mm256_unpacklo_epi64(even, odd), second = _mm256_unpackhi_epi64(even, odd);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_permute2x128_si256(first, second, 0x31));

    /* Eight sums of two elements each, with 24 added to be unsigned, add up to the block's sum + 192. */
    __m256i raised = _mm256_add_epi8(_mm256_add_epi8(even, odd), _mm256_set1_epi8(24));
    __m256i sums = _mm256_sad_epu8(raised, _mm256_setzero_si256());
    __m256i scaled = _mm256_mul_epi32(_mm256_sub_epi32(sums, _mm256_set1_epi64x(192)), _mm256_set1_epi64x(-12));
    __m256i four = _mm256_permutevar8x32_epi32(scaled, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128((__m128i *)(void *)bias, _mm256_castsi256_si128(four));
}

#endif
