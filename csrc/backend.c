#include "backend.h"

#include <string.h>

/* In order of preference. */
static const nk_backend *const table[] = {
    &nk_backend_cpu,
#ifdef NK_WITH_CUDA
    &nk_backend_sm90,
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

/* Where to begin: with NVFP4KERN_BACKEND's row, which the rows after it stand in for where it has no kernel. */
static nk_status first_row(nk_device device, const char *name, int *first)
{
    *first = 0;
    if (!name || !*name) return NK_OK;
    while (*first < ROWS && strcmp(name, table[*first]->name) != 0)
        ++*first;
    NK_CHECK(*first < ROWS, NK_BACKEND_ERROR,
             "NVFP4KERN_BACKEND: '%s' is no backend of this build, see nvfp4kern.backends()", name);
    NK_CHECK(table[*first]->serves(device), NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' does not run on %s:%d",
             name, device_type_name(device.type), device.index);
    return NK_OK;
}

nk_status nk_backend_pick(nk_device device, const nk_settings *settings, size_t cell_offset, const nk_backend **row)
{
    int i = 0;
    if (!*row) NK_TRY(first_row(device, settings->backend, &i));
    while (*row && table[i++] != *row)
        ;
    for (; i < ROWS; i++) {
        if (!table[i]->serves(device) || !has_cell(table[i], cell_offset)) continue;
        *row = table[i];
        return NK_OK;
    }
    return nobody_serves("", device);
}

nk_status nk_exec_workspace(nk_exec *exec)
{
    const int64_t wanted = exec->plan.workspace_bytes;
    if (wanted <= exec->workspace_bytes) return NK_OK;
    if (!exec->allocate) return NK_NEEDS_WORKSPACE;
    NK_TRY(exec->allocate(exec->allocate_context, wanted, &exec->workspace));
    exec->workspace_bytes = wanted;
    return NK_OK;
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
