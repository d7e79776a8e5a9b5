/* Draws what the counters of a launch count from. */
#include "cuda_route.h"

#include <stdatomic.h>

uint64_t cuda_counter_base(void) /* splitmix64 */
{
    static _Atomic uint64_t launches;
    uint64_t z = (atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
