"""GPU MODE nvfp4_gemv: c[m, 0, l] = sum_k a[m, k, l] * b[0, k, l].

`from nvfp4kern.competition.nvfp4_gemv import custom_kernel` is a whole submission.
"""

from .._C import competition_gemv as custom_kernel

__all__ = ["custom_kernel"]
