"""One good call for each operator, for tests that spoil one argument at a time; drop-ins."""

import importlib
from inspect import signature
from itertools import takewhile

import torch
from generators import Guarded, rng_of

import nvfp4kern
from nvfp4kern.selftest.calls import OPERATORS
from nvfp4kern.selftest.trees import mapped, outputs

M, N, K, G, L = 6, 10, 64, 3, 2


def bytes_of(*shape, device):
    return torch.full(shape, 0x22, dtype=torch.uint8, device=device)


def gemm(device):
    return {
        "a": bytes_of(M, K // 2, device=device),
        "b": bytes_of(N, K // 2, device=device),
        "sfa": bytes_of(M, K // 16, device=device),
        "sfb": bytes_of(N, K // 16, device=device),
        "alpha": torch.ones(N, device=device),
        "bias": torch.ones(N, device=device),
        "out": Guarded((M, N), "float16", device),
    }


def gemv(device):
    return gemm(device) | {
        "b": bytes_of(1, K // 2, device=device),
        "sfb": bytes_of(1, K // 16, device=device),
        "alpha": torch.ones(M, device=device),
        "bias": None,
        "out": Guarded((M, 1), "float16", device),
    }


def batched(device):
    args = gemm(device)
    for name in ("a", "b", "sfa", "sfb"):
        args[name] = args[name].expand(L, *args[name].shape).contiguous()
    return args | {"out": Guarded((L, M, N), "float16", device)}


def w4a16(device):
    a = torch.ones((M, K), dtype=torch.float16, device=device)
    return gemm(device) | {"a": a, "sfa": None}


def dual_gemm(device):
    args = gemm(device)
    return {
        "a": args["a"],
        "b1": args["b"],
        "b2": args["b"].clone(),
        "sfa": args["sfa"],
        "sfb1": args["sfb"],
        "sfb2": args["sfb"].clone(),
        "bias1": args["bias"],
        "bias2": args["bias"].clone(),
        "out": args["out"],
    }


def group_list(device):
    args = gemm(device)
    groups = {name: [args[name].clone() for _ in range(G)] for name in ("a", "b", "sfa", "sfb")}
    return groups | {"out": [Guarded((M, N), "float16", device) for _ in range(G)]}


def contiguous(device):
    args = gemm(device)
    return args | {
        "b": bytes_of(G, N, K // 2, device=device),
        "sfb": bytes_of(G, N, K // 16, device=device),
        "offsets": torch.tensor([0, 2, 2, M], dtype=torch.int32, device=device),
        "alpha": torch.ones((G, N), device=device),
        "bias": torch.ones((G, N), device=device),
    }


def by_rows(device):
    args = contiguous(device)
    rows = torch.tensor([4, 0, 5, 2, 0, 3], dtype=torch.int32, device=device)
    tokens = {name: args[name][: M // 2].contiguous() for name in ("a", "sfa")}
    return args | tokens | {"rows": rows, "rows_per_token": 2}


def activated(device):
    return by_rows(device) | {"activation": "relu2"}


def encoded(device):
    """What is relu2's, as codes and scale factors."""
    out = [Guarded((M, 16 // per_byte), torch.uint8, device) for per_byte in (2, 16)]
    return activated(device) | {
        "b": bytes_of(G, 16, K // 2, device=device), "sfb": bytes_of(G, 16, K // 16, device=device),
        "alpha": torch.ones((G, 16), device=device), "bias": torch.ones((G, 16), device=device),
        "quantized": True, "global_scale": torch.ones(1, device=device), "out": out,
    }  # fmt: skip


def stacked(device):
    """Rows of tokens by index, 16 bits; gate and up of each expert in one stack."""
    args = by_rows(device)
    gone = {"sfa": None, "alpha": torch.ones((G, 2), device=device)}
    a = torch.ones((M // 2, K), dtype=torch.float16, device=device)
    out = Guarded((M, N // 2), "float16", device)
    return args | gone | {"a": a, "activation": "gelu", "out": out}


def encoding(device):
    """N, half of the stack, is whole blocks."""
    gone = {"alpha": 1.0, "rows": None, "rows_per_token": 1, "scale_layout": "linear"}
    out = [Guarded((M, 16 // per_byte), torch.uint8, device) for per_byte in (2, 16)]
    return by_rows(device) | gone | {
        "a": bytes_of(M, K // 2, device=device), "sfa": bytes_of(M, K // 16, device=device),
        "b": bytes_of(G, 32, K // 2, device=device), "sfb": bytes_of(G, 32, K // 16, device=device),
        "bias": torch.ones((G, 32), device=device), "gate_up": "interleaved",
        "quantized": True, "global_scale": torch.ones(1, device=device), "out": out,
    }  # fmt: skip


def route(device):
    return {
        "x": torch.ones((M, K), dtype=torch.float16, device=device),
        "w": torch.ones((N, K), dtype=torch.float16, device=device),
        "k": 4,
        "out": [Guarded((M, 4), "float32", device), Guarded((M, 4), torch.int32, device)],
    }


def sigmoid(device):
    names = ("correction_bias", "per_expert_scale")
    return route(device) | {
        "score": "sigmoid",
        **{name: torch.ones(N, device=device) for name in names},
    }


def permuting(device):
    args = route(device)
    args["out"] += [Guarded(shape, torch.int32, device) for shape in ((N,), (N + 1,), (M * 4,))]
    return args | {"permutation": True}


def of_logits(device):
    outs = [Guarded((M, 4), "float32", device), Guarded((M, 4), torch.int32, device)]
    logits = torch.ones((M, N), dtype=torch.float16, device=device)
    return {"k": 4, "logits": logits, "out": outs}


def local(device):
    """Of the experts, three are here. x and w have an odd K and are of two types."""
    args = permuting(device)
    args["out"][2:4] = [Guarded((size,), torch.int32, device) for size in (3, 4)]
    args["out"].append(Guarded((M, N), "float32", device))
    expert_map = torch.tensor([-1, 2, 0, 1, 2] * (N // 5), dtype=torch.int32, device=device)
    return args | {
        "x": torch.ones((M, K - 3), dtype=torch.float16, device=device),
        "w": torch.ones((N, K - 3), device=device),
        "expert_map": expert_map,
        "num_local_experts": 3,
        "return_logits": True,
    }


def inverting(device):
    """Also says where each selection is in the permutation."""
    args = permuting(device)
    args["out"].append(Guarded((M * 4,), torch.int32, device))
    return args | {"return_row_of": True}


def sort_by_expert(device):
    """Of ids, some are nobody's, and of experts three are here."""
    ids = torch.tensor([0, 3, -1, 2, 4, N] * 4, dtype=torch.int32, device=device)
    shapes = ((3,), (4,), (M * 4,), (M * 4,))
    return {
        "ids": ids.view(M, 4),
        "num_experts": N,
        "expert_map": local(device)["expert_map"],
        "num_local_experts": 3,
        "out": [Guarded(shape, torch.int32, device) for shape in shapes],
    }


def combine(device):
    row_of = torch.tensor([0, 3, -1, 2, 4, 1] * 4, dtype=torch.int32, device=device)
    return {
        "products": torch.ones((5, K), dtype=torch.float16, device=device),
        "row_of": row_of,
        "weights": torch.ones((M, 4), device=device),
        "residual": torch.ones((M, K), device=device),
        "out": Guarded((M, K), "float16", device),
    }


def quantize(device):
    return {
        "x": torch.ones((M, K), dtype=torch.float16, device=device),
        "out": [Guarded((M, K // per_byte), torch.uint8, device) for per_byte in (2, 16)],
    }


def gated(device):
    return quantize(device) | {"up": torch.ones((M, K), dtype=torch.float16, device=device)}


def dequantize(device):
    args = gemm(device)
    return {"q": (args["a"], args["sfa"], 1.0), "out": Guarded((M, K), "float16", device)}


def to_blocked(device):
    out = Guarded((128, 4), torch.uint8, device)
    return {"scales": bytes_of(M, 4, device=device), "out": out}


def from_blocked(device):
    out = Guarded((M, 4), torch.uint8, device)
    return {"buffer": bytes_of(128, 4, device=device), "rows": M, "cols": 4, "out": out}


FUNCTIONS = {
    gemm: "gemm", gemv: "gemv", batched: "gemm", w4a16: "gemm", dual_gemm: "dual_gemm",
    group_list: "grouped_gemm", contiguous: "grouped_gemm", by_rows: "grouped_gemm",
    activated: "grouped_gemm", encoded: "grouped_gemm",
    stacked: "grouped_dual_gemm", encoding: "grouped_dual_gemm",
    route: "route", sigmoid: "route", permuting: "route", of_logits: "route", local: "route",
    inverting: "route", sort_by_expert: "sort_by_expert", combine: "combine",
    quantize: "quantize", gated: "quantize",
    dequantize: "dequantize", to_blocked: "to_blocked", from_blocked: "from_blocked",
}  # fmt: skip


def guards_in(value):
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, Guarded)]


def tensors_of(value):
    if isinstance(value, Guarded):
        return value.tensor
    return type(value)(map(tensors_of, value)) if type(value) in (list, tuple) else value


def of_table(make):
    """The call of the package's table, for operators that have none here."""

    def base(device):
        function, args, options = mapped(lambda t: t.to(device), make(rng_of(0), M, N, K))
        result = function(*args, **options)
        outs = [Guarded(t.shape, t.dtype, device) for t in outputs(make.__name__, result)]
        given = signature(function).bind(*args, **options).arguments
        return given | {"out": outs if isinstance(result, (list, tuple)) else outs[0]}

    base.__name__ = make.__name__
    return base


for _make in OPERATORS.values():
    _function = _make(rng_of(0), M, N, K)[0].__name__
    if _function not in FUNCTIONS.values():
        FUNCTIONS[of_table(_make)] = _function


def arranged(function, args):
    """Positional what is so by design, keywords the rest, of which None means not given."""
    parameters = signature(getattr(nvfp4kern, function)).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = list(takewhile(args.__contains__, names))
    keywords = {n: v for n, v in args.items() if n not in names and v is not None}
    return [args[name] for name in names], keywords


def invoke(base, args):
    function = FUNCTIONS[base]
    positional, keywords = arranged(function, {n: tensors_of(v) for n, v in args.items()})
    return getattr(nvfp4kern, function)(*positional, **keywords)


def drop_in(problem):
    """custom_kernel of a problem of the competition."""
    return importlib.import_module(f"nvfp4kern.competition.nvfp4_{problem}").custom_kernel
