"""What is timed, by set: each Shape names a function in products.py or others.py and its sizes."""

from dataclasses import dataclass, field
from functools import partial

from ..verify import shapes as verified

OPERATORS = (
    "gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm", "route", "sort_by_expert",
    "combine", "quantize", "dequantize", "experts", "layer",
)  # fmt: skip


@dataclass
class Shape:
    """`make(device, **sizes)` gives the case.

    Where it is a point of a line in a plot: `series` names the line, `at` is its place on it.
    """

    op: str
    make: str
    sizes: dict
    series: str = ""
    at: int = 0
    set: str = field(default="", init=False)


@dataclass
class Model:
    """A mixture of experts: what one GPU has of a layer, and how many of them a token goes to."""

    name: str
    experts: int
    top: int
    hidden: int
    intermediate: int


# From the public configs. DeepSeek-V3 has 256 experts: on 32 GPUs each holds 8 of them and, where
# every GPU brings as many tokens, gets 8 rows for each of its own.
MODELS = [
    Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Model("gpt-oss-20b", 32, 4, 2880, 2880),
    Model("gpt-oss-120b", 128, 4, 2880, 2880),
    Model("DeepSeek-V3, 8 of 256", 8, 8, 7168, 2048),
]
DEEPSEEK = Model("DeepSeek-V3", 256, 8, 7168, 2048)
DECODED = (1, 8, 64, 256)
SERVED = (*DECODED, 1024, 4096)
SWEPT = [2**i for i in range(13)]
FEW = (1, 4, 8, 16, 32, 64)
WEIGHTS = [(7168, 16384), (4096, 7168), (7168, 2048)]
GRID = (1024, 2048, 4096, 8192, 14336, 28672)


def _gemv(m, k, batch, **more):
    return Shape("gemv", "gemv", {"m": m, "k": k, "batch": batch}, **more)


def _gemm(m, n, k, batch=1, wide=False, **more):
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "wide": wide}
    return Shape("gemm", "gemm", sizes, **more)


def _dual(m, n, k, batch=1):
    if batch != 1:
        raise ValueError(f"dual_gemm: a batch of {batch}, expected 1")
    return Shape("dual_gemm", "dual_gemm", {"m": m, "n": n, "k": k})


def _groups(groups):
    return Shape("grouped_gemm", "grouped_gemm", {"groups": [group[:3] for group in groups]})


def _mixture(label, tokens, wide=False, **sizes):
    sizes |= {"label": label, "tokens": tokens, "wide": wide}
    series = label + " W4A16" * wide
    return Shape("grouped_gemm", "mixture", sizes, series=series, at=tokens)


def _gated(label, tokens, wide=False, **sizes):
    sizes |= {"label": label, "tokens": tokens, "wide": wide}
    series = f"{label}, gated" + " W4A16" * wide
    return Shape("grouped_dual_gemm", "gated_mixture", sizes, series=series, at=tokens)


def _route(m, n, k):
    top = 8 if n > 128 else 4
    return Shape("route", "route", {"m": m, "n": n, "k": k, "top": top})


def _sort(label, tokens, top, experts):
    sizes = {"label": label, "tokens": tokens, "top": top, "experts": experts}
    return Shape("sort_by_expert", "sort_by_expert", sizes)


def _combine(label, tokens, top, h):
    sizes = {"label": label, "tokens": tokens, "top": top, "h": h}
    return Shape("combine", "combine", sizes, series=f"{label} combine", at=tokens)


def _quantize(rows, k, amax=False, recipe="amax"):
    other = {} if recipe == "amax" else {"recipe": recipe}  # results of before have none
    return Shape("quantize", "quantize", {"rows": rows, "k": k, "amax": amax, **other})


def _quantize_by_recipes(rows, k):
    """Each with a given global scale, and with one of the largest value."""
    for recipe in ("amax", "four_six"):
        yield from (_quantize(rows, k, amax, recipe) for amax in (False, True))


def _dequantize(rows, k):
    return Shape("dequantize", "dequantize", {"rows": rows, "k": k})


def _experts(model, tokens, dtype="float16"):
    sizes = {"label": model.name, "tokens": tokens, "dtype": dtype, **_of_model(model)}
    return Shape("experts", "experts", sizes, series=f"{model.name} {dtype}", at=tokens)


def _layer(model, tokens, quantized=False):
    sizes = {"label": model.name, "tokens": tokens, "quantized": quantized, **_of_model(model)}
    series = f"{model.name} {'W4A4' if quantized else 'W4A16'}"
    return Shape("layer", "layer", sizes, series=series, at=tokens)


def _of_model(model):
    return {name: size for name, size in vars(model).items() if name != "name"}


def _competition():
    yield from (_gemv(*sizes) for sizes in verified.GEMV_BENCHMARKS)
    yield from (_gemm(*sizes) for sizes in verified.GEMM_BENCHMARKS)
    yield from (_dual(*sizes) for sizes in verified.DUAL_GEMM_BENCHMARKS)
    yield from (_groups(groups) for groups in verified.GROUP_GEMM_BENCHMARKS)
    yield from (_route(*sizes) for sizes in verified.ROUTE_BENCHMARKS + verified.ROUTE_LARGE)
    for rows in (8192, 64):
        yield from _quantize_by_recipes(rows, 8192)
        yield _dequantize(rows, 8192)


def _tokens():
    for wide in (False, True):
        series = f"gemm {'W4A16' if wide else 'W4A4'} 8192x8192"
        yield from (_gemm(m, 8192, 8192, wide=wide, series=series, at=m) for m in SWEPT)


def _moe(wide=False):
    """Both products of a layer: into the intermediate size, gate and up together, and back. The
    first one also with its activation. Once, with NVFP4 tokens, also what brings rows together
    before them, and tokens behind."""
    for model in MODELS:
        given = {"experts": model.experts, "top": model.top}
        given |= {"n": model.intermediate, "k": model.hidden}
        for tokens in DECODED:
            yield _gated(f"{model.name} gate_up", tokens, wide, **given)
        sizes = {
            "gate_up": (2 * model.intermediate, model.hidden),
            "down": (model.hidden, model.intermediate),
        }
        for name, (n, k) in sizes.items():
            for tokens in DECODED:
                given = {"experts": model.experts, "top": model.top, "n": n, "k": k}
                yield _mixture(f"{model.name} {name}", tokens, wide, **given)
        if not wide:
            for tokens in DECODED:
                yield _sort(model.name, tokens, model.top, model.experts)
                yield _combine(model.name, tokens, model.top, model.hidden)


def _layers():
    """Experts with both products in turn, and layers with what stands before and behind them."""
    qwen, _, oss, _ = MODELS
    yield from (_experts(qwen, tokens) for tokens in SERVED)
    yield from (_experts(qwen, tokens, "bfloat16") for tokens in (64, 256, 1024))
    yield from (_experts(oss, tokens) for tokens in (1, 64, 256))
    yield from (_experts(DEEPSEEK, tokens) for tokens in (2048, 4096))
    for quantized in (False, True):
        yield from (_layer(qwen, tokens, quantized) for tokens in SERVED)


def _smallm():
    for m in FEW:
        yield from (_gemm(m, *weights) for weights in WEIGHTS)
        yield _dual(m, 4096, 7168)
        yield _groups([(m, 4096, 7168)] * 8)
        yield _route(m, 256, 7168)
        yield _quantize(m, 8192)


def _grid():
    for n in GRID:
        for k in GRID:
            yield _gemv(n, k, 1)
            yield _gemm(1, n, k)


def _cpu():
    """What the CPU backend is held to, and what tokens cost."""
    yield _gemv(7168, 16384, 1)
    yield from (_gemm(m, 4096, 7168) for m in (1, 8, 128))
    yield _gemm(128, 4096, 7168, wide=True)
    yield _dual(256, 3072, 4096)
    yield _groups([(128, 4096, 1536), (384, 4096, 1536)])
    yield _route(256, 256, 7168)
    yield from _quantize_by_recipes(4096, 4096)
    yield _dequantize(4096, 4096)
    for wide in (False, True):
        series = f"gemm {'W4A16' if wide else 'W4A4'} 4096x4096"
        yield from (_gemm(m, 4096, 4096, wide=wide, series=series, at=m) for m in SWEPT[:9:2])


def _quick():
    yield from (_gemv(*sizes) for sizes in verified.GEMV_TESTS[:2])
    yield _gemm(*verified.GEMM_TESTS[0])
    yield from (_gemm(m, 256, 256, series="gemm W4A16 256x256", at=m, wide=True) for m in (1, 4))
    yield _dual(*verified.DUAL_GEMM_TESTS[1])
    yield _groups(verified.GROUP_GEMM_TESTS[0])
    for wide in (False, True):
        yield _mixture("small", 8, wide, experts=4, top=2, n=64, k=128)
        yield _gated("small", 8, wide, experts=4, top=2, n=32, k=128)
    yield _sort("small", 8, 2, 4)
    yield _combine("small", 8, 2, 1024)
    yield from (_route(*sizes) for sizes in verified.ROUTE_BENCHMARKS[:1])
    yield from _quantize_by_recipes(256, 1024)
    yield _dequantize(256, 1024)
    small = Model("small", 4, 2, 128, 64)
    yield from (_experts(small, 8, dtype) for dtype in ("float16", "bfloat16"))
    yield from (_layer(small, 8, quantized) for quantized in (False, True))


SETS = {
    "competition": _competition,
    "tokens": _tokens,
    "moe": _moe,
    "moe16": partial(_moe, wide=True),
    "layers": _layers,
    "smallm": _smallm,
    "grid": _grid,
    "cpu": _cpu,
    "quick": _quick,
}


def chosen(sets, operators):
    """The shapes of these operators in these sets, in the sets' order."""
    found = []
    for name in dict.fromkeys(sets):
        for shape in SETS[name]():
            if shape.op in operators:
                shape.set = name
                found.append(shape)
    return found
