"""torch tensors without the DLPack exchange API are read by address, never through a capsule."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exporters import EXPECTED, OPERANDS, K, M, same
from old_torch import old, refuse

import nvfp4kern as nk


@pytest.fixture(autouse=True)
def no_capsules(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__dlpack__", refuse)


def test_operators_allocate_and_write():
    operands = [old(t) for t in OPERANDS]
    new = nk.gemm(*operands)
    assert isinstance(new, torch.Tensor) and same(new, EXPECTED)
    out = old(torch.zeros_like(EXPECTED))
    assert nk.gemm(*operands, out=out) is out and same(out, EXPECTED)
    assert same(nk.gemm(*operands, alpha=old(torch.ones(1))), EXPECTED)


def test_strides_and_offsets_travel():
    wide = [torch.cat([t, t], dim=1)[:, t.shape[1] :] for t in OPERANDS]
    assert all(not t.is_contiguous() and t.storage_offset() for t in wide)
    assert same(nk.gemm(*map(old, wide)), EXPECTED)


def test_empty_tensors():
    a, b, sfa, sfb = OPERANDS
    assert nk.gemm(old(a[:0]), old(b), old(sfa[:0]), old(sfb)).shape == (0, b.shape[0])


def test_every_dtype():
    names = "float16 bfloat16 float32 int32 uint8 float8_e4m3fn float4_e2m1fn_x2"
    for name in names.split():
        tensor = old(torch.zeros(1, 1, dtype=torch.uint8 if "x2" in name else getattr(torch, name)))
        tensor = tensor.view(getattr(torch, name))
        if name in ("uint8", "float8_e4m3fn"):
            assert nk.to_blocked(tensor).shape == (128, 4)
        else:
            with pytest.raises(TypeError, match=f"^scales: dtype {name}, expected"):
                nk.to_blocked(tensor)


class NoMemory(torch.Tensor):
    """As sparse tensors and tensor wrappers are."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self):
        raise RuntimeError("no storage\nfrom C++")


BAD = {
    "dtype": (lambda t: t.long(), TypeError, "dtype int64, expected uint8 or float4_e2m1fn_x2 or "),
    "the first of other dtypes": (lambda t: t.char(), TypeError, "dtype int8, expected uint8 or "),
    "other dtype": (lambda t: t.view(torch.bits8), TypeError, "dtype bits8, expected one that an "),
    "shape": (lambda t: t[:, 1:], ValueError, ""),
    "dimensions": (lambda t: t.reshape(1, 1, 1, 1, 1, M, K // 2), ValueError, "7 dimensions"),
    "device": (lambda t: t.to("meta"), nk.BackendError, "on meta, expected CPU or CUDA"),
    "no memory": (lambda t: t.as_subclass(NoMemory), BufferError, "cannot be exported: no storage"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tensors_are_named(case):
    change, error, text = BAD[case]
    a, b, sfa, sfb = OPERANDS
    with pytest.raises(error, match=f"^a: .*{text}"):
        nk.gemm(old(change(a)), b, sfa, sfb)


class OnGpu(torch.Tensor):
    """It says so; nobody reads it."""

    __dlpack_c_exchange_api__ = None
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: SimpleNamespace(type="cuda", index=3))


def test_a_device_is_read_by_name(monkeypatch):
    a, *others = OPERANDS
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    with pytest.raises(ValueError, match=r"^sfa: device cpu, expected cuda:3 \(the device of a\)$"):
        nk.gemm(
            a.as_subclass(OnGpu),
            others[0].as_subclass(OnGpu),
            *others[1:],
            out=torch.zeros_like(EXPECTED),
        )


@pytest.mark.parametrize("base", [torch.Tensor, old(OPERANDS[0]).__class__])
def test_a_subclass_with_an_export_of_its_own_is_read_by_it(base):
    asked = []

    class Own(base):
        def __dlpack__(self, **kwargs):
            asked.append(self)
            return np.asarray(self.as_subclass(torch.Tensor)).__dlpack__()

        def __dlpack_device__(self):
            return 1, 0

    operands = [t.as_subclass(Own) for t in OPERANDS]
    assert same(nk.gemm(*operands, out=torch.zeros_like(EXPECTED)), EXPECTED)
    assert len(asked) == len(operands)
