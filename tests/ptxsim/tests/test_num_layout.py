"""The simulator's layouts: against PTX's tables, and against CuTe on the host (with --all)."""

import ctypes
import functools
import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from ptxsim import num_library as num

random_ = random.Random(5)
SWIZZLES = ["none", "32B", "64B", "128B", "128B_32B", "128B_32B_8B", "128B_64B"]
SHAPES = ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]
COPIES = "128x256b 4x256b 128x128b 64x128b_02_13 64x128b_01_23 32x128b_warpx4".split()
KINDS = ["f16", "tf32", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4"]
u32, u64, i32, b8 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_bool


class Matrix(ctypes.Structure):
    _fields_ = [("start", u32), ("leading", u32), ("stride", u32), ("base_offset", i32)]
    _fields_ += [("swizzle", i32), ("leading_is_address", b8)]


class Instruction(ctypes.Structure):
    _fields_ = [(name, i32) for name in ("a", "b", "d", "m", "n", "k")]
    _fields_ += [
        (name, b8) for name in ("sparse", "negate_a", "negate_b", "mn_major_a", "mn_major_b")
    ]
    _fields_ += [("ue8m0", b8)] + [(name, i32) for name in ("sfa_id", "sfb_id", "max_shift")]


class Pair(ctypes.Structure):
    _fields_ = [("first", i32), ("second", i32)]


class Triple(ctypes.Structure):
    _fields_ = [("first", i32), ("second", i32), ("third", i32)]


def pair(name, *arguments):
    at = num.function(name, Pair, *[i32] * len(arguments))(*arguments)
    return at.first, at.second


def triple(name, *arguments):
    at = num.function(name, Triple, *[i32] * len(arguments))(*arguments)
    return at.first, at.second, at.third


def swizzled(name, address):
    return num.function("num_swizzled", u32, i32, u32)(SWIZZLES.index(name), address)


def descriptor(which, bits):
    """The matrix, or None for illegal bits."""
    matrix = Matrix()
    decode = num.function(f"num_{which}_descriptor", b8, u64, ctypes.c_void_p)
    return matrix if decode(bits, ctypes.addressof(matrix)) else None


def smem_address(matrix, major, row, byte):
    function = num.function(f"num_smem_{major}_major", u32, ctypes.c_void_p, i32, i32)
    return function(ctypes.addressof(matrix), row, byte)


# ---------------------------------------------------------------------------------------------
# Shared memory
# ---------------------------------------------------------------------------------------------

PATTERNS = {  # PTX ISA 5.5.7: which 16-byte piece lies at each place; row r of 128 bytes
    "none": ["01234567"],
    "32B": ["01234567", "10325476"],
    "64B": ["01234567", "10325476", "23016745", "32107654"],
    "128B": "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210".split(),
    "128B_32B": ["01234567", "23016745", "45670123", "67452301"],
    "128B_64B": ["01234567", "45670123"],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_swizzles_follow_the_patterns(name):
    rows = PATTERNS[name]
    for row in range(16):
        for place, piece in enumerate(rows[row % len(rows)]):
            source = 128 * row + 16 * int(piece)
            assert swizzled(name, source + 5) == 128 * row + 16 * place + 5
    period = num.function("num_swizzle_period", i32, i32)(SWIZZLES.index(name))
    assert period == {"none": 16, "32B": 256, "64B": 512, "128B": 1024}.get(name, 128 * len(rows))


def test_the_flip_exchanges_eight_bytes_in_odd_rows():
    for row in range(8):
        for byte in range(0, 128, 8):
            plain = swizzled("128B_32B", 128 * row + byte)
            assert swizzled("128B_32B_8B", 128 * row + byte) == plain ^ (8 if row % 2 else 0)


@pytest.mark.parametrize("name", SWIZZLES)
def test_a_swizzle_is_its_own_inverse(name):
    for _ in range(300):
        address = random_.randrange(1 << 18)
        assert swizzled(name, swizzled(name, address)) == address


def encoded(start, leading, stride, low, high):
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | low << 46 | high << 61


def test_descriptors_decode():
    bits = encoded(0x12340, 0x400, 0x80, 0, 0) | 2 << 62
    matrix = descriptor("wgmma", bits)
    assert (matrix.start, matrix.leading, matrix.stride) == (0x12340, 0x400, 0x80)
    assert SWIZZLES[matrix.swizzle] == "64B" and matrix.base_offset == 0
    assert descriptor("wgmma", bits | 5 << 49).base_offset == 5
    for bit in (14, 31, 46, 52, 61):
        assert descriptor("wgmma", bits | 1 << bit) is None
    names = {0: "none", 1: "128B_32B", 2: "128B", 4: "64B", 6: "32B"}
    for code in range(8):
        matrix = descriptor("tcgen05", encoded(0x3FFF0, 16, 1024, 1, code))
        assert (matrix and SWIZZLES[matrix.swizzle]) == names.get(code)
    good = encoded(0, 16, 1024, 1, 2)
    assert descriptor("tcgen05", good | 1 << 52).leading_is_address
    for bit in (14, 30, 46 + 1, 53, 60):
        assert descriptor("tcgen05", good ^ 1 << bit) is None
    assert descriptor("tcgen05", good ^ 1 << 46) is None


@pytest.mark.parametrize("name", ["none", "32B", "64B", "128B"])
def test_matrices_lie_as_documented(name):
    """PTX ISA 9.7.16.3.3, the canonical layouts: bytes instead of elements."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[name]
    assert num.function("num_swizzle_span", i32, i32)(SWIZZLES.index(name)) == span
    matrix = Matrix(start=2048, leading=0x1000, stride=0x400, swizzle=SWIZZLES.index(name))
    for _ in range(300):
        row, byte = random_.randrange(64), random_.randrange(span if name != "none" else 64)
        inner = byte if name != "none" else byte % 16 + byte // 16 * 0x1000
        plain = 2048 + row // 8 * 0x400 + row % 8 * span + inner
        assert smem_address(matrix, "k", row, byte) == swizzled(name, plain)
        row, byte = random_.randrange(32), random_.randrange(256)
        steps = (0x400, 0x1000) if name != "none" else (0x1000, 0x400)
        plain = 2048 + row // 8 * steps[0] + row % 8 * span + byte // span * steps[1] + byte % span
        assert smem_address(matrix, "mn", row, byte) == swizzled(name, plain)


def test_ldmatrix_gives_each_lane_two_of_its_row():
    for lane in range(32):
        for half in range(2):
            assert pair_with_bool(False, lane, half) == (lane // 4, 2 * (lane % 4) + half)
            assert pair_with_bool(True, lane, half) == (2 * (lane % 4) + half, lane // 4)


def pair_with_bool(trans, lane, half):
    at = num.function("num_ldmatrix_position", Pair, b8, i32, i32)(trans, lane, half)
    return at.first, at.second


# ---------------------------------------------------------------------------------------------
# Tensor memory
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeat", [1, 2, 8])
def test_loads_read_every_cell_once(shape, repeat):
    index = SHAPES.index(shape)
    registers = num.function("num_tmem_registers", i32, i32)(index) * repeat
    cells = [
        pair("num_tmem_cell", index, t, r, repeat) for t in range(32) for r in range(registers)
    ]
    lanes, columns = {"32x32b": (32, 1), "16x32bx2": (16, 2), "16x64b": (16, 2)}.get(
        shape, (16, 4 if shape == "16x128b" else 8)
    )
    assert sorted(cells) == [(a, c) for a in range(lanes) for c in range(columns * repeat)]


def test_copies_reach_their_lanes():
    lanes = (i32 * 4)()
    to = num.function("num_cp_lanes", i32, i32, i32, ctypes.c_void_p)
    rows = num.function("num_cp_rows", i32, i32)
    pieces = num.function("num_cp_pieces", i32, i32)
    sizes = {
        "128x256b": (128, 2),
        "4x256b": (4, 2),
        "128x128b": (128, 1),
        "32x128b_warpx4": (32, 1),
    }
    for index, name in enumerate(COPIES):
        assert (rows(index), pieces(index)) == sizes.get(name, (64, 1))
        reached = []
        for row in range(rows(index)):
            reached += lanes[: to(index, row, ctypes.addressof(lanes))]
        assert sorted(reached) == ([0, 32, 64, 96] if name == "4x256b" else list(range(128)))


def test_scale_factors_repeat_every_32_rows():
    for row in range(256):
        for j in range(4):
            assert triple("num_scale_factor", 4, 0, row, j) == (row % 32, row // 32, j)
        assert triple("num_scale_factor", 2, 2, row, 1) == (row % 32, row // 32, 3)
        assert triple("num_scale_factor", 1, 3, row, 0) == (row % 32, row // 32, 3)


@pytest.mark.parametrize(
    ("ctas", "m", "n"), [(1, 64, 48), (1, 128, 256), (2, 128, 64), (2, 256, 256)]
)
def test_accumulators_have_a_cell_for_each_element(ctas, m, n):
    cells = [triple("num_accumulator_cell", ctas, m, n, r, c) for r in range(m) for c in range(n)]
    assert len(set(cells)) == m * n
    assert {cta for cta, _, _ in cells} == set(range(ctas))
    assert max(column for _, _, column in cells) + 1 == (n // 2 if (ctas, m) == (2, 128) else n)


# ---------------------------------------------------------------------------------------------
# The instruction descriptor
# ---------------------------------------------------------------------------------------------


def instruction(kind, ctas, bits):
    """(the fields, what is wrong)."""
    found = Instruction()
    decode = num.function(
        "num_instruction_descriptor", ctypes.c_char_p, i32, i32, u32, ctypes.c_void_p
    )
    wrong = decode(KINDS.index(kind), ctas, bits, ctypes.addressof(found))
    return found, wrong and wrong.decode()


def test_instruction_descriptors_decode():
    f16 = 1 << 4 | 1 << 7 | 1 << 10 | (256 >> 3) << 17 | (128 >> 4) << 24
    found, wrong = instruction("f16", 1, f16 | 1 << 13 | 1 << 16)
    assert wrong is None
    assert [num.FORMATS[x] for x in (found.a, found.b, found.d)] == ["bf16", "bf16", "f32"]
    assert (found.m, found.n, found.k) == (128, 256, 16)
    assert (found.negate_a, found.negate_b, found.mn_major_a, found.mn_major_b) == (1, 0, 0, 1)
    nvf4 = 1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 7) << 27
    found, wrong = instruction("mxf4nvf4", 1, nvf4)
    assert wrong is None and num.FORMATS[found.a] == "e2m1" and not found.ue8m0
    assert (found.m, found.n, found.k) == (128, 64, 64)
    found, wrong = instruction("mxf4nvf4", 2, nvf4 ^ (3 << 27) | 1 << 23 | 2 << 29 | 2 << 4)
    assert (found.m, found.ue8m0, found.sfa_id, found.sfb_id, wrong) == (256, True, 2, 2, None)
    f8 = 1 << 4 | 5 << 7 | 1 << 10 | (32 >> 3) << 17 | (64 >> 4) << 24
    found, wrong = instruction("f8f6f4", 1, f8)
    assert wrong is None and [num.FORMATS[x] for x in (found.a, found.b)] == ["e2m1", "e5m2"]


def test_instruction_descriptors_of_eight_bit_kinds_and_sparse_operands():
    mxf8 = 3 << 4 | 0 << 7 | 4 << 10 | 1 << 15 | (64 >> 3) << 17 | 1 << 23 | 1 << 27 | 2 << 29
    found, wrong = instruction("mxf8f6f4", 1, mxf8)
    assert wrong is None and [num.FORMATS[x] for x in (found.a, found.b)] == ["e4m3", "e3m2"]
    assert (found.sfa_id, found.sfb_id, found.ue8m0, found.mn_major_a) == (2, 3, True, True)
    assert (found.m, found.n, found.k, found.sparse) == (128, 64, 32, False)
    assert instruction("mxf8f6f4", 1, mxf8 ^ 1 << 23)[1] == "the scales of this kind are ue8m0"
    assert instruction("mxf8f6f4", 1, mxf8 | 1 << 31)[1] == "bit 31 is set"
    tf32 = 3 | 1 << 2 | 1 << 4 | 2 << 7 | 2 << 10 | (8 >> 3) << 17 | (64 >> 4) << 24 | 2 << 30
    found, wrong = instruction("tf32", 1, tf32)
    assert (wrong, found.sparse, found.k, found.max_shift) == (None, True, 16, 2)
    assert [num.FORMATS[x] for x in (found.a, found.b, found.d)] == ["tf32", "tf32", "f32"]
    assert "accumulator type" in instruction("tf32", 1, tf32 ^ 1 << 4)[1]


def test_instruction_descriptors_that_are_wrong():
    f16 = 1 << 4 | (256 >> 3) << 17 | (128 >> 4) << 24
    nvf4 = 1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 7) << 27
    wrong = {
        ("f16", 1, f16 | 1 << 3): "bits 3, 6, 23, 29",
        ("f16", 1, f16 | 2 << 7): "bits 7-9",
        ("f16", 1, f16 | 2 << 10): "bits 10-12",
        ("f16", 1, f16 ^ 3 << 4): "accumulator type",
        ("f16", 1, f16 ^ 1 << 4 | 1 << 7): "f16 operands",
        ("f16", 1, f16 | 1): "sparsity selector",
        ("f16", 1, f16 ^ 32 << 17): "N is not a multiple of 8",
        ("f16", 2, f16 ^ 32 << 17 | 3 << 17): "N is not a multiple of 16",
        ("f16", 1, f16 ^ 8 << 24 ^ 16 << 24): "M is not 64 or 128",
        ("f16", 2, f16 ^ 8 << 24 ^ 4 << 24): "M is not 128 or 256",
        ("tf32", 1, f16): "bits 7-9",
        ("mxf4nvf4", 1, nvf4 ^ 3 << 27): "M is not 128",
        ("mxf4nvf4", 1, nvf4 | 1 << 12): "bit 12",
        ("mxf4nvf4", 1, nvf4 | 1 << 15): "K-major",
        ("mxf4nvf4", 1, nvf4 | 1 << 24): "24-26",
        ("mxf4nvf4", 1, nvf4 | 1 << 29): "scale-factor id",
        ("mxf4", 1, nvf4): "ue8m0",
        ("mxf4nvf4", 1, nvf4 ^ 4 << 7 ^ 1 << 7): "bits 7-9",
    }
    for (kind, ctas, bits), text in wrong.items():
        assert text in (instruction(kind, ctas, bits)[1] or ""), (kind, ctas, hex(bits))


# ---------------------------------------------------------------------------------------------
# CuTe
# ---------------------------------------------------------------------------------------------


def cutlass_headers():
    """The include folder of an installed CUTLASS, or None."""
    for package, folder in (
        ("cutlass_library", "source/include"),
        ("flashinfer", "data/cutlass/include"),
    ):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            if Path(place, folder, "cute/tensor.hpp").is_file():
                return Path(place, folder)
    return None


@functools.cache
def cute():
    """name -> numbers, of every line that num_cute.cpp prints."""
    folders = [f"-I{folder}" for folder in (cutlass_headers(), *num.cuda_headers())]
    flags = ["-std=c++17", "-O0", "-w", *folders]
    program = num.compiled("cute", shutil.which("c++"), flags, [num.HERE / "num_cute.cpp"])
    lines = subprocess.run(
        [program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    tables = (line.split(":") for line in lines if not line.startswith("ERROR"))
    return {name: [int(x) for x in numbers.split()] for name, numbers in tables}


needs_cute = [
    pytest.mark.slow,
    pytest.mark.skipif(cutlass_headers() is None, reason="no CUTLASS headers: nvidia-cutlass"),
    pytest.mark.skipif(not num.cuda_headers(), reason="no CUDA headers: nvcc"),
    pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler"),
]


def cute_test(function):
    for mark in needs_cute:
        function = mark(function)
    return function


@cute_test
@pytest.mark.parametrize(("bits", "k"), [(16, 8), (16, 16), (32, 8), (8, 32)])
def test_fragments_are_cutes(bits, k):
    counts = {"a": k // 2, "b": k // 4, "c": 4}
    for operand, count in counts.items():
        got = []
        for lane in range(32):
            for i in range(count):
                if operand == "c":
                    row, col = pair("num_mma_d_position", lane, i)
                else:
                    row, col = pair(f"num_mma_{operand}_position", bits, lane, i)
                got.append(col + 8 * row if operand == "b" else row + 16 * col)
        assert got == cute()[f"{operand}_{bits}_k{k}"]


@cute_test
def test_warpgroup_fragments_are_cutes():
    for bits, count in ((16, 8), (8, 16)):
        at = [pair("num_wgmma_a_position", bits, t, i) for t in range(128) for i in range(count)]
        assert [row + 64 * col for row, col in at] == cute()[f"wgmma_a_{bits}"]
    for n in (64, 256):
        at = [pair("num_wgmma_d_position", t, i) for t in range(128) for i in range(n // 2)]
        assert [row + 64 * col for row, col in at] == cute()[f"wgmma_d_{n}"]


@cute_test
def test_ldmatrix_is_cutes():
    for trans, name in ((False, "ldmatrix"), (True, "ldmatrix_trans")):
        at = [pair_with_bool(trans, lane, half) for lane in range(32) for half in range(2)]
        assert [128 * row + 16 * col for row, col in at] == cute()[name][::16]


TILES = [f"{major}_{s}_half_t" for major in ("K", "MN") for s in ("INTER", "SW32", "SW64", "SW128")]


@cute_test
@pytest.mark.parametrize(
    "name",
    [f"{unit}_{tile}" for unit in ("gmma", "umma") for tile in TILES]
    + ["gmma_K_SW128_uint8_t", "umma_MN_SW128_32B_float"],
)
def test_descriptors_address_cutes_tiles(name):
    bits, *offsets = cute()[name]
    unit, major, *_ = name.split("_")
    matrix = descriptor("wgmma" if unit == "gmma" else "tcgen05", bits)
    assert matrix is not None
    size = 1 if "uint8" in name else 4 if "float" in name else 2
    rows, columns = (64, 32 // size) if unit == "gmma" else (128, 32 // size)
    assert len(offsets) == rows * columns
    for i, want in enumerate(offsets):
        row, k = divmod(i, columns)
        at = (row, k * size) if major == "K" else (k, row * size)
        assert smem_address(matrix, major.lower(), *at) == want


@cute_test
@pytest.mark.parametrize(
    ("shape", "repeat"),
    [(s, r) for s in SHAPES[1:4] for r in (1, 4)] + [("32x32b", 1), ("32x32b", 8), ("16x32bx2", 2)],
)
def test_loads_are_cutes(shape, repeat):
    index = SHAPES.index(shape)
    registers = num.function("num_tmem_registers", i32, i32)(index) * repeat
    got = []
    for thread in range(32):
        for reg in range(registers):
            got += pair("num_tmem_cell", index, thread, reg, repeat)
    assert got == cute()[f"ld_{shape}_x{repeat}"]


@cute_test
@pytest.mark.parametrize("shape", [name for name in COPIES if name != "4x256b"])
def test_copies_are_cutes(shape):
    index = COPIES.index(shape)
    rows = num.function("num_cp_rows", i32, i32)(index)
    pieces = num.function("num_cp_pieces", i32, i32)(index)
    lanes = (i32 * 4)()
    to = num.function("num_cp_lanes", i32, i32, i32, ctypes.c_void_p)
    got = set()
    for row in range(rows):
        for lane in lanes[: to(index, row, ctypes.addressof(lanes))]:
            got |= {(row + rows * 32 * column, lane, column) for column in range(4 * pieces)}
    flat = cute()[f"cp_{shape}"]
    want = set(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    if shape == "64x128b_01_23":  # CuTe numbers this source as two blocks of 32 rows
        got = {
            (source % 32 + 1024 * column + 4096 * (source % 64 // 32), lane, column)
            for source, lane, column in got
        }
    assert got == want


@cute_test
@pytest.mark.parametrize(
    ("ctas", "m", "n"), [(1, 64, 32), (1, 128, 64), (2, 128, 64), (2, 256, 64)]
)
def test_accumulators_are_cutes(ctas, m, n):
    for cta in range(ctas):
        got = []
        for row in range(m // ctas):
            for column in range(n):
                at = triple("num_accumulator_cell", ctas, m, n, row + cta * m // ctas, column)
                assert at[0] == cta
                got += at[1:]
        assert got == cute()[f"acc_{ctas}_{m}_{n}"]
