"""Every operator as a call that can be repeated on new data, for tests of what surrounds kernels.

A Call owns its tensors. Its data is of the exact family, so that the GPU and the CPU backend must
write the same bytes: into poisoned outputs between guards, from inputs between NaNs.
"""

import os
import subprocess
import sys
import textwrap

import numpy as np
import torch
from generators import Guarded, codes, from_numpy, raw, rng_of, scales, surrounded, values

import nvfp4kern
from nvfp4kern.verify import data, reference

SIZES = {"small": (5, 33, 48), "deep": (19, 70, 2048)}  # M, N, K; deep: K is worth splitting


# ---------------------------------------------------------------------------------------------
# The operators: (function, positional arguments, options) for M, N, K
# ---------------------------------------------------------------------------------------------


def nvfp4(rng, *shape, form="linear"):
    operand = data.exact_family(rng, *shape)
    return codes(operand, "cpu", native=False), scales(operand, form, rng, "cpu")


def integers(rng, dtype, *shape):
    return from_numpy(data.small_integers(rng, *shape), "cpu").to(getattr(torch, dtype))


def powers_of_two(rng, *shape):
    return from_numpy(np.exp2(rng.integers(-2, 3, shape)).astype(np.float32), "cpu")


def gemv(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 2, n, k, form="blocked"), nvfp4(rng, 2, 1, k)
    options = {"alpha": powers_of_two(rng, n), "scale_layout": ("blocked", "linear")}
    return nvfp4kern.gemv, [a, b, sfa, sfb], options


def gemv_of_halves(rng, m, n, k):
    a, sfa = nvfp4(rng, n, k)
    return nvfp4kern.gemv, [a, integers(rng, "float16", 1, k), sfa], {"out_dtype": "float32"}


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


def dual_gemm(rng, m, n, k):
    (a, sfa), (b1, sfb1), (b2, sfb2) = (nvfp4(rng, rows, k) for rows in (m, n, n))
    return nvfp4kern.dual_gemm, [a, b1, b2, sfa, sfb1, sfb2], {"alpha1": 2.0**-9, "alpha2": 2.0**-4}


def dual_gemm_of_halves(rng, m, n, k):
    a = integers(rng, "float16", m, k)
    (b1, sfb1), (b2, sfb2) = nvfp4(rng, n, k), nvfp4(rng, n, k)
    options = {"alpha1": 2.0**-9, "alpha2": 2.0**-4, "activation": "relu", "out_dtype": "float32"}
    return nvfp4kern.dual_gemm, [a, b1, b2, None, sfb1, sfb2], options


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
    return from_numpy(np.sort(rng.integers(0, rows + 1, groups + 1)).astype(np.int32), "cpu")


def contiguous(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, n, k)
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": powers_of_two(rng, 4)}
    return nvfp4kern.grouped_gemm, [a, b, sfa, sfb], options


def contiguous_of_bfloats(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, n, k, form="blocked")
    args = [integers(rng, "bfloat16", 7 * m, k), b, None, sfb]
    options = {"offsets": offsets_of(rng, 4, 7 * m), "scale_layout": ("linear", "blocked")}
    return nvfp4kern.grouped_gemm, args, options


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
    options = {"offsets": offsets, "rows": from_numpy(rows, "cpu"), "rows_per_token": 2}
    options["scale_layout"] = "blocked", "linear"
    return nvfp4kern.grouped_gemm, [a, b, sfa, sfb], options


def contiguous_of_bfloats_by_rows(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, n, k)
    rows = from_numpy(rng.integers(0, 3 * m, 7 * m, np.int32), "cpu")
    options = {"offsets": offsets_of(rng, 4, 7 * m), "rows": rows}
    return nvfp4kern.grouped_gemm, [integers(rng, "bfloat16", 3 * m, k), b, None, sfb], options


def contiguous_dual(rng, m, n, k):
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, 2 * n, k, form="blocked")
    alpha = from_numpy(np.float32([[2.0**-9, 2.0**-4]] * 4), "cpu")
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": alpha}
    options["scale_layout"] = "linear", "blocked"
    return nvfp4kern.grouped_dual_gemm, [a, b, sfa, sfb], options


def contiguous_dual_of_bfloats_by_rows(rng, m, n, k):
    b, sfb = nvfp4(rng, 4, 2 * n, k)
    rows = from_numpy(rng.integers(0, 3 * m, 7 * m, np.int32), "cpu")
    options = {"offsets": offsets_of(rng, 4, 7 * m), "rows": rows, "alpha": 2.0**-6}
    options |= {"activation": "relu", "out_dtype": "float32"}
    args = [integers(rng, "bfloat16", 3 * m, k), b, None, sfb]
    return nvfp4kern.grouped_dual_gemm, args, options


def contiguous_dual_quantized(rng, m, n, k):
    n = max(n // 16, 1) * 16
    (a, sfa), (b, sfb) = nvfp4(rng, 7 * m, k), nvfp4(rng, 4, 2 * n, k)
    options = {"offsets": offsets_of(rng, 4, 7 * m), "alpha": powers_of_two(rng, 4, 2 * n)}
    options |= {"quantized": True, "global_scale": 0.125, "data_dtype": "uint8"}
    return nvfp4kern.grouped_dual_gemm, [a, b, sfa, sfb], options


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
    expert_map = from_numpy(rng.integers(-2, 5, n, np.int32), "cpu")
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


def sort_by_expert(rng, m, n, k):
    """More entries than one CTA takes; some are no expert's. A slice of a wider matrix."""
    ids = from_numpy(rng.integers(-1, n + 1, (100 * m, 7), np.int32), "cpu")
    return nvfp4kern.sort_by_expert, [ids[:, 1:6], n], experts_here(rng, n)


def selected(rng, m, k, dtype, h):
    """Products, row_of, weights: of 7 m tokens, whose weights are NaN where no row is theirs."""
    products = from_numpy(data.halves(rng, dtype, 5 * m, h), "cpu").to(getattr(torch, dtype))
    row_of, weights = rng.integers(-1, 5 * m, 7 * m * k, np.int32), rng.standard_normal((7 * m, k))
    weights[row_of.reshape(weights.shape) < 0] = np.nan
    return [products, from_numpy(row_of, "cpu"), from_numpy(weights.astype(np.float32), "cpu")]


def combine(rng, m, n, k):
    return nvfp4kern.combine, selected(rng, m, 6, "bfloat16", k), {"out_dtype": "bfloat16"}


def combine_with_residual(rng, m, n, k):
    """An H of no whole chunks, more selections than a thread asks for at once."""
    products, row_of, weights = selected(rng, m, 10, "float16", k - 3)
    residual = from_numpy(data.halves(rng, "bfloat16", 7 * m, k - 3), "cpu").bfloat16()
    args = [products, row_of, weights.half()]
    return nvfp4kern.combine, args, {"residual": residual, "out_dtype": "float32"}


def quantize(rng, m, n, k):
    x = from_numpy(data.halves(rng, "bfloat16", 7 * m, k), "cpu").to(torch.bfloat16)
    return nvfp4kern.quantize, [x], {"global_scale": powers_of_two(rng, 1)}


def quantize_amax(rng, m, n, k):
    x = from_numpy(data.halves(rng, "float16", 7 * m, k), "cpu").half()
    return nvfp4kern.quantize, [x], {"global_scale": "amax", "scale_layout": "blocked"}


def quantize_gated(rng, m, n, k):
    x, up = (from_numpy(data.halves(rng, "bfloat16", 7 * m, k), "cpu").bfloat16() for _ in range(2))
    return nvfp4kern.quantize, [x], {"up": up, "global_scale": "amax"}


def quantize_by_expert(rng, m, n, k):
    x = from_numpy(data.halves(rng, "float32", 7 * m, k), "cpu")
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
        gemv, gemv_of_halves, gemm, gemm_in_batches, gemm_of_bfloats, dual_gemm,
        dual_gemm_of_halves, group_list, group_list_of_halves, contiguous, contiguous_of_bfloats,
        contiguous_of_halves, contiguous_by_rows, contiguous_of_bfloats_by_rows, contiguous_dual,
        contiguous_dual_of_bfloats_by_rows, contiguous_dual_quantized, route, route_sigmoid,
        route_dense, route_of_floats, route_of_logits, sort_by_expert, combine,
        combine_with_residual, quantize, quantize_amax, quantize_gated, quantize_by_expert,
        dequantize, to_blocked, from_blocked,
    )
}  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------------------------


def mapped(function, tree):
    """The same nesting of lists, tuples and dicts with `function` of every tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [mapped(function, value) for value in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return tree


def leaves(tree):
    found = []
    mapped(found.append, tree)
    return found


def same(name, got, want):
    """To the byte; where exponentials are involved, as near as float32 gets."""
    if name in ("dual_gemm", "contiguous_dual"):
        assert reference.ulps(values(got), values(want), "float16").max() <= 1
    elif name.startswith("route") and got.is_floating_point():
        rtol = 1e-5 if got.dtype == torch.float32 else 1e-3
        np.testing.assert_allclose(values(got), values(want), rtol=rtol, atol=1e-6 * (rtol > 1e-5))
    else:
        np.testing.assert_array_equal(raw(got), raw(want))


class Call:
    """One operator of OPERATORS on tensors of its own, filled from a seed."""

    def __init__(self, name, device="cuda", size="deep", seed=0):
        self.name, self.size, self.device = name, size, device
        self.function, args, options = self.made(seed)
        self.args, self.options = mapped(lambda t: surrounded(t, device), (args, options))
        result = self.function(*args, **options)
        self.outs = [Guarded(t.shape, t.dtype, device) for t in self.outputs_of(result)]
        self.out = [out.tensor for out in self.outs]
        if not isinstance(result, (list, tuple)):
            (self.out,) = self.out

    def made(self, seed):
        return OPERATORS[self.name](rng_of(seed), *SIZES[self.size])

    def staged(self, seed):
        """The inputs of another seed, on the device."""
        return mapped(lambda t: t.to(self.device), leaves(self.made(seed)[1:]))

    def inputs(self):
        return leaves((self.args, self.options))

    def outputs_of(self, result):
        """The tensors of a result; a global scale given comes back with it."""
        return [t for t in leaves((result,)) if self.name != "quantize" or t.numel() > 1]

    def copy(self, staged):
        """New inputs into the tensors that are there, and poison into the outputs."""
        for ours, new in zip(self.inputs(), staged, strict=True):
            ours.copy_(new)
        for out in self.outs:
            out.poison()
        return self

    def fill(self, seed):
        return self.copy(self.staged(seed))

    def run(self):
        return self.function(*self.args, out=self.out, **self.options)

    def explain(self):
        return nvfp4kern.explain(self.function.__name__, *self.args, **self.options)

    def check(self, seed=0):
        """What the outputs hold is what the CPU writes; around them nothing was written."""
        want = Call(self.name, "cpu", self.size, seed)
        want.run()
        for ours, theirs in zip(self.outs, want.outs, strict=True):
            same(self.name, ours.tensor, theirs.tensor)
        assert all(out.guards_intact() for out in self.outs)


def run_python(program, **environment):
    """In a fresh process that finds the modules that this one finds; its standard output."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if folder)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
