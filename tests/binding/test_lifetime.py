"""Leaks: references, objects and memory over 10^5 calls, good ones and every kind of bad one."""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from capsules import Capsule
from exporters import Exporter, Legacy, Versioned, managed, new_capsule

import nvfp4kern as nk
from nvfp4kern.verify import data

torch = pytest.importorskip("torch")

CALLS = 100_000
WARM = 500
BLOCKS = 300  # Python objects that caches may gain; one leaked object per call would be CALLS
BYTES = 1 << 20  # of RSS; a leak of 16 bytes per call would be 1.6 MB
PAGE = os.sysconf("SC_PAGE_SIZE")

RNG = np.random.default_rng(0)
M, N, K = 2, 3, 32


class Refuses:
    """By a new exception each time: one that is kept would keep its tracebacks."""

    def __dlpack__(self, **kwargs):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return (1, 0)


@dataclass
class Operands:
    a: object
    b: object
    sfa: object
    sfb: object
    out: object


def operands(wrap):
    a, b = data.full_range(RNG, M, K), data.full_range(RNG, N, K)
    return Operands(
        *map(wrap, (a.codes, b.codes, a.scales, b.scales)), wrap(np.empty((M, N), np.float16))
    )


NP, TORCH, LEGACY = operands(np.ascontiguousarray), operands(torch.from_numpy), operands(Legacy)
VERSIONED = operands(lambda array: Versioned(torch.from_numpy(array)))
CAPSULES = operands(lambda array: new_capsule(torch.from_numpy(array)))
HALVES = torch.ones(M, K, dtype=torch.float16)
X32 = torch.ones(M, K)
ALPHA = torch.ones(N)
READ_ONLY = np.empty((M, N), np.float16)
READ_ONLY.flags.writeable = False
CONSUMED = np.ones((M, K // 2), np.uint8).__dlpack__()
OWNER = np.from_dlpack(type("Once", (), {
    "__dlpack__": lambda self, **kwargs: CONSUMED, "__dlpack_device__": lambda self: (1, 0),
})())  # fmt: skip
OFFSETS = torch.tensor([0, 1, 2], dtype=torch.int32)
EXPERTS = torch.from_numpy(data.full_range(RNG, 2, N, K).codes)
EXPERT_SCALES = torch.from_numpy(data.full_range(RNG, 2, N, K).scales)
ROUTER = torch.ones(4, K, dtype=torch.float16)
BLOCKED = nk.to_blocked(TORCH.sfa)
QUANTIZED = nk.NVFP4(TORCH.a, TORCH.sfa, 1.0)
GROUPS = data.competition("group_gemm", [(M, N, K, 1), (1, 2, 64, 1)]).data
GEMM_TUPLE = data.competition("gemm", (M, N, K, 1)).data
GEMV_TUPLE = data.competition("gemv", (M, K, 1)).data
DUAL_TUPLE = data.competition("dual_gemm", (M, N, K, 1)).data


def gemm(o, *changes, **kwargs):
    a, b, sfa, sfb = changes or (o.a, o.b, o.sfa, o.sfb)
    return nk.gemm(a, b, sfa, sfb, **kwargs)


def contiguous(offsets):
    return nk.grouped_gemm(TORCH.a, EXPERTS, TORCH.sfa, EXPERT_SCALES, offsets=offsets)


def competition(problem, tuple_):
    module = __import__(f"nvfp4kern.competition.nvfp4_{problem}", fromlist=["custom_kernel"])
    return partial(module.custom_kernel, tuple_)


t, n, le = TORCH, NP, LEGACY
GOOD = {
    "torch-out": partial(gemm, t, out=t.out),
    "torch-new": partial(gemm, t),
    "torch-managed": partial(gemm, t, managed(t.a), t.b, t.sfa, t.sfb),
    "torch-alpha-bias": partial(gemm, t, alpha=ALPHA, bias=ALPHA, out_dtype="float32"),
    "torch-w4a16": partial(gemm, t, HALVES, t.b, None, t.sfb, out_dtype=torch.bfloat16),
    "torch-blocked": partial(gemm, t, t.a, t.b, BLOCKED, t.sfb, scale_layout=("blocked", "linear")),
    "numpy-out": partial(gemm, n, out=n.out),
    "numpy-new": partial(gemm, n, out_dtype=np.float32),
    "legacy-in": partial(gemm, le, out=n.out),
    "versioned": partial(gemm, VERSIONED, out=VERSIONED.out),
    "capsules": partial(gemm, CAPSULES, out=CAPSULES.out),
    "gemv": partial(nk.gemv, t.b, t.a[:1], t.sfb, t.sfa[:1]),
    "dual": partial(nk.dual_gemm, t.a, t.b, t.b, t.sfa, t.sfb, t.sfb),
    "list": partial(nk.grouped_gemm, [t.a, t.a], [t.b, t.b], [t.sfa] * 2, [t.sfb] * 2),
    "list-numpy": partial(nk.grouped_gemm, [n.a], [n.b], [n.sfa], [n.sfb], out=[n.out]),
    "contiguous": partial(contiguous, OFFSETS),
    "route": partial(nk.route, HALVES, ROUTER, 2, permutation=True),
    "route-dense": partial(nk.route, HALVES, ROUTER, 2, dense=True),
    "quantize": partial(nk.quantize, X32, global_scale="amax", scale_layout="blocked"),
    "quantize-up": partial(nk.quantize, X32, up=X32),
    "quantize-numpy": partial(nk.quantize, np.ones((M, K), np.float32)),
    "dequantize": partial(nk.dequantize, QUANTIZED, out_dtype="bfloat16"),
    "from_blocked": partial(nk.from_blocked, BLOCKED, M, K // 16),
    "explain": partial(nk.explain, "gemm", t.a, t.b, t.sfa, t.sfb),
    "explain-list": partial(nk.explain, "grouped_gemm", [t.a], [t.b], [t.sfa], [t.sfb]),
    "backends": nk.backends,
    "drop-in-gemv": competition("gemv", GEMV_TUPLE),
    "drop-in-gemm": competition("gemm", GEMM_TUPLE),
    "drop-in-dual": competition("dual_gemm", DUAL_TUPLE),
    "drop-in-group": competition("group_gemm", GROUPS),
}  # fmt: skip

WRONG, UNREADABLE = (TypeError, ValueError), (TypeError, BufferError)
BAD = {
    "shape": (ValueError, partial(gemm, t, t.a, t.b, t.sfa[:1], t.sfb)),
    "shape-numpy": (ValueError, partial(gemm, n, n.a, n.b, n.sfa[:1], n.sfb)),
    "dtype": (TypeError, partial(gemm, t, X32, t.b, t.sfa, t.sfb)),
    "foreign-dtype": (TypeError, partial(gemm, t, t.a, t.b.long(), t.sfa, t.sfb)),
    "foreign-dtype-numpy": (TypeError, partial(gemm, n, n.a, n.b.astype(np.int64), n.sfa, n.sfb)),
    "none": (TypeError, partial(gemm, t, None, t.b, t.sfa, t.sfb)),
    "no-dlpack": (TypeError, partial(gemm, n, n.a, "b", n.sfa, n.sfb)),
    "refuses": (BufferError, partial(gemm, n, n.a, Refuses(), n.sfa, n.sfb)),
    "no-capsule": (UNREADABLE, partial(gemm, n, n.a, Exporter(42), n.sfa, n.sfb)),
    "consumed": (BufferError, partial(gemm, n, CONSUMED, n.b, n.sfa, n.sfb)),
    "refused-by-torch": (BufferError, partial(gemm, t, HALVES.to("meta"), t.b, None, t.sfb)),
    "read-only": (ValueError, partial(gemm, n, out=READ_ONLY)),
    "legacy-out": (ValueError, partial(gemm, n, out=le.out)),
    "out-shape": (ValueError, partial(gemm, t, out=t.out.T)),
    "out-and-dtype": (ValueError, partial(gemm, t, out=t.out, out_dtype="float32")),
    "out-capsule": (ValueError, partial(gemm, CAPSULES, out_dtype="x", out=CAPSULES.out)),
    "no-allocator": (TypeError, partial(gemm, le)),
    "bfloat16-numpy": (TypeError, partial(gemm, n, out_dtype="bfloat16")),
    "layout": (ValueError, partial(gemm, t, scale_layout="swizzled")),
    "layouts": (ValueError, partial(gemm, t, scale_layout=("linear", "blocked", "linear"))),
    "out-dtype": (ValueError, partial(gemm, t, out_dtype=torch.float64)),
    "alpha": (TypeError, partial(gemm, t, alpha="1")),
    "alpha-overflow": (ValueError, partial(gemm, t, alpha=10**400)),
    "keyword": (TypeError, partial(gemm, t, beta=1)),
    "too-few": (TypeError, partial(nk.gemm, t.a)),
    "no-scales": (ValueError, partial(nk.gemm, t.a, t.b)),
    "too-many": (TypeError, partial(nk.gemm, *[t.a] * 9)),
    "group-lengths": (ValueError, partial(nk.grouped_gemm, [t.a, t.a], [t.b], [t.sfa], [t.sfb])),
    "group-item": (TypeError, partial(nk.grouped_gemm, [t.a], [None], [t.sfa], [t.sfb])),
    "offsets": (ValueError, partial(contiguous, OFFSETS + 1)),
    "from_blocked": (TypeError, partial(nk.from_blocked, BLOCKED, M, "x")),
    "route-k": (ValueError, partial(nk.route, HALVES, ROUTER, 5)),
    "route-k-type": (TypeError, partial(nk.route, HALVES, ROUTER, 2.0)),
    "quantize-scale": (ValueError, partial(nk.quantize, X32, global_scale=-1.0)),
    "explain": (ValueError, partial(nk.explain, "gemx", t.a)),
    "drop-in-tuple": (WRONG, competition("gemm", GEMM_TUPLE[:3])),
    "drop-in-shape": (WRONG, competition("gemm", (GEMM_TUPLE[1], *GEMM_TUPLE[1:]))),
    "drop-in-group": (WRONG, competition("group_gemm", (*GROUPS[:2], GROUPS[2][:1], GROUPS[3]))),
}  # fmt: skip


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def objects_in(call):
    """Every object that the call is given, lists and tuples opened."""
    found, todo = {}, [*call.args, *call.keywords.values()] if isinstance(call, partial) else []
    while todo:
        thing = todo.pop()
        found[id(thing)] = thing
        if isinstance(thing, (list, tuple)):
            todo += thing
        elif isinstance(thing, Operands):
            todo += vars(thing).values()
        found[id(type(thing))] = type(thing)
    return list(found.values())


def references(things):
    return [sys.getrefcount(thing) for thing in things]


def leaks(run, call, calls):
    """What `calls` runs left behind; a cache grows once, a leak in all of three rounds."""
    things, found = objects_in(call), []
    run(WARM)
    for _ in range(3):
        before, blocks, rss = references(things), sys.getallocatedblocks(), resident()
        run(calls)
        moved = [now - then for now, then in zip(references(things), before, strict=True)]
        blocks, rss = sys.getallocatedblocks() - blocks, resident() - rss
        wrong = {repr(x)[:80]: m for x, m in zip(things, moved, strict=True) if abs(m) > 2}
        if not wrong and blocks <= BLOCKS and rss <= BYTES:
            return None
        found.append(f"references {wrong}, objects {blocks}, bytes {rss}")
    return found


# Where the ways of intake, of allocating or of failing differ; the others show a leak sooner.
THOROUGH = {"torch-out", "torch-new", "numpy-out", "numpy-new", "legacy-in", "drop-in-group"}
THOROUGH |= {"shape", "refuses", "consumed"}


def calls_for(name):
    if name == "refused-by-torch":  # it writes a C++ backtrace each time
        return 1000
    return CALLS if name in THOROUGH else CALLS // 10


@pytest.mark.parametrize("name", GOOD)
def test_good_calls_leak_nothing(name):
    call = GOOD[name]

    def run(times):
        for _ in range(times):
            call()

    assert leaks(run, call, calls_for(name)) is None


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_leak_nothing(name):
    error, call = BAD[name]

    def run(times):
        for _ in range(times):
            try:
                call()
            except error:
                continue
            pytest.fail("no error")

    assert leaks(run, call, calls_for(name)) is None


def test_the_check_sees_a_leak():
    """One reference per call, and one small object per call."""
    thing, kept, objects = object(), [], []

    def keeping(times):
        kept.extend([thing] * times)

    def growing(times):
        objects.extend(bytes(16) for _ in range(times))

    assert leaks(keeping, partial(keeping, thing), 1000) is not None
    assert leaks(growing, None, 1000) is not None


@pytest.mark.parametrize("wrap", [np.ascontiguousarray, torch.from_numpy])
def test_results_own_their_memory(wrap):
    """A result outlives its inputs, and frees its memory when it goes."""
    size = 64 << 20  # more than malloc ever keeps for later
    scales = wrap(np.full((size // 64, 64), 7, np.uint8))
    result = nk.to_blocked(scales)
    del scales
    assert (np.asarray(result) == 7).all()
    before = resident()
    del result
    assert resident() <= before - size * 0.9


def test_an_error_keeps_its_cause_and_no_argument():
    thing = Refuses()
    before = sys.getrefcount(thing)
    with pytest.raises(BufferError, match=r"^b: .*not today") as caught:
        gemm(NP, NP.a, thing, NP.sfa, NP.sfb)
    assert isinstance(caught.value.__cause__, BufferError)
    del caught
    assert sys.getrefcount(thing) == before


def test_a_loan_ends_outside_of_the_call_s_exception():
    """A capsule's destructor in Python runs, and the call's own exception stays."""
    ended = []
    destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda capsule: ended.append(str(capsule)))
    new = ctypes.pythonapi.PyCapsule_New

    class Lends(Capsule):
        def __dlpack__(self, **_):
            new.restype = ctypes.py_object
            new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return new(ctypes.addressof(self), self.NAME, ctypes.cast(destroy, ctypes.c_void_p))

    a = Lends.of(NP.a, (1, 8, 1), NP.a.shape)
    with pytest.raises(ValueError, match="^sfb: shape"):
        gemm(NP, a, NP.b, NP.sfa, NP.sfb[:1])
    assert len(ended) == 1
