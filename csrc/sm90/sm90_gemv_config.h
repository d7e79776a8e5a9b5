/* Sizes of the kernels for few tokens, for host and device. */
#ifndef NK_SM90_GEMV_CONFIG_H
#define NK_SM90_GEMV_CONFIG_H

#include "../nk_format.h"

#define SM90_GEMV_LOG_WARPS 3
#define SM90_GEMV_WARPS (1 << SM90_GEMV_LOG_WARPS)
#define SM90_GEMV_CTAS_PER_SM 2
#define SM90_GEMV_CHUNK 32 /* elements of a row in one load of a lane: 16 bytes of codes, two scale factors */
#define SM90_GEMV_UNIT 256 /* elements of K at once: two chunks, 64 elements, for each lane of four */
#define SM90_GEMV_CHUNKS (SM90_GEMV_UNIT / SM90_GEMV_CHUNK)
#define SM90_GEMV_WORDS (SM90_GEMV_UNIT / 8) /* of eight codes */
#define SM90_GEMV_OCTET 8                    /* rows: a tile is two octets (TALL), or one where rows are few (SHORT) */
#define SM90_GEMV_SLOTS 6 /* octets of a unit that a warp has room for, half of a tile or a tile each */
#define SM90_GEMV_SLOT_BYTES (SM90_GEMV_OCTET * SM90_GEMV_UNIT * 9 / 16)
#define SM90_GEMV_TOKENS 8       /* most tokens: N of an mma */
#define SM90_GEMV_LOG_CLUSTER 3  /* at most 8 CTAs share rows, each with a part of K */
#define SM90_GEMV_ROWS 512       /* most rows of a CTA */
#define SM90_GEMV_ZERO_BYTES 256 /* what a lane without values reads */

/* How the work is dealt out. A cluster of CTAs takes `rows` consecutive rows, each of its CTAs `units` units of K; in a
 * CTA teams of warps share out the rows, and the warps of a team the units. Powers of two go as logarithms: a division
 * is a tenth of what comes before a warp's first load. */
typedef struct sm90_gemv_params {
    int32_t log_teams, log_cluster;
    int32_t units, rows;
    uint32_t clusters; /* of a batch */
    int32_t early;     /* weights may be read before the kernels before this one have ended */
} sm90_gemv_params;

NK_HD int64_t sm90_gemv_units(int64_t k) { return nk_ceil_div(k, SM90_GEMV_UNIT); }

/* Rows in the order in which they are dealt out. Blocked: groups of {r, r+32, r+64, r+96}, whose scale factors are
 * neighbours; 32 groups in a full atom, fewer in the last, which may lack rows of a group. */
NK_HD int64_t sm90_gemv_places(int64_t rows, int blocked)
{
    int64_t rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < 32 ? rest : 32) : rows;
}

NK_HD int64_t sm90_gemv_row(int64_t place, int blocked)
{
    int64_t group = place >> 2;
    return blocked ? (group >> 5) * NK_SF_ATOM_ROWS + (group & 31) + 32 * (place & 3) : place;
}

/* Shared memory: zeros; the rings [warp][slot] of weights, each lane's own chunks [chunk][lane] and then its scale
 * factors [lane]; the tokens' part of K, decoded, 64 bytes a chunk and token; partial sums [warp of a
 * team][row][token].
 */
#define SM90_GEMV_RING_BYTES (SM90_GEMV_SLOTS * SM90_GEMV_SLOT_BYTES)
#define SM90_GEMV_TOKENS_AT (SM90_GEMV_ZERO_BYTES + SM90_GEMV_WARPS * SM90_GEMV_RING_BYTES)

NK_HD int32_t sm90_gemv_sums_at(int32_t units, int32_t tokens)
{
    return SM90_GEMV_TOKENS_AT + units * SM90_GEMV_CHUNKS * tokens * 64;
}

NK_HD int32_t sm90_gemv_smem(int32_t units, int32_t tokens, int32_t log_teams, int32_t rows)
{
    return sm90_gemv_sums_at(units, tokens) + (SM90_GEMV_WARPS >> log_teams) * rows * tokens * 4;
}

#endif
