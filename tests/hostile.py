"""What tests/fuzz.py gives operators in place of good arguments."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from views import DTYPES, FORMS, Tuple, views_in


class Raises:
    """Whatever is asked of it."""

    def __init__(self, error):
        self.error = error

    def fail(self, *_, **__):
        raise self.error("as it was told")

    __dlpack__ = __dlpack_device__ = __index__ = __float__ = __str__ = __len__ = __bool__ = fail
    __getitem__ = __iter__ = __array__ = __int__ = fail

    def __repr__(self):
        return f"Raises({self.error.__name__})"


class Exports:
    """What it is given, as a capsule and as a device."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


ITSELF = []
ITSELF.append(ITSELF)
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    4,
    7,
    15,
    16,
    17,
    128,
    2**31 - 1,
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
]
WORDS = ["linear", "blocked", "amax", "token", "silu", "gelu", "sigmoid", "softmax_topk", "logits",
         "float16", "bfloat16", "float32", "uint8", "float4_e2m1fn_x2", "", "LINEAR", "x" * 5000,
         "\0", "\udc80", "é{}%s%n"]  # fmt: skip
OBJECTS = [
    None, True, False, *NUMBERS, 2**70, -(2**70), 10**400, 0.0, -0.0, 1.5, -1.0, math.nan, math.inf,
    -math.inf, 1e39, 1e-60, 5e-324, 1j, *WORDS, b"linear", bytearray(16), [], (), [[]], [[1], [2]],
    ITSELF, {}, {"a": 1}, object(), object, int, range(3), iter([]), Ellipsis, NotImplemented, max,
    ("linear", "blocked"), ["blocked", "linear"], ("linear", 1), ("linear",) * 3, np.float32(2),
    np.float64(math.nan), np.int64(-1), np.bool_(True), np.array(3), np.array(2, np.float32),
    np.zeros(0, np.float32), np.zeros((0, 16), np.float16), np.zeros((1,) * 9), np.array(["x"]),
    np.array([None]), np.zeros(2, ">f4"), np.zeros(3, "u1,f4"), torch.tensor(1.5), torch.zeros(0),
    torch.ones(1), torch.ones(2), torch.zeros(0, 32, dtype=torch.uint8), torch.float16, np.float32,
    torch.zeros(3, device="meta"), torch.nn.Parameter(torch.ones(3)), np.dtype("f2"),
    memoryview(b"x"),
    *map(Raises, (TypeError, ValueError, BufferError, RuntimeError, AttributeError, OSError)),
    *map(Exports, (None, 3, "capsule", object(), ())), Exports(None, None), Exports(None, (2, 0)),
    Exports(None, (1,)), Exports(None, (2**70, 0)),
]  # fmt: skip
OPTIONS = (
    "alpha alpha1 alpha2 bias scale_layout out out_dtype activation offsets score correction_bias "
    "per_expert_scale n_group topk_group renormalize sfa up scaling_factor dense permutation "
    "global_scale data_dtype beta a rows rows_per_token expected_rows row_of ids residual logits "
    "expert_map num_local_experts return_logits return_row_of quantized smallest_scale recipe"
).split()
ENVIRONMENT = {
    "BACKEND": ["cpu", "sm80", "sm90", "abacus", "x" * 64],
    "CPU": ["scalar", "avx2", "neon-mul", "avx512-vnni", "x"],
    "NUM_THREADS": ["1", "2", "0", "-1", "9" * 30, "many", "3 "],
    "BATCH_INVARIANT": ["1", "no", "maybe"],
    "TILE": ["sm80/gemm:t8", "sm80/gemm:none", ":", ",,", "sm80/gemm:t64," * 40, "%n"],
    "PDL": ["weights", "0", "2"],
    "PTX_DIR": ["/nowhere", "x" * 5000],
    "SM_LIMIT": ["1", "-1", "x"],
    "SMEM_LIMIT": ["0", "9" * 30],
    "ROW_LIMIT": ["1", "0", "x"],
    "ASSUMED_GPU": ["90:132", "0:0:0:0", "9" * 30],
    "LIBCUDA": ["/nowhere", ""],
}
LIES = [{"data": None}, {"strides": None}] + [{"ndim": n} for n in (-1, 0, 7, 2**31 - 1)]
LIES += [
    {what: n} for what in ("major", "flags", "device_type", "device_id") for n in (0, 2, 4, -1)
]
VALUES = [b"\0", b"\xff", b"\x7f\x80", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0", b"\7\0\0\0"]


@dataclass
class Call:
    """What a spoil changes."""

    args: dict
    extra: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)

    def views(self):
        return [*views_in([*self.args.values(), *self.extra])]


# --- Spoils: (rng, call, one view of the call) ---


def dtype(rng, call, v):
    v.dtype = rng.choice([*DTYPES])


def extent(rng, call, v):
    d = rng.randrange(len(v.shape)) if v.shape else 0
    v.shape[d : d + 1] = [rng.choice([0, 1, 2, 16, -1, *(v.shape[d : d + 1] * 3), *NUMBERS])]
    v.shape[d : d + 1] = [v.shape[d] + rng.choice([0, 0, 1, -1])]
    v.strides += [1] * (len(v.shape) - len(v.strides))


def resized(rng, call, v):
    """One extent of all tensors: often a good call of another shape."""
    old = rng.choice([n for n in v.shape if n > 0] or [1])
    new = rng.choice([0, 1, old // 2, max(old - 1, 0), rng.randint(0, old)])
    for view in call.views():
        view.shape = [new if n == old else n for n in view.shape]


def rank(rng, call, v):
    d = rng.randint(0, len(v.shape))
    if rng.random() < 0.5:
        del v.shape[d : d + 1], v.strides[d : d + 1]
    else:
        count = rng.choice([1, 1, 2, 5, 40])
        v.shape[d:d] = [rng.choice([1, 1, 2, 0])] * count
        v.strides[d:d] = [rng.choice([0, 1, 64])] * count


def stride(rng, call, v):
    if v.shape:
        d = rng.randrange(len(v.shape))
        v.strides[d] = rng.choice([0, 1, -1, 2, v.strides[d] + 1, v.strides[d] * 2, *NUMBERS])


def reversed_rows(rng, call, v):
    if v.shape:
        d = rng.randrange(len(v.shape))
        v.offset += (v.shape[d] - 1) * v.strides[d] * v.bits() // 8
        v.strides[d] *= -1


def transposed(rng, call, v):
    order = rng.sample(range(len(v.shape)), len(v.shape))
    v.shape, v.strides = [v.shape[d] for d in order], [v.strides[d] for d in order]


def offset(rng, call, v):
    v.offset = rng.choice([v.offset + 1, v.offset - 1, v.offset + 2, rng.randrange(v.memory.size),
                           2**63 - 1, -1])  # fmt: skip


def overlap(rng, call, v):
    other = rng.choice(call.views())
    v.memory, v.offset = other.memory, other.offset + rng.choice([0, 0, -4, 4, 32])


def form(rng, call, v):
    v.form = rng.choice([*FORMS, "numpy", "numpy", "read-only numpy", "by hand", "by hand"])


def lie(rng, call, v):
    v.form = "by hand"
    v.fields = rng.choice(LIES)


def values(rng, call, v):
    pattern = rng.choice([*VALUES, rng.randbytes(7), rng.randbytes(v.memory.size)])
    v.memory[:] = np.resize(np.frombuffer(pattern, np.uint8), v.memory.size)


def item(rng, call, v):
    lists = [value for value in call.args.values() if type(value) in (list, Tuple) and value]
    for one in lists[:1]:
        one[rng.randrange(len(one))] = rng.choice(OBJECTS)


def argument(rng, call, v):
    call.args[rng.choice([*call.args])] = rng.choice(OBJECTS)


def option(rng, call, v):
    call.args[rng.choice(OPTIONS)] = rng.choice([*OBJECTS, *WORDS, *call.views()])


def listed(rng, call, v):
    name = rng.choice([*call.args])
    value = call.args[name]
    items = list(value) if isinstance(value, list) else [value]
    change = rng.choice([lambda x: x[1:], lambda x: x + x[:1], lambda x: [x], lambda x: x[::-1]])
    call.args[name] = rng.choice([list, Tuple])(change(items))


def signature(rng, call, v):
    if rng.random() < 0.5:
        del call.args[rng.choice([*call.args])]
    else:
        call.extra = [rng.choice([*OBJECTS, v])] * rng.choice([1, 2, 30])


def environment(rng, call, v):
    name = rng.choice([*ENVIRONMENT])
    call.environment["NVFP4KERN_" + name] = rng.choice(ENVIRONMENT[name])


SPOILS = (dtype, extent, resized, resized, rank, stride, reversed_rows, transposed, offset, overlap,
          form, form, lie, values, values, item, argument, option, option, listed, signature,
          environment)  # fmt: skip
