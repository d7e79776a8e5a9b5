"""grouped_gemm and grouped_dual_gemm with quantized=True and any activation, with and without a
limit."""

from typing import get_args

import numpy as np
import pytest
from encoded_calls import check_bytes, check_interval, encode
from expert_calls import Matrices, Stack, Tokens, drawn, interleaved
from generators import INFINITE, floats, from_numpy, raw, rng_of
from rows import tiles_of

import nvfp4kern
from nvfp4kern.types import ActivationAlone
from nvfp4kern.verify import data, reference

SAME_BYTES = ("silu", "relu", "relu2", "identity")
BOUNDED = ("gelu", "gelu_tanh", "swiglu_oai")
NO_CODES = "the operator has no kernel of it that writes codes"
LIMITED = ("silu", "swiglu_oai")
CASES = [(name, np.inf) for name in reference.ACTIVATIONS] + [(name, 7.0) for name in LIMITED]
OTHERS = [case for case in CASES if case != ("silu", np.inf)]
BOTH = [(Stack, *case) for case in OTHERS]
BOTH += [(Matrices, name, np.inf) for name in ("identity", *reference.ALONE)]
OF = {"ids": lambda value: getattr(value, "name", None)}
of_both = pytest.mark.parametrize("experts, name, limit", BOTH, **OF)


def gating_of(name, limit):
    return {"activation": name} | ({"limit": limit} if limit < np.inf else {})


def test_every_activation_is_tested():
    assert {*SAME_BYTES, *BOUNDED} == {*reference.ACTIVATIONS}
    assert {name for experts, name, _ in BOTH if experts is Matrices} == {
        *get_args(ActivationAlone)
    }


@pytest.mark.any_path
@pytest.mark.parametrize(
    "experts, name, limit, kind",
    [(*case, kind) for case in BOTH if case[1] in SAME_BYTES for kind in case[0].kinds],
    **OF,
)
@pytest.mark.parametrize("offsets", ([3, 10, 10, 41], [0, 2, 2, 5]), ids=str)
def test_exact_sums_give_the_same_bytes_on_every_backend(
    device, offsets, experts, name, limit, kind
):
    rng, n = rng_of(1), 80
    a = Tokens(rng, device, 45, 144, kind=kind)
    stack = experts(rng, device, 3, n, 144, kind=kind)
    gating = gating_of(name, limit)
    got = encode(a, stack, offsets, global_scale=0.25, **gating)
    check_bytes(got, offsets, a.values, stack, 0.25, **gating)
    if limit < np.inf:
        assert (got[0] != encode(a, stack, offsets, global_scale=0.25, activation=name)[0]).any()


@pytest.mark.any_path
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("name, limit", [("relu2", np.inf), ("silu", 7.0)])
def test_alphas_and_biases_come_before_it(device, name, limit, form):
    """Powers of two, and biases that leave sums exact; blocked ups begin within an atom."""
    rng, offsets, n = rng_of(2), [0, 9, 9, 40], 48
    a, stack = Tokens(rng, device, 40, 64), Stack(rng, device, 3, n, 64, form=form)
    bias, gating = rng.integers(-9, 10, (3, 2 * n)).astype(np.float32), gating_of(name, limit)
    given = {"bias": floats(bias, "float16", device), "gate_up": "halves"}
    if form == "linear":
        stack.interleave()
        given = {"bias": interleaved(given["bias"]), "gate_up": "interleaved"}
    got = encode(a, stack, offsets, global_scale_inverse=4.0, **given, **gating)
    check_bytes(got, offsets, a.values, stack, inverse=4.0, bias=bias, **gating)


@pytest.mark.any_path
@pytest.mark.parametrize("name", ("relu2", "silu"))
@pytest.mark.parametrize("offsets", ([0, 9, 9, 40], [0, 2, 2, 5]), ids=str)
def test_row_scales_alphas_and_biases_of_one_matrix_come_before_it(device, offsets, name):
    """In this order; rows of the result are made of tokens by index. Powers of two, and biases that
    leave sums exact."""
    rng, n, per_token = rng_of(9), 48, 2
    a, stack = Tokens(rng, device, 23, 64), Matrices(rng, device, 3, n, 64)
    count = offsets[-1] + 1
    rows = drawn(rng, offsets, count, 23, per_token)
    factors = (2.0 ** rng.integers(-2, 3, 23)).astype(np.float32)
    alpha = (2.0 ** rng.integers(-3, 1, (3, n))).astype(np.float32)
    bias = rng.integers(-9, 10, (3, n)).astype(np.float32)
    options = {"rows": from_numpy(rows, device), "rows_per_token": per_token, "count": count}
    options |= {"alpha": floats(alpha, "float32", device), "bias": floats(bias, "bfloat16", device)}
    options |= {"row_scale": floats(factors, "float32", device), "activation": name}
    got = encode(a, stack, offsets, global_scale=0.5, **options)
    scaled = a.of(rows // per_token) * factors[np.clip(rows // per_token, 0, 22), None]
    for g, w in enumerate(stack.values):
        of = slice(offsets[g], offsets[g + 1])
        h = reference.gemm(scaled[of], w, alpha=alpha[g], bias=bias[g]).rounded("float32")
        codes, sf, _ = reference.quantize(reference.alone(h, name), 0.5)
        np.testing.assert_array_equal(got[0][of], codes)
        np.testing.assert_array_equal(got[1][of], sf)


@of_both
def test_full_range_is_within_the_bound(backend, experts, name, limit):
    """Of sums that round, and of activations whose last bits may differ."""
    rng, device, offsets = rng_of(3), backend.device, [0, 9, 9, 40]
    a = Tokens(rng, device, 41, 304, make=data.full_range)
    stack = experts(rng, device, 3, 48, 304, make=data.full_range)
    for alpha, scale in ((1e-5, 0.125), (2.0**-24, None), (1e-3, 1e3)):
        options = {"alpha": alpha} | gating_of(name, limit)
        got = encode(a, stack, offsets, global_scale=scale, **options)
        check_interval(got, offsets, stack.expect(a.values, c=backend.c, **options), scale)


@pytest.mark.parametrize("name, limit", [case for case in OTHERS if case[0] in BOUNDED])
def test_what_gpt_oss_has_is_within_the_bound(backend, name, limit):
    """Rows in turn, biases, a scale of the exponent, tokens by index, bf16 tokens."""
    rng, device, offsets, n, per_token = rng_of(4), backend.device, [0, 9, 9, 40], 80, 2
    a = Tokens(rng, device, 24, 96, kind="W4A16", make=data.full_range)
    stack = Stack(rng, device, 3, n, 96, make=data.full_range)
    bias = rng.standard_normal((3, 2 * n)).astype(np.float32)
    rows = drawn(rng, offsets, 42, 24, per_token)
    options = {"activation": name, "limit": limit}
    options |= {"activation_scale": 1.25} if name == "swiglu_oai" else {}
    gates, ups = np.split(bias, 2, axis=1)
    expected = stack.expect(
        a.of(rows // per_token), c=backend.c, nvfp4=False, alpha=2.0**-9, bias1=gates, bias2=ups,
        **options,
    )  # fmt: skip
    stack.interleave()
    options |= {"alpha": 2.0**-9, "bias": interleaved(floats(bias, "float32", device))}
    options |= {"rows": from_numpy(rows, device), "rows_per_token": per_token, "count": 42}
    got = encode(a, stack, offsets, gate_up="interleaved", global_scale=0.25, **options)
    check_interval(got, offsets, expected, 0.25)


@pytest.mark.any_path
@of_both
@pytest.mark.parametrize("offsets", ([0, 1, 1, 2], [0, 9, 9, 140]), ids=str)
def test_infinite_sums(device, offsets, experts, name, limit):
    """Each block has one sort of gates, and others between them: -inf has no gelu, inf a limit."""
    rng, n = rng_of(5), 16 * len(INFINITE)
    a, stack = Tokens(rng, device, offsets[-1], 64), experts(rng, device, 3, n, 64)
    alpha1, alpha2 = np.resize(np.float32([1e-3, 1]), (3, n)), np.ones((3, n), np.float32)
    alpha1[:, ::2] = np.repeat(INFINITE, 8)
    alphas = (alpha1, alpha2)[: stack.parts]
    alpha = floats(np.concatenate(alphas, axis=1), "float32", device)
    gating = gating_of(name, limit)
    got = encode(a, stack, offsets, alpha=alpha, **gating)
    if name in SAME_BYTES:
        return check_bytes(got, offsets, a.values, stack, alphas=alphas, **gating)
    named = {"alpha1": alpha1, "alpha2": alpha2} if stack.parts == 2 else {"alpha": alpha1}
    expected = stack.expect(a.values, **named, **gating)
    with np.errstate(all="ignore"):
        for g in range(3):
            rows = slice(offsets[g], offsets[g + 1])
            x = expected(g, rows).exact.reshape(-1, len(INFINITE), 16)
            np.testing.assert_array_equal(got[1][rows] == 0x7F, np.isnan(x).any(axis=-1), str(g))
            infinite = np.isinf(x).any(axis=-1) & ~np.isnan(x).any(axis=-1)
            assert (got[1][rows][infinite] == 0x7E).all()
    assert (got[1] == 0x7F).any()


@of_both
def test_the_bytes_of_quantize_of_our_own_results_on_the_cpu(device, experts, name, limit):
    """In float32 they have the same bits whatever is made of them; silu is another."""
    if device != "cpu" or name == "silu":
        pytest.skip("GPUs may add in another order, and silu is quantize's")
    rng, offsets = rng_of(6), [0, 9, 9, 40]
    a = Tokens(rng, device, 40, 304, make=data.full_range)
    stack = experts(rng, device, 3, 48, 304, make=data.full_range)
    args, options = stack.call(a.tensor, a.sf, offsets, alpha=1e-4, **gating_of(name, limit))
    function = getattr(nvfp4kern, stack.name)
    got = function(*args, **options, quantized=True, global_scale=0.01)
    x = function(*args, **options, out_dtype="float32")
    want = nvfp4kern.quantize(x, global_scale=0.01)
    np.testing.assert_array_equal(raw(got.data), raw(want.data))
    np.testing.assert_array_equal(raw(got.scales), raw(want.scales))


# --- Which kernels ---


def plan_of(gpu, tokens, **options):
    rng = rng_of(7)
    a, stack = Tokens(rng, gpu.device, tokens, 256), Stack(rng, gpu.device, 2, 64, 256)
    return stack.explain(a.tensor, a.sf, [0, 1, tokens], quantized=True, **options)


@pytest.mark.parametrize("tokens", (3, 300))
@pytest.mark.parametrize("name, limit", OTHERS)
def test_hopper_has_kernels_of_its_own(gpu, name, limit, tokens):
    """The gemv of few rows has none, so tiles take them; sm100 leaves codes to sm80."""
    plan = plan_of(gpu, tokens, **gating_of(name, limit))
    if gpu.name == "sm90":
        assert plan["kernel"].startswith("sm90_encoded_grouped_dual_gemm_")
    else:
        assert plan["kernel"] == "sm80_grouped_dual_gemm_t32_nvfp4"


@pytest.mark.parametrize("kind", Matrices.kinds)
@pytest.mark.parametrize("name", ("identity", "relu2"))
def test_kernels_of_one_matrix(gpu, name, kind):
    """sm90's are of NVFP4 weights; sm100 writes no codes of it."""
    rng = rng_of(7)
    a = Tokens(rng, gpu.device, 9, 256, kind=kind)
    b = Matrices(rng, gpu.device, 2, 64, 256, kind=kind)
    plan = b.explain(a.tensor, a.sf, [0, 1, 9], quantized=True, activation=name)
    if gpu.name == "sm90" and kind in ("NVFP4", "W4A16"):
        assert plan["kernel"].startswith("sm90_activated_grouped_gemm_")
        assert plan.get("declined") is None
        return
    reasons = {"sm90": "the operator has no kernel of it", "sm100": NO_CODES}
    declined = f"{gpu.name}: {reasons[gpu.name]}" if gpu.name in reasons else None
    assert plan["kernel"].startswith("sm80_activated_grouped_gemm_t32_")
    assert plan.get("declined") == declined and plan["batch_invariant"]


def test_silu_keeps_its_kernels(gpu):
    if gpu.name != "sm90":
        pytest.skip("one kernel for all")
    for tokens in (3, 300):
        kernel = plan_of(gpu, tokens)["kernel"]
        assert kernel.startswith(("sm90_grouped_dual_gemm_", "sm90_gemv_experts_"))


@pytest.mark.parametrize(
    "tile, row_limit",
    [(tile, "") for tile in tiles_of("sm90/gemm", "activated_grouped_gemm")] + [("v16", "50")],
)
def test_wgmma_tiles(gpu, tile, row_limit, monkeypatch):
    """Blocks at the end of a tile, and rows of which a tile has none."""
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", row_limit)
    rng, device, offsets, per_token = rng_of(8), gpu.device, [0, 5, 5, 44, 180], 3
    for experts, form, n, gating in (
        (Stack, "blocked", 128, ("relu2", np.inf)),
        (Stack, "linear", 208, ("silu", 7.0)),
        (Matrices, "blocked", 272, ("silu", np.inf)),
        (Matrices, "linear", 208, ("identity", np.inf)),
    ):
        a, stack = Tokens(rng, device, 140, 320), experts(rng, device, 4, n, 320, form=form)
        rows, gating = drawn(rng, offsets, 183, 140, per_token), gating_of(*gating)
        by_index = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
        got = encode(a, stack, offsets, count=183, global_scale=0.5, **by_index, **gating)
        check_bytes(got, offsets, a.of(rows // per_token), stack, 0.5, **gating)


def test_hopper_refuses_tiles_without_a_kernel(gpu, monkeypatch):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:v112")
    with pytest.raises(nvfp4kern.BackendError, match="the operator has no kernel of it"):
        plan_of(gpu, 300, activation="gelu")
