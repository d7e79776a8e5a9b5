"""Baselines of Humming (humming-kernels on PyPI): W4A16, on GPUs, compiled when first called.

A layer takes the weights as ModelOpt's files have them and rearranges them, before anything is
timed. Its global scale is the product's alpha.
"""

from functools import partial
from itertools import pairwise

import torch
from torch.nn import functional

from . import baselines
from .case import InOrder, Unavailable
from .operands import Wide, alpha_of

DEVICES = ("cuda",)
HUMMING, INDEXED = "Humming", "Humming indexed"
MODELOPT = {"quant_method": "modelopt", "quant_algo": "nvfp4"}
PADDED = {"pad_n_to_multiple": 128, "pad_k_to_multiple": 64}
"""What its tiles for Hopper want. The padding is in its copy of the weights, not in results."""


def _imported():
    """Its layers, and what chooses their tiles."""
    try:
        from humming.layer import HummingLayer
        from humming.tune import get_heuristics_config
    except ImportError as error:
        raise Unavailable(f"humming-kernels cannot be imported: {error}") from error
    return HummingLayer, get_heuristics_config


def _call(x, w, form):
    """The call of a layer on the tokens x, and its tile. `w` is [N, K], or [experts, N, K] with a
    form other than dense."""
    make, choose = _imported()
    *experts, n, k = w.shape
    layer = make(
        shape_n=n,
        shape_k=k,
        weight_config=dict(MODELOPT),
        num_experts=experts[0] if experts else None,
        torch_dtype=x.halves.dtype,
        **PADDED,
    ).to(w.codes.device)
    scale = torch.full(experts or (1,), alpha_of(x, w), dtype=torch.float32)
    factors = w.linear.view(torch.float8_e4m3fn)
    layer.load_from_tensors({"weight": w.codes, "weight_scale": factors, "weight_scale_2": scale})
    layer.transform()
    rows = x.shape[0]
    # what it chooses for so many rows; left alone it compiles some 90 kernels, for any number
    chosen = choose(layer.humming_config, shape_m=rows, gemm_type=form)
    given = {"compute_config": {"gemm_type": form}, "tuning_config": chosen}
    return partial(layer, x.halves, outputs=x.halves.new_empty(rows, n), **given), chosen


def dense(x, w):
    """A call for tokens [M, K] and weights [N, K]."""
    if len(w.shape) != 2:
        raise Unavailable("it has no batches")
    return _call(x, w, "dense")[0]


def contiguous(x, w, ends):
    """A call for tokens in the order of the experts: expert g has the rows ends[g]..ends[g + 1]."""
    call, _ = _call(x, w, "grouped_contiguous")
    return partial(call, expert_layout=ends.long().to(x.device))


def indexed(x, w, ends):
    """The same with a list of rows, each expert's filled up to whole tiles. It is made beforehand,
    as routing makes it."""
    call, chosen = _call(x, w, "indexed")
    tile, count = chosen["block_shape"][0], x.shape[0]
    rows, experts = [], []
    for g, (begin, end) in enumerate(pairwise(ends.tolist())):
        missing = (begin - end) % tile
        rows.append(functional.pad(torch.arange(begin, end), (0, missing), value=count))
        experts += [g] * (len(rows[-1]) // tile)
    rows = torch.cat(rows)
    lists = {"sorted_ids": rows, "expert_ids": experts, "num_tokens_padded": len(rows)}
    device = {"dtype": torch.int32, "device": x.halves.device}
    return partial(call, top_k=1, **{n: torch.as_tensor(v, **device) for n, v in lists.items()})


def experts(x, up, down, offsets, rows, top, scale):
    """A call for tokens x [T, K], whose row r of the products is of token rows[r] // top, and what
    it writes. torch gathers and gates. `scale`: of the numbers between the products."""
    count, device = len(rows), x.device
    gathered = Wide(x.halves.new_empty(count, up.shape[-1]), x.scale)
    h = Wide(x.halves.new_empty(count, down.shape[-1]), scale)
    first, second = (_call(*one, "grouped_contiguous")[0] for one in ((gathered, up), (h, down)))
    gather = baselines.fused(lambda tokens, at: tokens[at // top], device)
    gate = baselines.fused(baselines.gate, device)
    ends = torch.empty(len(offsets), dtype=torch.int64, device=device)

    def call():
        ends.copy_(offsets)  # int64
        both = first.func(gather(x.halves, rows), expert_layout=ends, **first.keywords)
        return second.func(gate(both), expert_layout=ends, **second.keywords)

    return call, second.keywords["outputs"]


def _offered(sets, device, builds):
    """{name: what makes a call for each set}; nothing where it does not run, or the first of a
    set's operands, the tokens, are NVFP4."""
    if device not in DEVICES or not isinstance(sets[0][0], Wide):
        return {}
    return {n: lambda build=build: [build(*one) for one in sets] for n, build in builds.items()}


def for_gemm(sets, device):
    return _offered(sets, device, {HUMMING: dense})


def for_experts(sets, top, scale, device):
    def alone(*one):
        return InOrder([experts(*one, top, scale)[0]])

    return _offered(sets, device, {HUMMING: alone})


def for_layers(sets, calls, routed, top, scale, device):
    """Layers with our route, whose results `routed` has, and combine: the first and the last of our
    calls."""

    def between(x, weights, ours, order):
        (route, *_, combine), (_, _, _, offsets, rows, _) = ours.calls, order
        call, products = experts(x, *weights, offsets, rows, top, scale)
        _, *given = combine.args
        result = torch.empty_like(combine.keywords["out"])
        return InOrder([route, call, partial(combine.func, products, *given, out=result)])

    made = [(x, weights, *one) for (x, _, *weights), *one in zip(sets, calls, routed, strict=True)]
    return _offered(made, device, {HUMMING: between})


def for_mixture(sets, device):
    return _offered(sets, device, {HUMMING: contiguous, INDEXED: indexed})
