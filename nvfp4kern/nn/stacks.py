"""Stacks of experts as transformers has them: what they compute, and whether NVFP4Experts does."""

import inspect

import torch
from torch import Tensor, nn

from ..layout import SF_VEC
from .replacing import made_by_hooks

SORTED = ("Llama4TextExperts",)
"""Classes called with tokens alone: as many for each expert, in the experts' order."""


def why_not(module: nn.Module) -> str | None:
    """Why a module is no stack of experts that NVFP4Experts computes, or None."""
    weights = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    if not all(isinstance(w, Tensor) and w.dim() == 3 for w in weights):
        if isinstance(getattr(module, "up_proj", None), Tensor):
            return "has an up_proj and no gate"
        return "has no gate_up_proj [E, 2 I, H] and down_proj [E, H, I]"
    made = made_by_hooks(module, "gate_up_proj", "down_proj")
    if made:
        return f"has a {made} that is no parameter"
    flags = {"has_gate": True, "has_bias": False, "is_concatenated": True,
             "has_post_expert_norm": False}  # fmt: skip
    for name, expected in flags.items():
        if getattr(module, name, expected) != expected:
            return f"has {name}={not expected}"
    transposed = getattr(module, "is_transposed", is_transposed(module))
    (e, n, k), down = ((len(w), *w[0].T.shape) if transposed else tuple(w.shape) for w in weights)
    if down != (e, k, n // 2) or n % 2:
        up, down = (list(w.shape) for w in weights)
        return f"has gate_up_proj {up} and down_proj {down}"
    if k % SF_VEC or down[2] % SF_VEC:
        return f"has sizes {k} and {down[2]}, expected multiples of {SF_VEC}"
    return _why_not_called(module) or _why_not_silu(module)


def is_transposed(module: nn.Module) -> bool:
    """Whether the weights are [E, H, 2 I] and [E, I, H], for x @ weight. No sizes fit both ways."""
    up, down = module.gate_up_proj, module.down_proj
    return up.shape[2] == 2 * down.shape[1] and up.shape[1] == down.shape[2]


def is_interleaved(module: nn.Module) -> bool:
    """Whether the rows of gate_up_proj are gate, up, gate, up instead of two halves."""
    return getattr(module, "gate_up", None) == "interleaved" or not getattr(
        module, "is_concatenated", True
    )


def matrices(module: nn.Module) -> tuple[Tensor, Tensor]:
    """gate_up_proj as [E, 2 I, H] and down_proj as [E, H, I], which share the module's memory."""
    up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    return (up.transpose(1, 2), down.transpose(1, 2)) if is_transposed(module) else (up, down)


def _why_not_called(module: nn.Module) -> str | None:
    """Models hand tokens, ids and weights over, by position."""
    kind = type(module)
    if kind.__name__ in SORTED or kind.forward is nn.Module.forward:
        return None
    given = list(inspect.signature(kind.forward).parameters.values())[1:]
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in given):
        return None
    names = [each.name for each in given]
    if len(names) == 3 and "weight" not in names[1]:
        return None
    return f"has a forward of ({', '.join(names)}), expected tokens, ids and weights"


def _why_not_silu(module: nn.Module) -> str | None:
    """Asks the activation for values, since its names differ. Some models gate in a method."""
    act = getattr(module, "act_fn", None)
    own_gate = getattr(type(module), "_apply_gate", None)
    if own_gate is not None and own_gate.__name__ != "_default_apply_gate":
        return "has a gate of its own, _apply_gate"
    if act is None:
        return "has no act_fn"
    probe = torch.linspace(-4, 4, 9, device="cpu")
    try:
        same = torch.allclose(act(probe.clone()), nn.functional.silu(probe))
    except Exception as error:  # whatever a model's own code raises
        return f"has the activation {act}, which has no value for a vector: {error}"
    return None if same else f"has the activation {act}, expected silu"
