"""What a model's layers get as input for a text: the static scales of W4A4."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoTokenizer

from ..checkpoint.destinations import is_experts, is_linear
from .architecture import Architecture

TOKENS, SEQUENCE, BATCH = 1 << 16, 512, 4
"""Tokens of a text that are run at most, tokens of a sequence, and sequences at a time."""
PRODUCTS = (nn.functional.linear, torch.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__)
"""What experts multiply their weights by."""


def largest_inputs(
    architecture: Architecture, folder: Path, text: str, offload: Path
) -> dict[str, float]:
    """Name -> the largest magnitude of inputs, of each linear layer, and of each product of a
    stack of experts, by the name of its weight.

    The layers of the model's lists, which are most of it, lie on disk but while they run: one of
    them is held at a time, on the GPU where there is one. transformers reads them from the folder,
    and writes to `offload` those that it stores otherwise than the folder, such as experts.

    Raises ValueError for a text without tokens.
    """
    import accelerate  # noqa: F401, which moves the layers
    from tqdm.auto import tqdm

    batches = list(batches_of(AutoTokenizer.from_pretrained(folder)(text).input_ids))
    model = getattr(transformers, architecture.name).from_pretrained(
        folder,
        dtype="auto",
        device_map=dict(places(architecture.model)),
        offload_folder=str(offload),
        experts_implementation="eager",
    )
    found = Largest()
    device = model.get_input_embeddings().weight.device
    with ExitStack() as hooks, found, torch.no_grad():
        for name, module in model.named_modules():
            for hook in found.hooks(name, module):
                hooks.callback(hook.remove)
        for batch in tqdm(batches, desc="calibrating"):
            model(input_ids=batch.to(device), use_cache=False)
    return {name: float(value) for name, value in found.values.items()}


def batches_of(ids: list[int]) -> Iterator[Tensor]:
    if not ids:
        raise ValueError("--calibrate: a text without tokens")
    *whole, last = torch.tensor(ids[:TOKENS]).split(SEQUENCE)
    for at in range(0, len(whole), BATCH):
        yield torch.stack(whole[at : at + BATCH])
    yield last[None]


def places(model: nn.Module, name: str = "") -> Iterator[tuple[str, Any]]:
    """A device_map: what is in lists of modules is on disk, all else on the GPU, or the CPU."""
    home = 0 if torch.cuda.is_available() else "cpu"
    prefix = f"{name}." if name else ""
    if isinstance(model, nn.ModuleList):
        yield from ((f"{prefix}{key}", "disk") for key, _ in model.named_children())
    elif any(isinstance(module, nn.ModuleList) for module in model.modules()):
        for key, child in model.named_children():
            yield from places(child, f"{prefix}{key}")
        for key, _ in model.named_parameters(recurse=False):
            yield f"{prefix}{key}", home
    else:
        yield name, home


class Largest(TorchFunctionMode):
    """Sees each linear layer's input by a hook, and that of experts in their products, of which
    they make one for each expert and weight, or one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}
        self._experts: tuple[str, nn.Module] | None = None

    def hooks(self, name: str, module: nn.Module) -> Iterator[Any]:
        if is_linear(module):
            yield module.register_forward_pre_hook(lambda _, given: self._add(name, given[0]))
        elif is_experts(module):
            yield module.register_forward_pre_hook(lambda *_: self._enter(name, module))
            yield module.register_forward_hook(lambda *_: self._enter())

    def _enter(self, *experts: Any) -> None:
        self._experts = experts or None

    def _add(self, name: str, given: Tensor) -> None:
        if given.numel():
            value = given.detach().abs().amax().float()
            self.values[name] = torch.maximum(value, self.values.get(name, value))

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore
        if function in PRODUCTS and self._experts:
            name, module = self._experts
            for key in ("gate_up_proj", "down_proj"):
                stack = getattr(module, key).shape
                if args[1].shape in (stack, stack[1:]):
                    self._add(f"{name}.{key}", args[0])
        return function(*args, **(kwargs or {}))
