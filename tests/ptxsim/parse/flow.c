/* Finds where the two ways of a branch meet again: its immediate post-dominator.
 *
 * The method is that of Cooper, Harvey and Kennedy, on the reversed graph of basic blocks. */
#include "ptx.h"
#include "exec/exec_flow.h"

#include <stdlib.h>
#include <string.h>

typedef struct graph {
    uint32_t n;         /* blocks; block n is the exit */
    uint32_t *first;    /* instruction; first[n] is the end */
    uint32_t *block_of; /* instruction -> block */
    uint32_t (*next)[2];
    uint32_t *order, *rank; /* reverse post-order of the reversed graph, from the exit */
    uint32_t *into;         /* the immediate post-dominator */
} graph;

static bool leaves(const insn *in) { return in->fn == sim_exec_exit || in->fn == sim_exec_trap; }

static void find_blocks(const program *p, graph *g)
{
    bool *leader = calloc(p->n_code + 1, 1);
    leader[0] = true;
    for (uint32_t i = 0; i < p->n_code; i++) {
        const insn *in = &p->code[i];
        if (in->target != NONE) leader[in->target] = true;
        if (in->target != NONE || leaves(in)) leader[i + 1] = true;
    }
    for (uint32_t i = 0; i < p->n_code; i++) {
        if (leader[i]) g->first[g->n++] = i;
        g->block_of[i] = g->n - 1;
    }
    g->first[g->n] = p->n_code;
    free(leader);
}

static void find_edges(const program *p, graph *g)
{
    for (uint32_t k = 0; k < g->n; k++) {
        const insn *last = &p->code[g->first[k + 1] - 1];
        uint32_t after = k + 1; /* the last block falls into the exit, block n */
        bool always = last->guard == NONE;
        g->next[k][0] = g->next[k][1] = after;
        if (leaves(last)) {
            g->next[k][0] = g->n;
            if (always) g->next[k][1] = g->n;
        } else if (last->target != NONE) {
            g->next[k][0] = g->block_of[last->target];
            if (always) g->next[k][1] = g->next[k][0];
        }
    }
}

/* Post-order of the reversed graph without recursion. Blocks that never reach the exit keep rank NONE. */
static void find_order(graph *g)
{
    uint32_t *heads = malloc((g->n + 1) * sizeof *heads), *links = malloc(2 * g->n * sizeof *links + 1);
    uint32_t *stack = malloc((g->n + 1) * sizeof *stack), *cursor = malloc((g->n + 1) * sizeof *cursor);
    memset(heads, 0xff, (g->n + 1) * sizeof *heads);
    memset(g->rank, 0xff, (g->n + 1) * sizeof *g->rank);
    for (uint32_t edge = 0; edge < 2 * g->n; edge++) { /* predecessors: edge / 2 is the block */
        uint32_t to = g->next[edge / 2][edge % 2];
        links[edge] = heads[to];
        heads[to] = edge;
    }
    memcpy(cursor, heads, (g->n + 1) * sizeof *cursor);
    uint32_t depth = 0, done = 0;
    bool *seen = calloc(g->n + 1, 1);
    stack[depth++] = g->n;
    seen[g->n] = true;
    while (depth) {
        uint32_t top = stack[depth - 1], edge = cursor[top];
        if (edge == NONE) {
            g->order[done] = top;
            g->rank[top] = done++;
            depth--;
            continue;
        }
        cursor[top] = links[edge];
        if (!seen[edge / 2]) {
            seen[edge / 2] = true;
            stack[depth++] = edge / 2;
        }
    }
    for (uint32_t k = 0; k <= g->n; k++)
        g->into[k] = NONE;
    for (uint32_t i = done; i < g->n + 1; i++)
        g->order[i] = NONE;
    free(heads), free(links), free(stack), free(cursor), free(seen);
}

static uint32_t meet(const graph *g, uint32_t a, uint32_t b)
{
    while (a != b) {
        while (g->rank[a] < g->rank[b])
            a = g->into[a];
        while (g->rank[b] < g->rank[a])
            b = g->into[b];
    }
    return a;
}

static void find_dominators(graph *g)
{
    g->into[g->n] = g->n;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = g->n + 1; i-- > 0;) {
            uint32_t k = g->order[i], best = NONE;
            if (k == NONE || k == g->n) continue;
            for (int e = 0; e < 2; e++) {
                uint32_t to = g->next[k][e];
                if (g->rank[to] == NONE || g->into[to] == NONE) continue;
                best = best == NONE ? to : meet(g, best, to);
            }
            changed |= best != g->into[k];
            g->into[k] = best;
        }
    }
}

void sim_find_rejoins(program *p)
{
    size_t n = p->n_code + 2;
    graph g = {.first = malloc(n * sizeof(uint32_t)),
               .block_of = malloc(n * sizeof(uint32_t)),
               .next = malloc(n * sizeof *g.next),
               .order = malloc(n * sizeof(uint32_t)),
               .rank = malloc(n * sizeof(uint32_t)),
               .into = malloc(n * sizeof(uint32_t))};
    find_blocks(p, &g);
    find_edges(p, &g);
    find_order(&g);
    find_dominators(&g);
    for (uint32_t k = 0; k < g.n; k++) {
        insn *last = &p->code[g.first[k + 1] - 1];
        if (last->target == NONE || last->guard == NONE) continue;
        uint32_t meeting = g.rank[k] == NONE ? NONE : g.into[k];
        last->rejoin = meeting == NONE || meeting == g.n ? NONE : g.first[meeting];
    }
    free(g.first), free(g.block_of), free(g.next), free(g.order), free(g.rank), free(g.into);
}
