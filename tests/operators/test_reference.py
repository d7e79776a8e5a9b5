"""The oracle against torch's casts, hand-made cases and its own inverses, without our code."""

import numpy as np
import pytest
import torch

from nvfp4kern.verify import data, reference, routing, shapes


def rng(seed=0):
    return np.random.default_rng(seed)


def spread(count, low, high, seed=0):
    """Values over all exponents from 2^low to 2^high, half of them on the ties of a coarse grid."""
    r = rng(seed)
    x = r.standard_normal(count) * np.exp2(r.integers(low, high, count))
    grids = [reference.round_to_grid(x, bits, -200) for bits in (8, 11)]
    return np.concatenate([x, *grids])


def test_e2m1_values():
    assert reference.E2M1.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_e4m3_values_are_torchs():
    want = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(reference.E4M3, want)


@pytest.mark.parametrize("dtype, low, high", [("float16", -30, 20), ("float32", -160, 130)])
def test_round_to_is_one_cast(dtype, low, high):
    x = spread(20000, low, high)
    with np.errstate(over="ignore"):
        want = x.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(reference.round_to(x, dtype), want)
    grid = reference.round_to_grid(x, *reference.FORMATS[dtype])
    finite = np.isfinite(want)
    np.testing.assert_array_equal(grid[finite], want[finite].astype(np.float64))


def test_round_to_bfloat16_is_torchs_on_float32_values():
    with np.errstate(over="ignore"):
        x = spread(20000, -160, 130).astype(np.float32)
    want = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(reference.round_to(x, "bfloat16"), want)


def test_round_to_bfloat16_rounds_once():
    just_above_a_tie = 1 + 2.0**-8 + 2.0**-40  # float32 would see the tie, and go down to even
    assert reference.round_to(just_above_a_tie, "bfloat16") == 1 + 2.0**-7


def test_ulps():
    got = np.array([1.0, -0.0, np.nan, np.inf, 65504, -1.0], np.float32)
    want = np.array([1 + 2**-10, 0.0, np.nan, np.inf, np.inf, 1.0], np.float32)
    distance = reference.ulps(got, want, "float16")
    assert distance[:4].tolist() == [1, 0, 0, 0]
    assert distance[4] > 2**30 and distance[5] == 2 * 15 * 1024


def test_decode_order_and_signs():
    packed = np.array([[0x21, 0x8F]], np.uint8)
    got = reference.decode_e2m1(packed)
    np.testing.assert_array_equal(got, [[0.5, 1.0, -6.0, -0.0]])
    assert np.signbit(got[0, 3])
    np.testing.assert_array_equal(reference.encode_e2m1(got), packed)


def test_scales_ignore_bit_7():
    every = np.arange(256, dtype=np.uint8)
    values = reference.decode_scales(every)
    np.testing.assert_array_equal(values[:128], values[128:])
    assert np.isnan(values[[0x7F, 0xFF]]).all() and np.isfinite(values[:0x7F]).all()
    np.testing.assert_array_equal(reference.encode_scales(values[:0x7F]), every[:0x7F])


@pytest.mark.parametrize("rows, cols", [(1, 1), (128, 4), (129, 5), (300, 17)])
def test_blocked_layout_is_the_published_formula(rows, cols):
    scales = rng().integers(1, 127, (rows, cols), np.uint8)
    blocked = reference.to_blocked(scales)
    flat = blocked.ravel()
    row, col = np.mgrid[:rows, :cols]
    atom = row // 128 * (blocked.shape[1] // 4) + col // 4
    offset = atom * 512 + row % 32 * 16 + row // 32 % 4 * 4 + col % 4
    np.testing.assert_array_equal(flat[offset], scales)
    assert np.count_nonzero(flat) == scales.size
    np.testing.assert_array_equal(reference.from_blocked(blocked, rows, cols), scales)


def test_blocked_batches_and_padding():
    scales = rng().integers(0, 127, (3, 130, 6), np.uint8)
    noisy = reference.to_blocked(scales, np.full((3, 256, 8), 0x7F, np.uint8))
    np.testing.assert_array_equal(reference.from_blocked(noisy, 130, 6), scales)
    np.testing.assert_array_equal(noisy[1], reference.to_blocked(scales[1], noisy[1] * 0 + 0x7F))
    assert (noisy == 0x7F).sum() == noisy.size - scales.size


def test_blocked_by_expert():
    scales = rng().integers(1, 127, (200, 4), np.uint8)
    blocked = reference.to_blocked_by_expert(scales, [0, 3, 3, 140])
    assert blocked.shape == ((200 // 128 + 3) * 128, 4)
    np.testing.assert_array_equal(reference.from_blocked(blocked[:128], 3, 4), scales[:3])
    np.testing.assert_array_equal(reference.from_blocked(blocked[128:384], 137, 4), scales[3:140])
    assert np.count_nonzero(blocked) == 140 * 4


def test_matmul_specials():
    a = np.array([[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0], [-0.0, 0.0]])
    b = np.array([[3.0, 4.0], [0.0, 1.0], [np.inf, -np.inf]])
    x, total = reference.matmul(a, b)
    want = [[11, 2, np.nan], [np.nan] * 3, [np.inf, np.nan, np.nan], [0, 0, np.nan]]
    np.testing.assert_array_equal(x, want)
    assert total[0, 0] == 11 and not np.signbit(x[3, :2]).any()


def test_exact_family_is_exact_and_full_range_is_not():
    for make, exact in ((data.exact_family, True), (data.full_range, False)):
        a, b = make(rng(1), 5, 4096), make(rng(2), 7, 4096)
        x, total = reference.matmul(a.values, b.values)
        assert data.is_exact(a.values, b.values, total) is exact
        backwards = np.cumsum((a.values[0] * b.values[0])[::-1].astype(np.float32))
        assert (backwards[-1] == x[0, 0]) == exact


def test_full_range_has_everything():
    operand = data.full_range(rng(), 40, 256)
    assert set(operand.scales.ravel()) == set(range(127))
    assert set(operand.codes.ravel() & 15) == set(operand.codes.ravel() >> 4) == set(range(16))


def test_check_finds_the_worst_and_the_first_wrong():
    exact = np.array([1.0, 2.0, np.nan, 70000.0])
    expected = reference.Expected.within(exact, np.full(4, 0.01))
    good = np.array([1.0, 2.0078125, np.nan, np.inf], np.float32)
    verdict = reference.check(good, expected, "float16")
    assert verdict.ok and verdict.index == (1,) and 0.6 < verdict.worst < 0.8
    for index, wrong in ((0, 1.1), (1, np.nan), (2, 1.0), (3, 65504.0)):
        bad = good.copy()
        bad[index] = wrong
        verdict = reference.check(bad, expected, "float16")
        assert not verdict.ok and verdict.index == (index,) and verdict.worst > 1


def test_check_bits_tells_zeros_apart():
    assert reference.check_bits([0.0, np.nan], [0.0, np.nan]).ok
    assert reference.check_bits([1.0, -0.0], [1.0, 0.0]).index == (1,)


@pytest.mark.parametrize("name", reference.ACTIVATIONS)
def test_activations_are_torchs(name):
    h = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    functional = torch.nn.functional
    want = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
        "relu": functional.relu,
        "relu2": lambda v: functional.relu(v) ** 2,
        "swiglu_oai": lambda v: v * torch.sigmoid(1.702 * v),
        "identity": lambda v: v,
    }[name](h)
    function, minimum = reference.ACTIVATIONS[name]
    np.testing.assert_allclose(function(h.numpy()), want.numpy(), rtol=1e-9, atol=1e-13)
    if minimum is not None:
        assert abs(minimum - h.numpy()[want.argmin()]) < 0.031


def test_dual_gemm_interval_holds_float32():
    a, b1, b2 = (data.full_range(rng(s), 9, 64) for s in range(3))
    expected = reference.dual_gemm(a.values, b1.values, b2.values, alpha1=1e-4)
    h, u = (torch.from_numpy((a.values @ b.values.T).astype(np.float32)) for b in (b1, b2))
    got = torch.nn.functional.silu(np.float32(1e-4) * h) * u
    verdict = reference.check(got.numpy(), expected, "float32")
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", reference.ALONE)
def test_interval_of_an_activated_gemm_holds_float32(name):
    a, b = (data.full_range(rng(s), 9, 64).values for s in range(2))
    of = {"silu": "silu", "relu": "relu", "relu2": "relu", "gelu": "gelu", "gelu_tanh": "gelu"}
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    h = np.float32(1e-4) * torch.from_numpy((a @ b.T).astype(np.float32))
    got = getattr(torch.nn.functional, of[name])(h, **options)
    got = got.square() if name == "relu2" else got
    verdict = reference.check(
        got.numpy(), reference.gemm(a, b, alpha=1e-4, activation=name), "float32"
    )
    assert verdict.ok, str(verdict)


def test_dual_gemm_has_no_more_range_than_float32():
    """Sums are 16."""
    ones = np.ones((1, 16))

    def exact(activation, alpha1, alpha2):
        alphas = {"alpha1": alpha1, "alpha2": alpha2, "activation": activation}
        return reference.dual_gemm(ones, ones, ones, **alphas).exact.item()

    assert np.isnan(exact("silu", -3e38, 1)) and exact("silu", -3, np.inf) == -np.inf
    assert np.isnan(exact("silu", -20, np.inf)) and exact("silu", -20, 1) == 0
    assert exact("identity", 1e-30, 3e38) == np.inf
    tiny = reference.gemm(ones, ones, alpha=1.4e-45)
    assert tiny.high - tiny.exact >= 2.0**-149


def test_quantize_by_hand():
    x = np.zeros((1, 64), np.float32)
    x[0, :5] = [6, -0.0, 2.5, -0.25, 5]  # amax 6: scale 1
    x[0, 16:18] = [np.inf, -np.inf]
    x[0, 32] = np.nan
    codes, scales, s2 = reference.quantize(x)
    assert s2 == 1 and scales.tolist() == [[0x38, 0x7E, 0x7F, 0]]
    assert codes[0, :3].tolist() == [0x87, 0x84, 0x06]
    assert codes[0, 8] == 0xF7 and not codes[0, 16:].any()


def test_quantize_reproduces_representable_values():
    operand = data.full_range(rng(), 30, 256)
    operand.codes[..., ::8] |= 0x07  # every block reaches 6: its scale is then the only choice
    x = operand.values.astype(np.float32)
    codes, scales, _ = reference.quantize(x)
    sure = operand.scales > 0
    np.testing.assert_array_equal(scales, operand.scales)
    got = reference.dequantize(codes, scales)
    np.testing.assert_array_equal(got[sure.repeat(16, -1)], x[sure.repeat(16, -1)])


def test_quantize_amax():
    x = np.array([[3.0] * 16, [np.inf] + [-2688.0] * 15], np.float32)
    _, scales, s2 = reference.quantize(x, "amax")
    assert s2 == 1 and scales.tolist() == [[reference.encode_scales(0.5)], [0x7E]]
    assert reference.quantize(np.zeros_like(x), "amax")[2] == 1


def test_select_rules():
    options = routing.Options(3)
    nan, inf = np.nan, np.inf
    key = [[1, 2, 2, 0.5], [nan, -inf, nan, nan], [-0.0, 0.0, -0.0, 0.0], [nan, 7, nan, 8]]
    ids = routing.select(np.array(key), options)
    assert ids.tolist() == [[1, 2, 0], [1, 0, 2], [0, 1, 2], [3, 1, 0]]


def test_select_groups():
    key = np.array([[9.0, 0, 5, 5, 8, 1, np.nan, np.nan]])
    best_one = routing.Options(2, n_group=4, topk_group=2)
    assert routing.select(key, best_one).tolist() == [[0, 4]]
    bias = np.zeros(8)
    best_two = routing.Options(2, "sigmoid", bias, n_group=4, topk_group=2)
    assert routing.group_scores(key, best_two).tolist()[0][:3] == [9, 10, 9]
    assert routing.select(key, best_two).tolist() == [[0, 2]]


def test_wrong_ids_rule():
    key, e = np.array([5.0, 1, 4.9999, 3]), np.full(4, 1e-3)
    options = routing.Options(2)
    assert routing.wrong_ids(np.array([0, 2]), key, e, options) is None
    assert routing.wrong_ids(np.array([2, 0]), key, e, options) is None
    for ids in ([0, 3], [0, 0], [0, 4], [1, 0]):
        assert routing.wrong_ids(np.array(ids), key, e, options)


@pytest.mark.parametrize("score", routing.SCORES)
def test_route_weights_are_torchs(score):
    logit = rng().standard_normal((6, 10))
    options = routing.Options(4, score)
    ids = routing.select(logit, options)
    got = routing.weights(logit, np.zeros_like(logit), ids, options).exact
    t, at = torch.from_numpy(logit), torch.from_numpy(ids)
    root = torch.nn.functional.softplus(t).sqrt()
    want = {
        "topk_softmax": lambda: t.gather(1, at).softmax(1),
        "softmax_topk": lambda: t.softmax(1).gather(1, at),
        "sigmoid": lambda: t.sigmoid().gather(1, at) / t.sigmoid().gather(1, at).sum(1, True),
        "sqrt_softplus": lambda: root.gather(1, at) / root.gather(1, at).sum(1, True),
        "logits": lambda: t.gather(1, at),
    }[score]()
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


def test_permutation():
    counts, offsets, rows = routing.permutation(np.array([[2, 0], [0, 3]]), 4)
    assert counts.tolist() == [2, 0, 1, 1] and offsets.tolist() == [0, 2, 2, 3, 4]
    assert rows.tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("problem, permuted_at", [("gemv", 4), ("gemm", 4), ("dual_gemm", 6)])
def test_competition_tuples_hold_the_operands(problem, permuted_at):
    case = data.competition(problem, (130, 40, 96, 2)[-4 + (problem == "gemv") :], benign=False)
    operand = case.operands[0][0]
    codes, permuted = case.data[0], case.data[permuted_at]
    np.testing.assert_array_equal(codes.view(torch.uint8).permute(2, 0, 1), operand.codes)
    batch, rows, cols = operand.scales.shape
    in_memory_order = permuted.view(torch.uint8).permute(5, 2, 4, 0, 1, 3)
    blocked = in_memory_order.reshape(batch, reference.padded(rows, 128), -1).numpy()
    np.testing.assert_array_equal(reference.from_blocked(blocked, rows, cols), operand.scales)
    assert blocked.all(where=reference.to_blocked(operand.scales * 0 + 1) == 0)
    assert torch.isnan(case.results[0]).all() and case.data[-1] is case.results[0]


def test_competition_groups_hold_the_operands():
    case = data.competition("group_gemm", shapes.GROUP_GEMM_TESTS[0])
    abc, linear, permuted, sizes = case.data
    assert len(abc) == len(linear) == len(permuted) == len(sizes) == len(case.operands) == 2
    for (a, b, c), (sfa, sfb), (a_op, b_op) in zip(abc, linear, case.operands, strict=True):
        np.testing.assert_array_equal(a.view(torch.uint8)[..., 0], a_op.codes[0])
        np.testing.assert_array_equal(b.view(torch.uint8)[..., 0], b_op.codes[0])
        np.testing.assert_array_equal(sfa.view(torch.uint8)[..., 0], a_op.scales[0])
        np.testing.assert_array_equal(sfb.view(torch.uint8)[..., 0], b_op.scales[0])
        assert torch.isnan(c).all()
