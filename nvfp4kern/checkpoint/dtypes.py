"""The dtypes that a model's parameters have once they are loaded, where these are not their own."""

import re

import torch
from torch import nn


def kept_in_float32(model: nn.Module) -> dict[torch.dtype, re.Pattern[str]]:
    """Names that transformers' models keep in float32, by the dtype that they would have."""
    always = list(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    float16 = always + list(getattr(model, "_keep_in_fp32_modules", None) or ())
    found = {torch.bfloat16: always, torch.float16: float16}
    return {
        dtype: re.compile(rf"(^|\.)({'|'.join(map(re.escape, names))})(\.|$)")
        for dtype, names in found.items()
        if names
    }
