"""The simulated GPU: what instructions compute, how warps part and meet, how it schedules."""

import numpy as np
import pytest
from ptxsim import build, gpu

CAPABILITY = "9.0"

SEEDS = range(12)


def run(body, *arrays, seed=0, declarations="", **launch):
    """A kernel on copies of arrays; the arrays afterwards."""
    gpu.seed(seed)
    params = [f"p{i}" for i in range(len(arrays))]
    module = gpu.Module(gpu.kernel(body, params, declarations))
    memory = [gpu.Memory(array) for array in arrays]
    module.launch("f", *memory, **launch)
    return [m.array.copy() for m in memory]


# --- Instructions, lane by lane ---

EDGES = [0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000]
EDGES += [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 2**64 - 1]


def compute(instruction, *columns):
    """Of h w d 0..2 (operands in 16, 32 and 64 bits) into w9 or d9, for every row of columns."""
    n = len(columns[0])
    columns = [np.array(column, np.uint64) for column in columns]
    columns += [np.zeros(n, np.uint64)] * (4 - len(columns))
    body = ["mov.u32 %r0, %tid.x;", "mul.wide.u32 %rd10, %r0, 8;", ".reg .b64 d<10>;"]
    body += [".reg .b32 w<10>;", ".reg .b16 h<10>;", "mov.u64 d9, 0;", "mov.u32 w9, 0;"]
    for i in range(3):
        body += [f"add.s64 %rd11, %rd{i}, %rd10;", f"ld.global.u64 d{i}, [%rd11];"]
        body += [f"cvt.u32.u64 w{i}, d{i};", f"cvt.u16.u64 h{i}, d{i};"]
    body += [f"{instruction};", "cvt.u64.u32 %rd12, w9;", "or.b64 d9, d9, %rd12;"]
    body += ["add.s64 %rd11, %rd3, %rd10;", "st.global.u64 [%rd11], d9;"]
    return [int(x) for x in run("\n".join(body), *columns, block=n)[3]]


def s(x, bits=32):
    x &= 2**bits - 1
    return x - 2**bits if x >> (bits - 1) else x


def u(x, bits=32):
    return x & (2**bits - 1)


UNARY = {
    "not.b32 w9, w0": lambda a: u(~a),
    "not.b64 d9, d0": lambda a: u(~a, 64),
    "neg.s32 w9, w0": lambda a: u(-a),
    "abs.s32 w9, w0": lambda a: u(abs(s(a))),
    "abs.s64 d9, d0": lambda a: u(abs(s(a, 64)), 64),
    "popc.b32 w9, w0": lambda a: u(a).bit_count(),
    "popc.b64 w9, d0": lambda a: a.bit_count(),
    "clz.b32 w9, w0": lambda a: 32 - u(a).bit_length(),
    "clz.b64 w9, d0": lambda a: 64 - a.bit_length(),
    "bfind.u32 w9, w0": lambda a: u(u(a).bit_length() - 1),
    "brev.b32 w9, w0": lambda a: int(f"{u(a):032b}"[::-1], 2),
    "cvt.u64.u32 d9, w0": lambda a: u(a),
    "cvt.s64.s32 d9, w0": lambda a: u(s(a), 64),
    "cvt.s32.s8 w9, w0": lambda a: u(s(a, 8)),
    "cvt.u32.u8 w9, w0": lambda a: u(a, 8),
    "cvt.sat.u8.s32 w9, w0": lambda a: min(max(s(a), 0), 255),
    "shl.b32 w9, w0, 5": lambda a: u(a << 5),
    "shr.s32 w9, w0, 40": lambda a: u(s(a) >> 31),
    "bfe.s32 w9, w0, 4, 8": lambda a: u(s(u(a) >> 4, 8)),
    "bfe.u64 d9, d0, 60, 8": lambda a: a >> 60,
    "bfe.s32 w9, w0, 28, 8": lambda a: u(s(a) >> 28),
    "prmt.b32 w9, w0, 0, 0x4b80": lambda a: (
        255 * (u(a) >> 31) << 16 | 255 * (a >> 7 & 1) << 8 | a & 255
    ),
    "mov.b32 {h3, h4}, w0; mov.b32 w9, {h4, h3}": lambda a: u(a) >> 16 | u(a << 16),
}


@pytest.mark.parametrize("instruction", UNARY)
def test_instructions_of_one_operand(instruction):
    assert compute(instruction, EDGES) == [UNARY[instruction](a) for a in EDGES]


BINARY = {
    "add.s32 w9, w0, w1": lambda a, b: u(a + b),
    "sub.s64 d9, d0, d1": lambda a, b: u(a - b, 64),
    "mul.lo.s32 w9, w0, w1": lambda a, b: u(a * b),
    "mul.hi.u32 w9, w0, w1": lambda a, b: u(a) * u(b) >> 32,
    "mul.hi.s32 w9, w0, w1": lambda a, b: u(s(a) * s(b) >> 32),
    "mul.hi.u64 d9, d0, d1": lambda a, b: a * b >> 64,
    "mul.wide.s32 d9, w0, w1": lambda a, b: u(s(a) * s(b), 64),
    "mul.wide.u16 w9, h0, h1": lambda a, b: u(a, 16) * u(b, 16),
    "mad.wide.u32 d9, w0, w1, d0": lambda a, b: u(u(a) * u(b) + a, 64),
    "div.u32 w9, w0, w1": lambda a, b: u(a) // u(b) if u(b) else u(-1),
    "div.s32 w9, w0, w1": lambda a, b: u(int(s(a) / s(b))) if u(b) else u(-1),
    "rem.u64 d9, d0, d1": lambda a, b: a % b if b else a,
    "rem.s32 w9, w0, w1": lambda a, b: u(int(np.fmod(s(a), s(b)))) if u(b) else u(a),
    "min.s32 w9, w0, w1": lambda a, b: u(min(s(a), s(b))),
    "max.u64 d9, d0, d1": lambda a, b: max(a, b),
    "and.b32 w9, w0, w1": lambda a, b: u(a & b),
    "xor.b64 d9, d0, d1": lambda a, b: a ^ b,
    "shl.b64 d9, d0, w1": lambda a, b: u(a << u(b), 64) if u(b) < 64 else 0,
    "shr.u32 w9, w0, w1": lambda a, b: u(a) >> min(u(b), 63),
    "shr.s32 w9, w0, w1": lambda a, b: u(s(a) >> min(u(b), 31)),
    "lop3.b32 w9, w0, w1, w0, 0x96": lambda a, b: u(b),
    "lop3.b32 w9, w0, w1, 0x0f0f1234, 0xea": lambda a, b: u(a & b) | 0x0F0F1234,
    "shf.l.wrap.b32 w9, w0, w1, 7": lambda a, b: u(u(b) << 7 | u(a) >> 25),
    "prmt.b32 w9, w0, w1, 0x7531": lambda a, b: int.from_bytes(
        (u(b) << 32 | u(a)).to_bytes(8, "little")[1::2], "little"
    ),
    "bfi.b64 d9, d0, d1, 60, 8": lambda a, b: b & ~(15 << 60) | (a & 15) << 60,
    "shr.s16 h9, h0, w1; cvt.u32.u16 w9, h9": lambda a, b: u(s(a, 16) >> min(u(b), 15), 16),
    "shl.b16 h9, h0, w1; cvt.u32.u16 w9, h9": lambda a, b: u(a << min(u(b), 16), 16),
    "bfi.b32 w9, w0, w1, 8, 4": lambda a, b: u(b) & ~0xF00 | (a & 15) << 8,
    "{.reg .pred q; setp.lt.s32 q, w0, w1; selp.b32 w9, 1, 2, q;}": lambda a, b: 2 - (s(a) < s(b)),
    "{.reg .pred q; setp.hi.u32 q, w0, w1; @q mov.u32 w9, 5;}": lambda a, b: 5 * (u(a) > u(b)),
    "{.reg .pred q, z; setp.eq.s64 q|z, d0, d1; @!z mov.u32 w9, 5;}": lambda a, b: 5 * (a == b),
}


@pytest.mark.parametrize("instruction", BINARY)
def test_instructions_of_two_operands(instruction):
    pairs = [(a, b) for a in EDGES for b in EDGES]
    a, b = zip(*pairs, strict=True)
    assert compute(instruction, a, b) == [BINARY[instruction](a, b) for a, b in pairs]


FLOATS = {
    "add.f32 w9, w0, w1": lambda a, b: a + b,
    "sub.rn.f32 w9, w0, w1": lambda a, b: a - b,
    "mul.f32 w9, w0, w1": lambda a, b: a * b,
    "div.rn.f32 w9, w0, w1": lambda a, b: a / b,
    "fma.rn.f32 w9, w0, w1, w0": lambda a, b: (a.astype(np.float64) * b + a).astype(np.float32),
    "neg.f32 w9, w0": lambda a, b: -a,
    "copysign.f32 w9, w0, w1": lambda a, b: np.copysign(b, a),
    "cvt.rmi.f32.f32 w9, w0": lambda a, b: np.floor(a),
    "cvt.rn.f32.s32 w9, w0": lambda a, b: a.view(np.int32).astype(np.float32),
}


@pytest.mark.parametrize("instruction", FLOATS)
def test_float_instructions(instruction):
    rng = np.random.default_rng(5)
    a, b = ((rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200)) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(all="ignore"):
        want = FLOATS[instruction](a, b).astype(np.float32).view(np.uint32)
    got = compute(instruction, a.view(np.uint32), b.view(np.uint32))
    assert got == [int(x) for x in want]


def test_predicates_of_floats_tell_nan_apart():
    values = np.array([1, 2, np.nan], np.float32).view(np.uint32)
    a, b = (list(x) for x in zip(*[(a, b) for a in values for b in values], strict=True))
    names = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split()
    x, y = (np.array(v, np.uint32).view(np.float32) for v in (a, b))
    either = np.isnan(x) | np.isnan(y)
    ordered = {"eq": x == y, "ne": (x < y) | (x > y), "lt": x < y, "le": x <= y, "gt": x > y}
    ordered |= {"ge": x >= y}
    want = ordered | {f"{name}u": result | either for name, result in ordered.items()}
    want |= {"num": ~either, "nan": either}
    for name in names:
        test = f"{{.reg .pred q; setp.{name}.f32 q, w0, w1; selp.b32 w9, 1, 0, q;}}"
        assert compute(test, a, b) == [int(v) for v in want[name]], name


@pytest.mark.parametrize("kind, one", [("f16", "0x3C003C00"), ("bf16", "0x3F803F80")])
def test_a_warp_multiplies_rows_by_columns(kind, one):
    """Row i of A has ones in lanes 4i to 4i + 3, here in even rows; B has ones; C is i."""
    body = f"""
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 8; add.s64 %rd0, %rd0, %rd1;
        shr.u32 %r1, %r0, 2; cvt.rn.f32.u32 %f0, %r1; and.b32 %r1, %r1, 1;
        setp.eq.u32 %p0, %r1, 0; selp.b32 %r2, {one}, 0, %p0; mov.b32 %r3, {one};
        mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32
            {{%f1,%f2,%f3,%f4}}, {{%r2,%r2,%r2,%r2}}, {{%r3,%r3}}, {{%f0,%f0,%f0,%f0}};
        st.global.v2.f32 [%rd0], {{%f1,%f2}}; st.global.v2.f32 [%rd0+256], {{%f3,%f4}};
    """
    (got,) = run(body, np.zeros((2, 8, 8), np.float32))
    want = [i + 16 * (i % 2 == 0) for i in range(8)]
    assert (got == np.array(want)[:, None]).all() and gpu.report()["mmas"] == 1


def test_what_is_not_known_is_an_error_with_its_line():
    with pytest.raises(gpu.SimError, match=r"line 15; error: unknown instruction frobnicate.u32"):
        run("\nfrobnicate.u32 %r1, %r2;", np.zeros(1))
    with pytest.raises(gpu.SimError, match="unknown instruction mul.f32.*|a 32-bit register"):
        run("mul.f32 %f1, %rd1, %f2;", np.zeros(1))
    with pytest.raises(gpu.SimError, match="no label elsewhere"):
        run("bra elsewhere;", np.zeros(1))
    with pytest.raises(gpu.SimError, match="label here twice"):
        run("{ here: } here: { bra here; here: bra here; here: }", np.zeros(1))
    with pytest.raises(gpu.SimError, match="no label inner"):
        run("{ inner: } bra inner;", np.zeros(1))
    with pytest.raises(gpu.SimError, match="not PTX|directive"):
        gpu.Module("nonsense")


def test_a_label_belongs_to_its_block():
    """As of inline assembler that comes twice: each loop counts to ten on its own."""
    loop = "{ .reg .pred p; again: add.u32 %r1, %r1, 1; setp.lt.u32 p, %r1, %r2; @p bra again; }"
    body = ["mov.u32 %r0, %tid.x;", "mov.u32 %r1, 0;", "mov.u32 %r2, 10;", loop]
    body += ["mov.u32 %r2, 20;", loop, "bra over;", "add.u32 %r1, %r1, 100;"]
    body += ["{ bra over; }", "over: st.global.u32 [%rd0], %r1;"]
    (got,) = run("\n".join(body), np.zeros(1, np.uint32), block=1)
    assert got[0] == 20


# --- Divergence ---

COLLATZ = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd5, %r0, 4;
    add.s64 %rd5, %rd0, %rd5;
    add.s32 %r1, %r0, 1;
    mov.u32 %r2, 0;
    $loop:
    setp.eq.u32 %p0, %r1, 1;
    @%p0 bra $done;
    and.b32 %r3, %r1, 1;
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra $even;
    mad.lo.s32 %r1, %r1, 3, 1;
    bra.uni $next;
    $even:
    shr.u32 %r1, %r1, 1;
    $next:
    add.s32 %r2, %r2, 1;
    bra.uni $loop;
    $done:
    activemask.b32 %r4;
    popc.b32 %r4, %r4;
    shl.b32 %r4, %r4, 16;
    or.b32 %r2, %r2, %r4;
    st.global.u32 [%rd5], %r2;
"""


def collatz(n):
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_part_in_loops_and_meet_behind_them(seed):
    (got,) = run(COLLATZ, np.zeros(96, np.uint32), seed=seed, block=96)
    assert [int(x) & 0xFFFF for x in got] == [collatz(i + 1) for i in range(96)]
    assert {int(x) >> 16 for x in got} == {32}  # all lanes together again
    assert gpu.report()["findings"] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives_wait_for_lanes_that_come_another_way(seed):
    body = """
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %rd5, %r0, 4;
        add.s64 %rd5, %rd0, %rd5;
        and.b32 %r1, %r0, 3;
        setp.eq.u32 %p0, %r1, 2;
        @%p0 bra $leave;
        setp.lt.u32 %p1, %r1, 1;
        @%p1 bra $sum;
        add.s32 %r2, %r0, 100;
        $sum:
        redux.sync.add.u32 %r3, %r1, 0xbbbbbbbb;
        st.global.u32 [%rd5], %r3;
        $leave:
        exit;
    """
    (got,) = run(body, np.zeros(32, np.uint32), seed=seed)
    assert [int(x) for x in got] == [8 * (0 + 1 + 3) * (i % 4 != 2) for i in range(32)]


@pytest.mark.parametrize(
    "op, source",
    [
        ("up.b32 w9, w0, 3, 0x0", lambda i: i - 3 if i >= 3 else i),
        ("down.b32 w9, w0, 3, 0x1f", lambda i: i + 3 if i + 3 < 32 else i),
        ("bfly.b32 w9, w0, 5, 0x1f", lambda i: i ^ 5),
        ("idx.b32 w9, w0, 9, 0x181f", lambda i: (i & 24) + 1),
        ("down.b32 w9, w0, 1, 0x181f", lambda i: i + 1 if i % 8 < 7 else i),
    ],
)
def test_shuffles(op, source):
    values = [1000 + i for i in range(32)]
    got = compute(f"shfl.sync.{op}, 0xffffffff", values)
    assert got == [values[source(i)] for i in range(32)]


def test_movmatrix_transposes_what_the_warp_holds():
    """A lane has two elements of row lane / 4, before and afterwards."""
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1021
    pairs = matrix.view(np.uint32).reshape(32)
    body = """
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1;
        ld.global.u32 %r1, [%rd2];
        movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;
        st.global.u32 [%rd2], %r2;"""
    (got,) = run(body, pairs)
    np.testing.assert_array_equal(got.view(np.uint16).reshape(8, 8), matrix.T)


def test_votes_and_matches():
    values = [i // 5 for i in range(32)]
    odd = sum(1 << i for i in range(32) if values[i] % 2)
    ask = "{.reg .pred q, z; .reg .b32 x; and.b32 x, w0, 1; setp.ne.u32 q, x, 0; "
    assert compute(ask + "vote.sync.ballot.b32 w9, q, -1;}", values) == [odd] * 32
    assert compute(ask + "vote.sync.any.pred z, q, -1; selp.b32 w9, 1, 0, z;}", values) == [1] * 32
    assert compute(ask + "vote.sync.all.pred z, q, -1; selp.b32 w9, 1, 0, z;}", values) == [0] * 32
    same = [sum(1 << j for j in range(32) if values[j] == v) for v in values]
    assert compute("match.any.sync.b32 w9, w0, -1", values) == same
    assert compute("redux.sync.max.s32 w9, w0, -1", values) == [6] * 32


# --- The schedule ---

TICKETS = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r0, %r1, %r2, %r0;
    mul.wide.u32 %rd5, %r0, 4;
    add.s64 %rd5, %rd1, %rd5;
    atom.global.add.u32 %r3, [%rd0], 1;
    st.global.u32 [%rd5], %r3;
"""


def tickets(seed):
    return run(
        TICKETS, np.zeros(1, np.uint32), np.zeros(512, np.uint32), grid=4, block=128, seed=seed
    )[1]


def test_a_seed_tells_the_schedule():
    orders = [tuple(tickets(seed)) for seed in SEEDS]
    assert all(sorted(order) == list(range(512)) for order in orders)
    assert len(set(orders)) > 8
    assert [tuple(tickets(seed)) for seed in SEEDS] == orders


def test_two_threads_run_the_same_kernel():
    gpu.configure(threads=2)
    assert sorted(tickets(0)) == list(range(512))


EARLY = """
    mov.u32 %r0, %ctaid.x;
    setp.eq.u32 %p0, %r0, 3;
    @%p0 exit;
    griddepcontrol.wait;
    st.global.u32 [%rd0], %r0;
"""


def test_all_threads_of_a_launch_that_overlaps_wait():
    zeros = np.zeros(1, np.uint32)
    run(EARLY, zeros, grid=4)
    run(EARLY.replace("@%p0 exit;", "") + "@%p0 exit;", zeros, grid=4, overlap=True)
    assert gpu.report()["findings"] == []
    assert gpu.report()["launches"] == 2 and gpu.report()["overlapping_launches"] == 1
    with pytest.raises(gpu.SimError, match="without griddepcontrol.wait"):
        run(EARLY, zeros, grid=4, overlap=True)
    assert [f["code"] for f in gpu.report()["findings"]] == ["unwaited"]


@pytest.mark.parametrize("write", ("st.global.u32 [%rd0], %r0;", "red.global.add.u32 [%rd0], %r0;"))
def test_nothing_is_written_before_the_wait(write):
    zeros = np.zeros(1, np.uint32)
    run("mov.u32 %r0, 1; griddepcontrol.wait;" + write, zeros, overlap=True)
    with pytest.raises(gpu.SimError, match="writes before griddepcontrol.wait"):
        run("mov.u32 %r0, 1;" + write + "griddepcontrol.wait;", zeros, overlap=True)


def test_counts_are_those_of_the_program():
    run(TICKETS, np.zeros(1, np.uint32), np.zeros(512, np.uint32), grid=4, block=128)
    counts = gpu.report()
    assert counts["launches"] == 1 and counts["ctas"] == 4
    assert counts["warp_instructions"] == 16 * 11 and counts["lane_instructions"] == 512 * 11
    assert counts["global_stores"] == 16 and counts["global_store_bytes"] == 4 * 512


# --- The sources ---


@pytest.mark.parametrize(
    "path", build.own_sources(".c") + build.own_sources(".h"), ids=lambda path: path.name
)
def test_sources_are_small_and_finished(path):
    lines = path.read_text().split("\n")
    assert len(lines) <= 451 and max(map(len, lines)) <= 120
    assert not any("\t" in line for line in lines)
    if path.suffix == ".h":
        assert f"#ifndef PTXSIM_{path.stem.upper()}_H" in lines
