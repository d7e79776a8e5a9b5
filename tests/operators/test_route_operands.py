"""route: any K, operands of fp16, bf16 and fp32, logits in their place, logits handed out."""

from itertools import product

import numpy as np
import pytest
import torch
from generators import DTYPES, Guarded, assert_ok, floats, rng_of, unchanged, values

import nvfp4kern
from nvfp4kern.verify import data, reference, routing
from nvfp4kern.verify.routing import Options

PAIRS = list(product(DTYPES, DTYPES))
MIXED = [pair for pair in PAIRS if "float32" in pair or len(set(pair)) == 2]
LARGEST = {"float16": 2000, "bfloat16": 250, "float32": 90000}
"""Integers that lower precision would round."""

VARIANTS = [
    {"score": "topk_softmax"},
    {"score": "softmax_topk", "renormalize": False, "scaling_factor": 2.5},
    {"score": "sigmoid"},
    {"score": "sqrt_softplus"},
    {"score": "logits", "scaling_factor": 0.75},
    {"score": "sigmoid", "n_group": 4, "topk_group": 2, "renormalize": False},
]


def factor(backend, x_dtype, w_dtype):
    """The contract's c: tensor cores multiply one 16-bit type."""
    halves = x_dtype == w_dtype != "float32"
    return backend.c if backend.device == "cuda" and halves else 2


def check(result, logit, e, options):
    """Ids by the key rule, weights by their bound."""
    weights, ids = values(result[0]), result[1].cpu().numpy()
    key, key_e = routing.keys(logit, e, options)
    wrong = [routing.wrong_ids(*row, options) for row in zip(ids, key, key_e, strict=True)]
    assert not any(wrong), next(filter(None, wrong))
    assert_ok(routing.check_weights(weights, logit, e, ids, options))


def check_logits(got, logit, e):
    assert got.dtype == torch.float32
    got = values(got).astype(np.float64)
    assert (np.abs(got - logit) <= e + reference.UNIT * np.abs(logit)).all()


def columns_of(array, dtype, device, shift):
    """The array as columns shift .. of a wider buffer that holds NaN elsewhere: rows unaligned."""
    rows, cols = array.shape
    wide = np.full((rows, cols + shift + 3), np.nan, np.float32)
    wide[:, shift : shift + cols] = array
    return floats(wide, dtype, device)[:, shift : shift + cols]


# --- Any K, any alignment ---


@pytest.mark.parametrize("dtypes", [("float16",) * 2, ("bfloat16",) * 2, ("bfloat16", "float32")])
@pytest.mark.parametrize("hidden", [1, 2, 7, 8, 9, 17, 33, 63, 129, 515])
@pytest.mark.parametrize("form", ("contiguous", "aligned", "odd"))
def test_any_k(device, hidden, dtypes, form):
    """Neighbours are NaN: what reads or multiplies beyond K shows."""
    m, n, k = 11, 19, 5
    rng = rng_of(hidden)
    x, w = data.small_integers(rng, m, hidden), data.small_integers(rng, n, hidden)
    if form == "contiguous":
        given = [floats(v, dtype, device) for v, dtype in zip((x, w), dtypes, strict=True)]
    else:  # rows of 16 bytes, which a last chunk of K leaves half empty; or of any address
        shift = 1 if form == "odd" else 0
        given = []
        for array, dtype in zip((x, w), dtypes, strict=True):
            padding = 0 if form == "odd" else -(hidden + 3) % 8
            wide = np.pad(array, ((0, 0), (0, padding)), constant_values=np.nan)
            given.append(columns_of(wide, dtype, device, shift)[:, :hidden])
    with unchanged(given):
        weights, ids, logits = nvfp4kern.route(*given, k, return_logits=True)
    logit = routing.logits(x.astype(np.float64), w.astype(np.float64))[0]
    np.testing.assert_array_equal(values(logits), logit)
    np.testing.assert_array_equal(ids.cpu().numpy(), routing.select(logit, Options(k)))
    ids = ids.cpu().numpy()
    assert_ok(routing.check_weights(values(weights), logit, 0 * logit, ids, Options(k)))


@pytest.mark.parametrize("m, n, hidden", [(1, 256, 1023), (70, 130, 1001), (300, 33, 77)])
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_odd_k_within_the_bound(backend, m, n, hidden, dtype):
    rng = rng_of(m, n)
    x, w = data.halves(rng, dtype, m, hidden), data.halves(rng, dtype, n, hidden, scale=0.1)
    given = floats(x, dtype, backend.device), floats(w, dtype, backend.device)
    *result, got = nvfp4kern.route(*given, 4, return_logits=True)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), 1.0, backend.c)
    check_logits(got, logit, e)
    check(result, logit, e, Options(4))


# --- fp16, bf16, fp32 ---


@pytest.mark.parametrize("dtypes", PAIRS, ids="-".join)
@pytest.mark.parametrize("m, n, hidden, k", [(1, 1, 16, 1), (9, 40, 33, 8), (130, 111, 21, 4)])
def test_integers_are_exact(device, m, n, hidden, k, dtypes):
    """One operand has all the bits that its type keeps; then the other has."""
    rng = rng_of(m, n, hidden)
    for large in (0, 1):
        most = [2, 2]
        most[large] = LARGEST[dtypes[large]]
        x = data.small_integers(rng, m, hidden, most=most[0])
        w = data.small_integers(rng, n, hidden, most=most[1])
        given = floats(x, dtypes[0], device), floats(w, dtypes[1], device)
        with unchanged(given):
            result = nvfp4kern.route(*given, k, alpha=2.0**-12, return_logits=True)
        logit = routing.logits(x.astype(np.float64), w.astype(np.float64), 2.0**-12)[0]
        np.testing.assert_array_equal(values(result[2]), logit)
        np.testing.assert_array_equal(result[1].cpu().numpy(), routing.select(logit, Options(k)))


@pytest.mark.parametrize("dtypes", PAIRS, ids="-".join)
@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(map(str, o.values())))
def test_random_operands(backend, dtypes, options):
    rng = rng_of(PAIRS.index(dtypes))
    x = reference.round_to(rng.standard_normal((45, 301)), dtypes[0])
    w = reference.round_to(rng.standard_normal((64, 301)) * 0.2, dtypes[1])
    given = (floats(v, t, backend.device) for v, t in zip((x, w), dtypes, strict=True))
    *result, got = nvfp4kern.route(*given, 6, alpha=0.75, return_logits=True, **options)
    c = factor(backend, *dtypes)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), 0.75, c)
    check_logits(got, logit, e)
    check(result, logit, e, Options(6, **options))


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_the_whole_range(backend, dtypes):
    """The largest and the smallest numbers of each type, denormals among them."""
    rng = rng_of(31)
    ends = {"float16": (-24, 15), "bfloat16": (-133, 127), "float32": (-149, 127)}
    low = [ends[dtype][0] for dtype in dtypes]
    high = [ends[dtype][1] for dtype in dtypes]
    x = np.ldexp(rng.choice([-1, 1, 1], (20, 24)), rng.integers(low[0], high[0] + 1, (20, 24)))
    most = np.minimum(high[1], 120 - np.frexp(np.abs(x).max())[1])
    most = max(most, low[1])
    w = np.ldexp(rng.choice([-1, 1], (12, 24)), rng.integers(low[1], most + 1, (12, 24)))
    x, w = reference.round_to(x, dtypes[0]), reference.round_to(w, dtypes[1])
    given = (floats(v, t, backend.device) for v, t in zip((x, w), dtypes, strict=True))
    *_, got = nvfp4kern.route(*given, 3, return_logits=True)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), 1.0, 2)
    check_logits(got, logit, e)


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_infinities_and_nan_spread_by_arithmetic(device, dtypes):
    """A product that splits its factors would make NaN of infinity times one."""
    x, w = np.ones((6, 20), np.float32), np.ones((5, 20), np.float32)
    x[1, 19], x[2, 3], x[3, 7] = np.inf, -np.inf, np.nan
    w[2, 4], w[4, 19] = np.inf, 0
    given = floats(x, dtypes[0], device), floats(w, dtypes[1], device)
    weights, ids, got = nvfp4kern.route(*given, 2, return_logits=True)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_array_equal(values(got), logit)
    np.testing.assert_array_equal(ids.cpu().numpy(), routing.select(logit, Options(2)))


@pytest.mark.parametrize("dtypes", [("float32",) * 2, ("bfloat16", "float32"), ("float16",) * 2])
@pytest.mark.parametrize("shift", (0, 1))
@pytest.mark.parametrize(
    "m, n, hidden", [(1, 17, 7168), (300, 1, 13), (2, 1024, 1), (100, 130, 528), (3, 300, 1544)]
)
def test_extents_and_alignments(device, m, n, hidden, shift, dtypes):
    """Whole steps of K and the rest, parts of K, rows of any address; each score, both outputs."""
    rng, k = rng_of(m, n, shift), min(n, 5)
    x, w = data.small_integers(rng, m, hidden), data.small_integers(rng, n, hidden)
    padding = 0 if shift else -(hidden + 3) % 8
    given = []
    for array, dtype in zip((x, w), dtypes, strict=True):
        wide = np.pad(array, ((0, 0), (0, padding)), constant_values=np.nan)
        given.append(columns_of(wide, dtype, device, shift)[:, :hidden])
    logit = routing.logits(x.astype(np.float64), w.astype(np.float64))[0]
    options = VARIANTS[(m + n + shift) % len(VARIANTS)]
    o = Options(k, **options)
    outs = [Guarded((m, cols), dtype, device) for cols, dtype in ((k, "float32"), (n, "float32"))]
    ids = Guarded((m, k), torch.int32, device)
    for weights, dense in zip(outs, (False, True), strict=True):
        logits = Guarded((m, n), "float32", device)
        out = [weights.tensor, ids.tensor, logits.tensor]
        nvfp4kern.route(*given, k, return_logits=True, dense=dense, out=out, **options)
        assert all(out.guards_intact() for out in (weights, ids, logits))
        np.testing.assert_array_equal(values(logits.tensor), logit)
        np.testing.assert_array_equal(ids.tensor.cpu().numpy(), routing.select(logit, o))
    found, dense = (values(out.tensor) for out in outs)
    selected = ids.tensor.cpu().numpy()
    assert_ok(routing.check_weights(found, logit, 0 * logit, selected, o))
    np.testing.assert_array_equal(dense, routing.scatter(found, selected, n))


# --- Logits in place of x and w, logits handed out ---


def near_ties(rng, dtype):
    """Duplicates, all equal, all -inf, NaN rows, saturated sigmoids, -0 beside 0."""
    integers = rng.integers(-4, 5, (60, 48)).astype(np.float32)
    integers[0], integers[1], integers[2] = 3, -np.inf, np.nan
    integers[3, ::2] = np.nan
    integers[4] = rng.choice([30, 40, 35], 48)
    integers[5] = rng.choice([-100, -200, -0.0, 0.0], 48)
    integers[6, :40] = -np.inf
    integers[7, 5] = np.inf
    integers[8:40] = reference.round_to(rng.standard_normal((32, 48)) * 3, dtype)
    return integers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("k", (1, 8, 24))
def test_given_logits(device, dtype, options, k):
    logits = near_ties(rng_of(17), dtype)
    given = floats(logits, dtype, device)
    with unchanged(given):
        weights, ids, got = nvfp4kern.route(k=k, logits=given, return_logits=True, **options)
    np.testing.assert_array_equal(values(got), logits)
    o, exact = Options(k, **options), logits.astype(np.float64)
    ids = ids.cpu().numpy()
    np.testing.assert_array_equal(ids, routing.select(exact, o))
    assert_ok(routing.check_weights(values(weights), exact, np.zeros_like(exact), ids, o))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "m, n, k", [(0, 7, 2), (1, 1, 1), (9, 1024, 32), (300, 3, 2), (33, 130, 9)]
)
def test_given_logits_of_any_size(device, dtype, m, n, k):
    logits = reference.round_to(rng_of(m, n).standard_normal((m, n)) * 4, dtype)
    wide = columns_of(logits, dtype, device, 1)
    result = nvfp4kern.route(k=k, logits=wide, permutation=True, dense=True)
    exact = logits.astype(np.float64)
    ids = result[1].cpu().numpy()
    np.testing.assert_array_equal(ids, routing.select(exact, Options(k)))
    verdict = routing.weights(exact, np.zeros_like(exact), ids, Options(k))
    got = values(result[0])
    assert_ok(reference.check(np.take_along_axis(got, ids, -1), verdict, "float32"))
    assert (got != 0).sum() <= m * k
    for got, want in zip(result[2:], routing.permutation(ids, n), strict=True):
        np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.parametrize("alpha", (-0.3, "one element", "per expert"))
def test_alpha_multiplies_given_logits(device, alpha):
    rng = rng_of(19)
    logits = rng.standard_normal((12, 20)).astype(np.float32)
    factors = {"one element": rng.random(1), "per expert": rng.standard_normal(20)}
    if alpha in factors:
        numbers = factors[alpha].astype(np.float32)
        given = floats(numbers, "float32", device)
    else:
        numbers = given = alpha
    options = {"alpha": given, "return_logits": True}
    _, ids, got = nvfp4kern.route(k=3, logits=floats(logits, "float32", device), **options)
    exact = routing.scaled(logits, numbers)
    np.testing.assert_array_equal(values(got), exact)
    np.testing.assert_array_equal(ids.cpu().numpy(), routing.select(exact, Options(3)))


@pytest.mark.parametrize("score", routing.SCORES)
def test_a_correction_bias_and_given_logits(device, score):
    logits = rng_of(20).integers(-3, 4, (30, 64)).astype(np.float32)
    bias = (rng_of(21).integers(-8, 9, 64) / 4).astype(np.float32)
    options = {"score": score, "n_group": 8, "topk_group": 3}
    given = {"correction_bias": floats(bias, "float32", device), **options}
    result = nvfp4kern.route(k=6, logits=floats(logits, "float16", device), **given)
    exact = logits.astype(np.float64)
    check(result, exact, np.zeros_like(exact), Options(6, correction_bias=bias, **options))


def route_by_threads(x, w, options):
    """Whether threads route that hand out no logits: they add weights in another order than warps,
    which do where logits are handed out."""
    return nvfp4kern.explain("route", x, w, 7, **options)["why"].startswith("a thread routes")


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_handed_out_select_the_same(device, dtype):
    """What return_logits hands out is what the selection saw, to the bit."""
    rng = rng_of(22)
    x, w = (floats(data.halves(rng, "bfloat16", n, 200), dtype, device) for n in (77, 96))
    options = {"score": "sigmoid", "n_group": 8, "topk_group": 4, "permutation": True}
    *first, logits = nvfp4kern.route(x, w, 7, return_logits=True, **options)
    again = nvfp4kern.route(x, w, 7, **options)
    for results in (nvfp4kern.route(k=7, logits=logits, **options), again):
        for ours, theirs in zip(first[1:], results[1:], strict=True):
            assert torch.equal(ours, theirs)
        if results is not again or not route_by_threads(x, w, options):
            assert torch.equal(first[0], results[0])
    np.testing.assert_allclose(values(first[0]), values(again[0]), rtol=2.0**-21)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 1, 3, 2)])
def test_results_have_the_dimensions_of_their_rows(device, lead):
    logits = floats(rng_of(25).standard_normal((*lead, 9)), "float32", device)
    result = nvfp4kern.route(k=2, logits=logits, return_logits=True)
    assert [part.shape for part in result] == [(*lead, 2), (*lead, 2), (*lead, 9)]
    assert torch.equal(result[2], logits)
    assert torch.equal(result[1].long(), logits.topk(2).indices)
