"""Registers of the simulated GPU that share a place: which values stay apart, what is poison."""

import numpy as np
from ptxsim import gpu

CAPABILITY = "9.0"
POISON = 0x7F7F7F7F
START = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;"
END = "st.global.u32 [%rd1], %r9;"


def run(body, lanes=32, seeds=4):
    """What a kernel that leaves its result in %r9 writes; the same for every schedule."""
    module = gpu.Module(gpu.kernel(f"{START}\n{body}\n{END}"))
    results = []
    for seed in range(seeds):
        gpu.seed(seed)
        memory = gpu.Memory(np.zeros(lanes, np.uint32))
        module.launch("f", memory, block=lanes)
        results.append(memory.array.copy())
    assert all((result == results[0]).all() for result in results)
    return results[0]


LANES = np.arange(32)


def test_many_short_lives():
    """Each value is used up by the next; the sum of all is kept."""
    body = ["mov.u32 %r9, 0;"]
    for i in range(10, 60):
        body += [f"add.u32 %r{i}, %r0, {i};", f"add.u32 %r9, %r9, %r{i};"]
    assert (run("\n".join(body)) == 50 * LANES + sum(range(10, 60))).all()


def test_lives_of_different_widths_side_by_side():
    body = ""
    for i in range(10, 20):
        body += f"cvt.u16.u32 %h{i}, %r0; add.u32 %r{i}, %r0, {i}; cvt.u64.u32 %rd{i}, %r{i};"
    body += "mov.u32 %r9, 0;"
    for i in range(10, 20):
        body += f"cvt.u32.u64 %r30, %rd{i}; cvt.u32.u16 %r31, %h{i}; sub.u32 %r30, %r30, %r31;"
        body += "add.u32 %r9, %r9, %r30;"
    assert (run(body) == sum(range(10, 20))).all()


def test_the_destination_does_not_take_the_place_of_a_source():
    """An instruction's operands live until it is done."""
    body = "add.u32 %r10, %r0, 1; mov.b64 %rd10, {%r10, %r0}; mov.b64 {%r11, %r12}, %rd10;"
    body += "mul.lo.u32 %r13, %r11, 100; add.u32 %r9, %r13, %r12;"
    assert (run(body) == 101 * LANES + 100).all()


def test_values_cross_branches_and_loops():
    body = """
        mov.u32 %r9, 0; mov.u32 %r10, 0;
        again:
        add.u32 %r11, %r10, 1;
        mov.u32 %r10, %r11;
        and.b32 %r12, %r0, 1;
        setp.eq.u32 %p1, %r12, 0;
        @%p1 bra even;
        mul.lo.u32 %r13, %r10, 3;
        mov.u32 %r14, %r13;
        bra join;
        even:
        add.u32 %r15, %r10, %r10;
        mov.u32 %r14, %r15;
        join:
        add.u32 %r9, %r9, %r14;
        setp.lt.u32 %p2, %r10, 5;
        @%p2 bra again;
    """
    assert (run(body) == np.where(LANES % 2, 45, 30)).all()


def test_what_nothing_has_written_is_poison():
    """Also when other registers have come and gone, and where a guard lets lanes out."""
    busy = "".join(f"add.u32 %r{i}, %r0, 1; add.u32 %r10, %r{i}, 1;" for i in range(11, 30))
    assert (run(busy + "mov.u32 %r9, %r40;") == POISON).all()
    assert (run(busy + "add.u32 %r41, %r41, 1; mov.u32 %r9, %r41;") == POISON + 1).all()
    guarded = "setp.lt.u32 %p1, %r0, 7; @%p1 mov.u32 %r40, 5; mov.u32 %r9, %r40;"
    assert (run(busy + guarded) == np.where(LANES < 7, 5, POISON)).all()


def test_a_register_of_one_side_does_not_spoil_the_other():
    """Lanes at different places of the program share vectors, not values."""
    side = "mov.u32 %r{0}, {1}; nanosleep.u32 10; add.u32 %r{0}, %r{0}, %r0; mov.u32 %r20, %r{0};"
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 bra low;"
    body += side.format(10, 100) + "bra join; low:" + side.format(11, 200) + "join:"
    assert (run(body + "mov.u32 %r9, %r20;") == LANES + np.where(LANES < 16, 200, 100)).all()


def test_scopes_have_registers_of_their_own():
    inner = (
        "{ .reg .b32 a; .reg .b64 b; cvt.u64.u32 b, %r0; cvt.u32.u64 a, b; add.u32 %r9, %r9, a; }"
    )
    assert (run("mov.u32 %r9, 1;" + 3 * inner) == 3 * LANES + 1).all()
