"""NVFP4 and FP8 by tables and torch's own e4m3: a second opinion that knows nothing of the package.

Also what a checkpoint directory means, in float64: `dequantized`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

BLOCK = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3 = torch.float8_e4m3fn
VALUES = torch.tensor(E2M1 + tuple(-v for v in E2M1), dtype=torch.float64)
MIDDLES = torch.tensor([(a + b) / 2 for a, b in zip(E2M1, E2M1[1:], strict=False)]).double()


def round_e2m1(x):
    """float64 -> codes: to nearest, ties to the even code, saturating at 6, the sign of x kept."""
    size = x.abs()
    below = torch.searchsorted(MIDDLES, size)  # a tie falls to the smaller of both
    tie = torch.isin(size, MIDDLES) & (below % 2 == 1)
    return (below + tie + 8 * torch.signbit(x)).to(torch.uint8)


def pack(codes):
    """[.., K] codes -> [.., K/2] bytes, the even one in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed):
    """[.., K/2] bytes -> [.., K] float64 values of the codes."""
    both = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return VALUES[both.long()]


def encode(x, multiplier):
    """[.., K] -> codes uint8 [.., K/2] and block scales e4m3 [.., K/16], computed in float64."""
    blocks = x.double().unflatten(-1, (-1, BLOCK))
    wanted = blocks.abs().amax(-1) / (6 * float(multiplier))
    scales = wanted.clamp(max=448).float().to(E4M3)
    step = scales.double() * float(multiplier)
    codes = round_e2m1(blocks / step.where(step > 0, torch.inf).unsqueeze(-1))
    return pack(codes.where((step > 0).unsqueeze(-1), 0).flatten(-2)), scales


def decode(packed, scales, multiplier=1.0):
    """Codes [.., K/2], e4m3 [.., K/16] and a multiplier -> float64 [.., K], exact."""
    blocks = unpack(packed).unflatten(-1, (-1, BLOCK)) * scales.double().unsqueeze(-1)
    return blocks.flatten(-2) * multiplier


def units(got, expected, dtype):
    """The largest difference in units in the last place that `expected` has in dtype."""
    expected = expected.double()
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    unit = torch.ldexp(torch.ones_like(expected), torch.frexp(expected.abs())[1] - digits)
    return ((got.double() - expected).abs() / unit).max().item()


@dataclass
class Packed:
    """An NVFP4 matrix [N, K] as ModelOpt means it: `multiplier` is its weight_scale_2."""

    codes: torch.Tensor
    scales: torch.Tensor
    multiplier: torch.Tensor
    input_scale: torch.Tensor | None = None
    pre_quant_scale: torch.Tensor | None = None


# --- A directory ---

BESIDE = re.compile(  # a tensor that only says how another one is read
    r"(\.|_)(weight_scale|weight_scale_2|weight_global_scale|input_scale|input_global_scale|"
    r"pre_quant_scale|k_scale|v_scale)$"
)


def read_directory(directory):
    """{name: tensor} of all safetensors of a directory, and its config."""
    tensors = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors, json.loads((Path(directory) / "config.json").read_text())


def dequantized(directory, fold=True):
    """{plain name: float64 tensor}: the weights that the float64 model is made of.

    Names are those of the unquantised checkpoint: each expert, and q, k, v, gate, up apart.
    fold: a `pre_quant_scale` is multiplied into the columns; False leaves the columns as they are.
    Nothing is rounded but a divisor's inverse.
    """
    tensors, config = read_directory(directory)
    plain = {}
    for name, tensor in tensors.items():
        if BESIDE.search(name):
            continue
        layer = name.removesuffix(".weight_packed").removesuffix(".weight")
        if tensor.dtype == torch.uint8 and tensor.ndim == 3:
            plain |= _experts(tensors, layer)
        elif tensor.dtype == torch.uint8:
            plain |= _parts(layer, _matrix(tensors, layer, tensor, fold), config)
        elif tensor.dtype == E4M3:
            plain[name] = tensor.double() * tensors[f"{layer}.weight_scale"].double()
        else:
            base, _, kind = name.rpartition(".")
            plain |= _parts(base, tensor.double(), config, kind)
    return plain


def input_scales(directory):
    """{plain layer name: the global scale of its input}, of the NVFP4 layers that have one."""
    tensors, _ = read_directory(directory)
    found = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if kind == "input_global_scale":
            found |= dict.fromkeys(_names(layer), 1 / tensor.item())
        elif kind == "input_scale" and tensors[f"{layer}.weight"].dtype == torch.uint8:
            found |= dict.fromkeys(_names(layer), tensor.item())
        elif kind.endswith("_proj_input_scale"):  # stacked
            names = _names(kind.removesuffix("_input_scale"))
            for e, row in enumerate(tensor.reshape(len(tensor), -1)):
                values = row.expand(len(names)).tolist()
                found |= {f"{layer}.{e}.{n}": v for n, v in zip(names, values, strict=True)}
    return found


def _matrix(tensors, layer, codes, fold):
    if f"{layer}.weight_global_scale" in tensors:
        multiplier = 1 / tensors[f"{layer}.weight_global_scale"].double()
    else:
        multiplier = tensors[f"{layer}.weight_scale_2"].double()
    matrix = decode(codes, tensors[f"{layer}.weight_scale"], multiplier.reshape(()))
    before = tensors.get(f"{layer}.pre_quant_scale")
    return matrix * before.double() if fold and before is not None else matrix


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def _names(layer):
    """The layers that a fused one stands for, or the layer itself."""
    parent, dot, own = layer.rpartition(".")
    return [f"{parent}{dot}{name}" for name in FUSED.get(own, (own,))]


def _parts(layer, tensor, config, kind="weight"):
    """Rows of qkv_proj and gate_up_proj go back to the layers that they were fused of."""
    names, sizes = _names(layer), [len(tensor)]
    if len(names) == 2:
        sizes = [len(tensor) // 2] * 2
    if len(names) == 3:
        kv = config["num_key_value_heads"] * config["head_dim"]
        sizes = [len(tensor) - 2 * kv, kv, kv]
    return {f"{n}.{kind}": p for n, p in zip(names, tensor.split(sizes), strict=True)}


def _experts(tensors, layer):
    """A stacked tensor [E, rows, K/2]; its multipliers are [E], [E, 1, 1] or [E, 2]."""
    codes, parent = tensors[layer], layer.rpartition(".")[0]
    names = _names(layer.rpartition(".")[2])
    multipliers = tensors[f"{layer}_weight_scale_2"].double().reshape(len(codes), -1)
    multipliers = multipliers.expand(len(codes), len(names))
    plain = {}
    for e, (code, scale) in enumerate(zip(codes, tensors[f"{layer}_weight_scale"], strict=True)):
        parts = decode(code, scale).chunk(len(names))
        for part, name, multiplier in zip(parts, names, multipliers[e], strict=True):
            plain[f"{parent}.{e}.{name}.weight"] = part * multiplier
    return plain
