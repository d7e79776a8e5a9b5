"""What the layers of a model get as inputs while it runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .stacks import names_of

PRODUCTS = (nn.functional.linear, torch.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__)
"""What experts multiply their weights by."""


class Inputs(TorchFunctionMode):
    """Sees each linear layer's input by a hook, and that of experts in their products, of which
    they make one for each expert and weight, or one for all."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[tuple[str, nn.Module]] = []
        """Stacks of experts, the innermost last."""

    def see(self, name: str, expert: int | None, given: Tensor) -> None:
        """name: of a linear layer, or of the weight of a stack of experts. expert: in a stack, or
        -1 where that cannot be told."""
        raise NotImplementedError

    @contextmanager
    def watching(
        self, linears: dict[str, nn.Module], stacks: dict[str, nn.Module]
    ) -> Iterator[None]:
        with ExitStack() as hooks, self:
            for name, module in linears.items():
                hook = module.register_forward_pre_hook(self._hook(name), with_kwargs=True)
                hooks.callback(hook.remove)
            for name, module in stacks.items():
                enter = self._entering(name, module)
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                leave = module.register_forward_hook(self._leave, always_call=True)
                hooks.callback(leave.remove)
            yield

    def _hook(self, name: str) -> Any:
        return lambda _, args, named: self.see(name, None, *args, *named.values())

    def _entering(self, name: str, experts: nn.Module) -> Any:
        return lambda *_: self._running.append((name, experts))

    def _leave(self, *_: Any) -> None:
        del self._running[-1:]  # none where another hook failed before

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore
        if function in PRODUCTS and self._running:
            name, module = self._running[-1]
            given, weight = args[:2]
            if weight.shape[-1:] == (1,):  # transformers' "batched_mm" has columns
                given, weight = weight.mT, given
            for key in names_of(module):
                stack = getattr(module, key)
                if weight.shape[-2:] != stack.shape[1:]:
                    continue
                if weight.shape == stack.shape and _expert(stack, weight) == 0:
                    for expert, each in enumerate(given):
                        self.see(f"{name}.{key}", expert, each)
                else:  # a copy of some experts' weights does not tell whose they are
                    of_one = weight.dim() == 2
                    self.see(f"{name}.{key}", _expert(stack, weight) if of_one else -1, given)
        return function(*args, **(kwargs or {}))


def _expert(stack: Tensor, weight: Tensor) -> int:
    """Which expert's weight a view of a stack is."""
    if weight.untyped_storage().data_ptr() != stack.untyped_storage().data_ptr():
        return -1
    return (weight.storage_offset() - stack.storage_offset()) // stack.stride(0)
