"""Tensor maps of the simulator: every documented rule from both sides, and boxes against NumPy."""

import ctypes
import itertools
import random

import numpy as np
import pytest
from ptxsim import num_library as num

random_ = random.Random(6)
TYPES = "u8 u16 u32 s32 u64 s64 f16 f32 f64 bf16 f32ftz tf32 tf32ftz u4 u4pad u6pad".split()
BITS = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6]
SWIZZLES = ["none", "32B", "64B", "128B", "128B_32B", "128B_32B_8B", "128B_64B"]
FIELDS = "address rank box_dim global_dim global_stride element_stride elemtype interleave".split()
FIELDS += ["swizzle_mode", "swizzle_atomicity", "fill"]


class Piece(ctypes.Structure):
    _fields_ = [("shared", ctypes.c_uint32), ("bytes", ctypes.c_uint8)]
    _fields_ += [("inside", ctypes.c_uint16), ("globl", ctypes.c_uint64)]


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


PAD = {"dtype": "u4pad", "dims": (256, 64), "strides": (128,), "box": (128, 8), "swizzle": "none"}
THREE = {"dims": (64, 8, 8), "strides": (512, 4096), "box": (8, 8, 8), "steps": (1, 1, 1)}
THREE |= {"swizzle": "none"}
U4 = {"dtype": "u4", "box": (256, 8)}
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
    {"swizzle": "128B_32B"},
    {"swizzle": "128B_64B"},
    {"fill": 1, "l2": 3},
    {"fill": 1, "dtype": "tf32ftz", "box": (32, 8)},
    U4,
    U4 | {"dims": (254, 64)},
    PAD,
    PAD | {"swizzle": "128B"},
    PAD | {"dtype": "u6pad", "swizzle": "128B_64B", "strides": (192,)},
    THREE | {"interleave": 1},
    THREE | {"interleave": 2, "swizzle": "32B"},
]

REJECTED = {
    "tensorDataType = 16, expected 0 to 15": [{"dtype": 16}],
    "tensorRank = 0, expected 1 to 5": [{"rank": 0}],
    "tensorRank = 6, expected 1 to 5": [{"rank": 6}],
    "tensorRank = 2, expected 3 to 5 with an interleave": [{"interleave": 1}],
    "an array is NULL": [
        {"dims": None, "rank": 2},
        {"strides": None},
        {"box": None},
        {"steps": None},
    ],
    "globalAddress = 0x7f0000000108, expected a multiple of 16": [{"address": 0x7F0000000108}],
    "globalAddress = 0x7f0000000110, expected a multiple of 32": [
        PAD | {"address": 0x7F0000000110},
        THREE | {"interleave": 2, "swizzle": "32B", "address": 0x7F0000000110},
    ],
    "globalDim[1] = 0, expected 1 to 2^32": [{"dims": (256, 0)}],
    "globalDim[0] = 4294967297, expected 1 to 2^32": [{"dims": ((1 << 32) + 1, 64)}],
    "globalDim[0] = 255, expected a multiple of 2": [U4 | {"dims": (255, 64)}],
    "globalDim[0] = 192, expected a multiple of 128": [PAD | {"dims": (192, 64)}],
    "globalStrides[0] = 520, expected a multiple of 16": [{"strides": (520,)}],
    "globalStrides[0] = 144, expected a multiple of 32": [PAD | {"strides": (144,)}],
    "globalStrides[1] = 4112, expected a multiple of 32": [
        THREE | {"interleave": 2, "swizzle": "32B", "strides": (512, 4112)}
    ],
    "globalStrides[0] = 1099511627776, expected less than 2^40": [{"strides": (1 << 40,)}],
    "boxDim[1] = 0, expected 1 to 256": [{"box": (64, 0)}],
    "boxDim[0] = 257, expected 1 to 256": [{"box": (257, 1)}],
    "boxDim[0] = 60 is 960 bits, expected a multiple of 16 bytes": [{"box": (60, 8)}],
    "boxDim[0] = 80 is 320 bits, expected a multiple of 16 bytes": [U4 | {"box": (80, 8)}],
    "boxDim[0] = 64, expected 128 for this type": [PAD | {"box": (64, 8)}],
    "boxDim[0] is 128 bytes, expected at most 64": [{"swizzle": "64B"}],
    "boxDim[0] is 64 bytes, expected at most 32": [{"swizzle": "32B", "box": (32, 8)}],
    "boxDim[0] is 144 bytes, expected at most 128": [{"box": (72, 8)}],
    "elementStrides[1] = 0, expected 1 to 8": [{"steps": (1, 0)}],
    "elementStrides[1] = 9, expected 1 to 8": [{"steps": (1, 9)}],
    "interleave = 3, expected 0 to 2": [{"interleave": 3}],
    "swizzle = 7, expected 0 to 6": [{"swizzle": 7}],
    "l2Promotion = 4, expected 0 to 3": [{"l2": 4}],
    "oobFill = 2, expected 0 to 1": [{"fill": 2}],
    "swizzle = 0, expected 1 (32B) with an interleave of 32B": [THREE | {"interleave": 2}],
    "swizzle = 5, which this type does not have": [PAD | {"swizzle": "128B_32B_8B"}],
    "swizzle = 6, which this type does not have": [PAD | {"swizzle": "128B_64B"}],
    "interleave = 1, expected 0 (none) for 16U6_ALIGN16B": [
        THREE | {"dtype": "u6pad", "interleave": 1, "box": (128, 8, 8), "dims": (128, 8, 8)}
    ],
    "oobFill = 1 (NaN), expected a floating-point": [
        {"fill": 1, "dtype": "u16"},
        U4 | {"fill": 1},
        PAD | {"fill": 1},
    ],
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


def test_records_keep_the_words_that_kernels_edit():
    _, _, made = encode(address=0x123456789000)
    assert int(made.words[:2].view(np.uint64)[0]) == 0x123456789000
    assert made.words[8:13].tolist() == [255, 63, 0, 0, 0]
    made.words[9] = 99
    assert check(made) is None
    made.words[2] ^= 1
    assert "magic word" in check(made)


def test_addresses_are_replaced():
    _, _, made = encode()
    why = ctypes.c_char_p()
    replace = num.library().num_tensormap_replace_address
    at = ctypes.c_void_p(made.at)
    assert replace(at, ctypes.c_uint64(0x1000), ctypes.byref(why)) == 0
    assert int(made.words[:2].view(np.uint64)[0]) == 0x1000
    assert replace(at, ctypes.c_uint64(0x1008), ctypes.byref(why)) == 1
    assert b"multiple of 16" in why.value
    made.words[2] = 0
    assert replace(at, ctypes.c_uint64(0x1000), ctypes.byref(why)) == 1


def replace(made, field, ordinal, value):
    call = num.function(
        "num_tensormap_replace",
        ctypes.c_bool,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
    )
    return call(made.at, FIELDS.index(field), ordinal, value)


def test_replace_makes_the_map_that_encode_makes():
    _, _, wanted = encode(
        dtype="bf16",
        address=0x4000,
        dims=(512, 32, 4),
        strides=(1024, 32768),
        box=(32, 4, 2),
        steps=(1, 2, 1),
        swizzle="128B_32B",
        fill=1,
    )
    _, _, made = encode()
    changes = [("address", 0, 0x4000), ("rank", 0, 2), ("elemtype", 0, 10), ("fill", 0, 1)]
    changes += [("swizzle_atomicity", 0, 1), ("interleave", 0, 0)]
    changes += [("global_dim", i, v) for i, v in enumerate((512, 32, 4))]
    changes += [("global_stride", i, v) for i, v in enumerate((1024, 32768))]
    changes += [("box_dim", i, v) for i, v in enumerate((32, 4, 2))]
    changes += [("element_stride", i, v) for i, v in enumerate((1, 2, 1))]
    for field, ordinal, value in changes:
        assert replace(made, field, ordinal, value), field
    different = np.flatnonzero(made.words != wanted.words)
    assert len(different) == 1 and made.words[different[0]] == len(changes)  # the version
    assert check(made) is None


def test_replace_refuses_what_no_field_holds():
    _, _, made = encode()
    before = made.words.copy()
    bad = [("rank", 0, 5), ("elemtype", 0, 16), ("fill", 0, 2), ("interleave", 0, 3)]
    bad += [("swizzle_mode", 0, 4), ("swizzle_atomicity", 0, 4), ("box_dim", 0, 257)]
    bad += [("box_dim", 5, 1), ("global_stride", 4, 16), ("element_stride", 0, 9)]
    for field, ordinal, value in bad:
        assert not replace(made, field, ordinal, value), field
    assert (made.words == before).all()
    assert replace(made, "rank", 0, 3)
    assert check(made) == "elementStrides[2] = 0, expected 1 to 8"
    assert replace(made, "address", 0, 8) and replace(made, "rank", 0, 1)
    assert check(made).startswith("globalAddress = 0x8")


# ---------------------------------------------------------------------------------------------
# Boxes
# ---------------------------------------------------------------------------------------------


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
        for i in range(piece.bytes):
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
    size = BITS[TYPES.index(dtype)] // 8
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


@pytest.mark.parametrize("dtype", TYPES[:14])
def test_elements_have_their_types_size(dtype):
    bits = BITS[TYPES.index(dtype)]
    box = 64 * 8 // bits  # 64 bytes a row
    _, why, made = encode(dtype=dtype, box=(box, 2), swizzle="none", address=0x1000)
    assert why is None
    got = pieces(made, (box, 1))
    assert [p.globl for p in got[:4]] == [0x1000 + 512 + 64 + 16 * i for i in range(4)]
    assert len(got) == 8 and {p.bytes for p in got} == {16}
    last = pieces(made, (256 - 128 // bits, 0))  # the row's last 16 bytes, then nothing
    assert [p.inside for p in last[:4]] == [0xFFFF, 0, 0, 0]


def test_packed_types():
    _, _, made = encode(**U4 | {"address": 0x1000, "strides": (128,)})
    got = pieces(made, (128, 3))
    assert len(got) == 64 and (got[0].bytes, got[0].globl) == (16, 0x1000 + 3 * 128 + 64)
    assert [p.inside for p in got[:8]] == [0xFFFF] * 4 + [0] * 4
    _, _, made = encode(**PAD | {"address": 0x1000})
    got = pieces(made, (128, 3))
    assert (got[1].bytes, got[1].globl, got[1].shared) == (8, 0x1000 + 3 * 128 + 64 + 8, 16)
    assert got[1].inside == 0xFF and len(got) == 64
    _, _, made = encode(**PAD | {"dtype": "u6pad", "strides": (192,), "address": 0x1000})
    got = pieces(made, (0, 1))
    assert (got[1].bytes, got[1].globl, got[1].shared) == (12, 0x1000 + 192 + 12, 16)


def test_filling():
    fill = num.function("num_box_fill", ctypes.c_uint64, ctypes.c_void_p)
    assert fill(encode()[2].at) == 0
    assert fill(encode(fill=1)[2].at) == 0x7FFF7FFF7FFF7FFF
    assert fill(encode(fill=1, dtype="f32", box=(32, 8))[2].at) == 0x7FFFFFFF7FFFFFFF
