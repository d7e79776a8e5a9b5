"""Checkpoints with NVFP4 weights: what they hold, and whether it is right.

Needs torch and safetensors, and google-re2 where a configuration has patterns of names: the extra
`models` brings them.
"""

from .files import CheckpointError, Files, TensorInfo
from .formats import Layer, Plan, Problem, Source, read_plan
from .load import load_checkpoint
from .meta import meta_parameters
from .mxfp4 import nvfp4_of_mxfp4
from .report import Report, inspect
from .save import save_checkpoint

__all__ = [
    "CheckpointError",
    "Files",
    "Layer",
    "Plan",
    "Problem",
    "Report",
    "Source",
    "TensorInfo",
    "inspect",
    "load_checkpoint",
    "meta_parameters",
    "nvfp4_of_mxfp4",
    "read_plan",
    "save_checkpoint",
]
