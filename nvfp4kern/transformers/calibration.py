"""Runs a folder's model on a text, to see what its layers get."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoTokenizer

from ..checkpoint.destinations import is_experts, is_linear
from ..nn.inputs import Inputs
from .architecture import Architecture

TOKENS, SEQUENCE, BATCH = 1 << 16, 512, 4
"""Tokens of a text that are run at most, tokens of a sequence, and sequences at a time."""
CHARACTERS = 8
"""Of a token, more than texts have on average."""


def run_text(
    architecture: Architecture, folder: Path, text: str, offload: Path, watchers: Iterable[Inputs]
) -> None:
    """Runs a folder's model on a text, and shows what its layers get.

    The layers of the model's lists, which are most of it, lie on disk but while they run: one of
    them is held at a time, on the GPU where there is one. transformers reads them from the folder,
    and writes to `offload` those that it stores otherwise than the folder, such as experts.

    Raises ValueError for a text without tokens.
    """
    import accelerate  # noqa: F401, which moves the layers
    from tqdm.auto import tqdm

    batches = list(batches_of(ids_of(AutoTokenizer.from_pretrained(folder), text)))
    model = getattr(transformers, architecture.name).from_pretrained(
        folder,
        dtype="auto",
        device_map=dict(places(architecture.model)),
        offload_folder=str(offload),
        experts_implementation="eager",
    )
    device = model.get_input_embeddings().weight.device
    with ExitStack() as watching, torch.no_grad():
        for each in watchers:
            watching.enter_context(each.watching(*watched_of(model)))
        for batch in tqdm(batches, desc="calibrating"):
            model(input_ids=batch.to(device), use_cache=False)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The first tokens, of as much of a text as they need: all of it may be large."""
    size = CHARACTERS * TOKENS
    while True:
        ids: list[int] = tokenizer(text[:size], verbose=False).input_ids
        if len(ids) > TOKENS or size >= len(text):
            return ids[:TOKENS]
        size *= 2


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


def watched_of(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Linear layers and stacks of experts, by name."""
    modules = dict(model.named_modules())
    linears = {name: module for name, module in modules.items() if is_linear(module)}
    return linears, {name: module for name, module in modules.items() if is_experts(module)}


class Largest(Inputs):
    """The largest magnitude of each product's inputs, of all experts of a stack together."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}

    def see(self, name: str, expert: int | None, given: Tensor) -> None:
        if given.numel():
            value = given.detach().abs().amax().float()
            self.values[name] = torch.maximum(value, self.values.get(name, value))
