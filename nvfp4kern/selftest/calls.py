"""Every operator as (function, positional arguments, options) with torch tensors on the CPU.

Each of OPERATORS makes a call for sizes M, N, K from what a generator draws. Sums of its data are
exact in any order, so that every row must write the same bytes. Of a Rounding generator they round.
Padding of blocked scale factors holds anything but zero.
"""

import numpy as np
import torch

import nvfp4kern

from ..verify import data, reference

SIZES = {"small": (5, 33, 48), "deep": (19, 70, 2048)}  # M, N, K; deep: K is worth splitting


class Rounding(np.random.Generator):
    """Draws data whose sums round, in the order in which a kernel adds."""


def rounding(*seed):
    return Rounding(np.random.PCG64(seed))


def from_numpy(array):
    return torch.from_numpy(np.array(array))


def scale_factors(operand, form, rng):
    """In the linear or the blocked layout; "flat": blocked, without its shape."""
    array = operand.scales
    if form != "linear":
        *batch, rows, cols = array.shape
        shape = (*batch, reference.padded(rows, 128), reference.padded(cols, 4))
        array = reference.to_blocked(array, rng.integers(1, 256, shape, np.uint8))
        array = array.reshape(-1) if form == "flat" else array
    return from_numpy(array).view(torch.float8_e4m3fn)


def nvfp4(rng, *shape, form="linear"):
    if isinstance(rng, Rounding):
        operand = data.full_range(rng, *shape)
        operand.scales[...] = rng.integers(0x28, 0x48, operand.scales.shape)
    else:
        operand = data.exact_family(rng, *shape)
    return from_numpy(operand.codes), scale_factors(operand, form, rng)


def integers(rng, dtype, *shape):
    if isinstance(rng, Rounding):
        numbers = rng.standard_normal(shape).astype(np.float32)
    else:
        numbers = data.small_integers(rng, *shape)
    return from_numpy(numbers).to(getattr(torch, dtype))


def powers_of_two(rng, *shape):
    return from_numpy(np.exp2(rng.integers(-2, 3, shape)).astype(np.float32))


def gemv(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 2, n, k, form="blocked"), nvfp4(rng, 2, 1, k)
    options = {"alpha": powers_of_two(rng, n), "scale_layout": ("blocked", "linear")}
    return nvfp4kern.gemv, [a, b, sfa, sfb], options


def gemv_of_halves(rng, m, n, k):
    a, sfa = nvfp4(rng, n, k)
    return nvfp4kern.gemv, [a, integers(rng, "float16", 1, k), sfa], {"out_dtype": "float32"}


def gemv_by_token(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 2, n, k), nvfp4(rng, 2, 1, k)
    return nvfp4kern.gemv, [a, b, sfa, sfb], {"row_scale": powers_of_two(rng, 2, 1)}


def gemm(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, m, k), nvfp4(rng, n, k, form="flat")
    options = {"alpha": powers_of_two(rng, 1), "bias": integers(rng, "float32", n)}
    return nvfp4kern.gemm, [a, b, sfa, sfb], options | {"scale_layout": ("linear", "blocked")}


def gemm_in_batches(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 3, m, k), nvfp4(rng, 3, n, k)
    return nvfp4kern.gemm, [a, b, sfa, sfb], {"out_dtype": "bfloat16"}


def gemm_of_bfloats(rng, m, n, k):
    b, sfb = nvfp4(rng, n, k)
    args = [integers(rng, "bfloat16", m, k), b, None, sfb]
    return nvfp4kern.gemm, args, {"out_dtype": "float32"}


def gemm_by_token(rng, m, n, k):
    function, args, options = gemm(rng, m, n, k)
    return function, args, options | {"row_scale": powers_of_two(rng, m)}


def dual_gemm(rng, m, n, k):
    (a, sfa), (b1, sfb1), (b2, sfb2) = (nvfp4(rng, rows, k) for rows in (m, n, n))
    return nvfp4kern.dual_gemm, [a, b1, b2, sfa, sfb1, sfb2], {"alpha1": 2.0**-9, "alpha2": 2.0**-4}


def dual_gemm_of_halves(rng, m, n, k):
    a = integers(rng, "float16", m, k)
    (b1, sfb1), (b2, sfb2) = nvfp4(rng, n, k), nvfp4(rng, n, k)
    options = {"alpha1": 2.0**-9, "alpha2": 2.0**-4, "activation": "relu", "out_dtype": "float32"}
    return nvfp4kern.dual_gemm, [a, b1, b2, None, sfb1, sfb2], options


def dual_gemm_with_biases(rng, m, n, k):
    function, args, options = dual_gemm(rng, m, n, k)
    options |= {"bias1": integers(rng, "float32", n), "bias2": integers(rng, "bfloat16", n)}
    return function, args, options | {"activation": "relu2", "out_dtype": "float32"}


def dual_gemm_by_token(rng, m, n, k):
    function, args, options = dual_gemm_with_biases(rng, m, n, k)
    return function, args, options | {"row_scale": powers_of_two(rng, m), "activation": "relu"}


def group_list(rng, m, n, k):
    sizes = [(m, n, k), (1, n + 1, 32), (0, n, k), (3 * m, 2 * n, k + 16)]
    a, sfa = zip(*(nvfp4(rng, rows, depth) for rows, _, depth in sizes), strict=True)
    b, sfb = zip(*(nvfp4(rng, rows, depth) for _, rows, depth in sizes), strict=True)
    return nvfp4kern.grouped_gemm, [list(a), list(b), list(sfa), list(sfb)], {}


def group_list_of_halves(rng, m, n, k):
    a = [integers(rng, "float16", rows, k) for rows in (m, 2, 3 * m)]
    b = [integers(rng, "float16", n + i, k) for i in range(3)]
    return nvfp4kern.grouped_gemm, [a, b], {"out_dtype": "float32"}


def offsets_of(rng, groups, rows):
    """Rows before the first and after the last belong to nobody."""
    return from_numpy(np.sort(rng.integers(0, rows + 1, groups + 1)).astype(np.int32))


def contiguous(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, n, k)
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": powers_of_two(rng, 4)}
    return nvfp4kern.grouped_gemm, [a, b, sfa, sfb], options


def contiguous_of_bfloats(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, n, k, form="blocked")
    args = [integers(rng, "bfloat16", 7 * m, k), b, None, sfb]
    options = {"offsets": offsets_of(rng, 4, 7 * m), "scale_layout": ("linear", "blocked")}
    return nvfp4kern.grouped_gemm, args, options | {"out_dtype": "float16"}


def contiguous_of_halves(rng, m, n, k):
    args = [integers(rng, "float16", 7 * m, k), integers(rng, "float16", 4, n, k)]
    options = {"offsets": offsets_of(rng, 4, 7 * m), "bias": integers(rng, "float32", 4, n)}
    return nvfp4kern.grouped_gemm, args, options


def contiguous_by_rows(rng, m, n, k):
    """Rows of nobody hold numbers that are no token's."""
    (a, sfa), (b, sfb) = nvfp4(rng, 3 * m, k, form="flat"), nvfp4(rng, 4, n, k)
    offsets, rows = offsets_of(rng, 4, 7 * m), rng.integers(0, 3 * m * 2, 7 * m, np.int32)
    rows[: offsets[0]] = -1
    rows[offsets[-1] :] = 6 * m
    options = {"offsets": offsets, "rows": from_numpy(rows), "rows_per_token": 2}
    options["scale_layout"] = "blocked", "linear"
    return nvfp4kern.grouped_gemm, [a, b, sfa, sfb], options


def contiguous_of_bfloats_by_rows(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, n, k)
    rows = from_numpy(rng.integers(0, 3 * m, 7 * m, np.int32))
    options = {"offsets": offsets_of(rng, 4, 7 * m), "rows": rows, "out_dtype": "float16"}
    return nvfp4kern.grouped_gemm, [integers(rng, "bfloat16", 3 * m, k), b, None, sfb], options


def contiguous_by_token(rng, m, n, k):
    """Rows of nobody, but a factor for every token."""
    function, args, options = contiguous_by_rows(rng, m, n, k)
    options |= {"row_scale": powers_of_two(rng, 3 * m), "bias": integers(rng, "float16", 4, n)}
    return function, args, options


def contiguous_relu2(rng, m, n, k):
    function, args, options = contiguous_of_bfloats_by_rows(rng, m, n, k)
    return function, args, options | {"alpha": 2.0**-6, "activation": "relu2"}


def contiguous_relu2_quantized(rng, m, n, k):
    n = max(n // 16, 1) * 16
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, n, k)
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": powers_of_two(rng, 4, n)}
    options |= {"activation": "relu2", "quantized": True, "global_scale": 0.125}
    return nvfp4kern.grouped_gemm, [a, b, sfa, sfb], options | {"data_dtype": "uint8"}


def contiguous_dual(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, 2 * n, k, form="blocked")
    alpha = from_numpy(np.float32([[2.0**-9, 2.0**-4]] * 4))
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": alpha}
    options["scale_layout"] = "linear", "blocked"
    return nvfp4kern.grouped_dual_gemm, [a, b, sfa, sfb], options


def contiguous_dual_of_bfloats_by_rows(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, 2 * n, k)
    rows = from_numpy(rng.integers(0, 3 * m, 7 * m, np.int32))
    options = {"offsets": offsets_of(rng, 4, 7 * m), "rows": rows, "alpha": 2.0**-6}
    options |= {"activation": "relu", "out_dtype": "float32"}
    args = [integers(rng, "bfloat16", 3 * m, k), b, None, sfb]
    return nvfp4kern.grouped_dual_gemm, args, options


def contiguous_dual_interleaved(rng, m, n, k):
    """Experts of gpt-oss."""
    function, args, options = contiguous_dual_of_bfloats_by_rows(rng, m, n, k)
    options |= {"gate_up": "interleaved", "bias": integers(rng, "bfloat16", 4, 2 * n)}
    options |= {"activation": "swiglu_oai", "limit": 7.0, "out_dtype": "float16"}
    return function, args, options


def contiguous_dual_quantized(rng, m, n, k):
    n = max(n // 16, 1) * 16
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, 2 * n, k)
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": powers_of_two(rng, 4, 2 * n)}
    options |= {"quantized": True, "global_scale": 0.125, "data_dtype": "uint8"}
    return nvfp4kern.grouped_dual_gemm, [a, b, sfa, sfb], options


def contiguous_dual_quantized_by_token(rng, m, n, k):
    function, args, options = contiguous_dual_quantized(rng, m, n, k)
    options |= {"row_scale": powers_of_two(rng, 7 * m), "activation": "relu2"}
    return function, args, options | {"bias": integers(rng, "float32", *options["alpha"].shape)}


def route(rng, m, n, k):
    args = [integers(rng, "float16", m, k), integers(rng, "float16", n, k), 4]
    return nvfp4kern.route, args, {"alpha": 2.0**-7}


def route_sigmoid(rng, m, n, k):
    n = n // 4 * 4
    args = [integers(rng, "bfloat16", m, k), integers(rng, "bfloat16", n, k), 3]
    options = {"score": "sigmoid", "n_group": 4, "topk_group": 2, "permutation": True}
    return nvfp4kern.route, args, options | {"alpha": 2.0**-7}


def route_dense(rng, m, n, k):
    args = [integers(rng, "float16", m, k), integers(rng, "float16", n, k), 2]
    options = {"score": "softmax_topk", "dense": True, "out_dtype": "float16"}
    return nvfp4kern.route, args, options | {"alpha": 2.0**-7}


def experts_here(rng, n):
    """Of an expert_map: three local experts, which others share or do not reach."""
    expert_map = from_numpy(rng.integers(-2, 5, n, np.int32))
    return {"expert_map": expert_map, "num_local_experts": 3}


def route_of_floats(rng, m, n, k):
    """An odd K, of two types."""
    args = [integers(rng, "bfloat16", m, k - 3), integers(rng, "float32", n, k - 3), 3]
    options = {"permutation": True, "return_row_of": True, "return_logits": True}
    options |= experts_here(rng, n)
    return nvfp4kern.route, args, options | {"alpha": 2.0**-7}


def route_of_logits(rng, m, n, k):
    options = {"logits": integers(rng, "float16", 7 * m, n), "k": 3, "alpha": 0.25}
    options |= {"permutation": True, "return_row_of": True, "score": "softmax_topk"}
    return nvfp4kern.route, [], options


def route_sqrt_softplus(rng, m, n, k):
    """Biases are integers, so that no two keys are as near as the roundings of scores."""
    function, args, options = route(rng, m, n, k)
    options |= {"score": "sqrt_softplus", "correction_bias": integers(rng, "float32", n)}
    return function, args, options | {"per_expert_scale": powers_of_two(rng, n)}


def route_by_logits(rng, m, n, k):
    function, args, options = route_of_logits(rng, m, n, k)
    options |= {"score": "logits", "correction_bias": integers(rng, "float32", n)}
    return function, args, options | {"per_expert_scale": powers_of_two(rng, n)}


def sort_by_expert(rng, m, n, k):
    """More entries than one CTA takes; some are no expert's. A slice of a wider matrix."""
    ids = from_numpy(rng.integers(-1, n + 1, (100 * m, 7), np.int32))
    return nvfp4kern.sort_by_expert, [ids[:, 1:6], n], experts_here(rng, n)


def selected(rng, m, k, dtype, h):
    """Products, row_of, weights: of 7 m tokens, whose weights are NaN where no row is theirs."""
    products = from_numpy(data.halves(rng, dtype, 5 * m, h)).to(getattr(torch, dtype))
    row_of, weights = rng.integers(-1, 5 * m, 7 * m * k, np.int32), rng.standard_normal((7 * m, k))
    weights[row_of.reshape(weights.shape) < 0] = np.nan
    return [products, from_numpy(row_of), from_numpy(weights.astype(np.float32))]


def combine(rng, m, n, k):
    return nvfp4kern.combine, selected(rng, m, 6, "bfloat16", k), {"out_dtype": "bfloat16"}


def combine_with_residual(rng, m, n, k):
    """An H of no whole chunks, more selections than a thread asks for at once."""
    products, row_of, weights = selected(rng, m, 10, "float16", k - 3)
    residual = from_numpy(data.halves(rng, "bfloat16", 7 * m, k - 3)).bfloat16()
    args = [products, row_of, weights.half()]
    return nvfp4kern.combine, args, {"residual": residual, "out_dtype": "float32"}


def quantize(rng, m, n, k):
    x = from_numpy(data.halves(rng, "bfloat16", 7 * m, k)).to(torch.bfloat16)
    return nvfp4kern.quantize, [x], {"global_scale": powers_of_two(rng, 1)}


def quantize_amax(rng, m, n, k):
    x = from_numpy(data.halves(rng, "float16", 7 * m, k)).half()
    return nvfp4kern.quantize, [x], {"global_scale": "amax", "scale_layout": "blocked"}


def quantize_gated(rng, m, n, k):
    x, up = (from_numpy(data.halves(rng, "bfloat16", 7 * m, k)).bfloat16() for _ in range(2))
    return nvfp4kern.quantize, [x], {"up": up, "global_scale": "amax"}


def quantize_four_six(rng, m, n, k):
    x = from_numpy(data.halves(rng, "bfloat16", 7 * m, k)).bfloat16()
    return nvfp4kern.quantize, [x], {"global_scale": "amax", "recipe": "four_six"}


def quantize_by_expert(rng, m, n, k):
    x = from_numpy(data.halves(rng, "float32", 7 * m, k))
    return (
        nvfp4kern.quantize,
        [x],
        {
            "scale_layout": "blocked",
            "offsets": offsets_of(rng, 3, 7 * m),
        },
    )


def dequantize(rng, m, n, k):
    return nvfp4kern.dequantize, [(*nvfp4(rng, 7 * m, k), powers_of_two(rng, 1))], {}


def to_blocked(rng, m, n, k):
    return nvfp4kern.to_blocked, [nvfp4(rng, 2, 7 * m, k)[1]], {}


def from_blocked(rng, m, n, k):
    args = [nvfp4(rng, 7 * m, k, form="blocked")[1], 7 * m, k // 16]
    return nvfp4kern.from_blocked, args, {}


OPERATORS = {
    make.__name__: make
    for make in (
        gemv, gemv_of_halves, gemv_by_token, gemm, gemm_in_batches, gemm_of_bfloats, gemm_by_token,
        dual_gemm, dual_gemm_of_halves, dual_gemm_with_biases, dual_gemm_by_token, group_list,
        group_list_of_halves, contiguous, contiguous_of_bfloats, contiguous_of_halves,
        contiguous_by_rows, contiguous_of_bfloats_by_rows, contiguous_by_token, contiguous_relu2,
        contiguous_relu2_quantized, contiguous_dual, contiguous_dual_of_bfloats_by_rows,
        contiguous_dual_interleaved, contiguous_dual_quantized, contiguous_dual_quantized_by_token,
        route, route_sigmoid, route_dense, route_of_floats, route_of_logits, route_sqrt_softplus,
        route_by_logits, sort_by_expert, combine, combine_with_residual, quantize, quantize_amax,
        quantize_gated, quantize_four_six, quantize_by_expert, dequantize, to_blocked, from_blocked,
    )
}  # fmt: skip
