/* Loads the compiled .cu files and their kernels when they are first used, also inside a graph capture. */
#ifndef NK_CUDA_IMAGE_H
#define NK_CUDA_IMAGE_H

#include "nk_problem.h"

#include <stdatomic.h>

/* One .cu file, compiled. */
typedef struct cuda_image {
    const char *name; /* the file's */
    const char *row;  /* the folder of csrc that the file is in */
    const unsigned char *begin;
    _Atomic(void *) library; /* CUlibrary, NULL before first use */
} cuda_image;

/* One extern "C" __global__ function. The build defines an object of the same name for each and declares it in
 * cuda_kernels.h, so that a table which lists a missing kernel does not compile. The state is filled on first use. */
typedef struct cuda_kernel {
    const char *name;
    cuda_image *image;
    _Atomic(void *) handle;     /* CUkernel */
    _Atomic(uint64_t) ready;    /* bit i: loaded on device i, and allowed all of its shared memory */
    _Atomic(uint64_t) can_wait; /* bit i: waits by itself for others to end: compiled for 9.0 or later there */
} cuda_kernel;

/* All kernels of this build, ended by NULL. */
extern cuda_kernel *const cuda_kernels[];

/* Loads every kernel of a row. */
nk_status cuda_load_row(nk_device device, const char *row);

/* Fills the kernel's state for the context's device. */
struct cuda_context;
nk_status cuda_load(cuda_kernel *kernel, const struct cuda_context *context);

#endif
