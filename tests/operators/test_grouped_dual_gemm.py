"""grouped_dual_gemm: activations, alphas, where ups begin. The rest: test_grouped_experts.py."""

import numpy as np
import pytest
from expert_calls import OFFSETS, Stack, Tokens, alphas_of, check_rows, interleaved
from generators import DTYPES, INFINITE, POISON, assert_ok, floats, rng_of, values

import nvfp4kern
from nvfp4kern.verify import data, reference

NOBODYS = OFFSETS["rows of nobody"]


@pytest.mark.parametrize("n", (1, 16, 32, 40, 64, 96, 100, 128, 130, 192))
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_ups_begin_at_any_row_of_an_atom(device, n, form):
    """With act(h) = h and sums that are exact every output is one rounding of the product."""
    rng, offsets = rng_of(2, n), [1, 4, 4, 21]
    a, b = Tokens(rng, device, 23, 144), Stack(rng, device, 3, n, 144, form=form)
    got = b.run(a.tensor, a.sf, offsets, activation="identity", dtype="float32")
    assert (got[[0, 21, 22]] == POISON).all()
    for g in range(3):
        rows = slice(offsets[g], offsets[g + 1])
        sums = reference.gemm(a.values[rows], b.values[g]).rounded("float32")
        assert_ok(reference.check_bits(got[rows], sums[:, :n] * sums[:, n:]), g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_full_range_is_within_the_bound(backend, activation, dtype):
    rng, device, offsets = rng_of(3), backend.device, [0, 9, 9, 40]
    a = Tokens(rng, device, 41, 304, make=data.full_range)
    b = Stack(rng, device, 3, 40, 304, make=data.full_range)
    for alpha in (1.0, 1e-5):
        options = {"activation": activation, "alpha": alpha}
        got = b.run(a.tensor, a.sf, offsets, dtype=dtype, **options)
        check_rows(got, offsets, b.expect(a.values, c=backend.c, **options), dtype)


@pytest.mark.parametrize("kind", ("none", "float", "one", "expert", "pair", "row", "strided"))
@pytest.mark.parametrize("n", (1, 27))
def test_alphas(backend, kind, n):
    rng, device = rng_of(4), backend.device
    a = Tokens(rng, device, 44, 96, make=data.full_range)
    b = Stack(rng, device, 3, n, 96, make=data.full_range)
    given, alpha1, alpha2 = alphas_of(kind, rng, 3, n)
    if kind == "strided":
        given = floats(np.repeat(given, 3, axis=1), "float32", device)[:, ::3]
    elif isinstance(given, np.ndarray):
        given = floats(given, "float32", device)
    got = b.run(a.tensor, a.sf, NOBODYS, alpha=given, dtype="float32")
    expected = b.expect(a.values, alpha1=alpha1, alpha2=alpha2, c=backend.c)
    check_rows(got, NOBODYS, expected, "float32")


@pytest.mark.parametrize("kind", Stack.kinds)
@pytest.mark.parametrize("n, k", ((1, 96), (27, 48), (27, 96), (64, 96)))
@pytest.mark.parametrize("offsets", (NOBODYS, [0, 2, 2, 5]), ids=str)
def test_interleaved_rows_are_those_of_halves(backend, offsets, n, k, kind):
    """As gpt-oss has them, with its gate and its biases: bytes are those of halves."""
    rng, device = rng_of(6, n), backend.device
    a = Tokens(rng, device, 44, k, kind=kind, make=data.full_range)
    b = Stack(rng, device, 3, n, k, make=data.full_range)
    given = {"alpha": rng.standard_normal((3, 2 * n)).astype(np.float32) * 2.0**-10}
    given["bias"] = rng.standard_normal((3, 2 * n)).astype(np.float32)
    options = {"activation": "swiglu_oai", "limit": 7.0}
    of_rows = {name: floats(value, "float32", device) for name, value in given.items()}
    halves = b.run(a.tensor, a.sf, offsets, dtype="float32", **options, **of_rows)
    parts = {f"{name}{1 + i}": half for name, value in given.items()
             for i, half in enumerate(np.split(value, 2, axis=1))}  # fmt: skip
    expected = b.expect(a.values, c=backend.c, nvfp4=not a.halves, **parts, **options)
    check_rows(halves, offsets, expected, "float32")
    b.interleave()
    of_rows = {name: interleaved(value) for name, value in of_rows.items()}
    more = options | of_rows | {"gate_up": "interleaved"}
    got = b.run(a.tensor, a.sf, offsets, dtype="float32", **more)
    np.testing.assert_array_equal(got.view(np.uint32), halves.view(np.uint32))
    blocked = Stack(rng, device, 3, n, k, form="blocked")
    with pytest.raises(ValueError, match="^scale_layout: 'blocked' for sfb, expected 'linear'"):
        blocked.run(a.tensor, a.sf, offsets, **more)


def test_it_is_grouped_gemm_of_the_stack_and_the_activation(device):
    """Sums that are exact: of gates and of ups, before silu."""
    rng, n = rng_of(7), 37
    a, b = Tokens(rng, device, 60, 128), Stack(rng, device, 3, n, 128)
    alpha = floats(2.0 ** -rng.integers(4, 9, (3, 2 * n)), "float32", device)
    args, options = b.call(a.tensor, a.sf, [0, 20, 40, 60], alpha=alpha, out_dtype="float32")
    got = nvfp4kern.grouped_dual_gemm(*args, activation="relu", **options)
    gate, up = nvfp4kern.grouped_gemm(*args, **options).chunk(2, dim=1)
    np.testing.assert_array_equal(values(got), values(gate.relu() * up))


def test_infinities_are_the_oracles(device):
    rng = rng_of(8)
    a = Tokens(rng, device, 20, 512, make=lambda *of: data.exact_family(*of, low=2, high=4))
    b = Stack(rng, device, 1, 30, 512)
    got = b.run(a.tensor, a.sf, [0, 20])
    want = b.expect(a.values)(0, slice(0, 20)).rounded("float16")
    assert np.isposinf(want).any() and np.isneginf(want).any() and np.isfinite(want).any()
    assert reference.ulps(got, want, "float16").max() <= 1


@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
@pytest.mark.parametrize("kind", Stack.kinds)
@pytest.mark.parametrize("offsets", ([0, 1, 1, 2], [0, 9, 9, 140]), ids=str)
def test_infinite_sums(backend, offsets, kind, activation):
    rng, device, n = rng_of(9), backend.device, 48
    a = Tokens(rng, device, offsets[-1], 64, kind=kind)
    b = Stack(rng, device, 3, n, 64)
    alpha1, alpha2 = np.resize(INFINITE, (3, n)), np.tile(np.repeat(INFINITE, 8), (3, 1))
    given = floats(np.concatenate([alpha1, alpha2], axis=1), "float32", device)
    got = b.run(a.tensor, a.sf, offsets, alpha=given, activation=activation, dtype="float32")
    options = {"alpha1": alpha1, "alpha2": alpha2, "activation": activation}
    expected = b.expect(a.values, c=backend.c, nvfp4=not a.halves, **options)
    with np.errstate(invalid="ignore"):
        check_rows(got, offsets, expected, "float32")


@pytest.mark.parametrize("n", [64, 72, 128])
@pytest.mark.parametrize("form", ["linear", "blocked"])
def test_hopper_takes_ups_within_an_atom(gpu, n, form):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    rng, device = rng_of(20), gpu.device
    a, b = Tokens(rng, device, 4, 64), Stack(rng, device, 1, n, 64, form=form)
    plan = b.explain(a.tensor, a.sf, [0, 4])
    assert plan["backend"] == "sm90" and "declined" not in plan
