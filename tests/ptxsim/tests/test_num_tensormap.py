"""Tensor maps of the simulator: every documented rule from both sides, and boxes against NumPy."""

import ctypes
import itertools
import random

import numpy as np
import pytest
from ptxsim import num_library as num

random_ = random.Random(6)
TYPES = "u8 u16 u32 s32 u64 s64 f16 f32 f64 bf16 f32ftz tf32 tf32ftz".split()
BYTES = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4]
SWIZZLES = ["none", "32B", "64B", "128B"]


class Piece(ctypes.Structure):
    _fields_ = [("shared", ctypes.c_uint32), ("inside", ctypes.c_uint16)]
    _fields_ += [("globl", ctypes.c_uint64)]


class Map:
    """128 bytes, 64-byte aligned."""

    def __init__(self, misaligned=0):
        self.memory = np.zeros(256, np.uint8)
        self.at = self.memory.ctypes.data
        self.at += -self.at % 64 + misaligned

    @property
    def words(self):
        start = self.at - self.memory.ctypes.data
        return self.memory[start : start + 128].view(np.uint32)


GOOD = {
    "dtype": "f16",
    "address": 0x7F0000000100,
    "dims": (256, 64),
    "strides": (512,),
    "box": (64, 8),
    "steps": (1, 1),
    "interleave": 0,
    "swizzle": "128B",
    "l2": 0,
    "fill": 0,
}


def encode(target=None, rank=None, **changes):
    """(CUresult, what is wrong, the map)."""
    p = GOOD | changes
    target = target or Map()
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    rank = len(p["dims"]) if rank is None else rank

    def array(kind, x):
        return None if x is None else (kind * max(len(x), 1))(*x)

    def number(x, names):
        return names.index(x) if isinstance(x, str) else x

    why = ctypes.c_char_p()
    result = num.library().num_tensormap_encode(
        ctypes.c_void_p(target.at),
        u32(number(p["dtype"], TYPES)),
        u32(rank),
        u64(p["address"]),
        array(u64, p["dims"]),
        array(u64, p["strides"]),
        array(u32, p["box"]),
        array(u32, p["steps"]),
        u32(p["interleave"]),
        u32(number(p["swizzle"], SWIZZLES)),
        u32(p["l2"]),
        u32(p["fill"]),
        ctypes.byref(why),
    )
    return result, why.value and why.value.decode(), target


ONE = {"dims": (64,), "strides": (), "box": (64,), "steps": (1,)}

ACCEPTED = [
    {},
    ONE,
    ONE | {"strides": None},
    {"dims": (1 << 32, 1 << 32)},
    {"strides": ((1 << 40) - 16,)},
    {"strides": (0,)},
    {"box": (64, 256)},
    {"steps": (1, 8)},
    {"dtype": "u8", "box": (128, 8)},
    {"dtype": "f64", "box": (16, 8)},
    {"swizzle": "32B", "box": (16, 8)},
    {"swizzle": "none", "box": (256, 8)},
    {"fill": 1, "l2": 3},
    {"fill": 1, "dtype": "tf32ftz", "box": (32, 8)},
]

REJECTED = {
    "tensorDataType = 13, expected 0 to 12": [{"dtype": 13}],
    "tensorRank = 0, expected 1 to 5": [{"rank": 0}],
    "tensorRank = 6, expected 1 to 5": [{"rank": 6}],
    "an array is NULL": [
        {"dims": None, "rank": 2},
        {"strides": None},
        {"box": None},
        {"steps": None},
    ],
    "globalAddress = 0x7f0000000108, expected a multiple of 16": [{"address": 0x7F0000000108}],
    "globalDim[1] = 0, expected 1 to 2^32": [{"dims": (256, 0)}],
    "globalDim[0] = 4294967297, expected 1 to 2^32": [{"dims": ((1 << 32) + 1, 64)}],
    "globalStrides[0] = 520, expected a multiple of 16": [{"strides": (520,)}],
    "globalStrides[0] = 1099511627776, expected less than 2^40": [{"strides": (1 << 40,)}],
    "boxDim[1] = 0, expected 1 to 256": [{"box": (64, 0)}],
    "boxDim[0] = 257, expected 1 to 256": [{"box": (257, 1)}],
    "boxDim[0] is 120 bytes, expected a multiple of 16": [{"box": (60, 8)}],
    "boxDim[0] is 128 bytes, expected at most 64": [{"swizzle": "64B"}],
    "boxDim[0] is 64 bytes, expected at most 32": [{"swizzle": "32B", "box": (32, 8)}],
    "boxDim[0] is 144 bytes, expected at most 128": [{"box": (72, 8)}],
    "elementStrides[1] = 0, expected 1 to 8": [{"steps": (1, 0)}],
    "elementStrides[1] = 9, expected 1 to 8": [{"steps": (1, 9)}],
    "interleave = 1, expected 0 to 0": [{"interleave": 1}],
    "swizzle = 4, expected 0 to 3": [{"swizzle": 4}],
    "l2Promotion = 4, expected 0 to 3": [{"l2": 4}],
    "oobFill = 2, expected 0 to 1": [{"fill": 2}],
    "oobFill = 1 (NaN), expected a floating-point": [{"fill": 1, "dtype": "u16"}],
}


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_what_the_rules_allow_is_accepted(changes):
    result, why, made = encode(**changes)
    assert (result, why) == (0, None)
    assert check(made) is None


@pytest.mark.parametrize(
    ("text", "changes"), [(t, c) for t, cases in REJECTED.items() for c in cases], ids=str
)
def test_what_the_rules_forbid_is_an_invalid_value(text, changes):
    result, why, made = encode(**changes)
    assert result == 1 and why.startswith(text), why
    assert not made.words.any()  # untouched


def test_maps_are_aligned_to_64_bytes():
    for misaligned in (4, 16, 32):
        result, why, _ = encode(Map(misaligned))
        assert result == 1 and "expected a multiple of 64" in why


def check(made):
    found = num.function("num_tensormap_check", ctypes.c_char_p, ctypes.c_void_p)(made.at)
    return found and found.decode()


def test_other_bytes_are_no_map():
    _, _, made = encode()
    made.words[2] ^= 1
    assert "magic word" in check(made)


# --- Boxes ---


def pieces(made, coordinates):
    at = num.function("num_box_piece_at", Piece, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    count = num.function("num_box_pieces", ctypes.c_uint32, ctypes.c_void_p)(made.at)
    where = (ctypes.c_int32 * 5)(*coordinates)
    return [at(made.at, ctypes.addressof(where), i) for i in range(count)]


def span(made):
    return num.function("num_box_span", ctypes.c_uint32, ctypes.c_void_p)(made.at)


def load(made, memory, coordinates):
    """A box as shared memory, unswizzled, 255 where nothing came: what a machine does."""
    shared = np.full(span(made), 255, np.uint8)
    for piece in pieces(made, coordinates):
        for i in range(16):
            if piece.inside >> i & 1:
                shared[piece.shared + i] = memory[piece.globl + i]
            else:
                shared[piece.shared + i] = 0
    return shared


CASES = [  # bytes an element, dims, box, steps (dimension 0 first)
    ("u8", (48,), (32,), (1,)),
    ("f16", (40, 20), (16, 8), (1, 1)),
    ("f32", (20, 9, 5), (8, 4, 2), (1, 1, 1)),
    ("f32", (20, 9, 5), (8, 5, 3), (1, 2, 3)),
    ("f64", (6, 5, 4, 3), (4, 2, 2, 2), (1, 1, 1, 1)),
    ("bf16", (16, 4, 3, 3, 3), (8, 2, 2, 1, 2), (1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize(("dtype", "dims", "box", "steps"), CASES)
def test_boxes_are_numpys_slices(dtype, dims, box, steps):
    size = BYTES[TYPES.index(dtype)]
    strides, stride = [], -(-dims[0] * size // 16) * 16 + 16
    for dim in dims[1:]:
        strides.append(stride)
        stride *= dim
    memory = np.random.default_rng(7).integers(0, 250, stride + 4096, np.uint8)
    _, why, made = encode(
        dtype=dtype, address=256, dims=dims, strides=strides, box=box, steps=steps, swizzle="none"
    )
    assert why is None
    tensor = np.lib.stride_tricks.as_strided(
        memory[256:], (*dims[::-1], size), (*strides[::-1], size, 1)
    )
    lows = [random_.randrange(-b, d + 2) for d, b in zip(dims, box, strict=True)]
    for low in [lows, [0] * len(dims), [d - 1 for d in dims]]:
        want = np.zeros(
            (*[-(-b // s) for b, s in zip(box[:0:-1], steps[:0:-1], strict=True)], box[0], size),
            np.uint8,
        )
        for index in itertools.product(*map(range, want.shape[:-1])):
            at = [lo + i * s for lo, i, s in zip(low, index[::-1], (1, *steps[1:]), strict=True)]
            if all(0 <= a < d for a, d in zip(at, dims, strict=True)):
                want[index] = tensor[tuple(at[::-1])]
        assert (load(made, memory, low) == want.ravel()).all()


def test_rows_are_as_long_as_the_swizzle():
    for box, swizzle, pitch in (
        (16, "128B", 128),
        (16, "none", 32),
        (16, "32B", 32),
        (8, "64B", 64),
    ):
        _, _, made = encode(box=(box, 8), swizzle=swizzle)
        assert span(made) == 8 * pitch
        assert [p.shared for p in pieces(made, (0, 0))][:: box * 2 // 16] == list(
            range(0, 8 * pitch, pitch)
        )


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_have_their_types_size(dtype):
    size = BYTES[TYPES.index(dtype)]
    box = 64 // size  # 64 bytes a row
    _, why, made = encode(dtype=dtype, box=(box, 2), swizzle="none", address=0x1000)
    assert why is None
    got = pieces(made, (box, 1))
    assert [p.globl for p in got[:4]] == [0x1000 + 512 + 64 + 16 * i for i in range(4)]
    assert len(got) == 8
    last = pieces(made, (256 - 16 // size, 0))  # the row's last 16 bytes, then nothing
    assert [p.inside for p in last[:4]] == [0xFFFF, 0, 0, 0]


def test_filling():
    fill = num.function("num_box_fill", ctypes.c_uint64, ctypes.c_void_p)
    assert fill(encode()[2].at) == 0
    assert fill(encode(fill=1)[2].at) == 0x7FFF7FFF7FFF7FFF
    assert fill(encode(fill=1, dtype="f32", box=(32, 8))[2].at) == 0x7FFFFFFF7FFFFFFF
