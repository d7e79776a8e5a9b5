/* What lies where in the memory that the GPUs of a group share, for host and device.
 *
 * Each rank has an arena of the same size: a header, records (peer_records.cuh) and plain bytes. Of records and of
 * bytes there are two halves. A launch, the same one on all ranks, is an epoch, counted in the header, and uses the
 * half of the epoch's parity.
 *
 * Two halves suffice, without a barrier between launches. A rank ends epoch e + 1 only once it has got something from
 * every other rank in that epoch. These send in e + 1 only behind the end of their epoch e, since launches of one
 * stream follow each other. So what is written in epoch e + 2 into a half of rank s comes behind the end of epoch e on
 * s, and nobody reads there any more what epoch e has left.
 *
 * A GPU may have room for fewer CTAs than a launch has, and starts them in their order then. The launch still ends,
 * since CTA i waits for CTA i of the other ranks alone. */
#ifndef NK_PEER_CONFIG_H
#define NK_PEER_CONFIG_H

#include "nk_format.h"
#include "nk_peer.h"

#define PEER_THREADS 512   /* of a CTA, at most */
#define PEER_MOST_CTAS 128 /* of a launch */
#define PEER_COPY_BYTES 64 /* that a thread loads at once where a CTA copies */

/* At the start of an arena, and zero before the first launch. The first four words are the rank's own. */
typedef struct peer_header {
    uint32_t epoch;  /* of launches whose CTAs have all begun */
    uint32_t begun;  /* CTAs of this launch that have */
    uint32_t failed; /* the epoch in which a rank did not come in time; 0: all have */
    uint32_t absent; /* 1 + that rank */
    uint32_t unused[28];
    uint32_t arrived[2][PEER_MOST_CTAS][NK_MOST_PEERS]; /* [phase][CTA][from], the epoch: others write here */
} peer_header;

/* Records of both halves, of all ranks. */
#define PEER_RECORD_BYTES ((int64_t)16 << 20)

/* What follows the addresses of the ranks' arenas in `peers`. */
enum { PEER_HOST_WORD, PEER_TIME_LIMIT };

NK_HD int64_t peer_records_at(int half) { return (int64_t)sizeof(peer_header) + half * (PEER_RECORD_BYTES / 2); }

/* Plain bytes of one half, of an arena of `bytes`. */
NK_HD int64_t peer_plain_bytes(int64_t bytes)
{
    return (bytes - (int64_t)sizeof(peer_header) - PEER_RECORD_BYTES) / 2 / 16 * 16;
}

NK_HD int64_t peer_plain_at(int64_t bytes, int half)
{
    return (int64_t)sizeof(peer_header) + PEER_RECORD_BYTES + half * peer_plain_bytes(bytes);
}

#endif
