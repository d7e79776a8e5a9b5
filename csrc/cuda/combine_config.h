/* What a thread and a CTA of combine take, for host and device. */
#ifndef NK_COMBINE_CONFIG_H
#define NK_COMBINE_CONFIG_H

#include "nk_problem.h"

/* Bytes of 16-bit products in each row that a thread takes: one load. It makes half as many elements of a token. */
#define COMBINE_ELEMENTS(bytes) ((bytes) / 2)

/* A CTA has this many threads, or half or a quarter of them where tokens are too few for all SMs. */
#define COMBINE_MOST_THREADS 128
#define COMBINE_FEWEST_THREADS 32

/* To how many bytes all rows are aligned: 0 stands for fewer than 16, others for what one load of the kernel takes at
 * most. */
typedef struct combine_aligned {
    uint8_t products, out; /* out: and contiguous along H */
} combine_aligned;

#endif
