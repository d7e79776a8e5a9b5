"""What transformers' models do otherwise once they hold layers of nvfp4kern.nn.

They go by what parameters are. So they would write codes to a file as if these were weights, count
two of them as one, and take a scale factor's dtype for the model's.
"""

import functools
import sys
from typing import Any

import torch
from torch import nn

CHANGED = "_nvfp4kern"


def adopt() -> None:
    """Replaces these methods of transformers' models, where transformers is imported, once."""
    models = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if models is None or CHANGED in vars(models):
        return
    from .frozen import Frozen, Stored  # which calls this

    save, count, dtype = models.save_pretrained, models.num_parameters, models.dtype.fget

    @functools.wraps(save)
    def save_pretrained(self: nn.Module, *args: Any, **options: Any) -> Any:
        held = [name for name, each in self.named_modules() if isinstance(each, Frozen)]
        if held and not getattr(self, "_hf_peft_config_loaded", False):  # writes adapters alone
            raise ValueError(
                f"save_pretrained: {held[0]} is NVFP4, which it cannot write, expected "
                "nvfp4kern.checkpoint.save_checkpoint(model, folder)"
            )
        return save(self, *args, **options)

    @functools.wraps(count)
    def num_parameters(
        self: nn.Module, only_trainable: bool = False, exclude_embeddings: bool = False
    ) -> int:
        found = count(self, only_trainable, exclude_embeddings)
        if not only_trainable:
            for value in {value for value in self.parameters() if isinstance(value, Stored)}:
                found += value.numel() if value.dtype == torch.uint8 else -value.numel()
        return found

    @functools.wraps(dtype)
    def dtype_of_others(self: nn.Module) -> torch.dtype:
        found = dtype(self)
        if found == torch.float8_e4m3fn:
            plain = (each for each in self.parameters() if not isinstance(each, Stored))
            kinds = (each.dtype for each in plain if each.is_floating_point())
            return next(kinds, torch.get_default_dtype())
        return found

    models.save_pretrained, models.num_parameters = save_pretrained, num_parameters
    models.dtype = property(dtype_of_others)
    setattr(models, CHANGED, True)
