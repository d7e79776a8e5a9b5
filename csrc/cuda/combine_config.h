/* What a thread and a CTA of combine take, for host and device. */
#ifndef NK_COMBINE_CONFIG_H
#define NK_COMBINE_CONFIG_H

#include "nk_problem.h"

/* `bytes`: of 16-bit elements in each row that a thread takes by one load. */
#define COMBINE_ELEMENTS(bytes) ((bytes) / 2)

/* A CTA has this many threads, or half or a quarter of them if tokens are too few for all SMs. */
#define COMBINE_MOST_THREADS 128
#define COMBINE_FEWEST_THREADS 32

/* To how many bytes all rows are aligned: 0 for fewer than 16, else at most what one load of the kernel takes. */
typedef struct combine_aligned {
    uint8_t products, out; /* out: and contiguous along H */
} combine_aligned;

#endif
