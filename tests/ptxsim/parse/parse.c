/* Parses the PTX text of a kernel into statements, registers, labels and variables. */
#include "ptx.h"

#include "machine/memory.h"

#include <stdlib.h>
#include <string.h>

#define EXPECT(b, character)                                                                                        \
    do {                                                                                                            \
        if (!sim_accept(&(b)->c, character))                                                                        \
            sim_bad_ptx(b, (b)->c.line, "expected %c, found \"%.*s\"", character, rest_of_line(&(b)->c), (b)->c.p); \
    } while (0)

static int rest_of_line(const cursor *c)
{
    int n = 0;
    while (n < 40 && c->p + n < c->end && c->p[n] != '\n')
        n++;
    return n;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands and instructions                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

static void parse_operand(builder *b, operand *o);

static void parse_name(builder *b, operand *o)
{
    slice name = sim_name(&b->c);
    o->text = name;
    if (name.n == 0) sim_bad_ptx(b, b->c.line, "expected an operand at \"%.*s\"", rest_of_line(&b->c), b->c.p);
    if (sim_is(name, "_"))
        o->kind = O_SINK;
    else if (sim_find_register(b, name, o) || sim_find_special(b, name, o))
        return;
    else
        o->kind = *name.s == '%' ? O_SPECIAL : O_SYMBOL;
}

static void parse_list(builder *b, operand *o)
{
    operand found[128];
    uint32_t n = 0;
    do {
        if (n == 128) sim_bad_ptx(b, b->c.line, "more than 128 operands in braces");
        parse_operand(b, &found[n++]);
    } while (sim_accept(&b->c, ','));
    EXPECT(b, '}');
    o->kind = O_LIST;
    o->items = sim_new_items(b, n);
    o->n_items = n;
    memcpy(o->items, found, n * sizeof *found);
}

static void parse_address(builder *b, operand *o)
{
    operand base = {0}, coordinates = {0};
    sim_skip(&b->c);
    if (sim_starts_number(&b->c))
        base.value = sim_number(&b->c, &base.kind);
    else
        parse_name(b, &base);
    bool is_register = base.kind == O_REGISTER;
    *o = (operand){.kind = O_ADDRESS, .width = base.width, .place = is_register ? base.place : NONE};
    o->value = base.kind == O_IMMEDIATE ? base.value : 0;
    if (base.kind == O_SYMBOL) o->text = base.text;
    while (sim_accept(&b->c, '+') || (sim_skip(&b->c), *b->c.p == '-')) {
        operand_kind kind;
        sim_skip(&b->c);
        o->value += sim_number(&b->c, &kind);
    }
    if (sim_accept(&b->c, ',')) { /* tensor coordinates */
        parse_operand(b, &coordinates);
        o->items = coordinates.items;
        o->n_items = coordinates.n_items;
    }
    EXPECT(b, ']');
}

static void parse_operand(builder *b, operand *o)
{
    *o = (operand){.place = NONE};
    sim_skip(&b->c);
    if (sim_accept(&b->c, '{')) {
        parse_list(b, o);
        return;
    }
    if (sim_accept(&b->c, '[')) {
        parse_address(b, o);
        return;
    }
    if (sim_starts_number(&b->c)) {
        o->value = sim_number(&b->c, &o->kind);
        return;
    }
    o->negated = sim_accept(&b->c, '!');
    parse_name(b, o);
    if (o->kind == O_SYMBOL && sim_accept(&b->c, '+')) {
        operand_kind kind;
        sim_skip(&b->c);
        o->value = sim_number(&b->c, &kind);
    }
    if (sim_accept(&b->c, '|')) {
        o->pair = sim_new_items(b, 1);
        parse_operand(b, o->pair);
    }
}

static void parse_instruction(builder *b, slice opcode)
{
    statement s = {.opcode = opcode, .line = b->c.line};
    uint32_t guard = NONE;
    bool guard_not = false;
    b->n_items = 0;
    if (*opcode.s == '@') {
        operand p = {0};
        guard_not = sim_accept(&b->c, '!');
        parse_name(b, &p);
        if (p.kind != O_REGISTER || p.width != 'p') sim_bad_ptx(b, s.line, "the guard is no predicate");
        guard = p.place;
        s.opcode = sim_word(&b->c);
        s.line = b->c.line;
    }
    if (!sim_accept(&b->c, ';')) {
        do {
            if (s.n == MAX_OPERANDS) sim_bad_ptx(b, s.line, "more than %d operands", MAX_OPERANDS);
            parse_operand(b, &s.o[s.n++]);
        } while (sim_accept(&b->c, ','));
        EXPECT(b, ';');
    }
    b->now = &s;
    if (sim_surveying(b))
        sim_survey(b, &s, guard != NONE);
    else
        sim_decode(b, &s, guard, guard_not);
    b->used_bytes = 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Directives                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static void parse_registers(builder *b)
{
    slice type = sim_word(&b->c);
    char width = type.n > 1 ? sim_width_of((slice){type.s + 1, type.n - 1}) : 0;
    if (!width) sim_bad_ptx(b, b->c.line, "registers of type %.*s", (int)type.n, type.s);
    do {
        slice name = sim_name(&b->c);
        operand_kind kind;
        uint32_t count = 1;
        bool numbered = sim_accept(&b->c, '<');
        if (numbered) {
            sim_skip(&b->c);
            count = (uint32_t)sim_number(&b->c, &kind);
            EXPECT(b, '>');
        }
        sim_declare(b, name, numbered, count, width);
    } while (sim_accept(&b->c, ','));
    EXPECT(b, ';');
}

/* .align 16 .b8 name[64] or .u32 name, up to what follows. */
static void parse_variable(builder *b, variable *v)
{
    operand_kind kind;
    uint32_t size = 0;
    bool pointer = false; /* a parameter's; what follows .ptr is said of what it points to */
    v->align = 0;
    for (;;) {
        slice word = sim_word(&b->c);
        if (sim_is(word, ".align")) {
            sim_skip(&b->c);
            uint64_t align = (uint64_t)sim_number(&b->c, &kind);
            if (!pointer) v->align = align;
        } else if (v->space == PARAM && sim_is(word, ".ptr")) {
            pointer = true;
        } else if (pointer && (sim_is(word, ".global") || sim_is(word, ".shared") || sim_is(word, ".const") ||
                               sim_is(word, ".local"))) {
            continue;
        } else if (word.n > 1 && *word.s == '.' && sim_width_of((slice){word.s + 1, word.n - 1})) {
            size = sim_size_of((slice){word.s + 1, word.n - 1});
        } else if (*word.s != '.' && word.n) {
            v->name = word;
            break;
        } else {
            sim_bad_ptx(b, b->c.line, "a variable declared %.*s", (int)word.n, word.s);
        }
    }
    v->size = size;
    if (!v->align) v->align = size ? size : 1;
    while (sim_accept(&b->c, '[')) {
        sim_skip(&b->c);
        v->size *= sim_starts_number(&b->c) ? (uint64_t)sim_number(&b->c, &kind) : 0;
        EXPECT(b, ']');
    }
}

static void parse_location(builder *b)
{
    operand_kind kind;
    source_loc at = {0};
    sim_skip(&b->c);
    at.file = (uint32_t)sim_number(&b->c, &kind);
    sim_skip(&b->c);
    at.line = (uint32_t)sim_number(&b->c, &kind);
    const char *end = memchr(b->c.p, '\n', (size_t)(b->c.end - b->c.p));
    end = end ? end : b->c.end;
    for (const char *p = b->c.p; p + 11 < end; p++) {
        if (memcmp(p, "inlined_at ", 11) != 0) continue;
        char *rest;
        at.at_file = (uint32_t)strtoul(p + 11, &rest, 10);
        at.at_line = (uint32_t)strtoul(rest, NULL, 10);
        break;
    }
    b->c.p = end;
    program *p = b->p;
    if (p->n_locs % 1024 == 0) p->locs = realloc(p->locs, (p->n_locs + 1024) * sizeof *p->locs);
    p->locs[p->n_locs] = at;
    b->loc = p->n_locs++;
}

static void parse_pragma(builder *b)
{
    sim_skip(&b->c);
    slice text = sim_string(&b->c);
    if (sim_begins(text, "used_bytes_mask "))
        b->used_bytes = (uint32_t)strtoul(text.s + 16, NULL, 0);
    else if (!sim_begins(text, "nounroll"))
        sim_bad_ptx(b, b->c.line, "pragma %.*s", (int)text.n, text.s);
    EXPECT(b, ';');
}

static void parse_directive(builder *b, slice word)
{
    if (sim_is(word, ".loc")) {
        parse_location(b);
    } else if (sim_is(word, ".reg")) {
        parse_registers(b);
    } else if (sim_is(word, ".pragma")) {
        parse_pragma(b);
    } else if (sim_is(word, ".shared") || sim_is(word, ".local")) {
        variable v = {.space = sim_is(word, ".shared") ? SHARED : LOCAL};
        parse_variable(b, &v);
        EXPECT(b, ';');
        sim_add_variable(b, &v);
    } else {
        sim_bad_ptx(b, b->c.line, "directive %.*s", (int)word.n, word.s);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Kernels                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static void open_scope(builder *b)
{
    if (b->depth == 32) sim_bad_ptx(b, b->c.line, "32 scopes in one another");
    if (sim_surveying(b)) sim_survey_scope(b);
    b->scopes[b->depth].declarations = b->n_declarations;
    b->scopes[b->depth].registers = b->next_register;
    b->scopes[b->depth].labels = b->n_labels;
    b->scopes[b->depth++].fixups = b->n_fixups;
}

/* From `first` on, NULL where there is none. */
static const label *find_label(const builder *b, uint32_t first, slice name)
{
    for (const label *l = b->labels + first; l < b->labels + b->n_labels; l++)
        if (l->name.n == name.n && memcmp(l->name.s, name.s, name.n) == 0) return l;
    return NULL;
}

static void add_label(builder *b, slice name)
{
    if (sim_surveying(b)) {
        sim_survey_label(b);
        return;
    }
    if (find_label(b, b->depth ? b->scopes[b->depth - 1].labels : 0, name))
        sim_bad_ptx(b, b->c.line, "label %.*s twice", (int)name.n, name.s);
    if (b->n_labels % 256 == 0) b->labels = realloc(b->labels, (b->n_labels + 256) * sizeof *b->labels);
    b->labels[b->n_labels++] = (label){name, b->p->n_code};
}

/* Branches from a scope to its own labels; what is left goes to those around it. */
static void resolve_branches(builder *b, uint32_t first_label, uint32_t first_fixup)
{
    uint32_t left = first_fixup;
    for (uint32_t i = first_fixup; i < b->n_fixups; i++) {
        const label *found = find_label(b, first_label, b->fixups[i].name);
        if (found)
            b->p->code[b->fixups[i].pc].target = found->pc;
        else
            b->fixups[left++] = b->fixups[i];
    }
    b->n_fixups = left;
    b->n_labels = first_label;
}

static void close_scope(builder *b)
{
    b->depth--;
    resolve_branches(b, b->scopes[b->depth].labels, b->scopes[b->depth].fixups);
    b->n_declarations = b->scopes[b->depth].declarations;
    b->next_register = b->scopes[b->depth].registers; /* inner scopes in turn share their places */
}

static void parse_body(builder *b)
{
    while (sim_skip(&b->c), b->c.p < b->c.end) {
        if (sim_accept(&b->c, '{')) {
            open_scope(b);
        } else if (sim_accept(&b->c, '}')) {
            if (b->depth == 0) break;
            close_scope(b);
        } else if (*b->c.p == '@') {
            slice at = {b->c.p++, 1};
            parse_instruction(b, at);
        } else if (!sim_accept(&b->c, ';')) {
            cursor before = b->c;
            slice word = sim_word(&b->c);
            if (word.n == 0) sim_bad_ptx(b, before.line, "\"%.*s\"", rest_of_line(&before), before.p);
            if (sim_accept(&b->c, ':'))
                add_label(b, word);
            else if (*word.s == '.')
                parse_directive(b, word);
            else
                parse_instruction(b, word);
        }
    }
}

static void parse_code(builder *b)
{
    parse_body(b);
    statement end = {.opcode = {"exit", 4}, .line = b->c.line};
    sim_decode(b, &end, NONE, false);
    resolve_branches(b, 0, 0);
    if (b->n_fixups == 0) return;
    const label *lost = b->fixups;
    sim_bad_ptx(b, b->p->code[lost->pc].line, "no label %.*s", (int)lost->name.n, lost->name.s);
}

/* The body once without decoding it; nothing but what is known of its registers stays. */
static void survey(builder *b)
{
    program *p = b->p;
    cursor body = b->c;
    uint32_t n_variables = b->n_variables, static_smem = p->static_smem;
    sim_survey_begin(b);
    parse_body(b);
    sim_survey_end(b);
    b->c = body;
    b->n_declarations = b->loc = b->used_bytes = 0;
    b->n_variables = n_variables;
    b->next_register = p->register_bytes = FIRST_REGISTER;
    p->n_predicates = 1;
    p->static_smem = static_smem;
    p->local_bytes = 0;
    p->n_locs = 1;
}

static void parse_params(builder *b, cursor c)
{
    cursor body = b->c;
    program *p = b->p;
    b->c = c;
    while (!sim_accept(&b->c, ')')) {
        variable v = {.space = PARAM};
        slice word = sim_word(&b->c);
        if (!sim_is(word, ".param")) sim_bad_ptx(b, b->c.line, "expected .param");
        parse_variable(b, &v);
        sim_accept(&b->c, ',');
        p->param_bytes = (uint32_t)((p->param_bytes + v.align - 1) / v.align * v.align);
        v.address = p->param_bytes;
        p->params = realloc(p->params, (p->n_params + 1) * sizeof *p->params);
        p->params[p->n_params++] = (param){p->param_bytes, (uint32_t)v.size};
        p->param_bytes += (uint32_t)v.size;
        sim_add_variable(b, &v);
    }
    b->c = body;
}

/* The module's shared variables that this kernel names: its static shared memory. */
static void place_module_variables(builder *b)
{
    for (uint32_t i = 0; i < b->m->n_variables; i++) {
        const variable *v = &b->m->variables[i];
        if (v->space != SHARED || v->is_extern) continue;
        if (memmem(b->c.p, (size_t)(b->c.end - b->c.p), v->name.s, v->name.n)) sim_add_variable(b, v);
    }
}

static program *new_program(module *m, const entry *e)
{
    program *p = calloc(1, sizeof *p);
    p->name = strndup(e->name.s, e->name.n);
    p->module = m;
    p->register_bytes = FIRST_REGISTER;
    p->n_predicates = 1;
    p->max_threads = e->max_threads;
    memcpy(p->cluster, e->cluster, sizeof p->cluster);
    p->locs = calloc(1024, sizeof *p->locs);
    p->n_locs = 1;
    return p;
}

static bool parse_kernel(builder *b, const entry *e)
{
    if (setjmp(b->failed)) return false;
    parse_params(b, e->params);
    place_module_variables(b);
    survey(b);
    parse_code(b);
    b->p->register_bytes = sim_shared_place(b, b->p->register_bytes);
    sim_find_rejoins(b->p);
    return true;
}

program *sim_program_of(module *m, entry *e)
{
    if (e->program) return e->program;
    builder *b = calloc(1, sizeof *b);
    *b = (builder){.p = new_program(m, e), .m = m, .c = e->body, .pool_size = 16384};
    b->next_register = b->p->register_bytes;
    b->pool = calloc(b->pool_size, sizeof *b->pool);
    if (parse_kernel(b, e))
        e->program = b->p;
    else
        sim_program_free(b->p);
    free(b->pool);
    free(b->declarations);
    free(b->variables);
    free(b->labels);
    free(b->fixups);
    sim_sharing_close(b);
    free(b);
    return e->program;
}
