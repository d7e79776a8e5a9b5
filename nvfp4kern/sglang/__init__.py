"""NVFP4 checkpoints in SGLang on our layers: installing both is all, SGLang finds the entry point.

`register` puts subclasses in the place of SGLang's configs for "modelopt_fp4", "modelopt_mixed" and
"compressed-tensors". They give NVFP4 linear layers and experts our methods and leave all else to
SGLang. docs/sglang.md says what is served.
"""

from ..engines.gate import register_unless
from .gate import switch, why_not

__all__ = ["register"]


def register() -> None:
    """The entry point. SGLang calls it once in each of its processes.

    Where it does not register, SGLang stays as it is. Raises nothing: one warning says why.
    """
    import logging

    if switch() != "0":
        register_unless(why_not, _register, "SGLang", logging.getLogger("sglang.nvfp4kern"))


def _register() -> None:
    from . import registering

    registering.register()
