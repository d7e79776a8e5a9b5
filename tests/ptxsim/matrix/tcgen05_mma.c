/* Executes tcgen05.mma.
 *
 * op: the kind; o[0]: the predicate (NONE: imm says whether D is added to); list: D, A (a descriptor, or an address
 * of two entries), B, the instruction descriptor, the addresses of the scale factors. Each CTA of a pair has its half
 * of A's rows and of B's columns in shared memory, at the same offset, and all scale factors that it needs. */
#include "tcgen05.h"

#include "checks/report.h"
#include "exec/exec_value.h"

#include <stdlib.h>

static bool is_scaled(const insn *in) { return in->op == NUM_KIND_MXF4NVF4; }

/* K of an instruction: 64 codes or 16 halves. */
enum { BYTES_OF_K = 32, K_OF_F16 = BYTES_OF_K / 2 };

/* What the operands are, for one of `n` CTAs. */
typedef struct operands {
    tensor_matrix a, b;
    uint32_t rows;    /* of D */
    uint32_t columns; /* of B */
    bool a_in_tmem;
} operands;

static operands operands_of(const tensor_op *op, uint32_t n)
{
    const num_instruction *i = &op->shape;
    operands o = {.rows = (uint32_t)i->m / n, .columns = (uint32_t)i->n / n};
    o.a_in_tmem = op->in->flags & TENSOR_A_TMEM;
    o.a.rows = i->mn_major_a ? K_OF_F16 : o.rows;
    o.a.bytes = i->mn_major_a ? 2 * o.rows : BYTES_OF_K;
    o.a.mn_major = i->mn_major_a;
    o.b.rows = i->mn_major_b ? K_OF_F16 : o.columns;
    o.b.bytes = i->mn_major_b ? 2 * o.columns : BYTES_OF_K;
    o.b.mn_major = i->mn_major_b;
    return o;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Issuing                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool bad_instruction(run *r, const insn *in, uint32_t bits, num_instruction *i)
{
    const char *why = num_instruction_descriptor((num_kind)in->op, in->flags & TENSOR_PAIR ? 2 : 1, bits, i);
    if (!why && is_scaled(in) && i->m == 128 && in->flags & TENSOR_PAIR) why = "M of 128 for a pair is not modelled";
    if (!why && in->flags & TENSOR_A_TMEM && (i->mn_major_a || i->m != (in->flags & TENSOR_PAIR ? 256 : 128)))
        why = "A in tensor memory of this shape is not modelled";
    if (why) sim_report(r, in, 'E', "instruction-descriptor", -1, "0x%08x: %s", bits, why);
    return why;
}

static bool bad_address(run *r, const insn *in, const char *what, uint32_t address)
{
    if (address >> 16 == 0) return false;
    sim_report(r, in, 'E', "tmem-lanes", -1, "%s at 0x%08x: expected lane 0", what, address);
    return true;
}

static tmem_span accumulators_of(const tensor_op *op)
{
    const num_instruction *i = &op->shape;
    bool halves = op->in->flags & TENSOR_PAIR && i->m == 128, narrow = !(op->in->flags & TENSOR_PAIR) && i->m == 64;
    return (tmem_span){.groups = narrow ? 0x55 : TMEM_ALL_GROUPS,
                       .column = op->d,
                       .columns = (uint32_t)i->n / (halves ? 2 : 1),
                       .tile = op->d << 20 | (uint32_t)i->m << 10 | (uint32_t)i->n};
}

static tmem_span scales_of(uint32_t column, uint32_t rows)
{
    return (tmem_span){.groups = TMEM_ALL_GROUPS, .column = column, .columns = (rows + 31) / 32};
}

static bool claim(run *r, tensor_op *op, cta *owner, const operands *o)
{
    const insn *in = op->in;
    if (!sim_tensor_reading(r, in, op->lane, owner, &o->b)) return false;
    if (o->a_in_tmem) {
        tmem_span a = {.groups = TMEM_ALL_GROUPS, .column = (uint32_t)op->a, .columns = o->a.bytes / 4};
        if (!sim_tensor_claim(r, op, owner, a, TMEM_OPERAND)) return false;
    } else if (!sim_tensor_reading(r, in, op->lane, owner, &o->a)) {
        return false;
    }
    if (is_scaled(in) && (!sim_tensor_claim(r, op, owner, scales_of(op->sfa, o->rows), TMEM_SCALE) ||
                          !sim_tensor_claim(r, op, owner, scales_of(op->sfb, (uint32_t)op->shape.n), TMEM_SCALE)))
        return false;
    if (op->accumulates) sim_tmem_written(r, in, owner, accumulators_of(op));
    return sim_tensor_claim(r, op, owner, accumulators_of(op), TMEM_SUM);
}

static bool take_addresses(run *r, const insn *in, uint32_t lane, tensor_op *op)
{
    uint32_t at = 2;
    op->d = (uint32_t)sim_listed_address(r, in, 0, lane);
    op->a = in->flags & TENSOR_A_TMEM ? sim_listed_address(r, in, at, lane) : sim_lane(r, in->list[at], 8, lane);
    at += in->flags & TENSOR_A_TMEM ? 2 : 1;
    op->b = sim_lane(r, in->list[at++], 8, lane);
    uint32_t bits = (uint32_t)sim_lane(r, in->list[at++], 4, lane);
    if (is_scaled(in)) {
        op->sfa = (uint32_t)sim_listed_address(r, in, at, lane);
        op->sfb = (uint32_t)sim_listed_address(r, in, at + 2, lane);
    }
    return !bad_instruction(r, in, bits, &op->shape) && !bad_address(r, in, "D", op->d) &&
           !(in->flags & TENSOR_A_TMEM && bad_address(r, in, "A", (uint32_t)op->a)) &&
           !bad_address(r, in, "the scales of A", op->sfa) && !bad_address(r, in, "the scales of B", op->sfb);
}

/* Hints to keep A: nothing follows from them, unless there is nothing to use. */
static void check_collector(run *r, const insn *in, uint64_t a)
{
    tmem *t = sim_tmem(r->cta);
    if (in->flags & TENSOR_USE && t->collector != a)
        sim_report(r, in, 'N', "collector", -1,
                   "uses A of the collector, which no instruction before has filled with it");
    t->collector = in->flags & TENSOR_FILL ? a : 0;
}

static bool issue(run *r, const insn *in, uint32_t lane)
{
    tensor_op op = {.in = in, .warp = r->warp, .lane = lane, .accumulates = in->imm};
    cta *ctas[2];
    uint32_t n = sim_tensor_ctas(r, in, ctas);
    if (!n || !take_addresses(r, in, lane, &op)) return false;
    if (in->o[0] != NONE) op.accumulates = (r->predicates[in->o[0]] >> lane & 1) != !!(in->flags & TENSOR_NOT);
    operands o = operands_of(&op, n);
    if (!o.a_in_tmem && !sim_tensor_describe(r, in, op.a, &o.a)) return false;
    if (!sim_tensor_describe(r, in, op.b, &o.b)) return false;
    check_collector(r, in, op.a);
    op.count = sim_tmem_issue_by(r, lane);
    sim_tmem(r->cta)->warps[r->warp->index].last_product = op.count;
    for (uint32_t i = 0; i < n; i++)
        if (!claim(r, &op, ctas[i], &o)) return false;
    op.epoch = sim_order_issue(r, lane);
    sim_tensor_queue(r, &op);
    return true;
}

step sim_exec_tensor_mma(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Running: operands as codes, [row][k]                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

static void fetch_fp4(const cta *c, const tensor_matrix *m, bool negate, uint8_t *codes)
{
    uint8_t flip = negate ? 8 : 0;
    for (uint32_t row = 0; row < m->rows; row++) {
        for (uint32_t byte = 0; byte < m->bytes; byte += 16) {
            const uint8_t *from = c->smem + sim_tensor_byte(m, row, byte);
            uint8_t *to = codes + row * 64 + 2 * byte;
            for (uint32_t k = 0; k < 16; k++) {
                to[2 * k] = (from[k] & 15) ^ flip;
                to[2 * k + 1] = from[k] >> 4 ^ flip;
            }
        }
    }
}

static void fetch_halves(const cta *c, const tensor_matrix *m, uint32_t rows, uint32_t k, bool negate, uint32_t *codes)
{
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < k; i++) {
            uint16_t code;
            uint32_t place = m->mn_major ? sim_tensor_byte(m, i, 2 * row) : sim_tensor_byte(m, row, 2 * i);
            memcpy(&code, c->smem + place, 2);
            codes[row * k + i] = code ^ (negate ? 0x8000u : 0);
        }
    }
}

static void fetch_tmem(const cta *c, uint32_t column, uint32_t rows, uint32_t k, bool negate, uint32_t *codes)
{
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < k; i++)
            codes[row * k + i] =
                (c->tmem->cells[row][column + i / 2] >> 16 * (i % 2) & 0xffff) ^ (negate ? 0x8000u : 0);
}

/* Four bytes a row. The same lanes are repeated in each quarter; which copy is read nobody says, so any may be. */
static void fetch_scales(run *r, const tensor_op *op, const cta *c, uint32_t column, uint32_t rows, uint8_t *scales)
{
    uint32_t quarter = (uint32_t)(sim_random(&r->random) % 4);
    for (uint32_t row = 0; row < rows; row++) {
        num_cell at = num_scale_factor((int)row);
        uint32_t words[4];
        for (uint32_t q = 0; q < 4; q++)
            words[q] = c->tmem->cells[at.lane + 32 * (int)q][column + (uint32_t)at.column];
        memcpy(scales + 4 * row, &words[quarter], 4);
        if (words[0] == words[1] && words[1] == words[2] && words[2] == words[3]) continue;
        sim_report(r, op->in, 'W', "scale-copies", (int)op->lane,
                   "the scales of row %u in column %u differ from quarter to quarter of the lanes: %08x %08x %08x %08x",
                   row, column + (uint32_t)at.column, words[0], words[1], words[2], words[3]);
        rows = row; /* once is enough */
    }
}

/* Columns lie side by side, but for the two halves of some shapes. */
static void move_accumulators(const tensor_op *op, cta *c, uint32_t half, uint32_t n, uint32_t *d, bool load)
{
    const num_instruction *i = &op->shape;
    uint32_t rows = (uint32_t)i->m / n, columns = (uint32_t)i->n, run = accumulators_of(op).columns;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t column = 0; column < columns; column += run) {
            num_pair_cell at = num_accumulator_cell((int)n, i->m, i->n, (int)(half * rows + row), (int)column);
            uint32_t *cells = &c->tmem->cells[at.lane][op->d + (uint32_t)at.column],
                     *values = &d[row * columns + column];
            memcpy(load ? values : cells, load ? cells : values, run * sizeof *cells);
        }
    }
}

static void multiply_fp4(run *r, const tensor_op *op, cta *const ctas[2], uint32_t n, uint32_t which, const operands *o,
                         uint32_t *d)
{
    uint32_t columns = (uint32_t)op->shape.n;
    uint8_t *a = malloc(o->rows * 64), *b = malloc(columns * 64), *sfa = calloc(o->rows, 4), *sfb = calloc(columns, 4);
    fetch_fp4(ctas[which], &o->a, op->shape.negate_a, a);
    for (uint32_t i = 0; i < n; i++)
        fetch_fp4(ctas[i], &o->b, op->shape.negate_b, b + i * o->columns * 64);
    fetch_scales(r, op, ctas[which], op->sfa, o->rows, sfa);
    fetch_scales(r, op, ctas[which], op->sfb, columns, sfb);
    num_mma_nvf4(r->launch->mma, sim_config.zeros_win, (int)o->rows, (int)columns, a, sfa, b, sfb, d);
    free(a), free(b), free(sfa), free(sfb);
}

static void multiply_halves(run *r, const tensor_op *op, cta *const ctas[2], uint32_t n, uint32_t which,
                            const operands *o, uint32_t *d)
{
    const num_instruction *s = &op->shape;
    uint32_t k = K_OF_F16, columns = (uint32_t)s->n;
    uint32_t *a = malloc(o->rows * k * sizeof *a), *b = malloc(columns * k * sizeof *b);
    if (o->a_in_tmem)
        fetch_tmem(ctas[which], (uint32_t)op->a, o->rows, k, s->negate_a, a);
    else
        fetch_halves(ctas[which], &o->a, o->rows, k, s->negate_a, a);
    for (uint32_t i = 0; i < n; i++)
        fetch_halves(ctas[i], &o->b, o->columns, k, s->negate_b, b + i * o->columns * k);
    num_mma(r->launch->mma, s->a, s->b, (int)o->rows, (int)columns, (int)k, a, b, d);
    free(a), free(b);
}

void sim_tensor_multiply(run *r, const tensor_op *op, cta *const ctas[2], uint32_t n)
{
    operands o = operands_of(op, n);
    if (!o.a_in_tmem) num_tcgen05_descriptor(op->a, &o.a.at);
    num_tcgen05_descriptor(op->b, &o.b.at);
    uint32_t *d[2] = {NULL, NULL};
    for (uint32_t i = 0; i < n; i++) {
        d[i] = calloc(o.rows * (uint32_t)op->shape.n, sizeof **d);
        if (op->accumulates) move_accumulators(op, ctas[i], i, n, d[i], true);
        (is_scaled(op->in) ? multiply_fp4 : multiply_halves)(r, op, ctas, n, i, &o, d[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        move_accumulators(op, ctas[i], i, n, d[i], false);
        if (!o.a_in_tmem) sim_tensor_have_read(ctas[i], &o.a);
        sim_tensor_have_read(ctas[i], &o.b);
        free(d[i]);
    }
    r->stats.mmas++;
}
