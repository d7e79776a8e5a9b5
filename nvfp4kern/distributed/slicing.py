"""Putting a rank's layers in the place of whole ones."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ..nn.frozen import Frozen
from ..nn.replacing import AllOrNothing, replace, why_not_replaced
from .collectives import Group
from .cut import Slice


def slice_(
    model: nn.Module, plan: Mapping[str, Callable[..., Slice]], group: Group = None
) -> list[str]:
    """Replaces layers of `model` by the rank's slices of them; returns their names.

    model: on the meta device, see nvfp4kern.checkpoint.meta_parameters, for load_checkpoint to
        fill, or with NVFP4 layers, of which the rank's slices are copied.
    plan: a pattern (fnmatch) of the names of layers -> what makes a slice of each: `slice_of` of a
        class, perhaps with options. The first pattern that matches counts. Other layers stay whole,
        on all ranks.
    group: of torch.distributed, None for all processes.

        plan = {
            "*.[qkv]_proj": functools.partial(ColumnParallel.slice_of, head_dim=128),
            "*.gate_proj": ColumnParallel.slice_of,
            "*.up_proj": ColumnParallel.slice_of,
            "*.o_proj": RowParallel.slice_of,
            "*.down_proj": RowParallel.slice_of,
            "*.experts": functools.partial(ExpertParallel.slice_of, tokens="same"),
        }

    Hooks of a layer's calls stay.

    Raises ValueError for a pattern without a layer, for sizes that cannot be cut so, with the
    layer's name, for a layer with what cannot be kept, as quantize_ does, and for a model that is
    itself a layer. Raises TypeError for a module that is no layer. The model is then as it was,
    and so it is after an interrupt.
    """
    unused = dict.fromkeys(plan)
    made: dict[nn.Module, Slice] = {}  # one where the model has the same layer twice
    chosen: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        pattern = next((each for each in plan if fnmatchcase(name, each)), None)
        if pattern is None:
            continue
        unused.pop(pattern, None)
        if not name:
            raise ValueError("model: itself a layer, expected a module that contains it")
        if module not in made:
            made[module] = _named(name, plan[pattern], module, group)
        chosen[name] = module
    for pattern in unused:
        raise ValueError(f"plan: {pattern!r} matches no layer of the model")
    with AllOrNothing(model):
        for name, module in chosen.items():
            replace(model, name, made[module])
        for each in model.modules():
            if isinstance(each, Frozen):
                each.finish()  # what NVFP4SwiGLU derives from its layers
    return list(chosen)


def _named(name: str, make: Callable[..., Slice], module: nn.Module, group: Any) -> Slice:
    reason = why_not_replaced(module)
    if reason:
        raise ValueError(f"{name}: {reason}")
    try:
        return make(module, group=group)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
