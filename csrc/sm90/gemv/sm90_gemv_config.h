/* Sizes of the kernels for few tokens, for host and device. */
#ifndef NK_SM90_GEMV_CONFIG_H
#define NK_SM90_GEMV_CONFIG_H

#include "cuda/cuda_tensor_map.h"
#include "nk_format.h"
#include "nk_problem.h"

#define SM90_GEMV_WARPS 16   /* of an SM: one CTA has them all, or two have half of them each */
#define SM90_GEMV_CHUNK 32   /* elements that a lane loads at once: 16 bytes of codes, two scale factors */
#define SM90_GEMV_K_STEP 256 /* elements of a K step: two chunks for each of four lanes */
#define SM90_GEMV_CHUNKS (SM90_GEMV_K_STEP / SM90_GEMV_CHUNK)
#define SM90_GEMV_WORDS (SM90_GEMV_K_STEP / 8) /* of eight codes */
#define SM90_GEMV_OCTET 8  /* rows: a tile has two octets a warp (TALL) or, for one NVFP4 token, one (SHORT) */
#define SM90_GEMV_SLOTS 6  /* of a warp's ring: each holds an octet in one K step */
#define SM90_GEMV_TOKENS 8 /* most tokens: N of an mma */
#define SM90_GEMV_TOKEN_BYTES (SM90_GEMV_K_STEP * 2)                  /* of a 16-bit token in one K step */
#define SM90_GEMV_TEAM 4                                              /* warps that a wgmma takes */
#define SM90_GEMV_CLUSTER 8                                           /* most CTAs that share rows and split K */
#define SM90_GEMV_ROWS 512                                            /* most rows of a CTA */
#define SM90_GEMV_MOST_TILES (SM90_GEMV_ROWS / (2 * SM90_GEMV_OCTET)) /* of a CTA whose teams are single warps */

/* How the work is dealt out. A cluster takes `rows` consecutive positions; each of its CTAs takes `k_steps` K steps of
 * them. A CTA's steps, tile by tile and inside a tile by K, are dealt to its teams: each gets `steps_per_team`
 * consecutive ones. A team is one warp, or the four of a wgmma. */
typedef struct sm90_gemv_work {
    int32_t rows;                        /* of a cluster */
    int32_t n, all_positions, all_words; /* of the matrix: its rows, its positions, words of eight codes of a row */
    int32_t atoms_bytes;                 /* blocked: bytes of a row of SF atoms */
    int32_t steps_per_team;              /* steps of a team; the same in CTAs with fewer rows */
    int32_t parts;                       /* most teams that share a tile */
    int32_t cluster;                     /* CTAs */
    int32_t ends, ends_inverse;    /* rows that a CTA of a cluster ends, the last ones fewer; sm90_gemv_inverse() */
    uint16_t k_steps, all_k_steps; /* of a CTA, of the matrix */
    uint16_t tokens;
    uint16_t early; /* weights may be read before the kernels before this one have ended */
} sm90_gemv_work;

/* Where a team begins, and how many teams begin in the same tile before it. The host packs them, since they take
 * divisions: the K step in the low bits, then the tile, then the teams. */
enum { SM90_GEMV_K_STEP_BITS = 15, SM90_GEMV_TILE_BITS = 6 };

NK_HD uint32_t sm90_gemv_start(int32_t k_step, int32_t tile, int32_t teams_before)
{
    return (uint32_t)((teams_before << SM90_GEMV_TILE_BITS | tile) << SM90_GEMV_K_STEP_BITS | k_step);
}
NK_HD int32_t sm90_gemv_start_k_step(uint32_t start) { return (int32_t)start & ((1 << SM90_GEMV_K_STEP_BITS) - 1); }
NK_HD int32_t sm90_gemv_start_tile(uint32_t start)
{
    return (int32_t)(start >> SM90_GEMV_K_STEP_BITS) & ((1 << SM90_GEMV_TILE_BITS) - 1);
}
NK_HD int32_t sm90_gemv_teams_before(uint32_t start)
{
    return (int32_t)(start >> (SM90_GEMV_K_STEP_BITS + SM90_GEMV_TILE_BITS));
}

/* A kernel's parameters. They come to an SM when they are read, in lines of 64 bytes, 70 ns each. So what is wanted
 * together lies together, and each operand has a line of its own. The first line begins 16 bytes before the struct. */
typedef struct sm90_gemv_args {
    sm90_gemv_work work;
    nk_operand b, a;
    nk_output d;
    nk_alpha alpha;
    nk_bias bias;
    uint32_t starts[SM90_GEMV_WARPS][2]; /* of each team; [1]: in a CTA with fewer K steps */
} sm90_gemv_args;

/* Tensor maps of W. Dimensions of the codes with blocked scale factors: bytes of K, rows of a row quad, row quads,
 * atoms, batches; with linear ones: bytes of K, rows, 1, 1, batches. Dimensions of blocked scale factors: bytes of an
 * atom, atoms of a row of atoms, rows of atoms, batches; of linear ones: bytes of K, rows, 1, batches. */
typedef struct sm90_gemv_maps {
    cuda_tensor_map codes, sf;
} sm90_gemv_maps;

NK_HD int64_t sm90_gemv_k_steps(int64_t k) { return nk_ceil_div(k, SM90_GEMV_K_STEP); }

/* How many positions there are. Rows are dealt out by position. With blocked scale factors that is row quad after row
 * quad: 32 in a full atom, fewer in the last, where a row quad may lack rows. */
NK_HD int64_t sm90_gemv_positions(int64_t rows, int blocked)
{
    int64_t rest = rows % NK_SF_ATOM_ROWS;
    return blocked ? rows - rest + 4 * (rest < 32 ? rest : 32) : rows;
}

/* The row at a position; both are counted from the beginning of an atom. */
NK_HD int32_t sm90_gemv_blocked_row(int32_t position)
{
    int32_t quad = position >> 2;
    return quad + (quad >> 5) * (NK_SF_ATOM_ROWS - 32) + 32 * (position & 3);
}

/* The offset of a position's scale factors. Positions follow their order, so it takes no row. */
NK_HD uint32_t sm90_gemv_blocked_factors(uint32_t position, uint32_t atoms_bytes)
{
    return position / NK_SF_ATOM_ROWS * atoms_bytes + position % NK_SF_ATOM_ROWS * NK_SF_ATOM_COLS;
}

/* How many of `teams` share a tile of `k_steps` steps, at most. */
NK_HD int32_t sm90_gemv_teams_of_tile(int32_t k_steps, int32_t steps_per_team, int32_t teams)
{
    int32_t most = k_steps % steps_per_team == 0   ? k_steps / steps_per_team
                   : steps_per_team % k_steps == 0 ? 1
                                                   : (k_steps + steps_per_team - 2) / steps_per_team + 1;
    return most < teams ? most : teams;
}

/* A position divided by how many rows each CTA ends. It is exact for both up to SM90_GEMV_ROWS. */
#define SM90_GEMV_INVERSE_BITS 20
NK_HD int32_t sm90_gemv_inverse(int32_t ends) { return (1 << SM90_GEMV_INVERSE_BITS) / ends + 1; }
NK_HD int32_t sm90_gemv_divide(int32_t position, int32_t inverse)
{
    return position * inverse >> SM90_GEMV_INVERSE_BITS;
}

#endif
