/* Loads a PTX module: its variables, entries and file names; says what is wrong with one. */
#include "ptx.h"

#include "checks/report.h"
#include "machine/memory.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void sim_bad_ptx(builder *b, uint32_t line, const char *format, ...)
{
    va_list values;
    int n = snprintf(b->m->error, sizeof b->m->error, "ptxsim: line %u; error: ", line);
    va_start(values, format);
    n += vsnprintf(b->m->error + n, sizeof b->m->error - (size_t)n, format, values);
    va_end(values);
    char place[300] = "";
    const insn here = {.loc = b->loc};
    if (b->p && b->p->locs && b->loc < b->p->n_locs) sim_source_place(b->p, &here, place, sizeof place);
    if (*place && n > 0 && (size_t)n < sizeof b->m->error)
        snprintf(b->m->error + n, sizeof b->m->error - (size_t)n, " (%s)", place);
    longjmp(b->failed, 1);
}

/* Where modules declare variables: .global and .const memory is allocated and filled here. */
static bool fail(module *m, uint32_t line, const char *what, slice near)
{
    snprintf(m->error, sizeof m->error, "ptxsim: line %u; error: %s %.*s", line, what, (int)near.n, near.s);
    return false;
}

static uint32_t number(cursor *c)
{
    operand_kind kind;
    sim_skip(c);
    return sim_starts_number(c) ? (uint32_t)sim_number(c, &kind) : 0;
}

static bool load_file_name(module *m, cursor *c)
{
    uint32_t index = number(c);
    slice name = sim_string(c);
    if (index < sizeof m->files / sizeof m->files[0] && !m->files[index]) m->files[index] = strndup(name.s, name.n);
    while (sim_accept(c, ','))
        number(c);
    return true;
}

static void load_values(cursor *c, uint8_t *to, uint32_t size, uint64_t room)
{
    bool braces = sim_accept(c, '{');
    for (uint64_t i = 0; (i + 1) * size <= room; i++) {
        operand_kind kind;
        sim_skip(c);
        if (!sim_starts_number(c)) break;
        int64_t value = sim_number(c, &kind);
        memcpy(to + i * size, &value, size);
        if (!braces || !sim_accept(c, ',')) break;
    }
    if (braces) sim_accept(c, '}');
}

static bool load_variable(module *m, cursor *c, space space, bool is_extern)
{
    variable v = {.space = space, .is_extern = is_extern, .align = 1};
    uint32_t size = 1, line = c->line;
    for (;;) {
        slice word = sim_word(c);
        slice type = {word.s + 1, word.n - 1};
        if (word.n == 0) return fail(m, line, "a variable without a name", word);
        if (*word.s != '.') {
            v.name = word;
            break;
        }
        if (sim_is(word, ".align"))
            v.align = number(c);
        else if (sim_width_of(type))
            size = sim_size_of(type);
        else
            return fail(m, line, "a variable declared", word);
    }
    v.size = size;
    while (sim_accept(c, '[')) {
        v.size *= number(c);
        sim_accept(c, ']');
    }
    if (v.align < size) v.align = size;
    if (space != SHARED) v.address = (uint64_t)(uintptr_t)sim_memory_allocate(v.size ? v.size : 1);
    if (space != SHARED) memset((void *)(uintptr_t)v.address, 0, v.size);
    if (sim_accept(c, '=')) load_values(c, (void *)(uintptr_t)v.address, size, v.size);
    if (!sim_accept(c, ';')) return fail(m, c->line, "expected ; after", v.name);
    m->variables = realloc(m->variables, (m->n_variables + 1) * sizeof *m->variables);
    m->variables[m->n_variables++] = v;
    return true;
}

static bool load_entry(module *m, cursor *c)
{
    entry e = {.module = m, .name = sim_word(c), .max_dynamic_smem = 48 * 1024};
    if (!sim_accept(c, '(')) return fail(m, c->line, "expected ( after", e.name);
    e.params = *c;
    while (c->p < c->end && !sim_accept(c, ')'))
        c->p++;
    while (!sim_accept(c, '{')) {
        slice word = sim_word(c);
        if (sim_is(word, ".maxntid") || sim_is(word, ".reqntid")) {
            e.max_threads = 1;
            do
                e.max_threads *= number(c);
            while (sim_accept(c, ','));
        } else if (sim_is(word, ".reqnctapercluster")) {
            int d = 0;
            e.cluster[0] = e.cluster[1] = e.cluster[2] = 1;
            do
                e.cluster[d++] = number(c);
            while (d < 3 && sim_accept(c, ','));
        } else if (sim_is(word, ".minnctapersm") || sim_is(word, ".maxnreg") || sim_is(word, ".maxclusterrank")) {
            number(c);
        } else if (!sim_is(word, ".explicitcluster") && !sim_is(word, ".blocksareclusters")) {
            return fail(m, c->line, "directive", word);
        }
    }
    e.body = *c;
    sim_skip_block(c);
    e.body.end = c->p;
    m->entries = realloc(m->entries, (m->n_entries + 1) * sizeof *m->entries);
    m->entries[m->n_entries++] = e;
    return true;
}

static bool load_function(module *m, cursor *c, slice word)
{
    while (c->p < c->end && *c->p != '{' && *c->p != ';')
        c->p++;
    if (sim_accept(c, ';')) return true; /* only declared; a call will be an error */
    return fail(m, c->line, "functions are not modelled, only kernels:", word);
}

static bool load_directive(module *m, cursor *c, slice word, bool *is_extern)
{
    if (sim_is(word, ".version") || sim_is(word, ".target") || sim_is(word, ".address_size")) {
        do {
            slice value = sim_word(c);
            if (value.n > 3 && !strncmp(value.s, "sm_", 3)) m->target = atoi(value.s + 3);
        } while (sim_accept(c, ','));
        return true;
    }
    if (sim_is(word, ".visible") || sim_is(word, ".weak") || sim_is(word, ".extern") || sim_is(word, ".common")) {
        *is_extern |= sim_is(word, ".extern");
        return true;
    }
    bool was_extern = *is_extern;
    *is_extern = false;
    if (sim_is(word, ".file")) return load_file_name(m, c);
    if (sim_is(word, ".section")) {
        sim_word(c);
        if (sim_accept(c, '{')) sim_skip_block(c);
        return true;
    }
    if (sim_is(word, ".entry")) return load_entry(m, c);
    if (sim_is(word, ".func")) return load_function(m, c, word);
    if (sim_is(word, ".shared")) return load_variable(m, c, SHARED, was_extern);
    if (sim_is(word, ".global")) return load_variable(m, c, GLOBAL, was_extern);
    if (sim_is(word, ".const")) return load_variable(m, c, CONSTANT, was_extern);
    return fail(m, c->line, "directive", word);
}

module *sim_module_load(const char *text, char *log, size_t log_size)
{
    module *m = calloc(1, sizeof *m);
    m->text = strdup(text);
    cursor c = {m->text, m->text + strlen(m->text), 1};
    bool fine = true, is_extern = false;
    while (fine && (sim_skip(&c), c.p < c.end)) {
        slice word = sim_word(&c);
        fine = word.n ? load_directive(m, &c, word, &is_extern) : fail(m, c.line, "not PTX:", (slice){c.p, 1});
    }
    if (fine) return m;
    if (log && log_size) snprintf(log, log_size, "%s", m->error);
    sim_module_free(m);
    return NULL;
}

void sim_program_free(program *p)
{
    for (uint32_t i = 0; i < p->n_code; i++)
        free(p->code[i].list);
    free(p->code);
    free(p->constants);
    free(p->params);
    free(p->shared_bases);
    free(p->locs);
    free(p->scoped);
    free(p->name);
    free(p);
}

void sim_module_free(module *m)
{
    for (uint32_t i = 0; i < m->n_entries; i++)
        if (m->entries[i].program) sim_program_free(m->entries[i].program);
    for (uint32_t i = 0; i < m->n_variables; i++)
        if (m->variables[i].space != SHARED) sim_memory_free((void *)(uintptr_t)m->variables[i].address);
    for (size_t i = 0; i < sizeof m->files / sizeof m->files[0]; i++)
        free(m->files[i]);
    free(m->variables);
    free(m->entries);
    free(m->text);
    free(m);
}

entry *sim_module_entry(module *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_entries; i++)
        if (sim_is(m->entries[i].name, name)) return &m->entries[i];
    return NULL;
}
