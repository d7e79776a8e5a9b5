"""What `python -m nvfp4kern` checks: every operator on the competition's shapes, by an oracle."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import nvfp4kern

from . import data, encoded, reference, routing, shapes
from .activations import ACTIVATIONS, ALONE
from .reference import Verdict

OPERATORS = (
    "quantize",
    "dequantize",
    "relayout",
    "gemv",
    "gemm",
    "dual_gemm",
    "grouped_gemm",
    "grouped_dual_gemm",
    "route",
    "sort_by_expert",
    "combine",
)

SPREAD = 1.2e9
"""Multiply-adds of the largest shapes of a run without --all; it takes the two smallest anyway."""


@dataclass
class Case:
    """`run` is what is timed. `judge` compares its result with the oracle; `c` is that of the error
    bound (reference.error_bound).

    `work` counts operations, 2 for each multiply-add. It is 0 for operators that move data: `moved`
    counts the bytes read and written.
    """

    operator: str
    shape: str
    run: Callable
    judge: Callable[..., Verdict]
    work: float
    moved: float
    explain: tuple


def _bytes(*arrays):
    return float(sum(array.nbytes for array in arrays))


def _case(operator, shape, arguments, options, judge, *, work=0.0, moved=0.0, name=None):
    function = getattr(nvfp4kern, name or operator)
    return Case(
        operator,
        shape,
        lambda: function(*arguments, **options),
        judge,
        work,
        moved,
        (name or operator, arguments, options),
    )


def _by_size(problem, everything, benchmarks):
    """The test shapes of a problem up to SPREAD, or all of them and the benchmark's."""
    tests = shapes.TESTS[problem]
    if everything:
        return tests + benchmarks
    tests = sorted(tests, key=lambda shape: shapes.multiply_adds(problem, shape))
    small = [shape for shape in tests if shapes.multiply_adds(problem, shape) <= SPREAD]
    return small if len(small) > 1 else tests[:2]


def _operands(rng, batch, k, *rows):
    """Operands of all codes and scales. A batch of one has no leading dimension."""
    lead = (batch,) if batch > 1 else ()
    return [data.full_range(rng, *lead, r, k) for r in rows]


def _blocked(rng, operand):
    """The operand's scales in the blocked layout, with garbage (NaN included) in the padding."""
    rows, cols = operand.scales.shape[-2:]
    noise = [data.noisy_padding(rng, rows, cols) for _ in range(operand.scales[..., 0, 0].size)]
    return reference.to_blocked(operand.scales, np.stack(noise))


def gemv(rng, everything):
    for m, k, batch in _by_size("gemv", everything, shapes.GEMV_BENCHMARKS):
        a, b = _operands(rng, batch, k, m, 1)
        arguments = (a.codes, b.codes, _blocked(rng, a), _blocked(rng, b))

        def judge(got, c, a=a, b=b):
            return reference.check(got, reference.gemv(a.values, b.values), "float16")

        yield _case(
            "gemv",
            f"{m}x{k}" + f"x{batch}" * (batch > 1),
            arguments,
            {"scale_layout": "blocked"},
            judge,
            moved=_bytes(a.codes, a.scales, b.codes, b.scales) + 2.0 * batch * m,
        )


def gemm(rng, everything):
    for m, n, k, batch in _by_size("gemm", everything, shapes.GEMM_BENCHMARKS):
        a, b = _operands(rng, batch, k, m, n)
        arguments = (a.codes, b.codes, _blocked(rng, a), _blocked(rng, b))

        def judge(got, c, a=a, b=b):
            return reference.check(got, reference.gemm(a.values, b.values, c=c), "float16")

        yield _case(
            "gemm",
            f"{m}x{n}x{k}",
            arguments,
            {"scale_layout": "blocked"},
            judge,
            work=2.0 * m * n * k * batch,
        )


def dual_gemm(rng, everything):
    for m, n, k, batch in _by_size("dual_gemm", everything, shapes.DUAL_GEMM_BENCHMARKS):
        operands = _operands(rng, batch, k, m, n, n)
        arguments = (*(o.codes for o in operands), *(o.scales for o in operands))
        alpha = 2.0**-12  # brings the argument of silu to where it is not nearly linear

        def judge(got, c, operands=operands, alpha=alpha):
            values = (o.values for o in operands)
            expected = reference.dual_gemm(*values, alpha1=alpha, alpha2=alpha, c=c)
            return reference.check(got, expected, "float16")

        yield _case(
            "dual_gemm",
            f"{m}x{n}x{k}",
            arguments,
            {"alpha1": alpha, "alpha2": alpha},
            judge,
            work=4.0 * m * n * k * batch,
        )


def groups_in_short(groups):
    """Their tokens; of more than four groups how many there are, the fewest and the most."""
    tokens = [m for m, *_ in groups]
    if len(tokens) > 4:
        return f"{len(tokens)} groups, m={min(tokens)}..{max(tokens)}"
    return f"m={','.join(map(str, tokens))}"


def grouped_gemm(rng, everything):
    for groups in _by_size("group_gemm", everything, shapes.GROUP_GEMM_BENCHMARKS):
        pairs = [_operands(rng, 1, k, m, n) for m, n, k, _ in groups]
        a, b = ([pair[side] for pair in pairs] for side in (0, 1))
        arguments = (
            [o.codes for o in a],
            [o.codes for o in b],
            [_blocked(rng, o) for o in a],
            [_blocked(rng, o) for o in b],
        )

        def judge(got, c, pairs=pairs):
            verdicts = [
                reference.check(out, reference.gemm(a.values, b.values, c=c), "float16")
                for out, (a, b) in zip(got, pairs, strict=True)
            ]
            return min(verdicts, key=lambda v: (v.ok, -v.worst))

        yield _case(
            "grouped_gemm",
            groups_in_short(groups),
            arguments,
            {"scale_layout": "blocked"},
            judge,
            work=2.0 * shapes.multiply_adds("group_gemm", groups),
        )
    yield from _quantized_experts(rng, "grouped_gemm")


def grouped_dual_gemm(rng, everything):
    for tokens, experts, top, n, k in shapes.EXPERT_TESTS + shapes.EXPERT_BENCHMARKS * everything:
        a, b = data.full_range(rng, tokens, k), data.full_range(rng, experts, 2 * n, k)
        chosen = np.sort(rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :top])
        rows = np.argsort(chosen.ravel(), kind="stable").astype(np.int32)
        offsets = np.searchsorted(chosen.ravel()[rows], np.arange(experts + 1)).astype(np.int32)
        options = {"rows": rows, "rows_per_token": top, "alpha": 2.0**-12}

        def judge(got, c, a=a, b=b, rows=rows, offsets=offsets, top=top, n=n, alpha=2.0**-12):
            x = a.values[rows // top]
            verdicts = [
                reference.check(
                    got[first:end],
                    reference.dual_gemm(
                        x[first:end], w[:n], w[n:], alpha1=alpha, alpha2=alpha, c=c
                    ),
                    "float16",
                )
                for first, end, w in zip(offsets, offsets[1:], b.values, strict=False)
            ]
            return min(verdicts, key=lambda v: (v.ok, -v.worst))

        yield _case(
            "grouped_dual_gemm",
            f"{tokens} tokens, {top} of {experts}, {n}x{k}",
            (a.codes, b.codes, a.scales, b.scales, offsets),
            options,
            judge,
            work=4.0 * tokens * top * n * k,
        )

    yield from _quantized_experts(rng, "grouped_dual_gemm")


def _quantized_experts(rng, operator):
    """Experts whose results are quantised, by every activation, with biases."""
    experts, rows, n, k, alpha = 3, 40, 64, 256, 2.0**-12
    a, b = data.full_range(rng, rows, k), data.full_range(rng, experts, 2 * n, k)
    offsets, bias = np.int32([0, 17, 17, rows]), rng.standard_normal((experts, 2 * n))
    bias = bias.astype(np.float32)
    gated = operator == "grouped_dual_gemm"
    of = np.s_[:, : 2 * n if gated else n]
    for activation in ACTIVATIONS if gated else ("identity", *ALONE):
        gate = {"activation": activation}
        if gated and activation in ("silu", "swiglu_oai"):
            gate["limit"] = 7.0

        def judge(got, c, gate=gate):
            for first, end, w, own in zip(offsets, offsets[1:], b.values, bias, strict=False):
                tokens = a.values[first:end]
                if gated:
                    options = gate | {"alpha1": alpha, "alpha2": alpha, "c": c}
                    options |= {"bias1": own[:n], "bias2": own[n:]}
                    x = reference.dual_gemm(tokens, w[:n], w[n:], **options)
                else:
                    x = reference.gemm(tokens, w[:n], alpha=alpha, bias=own[:n], c=c, **gate)
                if wrong := encoded.check(got.data[first:end], got.scales[first:end], x, 0.125):
                    what, (row, *at) = wrong
                    return Verdict(
                        False, np.inf, (what, int(first + row), *map(int, at)), np.nan, np.nan
                    )
            return Verdict(True, 0.0, (), np.nan, np.nan)

        yield _case(
            operator,
            f"{rows} tokens, {experts} experts, {n}x{k}, {activation}, quantised",
            (a.codes, b.codes[of], a.scales, b.scales[of]),
            {
                "offsets": offsets,
                "alpha": alpha,
                "bias": bias[of],
                "quantized": True,
                "global_scale": 0.125,
            }
            | gate,
            judge,
            work=2.0 * rows * bias[of].shape[1] * k,
        )


def route(rng, everything):
    sizes = shapes.ROUTE_BENCHMARKS + (shapes.ROUTE_LARGE if everything else [(64, 256, 7168)])
    for m, n, k in sizes:
        x, w = (data.halves(rng, "float16", rows, k) for rows in (m, n))
        options = routing.Options(k=4)

        def judge(got, c, x=x, w=w, options=options):
            weights, ids = got
            logit, e = routing.logits(x, w, c=c)
            for row, wrong in enumerate(
                map(routing.wrong_ids, ids, logit, e, [options] * len(ids))
            ):
                if wrong:
                    return Verdict(False, np.inf, (row,), np.nan, np.nan)
            return routing.check_weights(weights, logit, e, ids, options)

        yield _case(
            "route",
            f"{m}x{n}x{k}",
            (x.astype(np.float16), w.astype(np.float16), options.k),
            {},
            judge,
            work=2.0 * m * n * k,
        )


def sort_by_expert(rng, everything):
    """Some selections are nobody's."""
    for m, k, n in [(64, 8, 128), (1000, 6, 33)] + [(8192, 8, 256)] * everything:
        ids = rng.integers(-1, n + 1, (m, k), np.int32)

        def judge(got, c, ids=ids, n=n):
            counts, offsets, rows = routing.permutation(ids, n)
            want = np.concatenate((counts, offsets, rows, routing.row_of(rows)))
            return _same_bytes(np.concatenate(got), want)

        yield _case(
            "sort_by_expert", f"{m}x{k}x{n}", (ids, n), {}, judge, moved=12.0 * m * k + 8.0 * n
        )


def combine(rng, everything):
    """Experts of a third of the selections are absent; rows that nobody has are NaN."""
    for m, k, h in [(64, 8, 2048), (5, 4, 1000)] + [(4096, 8, 7168)] * everything:
        products = data.halves(rng, "float16", m * k, h)
        row_of = rng.permutation(m * k).astype(np.int32)
        products[row_of[::3]] = np.nan
        row_of[::3] = -1
        weights = rng.random((m, k), np.float32)

        def judge(got, c, products=products, row_of=row_of, weights=weights):
            want = routing.combine(products, row_of, weights)
            return reference.check_bits(got, reference.round_to(want, "float16"))

        yield _case(
            "combine",
            f"{m}x{k}x{h}",
            (products.astype(np.float16), row_of, weights),
            {},
            judge,
            moved=2.0 * h * (np.count_nonzero(row_of >= 0) + m),
        )


def _rows_of_weights(everything):
    return [(512, 4096), (1000, 1408)] + [(4096, 7168), (7168, 16384)] * everything


def _same_bytes(got, want):
    return reference.check_bits(np.float32(got), np.float32(want))


def quantize(rng, everything):
    for rows, k in _rows_of_weights(everything):
        x = rng.standard_normal((rows, k)).astype(np.float16)

        def judge(got, c, x=x):
            codes, scales, s2 = reference.quantize(x, "amax")
            same = np.array_equal(got.scales, scales) and np.array_equal(got.global_scale, [s2])
            verdict = _same_bytes(got.data, codes)
            verdict.ok = verdict.ok and same
            return verdict

        yield _case(
            "quantize",
            f"{rows}x{k}",
            (x,),
            {"global_scale": "amax"},
            judge,
            moved=x.nbytes * (2 + 0.5 / 2 + 1 / 32),
        )


def dequantize(rng, everything):
    for rows, k in _rows_of_weights(everything):
        q = data.full_range(rng, rows, k)

        def judge(got, c, q=q):
            want = reference.round_to(reference.dequantize(q.codes, q.scales, 0.125), "float16")
            return reference.check_bits(got, want)

        yield _case(
            "dequantize",
            f"{rows}x{k}",
            ((q.codes, q.scales, 0.125),),
            {},
            judge,
            moved=_bytes(q.codes, q.scales) + 2.0 * rows * k,
        )


def relayout(rng, everything):
    for rows, k in _rows_of_weights(everything):
        scales = data.full_range(rng, rows, k).scales

        def judge(got, c, scales=scales):
            want = reference.to_blocked(scales)
            back = nvfp4kern.from_blocked(got, *scales.shape)
            verdict = _same_bytes(got.reshape(want.shape), want)
            verdict.ok = verdict.ok and np.array_equal(back, scales)
            return verdict

        yield _case(
            "relayout",
            f"{rows}x{k}",
            (scales,),
            {},
            judge,
            moved=2.0 * scales.nbytes,
            name="to_blocked",
        )


def cases(operator: str, everything: bool) -> Iterator[Case]:
    """The cases of one of OPERATORS, made one at a time."""
    yield from globals()[operator](np.random.default_rng(0), everything)
