"""route on exact logits, checked id by id: for the tests of routers and their tiles."""

import numpy as np
from generators import assert_ok, floats, unchanged, values

import nvfp4kern
from nvfp4kern.verify import data, routing
from nvfp4kern.verify.routing import Options

VARIANTS = {
    "topk_softmax": {"score": "topk_softmax"},
    "softmax_topk": {"score": "softmax_topk"},
    "softmax_topk renormalized": {"score": "softmax_topk", "renormalize": True},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid as it is": {"score": "sigmoid", "renormalize": False},
    "sigmoid scaled": {"score": "sigmoid", "scaling_factor": 2.5},
    "softmax scaled": {"score": "topk_softmax", "scaling_factor": 0.25},
    "sqrt_softplus": {"score": "sqrt_softplus"},
    "sqrt_softplus as it is": {"score": "sqrt_softplus", "renormalize": False},
    "logits": {"score": "logits"},
    "logits scaled": {"score": "logits", "scaling_factor": 2.5},
}
OF_SOFTMAX = ("topk_softmax", "softmax_topk")


def integers(rng, m, n, k, most=3):
    """x [M, K] and w [N, K] of small integers: logits are exact, with many ties."""
    return data.small_integers(rng, m, k, most=most), data.small_integers(rng, n, k, most=most)


def run_route(x, w, k, device, *, dtype="bfloat16", bias=None, scale=None, **options):
    given = floats(x, dtype, device), floats(w, dtype, device)
    for name, numbers in (("correction_bias", bias), ("per_expert_scale", scale)):
        if numbers is not None:
            options[name] = floats(numbers, "float32", device)
    with unchanged(given, list(options.values())):
        result = nvfp4kern.route(*given, k, **options)
    return (values(result[0]), *(part.cpu().numpy() for part in result[1:]))


def check_exact(
    x, w, k, device, *, bias=None, scale=None, alpha=1.0, c=1, dtype="bfloat16", **options
):
    """Ids to the last one, weights within their bound."""
    given = {"dtype": dtype, "bias": bias, "scale": scale, "alpha": alpha, **options}
    weights, ids = run_route(x, w, k, device, **given)
    o = Options(k, correction_bias=bias, per_expert_scale=scale, **options)
    logit, e = routing.logits(x.astype(np.float64), w.astype(np.float64), alpha, c)
    key = routing.keys(logit, e, o)[0]
    np.testing.assert_array_equal(ids, routing.select(key, o))
    assert_ok(routing.check_weights(weights, logit, e * 0, ids, o))
    return weights, ids
