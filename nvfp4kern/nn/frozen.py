"""What the layers share: frozen parameters, dtypes that `.to(dtype)` leaves alone, checks."""

from collections.abc import Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from .pretrained import adopt

InputQuant: TypeAlias = Literal["static", "dynamic", "amax", "token"] | None
"""How a layer quantises its input: not at all, or with which global scale."""

E4M3 = torch.float8_e4m3fn
SAME_SIZE = {E4M3: torch.uint8, torch.float32: torch.int32}
"""Dtypes of the same size that `.to(dtype)` does not convert."""


class Stored(nn.Parameter):
    """A parameter that is never trained: `model.requires_grad_(True)` leaves it alone.

    Its elements are codes or scales. torch raises an error for integer dtypes, and an optimiser
    would change the others.
    """

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        return self

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        pass


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


def written(tensors: Iterable[Tensor | None]) -> list[int]:
    """How often they were written to, where torch counts it."""
    try:
        return [each._version for each in tensors if each is not None]
    except RuntimeError:  # some were made in inference mode
        return []


def passing(x: Tensor) -> bool:
    """Whether a value is of this call alone: of a tracer, or of a CUDA graph being captured."""
    captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return type(x) is not Tensor or x.is_meta or captured


class Frozen(nn.Module):
    """A module with NVFP4 weights.

    `GLOBALS` names its global scales. `EXACT` names all tensors that keep their dtype in
    `.to(torch.bfloat16)`, `.half()` and the like, which would change their values. `FOLLOWING`
    names buffers that follow from parameters.

    All parameters but biases are Stored. However they are set, `derived` has what follows from
    them.
    """

    GLOBALS: tuple[str, ...] = ()
    EXACT: tuple[str, ...] = ()
    FOLLOWING: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[Tensor | None, ...] = ()
        """The parameters that buffers were computed from, and these buffers."""
        self._versions: list[int] = []
        """How often these had been written to then."""
        self.register_load_state_dict_post_hook(_after_loading)
        adopt()

    def sources(self) -> tuple[Tensor | None, ...]:
        """The parameters that buffers follow from."""
        return ()

    def following(self) -> dict[str, Tensor]:
        """The values of these buffers."""
        return {}

    def finish(self) -> None:
        """Computes the buffers that follow from the parameters.

        `load_state_dict` does so, and a forward pass that finds parameters set or written to since.
        Call it where torch.compile or the replay of a CUDA graph comes before such a pass. It
        checks nothing and does not synchronise.
        """
        self._keep(self.following())

    def derived(self) -> Mapping[str, Any]:
        """The buffers that follow from the parameters as they are now."""
        compiling = torch.compiler.is_compiling()
        if self._same() and (compiling or self._versions == written(self._of)):
            return self._buffers
        values = self.following()
        if compiling or any(map(passing, values.values())):
            return values
        self._keep(values)
        for value in values.values():
            if value.is_cuda:  # another stream may be the next to read them
                torch.cuda.current_stream(value.device).synchronize()
        return self._buffers

    def _keep(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.derive(name, value)
        self._remember()

    def _remember(self) -> None:
        now = self._now()
        meta = any(each is not None and each.is_meta for each in now)
        self._of = () if meta else now  # those have no values
        self._versions = written(self._of)

    def _now(self) -> tuple[Tensor | None, ...]:
        return *self.sources(), *map(self._buffers.get, self.FOLLOWING)

    def _same(self) -> bool:
        now, of = self._now(), self._of
        return len(now) == len(of) and all(map(is_, now, of))

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
        elif old.is_inference() and not torch.is_inference_mode_enabled():  # not to be written to
            setattr(self, name, value)
        else:
            old.copy_(value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self._store()

    def _store(self) -> None:
        """Makes parameters Stored ones. They stay the same objects."""
        for name, value in self._parameters.items():
            if type(value) is nn.Parameter and not name.endswith("bias"):
                value.requires_grad_(False).__class__ = Stored

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._store()
        adopt()

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        kept = {id(getattr(self, name)) for name in self.EXACT} - {id(None)}
        same = self._same()

        def keep_dtype(value: Tensor) -> Tensor:
            if id(value) not in kept:
                return fn(value)
            return fn(value.view(SAME_SIZE[value.dtype])).view(value.dtype)

        super()._apply(keep_dtype, recurse)
        self._store()
        if same:  # so that torch.compile need not compute them
            self._remember()
            self._versions = [-1]  # but .to_empty has left no values
        return self

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):  # type: ignore
        for name in self.GLOBALS:
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if given is not None and own is not None and given.numel() == own.numel():
                state_dict[prefix + name] = given.reshape(own.shape)  # [1] in some files, or [E, 1]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _after_loading(module: Frozen, _keys: Any) -> None:
    module.finish()
