/* Between the decoders: the pieces of an opcode, operands fetched with a type in mind. */
#ifndef PTXSIM_DECODE_H
#define PTXSIM_DECODE_H

#include "exec/exec.h"
#include "parse/ptx.h"

#define MAX_PIECES 20

/* "ld.global.v4.u32" as ld global v4 u32, taken from the front. */
typedef struct pieces {
    slice at[MAX_PIECES];
    uint32_t n, next;
} pieces;

typedef void decoder(builder *b, const statement *s, insn *in, pieces *p);

pieces sim_pieces(slice opcode);
bool sim_take(pieces *p, const char *text); /* the next piece, if it is this one */
slice sim_next(pieces *p);                  /* empty at the end */
_Noreturn void sim_unknown(builder *b, const statement *s, const char *why);

uint32_t sim_source(builder *b, const operand *o, char width);
uint32_t sim_destination(builder *b, const operand *o, char width);
char sim_place(builder *b, const operand *o, uint32_t *place); /* of a register as it is declared: its width */
int64_t sim_immediate(builder *b, const operand *o);
uint32_t sim_predicate(builder *b, const operand *o);
void sim_address(builder *b, const operand *o, insn *in, int slot); /* o[slot] and imm; register width in reg 'a' */
void sim_push_address(builder *b, const operand *o, insn *in);      /* appended to in->list, for sim_listed_address */
void sim_push(insn *in, uint32_t place);
void sim_scoped(builder *b, const statement *s, insn *in); /* its release or acquire is of more than a CTA */
void sim_list(builder *b, const operand *o, insn *in, char width, bool destination); /* appended to in->list */
unsigned sim_bytes(char width);

extern decoder sim_decode_memory, sim_decode_atomic, sim_decode_async, sim_decode_matrix, sim_decode_arith,
    sim_decode_convert, sim_decode_warp, sim_decode_barrier, sim_decode_cluster, sim_decode_mbarrier, sim_decode_bulk,
    sim_decode_store_async, sim_decode_tensor, sim_decode_cancel;

#endif
