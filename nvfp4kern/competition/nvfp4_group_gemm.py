"""GPU MODE nvfp4_group_gemm: c = a @ b.T for every group.

`from nvfp4kern.competition.nvfp4_group_gemm import custom_kernel` is a whole submission.
"""

from .._C import competition_group_gemm as custom_kernel

__all__ = ["custom_kernel"]
