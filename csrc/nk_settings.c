#include "nk_settings.h"

#include <stddef.h>
#include <string.h>

extern char **environ;

#define PREFIX "NVFP4KERN_"

static _Thread_local nk_settings settings;

const nk_settings *nk_settings_of_call(void) { return &settings; }

/* The value where `text`, behind the prefix, is "<name>=<value>". Of two the first counts, as with getenv. */
static const char *value_of(const char *text, const char *name, const char *before)
{
    size_t length = strlen(name);
    if (before || strncmp(text, name, length) != 0 || text[length] != '=') return before;
    return text + length + 1;
}

void nk_settings_read(void)
{
    const char *invariant = NULL;
    nk_settings found = {0}; /* finding where the thread's own are takes a call */
    for (char **variable = environ; variable && *variable; variable++) {
        const char *text = *variable;
        if (text[0] != 'N' || text[1] != 'V' || text[2] != 'F') continue; /* most differ here */
        if (strncmp(text, PREFIX, sizeof PREFIX - 1) != 0) continue;
        text += sizeof PREFIX - 1;
        found.backend = value_of(text, "BACKEND", found.backend);
        found.num_threads = value_of(text, "NUM_THREADS", found.num_threads);
        found.pdl = value_of(text, "PDL", found.pdl);
        invariant = value_of(text, "BATCH_INVARIANT", invariant);
    }
    found.batch_invariant = invariant && strcmp(invariant, "1") == 0;
    settings = found;
}
