/* Decodes PTX statements into instructions, with help of the other decode_ files, and fetches their operands. */
#include "decode.h"

#include "exec/exec_compare.h"
#include "exec/exec_flow.h"
#include "exec/exec_wide.h"
#include "machine/memory.h"

#include <pthread.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Opcodes in pieces                                                                                                */
/* ---------------------------------------------------------------------------------------------------------------- */

pieces sim_pieces(slice opcode)
{
    pieces p = {0};
    uint32_t begin = 0;
    for (uint32_t i = 0; i <= opcode.n && p.n < MAX_PIECES; i++) {
        if (i < opcode.n && opcode.s[i] != '.') continue;
        p.at[p.n++] = (slice){opcode.s + begin, i - begin};
        begin = i + 1;
    }
    return p;
}

bool sim_take(pieces *p, const char *text)
{
    if (p->next >= p->n || !sim_is(p->at[p->next], text)) return false;
    p->next++;
    return true;
}

slice sim_next(pieces *p) { return p->next < p->n ? p->at[p->next++] : (slice){"", 0}; }

_Noreturn void sim_unknown(builder *b, const statement *s, const char *why)
{
    sim_bad_ptx(b, s->line, "unknown instruction %.*s%s%s", (int)s->opcode.n, s->opcode.s, *why ? ": " : "", why);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

unsigned sim_bytes(char width) { return width == 'h' ? 2 : width == 'w' ? 4 : width == 'd' ? 8 : 16; }

static _Noreturn void bad_operand(builder *b, const char *expected)
{
    const statement *s = b->now;
    sim_bad_ptx(b, s->line, "an operand of %.*s: expected %s", (int)s->opcode.n, s->opcode.s, expected);
}

static const char *kind_of(char width)
{
    return width == 'p'   ? "a predicate"
           : width == 'h' ? "a 16-bit register or a constant"
           : width == 'w' ? "a 32-bit register or a constant"
           : width == 'd' ? "a 64-bit register or a constant"
                          : "a 128-bit register";
}

uint32_t sim_source(builder *b, const operand *o, char width)
{
    if (o->kind == O_REGISTER && o->width == width && !o->negated) return o->place;
    if (o->kind == O_IMMEDIATE && width != 'p') return sim_constant(b, (uint64_t)o->value, width);
    if (o->kind == O_FLOAT && width == 'w') return sim_constant(b, (uint64_t)o->value, width);
    if (o->kind == O_DOUBLE && width == 'd') return sim_constant(b, (uint64_t)o->value, width);
    if (o->kind == O_DOUBLE && width == 'w') {
        double real;
        memcpy(&real, &o->value, sizeof real);
        float single = (float)real;
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        return sim_constant(b, bits, width);
    }
    if (o->kind == O_SYMBOL && width != 'p' && width != 'h') {
        const variable *v = sim_find_variable(b, o->text);
        if (!v) sim_bad_ptx(b, b->now->line, "nothing is named %.*s", (int)o->text.n, o->text.s);
        uint64_t address = sim_address_of(b, v) + (uint64_t)o->value;
        return v->space == SHARED ? sim_shared_base(b, (uint32_t)address, width) : sim_constant(b, address, width);
    }
    bad_operand(b, kind_of(width));
}

uint32_t sim_destination(builder *b, const operand *o, char width)
{
    if (o->kind != O_REGISTER || o->width != width) bad_operand(b, kind_of(width));
    return o->place;
}

char sim_place(builder *b, const operand *o, uint32_t *place)
{
    if (o->kind != O_REGISTER || o->width == 'p') bad_operand(b, "a register");
    *place = o->place;
    return o->width;
}

int64_t sim_immediate(builder *b, const operand *o)
{
    if (o->kind != O_IMMEDIATE) bad_operand(b, "a number");
    return o->value;
}

uint32_t sim_predicate(builder *b, const operand *o)
{
    if (o->kind != O_REGISTER || o->width != 'p') bad_operand(b, "a predicate");
    return o->place;
}

/* [%rd5+16], [symbol+16], [4096]. o[slot] is the register, or the place of a constant 0; imm what to add. */
void sim_address(builder *b, const operand *o, insn *in, int slot)
{
    if (o->kind != O_ADDRESS) bad_operand(b, "an address");
    in->imm = o->value;
    in->a_type = o->place != NONE && o->width == 'w' ? 4 : 8;
    if (o->place != NONE && o->width != 'w' && o->width != 'd')
        bad_operand(b, "an address in a 32-bit or 64-bit register");
    in->o[slot] = o->place;
    if (o->text.n) {
        const variable *v = sim_find_variable(b, o->text);
        if (!v) sim_bad_ptx(b, b->now->line, "nothing is named %.*s", (int)o->text.n, o->text.s);
        uint64_t address = sim_address_of(b, v);
        if (v->space == SHARED)
            in->o[slot] = sim_shared_base(b, (uint32_t)address, 'd');
        else
            in->imm += (int64_t)address;
    }
    if (in->o[slot] == NONE) in->o[slot] = sim_constant(b, 0, 'd');
}

void sim_push(insn *in, uint32_t place)
{
    in->list = realloc(in->list, (in->n_list + 1) * sizeof *in->list);
    in->list[in->n_list++] = place;
}

void sim_scoped(builder *b, const statement *s, insn *in)
{
    program *p = b->p;
    if (p->n_scoped == MOST_SCOPED) return; /* nothing counts the rest */
    if (p->n_scoped % 64 == 0) p->scoped = realloc(p->scoped, (p->n_scoped + 64) * sizeof *p->scoped);
    scoped *at = &p->scoped[p->n_scoped];
    *at = (scoped){.line = s->line, .loc = b->loc};
    snprintf(at->opcode, sizeof at->opcode, "%.*s", (int)s->opcode.n, s->opcode.s);
    in->place = (uint16_t)++p->n_scoped;
}

void sim_push_address(builder *b, const operand *o, insn *in)
{
    insn alone = {0};
    sim_address(b, o, &alone, 1);
    sim_push(in, alone.o[1] | (alone.a_type == 4 ? LISTED_32_BITS : 0));
    sim_push(in, sim_constant(b, (uint64_t)alone.imm, 'd'));
}

void sim_list(builder *b, const operand *o, insn *in, char width, bool destination)
{
    const operand *items = o->kind == O_LIST ? o->items : o;
    uint32_t n = o->kind == O_LIST ? o->n_items : 1;
    in->list = realloc(in->list, (in->n_list + n) * sizeof *in->list);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = NONE;
        if (items[i].kind == O_SINK)
            place = NONE;
        else if (destination)
            place = sim_destination(b, &items[i], width ? width : items[i].width);
        else
            place = sim_source(b, &items[i], width ? width : items[i].width);
        in->list[in->n_list++] = place;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tables                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool suits(const operand *o, char want)
{
    if (want == 'i') return o->kind == O_IMMEDIATE;
    if (o->kind == O_REGISTER) return o->width == want;
    if (o->kind == O_LIST || o->kind == O_ADDRESS || o->kind == O_SPECIAL) return false;
    return want != 'p';
}

static bool decode_row(builder *b, const statement *s, insn *in, const op_row *row)
{
    if (!sim_is(s->opcode, row->name) || strlen(row->signature) != s->n) return false;
    for (uint32_t i = 0; i < s->n; i++)
        if (!suits(&s->o[i], row->signature[i])) return false;
    in->fn = row->fn;
    in->op = row->op;
    in->whole_warp = row->whole_warp;
    for (uint32_t i = 0; i < s->n; i++) {
        char want = row->signature[i];
        if (want == 'i')
            in->imm = s->o[i].value;
        else if (want == 'p')
            in->o[i] = sim_predicate(b, &s->o[i]);
        else if (i == 0)
            in->o[i] = sim_destination(b, &s->o[i], want);
        else
            in->o[i] = sim_source(b, &s->o[i], want);
    }
    return true;
}

#define SLOTS 4096

static uint32_t hash_of(slice name)
{
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < name.n; i++)
        hash = (hash ^ (unsigned char)name.s[i]) * 16777619u;
    return hash;
}

static const op_row *slots[SLOTS]; /* rows of one name, in any order, from its hash on */

static void fill_slots(void)
{
    static const op_row *const tables[] = {sim_int_rows, sim_bit_rows, sim_float_rows, sim_convert_rows};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (const op_row *row = tables[t]; row->name; row++) {
            uint32_t at = hash_of((slice){row->name, (uint32_t)strlen(row->name)});
            while (slots[at % SLOTS])
                at++;
            slots[at % SLOTS] = row;
        }
    }
}

static bool decode_rows(builder *b, const statement *s, insn *in)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_slots);
    for (uint32_t at = hash_of(s->opcode); slots[at % SLOTS]; at++)
        if (decode_row(b, s, in, slots[at % SLOTS])) return true;
    return false;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Comparisons, branches, moves that are not plain                                                                  */
/* ---------------------------------------------------------------------------------------------------------------- */

static void decode_setp(builder *b, const statement *s, insn *in, pieces *p)
{
    slice how = sim_next(p);
    int comparison = sim_comparison(how.s, how.n);
    if (comparison < 0) sim_unknown(b, s, "no such comparison");
    in->op = (uint8_t)comparison;
    in->flags = sim_take(p, "and") ? '&' : sim_take(p, "or") ? '|' : sim_take(p, "xor") ? '^' : 0;
    if (sim_take(p, "ftz")) sim_unknown(b, s, "ftz");
    slice type = sim_next(p);
    char width = 0;
    in->fn = sim_comparer(type.s, type.n, &width);
    if (!in->fn || s->n != (in->flags ? 4u : 3u)) sim_unknown(b, s, "");
    in->o[0] = s->o[0].kind == O_SINK ? NONE : sim_predicate(b, &s->o[0]);
    in->o[1] = s->o[0].pair && s->o[0].pair->kind != O_SINK ? sim_predicate(b, s->o[0].pair) : NONE;
    in->o[2] = sim_source(b, &s->o[1], width);
    in->o[3] = sim_source(b, &s->o[2], width);
    if (in->flags) in->o[4] = sim_predicate(b, &s->o[3]);
    in->a_type = in->flags && s->o[3].negated;
}

static void decode_bra(builder *b, const statement *s, insn *in, pieces *p)
{
    in->flags = sim_take(p, "uni");
    if (s->n != 1 || s->o[0].kind != O_SYMBOL || p->next != p->n) sim_unknown(b, s, "");
    in->fn = sim_exec_bra;
    if (b->n_fixups % 256 == 0) b->fixups = realloc(b->fixups, (b->n_fixups + 256) * sizeof *b->fixups);
    b->fixups[b->n_fixups++] = (label){s->o[0].text, b->p->n_code};
}

static void decode_exit(builder *b, const statement *s, insn *in, pieces *p)
{
    sim_take(p, "uni");
    if (s->n || p->next != p->n) sim_unknown(b, s, "");
    in->fn = sim_exec_exit;
}

/* mov.b64 {a, b}, c and back; mov of a clock. */
static void decode_mov(builder *b, const statement *s, insn *in, pieces *p)
{
    char width = sim_width_of(sim_next(p));
    if (s->n != 2 || !width || p->next != p->n) sim_unknown(b, s, "");
    if (s->o[1].kind == O_SPECIAL) {
        in->fn = sim_exec_clock;
        in->reg_size = (uint8_t)sim_bytes(width);
        in->op = sim_is(s->o[1].text, "%clock64") || sim_is(s->o[1].text, "%clock") ? 'c'
                 : sim_is(s->o[1].text, "%globaltimer")                             ? 'g'
                                                                                    : 0;
        if (!in->op) sim_unknown(b, s, "no such special register");
        in->o[0] = sim_destination(b, &s->o[0], width);
        return;
    }
    bool unpack = s->o[0].kind == O_LIST;
    const operand *list = &s->o[unpack ? 0 : 1], *whole = &s->o[unpack ? 1 : 0];
    if (list->kind != O_LIST) sim_unknown(b, s, "");
    if (width == 'q' && list->n_items == 2) {
        in->fn = sim_exec_mov_wide;
        in->op = unpack ? 'u' : 'p';
        sim_list(b, list, in, 'd', unpack);
        in->o[0] = sim_destination(b, whole, 'q');
        return;
    }
    in->fn = unpack ? sim_exec_unpack : sim_exec_pack;
    in->size = (uint8_t)(sim_bytes(width) / list->n_items);
    in->reg_size = (uint8_t)sim_bytes(width);
    if (in->size < 1 || in->reg_size > 8 || in->size * list->n_items != in->reg_size) sim_unknown(b, s, "");
    sim_list(b, list, in, in->size <= 2 ? 'h' : 'w', unpack);
    in->o[0] = unpack ? sim_source(b, whole, width) : sim_destination(b, whole, width);
}

/* Generic addresses of global memory are its own; the other spaces have windows. */
static void decode_cvta(builder *b, const statement *s, insn *in, pieces *p)
{
    in->op = sim_take(p, "to") ? '-' : '+';
    in->space = sim_take(p, "global") || sim_take(p, "const")         ? GLOBAL
                : sim_take(p, "shared") || sim_take(p, "shared::cta") ? SHARED
                : sim_take(p, "shared::cluster")                      ? SHARED
                : sim_take(p, "local")                                ? LOCAL
                : sim_take(p, "param")                                ? PARAM
                                                                      : GENERIC;
    if (in->space == GENERIC || !sim_take(p, "u64") || p->next != p->n || s->n != 2) sim_unknown(b, s, "");
    in->fn = sim_exec_cvta;
    in->o[0] = sim_destination(b, &s->o[0], 'd');
    in->o[1] = sim_source(b, &s->o[1], 'd');
}

/* createpolicy.fractional: a number that caches know, which are not simulated. */
static void decode_policy(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "fractional") || s->n < 1 || s->n > 2) sim_unknown(b, s, "");
    if (!sim_begins(sim_next(p), "L2::evict_")) sim_unknown(b, s, "");
    if (!sim_take(p, "L2::evict_unchanged")) sim_take(p, "L2::evict_first"); /* of what the first is not for */
    if (!sim_take(p, "b64") || p->next != p->n) sim_unknown(b, s, "");
    in->fn = sim_exec_cvta;
    in->space = GLOBAL;
    in->op = '-';
    in->o[0] = sim_destination(b, &s->o[0], 'd');
    in->o[1] = sim_constant(b, 0, 'd');
}

static const struct {
    const char *name;
    decoder *decode;
} families[] = {
    {"setp", decode_setp},
    {"bra", decode_bra},
    {"exit", decode_exit},
    {"ret", decode_exit},
    {"mov", decode_mov},
    {"cvta", decode_cvta},
    {"createpolicy", decode_policy},
    {"ld", sim_decode_memory},
    {"ldu", sim_decode_memory},
    {"st", sim_decode_memory},
    {"atom", sim_decode_atomic},
    {"red", sim_decode_atomic},
    {"cp", sim_decode_async},
    {"ldmatrix", sim_decode_matrix},
    {"stmatrix", sim_decode_matrix},
    {"movmatrix", sim_decode_matrix},
    {"mma", sim_decode_matrix},
    {"wgmma", sim_decode_matrix},
    {"cvt", sim_decode_convert},
    {"shfl", sim_decode_warp},
    {"vote", sim_decode_warp},
    {"match", sim_decode_warp},
    {"redux", sim_decode_warp},
    {"activemask", sim_decode_warp},
    {"elect", sim_decode_warp},
    {"nanosleep", sim_decode_warp},
    {"trap", sim_decode_warp},
    {"bar", sim_decode_barrier},
    {"barrier", sim_decode_barrier},
    {"membar", sim_decode_barrier},
    {"fence", sim_decode_barrier},
    {"mapa", sim_decode_cluster},
    {"griddepcontrol", sim_decode_cluster},
    {"prefetch", sim_decode_cluster},
    {"prefetchu", sim_decode_cluster},
    {"setmaxnreg", sim_decode_cluster},
    {"mbarrier", sim_decode_mbarrier},
    {"tcgen05", sim_decode_tensor},
    {"clusterlaunchcontrol", sim_decode_cancel},
};

void sim_decode(builder *b, const statement *s, uint32_t guard, bool guard_not)
{
    program *program = b->p;
    if (program->n_code % 256 == 0)
        program->code = realloc(program->code, (program->n_code + 256) * sizeof *program->code);
    insn *in = &program->code[program->n_code];
    *in = (insn){.guard = guard, .guard_not = guard_not, .line = s->line, .loc = b->loc, .rejoin = NONE};
    in->used_bytes = b->used_bytes ? b->used_bytes : ALL_LANES;
    in->target = NONE;
    if (!decode_rows(b, s, in)) {
        pieces p = sim_pieces(s->opcode);
        decoder *decode = sim_decode_arith;
        for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
            if (sim_is(p.at[0], families[i].name)) decode = families[i].decode;
        p.next = decode != sim_decode_arith;
        decode(b, s, in, &p);
    }
    program->n_code++;
}
