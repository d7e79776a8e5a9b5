/* How long one launch for a list of groups takes: the model that plans choose widths by. */
#ifndef NK_SM90_LIST_MODEL_H
#define NK_SM90_LIST_MODEL_H

#include "sm90_gemm_model.h"
#include "sm90_list.h"

/* All that a choice depends on, as whole words: a memo compares them. */
typedef struct sm90_list_sizes {
    const cuda_gpu *gpu;
    int32_t count, lanes_copy;
    struct {
        int32_t m, n, k;
    } group[SM90_LIST_MAX_GROUPS];
} sm90_list_sizes;

/* The groups' tiles, the longest first. */
typedef struct sm90_list_arrangement {
    int32_t tile;
    double us;
    sm90_list_member member[SM90_LIST_MAX_GROUPS];
} sm90_list_arrangement;

static inline int64_t sm90_list_tiles_of(const sm90_list_sizes *s, int tile, const sm90_list_member *member)
{
    return nk_ceil_div(s->group[member->group].m, member->tokens) *
           nk_ceil_div(s->group[member->group].n, sm90_gemm_shapes[tile].rows);
}

static inline int64_t sm90_list_tiles(const sm90_list_sizes *s, const sm90_list_arrangement *a)
{
    int64_t tiles = 0;
    for (int i = 0; i < s->count; i++)
        tiles += sm90_list_tiles_of(s, a->tile, &a->member[i]);
    return tiles;
}

/* Of a tile of a group, where all SMs are busy. */
static inline double sm90_list_tile_us(const sm90_list_sizes *s, int tile, const sm90_list_member *member)
{
    sm90_gemm_shape t = sm90_gemm_shapes[tile];
    t.tokens = member->tokens;
    const int64_t slots = nk_ceil_div(nk_ceil_div(s->group[member->group].k, SM90_GEMM_STEP), t.steps);
    return (double)(slots * t.steps) * sm90_gemm_step_us(&t, s->lanes_copy) + SM90_GEMM_TILE_US +
           t.tokens * SM90_GEMM_TILE_TOKEN_US;
}

/* How long the CTA takes that takes longest, when tiles are dealt forth and back. */
static inline double sm90_list_longest_us(const sm90_list_sizes *s, const sm90_list_arrangement *a)
{
    enum { MANY = 64 }; /* waves: then all CTAs take the same but for a tile */
    const int64_t ctas = s->gpu->sms, tiles = sm90_list_tiles(s, a);
    double us[SM90_LIST_MAX_GROUPS], all = 0, longest = 0;
    for (int i = 0; i < s->count; i++) {
        us[i] = sm90_list_tile_us(s, a->tile, &a->member[i]);
        all += us[i] * (double)sm90_list_tiles_of(s, a->tile, &a->member[i]);
    }
    if (tiles > MANY * ctas) return all / (double)ctas + us[0];
    for (int64_t cta = 0; cta < ctas; cta++) {
        double sum = 0;
        int64_t place = cta, begin = 0;
        for (int64_t first = 0, i = 0; first + place < tiles; first += ctas, place = ctas - 1 - place) {
            int64_t next;
            while (first + place >= (next = begin + sm90_list_tiles_of(s, a->tile, &a->member[i])))
                begin = next, i++;
            sum += us[i];
        }
        longest = sm90_gemm_larger(longest, sum);
    }
    return longest;
}

static inline int64_t sm90_list_longest_k(const sm90_list_sizes *s)
{
    int64_t k = 0;
    for (int i = 0; i < s->count; i++)
        k = s->group[i].k > k ? s->group[i].k : k;
    return k;
}

/* Microseconds of both launches. */
static inline double sm90_list_us(const sm90_list_sizes *s, const sm90_list_arrangement *a)
{
    double tokens = 0, weights = 0;
    for (int i = 0; i < s->count; i++) {
        tokens += 2.0 * s->group[i].m * s->group[i].k;
        weights += 9.0 / 16 * s->group[i].n * s->group[i].k;
    }
    const double loop = (1 + SM90_GEMM_BUSY) * sm90_list_longest_us(s, a);
    return SM90_GEMM_LAUNCH_US + tokens / SM90_GEMM_TOKEN_BYTES_PER_US +
           sm90_gemm_larger(loop, weights / SM90_GEMM_BYTES_PER_US);
}

/* Microseconds of a gemm for each group, one after the other. */
static inline double sm90_list_apart_us(const sm90_list_sizes *s)
{
    double sum = 0;
    for (int i = 0; i < s->count; i++) {
        const sm90_gemm_sizes one = {.gpu = s->gpu,
                                     .l = 1,
                                     .m = s->group[i].m,
                                     .n = s->group[i].n,
                                     .k = s->group[i].k,
                                     .matrices = 1,
                                     .lanes_copy = s->lanes_copy};
        double best = sm90_gemm_us(&one, &sm90_gemm_shapes[0]);
        for (int tile = 1; tile < SM90_GEMM_TILE_COUNT; tile++) {
            const double us = sm90_gemm_us(&one, &sm90_gemm_shapes[tile]);
            best = us < best ? us : best;
        }
        sum += best;
    }
    return sum;
}

#endif
