"""Tensors as plain numbers that tests may change, and what they become in a call."""

import ctypes
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from capsules import Capsule
from exporters import Legacy, Versioned, new_capsule, old_capsule
from generators import Guarded

MOST_ELEMENTS = 2**16  # of a tensor in a call that computes, or that torch shall search for zeros

DTYPES = {
    torch.uint8: (1, 8, 1), torch.float4_e2m1fn_x2: (17, 4, 2), torch.float8_e4m3fn: (10, 8, 1),
    torch.float16: (2, 16, 1), torch.bfloat16: (4, 16, 1), torch.float32: (2, 32, 1),
    torch.int32: (0, 32, 1), torch.int64: (0, 64, 1), torch.float64: (2, 64, 1),
    torch.bool: (6, 8, 1), torch.complex64: (5, 64, 1), None: (17, 4, 1), "none": (99, 16, 2),
}  # fmt: skip
NUMPY = {
    torch.uint8: "u1", torch.float16: "f2", torch.float32: "f4", torch.int32: "i4",
    torch.int64: "i8", torch.float64: "f8", torch.bool: "?", None: ">f4", "none": "V4",
}  # fmt: skip


@dataclass
class View:
    """A tensor as plain numbers: strides count elements, the offset bytes of `memory`."""

    memory: np.ndarray = field(repr=False)
    dtype: object = None
    shape: list = None
    strides: list = None
    offset: int = 0
    form: str = "torch"
    fields: dict = field(default_factory=dict)

    @classmethod
    def of(cls, t):
        storage = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).numpy()
        offset = t.storage_offset() * t.element_size()
        return cls(storage, t.dtype, list(t.shape), list(t.stride()), offset)

    def bits(self):
        _, bits, lanes = DTYPES[self.dtype]
        return bits * lanes

    def ends(self):
        """The first and the last bit that its elements have, in exact numbers."""
        steps = [(n - 1) * s * self.bits() for n, s in zip(self.shape, self.strides, strict=True)]
        first = self.offset * 8 + sum(min(step, 0) for step in steps)
        return first, self.offset * 8 + sum(max(step, 0) for step in steps) + self.bits() - 1

    def may_be_read(self):
        """Whether it stays in its memory, or is one that every call has to refuse."""
        first, last = self.ends()
        if math.prod(self.shape) > MOST_ELEMENTS or self.fields:
            return False
        inside = 0 <= first and last < 8 * self.memory.size
        return inside or min(self.shape, default=1) <= 0

    def bytes(self):
        """Numbers of the bytes of memory that its elements have."""
        at = np.array([self.offset * 8])
        for n, stride in zip(self.shape, self.strides, strict=True):
            at = (at[:, None] + np.arange(n) * stride * self.bits()).ravel()
        return np.unique((at[:, None] + np.arange(self.bits())).ravel() // 8)

    def made(self):
        """In its form, or as a capsule made by hand where that form cannot say this."""
        with suppress(TypeError, ValueError, RuntimeError, KeyError, BufferError, OverflowError):
            if "numpy" in self.form:
                strides = [s * self.bits() // 8 for s in self.strides]
                made = np.ndarray(self.shape, NUMPY[self.dtype], self.memory, self.offset, strides)
                made.flags.writeable = self.form == "numpy"
                return made
            offset, rest = divmod(8 * self.offset, self.bits())
            sparse = self.form == "sparse" and math.prod(self.shape) > MOST_ELEMENTS
            if self.form in FORMS and rest == 0 and not sparse:
                whole = torch.from_numpy(self.memory).view(self.dtype)
                return FORMS[self.form](torch.as_strided(whole, self.shape, self.strides, offset))
        strides = (ctypes.c_int64 * max(len(self.strides), 1))(*self.strides)
        fields = {"byte_offset": self.offset, "strides": strides} | self.fields
        return Capsule.of(self.memory, DTYPES[self.dtype], self.shape, **fields)


FORMS = {
    "torch": lambda t: t, "versioned": Versioned, "legacy": Legacy, "old capsule": old_capsule,
    "new capsule": new_capsule, "parameter": lambda t: t.requires_grad_(),
    "sparse": torch.Tensor.to_sparse, "meta": lambda t: t.to("meta"), "negated": torch._neg_view,
}  # fmt: skip


class Tuple(list):
    """A tuple that may be changed until the call."""


def viewed(value):
    """Views in place of tensors, for spoils to change."""
    if isinstance(value, (list, tuple)):
        return (Tuple if isinstance(value, tuple) else list)(map(viewed, value))
    value = value.tensor if isinstance(value, Guarded) else value
    return View.of(value) if isinstance(value, torch.Tensor) else value


def copied(value):
    if isinstance(value, list):
        return type(value)(map(copied, value))
    if isinstance(value, View):
        return replace(value, shape=[*value.shape], strides=[*value.strides])
    return value


def made(value, depth=0):
    """What the operator is called with."""
    if type(value) in (list, Tuple) and depth < 4:
        items = [made(item, depth + 1) for item in value]
        return items if type(value) is list else tuple(items)
    return value.made() if isinstance(value, View) else value


def views_in(value, depth=0):
    if isinstance(value, View):
        yield value
    elif isinstance(value, list) and depth < 4:
        for one in value:
            yield from views_in(one, depth + 1)
