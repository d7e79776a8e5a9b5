"""Building a model without its weights, which a checkpoint brings."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_LOCK = threading.Lock()
_INSIDE: Counter[int] = Counter()
"""How deep each thread is in meta_parameters."""
_REPLACED: list[Any] = []
"""nn.Module.register_parameter, while any thread is in it."""


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Inside, modules get their parameters on the meta device, where they take no memory.

    Buffers stay real: no file has rotary frequencies and the like.

        with nvfp4kern.checkpoint.meta_parameters():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    Modules of other threads are left alone.
    """
    thread = threading.get_ident()
    with _LOCK:
        if not _INSIDE:
            _REPLACED[:] = [nn.Module.register_parameter]
            nn.Module.register_parameter = _on_meta(*_REPLACED)  # type: ignore[method-assign]
        _INSIDE[thread] += 1
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE[thread] -= 1
            if not _INSIDE[thread]:
                del _INSIDE[thread]
            if not _INSIDE:
                nn.Module.register_parameter = _REPLACED.pop()  # type: ignore[method-assign]


def _on_meta(register: Any) -> Any:
    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is None or parameter.is_meta or threading.get_ident() not in _INSIDE:
            return  # a tied one stays the same object
        module._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    return on_meta
