"""Recipe "gptq": the error of a weight's rounded columns is made up for by the columns that follow,
by what inputs have in common. After Frantar et al., arXiv:2210.17323."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..layout import NVFP4, SF_VEC
from .frozen import E4M3
from .inputs import Inputs
from .recipes import best_scales, code_values, nearest_codes

DAMPING = 0.01
"""Of the Hessian's mean diagonal, added to it: inputs that were not seen may come."""
COLUMNS = 8 * SF_VEC
"""After so many, the columns that follow them are updated, by one product."""


class Hessians(Inputs):
    """X^T X of all inputs X [rows, K] that a layer gets, float32 [K, K].

    values: by the layer's name and None, or by that of a stack's weight and the expert. What no
        input reached is not there.
    make: of such a key and K: where to sum, zeros.
    """

    def __init__(self, make: Callable[[str, int | None, int], Tensor] | None = None) -> None:
        super().__init__()
        self.values: dict[tuple[str, int | None], Tensor] = {}
        self._make = make

    def see(self, name: str, expert: int | None, given: Tensor) -> None:
        k, device = given.shape[-1], given.device
        if not given.numel() or expert == -1:
            return
        if expert is not None and not bool(given.any()):
            return  # Llama-4 gives an expert all tokens, and zeros for those that are not its own
        off: Any = torch.autocast(device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), off:
            x = given.detach().reshape(-1, k).float()
            if (name, expert) not in self.values:
                self.values[name, expert] = (
                    torch.zeros(k, k, device=device)
                    if self._make is None
                    else self._make(name, expert, k)
                )
            found = self.values[name, expert]
            found += (x.T @ x).to(found.device)


class Compensation:
    """What quantize_weight needs for "gptq", of a Hessian [K, K], which is copied to float64.

    The Hessian may be singular, as that of fewer inputs than K is, or of columns of zeros, which
    are rounded to nearest.

    Raises ValueError for a Hessian with NaN or infinities, and for what is none.
    """

    def __init__(self, hessian: Tensor) -> None:
        if not bool(hessian.isfinite().all()):
            raise ValueError("inputs of calibration: NaN, infinities, or too large for squares")
        damped = hessian.to(torch.float64, copy=True)
        mean = damped.diagonal().mean()
        damped.diagonal().add_(torch.where(mean > 0, mean * DAMPING, 1.0))
        try:
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
            self.upper = torch.linalg.cholesky(inverse, upper=True)
        except torch.linalg.LinAlgError as error:
            raise ValueError(f"inputs of calibration: no Hessian, {error}") from None

    def __call__(self, weight: Tensor, global_scale: Tensor) -> NVFP4[Tensor]:
        """Quantises rows [N, K], in float64.

        A block's scale factor is that of "mse" for what its columns have become when the first of
        them is reached: one of the weights as they came would clip what was added to them.
        """
        n, k = weight.shape
        if self.upper.shape != (k, k):
            raise ValueError(f"hessian: {list(self.upper.shape)}, expected [{k}, {k}]")
        upper = self.upper.to(weight.device)
        columns = (weight.T.double() / global_scale.double()).contiguous()
        codes = torch.empty(k, n, dtype=torch.uint8, device=weight.device)
        stored = torch.empty(k // SF_VEC, n, dtype=torch.uint8, device=weight.device)
        for left in range(0, k, COLUMNS):
            right = min(left + COLUMNS, k)
            errors = torch.empty_like(columns[left:right])
            for i in range(left, right):
                if i % SF_VEC == 0:
                    stored[i // SF_VEC] = best_scales(columns[i : i + SF_VEC].T.float())[0]
                    scales = stored[i // SF_VEC].view(E4M3).double()
                codes[i] = nearest_codes((columns[i] / scales).float())
                error = (columns[i] - code_values(codes[i]) * scales) / upper[i, i]
                columns[i + 1 : right].addr_(upper[i, i + 1 : right], error, alpha=-1)
                errors[i - left] = error
            columns[right:].addmm_(upper[left:right, right:].T, errors, alpha=-1)
        packed = (codes[::2] | codes[1::2] << 4).T.contiguous()
        return NVFP4(packed, stored.T.contiguous().view(E4M3), global_scale, "linear")
