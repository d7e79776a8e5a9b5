/* Backends are rows, operators are columns. An operator (op/) dispatches into the first row that serves the device and
 * has a plan for the problem; a NULL cell, or one that declines, falls through to a later, more general row. */
#ifndef NK_BACKEND_H
#define NK_BACKEND_H

#include "nk_problem.h"
#include "nk_settings.h"
#include "nk_tile.h"

#define NK_OPERATORS(X)                                                                                         \
    X(gemv)                                                                                                     \
    X(gemm) X(dual_gemm) X(grouped_gemm) X(grouped_dual_gemm) X(route) X(sort_by_expert) X(combine) X(quantize) \
        X(dequantize) X(relayout)

typedef enum nk_operator {
#define NK_OPERATOR(op) NK_OP_##op,
    NK_OPERATORS(NK_OPERATOR)
#undef NK_OPERATOR
} nk_operator;

/* `plan` picks a kernel and how it is launched, or says NK_DECLINED where there is no kernel for this problem. It
 * depends on the problem, the settings and the device alone, and launches nothing. `choice` gets all that `run` needs
 * beside the problem, as a struct of the cell's own; `nk_plan` is for people. `run` launches what `choice` says. It
 * decides nothing again, but for groups of a list, which may be too many for a choice: it plans those again, from the
 * same settings. */
#define NK_CELL(op)                                                                                                    \
    struct {                                                                                                           \
        nk_status (*plan)(const nk_##op##_problem *problem, const nk_settings *settings, nk_plan *plan, void *choice); \
        nk_status (*run)(const nk_##op##_problem *problem, const void *choice, const nk_exec *exec);                   \
    } op;

/* Room for a choice. Every cell asserts that its own fits. */
#define NK_CHOICE_BYTES 1024
#define NK_CHOICE_ALIGNMENT 16
#define NK_CHOICE_FITS(type)                                                                 \
    _Static_assert(sizeof(type) <= NK_CHOICE_BYTES && _Alignof(type) <= NK_CHOICE_ALIGNMENT, \
                   "the dispatcher has room for the choice")

typedef nk_gemm_problem nk_gemv_problem; /* with m = 1, see nk_problem.h */

#define NK_DECLARE_CELL(row, op)                                                                                     \
    nk_status row##_plan_##op(const nk_##op##_problem *p, const nk_settings *settings, nk_plan *plan, void *choice); \
    nk_status row##_run_##op(const nk_##op##_problem *p, const void *choice, const nk_exec *exec)

/* Declares the cells that every row for GPUs has of its own, and lists them in its table. */
#define NK_DECLARE_GPU_CELLS(row)            \
    NK_DECLARE_CELL(row, gemv);              \
    NK_DECLARE_CELL(row, gemm);              \
    NK_DECLARE_CELL(row, dual_gemm);         \
    NK_DECLARE_CELL(row, grouped_gemm);      \
    NK_DECLARE_CELL(row, grouped_dual_gemm); \
    NK_DECLARE_CELL(row, route)

#define NK_GPU_CELL(row, op) .op = {row##_plan_##op, row##_run_##op}
#define NK_GPU_CELLS(row)                                                                                        \
    NK_GPU_CELL(row, gemv), NK_GPU_CELL(row, gemm), NK_GPU_CELL(row, dual_gemm), NK_GPU_CELL(row, grouped_gemm), \
        NK_GPU_CELL(row, grouped_dual_gemm), NK_GPU_CELL(row, route)

typedef struct nk_peer_row nk_peer_row; /* nk_peer.h */

typedef struct nk_backend nk_backend;
struct nk_backend {
    const char *name;
    int32_t oldest, newest; /* CUDA: the compute capabilities that it serves, 80, 89, 90, .. */
    /* Whether this row can run on this device, here and now. */
    bool (*serves)(const nk_backend *row, nk_device device);
    /* NULL if some device of this machine is served, else the reason; valid until this thread asks another row. */
    const char *(*why_not)(const nk_backend *row);
    nk_status (*warmup)(const nk_backend *row, nk_device device); /* NULL: nothing to load */
    const char *(*needs)(void);       /* of the machine, for people, with what was found; NULL: nothing */
    int32_t (*device_count)(void);    /* devices of its type; asked with `warmup` only */
    const nk_family *const *families; /* whose plans choose from tiles, NULL after the last; NULL: no cell does */
    NK_OPERATORS(NK_CELL)
    const nk_peer_row *peers; /* NULL: a later row's */
};

/* The first row after *row that serves `device` and has a cell of `op`. After NULL it begins with the first of all, or
 * with NVFP4KERN_BACKEND's. */
nk_status nk_backend_pick(nk_device device, const nk_settings *settings, nk_operator op, const nk_backend **row);

/* What the first row that serves `device` and has such functions does between GPUs. */
nk_status nk_backend_peers(nk_device device, const nk_peer_row **peers);

/* The families of all rows, one after the other; NULL past the end. */
const nk_family *nk_backend_family(int i);

/* Lets the caller allocate where its workspace is less than the plan wants. */
nk_status nk_exec_workspace(nk_exec *exec);

/* *settings becomes the caller's settings, or the environment's in *own. */
static inline nk_status nk_exec_settings(const nk_exec *exec, nk_settings *own, const nk_settings **settings)
{
    *settings = exec->settings ? exec->settings : own;
    return exec->settings ? NK_OK : nk_settings_read(own);
}

/* From a plan: its row has no kernel for the problem, and explain shows why. */
static inline nk_status nk_decline(nk_plan *plan, const char *why)
{
    plan->declined_by = plan->backend;
    plan->declined = why;
    return NK_DECLINED;
}

/* Ends an operator: sees to the settings, picks a row and plans; unless this is a dry run or there is nothing to write,
 * sees to the workspace and runs. */
#define NK_DISPATCH(op, problem, exec, empty)                                                                          \
    do {                                                                                                               \
        _Alignas(NK_CHOICE_ALIGNMENT) unsigned char choice_[NK_CHOICE_BYTES];                                          \
        const nk_backend *row_ = NULL;                                                                                 \
        const nk_settings *settings_;                                                                                  \
        nk_settings own_;                                                                                              \
        nk_status planned_;                                                                                            \
        nk_plan *const plan_ = &(exec)->plan;                                                                          \
        *plan_ = (nk_plan){0};                                                                                         \
        NK_TRY(nk_exec_settings((exec), &own_, &settings_));                                                           \
        do {                                                                                                           \
            NK_TRY(nk_backend_pick((problem)->device, settings_, NK_OP_##op, &row_));                                  \
            *plan_ = (nk_plan){.backend = row_->name, .declined_by = plan_->declined_by, .declined = plan_->declined}; \
            planned_ = row_->op.plan((problem), settings_, plan_, choice_);                                            \
        } while (planned_ == NK_DECLINED);                                                                             \
        NK_TRY(planned_);                                                                                              \
        if ((exec)->dry_run || (empty)) return NK_OK;                                                                  \
        NK_TRY(nk_exec_workspace(exec));                                                                               \
        return row_->op.run((problem), choice_, (exec));                                                               \
    } while (0)

#endif
