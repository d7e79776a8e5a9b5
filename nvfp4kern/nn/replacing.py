"""A layer that takes the place of a module in a model, and what it takes over from it: of all
layers that shall be replaced, or of none."""

from typing import Any

from torch import nn

from .frozen import Frozen

KEPT = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)
OF_STATE = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def made_by_hooks(module: nn.Module, *names: str) -> str | None:
    """The first of these parameters that is a plain attribute: hooks of weight_norm, spectral_norm
    and pruning leave it so, with the value of the last call."""
    return next((name for name in names if vars(module).get(name) is not None), None)


def has_hooks(module: nn.Module) -> bool:
    """Of its calls, or a forward in place of its own: accelerate offloads weights by one."""
    return "forward" in vars(module) or any(getattr(module, key, None) for key in KEPT)


def why_not_replaced(module: nn.Module) -> str | None:
    """What a layer in the place of this module could not take over, or None."""
    made = made_by_hooks(module, "weight", "bias")
    if made:
        return f"its {made} is no parameter, as weight_norm and pruning leave it"
    hooks = sum(len(getattr(module, key, ())) for key in OF_STATE)
    if hooks > isinstance(module, Frozen):  # which has one of its own
        return "it has hooks of its state_dict, whose parameters would be others"
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):  # accelerate's moves inputs
        return "its forward was replaced"
    for name, part in module.named_children():
        if isinstance(module, (nn.Linear, Frozen)):
            return f"its {name} would be lost"
        if has_hooks(part):
            return f"its {name} has hooks, and a quantised layer does not call it"
    return None


def replace(model: nn.Module, name: str, new: nn.Module) -> None:
    """Puts `new` in the place of the submodule `name`, in its mode. Calls run the same hooks, and
    their handles still remove them."""
    old = model.get_submodule(name)
    for key in KEPT:
        value = getattr(old, key, None)
        if value is False or value:  # _is_full_backward_hook has three values
            setattr(new, key, value)
    model.set_submodule(name, new.train(old.training))


class AllOrNothing:
    """What happens to a model inside is undone where an exception ends it, an interrupt too.

    with AllOrNothing(model):
        replace(model, name, new)
    """

    def __init__(self, model: nn.Module) -> None:
        held = [(m._modules, m._parameters, m._buffers) for m in model.modules()]
        self.contents = [(each, dict(each)) for dicts in held for each in dicts]
        # Frozen.derive writes in place.
        self.values = [
            (value, value.clone())
            for module in model.modules()
            if isinstance(module, Frozen)
            for value in module._buffers.values()
            if value is not None
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, raised: Any, *_: Any) -> None:
        if raised is None:
            return
        for each, content in self.contents:
            each.update(content)
        for value, was in self.values:
            value.copy_(was)
