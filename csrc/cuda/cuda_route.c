/* How many CTAs sort, and what the counters of a launch count from. */
#include "cuda_route.h"

#include "nk_format.h"

#include <stdatomic.h>

#define SORT_ENTRIES 1024 /* that a CTA places, about, while there are SMs */

int64_t cuda_sort_ctas(int64_t entries, int32_t sms)
{
    const int64_t parts = nk_ceil_div(entries, SORT_ENTRIES);
    return parts < 1 ? 1 : parts > sms ? sms : parts; /* without an entry one CTA writes the empty permutation */
}

uint64_t cuda_counter_base(void) /* splitmix64 */
{
    static _Atomic uint64_t launches;
    uint64_t z = (atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
