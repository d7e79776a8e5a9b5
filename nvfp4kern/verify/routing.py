"""The oracle of `route` and of `combine`: logits and their bounds, keys, selection, weights,
permutation, and the sum over what was selected."""

from dataclasses import dataclass

import numpy as np

from .reference import FLT_MIN, FLT_TRUE_MIN, UNIT, Expected, check, error_bound, matmul, round_to

SCORES = ("topk_softmax", "softmax_topk", "sigmoid", "sqrt_softplus", "logits")


@dataclass
class Options:
    """The arguments of `route` that selection and weights depend on."""

    k: int
    score: str = "topk_softmax"
    correction_bias: np.ndarray | None = None
    n_group: int = 1
    topk_group: int = 1
    renormalize: bool | None = None
    scaling_factor: float = 1.0
    per_expert_scale: np.ndarray | None = None

    @property
    def normalized(self):
        if self.renormalize is None:
            return self.score in ("sigmoid", "sqrt_softplus")
        return self.renormalize


def logits(x, w, alpha=1.0, c=1):
    """x [M, K], w [N, K] -> alpha[n] * sum_k x*w [M, N] and its bound e, float64."""
    alpha = np.asarray(alpha, np.float32).astype(np.float64)
    total, magnitude = matmul(x, w)
    with np.errstate(invalid="ignore"):
        exact = alpha * total
        e = error_bound(total, magnitude, x.shape[1], alpha, 0.0, c)
        e = e + x.shape[1] * np.abs(alpha) * FLT_TRUE_MIN
    return exact, np.where(np.isfinite(exact), e, 0)


def scaled(logits, alpha=1.0):
    """The logits that selection sees where `logits` [M, N] are given: rounded once, exactly."""
    with np.errstate(invalid="ignore", over="ignore"):
        product = np.asarray(alpha, np.float32).astype(np.float64) * logits.astype(np.float64)
    return round_to(product, "float32").astype(np.float64)


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def sqrt_softplus(x):
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.logaddexp(0, x))


def softmax(logit, over):
    """exp(logit) / sum of exp(over), row by row."""
    top = over.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        return np.exp(logit - top) / np.exp(over - top).sum(axis=-1, keepdims=True)


def scores_of(logit, e, score):
    """What a correction bias is added to, and how far that of a backend may differ."""
    if score == "sigmoid":
        return sigmoid(logit), e / 4 + UNIT * 6  # it rises by at most 1/4
    if score == "sqrt_softplus":
        value = sqrt_softplus(logit)
        return value, e / 3 + UNIT * 12 * np.abs(value)  # by less than 1/3
    if score != "softmax_topk":
        return logit, e
    value = softmax(logit, logit)
    with np.errstate(all="ignore"):
        spread = logit.max(axis=-1, keepdims=True) - logit
        rounding = UNIT * (logit.shape[1] + 16 + 2 * (spread + 1))
        far = value * (np.expm1(2 * e.max(axis=-1, keepdims=True)) + rounding) + FLT_MIN
    return value, np.where(np.isfinite(far), far, FLT_MIN)


def keys(logit, e, options):
    """The keys that selection compares, and how far those of a backend may differ."""
    if options.correction_bias is None:
        return logit, e
    score, far = scores_of(logit, e, options.score)
    key = round_to(score, "float32").astype(np.float64)
    with np.errstate(all="ignore"):
        key = round_to(key + options.correction_bias, "float32").astype(np.float64)
    return key, np.where(np.isfinite(key), far + UNIT * np.abs(key), 0)


def group_scores(key, options):
    """[M, N] -> [M, n_group]: the largest key; with a correction bias, the sum of the two largest.

    NaN keys do not count. An expert group of only NaN keys scores NaN.
    """
    groups = key.reshape(len(key), options.n_group, key.shape[1] // options.n_group)
    ranked = -np.sort(-groups, axis=-1)  # falling, NaN last
    best = ranked[..., 0]
    if options.correction_bias is None or ranked.shape[-1] == 1:
        return best
    second = ranked[..., 1]
    return np.where(np.isnan(second), best, round_to(best + second, "float32"))


def _in_best_groups(key, options):
    scores = group_scores(key, options)
    chosen = np.zeros(scores.shape, bool)
    best = np.argsort(-scores, axis=-1, kind="stable")[:, : options.topk_group]
    np.put_along_axis(chosen, best, True, axis=-1)
    return np.repeat(chosen, key.shape[1] // options.n_group, axis=1)


def select(key, options):
    """[M, N] exact keys -> ids [M, k]: larger keys first, then lower experts, NaN last."""
    allowed = _in_best_groups(key, options)
    order = np.argsort(-key, axis=-1, kind="stable")
    refused = ~np.take_along_axis(allowed, order, axis=-1)
    order = np.take_along_axis(order, np.argsort(refused, axis=-1, kind="stable"), axis=-1)
    return order[:, : options.k]


def wrong_ids(ids, key, e, options):
    """None, or what is wrong with the ids of a row.

    Its keys [N] are known to within e [N]; none is NaN. Every selected key must be >= every
    unselected key - 2e. The same holds for the scores of expert groups. An unselected expert counts
    where its group has certainly been kept.
    """
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= len(key):
        return f"ids {ids} are not distinct experts of {len(key)}"
    slack = 2 * e.max()
    if (np.diff(key[ids]) > slack).any():
        return f"ids {ids} are not in selection order, keys {key[ids]}"
    size = len(key) // options.n_group
    scores = group_scores(key[None], options)[0]
    group_slack = slack
    if options.correction_bias is not None:
        group_slack = 2 * slack + UNIT * np.abs(scores).max()
    ranked = np.sort(scores)[::-1]
    last_in = ranked[options.topk_group - 1]
    touched = np.zeros(options.n_group, bool)
    touched[np.asarray(ids) // size] = True
    if touched.sum() > options.topk_group or (scores[touched] < last_in - group_slack).any():
        return f"ids {ids} come from groups {np.flatnonzero(touched)} with scores {scores[touched]}"
    if options.topk_group < options.n_group:
        touched |= scores > ranked[options.topk_group] + group_slack
    else:
        touched[:] = True
    rest = np.setdiff1d(np.flatnonzero(np.repeat(touched, size)), ids)
    if rest.size and key[rest].max() > key[ids].min() + slack:
        return f"ids {ids} leave out expert {rest[key[rest].argmax()]} of key {key[rest].max()}"
    return None


def weights(logit, e, ids, options):
    """[M, N] logits and the ids chosen -> the Expected [M, k] weights.

    An error e of a logit changes an exponential by the factor exp(e), and a quotient by exp(2e).
    The rest is rounding.
    """
    chosen = np.take_along_axis(logit, ids, axis=-1)
    over_all = options.score == "softmax_topk" and not options.normalized
    involved = logit if over_all else chosen
    spread, floor, far = 0.0, FLT_MIN, e.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        if options.score == "logits":
            value, relative = chosen, 0.0
            floor = far + FLT_TRUE_MIN
        elif options.score in ("sigmoid", "sqrt_softplus"):
            value = {"sigmoid": sigmoid, "sqrt_softplus": sqrt_softplus}[options.score](chosen)
            relative = np.expm1(2 * far)
            if options.normalized:
                total = value.sum(axis=-1, keepdims=True) + np.float64(np.float32(1e-20))
                value, floor = value / total, FLT_MIN / total
        else:
            value, relative = softmax(chosen, involved), np.expm1(2 * far)
            spread = np.abs(chosen - involved.max(axis=-1, keepdims=True)) + 1
        factor = np.float64(np.float32(options.scaling_factor))
        if options.per_expert_scale is not None:
            factor = factor * np.asarray(options.per_expert_scale, np.float64)[ids]
        value = value * factor
        terms = 0 if options.score == "logits" else involved.shape[1]
        rounding = UNIT * (terms + 16 + 2 * spread)
        error = np.abs(value) * (relative + rounding) + floor * np.abs(factor)
    return Expected.within(value, np.where(np.isfinite(error), error, 0))


def scatter(values, ids, experts):
    """[M, k] weights -> [M, N], zeros elsewhere."""
    dense = np.zeros((len(ids), experts), values.dtype)
    np.put_along_axis(dense, ids, values, axis=-1)
    return dense


def permutation(ids, experts):
    """counts [N], offsets [N+1], sorted_rows [M*k] (m*k + j by expert, ascending within one)."""
    return local_permutation(ids, np.arange(experts), experts)


def local_permutation(ids, expert_map, experts):
    """The same by the local index that expert_map [N] has of each id; -1 fills sorted_rows. An id
    outside 0..N-1 has none."""
    padded = np.append(np.asarray(expert_map, np.int64), -1)
    ids = ids.ravel().astype(np.int64)
    local = padded[np.where((ids < 0) | (ids >= len(expert_map)), len(expert_map), ids)]
    local[(local < 0) | (local >= experts)] = experts
    counts = np.bincount(local, minlength=experts + 1)[:experts]
    rows = np.argsort(local, kind="stable")
    rows[counts.sum() :] = -1
    return counts, np.append(0, np.cumsum(counts)), rows


def row_of(sorted_rows):
    """Where each number is in sorted_rows, or -1."""
    rows = np.full(len(sorted_rows), -1)
    used = np.asarray(sorted_rows) >= 0
    rows[np.asarray(sorted_rows)[used]] = np.flatnonzero(used)
    return rows


def combine(products, row_of, weights, residual=None):
    """products [P, H], row_of [M*k], weights [M, k] -> [M, H], by the contract's operations in
    float32, each rounded; the last rounding, to the output type, is left out."""
    products, weights = np.float32(products), np.float32(weights)
    rows = np.asarray(row_of).reshape(weights.shape)
    total = np.zeros((len(weights), products.shape[1]), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for j in range(weights.shape[1]):
            here = rows[:, j] >= 0
            total[here] += weights[here, j, None] * products[rows[here, j]]
        return total if residual is None else total + np.float32(residual)


def check_weights(got, logit, e, ids, options, dtype="float32"):
    return check(got, weights(logit, e, ids, options), dtype)
