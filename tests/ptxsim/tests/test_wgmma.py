"""wgmma on the simulated GPU: products of a warpgroup from shared memory and from registers."""

import numpy as np
import pytest
from ptxsim import gpu

CAPABILITY = "9.0"

SEEDS = range(6)
N, K = 32, 64  # of the matrices in shared memory, four instructions deep
A_BYTES, B_BYTES = 64 * K * 2, N * K * 2
D = ",".join(f"%f{i}" for i in range(N // 2))
SHARED = f"""
    .shared .align 1024 .b8 a[{A_BYTES}];
    .shared .align 1024 .b8 b[{B_BYTES}];
"""
FILL = f"""
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd10, %r0, {A_BYTES // 128};
    add.s64 %rd11, %rd0, %rd10;
    mov.u32 %r1, a;
    mov.u32 %r2, b;
    cvt.u32.u64 %r3, %rd10;
    add.s32 %r3, %r3, %r1;
""" + "".join(
    f"ld.global.v4.u32 {{%r4,%r5,%r6,%r7}}, [%rd11+{i}];"
    f"st.shared.v4.u32 [%r3+{i}], {{%r4,%r5,%r6,%r7}};"
    for i in range(0, A_BYTES // 128, 16)
)
FILL += f"""
    mul.wide.u32 %rd10, %r0, {B_BYTES // 128};
    add.s64 %rd11, %rd1, %rd10;
    cvt.u32.u64 %r3, %rd10;
    add.s32 %r3, %r3, %r2;
""" + "".join(
    f"ld.global.v4.u32 {{%r4,%r5,%r6,%r7}}, [%rd11+{i}];"
    f"st.shared.v4.u32 [%r3+{i}], {{%r4,%r5,%r6,%r7}};"
    for i in range(0, B_BYTES // 128, 16)
)
FILL += "fence.proxy.async.shared::cta; bar.sync 0;"
SHOW = f"mul.wide.u32 %rd10, %r0, {2 * N}; add.s64 %rd11, %rd2, %rd10;" + "".join(
    f"st.global.f32 [%rd11+{4 * i}], %f{i};" for i in range(N // 2)
)
ZERO = "".join(f"mov.f32 %f{i}, 0f3F800000;" for i in range(N // 2))  # ones, to be overwritten
SW128 = 1 << 62 | (1024 >> 4) << 32 | 1 << 16  # eight rows of 128 bytes, then the next eight


def descriptor(register, base, extra=0, layout=SW128):
    """The descriptor of what lies at a shared address, in a register."""
    return f"""
        add.s32 %r10, {base}, {extra};
        and.b32 %r10, %r10, 0x3FFFF;
        shr.u32 %r10, %r10, 4;
        cvt.u64.u32 {register}, %r10;
        or.b64 {register}, {register}, {layout};
    """


def product(step, a="%rd20", scale=(1, 1), transposed=(0, 0), kind="f16"):
    accumulate = f"setp.ne.u32 %p1, {step}, 0;"
    flags = ", ".join(map(str, (*scale, *(transposed if a == "%rd20" else transposed[1:]))))
    name = f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.{kind}.{kind}"
    return accumulate + f"{name} {{{D}}}, {a}, %rd21, %p1, {flags};"


def panel(span, rows, column):
    """(where a column of bytes begins, the layout) of panels of `span` bytes a row, 16 of them
    without a swizzle, one panel behind the other."""
    code, step = {16: 0, 32: 3, 64: 2, 128: 1}[span], rows * span
    layout = code << 62 | 8 * span >> 4 << 32 | (step >> 4 if span == 16 else 1) << 16
    return column // span * step + column % span, layout - (layout >> 63 << 64)


def from_shared(span=128, **options):
    return "".join(
        descriptor("%rd20", "%r1", *panel(span, 64, 32 * step))
        + descriptor("%rd21", "%r2", *panel(span, N, 32 * step))
        + product(step, **options)
        for step in range(K // 16)
    )


DONE = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
FENCE = "wgmma.fence.sync.aligned;"
WHOLE = FILL + ZERO + FENCE + from_shared() + DONE + SHOW


def swizzled(matrix, span=128):
    """Rows of 128 bytes as they lie in shared memory, in panels of `span` bytes a row."""
    raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), -1, span)
    raw, offsets = raw.transpose(1, 0, 2).reshape(-1), np.arange(raw.size)
    return raw[offsets ^ ((offsets >> 7 & span // 16 - 1) << 4)]


def matrices(seed, dtype=np.float16):
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in ((64, K), (N, K))]


def arrange(fragments):
    """D [64][N] of what the threads hold."""
    d = np.zeros((64, N), np.float32)
    for thread in range(128):
        for i in range(N // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            d[row, i // 4 * 8 + thread % 4 * 2 + i % 2] = fragments[thread, i]
    return d


def run(body, a, b, seed=0, block=128):
    gpu.seed(seed)
    module = gpu.Module(gpu.kernel(body, ["a_in", "b_in", "d_out"], SHARED))
    memory = [gpu.Memory(a), gpu.Memory(b), gpu.Memory(np.zeros((128, N // 2), np.float32))]
    module.launch("f", *memory, block=block)
    return arrange(memory[2].array)


def found(body, seeds=SEEDS, block=128):
    a, b = matrices(0)
    gpu.clear()
    for seed in seeds:
        try:
            run(body, swizzled(a), swizzled(b), seed, block)
        except gpu.SimError:
            pass
    return gpu.findings()


@pytest.mark.parametrize("span", [16, 32, 64, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_both_operands_from_shared_memory(seed, span):
    a, b = matrices(seed)
    body = FILL + ZERO + FENCE + from_shared(span) + DONE + SHOW
    got = run(body, swizzled(a, span), swizzled(b, span), seed)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T)
    assert gpu.findings() == set()
    assert gpu.report()["mmas"] == 4 * K // 16  # four warps


def test_signs_and_accumulation():
    a, b = matrices(1)
    body = (
        FILL
        + ZERO
        + FENCE
        + from_shared(scale=(-1, 1)).replace("setp.ne.u32 %p1, 0, 0", "setp.eq.u32 %p1, 0, 0")
    )
    got = run(body + DONE + SHOW, swizzled(a), swizzled(b))
    np.testing.assert_array_equal(got, 1 - a.astype(np.float32) @ b.astype(np.float32).T)


def test_b_with_n_in_rows():
    """B [K][N] with N contiguous, as trans-b wants it: 64 rows of 64 bytes, swizzle of 64 bytes."""
    a, b = matrices(2)
    raw = np.ascontiguousarray(b.T).view(np.uint8).reshape(-1)
    offsets = np.arange(raw.size)
    b_in = raw[offsets ^ ((offsets >> 7 & 3) << 4)]
    layout = (2 << 62 | (512 >> 4) << 32 | 1 << 16) - (1 << 64)  # as a signed number
    parts = [
        descriptor("%rd20", "%r1", 32 * step)
        + descriptor("%rd21", "%r2", 1024 * step, layout)
        + product(step, transposed=(0, 1))
        for step in range(K // 16)
    ]
    got = run(FILL + ZERO + FENCE + "".join(parts) + DONE + SHOW, swizzled(a), b_in)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T)


def test_a_from_registers():
    """Every thread loads its fragments of A, rows in global memory."""
    a, b = matrices(3)
    load = """
        shr.u32 %r20, %r0, 5;
        and.b32 %r21, %r0, 31;
        shr.u32 %r22, %r21, 2;
        and.b32 %r23, %r21, 3;
        mad.lo.s32 %r22, %r20, 16, %r22;
        mul.lo.s32 %r22, %r22, 128;
        mad.lo.s32 %r22, %r23, 4, %r22;
        cvt.u64.u32 %rd12, %r22;
        add.s64 %rd12, %rd0, %rd12;
    """ + "".join(
        f"ld.global.u32 %r{30 + 4 * step + i}, [%rd12+{32 * step + 1024 * (i & 1) + 8 * (i & 2)}];"
        for step in range(K // 16)
        for i in range(4)
    )
    parts = [
        descriptor("%rd21", "%r2", 32 * step)
        + product(step, a="{" + ",".join(f"%r{30 + 4 * step + i}" for i in range(4)) + "}")
        for step in range(K // 16)
    ]
    got = run(FILL + load + ZERO + FENCE + "".join(parts) + DONE + SHOW, a, swizzled(b))
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T)


def test_accumulators_are_poison_until_the_wait():
    a, b = matrices(4)
    body = WHOLE.replace("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;")
    poison = np.uint32(0x7F7F7F7F).view(np.float32)
    assert (run(body, swizzled(a), swizzled(b)) == poison).all()


def test_shared_memory_is_read_as_late_as_the_wait():
    overwrite = "st.shared.v4.u32 [%r3], {%r0,%r0,%r0,%r0};"
    assert "in-flight" in found(WHOLE.replace("wgmma.wait_group", overwrite + "wgmma.wait_group"))
    assert found(WHOLE.replace(SHOW, "bar.sync 0;" + overwrite + SHOW)) == set()


def handed_over(done):
    """Behind `done` a second warpgroup, which waits at barrier 1, overwrites an operand."""
    entry = "mov.u32 %r0, %tid.x; setp.ge.u32 %p5, %r0, 128; @%p5 bra $other;"
    first = FILL.replace("bar.sync 0", "bar.sync 2, 128") + ZERO + FENCE + from_shared()
    second = "exit; $other: mov.u32 %r2, b; mad.lo.s32 %r2, %r0, 4, %r2; bar.sync 1, 256;"
    second += "st.shared.u32 [%r2], 0;"
    return entry + first + done + SHOW + second


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_are_read_until_the_wait(seed):
    early = DONE.replace("wgmma.wait", "bar.arrive 1, 256; wgmma.wait")
    assert found(handed_over(early), [seed], 256) & {"race", "in-flight"}
    assert found(handed_over(DONE + "bar.arrive 1, 256;"), [seed], 256) == set()


def test_fences_are_wanted():
    assert found(WHOLE.replace(FENCE, "")) == {"wgmma-fence"}
    assert found(WHOLE.replace("fence.proxy.async.shared::cta;", "")) == {"proxy-fence"}
    assert "race" in found(WHOLE.replace("bar.sync 0;", ""))


def test_what_was_written_since_the_last_fence_wants_another():
    more = from_shared().replace("setp.ne.u32 %p1, 0, 0", "setp.eq.u32 %p1, 0, 0") + DONE
    begin, touch = FILL + ZERO + FENCE + from_shared() + DONE, "add.f32 %f3, %f3, %f3;"
    for between, codes in [("", set()), (touch, {"wgmma-fence"}), (touch + FENCE, set())]:
        assert found(begin + between + more) == codes
    registers = product(0, a="{%r30,%r30,%r30,%r30}") + DONE
    fragment = "mov.u32 %r30, 0x3C003C00;" + descriptor("%rd21", "%r2")
    for body, codes in [
        (fragment + FENCE + registers, set()),
        (FENCE + fragment + registers, {"wgmma-fence"}),
        (fragment + FENCE + registers + "mov.u32 %r30, 0;" + registers, {"wgmma-fence"}),
    ]:
        assert found(FILL + ZERO + body) == codes


def test_a_product_is_one_instruction_of_four_warps():
    entry = "mov.u32 %r0, %tid.x; setp.ge.u32 %p5, %r0, 64;" + FILL + ZERO + FENCE
    parted = "@%p5 bra $other;" + from_shared() + "bra $done; $other:" + from_shared() + "$done:"
    assert found(entry + parted + DONE + SHOW) == {"wgmma-warpgroup"}
    assert found(entry + from_shared() + DONE + SHOW) == set()


def test_descriptors_are_checked():
    assert found(WHOLE.replace(str(SW128), str(SW128 | 1 << 14))) == {"descriptor"}
    assert found(WHOLE.replace("%r2, 96", "%r2, 65536")) == {"out-of-bounds"}
