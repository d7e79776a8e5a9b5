"""GPU MODE nvfp4_dual_gemm: c = silu(a @ b1.T) * (a @ b2.T).

`from nvfp4kern.competition.nvfp4_dual_gemm import custom_kernel` is a whole submission.
"""

from .._C import competition_dual_gemm as custom_kernel

__all__ = ["custom_kernel"]
