"""NVFP4 checkpoints in vLLM on our layers: installing both is all, vLLM finds the entry point.

`register` puts subclasses in the place of vLLM's configs for "modelopt_fp4", "modelopt_mixed" and
"compressed-tensors", by the call that vLLM has for that. They give NVFP4 layers our methods and
leave all others to vLLM. docs/vllm.md says what is served.
"""

from ..engines.gate import register_unless
from .gate import switch, why_not

__all__ = ["register"]


def register() -> None:
    """The entry point. vLLM calls it in each of its processes, maybe more than once.

    Where it does not register, vLLM stays as it is. Raises nothing: one warning says why.
    """
    if switch() == "0":
        return
    from vllm.logger import init_logger

    register_unless(why_not, _register, "vLLM", init_logger("vllm.nvfp4kern"))


def _register() -> None:
    from . import registering

    registering.register()
