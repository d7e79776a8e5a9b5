/* What environment variables ask of a call. */
#ifndef NK_SETTINGS_H
#define NK_SETTINGS_H

#include <stdbool.h>

/* Programmatic dependent launch: a kernel may be scheduled while the one before it in the stream still runs. By default
 * it waits before it reads anything, so no caller need know. NVFP4KERN_PDL=0 turns overlap off. NVFP4KERN_PDL=weights
 * lets gemv read weights and their scale factors before it waits. Then the caller promises that no kernel that may
 * still be running writes them: not the one just before it in the stream, nor an earlier one if those between overlap
 * as well. */
typedef enum nk_pdl { NK_PDL_SAFE, NK_PDL_OFF, NK_PDL_WEIGHTS } nk_pdl;

/* Text belongs to the environment: it is valid until that variable is changed, as with getenv. NULL where it is not
 * set. */
typedef struct nk_settings {
    const char *backend;     /* NVFP4KERN_BACKEND */
    const char *cpu;         /* NVFP4KERN_CPU */
    const char *num_threads; /* NVFP4KERN_NUM_THREADS */
    const char *tile;        /* NVFP4KERN_TILE, see nk_tile.h; NULL also where it is empty */
    nk_pdl pdl;              /* NVFP4KERN_PDL */
    bool batch_invariant;    /* NVFP4KERN_BATCH_INVARIANT=1: a row gets the same bits whatever else is in the batch */
} nk_settings;

/* Every call reads them once, before it picks a backend, in one pass over the environment. Looking up each took a fifth
 * of a microsecond in NVIDIA's containers, which have 35 variables with this beginning. */
void nk_settings_read(nk_settings *settings);

#endif
