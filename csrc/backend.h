/* Backends are rows, operators are columns. An operator (op/) dispatches into the first row that serves the device and
 * has a plan for the problem; a NULL cell, or one that declines, falls through to a later, more general row. */
#ifndef NK_BACKEND_H
#define NK_BACKEND_H

#include "nk_problem.h"
#include "nk_settings.h"

/* `plan` picks a kernel and a tile, or says NK_DECLINED where there is no kernel for this problem: the same for the
 * same problem, device and settings. It launches nothing. `run` launches what was planned. */
#define NK_CELL(op)                                                              \
    struct {                                                                     \
        nk_status (*plan)(const nk_##op##_problem *problem, nk_plan *plan);      \
        nk_status (*run)(const nk_##op##_problem *problem, const nk_exec *exec); \
    } op

typedef nk_gemm_problem nk_gemv_problem; /* with m = 1, see nk_problem.h */

typedef struct nk_backend {
    const char *name;
    const char *devices; /* for people */
    nk_device_type device_type;
    bool (*serves)(nk_device device);      /* whether this row can run on this device, here and now */
    const char *(*why_not)(void);          /* NULL where some device of this machine is served, else the reason */
    int32_t (*device_count)(void);         /* how many of its type there are */
    nk_status (*warmup)(nk_device device); /* may be NULL */
    NK_CELL(gemv);
    NK_CELL(gemm);
    NK_CELL(dual_gemm);
    NK_CELL(grouped_gemm);
    NK_CELL(route);
    NK_CELL(quantize);
    NK_CELL(dequantize);
    NK_CELL(relayout);
} nk_backend;

/* The first row after *row (NULL: of all, or from NVFP4KERN_BACKEND's on) that serves `device` and whose cell at
 * `cell_offset` is there. */
nk_status nk_backend_pick(nk_device device, size_t cell_offset, const nk_backend **row);

/* Ends an operator: pick, plan, and run unless this is a dry run or there is nothing to write. */
#define NK_DISPATCH(op, problem, exec, empty)                                                  \
    do {                                                                                       \
        const nk_backend *row_ = NULL;                                                         \
        nk_status planned_;                                                                    \
        do {                                                                                   \
            NK_TRY(nk_backend_pick((problem)->device, offsetof(nk_backend, op), &row_));       \
            (exec)->plan = (nk_plan){.backend = row_->name};                                   \
            planned_ = row_->op.plan((problem), &(exec)->plan);                                \
        } while (planned_ == NK_DECLINED);                                                     \
        NK_TRY(planned_);                                                                      \
        if ((exec)->dry_run || (empty)) return NK_OK;                                          \
        if ((exec)->plan.workspace_bytes > (exec)->workspace_bytes) return NK_NEEDS_WORKSPACE; \
        return row_->op.run((problem), (exec));                                                \
    } while (0)

extern const nk_backend nk_backend_cpu;
#ifdef NK_WITH_CUDA
extern const nk_backend nk_backend_sm90;
extern const nk_backend nk_backend_sm80;
#endif

#endif
