"""What files that are loaded again must bring.

SGLang fills the parameters that are there, so one that files lack would keep what it had. Global
scales are NaN from the first parameter of a load on, and `loaded` of engines finds those that stay
NaN. So are the alphas that follow from them: SGLang may catch the error, and go on. A layer of
which files have nothing keeps all it has.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_LOCK = threading.Lock()  # SGLang's models may load experts in threads


def watched(layer: nn.Module, names: Iterable[str], load: Callable[..., Any]) -> Callable[..., Any]:
    """SGLang's loader of a layer's parameters. names: its global scales and alphas."""

    def load_one(parameter: nn.Parameter, *args: Any, **options: Any) -> Any:
        _begin(layer, names)
        return load(parameter, *args, **options)

    return load_one


def expect(layer: nn.Module) -> None:
    """The next parameter is the first one of a load."""
    layer.nvfp4_loaded = True


def _begin(layer: nn.Module, names: Iterable[str]) -> None:
    with _LOCK:
        if not getattr(layer, "nvfp4_loaded", False):
            return
        for name in names:
            if hasattr(layer, name):
                getattr(layer, name).data.fill_(torch.nan)
        layer.nvfp4_loaded = False
