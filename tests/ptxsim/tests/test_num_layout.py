"""The simulator's layouts: against PTX's tables, and against CuTe on the host (with --all)."""

import ctypes
import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from ptxsim import num_library as num

random_ = random.Random(5)
SWIZZLES = ["none", "32B", "64B", "128B"]
SHAPES = ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]
COPIES = "128x256b 4x256b 128x128b 64x128b_02_13 64x128b_01_23 32x128b_warpx4".split()
KINDS = ["f16", "mxf4nvf4"]
u32, u64, i32, b8 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_bool


class Matrix(ctypes.Structure):
    _fields_ = [("start", u32), ("leading", u32), ("stride", u32), ("base_offset", i32)]
    _fields_ += [("swizzle", i32)]


class Instruction(ctypes.Structure):
    _fields_ = [(name, i32) for name in ("a", "b", "m", "n")]
    _fields_ += [(name, b8) for name in ("negate_a", "negate_b", "mn_major_a", "mn_major_b")]


class Pair(ctypes.Structure):
    _fields_ = [("first", i32), ("second", i32)]


class Triple(ctypes.Structure):
    _fields_ = [("first", i32), ("second", i32), ("third", i32)]


def pair(name, *arguments):
    types = [b8 if isinstance(x, bool) else i32 for x in arguments]
    at = num.function(name, Pair, *types)(*arguments)
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


# --- Shared memory ---

PATTERNS = {  # PTX ISA 5.5.7: which 16-byte piece lies at each place; row r of 128 bytes
    "none": ["01234567"],
    "32B": ["01234567", "10325476"],
    "64B": ["01234567", "10325476", "23016745", "32107654"],
    "128B": "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210".split(),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_swizzles_follow_the_patterns(name):
    rows = PATTERNS[name]
    for row in range(16):
        for place, piece in enumerate(rows[row % len(rows)]):
            source = 128 * row + 16 * int(piece)
            assert swizzled(name, source + 5) == 128 * row + 16 * place + 5


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
    names = {0: "none", 2: "128B", 4: "64B", 6: "32B"}
    for code in range(8):
        matrix = descriptor("tcgen05", encoded(0x3FFF0, 16, 1024, 1, code))
        assert (matrix and SWIZZLES[matrix.swizzle]) == names.get(code)
    good = encoded(0, 16, 1024, 1, 2)
    for bit in (14, 30, 46 + 1, 52, 53, 60):
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
            at = lane // 4, 2 * (lane % 4) + half
            assert pair("num_ldmatrix_position", False, lane, half) == at
            assert pair("num_ldmatrix_position", True, lane, half) == at[::-1]


# --- Tensor memory ---


def loaded(shape, repeat):
    """The cell of each register of each thread."""
    index = SHAPES.index(shape)
    registers = num.function("num_tmem_registers", i32, i32)(index) * repeat
    return [pair("num_tmem_cell", index, t, r, repeat) for t in range(32) for r in range(registers)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeat", [1, 2, 8])
def test_loads_read_every_cell_once(shape, repeat):
    lanes, columns = {"32x32b": (32, 1), "16x32bx2": (16, 2), "16x64b": (16, 2)}.get(
        shape, (16, 4 if shape == "16x128b" else 8)
    )
    assert sorted(loaded(shape, repeat)) == [
        (a, c) for a in range(lanes) for c in range(columns * repeat)
    ]


def copied(shape):
    """The rows and pieces of the matrix that is copied, and each row with each lane it reaches."""
    index, lanes = COPIES.index(shape), (i32 * 4)()
    rows, pieces = (num.function(f"num_cp_{what}", i32, i32)(index) for what in ("rows", "pieces"))
    to = num.function("num_cp_lanes", i32, i32, i32, ctypes.c_void_p)
    reached = [
        (row, lane)
        for row in range(rows)
        for lane in lanes[: to(index, row, ctypes.addressof(lanes))]
    ]
    return rows, pieces, reached


def test_copies_reach_their_lanes():
    sizes = {
        "128x256b": (128, 2),
        "4x256b": (4, 2),
        "128x128b": (128, 1),
        "32x128b_warpx4": (32, 1),
    }
    for name in COPIES:
        rows, pieces, reached = copied(name)
        assert (rows, pieces) == sizes.get(name, (64, 1))
        lanes = [0, 32, 64, 96] if name == "4x256b" else list(range(128))
        assert sorted(lane for _, lane in reached) == lanes


def test_a_column_has_the_scale_factors_of_32_rows():
    for row in range(256):
        assert pair("num_scale_factor", row) == (row % 32, row // 32)


@pytest.mark.parametrize(
    ("ctas", "m", "n"), [(1, 64, 48), (1, 128, 256), (2, 128, 64), (2, 256, 256)]
)
def test_accumulators_have_a_cell_for_each_element(ctas, m, n):
    cells = [triple("num_accumulator_cell", ctas, m, n, r, c) for r in range(m) for c in range(n)]
    assert len(set(cells)) == m * n
    assert {cta for cta, _, _ in cells} == set(range(ctas))
    assert max(column for _, _, column in cells) + 1 == (n // 2 if (ctas, m) == (2, 128) else n)


# --- The instruction descriptor ---


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
    assert [num.FORMATS[x] for x in (found.a, found.b)] == ["bf16", "bf16"]
    assert (found.m, found.n) == (128, 256)
    assert (found.negate_a, found.negate_b, found.mn_major_a, found.mn_major_b) == (1, 0, 0, 1)
    nvf4 = 1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 7) << 27
    found, wrong = instruction("mxf4nvf4", 1, nvf4)
    assert wrong is None and num.FORMATS[found.a] == num.FORMATS[found.b] == "e2m1"
    assert (found.m, found.n) == (128, 64)
    found, wrong = instruction("mxf4nvf4", 2, nvf4 ^ (3 << 27) | 1 << 14)
    assert (found.m, found.negate_a, found.negate_b, wrong) == (256, 0, 1, None)


def test_instruction_descriptors_that_are_wrong():
    f16 = 1 << 4 | (256 >> 3) << 17 | (128 >> 4) << 24
    nvf4 = 1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 7) << 27
    wrong = {
        ("f16", 1, f16 | 1): "bits 0-3",
        ("f16", 1, f16 | 1 << 2): "sparsity",
        ("f16", 1, f16 | 1 << 3): "bits 0-3",
        ("f16", 1, f16 ^ 3 << 4): "bits 4-6",
        ("f16", 1, f16 ^ 1 << 4): "accumulators other than f32",
        ("f16", 1, f16 | 1 << 6): "bits 4-6",
        ("f16", 1, f16 | 2 << 7): "bits 7-9",
        ("f16", 1, f16 | 2 << 10): "10-12",
        ("f16", 1, f16 | 1 << 23): "bits 23",
        ("f16", 1, f16 | 1 << 30): "29-31",
        ("f16", 1, f16 ^ 32 << 17): "N is not a multiple of 8",
        ("f16", 2, f16 ^ 32 << 17 | 3 << 17): "N is not a multiple of 16",
        ("f16", 1, f16 ^ 8 << 24 ^ 16 << 24): "M is not 64 or 128",
        ("f16", 2, f16 ^ 8 << 24 ^ 4 << 24): "M is not 128 or 256",
        ("mxf4nvf4", 1, nvf4 ^ 3 << 27): "M is not 128",
        ("mxf4nvf4", 1, nvf4 | 2 << 4): "bits 0-6",
        ("mxf4nvf4", 1, nvf4 ^ 4 << 7 ^ 1 << 7): "bits 7-9",
        ("mxf4nvf4", 1, nvf4 | 1 << 12): "10-12",
        ("mxf4nvf4", 1, nvf4 | 1 << 15): "K-major",
        ("mxf4nvf4", 1, nvf4 | 1 << 23): "ue8m0",
        ("mxf4nvf4", 1, nvf4 | 1 << 24): "bits 23-26",
        ("mxf4nvf4", 1, nvf4 | 1 << 29): "scale-factor ids",
        ("mxf4nvf4", 1, nvf4 | 1 << 31): "K of 96",
    }
    for (kind, ctas, bits), text in wrong.items():
        assert text in (instruction(kind, ctas, bits)[1] or ""), (kind, ctas, hex(bits))


# --- CuTe ---


def cutlass_headers():
    """The include folder of nvidia-cutlass, or None."""
    spec = importlib.util.find_spec("cutlass_library")
    folder = Path(spec.origin).parent / "source/include" if spec and spec.origin else Path()
    return folder if (folder / "cute/tensor.hpp").is_file() else None


@pytest.fixture(scope="module")
def cute():
    """name -> numbers, of every line that num_cute.cpp prints."""
    cutlass, cuda, compiler = cutlass_headers(), num.cuda_headers(), shutil.which("c++")
    if not cutlass:
        pytest.skip("no CUTLASS headers: pip install --no-deps nvidia-cutlass")
    if not cuda or not compiler:
        pytest.skip("no CUDA headers: nvcc" if compiler else "no C++ compiler")
    flags = ["-std=c++17", "-O0", "-w", *(f"-I{folder}" for folder in (cutlass, *cuda))]
    program = num.compiled("cute", compiler, flags, [num.HERE / "num_cute.cpp"])
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    # On the host CuTe complains of pointers to shared memory: the tiles begin at 0.
    tables = [x.split(":") for x in done.stdout.splitlines() if not x.startswith("ERROR")]
    return {name: [int(x) for x in numbers.split()] for name, numbers in tables}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "strides"),
    [
        ("mma_a k8", [16], (1, 16)),
        ("mma_a k16", [16], (1, 16)),
        ("mma_b k8", [16], (8, 1)),
        ("mma_b k16", [16], (8, 1)),
        ("mma_d", [], (1, 16)),
        ("wgmma_a 16", [16], (1, 64)),
        ("wgmma_a 8", [8], (1, 64)),
        ("wgmma_d", [], (1, 64)),
        ("ldmatrix", [False], (8, 1)),
        ("ldmatrix trans", [True], (8, 1)),
    ],
)
def test_fragments_are_cutes(cute, name, arguments, strides):
    function, want = f"num_{name.split()[0]}_position", cute[name]
    values = len(want) // (128 if name.startswith("wgmma") else 32)
    at = [pair(function, *arguments, *divmod(i, values)) for i in range(len(want))]
    assert [row * strides[0] + column * strides[1] for row, column in at] == want


@pytest.mark.slow
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize(("unit", "rows"), [("wgmma", 64), ("tcgen05", 128)])
def test_descriptors_address_cutes_tiles(cute, unit, rows, major, swizzle):
    bits, *offsets = cute[f"{unit} {major} {swizzle}"]
    matrix = descriptor(unit, bits)
    at = [(row, k) for row in range(rows) for k in range(16)]
    if major == "K":
        assert [smem_address(matrix, "k", row, 2 * k) for row, k in at] == offsets
    else:
        assert [smem_address(matrix, "mn", k, 2 * row) for row, k in at] == offsets


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeat", [1, 4])
def test_loads_are_cutes(cute, shape, repeat):
    assert [x for cell in loaded(shape, repeat) for x in cell] == cute[f"{shape} x{repeat}"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [name for name in COPIES if name != "4x256b"])
def test_copies_are_cutes(cute, shape):
    rows, pieces, reached = copied(shape)
    block = 32 if shape == "64x128b_01_23" else rows  # CuTe numbers that source block by block
    got = [
        (row % block + 32 * block * (column + row // block * 4), lane, column)
        for row, lane in reached
        for column in range(4 * pieces)
    ]
    want = cute[shape]
    assert sorted(got) == sorted(zip(want[::3], want[1::3], want[2::3], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ctas", "m", "n"), [(1, 64, 32), (1, 128, 64), (2, 128, 64), (2, 256, 64)]
)
def test_accumulators_are_cutes(cute, ctas, m, n):
    rows = m // ctas
    for cta in range(ctas):
        got = []
        for i in range(rows * n):
            row, column = divmod(i, n)
            at = triple("num_accumulator_cell", ctas, m, n, row + cta * rows, column)
            assert at[0] == cta
            got += at[1:]
        assert got == cute[f"accumulator {ctas} {m} {n}"]
