/* The table of backends: which row serves a device. */
#include "backend.h"

#include <string.h>

/* The rows in order of preference, each with its devices, for people. The build defines NK_WITH_<row> for the rows that
 * build_tools/kernels.py lists: as 1, or as 0 where it leaves the row out; and NK_CODE_<row>, what it makes of the
 * row's kernels. */
#define NK_WITH_cpu 1
#define NK_CODE_cpu NULL
#define LISTED_ROWS(X)                   \
    X(cpu, "any CPU tensor")             \
    X(sm90, "H100, H200, GH200")         \
    X(sm100, "B200, B300, GB200, GB300") \
    X(sm80, "NVIDIA GPUs of compute capability 8.0 and newer")

#define DECLARE(row, devices) extern const nk_backend nk_backend_##row;
LISTED_ROWS(DECLARE)

/* A row that the build left out serves nothing. */
#define ROW_1(row) &nk_backend_##row
#define ROW_0(row) \
    &(const nk_backend) { .name = #row, .device_type = NK_CUDA }
#define PASTE(x, y) x##y
#define PICK(with) PASTE(ROW_, with)
#define ENTRY(row, devices) PICK(NK_WITH_##row)(row),
static const nk_backend *const table[] = {LISTED_ROWS(ENTRY)};

#define DEVICES(row, devices) devices,
static const char *const devices_of[] = {LISTED_ROWS(DEVICES)};

#define CODE(row, devices) NK_CODE_##row,
static const char *const code_of[] = {LISTED_ROWS(CODE)};

#define ROWS ((int)(sizeof table / sizeof table[0]))

static bool serves(const nk_backend *row, nk_device device) { return row->serves && row->serves(row, device); }

static const char *why_not(const nk_backend *row) { return row->serves ? row->why_not(row) : NK_LEFT_OUT; }

static const char *device_type_name(nk_device_type type) { return type == NK_CPU ? "cpu" : "cuda"; }

/* The reason is that of the last row for such devices, which is the most general. */
static nk_status nobody_serves(const char *subject, nk_device device)
{
    const char *why = NULL;
    for (int i = ROWS - 1; i >= 0 && !why; i--)
        why = table[i]->device_type == device.type ? why_not(table[i]) : NULL;
    if (!why) why = "this build has no kernels for such devices";
    return nk_fail(NK_BACKEND_ERROR, "%sno backend of this build runs on %s:%d (%s), see nvfp4kern.backends()", subject,
                   device_type_name(device.type), device.index, why);
}

static bool has_cell(const nk_backend *row, size_t offset)
{
    nk_status (*plan)(void);
    memcpy(&plan, (const char *)row + offset, sizeof plan); /* every cell begins with `plan` */
    return plan != NULL;
}

/* The row to begin with: the one of NVFP4KERN_BACKEND, or the first. Rows after it serve what it has no kernel for. A
 * GPU's row says nothing of CPU tensors. */
static nk_status first_row(nk_device device, const char *name, int *first)
{
    *first = 0;
    if (!*name) return NK_OK;
    while (*first < ROWS && strcmp(name, table[*first]->name) != 0)
        ++*first;
    NK_CHECK(*first < ROWS, NK_BACKEND_ERROR,
             "NVFP4KERN_BACKEND: '%s' is no backend of this build, see nvfp4kern.backends()", name);
    const nk_backend *row = table[*first];
    if (device.type == NK_CPU && row->device_type != NK_CPU) {
        *first = 0;
        return NK_OK;
    }
    NK_CHECK(row->serves, NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' is %s", name, why_not(row));
    NK_CHECK(serves(row, device), NK_BACKEND_ERROR, "NVFP4KERN_BACKEND: backend '%s' does not run on %s:%d", name,
             device_type_name(device.type), device.index);
    return NK_OK;
}

nk_status nk_backend_pick(nk_device device, const nk_settings *settings, size_t cell_offset, const nk_backend **row)
{
    int i = 0;
    if (!*row && settings->tile[0]) NK_TRY(nk_tile_check(settings));
    if (!*row) NK_TRY(first_row(device, settings->backend, &i));
    while (*row && table[i++] != *row)
        ;
    for (; i < ROWS; i++) {
        if (!serves(table[i], device) || !has_cell(table[i], cell_offset)) continue;
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
    NK_TRY(exec->allocate(exec->context, wanted, &exec->workspace));
    exec->workspace_bytes = wanted;
    return NK_OK;
}

bool nk_backend_list(int i, nk_backend_info *info)
{
    if (i < 0 || i >= ROWS) return false;
    const nk_backend *row = table[i];
    *info = (nk_backend_info){row->name, devices_of[i], why_not(row), row->serves ? code_of[i] : NULL,
                              row->needs ? row->needs() : NULL};
    return true;
}

const nk_family *nk_backend_family(int i)
{
    for (int row = 0; row < ROWS; row++) {
        for (const nk_family *const *family = table[row]->families; family && *family; family++) {
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
            *info = (nk_tile_info){family->row, family->name, *tile};
            return true;
        }
    }
    return false;
}

nk_status nk_warmup(nk_device device)
{
    bool served = false;
    for (int i = 0; i < ROWS; i++) {
        if (table[i]->device_type != device.type || !serves(table[i], device)) continue;
        served = true;
        if (table[i]->warmup) NK_TRY(table[i]->warmup(table[i], device));
    }
    return served ? NK_OK : nobody_serves("device: ", device);
}

nk_status nk_warmup_all(void)
{
    for (int i = 0; i < ROWS; i++) {
        int32_t count = table[i]->warmup ? table[i]->device_count() : 0;
        for (int32_t index = 0; index < count; index++) {
            nk_device device = {table[i]->device_type, index};
            if (serves(table[i], device)) NK_TRY(table[i]->warmup(table[i], device));
        }
    }
    return NK_OK;
}
