/* Executes wgmma and checks its fences.
 *
 * a_type, op: formats of a, b; columns: n; vec: k; list: d, then a where it is in registers. o[1], o[2]:
 * descriptors; o[3]: a predicate, D += instead of D =. */
#include "wgmma.h"

#include "checks/report.h"
#include "checks/shadow.h"
#include "exec/exec_value.h"
#include "machine/fragment.h"
#include "num/num_layout.h"

#include <stdlib.h>

static uint32_t registers_of_d(const insn *in) { return in->columns / 2; }
static uint32_t first_row(const warp *w) { return 16 * (w->index % 4); }
static uint32_t size_of(num_format format) { return (uint32_t)num_bits(format) / 8; }

static wgmma_queue *queue_of(warp *w)
{
    if (!w->wgmma) w->wgmma = calloc(1, sizeof *w->wgmma);
    return w->wgmma;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Operands                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct matrix {
    num_smem_matrix at;
    num_format format;
    uint32_t rows, k;
    bool transposed;
} matrix;

static uint32_t place_of(const matrix *m, uint32_t row, uint32_t k)
{
    uint32_t size = size_of(m->format);
    return m->transposed ? num_smem_mn_major(&m->at, (int)k, (int)(row * size))
                         : num_smem_k_major(&m->at, (int)row, (int)(k * size));
}

static bool describe(run *r, const insn *in, uint64_t bits, matrix *m)
{
    if (!num_wgmma_descriptor(bits, &m->at) || m->at.base_offset) {
        sim_report(r, in, 'E', "descriptor", -1, "0x%016llx is no descriptor that is modelled",
                   (unsigned long long)bits);
        return false;
    }
    return true;
}

/* Each byte of rows [from, to) once, sixteen at a time. */
static bool each_piece(run *r, const insn *in, const matrix *m, uint32_t from, uint32_t to, bool begin)
{
    uint32_t lane = (uint32_t)__builtin_ctz(r->mask);
    uint32_t size = size_of(m->format), step = 16 / size;
    uint32_t outer = m->transposed ? m->k : to, inner = m->transposed ? to : m->k;
    for (uint32_t x = m->transposed ? 0 : from; x < outer; x++) {
        for (uint32_t y = m->transposed ? from : 0; y < inner; y += step) {
            uint32_t place = m->transposed ? place_of(m, y, x) : place_of(m, x, y);
            if (place + 16 > r->cta->smem_bytes) {
                sim_report(r, in, 'E', "out-of-bounds", -1, "a matrix descriptor reaches shared byte %u of %u",
                           place + 15, r->cta->smem_bytes);
                return false;
            }
            if (begin)
                sim_shadow_sending(r, in, lane, r->cta, place, 16);
            else
                sim_shadow_waited(r, in, lane, r->cta, place, 16);
        }
    }
    return true;
}

/* Sixteen bytes at a time, along k or, transposed, along the rows. */
static void fetch_matrix(const cta *c, const matrix *m, uint32_t from, uint32_t rows, uint32_t *out)
{
    uint32_t size = size_of(m->format), step = 16 / size, next = m->transposed ? m->k : 1;
    for (uint32_t row = 0; row < rows; row += m->transposed ? step : 1) {
        for (uint32_t k = 0; k < m->k; k += m->transposed ? 1 : step) {
            const uint8_t *piece = c->smem + place_of(m, from + row, k);
            for (uint32_t i = 0; i < step; i++) {
                uint32_t code = 0;
                memcpy(&code, piece + i * size, size);
                out[row * m->k + k + i * next] = code;
            }
        }
    }
}

static void fetch_registers(const warp *w, const insn *in, uint32_t *out)
{
    uint32_t bits = (uint32_t)num_bits(in->a_type), per_register = 32 / bits;
    const uint32_t *places = in->list + registers_of_d(in);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint32_t i = 0; i < 4 * per_register; i++) {
            uint32_t word = ((const uint32_t *)(const void *)(w->registers + places[i / per_register]))[lane];
            uint32_t code = bits == 32 ? word : word >> bits * (i % per_register) & ((1u << bits) - 1);
            num_position at = num_wgmma_a_position((int)bits, (int)(w->index % 4 * LANES + lane), (int)i);
            out[((uint32_t)at.row - first_row(w)) * in->vec + (uint32_t)at.col] = code;
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* One product                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

/* D as it lies in registers, [register][lane], to and from rows. */
static void rearrange(const warp *w, const insn *in, uint32_t *values, uint32_t *rows, bool to_rows)
{
    uint32_t n = in->columns;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        num_position first[4]; /* of eight columns; the next eight are alike */
        for (int i = 0; i < 4; i++)
            first[i] = num_wgmma_d_position((int)(w->index % 4 * LANES + lane), i);
        for (uint32_t i = 0; i < n / 2; i++) {
            num_position at = first[i % 4];
            uint32_t *row = &rows[((uint32_t)at.row - first_row(w)) * n + (uint32_t)at.col + 8 * (i / 4)];
            uint32_t *word = &values[i * LANES + lane];
            *(to_rows ? row : word) = *(to_rows ? word : row);
        }
    }
}

static void negate(uint32_t *codes, uint32_t n, num_format format)
{
    for (uint32_t i = 0; i < n; i++)
        codes[i] ^= 1u << (num_bits(format) - 1);
}

static bool multiply(run *r, warp *w, const wgmma_pending *p, uint32_t *values)
{
    const insn *in = p->in;
    uint32_t n = in->columns, k = in->vec;
    matrix a = {.format = in->a_type, .rows = 64, .k = k, .transposed = in->flags & WG_TRANSPOSE_A};
    matrix b = {.format = in->op, .rows = n, .k = k, .transposed = in->flags & WG_TRANSPOSE_B};
    uint32_t *codes_a = malloc(16 * k * sizeof *codes_a), *codes_b = malloc(n * k * sizeof *codes_b);
    uint32_t *rows = calloc(16 * n, sizeof *rows);
    num_wgmma_descriptor(p->b, &b.at);
    fetch_matrix(w->cta, &b, 0, n, codes_b);
    if (in->flags & WG_A_REGISTERS) {
        fetch_registers(w, in, codes_a);
    } else {
        num_wgmma_descriptor(p->a, &a.at);
        fetch_matrix(w->cta, &a, first_row(w), 16, codes_a);
    }
    if (in->flags & WG_NEGATE_A) negate(codes_a, 16 * k, in->a_type);
    if (in->flags & WG_NEGATE_B) negate(codes_b, n * k, in->op);
    if (p->accumulates) rearrange(w, in, values, rows, true);
    num_mma(r->launch->mma, in->a_type, in->op, 16, (int)n, (int)k, codes_a, codes_b, rows);
    rearrange(w, in, values, rows, false);
    free(codes_a), free(codes_b), free(rows);
    r->stats.mmas++;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products under way                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

static wgmma_accumulators *set_of(wgmma_queue *q, const insn *in)
{
    for (uint32_t i = 0; i < q->n_sets; i++)
        if (q->sets[i].in->list[0] == in->list[0]) return &q->sets[i];
    return NULL;
}

/* The registers' values move aside; what reads them before the wait finds poison. */
static wgmma_accumulators *take_set(warp *w, const insn *in)
{
    wgmma_queue *q = queue_of(w);
    wgmma_accumulators *set = set_of(q, in);
    if (set) return set;
    uint32_t n = registers_of_d(in);
    q->sets = realloc(q->sets, (q->n_sets + 1) * sizeof *q->sets);
    set = &q->sets[q->n_sets++];
    *set = (wgmma_accumulators){in, malloc(n * LANES * sizeof *set->values)};
    for (uint32_t i = 0; i < n; i++) {
        memcpy(set->values + i * LANES, w->registers + in->list[i], LANES * sizeof *set->values);
        memset(w->registers + in->list[i], POISON_BYTE, LANES * sizeof *set->values);
    }
    return set;
}

static bool still_used(const wgmma_queue *q, const wgmma_accumulators *set)
{
    for (uint32_t i = 0; i < q->n; i++)
        if (q->pending[i].in->list[0] == set->in->list[0]) return true;
    return false;
}

static void give_back(warp *w)
{
    wgmma_queue *q = w->wgmma;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < q->n_sets; k++) {
        wgmma_accumulators *set = &q->sets[k];
        if (still_used(q, set)) {
            q->sets[kept++] = *set;
            continue;
        }
        for (uint32_t i = 0; i < registers_of_d(set->in); i++) {
            memcpy(w->registers + set->in->list[i], set->values + i * LANES, LANES * sizeof *set->values);
            memcpy(q->fenced + set->in->list[i], set->values + i * LANES, LANES * sizeof *set->values);
        }
        free(set->values);
    }
    q->n_sets = kept;
}

/* Registers that a product reads hold what they held at the last fence, or what products made of them since. */
static void check_fence(run *r, const insn *in, bool accumulates)
{
    const warp *w = r->warp;
    wgmma_queue *q = w->wgmma;
    uint32_t n_d = registers_of_d(in), first = accumulates && !set_of(q, in) ? 0 : n_d;
    if (!q->fenced) {
        sim_report(r, in, 'W', "wgmma-fence", -1, "no wgmma.fence before the first product");
        sim_exec_wgmma_fence(r, in);
    }
    for (uint32_t i = first; i < in->n_list; i++) {
        uint32_t at = in->list[i];
        if (memcmp(w->registers + at, q->fenced + at, LANES * sizeof(uint32_t)) == 0) continue;
        sim_report(r, in, 'W', "wgmma-fence", -1, "a register of %s was written since the last wgmma.fence",
                   i < n_d ? "D" : "A");
        return;
    }
}

/* A product is one instruction of four warps: the n-th that each begins is the same. */
static void check_warpgroup(run *r, const insn *in)
{
    const warp *w = r->warp, *first = w - w->index % 4;
    wgmma_queue *q = w->wgmma;
    for (const warp *other = first; other < first + 4 && other < r->cta->warps + r->cta->n_warps; other++) {
        const wgmma_queue *o = other->wgmma;
        if (!o || o->n_begun <= q->n_begun || o->begun[q->n_begun] == in) continue;
        sim_report(r, in, 'E', "wgmma-warpgroup", -1, "warp %u begins another product, that of line %u", other->index,
                   o->begun[q->n_begun]->line);
    }
    if (q->n_begun == q->most_begun) {
        q->most_begun = q->most_begun ? 2 * q->most_begun : 64;
        q->begun = realloc(q->begun, q->most_begun * sizeof *q->begun);
    }
    q->begun[q->n_begun++] = in;
}

step sim_exec_wgmma(run *r, const insn *in)
{
    warp *w = r->warp;
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    uint32_t lane = (uint32_t)__builtin_ctz(r->mask);
    wgmma_queue *q = queue_of(w);
    wgmma_pending p = {.in = in, .group = q->committed};
    p.b = sim_lane(r, in->o[2], 8, lane);
    p.accumulates = in->o[3] == NONE || r->predicates[in->o[3]] >> lane & 1;
    check_warpgroup(r, in);
    check_fence(r, in, p.accumulates);
    matrix b = {.format = in->op, .rows = in->columns, .k = in->vec, .transposed = in->flags & WG_TRANSPOSE_B};
    if (!describe(r, in, p.b, &b) || !each_piece(r, in, &b, 0, in->columns, true)) return STEP_FAIL;
    if (!(in->flags & WG_A_REGISTERS)) {
        matrix a = {.format = in->a_type, .rows = 64, .k = in->vec, .transposed = in->flags & WG_TRANSPOSE_A};
        p.a = sim_lane(r, in->o[1], 8, lane);
        if (!describe(r, in, p.a, &a) || !each_piece(r, in, &a, first_row(w), first_row(w) + 16, true))
            return STEP_FAIL;
    }
    take_set(w, in);
    if (q->n == q->most) {
        q->most = q->most ? 2 * q->most : 16;
        q->pending = realloc(q->pending, q->most * sizeof *q->pending);
    }
    q->pending[q->n++] = p;
    return STEP_NEXT;
}

step sim_exec_wgmma_fence(run *r, const insn *in)
{
    (void)in;
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    wgmma_queue *q = queue_of(r->warp);
    if (!q->fenced) q->fenced = malloc(r->program->register_bytes);
    memcpy(q->fenced, r->warp->registers, r->program->register_bytes);
    return STEP_NEXT;
}

static void compute(run *r, warp *w, uint32_t from, uint32_t to)
{
    wgmma_queue *q = w->wgmma;
    for (uint32_t i = from; i < to; i++) {
        wgmma_pending *p = &q->pending[i];
        if (!p->computed) multiply(r, w, p, set_of(q, p->in)->values);
        p->computed = true;
    }
}

/* The products may be computed at once, if the seed says so; else as late as their wait. */
step sim_exec_wgmma_commit(run *r, const insn *in)
{
    (void)in;
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    wgmma_queue *q = queue_of(r->warp);
    q->committed++;
    if (sim_random(&r->random) % 4 == 0) compute(r, r->warp, 0, q->n);
    return STEP_NEXT;
}

/* Nobody reads the operands of a product any more, and the warp knows. */
static void retire(run *r, const warp *w, const wgmma_pending *p)
{
    const insn *in = p->in;
    matrix a = {.format = in->a_type, .rows = 64, .k = in->vec, .transposed = in->flags & WG_TRANSPOSE_A};
    matrix b = {.format = in->op, .rows = in->columns, .k = in->vec, .transposed = in->flags & WG_TRANSPOSE_B};
    num_wgmma_descriptor(p->b, &b.at);
    each_piece(r, in, &b, 0, in->columns, false);
    if (in->flags & WG_A_REGISTERS) return;
    num_wgmma_descriptor(p->a, &a.at);
    each_piece(r, in, &a, first_row(w), first_row(w) + 16, false);
}

/* imm: how many groups may be under way. */
step sim_exec_wgmma_wait(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    warp *w = r->warp;
    wgmma_queue *q = queue_of(w);
    uint32_t due = 0;
    while (due < q->n && (int64_t)q->pending[due].group < (int64_t)q->committed - in->imm)
        due++;
    compute(r, w, 0, due);
    for (uint32_t i = 0; i < due; i++)
        retire(r, w, &q->pending[i]);
    if (due) sim_order_tell(r);
    memmove(q->pending, q->pending + due, (q->n - due) * sizeof *q->pending);
    q->n -= due;
    give_back(w);
    return STEP_NEXT;
}

void sim_wgmma_close(warp *w)
{
    if (!w->wgmma) return;
    for (uint32_t i = 0; i < w->wgmma->n_sets; i++)
        free(w->wgmma->sets[i].values);
    free(w->wgmma->sets);
    free(w->wgmma->fenced);
    free(w->wgmma->begun);
    free(w->wgmma->pending);
    free(w->wgmma);
}
