"""What all sections do with a device: plans in short, operands."""

import numpy as np
import torch

import nvfp4kern

from . import trees
from .calls import OPERATORS
from .left_out import avoided, settings

C = {"cpu": 1, "cuda": 12}
"""Scales the error bound of products (reference.error_bound)."""


def gpu_rows():
    """Rows of the backend table that this GPU runs, the most special one first."""
    return [r["name"] for r in nvfp4kern.backends() if r["available"] and r["name"] != "cpu"]


def to_device(value, device):
    """Arrays of NumPy, in any nesting, as tensors there."""
    return trees.mapped(
        lambda a: torch.from_numpy(np.ascontiguousarray(a)).to(device), value, np.ndarray
    )


def to_host(value):
    """Tensors in any nesting as arrays of NumPy."""
    small = torch.float8_e4m3fn, torch.float4_e2m1fn_x2

    def array(tensor):
        return (tensor.view(torch.uint8) if tensor.dtype in small else tensor).cpu().numpy()

    return trees.mapped(array, value)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def planned(function, arguments, options):
    """What explain() says of a call."""
    with avoided(function.__name__, arguments, options):
        return nvfp4kern.explain(function.__name__, *arguments, **options)


def short(plan):
    return {name: plan[name] for name in ("backend", "kernel", "tile") if plan.get(name)}


def judged(verdict):
    """A row's part: the error as a fraction of its bound, and where it is wrong."""
    found = {"ok": bool(verdict.ok), "worst": float(np.nan_to_num(verdict.worst, posinf=1e9))}
    return found if verdict.ok else found | {"wrong": str(verdict)}


PRODUCTS = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm")


class Made:
    """A call of calls.OPERATORS on a device, with poisoned outputs of its own. `in_full`: sums in
    fp32, all their bits."""

    def __init__(self, name, generator, sizes, device, in_full=False):
        self.name = name
        self.function, self.arguments, self.options = OPERATORS[name](generator, *sizes)
        encodes = "quantized" in self.options  # and has no sums to show
        if in_full and self.function.__name__ in PRODUCTS and not encodes:
            self.options |= {"out_dtype": "float32"}
        self.inputs = trees.digest(trees.leaves((self.arguments, self.options)))
        with settings(BACKEND="", TILE="", **({"CPU": "scalar"} if device == "cpu" else {})):
            result = self.function(*self.arguments, **self.options)
            self.several = isinstance(result, (list, tuple))
            self.want = self.poisoned(trees.outputs(name, result), "cpu")
            self.write(self.want, self.arguments, self.options)
        self.given = trees.mapped(lambda t: t.to(device), (self.arguments, self.options))
        self.outs = self.poisoned(self.want, device)

    def plan(self):
        return planned(self.function, *self.given)

    def poisoned(self, outs, device):
        """The like of them there, with bytes that no right result has."""
        found = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in outs]
        for out in found:
            out.view(torch.uint8).fill_(255)
        return found

    def write(self, outs, arguments, options):
        self.function(*arguments, out=outs if self.several else outs[0], **options)

    def run(self):
        """Writes the outputs again, which are poisoned before."""
        for out in self.outs:
            out.view(torch.uint8).fill_(255)
        self.write(self.outs, *self.given)

    def wrong(self):
        """What is not as the CPU has it."""
        found = (
            trees.difference(self.name, *pair) for pair in zip(self.outs, self.want, strict=True)
        )
        return "; ".join(filter(None, found))
