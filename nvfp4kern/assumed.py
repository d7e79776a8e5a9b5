"""GPUs that are not here, and tensors on them: addresses alone, of which plans are made."""

import itertools

from .addresses import CUDA, Array

GPUS = {
    "a100": (80, 108, 166912, 167936),
    "rtx4090": (89, 128, 101376, 102400),
    "h100": (90, 132, 232448, 233472),
    "h200": (90, 132, 232448, 233472),
    "b200": (100, 148, 232448, 233472),
    "rtx5090": (120, 170, 101376, 102400),
}
"""Compute capability times ten, SMs, bytes of shared memory for a CTA and for an SM."""

_addresses = itertools.count(1 << 40, 1 << 36)
"""No operand is larger than what lies between two."""


def setting(gpu: str) -> str:
    """NVFP4KERN_ASSUMED_GPU for it."""
    return ":".join(map(str, GPUS[gpu]))


def array(dtype: str, *shape: int) -> Array:
    return Array(next(_addresses), dtype, shape, (CUDA, 0))
