"""GPU MODE nvfp4_group_gemm: c = a @ b.T for every group.

`from nvfp4kern.competition.nvfp4_group_gemm import custom_kernel` is a whole submission.
"""

from typing import TYPE_CHECKING, Any

from .._C import competition_group_gemm

if TYPE_CHECKING:
    import torch


def custom_kernel(data: tuple[Any, ...]) -> "list[torch.Tensor]":
    """Write every c and return them as a list.

    data: (abc_tensors, sfasfb_tensors, sfasfb_reordered_tensors, problem_sizes), one (a, b, c),
    (sfa, sfb), (sfa_permuted, sfb_permuted) and (m, n, k, 1) per group.
    """
    return competition_group_gemm(data)
