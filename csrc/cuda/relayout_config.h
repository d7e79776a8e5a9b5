/* Tiles of the relayout kernels, for host and device. */
#ifndef NK_RELAYOUT_CONFIG_H
#define NK_RELAYOUT_CONFIG_H

#include "nk_format.h"

/* A CTA takes atoms of one atom row. A thread moves 16 bytes: four columns of rows r, r + 32, r + 64 and r + 96. Four
 * rows by eight atoms make a warp, so that both sides are touched in whole sectors of 32 bytes. */
#define CUDA_RELAYOUT_ATOMS 8
#define CUDA_RELAYOUT_THREADS (32 * CUDA_RELAYOUT_ATOMS)

#endif
