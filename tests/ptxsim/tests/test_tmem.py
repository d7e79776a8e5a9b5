"""Tensor memory on the simulated GPU: which cells ld, st and cp touch, allocation, kind::f16."""

import numpy as np
import pytest
from ptxsim import gpu, sm100

CAPABILITY = "10.0"

SEEDS = range(4)
COLUMNS = 64  # of what a test looks at


def launch(body, *arrays, variables=None, seed=0, **options):
    """The last array after the kernel."""
    gpu.seed(seed)
    names = [f"p{i}" for i in range(len(arrays))]
    module = gpu.Module(gpu.kernel(body, names, variables or sm100.declarations()))
    memory = [gpu.Memory(array) for array in arrays]
    module.launch("f", *memory, **({"block": 128} | options))
    return memory[-1].array.copy()


# --- Shapes of ld and st: PTX ISA 9.7.16.2.3 ---

CELLS = {  # of thread t's register r: lane, column
    "32x32b": lambda t, r: (t, r),
    "16x64b": lambda t, r: (t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)),
    "16x128b": lambda t, r: (t // 4 + 8 * (r & 1), 4 * (r // 2) + t % 4),
    "16x256b": lambda t, r: (t // 4 + 8 * (r >> 1 & 1), 8 * (r // 4) + 2 * (t % 4) + (r & 1)),
    "16x32bx2": lambda t, r: (t % 16, r + (0 if t < 16 else 24)),
}
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}  # columns at .x1
SHAPES = [
    (shape, count)
    for shape in CELLS
    for count in (1, 2, 4, 8, 16, 32, 64)
    if WIDTH[shape] * count <= (COLUMNS if shape != "16x32bx2" else 24)
]
HALF = {"16x32bx2": ", 24"}


def store(columns, first=0, place="%r3", shape="32x32b", count=None):
    registers = ",".join(f"%d{first + i}" for i in range(columns))
    name = f"tcgen05.st.sync.aligned.{shape}.x{count or columns}.b32"
    return f"{name} [{place}]{HALF.get(shape, '')}, {{{registers}}};"


def number_registers(count):
    """%d{i} = thread << 16 | i"""
    return "shl.b32 %r50, %r0, 16;" + "".join(f"or.b32 %d{i}, %r50, {i};" for i in range(count))


WAIT_STORE = "tcgen05.wait::st.sync.aligned;"
NUMBERED = sm100.start() + number_registers(COLUMNS) + store(COLUMNS) + WAIT_STORE
LANES = np.arange(128) // 32 * 32  # of the first lane of each thread's warp


def first_lane(shape, upper):
    """Of the shapes of sixteen lanes, the upper ones of the warp's."""
    return f"add.s32 %r51, %r3, {upper << 20};" if shape != "32x32b" else "mov.u32 %r51, %r3;"


@pytest.mark.parametrize("shape, count", SHAPES)
@pytest.mark.parametrize("upper", (0, 1))
def test_load_shapes(shape, count, upper):
    n = count * REGISTERS[shape]
    load = sm100.load(n, 0, "%r51", shape, count).replace("];", f"]{HALF.get(shape, '')};")
    body = NUMBERED + first_lane(shape, upper) + load + sm100.WAIT_LOAD
    got = launch(body + sm100.show(n, "%rd0") + sm100.finish(), np.zeros((128, n), np.uint32))
    extra = 16 * upper if shape != "32x32b" else 0
    for t in range(128):
        for r in range(n):
            lane, column = CELLS[shape](t % 32, r)
            assert got[t, r] == (LANES[t] + lane + extra) << 16 | column
    assert gpu.findings("EWN") == set()


@pytest.mark.parametrize("shape, count", SHAPES)
@pytest.mark.parametrize("upper", (0, 1))
def test_store_shapes(shape, count, upper):
    n = count * REGISTERS[shape]
    clear = "".join(f"mov.u32 %d{i}, 0;" for i in range(COLUMNS)) + store(COLUMNS) + WAIT_STORE
    put = first_lane(shape, upper) + number_registers(n) + store(n, 0, "%r51", shape, count)
    body = sm100.start() + clear + put + WAIT_STORE + sm100.load(COLUMNS, place="%r3")
    body += sm100.WAIT_LOAD + sm100.show(COLUMNS, "%rd0") + sm100.finish()
    got = launch(body, np.zeros((128, COLUMNS), np.uint32))
    want = np.zeros((128, COLUMNS), np.uint32)
    extra = 16 * upper if shape != "32x32b" else 0
    for t in range(128):
        for r in range(n):
            lane, column = CELLS[shape](t % 32, r)
            want[LANES[t] + lane + extra, column] = t << 16 | r
    np.testing.assert_array_equal(got, want)
    assert gpu.findings("EWN") == set()


def test_pairs_of_columns_pack_into_a_register_and_back():
    unpacked = store(8).replace("x8.b32", "x8.unpack::16b.b32")
    packed = sm100.load(8, 0, "%r3").replace("x8.b32", "x8.pack::16b.b32")
    body = sm100.start() + number_registers(8) + unpacked + WAIT_STORE
    plain = launch(
        body + sm100.load(16, 0, "%r3") + sm100.WAIT_LOAD + sm100.show(16, "%rd0") + sm100.finish(),
        np.zeros((128, 16), np.uint32),
    )
    threads = np.arange(128)[:, None]
    assert (plain[:, 0::2] == np.arange(8)).all() and (plain[:, 1::2] == threads).all()
    again = launch(
        body + packed + sm100.WAIT_LOAD + sm100.show(8, "%rd0") + sm100.finish(),
        np.zeros((128, 8), np.uint32),
    )
    assert (again == (threads << 16 | np.arange(8))).all()


# --- cp: PTX ISA 9.7.16.9 ---

COPIES = {  # name: rows, bytes of a row, the lanes a row goes to
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "4x256b": (4, 32, lambda r: [32 * r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r % 32 + 64 * (r // 32) + i for i in (0, 32)]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
}


def copied(name, group):
    """Into cleared tensor memory; 128 bytes between the two pieces of a row."""
    layout = 1 << 46 | (256 >> 4) << 32 | (128 >> 4) << 16
    clear = "".join(f"mov.u32 %d{i}, 0;" for i in range(8)) + store(8) + WAIT_STORE
    meet = sm100.CLUSTER_BARRIER if group == 2 else "bar.sync 0;"
    copy = sm100.AFTER + sm100.descriptor("%rd20", "%r20", 0, layout)
    copy += f"tcgen05.cp.cta_group::{group}.{name} [%r1], %rd20;" + sm100.commit(group)
    return (
        sm100.start(group=group)
        + clear
        + "mov.u32 %r40, %cluster_ctarank; mul.wide.u32 %rd40, %r40, 4096;"
        + "add.s64 %rd0, %rd0, %rd40; mov.u32 %r20, tile;"
        + sm100.fill("%r20", "%rd0", 4096)
        + sm100.FENCE_PROXY
        + sm100.BEFORE
        + meet
        + sm100.issuer(group, copy)
        + sm100.wait(0, "%r10")
        + sm100.AFTER
        + sm100.load(8, place="%r3")
        + sm100.WAIT_LOAD
        + sm100.show(8, "%rd1")
        + sm100.finish(group=group)
    )


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("group", (1, 2))
def test_copies(name, group):
    rows, size, lanes = COPIES[name]
    data = np.arange(1, 1024 * group + 1, dtype=np.uint32)
    got = launch(
        copied(name, group), data, np.zeros((128 * group, 8), np.uint32),
        variables=sm100.declarations(tile=4096), grid=group, cluster=group,
    )  # fmt: skip
    want = np.zeros((128 * group, 8), np.uint32)
    for cta in range(group):
        for row in range(rows):
            for byte in range(0, size, 4):
                at = row // 8 * 256 + row % 8 * 16 + byte // 16 * 128 + byte % 16
                for lane in lanes(row):
                    want[128 * cta + lane, byte // 4] = data[1024 * cta + at // 4]
    np.testing.assert_array_equal(got, want)
    assert gpu.findings("EWN") == set()
