"""combine, against the float32 operations of the contract, to the bit, and float64."""

import numpy as np
import pytest
import torch
from generators import DTYPES, POISON, Guarded, floats, from_numpy, rng_of, unchanged, values

import nvfp4kern
from nvfp4kern.verify import reference, routing


def rounded(rng, dtype, *shape):
    """Numbers of `dtype`, of both signs and many sizes."""
    return reference.round_to(
        rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape)), dtype
    )


def scattered(rng, m, k, rows, absent=0.3):
    """A row for each selection, or -1; different selections have different rows while there are."""
    row_of = rng.permutation(max(rows, m * k))[: m * k] % max(rows, 1)
    row_of[rng.random(m * k) < absent] = -1
    return row_of if rows else np.full(m * k, -1)


def operands(rng, m, k, h, rows, dtypes=("bfloat16", "float32")):
    """Products whose rows that nobody selects are NaN, row_of, weights that are NaN where it is
    -1."""
    products, weights = rounded(rng, dtypes[0], rows, h), rounded(rng, dtypes[1], m, k)
    row_of = scattered(rng, m, k, rows)
    products[np.setdiff1d(np.arange(rows), row_of)] = np.nan
    weights[row_of.reshape(m, k) < 0] = np.nan
    return products, row_of, weights


def given(device, dtypes, products, row_of, weights, residual=None):
    tensors = [floats(products, dtypes[0], device), from_numpy(np.int32(row_of), device)]
    tensors.append(floats(weights, dtypes[1], device))
    return tensors, {} if residual is None else {"residual": floats(residual, dtypes[2], device)}


def check(got, want, dtype):
    verdict = reference.check_bits(values(got), reference.round_to(want, dtype))
    assert verdict.ok, str(verdict)


def check_float64(got, products, row_of, weights, dtype):
    """By sums in float64: a check that shares no order of operations with combine."""
    parts = np.where((row_of < 0)[:, None], 0, products[row_of].astype(np.float64))
    parts = parts.reshape(*weights.shape, -1) * np.nan_to_num(weights)[..., None]
    error = (weights.shape[1] + 2) * 2.0**-24 * np.abs(parts).sum(1)
    verdict = reference.check(values(got), reference.Expected.within(parts.sum(1), error), dtype)
    assert verdict.ok, str(verdict)


SHAPES = [  # M, k, H, rows of the products
    (1, 8, 2048, 8), (1, 1, 1, 1), (3, 2, 8, 6), (5, 9, 40, 45), (2, 8, 1030, 16), (7, 17, 24, 60),
    (33, 6, 72, 198), (4, 32, 16, 3), (2, 3, 300, 1),
]  # fmt: skip


@pytest.mark.parametrize("m, k, h, rows", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_order(device, dtype, m, k, h, rows):
    rng = rng_of(m, k, h)
    for weights_dtype in ("float32", dtype):
        dtypes = dtype, weights_dtype
        products, row_of, weights = operands(rng, m, k, h, rows, dtypes)
        tensors, _ = given(device, dtypes, products, row_of, weights)
        want = routing.combine(products, row_of, weights)
        for out_dtype in {"float32", dtype}:
            out = Guarded((m, h), out_dtype, device)
            with unchanged(tensors):
                nvfp4kern.combine(*tensors, out=out.tensor)
            assert out.guards_intact()
            check(out.tensor, want, out_dtype)
            check_float64(out.tensor, products, row_of, weights, out_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", (0, 8, 12, 3))
@pytest.mark.parametrize("h", (64, 80, 24))
def test_rows_of_any_alignment(device, dtype, gap, h):
    """Rows of 32 bytes, of 16 or of any number; between them is NaN, and what must stay."""
    rng = rng_of(h, gap)
    products, row_of, weights = operands(rng, 3, 5, h, 9, (dtype, "float32"))
    wide = np.pad(products, ((0, 0), (0, gap)), constant_values=np.nan)
    tensors, _ = given(device, (dtype, "float32"), wide, row_of, weights)
    want = routing.combine(products, row_of, weights)
    for out_dtype in {"float32", dtype}:
        out = Guarded((3, h + gap), out_dtype, device)
        between = out.tensor[:, h:].clone()
        nvfp4kern.combine(tensors[0][:, :h], *tensors[1:], out=out.tensor[:, :h])
        check(out.tensor[:, :h], want, out_dtype)
        assert out.guards_intact() and torch.equal(out.tensor[:, h:], between)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, k, h", [(3, 4, 64), (2, 9, 37), (5, 0, 24)])
def test_residual(device, dtype, m, k, h):
    """It is added last, in float32: rounding the sum before would give other bits."""
    rng = rng_of(m, k, h)
    products, row_of, weights = operands(rng, m, k, h, 50)
    residual = rounded(rng, dtype, m, h)
    tensors, options = given(
        device, ("bfloat16", "float32", dtype), products, row_of, weights, residual
    )
    got = nvfp4kern.combine(*tensors, **options, out_dtype="bfloat16")
    want = routing.combine(products, row_of, weights, residual)
    check(got, want, "bfloat16")
    if k > 4:
        twice = reference.round_to(routing.combine(products, row_of, weights), "bfloat16")
        assert (reference.round_to(twice + residual, "bfloat16") != values(got)).any()


def test_the_order_is_that_of_selection(device):
    """Sums of large numbers that cancel: any other order gives another number."""
    products = np.float32([[2.0**24], [1], [1], [-(2.0**24)]])
    for row_of, want in (
        ([0, 1, 2, 3], 0),
        ([1, 2, 0, 3], 2),
        ([0, 3, 1, 2], 2),
        ([1, 0, 3, 2], 1),
    ):
        tensors, _ = given(
            device, ("float32", "float32"), products, np.array(row_of), np.ones((1, 4))
        )
        assert nvfp4kern.combine(*tensors).tolist() == [[want]]


def test_products_are_rounded_before_they_are_added(device):
    """A fused multiplication would give 2^-24."""
    x = np.float32(1 + 2.0**-12)
    products = np.float32([[x], [1 + 2.0**-11]])
    tensors, _ = given(
        device, ("float32", "float32"), products, np.arange(2), np.float32([[x, -1]])
    )
    assert nvfp4kern.combine(*tensors, out_dtype="float32").tolist() == [[0]]


def test_special_numbers(device):
    """NaN and infinity propagate from rows that are selected, and from no other; sums of zeros are
    +0; large sums overflow."""
    rows = [[np.nan, np.inf, -0.0, 60000], [1, -np.inf, -0.0, 60000], [np.nan] * 4]
    row_of, weights = np.array([0, 1, 1, -1, -1, -1]), np.float32([[1, 1], [1, 0], [0, 1]])
    tensors, _ = given(device, ("float32", "float32"), np.float32(rows), row_of, weights)
    got = values(nvfp4kern.combine(*tensors))
    want = np.float32([[np.nan, np.nan, 0, np.inf], [1, -np.inf, 0, 60000], [0, 0, 0, 0]])
    assert reference.check_bits(got, want).ok


def test_subnormal_results(device):
    weights = np.float32([[2.0**-20, 2.0**-20]])
    products = np.float32([[2.0**-5, -(2.0**-140)], [2.0**-6, 2.0**-120]])
    for dtype in DTYPES:
        tensors, _ = given(device, ("float32", "float32"), products, np.arange(2), weights)
        got = nvfp4kern.combine(*tensors, out_dtype=dtype)
        check(got, routing.combine(products, np.arange(2), weights), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", (0, 1))
def test_any_strides(device, dtype, shift):
    """Rows of a wider matrix, at any address; a result that is a column slice, or transposed."""
    rng = rng_of(5, shift)
    m, k, h = 6, 3, 40
    products, row_of, weights = operands(rng, m, k, h, 20, (dtype, dtype))
    want = routing.combine(products, row_of, weights)

    def within(matrix):
        rows, cols = matrix.shape
        wide = floats(np.full((rows, cols + 16), np.nan), dtype, device)
        inner = wide[:, shift : shift + cols]
        inner.copy_(floats(matrix, dtype, device))
        return inner

    tensors = within(products), from_numpy(np.int32(row_of), device), within(weights)
    wide = torch.full((m, h + 8), POISON, dtype=tensors[0].dtype, device=device)
    inner = wide[:, shift : shift + h]
    assert nvfp4kern.combine(*tensors, out=inner) is inner
    check(inner, want, dtype)
    inner.fill_(POISON)
    assert (wide == POISON).all()
    columns = Guarded((m, h), dtype, device, order="column")
    nvfp4kern.combine(*tensors, out=columns.tensor)
    assert columns.guards_intact()
    check(columns.tensor, want, dtype)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 1, 3, 2)])
def test_any_rank(device, lead):
    rng = rng_of(6)
    m, k, h = int(np.prod(lead)), 3, 24
    products, row_of, weights = operands(rng, m, k, h, m * k)
    residual = rounded(rng, "float16", m, h)
    (x, rows, w), _ = given(device, ("bfloat16", "float32"), products, row_of, weights)
    got = nvfp4kern.combine(
        x, rows, w.view(*lead, k), residual=floats(residual, "float16", device).view(*lead, h)
    )
    assert got.shape == (*lead, h)
    check(got.reshape(m, h), routing.combine(products, row_of, weights, residual), "bfloat16")


@pytest.mark.parametrize(
    "m, k, h, rows", [(0, 4, 16, 4), (3, 0, 16, 4), (3, 4, 0, 4), (3, 4, 16, 0)]
)
def test_empty(device, m, k, h, rows):
    """Without selections, or rows, every sum is +0."""
    rng = rng_of(7)
    dtypes = "bfloat16", "float32"
    tensors, _ = given(device, dtypes, *operands(rng, m, k, h, rows))
    out = Guarded((m, h), "float16", device)
    nvfp4kern.combine(*tensors, out=out.tensor)
    assert out.guards_intact() and out.tensor.tolist() == [[0] * h] * m


def test_many_selections_may_have_one_row(device):
    row_of = np.zeros(12, int)
    products, weights = np.float32([[1, -2]]), np.ones((3, 4))
    tensors, _ = given(device, ("float16", "float16"), products, row_of, weights)
    assert nvfp4kern.combine(*tensors).tolist() == [[4, -8]] * 3


def test_other_tokens_change_nothing(device):
    """M decides how many threads a CTA has, and where a CTA of the CPU ends."""
    rng = rng_of(8)
    m, k, h = 300, 4, 520
    products, row_of, weights = operands(rng, m, k, h, m * k)
    tensors, _ = given(device, ("bfloat16", "float32"), products, row_of, weights)
    whole = nvfp4kern.combine(*tensors)
    x, rows, w = tensors
    for first, end in ((0, 1), (7, 9), (100, 250)):
        part = nvfp4kern.combine(x, rows[first * k : end * k], w[first:end])
        assert torch.equal(part.view(torch.int16), whole[first:end].view(torch.int16))


@pytest.mark.parametrize("local", (False, True))
def test_after_route(device, local):
    """Rows by expert, brought back: with weights of one each token has the sum of its experts."""
    rng = rng_of(9, local)
    m, n, k, h = 40, 8, 3, 24
    logits = floats(rng.standard_normal((m, n)), "float32", device)
    options = {}
    here = np.arange(n)
    if local:
        here = np.array([-1, 0, 1, -1, 2, -1, 3, 4])
        options = {"expert_map": from_numpy(np.int32(here), device), "num_local_experts": 5}
    weights, ids, _, offsets, sorted_rows, row_of = nvfp4kern.route(
        k=k, logits=logits, permutation=True, return_row_of=True, **options
    )
    of_experts = rng.integers(-8, 9, (n, h)).astype(np.float32)
    rows, used = sorted_rows.cpu().numpy(), int(offsets[-1])
    products = np.full((m * k, h), np.nan, np.float32)
    ids = ids.cpu().numpy()
    products[:used] = of_experts[ids.ravel()[rows[:used]]]
    got = nvfp4kern.combine(
        floats(products, "float16", device), row_of, torch.ones_like(weights), out_dtype="float32"
    )
    want = np.where((here[ids] >= 0)[..., None], of_experts[ids], 0).sum(1)
    np.testing.assert_array_equal(values(got), want)


def test_numpy():
    rng = rng_of(10)
    products, row_of, weights = operands(rng, 5, 2, 24, 10, ("float16", "float32"))
    args = products.astype(np.float16), row_of.astype(np.int32), weights
    got = nvfp4kern.combine(*args, out_dtype="float32")
    assert isinstance(got, np.ndarray)
    check(got, routing.combine(products, row_of, weights), "float32")
