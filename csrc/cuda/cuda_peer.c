/* Launches between GPUs: chooses shots and grids, the same on all ranks. */
#include "cuda_peer.h"

#include "nk_format.h"
#include "peer_config.h"

/* Of partial sums, times the ranks that send them to each: what goes in one shot. */
#define ONE_SHOT_BYTES ((int64_t)1 << 20)
#define FEW_THREADS 128

_Static_assert(FEW_THREADS >= NK_MOST_PEERS, "a thread of each CTA waits for each rank");
_Static_assert(FEW_THREADS >= NK_MOST_PEER_SELECTIONS, "a thread of each CTA looks for each product of a token");

static int64_t at_most(int64_t ctas) { return ctas < PEER_MOST_CTAS ? ctas : PEER_MOST_CTAS; }

static int64_t element_bytes(nk_dtype dtype) { return dtype == NK_F32 ? 4 : 2; }

static int which_kernel(nk_dtype dtype) { return dtype == NK_F16 ? 0 : dtype == NK_BF16 ? 1 : 2; }

/* CTAs of few threads, so that many SMs have one; of more where PEER_MOST_CTAS are too few. The grid depends on sizes
 * alone, since ranks may have different GPUs. */
static cuda_grid grid_of(int64_t items)
{
    int32_t threads = FEW_THREADS;
    while (threads < PEER_THREADS && items > (int64_t)PEER_MOST_CTAS * threads)
        threads *= 2;
    return (cuda_grid){.x = at_most(nk_ceil_div(items, threads)), .threads = threads};
}

/* The grid of a launch whose CTAs do `parts` of so many tokens in turns, and how they go through these. */
static nk_peer_units schedule(int64_t tokens, int64_t parts, cuda_grid *grid)
{
    grid->x = at_most(tokens * parts);
    return (nk_peer_units){
        .parts = (int32_t)parts, .tokens_on = (int32_t)(grid->x / parts), .parts_on = (int32_t)(grid->x % parts)};
}

/* What one launch takes of them. */
static int64_t most_elements(const nk_peer_reduce_problem *p, int64_t in, int64_t out)
{
    const int64_t world = p->group.world, bytes = peer_plain_bytes(p->group.arena_bytes);
    if (p->shots == 1) return PEER_RECORD_BYTES / 2 / (2 * world * in) / 8 * 8;
    return (bytes - world * 8 * in) / (in + out) / 8 * 8; /* a share is rounded up to 8 */
}

nk_status cuda_peer_reduce(const nk_peer_reduce_problem *p, const cuda_peer_reduce_kernels *kernels,
                           const nk_exec *exec)
{
    nk_peer_reduce_problem part = *p;
    const int64_t in = element_bytes(p->dtype), out = element_bytes(p->out_dtype);
    if (!part.shots) part.shots = (p->group.world - 1) * p->elements * in <= ONE_SHOT_BYTES ? 1 : 2;
    const bool one = part.shots == 1;
    const int64_t most = most_elements(&part, in, out);
    cuda_kernel *kernel = (one ? kernels->one_shot : kernels->two_shot)[which_kernel(p->dtype)];
    void *args[] = {&part};
    for (int64_t done = 0; done < p->elements; done += part.elements) {
        part.partial = p->partial + done * in;
        part.out = p->out + done * out;
        part.elements = p->elements - done < most ? p->elements - done : most;
        cuda_grid grid = grid_of(one ? part.elements * in / 8 : nk_ceil_div(part.elements / 8, p->group.world));
        grid.overlap = exec->settings->pdl != NK_PDL_OFF;
        NK_TRY(cuda_launch(kernel, p->device, exec->stream, &grid, args));
    }
    return NK_OK;
}

/* What all of a call's tokens, or products, take of the arena. */
static nk_status check_room(const nk_peer_group *g, int64_t bytes)
{
    const int64_t room = peer_plain_bytes(g->arena_bytes);
    NK_CHECK(bytes <= room, NK_VALUE_ERROR, "arena: room for %lld bytes of a call, expected %lld at least",
             (long long)room, (long long)bytes);
    return NK_OK;
}

nk_status cuda_peer_dispatch(const nk_peer_dispatch_problem *p, cuda_kernel *kernel, const nk_exec *exec)
{
    nk_peer_dispatch_problem problem = *p;
    NK_TRY(check_room(&p->group, p->group.world * p->room * p->sent_bytes));
    int32_t threads = FEW_THREADS;
    while (threads < PEER_THREADS && p->sent_bytes > PEER_COPY_BYTES * (int64_t)threads)
        threads *= 2;
    cuda_grid grid = {.threads = threads, .overlap = exec->settings->pdl != NK_PDL_OFF};
    problem.units = schedule(p->room, p->group.world, &grid);
    void *args[] = {&problem};
    return cuda_launch(kernel, p->device, exec->stream, &grid, args);
}

nk_status cuda_peer_combine(const nk_peer_combine_problem *p, cuda_kernel *const kernels[3], const nk_exec *exec)
{
    nk_peer_combine_problem problem = *p;
    NK_TRY(check_room(&p->group, p->room * p->k * p->h * element_bytes(p->dtype)));
    const int64_t pieces = p->h / 8;
    int32_t threads = PEER_THREADS; /* fewer where that leaves SMs without a CTA, or threads without a piece */
    while (threads > FEW_THREADS && (threads / 2 >= pieces || p->room * nk_ceil_div(pieces, threads) < PEER_MOST_CTAS))
        threads /= 2;
    cuda_grid grid = {.threads = threads, .overlap = exec->settings->pdl != NK_PDL_OFF};
    problem.units = schedule(p->room, nk_ceil_div(pieces, threads), &grid);
    void *args[] = {&problem};
    return cuda_launch(kernels[which_kernel(p->dtype)], p->device, exec->stream, &grid, args);
}
