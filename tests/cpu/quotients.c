/* The quotients of csrc/cpu/cpu_simd_four_six.h and csrc/cuda/quantize_four_six.cuh next to ties of E2M1 and E4M3,
 * small scale factors among them, for every mantissa of a divisor: they must lie on the side of the tie where those of
 * a division do. Says how many it compared, and how many differ; the mantissa of ones alone is left out. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NEXT 4 /* floats on either side of a tie */

int main(void)
{
    float ties[22] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    long compared = 0, differ = 0;
    for (int i = 0; i < 15; i++)
        ties[7 + i] = (float)(17 + i) / 16;
    for (uint32_t mantissa = 0; mantissa < 0x7FFFFF; mantissa++) {
        const uint32_t bits = 0x3F800000 | mantissa;
        float divisor;
        memcpy(&divisor, &bits, sizeof divisor);
        const float inverse = 1 / divisor, rest = fmaf(inverse, -divisor, 1) * inverse;
        for (int t = 0; t < 22; t++) {
            const float tie = ties[t] * divisor;
            for (int apart = -NEXT; apart <= NEXT; apart++) {
                uint32_t near;
                float x;
                memcpy(&near, &tie, sizeof near);
                near += (uint32_t)apart;
                memcpy(&x, &near, sizeof x);
                const float ours = fmaf(x, inverse, x * rest), divided = x / divisor;
                differ += (ours < ties[t]) != (divided < ties[t]) || (ours > ties[t]) != (divided > ties[t]);
            }
            compared += 2 * NEXT + 1;
        }
    }
    printf("compared: %ld\ndiffer: %ld\n", compared, differ);
    return 0;
}
