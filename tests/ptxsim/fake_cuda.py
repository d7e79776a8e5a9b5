"""A torch whose GPU is the simulated one: what asks for device="cuda" gets memory of the host that
DLPack presents as CUDA's, and that the simulator's kernels may touch.

As a pytest plugin (-p ptxsim.fake_cuda) it runs the package's tests on the simulator as they are.
"""

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from . import build

if not {"NVFP4KERN_LIBCUDA", "NVFP4KERN_PTX_DIR", "PTXSIM_CC"} <= set(os.environ):
    os.environ.update(build.environment() | os.environ)

DEVICE = torch.device("cuda:0")
VERSIONED, UNVERSIONED = b"dltensor_versioned", b"dltensor"
DEVICE_AT = {VERSIONED: 4 * 8 + 8, UNVERSIONED: 8}  # of DLTensor.device in the managed tensor
library = ctypes.CDLL(os.environ["NVFP4KERN_LIBCUDA"])
library.ptxsim_report.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
library.ptxsim_report.restype = ctypes.c_size_t
library.ptxsim_adopt.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def as_cuda(capsule):
    """Makes the tensor of a fresh capsule one of cuda:0."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    name = api.PyCapsule_GetName(ctypes.py_object(capsule))
    managed = api.PyCapsule_GetPointer(ctypes.py_object(capsule), ctypes.c_char_p(name))
    device = (ctypes.c_int32 * 2).from_address(managed + DEVICE_AT[name])
    assert device[0] == 1, "not a CPU tensor"
    device[:] = 2, 0  # kDLCUDA
    return capsule


class GpuTensor(torch.Tensor):
    """What torch makes of such tensors is such a tensor again, until .cpu()."""

    __dlpack_c_exchange_api__ = None
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)

    def adopt(self):
        """Lets kernels touch its memory. To be called without torch functions."""
        storage = self.untyped_storage()
        library.ptxsim_adopt(storage.data_ptr(), storage.nbytes())

    def data_ptr(self):
        with torch._C.DisableTorchFunction():
            self.adopt()
            return plain(self).data_ptr()

    def __dlpack__(self, *, stream=None, max_version=None):
        with torch._C.DisableTorchFunction():
            self.adopt()
            return as_cuda(plain(self).__dlpack__(max_version=max_version))

    def __dlpack_device__(self):
        return 2, 0


def is_device(value, kind):
    if isinstance(value, str):
        return value.partition(":")[0] == kind
    return isinstance(value, torch.device) and value.type == kind


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


class CudaOnHost(TorchFunctionMode):
    """Every call of torch, with devices replaced."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        on_gpu = isinstance(args[0], GpuTensor) if args else False
        if func is torch.Tensor.cuda:
            return args[0].clone().as_subclass(GpuTensor)
        if func is torch.Tensor.cpu:
            return plain(args[0].clone()) if on_gpu else args[0]
        wanted = [
            value for value in (*args, *kwargs.values()) if isinstance(value, (str, torch.device))
        ]
        to_gpu = any(is_device(value, "cuda") for value in wanted)
        to_cpu = any(is_device(value, "cpu") for value in wanted)
        if to_gpu:
            args = tuple("cpu" if is_device(value, "cuda") else value for value in args)
            kwargs = {k: "cpu" if is_device(v, "cuda") else v for k, v in kwargs.items()}
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or not (to_gpu or to_cpu):
            return result
        if any(result is value for value in args):
            result = result.clone()
        return result.as_subclass(GpuTensor) if to_gpu else plain(result)


class Stream:
    cuda_stream = 0

    def __init__(self, *_):
        pass

    def synchronize(self):
        pass


def properties():
    """As much of them as the package asks for."""
    major, minor = map(int, os.environ["PTXSIM_CC"].split("."))
    return SimpleNamespace(
        name="simulated GPU",
        major=major,
        minor=minor,
        multi_processor_count=int(os.environ.get("PTXSIM_SMS", 0)),
        L2_cache_size=0,
        total_memory=0,
    )


def install():
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = Stream
    torch.cuda.get_device_capability = lambda *_: (properties().major, properties().minor)
    torch.cuda.get_device_properties = lambda *_: properties()
    CudaOnHost().__enter__()


def report():
    """The counts and findings of this process."""
    text = ctypes.create_string_buffer(library.ptxsim_report(None, 0) + 1)
    library.ptxsim_report(text, len(text))
    return json.loads(text.value.decode())


def pytest_unconfigure():
    """What the simulator found during the session, to the file that PTXSIM_REPORT names."""
    if "PTXSIM_REPORT" in os.environ:
        Path(os.environ["PTXSIM_REPORT"]).write_text(json.dumps(report()))


install()
