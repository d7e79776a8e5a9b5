"""The calls of find_cliffs.py: products of the models that are served, and their neighbours."""

import math
from dataclasses import dataclass, replace

TOKENS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
KINDS = ("float16", "bfloat16", "nvfp4")
LAYOUTS = ("linear", "blocked")
OPERATORS = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm")
ALIGNED = ("tokens", "weights", "factors")
SIZES = {"u8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "i32": 4}


@dataclass(frozen=True)
class Call:
    """m tokens, each of which `top` of the experts get; n rows of the weights, of a gated product
    n gates and n ups. The address and the strides of rows and batches of one operand, `which`, are
    odd multiples of `aligned` bytes where that is less than 16."""

    operator: str
    model: str
    m: int
    n: int
    k: int
    kind: str = "float16"
    layout: str = "linear"
    experts: int = 0
    top: int = 1
    batch: int = 1
    which: str = ""
    aligned: int = 16

    @property
    def is_gated(self):
        return "dual" in self.operator

    @property
    def rows(self):
        return self.m * self.top

    @property
    def weight_rows(self):
        """Of one of the matrices."""
        return self.n * (2 if self.is_gated else 1)

    @property
    def flops(self):
        return 2.0 * self.batch * self.rows * self.weight_rows * self.k

    @property
    def moved(self):
        """Bytes, of each expert that has rows where tokens pick at random."""
        matrices = self.batch
        if self.experts:
            matrices = self.experts * (1 - (1 - self.top / self.experts) ** self.m)
        token = self.k * (9 / 16 if self.kind == "nvfp4" else 2)
        weights = matrices * self.weight_rows * self.k * 9 / 16
        return weights + self.batch * self.rows * (token + 2 * self.n)

    @property
    def name(self):
        size = f"{self.m}x{'2x' * self.is_gated}{self.n}x{self.k}"
        size += f"x{self.batch}" * (self.batch > 1)
        experts = f" {self.experts} experts, top {self.top}" * bool(self.experts)
        odd = f", {self.which} at {self.aligned} bytes" * (self.aligned < 16)
        return f"{self.operator} {size}{experts} {self.kind} {self.layout}{odd}"


# N, K of dense products, by the operator that computes them.
DENSE = {
    "Llama-3-8B": {
        "gemm": [(6144, 4096), (4096, 4096), (4096, 14336)],
        "dual_gemm": [(14336, 4096)],
    },
    "Llama-3-70B": {
        "gemm": [(10240, 8192), (8192, 8192), (8192, 28672)],
        "dual_gemm": [(28672, 8192)],
    },
    "Qwen3-30B-A3B": {"gemm": [(5120, 2048), (2048, 4096)]},
    "DeepSeek-V3": {
        "gemm": [(1536, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384),
                 (7168, 2048), (7168, 18432)],
        "dual_gemm": [(2048, 7168), (18432, 7168)],
    },
    "gpt-oss": {"gemm": [(5120, 2880), (2880, 4096)]},
    "Mixtral-8x7B": {"gemm": [(6144, 4096), (4096, 4096)]},
}  # fmt: skip
BATCHES = {"DeepSeek-V3": [(128, 512, 128), (128, 128, 512)]}
"""Heads, N, K: what multi-head latent attention absorbs."""
MIXTURES = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "DeepSeek-V3": (256, 8, 7168, 2048),
    "DeepSeek-V3, 8 of 256": (8, 8, 7168, 2048),
    "gpt-oss-20b": (32, 4, 2880, 2880),
    "gpt-oss-120b": (128, 4, 2880, 2880),
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "Qwen3-30B-A3B on 4 GPUs": (128, 8, 2048, 192),
    "Qwen3-30B-A3B on 8 GPUs": (128, 8, 2048, 96),
    "gpt-oss-120b on 2 GPUs": (128, 4, 2880, 1440),
    "gpt-oss-120b on 4 GPUs": (128, 4, 2880, 720),
}
"""Experts, how many of them a token goes to, hidden and intermediate size, which GPUs may share."""


def _products():
    """Calls of one token, fp16 and linear factors."""
    for model, operators in DENSE.items():
        for operator, sizes in operators.items():
            for n, k in sizes:
                yield Call(operator, model, 1, n, k)
                if operator == "gemm":
                    yield Call("gemv", model, 1, n, k)
    for model, sizes in BATCHES.items():
        for batch, n, k in sizes:
            yield Call("gemm", model, 1, n, k, batch=batch)
            yield Call("gemv", model, 1, n, k, batch=batch)
    for model, (experts, top, hidden, intermediate) in MIXTURES.items():
        of = {"experts": experts, "top": top}
        yield Call("grouped_dual_gemm", model, 1, intermediate, hidden, **of)
        yield Call("grouped_gemm", model, 1, hidden, intermediate, **of)


def zoo():
    """Every product at every number of tokens, kind of tokens and layout."""
    for one in _products():
        for m in (1,) if one.operator == "gemv" else TOKENS:
            for kind in KINDS:
                for layout in LAYOUTS:
                    yield replace(one, m=m, kind=kind, layout=layout)


def neighbours(call):
    """What differs from a call in one small step."""
    for field, steps in (("m", (8, 16)), ("n", (8, 16, 32, 64, 128)), ("k", (16, 32, 64, 128))):
        for step in (-step for step in steps), steps:
            for by in step:
                if getattr(call, field) + by > 0 and (call.operator, field) != ("gemv", "m"):
                    yield replace(call, **{field: getattr(call, field) + by})
    yield from (replace(call, layout=layout) for layout in LAYOUTS if layout != call.layout)
    yield from (replace(call, kind=kind) for kind in KINDS if kind != call.kind)
    for which in ALIGNED:
        if which != "factors" or call.layout == "linear":
            yield from (replace(call, which=which, aligned=at) for at in (8, 4))


def step(call, near):
    """What differs, as text."""
    for field in ("m", "n", "k"):
        by = getattr(near, field) - getattr(call, field)
        if by:
            return f"{field}{by:+d}"
    if near.which:
        return f"{near.which} at {near.aligned} bytes"
    return near.layout if near.layout != call.layout else near.kind


def arguments(call, memory):
    """(arguments, options) of a call. memory.tensor(role, dtype, shape, strides, odd) makes its
    tensors, `odd` bytes past an address of 16; memory.offsets(call) and memory.rows(call) what
    sorts rows by expert."""

    def tensor(role, dtype, *shape):
        odd = call.aligned if call.which == role and call.aligned < 16 else 0
        step, strides = 1, []
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
            if odd and len(strides) == 1:  # of rows, and with them of matrices
                step += (odd - step * SIZES[dtype]) % 16 // SIZES[dtype]
        return memory.tensor(role, dtype, shape, strides, odd)

    def factors(role, layout, *shape):
        *lead, rows, columns = shape
        if layout == "blocked":
            shape = [math.prod(lead) * -(-rows // 128) * 128 * -(-columns // 4) * 4]
        return tensor(role, "u8", *shape)

    is_gemv = call.operator == "gemv"
    lead = [call.batch] if call.batch > 1 or is_gemv else []
    stack = [call.experts] if call.experts else lead
    rows = call.m if call.is_gated else call.rows
    of_tokens = "linear" if call.experts else call.layout
    if call.kind == "nvfp4":
        a = tensor("tokens", "u8", *lead, rows, call.k // 2)
        sfa = factors("factors of tokens", of_tokens, *lead, rows, call.k // 16)
    else:
        a, sfa = tensor("tokens", call.kind, *lead, rows, call.k), None
    matrices, n = (2, call.n) if call.operator == "dual_gemm" else (1, call.weight_rows)
    b = [tensor("weights", "u8", *stack, n, call.k // 2) for _ in range(matrices)]
    sfb = [factors("factors", call.layout, *stack, n, call.k // 16) for _ in range(matrices)]
    if is_gemv:
        out = tensor("out", "float16", *lead, call.n, 1)
        return (*b, a, *sfb, sfa), {"scale_layout": call.layout, "out": out}
    options = {"scale_layout": (of_tokens, call.layout)}
    options["out"] = tensor("out", "float16", *lead, call.rows, call.n)
    if call.experts:
        options["offsets"] = memory.offsets(call)
    if call.experts and call.is_gated:
        options |= {"rows": memory.rows(call), "rows_per_token": call.top}
    return (a, *b, sfa, *sfb), options
