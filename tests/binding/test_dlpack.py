"""DLPack in every form: exchange API, capsules new and old, dtypes, strides, what is refused."""

import ctypes
import gc
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from capsules import Capsule
from exporters import (
    EXPECTED,
    FP4,
    FP4X2,
    OLDER,
    OPERANDS,
    U8,
    Exporter,
    K,
    Legacy,
    M,
    N,
    Versioned,
    capsule_of,
    managed,
    new_capsule,
    old_capsule,
    same,
    with_api,
)

import nvfp4kern as nk

FORMS = [Versioned, Legacy, old_capsule, new_capsule, torch.Tensor.numpy]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_every_form_of_dlpack(form):
    out = torch.zeros_like(EXPECTED)
    assert nk.gemm(*map(form, OPERANDS), out=out) is out
    assert same(out, EXPECTED)


@pytest.mark.parametrize("form", [Legacy, old_capsule])
def test_other_unversioned_exporters_are_no_outputs(form):
    out = torch.zeros_like(EXPECTED)
    with pytest.raises(ValueError, match="^out: .*read-only"):
        nk.gemm(*OPERANDS, out=form(out))
    assert not out.any()


def test_capsules_are_borrowed():
    capsules = [new_capsule(t) for t in OPERANDS]
    for _ in range(2):
        assert same(nk.gemm(*capsules, out=torch.zeros_like(EXPECTED)), EXPECTED)
    torch.from_dlpack(capsules[0])
    with pytest.raises(BufferError, match="^a: .*consumed"):
        nk.gemm(*capsules, out=torch.zeros_like(EXPECTED))


def test_strides_travel():
    wide = [torch.cat([t, t], dim=1)[:, : t.shape[1]] for t in OPERANDS]
    assert not any(t.is_contiguous() for t in wide)
    assert same(nk.gemm(*wide), EXPECTED)
    assert same(nk.gemm(*(t.numpy() for t in wide)), EXPECTED)


@pytest.mark.parametrize("dtype", [U8, FP4, FP4X2])
def test_fp4_dtypes(dtype):
    a, b, sfa, sfb = OPERANDS
    shape = (M, K) if dtype == FP4 else (M, K // 2)
    got = nk.gemm(capsule_of(a, dtype, shape), b, sfa, sfb, out=torch.zeros_like(EXPECTED))
    assert same(got, EXPECTED)


def test_a_row_of_fp4_elements():
    a, b, sfa, sfb = OPERANDS
    row = capsule_of(a[0], FP4, (K,))
    assert same(nk.gemm(row, b, sfa[0], sfb, out=torch.zeros_like(EXPECTED[0])), EXPECTED[0])


def test_fp4_elements_with_strides():
    a, b, sfa, sfb = OPERANDS
    wide = torch.cat([a, a], dim=1)
    strides = (ctypes.c_int64 * 2)(2 * K, 1)
    capsule = capsule_of(wide, FP4, (M, K), strides=strides)
    assert same(nk.gemm(capsule, b, sfa, sfb, out=torch.zeros_like(EXPECTED)), EXPECTED)
    for bad in ((2 * K + 1, 1), (2, M)):
        capsule = capsule_of(wide, FP4, (M, K), strides=(ctypes.c_int64 * 2)(*bad))
        with pytest.raises(ValueError, match="^a: fp4 elements that are not packed"):
            nk.gemm(capsule, b, sfa, sfb)
    with pytest.raises(ValueError, match="^a: an odd number of fp4 elements"):
        nk.gemm(capsule_of(wide, FP4, (M, 31)), b, sfa, sfb)
    with pytest.raises(ValueError, match="^a: an odd number of fp4 elements"):
        nk.gemm(capsule_of(wide, FP4, ()), b, sfa, sfb)


def test_byte_offset():
    a, b, sfa, sfb = OPERANDS
    shifted = torch.cat([torch.zeros(1, K // 2, dtype=torch.uint8), a])
    capsule = capsule_of(shifted, U8, (M, K // 2), byte_offset=K // 2)
    assert same(nk.gemm(capsule, b, sfa, sfb, out=torch.zeros_like(EXPECTED)), EXPECTED)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ((2, 64, 1), "float64"),
        ((0, 8, 1), "int8"),
        ((5, 64, 1), "complex64"),
        ((12, 8, 1), "float8_e5m2"),
        (
            (2, 16, 2),
            "of DLPack code 2, 16 bits, 2 lanes",
        ),
    ],
)
def test_unknown_dtypes(dtype, text):
    a, b, sfa, sfb = OPERANDS
    with pytest.raises(TypeError, match=f"^a: dtype {text}, expected (uint8|one) "):
        nk.gemm(capsule_of(a, dtype), b, sfa, sfb)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"major": 2}, BufferError, "DLPack version 2.3, expected 1.x"),
        ({"flags": 4}, BufferError, "one fp4 element per byte"),
        ({"device_type": 10}, nk.BackendError, "DLPack device type 10, expected CPU or CUDA"),
        ({"ndim": 7}, ValueError, "7 dimensions, expected at most 6"),
        ({"ndim": -1}, ValueError, "-1 dimensions"),
        ({"data": None}, ValueError, "without memory"),
    ],
)
def test_bad_capsules(fields, error, text):
    a, b, sfa, sfb = OPERANDS
    with pytest.raises(error, match=f"^a: .*{re.escape(text)}"):
        nk.gemm(capsule_of(a, U8, **fields), b, sfa, sfb)


def test_other_capsules():
    class Other(Capsule):
        NAME = b"arrow_array"

    for capsule in (Other().__dlpack__(), Other()):
        with pytest.raises(TypeError, match="^a: .*<capsule .*arrow_array.*expected a DLPack"):
            nk.gemm(capsule, *OPERANDS[1:])


def test_what_a_producer_raises_is_named_and_kept():
    broken = Exporter(RuntimeError("no luck\nand a backtrace"))
    with pytest.raises(BufferError, match=r"^b: cannot be exported: no luck\Z") as caught:
        nk.gemm(OPERANDS[0], broken, *OPERANDS[2:])
    assert isinstance(caught.value.__cause__, RuntimeError)

    class Interrupted:
        def __dlpack__(self, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nk.gemm(OPERANDS[0], Interrupted(), *OPERANDS[2:])


def test_tensors_that_need_grad_are_inputs_like_others():
    x = torch.nn.Parameter(torch.ones(1, 16))
    assert not nk.dequantize(nk.quantize(x)).requires_grad


def test_more_types_than_the_cache_holds():
    kinds = [type(f"Kind{i}", (Versioned,), {}) for i in range(30)]
    kinds += [type(f"Sub{i}", (torch.Tensor,), {}) for i in range(3)]
    for kind in kinds * 2:
        if issubclass(kind, torch.Tensor):
            args = [t.as_subclass(kind) for t in OPERANDS]
        else:
            args = [kind(t) for t in OPERANDS]
        assert same(nk.gemm(*args, out=torch.zeros_like(EXPECTED)), EXPECTED)
    seen = {id(thing) for thing in gc.get_referents(nk._C)}
    assert {id(kind) for kind in kinds[-7:]} <= seen and id(kinds[0]) not in seen


# --- The exchange API ---


FROM_API = pytest.mark.parametrize("form", [lambda t: t, managed], ids=["lent", "managed"])


@FROM_API
def test_the_exchange_api(form):
    assert same(nk.gemm(*map(form, OPERANDS)), EXPECTED)
    out = torch.zeros_like(EXPECTED)
    nk.gemm(*map(form, OPERANDS), out=form(out))
    assert same(out, EXPECTED)


@FROM_API
def test_what_the_exchange_api_refuses(form):
    a, b, sfa, sfb = OPERANDS
    out = torch.zeros_like(EXPECTED)
    with pytest.raises(BufferError, match="^a: cannot be exported: "):
        nk.gemm(form(a.to("meta")), b, sfa, sfb, out=out)
    with pytest.raises(ValueError, match="^a: 7 dimensions, expected at most 6"):
        nk.gemm(form(a.reshape(1, 1, 1, 1, 1, M, K // 2)), b, sfa, sfb, out=out)
    assert not out.any()


GIVES_NOTHING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(lambda *_: 0)
FAILS = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(lambda *_: -1)
ALLOCATES_NOTHING = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: 0)
CONVERTS_NOTHING = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)(lambda *_: 0)
HAS_NO_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 2, ctypes.c_void_p)(lambda *_: -1)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def LENDS_OF_A_GPU(_, tensor):
    dl = (ctypes.c_int32 * 12).from_address(tensor)
    dl[0], dl[2], dl[5] = 4096, 2, 0x00010801  # an address, kDLCUDA, one byte
    return 0


@pytest.mark.parametrize(
    "changed, error, text",
    [
        (
            {"LEND": None, "FROM_OBJECT": GIVES_NOTHING},
            BufferError,
            "a: cannot be exported: .*none",
        ),
        ({"LEND": None, "FROM_OBJECT": FAILS}, BufferError, "a: cannot be exported: .*without an"),
        ({"LEND": GIVES_NOTHING}, ValueError, "a: a tensor without memory"),
        (
            {"LEND": LENDS_OF_A_GPU, "STREAM": HAS_NO_STREAM},
            BufferError,
            "a: cannot be exported: .*without an",
        ),
        ({"LEND": FAILS}, BufferError, "a: cannot be exported: .*without an exception"),
        ({"ALLOCATE": ALLOCATES_NOTHING}, RuntimeError, "out: cannot be allocated, no reason"),
        ({"TO_OBJECT": CONVERTS_NOTHING}, RuntimeError, "out: cannot be allocated, no reason"),
    ],
)
def test_an_exchange_api_that_gives_nothing(changed, error, text):
    a, *rest = OPERANDS
    with pytest.raises(error, match=text):
        nk.gemm(a.as_subclass(with_api(**changed)), *rest)


@pytest.mark.parametrize("member", ["ALLOCATE", "FROM_OBJECT", "TO_OBJECT", "STREAM"])
def test_an_exchange_api_that_lacks_a_function(member):
    """It is none: such tensors are read by address, or by their __dlpack__."""
    tensors = [t.as_subclass(with_api(**{member: None})) for t in OPERANDS]
    assert same(nk.gemm(*tensors, out=torch.zeros_like(EXPECTED)), EXPECTED)


def test_dimensions_without_a_shape():
    a, *rest = OPERANDS
    capsule = capsule_of(a)
    capsule.shape = None
    with pytest.raises(BufferError, match="^a: 2 dimensions without a shape"):
        nk.gemm(capsule, *rest, out=torch.zeros_like(EXPECTED))


def test_exchange_apis_that_go_round():
    """None of them is of a version that is known here, and the older one leads back."""
    kind, older = with_api(VERSION=ctypes.c_void_p(9)), with_api(VERSION=ctypes.c_void_p(8))
    kind.table[OLDER], older.table[OLDER] = map(ctypes.addressof, (older.table, kind.table))
    tensors = [t.as_subclass(kind) for t in OPERANDS]
    assert same(nk.gemm(*tensors, out=torch.zeros_like(EXPECTED)), EXPECTED)


def test_an_older_exchange_api():
    kind, known = with_api(VERSION=ctypes.c_void_p(2)), with_api(LEND=GIVES_NOTHING)
    kind.table[OLDER] = ctypes.addressof(known.table)
    with pytest.raises(ValueError, match="^a: a tensor without memory"):
        nk.gemm(OPERANDS[0].as_subclass(kind), *OPERANDS[1:])


def test_what_cannot_be_allocated():
    """2^49 bytes, more than a process can address."""
    a, b, sfa, sfb = (t[:1].expand(2**24, -1) for t in OPERANDS)
    with pytest.raises(MemoryError, match="^out: cannot be allocated, "):
        nk.gemm(a, b, sfa, sfb)


# --- What Python code says of a type or of a tensor ---


class Capricious(type):
    """Of types that cannot always be asked for their __dlpack__."""

    answers = 0

    @property
    def __dlpack__(cls):
        cls.answers -= 1
        if cls.answers < 0:
            raise RuntimeError("ask me later")
        return np.ndarray.__dlpack__


@pytest.mark.parametrize("name", ("a", "alpha", "out"))
def test_a_type_that_cannot_be_asked(name):
    kind = Capricious("Kind", (np.ndarray,), {})
    a, *others = (t.numpy() for t in OPERANDS)
    out = np.zeros((M, N), np.float16)
    args = {"a": a, "alpha": np.ones(1, np.float32), "out": out}
    args[name] = args[name].view(kind)
    with pytest.raises(RuntimeError, match="^ask me later$"):
        nk.gemm(args.pop("a"), *others, **args)
    assert not out.any()


def test_a_type_that_cannot_be_asked_again():
    """Other types followed, too many to remember it, and now its library is to make an output."""
    a, b, sfa, sfb = OPERANDS
    kind = Capricious("Kind", (np.ndarray,), {"answers": 1})
    others = [type(f"Type{i}", (np.ndarray,), {}) for i in range(30)]
    first = [a.numpy().view(kind), *(a.numpy().view(other) for other in others)]
    with pytest.raises(RuntimeError, match="^ask me later$"):
        nk.grouped_gemm(first, *([t.numpy()] * len(first) for t in (b, sfa, sfb)))


@pytest.mark.parametrize("member", ("shape", "stride"))
def test_a_tensor_whose_sizes_are_no_numbers(member):
    class Strange(torch.Tensor):
        __dlpack_c_exchange_api__ = None
        __torch_function__ = torch._C._disabled_torch_function_impl
        shape = property(lambda self: ("4", 16)) if member == "shape" else torch.Tensor.shape

        def stride(self):
            return ("16", 1) if member == "stride" else super().stride()

    a, b, sfa, sfb = OPERANDS
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        nk.gemm(a.as_subclass(Strange), b, sfa, sfb)


def test_an_unknown_stream(monkeypatch):
    """A tensor that says it is on a GPU; its framework is asked for the stream."""

    def no_stream(device):
        raise RuntimeError("no stream")

    class Own(torch.Tensor):
        __dlpack_c_exchange_api__ = None

        def __dlpack__(self, **options):
            raise AssertionError("asked without a stream")

        def __dlpack_device__(self):
            return 2, 0

    a, b, sfa, sfb = OPERANDS
    monkeypatch.setattr(torch.cuda, "current_stream", no_stream)
    with pytest.raises(BufferError, match="^a: cannot be exported: no stream$"):
        nk.gemm(a.as_subclass(Own), b, sfa, sfb)


@pytest.mark.parametrize("address, number", [(0, 1), (0x1234, 0x1234)])
def test_a_stream_is_handed_on(address, number, monkeypatch):
    """DLPack writes the legacy default stream, whose address is 0, as 1."""
    streams = []

    class Own(torch.Tensor):
        __dlpack_c_exchange_api__ = None

        def __dlpack__(self, *, stream, **options):
            streams.append(stream)
            return self.as_subclass(torch.Tensor).__dlpack__()

        def __dlpack_device__(self):
            return 2, 0

    stream = SimpleNamespace(cuda_stream=address)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    nk.explain("gemm", *(t.as_subclass(Own) for t in OPERANDS))
    assert streams == [number] * 4


def test_a_new_array_that_is_none(monkeypatch):
    monkeypatch.setattr(np, "empty", lambda *_: 5)
    with pytest.raises(TypeError, match="^out: int, expected a tensor"):
        nk.gemm(*(t.numpy() for t in OPERANDS))
