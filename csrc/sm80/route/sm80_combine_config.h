/* What a thread and a CTA of combine take, for host and device. */
#ifndef NK_SM80_COMBINE_CONFIG_H
#define NK_SM80_COMBINE_CONFIG_H

#include "nk_problem.h"

#define SM80_COMBINE_ELEMENTS 8 /* of a token, that a thread makes: 16 bytes of 16-bit products in each row */
#define SM80_COMBINE_ROWS 8     /* of the products, that a thread asks for at once */

/* A CTA has this many threads, or half or a quarter of them where tokens are too few for all SMs. */
#define SM80_COMBINE_MOST_THREADS 128
#define SM80_COMBINE_FEWEST_THREADS 32

/* Whose rows are all aligned to 16 bytes. */
typedef struct sm80_combine_wide {
    bool products, out; /* out: and contiguous along H */
} sm80_combine_wide;

#endif
