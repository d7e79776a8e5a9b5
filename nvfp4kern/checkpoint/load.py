"""Loading a checkpoint into a model: all of it, or nothing."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from .. import warmup
from ..distributed import Slice
from ..nn.frozen import Frozen, choice
from ..nn.replacing import AllOrNothing, replace
from .assign import Assignment
from .files import CheckpointError, Files
from .fill import Filler
from .formats import read_plan
from .plan import refuse
from .report import Report, inspect
from .untrusted import in_short

InputQuantOption = Literal["auto", "dynamic", "amax", "token"] | None


def load_checkpoint(
    model: nn.Module,
    path: str | Path,
    *,
    device: Any,
    input_quant: InputQuantOption = "auto",
    strict: bool = True,
    progress: bool = True,
) -> Report:
    """Loads an NVFP4 checkpoint into `model`, in place, and returns a report.

    Where the files have NVFP4, linear layers and stacked experts become those of nvfp4kern.nn.
    A rank's slices, see nvfp4kern.distributed, stay slices: nothing else of these layers is read.
    Hooks of a layer's calls stay.

    model: has the names of the checkpoint. It may be on the meta device, see `meta_parameters`.
        Its floating-point parameters keep their dtypes: the files' values are converted.
    path: a directory with config.json and *.safetensors, or one such file, by ModelOpt,
        compressed-tensors, torchao or AMD Quark, or with MXFP4 by OpenAI's names. It is not
        trusted. Layers in FP8 are dequantised.
    device: where everything goes: "cpu", "cuda", "cuda:<index>", or such a torch.device. Tensors
        are copied one by one.
    input_quant: "auto" does what the files say. None leaves inputs at 16 bits (W4A16). "dynamic",
        "amax" and "token" are NVFP4Linear's.
    strict: with False, tensors that nothing in the model takes are a warning instead of an error.
    progress: shows a bar where rich is installed and the output is a terminal.

    Raises CheckpointError for whatever is wrong with the files or does not fit the model, with the
    tensor's name. Raises ValueError for a model that is itself a layer, for one in float32 whose
    inputs are not quantised, for a layer with what cannot be kept, as quantize_ does, and for
    another device. The model is then as it was, and so it is after an interrupt.

    Calls nvfp4kern.warmup(device).
    """
    place = device_of(device)
    choice("input_quant", input_quant, ("auto", None, "dynamic", "amax", "token"))
    with Files(path) as files:
        plan = read_plan(files, input_quant)
        if not plan.layers:
            raise CheckpointError(f"{files.path.name}: has no layer in NVFP4 or FP8")
        report = inspect(files, plan)  # refuses global scales that no weight has
        refuse(report.problems)
        assignment = Assignment(model, files, plan)
        if assignment.unexpected:
            names = in_few_words(assignment.unexpected)
            if strict:
                raise CheckpointError(f"{names}: not in the model (strict=False ignores them)")
            report.warn(names, "not in the model, ignored")
        filler = Filler(files, assignment, place)
        filler.run(progress)
        files.check()
        warmup(str(place) if place.type == "cuda" else "cpu")
        if any(isinstance(module, Slice) for module in assignment.modules.values()):
            report.nbytes_read = files.nbytes_read
        if report.warnings:  # an error, where warnings are
            more = len(report.warnings) - 1
            others = f" ({more} more in the report's warnings)" if more else ""
            warnings.warn(f"{report.warnings[0]}{others}", stacklevel=2)
        commit(model, assignment, place)
    return report


def device_of(given: Any) -> torch.device:
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        expected = "expected 'cpu', 'cuda' or 'cuda:<index>'"
        raise ValueError(f"device: {in_short(given)}, {expected}")
    return device


def in_few_words(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more


def commit(model: nn.Module, assignment: Assignment, device: torch.device) -> None:
    """Puts everything into the model: all of it, or nothing where it is interrupted."""
    buffers = []
    for name, module in model.named_modules():
        if isinstance(module, Frozen) or assignment.replaces(name):
            continue
        for key in module._non_persistent_buffers_set:
            value = module._buffers[key]
            if value is not None:
                buffers.append((module._buffers, key, value.to(device)))
    made, others = set(assignment.modules.values()), []
    for target in assignment.targets.values():
        value: Any = target.tensor
        value = value if target.buffer else nn.Parameter(value, target.requires_grad)
        for owner, key in target.owners:
            if owner in made:
                setattr(owner, key, value)
            else:
                others.append((owner, key, value))
    finish(module for new in made for module in new.modules())
    with AllOrNothing(model):
        for name, new in assignment.modules.items():
            replace(model, name, new)
        for owner, key, value in others:
            setattr(owner, key, value)
        for held, key, value in buffers:
            held[key] = value
        finish(module for module in model.modules() if module not in made)


def finish(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if isinstance(module, Frozen):
            module.finish()
