/* What environment variables ask of a call. */
#ifndef NK_SETTINGS_H
#define NK_SETTINGS_H

#include <stdbool.h>

/* NVFP4KERN_BACKEND, .. as text, or NULL: the environment's own, valid until someone changes it, as getenv's is. */
typedef struct nk_settings {
    const char *backend, *num_threads, *pdl;
    bool batch_invariant; /* a row must get the same bits whatever else is in the batch */
} nk_settings;

/* Every call reads them once, before it picks a backend: all in one walk over the environment, since looking up each
 * took a fifth of a microsecond where NVIDIA's containers have 35 variables that begin alike. */
void nk_settings_read(void);

/* As this thread has read them last. */
const nk_settings *nk_settings_of_call(void);

#endif
