"""`python -m nvfp4kern explain`: what a call of a shape would use. Runs nothing."""

import argparse
import os
import sys

from . import _C, assumed, machine

SHAPES = {
    "gemv": "MxK[xL]",
    "gemm": "MxNxK[xL]",
    "dual_gemm": "MxNxK[xL]",
    "grouped_gemm": "MxNxK[,MxNxK ...]",
    "grouped_dual_gemm": "GxMxNxK",
    "route": "MxNxK",
    "sort_by_expert": "MxKxN",
    "combine": "MxKxH",
    "quantize": "MxK",
    "dequantize": "MxK",
}
EXPERTS = "GxMxNxK"
"""A shape of grouped_gemm, too: M tokens, spread over G experts."""

SCALED = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm")
TOKENS = {"route": "float16", "combine": "float16", "quantize": "float16"}
TOKENS |= dict.fromkeys(SCALED, "nvfp4")
"""What tokens are unless --tokens says otherwise. The other operators have none."""

EXAMPLES = """
shapes: M tokens, N rows of weights (of route: experts), K elements, L batches,
G experts
  gemv 7168x16384                       a matrix by one token
  gemm 128x7168x16384                   128 tokens; a fourth size is a batch
  gemm 8x8192x8192 --tokens bfloat16    W4A16
  dual_gemm 256x3072x4096 --layout blocked
  grouped_gemm 64x4096x1536,9x4096x1536  a list of products
  grouped_gemm 128x64x4096x1536         128 experts share 64 tokens
  grouped_dual_gemm 128x64x768x2048     the same, gated: N gates, N ups
  route 64x256x7168                     64 tokens, 256 experts
  sort_by_expert 64x8x256               64 tokens choose 8 of 256 experts each
  combine 64x8x7168                     64 tokens add 8 rows of 7168
  quantize 4096x7168 --tokens bfloat16
  dequantize 4096x7168
"""


def add_arguments(parser):
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "What a call of a shape would use. Runs nothing."
    parser.epilog = EXAMPLES
    parser.add_argument("op", choices=SHAPES, metavar="OP", help=", ".join(SHAPES))
    parser.add_argument("shape", metavar="SHAPE", help="sizes with x between, see below")
    parser.add_argument(
        "--tokens",
        choices=("nvfp4", "float16", "bfloat16", "float32"),
        help="what tokens are. 16 bits in a product: W4A16. Default: nvfp4 in products, else "
        "float16",
    )
    parser.add_argument(
        "--weights",
        choices=("nvfp4", "16-bit"),
        default="nvfp4",
        help="16-bit: those of grouped_gemm are of the tokens' dtype. Default: nvfp4",
    )
    parser.add_argument(
        "--layout",
        choices=("linear", "blocked"),
        help="of all scale factors. Default: linear",
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda where there is a GPU to call"
    )
    parser.add_argument(
        "--gpu",
        choices=assumed.GPUS,
        metavar="GPU",
        help=f"plan for one that is not here: {', '.join(assumed.GPUS)}",
    )


def _up(size, multiple):
    return -(-size // multiple) * multiple


class _Operands:
    """Tensors whose contents do not matter."""

    def __init__(self, tokens, weights, layout, device):
        self.tokens, self.weights = tokens, tokens if weights == "16-bit" else "nvfp4"
        self.layout, self.device = layout, device

    def empty(self, dtype, *shape):
        """Of torch on a GPU, and where NumPy has no such dtype."""
        if self.device == "assumed":
            return assumed.array(dtype, *shape)
        if self.device == "cpu" and dtype != "bfloat16":
            import numpy as np

            return np.empty(shape, dtype)
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)

    def numbers(self, values, dtype="int32"):
        if self.device == "assumed":
            return assumed.array(dtype, len(values))
        import numpy as np

        found = np.asarray(values, dtype)
        if self.device == "cpu":
            return found
        import torch

        return torch.from_numpy(found).to(self.device)

    def scales(self, *shape, experts=0):
        """Those of codes of that many elements; those of each expert begin an atom."""
        *lead, rows, k = shape
        if self.layout == "blocked":
            rows = 128 * (rows // 128 + experts) if experts else _up(rows, 128)
            return self.empty("uint8", *lead, rows, _up(k // 16, 4))
        return self.empty("uint8", *lead, rows, k // 16)

    def pair(self, kind, *shape, experts=0):
        """An operand and its scale factors, which 16 bits have none of."""
        *lead, k = shape
        if kind != "nvfp4":
            return self.empty(kind, *shape), None
        if k % 16:
            raise ValueError(f"K = {k}")
        return self.empty("uint8", *lead, k // 2), self.scales(*shape, experts=experts)

    def token(self, *shape, experts=0):
        return self.pair(self.tokens, *shape, experts=experts)

    def weight(self, *shape):
        return self.pair(self.weights, *shape)


def _sizes(operator, text):
    """The sizes of each group. ValueError where `text` is no shape of the operator."""
    groups = [[int(size) for size in part.split("x")] for part in text.split(",")]
    wanted = SHAPES[operator].partition("[")[0].count("x") + 1
    more = "[xL]" in SHAPES[operator] or operator == "grouped_gemm" and len(groups) == 1
    lengths = set(map(len, groups))
    if not lengths <= {wanted, wanted + more} or min(map(min, groups)) < 0:
        raise ValueError(text)
    if len(groups) > 1 and operator != "grouped_gemm":
        raise ValueError(text)
    return groups


def _arguments(operator, groups, of):
    """A call's positional arguments; the offsets of experts last."""
    sizes = groups[0]
    if operator == "quantize":
        return [of.empty(of.tokens, *sizes)]
    if operator == "dequantize":
        of.weights = "nvfp4"
        return [(*of.weight(*sizes), 1.0)]
    if operator == "route":
        m, n, k = sizes
        return [of.empty(of.tokens, m, k), of.empty(of.tokens, n, k), min(4, n)]
    if operator == "sort_by_expert":  # K selections of M tokens
        m, k, n = sizes
        return [of.empty("int32", m, k), n]
    if operator == "combine":  # the same
        m, k, h = sizes
        rows = of.numbers(range(m * k))
        return [of.empty(of.tokens, m * k, h), rows, of.empty("float32", m, k)]
    if operator == "grouped_dual_gemm" or len(sizes) == 4 and operator == "grouped_gemm":
        experts, m, n, k = sizes
        a, sfa = of.token(m, k, experts=experts)
        b, sfb = of.weight(experts, n * (1 + (operator == "grouped_dual_gemm")), k)
        offsets = of.numbers([m * i // max(experts, 1) for i in range(experts + 1)])
        return [a, b, sfa, sfb, offsets]
    if operator == "grouped_gemm":
        products = [(*of.token(m, k), *of.weight(n, k)) for m, n, k in groups]
        a, sfa, b, sfb = map(list, zip(*products, strict=True))
        return [a, b, sfa, sfb]
    if operator == "gemv":
        m, k, *batch = sizes
        (b, sfb), (a, sfa) = of.token(*batch, 1, k), of.weight(*batch, m, k)
        return [a, b, sfa, sfb]
    m, n, k, *batch = sizes
    a, sfa = of.token(*batch, m, k)
    weights = [of.weight(*batch, n, k) for _ in range(1 + (operator == "dual_gemm"))]
    b, sfb = zip(*weights, strict=True)
    return [a, *b, sfa, *sfb]


def _refused(operator, tokens, weights, layout):
    """Why this operator has no such call, or None."""
    product = operator in SCALED
    if tokens and operator not in TOKENS:
        return f"--tokens: {tokens!r}, but {operator} has no tokens"
    if tokens == "nvfp4" and not product:
        return f"--tokens: 'nvfp4', expected float16, bfloat16 or float32 for {operator}"
    if tokens == "float32" and (product or operator == "combine"):
        return f"--tokens: 'float32', expected another dtype for {operator}"
    if weights == "16-bit" and (operator != "grouped_gemm" or tokens in (None, "nvfp4")):
        return "--weights: '16-bit', expected grouped_gemm with --tokens float16 or bfloat16"
    if layout and not (product or operator.endswith("quantize")):
        return f"--layout: {layout!r}, but {operator} has no scale factors"
    return None


def plan(operator, shape, tokens=None, weights="nvfp4", layout=None, device="cpu"):
    """What nvfp4kern.explain() says of such a call. ValueError where there is none."""
    if refused := _refused(operator, tokens, weights, layout):
        raise ValueError(refused)
    of = _Operands(tokens or TOKENS.get(operator), weights, layout, device)
    try:
        arguments = _arguments(operator, _sizes(operator, shape), of)
    except ValueError:
        wanted = SHAPES[operator] + (f" or {EXPERTS}" if operator == "grouped_gemm" else "")
        multiple = " with K a multiple of 16" if operator in (*SCALED, "dequantize") else ""
        raise ValueError(f"shape: {shape!r}, expected {wanted}{multiple} for {operator}") from None
    options = {"scale_layout": layout} if layout else {}
    if operator == "grouped_gemm" and len(arguments) == 5:
        options["offsets"] = arguments.pop()
    return _C.explain(operator, *arguments, **options)


def _device(arguments):
    """Where the operands are."""
    if not arguments.gpu:
        return arguments.device or ("cpu" if machine.why_no_gpu() else "cuda")
    if arguments.device == "cpu":
        raise ValueError("--gpu: not with --device cpu")
    if not any(row["code"] for row in _C.backends()):
        raise ValueError("--gpu: this build has no kernels of GPUs")
    return "assumed"


def run(arguments):
    """The exit status. --gpu is for a process of its own: it has no other GPU then."""
    if arguments.gpu:  # before anything asks for the GPUs of this machine
        os.environ["NVFP4KERN_ASSUMED_GPU"] = assumed.setting(arguments.gpu)
    given = (getattr(arguments, name) for name in ("op", "shape", "tokens", "weights", "layout"))
    try:
        found = plan(*given, _device(arguments))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for key, value in found.items():
        print(f"{key:<16} {value}")
    return 0
