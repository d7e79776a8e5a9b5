"""float64 values of NVFP4 layers, by none of nvfp4kern.nn's code, and layers of random weights."""

import warnings

import torch
from torch.autograd import forward_ad

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
VALUES = torch.cat([VALUES, -VALUES])
UINT8, E4M3 = torch.uint8, torch.float8_e4m3fn


def decoded(codes, scales, global_scale):
    """float64 [.., N, K] of codes [.., N, K/2], scales and anything that broadcasts."""
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()
    return VALUES[nibbles] * scales.double().repeat_interleave(16, -1) * global_scale


def weights(seed, rows, columns, orders=0.0):
    """float32, normal, with blocks that span so many orders of magnitude."""
    draw = torch.Generator().manual_seed(seed)
    blocks = torch.randn(rows, columns // 16, 16, generator=draw)
    return (blocks * 10 ** (orders * torch.rand(rows, columns // 16, 1, generator=draw))).flatten(1)


def quantized(x, global_scale, factor=None):
    """float64 x after NVFP4 with that global scale: the contract's formula, in float32 as there."""
    blocks = x.float().unflatten(-1, (-1, 16))
    factor = 1 / torch.as_tensor(global_scale).float() if factor is None else factor
    scales = blocks.abs().amax(-1, keepdim=True) * (factor * torch.tensor(1 / 6))
    scales = scales.clamp(max=448).to(E4M3).float()
    scaled = torch.where(scales > 0, blocks * (1 / (scales * (1 / factor))), 0.0).double()
    odd = torch.arange(16) % 2 * 1e-9  # of two as near the even code
    nearest = ((scaled[..., None] - VALUES).abs() + odd).argmin(-1)
    return (VALUES[nearest] * scales.double() * global_scale).flatten(-2)


def quantized_by_amax(x):
    largest = x.float().abs().max()
    return quantized(x, (largest / 2688).double(), 2688 / largest)


def quantized_by_token(x):
    largest = x.float().abs().amax(-1)[..., None, None]
    factor = torch.tensor(2688.0) / largest  # a number by a tensor would round twice
    return quantized(x, (largest / 2688).double(), factor)


def filled(layer, seed):
    """Random codes, scale factors and global scales of a sane size."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in layer.named_parameters():
        if value.dtype == UINT8:
            value.data.random_(0, 256, generator=draw)
        elif value.dtype == E4M3:
            value.data = torch.empty(value.shape).uniform_(0.1, 2, generator=draw).to(E4M3)
        elif name.endswith(("scale_2", "input_scale")):
            value.data.uniform_(0.01, 0.04, generator=draw)
        else:
            value.data.normal_(generator=draw)
    for module in layer.modules():
        if hasattr(module, "finish"):
            module.finish()
    return layer


def near(got, want, size):
    """16-bit results: within 2^-8 of themselves, and of what was added up."""
    error = (got.double() - want).abs()
    assert bool((error <= 2.0**-8 * want.abs() + 2.0**-10 * size).all()), error.max()


def activations(*shape, dtype=torch.bfloat16, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seen(layer, x):
    """The input that the layer's product sees, float64."""
    x = x.double()
    if layer.pre_quant_scale is not None:
        x = (x * layer.pre_quant_scale.double()).to(layer.pre_quant_scale.dtype).double()
    if layer.input_quant is None:
        return x
    if layer.input_quant == "amax":
        return quantized_by_amax(x)
    if layer.input_quant == "token":
        return quantized_by_token(x)
    return quantized(x, {"static": layer.input_scale, "dynamic": 1.0}[layer.input_quant])


def with_tangent(x):
    """For forward-mode AD. The first one makes torch compile a script, of which it warns itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return forward_ad.make_dual(x, torch.ones_like(x))
