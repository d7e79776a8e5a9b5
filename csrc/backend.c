/* The table of backends: which row serves a device. */
#include "backend.h"

#include <string.h>

extern const nk_backend nk_backend_cpu, nk_backend_sm90, nk_backend_sm100, nk_backend_sm120, nk_backend_sm80;

/* A row, whether the build has it or left it out. */
typedef struct listed_row {
    const char *name;
    nk_device_type type;
    const nk_backend *backend;  /* NULL: left out, so it serves nothing */
    const char *devices, *code; /* for people; what the build made of the row's kernels */
} listed_row;

/* The rows in order of preference. For those that build_tools/kernels.py lists the build defines NK_ROW_<row>, which is
 * NULL if it leaves the row out, and NK_CODE_<row>. */
#define NK_ROW_cpu &nk_backend_cpu
#define NK_CODE_cpu NULL
#define ROW(name, type, devices) {#name, type, NK_ROW_##name, devices, NK_CODE_##name}
static const listed_row rows[] = {
    ROW(cpu, NK_CPU, "any CPU tensor"),
    ROW(sm90, NK_CUDA, "H100, H200, GH200"),
    ROW(sm100, NK_CUDA, "B200, B300, GB200, GB300"),
    ROW(sm120, NK_CUDA, "RTX 50, RTX PRO Blackwell, GB10"),
    ROW(sm80, NK_CUDA, "NVIDIA GPUs of compute capability 8.0 and newer"),
};

#define ROWS ((int)(sizeof rows / sizeof rows[0]))

static bool row_serves(const listed_row *row, nk_device device)
{
    return row->backend && row->backend->serves(row->backend, device);
}

static const char *why_unserved(const listed_row *row)
{
    return row->backend ? row->backend->why_not(row->backend) : NK_LEFT_OUT;
}

static const char *device_type_name(nk_device_type type) { return type == NK_CPU ? "cpu" : "cuda"; }

/* The reason is that of the last row for such devices, which is the most general. */
static nk_status nobody_serves(const char *subject, nk_device device)
{
    const char *why = NULL;
    for (int i = ROWS - 1; i >= 0 && !why; i--)
        why = rows[i].type == device.type ? why_unserved(&rows[i]) : NULL;
    if (!why) why = "this build has no kernels for such devices";
    return nk_fail(NK_BACKEND_ERROR, "%sno backend of this build runs on %s:%d (%s), see nvfp4kern.backends()", subject,
                   device_type_name(device.type), device.index, why);
}

static bool has_cell(const nk_backend *backend, nk_operator op)
{
    const bool has[] = {
#define HAS(op) [NK_OP_##op] = backend->op.plan != NULL,
        NK_OPERATORS(HAS)
#undef HAS
    };
    return has[op];
}

/* The row to begin with: the one of NVFP4KERN_BACKEND, or the first. Rows after it serve what it has no kernel for. A
 * GPU's row says nothing of CPU tensors. */
static nk_status begin_with(nk_device device, const char *name, int *first)
{
    *first = 0;
    if (!*name) return NK_OK;
    while (*first < ROWS && strcmp(name, rows[*first].name) != 0)
        ++*first;
    NK_CHECK(*first < ROWS, NK_BACKEND_ERROR,
             "NVFP4KERN_BACKEND: '%s' is no backend of this build, see nvfp4kern.backends()", name);
    const listed_row *row = &rows[*first];
    if (device.type == NK_CPU && row->type != NK_CPU) {
        *first = 0;
        return NK_OK;
    }
    NK_CHECK(row->backend, NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' is %s", name, why_unserved(row));
    NK_CHECK(row_serves(row, device), NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' does not run on %s:%d", name,
             device_type_name(device.type), device.index);
    return NK_OK;
}

nk_status nk_backend_pick(nk_device device, const nk_settings *settings, nk_operator op, const nk_backend **row)
{
    int i = 0;
    if (!*row && settings->tile[0]) NK_TRY(nk_tile_check(settings));
    if (!*row) NK_TRY(begin_with(device, settings->backend, &i));
    while (*row && rows[i++].backend != *row)
        ;
    for (; i < ROWS; i++) {
        if (!row_serves(&rows[i], device) || !has_cell(rows[i].backend, op)) continue;
        *row = rows[i].backend;
        return NK_OK;
    }
    return nobody_serves("", device);
}

nk_status nk_backend_peers(nk_device device, const nk_peer_row **peers)
{
    for (int i = 0; i < ROWS; i++) {
        if (!row_serves(&rows[i], device) || !rows[i].backend->peers) continue;
        *peers = rows[i].backend->peers;
        return NK_OK;
    }
    return nobody_serves("", device);
}

nk_status nk_exec_workspace(nk_exec *exec)
{
    const int64_t wanted = exec->plan.workspace_bytes;
    if (wanted <= exec->workspace_bytes) return NK_OK;
    if (!exec->allocate) return NK_NEEDS_WORKSPACE;
    NK_TRY(exec->allocate(exec->context, wanted, &exec->workspace));
    exec->workspace_bytes = wanted;
    return NK_OK;
}

bool nk_backend_list(int i, nk_backend_info *info)
{
    if (i < 0 || i >= ROWS) return false;
    const nk_backend *backend = rows[i].backend;
    *info = (nk_backend_info){rows[i].name, rows[i].devices, why_unserved(&rows[i]), backend ? rows[i].code : NULL,
                              backend && backend->needs ? backend->needs() : NULL};
    return true;
}

const nk_family *nk_backend_family(int i)
{
    for (int row = 0; row < ROWS; row++) {
        const nk_family *const *family = rows[row].backend ? rows[row].backend->families : NULL;
        for (; family && *family; family++) {
            if (i-- == 0) return *family;
        }
    }
    return NULL;
}

bool nk_tile_list(int i, nk_tile_info *info)
{
    const nk_family *family;
    for (int at = 0; (family = nk_backend_family(at)); at++) {
        for (const char *const *tile = family->tiles; *tile; tile++) {
            if (i-- > 0) continue;
            *info = (nk_tile_info){.row = family->row, .family = family->name, .tile = *tile};
            if (family->describe) family->describe(family->of, (int)(tile - family->tiles), info);
            return true;
        }
    }
    return false;
}

static nk_status warm_up(const listed_row *row, nk_device device)
{
    return row->backend->warmup ? row->backend->warmup(row->backend, device) : NK_OK;
}

nk_status nk_warmup(nk_device device)
{
    bool served = false;
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].type != device.type || !row_serves(&rows[i], device)) continue;
        served = true;
        NK_TRY(warm_up(&rows[i], device));
    }
    return served ? NK_OK : nobody_serves("device: ", device);
}

nk_status nk_warmup_all(void)
{
    for (int i = 0; i < ROWS; i++) {
        const nk_backend *backend = rows[i].backend;
        const int32_t count = backend && backend->warmup ? backend->device_count() : 0;
        for (int32_t index = 0; index < count; index++) {
            const nk_device device = {rows[i].type, index};
            if (row_serves(&rows[i], device)) NK_TRY(warm_up(&rows[i], device));
        }
    }
    return NK_OK;
}
