"""Importing this makes SGLang importable on a machine without a GPU. Nothing of it computes.

SGLang's wheels are for CUDA. What its modules import and never call here is a stand-in: the kernels
of sgl_kernel raise when called, and operators of torchvision are declared where its library does
not load beside a torch for CPUs.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import torch

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"


class Kernels(ModuleType):
    """A module with any function: each raises."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_, **__):
            raise NotImplementedError(f"sgl_kernel.{name} in a test")

        return kernel


if find_spec("sgl_kernel") is None:
    sys.modules["sgl_kernel"] = Kernels("sgl_kernel")
    sys.modules["sgl_kernel"].__spec__ = ModuleSpec("sgl_kernel", None)
if torch.version.cuda is None and find_spec("torchvision") is not None:
    DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
