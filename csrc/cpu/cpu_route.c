/* logits = alpha X W^T; the k best experts of each row by key; their weights. See docs/contract.md for the exact rules:
 * larger key first, equal keys by lower expert, NaN after every number. */
#include "cpu_backend.h"

#include "cpu_operand.h"
#include "cpu_pool.h"
#include "cpu_tile.h"

#define MAX_ROWS 32 /* of logits in one job */
#define FEWEST_ROWS 8

typedef struct route {
    const nk_route_problem *problem;
    cpu_means means;
    int64_t rows; /* of a job */
} route;

/* Whether a key goes before another that has a lower index: ties stay with the lower one. */
static bool beats(float key, float lower_indexed)
{
    return key > lower_indexed || (isnan(lower_indexed) && !isnan(key));
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* Indices of the `count` best keys among those with allowed[i] (NULL: all), best first. */
static void select_best(const float *keys, const bool *allowed, int64_t n, int64_t count, int32_t *best)
{
    bool taken[NK_MAX_EXPERTS] = {false};
    for (int64_t slot = 0; slot < count; slot++) {
        int64_t winner = -1;
        for (int64_t i = 0; i < n; i++) {
            if (taken[i] || (allowed && !allowed[i])) continue;
            if (winner < 0 || beats(keys[i], keys[winner])) winner = i;
        }
        taken[winner] = true;
        best[slot] = (int32_t)winner;
    }
}

/* The largest key of a group or, with a correction bias, the sum of its two largest (DeepSeek-V3). NaN keys do not
 * count; a group of nothing else scores NaN. */
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

static void select_experts(const nk_route_problem *p, const float *logits, int32_t *ids)
{
    float keys[NK_MAX_EXPERTS], scores[NK_MAX_EXPERTS];
    bool allowed[NK_MAX_EXPERTS] = {false};
    int32_t groups[NK_MAX_EXPERTS];
    for (int64_t n = 0; n < p->n; n++) {
        keys[n] = logits[n];
        if (p->correction_bias) keys[n] = sigmoid(logits[n]) + p->correction_bias[n * p->correction_bias_stride];
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

/* weights[i] for logits[ids[i]]; ids NULL: weight of every logit. NaN propagates. */
static float softmax_denominator(const float *logits, const int32_t *ids, int64_t count, float *largest)
{
    float max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        float logit = logits[ids ? ids[i] : i];
        if (beats(logit, max) || isnan(logit)) max = logit;
        if (isnan(max)) break;
    }
    for (int64_t i = 0; i < count; i++)
        sum += expf(logits[ids ? ids[i] : i] - max);
    *largest = max;
    return sum;
}

static void weigh(const nk_route_problem *p, const float *logits, const int32_t *ids, float *weights)
{
    float max, sum = 0;
    if (p->score == NK_SIGMOID) {
        for (int64_t i = 0; i < p->top_k; i++)
            sum += weights[i] = sigmoid(logits[ids[i]]);
        if (p->renormalize) { /* 1e-20 as DeepSeek-V3's gate has it: all-zero scores give zeros */
            for (int64_t i = 0; i < p->top_k; i++)
                weights[i] /= sum + 1e-20f;
        }
    } else {
        /* Renormalising a softmax over all experts cancels its denominator: that is the softmax of the selected. */
        bool all = p->score == NK_SOFTMAX_TOPK && !p->renormalize;
        sum = softmax_denominator(logits, all ? NULL : ids, all ? p->n : p->top_k, &max);
        for (int64_t i = 0; i < p->top_k; i++)
            weights[i] = expf(logits[ids[i]] - max) / sum;
    }
    for (int64_t i = 0; i < p->top_k; i++)
        weights[i] *= p->scaling_factor;
}

static void route_row(const nk_route_problem *p, int64_t m, const float *logits)
{
    int32_t ids[NK_MAX_TOP_K];
    float weights[NK_MAX_TOP_K];
    select_experts(p, logits, ids);
    weigh(p, logits, ids, weights);
    if (p->dense) {
        for (int64_t n = 0; n < p->n; n++)
            store_output(&p->weights, 0, m, n, 0.0f);
    }
    for (int64_t i = 0; i < p->top_k; i++) {
        store_output(&p->weights, 0, m, p->dense ? ids[i] : i, weights[i]);
        p->ids[m * p->ids_row_stride + i * p->ids_col_stride] = ids[i];
    }
}

/* Counting sort of (row, slot) by expert. */
static void sort_by_expert(const nk_route_problem *p)
{
    int32_t next[NK_MAX_EXPERTS];
    for (int64_t n = 0; n < p->n; n++)
        p->counts[n] = 0;
    for (int64_t m = 0; m < p->m; m++) {
        for (int64_t i = 0; i < p->top_k; i++)
            p->counts[p->ids[m * p->ids_row_stride + i * p->ids_col_stride]]++;
    }
    p->offsets[0] = 0;
    for (int64_t n = 0; n < p->n; n++) {
        next[n] = p->offsets[n];
        p->offsets[n + 1] = p->offsets[n] + p->counts[n];
    }
    for (int64_t m = 0; m < p->m; m++) {
        for (int64_t i = 0; i < p->top_k; i++) {
            int32_t expert = p->ids[m * p->ids_row_stride + i * p->ids_col_stride];
            p->sorted_rows[next[expert]++] = (int32_t)(m * p->top_k + i);
        }
    }
}

static void route_rows(void *context, int64_t job)
{
    const route *c = context;
    const nk_route_problem *p = c->problem;
    cpu_tile acc;
    float logits[MAX_ROWS][NK_MAX_EXPERTS];
    cpu_tile_place at = {.m0 = job * c->rows, .mb = cpu_min(c->rows, p->m - job * c->rows)};
    for (; at.n0 < p->n; at.n0 += CPU_TILE_N) {
        at.nb = cpu_min(CPU_TILE_N, p->n - at.n0);
        cpu_sum_tile(c->means, &p->x, &p->w, p->k, at, acc);
        cpu_scale_tile(c->means.path, &p->alpha, NULL, at, acc);
        for (int64_t i = 0; i < at.mb; i++)
            memcpy(logits[i] + at.n0, acc[i], (size_t)at.nb * sizeof acc[i][0]);
    }
    for (int64_t i = 0; i < at.mb; i++)
        route_row(p, at.m0 + i, logits[i]);
}

void cpu_route(const nk_route_problem *p, cpu_means means)
{
    int threads = cpu_worthwhile_threads((double)p->m * (double)p->n * (double)p->k, means.threads);
    int64_t share = nk_ceil_div(p->m, threads);
    route c = {p, means, share < FEWEST_ROWS ? FEWEST_ROWS : cpu_min(share, MAX_ROWS)};
    cpu_for_each(nk_ceil_div(p->m, c.rows), threads, route_rows, &c);
    if (p->counts) sort_by_expert(p);
}
