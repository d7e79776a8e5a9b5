"""What the operators return, from shapes alone: for tracing, and to allocate outputs left out.

Each rule takes those of the schema's arguments that say something of the outputs, whose sizes may
be symbols. It refuses what it cannot derive outputs from: ranks, unknown words, a K that no block
divides. All other rules are the call's, which checks everything when the code runs.
"""

import math

import torch

from ..layout import ATOM_COLS, ATOM_ROWS, SF_VEC

CODES = (torch.float4_e2m1fn_x2, torch.uint8)
CODES_NAMES = ("float4_e2m1fn_x2", "uint8")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def expect(condition, name, got, expected):
    torch._check_value(condition, lambda: f"{name}: {got}, expected {expected}")


def ranked(name, t, ranks, expected):
    """The shape of a tensor whose rank is one of these; None: any but 0."""
    fits = t.dim() > 0 if ranks is None else t.dim() in ranks
    expect(fits, name, f"shape {tuple(t.shape)}", expected)
    return tuple(t.shape)


def blocks_of(name, k):
    expect(k % SF_VEC == 0, name, f"K = {k}", "a multiple of 16")
    return k // SF_VEC


def up_to(size, multiple):
    return (size + multiple - 1) // multiple * multiple


def blocked_sizes(*sizes):
    """Of scales [.., rows, cols]; those of a row alone, [cols], are one atom high."""
    *batch, rows, cols = sizes if len(sizes) > 1 else (1, *sizes)
    return *batch, up_to(rows, ATOM_ROWS), up_to(cols, ATOM_COLS)


def empty(like, sizes, dtype):
    return torch.empty(sizes, dtype=dtype, device=like.device)


def half_type(tokens):
    return tokens.dtype if tokens.dtype in (torch.float16, torch.bfloat16) else torch.float16


def floats(like, sizes, dtype, default=None):
    """The result, of out_dtype, whose default is the dtype of a 16-bit `like`, else float16."""
    if dtype is not None and dtype not in FLOATS:
        raise ValueError(f"out_dtype: {dtype}, expected float16 or bfloat16 or float32")
    return empty(like, sizes, dtype or default or half_type(like))


def codes(like, sizes, dtype):
    """The result, of data_dtype."""
    dtype = CODES[0] if dtype is None else dtype
    expect(dtype in CODES, "data_dtype", dtype, " or ".join(CODES_NAMES))
    return empty(like, sizes, dtype)


# --- Products ---


def gemv(a, b, out_dtype=None):
    rows = ranked("a", a, (2, 3), "[M, K/2] with or without a batch L")[:-1]
    return floats(a, (*rows, 1), out_dtype, half_type(b))


def gemm(a, b, out_dtype=None):
    rows = ranked("a", a, None, "[.., K]")[:-1]
    return floats(a, (*rows, ranked("b", b, (2, 3), "[N, K] or [L, N, K]")[-2]), out_dtype)


def dual_gemm(a, b1, out_dtype=None):
    rows = ranked("a", a, None, "[.., K]")[:-1]
    return floats(a, (*rows, ranked("b1", b1, (2, 3), "[N, K] or [L, N, K]")[-2]), out_dtype)


def of_experts(a, b, rows):
    """(rows of the result, rows of an expert's weights)"""
    m, _ = ranked("a", a, (2,), "[sum M, K/2]")
    _, n, _ = ranked("b", b, (3,), "[G, N, K/2]")
    return (m if rows is None else ranked("rows", rows, (1,), "[P]")[0]), n


def grouped_gemm(a, b, rows=None, out_dtype=None):
    return floats(a, of_experts(a, b, rows), out_dtype)


def encoded_rows(a, m, n, data_dtype):
    expect(n % SF_VEC == 0, "b", f"N = {n}", "a multiple of 16 with quantized=True")
    return codes(a, (m, n // 2), data_dtype), empty(a, (m, n // SF_VEC), torch.float8_e4m3fn)


def grouped_gemm_quantized(a, b, rows=None, data_dtype=None):
    return encoded_rows(a, *of_experts(a, b, rows), data_dtype)


def grouped_gemm_list(a, b, out_dtype=None):
    expect(len(b) == len(a), "b", f"{len(b)} items", "one item for each of a")
    sizes = [
        tuple(ranked(f"{name}[{g}]", t[g], (2,), "a matrix")[0] for name, t in (("a", a), ("b", b)))
        for g in range(len(a))
    ]
    return [floats(of, size, out_dtype) for of, size in zip(a, sizes, strict=True)]


def half_of(b, both):
    shape = f"shape {tuple(b.shape)}"
    expect(both % 2 == 0, "b", shape, "[G, 2 N, K/2]: as many rows of gates as of ups")
    return both // 2


def grouped_dual_gemm(a, b, rows=None, out_dtype=None):
    m, both = of_experts(a, b, rows)
    return floats(a, (m, half_of(b, both)), out_dtype)


def grouped_dual_gemm_quantized(a, b, rows=None, data_dtype=None):
    m, both = of_experts(a, b, rows)
    return encoded_rows(a, m, half_of(b, both), data_dtype)


# --- NVFP4 ---


def quantize(x, scale_layout="linear", offsets=None, data_dtype=None):
    expect(
        scale_layout in ("linear", "blocked"), "scale_layout", repr(scale_layout),
        "'linear' or 'blocked'",
    )  # fmt: skip
    *outer, k = ranked("x", x, None, "[.., K]")
    sizes = (*outer, blocks_of("x", k))
    if offsets is not None:
        fits = scale_layout == "blocked" and x.dim() == 2
        expect(fits, "offsets", "given", "None unless scale_layout='blocked' and x is [M, K]")
        (ends,) = ranked("offsets", offsets, (1,), "[G + 1]")
        expect(ends >= 1, "offsets", f"shape ({ends},)", "[G + 1]")
        sizes = ((outer[0] // ATOM_ROWS + ends - 1) * ATOM_ROWS, up_to(sizes[1], ATOM_COLS))
    elif scale_layout == "blocked":
        sizes = blocked_sizes(*sizes)
    return codes(x, (*outer, k // 2), data_dtype), empty(x, sizes, torch.float8_e4m3fn)


def token_shape(x):
    """Of a number for each row of x."""
    return x.shape[:-1] if x.dim() > 1 else (1,)


def quantize_token(x, scale_layout="linear", offsets=None, data_dtype=None):
    return *quantize(x, scale_layout, offsets, data_dtype), empty(x, token_shape(x), torch.float32)


def quantize_amax(x, scale_layout="linear", offsets=None, data_dtype=None):
    return *quantize(x, scale_layout, offsets, data_dtype), empty(x, (1,), torch.float32)


def dequantize(data, out_dtype=None):
    *outer, bytes_of_k = ranked("q.data", data, None, "[.., K/2]")
    blocks_of("q.data", 2 * bytes_of_k)
    return floats(data, (*outer, 2 * bytes_of_k), out_dtype)


def to_blocked(scales):
    sizes = ranked("scales", scales, (2, 3), "[rows, K/16] with or without L")
    return empty(scales, blocked_sizes(*sizes), scales.dtype)


def from_blocked(buffer, rows, cols):
    for name, size in (("rows", rows), ("cols", cols)):
        expect(size >= 0, name, size, "a size from 0")
    permuted = buffer.dim() == 6 and buffer.shape[0] == 32 and buffer.shape[3] == 4
    batch = (buffer.shape[5 if permuted else 0],) if buffer.dim() in (3, 6) else ()
    return empty(buffer, (*batch, rows, cols), buffer.dtype)


# --- Routers, and what surrounds them ---


def local_experts(n, expert_map, count):
    """The extent of counts."""
    if expert_map is None:
        return n
    if count is None:
        raise TypeError("num_local_experts: None, expected an int where expert_map is given")
    expect(count >= 0, "num_local_experts", count, "0 or more")
    return count


def route(
    x, w, k, dense=False, logits=None, expert_map=None, num_local_experts=None, out_dtype=None, *,
    permutation=False, return_logits=False, return_row_of=False,
):  # fmt: skip
    for name, t in (("x", x), ("w", w)) if logits is None else ():
        if t is None:
            raise TypeError(f"{name}: None, expected a tensor")
    first = x if logits is None else logits
    name, shape = ("x", "[.., K]") if logits is None else ("logits", "[.., N]")
    *outer, n = ranked(name, first, None, shape)
    if logits is None:
        n, _ = ranked("w", w, (2,), "[N, K]")
    expect(k >= 1, "k", k, "1 or more")
    outs = [
        floats(first, (*outer, n if dense else k), out_dtype, torch.float32),
        empty(first, (*outer, k), torch.int32),
    ]
    if permutation:
        local, selections = local_experts(n, expert_map, num_local_experts), math.prod(outer) * k
        sizes = (local, local + 1, selections, *[selections] * return_row_of)
        outs += [empty(first, (size,), torch.int32) for size in sizes]
    if return_logits:
        outs.append(empty(first, (*outer, n), torch.float32))
    return tuple(outs)


def sort_by_expert(ids, num_experts, expert_map=None, num_local_experts=None):
    ranked("ids", ids, None, "[.., k]")
    expect(num_experts >= 0, "num_experts", num_experts, "0 or more")
    local = local_experts(num_experts, expert_map, num_local_experts)
    sizes = (local, local + 1, ids.numel(), ids.numel())
    return tuple(empty(ids, (size,), torch.int32) for size in sizes)


def combine(products, weights, out_dtype=None):
    _, h = ranked("products", products, (2,), "[P, H]")
    return floats(products, (*ranked("weights", weights, None, "[.., k]")[:-1], h), out_dtype)
