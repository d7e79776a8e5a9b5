"""MXFP4 as NVFP4, to the bit: a power of two for 32 elements becomes two equal scale factors."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..layout import NVFP4
from ..nn.stacks import STACKS
from .files import Files, Index, Made
from .plan import Layer, Plan, Source
from .untrusted import CheckpointError

MX_VEC = 32
BIAS, NAN = 127, 255
LARGEST = 8
"""The largest exponent of an E4M3 power of two, 2^8; the least is 2^-9."""
SPAN = 17
WITHOUT_SIGNS = 0x7777_7777_7777_7777
SCALES = ("uint8", "float8_e8m0fnu")
E4M3_POWERS = torch.tensor([2.0**e for e in range(LARGEST - SPAN, LARGEST + 1)])


def nvfp4_of_mxfp4(codes: Tensor, scales: Tensor) -> NVFP4[Tensor]:
    """The same values as NVFP4(codes [.., N, K/2], float8_e4m3fn [.., N, K/16], float32 [.., N]).

    codes: uint8 [.., N, K/2], or [.., N, K/32, 16] as gpt-oss has its blocks.
    scales: E8M0 [.., N, K/32], uint8 or float8_e8m0fnu: 2^(byte - 127).

    The last is a global scale for each row, a power of two. A block of zeros has no exponent.

    Raises ValueError for a row whose other blocks' exponents differ by more than 17, which E4M3
    does not have, and for NaN: nothing is ever rounded. Synchronises with the device.
    """
    return _converted(codes, scales, ())


def _converted(codes: Tensor, scales: Tensor, index: Index) -> NVFP4[Tensor]:
    """nvfp4_of_mxfp4 of tensor[index]; an error names the row of the tensor."""
    if codes.dim() > scales.dim():
        codes = codes.flatten(-2)
    *rows, blocks = scales.shape
    if codes.shape != (*rows, blocks * MX_VEC // 2) or codes.dtype != torch.uint8:
        came = f"{codes.dtype} {list(codes.shape)}"
        raise ValueError(f"codes: {came}, expected uint8 {[*rows, blocks * MX_VEC // 2]}")
    stored = scales.view(torch.uint8).int()
    flat = codes.reshape(-1)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    halves = flat.view(torch.int64).view(*scales.shape, 2)  # of 16 codes each
    used = (halves & WITHOUT_SIGNS != 0).any(-1)
    # A NaN scale makes zeros NaN, too.
    _refuse(stored == NAN, index, "has a scale that is NaN")
    least = stored.where(used, NAN).amin(-1) if blocks else stored.new_full(rows, NAN)
    most = stored.where(used, -1).amax(-1) if blocks else stored.new_full(rows, -1)
    empty = most < 0
    wide = (most - least > SPAN).unsqueeze(-1)
    _refuse(wide, index, f"has exponents that differ by more than {SPAN}, expected at most {SPAN}")
    shift = (most - LARGEST).clamp(min=1).where(~empty, BIAS)  # below 1 it would be denormal
    powers = E4M3_POWERS.to(codes.device)
    at = (stored - shift.unsqueeze(-1) + SPAN - LARGEST).clamp(0, SPAN)
    factors = powers[at].to(torch.float8_e4m3fn).repeat_interleave(2, -1)
    return NVFP4(codes, factors, (shift << 23).view(torch.float32))


def _refuse(wrong: Tensor, index: Index, what: str) -> None:
    rows = wrong.any(-1)
    if bool(rows.any()):
        left = rows.nonzero()[0].tolist()
        first = [at if isinstance(at, int) else (at.start or 0) + left.pop(0) for at in index]
        raise ValueError(f"scales: row {', '.join(map(str, first + left))} {what}")


def take_mxfp4(plan: Plan, files: Files, layer: Layer) -> None:
    """Lists a layer's E8M0 scales as E4M3 and a global scale for each row, which reading makes."""
    codes, scales = (layer.sources[part].name for part in ("weight", "weight_scale"))
    info, weight = files.tensors[scales], files.tensors[codes]
    if weight.shape[-1:] == (MX_VEC // 2,) and len(weight.shape) == len(info.shape) + 1:
        files.flatten(codes)
        weight = files.tensors[codes]
    *rows, half = weight.shape or (0,)
    expected = (*rows, half * 2 // MX_VEC)
    if half % (MX_VEC // 2):
        plan.wrong(codes, f"has K = {2 * half}, expected a multiple of {MX_VEC}")
        return
    if info.dtype not in SCALES or info.shape != expected:
        came = f"{info.dtype} {list(info.shape)}"
        plan.wrong(scales, f"{came}, expected {SCALES[0]} {list(expected)}, E8M0 for 32 elements")
        return

    outer = len(rows) - 1  # 1 of a stack, whose experts are converted one by one

    def part(number: int) -> Made:
        """One of what a conversion makes, of which the last is kept."""

        def make(stored: Callable[[str, Index], Tensor], index: Index) -> Tensor:
            expert = index[:outer]

            def convert() -> NVFP4[Tensor]:
                try:
                    return _converted(stored(codes, expert), stored(scales, expert), expert)
                except ValueError as error:
                    what = str(error).removeprefix("scales: ")
                    raise CheckpointError(f"{scales}: {what}") from None

            found = files.once((scales, repr(expert)), convert)
            whole = (slice(None),) * (found.global_scale.dim() - 1)
            return found[number][(*whole, *index[outer:])]

        return Made((codes, scales), make)

    by_row = f"{scales} by rows"
    files.make(scales, "float8_e4m3fn", (*rows, half // 8), part(1))
    files.make(by_row, "float32", tuple(rows), part(2))
    layer.sources["weight_scale_2"] = Source(by_row)
    if layer.input_quant is not None:
        layer.input_quant = None
        plan.warn(layer.name, "its activations are MXFP4; they stay at 16 bits")


def plan_mxfp4(files: Files) -> Plan:
    """Files with OpenAI's names. A linear layer has weight_blocks [N, K/32, 16] and weight_scales
    [N, K/32]; a stack of gpt-oss's experts gate_up_proj_blocks [E, 2 I, H/32, 16] and so on, where
    rows are gate, up, gate, up."""
    plan = Plan("MXFP4", "unknown")
    for blocks in files.tensors:
        name, scales = blocks.removesuffix("_blocks"), f"{blocks.removesuffix('_blocks')}_scales"
        if name == blocks or scales not in files.tensors:
            continue
        layer, _, part = name.rpartition(".")
        bias = f"{name}_bias"
        if part == "weight":
            name, bias = layer, f"{layer}.bias"
        elif part not in STACKS:
            plan.wrong(blocks, f"is no weight, nor one of {', '.join(STACKS)}")
            continue
        sources = {"weight": Source(blocks), "weight_scale": Source(scales)}
        if bias in files.tensors:
            sources["bias"] = Source(bias)
        plan.layers[name] = Layer(name, "nvfp4", None, sources)
    used = {source.name for layer in plan.layers.values() for source in layer.sources.values()}
    plan.plain = [name for name in files.tensors if name not in used]
    for name, layer in plan.layers.items():
        take_mxfp4(plan, files, layer)
        if name.endswith(f".{STACKS[0]}") and not any(each.fatal for each in plan.problems):
            for source in layer.sources.values():
                files.part_by_turns(source.name)
    return plan
