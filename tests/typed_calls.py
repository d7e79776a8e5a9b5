"""Calls as a user writes them, for type checkers: test_types.py runs them, and mypy --strict and
pyright read them. assert_type() is what they compare; where it runs it does nothing."""

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import nvfp4kern as nk
import nvfp4kern.torch as nkt
from nvfp4kern import NVFP4, nn
from nvfp4kern.competition.nvfp4_gemm import custom_kernel
from nvfp4kern.types import Backend, Layouts, Tensor


def numpy_calls() -> NDArray[np.float16]:
    x = np.ones((4, 32), np.float16)
    q = nk.quantize(x, global_scale="amax")
    assert_type(q, NVFP4[NDArray[Any]])
    codes, scales, s2 = q
    assert_type(scales, NDArray[Any])
    assert_type(s2, NDArray[Any] | float)
    d: NDArray[np.float16] = nk.gemm(codes, codes, scales, scales, alpha=s2)
    rows = nk.quantize(x, global_scale="token")
    nk.gemm(rows, q, out=d)
    assert not isinstance(rows.global_scale, (float, int))
    nk.gemm(codes, codes, scales, scales, row_scale=rows.global_scale)
    nk.gemv(codes, codes[:1], scales, scales[:1], alpha=2.0, out=d[:, :1])
    y = nk.dequantize(q, out_dtype=np.float16)
    assert_type(y, NDArray[Any])
    return nk.dequantize((codes, scales, None), out=y)


def torch_calls() -> torch.Tensor:
    x, w = torch.ones(4, 32, dtype=torch.bfloat16), torch.ones(16, 32)
    qx, qw = nk.quantize(x), nk.quantize(w, scale_layout="blocked")
    assert_type(qx, NVFP4[torch.Tensor])
    assert_type(nk.quantize(x, data_dtype="uint8").to("cpu"), NVFP4[torch.Tensor])
    layouts: Layouts = ("linear", "blocked")
    assert_type(
        nk.gemm(qx.data, qw.data, qx.scales, qw.scales, scale_layout=layouts, out_dtype="bfloat16"),
        torch.Tensor,
    )
    assert_type(nk.gemm(x, qw.data, None, nk.to_blocked(nk.quantize(w).scales),
                        scale_layout=layouts, bias=torch.zeros(16)), torch.Tensor)  # fmt: skip
    weights, ids = nk.route(x, w.bfloat16(), 2, score="sigmoid", renormalize=False)
    weights, ids = nk.route(x, w.bfloat16(), 2, score="sqrt_softplus", per_expert_scale=w[:, 0])
    assert_type(ids, torch.Tensor)
    routed = nk.route(x, w.bfloat16(), 2, permutation=True)
    assert_type(routed, tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor])
    offsets = torch.tensor([0, 4], dtype=torch.int32)
    experts = nk.quantize(w[None])
    e = nk.grouped_gemm(qx.data, experts.data, qx.scales, experts.scales, offsets=offsets)
    assert_type(e, torch.Tensor)
    experts_of_rows = nk.grouped_gemm(
        x, experts.data, None, experts.scales, offsets=offsets, rows=routed[4], rows_per_token=2
    )
    assert_type(experts_of_rows, torch.Tensor)
    row_of = nk.route(x, w.bfloat16(), 2, permutation=True, return_row_of=True)[5]
    ids = torch.zeros(4, 2, dtype=torch.int32)
    permutation = nk.sort_by_expert(ids, 16)
    assert_type(permutation, tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor])
    combined = nk.combine(experts_of_rows, row_of, routed[0], residual=x[:, :16])
    assert_type(combined, torch.Tensor)
    gated = nk.grouped_dual_gemm(
        x, experts.data, None, experts.scales, offsets, rows=routed[4], rows_per_token=2
    )
    assert_type(gated, torch.Tensor)
    stack = nk.quantize(torch.ones(1, 32, 32))
    encoded = nk.grouped_dual_gemm(
        x, stack.data, None, stack.scales, offsets, quantized=True, global_scale=0.5
    )
    assert_type(encoded, NVFP4[torch.Tensor])
    encoded = nk.grouped_gemm(
        x, stack.data, None, stack.scales, offsets=offsets, activation="relu2", quantized=True
    )
    assert_type(encoded, NVFP4[torch.Tensor])
    lists = [qx.data], [qx.data], [qx.scales], [qx.scales]
    outs = nk.grouped_gemm(*lists, alpha=[2.0], activation="relu")
    assert_type(outs, list[torch.Tensor])
    both = qx.data, qx.data, qx.data, qx.scales, qx.scales, qx.scales
    h: torch.Tensor = nk.dual_gemm(*both, activation="gelu", alpha1=qx.global_scale)
    return weights + nk.global_scale_from_divisor(2.0) * h[:, :2]


def registered_calls() -> torch.Tensor:
    x = torch.ones(4, 32)
    q = nkt.quantize(x, global_scale="amax")
    assert_type(q, NVFP4[torch.Tensor])
    d = nkt.gemm(q.data, q.data, q.scales, q.scales, alpha=q.global_scale, out_dtype=torch.float32)
    assert_type(d, torch.Tensor)
    assert_type(nkt.grouped_gemm([q.data], [q.data], [q.scales], [q.scales]), list[torch.Tensor])
    stack, ends = (q.data[None], q.scales, q.scales[None]), torch.zeros(2, dtype=torch.int32)
    assert_type(nkt.grouped_dual_gemm(q.data, *stack, ends, activation="relu"), torch.Tensor)
    whole = nkt.quantize(torch.ones(1, 32, 32))
    encoded = nkt.grouped_dual_gemm(x.half(), whole.data, None, whole.scales, ends, quantized=True)
    encoded = nkt.grouped_dual_gemm(
        x.half(), whole.data, None, whole.scales, ends, row_scale=x[:, 0], quantized=True
    )
    assert_type(encoded, NVFP4[torch.Tensor])
    encoded = nkt.grouped_gemm(
        x.half(), whole.data, None, whole.scales, offsets=ends, quantized=True, global_scale=2.0
    )
    assert_type(encoded, NVFP4[torch.Tensor])
    assert_type(nkt.dequantize(q, out_dtype="float16"), torch.Tensor)
    assert_type(nkt.from_blocked(nkt.to_blocked(q.scales), 4, 2), torch.Tensor)
    weights, *_, row_of = nkt.route(x.half(), x.half(), 2, permutation=True, return_row_of=True)
    assert_type(nkt.sort_by_expert(row_of.view(4, 2), 8)[3], torch.Tensor)
    assert_type(nkt.combine(x.new_ones(8, 16), row_of, weights, out_dtype="float32"), torch.Tensor)
    return nkt.gemv(q.data, q.data[:1], q.scales, q.scales[:1]) + weights


def a_function_of_any_library(x: Tensor) -> Tensor:
    return nk.quantize(x).data


def facts() -> list[str]:
    rows: list[Backend] = nk.backends()
    plan = nk.explain("to_blocked", np.zeros((1, 1), np.uint8))
    assert_type(plan, dict[str, str | int | bool])
    nk.warmup("cpu")
    return [row["name"] for row in rows if row["why_not"] is None]


def competition(data: tuple[Any, ...]) -> torch.Tensor:
    return custom_kernel(data)


def layer_calls() -> torch.Tensor:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 16)).bfloat16()
    names = nn.quantize_(model, nn.NVFP4Config(recipe="four_six", input_quant="dynamic"))
    assert_type(names, nn.QuantizationReport)
    assert_type((names[0], names.kept, names.share), tuple[str, dict[str, str], float])
    layer = nn.NVFP4Linear.from_linear(torch.nn.Linear(32, 16, dtype=torch.bfloat16))
    assert_type(layer, nn.NVFP4Linear)
    assert_type(layer.dequantize(torch.bfloat16), torch.Tensor)
    both = nn.fuse([layer, layer])
    x = torch.ones(4, 32, dtype=torch.bfloat16)
    moe = nn.NVFP4MoE(32, 64, 4, 2, score="sigmoid", correction_bias=True, dtype=torch.bfloat16)
    experts: nn.NVFP4Experts = moe.experts
    assert experts.num_experts == 4 and both.out_features == 32
    swiglu = nn.NVFP4SwiGLU(32, 64, input_quant="static")
    assert_type(swiglu.gate_proj.input_quant, nn.InputQuant)
    result: torch.Tensor = model(x)
    return result


def distributed_calls(model: torch.nn.Module) -> list[str]:
    """Types alone: there is no group."""
    from nvfp4kern.distributed import ColumnParallel, Cut, ExpertParallel, RowParallel, slice_

    rows = ColumnParallel(32, 48, False, parts=(32, 16), head_dim=8, input_quant="amax")
    assert_type(rows.cuts["weight"], Cut)
    columns = RowParallel.slice_of(torch.nn.Linear(32, 16), reduce_dtype=torch.float32)
    assert_type(columns, RowParallel)
    y: torch.Tensor = columns(torch.ones(4, 16))
    experts = ExpertParallel(32, 64, 4, tokens="own", tokens_per_rank=8, input_quant="static")
    assert_type(experts.forward(y, y.int(), y), torch.Tensor)
    return slice_(model, {"*_proj": ColumnParallel.slice_of, "*.experts": ExpertParallel.slice_of})


def checkpoint_calls(folder: str) -> list[str]:
    """Types alone: safetensors is an extra."""
    from nvfp4kern.checkpoint import Report, load_checkpoint, meta_parameters, save_checkpoint

    with meta_parameters():
        model = torch.nn.Linear(32, 16)
    report = load_checkpoint(model, folder, device="cpu", input_quant=None)
    assert_type(report, Report)
    save_checkpoint(model, folder, max_shard_bytes=10**9)
    return report.warnings
