/* Reads the environment variables that calls ask for. */
#include "nk_settings.h"

#include <stddef.h>
#include <string.h>

extern char **environ;

#define PREFIX "NVFP4KERN_"

/* The value if `text`, behind the prefix, is "<name>=<value>", else `before`. The first of several counts, as with
 * getenv. */
static const char *value_of(const char *text, const char *name, const char *before)
{
    size_t length = strlen(name);
    if (before || strncmp(text, name, length) != 0 || text[length] != '=') return before;
    return text + length + 1;
}

static nk_pdl pdl_of(const char *text)
{
    if (!text || !*text) return NK_PDL_SAFE;
    if (strcmp(text, "0") == 0) return NK_PDL_OFF;
    return strcmp(text, "weights") == 0 ? NK_PDL_WEIGHTS : NK_PDL_SAFE;
}

void nk_settings_read(nk_settings *settings)
{
    const char *backend = NULL, *cpu = NULL, *num_threads = NULL, *tile = NULL, *pdl = NULL, *invariant = NULL;
    for (char **variable = environ; variable && *variable; variable++) {
        const char *text = *variable;
        if (text[0] != 'N' || text[1] != 'V' || text[2] != 'F') continue; /* a fast test, which most variables fail */
        if (strncmp(text, PREFIX, sizeof PREFIX - 1) != 0) continue;
        text += sizeof PREFIX - 1;
        backend = value_of(text, "BACKEND", backend);
        cpu = value_of(text, "CPU", cpu);
        num_threads = value_of(text, "NUM_THREADS", num_threads);
        tile = value_of(text, "TILE", tile);
        pdl = value_of(text, "PDL", pdl);
        invariant = value_of(text, "BATCH_INVARIANT", invariant);
    }
    *settings = (nk_settings){
        .backend = backend,
        .cpu = cpu,
        .num_threads = num_threads,
        .tile = tile && *tile ? tile : NULL,
        .pdl = pdl_of(pdl),
        .batch_invariant = invariant && strcmp(invariant, "1") == 0,
    };
}
