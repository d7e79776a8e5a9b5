/* How a launch that the ranks of a group share begins, waits for the others, and ends.
 *
 * Every wait has an end. Where a rank does not come in time, the launch notes which in the header and in the host's
 * word, and goes on without: results are NaN, and -1 of dispatch. So are those of all later launches on this arena,
 * which no longer wait. A launch on another arena of this rank, whose header knows nothing, gives up once it has to
 * wait. */
#ifndef NK_PEER_WAIT_CUH
#define NK_PEER_WAIT_CUH

#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/system.cuh"
#include "peer_config.h"

#define PEER_LOOKS 64 /* of a wait, between two at the clock. Divides 2^32, where looks begin again in a long wait */

/* What a thread knows of the launch. */
typedef struct peer_launch {
    peer_header *header; /* this rank's */
    uint32_t epoch;
    bool failed;    /* before this launch */
    uint64_t start; /* when it first looked at the clock, for all its waits together; 0: not yet */
    uint32_t begun; /* of thread 0: CTAs that had begun before this one */
} peer_launch;

/* The rank that comes `distance` after this one, around the group: so not all send to the same one at once. */
__device__ inline int rank_after(const nk_peer_group &g, int distance)
{
    const int rank = g.rank + distance;
    return rank < g.world ? rank : rank - g.world;
}

__device__ inline uint8_t *arena_of(const nk_peer_group &g, int rank) { return (uint8_t *)g.peers[rank]; }

/* At the start, for all threads. All get the same: another CTA that fails meanwhile notes this epoch. Thread 0 counts
 * its CTA behind the barrier, when the epoch has been read, and looks at the count in the end alone: so nothing waits
 * for it. */
__device__ inline peer_launch begin_peer_launch(const nk_peer_group &g)
{
    __shared__ uint32_t epoch, failed;
    peer_header *header = (peer_header *)g.arena;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait(); /* the launch before has ended */
    if (threadIdx.x == 0) {
        const uint4 words = ld_volatile_v4((const uint4 *)header);
        epoch = words.x + 1;
        failed = words.z;
    }
    __syncthreads();
    const uint32_t begun = threadIdx.x == 0 ? atomicAdd(&header->begun, 1) : 0;
    return {header, epoch, failed && failed != epoch, 0, begun};
}

/* At the end. The last CTA that began sets the epoch which the next launch goes by: all have read this one's. */
__device__ inline void end_peer_launch(const peer_launch &l)
{
    if (threadIdx.x || l.begun != gridDim.x - 1) return;
    l.header->begun = 0;
    l.header->epoch = l.epoch;
}

__device__ inline void note_missing_rank(const nk_peer_group &g, const peer_launch &l, int rank)
{
    if (atomicCAS(&l.header->failed, 0, l.epoch) != 0) return;
    l.header->absent = rank + 1;
    uint32_t *word = (uint32_t *)g.peers[g.world + PEER_HOST_WORD];
    if (word) st_relaxed_sys(word, rank + 1);
}

/* Whether a thread that waits for `rank`, and has looked so often, shall give up. With its first look at the clock it
 * reads the host's word, too, in which a launch on another arena may have noted a rank: not sooner and not again, since
 * that crosses PCIe. */
__device__ inline bool gives_up(const nk_peer_group &g, peer_launch &l, int rank, uint32_t looks)
{
    if (looks % PEER_LOOKS) return false;
    const uint64_t now = mov_globaltimer();
    if (!l.start) {
        const uint32_t *word = (const uint32_t *)g.peers[g.world + PEER_HOST_WORD];
        const uint32_t absent = word ? ld_acquire_sys(word) : 0;
        if (absent) {
            note_missing_rank(g, l, (int)absent - 1);
            return true;
        }
        l.start = now;
    }
    if (now - l.start < (uint64_t)g.peers[g.world + PEER_TIME_LIMIT] && !((volatile peer_header *)l.header)->failed)
        return false;
    note_missing_rank(g, l, rank);
    return true;
}

/* Whether a flag says that its rank is in this epoch, or in the next one already: it gets no further without this rank.
 * Any other flag is of an epoch before, however many launches ago; one that nobody has written looks like epoch 0. */
__device__ inline bool has_arrived(uint32_t flag, uint32_t epoch) { return flag - epoch <= 1; }

/* Tells CTA blockIdx.x of all other ranks what this CTA's threads have written before, and waits until these CTAs have
 * told it the same of theirs. For all threads of a CTA, of which there are at least as many as ranks. False in all of
 * them where a rank has not come. */
__device__ inline bool exchange_arrivals(const nk_peer_group &g, peer_launch &l, int phase)
{
    __shared__ int missing[2]; /* one of each phase: threads may still read that of the phase before */
    const int other = threadIdx.x;
    peer_header *there = other < g.world ? (peer_header *)arena_of(g, other) : NULL;
    if (other == 0) missing[phase] = 0;
    __syncthreads();
    if (there && other != g.rank) {
        fence_acq_rel_sys();
        st_relaxed_sys(&there->arrived[phase][blockIdx.x][g.rank], l.epoch);
        const uint32_t *here = &l.header->arrived[phase][blockIdx.x][other];
        for (uint32_t looks = 1; !has_arrived(ld_acquire_sys(here), l.epoch); looks++) {
            if (!gives_up(g, l, other, looks)) continue;
            atomicOr(&missing[phase], 1);
            break;
        }
    }
    __syncthreads();
    return !missing[phase];
}

#endif
