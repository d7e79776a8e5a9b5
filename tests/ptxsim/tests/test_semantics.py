"""What Blackwell's instructions mean, changed on purpose in the simulator: a test must notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ptxsim import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not build.find_cc(), reason="no C compiler"),
]

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
NOTICED_BY = ["tmem", "tcgen05", "tcgen05_order", "tcgen05_errors", "cancel", "scaled_mma"]

# file: {what is changed: (text, what it becomes)}
CHANGES = {
    "matrix/tcgen05.c": {
        "the last issued runs first": (
            "tensor_op op = t->queue[0];\n"
            "    memmove(t->queue, t->queue + 1, --t->n_queue * sizeof *t->queue);",
            "tensor_op op = t->queue[--t->n_queue];",
        ),
        "cp of a pair reads the issuer's memory": (
            "c->smem + sim_tensor_byte(&m, row, byte), 16",
            "op->warp->cta->smem + sim_tensor_byte(&m, row, byte), 16",
        ),
        "cp of a pair writes to the issuer": ("copy_into(&op, ctas[i])", "copy_into(&op, ctas[0])"),
        "odd CTAs may issue": ("r->cta->rank % 2 == 0", "true"),
        "base offsets are ignored": (" && !m->at.base_offset", ""),
        "cp may begin at any lane": ("(address >> 16) % TMEM_LANES == 0", "true"),
        "nobody may be gone": ("if (!c->done) return true;", "return true;"),
    },
    "matrix/tcgen05_mma.c": {
        "B is all in one CTA": (
            "fetch_fp4(ctas[i], &o->b, op->shape.negate_b, b",
            "fetch_fp4(ctas[which], &o->b, op->shape.negate_b, b",
        ),
        "A is all in one CTA": ("fetch_fp4(ctas[which], &o->a", "fetch_fp4(ctas[0], &o->a"),
        "signs are ignored": ("negate ? 8 : 0", "negate ? 0 : 0"),
        "always D =": ("if (op->accumulates) move", "if (false) move"),
        "always D +=": ("if (op->accumulates) move", "if (true) move"),
        "B is scaled as A is": ("op->sfb, columns, sfb", "op->sfa, columns, sfb"),
        "the odd CTA's scales of A": ("ctas[which], op->sfa", "ctas[0], op->sfa"),
        "negation is ignored": ("!!(in->flags & TENSOR_NOT)", "false"),
        "N is always in rows": ("o.b.mn_major = i->mn_major_b", "o.b.mn_major = false"),
        "columns of A hold their halves the other way round": (
            ">> 16 * (i % 2) & 0xffff",
            ">> 16 * (1 - i % 2) & 0xffff",
        ),
        "the even CTA's scales of B": ("ctas[which], op->sfb", "ctas[0], op->sfb"),
        "A in tensor memory is all in one CTA": ("fetch_tmem(ctas[which],", "fetch_tmem(ctas[0],"),
        "any copy of the scales will do": ("words[0] == words[1] && ", "true || "),
    },
    "num/num_tmem.c": {
        "16x256b by columns": ("8 * (reg >> 1 & 1)", "8 * (reg & 1)"),
        "16x64b in order": ("8 * (thread & 1), 2", "8 * (thread >> 1 & 1), 2"),
        "scales of four rows lie together": (
            "{.lane = row % 32, .column = row / 32",
            "{.lane = row / 4, .column = row % 4",
        ),
        "warps 0 1 and 2 3": ("lanes[0] = row % 32 + 64 * (row / 32);", "lanes[0] = row;"),
        "halves of a pair's columns change places": (
            "bool right = column >= n / 2;",
            "bool right = column < n / 2;",
        ),
        "64 rows in a row": ("row / 16 * 32 + row % 16", "row"),
    },
    "num/num_layout.c": {
        "the swizzle begins at the matrix": (
            "return num_swizzled(matrix->swizzle, matrix->start + groups + r % 8 * span + b);",
            "return matrix->start + num_swizzled(matrix->swizzle, groups + r % 8 * span + b);",
        ),
    },
    "exec/exec_tmem.c": {
        "a warp reaches all lanes": ("if (*lane == quarter || upper) return true;", "return true;"),
        "registers keep their values until the wait": (
            "put(r, in->list[2 + reg], poison, sizeof *poison)",
            "(void)poison",
        ),
        "loads find what was there": ("return coming ? POISON", "return false && coming ? POISON"),
        "waits for loads wait for stores": ("if (use != in->op)", "if (false)"),
    },
    "matrix/tmem_alloc.c": {
        "all begins at column 0": ("sim_config.tmem_anywhere ? ", "false ? "),
        "alloc after relinquish": ("if (t->relinquished)", "if (false)"),
        "nobody hears of what is freed": (
            "t->units &= ~units_of(column, columns);\n    sim_wake(c, W_TMEM, UINT64_MAX, false);",
            "t->units &= ~units_of(column, columns);",
        ),
        "any size can be freed": ("t->allocations[i].columns == columns)", "true)"),
        "the pair's CTAs get what each wants": ("other->columns == own->columns &&", "true &&"),
    },
    "matrix/tmem.c": {
        "nothing leaks": ("if (kept)", "if (false)"),
        "all is allocated": ("units >> column / TMEM_UNIT & 1", "true"),
    },
    "matrix/tmem_order.c": {
        "fences behind are not needed": (
            "*heeded = sim_tmem(c)->heeded[thread];",
            "*heeded = seen;",
        ),
        "fences before are not needed": (
            "return knows(w, w->seen, TENSOR_TOLD, record) ? NO_FENCE_AFTER : NO_FENCE_BEFORE;",
            "return knows(w, w->seen, TENSOR_TOLD, record) ? NO_FENCE_AFTER : FINE;",
        ),
        "a warp's operations overtake": ("(queued && own) || ", ""),
        "any D may follow another": ("before == TMEM_SUM && same_tile", "before == TMEM_SUM"),
        "copies come in order": (
            "before == TMEM_COPY && multiplied_since(w, record)",
            "before == TMEM_COPY",
        ),
        "loads are done at once": ("w->n_pending ? w->pending[0].count - 1 : w->count", "w->count"),
        "loads of one's own products need no commit": ("if ((queued && own) ||", "if (own ||"),
    },
    "exec/exec_matrix.c": {
        "always the first lanes' scales of A": ("t / 2 == in->op", "t / 2 == 0"),
        "always the first lanes' scales of B": ("t == in->a_type", "t == 0"),
        "scales of A change rows": ("sfa[g + 8 * (t % 2)]", "sfa[g + 8 * (1 - t % 2)]"),
        "A: eight rows, then K": (
            "a[g + 8 * (q % 2)][32 * (q / 2)",
            "a[g + 8 * (q / 2)][32 * (q % 2)",
        ),
        "a NaN scale always counts": ("mma, sim_config.zeros_win", "mma, false"),
    },
    "sync/cancel.c": {
        "clusters are counted, not CTAs": ("{x * c.x, y * c.y,", "{x, y,"),
        "only the asking CTA hears": ("in->flags ? all : 0", "0 * all"),
        "every other cluster is lost": ("&l->next_cluster, 1, ", "&l->next_cluster, 2, "),
    },
    "sync/flight.c": {
        "each CTA of a pair is signalled": (
            "signalled = (signalled & ~PARITY) | (barrier & PARITY);",
            "signalled = signalled;",
        ),
        "any CTA's barrier will do": (
            "if ((pair ? differ & ~(uint64_t)1 : differ) == 0) return true;",
            "return pair || differ || true;",
        ),
    },
    "sync/mbarrier.c": {
        "commits under way do not count": ("if (m && m->commits)", "if (false)"),
    },
}
CASES = [(file, what) for file, changes in CHANGES.items() for what in changes]


@pytest.fixture(scope="module")
def objects():
    library = build.simulator()
    return {path.stem: path for path in library.parent.glob("*.o")}


def changed_library(file, what, objects, folder):
    """libptxsim.so with one change in one file."""
    old, new = CHANGES[file][what]
    text = (build.HERE / file).read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} of: {old}"
    source, library = folder / Path(file).name, folder / "libptxsim.so"
    source.write_text(text.replace(old, new))
    flags = [flag for flag in build.FLAGS if not flag.startswith("-W")]
    folders = [f"-I{build.HERE}", f"-I{(build.HERE / file).parent}"]
    compile_one = [build.find_cc(), *flags, *folders, "-c", source, "-o", folder / "one.o"]
    subprocess.run(compile_one, check=True)
    others = [path for stem, path in objects.items() if stem != source.stem]
    link = [build.find_cc(), "-shared", *others, folder / "one.o", "-o", library, "-lm", "-pthread"]
    subprocess.run(link, check=True)
    return library


def run_tests(library, changed=""):
    """What pytest says, up to the first test that fails; those of the changed file come first."""
    files = [
        HERE / f"test_{name}.py" for name in sorted(NOTICED_BY, key=lambda n: n not in changed)
    ]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--noconftest"]
    command += ["-p", "ptxsim.fresh", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *files],
        env={**os.environ, "PTXSIM_LIBRARY": str(library), "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_nothing_is_noticed_without_a_change():
    done = run_tests(build.simulator())
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("file, what", CASES)
def test_a_change_of_the_semantics_is_noticed(file, what, objects, tmp_path):
    done = run_tests(changed_library(file, what, objects, tmp_path), file)
    shutil.rmtree(tmp_path)
    assert done.returncode, done.stdout[-300:]
