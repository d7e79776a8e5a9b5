"""Stacks of experts as transformers has them: what they compute, and whether NVFP4Experts does."""

import inspect
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..layout import SF_VEC
from ..types import Activation
from .replacing import made_by_hooks

STACKS = ("gate_up_proj", "down_proj")
"""A stack's weights, by their names in modules and files."""
UNGATED = ("up_proj", "down_proj")
"""Those of experts without a gate, such as Nemotron-H's."""
ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda gate: functional.relu(gate).square(),
    "identity": lambda gate: gate,
}
LIMITS, SCALES = ("limit", "swiglu_limit"), ("alpha", "swiglu_alpha")
"""Where modules have the numbers of their gates."""
SORTED = ("Llama4TextExperts",)
"""Classes called with tokens alone: as many for each expert, in the experts' order."""


def names_of(module: nn.Module) -> tuple[str, str]:
    """The names of a stack's weights, of transformers or of NVFP4Experts."""
    alone = isinstance(getattr(module, "up_proj", None), Tensor)
    return UNGATED if alone and getattr(module, "gate_up_proj", None) is None else STACKS


def why_not(module: nn.Module) -> str | None:
    """Why a module is no stack of experts that NVFP4Experts computes, or None."""
    names = names_of(module)
    gated = names == STACKS
    weights = [getattr(module, name, None) for name in names]
    if not all(isinstance(w, Tensor) and w.dim() == 3 for w in weights):
        return "has no gate_up_proj [E, 2 I, H] and down_proj [E, H, I]"
    made = made_by_hooks(module, *names)
    if made:
        return f"has a {made} that is no parameter"
    if not gated and getattr(module, "has_gate", True):  # transformers' say so
        return "has an up_proj, and no has_gate=False"
    for name, expected in {"has_gate": gated, "has_post_expert_norm": False}.items():
        if getattr(module, name, expected) != expected:
            return f"has {name}={not expected}"
    has_bias = getattr(module, "has_bias", False)
    if [each is not None for each in biases(module)] != [has_bias, has_bias]:
        return f"has has_bias={has_bias} and other biases"
    transposed = getattr(module, "is_transposed", is_transposed(module))
    (e, n, k), down = ((len(w), *w[0].T.shape) if transposed else tuple(w.shape) for w in weights)
    halves = 2 if gated else 1
    if down != (e, k, n // halves) or n % halves:
        up, down = (list(w.shape) for w in weights)
        return f"has {names[0]} {up} and down_proj {down}"
    if k % SF_VEC or down[2] % SF_VEC:
        return f"has sizes {k} and {down[2]}, expected multiples of {SF_VEC}"
    gate = gate_of(module)
    return _why_not_called(module) or (gate if isinstance(gate, str) else None)


def is_transposed(module: nn.Module) -> bool:
    """Whether the weights are [E, H, 2 I] and [E, I, H], for x @ weight. No sizes fit both ways;
    without a gate they all do, and the module says it."""
    if names_of(module) == UNGATED:
        return bool(getattr(module, "is_transposed", False))
    up, down = module.gate_up_proj, module.down_proj
    return up.shape[2] == 2 * down.shape[1] and up.shape[1] == down.shape[2]


def matrices(module: nn.Module) -> tuple[Tensor, Tensor]:
    """gate_up_proj as [E, 2 I, H], or up_proj as [E, I, H], and down_proj as [E, H, I], which share
    the module's memory."""
    up, down = (getattr(module, name).detach() for name in names_of(module))
    return (up.transpose(1, 2), down.transpose(1, 2)) if is_transposed(module) else (up, down)


def biases(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Of gate_up_proj [E, 2 I], in the order of its weights, or of up_proj [E, I], and of down_proj
    [E, H]."""
    up, down = (getattr(module, f"{name}_bias", None) for name in names_of(module))
    return up, down


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


# --- Gates ---


def gated(
    gate: Tensor, up: Tensor, activation: Activation = "silu", limit: float | None = None,
    activation_scale: float = 1.702,
) -> Tensor:  # fmt: skip
    """What nvfp4kern.grouped_dual_gemm makes of gates and ups, by torch."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "swiglu_oai":
        return gate * torch.sigmoid(activation_scale * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


class Gate(NamedTuple):
    """How a stack of transformers gates: options of `gated`, and whether rows alternate. Or
    options of NVFP4Experts without a gate."""

    options: dict[str, Any]
    interleaved: bool

    def halves(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Gates and ups among the rows of an expert, or of all along `dim`; else the rows."""
        if not self.options.get("gated", True):
            return (rows,)
        pairs = rows.unflatten(dim, (-1, 2) if self.interleaved else (2, -1))
        gates, ups = pairs.unbind(dim + self.interleaved)
        return gates, ups


def gate_of(module: nn.Module) -> Gate | str:
    """Asks a stack for values, since names differ. A string says why `gated` has not the same.

    Some models gate in a method, which also says where gates and ups are.
    """
    if names_of(module) == UNGATED:
        found = _activation_of(module, ACTIVATIONS)
        return Gate({"gated": False, "activation": found[0]}, False) if found[0] else found[1]
    own = getattr(type(module), "_apply_gate", None)
    if own is None or own.__name__ == "_default_apply_gate":
        if not getattr(module, "is_concatenated", True):
            return "has is_concatenated=False"
        return _activation_of(module, ("silu",))[1] or Gate({}, False)
    limit, scale = (_number(module, names) for names in (LIMITS, SCALES))
    found: list[dict[str, Any]] = [{}]
    if scale is not None:
        found.append({"activation": "swiglu_oai", "activation_scale": scale})
    if limit is not None:
        found += [{**each, "limit": limit} for each in found]
    reach = 2 * (limit or 4)
    some = torch.cat([torch.linspace(-end, end, 9, device="cpu") for end in (4, reach, 1e4)])
    gate, up = torch.cartesian_prod(some, some).T
    for interleaved in (False, True):
        given = torch.stack([gate, up], -1).flatten() if interleaved else torch.cat([gate, up])
        try:
            got = module._apply_gate(given[None])[0]
            alike = [each for each in found if _is_close(got, gated(gate, up, **each))]
        except Exception as error:  # whatever a model's own code raises
            return f"has an _apply_gate that has no value for a vector: {error}"
        if alike:
            return Gate(alike[0], interleaved)
    return "has a gate of its own, _apply_gate"


def _is_close(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and torch.allclose(got, expected)


def _number(module: nn.Module, names: tuple[str, ...]) -> float | None:
    """The first of these attributes that is a finite number above 0."""
    values = (getattr(module, name, None) for name in names)
    numbers = (float(each) for each in values if isinstance(each, (int, float)))
    return next((each for each in numbers if 0 < each < math.inf), None)


def _activation_of(module: nn.Module, known: Iterable[str]) -> tuple[str, str]:
    """(which of those known act_fn is, "") or ("", why it is none)"""
    act = getattr(module, "act_fn", None)
    if act is None:
        return "", "has no act_fn"
    probe = torch.cat([torch.linspace(-end, end, 9, device="cpu") for end in (4, 100, 1e4)])
    try:
        got = act(probe.clone())
        same = [name for name in known if torch.allclose(got, ACTIVATIONS[name](probe))]
    except Exception as error:  # whatever a model's own code raises
        return "", f"has the activation {act}, which has no value for a vector: {error}"
    return (same[0], "") if same else ("", f"has the activation {act}, expected {', '.join(known)}")
