"""Bad input raises an error that names the argument, and changes nothing."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import (
    FUNCTIONS,
    G,
    K,
    M,
    N,
    activated,
    batched,
    by_rows,
    contiguous,
    dequantize,
    dual_gemm,
    encoded,
    from_blocked,
    gated,
    gemm,
    gemv,
    group_list,
    guards_in,
    inverting,
    invoke,
    local,
    permuting,
    quantize,
    route,
    sigmoid,
    stacked,
    to_blocked,
    w4a16,
)
from generators import Guarded
from refusals import given, int32, item, refused, swap, to, wide, zeros

import nvfp4kern


@pytest.mark.parametrize("base", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_good_input_is_good(device, base):
    args = base(device)
    invoke(base, args)
    for guard in guards_in(args["out"]):
        assert guard.guards_intact() and not guard.untouched()


def output(*shape, dtype="float16"):
    return lambda args: {"out": Guarded(shape, dtype, args["a"].device)}


def one_of(name, index, make):
    def change(args):
        items = list(args[name])
        items[index] = make(items[index])
        return {name: items}

    return change


def cut(*names, k):
    """The first k bytes of every row."""
    return lambda args: {n: args[n][:, : k // 8 if n.startswith("sf") else k] for n in names}


BAD = [
    # wrong dtype
    (gemm, to("a", dtype=torch.int16), TypeError, "a"),
    (gemm, to("b", dtype=torch.float16), TypeError, "b"),
    (gemm, to("sfa", dtype=torch.float32), TypeError, "sfa"),
    (gemm, to("sfb", dtype=torch.int8), TypeError, "sfb"),
    (gemm, to("alpha", dtype=torch.float16), TypeError, "alpha"),
    (gemm, to("bias", dtype=torch.float64), TypeError, "bias"),
    (gemm, output(M, N, dtype=torch.int32), TypeError, "out"),
    (gemv, to("a", dtype=torch.float16), TypeError, "a"),
    (gemv, to("b", dtype=torch.float32), TypeError, "b"),
    (w4a16, to("a", dtype=torch.float32), TypeError, "a"),
    (dual_gemm, to("b2", dtype=torch.float16), TypeError, "b2"),
    (dual_gemm, to("sfb1", dtype=torch.float16), TypeError, "sfb1"),
    (contiguous, to("b", dtype=torch.bfloat16), ValueError, "sfb"),
    (route, to("x", dtype=torch.float64), TypeError, "x"),
    (route, to("w", dtype=torch.uint8), TypeError, "w"),
    (quantize, to("x", dtype=torch.float64), TypeError, "x"),
    (gated, to("up", dtype=torch.bfloat16), TypeError, "up"),
    (gated, to("up", dtype=torch.float64), TypeError, "up"),
    (to_blocked, to("scales", dtype=torch.float16), TypeError, "scales"),
    (from_blocked, to("buffer", dtype=torch.int32), TypeError, "buffer"),
    (dequantize, one_of("q", 0, torch.Tensor.half), TypeError, "q.data"),
    (dequantize, one_of("q", 1, torch.Tensor.half), TypeError, "q.scales"),
    (contiguous, lambda args: {"a": torch.ones((M, K), dtype=torch.half), "sfa": None, "sfb": None,
                               "b": torch.ones((G, N, K), dtype=torch.bfloat16)}, TypeError, "b"),
    (contiguous, to("alpha", dtype=torch.float16), TypeError, "alpha"),
    (contiguous, to("bias", dtype=torch.float64), TypeError, "bias"),
    (dequantize, one_of("q", 2, lambda _: torch.ones(1).half()), TypeError, "q.global_scale"),
    (dual_gemm, to("a", dtype=torch.int16), TypeError, "a"),
    (route, given(alpha=torch.ones(1).half()), TypeError, "alpha"),
    (contiguous, to("a", dtype=torch.int16), TypeError, "a"),
    (group_list, one_of("b", 1, torch.Tensor.int), TypeError, "b"),
    # wrong rank
    (gemv, swap("a", lambda t: t[0]), ValueError, "a"),
    (gemv, swap("b", lambda t: t[None]), ValueError, "b"),
    (group_list, one_of("a", 0, lambda t: t[None]), ValueError, "a"),
    (gemm, swap("a", lambda t: t[0, 0]), ValueError, "a"),
    (gemm, swap("a", lambda t: t[0]), ValueError, "sfa"),
    (gemm, swap("b", lambda t: t[None, None]), ValueError, "b"),
    (gemm, swap("b", lambda t: t[None]), ValueError, "b"),
    (batched, swap("b", lambda t: t[:1]), ValueError, "b"),
    (batched, swap("sfa", lambda t: t[0]), ValueError, "sfa"),
    (gemm, swap("sfa", lambda t: t[None]), ValueError, "sfa"),
    (gemm, swap("alpha", lambda t: t[None]), ValueError, "alpha"),
    (gemm, swap("bias", lambda t: t[None]), ValueError, "bias"),
    (contiguous, swap("b", lambda t: t[0]), ValueError, "b"),
    (contiguous, swap("a", lambda t: t[None]), ValueError, "a"),
    (route, swap("x", lambda t: t[None]), ValueError, "out"),
    (route, swap("x", lambda t: t[0, 0]), ValueError, "x"),
    (route, swap("w", lambda t: t[None]), ValueError, "w"),
    (quantize, swap("x", lambda t: t[0]), ValueError, "out"),
    (quantize, swap("x", lambda t: t[0, 0]), ValueError, "x"),
    (gated, swap("up", lambda t: t[0]), ValueError, "up"),
    (gated, swap("up", lambda t: t[None]), ValueError, "up"),
    # K not a multiple of 16, K that differs
    (gemm, swap("a", lambda t: t[:, :28]), ValueError, "a"),
    (w4a16, swap("a", lambda t: t[:, :56]), ValueError, "a"),
    (gemm, swap("b", lambda t: t[:, :24]), ValueError, "sfb"),
    (gemm, cut("b", "sfb", k=24), ValueError, "b"),
    (gemv, cut("b", "sfb", k=24), ValueError, "b"),
    (dual_gemm, cut("b2", "sfb2", k=24), ValueError, "b2"),
    (dual_gemm, cut("b1", "sfb1", k=24), ValueError, "b1"),
    (contiguous, lambda args: {"b": args["b"][..., :24], "sfb": args["sfb"][..., :3]},
     ValueError, "b"),
    (group_list, lambda args: {"b": [b[:, :24] for b in args["b"]],
                               "sfb": [sf[:, :3] for sf in args["sfb"]]}, ValueError, "b"),
    (route, swap("w", lambda t: t[:, :48]), ValueError, "w"),
    (quantize, swap("x", lambda t: t[:, :56]), ValueError, "x"),
    (gated, swap("up", lambda t: t[:, :56]), ValueError, "up"),
    (gated, swap("up", lambda t: t[:, :48]), ValueError, "up"),
    (gated, swap("up", lambda t: t[1:]), ValueError, "up"),
    (gated, given(up=3.0), TypeError, "up"),
    # rows that differ
    (gemv, lambda args: {"b": args["a"], "sfb": args["sfa"]}, ValueError, "b"),
    (dual_gemm, lambda args: {"b2": args["b2"][1:], "sfb2": args["sfb2"][1:]}, ValueError, "b2"),
    (gemm, swap("alpha", lambda t: t[:-1]), ValueError, "alpha"),
    (gemv, swap("alpha", lambda t: t[:-1]), ValueError, "alpha"),
    (dual_gemm, given(alpha1=torch.ones(N - 1)), ValueError, "alpha1"),
    (dual_gemm, given(alpha2=torch.ones(N - 1)), ValueError, "alpha2"),
    (dual_gemm, given(bias1=torch.ones(N - 1)), ValueError, "bias1"),
    (dual_gemm, given(bias2=torch.ones(N - 1)), ValueError, "bias2"),
    (group_list, given(alpha=[torch.ones(N - 1)] * G), ValueError, "alpha"),
    (group_list, given(bias=[torch.ones(N - 1)] * G), ValueError, "bias"),
    (route, given(alpha=torch.ones(N - 1)), ValueError, "alpha"),
    (gemm, swap("bias", lambda t: t[:1]), ValueError, "bias"),
    (contiguous, swap("alpha", lambda t: t[:2]), ValueError, "alpha"),
    (contiguous, swap("bias", lambda t: t[0]), ValueError, "bias"),
    # scales
    (gemm, swap("sfa", lambda t: t[:-1]), ValueError, "sfa"),
    (gemm, swap("sfb", lambda t: t[:, :-1]), ValueError, "sfb"),
    (gemm, swap("sfb", wide), ValueError, "sfb"),
    (gemm, given(scale_layout="blocked"), ValueError, "sfa"),
    (gemm, given(scale_layout=("linear", "blocked")), ValueError, "sfb"),
    (gemm, given(sfa=zeros(32, 4, 1, 4, 1)), ValueError, "sfa"),
    (contiguous, swap("sfa", lambda t: t[:-1]), ValueError, "sfa"),
    *((gemm, given(a=zeros(M, 128), b=zeros(N, 128), sfa=zeros(*shape), sfb=zeros(N, 16),
                   scale_layout=("blocked", "linear")), ValueError, "sfa")
      for shape in ((32, 4, 1, 4, 4), (4, 4, 32, 1, 4), (1, 4, 4, 32, 4))),
    (contiguous, given(sfa=zeros(128, 4),
                            scale_layout=("blocked", "linear")), ValueError, "sfa"),
    (batched, given(sfa=zeros(1, 128, 4), scale_layout=("blocked", "linear")), ValueError, "sfa"),
    (gemm, given(a=zeros(2, 2, M, K // 2), sfa=zeros(2, 3, 128, 4)[:, :2], out=None,
                 scale_layout=("blocked", "linear")), ValueError, "sfa"),
    (dual_gemm, given(sfb2=zeros(511),
                           sfb1=zeros(512),
                           scale_layout=("linear", "blocked")), ValueError, "sfb2"),
    (from_blocked, swap("buffer", lambda t: t[:127]), ValueError, "buffer"),
    (from_blocked, given(rows=129, out=None), ValueError, "buffer"),
    (from_blocked, given(rows=-1), ValueError, "rows"),
    (from_blocked, given(cols=-1), ValueError, "cols"),
    (w4a16, given(sfa=zeros(M, K // 16)), ValueError, "sfa"),
    # strides
    (gemm, swap("a", wide), ValueError, "a"),
    (w4a16, swap("a", wide), ValueError, "a"),
    (gemm, swap("b", wide), ValueError, "b"),
    (dequantize, one_of("q", 0, wide), ValueError, "q.data"),
    (quantize, given(offsets=int32(0, M)[None], scale_layout="blocked"), ValueError, "offsets"),
    (route, given(x=torch.ones(2, M, K).half(),
                  out=[torch.zeros(2, M + 1, 4)[:, :M], zeros(2, M, 4, dtype=torch.int32)]),
     ValueError, "out"),
    (gemv, given(b=wide(torch.ones(1, K).half()), sfb=None), ValueError, "b"),
    (dual_gemm, given(a=wide(torch.ones(M, K).half()), sfa=None), ValueError, "a"),
    (contiguous, given(a=wide(torch.ones(M, K).half()), sfa=None), ValueError, "a"),
    (group_list, given(a=[wide(torch.ones(M, K).half())] * G, sfa=None), ValueError, "a"),
    (quantize, swap("x", wide), ValueError, "x"),
    (gated, swap("up", wide), ValueError, "up"),
    (contiguous, given(offsets=int32(*[0] * 8)[::2]), ValueError, "offsets"),
    (to_blocked, swap("scales", wide), ValueError, "scales"),
    (contiguous, given(a=torch.ones(M, K).half(), sfa=None, sfb=None,
                       b=torch.ones(G, 2 * N, 2 * K).half()[:, ::2, ::2]), ValueError, "b"),
    (group_list, given(a=[torch.ones(M, K).half()] * G, sfa=None, sfb=None,
                       b=[torch.ones(2 * N, 2 * K).half()[::2, ::2]] * G), ValueError, "b"),
    # out
    (gemm, output(M + 1, N), ValueError, "out"),
    (gemm, output(N, M), ValueError, "out"),
    (gemm, output(1, M, N), ValueError, "out"),
    (gemv, output(M), ValueError, "out"),
    (gemm, given(out_dtype="float32"), (TypeError, ValueError), "out_dtype"),
    (gemm, given(out=torch.zeros(1, dtype=torch.float16).expand(M, N)), ValueError, "out"),
    (gemm, given(out=zeros(2 * M, 2 * N, dtype=torch.half)[::2, ::2]), ValueError, "out"),
    (group_list, lambda args: {"out": args["out"][:2]}, ValueError, "out"),
    (group_list, lambda args: {"out": [args["out"][0]] * 3}, ValueError, "out"),
    (route, item(0, M, 5), ValueError, "out"),
    (route, item(1, M, 4, dtype=torch.float32), TypeError, "out"),
    (permuting, item(2, N + 1, dtype=torch.int32), ValueError, "out"),
    (permuting, item(3, N, dtype=torch.int32), ValueError, "out"),
    (permuting, item(4, M * 4 - 1, dtype=torch.int32), ValueError, "out"),
    (permuting, one_of("out", 2, lambda _: int32(*[7] * 2 * N)[::2]), ValueError, "out"),
    (permuting, one_of("out", 4, lambda _: int32(*[7] * 8 * M)[::2]), ValueError, "out"),
    (quantize, item(1, M, 5, dtype=torch.uint8), ValueError, "out"),
    (from_blocked, given(out=zeros(M, 5)), ValueError, "out"),
    (quantize, lambda args: {"out": [*args["out"], torch.ones(2)], "global_scale": "amax"},
     ValueError, "out"),
    (quantize, item(0, M, K, dtype=torch.uint8), ValueError, "out"),
    (quantize, lambda args: {"out": [zeros(M, K)[:, ::2], args["out"][1]]}, ValueError, "out"),
    (gemv, output(M, 2), ValueError, "out"),
    (dual_gemm, output(M + 1, N), ValueError, "out"),
    (contiguous, output(M + 1, N), ValueError, "out"),
    (group_list, one_of("out", 1, lambda _: zeros(M, N - 1, dtype=torch.half)), ValueError, "out"),
    (dequantize, given(out=zeros(M, K + 1, dtype=torch.half)), ValueError, "out"),
    (dequantize, one_of("q", 2, lambda _: torch.ones(2)), ValueError, "q.global_scale"),
    # groups
    (group_list, lambda args: {"b": args["b"][:2]}, ValueError, "b"),
    (group_list, lambda args: {"sfa": args["sfa"][:2]}, ValueError, "sfa"),
    (group_list, lambda args: {"sfb": args["sfb"] * 2}, ValueError, "sfb"),
    (group_list, lambda args: {"alpha": [1.0]}, ValueError, "alpha"),
    (group_list, lambda args: {"bias": []}, ValueError, "bias"),
    (group_list, one_of("a", 1, lambda t: t[:, :24]), ValueError, "sfa"),
    (group_list, one_of("b", 2, lambda t: t.half()), (TypeError, ValueError), "sfb"),
    (group_list, given(offsets=int32(0, 0, 0, 0)), ValueError, "offsets"),
    (contiguous, given(offsets=int32(0, 3, 2, M)), ValueError, "offsets"),
    (contiguous, given(offsets=int32(0, 3, 3, M + 1)), ValueError, "offsets"),
    (contiguous, given(offsets=int32(-1, 3, 3, M)), ValueError, "offsets"),
    (contiguous, given(offsets=int32(0, 3, M)), ValueError, "offsets"),
    (quantize, given(offsets=torch.tensor([0, M], dtype=torch.int32)), ValueError, "offsets"),
    # rows
    (by_rows, to("rows", dtype=torch.float32), TypeError, "rows"),
    (by_rows, swap("rows", lambda t: t[0]), ValueError, "rows"),
    (by_rows, swap("rows", lambda t: t[:-1]), ValueError, "offsets"),
    (by_rows, swap("rows", lambda t: -t), ValueError, "rows"),
    (by_rows, swap("rows", lambda t: t + 1), ValueError, "rows"),
    (by_rows, given(rows=[0] * M), TypeError, "rows"),
    (by_rows, given(rows=None), ValueError, "rows_per_token"),
    (by_rows, given(rows_per_token=-1), ValueError, "rows_per_token"),
    (by_rows, given(rows_per_token=1), ValueError, "rows"),
    (by_rows, given(rows_per_token=2**31), ValueError, "rows_per_token"),
    (by_rows, given(rows_per_token=2**70), ValueError, "rows_per_token"),
    (by_rows, given(rows_per_token=2.0), TypeError, "rows_per_token"),
    (by_rows, given(expected_rows=-1), ValueError, "expected_rows"),
    (by_rows, given(expected_rows=M + 1), ValueError, "expected_rows"),
    (by_rows, given(expected_rows=2**70), ValueError, "expected_rows"),
    (by_rows, given(expected_rows=2.0), TypeError, "expected_rows"),
    (by_rows, output(M // 2, N), ValueError, "out"),
    (by_rows, given(sfa=zeros(127, 4), scale_layout=("blocked", "linear")), ValueError, "sfa"),
    (by_rows, swap("sfa", lambda t: t[:-1]), ValueError, "sfa"),
    (activated, given(activation="swish"), ValueError, "activation"),
    (activated, given(activation="swiglu_oai"), ValueError, "activation"),
    (activated, given(activation=2), TypeError, "activation"),
    (group_list, given(activation="swish"), ValueError, "activation"),
    (group_list, given(activation="swiglu_oai"), ValueError, "activation"),
    (group_list, given(activation=2), TypeError, "activation"),
    (group_list, given(quantized=True), ValueError, "quantized"),
    (group_list, given(quantized=True, global_scale=2.0), ValueError, "quantized"),
    (group_list, given(global_scale=2.0), ValueError, "global_scale"),
    (activated, given(quantized=True, out=None), ValueError, "b"),
    (encoded, given(quantized=1), TypeError, "quantized"),
    (encoded, given(quantized=False), ValueError, "global_scale"),
    (encoded, given(activation="swiglu_oai"), ValueError, "activation"),
    (encoded, given(global_scale="amax"), ValueError, "global_scale"),
    (encoded, given(global_scale=torch.ones(2)), ValueError, "global_scale"),
    (encoded, given(global_scale_inverse=-1.0), ValueError, "global_scale_inverse"),
    (encoded, given(out_dtype="float16"), ValueError, "out_dtype"),
    (encoded, swap("bias", lambda t: t[:, 1:]), ValueError, "bias"),
    # gate and up in one stack
    (stacked, to("b", dtype=torch.float16), TypeError, "b"),
    (stacked, lambda args: {n: args[n][:, 1:] for n in ("b", "sfb")}, ValueError, "b"),
    (stacked, swap("b", lambda t: t[0]), ValueError, "b"),
    (stacked, swap("b", lambda t: t[..., :24]), ValueError, "sfb"),
    (stacked, swap("a", lambda t: t[None]), ValueError, "a"),
    (stacked, swap("a", lambda t: t[:, :48].contiguous()), ValueError, "b"),
    (stacked, given(sfa=zeros(M // 2, 4)), ValueError, "sfa"),
    (stacked, given(sfb=None), ValueError, "sfb"),
    (stacked, swap("sfb", lambda t: t[:, 1:]), ValueError, "sfb"),
    (stacked, swap("offsets", lambda t: t[1:]), ValueError, "offsets"),
    (stacked, given(offsets=int32(0, 3, 2, M)), ValueError, "offsets"),
    (stacked, swap("rows", lambda t: t + 1), ValueError, "rows"),
    (stacked, given(rows_per_token=0), ValueError, "rows_per_token"),
    (stacked, given(expected_rows=M + 1), ValueError, "expected_rows"),
    (stacked, to("alpha", dtype=torch.float16), TypeError, "alpha"),
    (stacked, swap("alpha", lambda t: t.T), ValueError, "alpha"),
    (stacked, given(alpha=torch.ones(2)), ValueError, "alpha"),
    (stacked, given(alpha=torch.ones(G, N // 2)), ValueError, "alpha"),
    (stacked, given(alpha=[1.0, 2.0]), TypeError, "alpha"),
    (stacked, to("bias", dtype=torch.float64), TypeError, "bias"),
    (stacked, swap("bias", lambda t: t[0]), ValueError, "bias"),
    (stacked, swap("bias", lambda t: t[1:]), ValueError, "bias"),
    (stacked, swap("bias", lambda t: t[:, 1:]), ValueError, "bias"),
    (stacked, given(gate_up="turns"), ValueError, "gate_up"),
    (stacked, given(activation="swish"), ValueError, "activation"),
    (stacked, given(limit=7.0), ValueError, "limit"),
    (stacked, given(activation_scale=float("nan")), ValueError, "activation_scale"),
    (stacked, output(M, N), ValueError, "out"),
    (group_list, given(rows_per_token=0.5), TypeError, "rows_per_token"),
    (group_list, given(expected_rows=0), ValueError, "expected_rows"),
    # numbers
    (route, given(k=0), ValueError, "k"),
    (route, given(k=-1), ValueError, "k"),
    (route, given(k=N + 1), ValueError, "k"),
    (route, given(k=2.0), TypeError, "k"),
    (route, given(k=2**70), ValueError, "k"),
    (route, given(n_group=3), ValueError, "n_group"),
    (route, given(n_group=0), ValueError, "n_group"),
    (route, given(n_group=5, topk_group=6), ValueError, "topk_group"),
    (route, given(n_group=5, topk_group=1), ValueError, "k"),
    (route, given(scaling_factor=1e39), ValueError, "scaling_factor"),
    (sigmoid, swap("correction_bias", lambda t: t[1:]), ValueError, "correction_bias"),
    (sigmoid, to("correction_bias", dtype=torch.float16), TypeError, "correction_bias"),
    (sigmoid, swap("per_expert_scale", lambda t: t[None]), ValueError, "per_expert_scale"),
    (sigmoid, swap("per_expert_scale", lambda t: t[1:]), ValueError, "per_expert_scale"),
    (sigmoid, to("per_expert_scale", dtype=torch.float64), TypeError, "per_expert_scale"),
    (route, given(renormalize=False), ValueError, "renormalize"),
    (route, given(score="logits", renormalize=True), ValueError, "renormalize"),
    (route, given(w=torch.zeros((1025, K), dtype=torch.float16)), ValueError, "w"),
    (gemm, given(alpha=1e39), ValueError, "alpha"),
    (gemm, given(alpha=-3.4028235678e38), ValueError, "alpha"),
    (gemm, given(alpha=10**400), ValueError, "alpha"),
    (gemm, given(alpha="1"), TypeError, "alpha"),
    (gemm, given(alpha=True), TypeError, "alpha"),
    (gemm, given(alpha=1j), TypeError, "alpha"),
    (quantize, given(global_scale=0.0), ValueError, "global_scale"),
    (quantize, given(global_scale=-1.0), ValueError, "global_scale"),
    (quantize, given(global_scale=float("nan")), ValueError, "global_scale"),
    (quantize, given(global_scale=float("inf")), ValueError, "global_scale"),
    (quantize, given(global_scale=1e-46), ValueError, "global_scale"),
    (quantize, given(global_scale=1e39), ValueError, "global_scale"),
    (quantize, given(global_scale=torch.ones(2)), ValueError, "global_scale"),
    # option words
    (gemm, given(scale_layout="swizzled"), ValueError, "scale_layout"),
    (gemm, given(scale_layout=("linear",)), ValueError, "scale_layout"),
    (gemm, given(scale_layout=("linear", "x")), ValueError, "scale_layout"),
    (gemm, given(out_dtype="float8"), ValueError, "out_dtype"),
    (gemm, given(out_dtype=torch.float8_e4m3fn), ValueError, "out_dtype"),
    (gemm, given(out_dtype=np.int8), ValueError, "out_dtype"),
    (dual_gemm, given(activation="swish"), ValueError, "activation"),
    (route, given(score="softmax"), ValueError, "score"),
    (quantize, given(global_scale="max"), ValueError, "global_scale"),
    (quantize, given(smallest_scale=-1.0), ValueError, "smallest_scale"),
    (quantize, given(smallest_scale=2.0**-10), ValueError, "smallest_scale"),
    (quantize, given(smallest_scale=449), ValueError, "smallest_scale"),
    (quantize, given(smallest_scale=float("nan")), ValueError, "smallest_scale"),
    (quantize, given(smallest_scale="amax"), TypeError, "smallest_scale"),
    (quantize, given(data_dtype="float16"), ValueError, "data_dtype"),
    (quantize, given(data_dtype="float4_e2m1fn_x2"), ValueError, "data_dtype"),
    (quantize, given(scale_layout=("linear", "linear")), (TypeError, ValueError), "scale_layout"),
    (route, given(dense=1), TypeError, "dense"),
    (route, given(renormalize=False), ValueError, "renormalize"),
    (route, given(renormalize=0), TypeError, "renormalize"),
    # no tensors
    (gemm, given(a=None), TypeError, "a"),
    (gemm, given(b=None), TypeError, "b"),
    (gemm, given(sfb=[1, 2]), TypeError, "sfb"),
    (gemm, given(out=3), TypeError, "out"),
    (dual_gemm, given(sfb2=None), (TypeError, ValueError), "sfb2"),
    (route, given(out=3), TypeError, "out"),
    (dequantize, given(q=None), TypeError, "q"),
    (dequantize, given(q=torch.ones(3)), TypeError, "q"),
    (dequantize, given(q=(1, 2)), ValueError, "q"),
]  # fmt: skip


@pytest.mark.parametrize(
    "base, change, exception, name",
    [pytest.param(*case, id=f"{n}-{case[0].__name__}-{case[3]}") for n, case in enumerate(BAD)],
)
def test_bad_input(device, base, change, exception, name):
    if device != "cpu":
        pytest.skip("the checks come before any backend; offsets on a GPU cannot be read")
    refused(base, device, change, exception, name)


def arguments(operator):
    """Their names, as the stub has them in all overloads."""
    found = {}
    for node in ast.parse(Path(nvfp4kern.__file__).with_name("_C.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == operator:
            found |= dict.fromkeys(a.arg for a in (*node.args.args, *node.args.kwonlyargs))
    return found


@pytest.mark.parametrize(
    "base, name",
    [(base, name) for base in FUNCTIONS for name in arguments(FUNCTIONS[base])
     if (base, name) != (group_list, "a")],  # the call would be one of the other form
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_an_object_that_is_nothing(base, name):
    """It is no tensor, number, word, dtype or list."""
    encoding = "global_scale", "global_scale_inverse", "data_dtype"
    unread = dict.fromkeys((contiguous, by_rows, activated, stacked), encoding)
    unread[group_list] = ("offsets", "rows", "expected_rows", *encoding)
    message = "given, " if name in unread.get(base, ()) else "<?object.*, expected "
    refused(base, "cpu", given(**{name: object()}), (TypeError, ValueError), name, message)


@pytest.mark.parametrize("name", ("a", "b", "sfa", "sfb", "alpha", "bias", "out"))
def test_a_group_that_is_nothing(name):
    lists = {"alpha": [1.0] * G, "bias": [torch.ones(N)] * G}
    change = one_of(name, 1, lambda _: object())
    message = "object, expected a"
    refused(group_list, "cpu", lambda args: change(args | lists), TypeError, f"{name}[1]", message)


@pytest.mark.parametrize(
    "base, count", [(quantize, 2), (route, 2), (permuting, 5), (local, 6), (inverting, 6)]
)
def test_an_output_that_is_nothing(base, count):
    for index in range(count):
        change = one_of("out", index, lambda _: object())
        refused(base, "cpu", change, TypeError, f"out[{index}]", "object, expected a tensor")


def test_a_part_of_q_that_is_nothing():
    for index, name in enumerate(("data", "scales", "global_scale")):
        args = list(dequantize("cpu")["q"])
        args[index] = object()
        message = "object, expected a"
        refused(dequantize, "cpu", given(q=tuple(args)), TypeError, f"q.{name}", message)


def test_an_output_whose_strides_overflow():
    """Two rows 2^62 apart cover 2^63: a count that wraps must not hide a stride of 0."""
    x = torch.zeros(2, 2, 16, dtype=torch.float16).numpy()
    codes = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint8), (2, 2, 8), (0, 1 << 62, 1))
    with pytest.raises(ValueError, match="stride 0 in dimension 0 puts elements in one place"):
        nvfp4kern.explain("quantize", x, out=(codes, np.zeros((2, 2, 1), np.uint8)))
