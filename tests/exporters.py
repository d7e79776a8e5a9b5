"""Ways to hand a tensor over by DLPack, and one gemm to hand tensors to."""

import ctypes
import functools

import numpy as np
import torch
from capsules import Capsule

import nvfp4kern as nk

M, N, K = 3, 5, 32


def operands():
    """uint8 and torch: a, b, sfa, sfb."""
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 256, (M + N, K // 2), np.uint8)
    scales = rng.integers(0x30, 0x40, (M + N, K // 16), np.uint8)
    return tuple(torch.from_numpy(t) for t in (codes[:M], codes[M:], scales[:M], scales[M:]))


OPERANDS = operands()
EXPECTED = nk.gemm(*OPERANDS)


def same(x, y):
    return np.array_equal(np.asarray(x), np.asarray(y))


class Versioned:
    """Only the Python protocol, as of DLPack 1.0."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is None and max_version >= (1, 3)
        return self.tensor.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Legacy(Versioned):
    """And before 1.0."""

    def __dlpack__(self, *, stream=None):
        return self.tensor.__dlpack__()


class Exporter:
    """Its methods raise or return what they are given."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **options):
        return self.result(self.capsule)

    def __dlpack_device__(self):
        return self.result(self.device)

    @staticmethod
    def result(value):
        if isinstance(value, Exception):
            raise value
        return value


def old_capsule(tensor):
    return tensor.__dlpack__()


def new_capsule(tensor):
    return tensor.__dlpack__(max_version=(1, 3))


U8, FP4, FP4X2 = (1, 8, 1), (17, 4, 1), (17, 4, 2)


def capsule_of(tensor, dtype=U8, shape=None, **fields):
    return Capsule.of(
        tensor.numpy(), dtype, tuple(tensor.shape) if shape is None else shape, **fields
    )


VERSION, OLDER, ALLOCATE, FROM_OBJECT, TO_OBJECT, LEND, STREAM = range(7)
"""What the table of an exchange API holds."""


def with_api(**changed):
    """A type of tensors whose exchange API is torch's, but for some members of its table."""
    get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    name = b"dlpack_exchange_api"
    torch_s = get(torch.Tensor.__dlpack_c_exchange_api__, name)
    table = (ctypes.c_void_p * 7)(*(ctypes.c_void_p * 7).from_address(torch_s))
    for member, value in changed.items():
        table[globals()[member]] = ctypes.cast(value, ctypes.c_void_p).value if value else None
    members = {"__dlpack_c_exchange_api__": new(ctypes.addressof(table), name, None)}
    members["__torch_function__"] = torch._C._disabled_torch_function_impl
    return type("WithApi", (torch.Tensor,), members | {"table": table, "functions": changed})


@functools.cache
def without_borrowing():
    """A framework may leave out the function that lends a DLTensor. Then a managed tensor is asked
    for."""
    return with_api(LEND=None)


def managed(tensor):
    return tensor.as_subclass(without_borrowing())
