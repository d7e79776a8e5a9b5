"""route: logits, top-k and weights.

Ids are unique where logits are exact integers, elsewhere the key rule holds.
"""

import numpy as np
import pytest
import torch
from generators import DTYPES, Guarded, assert_ok, floats, rng_of, values
from route_calls import VARIANTS, check_exact, integers, run_route

import nvfp4kern
from nvfp4kern.verify import data, reference, routing
from nvfp4kern.verify.routing import Options


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "m, n, hidden, k",
    [(1, 1, 16, 1), (5, 8, 32, 4), (33, 17, 48, 17), (3, 1024, 64, 32), (40, 256, 16, 8)],
)
def test_exact_logits(device, m, n, hidden, k, variant, dtype):
    x, w = integers(rng_of(m, n, k), m, n, hidden)
    check_exact(x, w, k, device, dtype=dtype, **VARIANTS[variant])


@pytest.mark.parametrize("variant", VARIANTS)
def test_ties_go_to_the_lowest_expert(device, variant):
    x, w = integers(rng_of(1), 6, 40, 16, most=1)
    x[0] = 0  # all equal
    w[20:] = w[:20]  # every logit twice
    _, ids = check_exact(x, w, 9, device, **VARIANTS[variant])
    assert ids[0].tolist() == list(range(9))


def specials():
    """One row with each kind of logit: w steers which experts see x's first two elements."""
    x = np.zeros((8, 16), np.float32)
    x[:, 2] = 1
    x[0, 0], x[1, 0], x[2, 1] = np.inf, -np.inf, np.nan
    x[3] = np.nan
    x[4, 0], x[4, 1] = np.inf, np.inf
    w = np.zeros((12, 16), np.float32)
    w[:, 2] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    w[:, 0] = [1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1]
    w[:, 1] = [1, 1, -1, -1, 1, -1, 1, 1, -1, -1, 1, 1]
    return x, w


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", (1, 3, 5, 12))
def test_infinite_and_nan_rows(device, variant, k):
    x, w = specials()
    weights, ids = check_exact(x, w, k, device, **VARIANTS[variant])
    assert ids[3].tolist() == list(range(k)) and np.isnan(weights[3]).all()
    clean = run_route(x[5:], w, k, device, **VARIANTS[variant])
    np.testing.assert_array_equal(weights[5:], clean[0])  # nobody else noticed
    np.testing.assert_array_equal(ids[5:], clean[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_expert_never_wins(device, variant):
    x, w = integers(rng_of(2), 7, 10, 16)
    w[[0, 4]] = np.nan
    for k in (3, 8, 9, 10):
        weights, ids = check_exact(x, w, k, device, **VARIANTS[variant])
        assert (ids[:, 8:] == [0, 4][: max(k - 8, 0)]).all()
        wants_all = VARIANTS[variant] == {"score": "softmax_topk"}
        assert np.isnan(weights).any() == (k > 8 or wants_all)


@pytest.mark.parametrize("kind", ("float", "one element", "per expert"))
def test_alpha(device, kind):
    x, w = integers(rng_of(3), 9, 20, 32)
    alpha = {
        "float": -0.5,
        "one element": np.array([0.25], np.float32),
        "per expert": np.exp2(rng_of(4).integers(-3, 3, 20)).astype(np.float32),
    }[kind]
    given = alpha if kind == "float" else floats(alpha, "float32", device)
    weights, ids = run_route(x, w, 5, device, alpha=given)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), alpha)
    np.testing.assert_array_equal(ids, routing.select(logit, Options(5)))
    assert_ok(routing.check_weights(weights, logit, e * 0, ids, Options(5)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "n, n_group, topk_group, k", [(24, 6, 2, 7), (256, 8, 4, 8), (16, 16, 5, 5)]
)
def test_groups(device, variant, n, n_group, topk_group, k):
    x, w = integers(rng_of(n, k), 30, n, 32)
    check_exact(x, w, k, device, n_group=n_group, topk_group=topk_group, **VARIANTS[variant])


def test_groups_tie_to_the_lower_one(device):
    x, w = integers(rng_of(5), 3, 12, 16)
    w[:] = w[0]
    _, ids = check_exact(x, w, 6, device, n_group=4, topk_group=2)
    assert (ids == range(6)).all()


def test_a_group_of_nan_ranks_last(device):
    x, w = integers(rng_of(6), 9, 12, 16)
    w[:3] = np.nan  # a whole group
    w[4] = np.nan  # one of the second
    for topk_group, k in ((3, 9), (4, 12), (2, 6)):
        check_exact(x, w, k, device, n_group=4, topk_group=topk_group)


def ambiguous(logit, options):
    """Whether two different keys, or group scores, lie closer than rounding."""
    key, e = routing.keys(logit, 0 * logit, options)
    scores = routing.group_scores(key, options)
    for numbers, slack in ((key, 2 * e.max()), (scores, 6 * e.max())):
        gap = np.diff(np.sort(numbers, axis=-1), axis=-1)
        if ((gap > 0) & (gap <= slack)).any():
            return True
    return False


BIASED = [variant for variant in VARIANTS if "scaled" not in variant]


@pytest.mark.parametrize("variant", BIASED)
@pytest.mark.parametrize(
    "n, n_group, topk_group, k",
    [(20, 1, 1, 6), (64, 8, 4, 8), (256, 8, 4, 8), (6, 6, 3, 2), (80, 40, 9, 5), (600, 1, 1, 8)],
)
def test_correction_bias_steers_the_selection_only(device, n, n_group, topk_group, k, variant):
    """Few experts, many; groups of whole lanes of a warp, of others, of more than a lane each."""
    rng = rng_of(n, k)
    x, w = integers(rng, 25, n, 16, most=1)
    bias = rng.integers(-8, 8, n) / np.float32(8)
    options = {**VARIANTS[variant], "n_group": n_group, "topk_group": topk_group}
    of_logits = options["score"] in ("topk_softmax", "logits")  # exact, with many ties
    if not of_logits:
        bias = (bias + rng.integers(0, 4, n) / np.float32(1000)).astype(np.float32)
    scale = rng.standard_normal(n).astype(np.float32)
    weights, ids = run_route(x, w, k, device, bias=bias, scale=scale, **options)
    o = Options(k, correction_bias=bias, per_expert_scale=scale, **options)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64))
    key, far = routing.keys(logit, 0 * e, o)
    for row in range(len(x)):
        if of_logits or not ambiguous(logit[row][None], o):
            np.testing.assert_array_equal(ids[row], routing.select(key[row][None], o)[0])
        assert not (wrong := routing.wrong_ids(ids[row], key[row], far[row], o)), wrong
    assert_ok(routing.check_weights(weights, logit, 0 * e, ids, o))
    if options["score"] == "logits":
        chosen = np.take_along_axis(logit, ids, -1).astype(np.float32)
        np.testing.assert_array_equal(weights, chosen * scale[ids])


@pytest.mark.parametrize("variant", BIASED)
def test_correction_bias_of_special_rows(device, variant):
    """A softmax over all experts has NaN for each of them where one logit is NaN or +inf."""
    x, w = specials()
    options = VARIANTS[variant]
    bias = np.float32([0, 3, 0.5, 1, 2, -4, 8, 0.25, 7, 6, 5, -1])
    for k in (1, 5, 12):
        _, ids = check_exact(x, w, k, device, bias=bias, **options)
        lost = [0, 2, 3, 4] if options["score"] == "softmax_topk" else [3]
        assert (ids[lost] == range(k)).all()


def test_correction_bias_and_nan(device):
    x, w = integers(rng_of(7), 6, 12, 16, most=1)
    bias = (rng_of(8).random(12) * 3).astype(np.float32)
    w[0], bias[7] = np.nan, np.nan  # a NaN logit, a NaN key of a sound logit
    for k in (4, 11, 12):
        _, ids = check_exact(x, w, k, device, bias=bias, score="sigmoid")
        assert (ids[:, 10:] == [0, 7][: max(k - 10, 0)]).all()
    w[1:3] = np.nan  # groups: only NaN, one number left
    w[4:6] = np.nan
    check_exact(x, w, 4, device, bias=bias, score="sigmoid", n_group=4, topk_group=2)


def test_sigmoid_of_large_logits_ties_at_one(device):
    """The key without a bias is the logit itself: 40 beats 30 although both sigmoids are 1."""
    x = np.zeros((1, 16), np.float32)
    x[0, 0] = 1
    w = np.zeros((4, 16), np.float32)
    w[:, 0] = [30, 40, -200, 35]
    weights, ids = check_exact(x, w, 4, device, score="sigmoid", renormalize=False)
    assert ids.tolist() == [[1, 3, 0, 2]] and weights[0, :3].tolist() == [1, 1, 1]
    _, ids = check_exact(x, w, 4, device, score="sigmoid", bias=np.zeros(4, np.float32))
    assert ids.tolist() == [[0, 1, 3, 2]]


def test_sqrt_softplus_of_any_logit(device):
    """Its exponential leaves float32 at 88 and at -103, itself only below -174."""
    logits = np.linspace(-200, 200, 32 * 40, dtype=np.float32).reshape(40, 32)
    logits[0, :6] = [1e38, -1e38, 0, -0.0, 2**-149, -16.999]
    given = floats(logits, "float32", device)
    weights, ids = nvfp4kern.route(k=32, logits=given, score="sqrt_softplus", renormalize=False)
    o = Options(32, "sqrt_softplus", renormalize=False)
    exact, ids = logits.astype(np.float64), ids.cpu().numpy()
    assert_ok(routing.check_weights(values(weights), exact, 0 * exact, ids, o))
    torchs = torch.nn.functional.softplus(torch.from_numpy(np.take_along_axis(exact, ids, -1)))
    np.testing.assert_allclose(values(weights), torchs.sqrt().numpy(), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n, k", [(12, 5), (40, 9), (300, 32)])
def test_per_expert_scale(device, variant, n, k):
    """It multiplies last: the bits are those of the weights without it, times it."""
    x, w = integers(rng_of(16, n), 20, n, 32)
    scale = rng_of(17).standard_normal(n).astype(np.float32)
    scale[[0, 3, 7]] = [np.nan, -0.0, np.inf]
    strided = floats(scale.repeat(2), "float32", device)[::2]
    plain, ids = check_exact(x, w, k, device, **VARIANTS[variant])
    for dense in (False, True):
        options = {"dense": dense, "per_expert_scale": strided, **VARIANTS[variant]}
        weights, same = run_route(x, w, k, device, **options)
        np.testing.assert_array_equal(same, ids)
        with np.errstate(invalid="ignore"):
            want = plain * scale[ids]
        np.testing.assert_array_equal(weights, routing.scatter(want, ids, n) if dense else want)


def test_softmax_does_not_overflow(device):
    x, w = integers(rng_of(9), 4, 9, 512, most=100)
    for variant in VARIANTS.values():
        weights, _ = check_exact(x, w, 5, device, **variant)
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("groups", (None, (8, 3)))
@pytest.mark.parametrize("biased", (False, True))
def test_real_logits_obey_the_key_rule(backend, variant, groups, biased, dtype):
    options = dict(VARIANTS[variant])
    if groups:
        options |= {"n_group": groups[0], "topk_group": groups[1]}
    rng = rng_of(10)
    x, w = data.halves(rng, dtype, 50, 96), data.halves(rng, dtype, 64, 96, scale=0.3)
    bias = rng.standard_normal(64).astype(np.float32) if biased else None
    weights, ids = run_route(x, w, 6, backend.device, dtype=dtype, bias=bias, alpha=0.7, **options)
    o = Options(6, correction_bias=bias, **options)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), 0.7, backend.c)
    key, key_e = routing.keys(logit, e, o)
    wrong = [routing.wrong_ids(*row, o) for row in zip(ids, key, key_e, strict=True)]
    assert not any(wrong), next(filter(None, wrong))
    assert_ok(routing.check_weights(weights, logit, e, ids, o))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_dtypes(device, variant, dtype):
    x, w = integers(rng_of(11), 20, 30, 32)
    given = floats(x, "float16", device), floats(w, "float16", device)
    weights, ids = nvfp4kern.route(*given, 4, out_dtype=dtype, **VARIANTS[variant])
    assert weights.dtype == getattr(torch, dtype) and ids.dtype == torch.int32
    o = Options(4, **VARIANTS[variant])
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64))
    ids = ids.cpu().numpy()
    assert_ok(routing.check_weights(values(weights), logit, e * 0, ids, o, dtype))


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("variant", VARIANTS)
def test_dense_is_compact_scattered(device, variant, dtype):
    x, w = specials()
    options = {"out_dtype": dtype, **VARIANTS[variant]}
    weights, ids = run_route(x, w, 5, device, **options)
    dense, dense_ids = run_route(x, w, 5, device, dense=True, **options)
    np.testing.assert_array_equal(dense_ids, ids)
    np.testing.assert_array_equal(dense, routing.scatter(weights, ids, 12))


@pytest.mark.parametrize(
    "m, n, k",
    [(1, 4, 2), (1, 256, 8), (1, 1024, 32), (50, 16, 4), (0, 5, 2), (300, 7, 7), (9, 1024, 32)],
)
@pytest.mark.parametrize("dense", (False, True))
def test_permutation(device, m, n, k, dense):
    x, w = integers(rng_of(m, n), m, n, 32)
    result = run_route(x, w, k, device, permutation=True, dense=dense)
    assert [part.dtype for part in result[1:]] == [np.int32] * 4
    for got, want in zip(result[2:], routing.permutation(result[1], n), strict=True):
        np.testing.assert_array_equal(got, want)


def test_permutation_feeds_grouped_gemm(device):
    rng = rng_of(12)
    x, w = integers(rng, 20, 4, 32)
    experts = data.small_integers(rng, 4, 8, 32)
    x_given = floats(x, "bfloat16", device)
    result = nvfp4kern.route(x_given, floats(w, "bfloat16", device), 2, permutation=True)
    _, ids, _, offsets, rows = result
    tokens = x_given[rows.long() // 2]
    got = nvfp4kern.grouped_gemm(
        tokens, floats(experts, "bfloat16", device), offsets=offsets, out_dtype="float32"
    )
    back = np.empty((40, 8), np.float32)
    back[rows.cpu().numpy()] = values(got)
    want = np.einsum("mk,msnk->msn", x, experts[ids.cpu().numpy()])
    np.testing.assert_array_equal(back.reshape(20, 2, 8), want)


LOCAL = {"expert_map": [-1, 2, 0, 4, 1, 2, -1, 3, 0, 4], "num_local_experts": 5}


@pytest.mark.parametrize("order", ("row", "padded rows", "padded columns"))
@pytest.mark.parametrize("dtype, k", [("bfloat16", 32), ("bfloat16", 35), ("float32", 35)])
@pytest.mark.parametrize("here", ({}, LOCAL), ids=("all experts", "some"))
@pytest.mark.parametrize("logits", (False, True))
def test_given_outputs(device, order, dtype, k, here, logits):
    """All that there can be: a permutation, maybe of some experts, maybe logits."""
    x, w = integers(rng_of(13), 21, 10, k)
    given = floats(x, dtype, device), floats(w, "bfloat16", device)
    options = {"permutation": True, "return_row_of": True, "return_logits": logits} | here
    out_dtype = "float16" if order == "padded rows" else "float32"
    if here:
        map_here = torch.tensor(here["expert_map"], dtype=torch.int32, device=device)
        options["expert_map"] = map_here
    experts = here.get("num_local_experts", 10)
    outs = [Guarded((21, 3), kind, device, order) for kind in (out_dtype, torch.int32)]
    sizes = (experts, experts + 1, 63, 63)
    outs += [Guarded((size,), torch.int32, device) for size in sizes]
    outs += [Guarded((21, 10), "float32", device, order)] * logits
    result = nvfp4kern.route(*given, 3, out=[o.tensor for o in outs], **options)
    assert all(got is out.tensor for got, out in zip(result, outs, strict=True))
    assert all(out.guards_intact() for out in outs)
    want = nvfp4kern.route(*given, 3, out_dtype=out_dtype, **options)
    assert all(map(torch.equal, result, want))


def test_views_with_other_strides(device):
    x, w = integers(rng_of(14), 12, 10, 64)
    given = floats(x, "float16", device)[::2, :32], floats(w, "float16", device)[:, 32:]
    weights, ids = nvfp4kern.route(*given, 3)
    want = check_exact(x[::2, :32], w[:, 32:], 3, device, dtype="float16")
    np.testing.assert_array_equal(values(weights), want[0])
    np.testing.assert_array_equal(ids.cpu().numpy(), want[1])


def test_no_k_makes_every_logit_zero(device):
    empty = np.zeros((3, 0), np.float32), np.zeros((4, 0), np.float32)
    weights, ids = run_route(*empty, 2, device)
    assert ids.tolist() == [[0, 1]] * 3 and (weights == 0.5).all()


def test_numpy(device):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    x, w = (v.astype(np.float16) for v in integers(rng_of(15), 6, 9, 32))
    weights, ids, counts, offsets, rows = nvfp4kern.route(x, w, 3, permutation=True)
    assert {type(part) for part in (weights, ids, counts, offsets, rows)} == {np.ndarray}
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_array_equal(ids, routing.select(logit, Options(3)))
    verdict = reference.check(weights, routing.weights(logit, e, ids, Options(3)), "float32")
    assert_ok(verdict)
