#include "backend.h"

#include <stdlib.h>
#include <string.h>

/* In order of preference. */
static const nk_backend *const table[] = {
    &nk_backend_cpu,
#ifdef NK_WITH_CUDA
    &nk_backend_sm80,
#endif
};
#define ROWS ((int)(sizeof table / sizeof table[0]))

static const char *device_type_name(nk_device_type type) { return type == NK_CPU ? "cpu" : "cuda"; }

/* The reason is that of the most general row for such devices, the last. */
static nk_status nobody_serves(const char *subject, nk_device device)
{
    const char *why = "this build has no kernels for such devices";
    for (int i = 0; i < ROWS; i++) {
        const char *reason = table[i]->device_type == device.type ? table[i]->why_not() : NULL;
        if (reason) why = reason;
    }
    return nk_fail(NK_BACKEND_ERROR, "%sno backend of this build runs on %s:%d (%s), see nvfp4kern.backends()", subject,
                   device_type_name(device.type), device.index, why);
}

static bool has_cell(const nk_backend *row, size_t offset)
{
    nk_status (*plan)(void);
    memcpy(&plan, (const char *)row + offset, sizeof plan); /* every cell begins with `plan` */
    return plan != NULL;
}

nk_status nk_backend_pick(nk_device device, size_t cell_offset, const nk_backend **row)
{
    const char *forced = getenv("NVFP4KERN_BACKEND");
    if (forced && !*forced) forced = NULL;
    bool known = false;
    for (int i = 0; i < ROWS; i++) {
        if (forced && strcmp(forced, table[i]->name) != 0) continue;
        known = true;
        if (!table[i]->serves(device) || !has_cell(table[i], cell_offset)) continue;
        *row = table[i];
        return NK_OK;
    }
    NK_CHECK(known, NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: '%s' is no backend of this build, see nvfp4kern.backends()",
             forced);
    NK_CHECK(!forced, NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' cannot run this operator on %s:%d", forced,
             device_type_name(device.type), device.index);
    return nobody_serves("", device);
}

bool nk_backend_list(int i, nk_backend_info *info)
{
    if (i < 0 || i >= ROWS) return false;
    *info = (nk_backend_info){table[i]->name, table[i]->devices, table[i]->why_not()};
    return true;
}

nk_status nk_warmup(nk_device device)
{
    bool served = false;
    for (int i = 0; i < ROWS; i++) {
        if (table[i]->device_type != device.type || !table[i]->serves(device)) continue;
        served = true;
        if (table[i]->warmup) NK_TRY(table[i]->warmup(device));
    }
    return served ? NK_OK : nobody_serves("device: ", device);
}

nk_status nk_warmup_all(void)
{
    for (int i = 0; i < ROWS; i++) {
        int32_t count = table[i]->warmup ? table[i]->device_count() : 0;
        for (int32_t index = 0; index < count; index++) {
            nk_device device = {table[i]->device_type, index};
            if (table[i]->serves(device)) NK_TRY(table[i]->warmup(device));
        }
    }
    return NK_OK;
}
