"""Copies tensors, one by one, to where they go, and refuses values that no weight has."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .assign import Assignment, Fill, Target, in_order
from .destinations import experts_of
from .files import CheckpointError, Files

NAN_SCALE, MINUS_ZERO = 0x7F, 0x80


class Filler:
    """Fills an assignment's targets on a device. Holds one tensor of the files at a time."""

    def __init__(self, files: Files, assignment: Assignment, device: torch.device) -> None:
        self.files, self.assignment, self.device = files, assignment, device
        self._filled: set[tuple[str, str]] = set()
        self._buffer = bytearray()

    def run(self, progress: bool) -> None:
        fills = list(in_order(self.files, self.assignment.fills))
        names = {fill.source.name for fill in fills}
        self._buffer = bytearray(max((self.files.tensors[n].nbytes for n in names), default=0))
        with shown(progress, sum(self.files.tensors[name].nbytes for name in names)) as advance:
            last = ""
            for fill in fills:
                self.fill(fill)
                if fill.source.name != last:
                    last = fill.source.name
                    advance(self.files.tensors[last].nbytes)
        for target, index, value in self.assignment.constants:
            self.allocate(target)[index] = value
        for target in self.assignment.targets.values():
            if target.tensor is None:  # without elements
                self.allocate(target)
        self.complete()

    def fill(self, fill: Fill) -> None:
        target = fill.target
        into = self.allocate(target)[fill.target_index]
        if fill.rule in ("max", "min"):
            extreme = torch.fmax if fill.rule == "max" else torch.fmin
            into.copy_(extreme(self._global(fill).to(into.device), into))
            return
        given = self._given(fill)
        part = target.name, repr(fill.target_index)
        if part not in self._filled:
            self._filled.add(part)
            into.copy_(given)
            self._check_range(fill, given, into)
        elif not same_bits(given.to(into).expand_as(into), into):
            what = f"differs from what else the files have for {target.name}"
            raise CheckpointError(f"{fill.source.name}: {what}")

    def _given(self, fill: Fill) -> Tensor:
        if fill.rule == "global":
            return self._global(fill)
        if fill.rule == "fp8":
            return self._dequantized_fp8(fill)
        given = self.files.read(fill.source.name, fill.source_index, self._buffer)
        self._check_dtype(fill, given)
        if given.dtype == torch.float8_e4m3fn:
            self._check_scales(fill, given)
        return given

    def _check_range(self, fill: Fill, given: Tensor, into: Tensor) -> None:
        """A finite value that is too large for the model's dtype is an error: it would become
        infinity, silently."""
        have, want = given.dtype, into.dtype
        if have == want or not given.numel() or torch.finfo(have).max <= torch.finfo(want).max:
            return
        most = torch.stack(given.aminmax()).abs().max()
        if not most.isfinite():  # others among them may be too large
            most = given.abs().nan_to_num(0.0, posinf=0.0).amax()
        if most.to(want).isinf():
            what = f"{most.item():g} is too large for {name_of(want)}, the dtype of the model's"
            raise CheckpointError(f"{fill.source.name}: {what} {fill.target.name}")

    def allocate(self, target: Target) -> Tensor:
        """The target's tensor, made at the first call. float32 ones begin as NaN."""
        if target.tensor is None:
            target.tensor = torch.empty(target.shape, dtype=target.dtype, device=self.device)
            if target.dtype == torch.float32:
                target.tensor.fill_(torch.nan)
        return target.tensor

    def _global(self, fill: Fill) -> Tensor:
        """Global scales as multipliers, in float32."""
        name, index = fill.source.name, fill.source_index
        if index and isinstance(index[0], int):  # of a stack: an expert, and one of its numbers
            given = self.files.read(name, index[:1]).reshape(-1)[index[1]]
        else:
            given = self.files.read(name, index)
            given = given.reshape(()) if given.numel() == 1 else given
        return 1 / given if fill.source.divisor else given

    def _check_dtype(self, fill: Fill, given: Tensor) -> None:
        """Only floating-point values of 16 bits and more convert. Others must have the dtype."""
        have, want = given.dtype, fill.target.dtype
        converts = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        if have != want and not (have in converts and want in converts):
            raise CheckpointError(
                f"{fill.source.name}: {name_of(have)}, expected {name_of(want)} as in the model's "
                f"{fill.target.name}"
            )

    def _check_scales(self, fill: Fill, given: Tensor) -> None:
        """Refuses scale factors that are NaN or negative.

        As signed bytes NaN is the largest, and negative factors are below 0. So the least and the
        largest byte clear almost every tensor. Only others get a mask: it takes memory.
        """
        low, high = given.view(torch.int8).aminmax()
        if low >= 0 and high < NAN_SCALE:
            return
        stored = given.view(torch.uint8)
        wrong = int(((stored >= NAN_SCALE) & (stored != MINUS_ZERO)).sum())
        if wrong:
            raise CheckpointError(
                f"{fill.source.name}: {wrong} scale factors are NaN or negative, expected none"
            )

    def _dequantized_fp8(self, fill: Fill) -> Tensor:
        assert fill.scale is not None
        scale = self.files.read(fill.scale.name).reshape(())
        weight = self.files.read(fill.source.name, fill.source_index, self._buffer)
        wrong = int((weight.view(torch.uint8) & NAN_SCALE == NAN_SCALE).sum())
        if wrong:
            raise CheckpointError(f"{fill.source.name}: {wrong} elements are NaN, expected none")
        found = weight.to(self.device).float() * scale.to(self.device)
        if found.isinf().any():
            raise CheckpointError(f"{fill.scale.name}: {scale.item():g} makes the weight infinite")
        return found

    def complete(self) -> None:
        """Gives experts without an input scale the largest one of the others, or the smallest of
        inverses."""
        groups: dict[str, list[Tensor]] = {}
        inverses: dict[str, bool] = {}
        incomplete = set()
        for target in self.assignment.targets.values():
            group = experts_of(target.name)
            if group is not None and target.tensor is not None:
                groups.setdefault(group, []).append(target.tensor)
                inverses[group] = target.name.endswith("_inverse")
                if target.missing:
                    incomplete.add(group)
        for group in incomplete:
            columns = groups[group][0].shape[1:]  # gate and up of a stack, else ()
            given = torch.stack(groups[group]).reshape(-1, *columns)
            if inverses[group]:
                most = given.nan_to_num(torch.inf).amin(0)
            else:
                most = given.nan_to_num(0.0).amax(0)
            for one in groups[group]:
                one.copy_(torch.where(one.isnan(), most, one))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (a, b)))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def shown(progress: bool, total: int) -> Iterator:
    """A bar on a terminal, or nothing."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        progress = False
    if not progress or not sys.stderr.isatty():
        yield lambda amount: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda amount: bar.advance(task, amount)
