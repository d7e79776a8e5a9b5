/* Reads the environment variables that calls ask for. */
#include "nk_settings.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

#define PREFIX "NVFP4KERN_"
#define LONGEST_PATH 4096

/* The variables, behind the prefix. Those of nk_late_setting come first. */
enum { BACKEND = NK_LATE_SETTINGS, CPU, NUM_THREADS, TILE, PDL, BATCH_INVARIANT, COUNT };
static const char *const names[COUNT] = {
    [NK_LIBCUDA] = "LIBCUDA",
    [NK_PTX_DIR] = "PTX_DIR",
    [NK_SM_LIMIT] = "SM_LIMIT",
    [NK_SMEM_LIMIT] = "SMEM_LIMIT",
    [NK_ROW_LIMIT] = "ROW_LIMIT",
    [NK_ASSUMED_GPU] = "ASSUMED_GPU",
    [BACKEND] = "BACKEND",
    [CPU] = "CPU",
    [NUM_THREADS] = "NUM_THREADS",
    [TILE] = "TILE",
    [PDL] = "PDL",
    [BATCH_INVARIANT] = "BATCH_INVARIANT",
};

/* Of this thread's last reading. Few calls find any of these set, and others leave the text alone. */
static _Thread_local struct {
    bool read, any;
    char text[NK_LATE_SETTINGS][LONGEST_PATH];
} late;

/* Where the values of all variables begin; NULL where one is not set. The first of several counts, as with getenv. */
static void find_values(const char *values[COUNT])
{
    for (int i = 0; i < COUNT; i++)
        values[i] = NULL;
    for (char **variable = environ; variable && *variable; variable++) {
        const char *text = *variable;
        if (text[0] != 'N' || text[1] != 'V' || text[2] != 'F') continue; /* a fast test, which most variables fail */
        if (strncmp(text, PREFIX, sizeof PREFIX - 1) != 0) continue;
        text += sizeof PREFIX - 1;
        for (int i = 0; i < COUNT; i++) {
            size_t length = strlen(names[i]);
            if (!values[i] && strncmp(text, names[i], length) == 0 && text[length] == '=')
                values[i] = text + length + 1;
        }
    }
}

static nk_status copy_setting(int variable, const char *value, char *to, size_t size)
{
    size_t length = value ? strlen(value) : 0;
    NK_CHECK(length < size, NK_BACKEND_ERROR, PREFIX "%s: %zu characters, expected at most %zu", names[variable],
             length, size - 1);
    if (length) memcpy(to, value, length);
    to[length] = 0;
    return NK_OK;
}

static nk_status keep_late(const char *const values[NK_LATE_SETTINGS])
{
    bool before = late.any;
    late.any = false;
    for (int i = 0; i < NK_LATE_SETTINGS; i++)
        late.any = late.any || values[i];
    for (int i = 0; (before || late.any) && i < NK_LATE_SETTINGS; i++)
        NK_TRY(copy_setting(i, values[i], late.text[i], sizeof late.text[i]));
    late.read = true;
    return NK_OK;
}

/* 1 for a word that means yes, 0 for one that means no, else -1. */
static int yes_or_no(const char *value)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(value, words[i]) == 0) return i % 2;
    }
    return -1;
}

#define WORDS "1, true, yes, on, 0, false, no or off"

static nk_status read_flag(int variable, const char *value, bool *flag)
{
    *flag = false;
    if (!value || !*value) return NK_OK;
    int answer = yes_or_no(value);
    NK_CHECK(answer >= 0, NK_BACKEND_ERROR, PREFIX "%s: '%s', expected " WORDS, names[variable], value);
    *flag = answer;
    return NK_OK;
}

static nk_status read_pdl(const char *value, nk_pdl *pdl)
{
    *pdl = NK_PDL_SAFE;
    if (!value || !*value) return NK_OK;
    int answer = strcasecmp(value, "weights") == 0 ? 2 : yes_or_no(value);
    NK_CHECK(answer >= 0, NK_BACKEND_ERROR, PREFIX "PDL: '%s', expected weights, " WORDS, value);
    *pdl = answer == 2 ? NK_PDL_WEIGHTS : answer ? NK_PDL_SAFE : NK_PDL_OFF;
    return NK_OK;
}

nk_status nk_settings_read(nk_settings *settings)
{
    const char *values[COUNT];
    find_values(values);
    NK_TRY(keep_late(values));
    NK_TRY(copy_setting(BACKEND, values[BACKEND], settings->backend, sizeof settings->backend));
    NK_TRY(copy_setting(CPU, values[CPU], settings->cpu, sizeof settings->cpu));
    NK_TRY(copy_setting(NUM_THREADS, values[NUM_THREADS], settings->num_threads, sizeof settings->num_threads));
    NK_TRY(copy_setting(TILE, values[TILE], settings->tile, sizeof settings->tile));
    NK_TRY(read_pdl(values[PDL], &settings->pdl));
    return read_flag(BATCH_INVARIANT, values[BATCH_INVARIANT], &settings->batch_invariant);
}

const char *nk_late_text(nk_late_setting which)
{
    nk_settings unused;
    if (!late.read) (void)nk_settings_read(&unused);
    return late.text[which];
}

nk_status nk_late_limit(nk_late_setting which, int most, int *limit)
{
    const char *text = nk_late_text(which);
    *limit = most;
    if (!*text) return NK_OK;
    char *end;
    long number = strtol(text, &end, 10);
    NK_CHECK(*end == 0 && number >= 1 && number <= INT_MAX, NK_BACKEND_ERROR,
             PREFIX "%s: '%s', expected a number from 1 to %d", names[which], text, INT_MAX);
    if (number < most) *limit = (int)number;
    return NK_OK;
}
