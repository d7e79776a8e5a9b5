"""What the operators return, from shapes alone: for tracing, and to allocate outputs left out.

The C library checks a real call. These are its rules for sizes that may be symbols. A rule that
relates two tensors uses torch._check, so that an unbacked size is checked when the code runs. Rules
about data and addresses (offsets, overlap, alignment) are left to the real call.
"""

import math

import torch

from ..layout import ATOM_COLS, ATOM_ROWS, SF_VEC

CODES = (torch.float4_e2m1fn_x2, torch.uint8)
CODES_NAMES = ("float4_e2m1fn_x2", "uint8")
SCALES = (torch.float8_e4m3fn, torch.uint8)
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "identity")
MAX_INT32 = 2**31 - 1


# ---------------------------------------------------------------------------------------------
# Checks
# ---------------------------------------------------------------------------------------------


def expect(condition, name, got, expected):
    torch._check_value(condition, lambda: f"{name}: {got}, expected {expected}")


def word(name, value, words):
    expect(value in words, name, repr(value), " or ".join(map(repr, words)))


def shape_of(t):
    return f"shape {tuple(t.shape)}"


def tensor(name, t, dtypes, first):
    if t.dtype not in dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name}: dtype {str(t.dtype).removeprefix('torch.')}, expected {names}")
    expect(t.device == first.device, name, f"device {t.device}", first.device)


def same_sizes(name, t, sizes, expected):
    """One dimension after the other: each becomes one equation of symbols."""
    expect(t.dim() == len(sizes), name, shape_of(t), expected)
    for ours, size in zip(t.shape, sizes, strict=True):
        expect(ours == size, name, shape_of(t), expected)


def up_to(size, multiple):
    return (size + multiple - 1) // multiple * multiple


def blocked_sizes(*sizes):
    """Of scales [.., rows, cols]; those of a row alone, [cols], are one atom high."""
    *batch, rows, cols = sizes if len(sizes) > 1 else (1, *sizes)
    return *batch, up_to(rows, ATOM_ROWS), up_to(cols, ATOM_COLS)


def scales(name, sf, layout, sizes, first):
    """Checks the scales for `sizes`, which is [.., rows, K/16] or, for a row alone, [K/16]."""
    word("scale_layout", layout, ("linear", "blocked"))
    tensor(name, sf, SCALES, first)
    if layout == "linear":
        same_sizes(name, sf, sizes, f"{tuple(sizes)} for scale_layout 'linear'")
        unit_stride(name, sf, "K/16")
        return
    least = math.prod(blocked_sizes(*sizes))
    expect(sf.numel() >= least, name, shape_of(sf), f"blocked scales of at least {least} bytes")


def unit_stride(name, t, what):
    """Looks at strides first, since a stride of 1 is rarely a symbol."""
    expect(t.stride(-1) == 1 or t.shape[-1] <= 1, name, f"stride {t.stride(-1)} along {what}", "1")


def operand(name, t, sf_name, sf, layout, dtypes, first, k_innermost=True):
    """(all but K, K) of codes [.., K/2] and their scales, or of 16-bit values without scales."""
    tensor(name, t, dtypes, first)
    expect(t.dim() > 0, name, shape_of(t), "[.., K]")
    is_fp4 = t.dtype in CODES
    *outer, k = t.shape
    if is_fp4:
        k = 2 * k
    expect(k % SF_VEC == 0, name, f"{shape_of(t)} is K = {k}", "a multiple of 16")
    if is_fp4 or k_innermost:
        unit_stride(name, t, "K")
    if is_fp4:
        expect(sf is not None, sf_name, "None", f"the scales of {name}")
        scales(sf_name, sf, layout, (*outer, k // SF_VEC), first)
    else:
        expect(sf is None, sf_name, "given", f"None for {name} of dtype {t.dtype}")
    return tuple(outer), k


def weights(name, t, sf_name, sf, layout, dtypes, a, k_innermost=True):
    """(N, K) of weights [N, K], or [L, N, K] with the L of `a`."""
    expected = f"[N, K], or [L, N, K] with the L of a, which has {shape_of(a)}"
    expect(t.dim() == 2 or t.dim() == a.dim() == 3, name, shape_of(t), expected)
    if t.dim() == 3:
        expect(t.shape[0] == a.shape[0], name, shape_of(t), expected)
    outer, k = operand(name, t, sf_name, sf, layout, dtypes, a, k_innermost)
    return outer[-1], k


def same_k(name, t, k, of_a):
    expect(k == of_a, name, f"{shape_of(t)} is K = {k}", f"K = {of_a} as in a")


def alpha_like(name, t, n, first):
    """One element, or [n]."""
    if t is not None:
        tensor(name, t, (torch.float32,), first)
        fits = (t.dim() == 1 and t.shape[0] == n) or t.numel() == 1
        expect(fits, name, shape_of(t), f"one element or ({n},)")


def bias_like(name, t, sizes, first):
    if t is not None:
        tensor(name, t, FLOATS, first)
        same_sizes(name, t, sizes, tuple(sizes))


def out_dtype_of(dtype, default=torch.float16):
    if dtype is None:
        return default
    if dtype not in FLOATS:
        raise ValueError(f"out_dtype: {dtype}, expected float16 or bfloat16 or float32")
    return dtype


def codes_dtype_of(dtype):
    dtype = CODES[0] if dtype is None else dtype
    expect(dtype in CODES, "data_dtype", dtype, " or ".join(CODES_NAMES))
    return dtype


def one_scale(t, first):
    if t is not None:
        tensor("global_scale", t, (torch.float32,), first)
        expect(t.numel() == 1, "global_scale", shape_of(t), "one element")


def empty(like, sizes, dtype):
    return torch.empty(sizes, dtype=dtype, device=like.device)


def kind_of(dtype):
    """The dtypes that a given output may have instead of the one that the operator would make."""
    kinds = (SCALES, FLOATS) if dtype != torch.float4_e2m1fn_x2 else (CODES,)
    return next((kind for kind in kinds if dtype in kind), (dtype,))


def given(names, outs, specs):
    """Checks the outputs that the caller gave against those that the operator would make."""
    for name, out, spec in zip(names, outs, specs, strict=True):
        tensor(name, out, kind_of(spec.dtype), spec)
        if spec.dtype not in SCALES:  # blocked scales may have any shape with enough bytes
            same_sizes(name, out, spec.shape, tuple(spec.shape))


# ---------------------------------------------------------------------------------------------
# Operators: the parameters of the schemas in ops.py
# ---------------------------------------------------------------------------------------------


def gemv(
    a, b, sfa, sfb=None, alpha=1.0, alpha_tensor=None, sfa_layout="linear", sfb_layout="linear",
    out_dtype=None,
):  # fmt: skip
    expect(a.dim() in (2, 3), "a", shape_of(a), "[M, K/2] with or without a batch L")
    (*batch, rows), k = operand("a", a, "sfa", sfa, sfa_layout, CODES, a)
    outer, b_k = operand("b", b, "sfb", sfb, sfb_layout, CODES + HALVES, a)
    expect(b.dim() == a.dim(), "b", shape_of(b), f"the batch of a, which has {shape_of(a)}")
    for ours, theirs in zip(outer, (*batch, 1), strict=True):
        expect(ours == theirs, "b", shape_of(b), "one row with the batch of a")
    same_k("b", b, b_k, k)
    alpha_like("alpha", alpha_tensor, rows, a)
    return empty(a, (*batch, rows, 1), out_dtype_of(out_dtype))


def gemm(
    a, b, sfa, sfb, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", out_dtype=None,
):  # fmt: skip
    outer, k = operand("a", a, "sfa", sfa, sfa_layout, CODES + HALVES, a)
    n, b_k = weights("b", b, "sfb", sfb, sfb_layout, CODES, a)
    same_k("b", b, b_k, k)
    alpha_like("alpha", alpha_tensor, n, a)
    bias_like("bias", bias, (n,), a)
    return empty(a, (*outer, n), out_dtype_of(out_dtype))


def dual_gemm(
    a, b1, b2, sfa, sfb1, sfb2, alpha1=1.0, alpha1_tensor=None, alpha2=1.0, alpha2_tensor=None,
    activation="silu", sfa_layout="linear", sfb_layout="linear", out_dtype=None,
):  # fmt: skip
    word("activation", activation, ACTIVATIONS)
    outer, k = operand("a", a, "sfa", sfa, sfa_layout, CODES + HALVES, a)
    sizes = []
    for name, b, sf in (("b1", b1, sfb1), ("b2", b2, sfb2)):
        n, b_k = weights(name, b, f"sf{name}", sf, sfb_layout, CODES, a)
        same_k(name, b, b_k, k)
        sizes.append(n)
    n = sizes[0]
    expected = f"the shape of b1, {tuple(b1.shape)}"
    expect(b2.dim() == b1.dim(), "b2", shape_of(b2), expected)
    expect(sizes[1] == n, "b2", shape_of(b2), expected)
    alpha_like("alpha1", alpha1_tensor, n, a)
    alpha_like("alpha2", alpha2_tensor, n, a)
    return empty(a, (*outer, n), out_dtype_of(out_dtype))


def experts(a, b, b_shape, dtypes, sfa, sfb, offsets, sfa_layout, sfb_layout, rows, rows_per_token):
    """(rows of the result, experts, rows of each one's weights)"""
    expect(a.dim() == 2, "a", shape_of(a), "[sum M, K/2]")
    expect(b.dim() == 3, "b", shape_of(b), b_shape)
    (m,), k = operand("a", a, "sfa", sfa, sfa_layout, CODES + HALVES, a)
    (groups, n), b_k = operand("b", b, "sfb", sfb, sfb_layout, dtypes, a, k_innermost=False)
    same_k("b", b, b_k, k)
    if rows is None:
        expect(rows_per_token == 1, "rows_per_token", rows_per_token, "1 where rows is None")
    else:
        fits = 1 <= rows_per_token <= MAX_INT32
        expect(fits, "rows_per_token", rows_per_token, f"1 to {MAX_INT32}")
        tensor("rows", rows, (torch.int32,), a)
        expect(rows.dim() == 1, "rows", shape_of(rows), "[P]")
        m = rows.shape[0]
    tensor("offsets", offsets, (torch.int32,), a)
    same_sizes("offsets", offsets, (groups + 1,), f"({groups + 1},): one more than the experts")
    return m, groups, n


def grouped_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, out_dtype=None,
):  # fmt: skip
    m, groups, n = experts(
        a, b, "[G, N, K/2]", b_dtypes(a), sfa, sfb, offsets, sfa_layout, sfb_layout, rows,
        rows_per_token,
    )  # fmt: skip
    if alpha_tensor is not None and alpha_tensor.dim() == 2:
        tensor("alpha", alpha_tensor, (torch.float32,), a)
        same_sizes("alpha", alpha_tensor, (groups, n), f"one element, [G] or ({groups}, {n})")
    else:
        alpha_like("alpha", alpha_tensor, groups, a)
    bias_like("bias", bias, (groups, n), a)
    return empty(a, (m, n), out_dtype_of(out_dtype))


def grouped_dual_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, out_dtype=None,
):  # fmt: skip
    m, n = gated_experts(
        a, b, sfa, sfb, offsets, alpha_tensor, activation, sfa_layout, sfb_layout, rows,
        rows_per_token,
    )  # fmt: skip
    return empty(a, (m, n), out_dtype_of(out_dtype))


def grouped_dual_gemm_quantized(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, global_scale=1.0, global_scale_tensor=None,
    data_dtype=None,
):  # fmt: skip
    m, n = gated_experts(
        a, b, sfa, sfb, offsets, alpha_tensor, activation, sfa_layout, sfb_layout, rows,
        rows_per_token,
    )  # fmt: skip
    expect(activation == "silu", "activation", repr(activation), "'silu' with quantized=True")
    fits = n % SF_VEC == 0
    expect(fits, "b", shape_of(b), "N to be a multiple of 16 with quantized=True, in [G, 2 N, K/2]")
    one_scale(global_scale_tensor, a)
    return empty(a, (m, n // 2), codes_dtype_of(data_dtype)), empty(a, (m, n // SF_VEC), SCALES[0])


def gated_experts(
    a, b, sfa, sfb, offsets, alpha_tensor, activation, sfa_layout, sfb_layout, rows, rows_per_token
):
    """(rows of the result, N)"""
    word("activation", activation, ACTIVATIONS)
    m, groups, both = experts(
        a, b, "[G, 2 N, K/2]", CODES, sfa, sfb, offsets, sfa_layout, sfb_layout, rows,
        rows_per_token,
    )  # fmt: skip
    expect(both % 2 == 0, "b", shape_of(b), "[G, 2 N, K/2]: gates, then as many ups")
    if alpha_tensor is not None and alpha_tensor.dim() == 2:
        tensor("alpha", alpha_tensor, (torch.float32,), a)
        wanted = f"one element, ({groups},), ({groups}, 2) or ({groups}, {both})"
        of = alpha_tensor.shape
        fits = alpha_tensor.numel() == 1 or of[0] == groups and (of[1] == 2 or of[1] == both)
        expect(fits, "alpha", shape_of(alpha_tensor), wanted)
    else:
        alpha_like("alpha", alpha_tensor, groups, a)
    return m, both // 2


def b_dtypes(a):
    """The dtypes that b of grouped_gemm may have: codes, or the type of a 16-bit a."""
    return CODES + ((a.dtype,) if a.dtype in HALVES else ())


def grouped_gemm_list(
    a, b, sfa, sfb, alpha, alpha_tensor, bias, sfa_layout="linear", sfb_layout="linear",
    out_dtype=None,
):  # fmt: skip
    outs = []
    for name, items in (
        ("b", b),
        ("sfa", sfa),
        ("sfb", sfb),
        ("alpha", alpha_tensor),
        ("bias", bias),
    ):
        expect(len(items) == len(a), name, f"{len(items)} items", "one item for each of a")
    for g in range(len(a)):
        expect(a[g].dim() == 2, f"a[{g}]", shape_of(a[g]), "a matrix for a group")
        expect(b[g].dim() == 2, f"b[{g}]", shape_of(b[g]), "a matrix for a group")
        (m,), k = operand(f"a[{g}]", a[g], f"sfa[{g}]", sfa[g], sfa_layout, CODES + HALVES, a[0])
        (n,), b_k = operand(
            f"b[{g}]", b[g], f"sfb[{g}]", sfb[g], sfb_layout, b_dtypes(a[g]), a[0],
            k_innermost=False,
        )  # fmt: skip
        same_k(f"b[{g}]", b[g], b_k, k)
        alpha_like(f"alpha[{g}]", alpha_tensor[g], n, a[0])
        bias_like(f"bias[{g}]", bias[g], (n,), a[0])
        outs.append(empty(a[g], (m, n), out_dtype_of(out_dtype)))
    return outs


def float_rows(name, t, expected, first):
    """(all but the last extent, the last) of floats that are contiguous along it."""
    tensor(name, t, FLOATS, first)
    expect(t.dim() > 0, name, shape_of(t), expected)
    unit_stride(name, t, expected[-2])
    *outer, cols = t.shape
    return tuple(outer), cols


def quantize(
    x, up=None, global_scale=1.0, global_scale_tensor=None, scale_layout="linear", offsets=None,
    data_dtype=None,
):  # fmt: skip
    word("scale_layout", scale_layout, ("linear", "blocked"))
    outer, k = operand("x", x, "", None, "linear", FLOATS, x)
    if up is not None:
        tensor("up", up, (x.dtype,), x)
        same_sizes("up", up, x.shape, f"{tuple(x.shape)}, the shape of x")
        unit_stride("up", up, "K")
    one_scale(global_scale_tensor, x)
    sizes = (*outer, k // SF_VEC)
    if scale_layout == "blocked":
        sizes = blocked_sizes(*sizes)
    if offsets is not None:
        blocked = scale_layout == "blocked" and x.dim() == 2
        expect(blocked, "offsets", "given", "None unless scale_layout='blocked' and x is [M, K]")
        tensor("offsets", offsets, (torch.int32,), x)
        expect(offsets.dim() == 1, "offsets", shape_of(offsets), "[G + 1]")
        sizes = (outer[0] // ATOM_ROWS + offsets.shape[0] - 1) * ATOM_ROWS, sizes[1]
    data = empty(x, (*outer, k // 2), codes_dtype_of(data_dtype))
    return data, empty(x, sizes, SCALES[0])


def quantize_amax(x, up=None, scale_layout="linear", offsets=None, data_dtype=None):
    data, scales = quantize(x, up, 1.0, None, scale_layout, offsets, data_dtype)
    return data, scales, empty(x, (1,), torch.float32)


def dequantize(
    data, scales, global_scale=1.0, global_scale_tensor=None, scale_layout="linear", out_dtype=None
):
    outer, k = operand("q.data", data, "q.scales", scales, scale_layout, CODES, data)
    alpha_like("q.global_scale", global_scale_tensor, 1, data)
    return empty(data, (*outer, k), out_dtype_of(out_dtype))


def to_blocked(scales):
    tensor("scales", scales, SCALES, scales)
    expect(scales.dim() in (2, 3), "scales", shape_of(scales), "[rows, K/16] with or without L")
    unit_stride("scales", scales, "K/16")
    return empty(scales, blocked_sizes(*scales.shape), scales.dtype)


def from_blocked(buffer, rows, cols):
    tensor("buffer", buffer, SCALES, buffer)
    expect(rows >= 0, "rows", rows, "a size from 0")
    expect(cols >= 0, "cols", cols, "a size from 0")
    permuted = buffer.dim() == 6 and buffer.shape[0] == 32 and buffer.shape[3] == 4
    batch = ()
    if buffer.dim() in (3, 6):
        batch = (buffer.shape[5 if permuted else 0],)
    scales("buffer", buffer, "blocked", (*batch, rows, cols), buffer)
    return empty(buffer, (*batch, rows, cols), buffer.dtype)
