"""What the layers share: frozen parameters, dtypes that `.to(dtype)` leaves alone, checks."""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

InputQuant: TypeAlias = Literal["static", "dynamic", "amax"] | None
"""How a layer quantises its input: not at all, or with which global scale."""

E4M3 = torch.float8_e4m3fn
SAME_SIZE = {E4M3: torch.uint8, torch.float32: torch.int32}
"""Dtypes of the same size that `.to(dtype)` does not convert."""


def frozen(*shape: int, dtype: torch.dtype | None, device: Any) -> nn.Parameter:
    """A parameter without a gradient. float32 ones are NaN, so that a scale never set shows."""
    value = torch.empty(shape, dtype=dtype, device=device)
    if dtype == torch.float32 and not value.is_meta:
        value.fill_(torch.nan)
    return nn.Parameter(value, requires_grad=False)


def choice(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{name}: {value!r}, expected one of {', '.join(map(repr, known))}")
    return value


def wants_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


class Frozen(nn.Module):
    """A module with NVFP4 weights.

    `GLOBALS` names its global scales. `EXACT` names all tensors that keep their dtype in
    `.to(torch.bfloat16)`, `.half()` and the like, which would change their values.
    """

    GLOBALS: tuple[str, ...] = ()
    EXACT: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_after_loading)

    def finish(self) -> None:
        """Computes the buffers that follow from the parameters.

        `load_state_dict` calls it. Call it after setting parameters by hand. It checks nothing
        and does not synchronise.
        """

    def faults(self) -> Iterator[tuple[str, str]]:
        """(name of a global scale, what is wrong with it). Synchronises with the device."""
        for name in self.GLOBALS:
            value = getattr(self, name)
            if value is None:
                continue
            wrong = value[~(torch.isfinite(value) & (value > 0))]
            if wrong.numel():
                what = f"{wrong.flatten()[0].item()}, expected a finite number above 0"
                yield name, f"{what} ({wrong.numel()} of {value.numel()} such values)"

    def derive(self, name: str, value: Tensor) -> None:
        """Sets a buffer, in place where that can be: a captured CUDA graph reads its address."""
        # Not under torch.no_grad: an interrupt at its end leaves the thread without gradients.
        old, value = getattr(self, name), value.detach()
        if old is None or old.device != value.device or old.shape != value.shape or old.is_meta:
            setattr(self, name, value)
        else:
            old.copy_(value)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        kept = {id(getattr(self, name)) for name in self.EXACT} - {id(None)}

        def keep_dtype(value: Tensor) -> Tensor:
            if id(value) not in kept:
                return fn(value)
            return fn(value.view(SAME_SIZE[value.dtype])).view(value.dtype)

        return super()._apply(keep_dtype, recurse)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):  # type: ignore
        for name in self.GLOBALS:
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if given is not None and own is not None and given.numel() == own.numel():
                state_dict[prefix + name] = given.reshape(own.shape)  # [1] in some files, or [E, 1]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _after_loading(module: Frozen, _keys: Any) -> None:
    module.finish()
