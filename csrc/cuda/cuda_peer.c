/* Launches between GPUs: chooses shots and grids, the same on all ranks. */
#include "cuda_peer.h"

#include "nk_format.h"
#include "peer_config.h"

/* Of partial sums, times the ranks that send them to each: what goes in one shot. */
#define ONE_SHOT_BYTES ((int64_t)1 << 20)
#define FEW_THREADS 128

_Static_assert(FEW_THREADS >= NK_MOST_PEERS, "a thread of each CTA waits for each rank");

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

/* Of tokens, or of products: what goes as records where nobody says. None so far: of these kernels the simulator alone
 * has run those with records. */
#define RECORDS_BYTES ((int64_t)0)

/* Whether `bytes` go as records: `wanted` says, or -1. The arena has room for them then. */
static nk_status choose_records(int32_t wanted, int64_t bytes, const nk_peer_group *g, bool *records)
{
    const bool fit = 2 * bytes + 16 * g->world <= PEER_RECORD_BYTES / 2;
    *records = wanted < 0 ? fit && bytes <= RECORDS_BYTES : wanted;
    const int64_t room = *records ? PEER_RECORD_BYTES / 4 : peer_plain_bytes(g->arena_bytes);
    NK_CHECK(*records ? fit : bytes <= room, NK_VALUE_ERROR,
             "arena: room for %lld bytes of a call, expected %lld at least", (long long)room, (long long)bytes);
    return NK_OK;
}

nk_status cuda_peer_dispatch(const nk_peer_dispatch_problem *p, cuda_kernel *const kernels[2], const nk_exec *exec)
{
    nk_peer_dispatch_problem problem = *p;
    bool records = false;
    NK_TRY(choose_records(p->records, p->group.world * p->room * p->sent_bytes, &p->group, &records));
    int32_t threads = FEW_THREADS;
    while (threads < PEER_THREADS && p->sent_bytes > (records ? 8 : 16) * (int64_t)threads)
        threads *= 2;
    cuda_grid grid = {.x = at_most(p->room), .threads = threads, .overlap = exec->settings->pdl != NK_PDL_OFF};
    void *args[] = {&problem};
    return cuda_launch(kernels[records], p->device, exec->stream, &grid, args);
}

nk_status cuda_peer_combine(const nk_peer_combine_problem *p, cuda_kernel *const kernels[2][3], const nk_exec *exec)
{
    nk_peer_combine_problem problem = *p;
    bool records = false;
    NK_TRY(choose_records(p->records, p->room * p->k * p->h * element_bytes(p->dtype), &p->group, &records));
    const int64_t pieces = p->h / 8;
    int32_t threads = PEER_THREADS; /* fewer where that leaves SMs without a CTA, or threads without a piece */
    while (threads > FEW_THREADS && (threads / 2 >= pieces || p->room * nk_ceil_div(pieces, threads) < PEER_MOST_CTAS))
        threads /= 2;
    cuda_grid grid = {.x = at_most(p->room * nk_ceil_div(pieces, threads)),
                      .threads = threads,
                      .overlap = exec->settings->pdl != NK_PDL_OFF};
    void *args[] = {&problem};
    return cuda_launch(kernels[records][which_kernel(p->dtype)], p->device, exec->stream, &grid, args);
}
