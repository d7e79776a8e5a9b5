"""Layers of nvfp4kern.nn across ranks of torch.distributed: NCCL on GPUs, gloo on CPUs.

Tensor parallelism: `ColumnParallel` has some rows of a weight, `RowParallel` some columns and adds
the ranks' sums. Expert parallelism: `ExpertParallel` has some experts, and tokens come to them.

A rank's layer takes the place of the whole one, by `slice_`, before a checkpoint is loaded or
after. load_checkpoint then reads only what the rank has.

All ranks call the same layers with the same dtype, k and number of tokens, see docs/distributed.md.
After the first call nothing synchronises with the device, so a CUDA graph takes a forward pass with
its collectives. Layers are for inference: an input that wants a gradient is an error.
"""

from .cut import Cut, Slice
from .experts import ExpertParallel
from .linear import ColumnParallel, RowParallel
from .slicing import slice_

__all__ = [
    "ColumnParallel",
    "Cut",
    "ExpertParallel",
    "Slice",
    "RowParallel",
    "slice_",
]
