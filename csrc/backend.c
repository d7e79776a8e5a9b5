#include "backend.h"

#include <stdlib.h>
#include <string.h>

/* In order of preference. */
static const nk_backend *const table[] = {
    &nk_backend_cpu,
};
#define ROWS ((int)(sizeof table / sizeof table[0]))

static const char *device_type_name(nk_device_type type) { return type == NK_CPU ? "cpu" : "cuda"; }

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
    return nk_fail(NK_BACKEND_ERROR, "no backend of this build runs on %s:%d, see nvfp4kern.backends()",
                   device_type_name(device.type), device.index);
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
        if (!table[i]->serves(device)) continue;
        served = true;
        if (table[i]->warmup) NK_TRY(table[i]->warmup(device));
    }
    NK_CHECK(served, NK_BACKEND_ERROR, "device: no backend of this build runs on %s:%d", device_type_name(device.type),
             device.index);
    return NK_OK;
}
