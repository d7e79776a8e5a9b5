"""GPU MODE nvfp4_gemm: c[m, n, l] = sum_k a[m, k, l] * b[n, k, l].

`from nvfp4kern.competition.nvfp4_gemm import custom_kernel` is a whole submission.
"""

from .._C import competition_gemm as custom_kernel

__all__ = ["custom_kernel"]
