"""Tensors of DLPack made of an address: memory that somebody else has, or none."""

import ctypes
from collections.abc import Callable
from typing import Any

DTYPES = {
    "uint8": (1, 8),
    "int32": (0, 32),
    "float8_e4m3fn": (10, 8),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
}
"""DLPack's codes and bits."""

CPU, CUDA = 1, 2


class Array(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned, which lives as long as its capsules. Contiguous."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]
    stream = 0
    """Of CUDA, on which calls with this tensor run."""
    allocate: Callable[[str, tuple[int, ...]], Any] | None = None
    """Makes another tensor, where there is memory for some."""

    def __init__(
        self, address: int | None, dtype: str, shape: tuple[int, ...], device: tuple[int, int]
    ) -> None:
        super().__init__(major=1, minor=3, data=address, device_type=device[0])
        self.device_id, self.ndim, self.lanes = device[1], len(shape), 1
        self.code, self.bits = DTYPES[dtype]
        self.sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.shape = self.sizes

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.device_id

    def __dlpack__(self, **kwargs: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self), b"dltensor_versioned", None)
