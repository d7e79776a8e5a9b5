/* Finds registers, variables, constants and special registers by name. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    char width;
    uint8_t size;
} types[] = {
    {"b8", 'h', 1},    {"u8", 'h', 1},     {"s8", 'h', 1},    {"b16", 'h', 2},  {"u16", 'h', 2}, {"s16", 'h', 2},
    {"f16", 'h', 2},   {"bf16", 'h', 2},   {"b32", 'w', 4},   {"u32", 'w', 4},  {"s32", 'w', 4}, {"f32", 'w', 4},
    {"f16x2", 'w', 4}, {"bf16x2", 'w', 4}, {"b64", 'd', 8},   {"u64", 'd', 8},  {"s64", 'd', 8}, {"f64", 'd', 8},
    {"b128", 'q', 16}, {"pred", 'p', 0},   {"f32x2", 'd', 8}, {"tf32", 'w', 4},
};

/* Of the type without its dot; 0: no type. */
char sim_width_of(slice type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (sim_is(type, types[i].name)) return types[i].width;
    return 0;
}

uint32_t sim_size_of(slice type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (sim_is(type, types[i].name)) return types[i].size;
    return 0;
}

static uint32_t bytes_of(char width) { return width == 'h' ? 64 : width == 'w' ? 128 : width == 'd' ? 256 : 512; }

uint32_t sim_allocate(builder *b, char width)
{
    if (width == 'p') return b->p->n_predicates++;
    uint32_t place = b->next_register;
    b->next_register += bytes_of(width);
    if (b->p->register_bytes < b->next_register) b->p->register_bytes = b->next_register;
    return place;
}

void sim_declare(builder *b, slice name, bool numbered, uint32_t count, char width)
{
    if (b->n_declarations % 64 == 0)
        b->declarations = realloc(b->declarations, (b->n_declarations + 64) * sizeof *b->declarations);
    declaration *d = &b->declarations[b->n_declarations++];
    *d = (declaration){name, count, 0, width, numbered};
    d->first = width == 'p' ? b->p->n_predicates : b->next_register;
    for (uint32_t i = 0; i < count; i++)
        sim_allocate(b, width);
}

bool sim_find_register(builder *b, slice name, operand *o)
{
    uint32_t stem = name.n, number = 0, scale = 1;
    while (stem > 0 && name.s[stem - 1] >= '0' && name.s[stem - 1] <= '9') {
        number += (uint32_t)(name.s[--stem] - '0') * scale;
        scale *= 10;
    }
    for (uint32_t i = b->n_declarations; i-- > 0;) {
        const declaration *d = &b->declarations[i];
        uint32_t n = d->numbered ? stem : name.n;
        if (d->prefix.n != n || memcmp(d->prefix.s, name.s, n) != 0) continue;
        uint32_t index = d->numbered ? number : 0;
        if (index >= d->count) continue;
        o->kind = O_REGISTER;
        o->width = d->width;
        o->place = d->width == 'p' ? d->first + index : sim_shared_place(b, d->first + index * bytes_of(d->width));
        return true;
    }
    return false;
}

variable *sim_find_variable(builder *b, slice name)
{
    for (uint32_t i = 0; i < b->n_variables; i++)
        if (b->variables[i].name.n == name.n && memcmp(b->variables[i].name.s, name.s, name.n) == 0)
            return &b->variables[i];
    for (uint32_t i = 0; i < b->m->n_variables; i++)
        if (b->m->variables[i].name.n == name.n && memcmp(b->m->variables[i].name.s, name.s, name.n) == 0)
            return &b->m->variables[i];
    return NULL;
}

void sim_add_variable(builder *b, const variable *v)
{
    program *p = b->p;
    b->variables = realloc(b->variables, (b->n_variables + 1) * sizeof *b->variables);
    variable *mine = &b->variables[b->n_variables++];
    *mine = *v;
    uint32_t *end = v->space == SHARED ? &p->static_smem : &p->local_bytes;
    if (v->space == SHARED && p->dynamic_smem_at)
        sim_bad_ptx(b, b->c.line, "a shared variable after code that uses dynamic ones");
    if (v->space != SHARED && v->space != LOCAL) return;
    *end = (uint32_t)((*end + v->align - 1) / v->align * v->align);
    mine->address = *end;
    *end += (uint32_t)v->size;
}

/* Within its space. Dynamic shared memory begins behind the static variables of the kernel. */
uint64_t sim_address_of(builder *b, const variable *v)
{
    program *p = b->p;
    if (!v->is_extern || v->space != SHARED) return v->address;
    if (!p->dynamic_smem_at) p->dynamic_smem_at = (p->static_smem + 15) / 16 * 16 + 1;
    return p->dynamic_smem_at - 1;
}

uint32_t sim_constant(builder *b, uint64_t bits, char width)
{
    if (width == 'h') bits = (uint16_t)bits;
    if (width == 'w') bits = (uint32_t)bits;
    uint32_t hash = (uint32_t)((bits * 0x9e3779b97f4a7c15u) >> 40) + (uint32_t)width;
    for (uint32_t i = hash;; i++) {
        uint32_t slot = i % b->pool_size;
        if (b->pool[slot].width == width && b->pool[slot].bits == bits) return b->pool[slot].place;
        if (b->pool[slot].width) continue;
        if (++b->n_pool > b->pool_size / 2) sim_bad_ptx(b, b->c.line, "more than %u constants", b->pool_size / 2);
        program *p = b->p;
        p->constants = realloc(p->constants, p->constant_bytes + bytes_of(width));
        for (int lane = 0; lane < LANES; lane++) {
            uint8_t *to = p->constants + p->constant_bytes;
            if (width == 'h')
                ((uint16_t *)(void *)to)[lane] = (uint16_t)bits;
            else if (width == 'w')
                ((uint32_t *)(void *)to)[lane] = (uint32_t)bits;
            else
                ((uint64_t *)(void *)to)[lane] = bits;
        }
        b->pool[slot].bits = bits;
        b->pool[slot].width = width;
        b->pool[slot].place = p->constant_bytes | 1;
        p->constant_bytes += bytes_of(width);
        return b->pool[slot].place;
    }
}

/* The rank bits that a shared address has in a cluster come from a register that every warp sets: o + base. */
uint32_t sim_shared_base(builder *b, uint32_t address, char width)
{
    program *p = b->p;
    for (uint32_t i = 0; i < p->n_shared_bases; i++) {
        const shared_base *known = &p->shared_bases[i];
        if (known->address == address && known->width == width) return known->place;
    }
    p->shared_bases = realloc(p->shared_bases, (p->n_shared_bases + 1) * sizeof *p->shared_bases);
    if (p->n_shared_bases == MOST_SHARED_BASES)
        sim_bad_ptx(b, b->c.line, "more shared variables than %d", MOST_SHARED_BASES);
    uint32_t place = FIRST_SHARED_BASE + 256 * p->n_shared_bases;
    p->shared_bases[p->n_shared_bases++] = (shared_base){address, place, width};
    return place;
}

operand *sim_new_items(builder *b, uint32_t n)
{
    if (b->n_items + n > MAX_ITEMS) sim_bad_ptx(b, b->c.line, "more than %d operands in braces", MAX_ITEMS);
    b->n_items += n;
    return &b->items[b->n_items - n];
}

static const char *const specials[SR_COUNT] = {
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%dynamic_smem_size",
    "%total_smem_size",
};

/* Those that a warp's whole life leaves alone; clocks are instructions (decode.c). */
bool sim_find_special(builder *b, slice name, operand *o)
{
    for (int i = 0; i < SR_COUNT; i++) {
        if (!sim_is(name, specials[i])) continue;
        b->p->special[i] = FIRST_SPECIAL + 128u * (uint32_t)i;
        o->kind = O_REGISTER;
        o->width = 'w';
        o->place = b->p->special[i];
        return true;
    }
    return false;
}
