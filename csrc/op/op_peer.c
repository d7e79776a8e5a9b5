/* What runs between the GPUs of a group: checks its arguments and picks a row. */
#include "op_check.h"

#include "backend.h"
#include "nk_peer.h"

#include <inttypes.h>

#define ALIGNMENT 16
/* Of an arena. Less would leave no room behind records. */
#define FEWEST_BYTES ((int64_t)32 << 20)

/* Contiguous. */
static nk_status check_whole(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    int64_t expected = 1;
    NK_TRY(nk_check_tensor(t, dtypes, first));
    for (int d = t->ndim - 1; d >= 0 && nk_numel(t); expected *= t->shape[d--]) {
        NK_CHECK_AT(t->shape[d] <= 1 || t->stride[d] == expected, NK_VALUE_ERROR, t,
                    "strides %s, expected those of a contiguous tensor", nk_stride_text(t).s);
    }
    return NK_OK;
}

/* The same, of what loads and stores of 16 bytes reach. */
static nk_status check_aligned(const nk_tensor *t, unsigned dtypes, const nk_tensor *first)
{
    NK_TRY(check_whole(t, dtypes, first));
    NK_CHECK_AT((uintptr_t)t->data % ALIGNMENT == 0, NK_VALUE_ERROR, t, "address %p, expected a multiple of %d",
                t->data, ALIGNMENT);
    return NK_OK;
}

static nk_status check_peers(const nk_peer_args *args, nk_peer_group *g)
{
    const nk_tensor *peers = args->peers, *arena = args->arena;
    NK_TRY(check_aligned(peers, NK_DTYPE_BIT(NK_I32), peers));
    NK_CHECK_AT(peers->ndim == 2 && peers->shape[1] == 2 && peers->shape[0] > 2 &&
                    peers->shape[0] <= NK_MOST_PEERS + 2,
                NK_VALUE_ERROR, peers, "shape %s, expected [ranks + 2, 2] of 1 to %d ranks", nk_shape_text(peers).s,
                NK_MOST_PEERS);
    *g = (nk_peer_group){.peers = peers->data, .world = (int32_t)(peers->shape[0] - 2)};
    NK_CHECK(args->rank >= 0 && args->rank < g->world, NK_VALUE_ERROR, "rank: %" PRId64 ", expected 0 to %" PRId32,
             args->rank, g->world - 1);
    g->rank = (int32_t)args->rank;
    NK_TRY(check_aligned(arena, NK_DTYPE_BIT(NK_U8), peers));
    NK_TRY(nk_check_writable(arena));
    g->arena = arena->data;
    g->arena_bytes = nk_numel(arena);
    NK_CHECK_AT(g->arena_bytes >= FEWEST_BYTES, NK_VALUE_ERROR, arena, "%" PRId64 " bytes, expected at least %" PRId64,
                g->arena_bytes, FEWEST_BYTES);
    return NK_OK;
}

static nk_status check_shape(const nk_tensor *t, int64_t rows, int64_t cols, const char *what)
{
    NK_CHECK_AT(t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols, NK_VALUE_ERROR, t,
                "shape %s, expected (%" PRId64 ", %" PRId64 "): %s", nk_shape_text(t).s, rows, cols, what);
    return NK_OK;
}

/* The row of the backend table, and the settings of the call. */
static nk_status prepare(nk_device device, nk_exec *exec, nk_settings *own, const nk_peer_row **peers)
{
    const nk_settings *settings;
    NK_TRY(nk_exec_settings(exec, own, &settings));
    exec->settings = settings;
    return nk_backend_peers(device, peers);
}

nk_status nk_peer_reduce(const nk_peer_reduce_args *args, nk_exec *exec)
{
    const nk_tensor *peers = args->group.peers, *partial = args->partial, *out = args->out;
    const nk_tensor *inputs[] = {partial, peers, args->group.arena};
    const nk_peer_row *row = NULL;
    nk_settings own;
    nk_peer_reduce_problem p = {.device = peers->device};
    NK_TRY(check_peers(&args->group, &p.group));
    NK_TRY(check_aligned(partial, NK_FLOATS, peers));
    NK_TRY(check_aligned(out, NK_FLOATS, peers));
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
    NK_TRY(prepare(p.device, exec, &own, &row));
    return row->reduce(&p, exec);
}

/* ids [n, k] of `experts`, each rank with one at least. */
static nk_status check_ids(const nk_tensor *ids, int64_t experts, const nk_peer_group *g, const nk_tensor *first,
                           nk_peer_experts *checked)
{
    NK_TRY(check_whole(ids, NK_DTYPE_BIT(NK_I32), first));
    NK_CHECK_AT(ids->ndim == 2 && ids->shape[1] > 0 && ids->shape[1] <= NK_MOST_PEER_SELECTIONS, NK_VALUE_ERROR, ids,
                "shape %s, expected [n, k] with k of 1 to %d", nk_shape_text(ids).s, NK_MOST_PEER_SELECTIONS);
    NK_CHECK(experts >= g->world && experts <= INT32_MAX, NK_VALUE_ERROR,
             "experts: %" PRId64 ", expected one for each of %" PRId32 " ranks", experts, g->world);
    const int32_t all = (int32_t)experts;
    *checked = (nk_peer_experts){.all = all, .each = all / g->world, .more = all % g->world};
    return NK_OK;
}

/* Rows of each rank's tokens, at least n. */
static nk_status check_room_of(const nk_tensor *t, int64_t rows, int64_t n, const nk_peer_group *g, int64_t *room)
{
    *room = rows / g->world;
    NK_CHECK_AT(rows % g->world == 0 && *room >= n, NK_VALUE_ERROR, t,
                "room for %" PRId64 " tokens, expected a multiple of %" PRId32 " ranks, at least %" PRId64 " of each",
                rows, g->world, n);
    return NK_OK;
}

/* Rows of bytes, and the output that gets some of them. */
static nk_status check_sent(const nk_tensor *rows, int64_t n, const nk_tensor *out, int64_t all, const nk_tensor *first,
                            int64_t *bytes)
{
    NK_TRY(check_aligned(rows, NK_DTYPE_BIT(NK_U8), first));
    NK_TRY(check_aligned(out, NK_DTYPE_BIT(NK_U8), first));
    NK_TRY(nk_check_writable(out));
    NK_CHECK_AT(rows->ndim == 2 && rows->shape[0] == n && rows->shape[1] % ALIGNMENT == 0, NK_VALUE_ERROR, rows,
                "shape %s, expected (%" PRId64 ", bytes), a multiple of %d", nk_shape_text(rows).s, n, ALIGNMENT);
    *bytes = rows->shape[1];
    return check_shape(out, all, *bytes, "a row for each token of each rank");
}

nk_status nk_peer_dispatch(const nk_peer_dispatch_args *args, nk_exec *exec)
{
    const nk_tensor *peers = args->group.peers, *ids = args->ids;
    const nk_peer_row *row = NULL;
    nk_settings own;
    nk_peer_dispatch_problem p = {.device = peers->device};
    NK_TRY(check_peers(&args->group, &p.group));
    NK_TRY(check_ids(ids, args->experts, &p.group, peers, &p.experts));
    NK_TRY(check_whole(args->out_ids, NK_DTYPE_BIT(NK_I32), peers));
    NK_TRY(nk_check_writable(args->out_ids));
    p.n = ids->shape[0];
    const int64_t all = args->out_ids->ndim ? args->out_ids->shape[0] : 0;
    NK_TRY(check_room_of(args->out_ids, all, p.n, &p.group, &p.room));
    NK_TRY(check_shape(args->out_ids, all, ids->shape[1], "as ids has columns"));
    NK_TRY(check_sent(args->tokens, p.n, args->out_tokens, all, peers, &p.token_bytes));
    NK_CHECK(!args->scales == !args->out_scales, NK_VALUE_ERROR, "out_scales: expected where scales are given");
    if (args->scales) NK_TRY(check_sent(args->scales, p.n, args->out_scales, all, peers, &p.scale_bytes));
    const nk_tensor *others[] = {args->tokens,     args->scales,     ids,           peers, args->group.arena,
                                 args->out_tokens, args->out_scales, args->out_ids};
    const nk_tensor *outputs[] = {args->out_tokens, args->out_scales, args->out_ids};
    for (int i = 0; i < 3; i++) {
        if (outputs[i]) NK_TRY(nk_check_disjoint(outputs[i], others, sizeof others / sizeof others[0]));
    }
    p.tokens = args->tokens->data;
    p.scales = args->scales ? args->scales->data : NULL;
    p.ids = ids->data;
    p.k = (int32_t)ids->shape[1];
    p.sent_bytes = p.token_bytes + p.scale_bytes + nk_ceil_div(4 * (int64_t)p.k, ALIGNMENT) * ALIGNMENT;
    p.out_tokens = args->out_tokens->data;
    p.out_scales = args->out_scales ? args->out_scales->data : NULL;
    p.out_ids = args->out_ids->data;
    NK_TRY(prepare(p.device, exec, &own, &row));
    return p.room ? row->dispatch(&p, exec) : NK_OK;
}

nk_status nk_peer_combine(const nk_peer_combine_args *args, nk_exec *exec)
{
    const nk_tensor *peers = args->group.peers, *ids = args->ids, *products = args->products, *out = args->out;
    const nk_tensor *residual = args->residual, *row_of = args->row_of;
    const nk_peer_row *row = NULL;
    nk_settings own;
    nk_peer_combine_problem p = {.device = peers->device};
    NK_TRY(check_peers(&args->group, &p.group));
    NK_TRY(check_ids(ids, args->experts, &p.group, peers, &p.experts));
    NK_TRY(check_aligned(products, NK_FLOATS, peers));
    NK_CHECK_AT(products->ndim == 2 && products->shape[1] % 8 == 0, NK_VALUE_ERROR, products,
                "shape %s, expected [P, H] with an H of a multiple of 8", nk_shape_text(products).s);
    p.n = ids->shape[0];
    p.k = (int32_t)ids->shape[1];
    p.rows = products->shape[0];
    p.h = products->shape[1];
    NK_TRY(check_whole(row_of, NK_DTYPE_BIT(NK_I32), peers));
    NK_CHECK_AT(row_of->ndim == 1 && row_of->shape[0] % p.k == 0, NK_VALUE_ERROR, row_of,
                "shape %s, expected [ranks room k] of a k of %" PRId32, nk_shape_text(row_of).s, p.k);
    NK_TRY(check_room_of(row_of, row_of->shape[0] / p.k, p.n, &p.group, &p.room));
    NK_TRY(check_whole(args->weights, NK_FLOATS, peers));
    NK_TRY(check_shape(args->weights, p.n, p.k, "a weight for each of ids"));
    if (residual) NK_TRY(check_whole(residual, NK_FLOATS, peers));
    if (residual) NK_TRY(check_shape(residual, p.n, p.h, "that of the result"));
    NK_TRY(check_aligned(out, NK_FLOATS, peers));
    NK_TRY(nk_check_writable(out));
    NK_TRY(check_shape(out, p.n, p.h, "the rank's tokens"));
    const nk_tensor *others[] = {products, row_of, ids, args->weights, residual, peers, args->group.arena};
    NK_TRY(nk_check_disjoint(out, others, sizeof others / sizeof others[0]));
    p.products = products->data;
    p.residual = residual ? residual->data : NULL;
    p.row_of = row_of->data;
    p.ids = ids->data;
    p.weights = args->weights->data;
    p.weight_dtype = args->weights->dtype;
    p.weight_size = (int32_t)nk_dtype_size(p.weight_dtype);
    p.out = out->data;
    p.dtype = products->dtype;
    p.residual_dtype = residual ? residual->dtype : NK_F32;
    p.out_dtype = out->dtype;
    p.residual_size = (int32_t)nk_dtype_size(p.residual_dtype);
    p.out_size = (int32_t)nk_dtype_size(p.out_dtype);
    NK_TRY(prepare(p.device, exec, &own, &row));
    return p.room && p.h ? row->combine(&p, exec) : NK_OK;
}
