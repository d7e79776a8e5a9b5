/* What environment variables ask of a call. */
#ifndef NK_SETTINGS_H
#define NK_SETTINGS_H

#include "nk_status.h"

#include <stdbool.h>

/* Programmatic dependent launch: a kernel may be scheduled while the one before it in the stream still runs. By default
 * it waits before it reads anything, so no caller need know. NVFP4KERN_PDL=0 turns overlap off. NVFP4KERN_PDL=weights
 * lets products on Hopper read weights and their scale factors before they wait. Then the caller promises that no
 * kernel that may still be running writes them: not the one just before it in the stream, nor an earlier one if those
 * between overlap as well. */
typedef enum nk_pdl { NK_PDL_SAFE, NK_PDL_OFF, NK_PDL_WEIGHTS } nk_pdl;

/* Text is a copy: the environment's own may change during the call. It is empty where the variable is not set. */
typedef struct nk_settings {
    char backend[64];     /* NVFP4KERN_BACKEND */
    char cpu[64];         /* NVFP4KERN_CPU */
    char num_threads[64]; /* NVFP4KERN_NUM_THREADS */
    char tile[512];       /* NVFP4KERN_TILE, see nk_tile.h */
    nk_pdl pdl;           /* NVFP4KERN_PDL */
    bool batch_invariant; /* NVFP4KERN_BATCH_INVARIANT: a row gets the same bits whatever else is in the batch */
} nk_settings;

/* Reads the environment in one pass: looking up each variable took a fifth of a microsecond in NVIDIA's containers,
 * which have 35 variables with this beginning. No other thread may change the environment meanwhile. Fails where a
 * value is none that the variable takes. */
nk_status nk_settings_read(nk_settings *settings);

/* What is wanted deep inside a call, mostly once a process: as this thread's last nk_settings_read() found it. A thread
 * that has never called that reads the environment now. Empty where the variable is not set. */
typedef enum nk_late_setting {
    NK_LIBCUDA,
    NK_PTX_DIR,
    NK_SM_LIMIT,
    NK_SMEM_LIMIT,
    NK_ROW_LIMIT,
    NK_ASSUMED_GPU,
    NK_LATE_SETTINGS
} nk_late_setting;
const char *nk_late_text(nk_late_setting which);

/* A limit, or `most` where that is less or there is no limit. */
nk_status nk_late_limit(nk_late_setting which, int most, int *limit);

#endif
