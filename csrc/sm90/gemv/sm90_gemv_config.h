/* Sizes of the kernels for few tokens, for host and device. */
#ifndef NK_SM90_GEMV_CONFIG_H
#define NK_SM90_GEMV_CONFIG_H

#include "cuda/cuda_tensor_map.h"
#include "nk_format.h"
#include "nk_problem.h"

#define SM90_GEMV_WARPS 16 /* of an SM: two CTAs have half of them each, or one has them all */
#define SM90_GEMV_CHUNK 32 /* elements of a row in one load of a lane: 16 bytes of codes, two scale factors */
#define SM90_GEMV_UNIT 256 /* elements of K at once: two chunks, 64 elements, for each lane of four */
#define SM90_GEMV_CHUNKS (SM90_GEMV_UNIT / SM90_GEMV_CHUNK)
#define SM90_GEMV_WORDS (SM90_GEMV_UNIT / 8) /* of eight codes */
#define SM90_GEMV_OCTET 8  /* rows: a tile is two octets (TALL), or, for one NVFP4 token, one (SHORT) */
#define SM90_GEMV_SLOTS 6  /* octets of a unit that a warp has room for, half of a tile or a tile each */
#define SM90_GEMV_TOKENS 8 /* most tokens: N of an mma */
#define SM90_GEMV_TOKEN_BYTES (SM90_GEMV_UNIT * 2) /* of a unit of a token in 16 bits */
#define SM90_GEMV_TEAM 4                           /* warps that a wgmma takes */
#define SM90_GEMV_CLUSTER 8                        /* at most so many CTAs share rows, each with a part of K */
#define SM90_GEMV_ROWS 512                         /* most rows of a CTA */
#define SM90_GEMV_MOST_TILES (SM90_GEMV_ROWS / (2 * SM90_GEMV_OCTET)) /* of a CTA: those of a warp alone */

/* How the work is dealt out. A cluster of CTAs takes `rows` consecutive rows, each of its CTAs `units` units of K. The
 * steps of a CTA, a unit of a tile each, tile by tile, are cut into runs, one for every team: a warp alone, or the four
 * of a wgmma. */
typedef struct sm90_gemv_work {
    int32_t rows;
    int32_t n, all_places, all_words; /* of the matrix: rows, places below, words of eight codes of a row */
    int32_t atoms_bytes;              /* scale factors of a row of atoms of it, where they are blocked */
    int32_t run;                      /* steps of a team, the same for CTAs with fewer rows */
    int32_t parts;                    /* teams that share a tile, at most */
    int32_t cluster;                  /* CTAs that share rows */
    int32_t ends, ends_inverse;       /* rows that each of them ends, while there are any */
    uint16_t units, all_units;        /* of a CTA, of the matrix */
    uint16_t tokens;
    uint16_t early; /* weights may be read before the kernels before this one have ended */
} sm90_gemv_work;

/* Where a team begins, and how many teams before it have begun that tile. Divisions, which the host does once. Packed:
 * the unit in the low bits, then the tile, then the teams. */
enum { SM90_GEMV_UNIT_BITS = 15, SM90_GEMV_TILE_BITS = 6 };

NK_HD uint32_t sm90_gemv_start(int32_t unit, int32_t tile, int32_t teams_before)
{
    return (uint32_t)((teams_before << SM90_GEMV_TILE_BITS | tile) << SM90_GEMV_UNIT_BITS | unit);
}
NK_HD int32_t sm90_gemv_start_unit(uint32_t start) { return (int32_t)start & ((1 << SM90_GEMV_UNIT_BITS) - 1); }
NK_HD int32_t sm90_gemv_start_tile(uint32_t start)
{
    return (int32_t)(start >> SM90_GEMV_UNIT_BITS) & ((1 << SM90_GEMV_TILE_BITS) - 1);
}
NK_HD int32_t sm90_gemv_teams_before(uint32_t start)
{
    return (int32_t)(start >> (SM90_GEMV_UNIT_BITS + SM90_GEMV_TILE_BITS));
}

/* What a kernel is given. Parameters come to an SM when they are read, in lines of 64 bytes, 70 ns each: what is wanted
 * together lies together, each operand in a line of its own. They begin 16 bytes behind the beginning of one. */
typedef struct sm90_gemv_args {
    sm90_gemv_work work;
    nk_operand b, a;
    nk_output d;
    nk_alpha alpha;
    nk_bias bias;
    uint32_t starts[SM90_GEMV_WARPS][2]; /* of teams; [1]: in a CTA with fewer units of K, or none */
} sm90_gemv_args;

/* Tensor maps of W. Codes: bytes of K, rows of a group, groups, atoms, batches, where scale factors are blocked;
 * otherwise bytes of K, rows, 1, 1, batches. Scale factors: bytes of an atom, atoms of a row of them, rows of atoms,
 * batches; otherwise bytes of K, rows, 1, batches. */
typedef struct sm90_gemv_maps {
    cuda_tensor_map codes, sf;
} sm90_gemv_maps;

NK_HD int64_t sm90_gemv_units(int64_t k) { return nk_ceil_div(k, SM90_GEMV_UNIT); }

/* Rows in the order in which they are dealt out. Blocked: groups of {r, r+32, r+64, r+96}, whose scale factors are
 * neighbours; 32 groups in a full atom, fewer in the last, which may lack rows of a group. */
NK_HD int64_t sm90_gemv_places(int64_t rows, int blocked)
{
    int64_t rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < 32 ? rest : 32) : rows;
}

/* Counted from the beginning of an atom. */
NK_HD int32_t sm90_gemv_blocked_row(int32_t place)
{
    int32_t group = place >> 2;
    return group + (group >> 5) * (NK_SF_ATOM_ROWS - 32) + 32 * (place & 3);
}

/* Where its scale factors begin, a row of atoms being `atoms_bytes`: places were numbered as these lie. */
NK_HD uint32_t sm90_gemv_blocked_factors(uint32_t place, uint32_t atoms_bytes)
{
    return place / NK_SF_ATOM_ROWS * atoms_bytes + place % NK_SF_ATOM_ROWS * NK_SF_ATOM_COLS;
}

/* So many of `teams` share a tile of `units` steps, at most. */
NK_HD int32_t sm90_gemv_teams_of_tile(int32_t units, int32_t run, int32_t teams)
{
    int32_t most = units % run == 0 ? units / run : run % units == 0 ? 1 : (units + run - 2) / run + 1;
    return most < teams ? most : teams;
}

/* A place divided by how many each CTA ends: exact for both up to SM90_GEMV_ROWS. */
#define SM90_GEMV_INVERSE_BITS 20
NK_HD int32_t sm90_gemv_inverse(int32_t ends) { return (1 << SM90_GEMV_INVERSE_BITS) / ends + 1; }
NK_HD int32_t sm90_gemv_divide(int32_t place, int32_t inverse) { return place * inverse >> SM90_GEMV_INVERSE_BITS; }

#endif
