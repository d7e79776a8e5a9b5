"""How a weight becomes NVFP4: the choice of its global scale and of its scale factors."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import torch
from torch import Tensor

from .. import torch as nk
from ..layout import NVFP4, SF_VEC
from ..types import Recipe, ScaleRecipe
from .frozen import E4M3, choice

RECIPES = get_args(Recipe)

CODE_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MOST, SMALLEST = 448.0, 2.0**-9
"""Scale factors, in E4M3. Without a smallest, blocks of small weights would vanish."""
MSE_MOST = (448, 384, 320, 256)
"""What the largest scale factor of a weight becomes, by the global scales that "mse" tries."""
MSE_STEPS = (0, 1, -1, 2, -2, 3, -3, 4, 5, 6)
"""The scale factors that "mse" tries for a block: so many E4M3 values above amax's."""
MSE_PIECE = {"cpu": 1 << 16}
"""Elements of a weight that "mse" looks at at once, which a CPU's cache holds, and of others."""


def quantize_weight(
    weight: Tensor,
    recipe: Recipe,
    global_scale: Tensor | None = None,
    compensation: Callable[[Tensor, Tensor], NVFP4[Tensor]] | None = None,
) -> NVFP4[Tensor]:
    """weight [N, K], float16, bfloat16 or float32 -> (uint8 [N, K/2], e4m3 [N, K/16], float32 []).

    "amax": nvfp4kern.quantize with the global scale max|weight| / (6 * 448).
    "four_six": of two scale factors for each block, by which its largest magnitude becomes 6 or 4,
        the one that leaves the smaller squared error; the global scale is max|weight| / (6 * 256).
        From "Four Over Six" (Cook et al., arXiv:2512.02010).
    "mse": of 4 global scales and, for each block, of 10 scale factors around that of "amax", those
        that leave the smallest squared error, which is thus at most that of "amax".
    "gptq": errors are made up for by other columns, which needs the layer's inputs. The global
        scale is that of "four_six": columns that others' errors were added to may become larger.
    global_scale: float32 [], where it is not of this weight alone; see global_scale_of.
    compensation: for "gptq" and no other, nvfp4kern.nn.gptq.Compensation of the layer's inputs.

    No scale factor is 0, by which a block of small weights would vanish.

    Raises ValueError for a weight with NaN or infinities. Synchronises with the device.
    """
    choice("recipe", recipe, RECIPES)
    if (recipe == "gptq") != (compensation is not None):
        raise ValueError(f"recipe: {recipe!r}, of which 'gptq' alone needs inputs of the layer")
    weight = weight.detach()
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise ValueError("weight: has NaN or infinities, expected finite values")
    if recipe in ("amax", "four_six"):
        scale: Any = "amax" if global_scale is None else global_scale
        options: dict[str, Any] = {"global_scale": scale, "smallest_scale": SMALLEST}
        options["recipe"] = recipe
        q = nk.quantize(weight.contiguous(), data_dtype=torch.uint8, **options)
        return q._replace(global_scale=torch.as_tensor(q.global_scale).reshape(()))
    if global_scale is None:
        global_scale = global_scale_of(weight.abs().amax(), recipe, [weight])
    if compensation is not None:
        return compensation(weight, global_scale)
    return _mse(weight, global_scale)


def global_scale_of(largest: Tensor, recipe: Recipe, pieces: Iterable[Tensor] = ()) -> Tensor:
    """float32 [], by which a recipe takes weights whose largest magnitude is `largest`.

    pieces: rows of these weights, all of them, which "mse" reads. Of global scales with equal
        errors it takes the smallest, which is that of "amax".
    """
    if recipe == "mse":
        factors = [MSE_MOST[0] / most for most in MSE_MOST]
        smallest = global_scale_of(largest, "amax")
        scales = torch.stack([smallest * factor for factor in factors])
        errors = torch.zeros(len(scales), dtype=torch.float64, device=scales.device)
        for piece in pieces:
            for blocks in _parts(piece):
                for i, factor in enumerate(factors):
                    error = best_scales(blocks / scales[i])[1]
                    errors[i] += error.sum(dtype=torch.float64) * factor**2
        return scales.take(errors.argmin())
    by: ScaleRecipe = "amax" if recipe == "amax" else "four_six"
    block = largest.float().expand(1, SF_VEC).contiguous()
    return nk.quantize(block, global_scale="amax", recipe=by).global_scale.reshape(())


def _mse(weight: Tensor, global_scale: Tensor) -> NVFP4[Tensor]:
    n, k = weight.shape
    codes = torch.empty(n * k // 2, dtype=torch.uint8, device=weight.device)
    stored = torch.empty(n * k // SF_VEC, dtype=torch.uint8, device=weight.device)
    at = 0
    for blocks in _parts(weight):
        x = blocks / global_scale
        scales = stored[at : at + len(x)]
        scales.copy_(best_scales(x)[0])
        found = nearest_codes(x / scales.view(E4M3).float()[:, None]).flatten()
        codes[at * SF_VEC // 2 :][: len(found) // 2] = found[::2] | found[1::2] << 4
        at += len(x)
    return NVFP4(codes.view(n, -1), stored.view(E4M3).view(n, -1), global_scale, "linear")


def _parts(weight: Tensor) -> Iterator[Tensor]:
    """Blocks of a weight, float32 [.., 16], some at a time."""
    blocks = weight.reshape(-1, SF_VEC)
    step = MSE_PIECE.get(weight.device.type, 1 << 24) // SF_VEC
    yield from (blocks[at : at + step].float() for at in range(0, len(blocks), step))


def best_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    """(scale factors as bytes [B], squared errors float32 [B]) of blocks x [B, 16], which are
    divided by the global scale already.

    Of equal errors the first of MSE_STEPS counts: amax's, then the nearest to it, then the larger.
    """
    x = x.abs()
    middle = (x.amax(-1) / CODE_VALUES[-1]).clamp(SMALLEST, MOST).to(E4M3).view(torch.uint8)
    best: tuple[Tensor, Tensor] | None = None
    for step in MSE_STEPS:
        scales = (middle.int() + step).clamp(1, 0x7E).to(torch.uint8)  # positive, and no NaN
        values = scales.view(E4M3).float()[:, None]
        error = nearest_magnitudes(x / values).mul_(values).sub_(x).square_().sum(-1)
        if best is None:
            best = scales, error
        else:
            better = error < best[1]
            best = torch.where(better, scales, best[0]), torch.where(better, error, best[1])
    assert best is not None
    return best


def nearest_magnitudes(x: Tensor) -> Tensor:
    """The E2M1 values nearest to float32 x >= 0, ties to the even code."""
    coarse = torch.where(x < 4, x.round(), (x * 0.5).round_().mul_(2))
    return torch.where(x < 2, (x * 2).round_().mul_(0.5), coarse).clamp_(max=CODE_VALUES[-1])


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
