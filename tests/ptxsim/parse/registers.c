/* Lets registers of short life use the same memory.
 *
 * PTX has a register for every value, a megabyte of them in a warp of an unrolled kernel. Some live within one basic
 * block, from an instruction that writes all of them to their last use: they get common places. A survey of the
 * kernel's text finds them before it is decoded. All others keep a place of their own, so that what nothing has
 * written is poison as before. Operands of asynchronous instructions are used later than their text says. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

typedef struct life {
    uint32_t first, last, block; /* statements */
    uint32_t place;
    char width; /* 0: not seen */
    bool own;
} life;

struct sharing {
    bool surveying;
    uint32_t now, block;
    uint32_t end, mapped_end; /* of the registers declared before any inner scope */
    life *lives;              /* by place as declared */
    uint32_t n_lives, most_lives;
    uint32_t *order; /* of first use */
    uint32_t n_order;
};

#define UNIT 64 /* places are multiples of it */

static uint32_t size_of(char width) { return width == 'h' ? 64 : width == 'w' ? 128 : width == 'd' ? 256 : 512; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* The survey                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static const char *const writers[] = {
    "abs",  "add",       "and", "bfe",  "bfi", "bfind", "brev", "clz",  "cos",  "cvt",  "cvta", "div",
    "dp4a", "ex2",       "fma", "ld",   "ldu", "lg2",   "lop3", "mad",  "mapa", "max",  "min",  "ldmatrix",
    "mov",  "movmatrix", "mul", "mma",  "neg", "not",   "or",   "popc", "prmt", "rcp",  "rem",  "rsqrt",
    "sad",  "selp",      "shf", "shfl", "shl", "shr",   "sin",  "sqrt", "sub",  "tanh", "xor",
};

static slice family_of(slice opcode)
{
    uint32_t n = 0;
    while (n < opcode.n && opcode.s[n] != '.')
        n++;
    return (slice){opcode.s, n};
}

static bool writes_first_operand(slice family)
{
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++)
        if (sim_is(family, writers[i])) return true;
    return false;
}

static life *life_of(struct sharing *s, uint32_t place)
{
    uint32_t index = (place - FIRST_REGISTER) / UNIT;
    if (index >= s->most_lives) {
        uint32_t most = 2 * index + 1024;
        s->lives = realloc(s->lives, most * sizeof *s->lives);
        s->order = realloc(s->order, most * sizeof *s->order);
        memset(s->lives + s->most_lives, 0, (most - s->most_lives) * sizeof *s->lives);
        s->most_lives = most;
    }
    return &s->lives[index];
}

static void see(struct sharing *s, uint32_t place, char width, bool begins)
{
    if (place == NONE || place < FIRST_REGISTER || place >= s->end || width == 'p' || !width) return;
    life *l = life_of(s, place);
    if (!l->width) {
        *l = (life){.first = s->now, .block = s->block, .width = width, .own = !begins};
        s->order[s->n_order++] = (place - FIRST_REGISTER) / UNIT;
    } else if (l->block != s->block || (l->first == s->now && !begins)) {
        l->own = true;
    }
    l->last = s->now;
}

static void see_operand(struct sharing *s, const operand *o, bool begins)
{
    if (o->kind == O_REGISTER || o->kind == O_ADDRESS) see(s, o->place, o->width, begins && o->kind == O_REGISTER);
    for (uint32_t i = 0; i < o->n_items; i++)
        see_operand(s, &o->items[i], begins && o->kind == O_LIST);
}

void sim_survey(builder *b, const statement *s, bool guarded)
{
    struct sharing *all = b->sharing;
    slice family = family_of(s->opcode);
    bool later = sim_is(family, "wgmma") || sim_is(family, "tcgen05");
    bool writes = !guarded && writes_first_operand(family);
    all->now++;
    if (later) all->block++; /* seen in two blocks, so with a place of its own */
    for (uint32_t i = 0; i < s->n; i++)
        see_operand(all, &s->o[i], i == 0 && writes);
    bool ends = sim_is(family, "bra") || sim_is(family, "exit") || sim_is(family, "ret") || sim_is(family, "trap");
    if (later || ends) all->block++;
}

void sim_survey_label(builder *b) { b->sharing->block++; }

void sim_survey_scope(builder *b)
{
    if (b->sharing->end == UINT32_MAX) b->sharing->end = b->next_register;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Places                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Lives that have not ended, and the places of those that have: first in, last out, so that few are in use. */
typedef struct places {
    life **open;
    uint32_t *free[3];
    uint32_t n_open, n_free[3], next;
} places;

static uint32_t class_of(char width) { return width == 'h' ? 0 : width == 'w' ? 1 : 2; }

static void close_lives(places *p, uint32_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_open; i++) {
        life *l = p->open[i];
        if (l->last >= now)
            p->open[kept++] = l;
        else
            p->free[class_of(l->width)][p->n_free[class_of(l->width)]++] = l->place;
    }
    p->n_open = kept;
}

static void settle(builder *b)
{
    struct sharing *s = b->sharing;
    size_t n = s->n_order + 1;
    places p = {.open = malloc(n * sizeof *p.open), .next = FIRST_REGISTER};
    for (int k = 0; k < 3; k++)
        p.free[k] = malloc(n * sizeof *p.free[k]);
    for (uint32_t i = 0; i < s->n_order; i++) {
        life *l = &s->lives[s->order[i]];
        uint32_t class = class_of(l->width);
        bool shares = !l->own && l->width != 'q';
        if (shares) close_lives(&p, l->first);
        if (shares && p.n_free[class]) {
            l->place = p.free[class][--p.n_free[class]];
        } else {
            l->place = p.next;
            p.next += size_of(l->width);
        }
        if (shares) p.open[p.n_open++] = l;
    }
    s->mapped_end = p.next;
    for (int k = 0; k < 3; k++)
        free(p.free[k]);
    free(p.open);
}

uint32_t sim_shared_place(const builder *b, uint32_t place)
{
    const struct sharing *s = b->sharing;
    if (!s || s->surveying || place < FIRST_REGISTER) return place;
    if (place >= s->end) return place - s->end + s->mapped_end;
    return s->lives[(place - FIRST_REGISTER) / UNIT].place;
}

bool sim_surveying(const builder *b) { return b->sharing && b->sharing->surveying; }

void sim_survey_begin(builder *b)
{
    b->sharing = calloc(1, sizeof *b->sharing);
    b->sharing->surveying = true;
    b->sharing->end = UINT32_MAX;
}

void sim_survey_end(builder *b)
{
    sim_survey_scope(b);
    settle(b);
    b->sharing->surveying = false;
}

void sim_sharing_close(builder *b)
{
    if (!b->sharing) return;
    free(b->sharing->lives);
    free(b->sharing->order);
    free(b->sharing);
}
