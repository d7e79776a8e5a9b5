"""Building a model without its weights, which a checkpoint brings."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Inside, modules get their parameters on the meta device, where they take no memory.

    Buffers stay real: no file has rotary frequencies and the like.

        with nvfp4kern.checkpoint.meta_parameters():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    Meanwhile it replaces `nn.Module.register_parameter`, in all threads.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:  # a tied one stays the same object
            moved = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            module._parameters[name] = moved

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
