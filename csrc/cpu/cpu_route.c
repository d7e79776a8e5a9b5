/* route: logits = alpha X W^T, the k best experts of each token by key, and their weights. A larger key goes first, of
 * equal keys that of the lower expert, NaN after every number. docs/contract.md has the exact rules. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_pool.h"
#include "cpu_tile.h"

#define MAX_ROWS 32 /* tokens of one job */
#define FEWEST_ROWS 8
#define BRACKET 16    /* experts that compete first */
#define SELECTION 16. /* multiply-adds that take as long as selecting from one logit */

_Static_assert(NK_MAX_EXPERTS % BRACKET == 0 && NK_MAX_EXPERTS <= 1 << 16, "ranks");

typedef struct route_call {
    const nk_route_problem *problem;
    cpu_means means;
    int64_t rows; /* of a job */
} route_call;

/* Whether a key goes before that of a lower index, which wins ties. */
static bool beats(float key, float lower_indexed)
{
    return key > lower_indexed || (isnan(lower_indexed) && !isnan(key));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Selection                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A number that is larger the earlier a key goes. Floats compare as their bits do once the bits of negative ones are
 * inverted and -0 is made 0. Of equal keys that of the lower index goes first. */
static int64_t rank(float key, int64_t index)
{
    int32_t bits = (int32_t)nk_bits_of_float(key + 0.0f);
    int32_t order = isnan(key) ? INT32_MIN : bits < 0 ? bits ^ INT32_MAX : bits;
    return (int64_t)order * (1 << 16) - index;
}

static int64_t largest_of_bracket(const int64_t ranks[BRACKET])
{
    int64_t most = INT64_MIN;
    for (int64_t i = 0; i < BRACKET; i++)
        most = ranks[i] > most ? ranks[i] : most;
    return most;
}

/* The indices of the `count` best keys among those with allowed[i] (NULL: all), best first. Each bracket has a leader.
 * Once a leader has won, only its own bracket must find another. */
static void select_best(const float *keys, const bool *allowed, int64_t n, int64_t count, int32_t *best)
{
    int64_t ranks[NK_MAX_EXPERTS], leaders[NK_MAX_EXPERTS / BRACKET], brackets = nk_ceil_div(n, BRACKET);
    for (int64_t i = 0; i < brackets * BRACKET; i++)
        ranks[i] = i >= n || (allowed && !allowed[i]) ? INT64_MIN : rank(keys[i], i);
    for (int64_t t = 0; t < brackets; t++)
        leaders[t] = largest_of_bracket(ranks + t * BRACKET);
    for (int64_t j = 0; j < count; j++) {
        int64_t winner = INT64_MIN;
        for (int64_t t = 0; t < brackets; t++)
            winner = leaders[t] > winner ? leaders[t] : winner;
        int64_t index = -winner & 0xFFFF;
        best[j] = (int32_t)index;
        ranks[index] = INT64_MIN;
        leaders[index / BRACKET] = largest_of_bracket(ranks + index / BRACKET * BRACKET);
    }
}

/* The score of an expert group: its largest key or, with a correction bias, the sum of its two largest (DeepSeek-V3).
 * NaN keys do not count; a group of only NaN keys scores NaN. */
static float group_score(const float *keys, int64_t size, bool top2)
{
    float first = NAN, second = NAN;
    for (int64_t i = 0; i < size; i++) {
        if (isnan(keys[i])) continue;
        if (beats(keys[i], first)) {
            second = first;
            first = keys[i];
        } else if (beats(keys[i], second)) {
            second = keys[i];
        }
    }
    return top2 && !isnan(second) ? first + second : first;
}

static float sum_values(const float *values, int64_t count)
{
    float sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* exp(v - largest), of which the sum is returned. */
static float exponentials(const route_call *c, float *values, float largest, int64_t count)
{
    c->means.path->exp(values, largest, count);
    return sum_values(values, count);
}

/* Leaves NaN out; its exponential makes the sum NaN. */
static float largest_of(const float *values, int64_t count)
{
    float largest = -INFINITY;
    for (int64_t i = 0; i < count; i++)
        largest = values[i] > largest ? values[i] : largest;
    return largest;
}

/* What a correction bias is added to. */
static void score_experts(const route_call *c, const float *logits, float *scores)
{
    const nk_route_problem *p = c->problem;
    if (p->score == NK_SIGMOID) {
        c->means.path->sigmoid(logits, p->n, scores);
    } else if (p->score == NK_SQRT_SOFTPLUS) {
        c->means.path->sqrt_softplus(logits, p->n, scores);
    } else {
        memcpy(scores, logits, (size_t)p->n * sizeof *scores);
        if (p->score != NK_SOFTMAX_TOPK) return;
        float sum = exponentials(c, scores, largest_of(logits, p->n), p->n);
        for (int64_t n = 0; n < p->n; n++)
            scores[n] /= sum;
    }
}

static void select_experts(const route_call *c, const float *logits, int32_t *ids)
{
    const nk_route_problem *p = c->problem;
    float keys[NK_MAX_EXPERTS], scores[NK_MAX_EXPERTS];
    bool allowed[NK_MAX_EXPERTS] = {false};
    int32_t groups[NK_MAX_EXPERTS];
    if (p->correction_bias) {
        score_experts(c, logits, keys);
        for (int64_t n = 0; n < p->n; n++)
            keys[n] += p->correction_bias[n * p->correction_bias_stride];
    } else {
        memcpy(keys, logits, (size_t)p->n * sizeof *keys);
    }
    if (p->topk_group == p->n_group) {
        select_best(keys, NULL, p->n, p->top_k, ids);
        return;
    }
    int64_t size = p->n / p->n_group;
    for (int64_t g = 0; g < p->n_group; g++)
        scores[g] = group_score(keys + g * size, size, p->correction_bias != NULL);
    select_best(scores, NULL, p->n_group, p->topk_group, groups);
    for (int64_t i = 0; i < p->topk_group; i++) {
        for (int64_t n = groups[i] * size; n < (groups[i] + 1) * size; n++)
            allowed[n] = true;
    }
    select_best(keys, allowed, p->n, p->top_k, ids);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Weights                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static void pick_values(const float *from, const int32_t *ids, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from[ids[i]];
}

/* Where keys are the logits, the first selected one is the largest of the selected and of all; if it is not, a logit is
 * NaN, and so is the sum. With a correction bias the largest is sought. */
static void softmax(const route_call *c, const float *logits, const int32_t *ids, float *weights)
{
    const nk_route_problem *p = c->problem;
    float all[NK_MAX_EXPERTS], largest = logits[ids[0]], sum;
    /* A renormalised softmax over all experts is the softmax of the selected, since its denominator cancels. */
    if (p->score == NK_SOFTMAX_TOPK && !p->renormalize) {
        memcpy(all, logits, (size_t)p->n * sizeof *all);
        if (p->correction_bias) largest = largest_of(all, p->n);
        sum = exponentials(c, all, largest, p->n);
        pick_values(all, ids, p->top_k, weights);
    } else {
        pick_values(logits, ids, p->top_k, weights);
        if (p->correction_bias) largest = largest_of(weights, p->top_k);
        sum = exponentials(c, weights, largest, p->top_k);
    }
    for (int64_t i = 0; i < p->top_k; i++)
        weights[i] /= sum;
}

/* Scores of the selected, each of its own logit alone. */
static void scores_of_selected(const route_call *c, const float *logits, const int32_t *ids, float *weights)
{
    const nk_route_problem *p = c->problem;
    float picked[NK_MAX_TOP_K], sum = 1e-20f; /* as in DeepSeek-V3: weights that are all zero stay zero */
    pick_values(logits, ids, p->top_k, picked);
    if (p->score == NK_SIGMOID)
        c->means.path->sigmoid(picked, p->top_k, weights);
    else
        c->means.path->sqrt_softplus(picked, p->top_k, weights);
    if (!p->renormalize) return;
    sum += sum_values(weights, p->top_k);
    for (int64_t i = 0; i < p->top_k; i++)
        weights[i] /= sum;
}

static void weigh(const route_call *c, const float *logits, const int32_t *ids, float *weights)
{
    const nk_route_problem *p = c->problem;
    switch (p->score) {
    case NK_SIGMOID:
    case NK_SQRT_SOFTPLUS:
        scores_of_selected(c, logits, ids, weights);
        break;
    case NK_TOPK_SOFTMAX:
    case NK_SOFTMAX_TOPK:
        softmax(c, logits, ids, weights);
        break;
    case NK_LOGITS:
        pick_values(logits, ids, p->top_k, weights);
        break;
    }
    for (int64_t i = 0; i < p->top_k; i++)
        weights[i] *= p->scaling_factor;
    for (int64_t i = 0; p->per_expert_scale && i < p->top_k; i++)
        weights[i] *= p->per_expert_scale[ids[i] * p->per_expert_scale_stride];
}

static void route_row(const route_call *c, int64_t m, const float *logits)
{
    const nk_route_problem *p = c->problem;
    int32_t ids[NK_MAX_TOP_K];
    float weights[NK_MAX_TOP_K];
    select_experts(c, logits, ids);
    weigh(c, logits, ids, weights);
    if (p->dense) {
        for (int64_t n = 0; n < p->n; n++)
            store_output(&p->weights, 0, m, n, 0.0f);
    }
    for (int64_t i = 0; i < p->top_k; i++) {
        store_output(&p->weights, 0, m, p->dense ? ids[i] : i, weights[i]);
        p->ids[m * p->ids_row_stride + i * p->ids_col_stride] = ids[i];
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */

/* acc = what alpha multiplies: sums, or the logits given. */
static void sum_logits(const route_call *c, cpu_tile_coordinates at, cpu_tile acc)
{
    const nk_route_problem *p = c->problem;
    if (!p->from_logits) {
        cpu_sum_tile(c->means, &p->x, NULL, &p->w, p->k, at, acc);
        return;
    }
    for (int64_t i = 0; i < at.mb; i++) {
        const uint8_t *from = operand_row(&p->logits, 0, at.m0 + i) + at.n0 * p->logits.k_stride;
        c->means.path->load(from, p->logits.dtype, at.nb, acc[i]);
    }
}

static void route_rows(void *context, int64_t job)
{
    const route_call *c = context;
    const nk_route_problem *p = c->problem;
    cpu_tile acc;
    float logits[MAX_ROWS][NK_MAX_EXPERTS];
    cpu_tile_coordinates at = {.m0 = job * c->rows, .mb = cpu_min(c->rows, p->m - job * c->rows)};
    for (; at.n0 < p->n; at.n0 += CPU_TILE_N) {
        at.nb = cpu_min(CPU_TILE_N, p->n - at.n0);
        sum_logits(c, at, acc);
        cpu_scale_tile(c->means.path, &p->alpha, NULL, at, acc);
        for (int64_t i = 0; i < at.mb; i++)
            memcpy(logits[i] + at.n0, acc[i], (size_t)at.nb * sizeof acc[i][0]);
        if (p->returns_logits) cpu_store_tile(c->means.path, &p->logits_out, at, acc);
    }
    for (int64_t i = 0; i < at.mb; i++)
        route_row(c, at.m0 + i, logits[i]);
}

double cpu_route_multiply_adds(const nk_route_problem *p)
{
    return (double)p->m * (double)p->n * ((double)p->k + SELECTION);
}

nk_status cpu_route(const nk_route_problem *p, cpu_means means, const nk_exec *exec)
{
    int64_t rows = nk_ceil_div(p->m, means.threads); /* of a thread */
    route_call c = {p, means, rows < FEWEST_ROWS ? FEWEST_ROWS : cpu_min(rows, MAX_ROWS)};
    NK_TRY(cpu_for_each(exec, nk_ceil_div(p->m, c.rows), means.threads, route_rows, &c));
    return p->sorts ? cpu_sort_by_expert(p, means, exec) : NK_OK;
}
