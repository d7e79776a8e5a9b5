/* PTX text as statements, and what one kernel declares. */
#ifndef PTXSIM_PTX_H
#define PTXSIM_PTX_H

#include "sim.h"

#include <setjmp.h>

typedef struct slice {
    const char *s;
    uint32_t n;
} slice;

typedef struct cursor {
    const char *p, *end;
    uint32_t line;
} cursor;

typedef enum operand_kind {
    O_REGISTER,
    O_IMMEDIATE,
    O_FLOAT,
    O_DOUBLE,
    O_SYMBOL,
    O_ADDRESS,
    O_LIST,
    O_SPECIAL,
    O_SINK
} operand_kind;

/* 'p' predicate, 'h' 16, 'w' 32, 'd' 64, 'q' 128 bits. Of an address `place` is its register, or NONE. */
typedef struct operand {
    operand_kind kind;
    char width;
    bool negated;
    uint32_t place;
    int64_t value; /* immediate, bits of a float, displacement */
    slice text;
    struct operand *items; /* of a list, or an address's coordinates */
    uint32_t n_items;
    struct operand *pair; /* d|p */
} operand;

#define MAX_OPERANDS 16
#define MAX_ITEMS 512

typedef struct statement {
    slice opcode;
    uint32_t line, n;
    operand o[MAX_OPERANDS];
} statement;

typedef struct declaration { /* %r<100> or one name */
    slice prefix;
    uint32_t count, first;
    char width;
    bool numbered;
} declaration;

typedef struct variable {
    slice name;
    space space;
    uint64_t size, address, align;
    bool is_extern;
} variable;

typedef struct label {
    slice name;
    uint32_t pc;
} label;

typedef struct entry { /* a kernel, before it is asked for */
    module *module;
    slice name;
    cursor params, body;
    uint32_t max_threads, cluster[3];
    program *program;
    int max_dynamic_smem;
    bool large_clusters; /* more than PORTABLE_PEERS, as the host asked for */
} entry;

struct module {
    char *text;
    entry *entries;
    uint32_t n_entries;
    variable *variables;
    uint32_t n_variables;
    char *files[64];
    int target; /* 80, 90, .. */
    char error[512];
};

/* One kernel while it is being decoded. */
typedef struct builder {
    program *p;
    module *m;
    cursor c;
    jmp_buf failed;
    declaration *declarations;
    uint32_t n_declarations, next_register, depth;
    struct {
        uint32_t declarations, registers, labels, fixups;
    } scopes[32]; /* how many there were of each where it began */
    variable *variables;
    uint32_t n_variables;
    label *labels, *fixups; /* a fixup's pc is that of the branch */
    uint32_t n_labels, n_fixups;
    struct {
        uint64_t bits;
        uint32_t place;
        char width;
    } *pool;
    uint32_t n_pool, pool_size;
    operand items[MAX_ITEMS];
    uint32_t n_items;
    uint32_t loc, used_bytes;
    const statement *now;
    struct sharing *sharing;
} builder;

/* parse.c */
module *sim_module_load(const char *text, char *log, size_t log_size);
void sim_module_free(module *m);
entry *sim_module_entry(module *m, const char *name);
program *sim_program_of(module *m, entry *e); /* NULL: m->error */
void sim_program_free(program *p);
_Noreturn void sim_bad_ptx(builder *b, uint32_t line, const char *format, ...);

/* lex.c */
void sim_skip(cursor *c);
bool sim_accept(cursor *c, char what);
slice sim_word(cursor *c); /* letters, digits and _ . : $ % */
slice sim_name(cursor *c); /* as a word, without dots unless it is a special register */
int64_t sim_number(cursor *c, operand_kind *kind);
bool sim_starts_number(const cursor *c);
slice sim_string(cursor *c);
void sim_skip_block(cursor *c); /* from behind { to behind its } */
bool sim_is(slice s, const char *text);
bool sim_begins(slice s, const char *text);

/* operand.c: what a name or a number is in this kernel */
char sim_width_of(slice type);
uint32_t sim_size_of(slice type);
void sim_declare(builder *b, slice name, bool numbered, uint32_t count, char width);
bool sim_find_register(builder *b, slice name, operand *o);
variable *sim_find_variable(builder *b, slice name);
bool sim_find_special(builder *b, slice name, operand *o);
uint32_t sim_constant(builder *b, uint64_t bits, char width);
uint32_t sim_allocate(builder *b, char width);
void sim_add_variable(builder *b, const variable *v);
uint64_t sim_address_of(builder *b, const variable *v);
uint32_t sim_shared_base(builder *b, uint32_t address, char width);
operand *sim_new_items(builder *b, uint32_t n);

/* registers.c: before the text is decoded it is parsed once to see how long each register lives */
void sim_survey_begin(builder *b);
void sim_survey(builder *b, const statement *s, bool guarded);
void sim_survey_label(builder *b);
void sim_survey_scope(builder *b);
void sim_survey_end(builder *b);
bool sim_surveying(const builder *b);
uint32_t sim_shared_place(const builder *b, uint32_t place); /* of a register whose place as declared this is */
void sim_sharing_close(builder *b);

/* decode.c */
void sim_decode(builder *b, const statement *s, uint32_t guard, bool guard_not);

/* flow.c */
void sim_find_rejoins(program *p);

#endif
