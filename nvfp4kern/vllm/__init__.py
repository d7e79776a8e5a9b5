"""NVFP4 checkpoints in vLLM on our layers: installing both is all, vLLM finds the entry point.

`register` puts subclasses in the place of vLLM's configs for "modelopt_fp4", "modelopt_mixed" and
"compressed-tensors", by the call that vLLM has for that. They give NVFP4 layers our methods and
leave all others to vLLM. docs/vllm.md says what is served.
"""

from .gate import switch, why_not

__all__ = ["register"]


def register() -> None:
    """The entry point. vLLM calls it in each of its processes, maybe more than once.

    Where it does not register, vLLM stays as it is. Raises nothing: one warning says why.
    """
    if switch() == "0":
        return
    from vllm.logger import init_logger

    logger = init_logger("vllm.nvfp4kern")
    try:
        reason, wrong = why_not()
        if reason is None:
            from . import registering

            registering.register()
    except (ImportError, AttributeError) as e:  # what it subclasses is gone
        reason, wrong = f"vLLM lacks what it builds on: {e}", True
    except Exception as e:  # vLLM calls this bare, for models without NVFP4, too
        reason, wrong = f"{type(e).__name__}: {e}", True
    if reason is not None:
        say = logger.warning if wrong else logger.info
        say("nvfp4kern leaves vLLM as it is: %s", reason)
