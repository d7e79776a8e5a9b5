"""dual_gemm: D = act(alpha1 * A B1^T) * (alpha2 * A B2^T)."""

import os

import numpy as np
import pytest
from dense_calls import dual_operands, expect_dual, explain, run_dual
from generators import (
    DTYPES,
    INFINITE,
    ODD_SHAPES,
    assert_ok,
    codes,
    floats,
    halves,
    halves_like,
    rng_of,
    run,
    scale_bytes,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

ACTIVATIONS = tuple(reference.ACTIVATIONS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_exact_family_is_within_one_ulp(backend, m, n, k, activation, dtype):
    ops = dual_operands(rng_of(m, n, k), data.exact_family, m, n, k)
    for b in ops[1:]:
        total = reference.matmul(ops[0].values, b.values)[1]
        assert data.is_exact(ops[0].values, b.values, total)
    got = run_dual(ops, backend.device, activation=activation, dtype=dtype)
    expected = expect_dual(ops, activation=activation, c=backend.c)
    assert_ok(reference.check(got, expected, dtype))
    if activation == "silu" and dtype != "float32":  # float32 shows the rounding of every step
        assert reference.ulps(got, expected.rounded(dtype), dtype).max() <= 1


def test_infinities_are_the_oracles(device):
    ops = dual_operands(rng_of(1), data.exact_family, 20, 30, 512, low=2, high=4)
    want = expect_dual(ops).rounded("float16")
    got = run_dual(ops, device)
    assert np.isposinf(want).any() and np.isneginf(want).any() and np.isfinite(want).any()
    assert reference.ulps(got, want, "float16").max() <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("forms", [("linear", "blocked"), ("permuted", "strided")])
def test_full_range_is_within_the_bound(backend, forms, activation, dtype):
    ops = dual_operands(rng_of(2), data.full_range, 33, 40, 304)
    for alpha in (1.0, 1e-5):
        got = run_dual(
            ops, backend.device, forms=forms, dtype=dtype, activation=activation, alpha1=alpha
        )
        expected = expect_dual(ops, activation=activation, alpha1=alpha, c=backend.c)
        assert_ok(reference.check(got, expected, dtype), alpha)


LIMITS = [
    {"activation": "silu", "limit": 0.5},
    {"activation": "silu", "limit": 7.0},
    {"activation": "swiglu_oai", "limit": 7.0},
    {"activation": "swiglu_oai", "limit": 0.5, "activation_scale": 0.75},
    {"activation": "swiglu_oai", "activation_scale": 3.0},
]


@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("m", (2, 33))
def test_limits_of_gates_and_ups(backend, m, options):
    ops = dual_operands(rng_of(4), data.full_range, m, 40, 304)
    options = options | {"alpha1": 2.0**-14, "alpha2": 2.0**-14}
    got = run_dual(ops, backend.device, dtype="float32", **options)
    assert_ok(reference.check(got, expect_dual(ops, c=backend.c, **options), "float32"))
    sums = [reference.gemm(ops[0].values, b.values, alpha=2.0**-14).exact for b in ops[1:]]
    assert all((s < -8).any() and (s > 8).any() and (abs(s) < 0.4).any() for s in sums)


@pytest.mark.parametrize("scale", (6e-6, 1e-12, 1e-39, 1e30))
def test_any_factor_of_gpt_oss_s_gate(backend, scale):
    """Of 1e-39, which is denormal, an exponent is as often; with 1e30 all gates are 0 or open."""
    ops = dual_operands(rng_of(6), data.full_range, 33, 40, 304)
    for alpha in (2.0**-14, 2.0**40):
        options = {"activation": "swiglu_oai", "activation_scale": scale}
        options |= {"alpha1": alpha, "alpha2": 2.0**-14}
        got = run_dual(ops, backend.device, dtype="float32", **options)
        expected = expect_dual(ops, c=backend.c, **options)
        assert_ok(reference.check(got, expected, "float32"), alpha)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", (2, 33))
def test_biases(backend, m, dtype):
    """Of one matrix, or of both."""
    rng, n = rng_of(5, m), 40
    ops = dual_operands(rng, data.full_range, m, n, 304)
    for names in (("bias1",), ("bias2",), ("bias1", "bias2")):
        biases = {name: reference.round_to(rng.standard_normal(n), dtype) for name in names}
        options = {"alpha1": 2.0**-14, "alpha2": 2.0**-14, "activation": "swiglu_oai"}
        given = {name: floats(bias, dtype, backend.device) for name, bias in biases.items()}
        got = run_dual(ops, backend.device, dtype="float32", **options, **given)
        expected = expect_dual(ops, c=backend.c, **options, **biases)
        assert_ok(reference.check(got, expected, "float32"), names)


@pytest.mark.parametrize("order", ("row", "padded columns"))
@pytest.mark.parametrize("activation", ("silu", "identity"))
@pytest.mark.parametrize("n, k", [(120, 1024), (120, 4096), (200, 1024)])
def test_largest_tile(backend, n, k, activation, order):
    """Of few SMs: whole tiles, shared ones, both."""
    m = 250
    ops = dual_operands(rng_of(n, k), data.exact_family, m, n, k)
    if backend.name == "sm80" and os.environ.get("NVFP4KERN_SM_LIMIT") == "3":
        plan = explain("dual_gemm", ops, backend.device)
        assert plan["kernel"] == "sm80_dual_gemm_t128_nvfp4"
        assert (plan["workspace_bytes"] > 0) == ((n, k) != (120, 1024))
    got = run_dual(ops, backend.device, activation=activation, order=order, dtype="float32")
    assert_ok(reference.check(got, expect_dual(ops, activation=activation, c=backend.c), "float32"))


def test_relu_keeps_nan(device):
    ops = dual_operands(rng_of(6), data.exact_family, 3, 4, 16)
    ops[1].scales[2] = 0x7F
    got = run_dual(ops, device, activation="relu")
    assert np.isnan(got[:, 2]).all() and np.isfinite(got[:, [0, 1, 3]]).all()


@pytest.mark.parametrize("kind", ("float", "one element", "per column"))
def test_alphas(backend, kind):
    rng = rng_of(7)
    ops = dual_operands(rng, data.full_range, 9, 27, 96, 2)
    shape = {"float": (), "one element": (1,), "per column": (27,)}[kind]
    alpha1, alpha2 = (rng.standard_normal(shape).astype(np.float32) * 1e-4 for _ in range(2))
    given = [
        float(v) if kind == "float" else floats(v, "float32", backend.device)
        for v in (alpha1, alpha2)
    ]
    got = run_dual(ops, backend.device, alpha1=given[0], alpha2=given[1], dtype="float32")
    expected = expect_dual(ops, alpha1=alpha1, alpha2=alpha2, c=backend.c)
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("a_dtype", (None, "bfloat16"))
@pytest.mark.parametrize("m", (1, 9, 130))
def test_infinite_sums(backend, m, a_dtype, activation):
    rng, (n, k) = rng_of(11), (48, 64)
    ops = dual_operands(rng, data.exact_family, m, n, k)
    if a_dtype:
        ops[0] = halves_like(data.exact_family, rng, a_dtype, m, k)
    alphas = {"alpha1": np.resize(INFINITE, n), "alpha2": np.repeat(INFINITE, 8)}
    given = {name: floats(alpha, "float32", backend.device) for name, alpha in alphas.items()}
    options = {"activation": activation}
    got = run_dual(ops, backend.device, dtype="float32", **given, **options)
    with np.errstate(invalid="ignore"):
        expected = expect_dual(ops, c=backend.c, nvfp4=not a_dtype, **alphas, **options)
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_16_bit_activations(backend, m, n, k, a_dtype):
    rng = rng_of(m, n, k)
    x, b1, b2 = halves(rng, a_dtype, m, k), *(data.full_range(rng, n, k) for _ in range(2))
    for form in ("linear", "blocked"):
        options = {"forms": (form, form), "dtype": "bfloat16", "alpha1": 1e-3}
        got = run_dual((x, b1, b2), backend.device, **options)
        expected = expect_dual((x, b1, b2), alpha1=1e-3, c=backend.c, nvfp4=False)
        assert_ok(reference.check(got, expected, "bfloat16"), form)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_k_gives_zero(device, activation):
    got = run_dual(
        dual_operands(rng_of(8), data.full_range, 5, 3, 0), device, activation=activation
    )
    np.testing.assert_array_equal(got, np.zeros((5, 3)))


def test_one_buffer_for_both_weights(device):
    """Gate and up as the two halves of one tensor."""
    rng = rng_of(10)
    a, both = data.exact_family(rng, 6, 48), data.exact_family(rng, 14, 48)
    whole, sf = codes(both, device, native=False), scale_bytes(both.scales, device, native=False)
    args = (codes(a, device), whole[:7], whole[7:])
    args += (scale_bytes(a.scales, device), sf[:7], sf[7:])
    got = run(nvfp4kern.dual_gemm, *args, shape=(6, 7), device=device)
    want = reference.dual_gemm(a.values, both.values[:7], both.values[7:]).rounded("float16")
    assert reference.ulps(got, want, "float16").max() <= 1
