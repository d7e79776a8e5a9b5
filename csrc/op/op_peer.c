/* What runs between the GPUs of a group: checks its arguments and picks a row. */
#include "op_check.h"

#include "backend.h"
#include "nk_peer.h"

#include <inttypes.h>

#define ALIGNMENT 16
/* Of an arena. Less would leave no room behind records. */
#define FEWEST_BYTES ((int64_t)32 << 20)

/* Contiguous, and where the kernels' loads can read it. */
static nk_status check_whole(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    int64_t expected = 1;
    NK_TRY(nk_check_tensor(t, dtypes, first));
    for (int d = t->ndim - 1; d >= 0; expected *= t->shape[d--]) {
        NK_CHECK_AT(t->shape[d] <= 1 || t->stride[d] == expected, NK_VALUE_ERROR, t,
                    "strides %s, expected those of a contiguous tensor", nk_stride_text(t).s);
    }
    NK_CHECK_AT((uintptr_t)t->data % ALIGNMENT == 0, NK_VALUE_ERROR, t, "address %p, expected a multiple of %d",
                t->data, ALIGNMENT);
    return NK_OK;
}

static nk_status check_peers(const nk_peer_args *args, nk_peer_group *g)
{
    const nk_tensor *peers = args->peers, *arena = args->arena;
    NK_TRY(check_whole(peers, NK_DTYPE_BIT(NK_I32), peers));
    NK_CHECK_AT(peers->ndim == 2 && peers->shape[1] == 2 && peers->shape[0] > 2 &&
                    peers->shape[0] <= NK_MOST_PEERS + 2,
                NK_VALUE_ERROR, peers, "shape %s, expected [ranks + 2, 2] of 1 to %d ranks", nk_shape_text(peers).s,
                NK_MOST_PEERS);
    *g = (nk_peer_group){.peers = peers->data, .world = (int32_t)(peers->shape[0] - 2)};
    NK_CHECK(args->rank >= 0 && args->rank < g->world, NK_VALUE_ERROR, "rank: %" PRId64 ", expected 0 to %" PRId32,
             args->rank, g->world - 1);
    g->rank = (int32_t)args->rank;
    NK_TRY(check_whole(arena, NK_DTYPE_BIT(NK_U8), peers));
    NK_TRY(nk_check_writable(arena));
    g->arena_bytes = nk_numel(arena);
    NK_CHECK_AT(g->arena_bytes >= FEWEST_BYTES, NK_VALUE_ERROR, arena, "%" PRId64 " bytes, expected at least %" PRId64,
                g->arena_bytes, FEWEST_BYTES);
    return NK_OK;
}

nk_status nk_peer_reduce(const nk_peer_reduce_args *args, nk_exec *exec)
{
    const nk_tensor *peers = args->group.peers, *partial = args->partial, *out = args->out;
    const nk_tensor *inputs[] = {partial, peers, args->group.arena};
    const nk_backend *row = NULL;
    const nk_settings *settings;
    nk_settings own;
    nk_peer_reduce_problem p = {.device = peers->device};
    NK_TRY(check_peers(&args->group, &p.group));
    NK_TRY(check_whole(partial, NK_FLOATS, peers));
    NK_TRY(check_whole(out, NK_FLOATS, peers));
    NK_TRY(nk_check_writable(out));
    NK_CHECK_AT(nk_numel(partial) % 8 == 0, NK_VALUE_ERROR, partial, "%" PRId64 " elements, expected a multiple of 8",
                nk_numel(partial));
    NK_CHECK_AT(nk_numel(out) == nk_numel(partial), NK_VALUE_ERROR, out,
                "%" PRId64 " elements, expected the %" PRId64 " of partial", nk_numel(out), nk_numel(partial));
    NK_TRY(nk_check_disjoint(out, inputs, sizeof inputs / sizeof inputs[0]));
    NK_CHECK(args->shots >= 0 && args->shots <= 2, NK_VALUE_ERROR, "shots: %" PRId64 ", expected 0, 1 or 2",
             args->shots);
    p.partial = partial->data;
    p.out = out->data;
    p.dtype = partial->dtype;
    p.out_dtype = out->dtype;
    p.elements = nk_numel(partial);
    p.shots = (int32_t)args->shots;
    NK_TRY(nk_exec_settings(exec, &own, &settings));
    exec->settings = settings;
    NK_TRY(nk_backend_of_peers(p.device, &row));
    return exec->dry_run ? NK_OK : row->peer_reduce(&p, exec);
}
