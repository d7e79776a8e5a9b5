"""How a weight becomes NVFP4: the choice of its global scale and of its scale factors."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from .. import torch as nk
from ..layout import NVFP4, SF_VEC
from .frozen import E4M3, choice

Recipe: TypeAlias = Literal["amax", "four_six"]
RECIPES = ("amax", "four_six")

CODE_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MOST, SMALLEST = 448.0, 2.0**-9
"""Scale factors, in E4M3. Without a smallest, blocks of small weights would vanish."""
FOUR_SIX_MOST = 256.0
"""The largest scale factor where a block's largest code is 6: with 4 it becomes 384."""


def quantize_weight(
    weight: Tensor, recipe: Recipe, global_scale: Tensor | None = None
) -> NVFP4[Tensor]:
    """weight [N, K], float16, bfloat16 or float32 -> (uint8 [N, K/2], e4m3 [N, K/16], float32 []).

    "amax": nvfp4kern.quantize with the global scale max|weight| / (6 * 448).
    "four_six": of two scale factors for each block, by which its largest magnitude becomes 6 or 4,
        the one that leaves the smaller squared error; the global scale is max|weight| / (6 * 256).
        From "Four Over Six" (Cook et al., arXiv:2512.02010).
    global_scale: float32 [], where it is not of this weight alone; see global_scale_of.

    No scale factor is 0, by which a block of small weights would vanish.

    Raises ValueError for a weight with NaN or infinities. Synchronises with the device.
    """
    choice("recipe", recipe, RECIPES)
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise ValueError("weight: has NaN or infinities, expected finite values")
    if recipe == "amax":
        scale: Any = "amax" if global_scale is None else global_scale
        options: dict[str, Any] = {"global_scale": scale, "smallest_scale": SMALLEST}
        q = nk.quantize(weight.contiguous(), data_dtype=torch.uint8, **options)
        return q._replace(global_scale=torch.as_tensor(q.global_scale).reshape(()))
    if global_scale is None:
        global_scale = global_scale_of(weight.abs().amax(), recipe)
    return _four_six(weight, global_scale)


def global_scale_of(largest: Tensor, recipe: Recipe) -> Tensor:
    """float32 [], by which a recipe takes weights whose largest magnitude is `largest`."""
    if recipe == "amax":
        block = largest.float().expand(1, SF_VEC).contiguous()
        return nk.quantize(block, global_scale="amax").global_scale.reshape(())
    scale = largest.float() / (CODE_VALUES[-1] * FOUR_SIX_MOST)
    return torch.where(scale > 0, scale, 1.0)


def _four_six(weight: Tensor, global_scale: Tensor) -> NVFP4[Tensor]:
    blocks = weight.float().unflatten(-1, (-1, SF_VEC))
    largest = blocks.abs().amax(-1, keepdim=True)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for target in (6.0, 4.0):
        scales = (largest / (target * global_scale)).clamp(SMALLEST, MOST).to(E4M3)
        step = scales.float() * global_scale
        codes = nearest_codes(torch.where(step > 0, blocks / step, 0.0))
        values = code_values(codes) * step
        error = (values - blocks).square().sum(-1, keepdim=True)
        if best is None:
            best = codes, scales, error
        else:
            better = error < best[2]
            stored = torch.where(better, scales.view(torch.uint8), best[1].view(torch.uint8))
            best = torch.where(better, codes, best[0]), stored.view(E4M3), error
    codes, scales, _ = best
    codes = codes.flatten(-2)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return NVFP4(packed, scales.squeeze(-1), global_scale, "linear")


def nearest_codes(x: Tensor) -> Tensor:
    """The E2M1 codes nearest to float32 x, ties to the even code, in the low nibble of uint8."""
    middles = torch.tensor(CODE_VALUES, dtype=torch.float32).unfold(0, 2, 1).mean(-1)
    # A tie goes down where the code below is even: below these middles, and at the others.
    middles[1::2] = torch.nextafter(middles[1::2], torch.zeros_like(middles[1::2]))
    codes = torch.bucketize(x.abs(), middles.to(x.device)).to(torch.uint8)
    return codes | torch.signbit(x).to(torch.uint8) << 3


def code_values(codes: Tensor) -> Tensor:
    """What E2M1 codes in the low nibble mean, float32."""
    values = (*CODE_VALUES, *(-value for value in CODE_VALUES))
    return torch.tensor(values, dtype=torch.float32, device=codes.device)[codes.int()]
