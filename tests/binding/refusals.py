"""What spoils an argument of a good call, and the check that the call is refused."""

import re

import pytest
import torch
from calls import (
    guards_in,
    invoke,
    tensors_of,
)
from generators import Guarded, unchanged


def refused(base, device, change, exception, name, message=""):
    args = base(device)
    guards = [guard for value in args.values() for guard in guards_in(value)]
    args |= change(args)
    guards += [guard for value in args.values() for guard in guards_in(value)]
    watched = [t for t in tensors_of(list(args.values())) if isinstance(t, torch.Tensor)]
    with unchanged([t for t in watched if t.is_contiguous() and t.numel() < 2**20]):
        with pytest.raises(exception) as caught:
            invoke(base, args)
    item = "" if name.endswith("]") else r"(\[\d+\])?"
    assert re.match(rf"{re.escape(name)}{item}: {message}", str(caught.value)), str(caught.value)
    assert all(guard.untouched() for guard in guards)


def to(name, **options):
    return lambda args: {name: args[name].to(**options)}


def swap(name, make):
    return lambda args: {name: make(args[name])}


def wide(t):
    """The same shape with an inner stride of 2."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def item(index, *shape, dtype="float32"):
    def change(args):
        outs = list(args["out"])
        outs[index] = Guarded(shape, dtype, "cpu")
        return {"out": outs}

    return change


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape, dtype=torch.uint8):
    return torch.zeros(shape, dtype=dtype)


def given(**args):
    """Replaces arguments, whatever they were."""
    return lambda _: args
