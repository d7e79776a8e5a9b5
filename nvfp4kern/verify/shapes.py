"""The shapes of the GPU MODE NVFP4 problems, and routing shapes of models in use."""

import math

# (m, k, l)
GEMV_TESTS = [
    (128, 256, 1), (128, 1536, 1), (128, 3072, 1), (256, 7168, 1), (2432, 4608, 2),
    (384, 7168, 2), (512, 512, 2), (512, 4096, 2), (512, 1536, 2),
]  # fmt: skip
GEMV_BENCHMARKS = [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)]

# (m, n, k, l)
GEMM_TESTS = [
    (128, 256, 256, 1), (128, 1536, 7168, 1), (128, 3072, 1536, 1), (256, 7168, 256, 1),
    (256, 7168, 2048, 1), (2304, 4608, 7168, 1), (384, 7168, 2304, 1), (512, 512, 7168, 1),
    (512, 4096, 512, 1), (512, 1536, 7168, 1),
]  # fmt: skip
GEMM_BENCHMARKS = [(128, 7168, 16384, 1), (128, 4096, 7168, 1), (128, 7168, 2048, 1)]

DUAL_GEMM_TESTS = [
    (1536, 512, 7168, 1), (256, 512, 256, 1), (3072, 1024, 1536, 1), (7168, 1024, 256, 1),
    (7168, 2304, 2048, 1), (4608, 384, 7168, 1), (7168, 384, 2304, 1), (512, 768, 7168, 1),
    (4096, 768, 512, 1),
]  # fmt: skip
DUAL_GEMM_BENCHMARKS = [
    (256, 4096, 7168, 1), (512, 4096, 7168, 1), (256, 3072, 4096, 1), (512, 3072, 7168, 1),
]  # fmt: skip


def _groups(ms, ns, ks):
    return [(m, n, k, 1) for m, n, k in zip(ms, ns, ks, strict=True)]


# lists of (m, n, k, l), one for each group
GROUP_GEMM_TESTS = [
    _groups([96, 128], [128, 256], [256, 512]),
    _groups([256, 72], [512, 384], [256, 256]),
    _groups([128, 128], [128, 256], [512, 256]),
    _groups([80, 128, 256], [384, 256, 128], [256, 512, 256]),
    _groups([64, 72, 96], [128, 384, 512], [512, 512, 256]),
    _groups([64, 256, 128], [768, 128, 256], [512, 256, 512]),
    _groups([128, 128, 64], [256, 512, 512], [768, 256, 768]),
    _groups([128, 128, 128, 128], [128, 128, 128, 128], [512, 256, 512, 256]),
    _groups([40, 56, 384, 512], [512, 384, 256, 128], [256, 256, 256, 256]),
    _groups([512, 384, 256, 128], [256, 256, 256, 256], [512, 768, 512, 768]),
]
GROUP_GEMM_BENCHMARKS = [
    [(m, 4096, 7168, 1) for m in (80, 176, 128, 72, 64, 248, 96, 160)],
    [(m, 7168, 2048, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160)],
    [(m, 3072, 4096, 1) for m in (192, 320)],
    [(m, 4096, 1536, 1) for m in (128, 384)],
]

# (tokens, experts, top, n, k): a layer's gate and up, n the intermediate size, k the hidden one
EXPERT_TESTS = [(8, 8, 2, 256, 512), (64, 16, 4, 384, 1024)]
EXPERT_BENCHMARKS = [(8, 128, 8, 768, 2048), (64, 128, 8, 768, 2048)]

# (m, n, k) with k the hidden size; top 4 of fp16 logits, softmax
ROUTE_BENCHMARKS = [
    (512, 8, 128), (512, 16, 128), (1024, 64, 512), (2048, 128, 1024), (4096, 64, 2048),
    (4096, 128, 2048),
]  # fmt: skip
ROUTE_LARGE = [
    (1, 256, 7168), (64, 256, 7168), (512, 256, 7168), (4096, 256, 7168), (4096, 384, 7168),
    (1024, 128, 4096),
]  # fmt: skip

TESTS = {
    "gemv": GEMV_TESTS,
    "gemm": GEMM_TESTS,
    "dual_gemm": DUAL_GEMM_TESTS,
    "group_gemm": GROUP_GEMM_TESTS,
}
BENCHMARKS = {
    "gemv": GEMV_BENCHMARKS,
    "gemm": GEMM_BENCHMARKS,
    "dual_gemm": DUAL_GEMM_BENCHMARKS,
    "group_gemm": GROUP_GEMM_BENCHMARKS,
}


def multiply_adds(problem, shape):
    """The multiply-adds of a shape."""
    if problem == "group_gemm":
        return sum(math.prod(group) for group in shape)
    return math.prod(shape) * (2 if problem == "dual_gemm" else 1)
