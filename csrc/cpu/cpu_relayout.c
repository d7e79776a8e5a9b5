/* to_blocked and from_blocked: scale bytes between [rows, cols] and atoms. Padding is written as 0 and never read. */
#include "cpu_backend.h"

#include "cpu_pool.h"
#include "nk_format.h"

#include <string.h>

#define JOB_BYTES 65536 /* some tens of microseconds */

typedef struct relayout_call {
    const nk_relayout_problem *problem;
    int64_t down, atom_rows; /* rows of atoms: of a matrix, of a job; those of all batches are numbered in turn */
} relayout_call;

/* Copies the `rows` x `cols` bytes of an atom that are not padding. */
static void move_atom(const nk_relayout_problem *p, uint8_t *linear, uint8_t *atom, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *in_linear = linear + r * p->linear_row_stride;
        uint8_t *in_atom = atom + nk_sf_blocked_offset(r, 0, NK_SF_ATOM_COLS);
        uint8_t *to = p->to == NK_SF_BLOCKED ? in_atom : in_linear;
        const uint8_t *from = p->to == NK_SF_BLOCKED ? in_linear : in_atom;
        if (cols == NK_SF_ATOM_COLS)
            memcpy(to, from, NK_SF_ATOM_COLS);
        else
            memcpy(to, from, (size_t)cols);
    }
}

static void move_atom_row(const nk_relayout_problem *p, int64_t l, int64_t down)
{
    int64_t row = down * NK_SF_ATOM_ROWS, rows = cpu_min(NK_SF_ATOM_ROWS, p->rows - row);
    uint8_t *linear = p->linear + l * p->linear_batch_stride + row * p->linear_row_stride;
    uint8_t *atom = p->blocked + l * p->blocked_batch_stride + nk_sf_blocked_offset(row, 0, p->cols);
    for (int64_t col = 0; col < p->cols; col += NK_SF_ATOM_COLS, atom += NK_SF_ATOM_BYTES) {
        int64_t cols = cpu_min(NK_SF_ATOM_COLS, p->cols - col);
        if (p->to == NK_SF_BLOCKED && (rows < NK_SF_ATOM_ROWS || cols < NK_SF_ATOM_COLS))
            memset(atom, 0, NK_SF_ATOM_BYTES);
        move_atom(p, linear + col, atom, rows, cols);
    }
}

static void move_atom_rows(void *context, int64_t job)
{
    const relayout_call *r = context;
    int64_t end = cpu_min((job + 1) * r->atom_rows, r->problem->l * r->down);
    for (int64_t i = job * r->atom_rows; i < end; i++)
        move_atom_row(r->problem, i / r->down, i % r->down);
}

nk_status cpu_relayout(const nk_relayout_problem *p, cpu_means means, const nk_exec *exec)
{
    int64_t down = nk_ceil_div(p->rows, NK_SF_ATOM_ROWS);
    int64_t atom_rows = JOB_BYTES / (nk_sf_padded_cols(p->cols) * NK_SF_ATOM_ROWS + 1) + 1;
    relayout_call r = {p, down, atom_rows};
    return cpu_for_each(exec, nk_ceil_div(p->l * down, atom_rows), means.threads, move_atom_rows, &r);
}
