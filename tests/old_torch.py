"""A stand-in for the tensors of torch before 2.10: no DLPack exchange API, capsules without fp4."""

import functools

import torch


@functools.cache
def old_type(base, export):
    members = {
        "__dlpack_c_exchange_api__": None,
        "__dlpack__": export,  # torch's own, also where `base` is a simulated GPU's
        "__torch_function__": torch._C._disabled_torch_function_impl,  # as fast as torch's own type
    }
    return type("Old", (base,), members)


def old(tensor):
    """The same memory as a tensor whose type has no exchange API."""
    return tensor.as_subclass(old_type(type(tensor), torch.Tensor.__dlpack__))


def old_data(data):
    """The same for each tensor of a drop-in's tuple."""
    if isinstance(data, torch.Tensor):
        return old(data)
    return type(data)(map(old_data, data)) if isinstance(data, (tuple, list)) else data


def refuse(tensor, **_):
    """In place of torch.Tensor.__dlpack__: torch 2.8 raises this for float4 and float8."""
    raise BufferError("float4 types are not supported by dlpack")
