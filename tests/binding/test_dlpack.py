"""DLPack in every form: exchange API, capsules new and old, dtypes, strides, what is refused."""

import ctypes
import re

import pytest
import torch
from exporters import (
    EXPECTED,
    FP4,
    FP4X2,
    OPERANDS,
    U8,
    Capsule,
    K,
    Legacy,
    M,
    N,
    Versioned,
    capsule_of,
    new_capsule,
    old_capsule,
    same,
)

import nvfp4kern as nk

FORMS = [Versioned, Legacy, old_capsule, new_capsule, torch.Tensor.numpy]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_every_form_of_dlpack(form):
    out = torch.zeros_like(EXPECTED)
    assert nk.gemm(*map(form, OPERANDS), out=out) is out
    assert same(out, EXPECTED)


def test_other_unversioned_exporters_are_no_outputs():
    out = Legacy(torch.empty(M, N, dtype=torch.float16))
    with pytest.raises(ValueError, match="out: read-only"):
        nk.gemm(*OPERANDS, out=out)


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
    class Broken:
        def __dlpack__(self, **kwargs):
            raise RuntimeError("no luck\nand a backtrace")

    with pytest.raises(BufferError, match="^b: cannot be exported: no luck$") as caught:
        nk.gemm(OPERANDS[0], Broken(), *OPERANDS[2:])
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
