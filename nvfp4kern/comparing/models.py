"""Two models and token ids -> how far the one is from the other."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import NVFP4Experts, NVFP4Linear, stacks
from ..nn.linear import is_conv1d, is_linear
from .measures import Comparison, LayerErrors, Squares, scored

LAYERS = (NVFP4Linear, NVFP4Experts)


def compare_models(
    reference: nn.Module, model: nn.Module, sequences: Iterable[Tensor]
) -> Comparison:
    """Runs both models on sequences of token ids, int64 [T], one at a time.

    reference: the model that `model` was made of. Both are on one device and in one dtype, and
        their modules have the same names. Both are held at once: a layer gets the inputs that its
        namesake has in the reference, while that runs.
    model: has NVFP4Linear and NVFP4Experts, whose errors the result has. It may have none.

    The same models and sequences give the same result.

    Raises ValueError where the reference has no such layer or one of another shape, for logits with
    NaN and for those of another shape, and for sequences in which no token follows another.
    """
    layers = {name: each for name, each in model.named_modules() if isinstance(each, LAYERS)}
    pairs = {name: (namesake(reference, name), each) for name, each in layers.items()}
    weights = {name: weight_error(name, *pair) for name, pair in pairs.items()}
    outputs = {name: Squares() for name in layers}
    parts: list[tuple[Tensor, ...]] = []
    device, count = next(model.parameters()).device, 0
    with ExitStack() as hooks, torch.no_grad():
        for name, (exact, layer) in pairs.items():
            hook = Beside(layer, outputs[name])
            hooks.callback(exact.register_forward_hook(hook, with_kwargs=True).remove)
        for ids in sequences:
            if len(ids) < 2:
                continue
            ids = ids.to(device)
            logits = [logits_of(each, ids) for each in (reference, model)]
            check(*logits)
            parts += scored(*logits, ids)
            count += 1
    if not parts:
        raise ValueError("sequences: no token follows another, expected two tokens in one of them")
    of_reference, losses, divergences, same = (
        torch.cat(column).cpu() for column in zip(*parts, strict=True)
    )
    found = {
        name: LayerErrors(squares.error(), weights[name])
        for name, squares in outputs.items()
        if squares.count
    }
    share = float(same.double().mean())
    return Comparison(count, of_reference, losses, divergences, share, found)


class Beside:
    """A forward hook of the reference's layer that gives its input to the other."""

    def __init__(self, layer: nn.Module, squares: Squares) -> None:
        self.layer, self.squares = layer, squares

    def __call__(self, _: Any, given: Any, named: Any, output: Tensor) -> None:
        self.squares.add(output, self.layer.forward(*given, **named))


def namesake(reference: nn.Module, name: str) -> nn.Module:
    try:
        found = reference.get_submodule(name)
    except AttributeError:
        raise ValueError(f"reference: has no {name}, expected what the other model has") from None
    if not (is_linear(found) or isinstance(found, LAYERS) or stacks.why_not(found) is None):
        raise ValueError(f"reference: {name} is a {type(found).__name__}, expected a layer")
    return found


def weight_error(name: str, exact: nn.Module, layer: nn.Module) -> float:
    squares = Squares()
    for theirs, ours in zip(matrices(exact), matrices(layer), strict=True):
        if theirs.shape != ours.shape:
            shapes = f"{list(theirs.shape)}, expected {list(ours.shape)}"
            raise ValueError(f"reference: {name}'s weight is {shapes} as in the other model")
        squares.add(theirs, ours)
    return squares.error()


def matrices(layer: Any) -> Iterator[Tensor]:
    """What multiplies inputs, [N, K]; of experts one by one, gate's rows before those of up."""
    if isinstance(layer, NVFP4Linear):
        weight = layer.dequantize()
        if layer.svdquant_lora_a is not None and layer.svdquant_lora_b is not None:
            weight = weight + layer.svdquant_lora_b.float() @ layer.svdquant_lora_a.float()
        yield weight if layer.pre_quant_scale is None else weight * layer.pre_quant_scale.float()
    elif isinstance(layer, NVFP4Experts):
        yield from (each for name in layer.stacks for each in layer.dequantize(name))
    elif is_linear(layer):
        weight = layer.weight.detach()
        yield weight.T if is_conv1d(layer) else weight
    else:
        up, down = stacks.matrices(layer)
        gate: Any = stacks.gate_of(layer)
        yield from (torch.cat(gate.halves(each)) for each in up)
        yield from down


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """[T, V]"""
    return model(input_ids=ids[None], use_cache=False).logits[0]


def check(reference: Tensor, logits: Tensor) -> None:
    if reference.shape != logits.shape:
        shapes = f"{list(logits.shape)}, expected {list(reference.shape)} as the reference's"
        raise ValueError(f"model: logits {shapes}")
    for name, value in (("reference", reference), ("model", logits)):
        if value.isnan().any():
            raise ValueError(f"{name}: its logits have NaN")
