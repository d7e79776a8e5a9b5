/* The table of paths, and which of them a call uses. */
#include "cpu_path.h"

#include <string.h>

/* The paths in order of preference, and the names that NVFP4KERN_CPU may say. */
#if defined(CPU_X86)
static const cpu_path *const table[] = {
    &cpu_path_avx512_vnni,
    &cpu_path_avx512_bw,
    &cpu_path_avx2,
    &cpu_path_scalar,
};
static const char names[] = "scalar, avx2 or avx512";
#elif defined(CPU_NEON)
static const cpu_path *const table[] = {
    &cpu_path_neon_dotprod,
    &cpu_path_neon_mul,
    &cpu_path_scalar,
};
static const char names[] = "scalar or neon";
#else
static const cpu_path *const table[] = {&cpu_path_scalar};
static const char names[] = "scalar";
#endif
#define ROWS (sizeof table / sizeof table[0])

static bool is_named(const cpu_path *path, const char *name)
{
    size_t length = strlen(name);
    return strncmp(path->name, name, length) == 0 && (path->name[length] == 0 || path->name[length] == '-');
}

nk_status cpu_path_pick(const char *forced, const cpu_path **path)
{
    if (!*forced) forced = NULL;
    bool known = false;
    for (size_t i = 0; i < ROWS; i++) {
        if (forced && !is_named(table[i], forced)) continue;
        known = true;
        if (!table[i]->available()) continue;
        *path = table[i];
        return NK_OK;
    }
    NK_CHECK(known, NK_BACKEND_ERROR, "NVFP4KERN_CPU: '%s', expected %s", forced, names);
    return nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_CPU: this processor cannot run '%s'", forced);
}
