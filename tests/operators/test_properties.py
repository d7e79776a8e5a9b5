"""Drawn shapes, strides, layouts, dtypes and kinds of alpha: the oracle's answer every time."""

import numpy as np
import pytest
from dense_calls import expect_dual, run_dual, run_gemm, run_gemv
from expert_calls import Matrices, Stack, Tokens, group_operands, run_list
from generators import (
    DTYPES,
    ORDERS,
    SCALE_FORMS,
    assert_ok,
    assert_right,
    elements,
    floats,
    from_numpy,
    halves,
    raw,
    rng_of,
    scale_bytes,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nvfp4kern
from nvfp4kern.verify import data, reference, routing

pytestmark = pytest.mark.any_path

check = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the backend holds for all
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.one_of(st.integers(0, 9), st.sampled_from((16, 17, 31, 33, 127, 128, 129, 130, 257)))
ks = st.integers(0, 24).map(lambda blocks: 16 * blocks)
batches = st.sampled_from((None, None, 1, 2, 3))
forms = st.tuples(st.sampled_from(SCALE_FORMS), st.sampled_from(SCALE_FORMS))
dtypes, orders = st.sampled_from(DTYPES), st.sampled_from(ORDERS)
makers = st.sampled_from((data.exact_family, data.full_range))
alpha_kinds = st.sampled_from(("none", "float", "one", "column"))
of_16_bits = st.sampled_from(("float16", "bfloat16"))


def strided(tensor, rng):
    """The same codes as a view into a larger buffer: rows apart by more than their length."""
    extra = int(rng.integers(0, 4))
    if tensor.numel() == 0 or not extra:
        return tensor
    wide = tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] + extra))
    wide[..., extra:] = tensor
    return wide[..., extra:]


def among(rng):
    """What places operands in larger buffers."""
    return lambda operand, device: strided(elements(operand, device, native=False), rng)


def alpha_of(kind, n, rng, device):
    """The argument and its value."""
    if kind == "none":
        return {}, 1.0
    value = rng.standard_normal(n if kind == "column" else 1).astype(np.float32)
    if kind == "float":
        return {"alpha": float(value[0])}, value
    return {"alpha": floats(value, "float32", device)}, value


@check
@given(seeds, makers, sizes, sizes, ks, batches, forms, dtypes, orders, alpha_kinds, st.booleans())
def test_gemm(backend, seed, make, m, n, k, batch, form, dtype, order, alpha_kind, biased):
    rng, device = rng_of(seed), backend.device
    lead = () if batch is None else (batch,)
    a, b = make(rng, *lead, m, k), make(rng, *lead, n, k)
    options, alpha = alpha_of(alpha_kind, n, rng, device)
    bias = 0.0
    if biased:
        bias = data.halves(rng, dtype, n, scale=100)
        options["bias"] = floats(bias, dtype, device)
    options |= {"dtype": dtype, "order": order, "place": among(rng)}
    got = run_gemm(a, b, device, forms=form, **options)
    expected = reference.gemm(a.values, b.values, alpha=alpha, bias=bias, c=backend.c)
    exact = make is data.exact_family and alpha_kind == "none" and not biased
    assert_right(got, expected, dtype, exact)


@check
@given(seeds, makers, sizes, ks, batches, forms, dtypes, orders, alpha_kinds)
def test_gemv(backend, seed, make, m, k, batch, form, dtype, order, alpha_kind):
    rng, device = rng_of(seed), backend.device
    lead = () if batch is None else (batch,)
    a, b = make(rng, *lead, m, k), make(rng, *lead, 1, k)
    options, alpha = alpha_of(alpha_kind, m, rng, device)
    options |= {"dtype": dtype, "order": order, "place": among(rng)}
    got = run_gemv(a, b, device, forms=form, **options)
    exact = make is data.exact_family and alpha_kind == "none"
    assert_right(got, reference.gemv(a.values, b.values, alpha=alpha), dtype, exact)


@check
@given(seeds, sizes, sizes, ks, of_16_bits, st.sampled_from(SCALE_FORMS), dtypes, orders)
def test_16_bit_activations(backend, seed, m, n, k, a_dtype, form, dtype, order):
    rng, device = rng_of(seed), backend.device
    x, b = halves(rng, a_dtype, m, k), data.full_range(rng, n, k)
    options = {"dtype": dtype, "order": order, "place": among(rng)}
    got = run_gemm(x, b, device, forms=(form, form), **options)
    expected = reference.gemm(x.values, b.values, c=backend.c, nvfp4=False)
    assert_ok(reference.check(got, expected, dtype))


@check
@given(
    seeds, makers, sizes, sizes, ks, forms, dtypes, orders,
    st.sampled_from(tuple(reference.ACTIVATIONS)), alpha_kinds,
)  # fmt: skip
def test_dual_gemm(backend, seed, make, m, n, k, form, dtype, order, activation, alpha_kind):
    rng, device = rng_of(seed), backend.device
    ops = [make(rng, rows, k) for rows in (m, n, n)]
    options, alpha = alpha_of(alpha_kind, n, rng, device)
    options = {"alpha1": options["alpha"]} if options else {}
    options |= {"dtype": dtype, "order": order, "place": among(rng)}
    got = run_dual(ops, device, forms=form, activation=activation, **options)
    expected = expect_dual(ops, alpha1=alpha, activation=activation, c=backend.c)
    assert_ok(reference.check(got, expected, dtype))


@check
@given(
    seeds,
    makers,
    st.lists(st.tuples(sizes, sizes, ks), min_size=1, max_size=6),
    forms,
    dtypes,
    orders,
)
def test_grouped_gemm_list(backend, seed, make, groups, form, dtype, order):
    rng, device = rng_of(seed), backend.device
    pairs = group_operands(rng, make, groups)
    outs = run_list(pairs, device, forms=form, dtype=dtype, order=order)
    for got, (a, b) in zip(outs, pairs, strict=True):
        expected = reference.gemm(a.values, b.values, c=backend.c)
        assert_right(got, expected, dtype, make is data.exact_family)


@pytest.mark.parametrize("experts", (Matrices, Stack), ids=lambda experts: experts.name)
@check
@given(
    seeds, st.lists(sizes, min_size=1, max_size=6), sizes, sizes, ks, dtypes, st.integers(0, 5),
    forms, st.booleans(),
)  # fmt: skip
def test_experts(backend, experts, seed, counts, tokens, n, k, dtype, per_token, form, by_expert):
    """Of rows of tokens, or of so many rows for each token."""
    rng, device = rng_of(seed), backend.device
    first = int(rng.integers(0, 3))
    offsets = first + np.append(0, np.cumsum(counts))
    count, options = int(offsets[-1]) + 4, {}
    tokens = max(tokens, 1) if per_token else count
    a = Tokens(rng, device, tokens, k, form=form[0] if per_token else "linear")
    b = experts(rng, device, len(counts), n, k, form=form[1])
    expected = a.values
    if per_token:
        rows = rng.integers(0, tokens * per_token, count).astype(np.int32)
        rows[:first] = rows[offsets[-1] :] = -1
        options = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
        expected = a.of(rows // per_token)
    elif by_expert:
        a.block_by_expert(offsets, rng)
    got = b.run(a.tensor, a.sf, offsets, form=a.form, count=count, dtype=dtype, **options)
    b.check(got, offsets, expected, backend.c, dtype)


magnitudes = st.sampled_from((1e-44, 1e-38, 1e-20, 1e-3, 1.0, 1e4, 1e20, 1e38))


@check
@given(seeds, sizes, ks, batches, dtypes, st.booleans(), magnitudes, magnitudes, st.booleans())
def test_quantize(backend, seed, m, k, batch, dtype, blocked, magnitude, s2, amax):
    rng, device = rng_of(seed), backend.device
    lead = () if batch is None else (batch,)
    x = data.halves(rng, dtype, *lead, m, k, scale=magnitude)
    if x.size:
        x.flat[rng.integers(0, x.size, 3)] = [np.inf, np.nan, -0.0]
    scale = "amax" if amax else s2
    layout = "blocked" if blocked else "linear"
    given_x = strided(floats(x, dtype, device), rng)
    q = nvfp4kern.quantize(given_x, global_scale=scale, scale_layout=layout)
    want_codes, want_scales, want_s2 = reference.quantize(x, scale)
    if blocked:
        want_scales = reference.to_blocked(want_scales)
    np.testing.assert_array_equal(raw(q.data), want_codes)
    np.testing.assert_array_equal(raw(q.scales), want_scales)
    assert np.float32(float(q.global_scale)) == want_s2


@check
@given(st.data(), seeds, st.integers(0, 40), ks, of_16_bits, st.sampled_from(routing.SCORES))
def test_route(backend, drawn, seed, m, k, dtype, score):
    rng, device = rng_of(seed), backend.device
    n_group = drawn.draw(st.integers(1, 8))
    size = drawn.draw(st.integers(1, 20))
    topk_group = drawn.draw(st.integers(1, n_group))
    n, top_k = n_group * size, drawn.draw(st.integers(1, min(32, topk_group * size)))
    refused = {"topk_softmax": False, "logits": True}.get(score)
    renormalize = drawn.draw(st.sampled_from([v for v in (None, True, False) if v != refused]))
    factor = drawn.draw(st.sampled_from((1.0, 2.5)))
    options = routing.Options(top_k, score, None, n_group, topk_group, renormalize, factor)
    x, w = (data.small_integers(rng, rows, k, most=2) for rows in (m, n))
    weights, ids = nvfp4kern.route(
        floats(x, dtype, device),
        floats(w, dtype, device),
        top_k,
        score=score,
        n_group=n_group,
        topk_group=topk_group,
        renormalize=renormalize,
        scaling_factor=factor,
    )
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64))
    ids = ids.cpu().numpy()
    np.testing.assert_array_equal(ids, routing.select(logit, options))
    if m:
        assert_ok(routing.check_weights(weights.cpu().numpy(), logit, 0 * e, ids, options))


@check
@given(seeds, sizes, st.integers(0, 20), batches)
def test_blocked_and_back(device, seed, rows, cols, batch):
    shape = (*(() if batch is None else (batch,)), rows, cols)
    array = rng_of(seed).integers(0, 256, shape, np.uint8)
    blocked = nvfp4kern.to_blocked(strided(scale_bytes(array, device, False), rng_of(seed)))
    np.testing.assert_array_equal(raw(blocked), reference.to_blocked(array))
    np.testing.assert_array_equal(raw(nvfp4kern.from_blocked(blocked, rows, cols)), array)
